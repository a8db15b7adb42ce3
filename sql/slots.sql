-- Locks with slots: arguments, and what a session sees of its own
SELECT redlock_acquire('slots', scope => 'session', slots => 0);
SELECT redlock_acquire('slots', scope => 'session', slots => 1001);
SELECT redlock_acquire('slots', scope => 'session', slots => NULL);
SELECT redlock_acquire('slots', scope => 'session', keep_idle => '1 s', slots => 2);
SELECT redlock_acquire('slots', scope => 'detached', hold_at_most => '1 s', slots => 2);
SELECT redlock_acquire(repeat('x', 251), scope => 'session', slots => 2);

SELECT redlock_try('slots', scope => 'session', slots => 2);
SELECT resource, state, scope, slot IN (1, 2) AS slot, pid = pg_backend_pid() AS own FROM redlock_locks WHERE resource = 'slots' AND state = 'held';
-- again: it is the same one
SELECT redlock_acquire('slots', scope => 'session', slots => 2) = redlock_token('slots') AS same;
SELECT redlock_try('slots', scope => 'session', slots => 3);
SELECT redlock_try('slots', scope => 'session');
SELECT redlock_release('slots'), redlock_release('slots');

-- scopes and limits
BEGIN;
SELECT redlock_acquire('slots', slots => 1000) > 0 AS acquired;
SELECT redlock_check('slots') > '0' AS valid;
COMMIT;
SELECT redlock_check('slots');
SELECT redlock_acquire('slots', scope => 'session', hold_at_most => '200 ms', slots => 2) > 0 AS acquired;
SELECT pg_sleep(0.3);
SELECT redlock_check('slots');
SELECT redlock_release_all();
SET redlock.keep_idle = '1 s'; -- not for slots
SELECT redlock_try('slots', scope => 'session', slots => 2), redlock_release('slots');
SELECT count(*) FROM redlock_locks WHERE resource = 'slots' AND state = 'idle';
RESET redlock.keep_idle;

-- a fence for each slot
SELECT redlock_acquire('slots', scope => 'session', slots => 2) = redlock_fence('slots') AS fenced;
SELECT count(*), bool_and(resource IN (E'slots\0011', E'slots\0012')) AS named FROM redlock_fences WHERE resource LIKE 'slots%';
SELECT redlock_release('slots');
DELETE FROM redlock_fences;

-- jobs
CALL redlock_run('slots', 'SELECT 1', slots => 2);
CALL redlock_lock('slots', slots => 2);
SELECT redlock_release('slots');
