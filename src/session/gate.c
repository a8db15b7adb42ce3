/*
 * gate.c
 *		The gate of a resource; see gate.h.
 *
 * The lock tag has a class that was reserved for user locks before advisory locks existed, so the
 * tag differs from the tags of advisory locks.  The tag belongs to no database: sessions of all
 * databases of a server queue for one resource.
 *
 * Connection pools call pg_advisory_unlock_all at each reset, which frees all session-level locks
 * of the lock method of advisory locks and gates.  (The other lock method frees its session-level
 * locks at each rollback.)  So a session with gates at session level also holds a sentinel, a lock
 * that no other session wants.  When the sentinel is gone, the gates are gone: a new era begins.
 *
 * An alarm (alarm.h) ends a wait when the time is over, when the resource has another gate, when
 * the broker is missing, or when the broker has found a deadlock.
 *
 * PostgreSQL's own limit, lock_timeout, uses the wall clock.  The alarm cancels the statement, as
 * PostgreSQL's timeouts do, and the code that began the wait catches the error.  The wait has
 * changed nothing, so needs no subtransaction.  A user's cancel in the microseconds between the
 * alarm and the error is not seen as a separate cancel.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "session/gate.h"
#include "shared/alarm.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"

/* How often a waiter looks for another gate, for a broker, and for a deadlock. */
#define LOOK_US INT64CONST(1000000)

/* objsubid of the two kinds of locks in pg_locks */
#define GATE 0
#define SENTINEL 1

#define MODE(shared) ((shared) ? ShareLock : ExclusiveLock)

static uint32 era = 1;       /* of this session's gates at session level */
static int gates_in_era = 0; /* number of gates held; the sentinel is held with the first */

/* The present wait.  Only the alarm writes these while `waiting`. */
static struct
{
	uint64 hash;
	GateLimits limits;
	bool no_broker; /* the alarm found no broker for too long */
} present_wait;
static volatile sig_atomic_t waiting = false;
static volatile sig_atomic_t struck = false; /* the alarm cancelled the statement */

static LOCKTAG make_tag(uint32 classid, uint32 objid, uint16 objsubid);
static LOCKTAG tag_of(uint64 gate);
static LOCKTAG sentinel_tag(void);
static void hold_sentinel(void);
static void drop_sentinel(void);
static bool enter(uint64 gate, LOCKMODE mode, bool session_level, void (*before_wait)(void));
static bool enter_or_wait(const LOCKTAG *tag, LOCKMODE mode, bool session_level,
						  void (*before_wait)(void));
static void begin_wait(void);
static int64 next_look_us(void);
static void on_alarm(void);
static bool is_ours(const ErrorData *error);

void
gate_set_up(void)
{
	alarm_set_up(ALARM_GATE, on_alarm);
}

GateOutcome
gate_enter(uint64 hash, bool of_lease, GateUse use, GateLimits *limits, void (*before_wait)(void),
		   uint64 *gate)
{
	int64 deadline_us = limits->deadline_us;
	bool entered;

	present_wait.hash = hash;
	present_wait.limits = *limits;
	present_wait.no_broker = false;
	present_wait.limits.deadlock = 0;
	do
	{
		*gate = of_lease ? lease_gate(hash) : lease_present_gate(hash);
		entered = enter(*gate, MODE(use.shared), use.session_level,
						deadline_us != GATE_DO_NOT_WAIT ? before_wait : NULL);
	} while (!entered && !present_wait.no_broker && present_wait.limits.deadlock == 0 &&
			 redlock_clock_us() < deadline_us);
	limits->broker_seen_us = present_wait.limits.broker_seen_us;
	limits->deadlock = present_wait.limits.deadlock;
	if (entered)
		return GATE_ENTERED;
	if (limits->deadlock != 0)
		return GATE_DEADLOCK;
	return present_wait.no_broker ? GATE_NO_BROKER : GATE_TIME_OVER;
}

bool
gate_enter_again(uint64 gate, GateUse use)
{
	return enter(gate, MODE(use.shared), use.session_level, NULL);
}

void
gate_leave(uint64 gate, GateUse use)
{
	LOCKTAG tag = tag_of(gate);
	ResourceOwner owner = CurrentResourceOwner;

	if (!REDLOCK_LOCK_HELD_BY_ME(&tag, MODE(use.shared)))
		return;
	if (!use.session_level)
		CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(&tag, MODE(use.shared), use.session_level);
	CurrentResourceOwner = owner;
	if (use.session_level)
	{
		gates_in_era--;
		drop_sentinel();
	}
}

int
gate_waiters(uint64 gate)
{
	LOCKTAG tag = tag_of(gate);

	if (!REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock) ||
		!LockHasWaiters(&tag, ExclusiveLock, false))
		return 0;
	return LockWaiterCount(&tag) - 1; /* without this session */
}

uint32
gate_era(void)
{
	LOCKTAG tag = sentinel_tag();

	if (gates_in_era > 0 && !REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
	{
		era++;
		gates_in_era = 0;
	}
	return era;
}

static LOCKTAG
make_tag(uint32 classid, uint32 objid, uint16 objsubid)
{
	LOCKTAG tag;

	memset(&tag, 0, sizeof(tag));
	tag.locktag_field2 = classid;
	tag.locktag_field3 = objid;
	tag.locktag_field4 = objsubid;
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = USER_LOCKMETHOD;
	return tag;
}

static LOCKTAG
tag_of(uint64 gate)
{
	return make_tag(GATE_CLASSID(gate), GATE_OBJID(gate), GATE);
}

/* No session waits for a sentinel. */
static LOCKTAG
sentinel_tag(void)
{
	return make_tag(MyProcPid, 0, SENTINEL);
}

static void
hold_sentinel(void)
{
	LOCKTAG tag = sentinel_tag();

	(void) gate_era(); /* if the sentinel is gone, begins a new era */
	if (gates_in_era == 0)
		(void) LockAcquire(&tag, ExclusiveLock, true, true);
}

/* Drops the sentinel when the last gate is left. */
static void
drop_sentinel(void)
{
	LOCKTAG tag = sentinel_tag();

	if (gates_in_era == 0 && REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, true);
}

/* Does not wait if before_wait is NULL. */
static bool
enter(uint64 gate, LOCKMODE mode, bool session_level, void (*before_wait)(void))
{
	LOCKTAG tag = tag_of(gate);
	volatile bool entered = false;

	if (!session_level)
		return enter_or_wait(&tag, mode, false, before_wait);

	hold_sentinel();
	PG_TRY();
	{
		entered = enter_or_wait(&tag, mode, true, before_wait);
	}
	PG_CATCH();
	{
		/* the lock may have been granted during the cancel */
		if (before_wait != NULL && REDLOCK_LOCK_HELD_BY_ME(&tag, mode))
			LockRelease(&tag, mode, true);
		drop_sentinel();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (entered)
		gates_in_era++;
	else
		drop_sentinel();
	return entered;
}

/*
 * Returns false if the gate is not free, and before_wait is NULL or the alarm has ended the wait.
 *
 * At transaction level the (sub)transaction owns the gate, as it owns the hold (holdings.h).  The
 * present owner may be that of a cursor, which outlives a rollback to a savepoint.
 */
static bool
enter_or_wait(const LOCKTAG *tag, LOCKMODE mode, bool session_level, void (*before_wait)(void))
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner present_owner = CurrentResourceOwner;
	ResourceOwner owner = session_level ? present_owner : CurTransactionResourceOwner;
	int lock_timeout = LockTimeout;
	volatile bool entered = true;

	CurrentResourceOwner = owner;
	entered = LockAcquire(tag, mode, session_level, true) != LOCKACQUIRE_NOT_AVAIL;
	CurrentResourceOwner = present_owner;
	if (entered || before_wait == NULL)
		return entered;
	before_wait();

	PG_TRY();
	{
		LockTimeout = 0;
		begin_wait();
		CurrentResourceOwner = owner;
		LockAcquire(tag, mode, session_level, false);
		CurrentResourceOwner = present_owner;
		entered = true;
		waiting = false;
		pg_compiler_barrier();
		if (struck) /* the alarm came just after the grant: handle the cancel here */
			CHECK_FOR_INTERRUPTS();
		LockTimeout = lock_timeout;
	}
	PG_CATCH();
	{
		ErrorData *error;

		waiting = false;
		pg_compiler_barrier();
		LockTimeout = lock_timeout;
		CurrentResourceOwner = present_owner;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		if (!is_ours(error))
		{
			if (struck)
				QueryCancelPending = false; /* this error has ended the wait already */
			ReThrowError(error);
		}
		FreeErrorData(error);
		/* the lock may have been granted just before the error */
		entered = REDLOCK_LOCK_HELD_BY_ME(tag, mode);
	}
	PG_END_TRY();
	return entered;
}

/* Sets the alarm, unless an earlier wait has set an earlier time: the usual case. */
static void
begin_wait(void)
{
	int64 at_us;

	struck = false;
	pg_compiler_barrier();
	waiting = true;
	pg_compiler_barrier();
	at_us = next_look_us();
	if (at_us < alarm_due_us(ALARM_GATE))
		alarm_at(ALARM_GATE, at_us);
}

static int64
next_look_us(void)
{
	return Min(present_wait.limits.deadline_us, redlock_clock_us() + LOOK_US);
}

/*
 * In the signal handler.  Does what LockTimeoutHandler does.  If another cancel is under way, that
 * cancel ends the wait.
 */
static void
on_alarm(void)
{
	GateLimits *limits = &present_wait.limits;
	int64 now_us;

	if (!waiting || struck || proc_exit_inprogress) /* FATAL ends a wait without a catch */
		return;
	now_us = redlock_clock_us();
	if (lease_broker_runs())
		limits->broker_seen_us = now_us;
	else if (limits->needs_broker && now_us - limits->broker_seen_us > GATE_BROKER_MISSING_US)
		present_wait.no_broker = true;
	limits->deadlock = lease_gate_deadlock();
	if (!present_wait.no_broker && limits->deadlock == 0 && now_us < limits->deadline_us &&
		!lease_gate_changed(present_wait.hash))
		alarm_at(ALARM_GATE, next_look_us());
	else if (!QueryCancelPending)
	{
		struck = true;
		QueryCancelPending = true;
		InterruptPending = true;
		SetLatch(MyLatch);
	}
}

void
gate_give_way(void)
{
	struck = false;
}

/*
 * Is this the error of our alarm?  Timeouts, and conflicts on a standby, have another message.  A
 * user's cancel between the alarm and the error looks the same, and is lost if the call goes on.
 */
static bool
is_ours(const ErrorData *error)
{
	return struck && error->sqlerrcode == ERRCODE_QUERY_CANCELED && error->message_id != NULL &&
		   strcmp(error->message_id, "canceling statement due to user request") == 0;
}
