/*
 * hearing.h
 *		Whether a request that waits has heard of the release that it waits for.
 *
 * It joins the lock's channel on all nodes, and asks again when a majority has confirmed that,
 * as the lock may have been released before.  From then on nodes tell of the release, but only
 * those that had the lock, which may be no more than a majority, and another one than that whose
 * channels were joined.  So the lock is taken for released where a node has told so since the
 * request asked last, and where its last round found the lock free: if these are a majority, it
 * asks again.  Where it joined the channel only after it asked, the lock may have been released
 * unheard: if these make up a majority with the others, it asks again soon, but not before those
 * whose turn it is.
 *
 * Messages are hints: lost, late, doubled or forged ones make it ask in vain, or later.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_HEARING_H
#define REDLOCK_HEARING_H

#include "protocol/core.h"

/* Of a request; zeroed for a new one. */
typedef struct Hearing
{
	core_mask joined; /* the channel, on these nodes */
	core_mask late;   /* since the request asked last */
	core_mask told;   /* nodes, since then, of the end of the lease with this token */
	int64_t ended;
	int64_t over; /* that of which a majority has told before */
} Hearing;

/* The node confirms that the channel was joined.  Now on a majority? */
extern bool hearing_joined(Hearing *hearing, const core_lease *lease, int node);

/* It has left the channel, or lost its connection to the node. */
extern void hearing_left(Hearing *hearing, int node);

/*
 * The node tells of the end of the lease with this token (0: an unknown one, which is another
 * each time).  Is it the one with which a majority has told?  What slow nodes tell of the release
 * before is not counted.
 */
extern bool hearing_told(Hearing *hearing, const core_lease *lease, int node, int64_t token);

/* The request asks. */
extern void hearing_asked(Hearing *hearing);

/*
 * May it be released, and no majority tells it?  To be asked when a round was refused or a
 * node has answered, when a channel was joined, and when a node has told.
 */
extern bool hearing_may_miss(const Hearing *hearing, const core_lease *lease);

#endif /* REDLOCK_HEARING_H */
