/*
 * lease_broker.c
 *		Between the sessions and the broker: the work queue, the broker's latch, the
 *		outcome, which the broker writes for the owner of a lease, and when the broker looks at
 *		a held lease.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "protocol/rules.h"
#include "shared/alarm.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"
#include "shared/text.h"

static void tell_loss(Lease *lease);

int
lease_broker_pid(void)
{
	int pid;

	SpinLockAcquire(&lease_table->queue_mutex);
	pid = lease_table->broker_pid;
	SpinLockRelease(&lease_table->queue_mutex);
	return pid;
}

/* Takes no lock: a signal handler may have interrupted the process with the lock. */
bool
lease_broker_runs(void)
{
	return *(volatile int *) &lease_table->broker_pid != 0;
}

void
lease_wake_broker(void)
{
	Latch *latch;

	SpinLockAcquire(&lease_table->queue_mutex);
	latch = lease_table->broker_latch;
	SpinLockRelease(&lease_table->queue_mutex);
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Every push wakes the broker.  The broker may just have emptied the queue, and setting a latch
 * twice costs next to nothing.
 */
void
lease_push(Lease *lease)
{
	int entry = lease_index(lease);
	Latch *latch;

	SpinLockAcquire(&lease_table->queue_mutex);
	if (lease->queued != lease_table->queue_number)
	{
		lease->queued = lease_table->queue_number;
		lease->next_queued = -1;
		if (lease_table->queue_tail < 0)
			lease_table->queue_head = entry;
		else
			lease_table->lease[lease_table->queue_tail].next_queued = entry;
		lease_table->queue_tail = entry;
	}
	latch = lease_table->broker_latch;
	SpinLockRelease(&lease_table->queue_mutex);

	/* the latch of a broker that has just ended may wake another process: harmless */
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * An earlier broker may have taken half of its queue.  The new broker looks at every lease anyway,
 * and begins a new queue: the new number takes all leases out of the old queue at once.
 */
void
lease_broker_attach(Latch *latch)
{
	SpinLockAcquire(&lease_table->queue_mutex);
	lease_table->queue_head = lease_table->queue_tail = -1;
	lease_table->queue_number++;
	lease_table->broker_latch = latch;
	lease_table->broker_pid = MyProcPid;
	lease_table->stopping = false;
	SpinLockRelease(&lease_table->queue_mutex);
}

void
lease_broker_detach(void)
{
	SpinLockAcquire(&lease_table->queue_mutex);
	lease_table->broker_latch = NULL;
	lease_table->broker_pid = 0;
	SpinLockRelease(&lease_table->queue_mutex);
}

/*
 * Takes the whole queue.  next_queued still links the chain; lease_next_in_chain takes an entry out
 * of the chain, so that a session can queue the entry again.
 */
int
lease_take_queue(void)
{
	int head;

	SpinLockAcquire(&lease_table->queue_mutex);
	head = lease_table->queue_head;
	lease_table->queue_head = lease_table->queue_tail = -1;
	SpinLockRelease(&lease_table->queue_mutex);
	return head;
}

/* The broker calls this before it reads the wish of `entry`: else it could miss a later wish. */
int
lease_next_in_chain(int entry)
{
	int next;

	SpinLockAcquire(&lease_table->queue_mutex);
	Assert(lease_is_queued(&lease_table->lease[entry]));
	lease_table->lease[entry].queued = 0;
	next = lease_table->lease[entry].next_queued;
	SpinLockRelease(&lease_table->queue_mutex);
	return next;
}

/* Takes no lock: the broker alone changes the number of the queue. */
bool
lease_is_queued(const Lease *lease)
{
	return lease->queued == lease_table->queue_number;
}

void
lease_set_state(Lease *lease, LeaseState state)
{
	if (state == LEASE_LOST)
		pg_atomic_fetch_add_u32(&lease_table->losses[lease->hash % LOSSES], 1);
	if (state == LEASE_HELD && lease->shared &&
		!rules_writer_asked_later((int64) pg_atomic_read_u64(&lease->writer_until_us),
								  lease->drive.core.round_began_us))
		pg_atomic_write_u64(&lease->writer_until_us, 0);
	pg_write_barrier(); /* first the values that explain the state */
	pg_atomic_write_u32(&lease->state, state);
	if (lease_owner_lives(lease))
		SetLatch(&GetPGProcByNumber(lease->owner_procno)->procLatch);
	if (lease->shared)
		lease_wake_in_gate(lease->hash);
	if (state == LEASE_LOST)
		tell_loss(lease);
}

/*
 * Rings the alarm of the owner, or of each reader: a busy session would otherwise notice the loss
 * only at the end of the validity.  Under the table lock no such process can end, because a process
 * releases its leases under this lock first.  Sessions at the gate see that the gate has changed.
 */
static void
tell_loss(Lease *lease)
{
	/* exclusively for a shared lease: no reader can leave, and end */
	LWLockAcquire(lease_lock_of(lease->hash), lease->shared ? LW_EXCLUSIVE : LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 asked = pg_atomic_read_u64(&lease_table->asked_gate[i]);

		/* the process may just have asked for another gate */
		if (asked == lease->hash)
			(void) pg_atomic_compare_exchange_u64(&lease_table->asked_gate[i], &asked,
												  ~lease->hash);
	}
	if (lease->shared)
	{
		for (int i = 0; i < MaxBackends; i++)
			if (lease_has_reader(lease, i) && GetPGProcByNumber(i)->pid != 0)
				alarm_ring(GetPGProcByNumber(i)->pid);
	}
	else if (pg_atomic_read_u32(&lease->wish) == WISH_HOLD && lease_owner_lives(lease))
		alarm_ring(lease->owner_pid);
	LWLockRelease(lease_lock_of(lease->hash));
}

void
lease_set_held_by(Lease *lease, const char *held_by, bool by_host, TimestampTz kept_until)
{
	seqlock_begin_write(&lease->holder_version);
	text_to_utf8(lease_held_by(lease), lease_text_size(lease), held_by, strlen(held_by));
	lease->held_by_host = by_host;
	lease->kept_until = kept_until;
	seqlock_end_write(&lease->holder_version);
}

void
lease_tell_permit(Lease *lease, int permit)
{
	pg_atomic_write_u32(&lease->free_permit, permit);
	pg_write_barrier();
	pg_atomic_fetch_add_u32(&lease->permits_told, 1);
	if (lease_owner_lives(lease))
		SetLatch(&GetPGProcByNumber(lease->owner_procno)->procLatch);
}

void
lease_tell_refused(Lease *lease, bool first)
{
	uint32 company = LEASE_AMONG;
	bool among = pg_atomic_read_u32(&lease->company) == LEASE_AMONG &&
				 pg_atomic_compare_exchange_u32(&lease->company, &company, LEASE_AMONG_REFUSED);

	if ((first || among) && lease_owner_lives(lease))
		SetLatch(&GetPGProcByNumber(lease->owner_procno)->procLatch);
}

bool
lease_tell_deadlock(Lease *lease, const char *text)
{
	int place = -1;

	for (int i = 0; i < CYCLES; i++)
	{
		int entry = lease_table->cycle_entry[i];

		/* a grant may have come before the owner read the text */
		if (entry < 0 || entry == lease_index(lease) ||
			pg_atomic_read_u32(&lease_at(entry)->state) != LEASE_DEADLOCKED)
			place = i;
		if (entry == lease_index(lease))
			break; /* the owner reads the first text of the lease */
	}
	if (place < 0)
		return false;
	strlcpy(lease_table->cycle[place], text, CYCLE_SIZE);
	lease_table->cycle_entry[place] = lease_index(lease);
	lease_set_state(lease, LEASE_DEADLOCKED);
	return true;
}

const char *
lease_cycle_text(Lease *lease)
{
	for (int i = 0; i < CYCLES; i++)
		if (lease_table->cycle_entry[i] == lease_index(lease))
			return lease_table->cycle[i];
	return "";
}

/*
 * Returns when the broker looks next at a held lease, and publishes that time in `looks_at_us`.  A
 * session changes the lease first, and then compares `looks_at_us`.  So the broker first says that
 * sessions must wake the broker, then reads the lease, then writes the time.
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
 * Returns the limit of the present holder.  If the limit is over, reads the limit again under the
 * table lock.  A session that gets this lock later reads a later clock, so the session neither
 * hands the lease over nor prolongs the lease.
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
