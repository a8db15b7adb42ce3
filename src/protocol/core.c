/*
 * core.c
 *		The Redlock protocol of one lease; see core.h for the contract.
 *
 * The code follows the published algorithm.  It sets the same key and value on all nodes in
 * parallel, where the key is free.  A majority within the validity makes a lease.  Any other
 * result is undone.  The code is stricter than the text in these points:
 *
 * - A round is decided at the first of: a majority has our key and one token; a majority has
 *   answered, and no grant is possible; no majority can answer any more.  A round never waits for
 *   slow nodes.
 *
 * - "Refused" and "unreachable" are different outcomes: refused means a quorum answered.
 *
 * - Each attempt has its own value, which contains the attempt's number.  An acquire or a
 *   renewal replaces a key of an earlier attempt.  A release deletes keys of its own attempt and
 *   of earlier attempts, never of later attempts.  Commands of a broken connection may be
 *   executed at any later time.  Such a command can't delete a key of a later attempt, and can't
 *   stand for it.  So the lease remembers only the last attempt sent to each node.
 *
 * - A release stays a debt to its node until the node acknowledges the release, every key has
 *   expired, or the entry is needed (CORE_FORGET).
 *
 * - A grant carries a fencing token.  Each node counts its grants.  The token is the largest
 *   counter of the nodes that said yes.  The attempt is a grant when a majority holds exactly
 *   this number.  If the counters differ, a compare-and-set writes the token to each node where
 *   no other grant came since.
 *
 * - A renewal creates a missing key again, unless the node's counter may tell of a later grant.
 *   An undone acquire also raises the counter.  When a majority with our key has confirmed a
 *   higher bound, the renewal creates the key at such a node too.
 *
 * This file has the events, the answers of nodes, the ticks, and the questions that other files
 * ask about a lease. core_acquire.c and core_renew.c have the rounds, core_debts.c the debts.
 *
 * Standard headers only: no PostgreSQL, no hiredis, no clock, no malloc.
 */
#include "protocol/core.h"

#include <assert.h>
#include <string.h>

#include "protocol/core_internal.h"

/* Clock drift between us and a node: 1% of the ttl plus 2 ms, as published. */
#define DRIFT_US(ttl_us) ((ttl_us) / 100 + 2000)

static void on_wake(core_lease *lease, const core_event *event, core_out *out);
static core_vote vote_of(const core_lease *lease, const core_event *event);
static void on_reply(core_lease *lease, const core_event *event, core_out *out);
static bool note_acquired(core_lease *lease, const core_event *event);
static uint32_t last_acquire(const core_lease *lease);
static void on_refusal(core_lease *lease, const core_event *event);
static void on_node_lost(core_lease *lease, const core_event *event, core_out *out);
static void on_node_ready(core_lease *lease, const core_event *event, core_out *out);
static void adopt(core_lease *lease, const core_event *event, core_out *out);
static void on_tick(core_lease *lease, const core_event *event, core_out *out);
static void drop_pending(core_lease *lease);
static void set_wake_at(core_lease *lease);
static int bit_count(core_mask mask);

void
core_step(core_lease *lease, const core_event *event, core_out *out)
{
	assert(lease->state <= CORE_RELEASING);
	assert((event->can_vote & ~event->can_send) == 0);
	assert((event->can_release & ~event->can_send) == 0);

	memset(out, 0, sizeof(*out));
	/* before the check of the validity: the former holder's limit must not end the lease */
	if (event->type == CORE_LIMIT && lease->state == CORE_HELD)
		core_set_limit(lease, event);
	if (lease->state == CORE_HELD && event->now_us >= lease->valid_until_us &&
		event->type != CORE_RELEASE)
	{
		lease->state = CORE_LOST;
		lease->renewing = false;
		out->outcome = CORE_EXPIRED;
	}
	switch (event->type)
	{
		case CORE_ACQUIRE:
			core_on_acquire(lease, event, out);
			break;
		case CORE_RELIST:
			lease->target = event->lists;
			if (lease->state == CORE_HELD)
				core_relist(lease, event, out);
			break;
		case CORE_WAKE:
			on_wake(lease, event, out);
			break;
		case CORE_RELEASE:
			core_begin_release(lease, event, out);
			break;
		case CORE_FORGET:
			if (lease->state == CORE_RELEASING)
				core_forget_debts(lease);
			break;
		case CORE_REPLY:
			on_reply(lease, event, out);
			break;
		case CORE_NODE_LOST:
			on_node_lost(lease, event, out);
			break;
		case CORE_NODE_READY:
			on_node_ready(lease, event, out);
			break;
		case CORE_ADOPT:
			adopt(lease, event, out);
			break;
		case CORE_EXTEND:
			if (lease->state == CORE_HELD && !lease->renewing)
				core_begin_renew(lease, event, out);
			break;
		case CORE_LIMIT:
			break;
		case CORE_TICK:
			on_tick(lease, event, out);
			break;
	}
	set_wake_at(lease);

	assert(((out->confirm | out->renew | out->release) & ~event->can_send) == 0);
	assert((out->acquire & ~event->can_vote) == 0);
	assert(lease->state != CORE_HELD || lease->token > 0);
	assert(lease->state != CORE_HELD || event->now_us < lease->valid_until_us);
}

static void
on_wake(core_lease *lease, const core_event *event, core_out *out)
{
	if (event->retry_us > 0)
		lease->retry_us = event->retry_us;
	if (event->by_us > 0)
	{
		if (lease->state == CORE_BUSY)
			lease->next_at_us =
				min_us(lease->next_at_us, max_us(event->by_us, lease->not_before_us));
		return;
	}
	if (event->not_before_us > 0 && !lease->once &&
		(lease->state == CORE_BUSY || lease->state == CORE_ASKING))
		lease->not_before_us = event->not_before_us;
	if (lease->state == CORE_BUSY && event->now_us >= lease->not_before_us)
		core_begin_acquire(lease, event, out);
	else if (lease->state == CORE_BUSY && event->not_before_us > 0)
		lease->next_at_us = lease->not_before_us;
	else if (lease->state == CORE_ASKING)
		lease->woken = true;
}

int
core_quorum(core_mask members)
{
	return bit_count(members) / 2 + 1;
}

bool
core_has_quorum(core_lists lists, core_mask nodes)
{
	return bit_count(nodes & lists.now) >= core_quorum(lists.now) &&
		   (lists.next == 0 || bit_count(nodes & lists.next) >= core_quorum(lists.next));
}

int64_t
core_validity_us(int64_t ttl_us)
{
	return ttl_us - DRIFT_US(ttl_us);
}

int64_t
core_tombstone(const core_lease *lease)
{
	bool is_over = lease->state == CORE_RELEASING || lease->state == CORE_LOST;

	return is_over && lease->renewed ? lease->bound + 1 : 0;
}

core_mask
core_unpaid(const core_lease *lease)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease->node[i].key != CORE_KEY_ABSENT)
			nodes |= CORE_BIT(i);
	return nodes & ~lease->releasing;
}

bool
core_awaits_answer(const core_lease *lease, int node, core_op op, uint32_t round)
{
	assert(node >= 0 && node < CORE_NODES_MAX);

	if (round != lease->round)
		return false;
	switch (op)
	{
		case CORE_OP_ACQUIRE:
			return lease->state == CORE_ASKING && lease->node[node].vote == CORE_VOTE_PENDING;
		case CORE_OP_CONFIRM:
			return (lease->confirming & CORE_BIT(node)) != 0;
		case CORE_OP_RENEW:
			return lease->state == CORE_HELD && lease->node[node].vote == CORE_VOTE_PENDING;
		case CORE_OP_RELEASE:
			return (lease->releasing & CORE_BIT(node)) != 0;
	}
	return false;
}

core_command
core_command_to(const core_lease *lease, int node, core_op op)
{
	core_command command = {.attempt = lease->node[node].attempt};

	switch (op)
	{
		case CORE_OP_ACQUIRE:
			break;
		case CORE_OP_CONFIRM:
			command.counter = lease->token_at[node];
			command.token = lease->token;
			break;
		case CORE_OP_RENEW:
			command.counter = lease->bound;
			command.token = lease->raise;
			break;
		case CORE_OP_RELEASE:
			/* a node that the lease has left may still receive renewals late */
			command.counter = (lease->left & CORE_BIT(node)) && lease->renewed
								  ? lease->bound + 1
								  : core_tombstone(lease);
			break;
	}
	return command;
}

/* A confirm is not repeated: a node that has executed the first one would refuse the second one. */
bool
core_may_reconnect(const core_lease *lease, int node)
{
	return core_awaits_answer(lease, node, CORE_OP_ACQUIRE, lease->round) ||
		   core_awaits_answer(lease, node, CORE_OP_RENEW, lease->round);
}

core_mask
core_served_by(const core_lease *lease)
{
	return lease->state != CORE_FREE ? lease->members | lease->left : 0;
}

int64_t
core_raises_until_us(const core_lease *lease)
{
	return lease->state == CORE_HELD && lease->renewing && lease->raise > lease->bound
			   ? core_round_ends_us(lease)
			   : 0;
}

bool
core_ends(const core_lease *lease)
{
	return lease->state == CORE_RELEASING && !lease->silent;
}

/* A try ends soon anyway, and a lease keeps the nodes that granted the lease. */
bool
core_must_move(const core_lease *lease, core_lists lists)
{
	return (lease->state == CORE_ASKING || lease->state == CORE_BUSY) && !lease->once &&
		   (lease->lists.now != lists.now || lease->lists.next != lists.next);
}

core_mask
core_votes(const core_lease *lease, core_vote vote)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->members & CORE_BIT(i)) && lease->node[i].vote == vote)
			nodes |= CORE_BIT(i);
	return nodes;
}

int
core_count(const core_lease *lease, core_vote vote)
{
	return bit_count(core_votes(lease, vote));
}

static core_vote
vote_of(const core_lease *lease, const core_event *event)
{
	if (event->counts_after_us >= lease->round_began_us)
		return CORE_VOTE_ERROR;
	return event->reply == CORE_REPLY_YES  ? CORE_VOTE_YES
		   : event->reply == CORE_REPLY_NO ? CORE_VOTE_NO
										   : CORE_VOTE_ERROR;
}

static void
on_reply(core_lease *lease, const core_event *event, core_out *out)
{
	core_node *node = &lease->node[event->node];

	assert(event->node >= 0 && event->node < CORE_NODES_MAX);

	if (event->op == CORE_OP_RELEASE)
		lease->releasing &= ~CORE_BIT(event->node);
	if (event->round != lease->round)
		return; /* of an earlier round */

	switch (event->op)
	{
		case CORE_OP_ACQUIRE:
			if (!note_acquired(lease, event))
				return;
			break;
		case CORE_OP_CONFIRM:
			if (!(lease->confirming & CORE_BIT(event->node)))
				return;
			lease->confirming &= ~CORE_BIT(event->node);
			node->vote = vote_of(lease, event);
			if (node->vote == CORE_VOTE_YES)
				lease->token_at[event->node] = lease->token;
			if (lease->state == CORE_ASKING)
				core_decide_acquire(lease, event, out);
			return;
		case CORE_OP_RENEW:
			if (lease->state != CORE_HELD)
				return;
			if (event->reply == CORE_REPLY_YES)
				node->key = CORE_KEY_PRESENT;
			else if (event->reply == CORE_REPLY_NO)
				lease->token_at[event->node] = event->token;
			break;
		case CORE_OP_RELEASE:
			if ((event->reply == CORE_REPLY_YES || event->reply == CORE_REPLY_NO) &&
				(lease->state == CORE_RELEASING || lease->state == CORE_BUSY))
				node->key = CORE_KEY_ABSENT;
			else if (event->reply == CORE_REPLY_YES || event->reply == CORE_REPLY_NO)
				core_forget_left(lease, CORE_BIT(event->node));
			if (lease->state == CORE_RELEASING)
				on_tick(lease, event, out);
			return;
	}

	if (node->vote != CORE_VOTE_PENDING)
		return; /* after the end of the round */
	node->vote = vote_of(lease, event);
	if (lease->state == CORE_ASKING)
		core_decide_acquire(lease, event, out);
	else if (lease->renewing)
		core_decide_renew(lease, event, out);
	else if (event->op == CORE_OP_RENEW && event->reply == CORE_REPLY_NO)
		core_note_refusal(lease, event, out);
	else if (event->op == CORE_OP_RENEW)
		core_note_next_list(lease, event, out);
}

/*
 * Records the answer to an acquire.  Returns false if the answer is too late to be a vote.  In BUSY
 * the vote is noted nevertheless: hearing_may_miss reads it.
 */
static bool
note_acquired(core_lease *lease, const core_event *event)
{
	core_node *node = &lease->node[event->node];

	if (lease->state == CORE_BUSY && node->vote == CORE_VOTE_PENDING)
		node->vote = vote_of(lease, event);
	if (lease->state != CORE_ASKING && lease->state != CORE_HELD)
		return false; /* a release follows on the connection */
	if (node->attempt != last_acquire(lease))
		return false; /* a later renewal may have set the key */
	if (event->reply == CORE_REPLY_YES)
	{
		assert(event->token > 0);
		node->key = CORE_KEY_PRESENT;
		lease->token_at[event->node] = event->token;
	}
	else if (event->reply == CORE_REPLY_NO ||
			 (event->reply == CORE_REPLY_ERROR && node->key == CORE_KEY_MAYBE))
		node->key = CORE_KEY_ABSENT;
	if (event->reply == CORE_REPLY_NO)
		on_refusal(lease, event);
	return true;
}

/* Returns the number of the last round of acquires: renewals have the next number. */
static uint32_t
last_acquire(const core_lease *lease)
{
	return lease->renewed ? lease->attempt - 1 : lease->attempt;
}

/*
 * Records the holder in the way, and when its key expires.  A majority vote finds the rival
 * (Boyer and Moore, MJRTY, 1981); it needs no memory of each node.
 *
 * Readers are one rival.  A renewal may bring a reader back to a node, without the flag of a lease
 * that may be idle.  All nodes of the reader's grant have the flag, and each majority has such a
 * node.
 */
static void
on_refusal(core_lease *lease, const core_event *event)
{
	if (event->busy_us > 0)
		lease->free_at_us = max_us(lease->free_at_us, event->now_us + event->busy_us);
	lease->waiting_at[event->node] = event->waiting;
	if (lease->rival_lead == 0)
	{
		lease->rival = event->holder;
		lease->rival_is_silent = event->silent;
		lease->rival_may_idle = false;
	}
	lease->rival_may_idle = lease->rival_may_idle || event->may_idle;
	lease->rival_lead += event->holder == lease->rival ? 1 : -1;
}

static void
on_node_lost(core_lease *lease, const core_event *event, core_out *out)
{
	core_node *node = &lease->node[event->node];

	assert(event->node >= 0 && event->node < CORE_NODES_MAX);

	lease->releasing &= ~CORE_BIT(event->node);
	if (node->vote != CORE_VOTE_PENDING && !(lease->confirming & CORE_BIT(event->node)))
		return;
	lease->confirming &= ~CORE_BIT(event->node);
	node->vote = CORE_VOTE_ERROR;
	if (lease->state == CORE_ASKING)
		core_decide_acquire(lease, event, out);
	else if (lease->renewing)
		core_decide_renew(lease, event, out);
}

static void
on_node_ready(core_lease *lease, const core_event *event, core_out *out)
{
	core_node *node = &lease->node[event->node];

	assert(event->node >= 0 && event->node < CORE_NODES_MAX);

	if (!((lease->members | lease->left) & event->can_send & CORE_BIT(event->node)))
		return;
	if (lease->left & CORE_BIT(event->node))
		core_pay_debts(lease, event, CORE_BIT(event->node), out);
	/* the answer to a release of this round must not count for the key of a later renewal */
	else if (lease->state == CORE_HELD && (lease->releasing & CORE_BIT(event->node)))
		return;
	/* the node may have lost the key, or never had it */
	else if (lease->state == CORE_HELD)
		core_renew_at(lease, event->node, out);
	/* a new connection; the node may have executed the command of the old one */
	else if (lease->state == CORE_ASKING && node->vote == CORE_VOTE_PENDING)
	{
		if (event->can_vote & CORE_BIT(event->node))
		{
			node->key = CORE_KEY_PRESENT;
			out->acquire |= CORE_BIT(event->node);
		}
		else
			on_node_lost(lease, event, out);
	}
	/* delete the key of an earlier attempt, or of a request or lease that is over */
	else if (lease->state == CORE_RELEASING || lease->state == CORE_BUSY ||
			 (lease->state != CORE_FREE && node->attempt < last_acquire(lease)))
		core_pay_debts(lease, event, CORE_BIT(event->node), out);
}

/*
 * The time without a shell says nothing about the nodes, so it does not count as time without a
 * quorum.  An undecided try is repeated.  A round of renewals that was out has failed: no answer
 * can come any more.
 */
static void
adopt(core_lease *lease, const core_event *event, core_out *out)
{
	lease->releasing = 0;
	drop_pending(lease);
	if (lease->state == CORE_ASKING || lease->state == CORE_BUSY)
	{
		lease->state = CORE_BUSY;
		lease->token = 0;
		lease->unreachable_since_us = 0;
		lease->next_at_us = event->not_before_us;
	}
	else if (lease->renewing)
		core_decide_renew(lease, event, out);
}

static void
on_tick(core_lease *lease, const core_event *event, core_out *out)
{
	bool round_over = event->now_us >= core_round_ends_us(lease);

	switch (lease->state)
	{
		case CORE_FREE:
		case CORE_LOST:
			break;
		case CORE_ASKING:
			if (round_over)
			{
				drop_pending(lease);
				core_decide_acquire(lease, event, out);
			}
			break;
		case CORE_BUSY:
			if (event->now_us >= lease->next_at_us)
				core_begin_acquire(lease, event, out);
			break;
		case CORE_HELD:
			if (event->now_us >= lease->owed_until_us)
				core_forget_left(lease, lease->left);
			core_relist(lease, event, out);
			if (lease->renewing && round_over)
			{
				drop_pending(lease);
				core_decide_renew(lease, event, out);
			}
			else if (!lease->renewing && event->now_us >= lease->next_at_us)
			{
				/* the next holder may have another limit */
				if (core_is_at_limit(lease))
					lease->next_at_us = event->now_us + RENEW_AGAIN_US(lease->ttl_us);
				else
					core_begin_renew(lease, event, out);
			}
			break;
		case CORE_RELEASING:
			core_tick_release(lease, event, out);
			break;
	}
}

/* The round's time is over: a node without an answer has not voted. */
static void
drop_pending(core_lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease->node[i].vote == CORE_VOTE_PENDING || (lease->confirming & CORE_BIT(i)))
			lease->node[i].vote = CORE_VOTE_ERROR;
	lease->confirming = 0;
}

int64_t
core_round_ends_us(const core_lease *lease)
{
	return lease->round_began_us + min_us(lease->answer_us, core_validity_us(lease->ttl_us));
}

static void
set_wake_at(core_lease *lease)
{
	switch (lease->state)
	{
		case CORE_FREE:
		case CORE_LOST:
			lease->wake_at_us = 0;
			break;
		case CORE_ASKING:
			lease->wake_at_us = core_round_ends_us(lease);
			break;
		case CORE_BUSY:
			lease->wake_at_us = lease->next_at_us;
			break;
		case CORE_HELD:
			lease->wake_at_us =
				min_us(lease->valid_until_us,
					   lease->renewing ? core_round_ends_us(lease) : lease->next_at_us);
			break;
		case CORE_RELEASING:
			lease->wake_at_us = min_us(lease->owed_until_us, lease->next_at_us);
			break;
	}
}

static int
bit_count(core_mask mask)
{
	int count = 0;

	for (; mask != 0; mask &= mask - 1)
		count++;
	return count;
}
