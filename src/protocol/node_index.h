/*
 * indexes.h
 *		Which index each listed node has, and when one that is listed no more is left.
 *
 * A node keeps its index as long as it is listed: leases know it by that.  One that is
 * listed no more votes on no new lease, but serves those that it granted until they have
 * ended.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_NODE_INDEX_H
#define REDLOCK_NODE_INDEX_H

#include <stdbool.h>

#include "protocol/core.h"

/* Sets of indexes. */
typedef struct NodeIndexUse
{
	core_mask taken;     /* a node is there */
	core_mask leased;    /* core_served_by of all leases */
	core_mask in_flight; /* a command is unanswered: the undoing of a round must arrive */
} NodeIndexUse;

/*
 * Find an index, of so many, for each node of a new list.  index[]: where a node is already,
 * or -1; then its index.  listed: the indexes of all.  False: there are too few, while nodes
 * that are listed no more serve leases; nothing is to be changed.
 */
extern bool node_index_assign(NodeIndexUse use, int indexes, int *index, int nodes,
							  core_mask *listed);

/* The nodes that are not listed, and serve nobody any more. */
extern core_mask node_index_to_leave(NodeIndexUse use, core_mask listed);

#endif /* REDLOCK_NODE_INDEX_H */
