/*
 * host_pages.h
 *		The whole list of hosts, read from the nodes page by page when a session asks for it
 *		(shared/host_list.h).
 *
 * Used by the registry only.
 */
#ifndef REDLOCK_HOST_PAGES_H
#define REDLOCK_HOST_PAGES_H

#include "broker/node.h"

/*
 * Begins to read when a session has asked, if it may, and drops a list that sessions were told of
 * long ago.  Returns when a list is to be dropped.
 */
extern int64 host_pages_on_time(bool may_read, int64 now_us);

extern void hear_page(RedisNode *node, const redisReply *reply, int64 now_us);

#endif /* REDLOCK_HOST_PAGES_H */
