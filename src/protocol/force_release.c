/*
 * force_release.c
 *		Forced releases; see force_release.h.
 */
#include "protocol/force_release.h"

#include <string.h>

#include "protocol/value.h"

static ForceVerdict judge(ForceRelease *force, core_lists lists, const Inspected *node);
static core_mask nodes_up_to(const Inspected *node, core_mask among, int64_t most_before,
							 bool raised);

void
force_begin(ForceRelease *force, core_lists lists, const Inspected *node, int64_t wall_clock_us)
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
	memset(force, 0, sizeof(*force));
	force->round = 1;
	force->least = most > 0 ? most + 1 : ours ? wall_clock_us : 0;
}

/* Later rounds delete the former holder's key only: a later holder may have come. */
ForceVerdict
force_judge(ForceRelease *force, core_lists lists, const Inspected *node)
{
	ForceVerdict verdict = judge(force, lists, node);
	Inspection before;

	if (verdict != FORCE_AGAIN)
		return verdict;
	inspection_judge(&before, lists, node);
	if (force->round == 1 && before.witness >= 0 && node[before.witness].kind == INSPECTED_STRING)
	{
		force->value_len = node[before.witness].value_len;
		memcpy(force->value, node[before.witness].value, (size_t) force->value_len);
	}
	if (force->value_len == 0)
		force->value[force->value_len++] = '-'; /* equals no value of ours */
	return ++force->round <= FORCE_ROUNDS_MAX ? FORCE_AGAIN : FORCE_FAILED;
}

/*
 * A node with possible loss of data does not count: the bound may be lost, too.  A node with
 * another request's key counts: the node refuses the former holder while the key is there, and a
 * grant has raised the counter.
 */
static ForceVerdict
judge(ForceRelease *force, core_lists lists, const Inspected *node)
{
	core_mask forced = 0;
	core_mask refusing = 0;
	int64_t least = INT64_MAX; /* largest counter that a majority has now, if no node lies */

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
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int64_t most_before = node[i].counter;
		int64_t now = most_before + 1 > force->least ? most_before + 1 : force->least;

		if (!(forced & CORE_BIT(i)))
			continue;
		if (core_has_quorum(lists, refusing | nodes_up_to(node, forced, most_before, true)))
			return FORCE_DONE;
		if (core_has_quorum(lists, refusing | nodes_up_to(node, forced, most_before, false)) &&
			least > now)
			least = now;
	}
	force->least = least + 1;
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
