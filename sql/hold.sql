-- hold_at_least and hold_at_most.
--
-- Protects from: a job of two hosts that runs twice because the lock was free too soon; a hanging
-- job that holds its lock for ever; limits that are ignored, cut short, or valid for the next lock
-- of the same name; a user who blocks a name for years.

CREATE VIEW held AS
    SELECT resource, state, scope, ttl FROM redlock_locks
     WHERE state IN ('held', 'lost') AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";

-- wrong durations
SELECT redlock_acquire('a', hold_at_least => '0');
SELECT redlock_acquire('a', hold_at_least => '-1 s');
SELECT redlock_acquire('a', hold_at_least => '999 us');
SELECT redlock_acquire('a', hold_at_least => '-10 years');
SELECT redlock_acquire('a', hold_at_least => 'soon');
SELECT redlock_acquire('a', hold_at_most => '0');
SELECT redlock_acquire('a', hold_at_most => '-1 s');
SELECT redlock_acquire('a', hold_at_most => '999 us');
SELECT redlock_try('a', hold_at_least => '0');
SELECT redlock_try('a', hold_at_most => '-1 s');
CALL redlock_run('a', 'SELECT 1', hold_at_least => '0');
CALL redlock_run('a', 'SELECT 1', hold_at_most => '-1 s');
-- contradictory limits
SELECT redlock_acquire('a', hold_at_least => '2 s', hold_at_most => '1 s');
SELECT redlock_try('a', hold_at_least => '2 s', hold_at_most => '1 s');
CALL redlock_run('a', 'SELECT 1', hold_at_least => '2 s', hold_at_most => '1 s');
\set VERBOSITY sqlstate
SELECT redlock_acquire('a', hold_at_least => '0');
SELECT redlock_acquire('a', hold_at_least => '2 s', hold_at_most => '1 s');
SELECT redlock_acquire('a', hold_at_least => '1 day 1 us');
SELECT redlock_acquire('a', hold_at_most => '24 days 1 us');
\set VERBOSITY default
-- over 24 days: milliseconds have 32 bits
SELECT redlock_acquire('a', hold_at_most => '24 days 1 us');
SELECT redlock_try('a', hold_at_most => '25 days');
SELECT redlock_try('a', hold_at_most => '1 month');
SELECT redlock_try('a', hold_at_most => '4294968.296 s');
SELECT redlock_try('a', hold_at_most => '1000 years');
CALL redlock_run('a', 'SELECT 1', hold_at_most => '178000000 years');
-- over redlock.max_hold
SELECT redlock_acquire('a', hold_at_least => '1 day 1 us');
SELECT redlock_try('a', hold_at_least => '4294968.296 s');
CALL redlock_run('a', 'SELECT 1', hold_at_least => '178000000 years');
CREATE ROLE regress_redlock_user;
SET ROLE regress_redlock_user;
SELECT redlock_try('a', hold_at_least => '1000 years');
SET redlock.max_hold = '24 d';
RESET ROLE;
DROP ROLE regress_redlock_user;
SET redlock.max_hold = '1 min';
SELECT redlock_try('a', hold_at_least => '60.0001 s');
SET redlock.max_hold = 0;
SELECT redlock_try('a', hold_at_least => '1 ms');
RESET redlock.max_hold;
-- the refused calls took no lock
TABLE held;

BEGIN;
-- NULL is no limit
SELECT redlock_acquire('a', hold_at_least => NULL, hold_at_most => NULL) > 0;
SELECT redlock_try('b', hold_at_least => NULL, hold_at_most => NULL);
-- the order of the arguments
SELECT redlock_acquire('c', '1 s', '20 s', 'transaction', '1 ms', '10 min') > 0;
SELECT redlock_try('d', '20 s', 'transaction', '1 ms', '10 min');
-- long limits, up to the longest
SELECT redlock_try('e', hold_at_least => '1 ms', hold_at_most => '1 month -10 days');
SELECT redlock_try('f', hold_at_most => '24 days');
SELECT redlock_try('g', hold_at_least => '1 ms', hold_at_most => '20 days 95:59:59.9999');
TABLE held;
-- the ttl bounds the validity, not the hold limit
SELECT resource, redlock_check(resource) BETWEEN '1 s' AND ttl AS valid FROM held;
COMMIT;
TABLE held;

--
-- hold_at_least
--

-- the released lock is not free before the end of hold_at_least
CREATE PROCEDURE becomes_free(name text) LANGUAGE plpgsql AS
$$
	BEGIN
		FOR i IN 1 .. 3000 LOOP
			EXIT WHEN redlock_try(name, scope => 'session');
			PERFORM pg_sleep(0.01);
			IF i = 3000 THEN RAISE WARNING '% does not become free', name; END IF;
		END LOOP;
		PERFORM redlock_release(name);
	END
$$;
CREATE TEMP TABLE times (acquired timestamptz);
INSERT INTO times VALUES (clock_timestamp());
SELECT redlock_acquire('least', scope => 'session', hold_at_least => '2 s') > 0;
SELECT redlock_release('least');
TABLE held;
SELECT redlock_try('least');
CALL becomes_free('least');
SELECT clock_timestamp() - acquired BETWEEN '2 s' AND '30 s' AS in_time FROM times;

-- at transaction scope, by commit and by rollback, and by redlock_run
BEGIN;
SELECT redlock_acquire('commit', hold_at_least => '1 min') > 0;
COMMIT;
BEGIN;
SELECT redlock_acquire('rollback', hold_at_least => '1 min') > 0;
ROLLBACK;
CALL redlock_run('run', 'SELECT 1', hold_at_least => '1 min');
TABLE held;
SELECT redlock_try('commit'), redlock_try('rollback'), redlock_try('run');
\set VERBOSITY terse
SELECT redlock_acquire('commit', wait => '50 ms');
\set VERBOSITY default

-- hold_at_least is longer than the ttl of the keys
UPDATE times SET acquired = clock_timestamp();
SELECT redlock_try('long', ttl => '100 ms', scope => 'session', hold_at_least => '700 ms');
SELECT redlock_release('long');
CALL becomes_free('long');
SELECT clock_timestamp() - acquired BETWEEN '700 ms' AND '30 s' AS in_time FROM times;

-- Held for longer than hold_at_least: free with the release, long before the end of the ttl.
SELECT redlock_try('short', ttl => '60 s', scope => 'session', hold_at_least => '1 ms');
SELECT pg_sleep(0.01);
SELECT redlock_release('short');
SELECT redlock_acquire('short', wait => '30 s', scope => 'session') > 0;
SELECT redlock_release('short');

-- the next holder of the same name has no limit
SELECT redlock_try('least', ttl => '60 s', scope => 'session');
SELECT redlock_release('least');
SELECT redlock_acquire('least', wait => '30 s', scope => 'session') > 0;
SELECT redlock_release('least');

--
-- hold_at_most
--

SET redlock.on_loss = 'error';
CREATE PROCEDURE wait_for_loss() LANGUAGE plpgsql AS
$$ BEGIN
	FOR i IN 1 .. 6000 LOOP
		IF EXISTS (SELECT FROM redlock_locks WHERE resource = 'most' AND state = 'lost') THEN RETURN; END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RAISE EXCEPTION 'no loss';
END $$;

-- hold_at_most is shorter than the ttl
UPDATE times SET acquired = clock_timestamp();
SELECT redlock_acquire('most', ttl => '60 s', scope => 'session', hold_at_most => '1 s') > 0;
SELECT redlock_check('most') <= '1 s' AS limited;
CALL wait_for_loss();
SELECT clock_timestamp() - acquired BETWEEN '1 s' AND '30 s' AS in_time FROM times;
TABLE held;
SELECT redlock_check('most');
SELECT redlock_acquire('most');
-- the release deletes the keys, which would live for a minute
SELECT redlock_release('most');
TABLE held;
SELECT redlock_acquire('most', wait => '30 s', scope => 'session') > 0;
SELECT redlock_check('most') > '2 s' AS unlimited;
SELECT redlock_release('most');

-- hold_at_most lasts for several renewals
UPDATE times SET acquired = clock_timestamp();
SELECT redlock_try('most', ttl => '200 ms', scope => 'session', hold_at_most => '1 s');
CALL wait_for_loss();
SELECT clock_timestamp() - acquired BETWEEN '1 s' AND '30 s' AS in_time FROM times;
SELECT redlock_release_all();

-- another acquisition does not prolong hold_at_most
SELECT redlock_try('most', scope => 'session', hold_at_most => '1 s');
SELECT redlock_try('most', scope => 'session', hold_at_most => '10 min');
CALL wait_for_loss();
SELECT redlock_release_all();

-- the loss cancels the statement, and the transaction can't commit
RESET redlock.on_loss;
BEGIN;
CREATE TABLE work (n integer);
SELECT redlock_acquire('most', hold_at_most => '1 s') > 0;
SELECT pg_sleep(600);
ROLLBACK;
CALL redlock_run('most', 'SELECT pg_sleep(600)', hold_at_most => '1 s');
SET redlock.on_loss = 'error';
BEGIN;
CREATE TABLE work (n integer);
SELECT redlock_acquire('most', hold_at_most => '1 s') > 0;
CALL wait_for_loss();
COMMIT;
TABLE work;
RESET redlock.on_loss;
TABLE held;

-- both limits: the lease is lost, and the lock is not free before the end of hold_at_least
CALL becomes_free('most');
UPDATE times SET acquired = clock_timestamp();
SELECT redlock_acquire('most', scope => 'session', hold_at_least => '600 ms', hold_at_most => '600 ms') > 0;
SET redlock.on_loss = 'error';
CALL wait_for_loss();
SELECT redlock_release('most');
CALL becomes_free('most');
SELECT clock_timestamp() - acquired BETWEEN '600 ms' AND '30 s' AS in_time FROM times;
RESET redlock.on_loss;

SELECT count(*) AS gates FROM pg_locks WHERE locktype = 'userlock';
DROP VIEW held;
DROP PROCEDURE becomes_free, wait_for_loss;
