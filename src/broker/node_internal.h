/*
 * node_internal.h
 *		What the files node.c and node_*.c share among themselves.  No other file includes
 *		this header: lint checks that.
 */
#ifndef REDLOCK_NODE_INTERNAL_H
#define REDLOCK_NODE_INTERNAL_H

#include "broker/node.h"
#include "shared/guc.h"

#define MAX_TTL_US ((int64) redlock_max_ttl_ms * 1000)

/* node.c: the functions of the broker that are told what happened */
extern const NodeHandler *node_handler;

/* node.c: also tells the handler.  An error of NULL leaves the last error in place. */
extern void node_set_state(RedisNode *node, NodeState state, const char *error);

/*
 * node.c: close the connection, and tell the handler of each command in flight.  Afterwards
 * node->connection is NULL, and the node tries again at node->retry_at_us.
 */
extern void node_fail(RedisNode *node, NodeState state, const char *error, int64 now_us);
extern void node_fail_io(RedisNode *node, const char *doing, int64 now_us);

/* node.c: the handshake is over, and the node is fit.  The node becomes READY or QUARANTINED. */
extern void node_begin_duty(RedisNode *node, int64 now_us);

/* node.c: has the node not answered at all, on a connection without TLS? */
extern bool node_is_unanswered(const RedisNode *node);

/*
 * node_checks.c: node_read_memory reads the reply of INFO memory, node_read_stats of INFO stats;
 * node_describe writes why the guard distrusts the node, into guard->reason.
 */
extern void node_begin_handshake(RedisNode *node, int64 now_us);
extern void node_on_handshake(RedisNode *node, const redisReply *reply, int64 now_us);
extern void node_read_memory(RedisNode *node, const redisReply *reply);
extern void node_read_stats(RedisNode *node, const redisReply *reply);
extern void node_describe(RedisNode *node, GuardVerdict verdict);

/* node_checks.c: asks the guard about node->facts, and writes the reason into guard->reason */
extern void node_ask_guard(RedisNode *node);

/* node_local.c: what node.c and node_pipeline.c do for a local node */
extern void node_local_begin(RedisNode *node, int64 now_us);
extern void node_local_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent);
extern void node_local_subscribe(RedisNode *node, const char *channel, size_t len);
extern bool node_local_flush(RedisNode *node, int64 now_us);

/* node_pipeline.c */
extern void node_limit_replies(redisReader *reader);
extern void node_read_replies(RedisNode *node, int64 now_us);

/* node_pipeline.c: add to what node_flush writes; an error if memory is short */
extern void node_append(RedisNode *node, int argc, const char **argv, const size_t *argvlen);
extern void node_send_alone(RedisNode *node, const InFlight *sent, int argc, const char **argv,
							const size_t *argvlen);

#endif /* REDLOCK_NODE_INTERNAL_H */
