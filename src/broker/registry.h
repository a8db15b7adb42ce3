/*
 * registry.h
 *		The registry of hosts, which each node keeps (hosts.lua): this host's entry, and the
 *		entries of other hosts.
 *
 * Every 10 s (BEAT_US), in a conflict every 3 s, and soon after a change, the broker sends a beat.
 * This host writes its entry at each node, and the node answers with the other configurations in
 * use under this key prefix.  There is a configuration conflict if another configuration would let
 * both hosts get one lock.  A conflict is told when it has lasted for some seconds, in the log and
 * in shared memory (see redlock.on_disagreement): a change of the list on all hosts, or a node's
 * restart, causes passing conflicts.
 *
 * The whole list is read when a session asks for it (host_list.h).
 *
 * registry.c sends beats, reads answers, and calls the other parts: host_entry (this host's
 * entry), told (answers of nodes, and votes), conflicts, marks, leaving (the veto on leaving a
 * list) and host_pages (the whole list).  No part calls back.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_REGISTRY_H
#define REDLOCK_REGISTRY_H

/* registry_configured, registry_may_ask, registry_is_stopped */
#include "broker/conflicts.h"

/* registry_may_leave, registry_stay */
#include "broker/leaving.h"

#include "broker/node.h"

extern void registry_init(void);

/*
 * To be called when a node's state or this host's settings have changed.  tell: a beat follows
 * soon, because other hosts must learn of the change.
 */
extern void registry_changed(bool tell);

/* Returns the nodes that have told of other hosts lately.  No other node may vote. */
extern core_mask registry_told(void);

/* Sends due beats and pages.  Returns the time of the next call. */
extern int64 registry_on_time(int64 now_us);

/* NodeHandler.called */
extern void registry_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us);

/*
 * The server stops: removes this host from the nodes' lists.  Returns true if nothing is left to
 * do, false if the removal was just sent.
 */
extern bool registry_leave(int64 now_us);

#endif /* REDLOCK_REGISTRY_H */
