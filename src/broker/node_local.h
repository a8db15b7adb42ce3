/*
 * node_local.h
 *		The node inside the server, for redlock.nodes = 'local': no Redis, and locks that do not
 *		reach beyond this server.
 *
 * protocol/local_node.h executes the node's commands, protocol/local_names.h keeps the node's
 *memory. For all other files this node is like any node.  node_send executes a command at once, and
 *keeps the answer.  node_flush, later in the same pass of the broker's loop, gives the answers to
 *the NodeHandler, so no step of a lease runs within another.  The messages that Redis would publish
 * wait in a queue, and reach the NodeHandler by the node's subscriber, which has no connection
 * either.
 *
 * Why there is one holder
 * -----------------------
 *
 * The node's memory is a segment of dynamic shared memory.  It is pinned, so it outlives brokers.
 * A broker that restarts is to the node a broken connection, and no more: keys, counters and the
 * keys of hold_at_least are there, so a lease that the next broker adopts is renewed, and refuses
 * all other requests, as before.  No quarantine is needed, and none begins: the node counts as
 * durable.  A broker that dies of a signal takes the whole shared memory with it, as any process of
 * the server does; then the next case applies.
 *
 * When the server ends, the memory is lost, and with it all leases: their sessions are gone, the
 * server does not start while one of its processes lives, and nobody but this server's sessions can
 * hold a lock of this node.  So a new, empty node may vote at once.  Detached leases and the keys
 *of hold_at_least are lost with the memory.  Tokens go on in order, because the node's clock begins
 *as the wall clock; see local_now_us in node_local.c.
 *
 * If a broker cannot attach the memory, it makes another one, which has another marker.  Then the
 * restart guard begins a quarantine (protocol/guard.h), as for any node that lost its data: held
 * leases are renewed and so create their keys again, and no new lease is granted before all
 * forgotten leases have ended.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_NODE_LOCAL_H
#define REDLOCK_NODE_LOCAL_H

#include <stddef.h>

/* Sends a message to this server's own broker, as a node publishes it on a channel. */
extern void node_local_publish(const char *channel, size_t channel_len, const char *text,
							   size_t len);

#endif /* REDLOCK_NODE_LOCAL_H */
