-- Shared locks, in one session.
--
-- Protects from: a mode mistaken for another; a reader that becomes a writer, or waits for itself;
-- limits that are accepted and not kept; a fence that a reader does not pass, or an older holder
-- passes after a newer reader or writer.

-- wrong modes
SELECT redlock_acquire('doc', mode => 'share');
SELECT redlock_acquire('doc', mode => NULL);
SELECT redlock_try('doc', mode => 'SHARED');
CALL redlock_run('doc', 'SELECT 1', mode => '');

-- hold limits are for exclusive mode
SELECT redlock_acquire('doc', hold_at_most => '1 min', mode => 'shared');
SELECT redlock_try('doc', hold_at_least => '1 s', mode => 'shared');
SELECT count(*) FROM redlock_locks WHERE state = 'held';

-- permits and detached locks are exclusive
SELECT redlock_acquire('doc', mode => 'shared', permits => 2);
CALL redlock_run('doc', 'SELECT 1', mode => 'shared', permits => 2);
SELECT redlock_acquire('doc', scope => 'detached', mode => 'shared');
SELECT redlock_try('doc', scope => 'detached', hold_at_most => '1 min', mode => 'shared');
SELECT redlock_try('doc', scope => 'session', mode => 'shared', permits => 1);
SELECT redlock_acquire('doc', permits => 2);
SELECT redlock_acquire('doc', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_release('doc');
SELECT count(*) FROM redlock_locks WHERE state = 'held';

-- acquisitions in shared mode count, and keep the token
SELECT redlock_acquire('doc', scope => 'session', mode => 'shared') AS token \gset
SELECT redlock_acquire('doc', scope => 'session', mode => 'shared') = :token AS same;
SELECT redlock_try('doc', scope => 'session', mode => 'shared'), redlock_token('doc') = :token AS same,
       redlock_check('doc') > '0' AS valid;
SELECT resource, state, scope, pid = pg_backend_pid() AS mine, database, token = :token AS token, mode
  FROM redlock_locks WHERE state = 'held';
SELECT mode, granted FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();

-- a reader never becomes a writer
SELECT redlock_acquire('doc');
SELECT redlock_try('doc');
SELECT redlock_acquire_all(ARRAY['another', 'doc']);
SELECT redlock_token('another') IS NULL AS none;
CALL redlock_run('doc', 'SELECT 1');
SELECT redlock_release('doc'), redlock_release('doc'), redlock_release('doc');
SELECT redlock_release('doc');

-- a writer stays a writer; the next token is larger
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

-- several locks at once
BEGIN;
SELECT array_length(redlock_acquire_all(ARRAY['a', 'b'], mode => 'shared'), 1);
SELECT DISTINCT resource, mode FROM redlock_locks WHERE state = 'held' ORDER BY 1;
COMMIT;

-- keep_idle keeps the lease for readers; a writer of this server gets a new lease
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

-- after pg_advisory_unlock_all, the session has the lease, and the gate again
SELECT redlock_try('doc', scope => 'session', mode => 'shared');
SELECT pg_advisory_unlock_all();
SELECT redlock_check('doc') > '0' AS valid;
SELECT mode, granted FROM pg_locks WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();
SELECT redlock_release('doc');

-- readers pass the fence again and again, and leave few rows
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

-- a reader older than the last writer does not pass; the test writes the tokens by hand
UPDATE redlock_fences SET token = :fourth + 1000000000000 WHERE resource = 'page';
\set VERBOSITY sqlstate
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS token \gset
SELECT redlock_fence('page');
ROLLBACK;

-- a writer older than the last reader does not pass, either
UPDATE redlock_fences SET token = 0 WHERE resource = 'page';
INSERT INTO redlock_shared_fences (resource, token, passed_at) VALUES ('page', :fourth + 1000000000000, now());
BEGIN;
SELECT redlock_acquire('page') AS token \gset
SELECT redlock_fence('page');
ROLLBACK;
-- a reader passes
BEGIN;
SELECT redlock_acquire('page', mode => 'shared') AS token \gset
SELECT redlock_fence('page') = :token AS passed;
COMMIT;
\set VERBOSITY default
DELETE FROM redlock_shared_fences;
DELETE FROM redlock_fences;
