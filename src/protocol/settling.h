/*
 * settling.h
 *		Whether all keys of a host are on all lists of nodes in force ("settled"), so the host may
 *		drop a former list.
 *
 * A lease is on all lists in force if the lease uses these lists, and a majority of each list has
 * the key.  A host is settled if all its leases, requests and kept keys are on all lists.  A key
 * kept after a release (hold_at_least) belongs to no lease, and stays at its nodes.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SETTLING_H
#define REDLOCK_SETTLING_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"

/* a host's memory; zeroed at first */
typedef struct Settling
{
	core_lists lists;           /* the lists in force */
	int64_t kept_until_us;      /* when the last kept key expires */
	int64_t unsettled_until_us; /* when the last kept key expires that a list in force may lack */
} Settling;

/* Sets the lists in force, new or unchanged.  replaced: indexes that have a new node. */
extern void settling_set_lists(Settling *settling, core_lists lists, core_mask replaced);

/* A lease was released, and nodes keep its key until until_us. */
extern void settling_keep(Settling *settling, const core_lease *lease, int64_t until_us);

/*
 * Returns true if the lease or the request is on all lists in force.  A request counts because
 * the nodes of its lists may grant it.
 */
extern bool settling_on_all_lists(const Settling *settling, const core_lease *lease);

/*
 * Returns the lists whose quorums exclude others from the lock, of a lease or a request in use.  A
 * request needs a quorum of each of its lists.  A lease was perhaps granted by the first list
 * alone.
 */
extern core_lists settling_excluding(const core_lease *lease);

#endif /* REDLOCK_SETTLING_H */
