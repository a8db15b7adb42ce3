/*
 * lease_entries.c
 *		The entries of the lease table: a free entry is taken, filled in, and freed.
 *
 * redlock.max_locks limits how many entries have an owner.  There are more entries, since an entry
 * is freed only when no node is owed anything.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static bool count_owned(void);
static Lease *pop_free(void);
static void push_free(Lease *lease);
static void fill(Lease *lease, const LeaseKey *key, const LeaseTerms *terms);

/* LEASE_OPENED: *result is the caller's, and has the name. */
LeaseOpened
lease_take_entry(const LeaseKey *key, const LeaseTerms *terms, Lease **result)
{
	if (!count_owned())
		return LEASE_TABLE_FULL;
	*result = pop_free();
	if (*result == NULL)
	{
		pg_atomic_fetch_sub_u32(&lease_table->owned, 1);
		return LEASE_NO_ENTRY;
	}
	fill(*result, key, terms);
	return LEASE_OPENED;
}

/* Counts exactly up to the limit: a failed attempt takes no place, not even for a moment. */
static bool
count_owned(void)
{
	uint32 owned = pg_atomic_read_u32(&lease_table->owned);

	while (owned < (uint32) lease_table->max_locks)
		if (pg_atomic_compare_exchange_u32(&lease_table->owned, &owned, owned + 1))
			return true;
	return false;
}

static Lease *
pop_free(void)
{
	Lease *lease = NULL;

	SpinLockAcquire(&lease_table->free_mutex);
	if (lease_table->first_free >= 0)
	{
		lease = &lease_table->lease[lease_table->first_free];
		lease_table->first_free = lease->next_free;
	}
	SpinLockRelease(&lease_table->free_mutex);
	if (lease != NULL)
		pg_atomic_fetch_add_u32(&lease_table->used, 1);
	return lease;
}

/* The entry is the caller's alone.  Under the table lock. */
static void
fill(Lease *lease, const LeaseKey *key, const LeaseTerms *terms)
{
	lease_set_name(lease, key->hash);

	seqlock_begin_write(&lease->version);
	lease->in_use = true;
	lease->hash = key->hash;
	lease->prefix_len = key->prefix_len;
	lease->key_len = key->len;
	memcpy(lease->key, key->text, key->len);
	lease->key[key->len] = '\0';
	lease_holder(lease)[0] = '\0';
	lease_held_by(lease)[0] = '\0';
	lease->kept_until = 0;
	lease->once = terms->once;
	lease->patient = terms->patient;
	lease->ttl_ms = terms->ttl_ms;
	lease->hold_at_least_ms = terms->hold_at_least_ms;
	lease->hold_at_most_ms = terms->hold_at_most_ms;
	lease->keep_idle_ms = terms->keep_idle_ms;
	lease->may_idle = terms->keep_idle_ms > 0;
	lease->permits = terms->permits;
	lease->is_queue = terms->is_queue;
	lease->shared = terms->shared;
	Assert(pg_atomic_read_u32(&lease->readers) == 0);
	if (terms->shared)
		lease_join_first(lease);
	pg_atomic_write_u64(&lease->writer_until_us, 0);
	lease->other_host_waits = false;
	lease->handovers = lease->drive.turn_handovers = 0;
	lease->goes_on = false;
	lease->returns = false;
	lease->waiters_in_gate = false;
	lease_set_owner(lease, key->gate, terms);
	lease_stats_begin(lease, terms->began_us);
	pg_atomic_write_u32(&lease->wish, WISH_NONE);
	pg_atomic_write_u32(&lease->state, LEASE_WAITING);
	pg_atomic_write_u64(&lease->granted_until_us, 0);
	pg_atomic_write_u64(&lease->idle_until_us, 0);
	pg_atomic_write_u64(&lease->hold_until_us, 0);
	pg_atomic_write_u64(&lease->looks_at_us, PG_INT64_MAX);
	pg_atomic_write_u64(&lease->more_tokens_us, 0);
	pg_atomic_write_u32(&lease->silent_nodes, LEASE_NOT_ASKED);
	pg_atomic_write_u32(&lease->denying_nodes, 0);
	pg_atomic_write_u32(&lease->other_permits, 0);
	seqlock_end_write(&lease->version);
}

void
lease_set_owner(Lease *lease, uint64 gate, const LeaseTerms *terms)
{
	lease->gate = gate;
	lease->owner_pid = MyProcPid;
	lease->owner_procno = REDLOCK_MY_PROCNO;
	lease->owner_role = GetUserId();
	lease->owner_database = MyDatabaseId;
	lease->since = GetCurrentTimestamp();
	lease->token = 0;
	lease->scope = terms->scope;
	pg_atomic_write_u32(&lease->asks, 0);
}

void
lease_free(Lease *lease)
{
	Assert(lease->in_use && lease->drive.core.state == CORE_FREE);
	Assert(pg_atomic_read_u32(&lease->wish) == WISH_NOTHING);

	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	seqlock_begin_write(&lease->version);
	lease->in_use = false;
	seqlock_end_write(&lease->version);
	for (int i = 0; i < CYCLES; i++)
		if (lease_table->cycle_entry[i] == lease_index(lease))
			lease_table->cycle_entry[i] = -1;
	lease->drive.generation++;
	pg_atomic_write_u32(&lease->wish, WISH_NONE);
	LWLockRelease(lease_lock_of(lease->hash));
	push_free(lease);
}

static void
push_free(Lease *lease)
{
	int entry = lease_index(lease);

	pg_atomic_fetch_sub_u32(&lease_table->used, 1);
	SpinLockAcquire(&lease_table->free_mutex);
	lease->next_free = lease_table->first_free;
	lease_table->first_free = entry;
	SpinLockRelease(&lease_table->free_mutex);
}
