-- CALL redlock_run: a command under a lock.  (specs/skip.spec shows the skip while another session
-- holds the lock.)
--
-- Protects from: a job that runs without its lock, or leaves the lock behind, in particular after
-- an error; a COMMIT of the job that frees the lock; lost changes of a job; a command that does
-- nothing without a message, or fails without advice; an error context that outlives its call; a
-- record of a run in a transaction block that outlives a rollback, or is missing after the commit.

CREATE VIEW held AS
    SELECT resource, state, scope FROM redlock_locks
     WHERE state IN ('held', 'lost') AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";
CREATE VIEW gates AS
    SELECT count(*) AS gates FROM pg_locks
     WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();
CREATE TABLE work (n integer, under text);

-- the command runs under the lock, and its changes stay
CALL redlock_run('job', $$INSERT INTO work SELECT 1, string_agg(resource || ' ' || scope, ',') FROM held$$);
TABLE work;
TABLE held;
TABLE gates;
-- several commands; results are dropped
CALL redlock_run('job', 'INSERT INTO work VALUES (2); SELECT * FROM work; DELETE FROM work WHERE n = 1');
TABLE work;
-- each command sees the changes of the commands before
CALL redlock_run('job', 'INSERT INTO work VALUES (7); UPDATE work SET n = 8 WHERE n = 7; UPDATE work SET n = n + 1 WHERE n = 8');
CALL redlock_run('job', 'CREATE TABLE of_this_run (n int); INSERT INTO of_this_run VALUES (1); DO $$ BEGIN UPDATE of_this_run SET n = 2; COMMIT; END $$; UPDATE of_this_run SET n = n + 1');
TABLE work;
TABLE of_this_run;
DROP TABLE of_this_run;
DELETE FROM work WHERE n = 9;
CALL redlock_run('job', '; SELECT 1;;');
CALL redlock_run('job', 'DO $$ BEGIN RAISE NOTICE ''in DO''; END $$');
-- all arguments, by position and by name
CALL redlock_run('job', 'INSERT INTO work SELECT 3, ttl FROM redlock_locks WHERE resource = ''job'' AND state = ''held''', '1 s', '20 s', '1 ms', '1 min');
SELECT pg_sleep(0.01);
CALL redlock_run(resource => 'job 2', command => 'DELETE FROM work WHERE n = 2', wait => NULL, ttl => NULL, hold_at_least => NULL, hold_at_most => NULL);
TABLE work;
TABLE gates;

-- wrong arguments
CALL redlock_run('job', NULL);
CALL redlock_run(NULL, 'DELETE FROM work');
CALL redlock_run('', 'DELETE FROM work');
CALL redlock_run('job', 'DELETE FROM work', wait => '-1 s');
CALL redlock_run('job', 'DELETE FROM work', ttl => '0');
CALL redlock_run('job', 'DELETE FROM work', ttl => '1 year');
CALL redlock_run('job');
SELECT redlock_run('job', 'DELETE FROM work');
\set VERBOSITY sqlstate
CALL redlock_run('job', NULL);
\set VERBOSITY default
-- nothing to do
CALL redlock_run('job', '');
\echo :SQLSTATE
CALL redlock_run('job', E' \n\t');
CALL redlock_run('job', ' ;; -- DELETE FROM work
	/* DELETE FROM work */ ;');
-- commands for transactions and savepoints
CALL redlock_run('job', 'COMMIT');
\echo :SQLSTATE
CALL redlock_run('job', 'DELETE FROM work; COMMIT');
CALL redlock_run('job', 'BEGIN');
CALL redlock_run('job', 'ROLLBACK');
CALL redlock_run('job', 'SAVEPOINT s');
CALL redlock_run('job', 'ROLLBACK TO s');
CALL redlock_run('job', 'PREPARE TRANSACTION ''t''');
-- COPY from and to the client
CALL redlock_run('job', 'COPY work TO STDOUT');
\echo :SQLSTATE
CALL redlock_run('job', 'DELETE FROM work; COPY work FROM STDIN');
-- commands that PostgreSQL refuses within a function
CALL redlock_run('job', 'VACUUM work');
\echo :SQLSTATE
CALL redlock_run('job', 'CREATE INDEX CONCURRENTLY ON work (n)');
CALL redlock_run('job', 'CREATE DATABASE regress_redlock');
CALL redlock_run('job', 'DO $$ BEGIN EXECUTE ''VACUUM work''; END $$');
-- no such hint for other errors with the same code
CALL redlock_run('job', 'DO $$ BEGIN RAISE ''mine'' USING ERRCODE = ''25001'', HINT = ''my hint''; END $$');
CALL redlock_run('job', 'DO $$ BEGIN RAISE ''mine'' USING ERRCODE = ''25001''; END $$');
CALL redlock_run('job', 'SELECT 1; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE');
-- the way of the hint
CALL redlock_lock('job');
VACUUM work;
SELECT redlock_release('job');
TABLE work;
TABLE held;

-- a command that fails: its error, and the lock is free
CALL redlock_run('job', 'INSERT INTO work VALUES (4); SELECT 1 / 0');
TABLE held;
TABLE gates;
CALL redlock_run('job', 'there is no such command');
CALL redlock_run('job', 'SELECT * FROM no_such_table');
TABLE held;
TABLE gates;
TABLE work;

-- The failed runs have left no error context behind.
SELECT 1 / 0;
DO $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		BEGIN
			CALL redlock_run('job', CASE i % 3 WHEN 0 THEN 'SELECT 1 / 0' WHEN 1 THEN 'VACUUM' ELSE '' END);
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
	END LOOP;
	PERFORM 1 / 0;
END $$;
CALL redlock_run('kept by run', 'SELECT 1', hold_at_least => '1 min');
\set VERBOSITY terse
CALL redlock_run('kept by run', 'SELECT 1 / 0');
\set VERBOSITY default
SELECT 1 / 0;

-- a command that commits keeps the lock
CREATE PROCEDURE in_steps() LANGUAGE plpgsql AS
$$
	BEGIN
		FOR i IN 1 .. 3 LOOP
			INSERT INTO work SELECT i, string_agg(resource || ' ' || scope || ' ' || state, ',') FROM held;
			IF i = 2 THEN ROLLBACK; ELSE COMMIT; END IF;
			PERFORM redlock_check('job');
		END LOOP;
	END
$$;
TRUNCATE work;
CALL redlock_run('job', 'CALL in_steps()');
TABLE work;
TABLE held;
TABLE gates;
CALL redlock_run('job', 'DO $$ BEGIN INSERT INTO work VALUES (5); COMMIT; PERFORM redlock_check(''job''); PERFORM 1 / 0; END $$');
TABLE work;
TABLE held;

-- in a procedure, which holds the lock until the procedure ends
CREATE PROCEDURE two_jobs() LANGUAGE plpgsql AS
$$
	BEGIN
		CALL redlock_run('job', 'CALL in_steps()');
		COMMIT;
		PERFORM redlock_check('job');
		CALL redlock_run('job', 'CALL redlock_run(''another'', ''CALL in_steps()'')');
	END
$$;
TRUNCATE work;
CALL two_jobs();
TABLE work;
TABLE held;
TABLE gates;

-- in a transaction block: held until the transaction ends, and the command can't commit
TRUNCATE work;
BEGIN;
CALL redlock_run('job', 'INSERT INTO work VALUES (6)');
TABLE held;
COMMIT;
TABLE work;
TABLE held;
BEGIN;
CALL redlock_run('job', 'INSERT INTO work VALUES (7)');
ROLLBACK;
TABLE work;
TABLE held;
BEGIN;
CALL redlock_run('job', 'CALL in_steps()');
ROLLBACK;
TABLE work;
TABLE held;

-- a record in a transaction block belongs to the transaction
DELETE FROM redlock_runs;
CREATE VIEW runs AS
    SELECT resource, command, status, token > 0 AS token, ended >= started AS ended, message
      FROM redlock_runs ORDER BY started;
BEGIN;
CALL redlock_run('job', 'SELECT 1', record => true);
TABLE runs;
TABLE held;
ROLLBACK;
TABLE runs;
BEGIN;
CALL redlock_run('job', 'INSERT INTO work SELECT 8, status FROM runs', record => true, fence => true);
SELECT token = (SELECT token FROM redlock_fences WHERE resource = 'job') AS fenced FROM redlock_runs;
SAVEPOINT s;
CALL redlock_run('to savepoint', 'SELECT 1', record => true);
ROLLBACK TO s;
CALL redlock_run('bad', 'SELECT 1 / 0', record => true);
ROLLBACK TO s;
COMMIT;
TABLE runs;
DELETE FROM work WHERE n = 8 RETURNING under;
-- also at the higher isolation levels, and in a transaction that becomes read-only
DELETE FROM redlock_runs;
BEGIN ISOLATION LEVEL SERIALIZABLE;
\set VERBOSITY terse
CALL redlock_run('job', 'SET TRANSACTION READ ONLY', record => true);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM redlock_runs;
CALL redlock_run('job', 'SELECT 2', record => true);
COMMIT;
\set VERBOSITY default
-- in a function, and where an error is caught
CREATE FUNCTION run_recorded(command text) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN CALL redlock_run('job', command, record => true); END $$;
SELECT run_recorded('SELECT 3');
DO $$ BEGIN
	CALL redlock_run('job', 'SELECT 4', record => true);
	BEGIN
		CALL redlock_run('job', 'SELECT 5', record => true);
		CALL redlock_run('job', 'SELECT 1 / 0', record => true);
	EXCEPTION WHEN division_by_zero THEN
		CALL redlock_run('job', 'SELECT 6', record => true);
	END;
	BEGIN
		CALL redlock_run('job', 'SELECT 7', record => true);
	EXCEPTION WHEN division_by_zero THEN
	END;
END $$;
CALL redlock_run('job', 'SELECT run_recorded(''SELECT 8'')', record => true);
TABLE runs;
TABLE held;
TABLE gates;
DROP FUNCTION run_recorded;
DELETE FROM redlock_runs;
DELETE FROM redlock_fences WHERE resource = 'job';

-- a lock that the session already holds
SELECT redlock_acquire('job', scope => 'session') > 0;
CALL redlock_run('job', 'CALL in_steps()');
TABLE held;
SELECT redlock_release('job');
TABLE held;
TABLE work;
-- the command can't release the lock of the run, but can acquire the lock at session scope
CALL redlock_run('job', 'SELECT redlock_release(''job'')');
TABLE held;
CALL redlock_run('job', 'SELECT redlock_acquire(''job'', scope => ''session'')');
TABLE held;
SELECT redlock_release_all();
TABLE gates;

-- the trigger leaves wrong rows to the constraints of the table
\set VERBOSITY terse
SET session_replication_role = replica;
INSERT INTO redlock_runs (id, resource, command, host, database, role, pid, server, host_id, session, started, status)
VALUES (NULL, 'job', 'SELECT', 'h', 'd', 'r', 1, 1, '1', 1, now(), 'running');
BEGIN;
INSERT INTO redlock_runs (id, resource, command, host, database, role, pid, server, host_id, session, started, status)
VALUES (gen_random_uuid(), 'job', 'SELECT', 'h', 'd', 'r', 1, 1, '1', 1, now(), 'running');
UPDATE redlock_runs SET status = NULL;
ROLLBACK;
RESET session_replication_role;
\set VERBOSITY default

DROP VIEW held, gates, runs;
DROP TABLE work;
DROP PROCEDURE in_steps, two_jobs;
