/*
 * node_news.h
 *		News of a node for people: in the view redlock_nodes and in the log.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_NODE_NEWS_H
#define REDLOCK_NODE_NEWS_H

#include "broker/node.h"

/* The state of a node, or its last error, has changed; before: the former state. */
extern void node_news_of_state(RedisNode *node, NodeState before);

/* The node told of its memory.  The log tells once when little is left, and once when there is
 * room again. */
extern void node_news_of_memory(RedisNode *node);

/* The handshake is over: is the node as durable as redlock.nodes says?  Warns once. */
extern void node_news_of_praise(RedisNode *node);

#endif /* REDLOCK_NODE_NEWS_H */
