/*
 * core_debts.c
 *		Debts: keys that may be at nodes and must be deleted.  Debts arise from a release, from a
 *		failed round, and when a lease leaves a node; see core.h.
 */
#include "protocol/core_internal.h"

static bool owes(const core_lease *lease);

void
core_begin_release(core_lease *lease, const core_event *event, core_out *out)
{
	if (lease->state == CORE_FREE || lease->state == CORE_RELEASING)
		return;

	lease->silent =
		lease->state == CORE_BUSY || (lease->state == CORE_ASKING && event->type != CORE_RELEASE);
	if (lease->state == CORE_ASKING)
		lease->token = 0; /* the token was never returned */
	lease->state = CORE_RELEASING;
	lease->renewing = false;
	lease->confirming = 0;
	lease->granted_until_us = lease->valid_until_us = 0;
	lease->owed_until_us = event->now_us + core_owed_for_us(lease);
	lease->next_at_us = event->now_us + lease->retry_us;
	core_pay_debts(lease, event, lease->members | lease->left, out);
	core_tick_release(lease, event, out);
}

void
core_tick_release(core_lease *lease, const core_event *event, core_out *out)
{
	if (event->now_us >= lease->owed_until_us || !owes(lease))
		core_forget_debts(lease);
	else if (event->now_us >= lease->next_at_us)
	{
		/* each pause is as long as the release has taken so far */
		lease->next_at_us =
			event->now_us +
			max_us(lease->retry_us, event->now_us - lease->owed_until_us + core_owed_for_us(lease));
		core_pay_debts(lease, event, lease->members | lease->left, out);
	}
}

/*
 * How long a key of this lease may live from now on.  A node may execute a command as late as
 * answer_us from now.  The key then lives for the ttl and the drift of clocks, which is the ttl
 * less the validity.
 */
int64_t
core_owed_for_us(const core_lease *lease)
{
	return lease->answer_us + 2 * lease->ttl_us - core_validity_us(lease->ttl_us);
}

/*
 * Asks these nodes to delete our key.  The undoing of a round does not wait for room
 * (can_release): its keys block other hosts, although this host does not hold the lock.
 */
void
core_pay_debts(core_lease *lease, const core_event *event, core_mask nodes, core_out *out)
{
	nodes &= lease->state == CORE_RELEASING ? event->can_release : event->can_send;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		core_mask bit = CORE_BIT(i);

		if ((nodes & ~lease->releasing & bit) && lease->node[i].key != CORE_KEY_ABSENT)
		{
			lease->releasing |= bit;
			out->release |= bit;
		}
	}
}

static bool
owes(const core_lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease->node[i].key != CORE_KEY_ABSENT)
			return true;
	return false;
}

void
core_forget_debts(core_lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		lease->node[i].key = CORE_KEY_ABSENT;
	lease->releasing = lease->left = 0;
	lease->state = CORE_FREE;
}

/* These nodes no longer have the key. */
void
core_forget_left(core_lease *lease, core_mask nodes)
{
	nodes &= lease->left;
	lease->left &= ~nodes;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (nodes & CORE_BIT(i))
			lease->node[i].key = CORE_KEY_ABSENT;
}
