-- CALL redlock_run_all: a command under several locks.
--
-- Protects from: a command that runs under a part of the locks; a lock that stays behind; a fence
-- for the first lock only; a record without the first name, or with the token of another lock; an
-- error that names another procedure.

CREATE VIEW held AS
    SELECT resource, state, scope FROM redlock_locks
     WHERE state IN ('held', 'lost') AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";
CREATE TABLE work (n integer, under text);
CREATE PROCEDURE in_steps() LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 2 LOOP
        INSERT INTO work SELECT i, string_agg(resource || ' ' || scope, ', ') FROM held;
        COMMIT;
    END LOOP;
END $$;

-- under all locks, each once, also after commits of the command
CALL redlock_run_all(ARRAY['c', 'a', 'b', 'a'], 'CALL in_steps()');
TABLE work;
TABLE held;
-- all arguments, by position and by name
CALL redlock_run_all(ARRAY['d', 'e'], 'INSERT INTO work SELECT 3, ttl FROM redlock_locks WHERE resource = ''e''', '1 s', '20 s', '1 ms', '1 min');
CALL redlock_run_all(resources => '{d2,e2}', command => 'DELETE FROM work', wait => NULL, ttl => NULL, hold_at_least => NULL, hold_at_most => NULL, keep_idle => '0', fence => false, record => false, mode => 'shared');
SELECT count(*) FROM work;

-- another holder of one lock: the call takes no lock, and the notice names the held lock
SELECT redlock_acquire('b', scope => 'detached', hold_at_most => '1 min') AS token \gset
\set VERBOSITY terse
CALL redlock_run_all(ARRAY['a', 'b', 'c'], 'INSERT INTO work VALUES (4)');
CALL redlock_run_all(ARRAY['a', 'b', 'c'], 'INSERT INTO work VALUES (4)', record => true);
\set VERBOSITY default
SELECT resource, status, token, message ~ '^Redlock "b" is held by another. .* detached' AS told FROM redlock_runs;
SELECT count(*) FROM work;
SELECT redlock_release('b', :token);
TABLE held;

-- the command fails: no lock stays
CALL redlock_run_all(ARRAY['b', 'a'], 'SELECT 1 / 0');
CALL redlock_run_all(ARRAY['a'], 'SELECT 1 / 0');
TABLE held;

-- fences of all names, also in shared mode
CALL redlock_run_all(ARRAY['b', 'a'], 'INSERT INTO work SELECT 5, redlock_token(''a'') || '' '' || redlock_token(''b'')', fence => true);
SELECT under = (SELECT string_agg(token::text, ' ' ORDER BY resource) FROM redlock_fences WHERE resource IN ('a', 'b')) AS fenced
  FROM work WHERE n = 5;
CALL redlock_run_all(ARRAY['s', 't'], 'SELECT 1', fence => true, mode => 'shared');
SELECT resource FROM redlock_shared_fences WHERE resource IN ('s', 't') ORDER BY 1;
UPDATE redlock_fences SET token = 9000000000000000 WHERE resource = 'b';
\set VERBOSITY terse
CALL redlock_run_all(ARRAY['a', 'b'], 'DELETE FROM work', fence => true);
\set VERBOSITY default
SELECT count(*) > 0 AS kept FROM work;

-- a run has one row, with the first name as given, and the token of this name
DELETE FROM redlock_runs;
CALL redlock_run_all(ARRAY['job', 'c', 'a'], 'INSERT INTO work SELECT 6, redlock_token(''job'')', record => true);
SELECT resource, command ~ '^INSERT' AS command, status, token::text = (SELECT under FROM work WHERE n = 6) AS token FROM redlock_runs;
BEGIN;
CALL redlock_run_all(ARRAY['block', 'a'], 'INSERT INTO work VALUES (7)', record => true, fence => true);
TABLE held;
COMMIT;
TABLE held;
SELECT resource, status FROM redlock_runs ORDER BY started;
DELETE FROM redlock_runs;

-- the command can't release a lock of the run; release_all leaves the locks
\set VERBOSITY terse
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT redlock_release(''b'')');
CALL redlock_run_all(ARRAY['a', 'b'], 'INSERT INTO work SELECT redlock_release_all(); INSERT INTO work SELECT 8 FROM held');
SELECT n, count(*) FROM work WHERE n IN (0, 8) GROUP BY 1 ORDER BY 1;
-- a lock that the session holds, and runs within a run
SELECT redlock_acquire('b', scope => 'session') > 0 AS acquired;
CALL redlock_run_all(ARRAY['a', 'b'], 'CALL redlock_run_all(ARRAY[''b'', ''c''], ''SELECT redlock_check(resource) FROM held'')');
TABLE held;
SELECT redlock_release('b');

-- commands that can't run, and wrong arguments
CALL redlock_run_all(NULL, 'SELECT 1');
CALL redlock_run_all('{}', 'SELECT 1');
CALL redlock_run_all(ARRAY['a', NULL], 'SELECT 1');
CALL redlock_run_all(ARRAY['a', '(b)'], 'SELECT 1');
CALL redlock_run_all(ARRAY['a', 'b'], NULL);
CALL redlock_run_all(ARRAY['a', 'b'], '');
CALL redlock_run_all(ARRAY['a', 'b'], 'COMMIT');
CALL redlock_run_all(ARRAY['a', 'b'], 'COPY work TO STDOUT');
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT 1', wait => '-1 s');
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT 1', fence => NULL);
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT 1', record => NULL);
CALL redlock_run_all('a', 'SELECT 1');
SELECT redlock_run_all(ARRAY['a', 'b'], 'SELECT 1');
BEGIN READ ONLY;
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT 1', fence => true);
ROLLBACK;
SET redlock.allowed_scopes = 'session';
CALL redlock_run_all(ARRAY['a', 'b'], 'SELECT 1');
RESET redlock.allowed_scopes;
\set VERBOSITY default
TABLE held;

DROP VIEW held;
DROP TABLE work;
DROP PROCEDURE in_steps;
DELETE FROM redlock_fences WHERE resource IN ('a', 'b', 'job', 'block', 'c', 's', 't');
