/*
 * force_release.c
 *		Forced releases; see force_release.h.
 */
#include "protocol/force_release.h"

#include "protocol/value.h"

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
 * A node that may have forgotten does not count: it may have forgotten the bound, too.  A node
 * with another request's key counts: it refuses the former holder while the key is there, and a
 * grant has raised its counter.
 */
ForceVerdict
force_judge(core_lists lists, const Inspected *node, int64_t *least)
{
	core_mask members = lists.now | lists.next;
	core_mask done = 0;
	int64_t most_before = 0;
	int64_t least_after = INT64_MAX;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members & CORE_BIT(i)) || node[i].kind <= INSPECTED_ERROR ||
			node[i].may_have_forgotten)
			continue;
		done |= CORE_BIT(i);
		if (!node[i].forced)
			continue;
		if (node[i].counter > most_before)
			most_before = node[i].counter;
		if (node[i].after < least_after)
			least_after = node[i].after;
	}
	if (!core_has_quorum(lists, done))
		return FORCE_FAILED;
	if (least_after > most_before || most_before == 0)
		return FORCE_DONE;
	*least = most_before + 1;
	return FORCE_AGAIN;
}
