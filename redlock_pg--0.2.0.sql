/* redlock_pg--0.2.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION redlock_pg" to load this file. \quit

-- The extension's schema is in the search path, behind pg_catalog, and others may have operators and
-- functions there.  So each operator has operands of exactly the types of an operator of pg_catalog,
-- and functions of pg_catalog are qualified.

CREATE TYPE redlock_scope AS ENUM ('transaction', 'call', 'session', 'detached');
COMMENT ON TYPE redlock_scope IS
'How long a session holds a lock: until the end of the transaction; until the outermost CALL or DO ends, across the COMMITs of a procedure; until the release or the end of the session; or, detached from the session, until a release by the token or the end of hold_at_most';

--
-- Acquiring and releasing locks
--
-- Called on NULL input on purpose: a NULL name must be an error, never a silent call without a
-- lock.
--

CREATE FUNCTION redlock_acquire(resource text,
                                wait interval DEFAULT NULL,
                                ttl interval DEFAULT NULL,
                                scope redlock_scope DEFAULT 'transaction',
                                hold_at_least interval DEFAULT NULL,
                                hold_at_most interval DEFAULT NULL,
                                keep_idle interval DEFAULT NULL,
                                mode text DEFAULT 'exclusive',
                                permits integer DEFAULT 1)
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_acquire_0_2'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_acquire(text, interval, interval, redlock_scope, interval, interval, interval, text, integer) IS
'Acquires the distributed lock on a resource, and waits at most "wait" (NULL: without end while the lock is taken; fails without a quorum of nodes); returns the fencing token, which is larger for each later exclusive holder. In the mode "shared" many sessions of all servers hold the lock at a time, and no exclusive holder beside them; with "permits" at most that many sessions; at the scope "detached" the lock belongs to no session';

CREATE FUNCTION redlock_try(resource text,
                            ttl interval DEFAULT NULL,
                            scope redlock_scope DEFAULT 'transaction',
                            hold_at_least interval DEFAULT NULL,
                            hold_at_most interval DEFAULT NULL,
                            keep_idle interval DEFAULT NULL,
                            mode text DEFAULT 'exclusive',
                            permits integer DEFAULT 1,
                            wait interval DEFAULT '0')
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_try_0_2'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_try(text, interval, redlock_scope, interval, interval, interval, text, integer, interval) IS
'Acquires the distributed lock on a resource if the lock is free, or gets free within "wait" (zero by default; NULL: without end while the lock is taken; fails without a quorum of nodes), and returns true; returns false if another session holds the lock or asked first. Modes, permits and scopes are those of redlock_acquire';

-- Not overloads of redlock_acquire and redlock_try: PostgreSQL resolves a parameter without a type
-- to text, so a list from a driver would become a single name.
CREATE FUNCTION redlock_acquire_all(resources text[],
                                    wait interval DEFAULT NULL,
                                    ttl interval DEFAULT NULL,
                                    scope redlock_scope DEFAULT 'transaction',
                                    hold_at_least interval DEFAULT NULL,
                                    hold_at_most interval DEFAULT NULL,
                                    keep_idle interval DEFAULT NULL,
                                    mode text DEFAULT 'exclusive')
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'redlock_acquire_all'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_acquire_all(text[], interval, interval, redlock_scope, interval, interval, interval, text) IS
'Acquires the distributed locks on up to 64 resources, all or none, and waits at most "wait" (NULL: without end while the lock is taken; fails without a quorum of nodes); returns the fencing tokens, in the order of the resources. Sessions that acquire their locks in one such call, and hold no lock from an earlier call, never deadlock with each other';

CREATE FUNCTION redlock_try_all(resources text[],
                                ttl interval DEFAULT NULL,
                                scope redlock_scope DEFAULT 'transaction',
                                hold_at_least interval DEFAULT NULL,
                                hold_at_most interval DEFAULT NULL,
                                keep_idle interval DEFAULT NULL,
                                mode text DEFAULT 'exclusive',
                                wait interval DEFAULT '0')
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_try_all'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_try_all(text[], interval, redlock_scope, interval, interval, interval, text, interval) IS
'Acquires the distributed locks on up to 64 resources if all locks are free, or get free within "wait" (zero by default; NULL: without end while the lock is taken; fails without a quorum of nodes), and returns true; returns false, and acquires no lock, if another session holds one of the locks or asked first';

CREATE FUNCTION redlock_try_detached(resource text,
                                     hold_at_most interval,
                                     wait interval DEFAULT '0',
                                     ttl interval DEFAULT NULL,
                                     hold_at_least interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_try_detached'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_try_detached(text, interval, interval, interval, interval) IS
'Acquires the distributed lock on a resource as redlock_try does, at the scope "detached", and returns the token that checks, extends and releases the lock; returns NULL if another session holds the lock or asked first';

CREATE FUNCTION redlock_release(resource text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_release(text) IS
'Releases one acquisition of a resource at session or call scope, at once; returns whether the lease was valid until now. Call it after the commit of the work. The end of the transaction releases locks of transaction scope';

CREATE FUNCTION redlock_release_all()
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_release_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_release_all() IS
'Releases all acquisitions of this session at session or call scope, at once; returns their number';

CREATE FUNCTION redlock_release_idle()
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_release_idle'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_release_idle() IS
'Releases, at once, all idle locks that this server keeps by keep_idle; returns their number. For operators';
REVOKE EXECUTE ON FUNCTION redlock_release_idle() FROM PUBLIC;

CREATE FUNCTION redlock_check(resource text)
RETURNS interval
AS 'MODULE_PATHNAME', 'redlock_check'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_check(text) IS
'Returns how long the lease of a lock of this session is valid without another renewal; fails if the session does not hold the lock, or if the lease was lost';

CREATE FUNCTION redlock_release(resource text, token bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_release_detached'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_release(text, bigint) IS
'Releases a detached lock of this server, at once, from any session with the privileges of the role that acquired the lock; returns whether the lease was valid until now. Call it after the commit of the work';

CREATE FUNCTION redlock_check(resource text, token bigint)
RETURNS interval
AS 'MODULE_PATHNAME', 'redlock_check_detached'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_check(text, bigint) IS
'Returns how long the lease of a detached lock of this server is valid without another renewal; fails if there is no such lock';

CREATE FUNCTION redlock_extend(resource text, token bigint, hold_at_most interval)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'redlock_extend'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_extend(text, bigint, interval) IS
'Extends a detached lock of this server to "hold_at_most" from now, unless the lock may be held for longer already; returns the end of hold_at_most';

CREATE FUNCTION redlock_attach(resource text, token bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'redlock_attach'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_attach(text, bigint) IS
'Makes this transaction rely on a detached lock of this server: the transaction commits only if the lease is valid then, and redlock_check, redlock_token and redlock_fence work as for a lock of the session';

CREATE FUNCTION redlock_token(resource text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_token'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_token(text) IS
'Returns the fencing token of a lock of this session, or NULL if the session does not hold the lock. See redlock_check for whether the lease is still valid';

CREATE FUNCTION redlock_release_wanted(resource text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_release_wanted'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_release_wanted(text) IS
'Returns whether an operator has called redlock_ask_release for the lock since this session got the lock; fails if the session does not hold the lock, or if the lease was lost. Reads shared memory only: for loops of long jobs';

--
-- Looking at a lock
--
-- Called on NULL input on purpose: a NULL name must be an error.
--

CREATE FUNCTION redlock_holder(resource text,
                               OUT state text, OUT mode text,
                               OUT host text, OUT cluster_name text,
                               OUT database text, OUT role text, OUT pid integer,
                               OUT detached boolean, OUT host_id text,
                               OUT may_be_idle boolean, OUT kept_until timestamptz,
                               OUT ttl interval, OUT permits integer,
                               OUT permits_taken integer, OUT reader_hosts text[],
                               OUT held_by text, OUT nodes integer, OUT of_nodes integer,
                               OUT since timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'redlock_holder'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_holder(text) IS
'Returns which session of which host holds the lock on a resource, as a majority of the nodes says, without acquiring the lock. It is an error if no majority answers';

CREATE FUNCTION redlock_holders(prefix text DEFAULT '',
                                OUT resource text, OUT permit integer,
                                OUT state text, OUT mode text,
                                OUT host text, OUT cluster_name text,
                                OUT database text, OUT role text, OUT pid integer,
                                OUT detached boolean, OUT host_id text,
                                OUT may_be_idle boolean, OUT kept_until timestamptz,
                                OUT ttl interval, OUT permits integer,
                                OUT permits_taken integer, OUT reader_hosts text[],
                                OUT held_by text, OUT nodes integer, OUT of_nodes integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_holders'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_holders(text) IS
'Returns the locks whose names begin with "prefix", of all hosts, as redlock_holder does, and locks of a minority of nodes as free. Walks all keys of the nodes, in small steps. For operators';
REVOKE EXECUTE ON FUNCTION redlock_holders(text) FROM PUBLIC;

CREATE FUNCTION redlock_is_locked(resource text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_is_locked'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_is_locked(text) IS
'Returns whether a majority of the nodes has the lock on a resource as held, or as kept by hold_at_least, without acquiring it. A session that wants the lock calls redlock_try: the answer may be outdated at once';

CREATE FUNCTION redlock_last_run(resource text,
                                 OUT started timestamptz, OUT ended timestamptz,
                                 OUT status text, OUT token bigint,
                                 OUT cluster_name text, OUT host text, OUT host_id text,
                                 OUT database text, OUT role text, OUT pid integer,
                                 OUT message text, OUT nodes integer, OUT of_nodes integer)
RETURNS record
AS 'MODULE_PATHNAME', 'redlock_last_run'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_last_run(text) IS
'Returns the last run of CALL redlock_run(..., record => true) with the lock on a resource that has ended, on any host, as a majority of the nodes knows it; nulls if no node has a note of a run. It is an error if no majority answers';

CREATE FUNCTION redlock_waiters(resource text,
                                OUT host text, OUT cluster_name text, OUT host_id text,
                                OUT mode text, OUT sessions integer, OUT waits interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_waiters'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_waiters(text) IS
'Returns the hosts with sessions that wait for the lock on a resource: how many sessions wait, and how long the longest wait is. Each host answers for itself; a warning says if the list is incomplete';

CREATE FUNCTION redlock_inspect(resource text,
                                OUT node text, OUT value text, OUT ttl interval,
                                OUT counter bigint, OUT marker text, OUT error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_inspect'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_inspect(text) IS
'Returns what each node keeps of the lock on a resource. For support: the value has the secret of the lease';
REVOKE EXECUTE ON FUNCTION redlock_inspect(text) FROM PUBLIC;

CREATE FUNCTION redlock_ask_release(resource text)
RETURNS text
AS 'MODULE_PATHNAME', 'redlock_ask_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_ask_release(text) IS
'Asks the holder of the lock on a resource, on any host, to release the lock: redlock_release_wanted tells the holder, and an idle lock is released at once. Does not wait for the release. Returns the description of the holder, or NULL if nobody holds the lock. For operators';
REVOKE EXECUTE ON FUNCTION redlock_ask_release(text) FROM PUBLIC;

CREATE FUNCTION redlock_force_release(resource text)
RETURNS text
AS 'MODULE_PATHNAME', 'redlock_force_release'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_force_release(text) IS
'Releases the lock on a resource at the nodes, whoever holds it: its holder loses the lease. Returns the description of the holder, or NULL if no node had a key. For operators';
REVOKE EXECUTE ON FUNCTION redlock_force_release(text) FROM PUBLIC;

CREATE FUNCTION redlock_diagnose(OUT severity text, OUT subject text,
                                 OUT finding text, OUT remedy text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_diagnose'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_diagnose() IS
'Says in words what is wrong with this installation, and what to do: a row for each finding with the severity error or warning, and for each subject without a fault a row with the severity ok. Never fails because of such a fault';

--
-- The fence
--

CREATE TABLE redlock_fences (
    resource text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    passed_at timestamptz NOT NULL
) WITH (fillfactor = 50); -- room for updates in place: they touch no index
COMMENT ON TABLE redlock_fences IS
'For each resource the largest fencing token that a transaction has recorded and committed in this database. To admit smaller tokens, set the token to 0, and delete the rows of redlock_shared_fences; don''t delete the row';
COMMENT ON COLUMN redlock_fences.resource IS
'Name of the lock; for a permit with U+0001 and the number of the permit at the end';
COMMENT ON COLUMN redlock_fences.token IS
'Largest recorded token';
COMMENT ON COLUMN redlock_fences.passed_at IS
'Time of the record';
GRANT SELECT ON redlock_fences TO PUBLIC;

-- A publication FOR ALL TABLES includes the table.  The trigger merges rows that arrive at a
-- subscriber, or by any replication with session_replication_role = replica.
CREATE FUNCTION redlock_fence_merge()
RETURNS trigger
AS 'MODULE_PATHNAME', 'redlock_fence_merge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_fence_merge() IS
'Trigger of redlock_fences for rows that logical replication brings: the larger token stays, and nothing is deleted';
REVOKE EXECUTE ON FUNCTION redlock_fence_merge() FROM PUBLIC;
CREATE TRIGGER redlock_fence_merge BEFORE INSERT OR UPDATE OR DELETE ON redlock_fences
    FOR EACH ROW EXECUTE FUNCTION redlock_fence_merge();
ALTER TABLE redlock_fences ENABLE REPLICA TRIGGER redlock_fence_merge;

-- The fences of readers.  A new row, unlike an update, makes no reader wait.
CREATE TABLE redlock_shared_fences (
    id uuid DEFAULT pg_catalog.gen_random_uuid() PRIMARY KEY, -- rows of several servers may meet by replication
    resource text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    passed_at timestamptz NOT NULL
);
CREATE INDEX redlock_shared_fences_resource ON redlock_shared_fences (resource, token);
COMMENT ON TABLE redlock_shared_fences IS
'Fencing tokens of shared locks that transactions have recorded and committed in this database since the last exclusive holder, or since a newer reader. The largest token of a resource counts';
COMMENT ON COLUMN redlock_shared_fences.id IS
'Random: rows of several servers may meet by replication';
COMMENT ON COLUMN redlock_shared_fences.resource IS
'Name of the lock';
COMMENT ON COLUMN redlock_shared_fences.token IS
'Token of the sessions that shared the lock';
COMMENT ON COLUMN redlock_shared_fences.passed_at IS
'Time of the record';
GRANT SELECT ON redlock_shared_fences TO PUBLIC;

CREATE FUNCTION redlock_shared_fences_merge()
RETURNS trigger
AS 'MODULE_PATHNAME', 'redlock_shared_fences_merge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_shared_fences_merge() IS
'Trigger of redlock_shared_fences for rows that logical replication brings: rows without newer information are not written';
REVOKE EXECUTE ON FUNCTION redlock_shared_fences_merge() FROM PUBLIC;
CREATE TRIGGER redlock_shared_fences_merge BEFORE INSERT ON redlock_shared_fences
    FOR EACH ROW EXECUTE FUNCTION redlock_shared_fences_merge();
ALTER TABLE redlock_shared_fences ENABLE REPLICA TRIGGER redlock_shared_fences_merge;

-- SECURITY DEFINER: only the owner may write the tables; the function records tokens of held locks.
CREATE FUNCTION redlock_fence(resource text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'redlock_fence'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION redlock_fence(text) IS
'Records the fencing token of a lock of this session, in this transaction, and returns the token; fails (40001) if a newer holder has recorded a token. Call it in a statement of its own, before the work';

CREATE PROCEDURE redlock_run(resource text, command text,
                             wait interval DEFAULT '0',
                             ttl interval DEFAULT NULL,
                             hold_at_least interval DEFAULT NULL,
                             hold_at_most interval DEFAULT NULL,
                             keep_idle interval DEFAULT NULL,
                             fence boolean DEFAULT false,
                             record boolean DEFAULT false,
                             mode text DEFAULT 'exclusive',
                             permits integer DEFAULT 1)
AS 'MODULE_PATHNAME', 'redlock_run_0_2'
LANGUAGE C;
COMMENT ON PROCEDURE redlock_run(text, text, interval, interval, interval, interval, interval, boolean, boolean, text, integer) IS
'Runs an SQL command under the distributed lock on a resource, or skips the command with a notice if another session holds the lock for longer than "wait"; the command may be a CALL that commits. With "fence" the fencing token is recorded before the command, and before each of its commits that wrote. With "record" the table redlock_runs has a row of the run';

CREATE PROCEDURE redlock_run_all(resources text[], command text,
                                 wait interval DEFAULT '0',
                                 ttl interval DEFAULT NULL,
                                 hold_at_least interval DEFAULT NULL,
                                 hold_at_most interval DEFAULT NULL,
                                 keep_idle interval DEFAULT NULL,
                                 fence boolean DEFAULT false,
                                 record boolean DEFAULT false,
                                 mode text DEFAULT 'exclusive')
AS 'MODULE_PATHNAME', 'redlock_run_all'
LANGUAGE C;
COMMENT ON PROCEDURE redlock_run_all(text[], text, interval, interval, interval, interval, interval, boolean, boolean, text) IS
'Runs an SQL command under the distributed locks on up to 64 resources, all or none, as redlock_run does under one. With "fence" all fencing tokens are recorded. With "record" the table redlock_runs has one row of the run, with the first name';

CREATE PROCEDURE redlock_lock(resource text,
                              wait interval DEFAULT NULL,
                              ttl interval DEFAULT NULL,
                              scope redlock_scope DEFAULT 'session',
                              hold_at_least interval DEFAULT NULL,
                              hold_at_most interval DEFAULT NULL,
                              keep_idle interval DEFAULT NULL,
                              mode text DEFAULT 'exclusive',
                              permits integer DEFAULT 1)
AS 'MODULE_PATHNAME', 'redlock_lock'
LANGUAGE C;
COMMENT ON PROCEDURE redlock_lock(text, interval, interval, redlock_scope, interval, interval, interval, text, integer) IS
'Acquires the distributed lock on a resource at session or call scope, as redlock_acquire does; redlock_token returns the token. Outside of a transaction block the call waits without a snapshot, so that VACUUM and CREATE INDEX CONCURRENTLY need not wait for the call';

CREATE PROCEDURE redlock_lock_all(resources text[],
                                  wait interval DEFAULT NULL,
                                  ttl interval DEFAULT NULL,
                                  scope redlock_scope DEFAULT 'session',
                                  hold_at_least interval DEFAULT NULL,
                                  hold_at_most interval DEFAULT NULL,
                                  keep_idle interval DEFAULT NULL,
                                  mode text DEFAULT 'exclusive')
AS 'MODULE_PATHNAME', 'redlock_lock_all'
LANGUAGE C;
COMMENT ON PROCEDURE redlock_lock_all(text[], interval, interval, redlock_scope, interval, interval, interval, text) IS
'Acquires the distributed locks on up to 64 resources, all or none, at session or call scope, as redlock_acquire_all does; redlock_token returns the token of each. Outside of a transaction block the call waits without a snapshot, as redlock_lock does';

--
-- Names that a role may lock
--

CREATE TABLE redlock_grants (
    role name NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    role_id oid NOT NULL, -- filled in by the trigger
    PRIMARY KEY (role_id, pattern)
);
COMMENT ON TABLE redlock_grants IS
'With redlock.restrict = on, a role locks only names that match its patterns, or patterns of roles whose privileges it has. See redlock_grant and redlock_revoke';
COMMENT ON COLUMN redlock_grants.role IS
'Name of the role when the grant was made: for a restore of a dump';
COMMENT ON COLUMN redlock_grants.pattern IS
'Pattern of names, as of LIKE';
COMMENT ON COLUMN redlock_grants.role_id IS
'The role: a later role of the same name has another OID';
GRANT SELECT ON redlock_grants TO PUBLIC;
-- A dump leaves out grants of dropped and renamed roles: another role may have the name.
SELECT pg_catalog.pg_extension_config_dump('redlock_grants',
    'WHERE (role_id, role) IN (SELECT oid, rolname FROM pg_catalog.pg_roles)');

CREATE FUNCTION redlock_grants_change()
RETURNS trigger
AS 'MODULE_PATHNAME', 'redlock_grants_change'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_grants_change() IS
'Trigger of redlock_grants: finds the role by its name, makes all sessions read the grants again, refuses changes by other roles than the owner, and leaves out rows that logical replication brings';
REVOKE EXECUTE ON FUNCTION redlock_grants_change() FROM PUBLIC;
CREATE TRIGGER redlock_grants_change BEFORE INSERT OR UPDATE OR DELETE ON redlock_grants
    FOR EACH ROW EXECUTE FUNCTION redlock_grants_change();
ALTER TABLE redlock_grants ENABLE ALWAYS TRIGGER redlock_grants_change;

-- SECURITY DEFINER: the right to call a function is the right to grant.
CREATE FUNCTION redlock_grant(role regrole, pattern text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_grant'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION redlock_grant(regrole, text) IS
'Lets a role lock the names that match a pattern as of LIKE, with redlock.restrict = on; returns false if the role has this grant already. For administrators';
REVOKE EXECUTE ON FUNCTION redlock_grant(regrole, text) FROM PUBLIC;

CREATE FUNCTION redlock_revoke(role regrole, pattern text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'redlock_revoke'
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION redlock_revoke(regrole, text) IS
'Takes a grant of redlock_grant back; returns false if the role does not have this grant. Held locks stay held. For administrators';
REVOKE EXECUTE ON FUNCTION redlock_revoke(regrole, text) FROM PUBLIC;

--
-- Runs of jobs
--

CREATE TABLE redlock_runs (
    id uuid DEFAULT pg_catalog.gen_random_uuid() PRIMARY KEY, -- rows of several servers may meet by replication
    resource text NOT NULL,
    command text NOT NULL,
    host text NOT NULL,
    database text NOT NULL,
    role text NOT NULL,
    token bigint,
    pid integer NOT NULL,
    server bigint NOT NULL,
    host_id text NOT NULL,
    session bigint NOT NULL,
    started timestamptz NOT NULL,
    ended timestamptz,
    status text NOT NULL CHECK (status IN ('running', 'succeeded', 'failed', 'skipped', 'lost')),
    message text
);
CREATE INDEX redlock_runs_started ON redlock_runs (started);
CREATE INDEX redlock_runs_running ON redlock_runs (server) WHERE status = 'running';
COMMENT ON TABLE redlock_runs IS
'Runs of CALL redlock_run(..., record => true) in this database. Recording a run deletes rows of runs that began longer ago than redlock.runs_keep. Each role sees its own runs';
COMMENT ON COLUMN redlock_runs.id IS
'Random: rows of several servers may meet by replication';
COMMENT ON COLUMN redlock_runs.resource IS
'Name of the lock';
COMMENT ON COLUMN redlock_runs.database IS
'Database of the run';
COMMENT ON COLUMN redlock_runs.role IS
'Role of the caller, which sees the row';
COMMENT ON COLUMN redlock_runs.started IS
'By the clock of the server, after the wait for the lock; if the run failed before its start, the time of the call';
COMMENT ON COLUMN redlock_runs.ended IS
'Null while running, or if unknown';
COMMENT ON COLUMN redlock_runs.command IS
'First kilobyte of the command';
COMMENT ON COLUMN redlock_runs.host IS
'cluster_name of the server, or the name of its machine';
COMMENT ON COLUMN redlock_runs.token IS
'The fencing token of the lock; null if the run was skipped, or failed before its start';
COMMENT ON COLUMN redlock_runs.pid IS
'Process of the session';
COMMENT ON COLUMN redlock_runs.server IS
'System identifier of the server''s data directory; a standby and a copy have the same';
COMMENT ON COLUMN redlock_runs.host_id IS
'Id of the server in redlock_hosts: new at each start of the server';
COMMENT ON COLUMN redlock_runs.session IS
'Random, for the life of the session: tells the server which runs can no longer report their end';
COMMENT ON COLUMN redlock_runs.status IS
'running; succeeded; failed (see message); skipped (another session held the lock or asked first, or hold_at_least kept the lock); lost (the run failed, and its session knew of the loss of the lock)';
COMMENT ON COLUMN redlock_runs.message IS
'Error of a failed run; of a lost run also the reason of the loss; of a skipped run the holder of the lock';
ALTER TABLE redlock_runs ENABLE ROW LEVEL SECURITY;
CREATE POLICY redlock_runs_own ON redlock_runs FOR SELECT USING (role = CURRENT_USER);
GRANT SELECT ON redlock_runs TO PUBLIC;

-- As for redlock_fences: servers that replicate to each other may exchange rows in a circle.
CREATE FUNCTION redlock_runs_merge()
RETURNS trigger
AS 'MODULE_PATHNAME', 'redlock_runs_merge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_runs_merge() IS
'Trigger of redlock_runs for rows that logical replication brings: rows without newer information are not written';
REVOKE EXECUTE ON FUNCTION redlock_runs_merge() FROM PUBLIC;
CREATE TRIGGER redlock_runs_merge BEFORE INSERT OR UPDATE ON redlock_runs
    FOR EACH ROW EXECUTE FUNCTION redlock_runs_merge();
ALTER TABLE redlock_runs ENABLE REPLICA TRIGGER redlock_runs_merge;

--
-- Looking at locks, nodes and hosts
--

CREATE FUNCTION redlock_lock_rows(OUT resource text, OUT state text,
                                  OUT scope text, OUT pid integer,
                                  OUT database oid, OUT token bigint,
                                  OUT valid_for interval, OUT ttl interval,
                                  OUT since timestamptz, OUT held_by text,
                                  OUT gate_classid oid, OUT gate_objid oid,
                                  OUT role oid, OUT until timestamptz,
                                  OUT permit integer, OUT mode text,
                                  OUT holder_cluster_name text, OUT holder_host text,
                                  OUT holder_database text, OUT holder_role text,
                                  OUT holder_pid integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_lock_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_lock_rows() IS
'The lease table of this server; read it through the view redlock_locks';

CREATE FUNCTION redlock_node_rows(OUT node text, OUT state text,
                                  OUT last_error text, OUT last_error_at timestamptz,
                                  OUT rtt_us bigint,
                                  OUT votes_yes bigint, OUT votes_no bigint,
                                  OUT votes_error bigint, OUT since timestamptz,
                                  OUT quarantine text, OUT quarantined_for interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_node_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_node_rows() IS
'The Redis nodes as the broker of this server sees them; read it through the view redlock_nodes';

CREATE FUNCTION redlock_host_rows(OUT name text, OUT host_id text, OUT version text,
                                  OUT postgres text, OUT prefix text, OUT leases integer,
                                  OUT since timestamptz, OUT last_seen timestamptz,
                                  OUT nodes integer, OUT settled boolean,
                                  OUT agrees boolean, OUT disagreement text, OUT self boolean,
                                  OUT standing text, OUT step text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_host_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_host_rows() IS
'The servers that share the nodes, as the nodes know them; read it through the view redlock_hosts';

CREATE FUNCTION redlock_counter_row(OUT granted bigint, OUT refused bigint,
                                     OUT unreachable bigint, OUT renewed bigint,
                                     OUT unrenewed bigint, OUT lost bigint,
                                     OUT released bigint,
                                     OUT handed_over bigint, OUT woken bigint,
                                     OUT locks integer, OUT max_locks integer,
                                     OUT releasing integer, OUT broker_pid integer,
                                     OUT taken_idle bigint, OUT recalled bigint,
                                     OUT joined bigint, OUT tries_refused bigint,
                                     OUT timed_out bigint, OUT deadlocks bigint,
                                     OUT total_wait_time double precision,
                                     OUT total_hold_time double precision,
                                     OUT stats_reset timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'redlock_counter_row'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_counter_row() IS
'Counters of this server; read them through the view redlock_stats';

CREATE FUNCTION redlock_node_list_rows(OUT node text, OUT list text,
                                       OUT memory_used bigint, OUT memory_limit bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_node_list_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_node_list_rows() IS
'Lists and memory of the nodes; read it through the view redlock_nodes';

CREATE FUNCTION redlock_role_rows(OUT role oid, OUT new_names bigint, OUT refused bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_role_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_role_rows() IS
'Number of new names of locks of each role; read it through the view redlock_roles';

CREATE FUNCTION redlock_unsettled_row(OUT unsettled integer, OUT kept_until timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'redlock_unsettled_row'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_unsettled_row() IS
'Leases and keys that are not on all lists of nodes in force; read it through the view redlock_stats';

CREATE VIEW redlock_locks AS
    -- a shared lock has a row for each reader, or a single row without readers
    WITH l AS MATERIALIZED (SELECT * FROM redlock_lock_rows())
    SELECT resource, state, scope, pid, d.datname AS database, token,
           valid_for, ttl, since, held_by,
           pg_catalog.pg_get_userbyid(l.role) AS role, until, permit, mode,
           holder_cluster_name, holder_host, holder_database, holder_role, holder_pid
      FROM l LEFT JOIN pg_catalog.pg_database d ON d.oid = l.database
    UNION ALL
    -- sessions queued behind another session of this server.  Some sessions have entered the
    -- gate: the first waiter for the end of a detached lock, and each waiting reader
    SELECT DISTINCT l.resource, 'queued', NULL, g.pid, NULL::name, NULL::bigint,
           NULL::interval, NULL::interval, g.waitstart, NULL, NULL::name, NULL::timestamptz, NULL::integer,
           CASE g.mode WHEN 'ShareLock' THEN 'shared' ELSE 'exclusive' END,
           NULL, NULL, NULL, NULL, NULL::integer
      FROM pg_catalog.pg_locks g
      -- one row for each gate, not for each reader: else readers times waiters
      JOIN (SELECT DISTINCT resource, scope, state, pid IS NULL AS unowned, mode, gate_classid, gate_objid
              FROM l) l
        ON g.classid = l.gate_classid AND g.objid = l.gate_objid
     WHERE g.locktype = 'userlock' AND g.database OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND g.objsubid = 0
       AND (NOT g.granted OR (l.scope = 'detached' AND l.state = 'held' AND l.unowned)
            OR (l.mode = 'shared' AND l.state IN ('waiting', 'held')
                AND NOT EXISTS (SELECT FROM l reader
                                 WHERE reader.gate_classid = g.classid
                                   AND reader.gate_objid = g.objid AND reader.pid = g.pid)));
COMMENT ON VIEW redlock_locks IS
'Locks that sessions of this server hold, have lost, or wait for, and idle and detached locks of this server';
COMMENT ON COLUMN redlock_locks.resource IS
'Name of the lock';
COMMENT ON COLUMN redlock_locks.scope IS
'Widest scope of the holder: session, call or transaction; or detached; null while queued or idle, or shared';
COMMENT ON COLUMN redlock_locks.pid IS
'Process of the session; null of idle and detached locks';
COMMENT ON COLUMN redlock_locks.database IS
'Database of the session, or of the session that acquired the detached lock; null while queued or idle, or shared';
COMMENT ON COLUMN redlock_locks.ttl IS
'Validity that each renewal gives to the lease';
COMMENT ON COLUMN redlock_locks.state IS
'held; idle (no holder, but kept by this server for its next session, by keep_idle); waiting (the server asks the nodes, or another host holds the lock); queued (another session of this server is ahead, or a reader waits for a writer of another host); lost (the validity has ended, and the session has not yet released the lock); releasing (released, the broker deletes the keys)';
COMMENT ON COLUMN redlock_locks.since IS
'Start of the wait, of the hold or of the idle time; null of the first waiter for a detached lock, and of a reader behind a reader''s request';
COMMENT ON COLUMN redlock_locks.token IS
'The fencing token that redlock_acquire returned';
COMMENT ON COLUMN redlock_locks.valid_for IS
'Validity left without another renewal';
COMMENT ON COLUMN redlock_locks.held_by IS
'While waiting: the holder on another server, as the holder described itself';
COMMENT ON COLUMN redlock_locks.role IS
'Role of the session, or the role to which the detached lock belongs; null while queued or idle, or shared';
COMMENT ON COLUMN redlock_locks.until IS
'End of hold_at_most, or of keep_idle while idle; null without such an end, or if not held';
COMMENT ON COLUMN redlock_locks.permit IS
'Number of the permit, of a lock with permits; null of other locks, and while waiting for any permit';
COMMENT ON COLUMN redlock_locks.mode IS
'exclusive or shared. A held shared lock has a row for each reader of this server';
COMMENT ON COLUMN redlock_locks.holder_cluster_name IS
'From held_by: cluster_name of the holder''s server';
COMMENT ON COLUMN redlock_locks.holder_host IS
'From held_by: machine of the holder';
COMMENT ON COLUMN redlock_locks.holder_database IS
'From held_by: database of the holder';
COMMENT ON COLUMN redlock_locks.holder_role IS
'From held_by: role of the holder';
COMMENT ON COLUMN redlock_locks.holder_pid IS
'From held_by: process of the holder; null of a detached lock';

CREATE VIEW redlock_nodes AS
    SELECT n.node, n.state, n.last_error, n.last_error_at, n.rtt_us, n.votes_yes, n.votes_no,
           n.votes_error, n.since, n.quarantine, n.quarantined_for, l.list,
           l.memory_used, l.memory_limit
      FROM redlock_node_rows() n
      LEFT JOIN redlock_node_list_rows() l ON l.node = n.node;
COMMENT ON VIEW redlock_nodes IS
'The Redis nodes as the broker of this server sees them';
COMMENT ON COLUMN redlock_nodes.node IS
'Address, without user and password';
COMMENT ON COLUMN redlock_nodes.last_error IS
'Why the node is not ready, or its last error; stays when the node is ready again, except for the reason of a quarantine';
COMMENT ON COLUMN redlock_nodes.votes_yes IS
'Acquires, writings of their tokens, and renewals that the node granted';
COMMENT ON COLUMN redlock_nodes.votes_no IS
'Requests that the node refused, since another session holds the lock';
COMMENT ON COLUMN redlock_nodes.votes_error IS
'Requests that ended in an error, or had no answer in time';
COMMENT ON COLUMN redlock_nodes.since IS
'Start of the state';
COMMENT ON COLUMN redlock_nodes.state IS
'ready; resolving or connecting; quarantined (answers, but does not vote for new locks until the quarantine ends); backing off (the broker will reconnect); refused (answers, but must not vote: see last_error); leaving (no longer in redlock.nodes or redlock.nodes_next, but granted some lease)';
COMMENT ON COLUMN redlock_nodes.last_error_at IS
'Latest time of last_error; earlier than "since" if the node has come back';
COMMENT ON COLUMN redlock_nodes.quarantine IS
'Why the node may have forgotten leases, or may throw leases away; null without a quarantine';
COMMENT ON COLUMN redlock_nodes.quarantined_for IS
'Time until the node votes for new locks again; null without a quarantine, or if the quarantine lasts until maxmemory-policy is noeviction';
COMMENT ON COLUMN redlock_nodes.rtt_us IS
'Time from a command to its reply, in microseconds; smoothed over the last ten or so replies';
COMMENT ON COLUMN redlock_nodes.list IS
'now: in redlock.nodes; next: in redlock.nodes_next; both; or leaving: no longer in a list, but granted some lease';
COMMENT ON COLUMN redlock_nodes.memory_used IS
'Bytes of memory that the node uses, every 5 seconds; null if the node does not tell';
COMMENT ON COLUMN redlock_nodes.memory_limit IS
'maxmemory of the node; null without a limit, or if the node does not tell';

CREATE VIEW redlock_roles AS
    SELECT pg_catalog.pg_get_userbyid(n.role) AS role, n.new_names, n.refused
      FROM redlock_role_rows() n;
COMMENT ON VIEW redlock_roles IS
'Number of names of locks new to this server, by the role that used them first';
COMMENT ON COLUMN redlock_roles.role IS
'Role of the sessions; at most the 128 roles with most new names';
COMMENT ON COLUMN redlock_roles.new_names IS
'New names, and new rows of redlock_fences, within the last hour';
COMMENT ON COLUMN redlock_roles.refused IS
'Calls that redlock.max_new_names_per_hour refused since the server started';

CREATE VIEW redlock_hosts AS
    SELECT h.name, h.host_id, h.version, h.postgres, h.prefix, h.leases, h.since, h.last_seen, h.nodes,
           h.settled, h.agrees, h.disagreement, h.self, h.standing, h.step,
           pg_catalog.count(*) OVER (PARTITION BY h.name) > 1 AS same_name
      FROM redlock_host_rows() h;
COMMENT ON VIEW redlock_hosts IS
'The servers that share the nodes, as a majority of the nodes knows them; fails without a majority';
COMMENT ON COLUMN redlock_hosts.name IS
'cluster_name of the server, or the name of its machine';
COMMENT ON COLUMN redlock_hosts.host_id IS
'Random, for the life of the server''s shared memory; part of the values of the server''s locks';
COMMENT ON COLUMN redlock_hosts.version IS
'Version of redlock_pg';
COMMENT ON COLUMN redlock_hosts.postgres IS
'Version of PostgreSQL';
COMMENT ON COLUMN redlock_hosts.prefix IS
'redlock.key_prefix: servers with different prefixes share no locks';
COMMENT ON COLUMN redlock_hosts.leases IS
'Locks that the server held, kept idle, or asked for, at last_seen';
COMMENT ON COLUMN redlock_hosts.since IS
'Approximate start of the server''s shared memory; a new start changes host_id';
COMMENT ON COLUMN redlock_hosts.last_seen IS
'Time of the server''s last entry at a node, by the clock of the server that shows this view; the node tells the age of the entry. A server without an entry for 45 seconds is left out';
COMMENT ON COLUMN redlock_hosts.nodes IS
'Number of this server''s nodes that know the listed server';
COMMENT ON COLUMN redlock_hosts.settled IS
'All leases of the server, and its released locks under hold_at_least, are on all its lists of nodes, and a majority of each list answers; redlock.nodes_next of the server that shows this view, if set, is among the lists';
COMMENT ON COLUMN redlock_hosts.agrees IS
'False: the listed server and this server could get one lock at the same time; null: another prefix';
COMMENT ON COLUMN redlock_hosts.disagreement IS
'The difference, and what to change; null unless agrees is false';
COMMENT ON COLUMN redlock_hosts.self IS
'True for this server';
COMMENT ON COLUMN redlock_hosts.standing IS
'takes: takes new locks; asks: will take locks after a look at the other hosts; refuses: takes no locks, because of a conflict; holds: refuses, but still holds some locks; warns: takes locks in spite of conflicts, by redlock.on_disagreement';
COMMENT ON COLUMN redlock_hosts.step IS
'on: about to leave redlock.nodes for redlock.nodes_next; back: the other way; else null';
COMMENT ON COLUMN redlock_hosts.same_name IS
'Another server of this list has the same name';

CREATE VIEW redlock_stats AS
    SELECT c.granted, c.refused, c.unreachable, c.renewed, c.unrenewed, c.lost, c.released,
           c.handed_over, c.woken, c.locks, c.max_locks, c.releasing, c.broker_pid,
           c.taken_idle, c.recalled, u.unsettled, u.kept_until, c.joined, c.tries_refused,
           c.timed_out, c.deadlocks, c.total_wait_time, c.total_hold_time, c.stats_reset
      FROM redlock_counter_row() c, redlock_unsettled_row() u;
COMMENT ON VIEW redlock_stats IS
'What this server counted since stats_reset, and the room for locks';
COMMENT ON COLUMN redlock_stats.locks IS
'Locks held, idle, lost and not yet released, or asked for: at most max_locks';
COMMENT ON COLUMN redlock_stats.max_locks IS
'Limit of locks: redlock.max_locks at the start of the server, or half of PostgreSQL''s lock table if smaller';
COMMENT ON COLUMN redlock_stats.releasing IS
'Released locks that some node has not yet acknowledged; these locks do not count towards max_locks';
COMMENT ON COLUMN redlock_stats.broker_pid IS
'Process that talks to the nodes; null if none is running';
COMMENT ON COLUMN redlock_stats.granted IS
'Leases granted by the nodes';
COMMENT ON COLUMN redlock_stats.refused IS
'Tries that the nodes refused';
COMMENT ON COLUMN redlock_stats.unreachable IS
'Requests that failed without a quorum';
COMMENT ON COLUMN redlock_stats.renewed IS
'Rounds of renewals that succeeded';
COMMENT ON COLUMN redlock_stats.unrenewed IS
'Rounds of renewals that failed; tried again while the lease is valid';
COMMENT ON COLUMN redlock_stats.lost IS
'Leases lost, also by hold_at_most; without detached locks that ended by hold_at_most';
COMMENT ON COLUMN redlock_stats.released IS
'Leases released, and requests cancelled';
COMMENT ON COLUMN redlock_stats.handed_over IS
'Hand-overs between sessions of this server';
COMMENT ON COLUMN redlock_stats.woken IS
'Releases on other servers that woke a waiter of this server';
COMMENT ON COLUMN redlock_stats.taken_idle IS
'Idle locks that a session of this server took without asking the nodes; not counted in granted';
COMMENT ON COLUMN redlock_stats.recalled IS
'Idle locks released for another server';
COMMENT ON COLUMN redlock_stats.unsettled IS
'Leases without a majority of each list of nodes in force; null while changed lists are not yet in force';
COMMENT ON COLUMN redlock_stats.kept_until IS
'End of keys that hold_at_least keeps after a release only at nodes of another list; null if there are none';
COMMENT ON COLUMN redlock_stats.joined IS
'Readers that joined the lease of other readers of this server';
COMMENT ON COLUMN redlock_stats.tries_refused IS
'Calls without a wait that found another holder, on this server or another';
COMMENT ON COLUMN redlock_stats.timed_out IS
'Calls that ended by wait or lock_timeout';
COMMENT ON COLUMN redlock_stats.deadlocks IS
'Calls that ended by a deadlock';
COMMENT ON COLUMN redlock_stats.total_wait_time IS
'Sum of the times from the call to the acquisition, the timeout or the deadlock, in milliseconds; without refused calls and joined readers';
COMMENT ON COLUMN redlock_stats.total_hold_time IS
'Sum of the times from an acquisition to the release, in milliseconds; of a shared lock from the first reader to the last reader';
COMMENT ON COLUMN redlock_stats.stats_reset IS
'Start of the counts and times: redlock_stat_reset, or a start of the server after a crash';

-- Statistics.

CREATE FUNCTION redlock_stat_node_rows(OUT node text, OUT commands bigint, OUT answers bigint,
                                       OUT timeouts bigint, OUT connection_errors bigint,
                                       OUT refusals bigint, OUT memory_errors bigint,
                                       OUT other_errors bigint, OUT connects bigint,
                                       OUT quarantines bigint,
                                       OUT total_answer_time double precision,
                                       OUT max_answer_time double precision,
                                       OUT answer_histogram bigint[], OUT memory_used bigint,
                                       OUT stats_reset timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_stat_node_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_stat_node_rows() IS
'Counts and answer times of the nodes; read them through the view redlock_stat_nodes';

CREATE FUNCTION redlock_stat_resource_rows(OUT resource text, OUT permit integer,
                                           OUT from_nodes bigint, OUT handed_over bigint,
                                           OUT from_idle bigint, OUT joined bigint,
                                           OUT refused bigint, OUT timed_out bigint,
                                           OUT lost bigint, OUT deadlocks bigint,
                                           OUT total_wait_time double precision,
                                           OUT max_wait_time double precision,
                                           OUT wait_histogram bigint[],
                                           OUT total_hold_time double precision,
                                           OUT max_hold_time double precision,
                                           OUT hold_histogram bigint[],
                                           OUT stats_since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_stat_resource_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_stat_resource_rows() IS
'Counts and times of the most used resources; read them through the view redlock_stat_resources';

CREATE FUNCTION redlock_stat_reset(target text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'redlock_stat_reset'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION redlock_stat_reset(text) IS
'Sets the counts and times of redlock_stat_nodes (target nodes), redlock_stat_resources (resources) or redlock_stats (stats) to zero; null: of all. For operators';
REVOKE EXECUTE ON FUNCTION redlock_stat_reset(text) FROM PUBLIC;

CREATE VIEW redlock_stat_nodes AS SELECT * FROM redlock_stat_node_rows();
COMMENT ON VIEW redlock_stat_nodes IS
'Commands of this server to each node, the errors, and the times of the answers, since stats_reset';
COMMENT ON COLUMN redlock_stat_nodes.node IS
'Address, without user and password';
COMMENT ON COLUMN redlock_stat_nodes.commands IS
'Commands on locks that the broker sent';
COMMENT ON COLUMN redlock_stat_nodes.answers IS
'Answers to these commands, also errors';
COMMENT ON COLUMN redlock_stat_nodes.timeouts IS
'Connections that the broker closed or did not get, since no answer came in time';
COMMENT ON COLUMN redlock_stat_nodes.connection_errors IS
'Connections that broke or failed, without timeouts';
COMMENT ON COLUMN redlock_stat_nodes.refusals IS
'Handshakes and commands that the node refused by password or rights, and handshakes with a node that must not vote';
COMMENT ON COLUMN redlock_stat_nodes.memory_errors IS
'Commands that failed because the node was full';
COMMENT ON COLUMN redlock_stat_nodes.other_errors IS
'All other errors: redlock_nodes.last_error has the latest error';
COMMENT ON COLUMN redlock_stat_nodes.connects IS
'Connections that the node accepted, with all checks';
COMMENT ON COLUMN redlock_stat_nodes.quarantines IS
'Quarantines that began';
COMMENT ON COLUMN redlock_stat_nodes.total_answer_time IS
'Sum of the times from each command to its answer, in milliseconds';
COMMENT ON COLUMN redlock_stat_nodes.max_answer_time IS
'Longest time from a command to its answer, in milliseconds';
COMMENT ON COLUMN redlock_stat_nodes.answer_histogram IS
'Element n counts the answers after at least 2^(n-1) and less than 2^n microseconds; the first also faster, the last also slower answers';
COMMENT ON COLUMN redlock_stat_nodes.memory_used IS
'Bytes of memory that the node uses now; null if the node does not tell';
COMMENT ON COLUMN redlock_stat_nodes.stats_reset IS
'Start of the counts: redlock_stat_reset, the first use of the node, or a start of the server after a crash';

CREATE VIEW redlock_stat_resources AS SELECT * FROM redlock_stat_resource_rows();
COMMENT ON VIEW redlock_stat_resources IS
'How the sessions of this server acquired, awaited and held the resources that they use most; at most 1024 rows';
COMMENT ON COLUMN redlock_stat_resources.resource IS
'Name of the lock';
COMMENT ON COLUMN redlock_stat_resources.permit IS
'Number of the permit; null of other locks, and in the row that has refused, timed_out and deadlocks of a lock with permits';
COMMENT ON COLUMN redlock_stat_resources.from_nodes IS
'Acquisitions that the nodes granted';
COMMENT ON COLUMN redlock_stat_resources.handed_over IS
'Acquisitions by a hand-over between sessions of this server';
COMMENT ON COLUMN redlock_stat_resources.from_idle IS
'Acquisitions of an idle lease of this server';
COMMENT ON COLUMN redlock_stat_resources.joined IS
'Readers that joined the lease of other readers of this server';
COMMENT ON COLUMN redlock_stat_resources.refused IS
'Calls without a wait that found another holder';
COMMENT ON COLUMN redlock_stat_resources.timed_out IS
'Calls that ended by wait or lock_timeout';
COMMENT ON COLUMN redlock_stat_resources.lost IS
'Leases lost, also by hold_at_most';
COMMENT ON COLUMN redlock_stat_resources.deadlocks IS
'Calls that ended by a deadlock';
COMMENT ON COLUMN redlock_stat_resources.total_wait_time IS
'Sum of the times from the call to the acquisition, the timeout or the deadlock, in milliseconds; without refused calls and joined readers';
COMMENT ON COLUMN redlock_stat_resources.max_wait_time IS
'Longest such time, in milliseconds';
COMMENT ON COLUMN redlock_stat_resources.wait_histogram IS
'Element n counts such times of at least 2^(n-1) and less than 2^n microseconds; the first also shorter, the last also longer times';
COMMENT ON COLUMN redlock_stat_resources.total_hold_time IS
'Sum of the times from an acquisition to the release, in milliseconds; of a shared lock from the first reader to the last reader';
COMMENT ON COLUMN redlock_stat_resources.max_hold_time IS
'Longest such time, in milliseconds';
COMMENT ON COLUMN redlock_stat_resources.hold_histogram IS
'Element n counts such times of at least 2^(n-1) and less than 2^n microseconds; the first also shorter, the last also longer times';
COMMENT ON COLUMN redlock_stat_resources.stats_since IS
'Start of the counts: redlock_stat_reset, or the first use since the resource has a row';

-- The functions too, whatever the default privileges: to call a function in a view, the
-- role that reads the view needs the right, not the view's owner.
GRANT SELECT ON redlock_locks, redlock_nodes, redlock_hosts, redlock_stats, redlock_roles,
    redlock_stat_nodes, redlock_stat_resources TO PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_lock_rows, redlock_node_rows, redlock_node_list_rows,
    redlock_role_rows, redlock_host_rows, redlock_counter_row, redlock_unsettled_row,
    redlock_stat_node_rows, redlock_stat_resource_rows TO PUBLIC;

-- Default privileges may have given other roles more than this script grants.  Sessions write the
-- tables with the rights of the owner, so a role with TRIGGER would run its code with these rights.
-- pg_init_privs has a row for each object with a GRANT or REVOKE in this script.  The extension's
-- schema may have operators and functions of strangers: the operands have exactly the types of an
-- operator of pg_catalog.
DO LANGUAGE plpgsql $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT CASE WHEN p.oid IS NULL THEN 'TABLE' ELSE 'ROUTINE' END AS kind,
               COALESCE(c.oid::pg_catalog.regclass::pg_catalog.text,
                        p.oid::pg_catalog.regprocedure::pg_catalog.text) AS object,
               a.privilege_type,
               CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
                    ELSE a.grantee::pg_catalog.regrole::pg_catalog.text END AS role
          FROM pg_catalog.pg_extension e
          JOIN pg_catalog.pg_depend d ON d.refobjid = e.oid AND d.deptype = 'e'
           AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          JOIN pg_catalog.pg_init_privs i ON i.classoid = d.classid AND i.objoid = d.objid AND i.objsubid = 0
          LEFT JOIN pg_catalog.pg_class c ON c.oid = d.objid
           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
          LEFT JOIN pg_catalog.pg_proc p ON p.oid = d.objid
           AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
         CROSS JOIN LATERAL pg_catalog.aclexplode(COALESCE(c.relacl, p.proacl)) a
         WHERE e.extname = 'redlock_pg' AND a.privilege_type <> 'SELECT'
           AND a.grantee OPERATOR(pg_catalog.<>) COALESCE(c.relowner, p.proowner)
           AND EXISTS (SELECT FROM pg_catalog.aclexplode(i.initprivs) f
                        WHERE f.grantee = a.grantee AND f.privilege_type = a.privilege_type)
           -- the functions behind the views are for all roles
           AND (p.oid IS NULL
                OR NOT EXISTS (SELECT FROM pg_catalog.aclexplode(i.initprivs) f
                                WHERE f.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid))
    LOOP
        EXECUTE pg_catalog.format('REVOKE %s ON %s %s FROM %s CASCADE',
                                  given.privilege_type, given.kind, given.object, given.role);
    END LOOP;
END
$$;
