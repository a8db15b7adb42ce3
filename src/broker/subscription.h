/*
 * subscription.h
 *		Waiting for a release: the subscriptions of leases to the channels of their keys.
 *
 * A waiter joins the key's channel on all nodes, asks again when a majority has
 * confirmed that (the lock may have been released before), and whenever a majority
 * has told of a release.
 *
 * Used by the broker only.  It keeps its state in the leases (`subscribed`, `joined`,
 * `announced`), and lets none take a step: the broker does, when it is told to.
 */
#ifndef REDLOCK_SUBSCRIPTION_H
#define REDLOCK_SUBSCRIPTION_H

#include "broker/node.h"
#include "shared/lease.h"

extern void subscription_begin(Lease *lease, int64 now_us);
extern void subscription_end(Lease *lease);

/* A message of a subscriber.  Returns the lease that asks again for that, or NULL. */
extern Lease *subscription_hear(const RedisNode *node, const char *channel, size_t len, bool told);

/*
 * A subscriber came, or went.  lost: called for each lease that has too few left, and
 * must go back to asking.
 */
extern void subscription_on_change(RedisNode *node, void (*lost)(Lease *lease));

/* The node is left, or has another password: the next who waits opens it again. */
extern void subscription_close(int node, int64 now_us);

#endif /* REDLOCK_SUBSCRIPTION_H */
