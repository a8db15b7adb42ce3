/*
 * lease.c
 *		Shared memory; see lease.h for the locks.
 *
 * The index maps the 64-bit hash of a name to its slot: the slots of each bucket are
 * chained, so it needs no memory of its own and can't be full.  The lowest bits of
 * the hash give the bucket and, fewer of them, the table lock.  Two names with one
 * hash can't be held at the same time in one server: that costs waiting, never
 * safety, and the gate, which comes from the same hash, has serialized them anyway.
 *
 * There are more slots than redlock.max_locks: a released lease keeps its slot
 * until each node has acknowledged, and must not stand in the way of new ones.
 * The broker forgets what is owed when more than redlock.max_locks slots are used.
 */
#include "postgres.h"

#include "access/twophase.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "protocol/rules.h"
#include "shared/alarm.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/new_names.h"
#include "shared/node_status.h"
#include "shared/run_report.h"
#include "shared/text.h"

/* Slots for leases that are being released, in addition to max_locks. */
#define SLOTS(max_locks) ((max_locks) + Min((max_locks) / 8, 1024) + 64)

LeaseTable *lease_table = NULL;

static int joined_here = 0; /* leases that this session shares */

static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static shmem_request_hook_type prev_shmem_request_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static void init_table(void);
static int room_for_locks(void);
static int buckets_wanted(void);
static Size table_size(void);
static LWLock *lock_of(uint64 hash);
static int *bucket_of(uint64 hash);
static Lease *found(uint64 hash);
static Lease *named(uint64 hash);
static void set_name(Lease *lease, uint64 hash);
static void unset_name(Lease *lease);
static bool count_owned(void);
static Lease *pop_free(void);
static void push_free(Lease *lease);
static void take_slot(Lease *lease, uint64 hash, uint64 gate, const char *key, int prefix_len,
					  int key_len, const LeaseTerms *terms);
static void set_owner(Lease *lease, uint64 gate, const LeaseTerms *terms);
static bool is_at_gate(Lease *lease, uint64 gate);
static LeaseOpened try_open(uint64 hash, uint64 gate, const char *key, int prefix_len, int key_len,
							const LeaseTerms *terms, Lease **result);
static LeaseOpened try_join(uint64 hash, uint64 gate, const char *key, int key_len,
							const LeaseTerms *terms, Lease **result);
static void await(uint64 hash);
static void join_first(Lease *lease);
static bool is_owned_elsewhere(Lease *lease, uint64 gate);
static bool is_named(const Lease *lease, const char *key, int key_len);
static bool is_wanted_alone(Lease *lease);
static bool is_being_asked(Lease *lease, const LeaseTerms *terms);
static int64 half_of_lock_table(void);
static int64 own_joins(void);
static bool has_room_to_join(void);
static void note_joined(Lease *lease, int change);
static pg_atomic_uint64 *sharers_of(const Lease *lease, int procno);
static int sharers_words(void);
static void leave(Lease *lease, bool may_stay);
static void wake_awaiting(uint64 hash);
static uint64 queue_of(const Lease *lease);
static bool tell_of_permit(uint64 queue, int permits, int permit);
static bool make_room(void);
static bool is_limited(const Lease *lease);
static int64 validity_at(Lease *lease, int64 now_us);
static int64 granted_at(Lease *lease, int64 now_us);
static void limit_hold(Lease *lease, const LeaseTerms *terms);
static bool is_unseen(Lease *lease);
static int64 tokens_left(Lease *lease);
static int tokens_of(Lease *lease);
static bool more_tokens_come(Lease *lease, int64 now_us);
static bool end_stay(Lease *lease, int64 by_us);
static bool can_take_over(Lease *lease, const char *key, int key_len, const LeaseTerms *terms,
						  int tokens);
static void take_over(Lease *idle, uint64 gate, const LeaseTerms *terms);
static void go_on(Lease *from, Lease *to);
static void free_name(Lease *lease);
static bool is_left(Lease *lease);
static bool is_orphan(Lease *lease);
static WishOwner owner_of(const Lease *lease);
static bool is_detached(Lease *lease);
static bool is_same(const DetachedLease *detached);
static void end_detached(Lease *lease);
static void push(Lease *lease);
static void tell_loss(Lease *lease);

uint64
lease_hash(const char *name, int len)
{
	return hash_bytes_extended((const unsigned char *) name, len, 0);
}

void
lease_require_preload(void)
{
	if (lease_table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock_pg must be loaded via shared_preload_libraries"),
				 errhint("Add it in postgresql.conf, beside the libraries that are there, and "
						 "restart the server: shared_preload_libraries = 'redlock_pg'")));
}

void
lease_install_hooks(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(host_list_size());
	RequestAddinShmemSpace(add_size(table_size(), node_status_size()));
	new_names_request();
	run_report_request();
	RequestNamedLWLockTranche("redlock_pg", LEASE_PARTITIONS + 1);
}

static void
startup_shmem(void)
{
	bool found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	lease_table = ShmemInitStruct("redlock_pg", table_size(), &found);
	if (!found)
		init_table();
	node_status_set_up();
	host_list_set_up();
	new_names_set_up();
	run_report_set_up();
	LWLockRelease(AddinShmemInitLock);
}

static void
init_table(void)
{
	Size sharers;

	memset(lease_table, 0, table_size());
	lease_table->locks = GetNamedLWLockTranche("redlock_pg");
	if (!pg_strong_random(&lease_table->host_id, sizeof(lease_table->host_id)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate a random id for this server")));
	lease_table->host_id |= 1; /* not 0 */
	lease_table->slots = SLOTS(redlock_max_locks);
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
	for (int i = 0; i < CYCLES; i++)
		lease_table->cycle_slot[i] = -1;
	for (int i = 0; i < LOSSES; i++)
		pg_atomic_init_u32(&lease_table->losses[i], 0);
	pg_atomic_init_u32(&lease_table->more_joined, 0);
	pg_atomic_init_u32(&lease_table->gates_ahead, 0);
	pg_atomic_init_u32(&lease_table->unsettled, LEASE_UNSETTLED_UNKNOWN);
	pg_atomic_init_u64(&lease_table->unsettled_until_us, 0);

	lease_table->awaited = (pg_atomic_uint64 *) &lease_table->lease[lease_table->slots];
	lease_table->parked = &lease_table->awaited[MaxBackends];
	lease_table->parked_us = &lease_table->parked[MaxBackends];
	for (int i = 0; i < 3 * MaxBackends; i++)
		pg_atomic_init_u64(&lease_table->awaited[i], 0);
	lease_table->sharers = &lease_table->parked_us[MaxBackends];
	sharers = (Size) lease_table->slots * sharers_words();
	for (Size i = 0; i < sharers; i++)
		pg_atomic_init_u64(&lease_table->sharers[i], 0);

	lease_table->buckets = buckets_wanted();
	lease_table->bucket = (int *) &lease_table->sharers[sharers];
	for (int i = 0; i < lease_table->buckets; i++)
		lease_table->bucket[i] = -1;

	lease_table->first_free = 0;
	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = &lease_table->lease[i];

		/* so nobody guesses the number of a wait: see deadlock.c */
		lease->generation = pg_prng_uint32(&pg_global_prng_state);
		lease->next_free = i + 1 < lease_table->slots ? i + 1 : -1;
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
		pg_atomic_init_u32(&lease->permits_told, 0);
		pg_atomic_init_u32(&lease->free_permit, 0);
		pg_atomic_init_u32(&lease->company, LEASE_ALONE);
		pg_atomic_init_u32(&lease->joined, 0);
		pg_atomic_init_u64(&lease->want_until_us, 0);
	}
}

/*
 * Each named lease has a gate, a lock of PostgreSQL's lock manager, whose table is
 * for everybody: redlocks may fill half of it.
 */
static int64
half_of_lock_table(void)
{
	return (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts) / 2;
}

static int
room_for_locks(void)
{
	int64 room = half_of_lock_table();

	if (redlock_max_locks <= room)
		return redlock_max_locks;
	ereport(WARNING,
			(errmsg("redlock.max_locks is %d, but the server's lock table has room for %d redlocks",
					redlock_max_locks, (int) room),
			 errhint("Raise max_locks_per_transaction, now %d, or lower redlock.max_locks.",
					 max_locks_per_xact)));
	return (int) room;
}

/*
 * Who joins a lease holds its gate, too: a place in the table of who holds what, which has twice
 * as many.  Of the half that redlocks may fill each session has a share of its own, which is not
 * counted, and the rest is for all.
 */
static int64
own_joins(void)
{
	return half_of_lock_table() / 2 / MaxBackends;
}

static bool
has_room_to_join(void)
{
	return joined_here < own_joins() ||
		   pg_atomic_read_u32(&lease_table->more_joined) < half_of_lock_table() / 2;
}

bool
lease_reserve_gates(int count)
{
	uint32 most = (uint32) (half_of_lock_table() / 2);

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
	Size leases = mul_size(SLOTS(redlock_max_locks), sizeof(Lease));
	Size backends = mul_size(3 * MaxBackends, sizeof(pg_atomic_uint64)); /* awaited, and so on */
	Size sharers =
		mul_size(mul_size(SLOTS(redlock_max_locks), sharers_words()), sizeof(pg_atomic_uint64));
	Size buckets = mul_size(buckets_wanted(), sizeof(int));

	return add_size(offsetof(LeaseTable, lease),
					add_size(add_size(leases, sharers), add_size(backends, buckets)));
}

static int
sharers_words(void)
{
	return (MaxBackends + 63) / 64;
}

/* The table lock of a name. */
static LWLock *
lock_of(uint64 hash)
{
	return &lease_table->locks[hash % LEASE_PARTITIONS].lock;
}

/*
 * The index, under the table lock
 */

static int *
bucket_of(uint64 hash)
{
	return &lease_table->bucket[hash % (uint64) lease_table->buckets];
}

/* The lease that is in the index by this hash, lost or not; or NULL. */
static Lease *
found(uint64 hash)
{
	for (int slot = *bucket_of(hash); slot >= 0; slot = lease_at(slot)->next_named)
		if (lease_at(slot)->hash == hash)
			return lease_at(slot);
	return NULL;
}

/*
 * The lease that has a name, or NULL.  One that its owner lost has it no more, whether
 * the owner knows or not.
 */
static Lease *
named(uint64 hash)
{
	Lease *lease = found(hash);

	if (lease != NULL && lease_state(lease) == LEASE_LOST &&
		pg_atomic_read_u32(&lease->wish) == WISH_HOLD)
		return NULL;
	return lease;
}

/* In place of a lost one, if there is one. */
static void
set_name(Lease *lease, uint64 hash)
{
	int *bucket = bucket_of(hash);
	Lease *lost = found(hash);

	if (lost != NULL)
		unset_name(lost);
	lease->next_named = *bucket;
	*bucket = lease_slot(lease);
}

/* Another may have it, if this one was lost. */
static void
unset_name(Lease *lease)
{
	for (int *link = bucket_of(lease->hash); *link >= 0; link = &lease_at(*link)->next_named)
		if (*link == lease_slot(lease))
		{
			*link = lease->next_named;
			return;
		}
}

/*
 * The gate at which the sessions of this server queue for a name: that of the lease
 * which has the name, else one that changes with each loss of a lease.  Losses are
 * counted by the hash modulo LOSSES: one under another name sends newcomers to another
 * gate, as long as nobody has this one.  A counter that wraps leads to a gate of 2^32
 * losses before.
 */
uint64
lease_gate(uint64 hash)
{
	Lease *lease;
	uint64 gate;

	Assert(REDLOCK_MY_PROCNO < MaxBackends);

	/* we see a loss that is under way, or it sees us (tell_loss): locking is a barrier */
	pg_atomic_write_u64(&lease_table->awaited[REDLOCK_MY_PROCNO], hash);
	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	gate = lease != NULL ? lease->gate
						 : hash + pg_atomic_read_u32(&lease_table->losses[hash % LOSSES]);
	LWLockRelease(lock_of(hash));
	return gate;
}

/*
 * Without a lock, as a session that acquires in a loop asks for it each time.  Where the lease that
 * has the name has an owner and another gate, lease_open says LEASE_TAKEN.
 */
uint64
lease_present_gate(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->awaited[REDLOCK_MY_PROCNO];

	if (pg_atomic_read_u64(mine) != hash)
	{
		pg_atomic_write_u64(mine, hash);
		pg_memory_barrier(); /* we see a loss that is under way, or it sees us (tell_loss) */
	}
	return hash + pg_atomic_read_u32(&lease_table->losses[hash % LOSSES]);
}

/*
 * The lease with this gate, if somebody has it or asks for it; or NULL.  A gate is the hash of a
 * name and so many losses as there had been, so each number that there may have been is tried; or
 * each slot, if there have been more losses than slots.
 */
Lease *
lease_at_gate(uint64 gate)
{
	uint32 most = 0;

	for (int i = 0; i < LOSSES; i++)
		most = Max(most, pg_atomic_read_u32(&lease_table->losses[i]));
	if (most > (uint32) lease_table->slots)
	{
		for (int i = 0; i < lease_table->slots; i++)
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
	return lease->gate == gate && pg_atomic_read_u32(&lease->wish) == WISH_HOLD;
}

/* Has a lease on this name been lost since this process asked for its gate? */
bool
lease_gate_changed(uint64 hash)
{
	return pg_atomic_read_u64(&lease_table->awaited[REDLOCK_MY_PROCNO]) != hash;
}

void
lease_leave_gates(void)
{
	pg_atomic_write_u64(&lease_table->awaited[REDLOCK_MY_PROCNO], 0);
	lease_park(0);
}

void
lease_park(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->parked[REDLOCK_MY_PROCNO];

	if (pg_atomic_read_u64(mine) == hash)
		return;
	pg_atomic_write_u64(mine, 0);
	pg_write_barrier();
	pg_atomic_write_u64(&lease_table->parked_us[REDLOCK_MY_PROCNO], redlock_clock_us());
	pg_write_barrier();
	pg_atomic_write_u64(mine, hash);
}

uint64
lease_parked(int procno, int64 *since_us)
{
	uint64 hash = pg_atomic_read_u64(&lease_table->parked[procno]);

	pg_read_barrier();
	*since_us = (int64) pg_atomic_read_u64(&lease_table->parked_us[procno]);
	pg_read_barrier();
	return pg_atomic_read_u64(&lease_table->parked[procno]) == hash ? hash : 0;
}

/*
 * Take a slot for a resource, or take over the lease that another session of this
 * server left for the next.  A new one is asked for with lease_ask, when the
 * caller has filled the (o) fields.  The caller has entered the gate.
 */
LeaseOpened
lease_open(uint64 hash, uint64 gate, const char *key, int prefix_len, int key_len,
		   const LeaseTerms *terms, Lease **result)
{
	LeaseOpened opened;

	do
	{
		opened = LEASE_OPENED;
		if (terms->shared)
			opened = try_join(hash, gate, key, key_len, terms, result);
		if (opened != LEASE_OPENED)
			return opened;
		opened = try_open(hash, gate, key, prefix_len, key_len, terms, result);
		/* of those who share it another was faster: who sleeps now may not be woken */
	} while (opened == LEASE_AWAITED || (opened == LEASE_TABLE_FULL && make_room()));
	return opened;
}

/* LEASE_OPENED: there is none that could be joined; another may be there at once. */
static LeaseOpened
try_join(uint64 hash, uint64 gate, const char *key, int key_len, const LeaseTerms *terms,
		 Lease **result)
{
	LeaseOpened opened = LEASE_OPENED;
	Lease *lease;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	if (lease != NULL && is_owned_elsewhere(lease, gate))
		opened = LEASE_TAKEN;
	else if (lease != NULL && lease->shared && pg_atomic_read_u32(&lease->wish) != WISH_IDLE)
	{
		if (lease_state(lease) != LEASE_HELD)
			await(hash); /* before we look whether it is being asked for */
		if (is_being_asked(lease, terms))
			opened = LEASE_AWAITED;
		else if (!is_named(lease, key, key_len) ||
				 !rules_may_join(is_wanted_alone(lease) && !terms->awaited,
								 lease_validity_us(lease), lease->ttl_ms * INT64CONST(1000)))
		{
			await(hash);
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
	LWLockRelease(lock_of(hash));
	return opened;
}

/*
 * The latch of this session is set at the next news of this name: see wake_awaiting.  That the gate
 * has changed is not forgotten.
 */
static void
await(uint64 hash)
{
	pg_atomic_uint64 *mine = &lease_table->awaited[REDLOCK_MY_PROCNO];
	uint64 awaited = pg_atomic_read_u64(mine);

	if (awaited != hash && awaited != ~hash)
		pg_atomic_write_u64(mine, hash);
	pg_memory_barrier();
}

/* Under the table lock, exclusively. */
static void
join_first(Lease *lease)
{
	pg_atomic_write_u32(&lease->joined, 1);
	note_joined(lease, 1);
}

/* Its queue is at another gate than ours. */
static bool
is_owned_elsewhere(Lease *lease, uint64 gate)
{
	return pg_atomic_read_u32(&lease->wish) != WISH_IDLE && lease->gate != gate;
}

static bool
is_named(const Lease *lease, const char *key, int key_len)
{
	return lease->key_len == key_len && memcmp(lease->key, key, key_len) == 0;
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

static LeaseOpened
try_open(uint64 hash, uint64 gate, const char *key, int prefix_len, int key_len,
		 const LeaseTerms *terms, Lease **result)
{
	Lease *idle;
	LeaseOpened opened = LEASE_OPENED;
	bool stayed = false;
	bool asks = false;
	bool was_left = false;
	bool retired;

	Assert(prefix_len <= LOCK_PREFIX_MAX);
	Assert(key_len > prefix_len && key_len - prefix_len <= LOCK_NAME_MAX);
	StaticAssertStmt(LEASE_TEXT_SIZE >= LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1 + 64,
					 "some of the holder must fit after the longest key");

	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	idle = named(hash);
	if (idle != NULL)
	{
		if (is_owned_elsewhere(idle, gate))
			opened = LEASE_TAKEN;
		else if (is_detached(idle))
		{
			idle->is_awaited = idle->is_awaited || !terms->once;
			/* it may be asked for among others: lease_gate was told of the last one */
			await(hash);
			opened = LEASE_DETACHED;
		}
		else if (pg_atomic_read_u32(&idle->wish) != WISH_IDLE && idle->shared && terms->shared)
			opened = LEASE_AWAITED; /* another session was faster: it can be joined, perhaps */
		else if (pg_atomic_read_u32(&idle->wish) != WISH_IDLE)
			opened = LEASE_TAKEN; /* its owner lost its gate, or has another */
		else if (can_take_over(idle, key, key_len, terms, tokens_of(idle)))
		{
			/* a permit that was passed on is handed over */
			stayed = pg_atomic_read_u64(&idle->idle_until_us) != 0 && idle->keep_idle_ms > 0;
			take_over(idle, gate, terms);
			asks = stayed && rules_asks_for_tokens(tokens_left(idle));
			if (asks)
				lease_expect_tokens(idle, redlock_clock_us() +
											  redlock_node_timeout_ms * INT64CONST(1000));
			*result = idle;
			opened = LEASE_HANDED_OVER;
		}
		else if (terms->awaits_tokens && lease_stays(idle) &&
				 more_tokens_come(idle, redlock_clock_us()) &&
				 can_take_over(idle, key, key_len, terms, PG_INT32_MAX))
			opened = LEASE_MORE_TOKENS;
		else
		{
			was_left = is_left(idle) && is_named(idle, key, key_len);
			free_name(idle);
		}
	}
	retired = idle != NULL && opened == LEASE_OPENED;
	if (opened == LEASE_OPENED && !count_owned())
		opened = LEASE_TABLE_FULL;
	else if (opened == LEASE_OPENED && (*result = pop_free()) == NULL)
	{
		pg_atomic_fetch_sub_u32(&lease_table->owned, 1);
		opened = LEASE_NO_SLOT;
	}
	else if (opened == LEASE_OPENED)
	{
		take_slot(*result, hash, gate, key, prefix_len, key_len, terms);
		if (was_left && !terms->shared)
			go_on(idle, *result);
	}
	LWLockRelease(lock_of(hash));

	if (retired)
		push(idle); /* not what we need: it is released, before ours is asked for */
	if (opened == LEASE_HANDED_OVER)
	{
		/* the broker has its bound raised, or sees the end of its hold */
		if (asks || is_unseen(idle))
			push(idle);
		lease_count(stayed ? COUNT_TAKEN_IDLE : COUNT_HANDED_OVER);
	}
	return opened;
}

Lease *
lease_take_left(uint64 hash, uint64 gate, const char *key, int key_len, const LeaseTerms *terms)
{
	Lease *lease;

	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	lease = named(hash);
	if (lease != NULL && is_left(lease) &&
		can_take_over(lease, key, key_len, terms, tokens_of(lease)))
		take_over(lease, gate, terms);
	else
		lease = NULL;
	LWLockRelease(lock_of(hash));
	if (lease == NULL)
		return NULL;
	if (is_unseen(lease))
		push(lease);
	lease_count(COUNT_HANDED_OVER);
	return lease;
}

/* Under the table lock. */
static void
take_over(Lease *idle, uint64 gate, const LeaseTerms *terms)
{
	seqlock_begin_write(&idle->version);
	set_owner(idle, gate, terms);
	idle->keep_idle_ms = terms->keep_idle_ms;
	limit_hold(idle, terms);
	if (idle->shared)
		join_first(idle); /* with the token of all who shared it before */
	else
		idle->handovers++;
	seqlock_end_write(&idle->version);
	pg_write_barrier();
	pg_atomic_write_u32(&idle->wish, WISH_HOLD);
}

/*
 * The lock was left for a session that wants other terms, and has to ask the nodes.  For the turn
 * of this host the grant counts as a hand-over.  The caller has the table lock.
 */
static void
go_on(Lease *from, Lease *to)
{
	from->goes_on = true;
	to->wanted = from->wanted;
	to->turn_began_us = from->turn_began_us;
	to->long_turn_us = from->long_turn_us;
	to->turn_handovers = from->turn_handovers + from->handovers + 1;
}

/* The limit of the new holder takes the place of the former one.  Under the table lock. */
static void
limit_hold(Lease *lease, const LeaseTerms *terms)
{
	lease->hold_at_most_ms = terms->hold_at_most_ms;
	pg_atomic_write_u64(
		&lease->hold_until_us,
		rules_hold_until_us(redlock_clock_us(), terms->hold_at_most_ms * INT64CONST(1000)));
}

/*
 * Does the limit of the new owner end before the broker looks?  The caller has released the table
 * lock, which is a barrier: see lease_look_at_us.
 */
static bool
is_unseen(Lease *lease)
{
	uint64 hold_until_us = pg_atomic_read_u64(&lease->hold_until_us);

	return hold_until_us != 0 && hold_until_us < pg_atomic_read_u64(&lease->looks_at_us);
}

/*
 * Give up a lease that stays with nobody; each in its turn.  False: there is none, and
 * no lease more than redlock.max_locks.
 */
static bool
make_room(void)
{
	for (int i = 0; i < lease_table->slots; i++)
	{
		uint32 slot = pg_atomic_fetch_add_u32(&lease_table->hand, 1);

		if (lease_give_up_stay(lease_at((int) (slot % (uint32) lease_table->slots))))
			return true;
	}
	return false;
}

/* Exactly up to the limit: one that fails takes no other's place for a moment. */
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

static void
push_free(Lease *lease)
{
	int slot = lease_slot(lease);

	pg_atomic_fetch_sub_u32(&lease_table->used, 1);
	SpinLockAcquire(&lease_table->free_mutex);
	lease->next_free = lease_table->first_free;
	lease_table->first_free = slot;
	SpinLockRelease(&lease_table->free_mutex);
}

/* Under the table lock. */
static void
take_slot(Lease *lease, uint64 hash, uint64 gate, const char *key, int prefix_len, int key_len,
		  const LeaseTerms *terms)
{
	set_name(lease, hash);

	seqlock_begin_write(&lease->version);
	lease->in_use = true;
	lease->hash = hash;
	lease->prefix_len = prefix_len;
	lease->key_len = key_len;
	memcpy(lease->key, key, key_len);
	lease->key[key_len] = '\0';
	lease_holder(lease)[0] = '\0';
	lease_held_by(lease)[0] = '\0';
	lease->kept_until = 0;
	lease->once = terms->once;
	lease->patient = terms->patient;
	lease->ttl_ms = terms->ttl_ms;
	lease->hold_at_least_ms = terms->hold_at_least_ms;
	lease->hold_at_most_ms = terms->hold_at_most_ms;
	lease->keep_idle_ms = terms->keep_idle_ms;
	lease->may_stay = terms->keep_idle_ms > 0;
	lease->permits = terms->permits;
	lease->is_queue = terms->is_queue;
	lease->shared = terms->shared;
	Assert(pg_atomic_read_u32(&lease->joined) == 0);
	if (terms->shared)
		join_first(lease);
	pg_atomic_write_u64(&lease->want_until_us, 0);
	lease->wanted = false;
	lease->handovers = lease->turn_handovers = 0;
	lease->goes_on = false;
	lease->returns = false;
	lease->is_awaited = false;
	set_owner(lease, gate, terms);
	pg_atomic_write_u32(&lease->wish, WISH_NONE);
	pg_atomic_write_u32(&lease->state, LEASE_WAITING);
	pg_atomic_write_u64(&lease->granted_until_us, 0);
	pg_atomic_write_u64(&lease->idle_until_us, 0);
	pg_atomic_write_u64(&lease->hold_until_us, 0);
	pg_atomic_write_u64(&lease->looks_at_us, PG_INT64_MAX);
	pg_atomic_write_u64(&lease->more_tokens_us, 0);
	pg_atomic_write_u32(&lease->silent_nodes, LEASE_NOT_ASKED);
	pg_atomic_write_u32(&lease->denying_nodes, 0);
	seqlock_end_write(&lease->version);
}

/* Under the table lock. */
static void
set_owner(Lease *lease, uint64 gate, const LeaseTerms *terms)
{
	lease->gate = gate;
	lease->owner_pid = MyProcPid;
	lease->owner_procno = REDLOCK_MY_PROCNO;
	lease->owner_role = GetUserId();
	lease->owner_database = MyDatabaseId;
	lease->since = GetCurrentTimestamp();
	lease->token = 0;
	lease->scope = terms->scope;
}

/* Is this the lock that is wanted, and worth having? */
static bool
can_take_over(Lease *lease, const char *key, int key_len, const LeaseTerms *terms, int tokens)
{
	return is_named(lease, key, key_len) && lease->shared == terms->shared &&
		   lease->ttl_ms == terms->ttl_ms && lease->permits == terms->permits &&
		   rules_may_take_over(terms->hold_at_least_ms > 0, lease_validity_us(lease),
							   lease->ttl_ms * INT64CONST(1000), lease->handovers, tokens);
}

/* For holders to come. */
static int64
tokens_left(Lease *lease)
{
	return (int64) pg_atomic_read_u64(&lease->last_token) - lease_token(lease);
}

static int
tokens_of(Lease *lease)
{
	return (int) Min(tokens_left(lease) + lease->handovers + 1, PG_INT32_MAX);
}

void
lease_expect_tokens(Lease *lease, int64 until_us)
{
	pg_atomic_write_u64(&lease->more_tokens_us, until_us);
}

static bool
more_tokens_come(Lease *lease, int64 now_us)
{
	return now_us < (int64) pg_atomic_read_u64(&lease->more_tokens_us);
}

bool
lease_wants_tokens(Lease *lease, int64 now_us)
{
	return lease->keep_idle_ms > 0 && !lease->shared && rules_wants_tokens(tokens_left(lease)) &&
		   wish_may_renew(pg_atomic_read_u32(&lease->wish), owner_of(lease),
						  (int64) pg_atomic_read_u64(&lease->idle_until_us), now_us);
}

/* The name is free from here on; the slot is not.  Under the table lock. */
static void
free_name(Lease *lease)
{
	unset_name(lease);
	pg_atomic_fetch_sub_u32(&lease_table->owned, 1);
	pg_atomic_write_u32(&lease->wish, WISH_NOTHING);
}

void
lease_ask(Lease *lease)
{
	Assert(lease->in_use && lease->owner_pid == MyProcPid);
	Assert(lease->ttl_ms > 0);

	pg_write_barrier(); /* what is asked for comes first */
	pg_atomic_write_u32(&lease->wish, WISH_HOLD);
	push(lease);
}

/*
 * The owner is done, whatever the lease's state is.  By keep_idle it stays, if no other
 * host wants it; a permit stays for a moment, if a session of this server is the next to have
 * one.  Else, if others wait at the gate (`waiting` tells how many), it is left to
 * the next of them, as long as this host's turn lasts.  None of it, if `waiting` is NULL.  Runs
 * in commit and abort callbacks: no allocation, no socket, no error.
 *
 * The gate is looked at under the table lock, which lease_release_idle takes: who leaves
 * the gate after that finds the lease idle.
 */
void
lease_release(Lease *lease, int (*waiting)(uint64 gate))
{
	int64 ttl_us = lease->ttl_ms * INT64CONST(1000);
	int64 now_us;
	int64 validity_us;
	int64 idle_until_us = 0;
	uint64 queue = queue_of(lease);
	int permit = queue != 0 ? permits_number(lease->key, lease->key_len) : 0;
	int permits = lease->permits;
	bool idle = waiting != NULL;
	bool passed = idle && queue != 0 && tell_of_permit(queue, permits, PERMITS_NONE_FREE);

	if (lease->shared)
	{
		leave(lease, waiting != NULL);
		return;
	}
	Assert(lease->owner_pid == MyProcPid);

	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	passed = passed && !lease_table->stays_end;
	/* after the lock: the broker has seen that the hold is over, or we see it (lease_hold_until_us)
	 */
	now_us = redlock_clock_us();
	/* as late as may be: it may just have been lost */
	validity_us = validity_at(lease, now_us) > 0 ? granted_at(lease, now_us) : 0;
	lease->returns = false;
	if (idle && lease->may_stay && lease->keep_idle_ms > 0 && !lease_table->stays_end &&
		rules_may_stay(is_limited(lease), lease->wanted, validity_us, ttl_us, lease->handovers,
					   tokens_of(lease), more_tokens_come(lease, now_us)))
		idle_until_us = now_us + lease->keep_idle_ms * INT64CONST(1000);
	else if (idle)
	{
		int others = waiting(lease->gate);
		int64 turn_us = now_us - lease->turn_began_us;
		int handovers = lease->turn_handovers + lease->handovers;

		lease->returns = others > 0;
		idle = rules_may_hand_over(lease->hold_at_least_ms > 0, validity_us, ttl_us, turn_us,
								   handovers, redlock_handover_limit) &&
			   (passed ||
				rules_turn_lasts(lease->wanted, handovers, others, turn_us >= lease->long_turn_us));
		if (idle && passed)
			idle_until_us = now_us + PERMITS_PASS_US;
	}
	if (idle)
	{
		pg_atomic_write_u64(&lease->hold_until_us, 0); /* the limit was its owner's */
		pg_atomic_write_u64(&lease->idle_until_us, idle_until_us);
		pg_write_barrier();
		pg_atomic_write_u32(&lease->wish, WISH_IDLE);
	}
	else
		free_name(lease);
	LWLockRelease(lock_of(lease->hash)); /* and a barrier: see lease_look_at_us */
	if (!idle ||
		(idle_until_us != 0 && idle_until_us < (int64) pg_atomic_read_u64(&lease->looks_at_us)))
		push(lease);
	if (idle && passed && !tell_of_permit(queue, permits, permit))
		(void) lease_give_up_stay(lease);
}

/* Where a session of this server may wait for this permit; 0: it is none. */
static uint64
queue_of(const Lease *lease)
{
	char name[LOCK_NAME_MAX + 1];
	const char *from = lease->key + lease->prefix_len;
	size_t len;

	if (lease->permits == 0 || lease->is_queue)
		return 0;
	len = permits_name_len(from, lease->key_len - lease->prefix_len);
	return lease_hash(name, (int) permits_name(name, from, len, PERMITS_QUEUE));
}

/*
 * A session of this server waits for one of so many permits, and it is its turn?  Then it is told
 * of this one, which is with nobody.
 */
static bool
tell_of_permit(uint64 queue, int permits, int permit)
{
	Lease *lease;
	bool waits;

	LWLockAcquire(lock_of(queue), LW_SHARED);
	lease = named(queue);
	waits = lease != NULL && lease->is_queue && lease->permits == permits &&
			lease_state(lease) == LEASE_HELD;
	if (waits && permit != PERMITS_NONE_FREE)
		lease_tell_permit(lease, permit);
	LWLockRelease(lock_of(queue));
	return waits;
}

/*
 * One session less shares it.  The last one releases it, or it stays.  That is decided under
 * the lock, exclusively: none joins meanwhile.
 */
static void
leave(Lease *lease, bool may_stay)
{
	uint64 hash = lease->hash;
	int64 idle_until_us = 0;
	bool is_awaited;
	uint32 joined;

	/* who is likely to be the last takes the lock once */
	if (pg_atomic_read_u32(&lease->joined) > 1)
	{
		LWLockAcquire(lock_of(hash), LW_SHARED);
		joined = pg_atomic_read_u32(&lease->joined);
		while (joined > 1 && !pg_atomic_compare_exchange_u32(&lease->joined, &joined, joined - 1))
			;
		if (joined > 1)
			note_joined(lease, -1);
		LWLockRelease(lock_of(hash));
		if (joined > 1)
			return;
	}

	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	note_joined(lease, -1);
	joined = pg_atomic_sub_fetch_u32(&lease->joined, 1);
	lease->returns = false;
	is_awaited = lease->is_awaited;
	if (joined == 0 && may_stay && lease->may_stay && lease->keep_idle_ms > 0 &&
		!lease_table->stays_end &&
		rules_may_stay(false, is_wanted_alone(lease), lease_validity_us(lease),
					   lease->ttl_ms * INT64CONST(1000), 0, tokens_of(lease), false))
	{
		idle_until_us = redlock_clock_us() + lease->keep_idle_ms * INT64CONST(1000);
		lease->is_awaited = false;
		pg_atomic_write_u64(&lease->idle_until_us, idle_until_us);
		pg_write_barrier();
		pg_atomic_write_u32(&lease->wish, WISH_IDLE);
	}
	else if (joined == 0)
		free_name(lease);
	LWLockRelease(lock_of(hash)); /* and a barrier: see lease_look_at_us */
	if (joined > 0)
		return;
	if (idle_until_us == 0 || idle_until_us < (int64) pg_atomic_read_u64(&lease->looks_at_us))
		push(lease);
	if (idle_until_us == 0 || is_awaited)
		wake_awaiting(hash);
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
	return &lease_table->sharers[(Size) lease_slot(lease) * sharers_words() + procno / 64];
}

/*
 * Sessions that wait to join, or to ask themselves, look again: those that wait for a detached
 * lease also after its loss, see tell_loss.
 */
static void
wake_awaiting(uint64 hash)
{
	pg_memory_barrier(); /* we see who waits, or it sees what has changed */
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 awaited = pg_atomic_read_u64(&lease_table->awaited[i]);

		if (i != REDLOCK_MY_PROCNO && (awaited == hash || awaited == ~hash))
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}

/* A limited lease does not stay.  The limit of a queue bounds a stopped owner only. */
static bool
is_limited(const Lease *lease)
{
	return lease->hold_at_least_ms > 0 || (lease->hold_at_most_ms > 0 && !lease->is_queue);
}

/*
 * A waiter at the gate gave up.  If the lock was just left for it, and nobody
 * else comes, it must not stay idle.  Never fails.
 */
void
lease_release_idle(uint64 hash)
{
	Lease *lease;
	bool idle;

	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	lease = named(hash);
	idle = lease != NULL && is_left(lease);
	if (idle)
		free_name(lease);
	LWLockRelease(lock_of(hash));
	if (idle)
		push(lease);
}

/* For the next through the gate. */
static bool
is_left(Lease *lease)
{
	return pg_atomic_read_u32(&lease->wish) == WISH_IDLE && !lease_stays(lease);
}

bool
lease_stays(Lease *lease)
{
	return pg_atomic_read_u32(&lease->wish) == WISH_IDLE &&
		   pg_atomic_read_u64(&lease->idle_until_us) != 0;
}

/*
 * The lease is given up, if it stays with nobody, and no longer than until then.  Anybody
 * may do that, so the slot may be another lease's by the time that it is locked.
 */
static bool
end_stay(Lease *lease, int64 by_us)
{
	uint64 hash = lease->hash;
	bool ended;

	/* most don't: without the lock first */
	if (!lease_stays(lease))
		return false;
	LWLockAcquire(lock_of(hash), LW_EXCLUSIVE);
	ended = lease->hash == hash && lease_stays(lease) &&
			(int64) pg_atomic_read_u64(&lease->idle_until_us) <= by_us;
	if (ended)
		free_name(lease);
	LWLockRelease(lock_of(hash));
	return ended;
}

bool
lease_end_stay(Lease *lease, int64 now_us)
{
	return wish_stay_is_over(pg_atomic_read_u32(&lease->wish),
							 (int64) pg_atomic_read_u64(&lease->idle_until_us), now_us) &&
		   end_stay(lease, now_us);
}

bool
lease_give_up_stay(Lease *lease)
{
	bool ended = end_stay(lease, PG_INT64_MAX);

	if (ended)
		push(lease);
	return ended;
}

int64
lease_give_up_stays(void)
{
	int64 count = 0;

	for (int i = 0; i < lease_table->slots; i++)
		count += lease_give_up_stay(lease_at(i));
	return count;
}

/* Who releases or detaches just now has seen `stays_end`, or has left its lease when we look. */
void
lease_end_all_stays(void)
{
	for (int i = 0; i < LEASE_PARTITIONS; i++)
	{
		LWLockAcquire(lock_of((uint64) i), LW_EXCLUSIVE);
		lease_table->stays_end = true;
		LWLockRelease(lock_of((uint64) i));
	}
	(void) lease_give_up_stays();
	for (int i = 0; i < lease_table->slots; i++)
		(void) lease_give_up_detached(lease_at(i));
}

/*
 * If it stays with nobody it is given up, and this host pauses.  Else it does not stay
 * when its owner is done, but is handed over or released as turns say.
 */
void
lease_want(Lease *lease)
{
	if (lease->shared)
	{
		/* as long as it holds others back at the nodes: it may give up */
		pg_atomic_write_u64(&lease->want_until_us,
							redlock_clock_us() + LUA_BARRIER_MS * INT64CONST(1000));
		lease_recall(lease);
		return;
	}
	/* it is told again and again, by each node: without the lock then */
	if (lease->wanted)
		return;
	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	lease->wanted = true;
	LWLockRelease(lock_of(lease->hash));
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
	bool orphan;

	/* most are none: without the lock first */
	if (!is_orphan(lease))
		return false;
	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	orphan = is_orphan(lease);
	if (orphan)
		free_name(lease);
	LWLockRelease(lock_of(lease->hash));
	return orphan;
}

static bool
is_orphan(Lease *lease)
{
	return wish_is_orphaned(pg_atomic_read_u32(&lease->wish), owner_of(lease),
							(int64) pg_atomic_read_u64(&lease->idle_until_us));
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

	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		count += is_detached(lease) && lease->owner_role == role;
	}
	return count;
}

/* At the end of the server, or after a loss that its broker has seen, it is over at once. */
void
lease_detach(Lease *lease, DetachedLease *detached)
{
	bool over;

	Assert(lease->owner_pid == MyProcPid && lease->token != 0);

	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	seqlock_begin_write(&lease->version);
	*detached =
		(DetachedLease){lease, lease->hash, lease->generation, lease->token, lease->owner_role};
	lease->owner_pid = 0;
	seqlock_end_write(&lease->version);
	/* it sees that the lease is detached, or we see the loss: see lease_give_up_detached */
	over = lease_table->stays_end || lease_state(lease) != LEASE_HELD;
	if (over)
		end_detached(lease);
	LWLockRelease(lock_of(lease->hash));
	if (over)
		push(lease);
}

bool
lease_find_detached(uint64 hash, const char *name, int name_len, DetachedLease *found)
{
	Lease *lease;
	bool is;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	/* whatever redlock.key_prefix was */
	is = lease != NULL && is_detached(lease) && lease->key_len - lease->prefix_len == name_len &&
		 memcmp(lease->key + lease->prefix_len, name, name_len) == 0;
	if (is)
		*found = (DetachedLease){lease, hash, lease->generation, lease->token, lease->owner_role};
	LWLockRelease(lock_of(hash));
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

/* Empty where the slot is another lease's by now. */
char *
lease_detached_missing_nodes(const DetachedLease *detached)
{
	char *nodes = lease_missing_nodes(detached->lease);

	pg_read_barrier();
	return detached->lease->generation == detached->generation ? nodes : "";
}

bool
lease_release_detached(const DetachedLease *detached)
{
	bool is;

	LWLockAcquire(lock_of(detached->hash), LW_EXCLUSIVE);
	is = is_same(detached);
	if (is)
		end_detached(detached->lease);
	LWLockRelease(lock_of(detached->hash));
	if (is)
		push(detached->lease);
	return is;
}

int64
lease_prolong(const DetachedLease *detached, int64 hold_at_most_us)
{
	Lease *lease = detached->lease;
	int64 until_us = 0;

	LWLockAcquire(lock_of(detached->hash), LW_EXCLUSIVE);
	if (lease_detached_validity_us(detached) > 0)
	{
		until_us = rules_prolonged_us((int64) pg_atomic_read_u64(&lease->hold_until_us),
									  redlock_clock_us(), hold_at_most_us);
		pg_atomic_write_u64(&lease->hold_until_us, until_us);
	}
	LWLockRelease(lock_of(detached->hash));
	if (until_us != 0)
		push(lease);
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
	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	over = is_detached(lease) && lease_hold_is_over(lease, now_us);
	if (over)
		end_detached(lease);
	LWLockRelease(lock_of(lease->hash));
	if (over)
		push(lease);
	return over;
}

bool
lease_hold_is_over(Lease *lease, int64 now_us)
{
	return wish_hold_is_over(owner_of(lease), (int64) pg_atomic_read_u64(&lease->hold_until_us),
							 now_us);
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
	LWLockAcquire(lock_of(lease->hash), LW_SHARED);
	until_us = (int64) pg_atomic_read_u64(&lease->hold_until_us);
	LWLockRelease(lock_of(lease->hash));
	return until_us;
}

bool
lease_give_up_detached(Lease *lease)
{
	bool is;

	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	is = is_detached(lease);
	if (is)
		end_detached(lease);
	LWLockRelease(lock_of(lease->hash));
	if (is)
		push(lease);
	return is;
}

static bool
is_detached(Lease *lease)
{
	return wish_is_detached(pg_atomic_read_u32(&lease->wish), owner_of(lease));
}

/* Not if it has ended: a slot that is another lease's has another generation. */
static bool
is_same(const DetachedLease *detached)
{
	return pg_atomic_read_u32(&detached->lease->wish) == WISH_HOLD &&
		   detached->lease->generation == detached->generation;
}

/* Who waits for it in the gate goes on.  Under the table lock. */
static void
end_detached(Lease *lease)
{
	lease->returns = lease->is_awaited;
	free_name(lease);
	if (lease->is_awaited)
		wake_awaiting(lease->hash);
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

Lease *
lease_find(uint64 hash)
{
	Lease *lease;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = found(hash);
	LWLockRelease(lock_of(hash));
	return lease;
}

void
lease_go_on(Lease *lease, int64 hold_at_most_us)
{
	Assert(lease->owner_pid == MyProcPid && lease->is_queue);

	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	if (lease_validity_us(lease) > 0)
		pg_atomic_write_u64(&lease->hold_until_us,
							rules_prolonged_us((int64) pg_atomic_read_u64(&lease->hold_until_us),
											   redlock_clock_us(), hold_at_most_us));
	LWLockRelease(lock_of(lease->hash));
	push(lease);
}

bool
lease_is_taken(uint64 hash)
{
	return lease_permits(hash) >= 0;
}

bool
lease_is_idle(uint64 hash)
{
	Lease *lease;
	bool idle;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	idle = lease != NULL && pg_atomic_read_u32(&lease->wish) == WISH_IDLE;
	LWLockRelease(lock_of(hash));
	return idle;
}

int
lease_permits(uint64 hash)
{
	Lease *lease;
	int permits = -1;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	if (lease != NULL && pg_atomic_read_u32(&lease->wish) != WISH_IDLE)
		permits = lease->permits;
	LWLockRelease(lock_of(hash));
	return permits;
}

LeaseState
lease_state(Lease *lease)
{
	LeaseState state = pg_atomic_read_u32(&lease->state);

	pg_read_barrier(); /* pairs with lease_set_state */
	return state;
}

int64
lease_validity_us(Lease *lease)
{
	return validity_at(lease, redlock_clock_us());
}

static int64
validity_at(Lease *lease, int64 now_us)
{
	if (lease_state(lease) != LEASE_HELD)
		return 0;
	return rules_validity_us(lease_valid_until_us(lease), now_us);
}

/* Whoever holds it. */
static int64
granted_at(Lease *lease, int64 now_us)
{
	return rules_validity_us((int64) pg_atomic_read_u64(&lease->granted_until_us), now_us);
}

int64
lease_valid_until_us(Lease *lease)
{
	return rules_valid_until_us((int64) pg_atomic_read_u64(&lease->granted_until_us),
								(int64) pg_atomic_read_u64(&lease->hold_until_us));
}

int64
lease_token(Lease *lease)
{
	return rules_token(lease->first_token, lease->handovers);
}

/*
 * Leases that count towards redlock.max_locks, and slots that do not any more.
 * Without the lock: they may be of different moments.
 */
void
lease_usage(int *owned, int *releasing)
{
	*owned = (int) pg_atomic_read_u32(&lease_table->owned);
	*releasing = Max(lease_slots_used() - *owned, 0);
}

int
lease_slots_used(void)
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

/* The holder elsewhere; or the last one, where its key outlives the release. */
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
	return psprintf("%s (its holder has gone; kept until %s)", held_by,
					timestamptz_to_str(copy->kept_until));
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
	return node_status_explain(0, pg_atomic_read_u32(&lease->denying_nodes),
							   pg_atomic_read_u32(&lease->silent_nodes));
}

bool
lease_is_unasked(uint64 hash)
{
	Lease *lease;
	bool unasked;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	unasked = lease != NULL && lease_state(lease) == LEASE_WAITING &&
			  pg_atomic_read_u32(&lease->silent_nodes) == LEASE_NOT_ASKED;
	LWLockRelease(lock_of(hash));
	return unasked;
}

char *
lease_unanswered(uint64 hash)
{
	Lease *lease;
	uint32 silent = 0;
	uint32 members = 0;

	LWLockAcquire(lock_of(hash), LW_SHARED);
	lease = named(hash);
	if (lease != NULL && lease_state(lease) == LEASE_WAITING)
	{
		silent = pg_atomic_read_u32(&lease->silent_nodes);
		members = lease->core.members;
	}
	LWLockRelease(lock_of(hash));
	if (silent == 0 || 2 * pg_popcount32(silent) < pg_popcount32(members))
		return NULL;
	return node_status_explain(0, 0, silent);
}

void
lease_tell_holder(Lease *lease, const char *held_by, bool by_host, TimestampTz kept_until)
{
	seqlock_begin_write(&lease->holder_version);
	text_to_utf8(lease_held_by(lease), lease_text_size(lease), held_by, strlen(held_by));
	lease->held_by_host = by_host;
	lease->kept_until = kept_until;
	seqlock_end_write(&lease->holder_version);
}

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

int
lease_broker_pid(void)
{
	int pid;

	SpinLockAcquire(&lease_table->queue_mutex);
	pid = lease_table->broker_pid;
	SpinLockRelease(&lease_table->queue_mutex);
	return pid;
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
 * Every push wakes the broker: it may have emptied the queue just before, and
 * setting a latch that is set already costs next to nothing.
 */
static void
push(Lease *lease)
{
	int slot = lease_slot(lease);
	Latch *latch;

	SpinLockAcquire(&lease_table->queue_mutex);
	if (lease->queued != lease_table->queue_number)
	{
		lease->queued = lease_table->queue_number;
		lease->next_queued = -1;
		if (lease_table->queue_tail < 0)
			lease_table->queue_head = slot;
		else
			lease_table->lease[lease_table->queue_tail].next_queued = slot;
		lease_table->queue_tail = slot;
	}
	latch = lease_table->broker_latch;
	SpinLockRelease(&lease_table->queue_mutex);

	/* a stale latch of a broker that just ended wakes somebody for nothing */
	if (latch != NULL)
		SetLatch(latch);
}

bool
lease_tell_deadlock(Lease *lease, const char *text)
{
	for (int i = 0; i < CYCLES; i++)
	{
		if (lease_table->cycle_slot[i] >= 0)
			continue;
		strlcpy(lease_table->cycle[i], text, CYCLE_SIZE);
		lease_table->cycle_slot[i] = lease_slot(lease);
		lease_set_state(lease, LEASE_DEADLOCKED);
		return true;
	}
	return false;
}

const char *
lease_cycle_text(Lease *lease)
{
	for (int i = 0; i < CYCLES; i++)
		if (lease_table->cycle_slot[i] == lease_slot(lease))
			return lease_table->cycle[i];
	return "";
}

bool
lease_had_broker(void)
{
	return lease_table->queue_number > 1;
}

/*
 * An earlier broker may have left the queue half taken.  The new one has to look
 * at every lease anyway, so it begins a queue of its own: the number takes all
 * leases out of the old one at once, however many there are.
 */
void
lease_broker_attach(Latch *latch)
{
	SpinLockAcquire(&lease_table->queue_mutex);
	lease_table->queue_head = lease_table->queue_tail = -1;
	lease_table->queue_number++;
	lease_table->broker_latch = latch;
	lease_table->broker_pid = MyProcPid;
	lease_table->stays_end = false;
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
 * Take the whole queue.  The chain stays linked by next_queued; each element
 * leaves it with lease_next_in_chain, and can be queued again from then on.
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

/* To be called before the wish of `slot` is read. */
int
lease_next_in_chain(int slot)
{
	int next;

	SpinLockAcquire(&lease_table->queue_mutex);
	Assert(lease_is_queued(&lease_table->lease[slot]));
	lease_table->lease[slot].queued = 0;
	next = lease_table->lease[slot].next_queued;
	SpinLockRelease(&lease_table->queue_mutex);
	return next;
}

/* The broker alone changes the queue's number, so it need not lock. */
bool
lease_is_queued(const Lease *lease)
{
	return lease->queued == lease_table->queue_number;
}

void
lease_free(Lease *lease)
{
	Assert(lease->in_use && lease->core.state == CORE_FREE);
	Assert(pg_atomic_read_u32(&lease->wish) == WISH_NOTHING);

	LWLockAcquire(lock_of(lease->hash), LW_EXCLUSIVE);
	seqlock_begin_write(&lease->version);
	lease->in_use = false;
	seqlock_end_write(&lease->version);
	for (int i = 0; i < CYCLES; i++)
		if (lease_table->cycle_slot[i] == lease_slot(lease))
			lease_table->cycle_slot[i] = -1;
	lease->generation++;
	pg_atomic_write_u32(&lease->wish, WISH_NONE);
	LWLockRelease(lock_of(lease->hash));
	push_free(lease);
}

void
lease_set_state(Lease *lease, LeaseState state)
{
	if (state == LEASE_LOST)
		pg_atomic_fetch_add_u32(&lease_table->losses[lease->hash % LOSSES], 1);
	if (state == LEASE_HELD && lease->shared &&
		!rules_want_is_later((int64) pg_atomic_read_u64(&lease->want_until_us),
							 lease->core.round_began_us))
		pg_atomic_write_u64(&lease->want_until_us, 0);
	pg_write_barrier(); /* what explains the state comes first */
	pg_atomic_write_u32(&lease->state, state);
	if (lease_owner_lives(lease))
		SetLatch(&GetPGProcByNumber(lease->owner_procno)->procLatch);
	if (lease->shared)
		wake_awaiting(lease->hash);
	if (state == LEASE_LOST)
		tell_loss(lease);
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
lease_tell_refused(Lease *lease)
{
	uint32 company = LEASE_AMONG;

	if (pg_atomic_read_u32(&lease->company) == LEASE_AMONG &&
		pg_atomic_compare_exchange_u32(&lease->company, &company, LEASE_AMONG_REFUSED) &&
		lease_owner_lives(lease))
		SetLatch(&GetPGProcByNumber(lease->owner_procno)->procLatch);
}

/*
 * The owner, or each session that shares it, may be busy, and learns of a loss before its validity
 * was to end in no other way.  Before a process ends it gives up its leases, under the table lock.
 * Sessions that wait at the gate look whether it has changed.
 */
static void
tell_loss(Lease *lease)
{
	/* exclusively: who shares it can't leave, and end */
	LWLockAcquire(lock_of(lease->hash), lease->shared ? LW_EXCLUSIVE : LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 awaited = pg_atomic_read_u64(&lease_table->awaited[i]);

		/* it may ask for another gate meanwhile */
		if (awaited == lease->hash)
			(void) pg_atomic_compare_exchange_u64(&lease_table->awaited[i], &awaited, ~lease->hash);
	}
	if (lease->shared)
	{
		for (int i = 0; i < MaxBackends; i++)
			if (lease_is_shared_by(lease, i) && GetPGProcByNumber(i)->pid != 0)
				alarm_ring(GetPGProcByNumber(i)->pid);
	}
	else if (pg_atomic_read_u32(&lease->wish) == WISH_HOLD && lease_owner_lives(lease))
		alarm_ring(lease->owner_pid);
	LWLockRelease(lock_of(lease->hash));
}

bool
lease_is_shared_by(const Lease *lease, int procno)
{
	return (pg_atomic_read_u64(sharers_of(lease, procno)) & UINT64CONST(1) << procno % 64) != 0;
}

/*
 * A backend gives up its leases before its PGPROC is freed, so a mismatch
 * means that this was skipped: its lease must not be renewed any more.
 */
bool
lease_owner_lives(const Lease *lease)
{
	return owner_of(lease) == WISH_OWNER_LIVES;
}

/*
 * It may be detached while we look: its process is read once.  Of a lease that is shared, who
 * asked for it may be gone.
 */
static WishOwner
owner_of(const Lease *lease)
{
	int pid = *(const volatile int *) &lease->owner_pid;

	if (lease->shared)
		return pg_atomic_read_u32(&((Lease *) lease)->joined) > 0 ? WISH_OWNER_LIVES
																  : WISH_OWNER_GONE;
	if (pid == 0)
		return WISH_OWNER_NONE;
	return GetPGProcByNumber(lease->owner_procno)->pid == pid ? WISH_OWNER_LIVES : WISH_OWNER_GONE;
}
