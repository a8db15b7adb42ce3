/*
 * driver_lease.h
 *		The lease driver's memory of a lease.
 *
 * This memory is part of the entry of the lease table, in shared memory.  The next driver goes
 * on with it.
 */
#ifndef REDLOCK_DRIVER_LEASE_H
#define REDLOCK_DRIVER_LEASE_H

#include "protocol/core.h"

/* the driver's memory of a lease; zeroed at first */
typedef struct DriverLease
{
	core_lease core;
	uint32_t generation;    /* changes when the entry is freed, so that a late answer finds no
							 * other lease.  It may wrap: no answer is under way while an entry
							 * is freed 2^32 times */
	bool granted;           /* a quorum has granted the present request */
	int64_t keep_until_us;  /* nodes keep the key until then; 0: no longer than the lock is held */
	int64_t first_token;    /* the grant's first token; each hand-over uses the next token */
	int64_t turn_began_us;  /* start of this host's turn: see rules_turn_us */
	int64_t long_turn_us;   /* from this duration on, the turn is long: see rules_turn_lasts */
	int32_t turn_handovers; /* hand-overs of this turn before the last grant by the nodes */
} DriverLease;

#endif /* REDLOCK_DRIVER_LEASE_H */
