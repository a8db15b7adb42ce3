/*
 * settling.h
 *		Whether what a host holds rests on the lists of nodes that it has in force, so that
 *		a list which goes may go.
 *
 * A lease does when its lists are those, and a majority of each has its key.  Nor may
 * anything else of the host be at the nodes of another list alone: a key that is kept
 * after its release (hold_at_least) is nobody's lease, and stays where it was left.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SETTLING_H
#define REDLOCK_SETTLING_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"

/* What a host remembers, zero at first. */
typedef struct Settling
{
	core_lists lists;           /* in force */
	int64_t kept_until_us;      /* the last end of a key that was kept */
	int64_t unsettled_until_us; /* ... of one that may not be at the nodes of each list */
} Settling;

/*
 * Other lists are in force, or the same again.  replaced: indexes that have another node than
 * before.
 */
extern void settling_set_lists(Settling *settling, core_lists lists, core_mask replaced);

/* A lease was released, and its key is kept until then. */
extern void settling_keep(Settling *settling, const core_lease *lease, int64_t until_us);

/* Of a request that is out, too: it may be granted by the lists that it has. */
extern bool settling_has(const Settling *settling, const core_lease *lease);

#endif /* REDLOCK_SETTLING_H */
