/*
 * lease_shared.c
 *		Shared leases: how a reader joins a lease, leaves it, and waits for it in the gate.
 *
 * The first reader opens the lease, and the last reader releases the lease: see lease.c.
 */
#include "postgres.h"

#include "storage/proc.h"

#include "protocol/rules.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static int joins_here = 0; /* leases of which this session is a reader */

static int64 own_joins(void);
static bool has_room_to_join(void);
static void note_join(Lease *lease, int change);
static pg_atomic_uint64 *reader_bits_of(const Lease *lease, int procno);

/*
 * Joins the shared lease of this name.  The caller has entered the gate.  Returns LEASE_OPENED if
 * there is no lease to join; there may be one at once.
 */
LeaseOpened
lease_try_join(const LeaseKey *key, const LeaseTerms *terms, Lease **result)
{
	LeaseOpened opened = LEASE_OPENED;
	Lease *lease;

	LWLockAcquire(lease_lock_of(key->hash), LW_SHARED);
	lease = lease_named(key->hash);
	if (lease != NULL)
	{
		int64 now_us = redlock_clock_us();
		EntryRequest request = lease_request(lease, key, terms);
		Entry entry;

		if (lease->shared && request.same_gate && !wish_has_no_holder(lease_wish(lease)) &&
			lease_state(lease) != LEASE_HELD)
			lease_note_waiter_in_gate(key->hash); /* before we read the state */
		entry = lease_entry(lease);
		opened = entry_join(&entry, &request, now_us);
		if (opened == LEASE_WRITER_WAITS)
		{
			lease_note_waiter_in_gate(key->hash);
			lease->waiters_in_gate = true; /* under a shared lock: all write the same value */
		}
		else if (opened == LEASE_JOINED && !has_room_to_join())
			opened = LEASE_TOO_MANY_READERS;
		else if (opened == LEASE_JOINED)
		{
			pg_atomic_fetch_add_u32(&lease->readers, 1);
			note_join(lease, 1);
			lease_stats_joined(lease);
			*result = lease;
		}
	}
	LWLockRelease(lease_lock_of(key->hash));
	return opened;
}

/*
 * Asks for the next wake-up for this name: see lease_wake_in_gate.  Keeps the mark that the gate
 * has changed.
 */
void
lease_note_waiter_in_gate(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->asked_gate[REDLOCK_MY_PROCNO];
	uint64 asked = pg_atomic_read_u64(mine);

	if (asked != hash && asked != ~hash)
		pg_atomic_write_u64(mine, hash);
	pg_memory_barrier();
}

/* The caller has the table lock, exclusively. */
void
lease_join_first(Lease *lease)
{
	pg_atomic_write_u32(&lease->readers, 1);
	note_join(lease, 1);
}

/*
 * Each reader holds the gate, too, and so takes a place in PostgreSQL's table of lock holders,
 * which has twice as many places as the table of locks.  All readers together may take half as many
 * places as the table of locks has.  Half of these are shared out equally: each session may join
 * own_joins() leases, uncounted.  Joins beyond the share are counted in more_joins, up to the
 * rest.
 */
static int64
own_joins(void)
{
	return lease_half_of_lock_table() / 2 / MaxBackends;
}

static bool
has_room_to_join(void)
{
	return joins_here < own_joins() ||
		   pg_atomic_read_u32(&lease_table->more_joins) < lease_half_of_lock_table() / 2;
}

/*
 * This session is a reader no more.  The last reader releases the lease, or keeps it idle if
 * may_idle.  It does so under the exclusive lock, so that no reader joins in between.  Never fails.
 */
void
lease_leave(Lease *lease, bool may_idle)
{
	uint64 hash = lease->hash;
	EntryRelease release = {0};
	bool waiters_in_gate;
	bool is_last;
	bool idle;
	uint32 readers;
	int64 now_us;
	Entry entry;

	/* a reader that is probably the last takes the lock once */
	if (pg_atomic_read_u32(&lease->readers) > 1)
	{
		LWLockAcquire(lease_lock_of(hash), LW_SHARED);
		readers = pg_atomic_read_u32(&lease->readers);
		while (readers > 1 &&
			   !pg_atomic_compare_exchange_u32(&lease->readers, &readers, readers - 1))
			;
		if (readers > 1)
			note_join(lease, -1);
		LWLockRelease(lease_lock_of(hash));
		if (readers > 1)
			return;
	}

	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	note_join(lease, -1);
	now_us = redlock_clock_us();
	entry = lease_entry(lease);
	is_last = entry_leave(&entry);
	if (is_last)
		lease_stats_released(lease, now_us);
	pg_atomic_write_u32(&lease->readers, entry.readers);
	lease->returns = entry.returns;
	waiters_in_gate = lease->waiters_in_gate;
	release.bars_idle = lease_bars_idle();
	idle = is_last && may_idle && entry_keep_idle(&entry, &release, now_us);
	if (idle)
	{
		lease->waiters_in_gate = false;
		pg_atomic_write_u64(&lease->idle_until_us, entry.idle_until_us);
		pg_write_barrier();
		pg_atomic_write_u32(&lease->wish, entry.wish);
	}
	else if (is_last)
		lease_free_name(lease);
	LWLockRelease(lease_lock_of(hash)); /* also a barrier: see lease_look_at_us */
	if (!is_last)
		return;
	if (!idle || entry.idle_until_us < (int64) pg_atomic_read_u64(&lease->looks_at_us))
		lease_push(lease);
	if (!idle || waiters_in_gate)
		lease_wake_in_gate(hash);
}

/* This session joins or leaves a lease.  The caller has the table lock: see tell_loss. */
static void
note_join(Lease *lease, int change)
{
	uint64 bit = UINT64CONST(1) << REDLOCK_MY_PROCNO % 64;

	if (Min(joins_here, joins_here + change) >= own_joins())
		pg_atomic_fetch_add_u32(&lease_table->more_joins, change);
	joins_here += change;
	if (change > 0)
		pg_atomic_fetch_or_u64(reader_bits_of(lease, REDLOCK_MY_PROCNO), bit);
	else
		pg_atomic_fetch_and_u64(reader_bits_of(lease, REDLOCK_MY_PROCNO), ~bit);
}

static pg_atomic_uint64 *
reader_bits_of(const Lease *lease, int procno)
{
	return &lease_table
				->reader_bits[(Size) lease_index(lease) * lease_reader_words() + procno / 64];
}

bool
lease_has_reader(const Lease *lease, int procno)
{
	return (pg_atomic_read_u64(reader_bits_of(lease, procno)) & UINT64CONST(1) << procno % 64) != 0;
}

/*
 * Wakes the sessions that wait in the gate of this name.  A session that waits for a detached lease
 * is woken after its loss, too: see tell_loss.
 */
void
lease_wake_in_gate(uint64 hash)
{
	pg_memory_barrier(); /* we see the waiter, or the waiter sees the change */
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 asked = pg_atomic_read_u64(&lease_table->asked_gate[i]);

		if (i != REDLOCK_MY_PROCNO && (asked == hash || asked == ~hash))
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}
