/*
 * subscription.h
 *		What this server hears of others: the subscriptions of waiting leases to the channels
 *		of their keys, and that to the channel of this server.
 *
 * A waiter joins the key's channel on all nodes; protocol/hearing.h tells when it asks again.
 *
 * Used by the broker only.  A successor begins anew.
 */
#ifndef REDLOCK_SUBSCRIPTION_H
#define REDLOCK_SUBSCRIPTION_H

#include "broker/node.h"
#include "shared/lease.h"

extern void subscription_init(Driver *driver);

/* The lease joins the channel of its key, or leaves it: see hears of DriverEntry. */
extern void subscription_begin(Lease *lease);
extern void subscription_end(Lease *lease);

/* The node can be asked: what it tells this server is heard from now on. */
extern void subscription_open(int node, int64 now_us);

/* A subscriber joined a channel.  Returns the lease whose key it is, or NULL. */
extern Lease *subscription_joined(const RedisNode *node, const char *channel, size_t len);

/* A node tells that this permit was released.  Returns the queue, if it is held, when enough have.
 */
extern Lease *subscription_told_permit(const RedisNode *node, const char *channel, size_t len,
									   int permit);

/* Is it the channel of this server? */
extern bool subscription_is_own(const char *channel, size_t len);

/* Send a message to a host, by some node: what is lost is said again, by another. */
extern void subscription_say(uint64 host, const char *text, size_t len, int64 now_us);

/*
 * ... to the hosts that share the lock of a request, by a node that has refused it; or some, if
 * they are very many.
 */
extern void subscription_say_to_readers(const Lease *lease, const char *text, size_t len,
										int64 now_us);

/* The lease with this key, or NULL. */
extern Lease *subscription_lease(const char *key, size_t len);

/* A subscriber came, or went: the driver is told which leases have left a channel. */
extern void subscription_on_change(RedisNode *node, int64 now_us);

/* The node is left, or is connected to again, and then subscription_open follows. */
extern void subscription_close(int node, int64 now_us);

#endif /* REDLOCK_SUBSCRIPTION_H */
