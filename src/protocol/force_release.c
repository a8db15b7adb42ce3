/*
 * force_release.c
 *		Forced releases; see force_release.h.
 */
#include "protocol/force_release.h"

#include "protocol/value.h"

static core_mask nodes_up_to(const Inspected *node, core_mask among, int64_t most_before,
							 bool raised);

int64_t
force_first_least(core_lists lists, const Inspected *node, int64_t wall_clock_us)
{
	core_mask members = lists.now | lists.next;
	int64_t most = 0;
	bool ours = false;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		Value value;

		if (!(members & CORE_BIT(i)))
			continue;
		if (node[i].counter > most)
			most = node[i].counter;
		value_read(&value, node[i].value, node[i].value_len);
		ours = ours || (node[i].kind == INSPECTED_STRING && value.ours);
	}
	if (most > 0)
		return most + 1;
	return ours ? wall_clock_us : 0;
}

/*
 * A node with possible loss of data does not count: the bound may be lost, too.  A node with
 * another request's key counts: the node refuses the former holder while the key is there, and a
 * grant has raised the counter.
 */
ForceVerdict
force_judge(core_lists lists, const Inspected *node, int64_t *least)
{
	core_mask forced = 0;
	core_mask refusing = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!((lists.now | lists.next) & CORE_BIT(i)) || node[i].kind <= INSPECTED_ERROR ||
			node[i].may_have_forgotten)
			continue;
		*(node[i].forced ? &forced : &refusing) |= CORE_BIT(i);
	}
	if (!core_has_quorum(lists, forced | refusing))
		return FORCE_FAILED;
	if (core_has_quorum(lists, refusing))
		return FORCE_DONE;
	*least = INT64_MAX;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int64_t most_before = node[i].counter;

		if (!(forced & CORE_BIT(i)))
			continue;
		if (core_has_quorum(lists, refusing | nodes_up_to(node, forced, most_before, true)))
			return FORCE_DONE;
		if (core_has_quorum(lists, refusing | nodes_up_to(node, forced, most_before, false)) &&
			*least > most_before)
			*least = most_before + 1;
	}
	return FORCE_AGAIN;
}

/*
 * Returns the nodes of `among` whose former counter was at most `most_before`.  raised: only those
 * whose counter is now above; without any former counter nothing is to be raised.
 */
static core_mask
nodes_up_to(const Inspected *node, core_mask among, int64_t most_before, bool raised)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((among & CORE_BIT(i)) && node[i].counter <= most_before &&
			(!raised || most_before == 0 || node[i].after > most_before))
			nodes |= CORE_BIT(i);
	return nodes;
}
