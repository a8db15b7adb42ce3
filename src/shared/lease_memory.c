/*
 * lease_memory.c
 *		The memory of the lease table: how large the table is, and how the server's start
 *		initializes the table.
 *
 * There are more entries than redlock.max_locks: a released lease keeps its entry until each node
 * has acknowledged the release, and must not block new leases.  The broker forgets what it owes to
 * nodes when more than redlock.max_locks entries are in use.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

/* Entries for leases under release, in addition to max_locks. */
#define ENTRIES(max_locks) ((max_locks) + Min((max_locks) / 8, 1024) + 64)

LeaseTable *lease_table = NULL;

static void init_table(void);
static void init_entry(Lease *lease);
static int room_for_locks(void);
static int buckets_wanted(void);
static Size table_size(void);

void
lease_require_preload(void)
{
	if (lease_table == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("redlock_pg must be loaded via shared_preload_libraries"),
						errhint(LEASE_PRELOAD_STEP)));
}

void
lease_memory_request(void)
{
	RequestAddinShmemSpace(table_size());
	RequestNamedLWLockTranche("redlock_pg", LEASE_PARTITIONS + 1);
}

void
lease_memory_set_up(void)
{
	bool found;

	lease_table = ShmemInitStruct("redlock_pg", table_size(), &found);
	if (!found)
		init_table();
}

static void
init_table(void)
{
	Size reader_words;

	memset(lease_table, 0, table_size());
	guc_share_assignments(&lease_table->assignments);
	lease_table->locks = GetNamedLWLockTranche("redlock_pg");
	if (!pg_strong_random(&lease_table->host_id, sizeof(lease_table->host_id)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate a random id for this server")));
	lease_table->host_id |= 1; /* not 0 */
	lease_table->entries = ENTRIES(redlock_max_locks);
	lease_table->max_locks = room_for_locks();
	pg_atomic_init_u32(&lease_table->used, 0);
	pg_atomic_init_u32(&lease_table->owned, 0);
	pg_atomic_init_u32(&lease_table->hand, 0);
	SpinLockInit(&lease_table->free_mutex);
	lease_table->queue_head = lease_table->queue_tail = -1;
	lease_table->queue_number = 1;
	SpinLockInit(&lease_table->queue_mutex);
	for (int i = 0; i < COUNT_STRIPES; i++)
		for (int j = 0; j < COUNTERS; j++)
			pg_atomic_init_u64(&lease_table->counts[i].counter[j], 0);
	pg_atomic_init_u64(&lease_table->reset_at, (uint64) GetCurrentTimestamp());
	for (int i = 0; i < CYCLES; i++)
		lease_table->cycle_entry[i] = -1;
	pg_atomic_init_u64(&lease_table->gate_victim, 0);
	for (int i = 0; i < LOSSES; i++)
		pg_atomic_init_u32(&lease_table->losses[i], 0);
	pg_atomic_init_u32(&lease_table->more_joins, 0);
	pg_atomic_init_u32(&lease_table->gates_ahead, 0);
	lease_table->local_names = DSM_HANDLE_INVALID;
	pg_atomic_init_u32(&lease_table->unsettled, LEASE_UNSETTLED_UNKNOWN);
	pg_atomic_init_u64(&lease_table->unsettled_until_us, 0);

	lease_table->asked_gate = (pg_atomic_uint64 *) &lease_table->lease[lease_table->entries];
	lease_table->parked = &lease_table->asked_gate[MaxBackends];
	lease_table->parked_us = &lease_table->parked[MaxBackends];
	for (int i = 0; i < 3 * MaxBackends; i++)
		pg_atomic_init_u64(&lease_table->asked_gate[i], 0);
	lease_table->reader_bits = &lease_table->parked_us[MaxBackends];
	reader_words = (Size) lease_table->entries * lease_reader_words();
	for (Size i = 0; i < reader_words; i++)
		pg_atomic_init_u64(&lease_table->reader_bits[i], 0);

	lease_table->buckets = buckets_wanted();
	lease_table->bucket = (int *) &lease_table->reader_bits[reader_words];
	for (int i = 0; i < lease_table->buckets; i++)
		lease_table->bucket[i] = -1;

	lease_table->first_free = 0;
	for (int i = 0; i < lease_table->entries; i++)
	{
		init_entry(&lease_table->lease[i]);
		lease_table->lease[i].next_free = i + 1 < lease_table->entries ? i + 1 : -1;
	}
}

static void
init_entry(Lease *lease)
{
	/* random: nobody can guess the number of a wait, see deadlock.c */
	lease->drive.generation = pg_prng_uint32(&pg_global_prng_state);
	lease->next_named = -1;
	lease->next_queued = -1;
	pg_atomic_init_u32(&lease->version.number, 0);
	pg_atomic_init_u32(&lease->holder_version.number, 0);
	pg_atomic_init_u32(&lease->wish, WISH_NONE);
	pg_atomic_init_u32(&lease->state, LEASE_WAITING);
	pg_atomic_init_u64(&lease->granted_until_us, 0);
	pg_atomic_init_u64(&lease->idle_until_us, 0);
	pg_atomic_init_u64(&lease->hold_until_us, 0);
	pg_atomic_init_u64(&lease->looks_at_us, PG_INT64_MAX);
	pg_atomic_init_u64(&lease->last_token, 0);
	pg_atomic_init_u64(&lease->more_tokens_us, 0);
	pg_atomic_init_u32(&lease->silent_nodes, 0);
	pg_atomic_init_u32(&lease->denying_nodes, 0);
	pg_atomic_init_u32(&lease->other_permits, 0);
	pg_atomic_init_u32(&lease->permits_told, 0);
	pg_atomic_init_u32(&lease->free_permit, 0);
	pg_atomic_init_u32(&lease->company, LEASE_ALONE);
	pg_atomic_init_u32(&lease->readers, 0);
	pg_atomic_init_u32(&lease->asks, 0);
	pg_atomic_init_u64(&lease->writer_until_us, 0);
}

static int
room_for_locks(void)
{
	int64 room = lease_half_of_lock_table();

	if (redlock_max_locks <= room)
		return redlock_max_locks;
	ereport(WARNING,
			(errmsg("redlock.max_locks is %d, but the server's lock table has room for %d redlocks",
					redlock_max_locks, (int) room),
			 errhint("Raise max_locks_per_transaction, now %d, or lower redlock.max_locks.",
					 max_locks_per_xact)));
	return (int) room;
}

static int
buckets_wanted(void)
{
	int buckets = LEASE_PARTITIONS;

	while (buckets < redlock_max_locks)
		buckets *= 2;
	return buckets;
}

static Size
table_size(void)
{
	Size leases = mul_size(ENTRIES(redlock_max_locks), sizeof(Lease));
	Size backends = mul_size(3 * MaxBackends, sizeof(pg_atomic_uint64)); /* three words each */
	Size reader_words = mul_size(mul_size(ENTRIES(redlock_max_locks), lease_reader_words()),
								 sizeof(pg_atomic_uint64));
	Size buckets = mul_size(buckets_wanted(), sizeof(int));

	return add_size(offsetof(LeaseTable, lease),
					add_size(add_size(leases, reader_words), add_size(backends, buckets)));
}
