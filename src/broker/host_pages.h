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
 * Begins to read the list when a session has asked and may_read allows it; drops a list that was
 * answered long ago.  Returns when to call again to drop a list.
 */
extern int64 host_pages_on_time(bool may_read, int64 now_us);

extern void hear_page(RedisNode *node, const redisReply *reply, int64 now_us);

#endif /* REDLOCK_HOST_PAGES_H */
