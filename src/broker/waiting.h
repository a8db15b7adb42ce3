/*
 * waiting.h
 *		The hosts that wait for a lock: asks them for a session, and answers for this host.
 *
 * protocol/waiting_hosts.h has the messages, and the reason for an answer by each node.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_WAITING_H
#define REDLOCK_WAITING_H

#include "broker/node.h"

/* Values of node_call of this file are at least this; the inspector's are less. */
#define WAITING_CALLS (1 << 26)

/* Takes the question of a session, at this place of the queue of questions. */
extern void waiting_ask(int place, int64 now_us);

/* Ends questions whose time is over.  looked_us: see node_on_time.  Returns when to call again. */
extern int64 waiting_on_time(int64 looked_us);

/* A node tells how many subscribers got the question; reply NULL: it never will. */
extern void waiting_hear_node(const RedisNode *node, int call, const redisReply *reply);

/* A host has answered by this subscriber. */
extern void waiting_hear_host(const RedisNode *subscriber, uint64 number, const WaitingHost *host);

/* A host asks by this subscriber: answers, if not too often. */
extern void waiting_answer(const RedisNode *subscriber, const WaitingQuestion *question,
						   int64 now_us);

#endif /* REDLOCK_WAITING_H */
