/*
 * overlap.c
 *		Whether the node lists of two hosts keep the hosts' locks apart.  Pure.
 *
 * Two locks can be granted at once if the nodes can be dealt out so that each host has a quorum.
 * A node that votes for only one host belongs to this host.  The common nodes are dealt out in
 * every way.  Common nodes in the same lists are alike, so only their number for each host
 * matters.  With one list for each host, the number of ways is the number of common nodes plus
 * one.  Comparing lists in pairs would not suffice: a joint quorum may meet a quorum of the
 * second host, even if neither of its lists alone does.
 */
#include "protocol/overlap.h"

#define KINDS 16 /* kinds of nodes: in which of the four lists the node is */

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
		/* the next way: one more of this kind, and none of the kinds before */
		while (kind < KINDS && some_of(of_kind(common, one, other, kind), dealt[kind] + 1) ==
								   some_of(of_kind(common, one, other, kind), dealt[kind]))
			dealt[kind++] = 0;
		if (kind == KINDS)
			return true;
		dealt[kind]++;
	}
}

/*
 * The nodes in exactly these lists.  Bits of kind: `one.now`, `one.next`, `other.now`,
 * `other.next`.
 */
static core_mask
of_kind(core_mask nodes, core_lists one, core_lists other, int kind)
{
	nodes &= kind & 1 ? one.now : ~one.now;
	nodes &= kind & 2 ? one.next : ~one.next;
	nodes &= kind & 4 ? other.now : ~other.now;
	nodes &= kind & 8 ? other.next : ~other.next;
	return nodes;
}

/* The given number of nodes, or all nodes if there are fewer. */
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
