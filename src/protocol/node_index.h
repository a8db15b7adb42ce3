/*
 * node_index.h
 *		The index of each listed node, and when a formerly listed node leaves.
 *
 * A listed node keeps its index, because leases refer to the node by the index.  A node that is
 * no longer listed does not vote on new leases.  It serves its granted leases until they end.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_NODE_INDEX_H
#define REDLOCK_NODE_INDEX_H

#include <stdbool.h>

#include "protocol/core.h"

/* sets of indexes */
typedef struct NodeIndexUse
{
	core_mask taken;     /* the index has a node */
	core_mask leased;    /* union of core_served_by of all leases */
	core_mask in_flight; /* a command is unanswered: the undoing of a round must arrive */
} NodeIndexUse;

/*
 * Finds an index below `indexes` for each node of a new list. index[]: the node's present index,
 * or -1; then its index.  listed: set to all these indexes.  Returns false if there are too few
 * indexes, because nodes that are no longer listed still serve leases; then the caller changes
 * nothing.
 */
extern bool node_index_assign(NodeIndexUse use, int indexes, int *index, int nodes,
							  core_mask *listed);

/* the nodes that are not listed and serve no lease any more */
extern core_mask node_index_to_leave(NodeIndexUse use, core_mask listed);

#endif /* REDLOCK_NODE_INDEX_H */
