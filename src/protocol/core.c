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
 * Standard headers only: no PostgreSQL, no hiredis, no clock, no malloc.
 */
#include "protocol/core.h"

#include <assert.h>
#include <string.h>

/* Clock drift between us and a node: 1% of the ttl plus 2 ms, as published. */
#define DRIFT_US(ttl_us) ((ttl_us) / 100 + 2000)

/*
 * Renewal begins after a third of the ttl; one that failed, or that some node
 * refused, is soon tried again.
 */
#define RENEW_AFTER_US(ttl_us) ((ttl_us) / 3)
#define RENEW_AGAIN_US(ttl_us) ((ttl_us) / 9)

/*
 * So far above the counter that a node told is the bound raised.  Those who wait ask
 * on, and count up to the time by their clocks; they must not outrun a bound that
 * is raised after RENEW_AGAIN_US at the latest, and takes two exchanges.
 */
#define RAISE_AHEAD_US(ttl_us) ((ttl_us) / 4)

/*
 * Nobody won: the hosts that asked ask again this much apart.  Soon, since there is no
 * holder whose release would be told; but then later and later, since it may be
 * the keys of the dead that stand in the way.
 */
#define SPLIT_SPREAD_US 10000

/* A try that nobody won goes on for so many times as long as one that waits for a recall. */
#define SPLIT_PATIENCE 5

/* Waiters ask this much apart when the keys of a dead holder expire. */
#define EXPIRY_SPREAD_US 10000

/* A try waits for so long, then longer and longer, for a host to give up what it has for nobody. */
#define RECALL_US 500

/* The more hosts wait for a lock, the less often each asks, once they are so many. */
#define CROWD 16

static void begin_acquire(core_lease *lease, const core_event *event, core_out *out);
static uint32_t split_spread_us(const core_lease *lease);
static void begin_renew(core_lease *lease, const core_event *event, core_out *out);
static void limit(core_lease *lease, const core_event *event);
static bool is_at_limit(const core_lease *lease);
static int64_t bound_wanted(const core_lease *lease, const core_event *event);
static void renew_at(core_lease *lease, int node, core_out *out);
static void begin_release(core_lease *lease, const core_event *event, core_out *out);
static void decide_acquire(core_lease *lease, const core_event *event, core_out *out);
static void choose_token(core_lease *lease);
static void confirm(core_lease *lease, const core_event *event, core_out *out);
static core_mask agreed_nodes(const core_lease *lease);
static void fail_acquire(core_lease *lease, const core_event *event, bool unreachable,
						 core_out *out);
static bool try_goes_on(core_lease *lease, const core_event *event, bool sure);
static int32_t waiting_hosts(const core_lease *lease);
static void decide_renew(core_lease *lease, const core_event *event, core_out *out);
static void raise_bound(core_lease *lease, const core_event *event);
static void renew_soon(core_lease *lease);
static void settle(core_lease *lease, const core_event *event, core_out *out);
static void relist(core_lease *lease, const core_event *event, core_out *out);
static void forget_left(core_lease *lease, core_mask nodes);
static bool may_relist(const core_lease *lease);
static core_lists renewing_lists(const core_lease *lease);
static core_vote vote_of(const core_lease *lease, const core_event *event);
static void on_acquire(core_lease *lease, const core_event *event, core_out *out);
static void on_wake(core_lease *lease, const core_event *event, core_out *out);
static void on_reply(core_lease *lease, const core_event *event, core_out *out);
static bool note_acquired(core_lease *lease, const core_event *event);
static void on_refusal(core_lease *lease, const core_event *event);
static void on_node_lost(core_lease *lease, const core_event *event, core_out *out);
static void on_node_ready(core_lease *lease, const core_event *event, core_out *out);
static void adopt(core_lease *lease, const core_event *event, core_out *out);
static void on_tick(core_lease *lease, const core_event *event, core_out *out);
static void pay_debts(core_lease *lease, const core_event *event, core_mask nodes, core_out *out);
static int64_t owed_for_us(const core_lease *lease);
static bool owes(const core_lease *lease);
static void forget_debts(core_lease *lease);
static void give_up_pending(core_lease *lease);
static int64_t round_ends_us(const core_lease *lease);
static void set_wake_at(core_lease *lease);
static int bit_count(core_mask mask);
static int64_t within_limit(const core_lease *lease);
static int64_t min_us(int64_t a, int64_t b);
static int64_t max_us(int64_t a, int64_t b);

void
core_step(core_lease *lease, const core_event *event, core_out *out)
{
	assert(lease->state <= CORE_RELEASING);
	assert((event->can_vote & ~event->can_send) == 0);
	assert((event->can_release & ~event->can_send) == 0);

	memset(out, 0, sizeof(*out));
	/* before the lease is found lost: the limit of the holder before must not end it */
	if (event->type == CORE_LIMIT && lease->state == CORE_HELD)
		limit(lease, event);
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
			on_acquire(lease, event, out);
			break;
		case CORE_RELIST:
			lease->wanted = event->lists;
			if (lease->state == CORE_HELD)
				relist(lease, event, out);
			break;
		case CORE_WAKE:
			on_wake(lease, event, out);
			break;
		case CORE_RELEASE:
			begin_release(lease, event, out);
			break;
		case CORE_FORGET:
			if (lease->state == CORE_RELEASING)
				forget_debts(lease);
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
				begin_renew(lease, event, out);
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
on_acquire(core_lease *lease, const core_event *event, core_out *out)
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
	lease->attempt = 0; /* the value of a request is like no other's */
	lease->lists = lease->wanted = event->lists;
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
	lease->waiting = 0;
	lease->not_before_us = event->once ? 0 : event->not_before_us;
	if (event->now_us < lease->not_before_us)
	{
		lease->state = CORE_BUSY;
		lease->next_at_us = event->not_before_us;
		out->outcome = CORE_MUST_WAIT;
	}
	else
		begin_acquire(lease, event, out);
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
		begin_acquire(lease, event, out);
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
	return lease->state == CORE_RELEASING && lease->renewed ? lease->bound + 1 : 0;
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
 * A new attempt: set the key on all nodes.  Validity counts from here.  If too
 * few nodes can be asked, none is.  A number that is used twice would let late
 * commands touch a key that counts.
 */
static void
begin_acquire(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask voters = lease->members & event->can_vote;
	bool enough = core_has_quorum(lease->lists, voters);

	assert(lease->state == CORE_FREE || lease->state == CORE_BUSY);
	assert(lease->attempt <= CORE_ATTEMPT_MAX);

	if (lease->attempt == CORE_ATTEMPT_MAX)
	{
		begin_release(lease, event, out);
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
		 * For people and tests: it is read only where this round's vote is yes, and
		 * that yes wrote it.  So a stale one would do no harm, and no mutant that
		 * leaves it can be found from outside.
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
		decide_acquire(lease, event, out);
}

static void
decide_acquire(core_lease *lease, const core_event *event, core_out *out)
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

		if (event->now_us >= granted_until_us)
		{
			fail_acquire(lease, event, true, out); /* a yes that comes too late is none */
			return;
		}
		lease->state = CORE_HELD;
		lease->settled = true;
		lease->bound = lease->raise = lease->token;
		lease->hold_until_us =
			lease->hold_at_most_us > 0 ? event->now_us + lease->hold_at_most_us : 0;
		lease->granted_until_us = granted_until_us;
		lease->valid_until_us = within_limit(lease);
		lease->next_at_us = lease->round_began_us + RENEW_AFTER_US(lease->ttl_us);
		out->outcome = CORE_GRANTED;
		if (may_relist(lease))
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

/* A majority said yes: the largest of their counters is the token. */
static void
choose_token(core_lease *lease)
{
	bool chosen = lease->token > 0;

	for (int i = 0; i < CORE_NODES_MAX && !chosen; i++)
		if ((lease->members & CORE_BIT(i)) && lease->node[i].vote == CORE_VOTE_YES)
			lease->token = max_us(lease->token, lease->token_at[i]);
}

/* Write it to those who have a smaller one. */
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

/* Nodes that hold our key and exactly our token. */
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
 * Not acquired.  Undo what was or may be set; the release travels after the
 * acquire on each connection, so even a late grant is undone.
 */
static void
fail_acquire(core_lease *lease, const core_event *event, bool unreachable, core_out *out)
{
	bool silent = lease->rival_lead > 0 && lease->rival_is_silent;
	bool sure = lease->rival_lead >= core_quorum(lease->members); /* of a holder */
	int64_t retry_us = !unreachable && (silent || !sure) ? lease->unheard_us : lease->retry_us;
	bool split = !sure && (lease->once || core_count(lease, CORE_VOTE_YES) > 0);
	int64_t crowd;
	int64_t spread_us;

	lease->waiting = waiting_hosts(lease);
	crowd = 1 + lease->waiting / CROWD;
	spread_us = EXPIRY_SPREAD_US + (crowd - 1) * retry_us;
	lease->splits = split && !unreachable ? lease->splits + 1 : 0;
	lease->token = 0;
	lease->confirming = 0;
	out->confirm = 0;
	pay_debts(lease, event, lease->members, out);
	if (!unreachable)
		lease->unreachable_since_us = 0;
	else if (lease->unreachable_since_us == 0)
		lease->unreachable_since_us = lease->round_began_us;

	if (lease->once
			? unreachable || !try_goes_on(lease, event, sure)
			: unreachable && event->now_us - lease->unreachable_since_us >= lease->patience_us)
	{
		begin_release(lease, event, out);
		/* a try that waits for a recall was refused by a quorum before */
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
	out->outcome = CORE_MUST_WAIT;
}

/*
 * As many as a majority of the nodes say: what fewer say may be a lie, or old, and would keep us
 * from asking.  Where fewer were in the way it is what was known before.
 */
static int32_t
waiting_hosts(const core_lease *lease)
{
	int32_t most = -1;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int saying = 0; /* so many, or more */

		for (int j = 0; j < CORE_NODES_MAX; j++)
			saying +=
				lease->node[j].vote == CORE_VOTE_NO && lease->waiting_at[j] >= lease->waiting_at[i];
		if (saying >= core_quorum(lease->lists.now))
			most = max_us(most, lease->waiting_at[i]);
	}
	return most >= 0 ? most : lease->waiting;
}

/*
 * A try is refused by the first round that finds a holder, unless that one may have the lock for
 * nobody.  Such a host gives it up at once when it hears of the try, which may just have been in
 * vain.  Where no holder is found all who asked may have refused each other, and ask again, for
 * longer: the next round may be split, too.
 */
static bool
try_goes_on(core_lease *lease, const core_event *event, bool sure)
{
	if (sure && !lease->rival_may_stay)
		return false;
	if (lease->recall_until_us == 0)
		lease->recall_until_us = event->now_us + lease->patience_us * (sure ? 1 : SPLIT_PATIENCE);
	return event->now_us < lease->recall_until_us;
}

static uint32_t
split_spread_us(const core_lease *lease)
{
	int64_t spread_us = SPLIT_SPREAD_US;

	/* each that tries may be near another node: they have to be farther apart than the ways */
	if (lease->once)
		spread_us = max_us(spread_us, lease->patience_us);
	for (uint32_t i = 1; i < lease->splits && spread_us < lease->retry_us; i++)
		spread_us *= 2;
	return spread_us;
}

static void
begin_renew(core_lease *lease, const core_event *event, core_out *out)
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
			renew_at(lease, i, out);
		else
			lease->node[i].vote = CORE_VOTE_ERROR;
	}
	decide_renew(lease, event, out);
}

/*
 * The limit of a holder says nothing of the keys: these are ours until granted_until_us, for
 * whoever holds the lock.  Where the lease was at its limit, no renewal was due.
 */
static void
limit(core_lease *lease, const core_event *event)
{
	if (is_at_limit(lease))
		lease->next_at_us =
			min_us(lease->next_at_us, lease->round_began_us + RENEW_AFTER_US(lease->ttl_us));
	lease->hold_until_us = event->hold_until_us;
	lease->valid_until_us = within_limit(lease);
}

/* A renewal could add nothing. */
static bool
is_at_limit(const core_lease *lease)
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
static void
renew_at(core_lease *lease, int node, core_out *out)
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
static void
decide_renew(core_lease *lease, const core_event *event, core_out *out)
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
		lease->valid_until_us = within_limit(lease);
		lease->next_at_us = lease->round_began_us + RENEW_AFTER_US(lease->ttl_us);
		if (no != 0)
			renew_soon(lease);
		raise_bound(lease, event);
		lease->renewing = false;
		out->outcome = CORE_RENEWED;
		settle(lease, event, out);
		if (!lease->settled)
			renew_soon(lease);
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
static void
settle(core_lease *lease, const core_event *event, core_out *out)
{
	if (core_has_quorum(lease->lists, core_votes(lease, CORE_VOTE_YES)))
		lease->settled = true;
	relist(lease, event, out);
}

/*
 * A list that is the same for those who have one, and those who have both, keeps them
 * apart; so one may come beside it, or be taken away.  It may go itself when the key is
 * at a majority of the other, and each renewal since has needed that.
 */
static void
relist(core_lease *lease, const core_event *event, core_out *out)
{
	core_mask gone;

	if (!may_relist(lease))
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
	lease->owed_until_us = event->now_us + owed_for_us(lease);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		lease->node[i].vote = CORE_VOTE_NONE; /* it was of the former lists */
		if (gone & CORE_BIT(i))
		{
			lease->token_at[i] = 0;
			if (lease->node[i].key == CORE_KEY_ABSENT)
				forget_left(lease, CORE_BIT(i));
		}
	}
	pay_debts(lease, event, lease->left, out);
}

/* The key is not there any more. */
static void
forget_left(core_lease *lease, core_mask nodes)
{
	nodes &= lease->left;
	lease->left &= ~nodes;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (nodes & CORE_BIT(i))
			lease->node[i].key = CORE_KEY_ABSENT;
}

static bool
may_relist(const core_lease *lease)
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
static void
renew_soon(core_lease *lease)
{
	lease->next_at_us =
		min_us(lease->next_at_us, lease->round_began_us + RENEW_AGAIN_US(lease->ttl_us));
}

static void
begin_release(core_lease *lease, const core_event *event, core_out *out)
{
	if (lease->state == CORE_FREE || lease->state == CORE_RELEASING)
		return;

	lease->silent =
		lease->state == CORE_BUSY || (lease->state == CORE_ASKING && event->type != CORE_RELEASE);
	if (lease->state == CORE_ASKING)
		lease->token = 0; /* nobody was told of it */
	lease->state = CORE_RELEASING;
	lease->renewing = false;
	lease->confirming = 0;
	lease->granted_until_us = lease->valid_until_us = 0;
	lease->owed_until_us = event->now_us + owed_for_us(lease);
	lease->next_at_us = event->now_us + lease->retry_us;
	pay_debts(lease, event, lease->members | lease->left, out);
	on_tick(lease, event, out);
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
				decide_acquire(lease, event, out);
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
				forget_left(lease, CORE_BIT(event->node));
			if (lease->state == CORE_RELEASING)
				on_tick(lease, event, out);
			return;
	}

	if (node->vote != CORE_VOTE_PENDING)
		return; /* after the round's own deadline */
	node->vote = vote_of(lease, event);
	if (lease->state == CORE_ASKING)
		decide_acquire(lease, event, out);
	else if (lease->renewing)
		decide_renew(lease, event, out);
	else if (event->op == CORE_OP_RENEW && event->reply == CORE_REPLY_NO)
		renew_soon(lease);
	else if (event->op == CORE_OP_RENEW)
		settle(lease, event, out);
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
		decide_acquire(lease, event, out);
	else if (lease->renewing)
		decide_renew(lease, event, out);
}

static void
on_node_ready(core_lease *lease, const core_event *event, core_out *out)
{
	core_node *node = &lease->node[event->node];

	assert(event->node >= 0 && event->node < CORE_NODES_MAX);

	if (!((lease->members | lease->left) & event->can_send & CORE_BIT(event->node)))
		return;
	if (lease->left & CORE_BIT(event->node))
		pay_debts(lease, event, CORE_BIT(event->node), out);
	/* it may have lost the key, or never had it */
	else if (lease->state == CORE_HELD)
		renew_at(lease, event->node, out);
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
		pay_debts(lease, event, CORE_BIT(event->node), out);
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
		decide_renew(lease, event, out);
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
				decide_acquire(lease, event, out);
			}
			break;
		case CORE_BUSY:
			if (event->now_us >= lease->next_at_us)
				begin_acquire(lease, event, out);
			break;
		case CORE_HELD:
			if (event->now_us >= lease->owed_until_us)
				forget_left(lease, lease->left);
			relist(lease, event, out);
			if (lease->renewing && round_over)
			{
				give_up_pending(lease);
				decide_renew(lease, event, out);
			}
			else if (!lease->renewing && event->now_us >= lease->next_at_us)
			{
				/* the next to hold the lock may have another limit */
				if (is_at_limit(lease))
					lease->next_at_us = event->now_us + RENEW_AGAIN_US(lease->ttl_us);
				else
					begin_renew(lease, event, out);
			}
			break;
		case CORE_RELEASING:
			if (event->now_us >= lease->owed_until_us || !owes(lease))
				forget_debts(lease);
			else if (event->now_us >= lease->next_at_us)
			{
				/* as long again as it has taken so far */
				lease->next_at_us =
					event->now_us + max_us(lease->retry_us, event->now_us - lease->owed_until_us +
																owed_for_us(lease));
				pay_debts(lease, event, lease->members | lease->left, out);
			}
			break;
	}
}

/* What is on the wire now may be executed as late as answer_us from now. */
static int64_t
owed_for_us(const core_lease *lease)
{
	return lease->answer_us + lease->ttl_us + DRIFT_US(lease->ttl_us);
}

/*
 * Ask for the deletion of whatever may be there on these nodes.  The undoing of a
 * round can't wait: it blocks others, who hold nothing either.
 */
static void
pay_debts(core_lease *lease, const core_event *event, core_mask nodes, core_out *out)
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

static void
forget_debts(core_lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		lease->node[i].key = CORE_KEY_ABSENT;
	lease->releasing = lease->left = 0;
	lease->state = CORE_FREE;
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

/* No lease is valid for longer than hold_at_most allows. */
static int64_t
within_limit(const core_lease *lease)
{
	return lease->hold_until_us > 0 ? min_us(lease->granted_until_us, lease->hold_until_us)
									: lease->granted_until_us;
}

static int64_t
min_us(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t
max_us(int64_t a, int64_t b)
{
	return a > b ? a : b;
}
