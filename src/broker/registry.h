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
 * registry.c sends and hears beats, and calls the other parts: host_entry (what this host writes),
 * told (what nodes told, and votes), disputes, marks, leaving (the veto on leaving a list) and
 * host_pages (the whole list).  None of them calls back.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_REGISTRY_H
#define REDLOCK_REGISTRY_H

/* registry_configured, registry_may_ask, registry_is_stopped */
#include "broker/disputes.h"

/* registry_may_leave, registry_stay */
#include "broker/leaving.h"

#include "broker/node.h"

extern void registry_init(void);

/* Something that other hosts should know has changed. */
extern void registry_changed(void);

/* Nodes that have told of other hosts lately enough.  Other nodes must not vote. */
extern core_mask registry_told(void);

/* Sends what is due; returns when to be called again. */
extern int64 registry_on_time(int64 now_us);

/* NodeHandler.called */
extern void registry_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us);

/* The server stops: leave the lists.  True: that was done before, or there is none to leave. */
extern bool registry_leave(int64 now_us);

#endif /* REDLOCK_REGISTRY_H */
