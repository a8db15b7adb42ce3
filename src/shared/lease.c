/*
 * lease.c
 *		The lease table: the index, and how a lease passes from one session to the next.  See
 *		lease.h for the locks.
 *
 * A session opens a lease, asks the broker, takes a lease over, hands a lease over or keeps it
 * idle, and releases it.  protocol/entry.c decides each transition; this file has the locks, the
 * order of the stores, and the consequences.  Every acquire and release runs through this file, so
 * all functions on that path are here.
 *
 * The index maps the 64-bit hash of a name to the entry.  The entries of a bucket are chained, so
 * the index needs no memory of its own and cannot be full.  The lowest bits of the hash give the
 * bucket, and fewer of them give the table lock.  Two names with the same hash cannot be held at
 * the same time on one server.  Such names cost waiting, never safety; their gate is the same,
 * too.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "protocol/rules.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

static int *bucket_of(uint64 hash);
static Lease *found(uint64 hash);
static void unset_name(Lease *lease);
static LeaseOpened try_open(const LeaseKey *key, const LeaseTerms *terms, Lease **result);
static void store_taken(Lease *idle, uint64 gate, const LeaseTerms *terms, const Entry *entry,
						bool was_kept, int64 now_us);
static void go_on(Lease *from, Lease *to);
static bool is_unseen(Lease *lease);
static bool make_room(void);
static uint64 queue_of(const Lease *lease);
static bool tell_of_permit(uint64 queue, int permits, int permit);

uint64
lease_hash(const char *name, int len)
{
	return hash_bytes_extended((const unsigned char *) name, len, 0);
}

/*
 * The index, under the table lock
 */

static int *
bucket_of(uint64 hash)
{
	return &lease_table->bucket[hash % (uint64) lease_table->buckets];
}

/* Returns the lease with this hash in the index, even if lost, or NULL. */
static Lease *
found(uint64 hash)
{
	for (int entry = *bucket_of(hash); entry >= 0; entry = lease_at(entry)->next_named)
		if (lease_at(entry)->hash == hash)
			return lease_at(entry);
	return NULL;
}

/*
 * Returns the lease that has the name, or NULL.  A lost lease no longer has its name, even if the
 * owner does not know of the loss.
 */
Lease *
lease_named(uint64 hash)
{
	Lease *lease = found(hash);

	if (lease != NULL && entry_has_lost_name(lease_wish(lease), lease_state(lease)))
		return NULL;
	return lease;
}

/* Replaces a lost lease of this name. */
void
lease_set_name(Lease *lease, uint64 hash)
{
	int *bucket = bucket_of(hash);
	Lease *lost = found(hash);

	if (lost != NULL)
		unset_name(lost);
	lease->next_named = *bucket;
	*bucket = lease_index(lease);
}

/* Does nothing if another lease has replaced this lease after a loss. */
static void
unset_name(Lease *lease)
{
	for (int *link = bucket_of(lease->hash); *link >= 0; link = &lease_at(*link)->next_named)
		if (*link == lease_index(lease))
		{
			*link = lease->next_named;
			return;
		}
}

/*
 * Frees the name, and leaves the entry to the broker.  The caller has the table lock, exclusively,
 * and calls lease_push after the lock's release.
 */
void
lease_free_name(Lease *lease)
{
	unset_name(lease);
	if (lease->held_since_us != 0)
		lease_stats_released(lease, redlock_clock_us());
	pg_atomic_fetch_sub_u32(&lease_table->owned, 1);
	pg_atomic_write_u32(&lease->wish, WISH_NOTHING);
}

Lease *
lease_find(uint64 hash)
{
	Lease *lease;

	LWLockAcquire(lease_lock_of(hash), LW_SHARED);
	lease = found(hash);
	LWLockRelease(lease_lock_of(hash));
	return lease;
}

/*
 * Opens a lease: takes an entry, takes over a lease without a holder, or joins a shared lease.  The
 * caller has entered the gate.  After LEASE_OPENED the caller fills in the (o) fields, and calls
 * lease_ask.  Fails by returning another LeaseOpened; *result is set for LEASE_OPENED,
 * LEASE_HANDED_OVER and LEASE_JOINED only.
 */
LeaseOpened
lease_open(const LeaseKey *key, const LeaseTerms *terms, Lease **result)
{
	LeaseOpened opened;

	do
	{
		opened = LEASE_OPENED;
		if (terms->shared)
			opened = lease_try_join(key, terms, result);
		if (opened != LEASE_OPENED)
			return opened;
		opened = try_open(key, terms, result);
		/* another reader was faster; a wait here would miss the wake-up */
	} while (opened == LEASE_READER_ASKS || (opened == LEASE_TABLE_FULL && make_room()));
	return opened;
}

static LeaseOpened
try_open(const LeaseKey *key, const LeaseTerms *terms, Lease **result)
{
	Lease *idle;
	LeaseOpened opened = LEASE_OPENED;
	EntryTaken taken = {0};
	bool was_left = false;
	bool retired;

	Assert(key->prefix_len <= LOCK_PREFIX_MAX);
	Assert(key->len > key->prefix_len && key->len - key->prefix_len <= LOCK_NAME_MAX);
	StaticAssertStmt(LEASE_TEXT_SIZE >= LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1 + 64,
					 "some of the holder must fit after the longest key");

	LWLockAcquire(lease_lock_of(key->hash), LW_EXCLUSIVE);
	idle = lease_named(key->hash);
	if (idle != NULL)
	{
		int64 now_us = redlock_clock_us();
		Entry entry = lease_entry(idle);
		EntryRequest request = lease_request(idle, key, terms);

		opened = entry_open(&entry, &request, now_us);
		if (opened == LEASE_DETACHED)
		{
			idle->waiters_in_gate = idle->waiters_in_gate || !terms->once;
			/* lease_gate may have been asked for another name since: a call for several locks */
			lease_note_waiter_in_gate(key->hash);
		}
		else if (opened == LEASE_HANDED_OVER)
		{
			taken = entry_take_over(&entry, &request, now_us);
			store_taken(idle, key->gate, terms, &entry, taken.was_kept, now_us);
			if (taken.asks)
				lease_expect_tokens(idle, now_us + redlock_node_timeout_ms * INT64CONST(1000));
			*result = idle;
		}
		else if (opened == LEASE_OPENED)
		{
			was_left = entry.wish == WISH_HAND_OVER && request.same_lock;
			lease_free_name(idle);
		}
	}
	retired = idle != NULL && opened == LEASE_OPENED;
	if (opened == LEASE_OPENED)
		opened = lease_take_entry(key, terms, result);
	if (opened == LEASE_OPENED && was_left && !terms->shared)
		go_on(idle, *result);
	LWLockRelease(lease_lock_of(key->hash));

	if (retired)
		lease_push(idle); /* other terms: the broker releases it before it asks for ours */
	if (opened == LEASE_HANDED_OVER)
	{
		/* the broker raises the bound of tokens, or learns of the earlier limit */
		if (taken.asks || is_unseen(idle))
			lease_push(idle);
		lease_count(taken.was_kept ? COUNT_TAKEN_IDLE : COUNT_HANDED_OVER);
	}
	return opened;
}

Lease *
lease_take_hand_over(const LeaseKey *key, const LeaseTerms *terms)
{
	Lease *lease;

	LWLockAcquire(lease_lock_of(key->hash), LW_EXCLUSIVE);
	lease = lease_named(key->hash);
	if (lease != NULL && lease_wish(lease) == WISH_HAND_OVER)
	{
		int64 now_us = redlock_clock_us();
		Entry entry = lease_entry(lease);
		EntryRequest request = lease_request(lease, key, terms);

		if (entry_open(&entry, &request, now_us) == LEASE_HANDED_OVER)
		{
			(void) entry_take_over(&entry, &request, now_us);
			store_taken(lease, key->gate, terms, &entry, false, now_us);
		}
		else
			lease = NULL;
	}
	else
		lease = NULL;
	LWLockRelease(lease_lock_of(key->hash));
	if (lease == NULL)
		return NULL;
	if (is_unseen(lease))
		lease_push(lease);
	lease_count(COUNT_HANDED_OVER);
	return lease;
}

/* Copies the values for a transition.  Reads the state first: see lease_set_state. */
Entry
lease_entry(Lease *lease)
{
	Entry entry = {.wish = lease_wish(lease), .state = lease_state(lease)};

	entry.answered = pg_atomic_read_u32(&lease->silent_nodes) == 0;
	entry.shared = lease->shared;
	entry.other_host_waits = lease->other_host_waits;
	entry.may_idle = lease->may_idle;
	entry.is_queue = lease->is_queue;
	entry.returns = lease->returns;
	entry.readers = (int) pg_atomic_read_u32(&lease->readers);
	entry.permits = lease->permits;
	entry.handovers = lease->handovers;
	entry.turn_handovers = lease->drive.turn_handovers;
	entry.ttl_us = lease->ttl_ms * INT64CONST(1000);
	entry.hold_at_least_us = lease->hold_at_least_ms * INT64CONST(1000);
	entry.hold_at_most_us = lease->hold_at_most_ms * INT64CONST(1000);
	entry.keep_idle_us = lease->keep_idle_ms * INT64CONST(1000);
	entry.granted_until_us = (int64) pg_atomic_read_u64(&lease->granted_until_us);
	entry.hold_until_us = (int64) pg_atomic_read_u64(&lease->hold_until_us);
	entry.idle_until_us = (int64) pg_atomic_read_u64(&lease->idle_until_us);
	entry.writer_until_us = (int64) pg_atomic_read_u64(&lease->writer_until_us);
	entry.first_token = lease->drive.first_token;
	entry.last_token = (int64) pg_atomic_read_u64(&lease->last_token);
	entry.more_tokens_us = (int64) pg_atomic_read_u64(&lease->more_tokens_us);
	entry.turn_began_us = lease->drive.turn_began_us;
	entry.long_turn_us = lease->drive.long_turn_us;
	return entry;
}

EntryRequest
lease_request(const Lease *lease, const LeaseKey *key, const LeaseTerms *terms)
{
	return (EntryRequest){
		.same_gate = lease->gate == key->gate,
		.same_lock = lease_is_named(lease, key->text, key->len),
		.shared = terms->shared,
		.once = terms->once,
		.waited_for_grant = terms->waited_for_grant,
		.waits_for_tokens = terms->waits_for_tokens,
		.permits = terms->permits,
		.ttl_us = terms->ttl_ms * INT64CONST(1000),
		.hold_at_least_us = terms->hold_at_least_ms * INT64CONST(1000),
		.hold_at_most_us = terms->hold_at_most_ms * INT64CONST(1000),
		.keep_idle_us = terms->keep_idle_ms * INT64CONST(1000),
	};
}

/* Stores the changes of entry_take_over, and the new owner.  The caller has the table lock. */
static void
store_taken(Lease *idle, uint64 gate, const LeaseTerms *terms, const Entry *entry, bool was_kept,
			int64 now_us)
{
	seqlock_begin_write(&idle->version);
	lease_set_owner(idle, gate, terms);
	idle->keep_idle_ms = terms->keep_idle_ms;
	idle->hold_at_most_ms = terms->hold_at_most_ms;
	pg_atomic_write_u64(&idle->hold_until_us, entry->hold_until_us);
	if (idle->shared)
		lease_join_first(idle);
	idle->handovers = entry->handovers;
	seqlock_end_write(&idle->version);
	lease_stats_taken(idle, was_kept ? RESOURCE_FROM_IDLE : RESOURCE_HANDED_OVER, terms->began_us,
					  now_us);
	pg_write_barrier();
	pg_atomic_write_u32(&idle->wish, entry->wish);
}

/*
 * A lease was in hand-over, but the next session has other terms, so must ask the nodes.  The turn
 * of this host goes on: the grant will count as a hand-over.  The caller has the table lock.
 */
static void
go_on(Lease *from, Lease *to)
{
	from->goes_on = true;
	to->other_host_waits = from->other_host_waits;
	to->drive.turn_began_us = from->drive.turn_began_us;
	to->drive.long_turn_us = from->drive.long_turn_us;
	to->drive.turn_handovers = from->drive.turn_handovers + from->handovers + 1;
}

/*
 * Does the new owner's limit end before the broker looks?  The caller has released the table lock,
 * which is a barrier: see lease_look_at_us.
 */
static bool
is_unseen(Lease *lease)
{
	uint64 hold_until_us = pg_atomic_read_u64(&lease->hold_until_us);

	return hold_until_us != 0 && hold_until_us < pg_atomic_read_u64(&lease->looks_at_us);
}

/*
 * Ends one idle lease; successive calls go around the table.  Returns false if no lease is idle: no
 * room within redlock.max_locks.
 */
static bool
make_room(void)
{
	for (int i = 0; i < lease_table->entries; i++)
	{
		uint32 entry = pg_atomic_fetch_add_u32(&lease_table->hand, 1);

		if (lease_release_idle(lease_at((int) (entry % (uint32) lease_table->entries))))
			return true;
	}
	return false;
}

void
lease_expect_tokens(Lease *lease, int64 until_us)
{
	pg_atomic_write_u64(&lease->more_tokens_us, until_us);
}

bool
lease_needs_tokens(Lease *lease, int64 now_us)
{
	Entry entry;

	if (lease->keep_idle_ms <= 0)
		return false;
	entry = lease_entry(lease);
	return entry_needs_tokens(&entry, lease_owner_of(lease), now_us);
}

void
lease_ask(Lease *lease)
{
	Assert(lease->in_use && lease->owner_pid == MyProcPid);
	Assert(lease->ttl_ms > 0);

	pg_write_barrier(); /* the terms must be visible before the wish */
	pg_atomic_write_u32(&lease->wish, WISH_HOLD);
	lease_push(lease);
}

/*
 * Releases the lease in any state.  The caller is the owner, or a reader, and runs perhaps in a
 * commit or abort callback: no allocation, no socket, no error.
 *
 * The lease may remain at the nodes.  With keep_idle it becomes idle, unless another host waits.  A
 * permit becomes idle for a moment, if a session of this server is next in the permit's queue.
 * Else, if sessions wait at the gate (`waiting` counts them), the lease is handed over, while the
 * turn of this host lasts.  If `waiting` is NULL, the lease becomes neither idle nor handed over.
 *
 * The gate is looked at under the table lock, which lease_release_hand_over takes, too.  So a
 * waiter that leaves the gate later finds the lease in hand-over.
 */
void
lease_release(Lease *lease, int (*waiting)(uint64 gate))
{
	uint64 queue = queue_of(lease);
	int permit = queue != 0 ? permits_number(lease->key, lease->key_len) : 0;
	int permits = lease->permits;
	bool idle = waiting != NULL;
	bool passed = idle && queue != 0 && tell_of_permit(queue, permits, PERMITS_NONE_FREE);
	EntryRelease release = {.handover_limit = redlock_handover_limit};
	int64 now_us;
	Entry entry;

	if (lease->shared)
	{
		lease_leave(lease, waiting != NULL);
		return;
	}
	Assert(lease->owner_pid == MyProcPid);

	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	release.bars_idle = lease_bars_idle();
	passed = passed && !release.bars_idle;
	release.pass_us = passed ? PERMITS_PASS_US : 0;
	/*
	 * read the clock under the lock: either the broker sees that the hold is over, or we do
	 * (lease_hold_until_us)
	 */
	now_us = redlock_clock_us();
	lease_stats_released(lease, now_us);
	/* as late as possible, to see a loss */
	entry = lease_entry(lease);
	entry.returns = false;
	if (idle && !entry_keep_idle(&entry, &release, now_us))
	{
		release.waiting = waiting(lease->gate);
		idle = entry_hand_over(&entry, &release, now_us);
	}
	lease->returns = entry.returns;
	if (idle)
	{
		pg_atomic_write_u64(&lease->hold_until_us, entry.hold_until_us);
		pg_atomic_write_u64(&lease->idle_until_us, entry.idle_until_us);
		pg_write_barrier();
		pg_atomic_write_u32(&lease->wish, entry.wish);
	}
	else
		lease_free_name(lease);
	LWLockRelease(lease_lock_of(lease->hash)); /* also a barrier: see lease_look_at_us */
	if (!idle || (entry.wish == WISH_IDLE &&
				  entry.idle_until_us < (int64) pg_atomic_read_u64(&lease->looks_at_us)))
		lease_push(lease);
	if (idle && passed && !tell_of_permit(queue, permits, permit))
		(void) lease_release_idle(lease);
}

bool
lease_bars_idle(void)
{
	return lease_table->stopping || lease_gives_way();
}

bool
lease_gives_way(void)
{
	return lease_table->standing.says == HOST_HOLDS;
}

/* Returns the hash of the queue of this permit; 0: not a permit. */
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
 * Does a session of this server hold the queue?  If so, and `permit` names a permit, tells the
 * session that this permit is idle.
 */
static bool
tell_of_permit(uint64 queue, int permits, int permit)
{
	Lease *lease;
	bool waits;

	LWLockAcquire(lease_lock_of(queue), LW_SHARED);
	lease = lease_named(queue);
	waits = lease != NULL && lease->is_queue && lease->permits == permits &&
			lease_state(lease) == LEASE_HELD;
	if (waits && permit != PERMITS_NONE_FREE)
		lease_tell_permit(lease, permit);
	LWLockRelease(lease_lock_of(queue));
	return waits;
}

/*
 * A waiter cancelled at the gate.  Releases the lease if it is in hand-over, since no other session
 * may come for it.  Never fails.
 */
void
lease_release_hand_over(uint64 hash)
{
	Lease *lease;
	bool idle;

	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	lease = lease_named(hash);
	idle = lease != NULL && lease_may_end(lease, ENTRY_NOBODY_CAME, 0);
	if (idle)
		lease_free_name(lease);
	LWLockRelease(lease_lock_of(hash));
	if (idle)
		lease_push(lease);
}

/* The caller has the table lock.  Without the lock the answer may be out of date. */
bool
lease_may_end(Lease *lease, EntryEnd why, int64 now_us)
{
	Entry entry = {.wish = lease_wish(lease),
				   .hold_until_us = (int64) pg_atomic_read_u64(&lease->hold_until_us),
				   .idle_until_us = (int64) pg_atomic_read_u64(&lease->idle_until_us)};

	return entry_ends(&entry, lease_owner_of(lease), why, now_us);
}

bool
lease_is_idle(Lease *lease)
{
	return lease_wish(lease) == WISH_IDLE;
}

void
lease_go_on(Lease *lease, int64 hold_at_most_us)
{
	Assert(lease->owner_pid == MyProcPid && lease->is_queue);

	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	(void) lease_prolong_by(lease, hold_at_most_us);
	LWLockRelease(lease_lock_of(lease->hash));
	lease_push(lease);
}

/* Returns the new limit; 0: the lease has ended.  The caller has the table lock. */
int64
lease_prolong_by(Lease *lease, int64 hold_at_most_us)
{
	int64 now_us = redlock_clock_us();
	Entry entry = lease_entry(lease);
	int64 until_us = entry_prolong(&entry, hold_at_most_us, now_us);

	if (until_us != 0)
		pg_atomic_write_u64(&lease->hold_until_us, until_us);
	return until_us;
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
	if (lease_state(lease) != LEASE_HELD)
		return 0;
	return rules_validity_us(lease_valid_until_us(lease), redlock_clock_us());
}

int64
lease_valid_until_us(Lease *lease)
{
	return rules_valid_until_us((int64) pg_atomic_read_u64(&lease->granted_until_us),
								(int64) pg_atomic_read_u64(&lease->hold_until_us));
}

bool
lease_limit_ended(Lease *lease)
{
	uint64 hold_until_us = pg_atomic_read_u64(&lease->hold_until_us);

	return hold_until_us != 0 && hold_until_us <= pg_atomic_read_u64(&lease->granted_until_us);
}

int64
lease_token(Lease *lease)
{
	return rules_token(lease->drive.first_token, lease->handovers);
}

/*
 * A backend releases its leases before its PGPROC is freed.  If the PGPROC has another pid, then
 * the release was skipped, and the lease must not be renewed any more.
 */
bool
lease_owner_lives(const Lease *lease)
{
	return lease_owner_of(lease) == WISH_OWNER_LIVES;
}

/*
 * Reads the pid once, since the lease may become detached during the call.  The owner of a shared
 * lease lives while it has a reader: the process that asked may have gone.
 */
WishOwner
lease_owner_of(const Lease *lease)
{
	int pid = *(const volatile int *) &lease->owner_pid;

	if (lease->shared)
		return pg_atomic_read_u32(&((Lease *) lease)->readers) > 0 ? WISH_OWNER_LIVES
																   : WISH_OWNER_GONE;
	if (pid == 0)
		return WISH_OWNER_NONE;
	return GetPGProcByNumber(lease->owner_procno)->pid == pid ? WISH_OWNER_LIVES : WISH_OWNER_GONE;
}
