/* redlock_pg--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION redlock_pg UPDATE TO '0.2.0'" to load this file. \quit

-- The comments that have other words.

COMMENT ON FUNCTION redlock_try(text, interval, redlock_scope, interval, interval) IS
'Acquires the distributed lock on a resource if it is free, and returns true; returns false, and does not wait, if another session holds it or asks for it';

COMMENT ON FUNCTION redlock_check(text) IS
'Returns how long the lease of the lock that this session holds on a resource is valid if it is not renewed again; it is an error if the session does not hold the lock, or if the lease was lost';

COMMENT ON FUNCTION redlock_token(text) IS
'Returns the fencing token of the lock that this session holds on a resource, or NULL if it holds none. It does not tell whether the lease is still valid: see redlock_check';

COMMENT ON TABLE redlock_fences IS
'For each resource the largest fencing token that a transaction has recorded and committed in this database. To admit smaller ones, set the token to 0; don''t delete the row';

COMMENT ON PROCEDURE redlock_run(text, text, interval, interval, interval, interval) IS
'Runs an SQL command under the distributed lock on a resource, or skips it with a notice if another session holds the lock for longer than "wait"; the command may be a CALL that commits';

COMMENT ON COLUMN redlock_locks.state IS
'held; waiting (asking the nodes, or another host holds it); queued (another session of this server is ahead); lost (validity ran out, and its session has not yet released it); releasing (released, its keys are being deleted)';

COMMENT ON COLUMN redlock_locks.held_by IS
'While waiting: the session that holds the lock elsewhere, as it described itself';

COMMENT ON COLUMN redlock_nodes.last_error_at IS
'Time of last_error, of the last one if it was repeated; earlier than "since" if the node has come back';

COMMENT ON COLUMN redlock_stats.locks IS
'Locks that are held, lost and not yet released, or asked for: at most max_locks';

COMMENT ON COLUMN redlock_stats.releasing IS
'Locks that were released, which some node has not yet acknowledged; these do not count towards max_locks';

-- The hosts that share the nodes.

CREATE FUNCTION redlock_host_rows(OUT name text, OUT host_id text, OUT version text,
                                  OUT postgres text, OUT prefix text, OUT leases integer,
                                  OUT since timestamptz, OUT last_seen timestamptz,
                                  OUT nodes integer, OUT settled boolean,
                                  OUT agrees boolean, OUT disagreement text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_host_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_host_rows() IS
'The servers that share the nodes, as these know them; read it through the view redlock_hosts';

CREATE VIEW redlock_hosts AS SELECT * FROM redlock_host_rows();
COMMENT ON VIEW redlock_hosts IS
'The servers that share the nodes, as these know them; read from a majority of the nodes, or it is an error';
COMMENT ON COLUMN redlock_hosts.name IS
'cluster_name of the server, or the name of its machine';
COMMENT ON COLUMN redlock_hosts.host_id IS
'Random, for the life of the server''s shared memory; it stands in the values of its locks';
COMMENT ON COLUMN redlock_hosts.prefix IS
'redlock.key_prefix: servers with different ones share no locks';
COMMENT ON COLUMN redlock_hosts.leases IS
'Locks that it holds or asks for, at last_seen';
COMMENT ON COLUMN redlock_hosts.since IS
'When its shared memory was made';
COMMENT ON COLUMN redlock_hosts.last_seen IS
'When it last told a node that it is there, by the clock of that node; a server that has not done so for 45 seconds is left out';
COMMENT ON COLUMN redlock_hosts.nodes IS
'How many nodes of this server know it';
COMMENT ON COLUMN redlock_hosts.settled IS
'All its leases are on all its lists of nodes';
COMMENT ON COLUMN redlock_hosts.agrees IS
'False: it and this server could get one lock at the same time; null: it has another prefix';
COMMENT ON COLUMN redlock_hosts.disagreement IS
'In what they differ, and what to change; null unless agrees is false';

GRANT SELECT ON redlock_hosts TO PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_host_rows TO PUBLIC;
