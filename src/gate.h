/*
 * gate.h
 *		The queue of this server's sessions for one resource: a heavyweight lock
 *		of PostgreSQL's own lock manager.
 *
 * It brings first-in-first-out order, one contender per server at the nodes,
 * deadlock detection against all other locks, lock_timeout, log_lock_waits, and
 * clean-up at errors.  It says who asks next, never who owns: ownership is in
 * the lease table, and pg_advisory_unlock_all may free a gate, never a lease.
 */
#ifndef REDLOCK_GATE_H
#define REDLOCK_GATE_H

#define GATE_WAIT_FOREVER (-1)
#define GATE_DO_NOT_WAIT 0

/* The hash of a name, for gate and lease index. */
extern uint64 gate_hash(const char *name, int len);

/*
 * Enter, waiting at most wait_ms; false if that does not suffice.  Counted, and
 * at session or transaction level, like advisory locks.  A time-out of
 * lock_timeout is an error as for any lock.
 */
extern bool gate_enter(uint64 hash, bool session_level, int wait_ms);

/*
 * Undoes one gate_enter.  No-op if the gate is not held (any more); but at session
 * level it must have been entered in the present era.  Never fails.
 */
extern void gate_leave(uint64 hash, bool session_level);

/*
 * What this session entered at session level in an earlier era than this was
 * taken from it, by pg_advisory_unlock_all.  Never fails.
 */
extern uint32 gate_era(void);

/* Does another session wait for this one to leave? */
extern bool gate_has_waiters(uint64 hash);

/* How the gate of a hash shows in pg_locks. */
#define GATE_CLASSID(hash) ((Oid) ((hash) >> 32))
#define GATE_OBJID(hash) ((Oid) (hash))

#endif /* REDLOCK_GATE_H */
