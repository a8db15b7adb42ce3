/*
 * hearing.h
 *		Whether a waiting request has heard of the release of its lock.
 *
 * The request subscribes to the lock's channel on all nodes.  When a majority has confirmed, the
 * request asks again, because the lock may have been released before.  From then on nodes publish
 * the release.  But only nodes with the lock's key publish it.  These nodes may be a bare majority,
 * and not the majority that confirmed the subscription.
 *
 * So the request counts two sets of nodes: nodes that have published a release since the request
 * last asked, and nodes where its last round found the lock free.  If both sets together are a
 * majority, the request asks again.  Nodes that confirmed the subscription after the request last
 * asked may have published a release before.  If a majority needs these nodes too, the request
 * asks again soon, but not before the hosts whose turn it is.
 *
 * Messages are hints: a lost, late, doubled or forged message makes the request ask in vain, or
 * later.
 */
#ifndef REDLOCK_HEARING_H
#define REDLOCK_HEARING_H

#include "protocol/core.h"

/* the state of one request; zeroed for a new request */
typedef struct Hearing
{
	core_mask subscribed; /* nodes that have confirmed the subscription */
	core_mask late;       /* nodes that confirmed it since the request last asked */
	core_mask told; /* nodes that have published the end of the lease with token `ended`, since
					 * the request last asked */
	int64_t ended;
	int64_t over; /* the last token whose end a majority has published */
} Hearing;

/* The node confirms the subscription.  Returns true if this confirmation completes a majority. */
extern bool hearing_subscribed(Hearing *hearing, const core_lease *lease, int node);

/* The subscription ended, or the connection to the node is lost. */
extern void hearing_left(Hearing *hearing, int node);

/*
 * The node publishes the end of the lease with this token (0: unknown, each time another lease).
 * Returns true if this message completes a majority.  Late messages about an earlier lease do
 * not count.
 */
extern bool hearing_told(Hearing *hearing, const core_lease *lease, int node, int64_t token);

/* Call this when the request asks. */
extern void hearing_asked(Hearing *hearing);

/*
 * Returns true if the lock may be released without a majority that publishes the release.  Call
 * this when a round was refused or a node has answered, when a node has confirmed the
 * subscription, and when a node has published a release.
 */
extern bool hearing_may_miss(const Hearing *hearing, const core_lease *lease);

#endif /* REDLOCK_HEARING_H */
