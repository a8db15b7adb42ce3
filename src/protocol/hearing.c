/*
 * hearing.c
 *		The releases that a request has heard of; see hearing.h.
 */
#include "protocol/hearing.h"

bool
hearing_subscribed(Hearing *hearing, const core_lease *lease, int node)
{
	bool before = core_has_quorum(lease->lists, hearing->subscribed);

	hearing->subscribed |= CORE_BIT(node);
	hearing->late |= CORE_BIT(node);
	return !before && core_has_quorum(lease->lists, hearing->subscribed);
}

void
hearing_left(Hearing *hearing, int node)
{
	hearing->subscribed &= ~CORE_BIT(node);
	hearing->late &= ~CORE_BIT(node);
}

bool
hearing_told(Hearing *hearing, const core_lease *lease, int node, int64_t token)
{
	core_mask before;

	if (token > 0 && (token < hearing->ended || token == hearing->over))
		return false;
	if (token > hearing->ended || (token == 0 && (hearing->told & CORE_BIT(node))))
		hearing->told = 0;
	if (token > 0)
		hearing->ended = token;
	before = hearing->told;
	hearing->told |= CORE_BIT(node);
	if (core_has_quorum(lease->lists, before) || !core_has_quorum(lease->lists, hearing->told))
		return false;
	hearing->over = hearing->ended;
	return true;
}

/* A forged token hides true releases at most until this call. */
void
hearing_asked(Hearing *hearing)
{
	hearing->late = hearing->told = 0;
	hearing->ended = 0;
}

bool
hearing_may_miss(const Hearing *hearing, const core_lease *lease)
{
	core_mask free = hearing->told | hearing->late | core_votes(lease, CORE_VOTE_YES);

	return lease->state == CORE_BUSY && core_votes(lease, CORE_VOTE_NO) != 0 &&
		   (hearing->told | hearing->late) != 0 && core_has_quorum(lease->lists, free) &&
		   !core_has_quorum(lease->lists, hearing->told);
}
