/*
 * lease_gate.c
 *		Gates: the gate at which sessions of this server queue for a name, and the session that
 *		waits in a gate.  session/gate.c enters and leaves gates.
 */
#include "postgres.h"

#include "storage/proc.h"

#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

/* A killed victim keeps the place of the verdict's text for this time. */
#define GATE_VICTIM_US INT64CONST(2000000)

static bool is_at_gate(Lease *lease, uint64 gate);
static uint64 if_victim(int64 since_us);

/*
 * Returns the gate at which sessions of this server queue for a name: the gate of the named lease,
 * or else a gate that changes with each loss.  Notes that this process has asked.
 *
 * Losses are counted by hash modulo LOSSES.  So a loss of another name may send new sessions to
 * another gate, while no lease has this name.  When a counter wraps, the gate is the same as 2^32
 * losses before.
 */
uint64
lease_gate(uint64 hash)
{
	Lease *lease;
	uint64 gate;

	Assert(REDLOCK_MY_PROCNO < MaxBackends);

	/* we see a loss under way, or tell_loss sees us: the lock is a barrier */
	pg_atomic_write_u64(&lease_table->asked_gate[REDLOCK_MY_PROCNO], hash);
	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	gate = lease != NULL ? lease->gate
						 : hash + pg_atomic_read_u32(&lease_table->losses[hash % LOSSES]);
	LWLockRelease(lease_lock_of(hash));
	return gate;
}

/*
 * Returns the gate of a name without a lease.  Takes no lock: a session that acquires in a loop
 * calls this each time.  If the named lease has an owner and another gate, lease_open returns
 * LEASE_TAKEN.
 */
uint64
lease_present_gate(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->asked_gate[REDLOCK_MY_PROCNO];

	if (pg_atomic_read_u64(mine) != hash)
	{
		pg_atomic_write_u64(mine, hash);
		pg_memory_barrier(); /* we see a loss under way, or tell_loss sees us */
	}
	return hash + pg_atomic_read_u32(&lease_table->losses[hash % LOSSES]);
}

/*
 * Returns the lease with this gate that is held or asked for, or NULL.  A gate is the hash of a
 * name plus a number of losses.  So each possible number is tried, or each entry, if there were
 * more losses than entries.
 */
Lease *
lease_at_gate(uint64 gate)
{
	uint32 most = 0;

	for (int i = 0; i < LOSSES; i++)
		most = Max(most, pg_atomic_read_u32(&lease_table->losses[i]));
	if (most > (uint32) lease_table->entries)
	{
		for (int i = 0; i < lease_table->entries; i++)
			if (is_at_gate(lease_at(i), gate))
				return lease_at(i);
		return NULL;
	}
	for (uint64 lost = 0; lost <= most; lost++)
	{
		uint64 hash = gate - lost;
		Lease *lease;

		if (pg_atomic_read_u32(&lease_table->losses[hash % LOSSES]) < lost)
			continue;
		lease = lease_find(hash);
		if (lease != NULL && is_at_gate(lease, gate))
			return lease;
	}
	return NULL;
}

static bool
is_at_gate(Lease *lease, uint64 gate)
{
	return lease->gate == gate && wish_is_held(lease_wish(lease));
}

/* Has a lease on this name been lost since this process asked for the gate? */
bool
lease_gate_changed(uint64 hash)
{
	return pg_atomic_read_u64(&lease_table->asked_gate[REDLOCK_MY_PROCNO]) != hash;
}

uint64
lease_wait_number(int procno, int64 since_us)
{
	/* a process number has 18 bits */
	return UINT64CONST(1) << 62 | ((uint64) since_us << 18 & ((UINT64CONST(1) << 62) - 1)) |
		   (uint64) procno;
}

bool
lease_tell_gate_deadlock(uint64 wait, const char *cycle, int64 now_us)
{
	if (pg_atomic_read_u64(&lease_table->gate_victim) != 0 &&
		now_us - lease_table->gate_victim_us < GATE_VICTIM_US)
		return false;
	pg_atomic_write_u64(&lease_table->gate_victim, 0);
	pg_write_barrier();
	strlcpy(lease_table->gate_cycle, cycle, CYCLE_SIZE);
	lease_table->gate_victim_us = now_us;
	pg_write_barrier();
	pg_atomic_write_u64(&lease_table->gate_victim, wait);
	return true;
}

uint64
lease_gate_deadlock(void)
{
	return if_victim((int64) pg_atomic_read_u64(&MyProc->waitStart));
}

uint64
lease_parked_deadlock(void)
{
	LeaseParked parked = lease_parked(REDLOCK_MY_PROCNO);

	return parked.hash != 0 ? if_victim(parked.since_us) : 0;
}

/* Returns the number of this session's wait since this time if the wait is the victim, or 0. */
static uint64
if_victim(int64 since_us)
{
	uint64 wait = lease_wait_number(REDLOCK_MY_PROCNO, since_us);

	return pg_atomic_read_u64(&lease_table->gate_victim) == wait ? wait : 0;
}

char *
lease_take_gate_cycle(uint64 wait)
{
	char *cycle = palloc(CYCLE_SIZE);

	pg_read_barrier();
	memcpy(cycle, lease_table->gate_cycle, CYCLE_SIZE);
	pg_memory_barrier();
	if (!pg_atomic_compare_exchange_u64(&lease_table->gate_victim, &wait, 0))
		cycle[0] = '\0';
	return cycle;
}

void
lease_leave_gates(void)
{
	pg_atomic_write_u64(&lease_table->asked_gate[REDLOCK_MY_PROCNO], 0);
	lease_park(0, false);
}

bool
lease_reserve_gates(int count)
{
	uint32 most = (uint32) (lease_half_of_lock_table() / 2);

	if (pg_atomic_add_fetch_u32(&lease_table->gates_ahead, count) <= most)
		return true;
	lease_return_gates(count);
	return false;
}

void
lease_return_gates(int count)
{
	pg_atomic_fetch_sub_u32(&lease_table->gates_ahead, count);
}

void
lease_park(uint64 hash, bool shared)
{
	pg_atomic_uint64 *mine = &lease_table->parked[REDLOCK_MY_PROCNO];

	if (pg_atomic_read_u64(mine) == hash)
		return;
	pg_atomic_write_u64(mine, 0);
	pg_write_barrier();
	pg_atomic_write_u64(&lease_table->parked_us[REDLOCK_MY_PROCNO],
						(uint64) redlock_clock_us() << 1 | shared);
	pg_write_barrier();
	pg_atomic_write_u64(mine, hash);
}

LeaseParked
lease_parked(int procno)
{
	LeaseParked parked = {.hash = pg_atomic_read_u64(&lease_table->parked[procno])};
	uint64 since;

	pg_read_barrier();
	since = pg_atomic_read_u64(&lease_table->parked_us[procno]);
	pg_read_barrier();
	if (pg_atomic_read_u64(&lease_table->parked[procno]) != parked.hash)
		parked.hash = 0;
	parked.since_us = (int64) (since >> 1);
	parked.shared = since & 1;
	return parked;
}
