/*
 * gate.h
 *		The queue of this server's sessions for one resource: a heavyweight lock
 *		of PostgreSQL's own lock manager.
 *
 * It brings first-in-first-out order, one contender per server at the nodes,
 * deadlock detection against all other locks, log_lock_waits, and clean-up at
 * errors.  It says who asks next, never who owns: ownership is in the lease table,
 * and pg_advisory_unlock_all may free a gate, never a lease.
 *
 * When a lease is lost, its resource has another gate from then on (lease_gate), and
 * sessions that wait at the old one move there: the loser may keep it for long.
 */
#ifndef REDLOCK_GATE_H
#define REDLOCK_GATE_H

#define GATE_DO_NOT_WAIT INT64CONST(0)

/* Once in a session, before it enters a gate. */
extern void gate_set_up(void);

/* How a session is in a gate: like an advisory lock, and counted like one. */
typedef struct GateUse
{
	bool shared;        /* beside other readers; else alone */
	bool session_level; /* the end of the transaction does not undo it */
} GateUse;

/*
 * Enter the gate of the resource with this hash, and tell which it was; false if it
 * could not be done by the deadline, on the clock of the leases.  That stands in for
 * lock_timeout.  If it has to wait, before_wait is called first.  of_lease: the present gate was
 * not that of the lease which has the name.
 */
extern bool gate_enter(uint64 hash, bool of_lease, GateUse use, int64 deadline_us,
					   void (*before_wait)(void), uint64 *gate);

/* Enter one that was entered before, if that can be done now. */
extern bool gate_enter_again(uint64 gate, GateUse use);

/*
 * Undoes one entering.  No-op if the gate is not held (any more); but at session
 * level it must have been entered in the present era.  Never fails.
 */
extern void gate_leave(uint64 gate, GateUse use);

/*
 * What this session entered at session level in an earlier era than this was
 * taken from it, by pg_advisory_unlock_all.  Never fails.
 */
extern uint32 gate_era(void);

/* How many sessions wait for this one, which is alone there, to leave. */
extern int gate_waiters(uint64 gate);

/*
 * The statement is being cancelled, for a reason that is not the gate's: a wait ends
 * by that.  Async-signal-safe.
 */
extern void gate_give_way(void);

/* How a gate shows in pg_locks. */
#define GATE_CLASSID(gate) ((Oid) ((gate) >> 32))
#define GATE_OBJID(gate) ((Oid) (gate))

#endif /* REDLOCK_GATE_H */
