/*
 * lease_view.c
 *		Reading leases without owning them, for sessions, views and error messages; and the
 *		counters.
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"
#include "shared/node_status.h"

bool
lease_copy(Lease *lease, Lease *copy)
{
	int tries = 0;

	do
	{
		uint32 version = seqlock_begin_read(&lease->version);
		uint32 holder_version = seqlock_begin_read(&lease->holder_version);

		memcpy(copy, lease, offsetof(Lease, secret));
		if (seqlock_end_read(&lease->version, version) &&
			seqlock_end_read(&lease->holder_version, holder_version))
			return copy->in_use;
	} while (seqlock_try_again(&tries));
	return false;
}

bool
lease_is_taken(uint64 hash)
{
	return lease_permits(hash) >= 0;
}

bool
lease_lacks_holder(uint64 hash)
{
	Lease *lease;
	bool idle;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	idle = lease != NULL && wish_has_no_holder(lease_wish(lease));
	LWLockRelease(lease_lock_of(hash));
	return idle;
}

int
lease_permits(uint64 hash)
{
	Lease *lease;
	int permits = -1;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	if (lease != NULL && !wish_has_no_holder(lease_wish(lease)))
		permits = lease->permits;
	LWLockRelease(lease_lock_of(hash));
	return permits;
}

bool
lease_is_unasked(uint64 hash)
{
	Lease *lease;
	bool unasked;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	unasked = lease != NULL && lease_state(lease) == LEASE_WAITING &&
			  pg_atomic_read_u32(&lease->silent_nodes) == LEASE_NOT_ASKED;
	LWLockRelease(lease_lock_of(hash));
	return unasked;
}

char *
lease_unanswered(uint64 hash, uint64 *number)
{
	Lease *lease;
	uint32 silent = 0;
	uint32 members = 0;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = lease_named(hash);
	if (lease != NULL && lease_state(lease) == LEASE_WAITING)
	{
		silent = pg_atomic_read_u32(&lease->silent_nodes);
		members = lease->drive.core.members;
		*number = (uint64) lease_index(lease) << 32 | lease->drive.generation;
	}
	LWLockRelease(lease_lock_of(hash));
	if (silent == 0 || 2 * pg_popcount32(silent) < pg_popcount32(members))
		return NULL;
	return node_status_explain(0, 0, silent);
}

const char *
lease_name(const Lease *lease)
{
	static char name[LOCK_NAME_MAX + 1];
	const char *from = lease->key + lease->prefix_len;
	size_t len = permits_name_len(from, lease->key_len - lease->prefix_len);

	memcpy(name, from, len);
	name[len] = '\0';
	return name;
}

/*
 * Returns the holder on another host, or the last holder, if hold_at_least keeps the key after the
 * release.
 */
char *
lease_held_by_text(Lease *lease)
{
	Lease *copy = palloc(sizeof(Lease));
	char *held_by;

	if (!lease_copy(lease, copy))
		return NULL;
	held_by = lease_held_by(copy);
	if (held_by[0] == '\0')
		return NULL;
	if (copy->kept_until == 0)
		return held_by;
	return psprintf("%s (released; kept until %s)", held_by, timestamptz_to_str(copy->kept_until));
}

uint32
lease_asks(Lease *lease)
{
	return pg_atomic_read_u32(&lease->asks);
}

bool
lease_held_by_head(Lease *lease, char *text, size_t size)
{
	int tries = 0;
	uint32 version;
	bool by_host;

	do
	{
		version = seqlock_begin_read(&lease->holder_version);
		memcpy(text, lease_held_by(lease), Min(size, (size_t) lease_text_size(lease)));
		text[size - 1] = '\0';
		by_host = lease->held_by_host;
		if (seqlock_end_read(&lease->holder_version, version))
			return by_host;
	} while (seqlock_try_again(&tries));
	return false;
}

char *
lease_missing_nodes(Lease *lease)
{
	uint32 silent = pg_atomic_read_u32(&lease->silent_nodes);

	return node_status_explain(0, pg_atomic_read_u32(&lease->denying_nodes),
							   silent == LEASE_NOT_ASKED ? 0 : silent);
}

/*
 * Counts the leases that count towards redlock.max_locks, and the entries that do not.  Takes no
 * lock: the two counts may be of different moments.
 */
void
lease_usage(int *owned, int *releasing)
{
	*owned = (int) pg_atomic_read_u32(&lease_table->owned);
	*releasing = Max(lease_entries_used() - *owned, 0);
}

int
lease_entries_used(void)
{
	return (int) pg_atomic_read_u32(&lease_table->used);
}

bool
lease_unsettled(int *leases, int64 *kept_until_us)
{
	uint32 count = pg_atomic_read_u32(&lease_table->unsettled);
	int64 until_us = (int64) pg_atomic_read_u64(&lease_table->unsettled_until_us);

	*leases = count != LEASE_UNSETTLED_UNKNOWN ? (int) count : 0;
	*kept_until_us = until_us > redlock_clock_us() ? until_us : 0;
	return count != LEASE_UNSETTLED_UNKNOWN;
}

void
lease_count(LeaseCounter counter)
{
	LeaseCounts *mine = &lease_table->counts[REDLOCK_MY_PROCNO % COUNT_STRIPES];

	pg_atomic_fetch_add_u64(&mine->counter[counter], 1);
}

uint64
lease_counted(LeaseCounter counter)
{
	uint64 sum = 0;

	for (int i = 0; i < COUNT_STRIPES; i++)
		sum += pg_atomic_read_u64(&lease_table->counts[i].counter[counter]);
	return sum;
}

TimestampTz
lease_counts_reset_at(void)
{
	return (TimestampTz) pg_atomic_read_u64(&lease_table->reset_at);
}

/* An event at the same moment may be lost. */
void
lease_reset_counts(void)
{
	for (int i = 0; i < COUNT_STRIPES; i++)
		for (int j = 0; j < COUNTERS; j++)
			pg_atomic_write_u64(&lease_table->counts[i].counter[j], 0);
	pg_atomic_write_u64(&lease_table->reset_at, (uint64) GetCurrentTimestamp());
}

/* The postmaster calls, before other processes run. */
void
lease_restore_counts(const uint64 *counter, TimestampTz reset_at)
{
	for (int j = 0; j < COUNTERS; j++)
		pg_atomic_write_u64(&lease_table->counts[0].counter[j], counter[j]);
	pg_atomic_write_u64(&lease_table->reset_at, (uint64) reset_at);
}
