/*
 * subscription.h
 *		Messages of other hosts: the subscriptions of waiting leases to the channels of their keys,
 *		and the subscription to this host's own channel.
 *
 * A waiter subscribes to its key's channel on all nodes; protocol/hearing.h decides when it asks
 * again.
 *
 * Used by the broker only.  A new broker subscribes again.
 */
#ifndef REDLOCK_SUBSCRIPTION_H
#define REDLOCK_SUBSCRIPTION_H

#include "broker/node.h"
#include "shared/lease.h"

extern void subscription_init(Driver *driver);

/* Begins or ends the subscription to the key's channel: see DriverEntry.hears. */
extern void subscription_begin(Lease *lease);
extern void subscription_end(Lease *lease);

/* The node is on duty: subscribes to this host's own channel there. */
extern void subscription_open(int node, int64 now_us);

/* A node has confirmed a subscription.  Returns the lease with this key, or NULL. */
extern Lease *subscription_confirmed(const RedisNode *node, const char *channel, size_t len);

/*
 * A node published the release of a permit.  When enough nodes have, returns the held queue; else
 * NULL.
 */
extern Lease *subscription_told_permit(const RedisNode *node, const char *channel, size_t len,
									   int permit);

/* Is this the channel of this host? */
extern bool subscription_is_own(const char *channel, size_t len);

/*
 * Sends a message to a host by one node.  The message may be lost; the sender repeats it, by
 * another node.
 */
extern void subscription_say(uint64 host, const char *text, size_t len, int64 now_us);

/* ... by all nodes, for a message that is not repeated. */
extern void subscription_say_by_all(uint64 host, const char *text, size_t len, int64 now_us);

/*
 * ... to the hosts that share the lock of a request, by a node that has refused the request.  Of
 * very many hosts, only some get the message.
 */
extern void subscription_say_to_readers(const Lease *lease, const char *text, size_t len,
										int64 now_us);

/* Returns the lease with this key, or NULL. */
extern Lease *subscription_lease(const char *key, size_t len);

/* A subscriber connected or failed: tells the driver which leases have left a channel. */
extern void subscription_on_change(RedisNode *node, int64 now_us);

/*
 * Closes the subscriber of a node that leaves the lists, or that is connected again.  In the
 * latter case subscription_open follows.
 */
extern void subscription_close(int node, int64 now_us);

#endif /* REDLOCK_SUBSCRIPTION_H */
