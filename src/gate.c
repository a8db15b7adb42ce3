/*
 * gate.c
 *		The local queue for one resource; see gate.h.
 *
 * The lock tag is of the class that was reserved for user locks before advisory
 * locks came, so it can't collide with theirs, and belongs to no database: the
 * sessions of all databases of a server queue for the same resource.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "gate.h"

static LOCKTAG tag_of(uint64 hash);
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

	if (wait_ms == GATE_DO_NOT_WAIT)
		return LockAcquire(&tag, ExclusiveLock, session_level, true) != LOCKACQUIRE_NOT_AVAIL;
	if (wait_ms == GATE_WAIT_FOREVER || (LockTimeout > 0 && LockTimeout < wait_ms))
	{
		LockAcquire(&tag, ExclusiveLock, session_level, false);
		CHECK_FOR_INTERRUPTS(); /* see enter_within */
		return true;
	}
	return enter_within(&tag, session_level, wait_ms);
}

void
gate_leave(uint64 hash, bool session_level)
{
	LOCKTAG tag = tag_of(hash);

	if (REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, session_level);
}

bool
gate_has_waiters(uint64 hash)
{
	LOCKTAG tag = tag_of(hash);

	return REDLOCK_LOCK_HELD_BY_ME(&tag, ExclusiveLock) &&
		   LockHasWaiters(&tag, ExclusiveLock, false);
}

static LOCKTAG
tag_of(uint64 hash)
{
	LOCKTAG tag;

	memset(&tag, 0, sizeof(tag));
	tag.locktag_field2 = GATE_CLASSID(hash);
	tag.locktag_field3 = GATE_OBJID(hash);
	tag.locktag_type = LOCKTAG_USERLOCK;
	tag.locktag_lockmethodid = USER_LOCKMETHOD;
	return tag;
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
