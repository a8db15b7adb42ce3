/*
 * lease_shared.c
 *		Shared leases: how a reader joins a lease, leaves it, and waits for it in the gate.
 *
 * The first reader opens the lease, and the last reader releases it: see lease.c.
 */
#include "postgres.h"

#include "storage/proc.h"

#include "protocol/rules.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static int joined_here = 0; /* leases that this session shares */

static int64 own_joins(void);
static bool has_room_to_join(void);
static bool is_wanted_alone(Lease *lease);
static bool is_being_asked(Lease *lease, const LeaseTerms *terms);
static void note_joined(Lease *lease, int change);
static pg_atomic_uint64 *sharers_of(const Lease *lease, int procno);

/* LEASE_OPENED: there is none that could be joined; another may be there at once. */
LeaseOpened
lease_try_join(uint64 hash, uint64 gate, const char *key, int key_len, const LeaseTerms *terms,
			   Lease **result)
{
	LeaseOpened opened = LEASE_OPENED;
	Lease *lease;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	if (lease != NULL && lease_is_owned_elsewhere(lease, gate))
		opened = LEASE_TAKEN;
	else if (lease != NULL && lease->shared && pg_atomic_read_u32(&lease->wish) != WISH_IDLE)
	{
		if (lease_state(lease) != LEASE_HELD)
			lease_await(hash); /* before we look whether it is being asked for */
		if (is_being_asked(lease, terms))
			opened = LEASE_AWAITED;
		else if (!lease_is_named(lease, key, key_len) ||
				 !rules_may_join(is_wanted_alone(lease) && !terms->awaited,
								 lease_validity_us(lease), lease->ttl_ms * INT64CONST(1000)))
		{
			lease_await(hash);
			lease->is_awaited = true; /* who does so at the same time writes the same */
			opened = LEASE_WANTED;
		}
		else if (!has_room_to_join())
			opened = LEASE_TOO_MANY_JOINED;
		else
		{
			pg_atomic_fetch_add_u32(&lease->joined, 1);
			note_joined(lease, 1);
			*result = lease;
			opened = LEASE_JOINED;
		}
	}
	LWLockRelease(lease_lock_of(hash));
	return opened;
}

/*
 * The latch of this session is set at the next news of this name: see lease_wake_awaiting.  That
 * the gate has changed is not forgotten.
 */
void
lease_await(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->awaited[REDLOCK_MY_PROCNO];
	uint64 awaited = pg_atomic_read_u64(mine);

	if (awaited != hash && awaited != ~hash)
		pg_atomic_write_u64(mine, hash);
	pg_memory_barrier();
}

/* Under the table lock, exclusively. */
void
lease_join_first(Lease *lease)
{
	pg_atomic_write_u32(&lease->joined, 1);
	note_joined(lease, 1);
}

/* Of a lease that is shared. */
static bool
is_wanted_alone(Lease *lease)
{
	return redlock_clock_us() < (int64) pg_atomic_read_u64(&lease->want_until_us);
}

/*
 * Another session's question, worth waiting for: a try does not wait for another host.  One that
 * was in vain is about to be given up, and ours may not be.
 */
static bool
is_being_asked(Lease *lease, const LeaseTerms *terms)
{
	LeaseState state = lease_state(lease);

	if (state == LEASE_WAITING)
		return !terms->once || pg_atomic_read_u32(&lease->silent_nodes) != 0;
	return state != LEASE_HELD;
}

/*
 * Who joins a lease holds its gate, too: a place in the table of who holds what, which has twice
 * as many.  Of the half that redlocks may fill each session has a share of its own, which is not
 * counted, and the rest is for all.
 */
static int64
own_joins(void)
{
	return lease_half_of_lock_table() / 2 / MaxBackends;
}

static bool
has_room_to_join(void)
{
	return joined_here < own_joins() ||
		   pg_atomic_read_u32(&lease_table->more_joined) < lease_half_of_lock_table() / 2;
}

/*
 * One session less shares it.  The last one releases it, or it stays.  That is decided under
 * the lock, exclusively: none joins meanwhile.
 */
void
lease_leave(Lease *lease, bool may_stay)
{
	uint64 hash = lease->hash;
	int64 idle_until_us = 0;
	bool is_awaited;
	uint32 joined;

	/* who is likely to be the last takes the lock once */
	if (pg_atomic_read_u32(&lease->joined) > 1)
	{
		LWLockAcquire(lease_lock_of(hash), LW_SHARED);
		joined = pg_atomic_read_u32(&lease->joined);
		while (joined > 1 && !pg_atomic_compare_exchange_u32(&lease->joined, &joined, joined - 1))
			;
		if (joined > 1)
			note_joined(lease, -1);
		LWLockRelease(lease_lock_of(hash));
		if (joined > 1)
			return;
	}

	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	note_joined(lease, -1);
	joined = pg_atomic_sub_fetch_u32(&lease->joined, 1);
	lease->returns = false;
	is_awaited = lease->is_awaited;
	if (joined == 0 && may_stay && lease->may_stay && lease->keep_idle_ms > 0 &&
		!lease_table->stays_end &&
		rules_may_stay(false, is_wanted_alone(lease), lease_validity_us(lease),
					   lease->ttl_ms * INT64CONST(1000), 0, lease_tokens_of(lease), false))
	{
		idle_until_us = redlock_clock_us() + lease->keep_idle_ms * INT64CONST(1000);
		lease->is_awaited = false;
		pg_atomic_write_u64(&lease->idle_until_us, idle_until_us);
		pg_write_barrier();
		pg_atomic_write_u32(&lease->wish, WISH_IDLE);
	}
	else if (joined == 0)
		lease_free_name(lease);
	LWLockRelease(lease_lock_of(hash)); /* and a barrier: see lease_look_at_us */
	if (joined > 0)
		return;
	if (idle_until_us == 0 || idle_until_us < (int64) pg_atomic_read_u64(&lease->looks_at_us))
		lease_push(lease);
	if (idle_until_us == 0 || is_awaited)
		lease_wake_awaiting(hash);
}

/* This session shares one lease more, or less.  Under the table lock: see tell_loss. */
static void
note_joined(Lease *lease, int change)
{
	uint64 bit = UINT64CONST(1) << REDLOCK_MY_PROCNO % 64;

	if (Min(joined_here, joined_here + change) >= own_joins())
		pg_atomic_fetch_add_u32(&lease_table->more_joined, change);
	joined_here += change;
	if (change > 0)
		pg_atomic_fetch_or_u64(sharers_of(lease, REDLOCK_MY_PROCNO), bit);
	else
		pg_atomic_fetch_and_u64(sharers_of(lease, REDLOCK_MY_PROCNO), ~bit);
}

static pg_atomic_uint64 *
sharers_of(const Lease *lease, int procno)
{
	return &lease_table->sharers[(Size) lease_slot(lease) * lease_sharers_words() + procno / 64];
}

bool
lease_is_shared_by(const Lease *lease, int procno)
{
	return (pg_atomic_read_u64(sharers_of(lease, procno)) & UINT64CONST(1) << procno % 64) != 0;
}

/*
 * Sessions that wait to join, or to ask themselves, look again: those that wait for a detached
 * lease also after its loss, see tell_loss.
 */
void
lease_wake_awaiting(uint64 hash)
{
	pg_memory_barrier(); /* we see who waits, or it sees what has changed */
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 awaited = pg_atomic_read_u64(&lease_table->awaited[i]);

		if (i != REDLOCK_MY_PROCNO && (awaited == hash || awaited == ~hash))
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}
