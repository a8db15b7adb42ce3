/*
 * core_renew.c
 *		How a lease stays valid: renewals, the bound of tokens, the limit of the holder, other
 *		lists of nodes; see core.h.
 */
#include "protocol/core_internal.h"

#include <assert.h>

/*
 * A raised bound exceeds the node's counter by this much.  Waiters keep asking, and raise the
 * counter up to the time of their clocks.  The bound must stay ahead of the counter until the
 * next raise, which comes after RENEW_AGAIN_US at the latest and takes two exchanges.
 */
#define RAISE_AHEAD_US(ttl_us) ((ttl_us) / 4)

static int64_t bound_wanted(const core_lease *lease, const core_event *event);
static void raise_bound(core_lease *lease, const core_event *event);
static core_lists renewing_lists(const core_lease *lease);
static bool lose_if_refused(core_lease *lease, const core_event *event, core_out *out);

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
 * A holder's limit does not change the keys: the nodes keep the keys for this host until
 * granted_until_us, whoever the holder is.  A lease at its limit had no renewal due, so the next
 * renewal is set here.
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

/* Returns true if the holder's limit ends the validity, so a renewal would not prolong it. */
bool
core_is_at_limit(const core_lease *lease)
{
	return lease->hold_until_us == lease->valid_until_us;
}

/*
 * The bound for the next round: above all counters that nodes returned.  A round that follows
 * another round at once does not raise the bound.  So a node whose counter keeps rising does not
 * cause renewals without a pause.
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
 * Sends a renewal to a node.  From now on the node may have the key.  Renewals have their own
 * attempt, so a key with this attempt did not come from a late acquire.
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
 * Decides a round of renewals.  The new validity counts from before the first send.  The former
 * validity must not have ended: an expired lease is never revived.
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
		core_note_next_list(lease, event, out);
		if (!lease->settled)
			core_renew_soon(lease);
	}
	else if (!lose_if_refused(lease, event, out) &&
			 !core_has_quorum(lists, ~(no | core_votes(lease, CORE_VOTE_ERROR))))
	{
		lease->next_at_us = event->now_us + RENEW_AGAIN_US(lease->ttl_us);
		lease->renewing = false;
		out->outcome = CORE_UNRENEWED;
	}
}

/*
 * A node refused a renewal of the last round, after the end of the round.  A failed round may end
 * before all refusals are there: errors alone decide that it fails.
 */
void
core_note_refusal(core_lease *lease, const core_event *event, core_out *out)
{
	int64_t renewed_us = lease->round_began_us + core_validity_us(lease->ttl_us);

	if (lease->granted_until_us >= renewed_us || !lose_if_refused(lease, event, out))
		core_renew_soon(lease);
}

/*
 * So many nodes may have or have had another key that another session may already be granted the
 * lock.  Then the lease does not wait for the end of the validity.
 */
static bool
lose_if_refused(core_lease *lease, const core_event *event, core_out *out)
{
	if (core_has_quorum(renewing_lists(lease), ~core_votes(lease, CORE_VOTE_NO)))
		return false;
	lease->state = CORE_LOST;
	lease->valid_until_us = event->now_us;
	lease->renewing = false;
	out->outcome = CORE_EXPIRED;
	return true;
}

/*
 * A majority has our key and a counter of at least `raise`.  A node that refused the key because
 * of its larger counter is asked again at once.
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
 * A node confirmed a renewal of the last round, perhaps after the end of the round: the nodes of
 * the next list may be farther away than the nodes of `lists.now`, which decide.
 */
void
core_note_next_list(core_lease *lease, const core_event *event, core_out *out)
{
	if (core_has_quorum(lease->lists, core_votes(lease, CORE_VOTE_YES)))
		lease->settled = true;
	core_relist(lease, event, out);
}

/*
 * Puts the lists in `target` into force, if core_may_relist allows.  Hosts with one list and
 * hosts with both lists exclude each other, so the next list may be added or removed at once.
 * `lists.now` may go when a majority of the next list has the key and each renewal since needed
 * that majority.
 */
void
core_relist(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask gone;

	if (!core_may_relist(lease))
		return;
	lease->settled = lease->target.next == 0;
	lease->lists = lease->target;
	gone = lease->members & ~(lease->lists.now | lease->lists.next);
	lease->members = lease->lists.now | lease->lists.next;
	lease->renewing = false;
	if (!lease->settled)
	{
		/* a node may be left and come back; its last release named the former attempt */
		lease->attempt += lease->renewed;
		/* soon, but thousands of leases not at once */
		lease->next_at_us = min_us(lease->next_at_us,
								   event->now_us + event->random % RENEW_AGAIN_US(lease->ttl_us));
	}

	lease->left = (lease->left | gone) & ~lease->members;
	lease->owed_until_us = event->now_us + core_owed_for_us(lease);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		lease->node[i].vote = CORE_VOTE_NONE; /* a vote by the former lists */
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
	if (lease->target.now == lease->lists.now)
		return lease->target.next != lease->lists.next;
	return lease->settled && lease->lists.next != 0 && lease->target.now == lease->lists.next;
}

/* Until a majority of the next list has had the key, renewals do not need the next list. */
static core_lists
renewing_lists(const core_lease *lease)
{
	core_lists lists = lease->lists;

	if (!lease->settled)
		lists.next = 0;
	return lists;
}

/* Renews soon, because a healthy node lacks the key. */
void
core_renew_soon(core_lease *lease)
{
	lease->next_at_us =
		min_us(lease->next_at_us, lease->round_began_us + RENEW_AGAIN_US(lease->ttl_us));
}

/* The end of the validity: granted_until_us, or the holder's limit if sooner. */
int64_t
core_within_limit(const core_lease *lease)
{
	return lease->hold_until_us > 0 ? min_us(lease->granted_until_us, lease->hold_until_us)
									: lease->granted_until_us;
}
