/*
 * members.h
 *		Puts redlock.nodes and redlock.nodes_next into force, index by index.
 *
 * A node keeps its index while either list names the node.  A node that both lists lack does not
 * vote on new leases.  Such a node stays connected until the leases on which the node voted have
 * ended, and all commands to the node are answered.
 *
 * Used by the broker only.  This file writes NodeStatus, opens and closes connections, and looks
 * at leases to see which nodes serve them.  No lease takes a step here.
 */
#ifndef REDLOCK_MEMBERS_H
#define REDLOCK_MEMBERS_H

#include "protocol/core.h"

/* The lists in force: new leases ask their nodes.  members: the nodes of both lists. */
extern core_lists members_lists(void);
extern core_mask members(void);

/* Returns the round trip to the median of the nodes in force. */
extern int64 members_round_trip_us(void);

/*
 * Opens the nodes of an earlier broker, listed or not: leases may live on them, and new nodes may
 * have to wait for an index.  After a start of the server: the nodes of the two lists in force
 * before, if there were two.
 */
extern void members_adopt(int64 now_us);

/*
 * Puts both lists into force.  The caller then moves the leases, and calls members_close_left.
 *
 * Returns false, and keeps the former lists, in five cases.  The lists name too many nodes
 * together.  The lists name the local node and another node.  Too many removed nodes still serve
 * leases (tried again at members_due_us).  may_leave forbids to leave one of two lists (tried
 * again).  Two lists are in force, and the new lists are neither the same two nor one of the two.
 *
 * `stay` is called when the requested step changes.
 */
extern bool members_configure(int64 now_us,
							  bool (*may_leave)(core_lists to, bool back, int64 since_us,
												int64 now_us),
							  void (*stay)(void));
extern void members_close_left(int64 now_us);

/*
 * The settings redlock.tls_* have changed: all nodes with TLS are connected again.
 *
 * Nodes on duty with new URLs or TLS settings are connected again one by one, while the others
 * serve leases.  members_reopen_next connects the next node; the broker calls it in each pass.
 * told: the nodes that have told of other hosts.
 */
extern void members_tls_changed(void);
extern void members_reopen_next(core_mask told, int64 now_us);

/* When to call members_configure again; PG_INT64_MAX: nothing is left to do. */
extern int64 members_due_us(void);

/* Probed once: is each node connected, or has its first attempt failed? */
extern bool members_probed_once(void);

#endif /* REDLOCK_MEMBERS_H */
