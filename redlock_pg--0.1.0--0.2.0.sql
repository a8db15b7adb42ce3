/* redlock_pg--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION redlock_pg UPDATE TO '0.2.0'" to load this file. \quit

-- The SQL objects of 0.2.0 are those of 0.1.0, with other words in their comments.

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
