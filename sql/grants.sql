-- redlock.restrict: a role locks only names like its granted patterns.
--
-- Protects from: a tenant taking, attaching to, extending or freeing another tenant's lock, by any
-- function, or leaving a run of another tenant's job; a held lock without a release after a revoke;
-- a grant outliving its transaction, passing to a role without the grantee's privileges, or
-- depending on a collation; a role granting without the right; a forged table of grants.

CREATE ROLE regress_redlock_a;
CREATE ROLE regress_redlock_b;
CREATE ROLE regress_redlock_member IN ROLE regress_redlock_a;
CREATE ROLE regress_redlock_distant NOINHERIT;
GRANT regress_redlock_a TO regress_redlock_distant;
CREATE ROLE "regress_redlock ""Q'";
CREATE ROLE regress_redlock_admin;
CREATE ROLE regress_redlock_owner SUPERUSER;

-- a setting of superusers, off by default
SHOW redlock.restrict;
SET ROLE regress_redlock_a;
SET redlock.restrict = off;
\echo :SQLSTATE
SELECT redlock_try('b/job', scope => 'session'), redlock_release('b/job');
RESET ROLE;

--
-- Granting
--

SELECT redlock_grant('regress_redlock_a', 'a/%'), redlock_grant('regress_redlock_a', 'a/%');
SELECT redlock_grant('regress_redlock_b', 'b/%');
SELECT redlock_revoke('regress_redlock_b', 'a/%');
SELECT role, pattern FROM redlock_grants ORDER BY pattern;

-- patterns that match no name, and other wrong arguments
SELECT redlock_grant('regress_redlock_a', '');
\echo :SQLSTATE
SELECT redlock_grant('regress_redlock_a', 'a\');
SELECT redlock_grant('regress_redlock_a', '{%}');
SELECT redlock_grant('regress_redlock_a', E'a\n%');
SELECT redlock_grant('regress_redlock_a', repeat('_', 256));
SELECT redlock_grant('regress_redlock_a', repeat('%', 1025)) IS NULL;
SELECT redlock_grant('regress_redlock_a', NULL);
\echo :SQLSTATE
SELECT redlock_grant(NULL, 'a');
SELECT redlock_revoke('regress_redlock_a', NULL);
SELECT redlock_revoke(NULL, 'a');
SELECT redlock_grant('regress_redlock_nobody', 'a');
\echo :SQLSTATE
SELECT redlock_grant('-', 'a');
\echo :SQLSTATE
SELECT redlock_grant('4294967295', 'a');
BEGIN READ ONLY;
SELECT redlock_grant('regress_redlock_a', 'a');
ROLLBACK;
BEGIN READ ONLY;
SELECT redlock_revoke('regress_redlock_a', 'a/%');
ROLLBACK;

-- the right to grant is the right to call the functions
SET ROLE regress_redlock_a;
SELECT redlock_grant('regress_redlock_a', '%');
\echo :SQLSTATE
SELECT redlock_revoke('regress_redlock_b', 'b/%');
INSERT INTO redlock_grants VALUES ('regress_redlock_a', '%');
DELETE FROM redlock_grants;
SELECT count(*) FROM redlock_grants;
RESET ROLE;
GRANT EXECUTE ON FUNCTION redlock_grant, redlock_revoke TO regress_redlock_admin;
SET ROLE regress_redlock_admin;
SELECT redlock_grant('regress_redlock_b', 'shared'), redlock_revoke('regress_redlock_b', 'shared');
RESET ROLE;
-- also if default privileges let a role write
GRANT ALL ON redlock_grants TO regress_redlock_b;
SET ROLE regress_redlock_b;
INSERT INTO redlock_grants VALUES ('regress_redlock_b', '%');
\echo :SQLSTATE
UPDATE redlock_grants SET role = 'regress_redlock_b';
DELETE FROM redlock_grants;
RESET ROLE;
REVOKE ALL ON redlock_grants FROM regress_redlock_b;
SELECT role, pattern FROM redlock_grants ORDER BY pattern;

--
-- Each way to a lock of another tenant
--

SET redlock.restrict = on;
SELECT redlock_try('b/held', scope => 'session');
SELECT redlock_acquire('b/detached', scope => 'detached', hold_at_most => '1 min') AS token \gset
GRANT EXECUTE ON FUNCTION redlock_ask_release, redlock_force_release, redlock_inspect, redlock_holders
    TO regress_redlock_a;
SET ROLE regress_redlock_a;
SHOW redlock.restrict;
SELECT redlock_acquire('b/job');
\echo :SQLSTATE
\set VERBOSITY terse
SELECT redlock_acquire('b/job', wait => '0');
SELECT redlock_acquire('b/job', scope => 'session', mode => 'shared');
SELECT redlock_acquire('b/job', scope => 'session', permits => 3);
SELECT redlock_acquire('b/job', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_try('b/job');
SELECT redlock_try('b/job', wait => '1 s');
SELECT redlock_try_detached('b/job', '1 min');
SELECT redlock_acquire_all(ARRAY['a/1', 'b/job', 'a/2']);
SELECT redlock_try_all(ARRAY['a/1', 'b/job']);
CALL redlock_lock('b/job');
CALL redlock_lock_all(ARRAY['b/job', 'a/1']);
DO $$ BEGIN CALL redlock_lock('b/job', scope => 'call'); END $$;
DO $$ BEGIN PERFORM redlock_acquire('b/job', scope => 'call'); END $$;
CALL redlock_run('b/job', 'SELECT 1');
CALL redlock_run('b/job', 'SELECT 1', record => true);
BEGIN;
CALL redlock_run('b/job', 'SELECT 1', record => true);
ROLLBACK;
CALL redlock_run('a/job', 'CALL redlock_lock(''b/job'')');
BEGIN;
SELECT redlock_attach('b/detached', :token);
ROLLBACK;
SELECT redlock_extend('b/detached', :token, '2 min');
SELECT redlock_ask_release('b/held');
SELECT redlock_force_release('b/held');
\set VERBOSITY default
RESET ROLE;
-- nothing was taken, not even of several locks, and no run came of it
SELECT resource FROM redlock_locks WHERE state <> 'releasing' ORDER BY resource;
SELECT count(*) FROM redlock_runs WHERE resource = 'b/job';
SELECT redlock_release('b/held'), redlock_release('b/detached', :token);

-- the role's own names
SET ROLE regress_redlock_a;
SELECT redlock_try('a/1', scope => 'session'), redlock_try('a/1', scope => 'session');
SELECT redlock_fence('a/1') = redlock_token('a/1') AS fenced;
SELECT redlock_acquire('a/permits', scope => 'session', permits => 2) > 0 AS permit;
SELECT array_length(redlock_acquire_all(ARRAY['a/2', 'a/3'], scope => 'session'), 1);
CALL redlock_run('a/job', 'SELECT redlock_check(''a/job'')');
SELECT redlock_release_all();
SELECT redlock_try_detached('a/detached', '1 min') AS token \gset
BEGIN;
SELECT redlock_attach('a/detached', :token);
COMMIT;
SELECT redlock_extend('a/detached', :token, '2 min') > now() AS extended;
RESET ROLE;

--
-- Revoking: held locks stay, and can be released
--

SET ROLE regress_redlock_a;
SELECT redlock_try('a/kept', scope => 'session');
BEGIN;
SELECT redlock_try('a/transaction');
RESET ROLE;
SELECT redlock_revoke('regress_redlock_a', 'a/%');
SET ROLE regress_redlock_a;
SELECT redlock_check('a/kept') > '0' AS valid, redlock_fence('a/kept') > 0 AS fenced;
COMMIT;
SELECT redlock_try('a/kept', scope => 'session');
SELECT redlock_extend('a/detached', :token, '3 min');
SELECT redlock_check('a/detached', :token) > '0' AS valid;
SELECT redlock_release('a/kept'), redlock_release('a/detached', :token);
SELECT resource FROM redlock_locks WHERE state <> 'releasing';
RESET ROLE;

--
-- The life of a grant
--

-- at once in its own transaction, and gone with a rollback
BEGIN;
SELECT redlock_grant('regress_redlock_a', 'a/%');
SET LOCAL ROLE regress_redlock_a;
SELECT redlock_try('a/1');
ROLLBACK;
SET ROLE regress_redlock_a;
SELECT redlock_try('a/1', scope => 'session');
RESET ROLE;
-- direct changes by the owner count, too; the trigger finds the role, or warns
INSERT INTO redlock_grants VALUES ('regress_redlock_nobody', 'a/%');
INSERT INTO redlock_grants (pattern) VALUES ('a/%');
SELECT count(*) FROM redlock_grants;
INSERT INTO redlock_grants VALUES ('regress_redlock_a', 'a/%');
SET ROLE regress_redlock_a;
SELECT redlock_try('a/1', scope => 'session'), redlock_release('a/1');
RESET ROLE;
UPDATE redlock_grants SET pattern = 'c/%' WHERE role = 'regress_redlock_a';
SET ROLE regress_redlock_a;
SELECT redlock_try('c/1', scope => 'session'), redlock_release('c/1');
SELECT redlock_try('a/1', scope => 'session');
RESET ROLE;
-- not those of replication
SET session_replication_role = replica;
DELETE FROM redlock_grants;
UPDATE redlock_grants SET pattern = '%';
INSERT INTO redlock_grants VALUES ('regress_redlock_a', '%', 'regress_redlock_a'::regrole);
SELECT redlock_revoke('regress_redlock_a', 'c/%');
SELECT redlock_grant('regress_redlock_a', '%');
RESET session_replication_role;
SELECT role, pattern FROM redlock_grants ORDER BY pattern;
TRUNCATE redlock_grants;
SET ROLE regress_redlock_a;
SELECT redlock_try('c/1', scope => 'session');
RESET ROLE;
-- and at any isolation level, in a transaction that only reads
SELECT redlock_grant('regress_redlock_a', 'a/%');
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY;
SET LOCAL ROLE regress_redlock_a;
SELECT redlock_try('a/1');
ROLLBACK;

--
-- Roles
--

-- a member has the grants of its group, with INHERIT only
SET ROLE regress_redlock_member;
SELECT redlock_try('a/1', scope => 'session'), redlock_release('a/1');
SET ROLE regress_redlock_distant;
SELECT redlock_try('a/1', scope => 'session');
RESET ROLE;
REVOKE regress_redlock_a FROM regress_redlock_member;
SET ROLE regress_redlock_member;
SELECT redlock_try('a/1', scope => 'session');
RESET ROLE;
GRANT regress_redlock_a TO regress_redlock_member;
SET ROLE regress_redlock_member;
SELECT redlock_try('a/1', scope => 'session'), redlock_release('a/1');
RESET ROLE;
-- a superuser has all names
SET ROLE regress_redlock_owner;
SELECT redlock_try('any', scope => 'session'), redlock_release('any');
RESET ROLE;
ALTER ROLE regress_redlock_owner NOSUPERUSER;
SET ROLE regress_redlock_owner;
SELECT redlock_try('any', scope => 'session');
RESET ROLE;
-- a function runs as its owner
ALTER ROLE regress_redlock_owner SUPERUSER;
CREATE FUNCTION take(name text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
    AS $$ SELECT redlock_try(name, scope => 'session') $$;
SET ROLE regress_redlock_b;
SELECT take('x'), redlock_release('x');
SELECT redlock_try('x', scope => 'session');
RESET ROLE;
DROP FUNCTION take;
-- a new name of a role keeps the grants; a later role of the old name has none
ALTER ROLE regress_redlock_a RENAME TO regress_redlock_renamed;
CREATE ROLE regress_redlock_a;
SELECT role, pattern FROM redlock_grants ORDER BY pattern;
SET ROLE regress_redlock_a;
SELECT redlock_try('a/1', scope => 'session');
SET ROLE regress_redlock_renamed;
SELECT redlock_try('a/1', scope => 'session'), redlock_release('a/1');
RESET ROLE;
-- and granting again writes the new name
SELECT redlock_grant(role_id, pattern), redlock_grant(role_id, pattern) FROM redlock_grants;
SELECT role, pattern, role_id = role::regrole AS this_one FROM redlock_grants;
-- nor has a later role of the name of a dropped role
DROP OWNED BY regress_redlock_renamed;
DROP ROLE regress_redlock_renamed, regress_redlock_a;
CREATE ROLE regress_redlock_renamed;
SELECT role, pattern, role_id = role::regrole AS this_one FROM redlock_grants;
SET ROLE regress_redlock_renamed;
SELECT redlock_try('a/1', scope => 'session');
RESET ROLE;
SELECT redlock_revoke(role_id, pattern) FROM redlock_grants WHERE role_id NOT IN (SELECT oid FROM pg_roles);
SELECT count(*) FROM redlock_grants;

--
-- Patterns
--

SELECT redlock_grant('regress_redlock_b', pattern)
  FROM unnest(ARRAY['b/%', 'one_', 'per\%cent', 'back\\slash', 'under\_score']) pattern;
SET ROLE regress_redlock_b;
SELECT redlock_try(name, scope => 'session')
  FROM unnest(ARRAY['b/', 'b/b/', 'one1', 'per%cent', 'back\slash', 'under_score']) name;
SELECT redlock_release_all();
SELECT redlock_try('B/1', scope => 'session');
\set VERBOSITY terse
SELECT redlock_try('one', scope => 'session');
SELECT redlock_try('one12', scope => 'session');
SELECT redlock_try('percent', scope => 'session');
SELECT redlock_try('under-score', scope => 'session');
SELECT redlock_try('ab/', scope => 'session');
\set VERBOSITY default
RESET ROLE;
-- the hint's statement grants this name, and no other
SET ROLE "regress_redlock ""Q'";
SELECT redlock_try('q''_%\', scope => 'session');
RESET ROLE;
SELECT redlock_grant('"regress_redlock ""Q''"', E'q''\\_\\%\\\\');
SET ROLE "regress_redlock ""Q'";
SELECT redlock_try('q''_%\', scope => 'session'), redlock_release('q''_%\');
SELECT redlock_try('q''x%\', scope => 'session');
RESET ROLE;
-- an error lists ten patterns
SELECT count(redlock_grant('"regress_redlock ""Q''"', 'p' || n)) FROM generate_series(10, 20) n;
SET ROLE "regress_redlock ""Q'";
SELECT redlock_try('p', scope => 'session');
RESET ROLE;

--
-- Without the table of grants
--

ALTER EXTENSION redlock_pg DROP TABLE redlock_grants;
ALTER TABLE redlock_grants RENAME TO kept_grants;
CREATE TABLE redlock_grants (role name, pattern text, role_id oid);
INSERT INTO redlock_grants VALUES ('regress_redlock_b', '%', 'regress_redlock_b'::regrole);
SET ROLE regress_redlock_b;
SELECT redlock_try('b/1', scope => 'session');
\echo :SQLSTATE
RESET ROLE;
SELECT redlock_try('b/1', scope => 'session'), redlock_release('b/1');
SELECT severity, subject, finding, remedy FROM redlock_diagnose() WHERE subject = 'grants';
DROP TABLE redlock_grants;
ALTER TABLE kept_grants RENAME TO redlock_grants;
ALTER EXTENSION redlock_pg ADD TABLE redlock_grants;
SET ROLE regress_redlock_b;
SELECT redlock_try('b/1', scope => 'session'), redlock_release('b/1');
RESET ROLE;

DROP EXTENSION redlock_pg;
CREATE EXTENSION redlock_pg;
SET ROLE regress_redlock_b;
SELECT redlock_try('b/1', scope => 'session');
RESET ROLE;

RESET redlock.restrict;
DROP ROLE regress_redlock_b, regress_redlock_member, regress_redlock_distant, regress_redlock_renamed,
    "regress_redlock ""Q'", regress_redlock_admin, regress_redlock_owner;
