-- Warnings of legal, but hardly intended calls: each once a statement, and none for other calls.
--
-- Protects from: a lock that is released at once, or acquired under a snapshot without the last
-- holder's changes, without a warning; a warning that floods the log, or comes without a fault, so
-- that people ignore warnings.

CREATE FUNCTION in_plpgsql(name text, scope redlock_scope DEFAULT 'transaction') RETURNS boolean
LANGUAGE plpgsql AS $$ BEGIN RETURN redlock_acquire(name, scope => $2) > 0; END $$;
CREATE FUNCTION in_sql(name text) RETURNS boolean
LANGUAGE sql SET work_mem = '1MB' AS $$ SELECT redlock_acquire(name) > 0 $$;
CREATE PROCEDURE in_procedure(name text, scope redlock_scope DEFAULT 'transaction')
LANGUAGE plpgsql AS $$ BEGIN PERFORM redlock_acquire(name, scope => $2); END $$;
CREATE TABLE t (n integer);
INSERT INTO t VALUES (1), (2), (3);

--
-- Released at the end of the statement
--

\set VERBOSITY sqlstate
SELECT redlock_acquire('a') > 0;
\set VERBOSITY default
SELECT redlock_acquire('a') > 0;
SELECT redlock_try('a');
-- several locks: one warning
SELECT redlock_acquire('a' || n) > 0 AS got, redlock_try('a') FROM t;
-- another warning in the next statement
SELECT redlock_try('a');
-- other kinds of statements
EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) SELECT redlock_try('a');
COPY (SELECT redlock_try('a')) TO STDOUT;
CREATE TABLE made AS SELECT redlock_try('a');
UPDATE t SET n = n WHERE redlock_try('a');
PREPARE p AS SELECT redlock_try('a');
EXECUTE p;
VALUES (redlock_try('a'));
-- a statement that fails
SELECT redlock_acquire('a') / 0;

-- no warning at session scope
SELECT redlock_acquire('a', scope => 'session') > 0;
-- a warning for an added hold of transaction scope
SELECT redlock_acquire('a') > 0;
SELECT redlock_release('a');

-- no warning where work can follow under the lock: functions, procedures, DO
SELECT in_plpgsql('a');
SELECT in_sql('a');
SELECT in_plpgsql('a' || n) FROM t;
CALL in_procedure('a');
DO $$ BEGIN PERFORM redlock_acquire('a'); PERFORM redlock_acquire('a'); END $$;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); COMMIT; PERFORM redlock_acquire('b'); END $$;
DO $$ BEGIN COMMIT; PERFORM redlock_acquire('a'); ROLLBACK; EXECUTE 'SELECT redlock_acquire(''a'')'; END $$;
CALL redlock_run('a', 'SELECT redlock_acquire(''a'')');
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM redlock_acquire('a'); RETURN new; END $$;
CREATE TRIGGER fires BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire();
INSERT INTO t VALUES (4), (5);
-- AFTER triggers run after the executor, deferred triggers after the statement
CREATE TRIGGER fires_after AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire();
CREATE CONSTRAINT TRIGGER fires_last AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION fire();
INSERT INTO t SELECT 6 FROM generate_series(1, 1000);
DELETE FROM t WHERE n = 6;

-- no warning in a transaction block
BEGIN;
SELECT redlock_acquire('a') > 0;
SELECT in_plpgsql('a');
SAVEPOINT s;
SELECT redlock_acquire('b') > 0;
COMMIT;
BEGIN; DECLARE c CURSOR FOR SELECT redlock_acquire('a') > 0 AS got; FETCH c; COMMIT;
-- no warning in a string of statements, a single transaction
CREATE TABLE made_too AS SELECT redlock_try('a')\; DROP TABLE made_too;
-- a warning after the string
SELECT redlock_try('a');

--
-- The snapshot is older than the grant
--

BEGIN ISOLATION LEVEL REPEATABLE READ;
\set VERBOSITY sqlstate
SELECT redlock_acquire('a') > 0;
\set VERBOSITY default
SELECT redlock_acquire('a') > 0;
-- once a statement, at each scope, in functions too
SELECT redlock_acquire('a' || n, scope => 'session') > 0 AS got FROM t;
SELECT in_plpgsql('b'), in_plpgsql('c', 'session');
SELECT in_sql('a');
CALL in_procedure('d');
DO $$ BEGIN PERFORM redlock_acquire('a'); PERFORM redlock_acquire('a', scope => 'call'); END $$;
SELECT redlock_release_all();
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT redlock_acquire('a') > 0;
COMMIT;
-- no warning at READ COMMITTED
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT count(*) > 0 FROM t;
SELECT redlock_acquire('a') > 0;
COMMIT;

-- a statement as transaction: only the warning of the release
SET default_transaction_isolation = 'repeatable read';
SELECT redlock_acquire('a') > 0;
-- no warning: the next transaction has a new snapshot
SELECT redlock_acquire('a', scope => 'session') > 0;
SELECT redlock_release('a');
-- transactions that can do more work under the lock
SELECT in_plpgsql('a');
CALL in_procedure('a');
DO $$ BEGIN PERFORM redlock_acquire('a'); END $$;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); COMMIT; PERFORM redlock_acquire('a'); END $$;
-- the command has the snapshot of the CALL
CALL redlock_run('a', 'SELECT 1');
CREATE TABLE made_too AS SELECT redlock_try('a')\; DROP TABLE made_too;
RESET default_transaction_isolation;
SELECT redlock_acquire('a', scope => 'session') > 0;
SELECT redlock_release('a');

-- no lock is left
SELECT count(*) FROM redlock_locks WHERE state <> 'releasing';

DROP TABLE t, made;
DROP FUNCTION in_plpgsql, in_sql, fire;
DROP PROCEDURE in_procedure;
