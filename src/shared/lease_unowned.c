/*
 * lease_unowned.c
 *		Leases that no session owns: idle leases, detached leases, and orphans.
 *
 * Another process ends each of them: a session that needs room, a session that releases a
 * detached lease by its token, or the broker.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static bool end(Lease *lease, EntryEnd why, int64 now_us);
static bool is_same(const DetachedLease *detached);
static void end_detached(Lease *lease);

/*
 * The lease ends, if it ends for this reason.  Any process may call this, so the entry may be
 * another lease's by the time that it is locked.
 */
static bool
end(Lease *lease, EntryEnd why, int64 now_us)
{
	uint64 hash = lease->hash;
	bool ended;

	/* most do not: without the lock first */
	if (!lease_may_end(lease, why, now_us))
		return false;
	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	ended = lease->hash == hash && lease_may_end(lease, why, now_us);
	if (ended)
		lease_free_name(lease);
	LWLockRelease(lease_lock_of(hash));
	return ended;
}

bool
lease_end_stay(Lease *lease, int64 now_us)
{
	return end(lease, ENTRY_STAY_IS_OVER, now_us);
}

bool
lease_give_up_stay(Lease *lease)
{
	bool ended = end(lease, ENTRY_RECALLED, 0);

	if (ended)
		lease_push(lease);
	return ended;
}

int64
lease_give_up_stays(void)
{
	int64 count = 0;

	for (int i = 0; i < lease_table->entries; i++)
		count += lease_give_up_stay(lease_at(i));
	return count;
}

/* Who releases or detaches just now has seen `stays_end`, or has left its lease when we look. */
void
lease_end_all_stays(void)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		LWLockAcquire(lease_lock_of((uint64) i), LW_EXCLUSIVE);
		lease_table->stays_end = true;
		LWLockRelease(lease_lock_of((uint64) i));
	}
	(void) lease_give_up_stays();
	for (int i = 0; i < lease_table->entries; i++)
		(void) lease_give_up_detached(lease_at(i));
}

/*
 * If it stays with nobody it is given up, and this host pauses.  Else it does not stay
 * when its owner is done, but is handed over or released as turns say.
 */
void
lease_want(Lease *lease)
{
	Entry entry = {.shared = lease->shared};

	entry_want(&entry, redlock_clock_us());
	if (entry.shared)
		pg_atomic_write_u64(&lease->want_until_us, entry.want_until_us);
	else
	{
		/* it is told again and again, by each node: without the lock then */
		if (lease->wanted)
			return;
		LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
		lease->wanted = entry.wanted;
		LWLockRelease(lease_lock_of(lease->hash));
	}
	lease_recall(lease);
}

void
lease_recall(Lease *lease)
{
	if (lease_give_up_stay(lease))
		lease_count(COUNT_RECALLED);
}

/*
 * Sessions compare `looks_at_us` after they have left the lease to nobody.  So it is
 * told first that they have to wake the broker, and then how the lease is.
 */
int64
lease_look_at_us(Lease *lease, int64 wake_at_us)
{
	int64 at_us;

	pg_atomic_write_u64(&lease->looks_at_us, PG_INT64_MAX);
	pg_memory_barrier();
	at_us = wish_look_at_us(pg_atomic_read_u32(&lease->wish), wake_at_us,
							(int64) pg_atomic_read_u64(&lease->idle_until_us),
							lease->keep_idle_ms * INT64CONST(1000),
							(int64) pg_atomic_read_u64(&lease->hold_until_us), redlock_clock_us());
	pg_atomic_write_u64(&lease->looks_at_us, at_us);
	return at_us;
}

/*
 * For the broker: a lease whose owner has gone without giving it up, or that has
 * been idle for long.  Returns whether it was one.
 */
bool
lease_release_orphan(Lease *lease)
{
	return end(lease, ENTRY_ORPHANED, 0);
}

/*
 * Detached leases
 */

/* Before a table lock. */
void
lease_begin_detaching(void)
{
	LWLockAcquire(&lease_table->locks[LEASE_PARTITIONS].lock, LW_EXCLUSIVE);
}

void
lease_end_detaching(void)
{
	LWLockRelease(&lease_table->locks[LEASE_PARTITIONS].lock);
}

int
lease_count_detached(Oid role)
{
	int count = 0;

	for (int i = 0; i < lease_table->entries; i++)
	{
		Lease *lease = lease_at(i);

		count += lease_wish(lease) == WISH_DETACHED && lease->owner_role == role;
	}
	return count;
}

/* At the end of the server, or after a loss that its broker has seen, it is over at once. */
void
lease_detach(Lease *lease, DetachedLease *detached)
{
	Entry entry;
	Wish wish;

	Assert(lease->owner_pid == MyProcPid && lease->token != 0);

	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	seqlock_begin_write(&lease->version);
	*detached = (DetachedLease){lease, lease->hash, lease->drive.generation, lease->token,
								lease->owner_role};
	lease->owner_pid = 0;
	seqlock_end_write(&lease->version);
	/* it sees that the lease is detached, or we see the loss: see lease_give_up_detached */
	entry = lease_entry(lease);
	wish = entry_detach(&entry, lease_table->stays_end);
	if (wish == WISH_NOTHING)
		end_detached(lease);
	else
		pg_atomic_write_u32(&lease->wish, wish);
	LWLockRelease(lease_lock_of(lease->hash));
	if (wish == WISH_NOTHING)
		lease_push(lease);
}

bool
lease_find_detached(uint64 hash, const char *name, int name_len, DetachedLease *found)
{
	Lease *lease;
	bool is;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	/* whatever redlock.key_prefix was */
	is = lease != NULL && lease_wish(lease) == WISH_DETACHED &&
		 lease->key_len - lease->prefix_len == name_len &&
		 memcmp(lease->key + lease->prefix_len, name, name_len) == 0;
	if (is)
		*found =
			(DetachedLease){lease, hash, lease->drive.generation, lease->token, lease->owner_role};
	LWLockRelease(lease_lock_of(hash));
	return is;
}

/* What was read is of this lease, if it is the same afterwards. */
int64
lease_detached_validity_us(const DetachedLease *detached)
{
	int64 validity_us = lease_validity_us(detached->lease);

	pg_read_barrier();
	return is_same(detached) ? validity_us : 0;
}

/* Empty where the entry is another lease's by now. */
char *
lease_detached_missing_nodes(const DetachedLease *detached)
{
	char *nodes = lease_missing_nodes(detached->lease);

	pg_read_barrier();
	return detached->lease->drive.generation == detached->generation ? nodes : "";
}

bool
lease_release_detached(const DetachedLease *detached)
{
	bool is;

	LWLockAcquire(lease_lock_of(detached->hash), LW_EXCLUSIVE);
	is = is_same(detached);
	if (is)
		end_detached(detached->lease);
	LWLockRelease(lease_lock_of(detached->hash));
	if (is)
		lease_push(detached->lease);
	return is;
}

int64
lease_prolong(const DetachedLease *detached, int64 hold_at_most_us)
{
	Lease *lease = detached->lease;
	int64 until_us = 0;

	LWLockAcquire(lease_lock_of(detached->hash), LW_EXCLUSIVE);
	if (is_same(detached))
		until_us = lease_prolong_by(lease, hold_at_most_us);
	LWLockRelease(lease_lock_of(detached->hash));
	if (until_us != 0)
		lease_push(lease);
	return until_us;
}

/* One that was prolonged meanwhile goes on. */
bool
lease_end_hold(Lease *lease, int64 now_us)
{
	bool over;

	/* most are not detached: without the lock first */
	if (!lease_hold_is_over(lease, now_us))
		return false;
	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	over = lease_may_end(lease, ENTRY_HOLD_IS_OVER, now_us);
	if (over)
		end_detached(lease);
	LWLockRelease(lease_lock_of(lease->hash));
	if (over)
		lease_push(lease);
	return over;
}

bool
lease_hold_is_over(Lease *lease, int64 now_us)
{
	return wish_hold_is_over(lease_owner_of(lease),
							 (int64) pg_atomic_read_u64(&lease->hold_until_us), now_us);
}

/*
 * Returns the limit of the present holder.  A limit that is over stays: it is read again under the
 * table lock, and sessions that get this lock later read a later clock, so they neither hand the
 * lease over nor prolong it.
 */
int64
lease_hold_until_us(Lease *lease, int64 now_us)
{
	int64 until_us = (int64) pg_atomic_read_u64(&lease->hold_until_us);

	if (until_us == 0 || now_us < until_us)
		return until_us;
	LWLockAcquire(lease_lock_of(lease->hash), LW_SHARED);
	until_us = (int64) pg_atomic_read_u64(&lease->hold_until_us);
	LWLockRelease(lease_lock_of(lease->hash));
	return until_us;
}

bool
lease_give_up_detached(Lease *lease)
{
	bool is;

	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	is = lease_may_end(lease, ENTRY_GIVEN_BACK, 0);
	if (is)
		end_detached(lease);
	LWLockRelease(lease_lock_of(lease->hash));
	if (is)
		lease_push(lease);
	return is;
}

/* Not if it has ended: an entry that is another lease's has another generation. */
static bool
is_same(const DetachedLease *detached)
{
	return lease_wish(detached->lease) == WISH_DETACHED &&
		   detached->lease->drive.generation == detached->generation;
}

/* Who waits for it in the gate goes on.  Under the table lock. */
static void
end_detached(Lease *lease)
{
	lease->returns = lease->is_awaited;
	lease_free_name(lease);
	if (lease->is_awaited)
		lease_wake_awaiting(lease->hash);
}
