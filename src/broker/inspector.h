/*
 * inspector.h
 *		Questions of sessions about locks and jobs, lists of keys, asks, forced releases, and
 *		notes of last runs.
 *
 * A question is one command to each node in force, a list asks a single node.  No question
 * acquires a lock; a forced release deletes keys.  After an ask or a forced release, the broker
 * tells the holders' hosts.  The broker takes questions after the work for leases.
 */
#ifndef REDLOCK_INSPECTOR_H
#define REDLOCK_INSPECTOR_H

#include "broker/node.h"

/* Values of node_call of this file are at least this; the registry's are less. */
#define INSPECTOR_CALLS 1024

extern void inspector_init(void);

/*
 * Takes questions, if may_take, and ends those whose time is over.  looked_us: see node_on_time.
 * Returns when to call again.
 */
extern int64 inspector_on_time(bool may_take, int64 now_us, int64 looked_us);

/* A node has answered; reply NULL: it never will. */
extern void inspector_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us);

#endif /* REDLOCK_INSPECTOR_H */
