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

-- redlock.nodes_next: where its nodes are, and who has come to rest on them.

CREATE FUNCTION redlock_node_list_rows(OUT node text, OUT list text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'redlock_node_list_rows'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_node_list_rows() IS
'Which lists the nodes are in; read it through the view redlock_nodes';

CREATE FUNCTION redlock_unsettled_row(OUT unsettled integer, OUT kept_until timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'redlock_unsettled_row'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION redlock_unsettled_row() IS
'What does not yet rest on the lists of nodes in force; read it through the view redlock_stats';

CREATE OR REPLACE VIEW redlock_nodes AS
    SELECT n.node, n.state, n.last_error, n.last_error_at, n.rtt_us, n.votes_yes, n.votes_no,
           n.votes_error, n.since, n.quarantine, n.quarantined_for, l.list
      FROM redlock_node_rows() n
      LEFT JOIN redlock_node_list_rows() l ON l.node = n.node;
COMMENT ON COLUMN redlock_nodes.state IS
'ready; resolving or connecting; quarantined (answers, but does not vote for new locks until its quarantine ends); backing off (will reconnect by itself); refused (answers, but must not vote: see last_error); leaving (no longer in redlock.nodes or redlock.nodes_next, but some lease was granted by it)';
COMMENT ON COLUMN redlock_nodes.list IS
'now: in redlock.nodes; next: in redlock.nodes_next; both; or leaving: in neither any more, but some lease was granted by it';

CREATE OR REPLACE VIEW redlock_stats AS
    SELECT s.granted, s.refused, s.unreachable, s.renewed, s.unrenewed, s.lost, s.released,
           s.handed_over, s.woken, s.locks, s.max_locks, s.releasing, s.broker_pid,
           u.unsettled, u.kept_until
      FROM redlock_stats_row() s, redlock_unsettled_row() u;
COMMENT ON COLUMN redlock_stats.unsettled IS
'Leases that do not yet rest on a majority of each list of nodes; null while what redlock.nodes and redlock.nodes_next say is not in force';
COMMENT ON COLUMN redlock_stats.kept_until IS
'Until then keys may be kept by hold_at_least, after a release, at the nodes of another list alone; null: there are none';

GRANT EXECUTE ON FUNCTION redlock_node_list_rows, redlock_unsettled_row TO PUBLIC;
