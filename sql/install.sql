-- The objects that CREATE EXTENSION makes.  DROP EXTENSION leaves no object.
--
-- Protects from: an install script that fails or forgets an object; a function that returns NULL on
-- NULL input instead of an error; a function that runs in a parallel worker, or once for many rows;
-- functions without a description; an extension that works only in the first schema of the search
-- path; a lock lost when the extension is dropped or created anew.

CREATE EXTENSION redlock_pg;

SELECT v.superuser, v.trusted, v.relocatable, v.schema
  FROM pg_available_extension_versions v
  JOIN pg_extension e ON e.extname = v.name AND e.extversion = v.version
 WHERE v.name = 'redlock_pg';

-- all members, no more
CREATE VIEW members AS
    SELECT d.classid, d.objid
      FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
     WHERE e.extname = 'redlock_pg' AND d.deptype = 'e'
       AND d.refclassid = 'pg_extension'::regclass;
SELECT pg_describe_object(classid, objid, 0) COLLATE "C" AS member
  FROM members
 WHERE classid <> 'pg_type'::regclass
 ORDER BY 1;
SELECT enum_range(NULL::redlock_scope);

-- signatures and defaults
SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments,
       pg_get_function_result(p.oid) AS result
  FROM members m JOIN pg_proc p ON m.objid = p.oid
 WHERE m.classid = 'pg_proc'::regclass AND p.proname !~ '_rows?$'
 ORDER BY p.proname, pg_get_function_arguments(p.oid) COLLATE "C";

-- Functions that acquire or release are volatile and never run in a parallel worker; no function is
-- strict.  Only redlock_fence and the functions for grants run with the rights of their owner, for
-- their tables, and set a search path.
SELECT p.proname, p.provolatile AS volatile, p.proparallel AS parallel,
       p.proisstrict AS strict, p.prosecdef AS definer, p.proconfig AS config,
       p.proretset AS set
  FROM members m JOIN pg_proc p ON m.objid = p.oid
 WHERE m.classid = 'pg_proc'::regclass
 ORDER BY p.proname, p.oid::regprocedure::text COLLATE "C";

-- redlock_fences: PUBLIC may read, and not write
SELECT r.privilege_type, has_table_privilege('public', 'redlock_fences', r.privilege_type) AS public
  FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) r (privilege_type);
SELECT attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation
  FROM pg_attribute WHERE attrelid = 'redlock_fences'::regclass AND attnum > 0 ORDER BY attnum;

-- objects without a description: none (types of rows and arrays need none)
SELECT pg_describe_object(classid, objid, 0) AS undescribed
  FROM members
 WHERE coalesce(obj_description(objid, classid::regclass::name), '') = ''
   AND (classid <> 'pg_type'::regclass
        OR objid IN (SELECT oid FROM pg_type WHERE typtype = 'e'));

-- columns of tables and views without a description: none
SELECT attrelid::regclass AS relation, attname AS undescribed
  FROM members JOIN pg_class c ON classid = 'pg_class'::regclass AND objid = c.oid
       JOIN pg_attribute ON attrelid = objid
 WHERE c.relkind IN ('r', 'v') AND attnum > 0 AND coalesce(col_description(objid, attnum), '') = ''
 ORDER BY 1, attnum;

-- volatile: called for each row, and each call counts
SELECT count(*) FILTER (WHERE redlock_try('rows', scope => 'session'))
  FROM generate_series(1, 3);
SELECT redlock_release_all();

-- a second time
CREATE EXTENSION redlock_pg;
\echo :SQLSTATE
CREATE EXTENSION IF NOT EXISTS redlock_pg;

-- a dependent view prevents the drop
CREATE VIEW dependent AS SELECT resource FROM redlock_locks;
\set VERBOSITY terse
DROP EXTENSION redlock_pg;
\echo :SQLSTATE
\set VERBOSITY default
DROP VIEW dependent;

-- only a held lock stays
SELECT redlock_try('survivor', scope => 'session');
DROP EXTENSION redlock_pg;
SELECT count(*) FROM members;
SELECT count(*) FROM pg_class WHERE relname LIKE 'redlock%';
SELECT count(*) FROM pg_proc WHERE proname LIKE 'redlock%';
SELECT count(*) FROM pg_type WHERE typname LIKE '%redlock%';
SELECT count(*) FROM pg_locks
 WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();

-- another schema, not in the search path
CREATE SCHEMA regress_redlock;
CREATE EXTENSION redlock_pg SCHEMA regress_redlock;
SELECT regress_redlock.redlock_check('survivor') > '0';
SELECT regress_redlock.redlock_release('survivor');
SELECT regress_redlock.redlock_try('elsewhere', scope => 'session');
SELECT resource, state, scope FROM regress_redlock.redlock_locks
 WHERE resource = 'elsewhere';
ALTER EXTENSION redlock_pg SET SCHEMA public;
SELECT resource, state, scope FROM redlock_locks WHERE resource = 'elsewhere';
SELECT redlock_release('elsewhere');
DROP SCHEMA regress_redlock;
DROP VIEW members;
