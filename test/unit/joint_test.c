/*
 * joint_test.c
 *		Unit tests of a lease on two lists of nodes, src/protocol/core.c.
 *
 * Protects from: a lock granted or renewed without a majority of each list in force; a lease lost
 * by the arrival of another list, or never moved to it; a list taking over too early; keys left
 * behind.
 *
 * All combinations of votes of some pairs of lists, against an oracle that counts in another way
 * than core.c; and stories.  Each step obeys the laws in laws.c.
 */
#include "protocol/core.h"

#include <string.h>

#include "laws.h"
#include "tap.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)
#define TTL_US (9 * SECOND)
#define VALIDITY_US (9 * SECOND - 90 * MS - 2 * MS)
#define ANSWER_US (500 * MS)
#define COUNTER 100

static core_lease lease;
static core_out out; /* of the last step */
static int64_t now_us;
static core_mask up;
static const char *broken_law;

static core_mask
set(const char *digits)
{
	core_mask mask = 0;

	for (; *digits != '\0'; digits++)
		mask |= CORE_BIT(*digits - '0');
	return mask;
}

static core_lists
lists(const char *now, const char *next)
{
	return (core_lists){set(now), set(next)};
}

static void
happens(core_event event)
{
	core_lease before = lease;

	event.now_us = now_us;
	event.can_send = event.can_vote = event.can_release = up;
	event.random = 0;
	core_step(&lease, &event, &out);
	if (broken_law == NULL)
		broken_law = laws_broken(&before, &event, &lease, &out);
}

static void
start(core_lists of, bool once)
{
	memset(&lease, 0, sizeof(lease));
	now_us = 1000 * SECOND;
	up = CORE_BIT(10) - 1;
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = of,
						 .once = once,
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = once ? 0 : SECOND,
						 .retry_us = 200 * MS});
}

static void
answer(int node, core_op op, core_reply reply)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = op,
						 .reply = reply,
						 .round = lease.round,
						 .token = op == CORE_OP_ACQUIRE && reply == CORE_REPLY_YES ? COUNTER : 0});
}

static void
all_answer(const char *nodes, core_op op, core_reply reply)
{
	for (; *nodes != '\0'; nodes++)
		answer(*nodes - '0', op, reply);
}

static void
renewed_by(const char *nodes)
{
	all_answer(nodes, CORE_OP_RENEW, CORE_REPLY_YES);
}

static void
hold(core_lists of)
{
	start(of, true);
	for (int i = 0; i < 10; i++)
		if ((of.now | of.next) & CORE_BIT(i))
			answer(i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
}

static void
relist(core_lists to)
{
	happens((core_event){.type = CORE_RELIST, .lists = to});
}

static void
tick(void)
{
	now_us = lease.wake_at_us;
	happens((core_event){.type = CORE_TICK});
}

static bool
is_on(core_lists these)
{
	return lease.state == CORE_HELD && lease.lists.now == these.now &&
		   lease.lists.next == these.next && lease.members == (these.now | these.next);
}

/* ---- every combination of votes ---- */

enum
{
	SAYS_YES,
	SAYS_NO,
	SAYS_ERROR,
	SAYS_NEVER,
	ANSWERS
};

static const struct
{
	const char *now;
	const char *next;
} pairs[] = {{"0", "1"},     {"0", "01"},     {"012", "345"}, {"012", "234"},
			 {"012", "012"}, {"012", "0123"}, {"01", "2345"}, {"0123", "45"}};

static bool
is_majority(core_mask list, core_mask nodes)
{
	int of_list = 0, of_nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		of_list += (list >> i) & 1;
		of_nodes += ((list & nodes) >> i) & 1;
	}
	return list == 0 || of_nodes > of_list - of_nodes;
}

static bool
are_majorities(core_lists of, core_mask nodes)
{
	return is_majority(of.now, nodes) && is_majority(of.next, nodes);
}

static core_outcome
final_outcome(core_lists of, core_mask yes, core_mask no)
{
	return are_majorities(of, yes)        ? CORE_GRANTED
		   : are_majorities(of, yes | no) ? CORE_REFUSED
										  : CORE_UNREACHABLE;
}

/* The outcome that all possible missing votes lead to. */
static core_outcome
oracle(core_lists of, core_mask yes, core_mask no, core_mask error)
{
	core_mask missing = (of.now | of.next) & ~(yes | no | error);
	core_outcome certain = final_outcome(of, yes, no);

	for (core_mask a = missing;; a = (a - 1) & missing)
	{
		for (core_mask b = missing & ~a;; b = (b - 1) & missing & ~a)
		{
			if (final_outcome(of, yes | a, no | b) != certain)
				return CORE_NOTHING;
			if (b == 0)
				break;
		}
		if (a == 0)
			return certain;
	}
}

static bool
round_goes_right(core_lists of, int script)
{
	core_mask said[ANSWERS] = {0};
	core_outcome outcome = CORE_NOTHING;

	start(of, true);
	for (int i = 0; i < 6 && outcome == CORE_NOTHING; i++)
	{
		int says = (script >> (2 * i)) % ANSWERS;

		if (!((of.now | of.next) & CORE_BIT(i)) || says == SAYS_NEVER)
			continue;
		said[says] |= CORE_BIT(i);
		answer(i, CORE_OP_ACQUIRE,
			   says == SAYS_YES  ? CORE_REPLY_YES
			   : says == SAYS_NO ? CORE_REPLY_NO
								 : CORE_REPLY_ERROR);
		outcome = oracle(of, said[SAYS_YES], said[SAYS_NO], said[SAYS_ERROR]);
		if (out.outcome != outcome)
			return false;
	}
	if (outcome != CORE_NOTHING)
		return outcome != CORE_GRANTED || (lease.state == CORE_HELD && lease.settled);
	tick();
	return out.outcome == final_outcome(of, said[SAYS_YES], said[SAYS_NO]);
}

/* The list that had the lease before counts, until each list has granted the lease once. */
static bool
renewal_goes_right(core_lists of, int script, bool settled)
{
	core_lists count = settled ? of : (core_lists){of.now, 0};
	core_mask all = of.now | of.next;
	core_mask said[ANSWERS] = {0};
	bool renewed = false, over = false;

	hold(settled ? of : (core_lists){of.now, 0});
	now_us++;
	relist(of);
	tick();
	if (out.renew != all)
		return false;
	for (int i = 0; i < 6; i++)
	{
		int says = (script >> (2 * i)) % ANSWERS;
		core_outcome expected = CORE_NOTHING;

		if (!(all & CORE_BIT(i)) || says == SAYS_NEVER)
			continue;
		said[says] |= CORE_BIT(i);
		answer(i, CORE_OP_RENEW,
			   says == SAYS_YES  ? CORE_REPLY_YES
			   : says == SAYS_NO ? CORE_REPLY_NO
								 : CORE_REPLY_ERROR);
		if (!over && are_majorities(count, said[SAYS_YES]))
			expected = CORE_RENEWED;
		else if (says == SAYS_NO && !are_majorities(count, ~said[SAYS_NO]))
			expected = CORE_EXPIRED;
		else if (!over && !are_majorities(count, ~(said[SAYS_NO] | said[SAYS_ERROR])))
			expected = CORE_UNRENEWED;
		over = over || expected != CORE_NOTHING;
		renewed = renewed || expected == CORE_RENEWED;
		if (out.outcome != expected)
			return false;
		if (expected == CORE_EXPIRED)
			return true;
	}
	if (lease.settled != (settled || are_majorities(of, said[SAYS_YES])))
		return false;
	return !renewed || lease.valid_until_us == lease.round_began_us + VALIDITY_US;
}

static void
test_all_votes(void)
{
	for (size_t p = 0; p < sizeof(pairs) / sizeof(*pairs); p++)
	{
		core_lists of = lists(pairs[p].now, pairs[p].next);
		int wrong[3] = {0};

		for (int script = 0; script < 1 << 12; script++)
		{
			wrong[0] += !round_goes_right(of, script);
			wrong[1] += !renewal_goes_right(of, script, true);
			wrong[2] += of.now != of.next && !renewal_goes_right(of, script, false);
		}
		ok(wrong[0] == 0,
		   "%s and %s: granted by a majority of each, decided neither early nor late", pairs[p].now,
		   pairs[p].next);
		ok(wrong[1] == 0, "... renewed by a majority of each");
		ok(wrong[2] == 0, "... before it is settled, by the old list");
	}
}

/* ---- stories ---- */

static void
test_whole_change(void)
{
	hold(lists("012", ""));
	relist(lists("012", "345"));
	ok(is_on(lists("012", "345")) && !lease.settled, "a held lease gets the next list at once");
	tick();
	ok(now_us < 1000 * SECOND + TTL_US / 9 + 1 && out.renew == set("012345"),
	   "soon it is renewed at all nodes of both");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED && !lease.settled, "the old list decides, as long as the next "
													  "one has not had it");
	renewed_by("3");
	ok(!lease.settled, "one of three is no majority");
	renewed_by("4");
	ok(lease.settled, "answers that come after the decision count, too");
	relist(lists("678", ""));
	ok(is_on(lists("012", "345")), "then a third list does not take over,");
	relist(lists("345", ""));
	ok(is_on(lists("345", "")) && out.release == set("012"),
	   "but the next list does, and what is at the old one is released");
	ok(core_served_by(&lease) == set("012345"), "the old one is needed until that is answered");
	all_answer("012", CORE_OP_RELEASE, CORE_REPLY_YES);
	ok(core_served_by(&lease) == set("345"), "and then no more");
	tick();
	ok(out.renew == set("345"), "it is renewed by the new list alone");
	renewed_by("34");
	ok(out.outcome == CORE_RENEWED, "which is enough");
}

static void
test_slow_next_list(void)
{
	hold(lists("012", ""));
	relist(lists("012", "345"));
	for (int i = 0; i < 3; i++)
	{
		tick();
		renewed_by("012");
		all_answer("345", CORE_OP_RENEW, CORE_REPLY_ERROR);
	}
	ok(lease.state == CORE_HELD && !lease.settled, "a next list that fails costs no lease");
	relist(lists("345", ""));
	ok(is_on(lists("012", "345")), "it does not take over before it has the lease");
	tick();
	ok(out.renew == set("012345"), "but is asked again and again");
	renewed_by("012");
	renewed_by("34");
	ok(is_on(lists("345", "")), "it takes over when it has it");
}

static void
test_settled_needs_both(void)
{
	hold(lists("012", "345"));
	ok(lease.settled, "what was granted by both is settled");
	tick();
	renewed_by("012");
	ok(out.outcome == CORE_NOTHING, "then a renewal needs both");
	all_answer("34", CORE_OP_RENEW, CORE_REPLY_ERROR);
	ok(out.outcome == CORE_UNRENEWED && lease.valid_until_us == 1000 * SECOND + VALIDITY_US,
	   "and fails without one of them");
}

static void
test_way_back(void)
{
	hold(lists("012", ""));
	relist(lists("012", "345"));
	tick();
	renewed_by("0123");
	relist(lists("012", ""));
	ok(is_on(lists("012", "")) && lease.settled && out.release == set("345"),
	   "a next list may be taken away, settled or not");
	up &= ~set("3");
	happens((core_event){.type = CORE_NODE_LOST, .node = 3});
	all_answer("45", CORE_OP_RELEASE, CORE_REPLY_YES);
	up |= set("3");
	happens((core_event){.type = CORE_NODE_READY, .node = 3});
	ok(out.release == set("3"), "a node that was away is told when it is back");
	answer(3, CORE_OP_RELEASE, CORE_REPLY_NO);
	ok(core_served_by(&lease) == set("012"), "and is left then");
	relist(lists("012", "345"));
	tick();
	ok(lease.node[3].attempt == lease.attempt && lease.attempt == 3,
	   "when it comes again, it gets a value that no late release can delete");
}

static void
test_left_node_stays_away(void)
{
	hold(lists("012", "345"));
	up &= ~set("0");
	happens((core_event){.type = CORE_NODE_LOST, .node = 0});
	relist(lists("345", ""));
	all_answer("12", CORE_OP_RELEASE, CORE_REPLY_YES);
	ok(core_served_by(&lease) == set("0345"), "a node that is away is not forgotten");
	for (int i = 0; i < 4; i++)
	{
		tick();
		renewed_by("345");
	}
	ok(lease.state == CORE_HELD && core_served_by(&lease) == set("345"),
	   "before its key has expired");
}

static void
test_leap(void)
{
	hold(lists("012", ""));
	relist(lists("345", ""));
	ok(is_on(lists("012", "")), "lists that follow each other at once do not move a lease");
	relist(lists("345", "012"));
	ok(is_on(lists("012", "")), "nor does the old list as the next one");
	tick();
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED && is_on(lists("012", "")), "it stays where it was granted");
	relist(lists("012", "678"));
	ok(is_on(lists("012", "678")), "but gets a next list that comes to its own");
	relist(lists("012", "345"));
	ok(is_on(lists("012", "345")) && !lease.settled && out.release == 0,
	   "or another one, and owes nothing where it was not yet");
}

static void
test_try_in_flight(void)
{
	start(lists("012", ""), true);
	relist(lists("012", "345"));
	ok(lease.lists.next == 0 && !core_must_move(&lease, lists("012", "345")),
	   "a try that is out stays with the lists that it has");
	all_answer("01", CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(out.outcome == CORE_GRANTED && lease.wake_at_us == now_us, "when it is granted");
	tick();
	ok(is_on(lists("012", "345")) && !lease.settled, "it gets the others at once");
	start(lists("012", ""), false);
	ok(core_must_move(&lease, lists("012", "345")), "a request that can wait moves");
}

static void
test_former_votes(void)
{
	/* an earlier lease of this entry had the new nodes */
	hold(lists("345", ""));
	happens((core_event){.type = CORE_RELEASE});
	all_answer("345", CORE_OP_RELEASE, CORE_REPLY_YES);
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = lists("012", ""),
						 .once = true,
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = SECOND,
						 .retry_us = 200 * MS});
	all_answer("012", CORE_OP_ACQUIRE, CORE_REPLY_YES);
	tick();
	relist(lists("012", "345"));
	renewed_by("012");
	ok(is_on(lists("012", "345")) && !lease.settled,
	   "answers to what was asked before do not settle a lease");
	up &= ~set("1");
	happens((core_event){.type = CORE_NODE_LOST, .node = 1});
	up |= set("1");
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	renewed_by("1");
	ok(!lease.settled, "nor does what nodes said to an earlier lease");
}

static void
test_release(void)
{
	hold(lists("012", ""));
	tick();
	renewed_by("012");
	relist(lists("012", "345"));
	tick();
	renewed_by("012345");
	up &= ~set("0");
	relist(lists("345", ""));
	ok(out.release == set("12") &&
		   core_command_to(&lease, 1, CORE_OP_RELEASE).counter == lease.bound + 1,
	   "a renewal that comes late to a node that was left does nothing");
	up |= set("0");
	happens((core_event){.type = CORE_RELEASE});
	ok(out.release == set("0345"), "the end of a lease pays what it owes where it was, too");
	all_answer("012345", CORE_OP_RELEASE, CORE_REPLY_YES);
	ok(lease.state == CORE_FREE && core_served_by(&lease) == 0, "and then it is over");
}

static void
test_lost(void)
{
	hold(lists("012", "345"));
	tick();
	renewed_by("012345");
	up &= ~set("0");
	happens((core_event){.type = CORE_NODE_LOST, .node = 0});
	relist(lists("345", ""));
	now_us = lease.valid_until_us;
	happens((core_event){.type = CORE_TICK});
	up |= set("0");
	happens((core_event){.type = CORE_NODE_READY, .node = 0});
	ok(out.outcome == CORE_NOTHING && lease.state == CORE_LOST && out.release == set("0") &&
		   core_command_to(&lease, 0, CORE_OP_RELEASE).counter == lease.bound + 1,
	   "nor does one of a lease that was lost since");
}

/*
 * A lost lease releases an earlier attempt at a node that comes back.  A renewal of this attempt
 * may come late.
 */
static void
test_lost_and_owing(void)
{
	hold(lists("012", ""));
	tick();
	up &= ~set("0");
	happens((core_event){.type = CORE_NODE_LOST, .node = 0});
	relist(lists("012", "345"));
	relist(lists("012", ""));
	relist(lists("012", "345"));
	while (lease.state == CORE_HELD)
		tick();
	up |= set("0");
	happens((core_event){.type = CORE_NODE_READY, .node = 0});
	ok(lease.state == CORE_LOST && out.release == set("0"), "a lost lease releases what it owes");
	ok(core_command_to(&lease, 0, CORE_OP_RELEASE).counter == lease.bound + 1,
	   "invariant 6: with a tombstone");
}

static void
test_many_at_once(void)
{
	core_event event = {.type = CORE_RELIST, .lists = lists("012", "345")};
	core_out sent;
	int64_t first_us = INT64_MAX, last_us = 0;

	for (uint32_t i = 0; i < 1000; i++)
	{
		hold(lists("012", ""));
		event.now_us = now_us;
		event.can_send = event.can_vote = event.can_release = up;
		event.random = i * 1001;
		core_step(&lease, &event, &sent);
		first_us = lease.wake_at_us < first_us ? lease.wake_at_us : first_us;
		last_us = lease.wake_at_us > last_us ? lease.wake_at_us : last_us;
	}
	ok(first_us - now_us < 10 * MS && last_us - now_us > TTL_US / 9 - 10 * MS &&
		   last_us - now_us <= TTL_US / 9,
	   "a thousand leases do not ask at once");
}

int
main(void)
{
	test_all_votes();
	test_whole_change();
	test_slow_next_list();
	test_settled_needs_both();
	test_way_back();
	test_left_node_stays_away();
	test_leap();
	test_try_in_flight();
	test_former_votes();
	test_release();
	test_lost();
	test_lost_and_owing();
	test_many_at_once();

	if (broken_law != NULL)
		printf("# broken: %s\n", broken_law);
	ok(broken_law == NULL, "all laws hold after each step");
	return tap_done();
}
