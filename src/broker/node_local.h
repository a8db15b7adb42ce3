/*
 * node_local.h
 *		The node inside the server, for redlock.nodes = 'local': no Redis, and locks that do not
 *		reach beyond this server.
 *
 * protocol/local_node.h executes the node's commands, protocol/local_names.h keeps the node's
 * memory.  To all other files this node looks like a Redis node.  node_send executes a command at
 * once, and keeps the answer.  node_flush, later in the same pass of the broker's loop, gives the
 * answers to the NodeHandler, so no step of a lease runs within another step.  Messages that Redis
 * would publish wait in a queue; the node's subscriber, also without a connection, brings the
 * messages to the NodeHandler.
 *
 * Why there is one holder
 * -----------------------
 *
 * The node's memory is a pinned segment of dynamic shared memory, which outlives brokers.  To the
 * node a restart of the broker is a broken connection: keys, counters and the keys of hold_at_least
 * stay, so the next broker adopts and renews each lease, and the lease refuses all other requests,
 * as before.  No quarantine begins: the node counts as durable.  If a signal kills the broker, the
 * postmaster resets the whole shared memory; then the next case applies.
 *
 * When the server ends, the memory is lost with all leases.  Their sessions have ended: a server
 * does not start while a process of the former server lives, and only this server's sessions can
 * hold a lock of this node.  So a new, empty node may vote at once.  Detached leases and the keys
 * of hold_at_least are lost with the memory.  Tokens go on in order, because the node's clock
 * begins as the wall clock; see node_local_now_us.
 *
 * A broker that cannot attach the memory makes new memory, with a new marker.  Then the restart
 * guard begins a quarantine (protocol/guard.h), as after a loss of data: renewals of held leases
 * create the keys again, and no new lease is granted before all forgotten leases have ended.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_NODE_LOCAL_H
#define REDLOCK_NODE_LOCAL_H

#include <stddef.h>

#include "protocol/local_names.h"
#include "protocol/local_notes.h"
#include "shared/inspect_queue.h"

/* Sends a message to this server's own broker, as a node publishes it on a channel. */
extern void node_local_publish(const char *channel, size_t channel_len, const char *text,
							   size_t len);

/*
 * node_local_inspect.c: answers a question of a session at once, as the node at this index.  The
 * caller sets may_have_forgotten.
 */
extern void node_local_inspect(const InspectQuestion *question, InspectAnswer *answer,
							   InspectList *texts, int index);

/* For node_local_inspect.c, of a node that has begun. */
extern local_names *node_local_names(void);
extern local_notes *node_local_notes(void);
extern int64 node_local_now_us(void);
extern void node_local_marker(char *text, size_t size);

/* Finds a permit of the lock: local_command.find_permit and local_order.find_permit. */
typedef struct NodeLocalPermits
{
	const char *key; /* of the lock */
	size_t key_len;
	int64 now_us;
} NodeLocalPermits;

extern const local_data *node_local_find_permit(const void *permits, int permit);

#endif /* REDLOCK_NODE_LOCAL_H */
