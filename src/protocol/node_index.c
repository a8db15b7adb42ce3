/*
 * node_index.c
 *		The indexes of nodes; see node_index.h.
 */
#include "protocol/node_index.h"

static int first_of(core_mask indexes);

/* Takes empty indexes first, then indexes of nodes that may leave. */
bool
node_index_assign(NodeIndexUse use, int indexes, int *index, int nodes, core_mask *listed)
{
	core_mask all = indexes < 32 ? CORE_BIT(indexes) - 1 : ~(core_mask) 0;
	core_mask wanted = 0;

	for (int i = 0; i < nodes; i++)
		if (index[i] >= 0)
			wanted |= CORE_BIT(index[i]);
	for (int i = 0; i < nodes; i++)
	{
		core_mask empty = all & ~use.taken & ~wanted;
		core_mask left = node_index_to_leave(use, wanted);

		if (index[i] >= 0)
			continue;
		if ((empty | left) == 0)
			return false;
		index[i] = first_of(empty != 0 ? empty : left);
		wanted |= CORE_BIT(index[i]);
	}
	*listed = wanted;
	return true;
}

core_mask
node_index_to_leave(NodeIndexUse use, core_mask listed)
{
	return use.taken & ~listed & ~use.leased & ~use.in_flight;
}

static int
first_of(core_mask indexes)
{
	int index = 0;

	while ((indexes & CORE_BIT(index)) == 0)
		index++;
	return index;
}
