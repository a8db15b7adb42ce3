/*
 * lease_internal.h
 *		Functions shared by lease.c and lease_*.c only; lint checks the includes.
 */
#ifndef REDLOCK_LEASE_INTERNAL_H
#define REDLOCK_LEASE_INTERNAL_H

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "shared/lease.h"

/* lease.c; the caller has the table lock of the name */
extern Lease *lease_named(uint64 hash);                /* NULL: no lease has the name */
extern void lease_set_name(Lease *lease, uint64 hash); /* exclusively */
extern void lease_free_name(Lease *lease);             /* exclusively */

/*
 * The caller has the table lock, and has read the clock before: so the copy shows each loss that
 * the broker has published by that time.  lease_needs_tokens calls without the lock: its answer is
 * a hint.
 */
extern Entry lease_entry(Lease *lease);
extern EntryRequest lease_request(const Lease *lease, const LeaseKey *key, const LeaseTerms *terms);

/* Returns true if no released lease may become idle.  The caller has the table lock. */
extern bool lease_bars_idle(void);

/* lease.c; the caller has the table lock, exclusively.  Returns the new limit; 0: the lease has
 * ended. */
extern int64 lease_prolong_by(Lease *lease, int64 hold_at_most_us);

/* lease_entries.c; the caller has the table lock of the name, exclusively */
extern LeaseOpened lease_take_entry(const LeaseKey *key, const LeaseTerms *terms, Lease **result);
extern void lease_set_owner(Lease *lease, uint64 gate, const LeaseTerms *terms);

/* lease.c */
extern bool lease_may_end(Lease *lease, EntryEnd why, int64 now_us); /* see entry_ends */
extern WishOwner lease_owner_of(const Lease *lease);

/* lease_shared.c */
extern LeaseOpened lease_try_join(const LeaseKey *key, const LeaseTerms *terms, Lease **result);
extern void lease_note_waiter_in_gate(uint64 hash);
extern void lease_join_first(Lease *lease);
extern void lease_leave(Lease *lease, bool may_idle);
extern void lease_wake_in_gate(uint64 hash);

/* lease_stats.c; the caller has the table lock of the name, exclusively */
extern void lease_stats_begin(Lease *lease, int64 began_us);
extern void lease_stats_taken(Lease *lease, ResourceEvent event, int64 began_us, int64 now_us);
extern void lease_stats_released(Lease *lease, int64 now_us); /* nothing without a holder */

/* lease_stats.c; the caller has the table lock of the name */
extern void lease_stats_joined(const Lease *lease);

/* lease_broker.c */
extern void lease_push(Lease *lease); /* puts the lease into the work queue; wakes the broker */

/*
 * The gate of each named lease is a lock in PostgreSQL's lock manager, whose table has all locks of
 * the server.  Redlocks may fill half of that table.
 */
static inline int64
lease_half_of_lock_table(void)
{
	return (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts) / 2;
}

static inline int
lease_reader_words(void)
{
	return (MaxBackends + 63) / 64;
}

/* The table lock of a name. */
static inline LWLock *
lease_lock_of(uint64 hash)
{
	return &lease_table->locks[hash % LEASE_PARTITIONS].lock;
}

static inline Wish
lease_wish(Lease *lease)
{
	return pg_atomic_read_u32(&lease->wish);
}

static inline bool
lease_is_named(const Lease *lease, const char *key, int key_len)
{
	return lease->key_len == key_len && memcmp(lease->key, key, key_len) == 0;
}

#endif /* REDLOCK_LEASE_INTERNAL_H */
