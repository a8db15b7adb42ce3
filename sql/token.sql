-- The fencing token, which redlock_acquire and redlock_token return.
--
-- Protects from: a token without a lock, or of another lock; a token that changes while the lock is
-- held, or is not larger for the next holder; a token lost by a savepoint or a COMMIT that the lock
-- survives.
--
-- The test compares tokens, and never prints a token: tokens are times.

CREATE VIEW held AS
    SELECT resource, scope, token = redlock_token(resource) AS same FROM redlock_locks
     WHERE state = 'held' AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";

-- not held: no token, and no error; also as the first call of a session
\c -
SELECT redlock_token('job') IS NULL AS none;
SELECT redlock_acquire('job', scope => 'session') AS token \gset
SELECT redlock_token('job') = :token AS same, redlock_token('other') IS NULL AS none,
       redlock_token('JOB') IS NULL AS none, redlock_token('job ') IS NULL AS none;
TABLE held;

-- near the time in microseconds, and below 2^53, up to which Lua counts
SELECT abs(:token - extract(epoch FROM clock_timestamp()) * 1000000) < 3600000000 AS of_now,
       :token < 2::numeric ^ 53 AS small;

-- the same for each acquisition of one hold, at any scope
SELECT redlock_acquire('job', scope => 'session') = :token AS same;
SELECT redlock_try('job', scope => 'session');
SELECT redlock_token('job') = :token AS same;
BEGIN;
SELECT redlock_acquire('job') = :token AS same;
SELECT redlock_token('job') = :token AS same;
COMMIT;
DO $$ BEGIN PERFORM redlock_acquire('job', scope => 'call'); COMMIT; END $$;
SELECT redlock_token('job') = :token AS same;
SELECT redlock_release('job'), redlock_release('job');
SELECT redlock_token('job') = :token AS same;
SELECT redlock_release('job');
SELECT redlock_token('job') IS NULL AS none;

-- the next token is larger, also after a try, and with hold limits
SELECT redlock_acquire('job', scope => 'session') AS next \gset
SELECT :next > :token AS larger, redlock_token('job') = :next AS same, redlock_release('job');
SELECT redlock_try('job', scope => 'session');
SELECT redlock_token('job') AS token \gset
SELECT :token > :next AS larger;
SELECT redlock_release('job');
SELECT redlock_acquire('job', scope => 'session', hold_at_least => '1 ms') AS next \gset
SELECT :next > :token AS larger;
SELECT pg_sleep(0.01);
SELECT redlock_release('job');
SELECT redlock_acquire('job', wait => '30 s', scope => 'session', hold_at_most => '1 h') > :next AS larger;
SELECT redlock_release_all();
SELECT redlock_token('job') IS NULL AS none;
-- 300 tokens, each larger than the last
DO $$
DECLARE
	before bigint := 0;
	token bigint;
BEGIN
	FOR i IN 1 .. 300 LOOP
		token := redlock_acquire('again', scope => 'session');
		IF token <= before OR token IS DISTINCT FROM redlock_token('again') THEN
			RAISE WARNING '% after %, and redlock_token says %', token, before, redlock_token('again');
		END IF;
		before := token;
		PERFORM redlock_release('again');
	END LOOP;
END $$;

-- in a transaction: until its end
BEGIN;
SELECT redlock_acquire('job') AS token \gset
SELECT redlock_token('job') = :token AS same;
COMMIT;
SELECT redlock_token('job') IS NULL AS none;
BEGIN;
SELECT redlock_acquire('job') > :token AS larger;
ROLLBACK;
SELECT redlock_token('job') IS NULL AS none;

-- savepoints: set before the lock was acquired, and after
BEGIN;
SAVEPOINT before;
SELECT redlock_acquire('job') AS token \gset
SAVEPOINT after;
SELECT redlock_acquire('job') = :token AS same;
ROLLBACK TO after;
SELECT redlock_token('job') = :token AS same;
RELEASE after;
ROLLBACK TO before;
SELECT redlock_token('job') IS NULL AS none;
SELECT redlock_acquire('job') > :token AS larger;
TABLE held;
COMMIT;
-- at session scope, the token survives the transaction of the acquisition
BEGIN;
SELECT redlock_acquire('job', scope => 'session') AS token \gset
SELECT redlock_acquire('transaction') AS other \gset
ROLLBACK;
SELECT redlock_token('job') = :token AS same, redlock_token('transaction') IS NULL AS none;
SELECT redlock_release('job');

-- each resource has its own token
BEGIN;
SELECT redlock_acquire('a') AS a, redlock_acquire('b', scope => 'session') AS b \gset
SELECT redlock_token('a') = :a AS a, redlock_token('b') = :b AS b;
SELECT redlock_release('b');
SELECT redlock_token('a') = :a AS a, redlock_token('b') IS NULL AS none;
TABLE held;
COMMIT;

-- at call scope, over the COMMITs of a procedure
DO $$
DECLARE
	token bigint := redlock_acquire('job', scope => 'call');
BEGIN
	RAISE NOTICE 'same: %', redlock_token('job') = token;
	COMMIT;
	RAISE NOTICE 'same: %', redlock_token('job') = token;
	ROLLBACK;
	RAISE NOTICE 'same: %', redlock_token('job') = token;
	PERFORM redlock_release('job');
	RAISE NOTICE 'none: %', redlock_token('job') IS NULL;
END $$;
CALL redlock_run('job', $$ DO $d$ BEGIN RAISE NOTICE 'token: %', redlock_token('job') > 0; END $d$ $$);
SELECT redlock_token('job') IS NULL AS none;

-- A lost lease: redlock_token still returns the token, and redlock_check fails.
SET redlock.on_loss = 'error';
SELECT redlock_acquire('job', scope => 'session', hold_at_most => '50 ms') AS token \gset
DO $$ BEGIN FOR i IN 1 .. 3000 LOOP EXIT WHEN EXISTS (SELECT FROM redlock_locks WHERE resource = 'job' AND state = 'lost'); PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT redlock_token('job') = :token AS same;
SELECT redlock_check('job');
\echo :SQLSTATE
SELECT redlock_release('job');
SELECT redlock_token('job') IS NULL AS none;
SELECT redlock_acquire('job', wait => '30 s', scope => 'session') > :token AS larger;
SELECT redlock_release('job');
RESET redlock.on_loss;

-- wrong names
SELECT redlock_token(NULL);
\echo :SQLSTATE
SELECT redlock_token('');
\echo :SQLSTATE
SELECT redlock_token(repeat('x', 256));
\echo :SQLSTATE
-- unusual names
SELECT redlock_acquire(name, scope => 'session') = redlock_token(name) AS same
  FROM unnest(ARRAY['it''s "quoted" %s', U&'\00E4\20AC\+01F512', repeat('x', 255), ' ']) name;
SELECT redlock_release_all();

-- each role may call redlock_token, also in read-only transactions, unless an administrator revokes
-- the right
CREATE ROLE regress_redlock_user;
SET ROLE regress_redlock_user;
BEGIN READ ONLY;
SELECT redlock_acquire('job') = redlock_token('job') AS same;
COMMIT;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION redlock_token(text) FROM PUBLIC;
SET ROLE regress_redlock_user;
SELECT redlock_token('job');
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION redlock_token(text) TO PUBLIC;
DROP ROLE regress_redlock_user;

SELECT count(*) AS gates FROM pg_locks WHERE locktype = 'userlock';
DROP VIEW held;
