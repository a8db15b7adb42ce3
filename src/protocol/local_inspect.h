/*
 * local_inspect.h
 *		A node without Redis: looking at a lock, and forced releases.
 *
 * This is inspect.lua and force_release.lua in C, without the messages, for the data of
 * local_node.h.  It serves the same three purposes.  A change of a script changes this file, too.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_LOCAL_INSPECT_H
#define REDLOCK_LOCAL_INSPECT_H

#include "protocol/inspection.h"
#include "protocol/local_node.h"

/* The key to look at, and the order of an administrator to release the lock by force. */
typedef struct local_order
{
	const char *held; /* the text of the key, if there is a key; at most LUA_HELD_MAX bytes count */
	bool held_is_text; /* the key is a string */

	/* the data of a permit of this lock; NULL: there is no such key */
	bool of_permit; /* the key is of a permit, which has no permits */
	const local_data *(*find_permit)(const void *names, int permit);
	const void *names;

	/* of a forced release */
	int64_t least;     /* the least new counter */
	const char *value; /* the value to be deleted */
	int value_len;     /* 0: any */
} local_order;

/*
 * Fill in the answer, except for the marker.  The numbers of hosts are those of local_data.
 * local_force returns true if the script publishes the release of the key.
 */
extern void local_look(local_data *data, int64_t now_us, const local_order *order, Inspected *at);
extern bool local_force(local_data *data, int64_t now_us, const local_order *order, Inspected *at);

#endif /* REDLOCK_LOCAL_INSPECT_H */
