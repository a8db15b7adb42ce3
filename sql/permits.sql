-- Locks with permits: the arguments, and the view of a session's own permit
SELECT redlock_acquire('permits', scope => 'session', permits => 0);
SELECT redlock_acquire('permits', scope => 'session', permits => 1001);
SELECT redlock_acquire('permits', scope => 'session', permits => NULL);
SELECT redlock_acquire('permits', scope => 'session', keep_idle => '1 s', permits => 2);
SELECT redlock_acquire('permits', scope => 'detached', hold_at_most => '1 s', permits => 2);
SELECT redlock_acquire(repeat('x', 251), scope => 'session', permits => 2);

SELECT redlock_try('permits', scope => 'session', permits => 2);
SELECT resource, state, scope, permit IN (1, 2) AS permit, pid = pg_backend_pid() AS own FROM redlock_locks WHERE resource = 'permits' AND state = 'held';
-- acquired again: the same permit
SELECT redlock_acquire('permits', scope => 'session', permits => 2) = redlock_token('permits') AS same;
SELECT redlock_try('permits', scope => 'session', permits => 3);
SELECT redlock_try('permits', scope => 'session');
SELECT redlock_release('permits'), redlock_release('permits');

-- scopes and limits
BEGIN;
SELECT redlock_acquire('permits', permits => 1000) > 0 AS acquired;
SELECT redlock_check('permits') > '0' AS valid;
COMMIT;
SELECT redlock_check('permits');
SELECT redlock_acquire('permits', scope => 'session', hold_at_most => '200 ms', permits => 2) > 0 AS acquired;
SELECT pg_sleep(0.3);
SELECT redlock_check('permits');
SELECT redlock_release_all();
SET redlock.keep_idle = '1 s'; -- not for permits
SELECT redlock_try('permits', scope => 'session', permits => 2), redlock_release('permits');
SELECT count(*) FROM redlock_locks WHERE resource = 'permits' AND state = 'idle';
RESET redlock.keep_idle;

-- a fence for each permit
SELECT redlock_acquire('permits', scope => 'session', permits => 2) = redlock_fence('permits') AS fenced;
SELECT count(*), bool_and(resource IN (E'permits\0011', E'permits\0012')) AS named FROM redlock_fences WHERE resource LIKE 'permits%';
SELECT redlock_release('permits');
DELETE FROM redlock_fences;

-- jobs
CALL redlock_run('permits', 'SELECT 1', permits => 2);
CALL redlock_lock('permits', permits => 2);
SELECT redlock_release('permits');
