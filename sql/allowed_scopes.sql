-- redlock.allowed_scopes: the scopes at which a session may acquire locks.
--
-- Protects from: a lock of session scope, by any function, for a role that a pool shares among
-- clients; a role that lifts its own limit; a held lock that opens a forbidden scope; a limit that
-- prevents a release, or the use of another session's detached lock.

CREATE ROLE regress_redlock_pool;
CREATE ROLE regress_redlock_admin;

-- a setting of the administrator
ALTER ROLE regress_redlock_pool SET redlock.allowed_scopes = transaction, call, detached;
SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'regress_redlock_pool'::regrole;
SET ROLE regress_redlock_pool;
SET redlock.allowed_scopes = 'transaction';
\echo :SQLSTATE
ALTER ROLE regress_redlock_pool SET redlock.allowed_scopes = 'session';
\echo :SQLSTATE
SHOW redlock.allowed_scopes;
RESET ROLE;
GRANT SET ON PARAMETER redlock.allowed_scopes TO regress_redlock_admin;
SET ROLE regress_redlock_admin;
ALTER ROLE regress_redlock_admin SET redlock.allowed_scopes = 'call';
SET redlock.allowed_scopes = 'call';
SHOW redlock.allowed_scopes;
RESET redlock.allowed_scopes;
RESET ROLE;

-- each function that acquires, at a forbidden scope
SET redlock.allowed_scopes = 'transaction, call, detached';
SELECT redlock_acquire('a', scope => 'session');
\echo :SQLSTATE
SELECT redlock_try('a', scope => 'session');
SELECT redlock_try('a', scope => 'session', wait => '1 s');
SELECT redlock_acquire_all(ARRAY['a', 'b'], scope => 'session');
SELECT redlock_try_all(ARRAY['a', 'b'], scope => 'session');
SELECT redlock_acquire('a', scope => 'session', mode => 'shared');
SELECT redlock_acquire('a', scope => 'session', permits => 3);
CALL redlock_lock('a');
CALL redlock_lock_all(ARRAY['a', 'b']);
DO $$ BEGIN CALL redlock_lock('a', scope => 'session'); END $$;
SET redlock.allowed_scopes = 'session';
\set VERBOSITY terse
SELECT redlock_acquire('a');
SELECT redlock_try('a');
SELECT redlock_acquire_all(ARRAY['a', 'b']);
SELECT redlock_try_all(ARRAY['a', 'b']);
CALL redlock_run('a', 'SELECT 1');
CALL redlock_run('a', 'SELECT 1', record => true);
DO $$ BEGIN CALL redlock_lock('a', scope => 'call'); END $$;
DO $$ BEGIN PERFORM redlock_acquire('a', scope => 'call'); END $$;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_try_all(ARRAY['a', 'b'], scope => 'detached', hold_at_most => '1 min');
SELECT redlock_try_detached('a', '1 min');
\set VERBOSITY default
-- the refused calls left no lock and no run
SELECT count(*) FROM redlock_locks WHERE state <> 'releasing';
SELECT count(*) FROM redlock_runs WHERE resource = 'a';

-- the allowed scopes work
SELECT redlock_try('a', scope => 'session'), redlock_release('a');
SET redlock.allowed_scopes = 'Transaction';
BEGIN;
SELECT redlock_try('a'), redlock_try_all(ARRAY['b', 'c']), redlock_acquire('d', permits => 2) > 0 AS permit;
COMMIT;
SET redlock.allowed_scopes = 'call';
CALL redlock_run('a', 'DO $$ BEGIN CALL redlock_lock(''b'', scope => ''call''); COMMIT; PERFORM redlock_check(''b''); END $$');

-- a held lock of a wider scope opens no other scope, and stays
SET redlock.allowed_scopes = 'session, call';
SELECT redlock_try('held', scope => 'session');
BEGIN;
SELECT redlock_try('held');
\echo :SQLSTATE
ROLLBACK;
SET redlock.allowed_scopes = 'transaction';
SELECT redlock_try('held', scope => 'session');
BEGIN;
SELECT redlock_try('held');
COMMIT;
SELECT resource, scope FROM redlock_locks WHERE state = 'held';
SELECT redlock_release('held');

-- calls by token acquire nothing, and need no scope
SET redlock.allowed_scopes = 'detached';
SELECT redlock_acquire('d', scope => 'detached', hold_at_most => '1 min') AS token \gset
SET redlock.allowed_scopes = 'transaction';
BEGIN;
SELECT redlock_attach('d', :token);
SELECT redlock_fence('d') = :token AS fenced;
COMMIT;
SELECT redlock_extend('d', :token, '2 min') > now() AS extended, redlock_check('d', :token) > '0' AS valid;
SELECT redlock_release('d', :token);

-- an administrator's function may allow its own calls more
SET redlock.allowed_scopes = 'transaction';
CREATE FUNCTION take(name text) RETURNS boolean LANGUAGE sql
SET redlock.allowed_scopes = 'session' AS $$ SELECT redlock_try(name, scope => 'session') $$;
SELECT take('f'), redlock_release('f');
SELECT redlock_try('f', scope => 'session');

RESET redlock.allowed_scopes;
DELETE FROM redlock_fences WHERE resource = 'd';
DROP FUNCTION take;
REVOKE SET ON PARAMETER redlock.allowed_scopes FROM regress_redlock_admin;
DROP ROLE regress_redlock_pool, regress_redlock_admin;
