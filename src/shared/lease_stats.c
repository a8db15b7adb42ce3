/*
 * lease_stats.c
 *		What leases add to the statistics of their resources; see resource_stats.h.
 *
 * Each function runs where the lease changes its state, and gets the instant of the change.  Taking
 * an idle lease reads no clock for the statistics.  The queue for permits is no resource: the wait
 * in the queue is a part of the wait for the permit.
 */
#include "postgres.h"

#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/lease_internal.h"

StaticAssertDecl(RESOURCE_STATS_SETS % LEASE_PARTITIONS == 0,
				 "names of one set have the same table lock");

static int find_place(Lease *lease);
static void reset_sets(void (*reset)(int set));

void
lease_stats_begin(Lease *lease, int64 began_us)
{
	lease->wait_began_us = began_us;
	lease->held_since_us = 0;
	lease->stats_place = RESOURCE_STATS_NONE;
	if (!lease->is_queue)
		(void) find_place(lease);
}

/* Another name may have taken the place meanwhile. */
static int
find_place(Lease *lease)
{
	lease->stats_place =
		resource_stats_find(lease->stats_place, lease->hash, lease->key + lease->prefix_len,
							lease->key_len - lease->prefix_len);
	return lease->stats_place;
}

void
lease_stats_taken(Lease *lease, ResourceEvent event, int64 began_us, int64 now_us)
{
	if (lease->is_queue)
		return;
	lease->held_since_us = now_us;
	resource_stats_count(find_place(lease), event, Max(now_us - began_us, 0));
}

void
lease_stats_joined(const Lease *lease)
{
	resource_stats_join(lease->stats_place, lease->hash);
	lease_count(COUNT_JOINED);
}

void
lease_stats_released(Lease *lease, int64 now_us)
{
	if (lease->held_since_us == 0)
		return;
	resource_stats_held(find_place(lease), Max(now_us - lease->held_since_us, 0));
	lease->held_since_us = 0;
}

void
lease_stats_granted(Lease *lease, int64 now_us)
{
	if (lease->is_queue)
		return;
	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	if (lease_wish(lease) == WISH_HOLD) /* else the owner has cancelled the request */
		lease_stats_taken(lease, RESOURCE_FROM_NODES, lease->wait_began_us, now_us);
	LWLockRelease(lease_lock_of(lease->hash));
}

void
lease_stats_lost(Lease *lease)
{
	LWLockAcquire(lease_lock_of(lease->hash), LW_EXCLUSIVE);
	resource_stats_count(find_place(lease), RESOURCE_LOST, -1);
	LWLockRelease(lease_lock_of(lease->hash));
}

void
lease_stats_failed(uint64 hash, const char *name, int name_len, ResourceEvent event,
				   int64 waited_us)
{
	LWLockAcquire(lease_lock_of(hash), LW_EXCLUSIVE);
	resource_stats_count(resource_stats_find(RESOURCE_STATS_NONE, hash, name, name_len), event,
						 waited_us);
	LWLockRelease(lease_lock_of(hash));
	lease_count(event == RESOURCE_REFUSED     ? COUNT_TRIES_REFUSED
				: event == RESOURCE_TIMED_OUT ? COUNT_TIMED_OUT
											  : COUNT_DEADLOCKS);
}

void
lease_stats_reset(void)
{
	reset_sets(resource_stats_reset);
}

void
lease_stats_reset_sums(void)
{
	reset_sets(resource_stats_reset_sums);
}

static void
reset_sets(void (*reset)(int set))
{
	for (int set = 0; set < RESOURCE_STATS_SETS; set++)
	{
		LWLockAcquire(lease_lock_of((uint64) set), LW_EXCLUSIVE);
		reset(set);
		LWLockRelease(lease_lock_of((uint64) set));
	}
}
