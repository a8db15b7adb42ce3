/*
 * core.c
 *		The Redlock protocol of one lease; see core.h for the contract.
 *
 * It follows the published algorithm: the same key and value are set on all
 * nodes in parallel if free, a majority within the validity is a lease, all
 * else is undone.  What is stricter than the text:
 *
 * - A round is decided as soon as a majority said yes, or can no longer say
 *	 yes while a majority answered; slow nodes are never waited for.
 * - "Refused" and "unreachable" are different outcomes: refused means that a
 *	 quorum answered.
 * - Each attempt has a value of its own (the attempt's number is part of it).
 *	 An acquire or a renewal takes the place of a key of an earlier attempt, and
 *	 a release deletes keys of its own and of earlier attempts, never of later
 *	 ones.  Commands of a broken connection may be executed at any later time;
 *	 so they can neither delete nor stand for a key of a later attempt, and the
 *	 last attempt sent to a node is all that must be remembered of it.
 * - A release that was not acknowledged stays a debt, per node, until the node
 *	 is back or the ttl has run out.
 * - A grant carries a fencing token.  Each node counts its grants; the largest
 *	 counter among those who said yes is the token, and it is a grant when a
 *	 majority holds exactly that number: at once if they agree, else after it
 *	 was written where nobody was granted anything since (compare-and-set).
 * - A renewal creates the key again on a node that lost it or never had it,
 *	 unless the node's counter may tell of a later grant.  That of an acquire
 *	 that was undone does not: when a majority that has our key says so, it is
 *	 created there too.
 *
 * This file has the events, the answers of nodes, the ticks, and what others ask of a lease.
 * core_acquire.c and core_renew.c have the rounds, core_debts.c what must be deleted.
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
static void on_refusal(core_lease *lease, const core_event *event);
static void on_node_lost(core_lease *lease, const core_event *event, core_out *out);
static void on_node_ready(core_lease *lease, const core_event *event, core_out *out);
static void adopt(core_lease *lease, const core_event *event, core_out *out);
static void on_tick(core_lease *lease, const core_event *event, core_out *out);
static void give_up_pending(core_lease *lease);
static int64_t round_ends_us(const core_lease *lease);
static void set_wake_at(core_lease *lease);
static int bit_count(core_mask mask);

void
core_step(core_lease *lease, const core_event *event, core_out *out)
{
	assert(lease->state <= CORE_RELEASING);
	assert((event->can_vote & ~event->can_send) == 0);
	assert((event->can_release & ~event->can_send) == 0);

	memset(out, 0, sizeof(*out));
	/* before the lease is found lost: the limit of the holder before must not end it */
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
			lease->wanted = event->lists;
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
core_awaits(const core_lease *lease, int node, core_op op, uint32_t round)
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
			/* renewals of a lease that lives on may come late to a node that it has left */
			command.counter = (lease->left & CORE_BIT(node)) && lease->renewed
								  ? lease->bound + 1
								  : core_tombstone(lease);
			break;
	}
	return command;
}

/* A confirmation that is executed twice is refused, as if another's grant had come. */
bool
core_may_reconnect(const core_lease *lease, int node)
{
	return core_awaits(lease, node, CORE_OP_ACQUIRE, lease->round) ||
		   core_awaits(lease, node, CORE_OP_RENEW, lease->round);
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
			   ? round_ends_us(lease)
			   : 0;
}

bool
core_ends(const core_lease *lease)
{
	return lease->state == CORE_RELEASING && !lease->silent;
}

/* A try is over soon anyway, and a lease keeps the nodes that granted it. */
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

/*
 * It counts if its process was known before the round began.  Else it may be that of
 * another node, which voted and restarted: see guard.h.
 */
static core_vote
vote_of(const core_lease *lease, const core_event *event)
{
	if (event->met_us >= lease->round_began_us)
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
		return; /* a straggler of an earlier round */

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
		return; /* after the round's own deadline */
	node->vote = vote_of(lease, event);
	if (lease->state == CORE_ASKING)
		core_decide_acquire(lease, event, out);
	else if (lease->renewing)
		core_decide_renew(lease, event, out);
	else if (event->op == CORE_OP_RENEW && event->reply == CORE_REPLY_NO)
		core_renew_soon(lease);
	else if (event->op == CORE_OP_RENEW)
		core_settle(lease, event, out);
}

/* The answer to an acquire.  False: it comes too late to count as a vote. */
static bool
note_acquired(core_lease *lease, const core_event *event)
{
	core_node *node = &lease->node[event->node];

	if (lease->state == CORE_BUSY && node->vote == CORE_VOTE_PENDING)
		node->vote = vote_of(lease, event); /* for who asks where it was free */
	if (lease->state != CORE_ASKING && lease->state != CORE_HELD)
		return false; /* undone already, after it on the wire */
	if (node->attempt != lease->attempt - lease->renewed)
		return false; /* a renewal was sent after it, which may have set the key */
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

/*
 * The holder that stands in the way, and until when.  The rival is found by majority vote
 * (Boyer and Moore, MJRTY, 1981), which needs no memory of each node.
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
		lease->rival_may_stay = event->may_stay;
	}
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
	/* it may have lost the key, or never had it */
	else if (lease->state == CORE_HELD)
		core_renew_at(lease, event->node, out);
	/* the connection was replaced; what was sent on the old one may have been executed */
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
	/* what an earlier attempt left there, or all if the lease is over */
	else if (lease->state == CORE_RELEASING || lease->state == CORE_BUSY ||
			 (lease->state != CORE_FREE && node->attempt < lease->attempt - lease->renewed))
		core_pay_debts(lease, event, CORE_BIT(event->node), out);
}

/*
 * Time without a shell says nothing of the nodes, so it is not counted as time
 * without a quorum.  A try that was not decided is asked again, too.  A renewal that
 * was out has failed; it would at the end of its round, no answer being able to come.
 */
static void
adopt(core_lease *lease, const core_event *event, core_out *out)
{
	lease->releasing = 0;
	give_up_pending(lease);
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
	bool round_over = event->now_us >= round_ends_us(lease);

	switch (lease->state)
	{
		case CORE_FREE:
		case CORE_LOST:
			break;
		case CORE_ASKING:
			if (round_over)
			{
				give_up_pending(lease);
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
				give_up_pending(lease);
				core_decide_renew(lease, event, out);
			}
			else if (!lease->renewing && event->now_us >= lease->next_at_us)
			{
				/* the next to hold the lock may have another limit */
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

/* The round's time is over: a node that has not answered has not voted. */
static void
give_up_pending(core_lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease->node[i].vote == CORE_VOTE_PENDING || (lease->confirming & CORE_BIT(i)))
			lease->node[i].vote = CORE_VOTE_ERROR;
	lease->confirming = 0;
}

static int64_t
round_ends_us(const core_lease *lease)
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
			lease->wake_at_us = round_ends_us(lease);
			break;
		case CORE_BUSY:
			lease->wake_at_us = lease->next_at_us;
			break;
		case CORE_HELD:
			lease->wake_at_us = min_us(lease->valid_until_us,
									   lease->renewing ? round_ends_us(lease) : lease->next_at_us);
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
