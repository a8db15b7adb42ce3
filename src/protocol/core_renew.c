/*
 * core_renew.c
 *		How a lease stays valid: renewals, the bound of tokens, the limit of the holder, other lists
 *		of nodes; see core.h.
 */
#include "protocol/core_internal.h"

#include <assert.h>

/*
 * So far above the counter that a node told is the bound raised.  Those who wait ask
 * on, and count up to the time by their clocks; they must not outrun a bound that
 * is raised after RENEW_AGAIN_US at the latest, and takes two exchanges.
 */
#define RAISE_AHEAD_US(ttl_us) ((ttl_us) / 4)

static int64_t bound_wanted(const core_lease *lease, const core_event *event);
static void raise_bound(core_lease *lease, const core_event *event);
static core_lists renewing_lists(const core_lease *lease);

void
core_begin_renew(core_lease *lease, const core_event *event, core_out *out)
{
	assert(lease->state == CORE_HELD && !lease->renewing);

	lease->round++;
	lease->renewing = true;
	lease->confirming = 0;
	lease->raise = bound_wanted(lease, event);
	lease->round_began_us = event->now_us;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(lease->members & CORE_BIT(i)))
			continue;
		if (event->can_send & CORE_BIT(i))
			core_renew_at(lease, i, out);
		else
			lease->node[i].vote = CORE_VOTE_ERROR;
	}
	core_decide_renew(lease, event, out);
}

/*
 * The limit of a holder says nothing of the keys: these are ours until granted_until_us, for
 * whoever holds the lock.  Where the lease was at its limit, no renewal was due.
 */
void
core_set_limit(core_lease *lease, const core_event *event)
{
	if (core_is_at_limit(lease))
		lease->next_at_us =
			min_us(lease->next_at_us, lease->round_began_us + RENEW_AFTER_US(lease->ttl_us));
	lease->hold_until_us = event->hold_until_us;
	lease->valid_until_us = core_within_limit(lease);
}

/* A renewal could add nothing. */
bool
core_is_at_limit(const core_lease *lease)
{
	return lease->hold_until_us == lease->valid_until_us;
}

/*
 * Beyond all counters that were told.  Not in a round that followed another at once,
 * so a node that counts on and on is not asked without a pause.
 */
static int64_t
bound_wanted(const core_lease *lease, const core_event *event)
{
	int64_t bound = lease->bound;

	if (event->type == CORE_EXTEND)
		return bound + event->token;
	if (event->now_us < lease->round_began_us + RENEW_AGAIN_US(lease->ttl_us))
		return bound;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->members & CORE_BIT(i)) && lease->token_at[i] > lease->bound)
			bound = max_us(bound, lease->token_at[i] + RAISE_AHEAD_US(lease->ttl_us));
	return bound;
}

/*
 * The key may be there from now on, whatever was known of it before.  Renewals have
 * an attempt of their own: a key that says so was not set by a late acquire.
 */
void
core_renew_at(core_lease *lease, int node, core_out *out)
{
	core_node *at = &lease->node[node];

	if (!lease->renewed)
		lease->attempt++;
	if (at->key == CORE_KEY_ABSENT)
		at->key = CORE_KEY_MAYBE;
	at->attempt = lease->attempt;
	at->vote = CORE_VOTE_PENDING;
	lease->releasing &= ~CORE_BIT(node);
	lease->renewed = true;
	out->renew |= CORE_BIT(node);
}

/*
 * A renewal counts from before its first send, and only while the validity it
 * extends has not ended; an expired lease is never revived.
 */
void
core_decide_renew(core_lease *lease, const core_event *event, core_out *out)
{
	core_lists lists = renewing_lists(lease);
	core_mask yes = core_votes(lease, CORE_VOTE_YES);
	core_mask no = core_votes(lease, CORE_VOTE_NO);

	assert(lease->state == CORE_HELD && lease->renewing);
	assert(event->now_us < lease->valid_until_us);

	if (core_has_quorum(lists, yes))
	{
		lease->granted_until_us = max_us(lease->granted_until_us,
										 lease->round_began_us + core_validity_us(lease->ttl_us));
		lease->valid_until_us = core_within_limit(lease);
		lease->next_at_us = lease->round_began_us + RENEW_AFTER_US(lease->ttl_us);
		if (no != 0)
			core_renew_soon(lease);
		raise_bound(lease, event);
		lease->renewing = false;
		out->outcome = CORE_RENEWED;
		core_settle(lease, event, out);
		if (!lease->settled)
			core_renew_soon(lease);
	}
	else if (!core_has_quorum(lists, ~no))
	{
		/*
		 * So many nodes have another's key, or had, that another may be granted
		 * the lock from now on: do not wait for the validity to end.
		 */
		lease->state = CORE_LOST;
		lease->valid_until_us = event->now_us;
		lease->renewing = false;
		out->outcome = CORE_EXPIRED;
	}
	else if (!core_has_quorum(lists, ~(no | core_votes(lease, CORE_VOTE_ERROR))))
	{
		lease->next_at_us = event->now_us + RENEW_AGAIN_US(lease->ttl_us);
		lease->renewing = false;
		out->outcome = CORE_UNRENEWED;
	}
}

/*
 * A majority has our key, and counts from `raise` at least.  A node that refused the
 * key for its larger counter is asked again at once.
 */
static void
raise_bound(core_lease *lease, const core_event *event)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->members & CORE_BIT(i)) && lease->node[i].vote != CORE_VOTE_YES &&
			lease->token_at[i] > lease->bound && lease->token_at[i] <= lease->raise)
			lease->next_at_us = event->now_us;
	lease->bound = lease->raise;
}

/*
 * A yes to a renewal of the last round came, be the round over or not: the next list may be
 * farther away than the other, which decides.
 */
void
core_settle(core_lease *lease, const core_event *event, core_out *out)
{
	if (core_has_quorum(lease->lists, core_votes(lease, CORE_VOTE_YES)))
		lease->settled = true;
	core_relist(lease, event, out);
}

/*
 * A list that is the same for those who have one, and those who have both, keeps them
 * apart; so one may come beside it, or be taken away.  It may go itself when the key is
 * at a majority of the other, and each renewal since has needed that.
 */
void
core_relist(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask gone;

	if (!core_may_relist(lease))
		return;
	lease->settled = lease->wanted.next == 0;
	lease->lists = lease->wanted;
	gone = lease->members & ~(lease->lists.now | lease->lists.next);
	lease->members = lease->lists.now | lease->lists.next;
	lease->renewing = false;
	if (!lease->settled)
	{
		/* a node that was left, and comes back, has been sent a release of the last one */
		lease->attempt += lease->renewed;
		/* soon, but thousands not at once */
		lease->next_at_us = min_us(lease->next_at_us,
								   event->now_us + event->random % RENEW_AGAIN_US(lease->ttl_us));
	}

	lease->left = (lease->left | gone) & ~lease->members;
	lease->owed_until_us = event->now_us + core_owed_for_us(lease);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		lease->node[i].vote = CORE_VOTE_NONE; /* it was of the former lists */
		if (gone & CORE_BIT(i))
		{
			lease->token_at[i] = 0;
			if (lease->node[i].key == CORE_KEY_ABSENT)
				core_forget_left(lease, CORE_BIT(i));
		}
	}
	core_pay_debts(lease, event, lease->left, out);
}

bool
core_may_relist(const core_lease *lease)
{
	if (lease->renewed && lease->attempt > CORE_ATTEMPT_MAX)
		return false;
	if (lease->wanted.now == lease->lists.now)
		return lease->wanted.next != lease->lists.next;
	return lease->settled && lease->lists.next != 0 && lease->wanted.now == lease->lists.next;
}

/* What has not yet been at a majority of the next list can't be required to stay there. */
static core_lists
renewing_lists(const core_lease *lease)
{
	core_lists lists = lease->lists;

	if (!lease->settled)
		lists.next = 0;
	return lists;
}

/* A healthy node lacks the key. */
void
core_renew_soon(core_lease *lease)
{
	lease->next_at_us =
		min_us(lease->next_at_us, lease->round_began_us + RENEW_AGAIN_US(lease->ttl_us));
}

/* No lease is valid for longer than hold_at_most allows. */
int64_t
core_within_limit(const core_lease *lease)
{
	return lease->hold_until_us > 0 ? min_us(lease->granted_until_us, lease->hold_until_us)
									: lease->granted_until_us;
}
