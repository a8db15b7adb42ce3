/*
 * registry.h
 *		This host in the lists of hosts that the nodes keep (hosts.lua), and what these
 *		lists tell.
 *
 * Every few seconds, and soon after something has changed, the host writes itself into the
 * list of each node, and is told which other configurations are in use with its prefix.
 * One by which both hosts could get one lock is a dispute, if it is there some seconds later,
 * too: who changes its list on all hosts, or restarts a node, should not be told of each
 * moment between.  The log tells, and shared memory: see redlock.on_disagreement.
 *
 * The whole list is read when a session asks for it (host_list.h).
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_REGISTRY_H
#define REDLOCK_REGISTRY_H

#include "broker/node.h"

extern void registry_init(void);

/* Something that other hosts should know has changed. */
extern void registry_changed(void);

/* Settings or lists of nodes may have changed: to be called before anything is asked by them. */
extern void registry_configured(int64 now_us);

/* May new locks be asked of the nodes?  Is it known that they may not? */
extern bool registry_may_ask(int64 now_us);
extern bool registry_is_stopped(void);

/* Nodes that have told of other hosts lately enough.  Other nodes must not vote. */
extern core_mask registry_told(void);

/*
 * May this host have these lists, and leave the one that they lack?  Not while there is a
 * host that only that one keeps apart from it.  It announces the step, and marks the nodes; so it
 * is to be called again until it says yes, and what it allows is to be done at once.  back: to
 * redlock.nodes as it was, as one does when the nodes of redlock.nodes_next are no good: where most
 * of them are away they need not answer.
 */
extern bool registry_may_leave(core_lists to, bool back, int64 since_us, int64 now_us);

/* No such step is wanted any more. */
extern void registry_stay(void);

/* Sends what is due; returns when to be called again. */
extern int64 registry_on_time(int64 now_us);

/* NodeHandler.called */
extern void registry_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us);

/* The server stops: leave the lists.  True: that was done before, or there is none to leave. */
extern bool registry_leave(int64 now_us);

#endif /* REDLOCK_REGISTRY_H */
