-- Shared locks, in one session.
--
-- Protects from: a mode that is taken for another; sharing that becomes exclusive by itself,
-- or waits for itself; limits that are promised and not kept; a fence that one who shares the
-- lock does not pass, or that an older holder passes after it.

-- a mode is one of two
SELECT redlock_acquire('doc', mode => 'share');
SELECT redlock_acquire('doc', mode => NULL);
SELECT redlock_try('doc', mode => 'SHARED');
CALL redlock_run('doc', 'SELECT 1', mode => '');

-- limits are of one owner
SELECT redlock_acquire('doc', hold_at_most => '1 min', mode => 'shared');
SELECT redlock_try('doc', hold_at_least => '1 s', mode => 'shared');
SELECT count(*) FROM redlock_locks WHERE state = 'held';

-- a permit has one holder; a detached lock, too
SELECT redlock_acquire('doc', mode => 'shared', permits => 2);
CALL redlock_run('doc', 'SELECT 1', mode => 'shared', permits => 2);
SELECT redlock_acquire('doc', scope => 'detached', mode => 'shared');
SELECT redlock_try('doc', scope => 'detached', hold_at_most => '1 min', mode => 'shared');
SELECT redlock_try('doc', scope => 'session', mode => 'shared', permits => 1);
SELECT redlock_acquire('doc', permits => 2);
SELECT redlock_acquire('doc', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_release('doc');
SELECT count(*) FROM redlock_locks WHERE state = 'held';

-- it counts, as an exclusive one does, and has one token
SELECT redlock_acquire('doc', scope => 'session', mode => 'shared') AS token \gset
SELECT redlock_acquire('doc', scope => 'session', mode => 'shared') = :token AS same;
SELECT redlock_try('doc', scope => 'session', mode => 'shared'), redlock_token('doc') = :token AS same,
       redlock_check('doc') > '0' AS valid;
SELECT resource, state, scope, pid = pg_backend_pid() AS mine, database, token = :token AS token, mode
  FROM redlock_locks WHERE state = 'held';
SELECT mode, granted FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();

-- it never becomes exclusive
SELECT redlock_acquire('doc');
SELECT redlock_try('doc');
SELECT redlock_acquire_all(ARRAY['another', 'doc']);
SELECT redlock_token('another') IS NULL AS none;
CALL redlock_run('doc', 'SELECT 1');
SELECT redlock_release('doc'), redlock_release('doc'), redlock_release('doc');
SELECT redlock_release('doc');

-- one who holds it alone shares it with nobody; the next token is larger
SELECT redlock_acquire('doc', scope => 'session') > :token AS larger;
SELECT redlock_acquire('doc', scope => 'session', mode => 'shared') = redlock_token('doc') AS same;
SELECT state, mode FROM redlock_locks WHERE resource = 'doc' AND state = 'held';
SELECT redlock_release_all();

-- scopes, savepoints, and a run
BEGIN;
SELECT redlock_try('doc', mode => 'shared');
SAVEPOINT s;
SELECT redlock_try('doc', mode => 'shared');
ROLLBACK TO s;
SELECT redlock_token('doc') IS NOT NULL AS held;
COMMIT;
SELECT redlock_token('doc') IS NULL AS gone;
CALL redlock_run('doc', $$DO 'BEGIN PERFORM 1; COMMIT; END'$$, mode => 'shared', fence => true);
CALL redlock_lock('doc', mode => 'shared');
SELECT redlock_release('doc');

-- several at once
BEGIN;
SELECT array_length(redlock_acquire_all(ARRAY['a', 'b'], mode => 'shared'), 1);
SELECT DISTINCT resource, mode FROM redlock_locks WHERE state = 'held' ORDER BY 1;
COMMIT;

-- it stays by keep_idle, and an exclusive one of this server does not get it so
BEGIN;
SELECT redlock_acquire('stay', keep_idle => '30 s', mode => 'shared') AS token \gset
COMMIT;
SELECT state, mode, pid FROM redlock_locks WHERE resource = 'stay';
BEGIN;
SELECT redlock_acquire('stay', keep_idle => '30 s', mode => 'shared') = :token AS same;
COMMIT;
BEGIN;
SELECT redlock_acquire('stay') > :token AS larger;
COMMIT;
SELECT count(*) FROM redlock_locks WHERE resource = 'stay' AND state <> 'releasing';

-- advisory locks that are given up take the gate along, not the lock
SELECT redlock_try('doc', scope => 'session', mode => 'shared');
SELECT pg_advisory_unlock_all();
SELECT redlock_check('doc') > '0' AS valid;
SELECT mode, granted FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();
SELECT redlock_release('doc');

-- the fence: as often as it likes, and the rows are few
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS first \gset
SELECT redlock_fence('page') = :first AS passed;
SELECT redlock_fence('page') = :first AS passed;
COMMIT;
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS second \gset
SELECT redlock_fence('page') = :second AS passed;
COMMIT;
SELECT count(*), max(token) = :second AS newest FROM redlock_shared_fences WHERE resource = 'page';
SELECT token FROM redlock_fences WHERE resource = 'page';
BEGIN;
SELECT redlock_acquire('page') AS third \gset
SELECT redlock_fence('page') = :third AS passed;
COMMIT;
SELECT count(*) FROM redlock_shared_fences WHERE resource = 'page';
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS fourth \gset
SELECT redlock_fence('page') = :fourth AS passed;
COMMIT;
SELECT redlock_check('page');

-- who is older than the exclusive one that passed last does not pass; the tokens are put in place
-- by hand
UPDATE redlock_fences SET token = :fourth + 1000000000000 WHERE resource = 'page';
\set VERBOSITY sqlstate
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS token \gset
SELECT redlock_fence('page');
ROLLBACK;

-- nor an exclusive one that is older than a shared one that passed
UPDATE redlock_fences SET token = 0 WHERE resource = 'page';
INSERT INTO redlock_shared_fences (resource, token, passed_at) VALUES ('page', :fourth + 1000000000000, now());
BEGIN;
SELECT redlock_acquire('page') AS token \gset
SELECT redlock_fence('page');
ROLLBACK;
-- another shared one does
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS token \gset
SELECT redlock_fence('page') = :token AS passed;
COMMIT;
\set VERBOSITY default
DELETE FROM redlock_shared_fences;
DELETE FROM redlock_fences;
