/*
 * gate.c
 *		The local queue for one resource; see gate.h.
 *
 * The lock tag is of the class that was reserved for user locks before advisory
 * locks came, so it can't collide with theirs, and belongs to no database: the
 * sessions of all databases of a server queue for the same resource.
 *
 * pg_advisory_unlock_all, which connection pools call at each reset, frees all
 * session-level locks of the lock method that advisory locks and these share.
 * (The other lock method frees its session-level locks at each rollback.)  So a
 * session that holds gates at session level also holds a sentinel, a lock of its
 * own.  When the sentinel is gone, so are the gates: a new era begins.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "gate.h"

/* objsubid of the two kinds of locks in pg_locks */
#define GATE 0
#define SENTINEL 1

static uint32 era = 1;       /* of this session's gates at session level */
static int gates_in_era = 0; /* how many it holds; with the first, the sentinel */

static LOCKTAG make_tag(uint32 classid, uint32 objid, uint16 objsubid);
static LOCKTAG tag_of(uint64 hash);
static LOCKTAG sentinel_tag(void);
static void hold_sentinel(void);
static void drop_sentinel(void);
static bool enter(const LOCKTAG *tag, bool session_level, int wait_ms);
static bool enter_within(const LOCKTAG *tag, bool session_level, int wait_ms);

uint64
gate_hash(const char *name, int len)
{
	return hash_bytes_extended((const unsigned char *) name, len, 0);
}

bool
gate_enter(uint64 hash, bool session_level, int wait_ms)
{
	LOCKTAG tag = tag_of(hash);
	volatile bool entered = false;

	if (!session_level)
		return enter(&tag, false, wait_ms);

	hold_sentinel();
	PG_TRY();
	{
		entered = enter(&tag, true, wait_ms);
	}
	PG_CATCH();
	{
		/* it may have been granted while the wait was cancelled */
		if (wait_ms != GATE_DO_NOT_WAIT && REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
			LockRelease(&tag, ExclusiveLock, true);
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

void
gate_leave(uint64 hash, bool session_level)
{
	LOCKTAG tag = tag_of(hash);

	if (!REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
		return;
	LockRelease(&tag, ExclusiveLock, session_level);
	if (session_level)
	{
		gates_in_era--;
		drop_sentinel();
	}
}

bool
gate_has_waiters(uint64 hash)
{
	LOCKTAG tag = tag_of(hash);

	return REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock) &&
		   LockHasWaiters(&tag, ExclusiveLock, false);
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
tag_of(uint64 hash)
{
	return make_tag(GATE_CLASSID(hash), GATE_OBJID(hash), GATE);
}

/* Nobody waits for it. */
static LOCKTAG
sentinel_tag(void)
{
	return make_tag(MyProcPid, 0, SENTINEL);
}

static void
hold_sentinel(void)
{
	LOCKTAG tag = sentinel_tag();

	(void) gate_era(); /* without this one, what was entered before is gone */
	if (gates_in_era == 0)
		(void) LockAcquire(&tag, ExclusiveLock, true, true);
}

/* Unless it is needed. */
static void
drop_sentinel(void)
{
	LOCKTAG tag = sentinel_tag();

	if (gates_in_era == 0 && REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, true);
}

static bool
enter(const LOCKTAG *tag, bool session_level, int wait_ms)
{
	if (wait_ms == GATE_DO_NOT_WAIT)
		return LockAcquire(tag, ExclusiveLock, session_level, true) != LOCKACQUIRE_NOT_AVAIL;
	if (wait_ms == GATE_WAIT_FOREVER || (LockTimeout > 0 && LockTimeout < wait_ms))
	{
		LockAcquire(tag, ExclusiveLock, session_level, false);
		CHECK_FOR_INTERRUPTS(); /* see enter_within */
		return true;
	}
	return enter_within(tag, session_level, wait_ms);
}

/*
 * PostgreSQL's lock manager has one time limit, lock_timeout.  Ours is put in
 * its place for the length of this wait, and its error turned into `false`: a
 * wait that timed out has changed nothing, so no subtransaction is needed.
 */
static bool
enter_within(const LOCKTAG *tag, bool session_level, int wait_ms)
{
	MemoryContext context = CurrentMemoryContext;
	int lock_timeout = LockTimeout;
	volatile bool entered = true;

	PG_TRY();
	{
		LockTimeout = wait_ms;
		LockAcquire(tag, ExclusiveLock, session_level, false);
		/* the timer may have struck just after the grant: hear of it here, not later */
		CHECK_FOR_INTERRUPTS();
		LockTimeout = lock_timeout;
	}
	PG_CATCH();
	{
		LockTimeout = lock_timeout;
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* it may have been granted just before the error was thrown */
		entered = REDLOCK_LOCK_HELD_BY_ME(tag, ExclusiveLock);
	}
	PG_END_TRY();
	return entered;
}
