/*
 * overlap.c
 *		Do the node lists of two hosts keep their locks apart?  Pure.
 *
 * Two locks can be granted at once if the nodes can be dealt out so that each host has a
 * quorum.  A node that votes for only one of them is that one's; the common ones are dealt out
 * in each way.  Those that are in the same lists are alike, so only how many of them a host gets
 * counts: with one list each there are as many ways as common nodes, and one.  To compare
 * the lists in pairs would not be enough: a joint quorum may meet one of the other host's,
 * though no list of it would alone.
 */
#include "protocol/overlap.h"

#define KINDS 16 /* of nodes: in which of the four lists */

static core_mask of_kind(core_mask nodes, core_lists one, core_lists other, int kind);
static core_mask some_of(core_mask nodes, int count);

bool
quorums_meet(core_lists one, core_mask ones_voters, core_lists other, core_mask others_voters)
{
	core_mask ones = (one.now | one.next) & ones_voters;
	core_mask others = (other.now | other.next) & others_voters;
	core_mask common = ones & others;
	int dealt[KINDS] = {0};

	for (;;)
	{
		core_mask mine = 0;
		int kind = 0;

		for (int i = 0; i < KINDS; i++)
			mine |= some_of(of_kind(common, one, other, i), dealt[i]);
		if (core_has_quorum(one, (ones & ~common) | mine) && core_has_quorum(other, others & ~mine))
			return false;
		/* the next way: one more of a kind, none of those before */
		while (kind < KINDS && some_of(of_kind(common, one, other, kind), dealt[kind] + 1) ==
								   some_of(of_kind(common, one, other, kind), dealt[kind]))
			dealt[kind++] = 0;
		if (kind == KINDS)
			return true;
		dealt[kind]++;
	}
}

/* Those of the nodes that are in these lists: one.now, one.next, other.now, other.next by bits. */
static core_mask
of_kind(core_mask nodes, core_lists one, core_lists other, int kind)
{
	nodes &= kind & 1 ? one.now : ~one.now;
	nodes &= kind & 2 ? one.next : ~one.next;
	nodes &= kind & 4 ? other.now : ~other.now;
	nodes &= kind & 8 ? other.next : ~other.next;
	return nodes;
}

/* So many of them, or all. */
static core_mask
some_of(core_mask nodes, int count)
{
	core_mask some = 0;

	for (; count > 0 && nodes != 0; count--)
	{
		some |= nodes & -nodes;
		nodes &= nodes - 1;
	}
	return some;
}
