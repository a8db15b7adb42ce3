-- The scope "call": from the acquire to the end of the outermost CALL or DO.
--
-- Protects from: a COMMIT or ROLLBACK of a procedure that releases a lock of the procedure; a lock
-- that outlives the CALL or DO, in particular after an error; an inner CALL that ends a lock of the
-- outer CALL; a scope that releases a lock still held at another scope, or a lost count of a scope;
-- a lost lease that can't be released.

CREATE VIEW held AS
    SELECT resource, scope FROM redlock_locks
     WHERE state IN ('held', 'lost') AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";
CREATE VIEW gates AS
    SELECT count(*) AS gates FROM pg_locks
     WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();
CREATE TABLE work (n integer);

-- reports the held locks, and checks that each is valid
CREATE FUNCTION say(label text) RETURNS void LANGUAGE plpgsql AS
$$
	BEGIN
		PERFORM redlock_check(resource) FROM held;
		RAISE NOTICE '%: %', label,
			(SELECT coalesce(string_agg(resource || ' (' || scope || ')', ', '), 'nothing') FROM held);
	END
$$;

-- refused outside of CALL and DO
SELECT redlock_acquire('a', scope => 'call');
SELECT redlock_try('a', scope => 'call');
BEGIN;
SELECT redlock_acquire('a', scope => 'call');
ROLLBACK;
CREATE FUNCTION in_a_function() RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN RETURN redlock_acquire('a', scope => 'call'); END $$;
SELECT in_a_function();
\set VERBOSITY sqlstate
SELECT redlock_acquire('a', scope => 'call');
\set VERBOSITY default
-- within a DO, a function may use the scope
DO $$ BEGIN PERFORM in_a_function(); PERFORM say('in DO'); END $$;
TABLE held;
TABLE gates;

-- a lock survives the COMMITs and ROLLBACKs of a procedure
CREATE PROCEDURE commits() LANGUAGE plpgsql AS
$$
	BEGIN
		PERFORM redlock_acquire('a', scope => 'call');
		PERFORM redlock_acquire('b');
		PERFORM say('acquired');
		INSERT INTO work VALUES (1);
		COMMIT;
		PERFORM say('after COMMIT');
		INSERT INTO work VALUES (2);
		ROLLBACK;
		PERFORM say('after ROLLBACK');
		INSERT INTO work VALUES (3);
		COMMIT AND CHAIN;
		PERFORM say('after COMMIT AND CHAIN');
	END
$$;
CALL commits();
TABLE held;
TABLE gates;
TABLE work;
-- after 20 transactions: the same token, and one acquisition
DO
$$
	DECLARE
		token bigint := redlock_acquire('a', scope => 'call');
	BEGIN
		FOR i IN 1 .. 20 LOOP
			IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
			IF (SELECT l.token FROM redlock_locks l WHERE resource = 'a' AND state = 'held') <> token THEN
				RAISE WARNING 'another lease in round %', i;
			END IF;
		END LOOP;
		PERFORM say('after 20 transactions');
		RAISE NOTICE 'released: %', redlock_release_all();
	END
$$;
TABLE held;
TABLE gates;

-- acquired after a COMMIT
DO $$ BEGIN COMMIT; PERFORM redlock_acquire('a', scope => 'call'); PERFORM say('later'); END $$;
TABLE held;

-- an error ends the lock: before a COMMIT, after a COMMIT, and in the COMMIT
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); PERFORM 1 / 0; END $$;
TABLE held;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); COMMIT; PERFORM 1 / 0; END $$;
TABLE held;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); ROLLBACK; RAISE EXCEPTION 'failed'; END $$;
TABLE held;
CREATE TABLE deferred (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED);
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); INSERT INTO deferred VALUES (1), (1); COMMIT; END $$;
TABLE held;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); INSERT INTO deferred VALUES (1), (1); END $$;
TABLE held;
TABLE gates;
-- the next CALL works after the errors
CALL commits();
TABLE held;

-- nested calls: the end of the outermost call ends the locks
CREATE PROCEDURE inner_one() LANGUAGE plpgsql AS
$$
	BEGIN
		PERFORM redlock_acquire('inner', scope => 'call');
		PERFORM redlock_acquire('outer', scope => 'call');
		COMMIT;
		PERFORM say('in the inner');
	END
$$;
CREATE PROCEDURE outer_one() LANGUAGE plpgsql AS
$$
	BEGIN
		PERFORM redlock_acquire('outer', scope => 'call');
		CALL inner_one();
		PERFORM say('after the inner');
		COMMIT;
		PERFORM say('and a COMMIT');
		RAISE NOTICE 'released: %, %', redlock_release('inner'), redlock_release('outer');
		PERFORM say('released once');
		CALL inner_one();
	END
$$;
CALL outer_one();
TABLE held;
TABLE gates;
DO $$ BEGIN CALL outer_one(); PERFORM say('in DO'); END $$;
TABLE held;
-- a DO in a function that a DO calls
CREATE FUNCTION does() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN EXECUTE 'DO $d$ BEGIN PERFORM redlock_acquire(''a'', scope => ''call''); END $d$'; END $$;
DO $$ BEGIN PERFORM does(); PERFORM say('after the inner DO'); END $$;
TABLE held;
-- a DO in a SELECT: the lock lasts until the end of the transaction
SELECT does();
TABLE held;
BEGIN;
SELECT does();
TABLE held;
COMMIT;
TABLE held;
-- an SQL procedure
CREATE PROCEDURE in_sql() LANGUAGE sql AS
$$ SELECT redlock_acquire('a', scope => 'call'); SELECT say('in SQL'); $$;
CALL in_sql();
TABLE held;
TABLE gates;

-- in a transaction block: until the end of the transaction
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
TABLE held;
CALL in_sql();
TABLE held;
COMMIT;
TABLE held;
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
ROLLBACK;
TABLE held;
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
SELECT 1 / 0;
TABLE held;
ROLLBACK;
TABLE held;
-- a rollback to a savepoint does not end the lock
BEGIN;
SAVEPOINT s;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); PERFORM 1 / 0; END $$;
ROLLBACK TO s;
TABLE held;
COMMIT;
TABLE held;
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
SELECT redlock_release('a');
TABLE held;
COMMIT;
TABLE gates;
-- in a string of statements: until the end of the string
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$\; DO $$ BEGIN PERFORM say('second statement'); END $$;
TABLE held;
-- a transaction with a lock of call scope can't be prepared
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
PREPARE TRANSACTION 'p';
-- after the release, the transaction can be prepared
BEGIN;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
SELECT redlock_release('a');
PREPARE TRANSACTION 'p';
ROLLBACK PREPARED 'p';
ROLLBACK;
TABLE held;
TABLE gates;

-- blocks with exceptions
CREATE PROCEDURE catches() LANGUAGE plpgsql AS
$$
	BEGIN
		BEGIN
			PERFORM redlock_acquire('a', scope => 'call');
			PERFORM redlock_acquire('b');
			PERFORM 1 / 0;
		EXCEPTION WHEN division_by_zero THEN
			PERFORM say('caught');
		END;
		COMMIT;
		PERFORM say('after COMMIT');
		BEGIN
			PERFORM redlock_release('a');
			PERFORM redlock_acquire('c');
			PERFORM 1 / 0;
		EXCEPTION WHEN division_by_zero THEN
			PERFORM say('released all the same');
		END;
		ROLLBACK;
		BEGIN
			CALL fails();
		EXCEPTION WHEN raise_exception THEN
			PERFORM say('the inner CALL failed');
		END;
		COMMIT;
		PERFORM say('and it is still held');
	END
$$;
CREATE PROCEDURE fails() LANGUAGE plpgsql AS
$$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); RAISE EXCEPTION 'failed'; END $$;
CALL catches();
TABLE held;
TABLE gates;

-- all scopes on one resource: the last scope to end frees the lock
DO
$$
	BEGIN
		PERFORM redlock_acquire('a');
		PERFORM say('transaction');
		PERFORM redlock_acquire('a', scope => 'call');
		PERFORM say('and call');
		COMMIT;
		PERFORM say('call');
		PERFORM redlock_acquire('a', scope => 'session');
		PERFORM redlock_acquire('a');
		PERFORM say('all three');
	END
$$;
TABLE held;
SELECT count(DISTINCT token) AS leases, redlock_release('a') FROM redlock_locks WHERE state = 'held' GROUP BY 2;
TABLE held;
TABLE gates;
-- redlock_release ends session scope first
SELECT redlock_acquire('a', scope => 'session') > 0;
DO
$$
	BEGIN
		PERFORM redlock_acquire('a', scope => 'call');
		RAISE NOTICE 'released: %', redlock_release('a');
		PERFORM say('one left');
		COMMIT;
		PERFORM say('one left');
		RAISE NOTICE 'released: %', redlock_release('a');
		PERFORM say('none');
		RAISE NOTICE 'released: %', redlock_release('a');
	END
$$;
TABLE held;
TABLE gates;
-- three acquisitions at call scope, one at session scope
DO
$$
	BEGIN
		PERFORM redlock_acquire('a', scope => 'call') FROM generate_series(1, 3);
		PERFORM redlock_acquire('a', scope => 'session');
		RAISE NOTICE 'released: %', redlock_release_all();
		PERFORM say('none');
		PERFORM redlock_acquire('a', scope => 'call') FROM generate_series(1, 3);
		PERFORM redlock_acquire('a', scope => 'session');
		COMMIT;
	END
$$;
TABLE held;
SELECT redlock_release_all();
TABLE gates;
-- released at call scope, still held at transaction scope
BEGIN;
SELECT redlock_acquire('a') > 0;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); PERFORM redlock_release('a'); END $$;
TABLE held;
COMMIT;
TABLE held;

-- pg_advisory_unlock_all does not end the lease
DO
$$
	BEGIN
		PERFORM redlock_acquire('a', scope => 'call');
		COMMIT;
		PERFORM pg_advisory_unlock_all();
		PERFORM say('still held');
		PERFORM redlock_acquire('a', scope => 'call');
		COMMIT;
		PERFORM say('still held');
	END
$$;
TABLE held;
TABLE gates;

-- A lost lease: the procedure gets an error, can release the lock, and acquire the lock again.
SET redlock.on_loss = 'error';
CREATE PROCEDURE wait_for_loss() LANGUAGE plpgsql AS
$$ BEGIN WHILE NOT EXISTS (SELECT FROM redlock_locks WHERE resource = 'a' AND state = 'lost') LOOP PERFORM pg_sleep(0.01); END LOOP; END $$;
CREATE PROCEDURE loses() LANGUAGE plpgsql AS
$$
	DECLARE
		before bigint := redlock_acquire('a', scope => 'call', hold_at_most => '100 ms');
	BEGIN
		CALL wait_for_loss();
		BEGIN
			PERFORM redlock_acquire('a', scope => 'call');
		EXCEPTION WHEN serialization_failure THEN
			RAISE NOTICE 'caught: %', sqlerrm;
		END;
		ROLLBACK;
		RAISE NOTICE 'a valid one released: %', redlock_release('a');
		RAISE NOTICE 'a greater token: %', redlock_acquire('a', scope => 'call') > before;
		COMMIT;
		PERFORM say('acquired again');
	END
$$;
CALL loses();
TABLE held;
TABLE gates;
-- a procedure can't commit with a lost lease
DO
$$
	BEGIN
		PERFORM redlock_acquire('a', scope => 'call', hold_at_most => '1 s');
		COMMIT;
		CALL wait_for_loss();
		INSERT INTO work VALUES (4);
		COMMIT;
	END
$$;
TABLE held;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call', hold_at_most => '100 ms'); CALL wait_for_loss(); END $$;
TABLE held;
TABLE work;
-- without redlock.on_loss = 'error', the loss cancels the procedure
RESET redlock.on_loss;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call', hold_at_most => '1 s'); COMMIT; PERFORM pg_sleep(600); END $$;
TABLE held;
TABLE gates;

DROP VIEW held, gates;
DROP TABLE work, deferred;
DROP FUNCTION say, in_a_function, does;
DROP PROCEDURE commits, inner_one, outer_one, in_sql, catches, fails, wait_for_loss, loses;
