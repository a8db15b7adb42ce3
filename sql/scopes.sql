-- When a lock ends: at transaction scope, at session scope, and at both.
--
-- Protects from: a lock that outlives its transaction or savepoint, or ends too early; a scope that
-- ends the other scope's hold; a count lost when a savepoint is released into its parent; a
-- prepared transaction whose lock has no owner; a pooler's DISCARD ALL that leaves locks to the
-- next client; pg_advisory_unlock_all that frees a lock of redlock_pg.

CREATE VIEW held AS
    SELECT resource, scope FROM redlock_locks
     WHERE state = 'held' AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";
CREATE VIEW gates AS
    SELECT count(*) AS gates FROM pg_locks
     WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();
CREATE TABLE work (n integer);

--
-- Transaction scope
--

-- commit and rollback, after reading or writing
BEGIN;
SELECT redlock_try('a');
TABLE held;
COMMIT;
TABLE held;
BEGIN;
SELECT redlock_try('a');
ROLLBACK;
TABLE held;
BEGIN;
INSERT INTO work VALUES (1);
SELECT redlock_try('a');
COMMIT;
TABLE held;
BEGIN;
INSERT INTO work VALUES (2);
SELECT redlock_try('a');
ROLLBACK;
TABLE held;
TABLE work;
TABLE gates;

-- each transaction of a chain has its own locks
BEGIN;
SELECT redlock_try('a');
COMMIT AND CHAIN;
TABLE held;
SELECT redlock_try('b');
ROLLBACK AND CHAIN;
TABLE held;
COMMIT;

-- an error ends the lock with the transaction
BEGIN;
SELECT redlock_acquire('a') > 0;
SELECT 1 / 0;
COMMIT;
TABLE held;
TABLE gates;

-- without a transaction block: the lock ends with the statement
SELECT redlock_acquire('a') > 0;
TABLE held;
SELECT redlock_acquire('a') / 0;
TABLE held;
TABLE gates;

-- acquired twice: the end of the transaction frees the lock
BEGIN;
SELECT redlock_acquire('a') = redlock_acquire('a');
COMMIT;
TABLE held;
TABLE gates;

-- no release before the end of the transaction
BEGIN;
SELECT redlock_try('a');
SELECT redlock_release('a');
SELECT redlock_release_all();
TABLE held;
COMMIT;
TABLE held;

--
-- Savepoints
--

-- a rollback frees a lock acquired after the savepoint, not a lock acquired before
BEGIN;
SAVEPOINT before;
SELECT redlock_try('a');
SAVEPOINT after;
ROLLBACK TO after;
TABLE held;
ROLLBACK TO before;
TABLE held;
TABLE gates;
SELECT redlock_check('a');
ROLLBACK TO before;
SELECT redlock_try('a');
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- the same after an error
BEGIN;
SAVEPOINT before;
SELECT redlock_try('a');
SAVEPOINT after;
SELECT 1 / 0;
ROLLBACK TO after;
TABLE held;
SELECT 1 / 0;
ROLLBACK TO before;
TABLE held;
TABLE gates;
COMMIT;

-- several levels at once
BEGIN;
SELECT redlock_try('0');
SAVEPOINT s1;
SELECT redlock_try('1');
SAVEPOINT s2;
SELECT redlock_try('2');
SAVEPOINT s3;
SELECT redlock_try('3'), redlock_try('1');
TABLE held;
ROLLBACK TO s2;
TABLE held;
ROLLBACK TO s1;
TABLE held;
ROLLBACK;
TABLE held;
TABLE gates;

-- RELEASE SAVEPOINT passes locks to the parent
BEGIN;
SAVEPOINT s1;
SAVEPOINT s2;
SELECT redlock_try('a');
RELEASE SAVEPOINT s2;
TABLE held;
ROLLBACK TO s1;
TABLE held;
TABLE gates;
SAVEPOINT s3;
SELECT redlock_try('b');
RELEASE SAVEPOINT s3;
SAVEPOINT s4;
ROLLBACK TO s4;
TABLE held;
RELEASE SAVEPOINT s1;
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- acquired outside of a savepoint, and inside
BEGIN;
SELECT redlock_acquire('a') AS token \gset
SAVEPOINT s1;
SELECT redlock_acquire('a') = :token;
ROLLBACK TO s1;
SELECT redlock_acquire('a') = :token;
RELEASE SAVEPOINT s1;
SAVEPOINT s2;
SELECT redlock_acquire('a') = :token;
SAVEPOINT s3;
SELECT redlock_acquire('a') = :token;
RELEASE SAVEPOINT s3;
ROLLBACK TO s2;
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- acquired again after a rollback to the savepoint: the next rollback frees the lock again
BEGIN;
SAVEPOINT s1;
SELECT redlock_acquire('a') AS inner \gset
ROLLBACK TO s1;
SELECT redlock_acquire('a') > :inner;
SAVEPOINT s2;
ROLLBACK TO s2;
TABLE held;
ROLLBACK TO s1;
TABLE held;
COMMIT;
TABLE gates;

--
-- PL/pgSQL blocks with EXCEPTION are savepoints
--

CREATE FUNCTION fail_after(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM redlock_acquire(name);
	RAISE EXCEPTION 'failed';
EXCEPTION WHEN raise_exception THEN
	RETURN (SELECT string_agg(resource, ', ') FROM held);
END $$;
CREATE FUNCTION succeed_after(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM redlock_acquire(name);
	RETURN (SELECT string_agg(resource, ', ') FROM held);
EXCEPTION WHEN raise_exception THEN
	RETURN 'unexpected';
END $$;
BEGIN;
SELECT redlock_try('a');
SELECT fail_after('b') AS held;
SELECT fail_after('a') AS held;
SELECT succeed_after('c') AS held;
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- the same after an error of redlock_check
CREATE FUNCTION wrong_after(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM redlock_acquire(name);
	PERFORM redlock_check('not ' || name);
	RETURN 'unexpected';
EXCEPTION WHEN object_not_in_prerequisite_state THEN
	RETURN 'caught: ' || SQLERRM;
END $$;
BEGIN;
SELECT wrong_after('a');
TABLE held;
TABLE gates;
COMMIT;

-- 100 failed blocks: no lock or gate piles up
DO $$
DECLARE
	before bigint := 0;
	token bigint;
BEGIN
	FOR i IN 1..100 LOOP
		BEGIN
			token := redlock_acquire('loop');
			IF token <= before THEN
				RAISE WARNING 'the token went from % to %', before, token;
			END IF;
			before := token;
			RAISE EXCEPTION 'again';
		EXCEPTION WHEN raise_exception THEN
			IF EXISTS (SELECT FROM held) THEN
				RAISE WARNING 'still held in round %', i;
			END IF;
		END;
	END LOOP;
END $$;
TABLE held;
TABLE gates;

--
-- Session scope
--

-- no commit, rollback or savepoint ends the lock
BEGIN;
SELECT redlock_try('commit', scope => 'session');
COMMIT;
BEGIN;
SELECT redlock_try('rollback', scope => 'session');
SAVEPOINT s;
SELECT redlock_try('savepoint', scope => 'session');
ROLLBACK TO s;
ROLLBACK;
TABLE held;
SELECT redlock_release('commit'), redlock_release('rollback'), redlock_release('savepoint');
TABLE held;
TABLE gates;

-- a rollback does not undo a release
BEGIN;
SELECT redlock_try('a', scope => 'session');
SAVEPOINT s;
SELECT redlock_release('a');
ROLLBACK TO s;
TABLE held;
COMMIT;
TABLE held;

-- procedures that commit
CREATE PROCEDURE two_transactions() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM redlock_acquire('transaction');
	PERFORM redlock_acquire('session', scope => 'session');
	INSERT INTO work VALUES (10);
	RAISE NOTICE 'before: %', (SELECT array_agg(resource) FROM held);
	COMMIT;
	RAISE NOTICE 'after commit: %', (SELECT array_agg(resource) FROM held);
	PERFORM redlock_acquire('transaction');
	ROLLBACK;
	RAISE NOTICE 'after rollback: %', (SELECT array_agg(resource) FROM held);
	PERFORM redlock_acquire('transaction');
END $$;
CALL two_transactions();
TABLE held;
SELECT redlock_release('session');
TABLE gates;

-- release_all counts acquisitions, and leaves transaction scope alone
BEGIN;
SELECT redlock_try('a'), redlock_try('a', scope => 'session'), redlock_try('a', scope => 'session'),
       redlock_try('b', scope => 'session'), redlock_try('c');
TABLE held;
SELECT redlock_release_all();
TABLE held;
SELECT redlock_release_all();
COMMIT;
TABLE held;
TABLE gates;

--
-- Both scopes on one resource
--

-- session scope ends first
BEGIN;
SELECT redlock_acquire('a', scope => 'session') AS token \gset
SELECT redlock_acquire('a') = :token;
TABLE held;
SELECT redlock_release('a');
TABLE held;
SELECT redlock_release('a');
COMMIT;
TABLE held;
TABLE gates;

-- transaction scope ends first
BEGIN;
SELECT redlock_acquire('a') AS token \gset
SELECT redlock_acquire('a', scope => 'session') = :token;
COMMIT;
TABLE held;
BEGIN;
SELECT redlock_acquire('a') = :token;
ROLLBACK;
TABLE held;
TABLE gates;
SELECT redlock_release('a');
TABLE held;
TABLE gates;

-- with savepoints
BEGIN;
SELECT redlock_try('a', scope => 'session');
SAVEPOINT s;
SELECT redlock_try('a');
SELECT redlock_release('a');
TABLE held;
ROLLBACK TO s;
TABLE held;
TABLE gates;
COMMIT;

--
-- Prepared transactions
--

-- a transaction with a lock can't be prepared
BEGIN;
INSERT INTO work VALUES (20);
SELECT redlock_try('a');
PREPARE TRANSACTION 'regress_redlock';
\echo :SQLSTATE
TABLE held;
TABLE gates;
SELECT gid FROM pg_prepared_xacts;

-- nor with a lock of a savepoint, held at both scopes
BEGIN;
SELECT redlock_try('a', scope => 'session');
SAVEPOINT s;
SELECT redlock_try('a');
PREPARE TRANSACTION 'regress_redlock';
TABLE held;
SELECT redlock_release('a');

-- a transaction can be prepared with a lock of session scope, or after a rollback of the lock
BEGIN;
INSERT INTO work VALUES (21);
SELECT redlock_try('a', scope => 'session');
SAVEPOINT s;
SELECT redlock_try('b');
ROLLBACK TO s;
PREPARE TRANSACTION 'regress_redlock';
TABLE held;
TABLE gates;
SELECT redlock_release('a');
TABLE held;
TABLE gates;
COMMIT PREPARED 'regress_redlock';
SELECT n FROM work WHERE n > 2 ORDER BY n;

--
-- DISCARD ALL, and similar commands
--

SELECT redlock_try('a', scope => 'session'), redlock_try('a', scope => 'session'),
       redlock_try('b', scope => 'session');
DISCARD PLANS;
DISCARD SEQUENCES;
DISCARD TEMP;
RESET ALL;
TABLE held;
DISCARD ALL;
TABLE held;
TABLE gates;
SELECT redlock_release('a');
DISCARD ALL;

-- after a loss, too, and with temporary tables to drop
SET redlock.on_loss = 'error';
CREATE TEMP TABLE scratch (n integer);
SELECT redlock_try('a', scope => 'session', hold_at_most => '100 ms');
DO
$$
	BEGIN
		WHILE NOT EXISTS (SELECT FROM redlock_locks WHERE resource = 'a' AND state = 'lost') LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
	END
$$;
DISCARD ALL;
SELECT to_regclass('pg_temp.scratch') IS NULL AS dropped, current_setting('redlock.on_loss') AS on_loss;
TABLE held;
TABLE gates;

-- DISCARD ALL fails in a transaction block: the locks stay
SELECT redlock_try('a', scope => 'session');
BEGIN;
SELECT redlock_check('a') > '0';
DISCARD ALL;
\echo :SQLSTATE
ROLLBACK;
TABLE held;
TABLE gates;
SELECT redlock_release('a');

--
-- pg_advisory_unlock_all frees the gate until its transaction ends, and never the lease
--

SELECT redlock_acquire('a', scope => 'session') AS token \gset
BEGIN;
SELECT pg_advisory_unlock_all();
TABLE gates;
TABLE held;
COMMIT;
TABLE gates;
SELECT pg_advisory_unlock_all();
TABLE gates;
-- a rollback does not restore the gate; the next commit does
BEGIN;
SELECT pg_advisory_unlock_all();
ROLLBACK;
TABLE gates;
TABLE held;
TABLE gates;
SELECT redlock_check('a') > '0';
SELECT redlock_acquire('a', scope => 'session') = :token;
SELECT redlock_release('a');
SELECT redlock_check('a') > '0';
SELECT redlock_release('a');
TABLE held;
TABLE gates;

-- at transaction scope, the gate stays, too
BEGIN;
SELECT redlock_try('a');
SELECT pg_advisory_unlock_all();
TABLE gates;
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- both scopes: the gate of transaction scope stays
BEGIN;
SELECT redlock_try('a'), redlock_try('a', scope => 'session');
SELECT pg_advisory_unlock_all();
SELECT redlock_release('a');
TABLE gates;
TABLE held;
SELECT redlock_try('a', scope => 'session');
SELECT pg_advisory_unlock_all();
SELECT redlock_release_all();
TABLE gates;
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- an advisory lock of the same hash is another lock
SELECT pg_advisory_lock(hashtextextended('a', 0));
SELECT redlock_try('a', scope => 'session');
SELECT redlock_release('a');
SELECT pg_advisory_unlock(hashtextextended('a', 0));

--
-- The end of the session frees its locks before the ttl ends
--

SELECT redlock_try('a', ttl => '60 s', scope => 'session');
BEGIN;
SELECT redlock_try('b', ttl => '60 s');
\c -
TABLE held;
SELECT redlock_acquire('a', wait => '30 s', scope => 'session') > 0,
       redlock_acquire('b', wait => '30 s', scope => 'session') > 0;
SELECT redlock_release_all();

DROP FUNCTION fail_after, succeed_after, wrong_after;
DROP PROCEDURE two_transactions;
DROP TABLE work;
DROP VIEW held, gates;
