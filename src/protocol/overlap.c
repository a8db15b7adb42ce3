/*
 * overlap.c
 *		Do the node lists of two hosts keep their locks apart?  Pure.
 *
 * Two locks can be granted at once if the nodes can be dealt out so that each host has a
 * quorum.  A node that only one of them has is that one's; the common ones are dealt out in
 * each way.  To compare the lists in pairs would not be enough: a joint quorum may meet
 * one of the other host's, though no list of it would alone.
 */
#include "protocol/overlap.h"

bool
quorums_meet(core_lists one, core_lists other)
{
	core_mask ones = one.now | one.next;
	core_mask others = other.now | other.next;
	core_mask common = ones & others;
	core_mask dealt = common;

	for (;;)
	{
		if (core_has_quorum(one, (ones & ~common) | dealt) &&
			core_has_quorum(other, others & ~dealt))
			return false;
		if (dealt == 0)
			return true;
		dealt = (dealt - 1) & common;
	}
}
