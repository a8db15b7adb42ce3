/*
 * core_acquire.c
 *		How a lease is acquired: rounds of acquires, the fencing token, the next round; see core.h.
 */
#include "protocol/core_internal.h"

#include <assert.h>

/*
 * After a round without a winner, the hosts ask again within this time.  The first spread is
 * short, because no holder exists whose release would be published.  The spread doubles each
 * time, because the keys of dead hosts may be in the way.
 */
#define SPLIT_SPREAD_US 10000

/* a try without a winner goes on for this many times as long as a try that waits for a recall */
#define SPLIT_PATIENCE 5

/* waiters ask within this time after the keys of a dead holder expire */
#define EXPIRY_SPREAD_US 10000

/* first pause of a try that waits for a recall; grows with the square of the attempt */
#define RECALL_US 500

/* This number of late rounds in a row is no accident. */
#define LATE_ROUNDS 5

/* from this many waiting hosts on, each host asks less often */
#define CROWD 16

static void choose_token(core_lease *lease);
static void confirm(core_lease *lease, const core_event *event, core_out *out);
static core_mask agreed_nodes(const core_lease *lease);
static void undo(core_lease *lease, const core_event *event, core_out *out);
static void ask_again(core_lease *lease, const core_event *event, core_out *out);
static void fail_acquire(core_lease *lease, const core_event *event, bool unreachable,
						 core_out *out);
static int32_t waiting_hosts(const core_lease *lease);
static bool try_goes_on(core_lease *lease, const core_event *event, bool sure);
static uint32_t split_spread_us(const core_lease *lease);

void
core_on_acquire(core_lease *lease, const core_event *event, core_out *out)
{
	assert(lease->state == CORE_FREE);
	assert(event->lists.now != 0 && event->ttl_us > 0);
	assert(event->retry_us > 0 && event->retry_us < INT32_MAX);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		assert(lease->node[i].key == CORE_KEY_ABSENT);
		lease->node[i].attempt = 0;
		lease->node[i].vote = CORE_VOTE_NONE;
		lease->waiting_at[i] = 0;
	}
	lease->attempt = 0; /* no other request has the same value */
	lease->lists = lease->target = event->lists;
	lease->members = event->lists.now | event->lists.next;
	lease->once = event->once;
	lease->renewing = false;
	lease->ttl_us = event->ttl_us;
	lease->answer_us = event->answer_us;
	lease->patience_us = event->patience_us;
	lease->retry_us = lease->unheard_us = event->retry_us;
	lease->hold_at_most_us = event->hold_at_most_us;
	lease->unreachable_since_us = 0;
	lease->recall_until_us = 0;
	lease->splits = 0;
	lease->late_rounds = 0;
	lease->waiting = 0;
	lease->not_before_us = event->once ? 0 : event->not_before_us;
	if (event->now_us < lease->not_before_us)
	{
		lease->state = CORE_BUSY;
		lease->next_at_us = event->not_before_us;
		out->outcome = CORE_MUST_WAIT;
	}
	else
		core_begin_acquire(lease, event, out);
}

/*
 * Begins a new attempt: set the key on all nodes.  The validity counts from here.  If too few
 * nodes take commands, no node is asked.  Attempt numbers are never reused: a late command with
 * a reused number could touch a key that counts.
 */
void
core_begin_acquire(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask voters = lease->members & event->can_vote;
	bool enough = core_has_quorum(lease->lists, voters);

	assert(lease->state == CORE_FREE || lease->state == CORE_BUSY);
	assert(lease->attempt <= CORE_ATTEMPT_MAX);

	if (lease->attempt == CORE_ATTEMPT_MAX)
	{
		core_begin_release(lease, event, out);
		return;
	}

	lease->state = CORE_ASKING;
	lease->attempt++;
	lease->round++;
	lease->round_began_us = event->now_us;
	lease->free_at_us = 0;
	lease->woken = false;
	lease->rival_lead = 0;
	lease->token = 0;
	lease->confirming = 0;
	lease->renewed = false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		core_node *node = &lease->node[i];

		/*
		 * For people and tests.  token_at is read only where this round's vote is yes, and a yes
		 * has then written it.  So a stale value does no harm, and no test from outside can find
		 * a mutant that keeps the stale value.
		 */
		lease->token_at[i] = 0;
		if (!(lease->members & CORE_BIT(i)))
			continue;
		if (!(voters & CORE_BIT(i)))
			node->vote = CORE_VOTE_ERROR;
		else if (!enough)
			node->vote = CORE_VOTE_NONE;
		else
		{
			node->vote = CORE_VOTE_PENDING;
			node->key = node->key == CORE_KEY_ABSENT ? CORE_KEY_MAYBE : CORE_KEY_PRESENT;
			node->attempt = lease->attempt;
			lease->releasing &= ~CORE_BIT(i);
			out->acquire |= CORE_BIT(i);
		}
	}
	if (!enough)
		core_decide_acquire(lease, event, out);
}

void
core_decide_acquire(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask yes = core_votes(lease, CORE_VOTE_YES);
	core_mask no = core_votes(lease, CORE_VOTE_NO);
	core_mask error;
	core_mask agreed;

	assert(lease->state == CORE_ASKING);

	if (core_has_quorum(lease->lists, yes))
		choose_token(lease);
	agreed = agreed_nodes(lease);
	if (lease->token > 0 && !core_has_quorum(lease->lists, agreed))
		confirm(lease, event, out);

	if (core_has_quorum(lease->lists, agreed))
	{
		int64_t granted_until_us = lease->round_began_us + core_validity_us(lease->ttl_us);

		/* too late to be a grant; guard_counts_after_us relies on this */
		if (event->now_us >= granted_until_us)
		{
			fail_acquire(lease, event, true, out);
			return;
		}
		if (event->now_us >= core_round_ends_us(lease))
		{
			ask_again(lease, event, out);
			return;
		}
		lease->state = CORE_HELD;
		lease->settled = true;
		lease->bound = lease->raise = lease->token;
		lease->hold_until_us =
			lease->hold_at_most_us > 0 ? event->now_us + lease->hold_at_most_us : 0;
		lease->granted_until_us = granted_until_us;
		lease->valid_until_us = core_within_limit(lease);
		lease->next_at_us = lease->round_began_us + RENEW_AFTER_US(lease->ttl_us);
		out->outcome = CORE_GRANTED;
		if (core_may_relist(lease))
			lease->next_at_us = event->now_us;
		return;
	}
	error = core_votes(lease, CORE_VOTE_ERROR);
	if (!core_has_quorum(lease->lists, ~error))
		fail_acquire(lease, event, true, out);
	else if (lease->token > 0)
	{
		core_mask open = lease->confirming | core_votes(lease, CORE_VOTE_PENDING);

		if (!core_has_quorum(lease->lists, agreed | open))
			fail_acquire(lease, event, false, out);
	}
	else if (!core_has_quorum(lease->lists, ~(no | error)) &&
			 core_has_quorum(lease->lists, yes | no))
		fail_acquire(lease, event, false, out);
}

/* Nothing is granted: drops the token, and deletes the keys of this round. */
static void
undo(core_lease *lease, const core_event *event, core_out *out)
{
	lease->token = 0;
	lease->confirming = 0;
	out->confirm = 0;
	core_pay_debts(lease, event, lease->members, out);
}

/*
 * This process was late, not the nodes: a majority answered, but the time of the round is over.
 * Undoes the round and repeats it at once.  A process that is late each time counts as a lack of
 * nodes: votes that are seen too late grant nothing.
 */
static void
ask_again(core_lease *lease, const core_event *event, core_out *out)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease->node[i].vote == CORE_VOTE_YES)
			lease->node[i].vote = CORE_VOTE_ERROR;
	if (lease->unreachable_since_us == 0)
		lease->unreachable_since_us = lease->round_began_us;
	if (++lease->late_rounds >= LATE_ROUNDS)
	{
		lease->late_rounds = LATE_ROUNDS;
		fail_acquire(lease, event, true, out);
		return;
	}
	undo(lease, event, out);
	lease->state = CORE_BUSY;
	lease->next_at_us = event->now_us;
	out->outcome = CORE_MUST_WAIT;
}

/* A majority said yes.  Sets the token to the largest counter of the nodes that said yes. */
static void
choose_token(core_lease *lease)
{
	bool chosen = lease->token > 0;

	for (int i = 0; i < CORE_NODES_MAX && !chosen; i++)
		if ((lease->members & CORE_BIT(i)) && lease->node[i].vote == CORE_VOTE_YES)
			lease->token = max_us(lease->token, lease->token_at[i]);
}

/* Writes the token to the nodes with a smaller counter. */
static void
confirm(core_lease *lease, const core_event *event, core_out *out)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		core_mask bit = CORE_BIT(i);

		if (!(lease->members & bit) || lease->node[i].vote != CORE_VOTE_YES ||
			lease->token_at[i] >= lease->token || (lease->confirming & bit))
			continue;
		if (event->can_send & bit)
		{
			lease->confirming |= bit;
			out->confirm |= bit;
		}
		else
			lease->node[i].vote = CORE_VOTE_ERROR;
	}
}

/* The nodes that hold our key and exactly our token. */
static core_mask
agreed_nodes(const core_lease *lease)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->members & CORE_BIT(i)) && lease->node[i].vote == CORE_VOTE_YES &&
			lease->token > 0 && lease->token_at[i] == lease->token)
			nodes |= CORE_BIT(i);
	return nodes;
}

/*
 * The round failed.  Deletes each key that was or may be set.  On each connection the release
 * travels after the acquire, so a late grant is undone too.  The mean pauses, retry_us and
 * unheard_us, come from the driver's world (broker/world.c).
 */
static void
fail_acquire(core_lease *lease, const core_event *event, bool unreachable, core_out *out)
{
	bool sure = lease->rival_lead >= core_quorum(lease->members); /* a holder exists */
	int64_t retry_us =
		!unreachable && (lease->rival_is_silent || !sure) ? lease->unheard_us : lease->retry_us;
	bool split = !sure && (lease->once || core_count(lease, CORE_VOTE_YES) > 0);
	int64_t crowd;
	int64_t spread_us;

	lease->waiting = waiting_hosts(lease);
	crowd = 1 + lease->waiting / CROWD;
	spread_us = EXPIRY_SPREAD_US + (crowd - 1) * retry_us;
	lease->splits = split && !unreachable ? lease->splits + 1 : 0;
	undo(lease, event, out);
	if (!unreachable)
	{
		lease->unreachable_since_us = 0;
		lease->late_rounds = 0;
	}
	else if (lease->unreachable_since_us == 0)
		lease->unreachable_since_us = lease->round_began_us;

	if (lease->once
			? unreachable || !try_goes_on(lease, event, sure)
			: unreachable && event->now_us - lease->unreachable_since_us >= lease->patience_us)
	{
		core_begin_release(lease, event, out);
		/* a quorum has already refused a try that waits for a recall */
		out->outcome = unreachable && lease->recall_until_us == 0 ? CORE_UNREACHABLE : CORE_REFUSED;
		return;
	}
	lease->state = CORE_BUSY;
	lease->next_at_us =
		event->now_us + crowd * (retry_us / 2 + event->random % (uint32_t) (retry_us + 1));
	if (!unreachable && lease->woken)
		lease->next_at_us = max_us(event->now_us, lease->not_before_us);
	else if (!unreachable && split)
		lease->next_at_us = event->now_us + 1 + event->random % split_spread_us(lease);
	else if (lease->once)
		lease->next_at_us = event->now_us + (int64_t) RECALL_US * lease->attempt * lease->attempt;
	else if (!unreachable && lease->free_at_us > 0)
		lease->next_at_us =
			min_us(lease->next_at_us, lease->free_at_us + event->random % spread_us);
	if (lease->once)
		lease->next_at_us = min_us(lease->next_at_us, lease->recall_until_us);
	else if (unreachable && lease->patience_us < INT64_MAX)
		lease->next_at_us =
			min_us(lease->next_at_us, lease->unreachable_since_us + lease->patience_us);
	out->outcome = CORE_MUST_WAIT;
}

/*
 * The number of waiting hosts that a majority of the nodes confirms.  A minority may lie or be
 * outdated, and must not keep this host from asking.  If less than a majority refused, the
 * former number stays.
 */
static int32_t
waiting_hosts(const core_lease *lease)
{
	int32_t most = -1;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int saying = 0; /* nodes with this number of hosts, or a larger number */

		for (int j = 0; j < CORE_NODES_MAX; j++)
			saying +=
				lease->node[j].vote == CORE_VOTE_NO && lease->waiting_at[j] >= lease->waiting_at[i];
		if (saying >= core_quorum(lease->lists.now))
			most = max_us(most, lease->waiting_at[i]);
	}
	return most >= 0 ? most : lease->waiting;
}

/*
 * Returns whether a try asks once more.  The first round that finds a holder ends a try, unless
 * the holder's host may keep the lease idle.  Such a host releases an idle lease as soon as it
 * hears of the try, so the next round may succeed.  If no holder is found, the hosts that asked
 * may have refused each other.  Such a try goes on for longer, because the next round may be
 * split too.
 */
static bool
try_goes_on(core_lease *lease, const core_event *event, bool sure)
{
	if (sure && !lease->rival_may_idle)
		return false;
	if (lease->recall_until_us == 0)
		lease->recall_until_us = event->now_us + lease->patience_us * (sure ? 1 : SPLIT_PATIENCE);
	return event->now_us < lease->recall_until_us;
}

static uint32_t
split_spread_us(const core_lease *lease)
{
	int64_t spread_us = SPLIT_SPREAD_US;

	/* each host may be near another node: the spread must exceed the round trips */
	if (lease->once)
		spread_us = max_us(spread_us, lease->patience_us);
	for (uint32_t i = 1; i < lease->splits && spread_us < lease->retry_us; i++)
		spread_us *= 2;
	return spread_us;
}
