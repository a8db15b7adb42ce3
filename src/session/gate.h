/*
 * gate.h
 *		The gate of a resource: the queue of this server's sessions, a heavyweight lock of
 *		PostgreSQL's lock manager.
 *
 * The gate gives first-in-first-out order, one contender per server at the nodes, deadlock
 * detection together with all other locks, log_lock_waits, and clean-up at errors.  The gate
 * decides which session asks next, never which session owns the lock: ownership is in the lease
 * table.  pg_advisory_unlock_all may free a gate, never a lease.
 *
 * When a lease is lost, the resource gets another gate (lease_gate), and waiters move from the old
 * gate to the new gate: the loser may keep the old gate for long.
 */
#ifndef REDLOCK_GATE_H
#define REDLOCK_GATE_H

#define GATE_DO_NOT_WAIT INT64CONST(0)

/* How long the broker may be missing, if the caller gave no time to wait. */
#define GATE_BROKER_MISSING_US INT64CONST(3000000)

/* Called once in a session, before it enters a gate. */
extern void gate_set_up(void);

/* How a session is in a gate: like an advisory lock, counted like an advisory lock. */
typedef struct GateUse
{
	bool shared;        /* together with readers; else alone */
	bool session_level; /* the end of the transaction does not undo the entering */
} GateUse;

typedef enum GateOutcome
{
	GATE_ENTERED,
	GATE_TIME_OVER,
	GATE_NO_BROKER, /* no broker has run for GATE_BROKER_MISSING_US */
	GATE_DEADLOCK   /* the broker ends this wait, see GateLimits */
} GateOutcome;

/* When to end a wait at a gate. */
typedef struct GateLimits
{
	int64 deadline_us;    /* on the clock of the leases; replaces lock_timeout */
	bool needs_broker;    /* ends when the broker is missing for too long */
	int64 broker_seen_us; /* a broker ran at this time; gate_enter keeps it up to date */
	uint64 deadlock;      /* gate_enter writes: after GATE_DEADLOCK, see lease_take_gate_cycle */
} GateLimits;

/*
 * Enters the gate of the resource with this hash, and stores which gate that was.  Calls
 * before_wait before a wait.  of_lease: a try at the present gate has shown that the named lease
 * has another gate.
 */
extern GateOutcome gate_enter(uint64 hash, bool of_lease, GateUse use, GateLimits *limits,
							  void (*before_wait)(void), uint64 *gate);

/* Enters a gate again, without a wait.  Returns false if the gate is not free. */
extern bool gate_enter_again(uint64 gate, GateUse use);

/*
 * Undoes one entering.  Does nothing if the session is not in the gate any more.  At session level
 * the session must have entered the gate in the present era.  Never fails.
 */
extern void gate_leave(uint64 gate, GateUse use);

/*
 * Returns the present era.  pg_advisory_unlock_all took the gates that this session had entered at
 * session level in an earlier era.  Never fails.
 */
extern uint32 gate_era(void);

/* Returns how many sessions wait at a gate in which this session is alone. */
extern int gate_waiters(uint64 gate);

/*
 * Called when the statement is cancelled for a reason outside of the gate: the cancel ends a wait
 * at the gate, too.  Async-signal-safe.
 */
extern void gate_give_way(void);

/* The gate in pg_locks. */
#define GATE_CLASSID(gate) ((Oid) ((gate) >> 32))
#define GATE_OBJID(gate) ((Oid) (gate))

#endif /* REDLOCK_GATE_H */
