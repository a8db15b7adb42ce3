-- The fence: redlock_fence and its table.
--
-- Protects from: a stale holder that commits after a newer holder; a row written without the lock,
-- or kept after a rollback; users who move the fence by hand, or bypass the fence by a table or
-- operator of their own; a plan that writes to the former schema of the extension.

-- reports the error of a command, without tokens, which are times
CREATE FUNCTION fails(command text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE command;
	RAISE WARNING 'it did not fail: %', command;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RAISE NOTICE E'%: %\ndetail: %\nhint: %', state, message, regexp_replace(detail, '\d{10,}', 'N', 'g'), hint;
END $$;
CREATE VIEW fences AS
    SELECT resource, token = redlock_token(resource) AS mine,
           passed_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS passed_at
      FROM redlock_fences
     ORDER BY resource COLLATE "C";

-- not held
SELECT redlock_fence('job');
\echo :SQLSTATE
SELECT redlock_fence(NULL);
\echo :SQLSTATE
SELECT redlock_fence('');
\echo :SQLSTATE
SELECT redlock_fence(repeat('x', 256));
\echo :SQLSTATE
TABLE fences;

-- in the transaction
BEGIN;
SELECT redlock_acquire('job') AS token \gset
SELECT redlock_fence('job') = :token AS same;
TABLE fences;
-- the same holder passes again
SELECT redlock_fence('job') = :token AS same;
TABLE fences;
COMMIT;
SELECT resource, token = :token AS same FROM redlock_fences;
SELECT redlock_fence('job');

-- the next holder
BEGIN;
SELECT redlock_acquire('job') > :token AS larger;
SELECT resource, token = :token AS before FROM redlock_fences;
SELECT redlock_fence('job') > :token AS larger;
TABLE fences;
-- a rollback undoes the pass
ROLLBACK;
SELECT resource, token = :token AS before FROM redlock_fences;
BEGIN;
SELECT redlock_acquire('job') > :token AS larger, redlock_acquire('other') > 0 AS other;
SAVEPOINT s;
SELECT redlock_fence('job') > :token AS larger, redlock_fence('other') > 0 AS other;
TABLE fences;
ROLLBACK TO s;
SELECT resource, token = :token AS before FROM redlock_fences;
SELECT redlock_fence('other') > 0 AS other;
COMMIT;
SELECT resource, token = :token AS before FROM redlock_fences ORDER BY resource COLLATE "C";

-- at session scope, in several transactions, and in a prepared transaction
SELECT redlock_acquire('job', scope => 'session') AS token \gset
SELECT redlock_fence('job') = :token AS same;
SELECT redlock_fence('job') = :token AS same;
DELETE FROM redlock_fences;
BEGIN;
SELECT redlock_fence('job') = :token AS same;
PREPARE TRANSACTION 'fenced';
TABLE fences;
COMMIT PREPARED 'fenced';
TABLE fences;
SELECT redlock_release('job');
-- at call scope, in each transaction of a procedure
DO $$
DECLARE
	token bigint := redlock_acquire('job', scope => 'call');
BEGIN
	FOR i IN 1 .. 3 LOOP
		RAISE NOTICE 'same: %', redlock_fence('job') = token;
		COMMIT;
	END LOOP;
END $$;
CALL redlock_run('job', 'SELECT redlock_fence(''job'')');
SELECT resource, token > :token AS later FROM redlock_fences;
-- a try
BEGIN;
SELECT redlock_try('job');
SELECT redlock_fence('job') = redlock_token('job') AS same;
COMMIT;

--
-- A newer holder has passed the fence.  The test writes the newer row by hand, since this session
-- keeps the lock.
--
BEGIN;
SELECT redlock_acquire('job') AS token \gset
SELECT redlock_acquire('other') > 0 AS other;
SELECT redlock_fence('job') = :token AS same;
COMMIT;
UPDATE redlock_fences SET token = token + 3600000000, passed_at = '2000-01-01' WHERE resource = 'job';
BEGIN;
SELECT redlock_acquire('job') > :token AS larger, redlock_acquire('other') > 0 AS other;
SELECT fails($$SELECT redlock_fence('job')$$);
-- the detail has both tokens
DO $$
DECLARE
	detail text;
BEGIN
	PERFORM redlock_fence('job');
EXCEPTION WHEN serialization_failure THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RAISE NOTICE 'its own: %, the newer: %', detail ~ ('\m' || redlock_token('job') || '\M'),
		detail ~ ('\m' || (SELECT token FROM redlock_fences WHERE resource = 'job') || '\M');
END $$;
-- other locks pass; the newer row is unchanged
SELECT redlock_fence('other') = redlock_token('other') AS same;
SELECT resource, token > redlock_token(resource) AS newer, passed_at::date FROM redlock_fences
 WHERE resource = 'job';
-- an uncaught error ends the transaction
\set VERBOSITY sqlstate
SELECT redlock_fence('job');
\set VERBOSITY default
COMMIT;
SELECT resource, token > :token AS newer FROM redlock_fences ORDER BY resource COLLATE "C";
-- the token of the row is larger by one, equal, smaller by one, and far away
SELECT redlock_acquire('job', scope => 'session') AS token \gset
UPDATE redlock_fences SET token = :token + 1 WHERE resource = 'job';
SELECT fails($$SELECT redlock_fence('job')$$);
UPDATE redlock_fences SET token = :token WHERE resource = 'job';
SELECT redlock_fence('job') = :token AS same;
UPDATE redlock_fences SET token = :token - 1 WHERE resource = 'job';
SELECT redlock_fence('job') = :token AS same;
TABLE fences;
UPDATE redlock_fences SET token = 9223372036854775807 WHERE resource = 'job';
SELECT fails($$SELECT redlock_fence('job')$$);
UPDATE redlock_fences SET token = 0 WHERE resource = 'job';
SELECT redlock_fence('job') = :token AS same;
-- a row deleted by hand is written anew
DELETE FROM redlock_fences;
SELECT redlock_fence('job') = :token AS same;
TABLE fences;
SELECT redlock_release('job');

-- a lost lease
SET redlock.on_loss = 'error';
SELECT redlock_acquire('job', scope => 'session', hold_at_most => '50 ms') > :token AS larger;
DO $$ BEGIN FOR i IN 1 .. 3000 LOOP EXIT WHEN EXISTS (SELECT FROM redlock_locks WHERE resource = 'job' AND state = 'lost'); PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT redlock_fence('job');
\echo :SQLSTATE
SELECT resource, token = :token AS before FROM redlock_fences;
SELECT redlock_release('job');
RESET redlock.on_loss;

-- a read-only transaction
BEGIN READ ONLY;
SELECT redlock_acquire('job') > 0 AS acquired;
SELECT redlock_fence('job');
\echo :SQLSTATE
ROLLBACK;

--
-- A role without rights
--
CREATE ROLE regress_redlock_user;
CREATE SCHEMA regress_redlock_user AUTHORIZATION regress_redlock_user;
SET ROLE regress_redlock_user;
-- can read the table, and fence its own locks
BEGIN;
SELECT redlock_acquire('job') > 0 AS acquired;
SELECT redlock_fence('job') = redlock_token('job') AS same;
SELECT resource, token = redlock_token(resource) AS mine FROM redlock_fences;
SELECT current_user, session_user = current_user AS session;
COMMIT;
-- can do no more
SELECT redlock_fence('job');
\set VERBOSITY terse
INSERT INTO redlock_fences VALUES ('job', 1, now());
\echo :SQLSTATE
UPDATE redlock_fences SET token = 0;
\echo :SQLSTATE
DELETE FROM redlock_fences;
\echo :SQLSTATE
TRUNCATE redlock_fences;
\echo :SQLSTATE
BEGIN;
LOCK TABLE redlock_fences IN ROW EXCLUSIVE MODE;
\echo :SQLSTATE
ROLLBACK;
SELECT resource FROM redlock_fences FOR UPDATE;
\echo :SQLSTATE
CREATE TRIGGER t BEFORE INSERT ON redlock_fences FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
\echo :SQLSTATE
CREATE RULE r AS ON INSERT TO redlock_fences DO INSTEAD NOTHING;
\echo :SQLSTATE
\set VERBOSITY default
-- tables and operators of the role make no difference
CREATE TEMP TABLE redlock_fences (resource text PRIMARY KEY, token bigint, passed_at timestamptz);
CREATE FUNCTION regress_redlock_user.always(bigint, bigint) RETURNS boolean LANGUAGE sql
    AS 'SELECT true';
CREATE OPERATOR regress_redlock_user.<= (LEFTARG = bigint, RIGHTARG = bigint,
    FUNCTION = regress_redlock_user.always);
SET search_path = pg_temp, regress_redlock_user, public, pg_catalog;
BEGIN;
SELECT redlock_acquire('job') > 0 AS acquired;
SELECT redlock_fence('job') = redlock_token('job') AS same;
SELECT count(*) AS own FROM pg_temp.redlock_fences;
SELECT resource, token OPERATOR(pg_catalog.=) redlock_token(resource) AS mine FROM public.redlock_fences;
COMMIT;
RESET ROLE;
RESET search_path;
UPDATE public.redlock_fences SET token = token + 3600000000;
SET ROLE regress_redlock_user;
SET search_path = pg_temp, regress_redlock_user, public, pg_catalog;
BEGIN;
SELECT redlock_acquire('job') > 0 AS acquired;
\set VERBOSITY sqlstate
SELECT redlock_fence('job');
\set VERBOSITY default
ROLLBACK;
RESET search_path;
DROP TABLE redlock_fences;
DROP OPERATOR regress_redlock_user.<= (bigint, bigint);
DROP FUNCTION regress_redlock_user.always;
RESET ROLE;
-- an administrator can revoke the right to fence
REVOKE EXECUTE ON FUNCTION redlock_fence(text) FROM PUBLIC;
SET ROLE regress_redlock_user;
SELECT redlock_fence('job');
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION redlock_fence(text) TO PUBLIC;
DROP SCHEMA regress_redlock_user;
DROP ROLE regress_redlock_user;
DELETE FROM redlock_fences;

-- the table belongs to the extension
\set VERBOSITY terse
DROP TABLE redlock_fences CASCADE;
\echo :SQLSTATE
\set VERBOSITY default

-- the trigger function refuses other uses
SELECT redlock_fence_merge();
\echo :SQLSTATE
CREATE TABLE narrow (resource text, token bigint);
CREATE TRIGGER t BEFORE INSERT ON narrow FOR EACH ROW EXECUTE FUNCTION redlock_fence_merge();
INSERT INTO narrow VALUES ('job', 1);
\echo :SQLSTATE
DROP TABLE narrow;
CREATE TABLE other_types (resource bigint, token bigint, passed_at timestamptz);
CREATE TRIGGER t BEFORE INSERT ON other_types FOR EACH ROW EXECUTE FUNCTION redlock_fence_merge();
INSERT INTO other_types VALUES (1, 1, now());
DROP TABLE other_types;
CREATE TRIGGER t AFTER INSERT ON redlock_fences FOR EACH ROW EXECUTE FUNCTION redlock_fence_merge();
INSERT INTO redlock_fences VALUES ('job', 1, now());
DROP TRIGGER t ON redlock_fences;

--
-- Unusual names, and many names
--
CREATE TABLE names (id integer PRIMARY KEY, name text);
INSERT INTO names VALUES
    (1, 'it''s "quoted"'), (2, ' a  b '), (3, '%s%n%d %1$s'), (4, U&'two\2028lines'),
    (5, U&'\+01F512'), (6, U&'\00E4\20AC\+01F512'), (7, E'back\\slash'), (8, '{curly}[x]*?'),
    (9, U&'\00A0\FEFF'), (10, '$1'), (11, 'a'), (12, 'A'), (13, U&'a\0308'), (14, ' '),
    (15, repeat(U&'\20AC', 85)), (16, repeat('x', 255)), (17, '''; DROP TABLE names; --');
BEGIN;
SELECT count(*) FROM names WHERE redlock_acquire(name) = redlock_fence(name);
SELECT n.id FROM names n LEFT JOIN redlock_fences f ON f.resource = n.name COLLATE "C"
 WHERE f.token IS DISTINCT FROM redlock_token(n.name);
SELECT count(*) FROM redlock_fences;
COMMIT;
SELECT count(*) FROM redlock_fences;
UPDATE redlock_fences SET token = token + 3600000000;
BEGIN;
SELECT redlock_acquire(name) > 0 AS acquired FROM names WHERE id = 1;
SELECT fails(format('SELECT redlock_fence(%L)', name)) FROM names WHERE id = 1;
COMMIT;
DELETE FROM redlock_fences;
DROP TABLE names;

BEGIN;
SELECT count(*) FROM generate_series(1, 500) i
 WHERE redlock_acquire('many ' || i) = redlock_fence('many ' || i);
SELECT count(*), bool_and(token = redlock_token(resource)) AS mine FROM redlock_fences;
COMMIT;
BEGIN;
SELECT count(*) FROM generate_series(1, 500) i
 WHERE redlock_acquire('many ' || i) = redlock_fence('many ' || i);
SELECT count(*), bool_and(token = redlock_token(resource)) AS mine FROM redlock_fences;
COMMIT;
DELETE FROM redlock_fences;
-- one name many times
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		PERFORM redlock_acquire('job', scope => 'call');
		PERFORM redlock_fence('job');
		COMMIT;
		PERFORM redlock_release('job');
	END LOOP;
END $$;
SELECT resource FROM redlock_fences;

--
-- The plan of this session follows the extension to another schema
--
DROP VIEW fences;
SELECT redlock_acquire('job', scope => 'session') AS token \gset
SELECT redlock_fence('job') = :token AS same;
CREATE SCHEMA "regress Red""lock's";
ALTER EXTENSION redlock_pg SET SCHEMA "regress Red""lock's";
SET search_path = "regress Red""lock's", public;
UPDATE redlock_fences SET token = 0;
SELECT redlock_fence('job') = :token AS same;
SELECT resource, token = :token AS same FROM redlock_fences;
ALTER SCHEMA "regress Red""lock's" RENAME TO regress_redlock;
SET search_path = regress_redlock, public;
UPDATE redlock_fences SET token = 0;
SELECT redlock_fence('job') = :token AS same;
SELECT resource, token = :token AS same FROM redlock_fences;
UPDATE redlock_fences SET token = :token + 1;
SELECT fails($$SELECT redlock_fence('job')$$);
-- another table of the same name in the former schema
CREATE TABLE public.redlock_fences (resource text PRIMARY KEY, token bigint, passed_at timestamptz);
UPDATE redlock_fences SET token = 0;
SELECT redlock_fence('job') = :token AS same;
SELECT count(*) AS wrong FROM public.redlock_fences;
DROP TABLE public.redlock_fences;
ALTER EXTENSION redlock_pg SET SCHEMA public;
RESET search_path;
SELECT redlock_fence('job') = :token AS same;
SELECT resource, token = :token AS same FROM redlock_fences;
-- created anew, in the same schema and elsewhere
DROP EXTENSION redlock_pg;
CREATE EXTENSION redlock_pg;
SELECT redlock_fence('job') = :token AS same;
SELECT resource, token = :token AS same FROM redlock_fences;
DROP EXTENSION redlock_pg;
CREATE EXTENSION redlock_pg SCHEMA regress_redlock;
SELECT regress_redlock.redlock_fence('job') = :token AS same;
SELECT resource, token = :token AS same FROM regress_redlock.redlock_fences;
ALTER EXTENSION redlock_pg SET SCHEMA public;
DROP SCHEMA regress_redlock;
SELECT redlock_fence('job') = :token AS same;
SELECT redlock_release('job');
DELETE FROM redlock_fences;

SELECT count(*) AS gates FROM pg_locks WHERE locktype = 'userlock';
DROP FUNCTION fails;
