/*
 * driver_lease.h
 *		What the lease driver remembers of a lease.
 *
 * It is a part of the entry of the lease table, in shared memory, so that the next driver goes on
 * with it.
 */
#ifndef REDLOCK_DRIVER_LEASE_H
#define REDLOCK_DRIVER_LEASE_H

#include "protocol/core.h"

/* What the driver remembers of a lease; zeroed at first. */
typedef struct DriverLease
{
	core_lease core;
	uint32_t generation;    /* changes when the entry is freed, so that a late answer finds no other
							 * lease.  It wraps: no answer is under way while an entry is freed
							 * 2^32 times */
	bool granted;           /* the present request, by a quorum */
	int64_t keep_until_us;  /* the key stays until then; 0: no longer than held */
	int64_t first_token;    /* of the grant; one more for each hand-over */
	int64_t turn_began_us;  /* of this host: see rules_turn_us */
	int64_t long_turn_us;   /* from then on the turn is a long one: see rules_turn_lasts */
	int32_t turn_handovers; /* of this turn, before the nodes granted the lease */
} DriverLease;

#endif /* REDLOCK_DRIVER_LEASE_H */
