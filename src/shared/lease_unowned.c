/*
 * lease_unowned.c
 *		Leases without an owning session: idle leases, detached leases, and orphans.
 *
 * Another process ends each of them: a session that needs an entry, a session that releases a
 * detached lease by token, or the broker.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static bool end(Lease *lease, EntryEnd why, int64 now_us);
static bool is_same(const DetachedLease *detached);
static void free_detached(Lease *lease);

/*
 * Ends the lease if this reason holds; returns whether the lease ended.  Any process may call: the
 * entry may have another lease by the time of the lock.
 */
static bool
end(Lease *lease, EntryEnd why, int64 now_us)
{
	uint64 hash = lease->hash;
	bool ended;

	/* the reason seldom holds: look without the lock first */
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
lease_end_idle(Lease *lease, int64 now_us)
{
	return end(lease, ENTRY_IDLE_IS_OVER, now_us);
}

bool
lease_release_idle(Lease *lease)
{
	bool ended = end(lease, ENTRY_RECALLED, 0);

	if (ended)
		lease_push(lease);
	return ended;
}

int64
lease_release_all_idle(void)
{
	int64 count = 0;

	for (int i = 0; i < lease_table->entries; i++)
		count += lease_release_idle(lease_at(i));
	return count;
}

/*
 * Ends all idle and detached leases, at the server's stop.  A session that releases or detaches at
 * the same time either sees `stopping`, or is done before our scan.
 */
void
lease_end_unowned(void)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		LWLockAcquire(lease_lock_of((uint64) i), LW_EXCLUSIVE);
		lease_table->stopping = true;
		LWLockRelease(lease_lock_of((uint64) i));
	}
	(void) lease_release_all_idle();
	for (int i = 0; i < lease_table->entries; i++)
		(void) lease_end_detached(lease_at(i));
}

/*
 * Another host waits.  An idle lease is released, and this host pauses.  A lease with an owner may
 * not become idle later: its release is a hand-over or a release at the nodes, as the turn says.
 */
void
lease_note_waiting_host(Lease *lease)
{
	Entry entry = {.shared = lease->shared};

	entry_note_waiting_host(&entry, redlock_clock_us());
	if (entry.shared)
		pg_atomic_write_u64(&lease->writer_until_us, entry.writer_until_us);
	else
	{
		/* each node repeats the message: no lock then */
		if (lease->other_host_waits)
			return;
		LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
		lease->other_host_waits = entry.other_host_waits;
		LWLockRelease(lease_lock_of(lease->hash));
	}
	lease_recall(lease);
}

void
lease_recall(Lease *lease)
{
	if (lease_release_idle(lease))
		lease_count(COUNT_RECALLED);
}

/* An operator asks for the release.  The next owner may get the ask: then the ask was too late. */
void
lease_note_ask(Lease *lease)
{
	pg_atomic_fetch_add_u32(&lease->asks, 1);
	lease_recall(lease);
}

/*
 * Ends a lease whose owner ended without a release, or a lease in hand-over for which no session
 * came.  The broker calls this instead of a renewal.
 */
bool
lease_release_orphan(Lease *lease)
{
	return end(lease, ENTRY_ORPHANED, 0);
}

/*
 * Detached leases
 */

/* The caller has no table lock. */
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

/* While the server stops, or if the broker has seen a loss, the lease ends at once. */
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
	lease->commits = 0;
	seqlock_end_write(&lease->version);
	/* either lease_end_detached sees the detached lease, or we see the loss */
	entry = lease_entry(lease);
	wish = entry_detach(&entry, lease_table->stopping);
	if (wish == WISH_NOTHING)
		free_detached(lease);
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
	/* under any redlock.key_prefix */
	is = lease != NULL && lease_wish(lease) == WISH_DETACHED &&
		 lease->key_len - lease->prefix_len == name_len &&
		 memcmp(lease->key + lease->prefix_len, name, name_len) == 0;
	if (is)
		*found =
			(DetachedLease){lease, hash, lease->drive.generation, lease->token, lease->owner_role};
	LWLockRelease(lease_lock_of(hash));
	return is;
}

/* The generation is compared after the read: if equal, the values are of this lease. */
int64
lease_detached_validity_us(const DetachedLease *detached)
{
	int64 validity_us = lease_validity_us(detached->lease);

	pg_read_barrier();
	return is_same(detached) ? validity_us : 0;
}

char *
lease_detached_missing_nodes(const DetachedLease *detached)
{
	char *nodes = lease_missing_nodes(detached->lease);

	pg_read_barrier();
	return detached->lease->drive.generation == detached->generation ? nodes : "";
}

DetachedRelease
lease_release_detached(const DetachedLease *detached)
{
	DetachedRelease result = DETACHED_ENDED;

	LWLockAcquire(lease_lock_of(detached->hash), LW_EXCLUSIVE);
	if (is_same(detached))
		result = detached->lease->commits > 0 ? DETACHED_COMMITS : DETACHED_RELEASED;
	if (result == DETACHED_RELEASED)
		free_detached(detached->lease);
	LWLockRelease(lease_lock_of(detached->hash));
	if (result == DETACHED_RELEASED)
		lease_push(detached->lease);
	return result;
}

bool
lease_begin_commit(const DetachedLease *detached)
{
	bool is;

	LWLockAcquire(lease_lock_of(detached->hash), LW_EXCLUSIVE);
	is = is_same(detached);
	if (is)
		detached->lease->commits++;
	LWLockRelease(lease_lock_of(detached->hash));
	return is;
}

/* While the server stops, lease_end_detached has left the lease to us. */
void
lease_end_commit(const DetachedLease *detached)
{
	bool ends = false;

	LWLockAcquire(lease_lock_of(detached->hash), LW_EXCLUSIVE);
	if (is_same(detached))
	{
		detached->lease->commits--;
		ends = lease_table->stopping && detached->lease->commits == 0;
	}
	if (ends)
		free_detached(detached->lease);
	LWLockRelease(lease_lock_of(detached->hash));
	if (ends)
		lease_push(detached->lease);
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

/* A lease that was prolonged in between does not end. */
bool
lease_end_hold(Lease *lease, int64 now_us)
{
	bool over;

	/* the lease is seldom detached: look without the lock first */
	if (!lease_hold_is_over(lease, now_us))
		return false;
	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	over = lease_may_end(lease, ENTRY_HOLD_IS_OVER, now_us);
	if (over)
		free_detached(lease);
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

bool
lease_end_detached(Lease *lease)
{
	uint64 hash = lease->hash; /* a free entry may get another one meanwhile */
	bool is;

	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	is = lease->hash == hash && lease_may_end(lease, ENTRY_RELEASED, 0) &&
		 !(lease_table->stopping && lease->commits > 0);
	if (is)
		free_detached(lease);
	LWLockRelease(lease_lock_of(hash));
	if (is)
		lease_push(lease);
	return is;
}

/* False if the lease has ended: each lease in an entry has another generation. */
static bool
is_same(const DetachedLease *detached)
{
	return lease_wish(detached->lease) == WISH_DETACHED &&
		   detached->lease->drive.generation == detached->generation;
}

/*
 * Frees the name, and wakes the sessions in the gate.  The caller has the table lock, exclusively.
 */
static void
free_detached(Lease *lease)
{
	lease->returns = lease->waiters_in_gate;
	lease_free_name(lease);
	if (lease->waiters_in_gate)
		lease_wake_in_gate(lease->hash);
}
