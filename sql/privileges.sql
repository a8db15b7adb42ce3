-- The rights of each role, when the administrator revokes the locks from PUBLIC.
--
-- Protects from: a function or procedure that stays open to PUBLIC after the statement in
-- docs/how-to/permissions.md; views that break after the statement; a role that can't use a granted
-- right; default privileges by which a role writes the extension's tables, adds a trigger to a
-- table, or calls a function for administrators.

-- the tests run with five nodes, and with the node inside the server
SELECT count(*) AS nodes FROM regexp_split_to_table(current_setting('redlock.nodes'), ', ') \gset

CREATE ROLE regress_redlock_no;
CREATE ROLE regress_redlock_yes;

-- The statement of docs/how-to/permissions.md.
REVOKE EXECUTE ON ROUTINE
    redlock_acquire, redlock_acquire_all, redlock_try, redlock_try_all,
    redlock_try_detached, redlock_run, redlock_run_all, redlock_lock, redlock_lock_all, redlock_release(text),
    redlock_release(text, bigint), redlock_release_all, redlock_check(text), redlock_check(text, bigint),
    redlock_extend, redlock_attach, redlock_token, redlock_release_wanted, redlock_fence FROM PUBLIC;

-- PUBLIC keeps the functions behind the views, redlock_diagnose, and functions to look at a lock.
SELECT p.proname, p.prokind
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_proc p ON p.oid = d.objid
 WHERE e.extname = 'redlock_pg' AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
   AND d.refclassid = 'pg_extension'::regclass
   AND has_function_privilege('regress_redlock_no', p.oid, 'EXECUTE')
 ORDER BY p.proname COLLATE "C";

-- a role without rights can only look
SELECT redlock_try('held', scope => 'session');
SET ROLE regress_redlock_no;
SELECT redlock_acquire('a');
\echo :SQLSTATE
SELECT redlock_try('a');
CALL redlock_run('a', 'SELECT 1');
CALL redlock_run_all(ARRAY['a'], 'SELECT 1');
SELECT redlock_release('held');
SELECT redlock_release_all();
SELECT redlock_check('held');
SELECT redlock_token('held');
SELECT redlock_fence('held');
SELECT state, pid IS NOT NULL AS named FROM redlock_holder('held');
SELECT redlock_is_locked('held');
SELECT status FROM redlock_last_run('held');
SELECT count(*) FROM redlock_waiters('held');
SELECT count(*) FROM redlock_holders('held');
SELECT count(*) FROM redlock_inspect('held');
SELECT redlock_release_wanted('held');
SELECT redlock_ask_release('held');
SELECT redlock_force_release('held');
SELECT redlock_stat_reset();
SELECT redlock_grant('regress_redlock_no', '%');
SELECT redlock_revoke('regress_redlock_no', '%');
SELECT count(*) FROM redlock_grants;
SELECT resource, state FROM redlock_locks WHERE state = 'held';
SELECT count(*) = :nodes AS all_of_them FROM redlock_nodes;
SELECT count(*) FROM redlock_hosts;
SELECT count(*) FROM redlock_stats;
SELECT count(*) FROM redlock_fences;
RESET ROLE;
SELECT redlock_release('held');

-- a role with GRANT EXECUTE can call the revoked routines
GRANT EXECUTE ON ROUTINE
    redlock_acquire, redlock_acquire_all, redlock_try, redlock_try_all,
    redlock_try_detached, redlock_run, redlock_run_all, redlock_lock, redlock_lock_all, redlock_release(text),
    redlock_release(text, bigint), redlock_release_all, redlock_check(text), redlock_check(text, bigint),
    redlock_extend, redlock_attach, redlock_token, redlock_release_wanted, redlock_fence TO regress_redlock_yes;
SET ROLE regress_redlock_yes;
SELECT redlock_acquire('a', scope => 'session') > 0, redlock_try('a', scope => 'session');
SELECT redlock_fence('a') = redlock_token('a'), redlock_check('a') > '0';
SELECT redlock_release_wanted('a');
SELECT redlock_release_wanted('b');
CALL redlock_run('b', 'SELECT redlock_check(''b'')');
CALL redlock_run_all(ARRAY['b', 'c'], 'SELECT redlock_check(''c'')');
SELECT redlock_release('a'), redlock_release_all();
RESET ROLE;

-- the functions for administrators can be granted
GRANT EXECUTE ON FUNCTION redlock_holders, redlock_inspect, redlock_ask_release, redlock_force_release,
    redlock_stat_reset, redlock_grant, redlock_revoke TO regress_redlock_yes;
SET ROLE regress_redlock_yes;
SELECT count(*) FROM redlock_holders('nothing');
SELECT redlock_ask_release('nothing') IS NULL AS nothing;
SELECT redlock_force_release('nothing') IS NULL AS nothing, count(*) > 0 AS nodes FROM redlock_inspect('nothing');
SELECT redlock_stat_reset();
SELECT redlock_grant('regress_redlock_yes', 'a'), redlock_revoke('regress_redlock_yes', 'a');
RESET ROLE;

-- All routines of the schema revoked at once: a GRANT restores the views.
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_lock_rows, redlock_node_rows, redlock_node_list_rows,
    redlock_role_rows, redlock_host_rows, redlock_counter_row, redlock_unsettled_row,
    redlock_stat_node_rows, redlock_stat_resource_rows TO PUBLIC;
SET ROLE regress_redlock_no;
SELECT count(*) >= 0 AS readable FROM redlock_locks;
SELECT count(*) = :nodes AS all_of_them FROM redlock_nodes;
SELECT count(*) FROM redlock_hosts;
SELECT count(*) FROM redlock_stats;
SELECT count(*) >= 0 AS readable FROM redlock_roles;
SELECT count(*) = :nodes AS all_of_them FROM redlock_stat_nodes;
SELECT count(*) >= 0 AS readable FROM redlock_stat_resources;
RESET ROLE;

-- Default privileges close new functions to PUBLIC: the views can be read all the same.
DROP EXTENSION redlock_pg;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC;
CREATE EXTENSION redlock_pg;
SET ROLE regress_redlock_no;
SELECT redlock_try('a');
SELECT count(*) >= 0 AS readable FROM redlock_locks;
SELECT count(*) = :nodes AS all_of_them FROM redlock_nodes;
SELECT count(*) FROM redlock_hosts;
SELECT count(*) FROM redlock_stats;
SELECT count(*) >= 0 AS readable FROM redlock_roles;
SELECT count(*) = :nodes AS all_of_them FROM redlock_stat_nodes;
SELECT count(*) >= 0 AS readable FROM redlock_stat_resources;
RESET ROLE;

-- Default privileges for a role reach neither the functions for administrators ...
DROP EXTENSION redlock_pg;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_redlock_yes WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON ROUTINES TO regress_redlock_yes;
CREATE EXTENSION redlock_pg;
SELECT DISTINCT p.proname
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_proc p ON p.oid = d.objid
 WHERE e.extname = 'redlock_pg' AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
   AND d.refclassid = 'pg_extension'::regclass
   AND NOT has_function_privilege('regress_redlock_yes', p.oid, 'EXECUTE')
 ORDER BY p.proname;
-- ... nor any right on tables and views beyond SELECT
SELECT c.relname, a.privilege_type
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_class c ON c.oid = d.objid,
       aclexplode(c.relacl) a
 WHERE e.extname = 'redlock_pg' AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
   AND d.refclassid = 'pg_extension'::regclass
   AND a.grantee <> c.relowner AND a.privilege_type <> 'SELECT'
 ORDER BY c.relname, a.privilege_type;
SET ROLE regress_redlock_yes;
CREATE TRIGGER rise BEFORE INSERT ON redlock_fences
    FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
SELECT redlock_force_release('nothing');
SELECT redlock_grant('regress_redlock_yes', '%');
-- other rights stay
SELECT redlock_try('a', scope => 'session'), redlock_fence('a') > 0, redlock_release('a');
SELECT count(*) FROM redlock_stats;
SELECT count(*) FROM redlock_fences;
RESET ROLE;

-- as it was
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM regress_redlock_yes, PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE EXECUTE ON ROUTINES FROM regress_redlock_yes;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON ROUTINES TO PUBLIC;
DROP EXTENSION redlock_pg;
CREATE EXTENSION redlock_pg;
DROP ROLE regress_redlock_no, regress_redlock_yes;
