/*
 * core_test.c
 *		Unit tests of the Redlock protocol of one lease, src/protocol/core.c.
 *
 * Two kinds of tests:
 *
 * - Stories: a few events in order, and what the lease should ask for after each event.
 *   Most stories play with nodes 0, 1, 2 .. of one global lease; set("02") is a set of nodes.
 * - Every combination of votes for N = 1 to 7, against an oracle that counts in another way
 *   than core.c: an outcome is due as soon as all possible missing votes lead to it, and not
 *   before.  For N = 1 to 5 also votes with different counters, and answers to the confirms.
 *
 * Each step obeys the laws in laws.c.  The simulator (test/sim) tests slow, lossy and repeating
 * networks, under the same laws.
 */
#include "protocol/core.h"

#include <string.h>

#include "laws.h"
#include "tap.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)

/* Times of the stories; the validity is written out, not computed by core.c. */
#define TTL_US (10 * SECOND)
#define VALIDITY_US (10 * SECOND - 100 * MS - 2 * MS)
#define ANSWER_US (500 * MS)
#define OWED_US (ANSWER_US + TTL_US + 100 * MS + 2 * MS)
#define RETRY_US (200 * MS)
#define PATIENCE_US (3 * SECOND)

/* The counter of a granting node, unless a story says another. */
#define COUNTER 100

#define N_MAX 7

static const int quorum_of[N_MAX + 1] = {0, 1, 2, 2, 3, 3, 4, 4};

static long steps_taken;
static const char *broken_law;

static void
lawful_step(core_lease *lease, const core_event *event, core_out *out)
{
	core_lease before = *lease;

	core_step(lease, event, out);
	if (broken_law == NULL)
		broken_law = laws_broken(&before, event, lease, out);
	steps_taken++;
}

/* ---- the words of the stories ---- */

static core_lease lease;
static core_out out; /* of the last step */
static int64_t now_us;
static core_mask members;
static core_mask up;          /* nodes that take commands */
static core_mask quarantined; /* nodes that may not grant */
static core_mask full;        /* nodes that take no more releases for now */
static uint32_t random_bits;
static int64_t patience_of_a_try_us; /* 0: the first round decides each try */

static core_mask
first_nodes(int n)
{
	return CORE_BIT(n) - 1;
}

static core_mask
set(const char *digits)
{
	core_mask mask = 0;

	for (; *digits != '\0'; digits++)
		mask |= CORE_BIT(*digits - '0');
	return mask;
}

static void
happens(core_event event)
{
	event.now_us = now_us;
	event.can_send = up;
	event.can_vote = up & ~quarantined;
	event.can_release = up & ~full;
	event.random = random_bits;
	lawful_step(&lease, &event, &out);
}

static void
start(int n)
{
	memset(&lease, 0, sizeof(lease));
	now_us = 1000 * SECOND;
	members = up = first_nodes(n);
	quarantined = full = 0;
	random_bits = 12345;
}

static void
acquire_not_before(int64_t instant_us, bool once)
{
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = {members, 0},
						 .once = once,
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = once ? patience_of_a_try_us : PATIENCE_US,
						 .retry_us = RETRY_US,
						 .not_before_us = instant_us});
}

static void
acquire(bool once)
{
	acquire_not_before(0, once);
}

static void
acquire_once(void)
{
	acquire(true);
}

static void
acquire_waiting(void)
{
	acquire(false);
}

static void
release(void)
{
	happens((core_event){.type = CORE_RELEASE});
}

static void
tick(void)
{
	happens((core_event){.type = CORE_TICK});
}

static void
later(int64_t us)
{
	now_us += us;
}

static void
tick_at(int64_t instant_us)
{
	now_us = instant_us;
	tick();
}

static void
node_lost(int node)
{
	up &= ~CORE_BIT(node);
	happens((core_event){.type = CORE_NODE_LOST, .node = node});
}

static void
node_ready(int node)
{
	up |= CORE_BIT(node);
	happens((core_event){.type = CORE_NODE_READY, .node = node});
}

static void
reply_of_round(uint32_t round, int node, core_op op, core_reply reply)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = op,
						 .reply = reply,
						 .round = round,
						 .token = op == CORE_OP_ACQUIRE && reply == CORE_REPLY_YES ? COUNTER : 0});
}

/* Each named node answers the command of the current round. */
static void
reply(const char *nodes, core_op op, core_reply reply)
{
	for (; *nodes != '\0'; nodes++)
		reply_of_round(lease.round, *nodes - '0', op, reply);
}

static void
granted_by(const char *nodes)
{
	reply(nodes, CORE_OP_ACQUIRE, CORE_REPLY_YES);
}

/* The same, with further fields of the answer. */
static void
reply_with(const char *nodes, core_event event)
{
	event.type = CORE_REPLY;
	event.round = lease.round;
	for (; *nodes != '\0'; nodes++)
	{
		event.node = *nodes - '0';
		happens(event);
	}
}

/* The named nodes grant, with this counter. */
static void
granted_with(const char *nodes, int64_t counter)
{
	reply_with(nodes,
			   (core_event){.op = CORE_OP_ACQUIRE, .reply = CORE_REPLY_YES, .token = counter});
}

static void
confirmed_by(const char *nodes)
{
	reply(nodes, CORE_OP_CONFIRM, CORE_REPLY_YES);
}

static void
confirm_refused_by(const char *nodes)
{
	reply(nodes, CORE_OP_CONFIRM, CORE_REPLY_NO);
}

static void
confirm_fails_at(const char *nodes)
{
	reply(nodes, CORE_OP_CONFIRM, CORE_REPLY_ERROR);
}

static void
refused_by(const char *nodes)
{
	reply(nodes, CORE_OP_ACQUIRE, CORE_REPLY_NO);
}

/* The named nodes refuse: this host holds the lock. */
static void
refused_by_host(const char *nodes, uint32_t host)
{
	reply_with(nodes, (core_event){.op = CORE_OP_ACQUIRE, .reply = CORE_REPLY_NO, .holder = host});
}

/* The named nodes refuse: the lease of another host may be idle. */
static void
refused_by_stay(const char *nodes)
{
	reply_with(nodes,
			   (core_event){.op = CORE_OP_ACQUIRE, .reply = CORE_REPLY_NO, .may_idle = true});
}

static void
acquire_fails_at(const char *nodes)
{
	reply(nodes, CORE_OP_ACQUIRE, CORE_REPLY_ERROR);
}

static void
renewed_by(const char *nodes)
{
	reply(nodes, CORE_OP_RENEW, CORE_REPLY_YES);
}

static void
renewal_refused_by(const char *nodes)
{
	reply(nodes, CORE_OP_RENEW, CORE_REPLY_NO);
}

static void
renewal_fails_at(const char *nodes)
{
	reply(nodes, CORE_OP_RENEW, CORE_REPLY_ERROR);
}

static void
released_by(const char *nodes)
{
	reply(nodes, CORE_OP_RELEASE, CORE_REPLY_YES);
}

static void
release_fails_at(const char *nodes)
{
	reply(nodes, CORE_OP_RELEASE, CORE_REPLY_ERROR);
}

/* All releases under way are answered. */
static void
all_undone(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (lease.releasing & CORE_BIT(i))
			reply_of_round(lease.round, i, CORE_OP_RELEASE, CORE_REPLY_YES);
}

static bool
nothing_sent(void)
{
	return (out.acquire | out.confirm | out.renew | out.release) == 0;
}

/* The last step had no visible effect. */
static bool
nothing_said(void)
{
	return nothing_sent() && out.outcome == CORE_NOTHING;
}

/* The key may be at these nodes, and was not released. */
static bool
owes_all_of(const char *nodes)
{
	for (; *nodes != '\0'; nodes++)
		if (lease.node[*nodes - '0'].key == CORE_KEY_ABSENT)
			return false;
	return true;
}

/* The lease is HELD, granted by all n nodes. */
static void
hold(int n)
{
	start(n);
	acquire_once();
	for (int i = 0; i < n; i++)
		reply_of_round(lease.round, i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
}

/* HELD by all n nodes, and a round of renewals is out. */
static void
hold_and_renew(int n)
{
	hold(n);
	tick_at(lease.wake_at_us);
}

/* BUSY on three nodes: 0 had granted, 1 and 2 refuse; 0 was told to release. */
static void
lose_the_race(void)
{
	start(3);
	acquire_waiting();
	granted_by("0");
	refused_by("12");
}

/* ---- quorum, validity ---- */

static void
test_quorum(void)
{
	for (int n = 1; n <= N_MAX; n++)
		ok(core_quorum(first_nodes(n)) == quorum_of[n], "invariant 4: the quorum of %d is %d", n,
		   quorum_of[n]);
	ok(core_quorum(set("1357") | CORE_BIT(15)) == 3,
	   "invariant 4: the quorum counts nodes, wherever their entries are");
	ok(CORE_NODES_MAX == 16 && core_quorum(first_nodes(CORE_NODES_MAX)) == 9,
	   "invariant 4: the quorum of all entries is 9");
}

static void
test_validity(void)
{
	ok(core_validity_us(10 * SECOND) == 9898 * MS, "a ttl of 10 s is valid for 9.898 s");
	ok(core_validity_us(1 * SECOND) == 988 * MS, "a ttl of 1 s is valid for 988 ms");
	ok(core_validity_us(2 * MS) <= 0, "a ttl of 2 ms is never valid");
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

enum
{
	UPWARDS,
	DOWNWARDS,
	EVENS_FIRST,
	ORDERS
};

/* The outcome when no vote is missing any more. */
static core_outcome
final_outcome(int n, int yes, int no)
{
	return yes >= quorum_of[n]        ? CORE_GRANTED
		   : yes + no >= quorum_of[n] ? CORE_REFUSED
									  : CORE_UNREACHABLE;
}

/* The outcome that all possible missing votes lead to; CORE_NOTHING: not decided yet. */
static core_outcome
oracle(int n, int yes, int no, int error)
{
	int missing = n - yes - no - error;
	core_outcome certain = final_outcome(n, yes, no);

	for (int more_yes = 0; more_yes <= missing; more_yes++)
		for (int more_no = 0; more_no <= missing - more_yes; more_no++)
			if (final_outcome(n, yes + more_yes, no + more_no) != certain)
				return CORE_NOTHING;
	return certain;
}

static int
arrival(int order, int n, int k)
{
	int evens = (n + 1) / 2;

	switch (order)
	{
		case UPWARDS:
			return k;
		case DOWNWARDS:
			return n - 1 - k;
		default:
			return k < evens ? 2 * k : 2 * (k - evens) + 1;
	}
}

/* The last step decided this outcome, and asked to undo exactly the keys that may be set. */
static bool
decided(core_outcome outcome, core_mask may_be_set)
{
	if (out.outcome != outcome)
		return false;
	if (outcome == CORE_NOTHING)
		return lease.state == CORE_ASKING && nothing_sent();
	if (outcome == CORE_GRANTED)
		return lease.state == CORE_HELD && nothing_sent() &&
			   lease.valid_until_us == 1000 * SECOND + VALIDITY_US;
	return lease.state == (may_be_set ? CORE_RELEASING : CORE_FREE) && out.release == may_be_set &&
		   out.acquire == 0;
}

/* One round in which node i answers script[i]. */
static bool
round_goes_right(int n, const int *script, int order)
{
	int said[ANSWERS] = {0};
	core_mask may_be_set = first_nodes(n);
	core_outcome outcome = CORE_NOTHING;

	start(n);
	acquire_once();
	for (int k = 0; k < n; k++)
	{
		int node = arrival(order, n, k);
		core_reply reply = script[node] == SAYS_YES  ? CORE_REPLY_YES
						   : script[node] == SAYS_NO ? CORE_REPLY_NO
													 : CORE_REPLY_ERROR;

		if (script[node] == SAYS_NEVER)
			continue;
		said[script[node]]++;
		if (reply != CORE_REPLY_YES)
			may_be_set &= ~CORE_BIT(node);
		reply_of_round(lease.round, node, CORE_OP_ACQUIRE, reply);
		if (outcome == CORE_NOTHING)
		{
			outcome = oracle(n, said[SAYS_YES], said[SAYS_NO], said[SAYS_ERROR]);
			if (!decided(outcome, may_be_set))
				return false;
		}
		else if (!nothing_said())
			return false; /* late replies change no decision */
	}
	if (outcome == CORE_NOTHING)
	{
		tick_at(1000 * SECOND + ANSWER_US - 1);
		if (!decided(CORE_NOTHING, may_be_set))
			return false;
		later(1);
		tick();
		outcome = final_outcome(n, said[SAYS_YES], said[SAYS_NO]);
		if (!decided(outcome, may_be_set))
			return false;
	}
	if (lease.state != CORE_HELD)
		return true;
	release();
	return out.release == may_be_set;
}

static void
test_all_votes(int n)
{
	int script[N_MAX] = {0};
	int scripts = 1 << (2 * n); /* four answers */
	int wrong = 0;

	for (int s = 0; s < scripts; s++)
	{
		for (int i = 0; i < n; i++)
			script[i] = (s >> (2 * i)) % ANSWERS;
		for (int order = 0; order < ORDERS; order++)
			if (!round_goes_right(n, script, order) && wrong++ == 0)
				printf("# N = %d: votes %x in order %d\n", n, (unsigned) s, order);
	}
	ok(wrong == 0,
	   "invariants 4 and 7: N = %d, all %d combinations of votes: decided "
	   "right, neither early nor late, and undone",
	   n, scripts);
}

/* Only some nodes take commands, and all of these say yes. */
static void
test_all_unsendable(int n)
{
	int wrong = 0;

	for (core_mask can_send = 0; can_send <= first_nodes(n); can_send++)
	{
		int sendable = 0;

		start(n);
		up = can_send;
		acquire_once();
		for (int i = 0; i < n; i++)
			sendable += (can_send >> i) & 1;
		if (sendable < quorum_of[n])
			wrong += out.outcome != CORE_UNREACHABLE || !nothing_sent() || lease.state != CORE_FREE;
		else
		{
			wrong += out.outcome != CORE_NOTHING || out.acquire != can_send;
			for (int i = 0; i < n; i++)
				if (can_send & CORE_BIT(i))
					reply_of_round(lease.round, i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
			wrong += lease.state != CORE_HELD;
			release();
			wrong += out.release != can_send;
		}
	}
	ok(wrong == 0,
	   "invariant 4: N = %d, any set of nodes that can be sent to: asked if "
	   "they are a quorum of the configured ones, else nothing is sent",
	   n);
}

/* ---- every combination of counters, and of answers to the confirms ---- */

enum
{
	GRANTS_LESS_CONFIRMS,
	GRANTS_LESS_REFUSES,
	GRANTS_LESS_FAILS,
	GRANTS_LESS_IS_SILENT,
	GRANTS,
	GRANTS_MORE,
	REFUSES,
	FAILS,
	IS_SILENT,
	BEHAVIOURS
};

static const int64_t grant_of[BEHAVIOURS] = {10, 10, 10, 10, 20, 30, 0, 0, 0};

/* The state of a round whose votes have counters. */
typedef struct tally
{
	int n;
	int yes;   /* grants, confirmed or not */
	int no;    /* refused the acquire or the confirm */
	int error; /* failed at one of the two */
	int64_t token;
	int64_t counter[N_MAX]; /* after a grant or confirm; 0: not granted, or lost */
	bool asked[N_MAX];      /* confirm is unanswered */
	core_mask may_be_set;
	bool decided;
} tally;

/*
 * The outcome by the tally: GRANTED if a majority holds the token.  If no missing answer can give
 * a majority, the answers so far decide.
 */
static core_outcome
outcome_of(const tally *t)
{
	int holds = 0, may_hold = 0;

	for (int i = 0; i < t->n; i++)
	{
		holds += t->counter[i] == t->token;
		may_hold += t->counter[i] == t->token || t->asked[i];
	}
	if (t->token == 0)
		return oracle(t->n, t->yes, t->no, t->error);
	may_hold += t->n - t->yes - t->no - t->error;
	return holds >= quorum_of[t->n]            ? CORE_GRANTED
		   : t->n - t->error < quorum_of[t->n] ? CORE_UNREACHABLE
		   : may_hold < quorum_of[t->n]        ? CORE_REFUSED
											   : CORE_NOTHING;
}

/* The last step asked exactly the right nodes to confirm. */
static bool
confirms_right(tally *t)
{
	core_mask expected = 0;

	if (t->token == 0 && t->yes >= quorum_of[t->n])
		for (int i = 0; i < t->n; i++)
			t->token = t->counter[i] > t->token ? t->counter[i] : t->token;
	for (int i = 0; i < t->n; i++)
		if (t->counter[i] > 0 && t->counter[i] < t->token && !t->asked[i])
		{
			t->asked[i] = true;
			expected |= CORE_BIT(i);
		}
	return out.confirm == expected;
}

static bool
decides_right(tally *t)
{
	core_outcome outcome = outcome_of(t);
	core_mask confirm = out.confirm;

	out.confirm = 0; /* checked already */
	if (confirm != 0 && outcome != CORE_NOTHING)
		return false;
	t->decided = outcome != CORE_NOTHING;
	if (outcome == CORE_GRANTED && lease.token != t->token)
		return false;
	return decided(outcome, t->may_be_set);
}

static bool
acquire_goes_right(tally *t, int node, int behaviour)
{
	int64_t counter = grant_of[behaviour];

	if (behaviour == IS_SILENT)
		return true;
	if (counter == 0)
		t->may_be_set &= ~CORE_BIT(node);
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = CORE_OP_ACQUIRE,
						 .reply = counter > 0            ? CORE_REPLY_YES
								  : behaviour == REFUSES ? CORE_REPLY_NO
														 : CORE_REPLY_ERROR,
						 .token = counter,
						 .round = lease.round});
	if (t->decided)
		return nothing_said();
	t->counter[node] = counter;
	t->yes += counter > 0;
	t->no += behaviour == REFUSES;
	t->error += behaviour == FAILS;
	return confirms_right(t) && decides_right(t);
}

static bool
confirm_goes_right(tally *t, int node, int behaviour)
{
	bool confirms = behaviour == GRANTS_LESS_CONFIRMS || behaviour == GRANTS;

	if (!t->asked[node] || behaviour == GRANTS_LESS_IS_SILENT)
		return true;
	t->asked[node] = false;
	reply_of_round(lease.round, node, CORE_OP_CONFIRM,
				   confirms                           ? CORE_REPLY_YES
				   : behaviour == GRANTS_LESS_REFUSES ? CORE_REPLY_NO
													  : CORE_REPLY_ERROR);
	if (t->decided)
		return nothing_said();
	t->counter[node] = confirms ? t->token : -1;
	t->yes -= !confirms;
	t->no += behaviour == GRANTS_LESS_REFUSES;
	t->error += behaviour == GRANTS_LESS_FAILS;
	return confirms_right(t) && decides_right(t);
}

/* Confirms are answered at once, or after all acquires. */
static bool
confirm_round_goes_right(int n, const int *script, int order, bool at_once)
{
	tally t = {.n = n, .may_be_set = first_nodes(n)};

	start(n);
	acquire_once();
	for (int k = 0; k < n; k++)
	{
		int node = arrival(order, n, k);

		if (!acquire_goes_right(&t, node, script[node]))
			return false;
		for (int i = 0; i < n && at_once; i++)
			if (!confirm_goes_right(&t, i, script[i]))
				return false;
	}
	for (int i = n - 1; i >= 0; i--)
		if (!confirm_goes_right(&t, i, script[i]))
			return false;
	if (!t.decided)
	{
		tick_at(1000 * SECOND + ANSWER_US - 1);
		if (!nothing_said() || lease.state != CORE_ASKING)
			return false;
		later(1);
		tick();
		for (int i = 0; i < n; i++)
			if (t.asked[i] || script[i] == IS_SILENT)
			{
				t.yes -= t.asked[i];
				t.error++;
				t.asked[i] = false;
				t.counter[i] = -1;
			}
		if (!decides_right(&t) || !t.decided)
			return false;
	}
	if (lease.state != CORE_HELD)
		return lease.token == 0 && core_tombstone(&lease) == 0;
	release();
	return out.release == t.may_be_set;
}

static void
test_all_confirms(int n)
{
	int script[N_MAX] = {0};
	int scripts = 1;
	int wrong = 0;

	for (int i = 0; i < n; i++)
		scripts *= BEHAVIOURS;
	for (int s = 0; s < scripts; s++)
	{
		for (int i = 0, rest = s; i < n; i++, rest /= BEHAVIOURS)
			script[i] = rest % BEHAVIOURS;
		for (int order = UPWARDS; order <= DOWNWARDS; order++)
			for (int at_once = 0; at_once <= 1; at_once++)
				if (!confirm_round_goes_right(n, script, order, at_once == 1) && wrong++ == 0)
				{
					printf("# N = %d, order %d, at once %d:", n, order, at_once);
					for (int i = 0; i < n; i++)
						printf(" %d", script[i]);
					printf("\n");
				}
	}
	ok(wrong == 0,
	   "invariants 2, 4, 7: N = %d, all %d combinations of counters and confirms: granted if a "
	   "majority holds the token, neither early nor late, else undone",
	   n, scripts);
}

/* Some of the nodes that take commands are in quarantine; the rest say yes. */
static void
test_all_quarantined(int n)
{
	int wrong = 0;

	for (core_mask can_send = 0; can_send <= first_nodes(n); can_send++)
		for (core_mask quarantine = 0; quarantine <= can_send; quarantine++)
		{
			core_mask voters = can_send & ~quarantine;
			int votes = 0;

			if ((quarantine & ~can_send) != 0)
				continue;
			start(n);
			up = can_send;
			quarantined = quarantine;
			acquire_once();
			for (int i = 0; i < n; i++)
				votes += (voters >> i) & 1;
			if (votes < quorum_of[n])
			{
				wrong += out.outcome != CORE_UNREACHABLE || !nothing_sent();
				continue;
			}
			wrong += out.outcome != CORE_NOTHING || out.acquire != voters;
			for (int i = 0; i < n; i++)
				if (voters & CORE_BIT(i))
					reply_of_round(lease.round, i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
			wrong += lease.state != CORE_HELD;
			tick_at(lease.wake_at_us);
			wrong += out.renew != can_send;
			release();
			wrong += out.release != can_send;
		}
	ok(wrong == 0,
	   "invariants 4, 8: N = %d, any nodes in quarantine: not asked for a grant, and no quorum is "
	   "counted without them; renewals and releases reach them",
	   n);
}

/* ---- acquire: time ---- */

static void
test_validity_counts_from_the_send(void)
{
	int64_t sent_us;

	start(5);
	sent_us = now_us;
	acquire_once();
	later(300 * MS);
	granted_by("01");
	later(100 * MS);
	granted_by("2");
	ok(out.outcome == CORE_GRANTED && lease.state == CORE_HELD, "the third yes of five grants");
	ok(lease.valid_until_us == sent_us + VALIDITY_US,
	   "invariant 3: validity counts from before the first send");
}

static void
test_majority_too_late(void)
{
	start(3);
	acquire_once();
	later(ANSWER_US - 1);
	granted_by("01");
	ok(out.outcome == CORE_GRANTED && lease.state == CORE_HELD,
	   "a majority one microsecond before the end of the round grants");

	start(3);
	acquire_once();
	later(ANSWER_US);
	granted_by("01");
	ok(lease.state == CORE_BUSY,
	   "invariant 1: a majority at the end of the round is no grant: renewals of others may count");
	ok(out.release == set("012") && lease.valid_until_us == 0, "invariant 7: and it is undone");
	ok(lease.wake_at_us == now_us && out.outcome == CORE_MUST_WAIT,
	   "the nodes are asked again at once: this process was late, not the nodes");
	ok(core_votes(&lease, CORE_VOTE_ERROR) == set("01"), "late votes count as no answer");
	tick();
	granted_by("12");
	ok(out.outcome == CORE_GRANTED, "and may grant");

	start(3);
	acquire_once();
	for (int i = 1; i < 5; i++)
	{
		later(ANSWER_US);
		granted_by("01");
		tick();
	}
	ok(lease.state == CORE_ASKING, "after four late rounds a try asks again");
	later(ANSWER_US);
	granted_by("01");
	ok(out.outcome == CORE_UNREACHABLE, "five late rounds in a row end the try without a quorum");

	start(3);
	acquire_once();
	later(2 * TTL_US);
	granted_by("01");
	ok(out.outcome == CORE_UNREACHABLE, "invariant 3: nor is one after the ttl");
}

static void
test_majority_too_late_when_waiting(void)
{
	start(3);
	acquire_waiting();
	later(VALIDITY_US);
	granted_by("0");
	granted_by("1");
	ok(lease.state == CORE_RELEASING && out.outcome == CORE_UNREACHABLE,
	   "a majority too late ends a wait whose patience is over");

	start(3);
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = {members, 0},
						 .ttl_us = SECOND,
						 .answer_us = 5 * SECOND,
						 .patience_us = 5 * SECOND,
						 .retry_us = RETRY_US});
	ok(lease.wake_at_us == now_us + 988 * MS,
	   "invariant 3: a round lasts no longer than the validity that it could give");
	later(988 * MS);
	granted_by("01");
	ok(lease.state == CORE_BUSY && out.release == set("012"),
	   "a majority too late within patience is undone and tried again");
	released_by("012");
	tick_at(lease.wake_at_us);
	granted_by("01");
	ok(lease.state == CORE_HELD && lease.valid_until_us == now_us + 988 * MS,
	   "and the next round may grant");
}

/* At a node in quarantine, a renewal waits for the answer to the release of a former round. */
static void
test_release_before_renewal(void)
{
	start(3);
	acquire_waiting();
	refused_by("01");
	node_lost(2);
	released_by("01");
	quarantined = set("2");
	tick_at(lease.wake_at_us);
	node_ready(2);
	ok(lease.state == CORE_ASKING && out.release == set("2"), "a release in another round");
	granted_by("01");
	node_ready(2);
	ok(lease.state == CORE_HELD && out.renew == 0,
	   "invariant 7: no renewal behind an unanswered release of the same round");
	reply_of_round(lease.round, 2, CORE_OP_RELEASE, CORE_REPLY_NO);
	node_ready(2);
	ok(out.renew == set("2"), "after the answer the node is renewed at");
	release();
	ok(out.release == set("012"), "invariant 7: and its key is deleted");
}

static void
test_node_never_answers(void)
{
	start(5);
	acquire_once();
	ok(lease.wake_at_us == now_us + ANSWER_US, "a round wants a TICK at its deadline");
	granted_by("01");
	refused_by("2");
	later(ANSWER_US - 1);
	tick();
	ok(lease.state == CORE_ASKING && nothing_said(), "before the deadline the round is open");
	later(1);
	tick();
	ok(out.outcome == CORE_REFUSED, "invariant 11: at the deadline silence is no vote");
	ok(out.release == set("0134"),
	   "invariant 7: the silent ones may have the key: released, behind the acquire");

	start(5);
	acquire_once();
	granted_by("01");
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("01234"),
	   "two answers of five are no quorum: unreachable");
}

static void
test_node_breaks_while_asked(void)
{
	start(3);
	acquire_once();
	granted_by("0");
	node_lost(1);
	ok(lease.state == CORE_ASKING && nothing_said(), "one broken node leaves a round open");
	node_lost(2);
	ok(out.outcome == CORE_UNREACHABLE, "two of three broken: unreachable at once");
	ok(out.release == set("0"), "invariant 7: the reachable one is undone now");
	released_by("0");
	ok(lease.state == CORE_RELEASING, "the broken ones may have the key: still owed");
	node_ready(1);
	ok(out.release == set("1"), "released when the first is back");
	node_ready(2);
	ok(out.release == set("2"), "and the other");
	released_by("12");
	ok(lease.state == CORE_FREE, "then all is done");
}

static void
test_node_errors(void)
{
	start(3);
	acquire_once();
	acquire_fails_at("0");
	granted_by("12");
	ok(out.outcome == CORE_GRANTED, "two of three suffice when one errors");
	release();
	ok(out.release == set("12"), "what errored was not executed: nothing to release there");

	start(3);
	acquire_once();
	granted_by("0");
	acquire_fails_at("12");
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("0"),
	   "errors of a majority are unreachable, not refused");
}

/* ---- late replies and replies of old rounds ---- */

static void
test_late_replies_while_held(void)
{
	start(7);
	acquire_once();
	granted_by("0123");
	ok(out.outcome == CORE_GRANTED, "four of seven grant");
	granted_by("4");
	ok(nothing_said() && lease.state == CORE_HELD, "a late yes changes nothing now");
	refused_by("5");
	ok(nothing_said() && lease.state == CORE_HELD, "nor does a late no");
	acquire_fails_at("6");
	ok(nothing_said() && lease.state == CORE_HELD, "nor a late error");
	release();
	ok(out.release == set("01234"),
	   "invariants 6 and 7: the late yes is released too, the late no and error are not");
}

static void
test_late_loss_while_held(void)
{
	start(3);
	acquire_once();
	granted_by("01");
	node_lost(2);
	ok(nothing_said() && lease.state == CORE_HELD, "a node lost late changes nothing now");
	node_ready(2);
	ok(out.renew == set("2") && out.release == 0,
	   "its key may be ours: renewed, not released, while HELD");
	release();
	ok(out.release == set("012"), "invariant 7: but it is with the rest");
}

static void
test_late_replies_while_busy(void)
{
	start(5);
	acquire_waiting();
	granted_by("0");
	refused_by("123");
	ok(lease.state == CORE_BUSY && out.release == set("04"), "refused; 4 has not answered");
	granted_by("4");
	ok(lease.state == CORE_BUSY && nothing_said(), "a late yes grants nothing");
	released_by("0");
	release();
	ok(lease.state == CORE_RELEASING && nothing_sent(),
	   "invariant 7: its release is behind it on the wire, and still owed");
	released_by("4");
	ok(lease.state == CORE_FREE, "until it is answered");
}

static void
test_late_replies_while_releasing(void)
{
	start(5);
	acquire_once();
	granted_by("012");
	release();
	ok(out.release == set("01234"), "released while two have not answered the acquire");
	granted_by("3");
	refused_by("4");
	ok(nothing_said() && lease.state == CORE_RELEASING, "late replies are just read");
	released_by("01234");
	ok(lease.state == CORE_FREE, "their releases count");
	granted_by("3");
	released_by("4");
	node_lost(0);
	node_ready(0);
	tick();
	ok(nothing_said() && lease.state == CORE_FREE, "nothing disturbs a FREE lease");
}

static void
test_old_round_of_acquires(void)
{
	uint32_t old;

	lose_the_race();
	old = lease.round;
	released_by("0");
	tick_at(lease.wake_at_us);
	ok(lease.state == CORE_ASKING && lease.round != old, "the next round has another number");
	for (int i = 0; i < 3; i++)
		reply_of_round(old, i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_PENDING) == 3,
	   "invariant 1: replies of the old round are no votes");
	for (int i = 0; i < 3; i++)
		reply_of_round(old, i, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	ok(lease.state == CORE_ASKING && nothing_said(), "neither yes nor no");
	granted_by("01");
	ok(out.outcome == CORE_GRANTED, "those of the new round are");
}

static void
test_old_round_of_renewals(void)
{
	uint32_t old;
	int64_t valid_until_us;

	hold_and_renew(3);
	old = lease.round;
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNRENEWED, "nobody answered a round of renewals");
	tick_at(lease.wake_at_us);
	valid_until_us = lease.valid_until_us;
	for (int i = 0; i < 3; i++)
		reply_of_round(old, i, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(nothing_said() && lease.valid_until_us == valid_until_us,
	   "invariant 9: replies of the old round of renewals extend nothing");
	for (int i = 0; i < 3; i++)
		reply_of_round(old, i, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	ok(nothing_said() && lease.state == CORE_HELD, "nor do those of acquires end it");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED, "those of the new round extend");
}

static void
test_life_after_life(void)
{
	uint32_t old;

	hold(3);
	old = lease.round;
	release();
	released_by("012");
	members = set("1234");
	up = set("01234");
	acquire_once();
	ok(out.acquire == set("1234"), "a FREE lease can be acquired again, on other nodes");
	ok(lease.attempt == 1 && lease.round != old && lease.token == 0,
	   "as its first attempt, another round, without the token of the last");
	for (int i = 0; i < 3; i++)
		reply_of_round(old, i, CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(lease.state == CORE_ASKING && nothing_said() && core_count(&lease, CORE_VOTE_YES) == 0,
	   "invariant 1: replies from its former life are ignored");
	granted_with("12", 200);
	ok(lease.state == CORE_ASKING && nothing_said(), "two of four are not enough");
	granted_with("4", 200);
	ok(out.outcome == CORE_GRANTED && lease.token == 200, "three of four are");
	release();
	ok(out.release == set("1234"), "and those are released");
}

/* ---- once, waiting, patience ---- */

static void
test_once(void)
{
	start(3);
	acquire_once();
	refused_by("01");
	ok(out.outcome == CORE_REFUSED, "a try is refused after one round");
	ok(lease.state == CORE_RELEASING && out.release == set("2"),
	   "invariant 7: the node that may have the key is undone");
	ok(lease.silent, "and no waiter is told");
	released_by("2");
	ok(lease.state == CORE_FREE, "and then it is over");

	start(3);
	acquire_once();
	refused_by("012");
	released_by("2");
	start(1);
	acquire_once();
	refused_by("0");
	ok(out.outcome == CORE_REFUSED && lease.state == CORE_FREE && nothing_sent(),
	   "with nothing to undo it is over at once");
}

static void
test_waiting(void)
{
	int64_t refused_us;

	lose_the_race();
	refused_us = now_us;
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT,
	   "who waits is not told of a refused round");
	ok(out.release == set("0"),
	   "invariant 7: a half-won round is undone at once, and only where it was won");
	released_by("0");
	tick_at(lease.wake_at_us - 1);
	ok(lease.state == CORE_BUSY && nothing_said(), "it pauses");
	later(1);
	tick();
	ok(lease.state == CORE_ASKING && out.acquire == set("012") && out.release == 0,
	   "and asks all nodes again");
	granted_by("01");
	ok(out.outcome == CORE_GRANTED && lease.valid_until_us > refused_us + VALIDITY_US,
	   "invariant 3: validity counts from the round that was granted");
}

static void
test_spread_of_retries(void)
{
	uint32_t bits[] = {0,          1,          RETRY_US / 2, RETRY_US, RETRY_US + 1,
					   0x7fffffff, 0x80000000, UINT32_MAX};
	int64_t least_us = INT64_MAX;
	int64_t most_us = 0;

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
	{
		int64_t pause_us;

		start(1);
		random_bits = bits[i];
		acquire_waiting();
		refused_by("0");
		pause_us = lease.wake_at_us - now_us;
		least_us = pause_us < least_us ? pause_us : least_us;
		most_us = pause_us > most_us ? pause_us : most_us;
	}
	ok(least_us == RETRY_US / 2, "the shortest pause is half of retry_us");
	ok(most_us == RETRY_US * 3 / 2, "the longest pause is one and a half of retry_us");
}

static void
test_patience(void)
{
	int64_t began_us;

	start(3);
	up = set("0");
	began_us = now_us;
	acquire_waiting();
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT,
	   "who waits has patience with no quorum");
	while (lease.state == CORE_BUSY && now_us < began_us + 10 * PATIENCE_US)
		tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNREACHABLE && lease.state == CORE_FREE && nothing_sent(),
	   "invariant 11: but not for ever");
	ok(now_us >= began_us + PATIENCE_US && now_us <= began_us + PATIENCE_US + RETRY_US * 3 / 2,
	   "it ends with the first round past patience_us");

	start(3);
	up = 0;
	acquire_once();
	ok(out.outcome == CORE_UNREACHABLE && lease.state == CORE_FREE, "a try has none");
}

/* Asks one node of three in vain for this time. */
static void
no_quorum_for(int64_t us)
{
	int64_t end_us = now_us + us;

	up = set("0");
	while (lease.state == CORE_BUSY && lease.wake_at_us <= end_us)
		tick_at(lease.wake_at_us);
	up = set("012");
}

static void
test_patience_begins_anew(void)
{
	lose_the_race();
	released_by("0");
	no_quorum_for(PATIENCE_US - SECOND);
	tick_at(lease.wake_at_us);
	refused_by("012");
	all_undone();
	ok(lease.state == CORE_BUSY, "a refused round between two times without a quorum");
	no_quorum_for(PATIENCE_US - SECOND);
	ok(lease.state == CORE_BUSY, "patience begins anew after a quorum answered");
	no_quorum_for(PATIENCE_US);
	ok(lease.state == CORE_FREE && out.outcome == CORE_UNREACHABLE, "and ends again");

	lose_the_race();
	released_by("0");
	no_quorum_for(PATIENCE_US - SECOND);
	tick_at(lease.wake_at_us);
	granted_with("0", 10);
	granted_with("1", 20);
	refused_by("2");
	confirm_refused_by("0");
	all_undone();
	no_quorum_for(PATIENCE_US - SECOND);
	ok(lease.state == CORE_BUSY, "also after a quorum granted, and did not confirm");
}

static void
test_no_end_of_patience(void)
{
	start(3);
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = {members, 0},
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = INT64_MAX,
						 .retry_us = RETRY_US});
	acquire_fails_at("012");
	all_undone();
	no_quorum_for(1000 * PATIENCE_US);
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT &&
		   lease.wake_at_us >= now_us + RETRY_US / 2,
	   "whose patience has no end asks on without a quorum, with pauses");
	release();
	ok(lease.state == CORE_RELEASING || lease.state == CORE_FREE, "until it is given up");
}

static void
test_no_patience_with_refusal(void)
{
	int rounds = 0;

	start(3);
	acquire_waiting();
	for (; rounds < 100 && lease.state == CORE_ASKING; rounds++)
	{
		refused_by("012");
		all_undone();
		tick_at(lease.wake_at_us);
	}
	ok(lease.state == CORE_ASKING && rounds == 100 && now_us > 1000 * SECOND + PATIENCE_US,
	   "a busy lock is waited for without a limit of its own");
	granted_by("12");
	ok(lease.state == CORE_HELD, "invariant 12: and won when it is free");
}

/* ---- another host's turn, wake-ups, the holder's expiry ---- */

static void
wake(int64_t retry_us)
{
	happens((core_event){.type = CORE_WAKE, .retry_us = retry_us});
}

/* Each named node refuses: the holder's key expires in busy_us. */
static void
refused_for(const char *nodes, int64_t busy_us)
{
	for (; *nodes != '\0'; nodes++)
		happens((core_event){.type = CORE_REPLY,
							 .node = *nodes - '0',
							 .op = CORE_OP_ACQUIRE,
							 .reply = CORE_REPLY_NO,
							 .round = lease.round,
							 .busy_us = busy_us});
}

static void
test_not_before(void)
{
	int64_t turn_ends_us;

	start(3);
	turn_ends_us = now_us + 20 * MS;
	acquire_not_before(turn_ends_us, false);
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT && nothing_sent(),
	   "invariant 13: who may not ask yet is told to wait, and asks nobody");
	ok(lease.wake_at_us == turn_ends_us, "it wants a TICK when it may ask");
	tick_at(turn_ends_us - 1);
	ok(lease.state == CORE_BUSY && nothing_said(), "a TICK one microsecond sooner changes nothing");
	wake(0);
	ok(lease.state == CORE_BUSY && nothing_said(), "invariant 13: nor does a WAKE");
	later(1);
	tick();
	ok(lease.state == CORE_ASKING && out.acquire == set("012") && out.outcome == CORE_NOTHING,
	   "a TICK at that instant asks all nodes");
	granted_by("01");
	ok(lease.state == CORE_HELD && lease.valid_until_us == turn_ends_us + VALIDITY_US,
	   "invariant 3: validity counts from that round, not from the request");

	start(3);
	turn_ends_us = now_us + 20 * MS;
	acquire_not_before(turn_ends_us, false);
	now_us = turn_ends_us;
	wake(0);
	ok(lease.state == CORE_ASKING && out.acquire == set("012"), "and so does a WAKE at it");

	start(3);
	acquire_not_before(now_us, false);
	ok(lease.state == CORE_ASKING && out.acquire == set("012"),
	   "an instant that has come does not hold up a request");

	start(3);
	acquire_not_before(now_us + SECOND, true);
	ok(lease.state == CORE_ASKING && out.acquire == set("012"),
	   "a try asks at once, whosever turn");

	start(3);
	acquire_not_before(now_us + SECOND, false);
	release();
	ok(lease.state == CORE_FREE && nothing_said(),
	   "invariant 11: who gives up before it asked owes nothing");
	acquire_waiting();
	ok(lease.state == CORE_ASKING, "and the next request of this lease need not wait");
}

/* A WAKE with an instant, by the order of turns. */
static void
wake_at(int64_t instant_us)
{
	happens((core_event){.type = CORE_WAKE, .not_before_us = instant_us});
}

static void
test_wake_at(void)
{
	int64_t turn_us;

	lose_the_race();
	turn_us = now_us + 7 * MS;
	wake_at(turn_us);
	ok(lease.state == CORE_BUSY && nothing_said() && lease.wake_at_us == turn_us,
	   "a WAKE that says when asks nobody before");
	wake(0);
	ok(lease.state == CORE_BUSY && nothing_said(), "nor does one that does not say it");
	wake_at(turn_us + 5 * MS);
	ok(lease.state == CORE_BUSY && lease.wake_at_us == turn_us + 5 * MS, "the next may put it off");
	wake_at(turn_us);
	tick_at(turn_us);
	ok(lease.state == CORE_ASKING && out.acquire == set("012"), "a TICK at that instant asks all");

	lose_the_race();
	wake_at(now_us + SECOND);
	wake_at(now_us);
	ok(lease.state == CORE_ASKING && out.acquire == set("012"), "whose turn it is asks at once");

	start(3);
	acquire_not_before(now_us + SECOND, false);
	wake_at(now_us);
	ok(lease.state == CORE_ASKING, "also if it was to let others go first");

	start(3);
	acquire_not_before(now_us + SECOND, false);
	wake_at(1);
	ok(lease.state == CORE_ASKING, "and the first instant of the clock is an instant");

	start(3);
	now_us = 0;
	acquire_not_before(SECOND, false);
	wake_at(1);
	ok(lease.wake_at_us == 1, "also before it has come");
	start(3);
	now_us = 0;
	acquire_once();
	ok(lease.state == CORE_ASKING, "and a try asks before it");

	start(3);
	acquire_waiting();
	refused_by("0");
	wake_at(now_us + 7 * MS);
	ok(lease.state == CORE_ASKING && nothing_said(), "while ASKING it sends nothing");
	refused_by("1");
	ok(lease.state == CORE_BUSY && lease.wake_at_us == now_us + 7 * MS,
	   "but it says when to ask again");

	start(3);
	acquire_waiting();
	wake_at(now_us + SECOND);
	node_lost(0);
	node_lost(1);
	turn_us = lease.wake_at_us;
	ok(lease.state == CORE_BUSY && turn_us < now_us + SECOND,
	   "a request that reached too few nodes asks again, turn or not");
	wake(0);
	ok(lease.wake_at_us == turn_us, "and a WAKE without an instant does not put it off");

	start(3);
	acquire_waiting();
	granted_by("01");
	wake_at(now_us + SECOND);
	ok(lease.state == CORE_HELD && lease.not_before_us == 0, "who holds the lock does not care");
	turn_us = lease.wake_at_us;
	happens((core_event){.type = CORE_WAKE, .by_us = now_us + 1});
	happens((core_event){.type = CORE_FORGET});
	ok(lease.state == CORE_HELD && lease.wake_at_us == turn_us && nothing_said(),
	   "nor is it woken, or forgotten");

	start(3);
	acquire_waiting();
	refused_by("01");
	refused_by("2");
	ok(lease.state == CORE_BUSY && lease.node[2].key == CORE_KEY_MAYBE,
	   "a late refusal says nothing of the key: the release is under way");
	start(3);
	acquire_waiting();
	release();
	granted_by("0");
	ok(lease.state == CORE_RELEASING && core_count(&lease, CORE_VOTE_YES) == 0,
	   "after a release no answer is a vote");

	lose_the_race();
	turn_us = lease.wake_at_us;
	happens((core_event){.type = CORE_EXTEND, .token = 10});
	ok(lease.state == CORE_BUSY && lease.wake_at_us == turn_us && nothing_said() &&
		   core_raises_until_us(&lease) == 0,
	   "and a request that waits has no tokens to extend");
}

/* A node refuses, and tells the number of waiting hosts. */
static void
refused_in_a_crowd(int node, int waiting, int64_t busy_us)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = CORE_OP_ACQUIRE,
						 .reply = CORE_REPLY_NO,
						 .round = lease.round,
						 .busy_us = busy_us,
						 .waiting = (uint16_t) waiting});
}

/* The pause when two of three nodes tell the number of waiting hosts. */
static int64_t
pause_in_a_crowd(int waiting, int64_t busy_us, uint32_t random)
{
	start(3);
	random_bits = random;
	acquire_waiting();
	refused_in_a_crowd(0, waiting, busy_us);
	refused_in_a_crowd(1, waiting, busy_us);
	return lease.wake_at_us - now_us;
}

static void
test_crowd(void)
{
	int64_t least_us = pause_in_a_crowd(0, 0, 0);
	int64_t expiry_us = 10 * SECOND;

	ok(least_us == RETRY_US / 2, "one who waits alone asks again after a pause");
	(void) pause_in_a_crowd(15, 0, 0);
	tick_at(lease.wake_at_us);
	refused_in_a_crowd(0, 0, 0);
	refused_in_a_crowd(1, 0, 0);
	ok(lease.waiting == 0, "when the others have gone, a majority says so");
	ok(pause_in_a_crowd(15, 0, 0) == least_us, "so does one of a few");
	ok(pause_in_a_crowd(16, 0, 0) == 2 * least_us, "of a crowd less often");
	ok(pause_in_a_crowd(1000, 0, 0) == 63 * least_us, "the less often the more they are");
	ok(pause_in_a_crowd(1000, 0, RETRY_US) == 63 * 3 * least_us, "spread as ever");
	ok(pause_in_a_crowd(15, MS, 9999) == MS + 9999, "when the holder's key expires few ask soon");
	ok(pause_in_a_crowd(1000, MS, UINT32_MAX) > MS + RETRY_US &&
		   pause_in_a_crowd(1000, MS, 62 * RETRY_US) == MS + 62 * RETRY_US,
	   "of a crowd they do in the course of as long a pause");
	ok(pause_in_a_crowd(1000, expiry_us, 0) == 63 * least_us, "or before");

	start(5);
	random_bits = 0;
	acquire_waiting();
	refused_in_a_crowd(0, 1000, 0);
	refused_in_a_crowd(1, 3, 0);
	refused_in_a_crowd(2, 1000, 0);
	ok(lease.waiting == 3 && lease.wake_at_us - now_us == least_us,
	   "what fewer than a majority of the nodes say makes nobody wait");
	released_by("34");
	tick_at(lease.wake_at_us);
	refused_in_a_crowd(0, 40, 0);
	refused_in_a_crowd(1, 20, 0);
	refused_in_a_crowd(2, 30, 0);
	ok(lease.waiting == 20 && lease.wake_at_us - now_us == 2 * least_us,
	   "a majority says so many, or more");
	released_by("34");
	tick_at(lease.wake_at_us);
	refused_in_a_crowd(0, 0, 0);
	granted_by("1234");
	ok(lease.state == CORE_HELD, "until it is granted");

	/* the crowd's pause is 15 seconds or longer */
	(void) pause_in_a_crowd(1000, 0, 0);
	up = set("0");
	tick_at(lease.wake_at_us);
	all_undone();
	ok(lease.state == CORE_BUSY && lease.wake_at_us <= lease.round_began_us + PATIENCE_US,
	   "without a quorum, a host of a crowd asks before its patience ends");
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNREACHABLE, "and then the request ends");
	up = set("012");
}

static void
test_wake(void)
{
	lose_the_race();
	wake(0);
	ok(lease.state == CORE_ASKING && out.acquire == set("012") && out.outcome == CORE_NOTHING,
	   "a WAKE while BUSY asks all nodes at once");
	refused_by("01");
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT,
	   "it is a hint: the lock may be held by another again");
	wake(0);
	granted_by("01");
	ok(lease.state == CORE_HELD && out.outcome == CORE_GRANTED, "or not");
}

static void
test_wake_sets_retry(void)
{
	int64_t before_us;

	lose_the_race();
	before_us = lease.wake_at_us - now_us;
	wake(10 * RETRY_US);
	refused_by("01");
	ok(lease.wake_at_us - now_us >= 5 * RETRY_US && lease.wake_at_us - now_us > before_us,
	   "the retry_us of a WAKE holds from then on");
	wake(0);
	refused_by("01");
	ok(lease.wake_at_us - now_us >= 5 * RETRY_US, "a WAKE without one changes it not");
	wake(RETRY_US / 10);
	refused_by("01");
	ok(lease.wake_at_us - now_us <= RETRY_US / 10 * 3 / 2, "it may become shorter, too");

	wake(10 * RETRY_US);
	wake(RETRY_US / 10); /* ASKING */
	refused_by("01");
	wake(0);
	refused_by("01");
	ok(lease.wake_at_us - now_us <= RETRY_US / 10 * 3 / 2, "also by a WAKE while a round is out");
}

/* The release may have come between a node's answer and the decision. */
static void
test_wake_while_asking(void)
{
	start(3);
	acquire_waiting();
	refused_by("0");
	wake(0);
	ok(lease.state == CORE_ASKING && nothing_said(), "a WAKE while ASKING sends nothing now");
	refused_by("1");
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT && lease.wake_at_us == now_us,
	   "but it is not forgotten: a TICK is wanted as soon as the round is refused");
	all_undone();
	tick();
	ok(lease.state == CORE_ASKING && out.acquire == set("012"), "which asks again");
	refused_by("01");
	ok(lease.wake_at_us >= now_us + RETRY_US / 2, "once: then it pauses as ever");

	start(3);
	acquire_waiting();
	wake(0);
	granted_by("01");
	ok(lease.state == CORE_HELD && lease.wake_at_us > now_us, "it does not disturb a grant");
	release();
	released_by("012");
	acquire_waiting();
	refused_by("01");
	ok(lease.wake_at_us >= now_us + RETRY_US / 2, "nor a later request");

	start(3);
	acquire_once();
	wake(0);
	refused_by("01");
	ok(out.outcome == CORE_REFUSED && lease.state == CORE_RELEASING,
	   "a try asks once all the same");
}

/* A WAKE now has no effect. */
static bool
sleeps_on(void)
{
	core_lease before = lease;

	wake(before.retry_us);
	return nothing_said() && memcmp(&before, &lease, sizeof(lease)) == 0;
}

static void
test_wake_in_each_state(void)
{
	start(3);
	acquire_once();
	release();
	released_by("012");
	ok(lease.state == CORE_FREE && sleeps_on(), "FREE ignores a WAKE");
	hold(3);
	ok(lease.state == CORE_HELD && sleeps_on(), "HELD ignores a WAKE");
	hold_and_renew(3);
	ok(lease.renewing && sleeps_on(), "so it does while it is renewed");
	hold(3);
	now_us = lease.valid_until_us;
	tick();
	ok(lease.state == CORE_LOST && sleeps_on(), "invariant 9: LOST ignores a WAKE");
	hold(3);
	release();
	ok(lease.state == CORE_RELEASING && sleeps_on(), "invariant 6: RELEASING ignores a WAKE");
	hold(3);
	now_us = lease.valid_until_us;
	wake(0);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "invariant 3: a WAKE at the end of validity finds the lease LOST");
}

static void
test_holder_expires(void)
{
	int64_t refused_us;

	start(3);
	acquire_waiting();
	refused_us = now_us;
	refused_for("01", RETRY_US / 4);
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT, "held by another, not for long");
	ok(lease.wake_at_us >= refused_us + RETRY_US / 4 &&
		   lease.wake_at_us < refused_us + RETRY_US / 4 + 10 * MS,
	   "invariant 12: asks again within 10 ms after the holder's key has expired");

	start(3);
	acquire_waiting();
	refused_us = now_us;
	refused_for("0", RETRY_US / 4);
	refused_for("1", RETRY_US / 8);
	ok(lease.wake_at_us >= refused_us + RETRY_US / 4, "the last of its keys counts");
	tick_at(lease.wake_at_us);
	refused_us = now_us;
	refused_for("01", 0);
	ok(lease.wake_at_us >= refused_us + RETRY_US / 2, "but not what the round before said");

	start(3);
	acquire_waiting();
	refused_us = now_us;
	refused_for("01", 100 * RETRY_US);
	ok(lease.wake_at_us <= refused_us + RETRY_US * 3 / 2,
	   "the usual pause where the key lives for longer");
}

static void
test_spread_at_expiry(void)
{
	uint32_t bits[] = {0, 1, 5000, 9999, 10000, 123456789, UINT32_MAX};
	int64_t least_us = INT64_MAX;
	int64_t most_us = 0;

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
	{
		int64_t pause_us;

		start(1);
		random_bits = bits[i];
		acquire_waiting();
		refused_for("0", RETRY_US / 4);
		pause_us = lease.wake_at_us - now_us;
		least_us = pause_us < least_us ? pause_us : least_us;
		most_us = pause_us > most_us ? pause_us : most_us;
	}
	ok(least_us == RETRY_US / 4, "the first waiter asks when the holder's key has expired");
	ok(most_us == RETRY_US / 4 + 10 * MS - 1, "the last one 10 ms later");
}

/* ---- hold_at_most ---- */

/* HELD by three nodes, granted 50 ms after the request. */
static void
hold_at_most(int64_t limit_us)
{
	start(3);
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = {members, 0},
						 .once = true,
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = PATIENCE_US,
						 .retry_us = RETRY_US,
						 .hold_at_most_us = limit_us});
	later(50 * MS);
	granted_by("012");
}

static void
test_hold_at_most_within_ttl(void)
{
	int64_t granted_us;

	hold_at_most(TTL_US / 2);
	granted_us = now_us;
	ok(lease.state == CORE_HELD && lease.valid_until_us == granted_us + TTL_US / 2,
	   "hold_at_most counts from the grant, and caps its validity");
	tick_at(granted_us + TTL_US / 3);
	ok(nothing_said() && lease.state == CORE_HELD && !lease.renewing,
	   "invariant 14: at its limit already, it is not renewed");
	tick_at(granted_us + TTL_US / 2 - 1);
	ok(nothing_said() && lease.state == CORE_HELD, "one microsecond before the limit it is held");
	ok(lease.wake_at_us == granted_us + TTL_US / 2, "and wants a TICK at the limit");
	later(1);
	tick();
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED && nothing_sent(),
	   "invariant 3: exactly there it is LOST");
	release();
	ok(out.release == set("012"), "invariant 7: its keys live on; its release deletes them");
}

static void
test_hold_at_most_over_renewals(void)
{
	int64_t granted_us, limit_us = TTL_US + TTL_US / 2;

	hold_at_most(limit_us);
	granted_us = now_us;
	ok(lease.valid_until_us == granted_us - 50 * MS + VALIDITY_US,
	   "a limit beyond the ttl does not cap the grant");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "it is renewed");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED && lease.valid_until_us == now_us + VALIDITY_US,
	   "in full while the limit is far");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "and again");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED && lease.valid_until_us == granted_us + limit_us,
	   "invariant 3: but no further than the limit");
	tick_at(now_us + TTL_US / 3);
	ok(nothing_said() && lease.wake_at_us > now_us && lease.wake_at_us <= granted_us + limit_us,
	   "invariant 14: at the limit there is no renewal");
	tick_at(granted_us + limit_us - 1);
	ok(nothing_said() && lease.state == CORE_HELD, "held until then");
	later(1);
	tick();
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "and LOST exactly there");
	renewed_by("2");
	ok(nothing_said() && lease.state == CORE_LOST, "invariant 9: a late answer revives nothing");
}

static void
test_hold_at_most_of_the_next(void)
{
	hold_at_most(TTL_US / 2);
	release();
	released_by("012");
	acquire_once();
	granted_by("012");
	ok(lease.valid_until_us == now_us + VALIDITY_US, "a limit is that of one request");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "the next is renewed as ever");
}

static void
limit(int64_t until_us)
{
	happens((core_event){.type = CORE_LIMIT, .hold_until_us = until_us});
}

static void
test_prolong_at_the_limit(void)
{
	int64_t granted_us;

	hold_at_most(TTL_US / 2);
	granted_us = now_us;
	tick_at(granted_us + TTL_US / 2 - 1);
	ok(nothing_said(), "at its limit a lease is not renewed");
	limit(granted_us + TTL_US / 2);
	ok(nothing_said() && lease.hold_until_us == granted_us + TTL_US / 2,
	   "it is not prolonged by nothing");
	limit(granted_us + 3 * TTL_US);
	ok(nothing_said() && lease.wake_at_us <= now_us, "one that is prolonged wants a TICK at once");
	tick();
	ok(out.renew == set("012"), "which renews it");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED && lease.valid_until_us == now_us + VALIDITY_US,
	   "and is valid in full, since its limit is far");
}

static void
test_prolong_far_from_the_limit(void)
{
	int64_t granted_us, renew_us;

	hold_at_most(TTL_US);
	granted_us = now_us;
	renew_us = lease.wake_at_us;
	limit(granted_us + 2 * TTL_US);
	ok(nothing_said() && lease.wake_at_us == renew_us,
	   "where validity ends before the limit, it is renewed when that is due");
	tick_at(renew_us);
	ok(out.renew == set("012"), "as ever");
	limit(granted_us + 3 * TTL_US);
	ok(nothing_said(), "one that is being renewed is not renewed twice");
	renewed_by("01");
	for (int i = 0; i < 9 && lease.valid_until_us < granted_us + 3 * TTL_US; i++)
	{
		tick_at(lease.wake_at_us);
		renewed_by("01");
	}
	ok(lease.valid_until_us == granted_us + 3 * TTL_US, "in the end it is valid up to its limit");
}

static void
test_limit_in_vain(void)
{
	hold_at_most(TTL_US / 2);
	later(TTL_US / 2);
	tick();
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "at its limit a lease is lost");
	limit(now_us + TTL_US);
	ok(nothing_said() && lease.state == CORE_LOST, "invariant 9: another limit does not revive it");

	start(3);
	acquire_once();
	granted_by("012");
	later(VALIDITY_US);
	limit(0);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED && nothing_sent(),
	   "nor what the nodes do not grant any more");

	start(3);
	acquire_once();
	granted_by("012");
	release();
	limit(now_us + TTL_US);
	ok(nothing_said() && lease.state == CORE_RELEASING, "nor what was given back");
}

/* ---- a lease is handed over: each holder has a limit of its own ---- */

static void
test_limit_of_the_holder_before(void)
{
	int64_t granted_us, asked_us;

	hold_at_most(TTL_US / 5);
	granted_us = now_us;
	asked_us = now_us - 50 * MS;
	later(TTL_US / 5);
	limit(granted_us + TTL_US / 4);
	ok(nothing_said() && lease.state == CORE_HELD && lease.wake_at_us == granted_us + TTL_US / 4,
	   "the limit of the holder before does not end the lease of the next");
	tick_at(granted_us + TTL_US / 4);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "its own does");

	hold_at_most(TTL_US / 5);
	asked_us = now_us - 50 * MS;
	later(TTL_US / 10);
	limit(0);
	ok(nothing_said() && lease.valid_until_us == asked_us + VALIDITY_US,
	   "without a limit the lease is valid for as long as the nodes granted it");
	tick_at(asked_us + TTL_US / 3);
	ok(out.renew == set("012"), "and is renewed as ever");
	renewed_by("01");
	ok(lease.valid_until_us == asked_us + TTL_US / 3 + VALIDITY_US, "in full");
}

static void
test_limit_of_the_next(void)
{
	int64_t asked_us, until_us;

	start(3);
	acquire_once();
	asked_us = now_us;
	granted_by("012");
	until_us = now_us + TTL_US / 2;
	limit(until_us);
	ok(nothing_said() && lease.valid_until_us == until_us, "a later holder may have a limit");
	tick_at(asked_us + TTL_US / 3);
	ok(nothing_said(), "at its limit the lease is not renewed");
	limit(0);
	tick();
	ok(out.renew == set("012"), "the next one without a limit has it renewed at once");
	limit(now_us);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "a limit may end the lease at once");
	renewed_by("012");
	ok(nothing_said() && lease.state == CORE_LOST, "whatever the nodes answer");
}

/* The shell announces a limit only with its next event. */
static void
test_limit_is_looked_for(void)
{
	int64_t asked_us, at_us;

	hold_at_most(TTL_US * 9 / 10);
	asked_us = now_us - 50 * MS;
	tick_at(asked_us + TTL_US / 3);
	ok(nothing_said(), "at its limit the lease is not renewed");
	at_us = lease.wake_at_us;
	ok(at_us <= now_us + TTL_US / 9, "but the core wants to be asked again soon");
	later(at_us - now_us);
	limit(0);
	tick();
	ok(out.renew == set("012"), "so the next holder has it renewed in time");
}

/* ---- renewal ---- */

static void
test_renewal(void)
{
	int64_t granted_us, asked_us, before_us;

	hold(5);
	granted_us = now_us;
	before_us = lease.valid_until_us;
	tick_at(granted_us + TTL_US / 3 - 1);
	ok(nothing_said(), "no renewal within the first third of the ttl");
	asked_us = now_us + 1;
	tick_at(asked_us);
	ok(out.renew == set("01234") && lease.renewing, "then all nodes are asked to renew");
	later(50 * MS);
	renewed_by("01");
	ok(out.outcome == CORE_NOTHING && lease.valid_until_us == before_us,
	   "two of five do not renew");
	renewed_by("2");
	ok(out.outcome == CORE_RENEWED && lease.state == CORE_HELD, "three do");
	ok(lease.valid_until_us == asked_us + VALIDITY_US,
	   "invariant 3: renewed validity counts from before the renewal was sent");
	ok(lease.wake_at_us == asked_us + TTL_US / 3, "the next renewal is a third of the ttl away");
	renewed_by("3");
	renewal_refused_by("4");
	ok(nothing_said() && lease.state == CORE_HELD, "late replies change no decision");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01234"), "who refused is asked again: it may create the key now");
}

static void
test_renewal_asks_whom_it_should(void)
{
	start(5);
	acquire_once();
	refused_by("0");
	granted_by("123");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01234"), "renewed at all nodes, also where the lock was refused");
	reply_of_round(lease.round - 1, 4, CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(nothing_said() && lease.token_at[4] == 0, "a grant that comes so late is none");
	renewed_by("0");
	renewed_by("4");
	ok(nothing_said(), "two of five do not renew");
	renewed_by("1");
	ok(out.outcome == CORE_RENEWED,
	   "but who created the key at its renewal counts as one who had granted it");
	release();
	ok(out.release == set("01234"), "invariant 7: and is released");
}

static void
test_long_life(void)
{
	int renewals = 0;

	hold(3);
	for (int i = 0; i < 60; i++)
	{
		tick_at(lease.wake_at_us);
		renewed_by("0");
		renewed_by("1");
		renewals += out.outcome == CORE_RENEWED;
	}
	ok(lease.state == CORE_HELD && renewals == 60 && now_us > 1000 * SECOND + 19 * TTL_US,
	   "a lease lives as long as it is renewed");
}

static void
test_renewal_fails(void)
{
	int64_t before_us;

	hold_and_renew(5);
	before_us = lease.valid_until_us;
	renewal_fails_at("01");
	ok(nothing_said(), "two errors of five leave the renewal open");
	renewal_fails_at("2");
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD, "three fail it");
	ok(lease.valid_until_us == before_us, "invariant 9: the validity stays as it was");
	ok(lease.wake_at_us == now_us + TTL_US / 9, "it is soon tried again");
	renewed_by("34");
	ok(nothing_said() && lease.valid_until_us == before_us, "late replies do not undo that");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01234"), "all are asked again: an error does not mean no key");
	renewed_by("024");
	ok(out.outcome == CORE_RENEWED && lease.valid_until_us == now_us + VALIDITY_US,
	   "and the lease goes on");
}

static void
test_renewal_unanswered(void)
{
	hold_and_renew(3);
	ok(lease.wake_at_us == now_us + ANSWER_US, "a renewal wants a TICK at its deadline");
	renewed_by("0");
	tick_at(lease.wake_at_us - 1);
	ok(nothing_said(), "before it the renewal is open");
	later(1);
	tick();
	ok(out.outcome == CORE_UNRENEWED, "at its deadline it has failed");
	renewed_by("1");
	renewed_by("2");
	ok(nothing_said(), "late replies do not undo that");
}

static void
test_renewal_with_broken_nodes(void)
{
	hold_and_renew(3);
	renewed_by("0");
	node_lost(1);
	ok(nothing_said() && lease.renewing, "one node lost leaves the renewal open");
	node_lost(2);
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD, "two fail it");
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD,
	   "so they do while they are away, without waiting for a deadline");
	node_ready(1);
	ok(out.renew == set("1") && out.outcome == CORE_NOTHING, "a node that is back is repaired");
	renewed_by("1");
	ok(nothing_said(), "which renews nothing");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01"), "in the next round it is asked again");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED, "and helps to renew");
}

static void
test_renewal_refused(void)
{
	int64_t valid_until_us;

	hold_and_renew(5);
	valid_until_us = lease.valid_until_us;
	renewal_refused_by("01");
	ok(lease.state == CORE_HELD && nothing_said(), "refused by two of five: held");
	renewal_refused_by("2");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "invariants 1, 5: refused by three, another may have it: LOST at once");
	ok(now_us < valid_until_us && lease.valid_until_us == now_us, "its validity ends now");
	release();
	ok(out.release == set("01234") && core_tombstone(&lease) == COUNTER + 1,
	   "invariants 6, 7: its renewals may still be executed: released everywhere");

	hold_and_renew(4);
	renewal_refused_by("0");
	ok(lease.state == CORE_HELD, "refused by one of four: held");
	renewal_refused_by("1");
	ok(lease.state == CORE_LOST, "by two, no quorum of three can be left: LOST");

	hold_and_renew(5);
	renewal_refused_by("01");
	renewal_fails_at("2");
	ok(lease.state == CORE_HELD && out.outcome == CORE_UNRENEWED,
	   "an error is no refusal: tried again");
	tick_at(lease.wake_at_us);
	renewed_by("012");
	ok(out.outcome == CORE_RENEWED, "who refused once may renew later");

	hold_and_renew(5);
	renewal_refused_by("01");
	node_lost(2);
	ok(lease.state == CORE_HELD && out.outcome == CORE_UNRENEWED, "nor is a node lost");

	hold_and_renew(5);
	renewal_refused_by("01");
	tick_at(lease.wake_at_us);
	ok(lease.state == CORE_HELD && out.outcome == CORE_UNRENEWED, "nor is silence");
}

/* One event of each kind, at the moment when validity ends. */
static void
test_expiry(void)
{
	hold(3);
	tick_at(lease.wake_at_us);
	tick_at(lease.valid_until_us - 1);
	ok(lease.state == CORE_HELD, "invariant 3: held one microsecond before the end");
	later(1);
	tick();
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED && nothing_sent(),
	   "invariant 3: lost at the end of validity");
	ok(lease.wake_at_us == 0, "a lost lease waits only for its owner");

	hold_and_renew(3);
	now_us = lease.valid_until_us;
	renewed_by("0");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "so when a reply finds it");
	hold_and_renew(3);
	now_us = lease.valid_until_us;
	node_lost(0);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "or a node lost");
	hold_and_renew(3);
	now_us = lease.valid_until_us;
	node_ready(0);
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "or a node ready");
}

static void
test_no_revival(void)
{
	int64_t valid_until_us;

	hold_and_renew(3);
	renewed_by("0");
	valid_until_us = now_us = lease.valid_until_us;
	renewed_by("1");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "invariant 9: a renewal whose majority comes at the end of validity is none");
	renewed_by("2");
	granted_by("012");
	node_ready(0);
	later(SECOND);
	tick();
	ok(lease.state == CORE_LOST && nothing_said() && lease.valid_until_us == valid_until_us,
	   "invariant 9: nothing revives a lost lease");
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("012"),
	   "its owner releases it: the keys may still be there");
	released_by("012");
	ok(lease.state == CORE_FREE, "and then it is over");
}

static void
test_renewal_before_expiry_only(void)
{
	hold(3);
	up = 0;
	while (lease.state == CORE_HELD && lease.wake_at_us < lease.valid_until_us)
		tick_at(lease.wake_at_us);
	ok(lease.state == CORE_HELD && lease.wake_at_us == lease.valid_until_us,
	   "without nodes a lease is tried to be renewed until its end");
	up = set("012");
	tick_at(lease.wake_at_us);
	ok(lease.state == CORE_LOST && nothing_sent(), "invariant 9: at the end nothing is sent");

	hold(3);
	tick_at(lease.valid_until_us - 1);
	ok(out.renew == set("012") && lease.wake_at_us == lease.valid_until_us,
	   "invariant 9: a late renewal has only what is left of the old validity");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED, "and may succeed in it");
}

/* ---- release and its debts ---- */

static void
test_release_in_each_state(void)
{
	start(3);
	release();
	ok(lease.state == CORE_FREE && nothing_said(), "RELEASE of a FREE lease does nothing");

	start(3);
	acquire_waiting();
	granted_by("0");
	refused_by("1");
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("02") && out.outcome == CORE_NOTHING,
	   "invariant 11: RELEASE while ASKING undoes what was or may be granted");
	ok(!lease.silent, "and those are told that its keys have refused");
	granted_by("2");
	ok(lease.state == CORE_RELEASING && nothing_said(), "a majority later does not count");

	lose_the_race();
	release();
	ok(lease.state == CORE_RELEASING && nothing_said(),
	   "RELEASE while BUSY: the undo is on its way");
	ok(lease.silent, "and told nobody");
	released_by("0");
	ok(lease.state == CORE_FREE, "and awaited");

	lose_the_race();
	released_by("0");
	release();
	ok(lease.state == CORE_FREE && nothing_said(), "RELEASE while BUSY and undone ends at once");

	hold(3);
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("012") && lease.valid_until_us == 0,
	   "RELEASE while HELD deletes the keys");
	ok(!lease.silent, "and is told");
	release();
	ok(lease.state == CORE_RELEASING && nothing_said(), "RELEASE while RELEASING does nothing");
	later(OWED_US - 1);
	release();
	later(1);
	tick();
	ok(lease.state == CORE_FREE, "invariant 7: nor does it prolong what is owed");
}

static void
test_release_while_renewing(void)
{
	hold_and_renew(3);
	renewed_by("0");
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("012") && !lease.renewing,
	   "RELEASE while renewing deletes the keys, behind the renewals");
	renewed_by("12");
	ok(lease.state == CORE_RELEASING && nothing_said(),
	   "invariant 14: late renewals count no more");
	renewal_refused_by("0");
	renewal_fails_at("0");
	ok(lease.state == CORE_RELEASING && nothing_said() && owes_all_of("012"),
	   "nor do those that failed: they pay no debt");
	released_by("012");
	ok(lease.state == CORE_FREE, "the releases do");
}

static void
test_release_at_the_end_of_validity(void)
{
	hold(3);
	now_us = lease.valid_until_us;
	release();
	ok(lease.state == CORE_RELEASING && out.outcome == CORE_NOTHING && out.release == set("012"),
	   "an owner who releases in time's last moment has lost nothing");

	hold(3);
	tick_at(lease.valid_until_us);
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("012"), "a LOST lease is released");
	tick_at(lease.owed_until_us);
	ok(lease.state == CORE_FREE, "and ends as any other");
}

static void
test_undo_after_unanswered_undo(void)
{
	core_mask asked;

	lose_the_race();
	tick_at(lease.wake_at_us);
	asked = out.acquire;
	refused_by("12");
	ok(lease.state == CORE_BUSY && out.release == (asked & set("0")),
	   "invariant 7: who was asked again is undone again, the last undo answered or not");
}

static void
test_release_refused(void)
{
	hold(3);
	release();
	reply("01", CORE_OP_RELEASE, CORE_REPLY_NO);
	ok(lease.state == CORE_RELEASING, "two of three found no key to delete");
	released_by("2");
	ok(lease.state == CORE_FREE, "invariant 6: not to find it is as good as to delete it");
}

static void
test_debt_of_a_broken_connection(void)
{
	hold(3);
	release();
	released_by("01");
	node_lost(2);
	ok(lease.state == CORE_RELEASING && nothing_said(), "an unanswered release is a debt");
	tick_at(lease.wake_at_us);
	ok(nothing_said(), "that waits while the node is away");
	node_ready(2);
	ok(out.release == set("2"), "invariant 7: asked again when it is back");
	tick_at(lease.wake_at_us);
	ok(nothing_said(), "but once on each connection");
	node_lost(2);
	node_ready(2);
	ok(out.release == set("2"), "and again on the next");
	released_by("2");
	ok(lease.state == CORE_FREE, "until it is answered");
}

static void
test_debt_of_a_node_away(void)
{
	hold(3);
	up = set("01");
	release();
	ok(out.release == set("01"), "a node that can't be sent to is not sent to");
	released_by("01");
	ok(lease.state == CORE_RELEASING, "it is owed a release");
	up = set("012");
	tick_at(lease.wake_at_us);
	ok(out.release == set("2"), "that is asked when it can be sent, READY or not");
	released_by("2");
	ok(lease.state == CORE_FREE, "and paid");
}

static void
test_debt_expires(void)
{
	int64_t released_us;

	hold(3);
	node_lost(2);
	released_us = now_us;
	release();
	released_by("01");
	while (lease.state == CORE_RELEASING && lease.wake_at_us < released_us + OWED_US)
		tick_at(lease.wake_at_us);
	ok(lease.state == CORE_RELEASING && lease.wake_at_us == released_us + OWED_US,
	   "a debt is kept until a command still under way could have expired");
	tick_at(released_us + OWED_US - 1);
	ok(lease.state == CORE_RELEASING, "to its last microsecond");
	later(1);
	tick();
	ok(lease.state == CORE_FREE && nothing_said(),
	   "invariant 7: then the key has expired, and it is FREE");
}

static void
test_debt_after_an_error(void)
{
	hold(3);
	release();
	released_by("01");
	release_fails_at("2");
	ok(lease.state == CORE_RELEASING && nothing_said(), "a release that errors stays owed");
	tick_at(now_us + RETRY_US - 1);
	ok(nothing_said(), "for a pause");
	tick_at(lease.wake_at_us);
	ok(out.release == set("2"), "invariant 7: then it is asked again");
	release_fails_at("2");
	tick_at(lease.wake_at_us);
	ok(out.release == set("2"), "as often as needed");
	released_by("2");
	ok(lease.state == CORE_FREE, "until it succeeds");
}

/* Many debts at a dead node must not keep the shell busy. */
static void
test_debt_of_a_node_that_stays_away(void)
{
	int64_t released_us;
	int ticks = 0;

	hold(3);
	node_lost(2);
	released_us = now_us;
	release();
	released_by("01");
	for (; lease.state == CORE_RELEASING; ticks++)
		tick_at(lease.wake_at_us);
	ok(ticks <= 8 && now_us == released_us + OWED_US,
	   "is looked at each time that as long has passed again, %d times", ticks);
}

static void
test_replaced_connections(void)
{
	start(3);
	acquire_once();
	granted_by("0");
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	ok(out.acquire == set("1") && lease.state == CORE_ASKING,
	   "a node whose connection was replaced meanwhile is asked again");
	granted_by("1");
	ok(lease.state == CORE_HELD, "and its yes counts in the same round");

	start(3);
	acquire_once();
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	acquire_fails_at("1");
	refused_by("02");
	ok(out.release == set("1"), "an error does not prove that the first question was not executed");

	start(3);
	acquire_once();
	granted_by("0");
	quarantined = set("1");
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	ok(nothing_sent() && lease.state == CORE_ASKING, "but not if it must not vote any more");
	refused_by("2");
	ok(out.outcome == CORE_REFUSED, "then the round ends without it");
}

static void
test_late_refusals(void)
{
	start(3);
	acquire_once();
	granted_by("01");
	happens((core_event){.type = CORE_NODE_READY, .node = 2});
	ok(lease.state == CORE_HELD && out.renew == set("2"),
	   "a node that is ready again is renewed at");
	refused_by("2");
	ok(lease.node[2].key == CORE_KEY_MAYBE && lease.node[2].vote == CORE_VOTE_PENDING,
	   "its no to the acquire says nothing of the renewal");
	release();
	ok(out.release == set("012"), "invariant 7: and what that may set is released");
}

/* When all requests of one moment refuse each other, a request must win later. */
static void
test_tries_that_nobody_won(void)
{
	int64_t asked_us;

	patience_of_a_try_us = 100 * MS;
	start(3);
	acquire_once();
	asked_us = now_us;
	granted_by("0");
	refused_by_host("1", 7);
	refused_by_host("2", 8);
	ok(out.outcome == CORE_MUST_WAIT && lease.state == CORE_BUSY && out.release == set("0"),
	   "a try that met no holder is undone");
	ok(lease.wake_at_us > now_us && lease.wake_at_us <= now_us + 100 * MS,
	   "and asks again within the time for a recall");
	released_by("0");
	tick_at(lease.wake_at_us);
	granted_by("01");
	ok(lease.state == CORE_HELD, "until it has the lock");

	start(3);
	acquire_once();
	refused_by_host("0", 7);
	refused_by_host("1", 8);
	ok(out.outcome == CORE_MUST_WAIT, "also one whose own yes is still on its way");
	all_undone();
	tick_at(lease.wake_at_us);
	refused_by_host("12", 8);
	ok(out.outcome == CORE_REFUSED, "or until a majority names one holder");

	start(5);
	acquire_once();
	granted_by("34");
	refused_by_host("012", 7);
	ok(out.outcome == CORE_REFUSED, "where one does at once it is refused at once");

	start(3);
	acquire_once();
	asked_us = now_us;
	for (int rounds = 0; rounds < 100 && out.outcome != CORE_REFUSED; rounds++)
	{
		granted_by("0");
		refused_by_host("1", 7);
		refused_by_host("2", 8);
		all_undone();
		if (lease.state == CORE_BUSY)
			tick_at(lease.wake_at_us);
	}
	ok(lease.state == CORE_FREE && now_us == asked_us + 500 * MS,
	   "where nobody ever wins it ends, after some such times");
	patience_of_a_try_us = 0;
}

static void
test_recalls(void)
{
	int64_t asked_us;

	patience_of_a_try_us = PATIENCE_US;
	start(3);
	acquire_once();
	refused_by("0");
	refused_by_stay("1");
	ok(out.outcome == CORE_MUST_WAIT, "one node that knows of an idle lease suffices");

	start(3);
	acquire_once();
	refused_by_stay("01");
	ok(out.outcome == CORE_MUST_WAIT && lease.state == CORE_BUSY,
	   "a try whose rival may have the lock for nobody waits for that to be given up");
	ok(lease.wake_at_us == now_us + 500, "for half a millisecond");
	asked_us = now_us;
	tick_at(lease.wake_at_us);
	ok(out.acquire == set("012") && lease.state == CORE_ASKING, "and asks again");
	granted_by("02");
	ok(out.outcome == CORE_GRANTED, "it is given up");

	start(3);
	acquire_once();
	refused_by_stay("01");
	asked_us = now_us;
	for (int rounds = 1; lease.state == CORE_BUSY && rounds < 100; rounds++)
	{
		tick_at(lease.wake_at_us);
		refused_by_stay("01");
	}
	ok(out.outcome == CORE_REFUSED && now_us == asked_us + PATIENCE_US,
	   "it is refused when its patience is over, since somebody has the lock");
	ok(lease.attempt < 40, "after a few rounds (%u)", lease.attempt);

	start(3);
	acquire_once();
	refused_by_stay("01");
	tick_at(lease.wake_at_us);
	refused_by("12");
	ok(out.outcome == CORE_REFUSED, "and at once when the rival is another that can't");

	start(3);
	acquire_once();
	refused_by_stay("01");
	happens((core_event){.type = CORE_WAKE});
	ok(out.acquire == set("012"), "a release wakes it");
	happens((core_event){.type = CORE_WAKE});
	refused_by_stay("01");
	ok(lease.wake_at_us == now_us, "also while it asks");
	tick();
	acquire_fails_at("01");
	ok(out.outcome == CORE_REFUSED,
	   "that no quorum answers any more is no news: one has refused it");

	start(3);
	acquire_not_before(now_us + SECOND, true);
	happens((core_event){.type = CORE_WAKE});
	refused_by_stay("01");
	ok(lease.wake_at_us == now_us, "a try heeds no turn of another host, which it was told before");
	happens((core_event){.type = CORE_WAKE, .not_before_us = now_us + SECOND});
	ok(out.acquire == set("012"), "nor when it is woken");

	start(3);
	acquire_waiting();
	refused_by_stay("01");
	ok(out.outcome == CORE_MUST_WAIT && lease.wake_at_us > now_us + 500,
	   "a request that waits anyway waits for a release");
	patience_of_a_try_us = 0;
}

/* Nothing of a former request remains. */
static void
test_next_request(void)
{
	hold(3);
	release();
	released_by("012");
	ok(lease.state == CORE_FREE, "a request is over");
	quarantined = set("0");
	acquire_once();
	ok(lease.node[0].attempt == 0 && lease.node[1].attempt == 1,
	   "the next request has asked no node that does not vote");
}

/* An answer that counts in rounds begun after this time. */
static void
answer_by(int node, int64_t counts_after_us, core_op op, core_reply reply)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = op,
						 .reply = reply,
						 .round = lease.round,
						 .counts_after_us = counts_after_us,
						 .token = COUNTER});
}

/*
 * A server is listed twice, votes in a round, restarts, and is met by its second name within the
 * round.
 */
static void
test_process_met_in_a_round(void)
{
	int64_t valid_until_us;

	hold(3);
	node_lost(1);
	tick_at(lease.wake_at_us);
	valid_until_us = lease.valid_until_us;
	renewed_by("0");
	later(MS);
	node_ready(1);
	ok(out.renew == set("1"), "a node that is met during a round of renewals is sent one");
	answer_by(1, now_us, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(lease.valid_until_us == valid_until_us && out.outcome != CORE_RENEWED,
	   "invariant 4: its yes is no vote in this round, it may be of a server that voted");
	ok(lease.node[1].key == CORE_KEY_PRESENT, "invariant 7: but the key is there");
	renewal_fails_at("2");
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD, "the round ends without it");
	tick_at(lease.wake_at_us);
	renewed_by("0");
	answer_by(1, lease.round_began_us - 1, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(out.outcome == CORE_RENEWED, "and in the next one it has a vote");

	hold_and_renew(3);
	renewed_by("0");
	later(MS);
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	answer_by(1, lease.round_began_us - 1, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(out.outcome == CORE_RENEWED, "another connection to a process that was known is as good");

	hold_and_renew(3);
	renewal_refused_by("0");
	answer_by(1, lease.round_began_us, CORE_OP_RENEW, CORE_REPLY_NO);
	ok(lease.state == CORE_HELD, "a no of a process that was not known is no vote either");

	start(3);
	acquire_waiting();
	granted_by("0");
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	answer_by(1, lease.round_began_us, CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(lease.state == CORE_ASKING, "invariant 4: the same of acquires");
	refused_by("2");
	ok(out.outcome != CORE_GRANTED && (out.release & set("01")) == set("01"),
	   "invariant 7: what it set is undone");

	start(3);
	acquire_once();
	granted_with("0", COUNTER);
	granted_with("1", COUNTER + 1);
	ok(out.confirm == set("0"), "a token is to be written");
	answer_by(0, lease.round_began_us, CORE_OP_CONFIRM, CORE_REPLY_YES);
	ok(lease.state == CORE_ASKING, "invariant 2: the same of the writing of a token");
	answer_by(2, lease.round_began_us - 1, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	ok(lease.state != CORE_HELD, "which is not a grant by one server");
}

static void
test_no_room_for_releases(void)
{
	hold(3);
	full = set("2");
	release();
	ok(out.release == set("01"), "a node that takes no more releases is not sent one");
	ok(core_unpaid(&lease) == set("2"), "and is the one that is unpaid");
	released_by("01");
	full = 0;
	happens((core_event){.type = CORE_NODE_READY, .node = 2});
	ok(out.release == set("2") && core_unpaid(&lease) == 0, "it is sent one when it takes them");
	released_by("2");
	ok(lease.state == CORE_FREE, "and that was all");

	hold(3);
	full = set("012");
	release();
	ok(nothing_said() && lease.state == CORE_RELEASING && core_unpaid(&lease) == set("012"),
	   "there may be no room at all");
	tick_at(lease.wake_at_us);
	ok(nothing_said(), "also when it is looked at again");
	full = 0;
	tick_at(lease.wake_at_us);
	ok(out.release == set("012"), "which goes on");

	start(3);
	acquire_waiting();
	full = set("012");
	granted_by("0");
	refused_by("12");
	ok(out.release == set("0"), "what was not won is undone, room or not");

	hold(3);
	full = set("012");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "and renewals need none");
}

static void
test_debt_while_busy(void)
{
	lose_the_race();
	node_lost(0);
	ok(lease.state == CORE_BUSY && nothing_said(), "the undo of a half-won round went unanswered");
	node_ready(0);
	ok(out.release == set("0") && lease.node[0].attempt == 1,
	   "invariant 7: asked again when the node is back");
	node_ready(1);
	ok(nothing_said(), "but never where the lock was refused");
	released_by("0");
	release();
	ok(lease.state == CORE_FREE, "all undone");
}

/* ---- tokens ---- */

static void
test_counters_agree(void)
{
	start(5);
	acquire_once();
	ok(lease.token == 0, "no token before the grant");
	granted_with("01", 30);
	ok(nothing_said() && lease.token == 0 && lease.state == CORE_ASKING, "nor with two of five");
	granted_with("2", 30);
	ok(out.outcome == CORE_GRANTED && nothing_sent() && lease.token == 30,
	   "invariant 2: counters of a majority that agree are the token, in one round trip");
	granted_with("3", 20);
	granted_with("4", 40);
	ok(nothing_said() && lease.token == 30, "invariant 2: late counters do not change it");

	start(1);
	acquire_once();
	granted_with("0", 7);
	ok(out.outcome == CORE_GRANTED && lease.token == 7, "one node always agrees with itself");
}

/* Counters 10, 30, 20 of nodes 0, 1, 2 of five; 3 and 4 have not answered. */
static void
counters_differ(bool once)
{
	start(5);
	acquire(once);
	granted_with("0", 10);
	granted_with("1", 30);
	granted_with("2", 20);
}

static void
test_counters_differ(void)
{
	counters_differ(true);
	ok(lease.state == CORE_ASKING && out.outcome == CORE_NOTHING,
	   "invariant 2: a majority of different counters is no grant yet");
	ok(lease.token == 30, "the largest is the token");
	ok(out.confirm == set("02") && lease.confirming == set("02") && out.release == 0,
	   "it is written where the counter is smaller, and nowhere else");
	ok(lease.token_at[0] == 10 && lease.token_at[1] == 30 && lease.token_at[2] == 20,
	   "invariant 2: over the counter that was granted: what is compared is kept");
	ok(lease.wake_at_us == now_us + ANSWER_US, "in the time of the same round");
	confirmed_by("2");
	ok(nothing_said() && lease.state == CORE_ASKING && lease.confirming == set("0"),
	   "two of five hold the token: no majority");
	confirmed_by("0");
	ok(out.outcome == CORE_GRANTED && nothing_sent() && lease.token == 30,
	   "three of five do: granted");
	ok(lease.token_at[0] == 30 && lease.token_at[2] == 30 && lease.confirming == 0,
	   "and the counters are as written");
	release();
	ok(out.release == set("01234"), "invariant 7: released as any other");

	start(2);
	acquire_once();
	granted_with("0", 11);
	granted_with("1", 10);
	ok(out.confirm == set("1") && lease.token == 11, "it may be the first that is largest");
	confirmed_by("1");
	ok(out.outcome == CORE_GRANTED && lease.token == 11, "or the last to confirm");

	start(5);
	acquire_once();
	refused_by("3");
	granted_with("0", 30);
	granted_with("4", 30);
	granted_with("1", INT64_C(9007199254740991));
	ok(lease.token == INT64_C(9007199254740991) && out.confirm == set("04"),
	   "two that agree write what the third has, however large");
}

static void
test_straggler_while_confirming(void)
{
	counters_differ(true);
	granted_with("3", 30);
	ok(nothing_said() && lease.state == CORE_ASKING, "a late yes with the token counts");
	confirmed_by("2");
	ok(out.outcome == CORE_GRANTED && lease.confirming == set("0"),
	   "invariant 2: two that granted it and one that confirmed it are a majority");

	counters_differ(true);
	confirmed_by("0");
	granted_with("4", 30);
	ok(out.outcome == CORE_GRANTED && nothing_sent(), "it may be the one that was missing");

	counters_differ(true);
	granted_with("3", 29);
	ok(out.confirm == set("3") && out.outcome == CORE_NOTHING && lease.confirming == set("023"),
	   "a late yes with less is asked to confirm, alone");
	confirmed_by("3");
	confirmed_by("2");
	ok(out.outcome == CORE_GRANTED && lease.token == 30, "and counts when it has");

	counters_differ(true);
	granted_with("3", 31);
	ok(nothing_said() && lease.token == 30 && lease.state == CORE_ASKING,
	   "invariant 2: a late yes with more does not change the token, and is not asked to");
	confirmed_by("0");
	ok(nothing_said(), "nor does it count");
	confirmed_by("2");
	ok(out.outcome == CORE_GRANTED && lease.token == 30, "a majority without it grants");
	release();
	ok(out.release == set("01234"), "invariant 7: but it is released");

	counters_differ(true);
	refused_by("3");
	acquire_fails_at("4");
	ok(nothing_said() && lease.state == CORE_ASKING, "a late no and a late error leave it open");
	confirmed_by("02");
	ok(out.outcome == CORE_GRANTED, "to those who may confirm");
}

static void
test_confirm_refused(void)
{
	counters_differ(true);
	confirm_refused_by("0");
	ok(nothing_said() && lease.state == CORE_ASKING && core_count(&lease, CORE_VOTE_NO) == 1,
	   "one refuses to confirm: another was granted something there since");
	confirmed_by("2");
	granted_with("3", 30);
	ok(out.outcome == CORE_GRANTED, "the others may suffice");
	release();
	ok(out.release == set("01234"), "invariant 7: the key may be left where it refused");

	counters_differ(true);
	confirm_refused_by("0");
	confirm_refused_by("2");
	ok(nothing_said(), "two refuse: the two that have not answered may hold the token");
	granted_with("3", 31);
	ok(out.outcome == CORE_REFUSED && lease.state == CORE_RELEASING,
	   "one has another: no majority can hold it, refused");
	ok(out.release == set("01234") && lease.token == 0 && core_tombstone(&lease) == 0,
	   "invariant 7: undone wherever it was or may be granted, without a token");
	granted_with("4", 30);
	confirmed_by("0");
	ok(nothing_said() && lease.state == CORE_RELEASING, "late replies are just read");
	released_by("01234");
	ok(lease.state == CORE_FREE, "then it is over");

	counters_differ(true);
	refused_by("34");
	ok(nothing_said(), "all three must confirm");
	confirm_refused_by("2");
	ok(out.outcome == CORE_REFUSED && out.release == set("012"), "one does not: refused");

	counters_differ(false);
	refused_by("34");
	confirm_refused_by("0");
	ok(out.outcome == CORE_MUST_WAIT && lease.state == CORE_BUSY && out.release == set("012") &&
		   lease.token == 0 && core_tombstone(&lease) == 0,
	   "who waits is not told");
	ok(lease.wake_at_us <= now_us + 10 * MS,
	   "invariant 12: nobody has a majority: it asks again within 10 ms");
}

static void
test_confirm_fails(void)
{
	counters_differ(true);
	confirm_fails_at("0");
	ok(nothing_said() && core_count(&lease, CORE_VOTE_ERROR) == 1, "an error is no usable answer");
	confirm_fails_at("2");
	ok(nothing_said() && lease.state == CORE_ASKING, "two of five are lost");
	acquire_fails_at("4");
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("0123"),
	   "three: unreachable, and undone where it may be");

	start(3);
	acquire_once();
	refused_by("0");
	granted_with("1", 10);
	granted_with("2", 30);
	confirm_fails_at("1");
	ok(out.outcome == CORE_REFUSED && out.release == set("12"),
	   "one error of three is a quorum that answered: refused");

	start(3);
	acquire_once();
	acquire_fails_at("0");
	granted_with("1", 10);
	granted_with("2", 30);
	ok(out.confirm == set("1"), "with a node that errored");
	confirm_fails_at("1");
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("12"), "two are none");

	start(3);
	acquire_waiting();
	acquire_fails_at("0");
	granted_with("1", 10);
	granted_with("2", 30);
	confirm_fails_at("1");
	ok(out.outcome == CORE_MUST_WAIT && lease.state == CORE_BUSY && out.release == set("12"),
	   "who waits tries again");
	ok(lease.wake_at_us >= now_us + RETRY_US / 2, "after a pause: nodes are not there sooner");
	released_by("12");
	tick_at(lease.wake_at_us);
	ok(lease.token == 0 && lease.token_at[1] == 0 && lease.token_at[2] == 0 &&
		   lease.confirming == 0,
	   "invariant 2: the next attempt knows nothing of the token of the last");
	granted_with("01", 20);
	ok(out.outcome == CORE_GRANTED && lease.token == 20, "and finds its own");
}

static void
test_node_lost_while_confirming(void)
{
	counters_differ(true);
	node_lost(0);
	ok(nothing_said() && lease.confirming == set("2") && core_count(&lease, CORE_VOTE_ERROR) == 1,
	   "who was lost while asked to confirm has not");
	ok(!core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, lease.round), "and is not awaited");
	node_ready(0);
	ok(nothing_said(), "nor asked again in this round");
	node_lost(1);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_YES) == 2,
	   "who was lost with the token has it still");
	node_lost(3);
	ok(nothing_said() && lease.state == CORE_ASKING, "two of five are lost");
	node_lost(2);
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("04"), "three: unreachable");
	released_by("04");
	ok(lease.state == CORE_RELEASING, "invariant 7: those who are away owe an answer");
	node_ready(1);
	node_ready(2);
	node_ready(3);
	released_by("123");
	ok(lease.state == CORE_FREE, "until they are back");

	counters_differ(true);
	node_lost(0);
	confirmed_by("2");
	granted_with("3", 30);
	ok(out.outcome == CORE_GRANTED, "one lost leaves a majority");
	node_ready(0);
	ok(out.renew == set("0"), "and is repaired when it is back");
}

static void
test_confirm_unanswered(void)
{
	int64_t asked_us;

	start(5);
	asked_us = now_us;
	acquire_once();
	later(400 * MS);
	granted_with("0", 10);
	granted_with("1", 30);
	granted_with("2", 20);
	ok(lease.wake_at_us == asked_us + ANSWER_US, "confirms share the time of the acquires");
	confirmed_by("0");
	granted_with("3", 31);
	tick_at(lease.wake_at_us - 1);
	ok(nothing_said() && lease.state == CORE_ASKING, "until it is over the round is open");
	later(1);
	tick();
	ok(out.outcome == CORE_REFUSED && out.release == set("01234") && lease.confirming == 0,
	   "invariant 11: then who was asked to confirm and is silent has not: refused");

	counters_differ(true);
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNREACHABLE && out.release == set("01234"),
	   "with two that never answered at all: unreachable");
	confirmed_by("0");
	confirmed_by("2");
	granted_with("34", 30);
	ok(nothing_said() && lease.state == CORE_RELEASING, "invariant 3: late confirms grant nothing");
}

/* A node answers, and then takes no more commands. */
static void
test_confirm_can_not_be_sent(void)
{
	start(5);
	acquire_once();
	granted_with("01", 10);
	up = set("1234");
	granted_with("2", 20);
	ok(out.confirm == set("1") && core_count(&lease, CORE_VOTE_ERROR) == 1,
	   "who can't be asked to confirm is an error");
	up = set("01234");
	tick();
	ok(nothing_said(), "and stays one");
	granted_with("3", 20);
	confirmed_by("1");
	ok(out.outcome == CORE_GRANTED, "a majority of the others grants");
	release();
	ok(out.release == set("01234"), "invariant 7: the key is there all the same");

	start(5);
	acquire_once();
	acquire_fails_at("34");
	granted_with("0", 30);
	granted_with("1", 10);
	up = set("0234");
	granted_with("2", 10);
	ok(out.outcome == CORE_UNREACHABLE && out.confirm == 0 && out.release == set("02"),
	   "three of five can't be: unreachable, and nobody is asked to confirm");

	start(5);
	acquire_once();
	granted_with("01", 10);
	node_lost(0);
	node_lost(1);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_YES) == 2, "who said yes has said so");
	node_ready(0);
	ok(nothing_said(), "its key is that of this attempt: let it be");
	granted_with("2", 20);
	ok(out.confirm == set("0"), "asked to confirm on its next connection");
	granted_with("3", 20);
	confirmed_by("0");
	ok(out.outcome == CORE_GRANTED, "it may do so");

	start(3);
	acquire_once();
	granted_with("0", 10);
	quarantined = set("0");
	granted_with("1", 20);
	ok(out.confirm == set("0"), "quarantine is no reason not to ask: the node knows what it lost");
}

static void
test_validity_after_confirm(void)
{
	int64_t sent_us;

	start(3);
	sent_us = now_us;
	acquire_once();
	later(100 * MS);
	granted_with("0", 10);
	granted_with("1", 20);
	later(100 * MS);
	confirmed_by("0");
	ok(out.outcome == CORE_GRANTED && lease.valid_until_us == sent_us + VALIDITY_US,
	   "invariant 3: validity counts from before the acquires were sent, not the confirms");
	ok(lease.wake_at_us == sent_us + TTL_US / 3, "so does the renewal");

	start(3);
	sent_us = now_us;
	acquire_once();
	granted_with("0", 10);
	granted_with("1", 20);
	now_us = sent_us + ANSWER_US - 1;
	confirmed_by("0");
	ok(out.outcome == CORE_GRANTED && lease.state == CORE_HELD,
	   "confirmed one microsecond before the end of the round is a grant");

	start(3);
	sent_us = now_us;
	acquire_once();
	granted_with("0", 10);
	granted_with("1", 20);
	now_us = sent_us + ANSWER_US;
	confirmed_by("0");
	ok(lease.state == CORE_BUSY && out.release == set("012") && lease.token == 0,
	   "invariant 1: at the end of the round it is none, and undone");
}

static void
test_release_while_confirming(void)
{
	counters_differ(false);
	release();
	ok(lease.state == CORE_RELEASING && out.release == set("01234") && out.confirm == 0 &&
		   out.outcome == CORE_NOTHING,
	   "invariant 11: RELEASE while confirming undoes everything");
	ok(lease.token == 0 && lease.confirming == 0 && core_tombstone(&lease) == 0,
	   "and leaves no tombstone: nothing was granted, or renewed");
	confirmed_by("02");
	granted_with("34", 30);
	ok(lease.state == CORE_RELEASING && nothing_said() && lease.token == 0,
	   "invariant 11: what comes later grants nothing");
	released_by("01234");
	ok(lease.state == CORE_FREE, "and it is over");
}

static void
test_late_confirms(void)
{
	int64_t valid_until_us;

	counters_differ(true);
	granted_with("34", 30);
	ok(out.outcome == CORE_GRANTED && lease.confirming == set("02"),
	   "granted while two have not answered the confirm");
	ok(core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, lease.round), "which is awaited still");
	valid_until_us = lease.valid_until_us;
	confirmed_by("0");
	ok(nothing_said() && lease.token_at[0] == 30 && lease.confirming == set("2"),
	   "a late confirm is noted");
	confirm_refused_by("2");
	ok(nothing_said() && lease.state == CORE_HELD && lease.confirming == 0 &&
		   lease.token_at[2] == 20 && lease.valid_until_us == valid_until_us,
	   "a late refusal changes nothing now");
	confirmed_by("2");
	ok(nothing_said() && lease.token_at[2] == 20, "an answer that nobody awaits is none");

	counters_differ(true);
	granted_with("34", 30);
	confirm_fails_at("0");
	node_lost(2);
	ok(nothing_said() && lease.state == CORE_HELD && lease.confirming == 0,
	   "nor does a late error, or a node lost");

	counters_differ(true);
	granted_with("34", 30);
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01234") && lease.confirming == 0,
	   "a round of renewals no longer awaits confirms");
	reply_of_round(lease.round - 1, 0, CORE_OP_CONFIRM, CORE_REPLY_NO);
	confirm_refused_by("2");
	ok(nothing_said() && core_count(&lease, CORE_VOTE_PENDING) == 5,
	   "invariant 5: nor takes them for votes");
	node_lost(0);
	renewed_by("23");
	ok(lease.renewing && core_count(&lease, CORE_VOTE_ERROR) == 1, "a node lost counts once");
	renewed_by("4");
	ok(out.outcome == CORE_RENEWED, "and the others renew");
	release();
	ok(out.release == set("1234") && core_tombstone(&lease) == 31, "and are released");

	counters_differ(true);
	granted_with("34", 30);
	tick_at(lease.valid_until_us);
	confirmed_by("0");
	confirm_refused_by("2");
	ok(lease.state == CORE_LOST && nothing_said(),
	   "invariant 9: nor do confirms revive a LOST lease");
}

static void
test_old_round_of_confirms(void)
{
	uint32_t old;

	counters_differ(false);
	old = lease.round;
	refused_by("34");
	confirm_refused_by("0");
	released_by("012");
	tick_at(lease.wake_at_us);
	granted_with("0", 40);
	granted_with("1", 60);
	granted_with("2", 50);
	ok(lease.token == 60 && out.confirm == set("02"), "the next attempt confirms, too");
	reply_of_round(old, 2, CORE_OP_CONFIRM, CORE_REPLY_YES);
	reply_of_round(old, 0, CORE_OP_CONFIRM, CORE_REPLY_YES);
	ok(nothing_said() && lease.state == CORE_ASKING && lease.confirming == set("02") &&
		   lease.token_at[0] == 40,
	   "invariant 2: confirms of the old round do not count for it");
	reply_of_round(old, 2, CORE_OP_CONFIRM, CORE_REPLY_NO);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_YES) == 3, "nor against it");
	confirmed_by("1");
	ok(nothing_said() && lease.state == CORE_ASKING, "nor do those of nodes that were not asked");
	confirmed_by("02");
	ok(out.outcome == CORE_GRANTED && lease.token == 60, "its own do");
}

static void
test_awaits_confirms(void)
{
	uint32_t round;

	counters_differ(true);
	round = lease.round;
	ok(core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, round) &&
		   core_awaits_answer(&lease, 2, CORE_OP_CONFIRM, round),
	   "a confirm just sent is awaited");
	ok(!core_awaits_answer(&lease, 1, CORE_OP_CONFIRM, round) &&
		   !core_awaits_answer(&lease, 3, CORE_OP_CONFIRM, round) &&
		   !core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, round - 1) &&
		   !core_awaits_answer(&lease, 0, CORE_OP_ACQUIRE, round) &&
		   !core_awaits_answer(&lease, 0, CORE_OP_RENEW, round) &&
		   core_awaits_answer(&lease, 3, CORE_OP_ACQUIRE, round),
	   "not where none was sent, nor in another round, nor another command");
	confirmed_by("2");
	ok(!core_awaits_answer(&lease, 2, CORE_OP_CONFIRM, round), "not when it was answered");
	refused_by("34");
	confirm_refused_by("0");
	ok(lease.state == CORE_RELEASING && !core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, round),
	   "nor when all is undone");

	counters_differ(false);
	refused_by("34");
	confirm_refused_by("2");
	ok(lease.state == CORE_BUSY && !core_awaits_answer(&lease, 0, CORE_OP_CONFIRM, lease.round),
	   "also to try again");
}

static void
test_tombstone(void)
{
	hold(3);
	ok(core_tombstone(&lease) == 0, "who holds the lock leaves no tombstone");
	release();
	ok(core_tombstone(&lease) == 0 && lease.token == COUNTER,
	   "a release needs none if nothing was renewed");

	hold_and_renew(3);
	ok(core_tombstone(&lease) == 0, "nor does one who renews it");
	release();
	ok(core_tombstone(&lease) == COUNTER + 1,
	   "invariant 6: after a renewal it must stop those that come late");
	released_by("01");
	node_lost(2);
	node_ready(2);
	ok(out.release == set("2") && core_tombstone(&lease) == COUNTER + 1,
	   "also where it is asked for again");
	released_by("2");
	ok(lease.state == CORE_FREE && core_tombstone(&lease) == 0, "until all is over");
	acquire_once();
	granted_with("012", 200);
	release();
	ok(core_tombstone(&lease) == 0, "the next grant begins anew");

	hold_and_renew(3);
	tick_at(lease.wake_at_us);
	ok(out.outcome == CORE_UNRENEWED, "renewals that nobody answered");
	tick_at(lease.valid_until_us);
	ok(lease.state == CORE_LOST && core_tombstone(&lease) == COUNTER + 1,
	   "invariant 6: may come late when the lease is LOST");
	release();
	ok(core_tombstone(&lease) == COUNTER + 1, "and when it is released");

	hold(3);
	up = 0;
	tick_at(lease.wake_at_us);
	up = set("012");
	release();
	ok(out.release == set("012") && core_tombstone(&lease) == 0,
	   "a round of renewals in which none was sent is none");

	hold(3);
	node_lost(2);
	node_ready(2);
	release();
	ok(core_tombstone(&lease) == COUNTER + 1, "invariant 6: a repair is a renewal");

	lose_the_race();
	ok(out.release == set("0") && core_tombstone(&lease) == 0, "an undone attempt leaves none");
	release();
	ok(core_tombstone(&lease) == 0, "nor does giving up after it");

	hold_and_renew(3);
	release();
	released_by("012");
	acquire_waiting();
	refused_by("12");
	release();
	ok(out.release == 0 && lease.state == CORE_RELEASING && core_tombstone(&lease) == 0,
	   "even if the grant before it was renewed");
}

/* The node refuses a renewal for its counter alone. */
static void
renewal_meets(const char *nodes, int64_t counter)
{
	for (; *nodes != '\0'; nodes++)
		happens((core_event){.type = CORE_REPLY,
							 .node = *nodes - '0',
							 .op = CORE_OP_RENEW,
							 .reply = CORE_REPLY_NO,
							 .round = lease.round,
							 .token = counter});
}

/* Node 0 was down until the key expired, and other hosts have asked there since. */
static void
node_0_has_counted(int64_t counter)
{
	hold_and_renew(3);
	node_lost(0);
	renewed_by("12");
	node_ready(0);
	renewal_meets("0", counter);
}

static void
test_raised_bound(void)
{
	node_0_has_counted(200);
	ok(lease.wake_at_us == lease.round_began_us + TTL_US / 9,
	   "a healthy node lacks the key: the next round comes sooner");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012") && lease.bound == COUNTER && lease.raise > 200,
	   "and asks who has the key to count beyond what that node told");
	ok(core_raises_until_us(&lease) == lease.wake_at_us && lease.wake_at_us > now_us,
	   "which is decided when the round ends");
	renewal_meets("0", 200);
	renewed_by("1");
	ok(lease.bound == COUNTER, "invariant 5: one is no majority");
	renewed_by("2");
	ok(out.outcome == CORE_RENEWED && lease.bound == lease.raise && lease.token == COUNTER,
	   "a majority raises the bound, and the token stays");
	ok(lease.wake_at_us <= now_us && core_raises_until_us(&lease) == 0,
	   "then the node is asked again at once");
	tick();
	ok(out.renew == set("012") && lease.raise == lease.bound, "with the new bound");
	ok(core_raises_until_us(&lease) == 0, "which is raised no more");
	renewed_by("012");
	ok(lease.wake_at_us == lease.round_began_us + TTL_US / 3, "all is well again");
	release();
	ok(core_tombstone(&lease) == lease.bound + 1 && lease.bound > 200,
	   "invariant 6: late renewals may pass the new bound, and the tombstone stops them");

	node_0_has_counted(200);
	tick_at(lease.wake_at_us);
	renewal_meets("0", 200);
	renewed_by("1");
	renewal_fails_at("2");
	ok(out.outcome == CORE_UNRENEWED && lease.bound == COUNTER,
	   "invariant 5: a round that fails raises nothing");
	tick_at(lease.wake_at_us);
	ok(lease.bound == COUNTER && lease.raise > 200, "the next one tries again");
	release();
	ok(core_tombstone(&lease) == COUNTER + 1, "what was not raised needs no higher tombstone");

	node_0_has_counted(200);
	tick_at(lease.wake_at_us);
	renewed_by("12");
	renewal_meets("0", TTL_US);
	tick();
	ok(lease.raise == lease.bound, "a round that follows another at once does not raise again");
	renewed_by("12");
	renewal_meets("0", 2 * TTL_US);
	ok(lease.wake_at_us == lease.round_began_us + TTL_US / 9,
	   "who counts on and on is not asked without a pause");

	hold_and_renew(3);
	renewed_by("12");
	renewal_refused_by("0");
	ok(lease.wake_at_us == lease.round_began_us + TTL_US / 9, "another's key: sooner, too");
	tick_at(lease.wake_at_us);
	ok(lease.raise == lease.bound, "but that raises no bound");

	hold_and_renew(3);
	renewal_refused_by("0");
	renewed_by("12");
	ok(lease.wake_at_us == lease.round_began_us + TTL_US / 9, "in whatever order they answer");

	start(3);
	acquire_once();
	granted_with("01", 100);
	granted_with("2", 300);
	tick_at(lease.wake_at_us);
	ok(lease.token == 100 && lease.raise > 300,
	   "a node that granted late and counted further is won, too");
}

static void
test_debts_end_with_tombstone(void)
{
	hold_and_renew(3);
	release();
	released_by("01");
	later(OWED_US - RETRY_US);
	tick();
	ok(nothing_said() && lease.wake_at_us == lease.owed_until_us,
	   "a release is under way to the end");
	release_fails_at("2");
	tick_at(lease.wake_at_us);
	ok(lease.state == CORE_FREE && nothing_said(),
	   "invariant 6: when debts have expired, nothing more is sent: it would have no tombstone");
}

/* ---- quarantine ---- */

static void
test_quarantine(void)
{
	start(3);
	quarantined = set("0");
	acquire_once();
	ok(out.acquire == set("12") && core_count(&lease, CORE_VOTE_ERROR) == 1,
	   "invariant 8: a node in quarantine is not asked");
	granted_by("1");
	ok(nothing_said() && lease.state == CORE_ASKING, "invariant 4: nor does that lower the quorum");
	granted_by("2");
	ok(out.outcome == CORE_GRANTED, "the others may grant");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "renewals reach it");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED, "and count");
	release();
	ok(out.release == set("012"), "and so do releases");

	start(3);
	quarantined = set("0");
	acquire_once();
	granted_by("12");
	release();
	ok(out.release == set("12"), "but not where nothing was ever asked for");

	start(3);
	quarantined = set("02");
	acquire_once();
	ok(out.outcome == CORE_UNREACHABLE && lease.state == CORE_FREE && nothing_sent(),
	   "invariants 4, 8: one of three is no quorum, however many can be sent to");

	start(5);
	quarantined = set("01");
	acquire_once();
	granted_by("23");
	refused_by("4");
	ok(out.outcome == CORE_REFUSED, "two yes, one no: a quorum answered, and refused");

	start(5);
	quarantined = set("01");
	acquire_once();
	granted_by("23");
	acquire_fails_at("4");
	ok(out.outcome == CORE_UNREACHABLE, "two yes, one error: unreachable");

	start(3);
	quarantined = set("0");
	acquire_waiting();
	refused_by("12");
	quarantined = 0;
	tick_at(lease.wake_at_us);
	ok(out.acquire == set("012"), "invariant 12: asked in the round after its quarantine");
}

static void
test_debt_in_quarantine(void)
{
	lose_the_race();
	node_lost(0);
	quarantined = set("0");
	node_ready(0);
	ok(out.release == set("0"), "invariant 7: debts are asked for in quarantine, too");
	node_lost(0);
	up = set("012");
	tick_at(lease.wake_at_us);
	ok(out.acquire == set("12") && lease.node[0].attempt == 1,
	   "the key of attempt 1 is left alone by attempt 2, that does not ask there");
	refused_by("1");
	ok(lease.state == CORE_ASKING, "one no, one error, one open");
	refused_by("2");
	ok(out.release == set("0"), "invariant 7: and is released with what attempt 2 left");
}

static void
test_repair_in_quarantine(void)
{
	hold(3);
	node_lost(2);
	quarantined = set("2");
	node_ready(2);
	ok(out.renew == set("2"), "a node that lost its data gets the key of a valid lease back");
	renewed_by("2");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "and keeps it");
}

/* ---- adoption ---- */

/* A new shell, which has no connection yet. */
static void
adopted(int64_t not_before_us)
{
	up = 0;
	happens((core_event){.type = CORE_ADOPT, .not_before_us = not_before_us});
}

static void
nodes_are_back(void)
{
	up = members;
	for (int i = 0; i < 3; i++)
		happens((core_event){.type = CORE_NODE_READY, .node = i});
}

/* The number of an attempt is part of the value, so no number may come twice. */
static void
test_many_attempts(void)
{
	static const uint32_t ages[] = {
		0,         CORE_ATTEMPT_MAX - 1, CORE_ATTEMPT_MAX, CORE_ATTEMPT_MAX + 6, UINT32_MAX - 1,
		UINT32_MAX};

	/* a long-used entry: a yes that counts keeps the key */
	for (size_t i = 0; i < sizeof(ages) / sizeof(ages[0]); i++)
	{
		start(3);
		lease.attempt = lease.round = ages[i];
		acquire_waiting();
		ok(out.acquire == set("012") && lease.attempt == 1,
		   "after %u attempts in its entry a request begins", ages[i]);
		granted_by("0");
		node_lost(0);
		node_ready(0);
		ok(nothing_said(), "a node that comes back keeps a key that counts");
		granted_by("1");
		ok(lease.state == CORE_HELD, "and a majority grants the lock");
		release();
		ok(out.release == set("012"), "which is released everywhere");
		released_by("012");
		ok(lease.state == CORE_FREE, "and free");
	}

	/* a request that asks for a long time */
	start(3);
	acquire_waiting();
	refused_by("012");
	released_by("012");
	lease.attempt = CORE_ATTEMPT_MAX - 1;
	tick_at(lease.wake_at_us);
	ok(out.acquire == set("012") && lease.attempt == CORE_ATTEMPT_MAX,
	   "the last attempt of a request");
	granted_by("0");
	refused_by("12");
	ok(lease.state == CORE_BUSY && out.release == set("0"), "is undone as any other");
	tick_at(lease.wake_at_us);
	ok(lease.state == CORE_RELEASING && nothing_said(), "no attempt follows it");
	released_by("0");
	ok(lease.state == CORE_FREE && out.outcome == CORE_NOTHING,
	   "when all is paid the request is over, without a word");
	acquire_waiting();
	ok(out.acquire == set("012") && lease.attempt == 1, "and another begins");
}

static void
test_adopted_while_asking(bool once)
{
	const char *who = once ? "a try" : "a request";

	start(3);
	happens((core_event){.type = CORE_ACQUIRE,
						 .lists = {members, 0},
						 .once = once,
						 .ttl_us = TTL_US,
						 .answer_us = ANSWER_US,
						 .patience_us = PATIENCE_US,
						 .retry_us = RETRY_US});
	granted_by("0");
	later(10 * PATIENCE_US);
	adopted(now_us + SECOND);
	ok(nothing_said() && lease.state == CORE_BUSY, "%s outlives the shell that asked", who);
	ok(lease.wake_at_us == now_us + SECOND && owes_all_of("012"),
	   "%s: begins anew when it is told to, and knows what may be left", who);
	nodes_are_back();
	happens((core_event){.type = CORE_WAKE, .retry_us = RETRY_US});
	ok(out.acquire == set("012") && lease.attempt == 2, "%s: or when the nodes are there", who);
	refused_by("12");
	ok(out.outcome == (once ? CORE_REFUSED : CORE_MUST_WAIT), "%s: and is decided then", who);
}

static void
test_adopted_patience(void)
{
	start(3);
	acquire_waiting();
	acquire_fails_at("012");
	all_undone();
	no_quorum_for(PATIENCE_US - SECOND);
	ok(lease.state == CORE_BUSY && lease.unreachable_since_us > 0, "some patience is used up");
	later(10 * PATIENCE_US);
	adopted(now_us);
	tick();
	ok(lease.state == CORE_BUSY && out.outcome == CORE_MUST_WAIT,
	   "time without a shell is no time without a quorum");
	no_quorum_for(PATIENCE_US - SECOND);
	ok(lease.state == CORE_BUSY, "patience begins anew with the next shell");
	no_quorum_for(PATIENCE_US);
	ok(lease.state == CORE_FREE && out.outcome == CORE_UNREACHABLE, "and ends");

	start(3);
	acquire_not_before(now_us + SECOND, false);
	adopted(now_us);
	happens((core_event){.type = CORE_WAKE, .retry_us = RETRY_US});
	ok(lease.state == CORE_BUSY, "the turn of another host outlives the shell, too");
}

static void
test_adopted_while_confirming(void)
{
	start(3);
	acquire_waiting();
	granted_with("0", 10);
	granted_with("1", 20);
	adopted(now_us);
	ok(lease.state == CORE_BUSY && lease.token == 0 && lease.confirming == 0 && nothing_sent(),
	   "a token that was being written is none");
}

static void
test_adopted_while_held(void)
{
	hold(3);
	adopted(now_us + SECOND);
	ok(nothing_said() && lease.state == CORE_HELD && lease.wake_at_us < now_us + SECOND * 10,
	   "what is held stays held");

	hold_and_renew(3);
	adopted(now_us);
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD,
	   "a renewal that was out has failed");
	up = members;
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012"), "and is sent again");

	hold_and_renew(3);
	now_us = lease.valid_until_us;
	adopted(now_us);
	ok(out.outcome == CORE_EXPIRED && lease.state == CORE_LOST,
	   "invariant 3: what ended meanwhile is lost");
}

static void
test_adopted_while_releasing(void)
{
	hold(3);
	release();
	released_by("0");
	adopted(now_us);
	ok(nothing_said() && lease.state == CORE_RELEASING && lease.releasing == 0, "debts stay debts");
	up = members;
	happens((core_event){.type = CORE_NODE_READY, .node = 1});
	ok(out.release == set("1"), "invariant 7: and are asked for again");
	happens((core_event){.type = CORE_NODE_READY, .node = 2});
	released_by("12");
	ok(lease.state == CORE_FREE, "until all are paid");
}

/* ---- repair ---- */

static void
test_repair(void)
{
	int64_t valid_until_us, wake_at_us;

	hold(3);
	valid_until_us = lease.valid_until_us;
	wake_at_us = lease.wake_at_us;
	later(SECOND);
	node_lost(2);
	ok(nothing_said(), "a node lost between two rounds");
	node_ready(2);
	ok(out.renew == set("2") && out.outcome == CORE_NOTHING && !lease.renewing,
	   "is sent a renewal when it is back, alone, which is no round");
	ok(lease.wake_at_us == wake_at_us, "and does not put off the next one");
	renewed_by("2");
	ok(nothing_said() && lease.valid_until_us == valid_until_us,
	   "invariant 9: its yes extends nothing");
	node_ready(1);
	node_ready(0);
	renewed_by("01");
	ok(nothing_said() && lease.valid_until_us == valid_until_us, "nor does that of all");
	tick_at(wake_at_us);
	ok(out.renew == set("012") && lease.renewing, "the next round asks all");
	renewed_by("01");
	ok(out.outcome == CORE_RENEWED, "and extends");

	hold(3);
	for (int i = 0; i < 3; i++)
	{
		node_lost(i);
		node_ready(i);
	}
	renewal_refused_by("01");
	renewal_fails_at("2");
	ok(nothing_said() && lease.state == CORE_HELD, "refusals outside of a round decide nothing");
	release();
	ok(out.release == set("012"), "invariant 7: nor are they a reason not to release");

	hold(3);
	node_lost(2);
	node_ready(2);
	node_lost(2);
	ok(nothing_said() && lease.state == CORE_HELD, "nor does a node lost again");
	node_ready(2);
	ok(out.renew == set("2"), "which is asked again on its next connection");
	tick_at(lease.valid_until_us);
	renewed_by("2");
	ok(nothing_said() && lease.state == CORE_LOST, "invariant 9: a repair revives no LOST lease");
	node_ready(2);
	ok(nothing_said(), "nor does a LOST lease repair");
}

static void
test_repair_before_renewal_round(void)
{
	uint32_t old;

	hold(3);
	node_lost(2);
	node_ready(2);
	old = lease.round;
	tick_at(lease.wake_at_us);
	reply_of_round(old, 2, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_PENDING) == 3,
	   "invariant 3: a repair asked for before the round is no vote in it");
	reply_of_round(old, 2, CORE_OP_RENEW, CORE_REPLY_NO);
	renewed_by("0");
	ok(nothing_said() && lease.renewing, "neither yes nor no");
	renewed_by("2");
	ok(out.outcome == CORE_RENEWED, "the round's own renewal is");
}

static void
test_repair_in_renewal_round(void)
{
	int64_t began_us;

	hold_and_renew(5);
	began_us = now_us;
	renewed_by("0");
	node_lost(1);
	node_lost(2);
	ok(nothing_said() && lease.renewing, "two of five lost leave a round open");
	later(100 * MS);
	node_ready(1);
	ok(out.renew == set("1") && out.outcome == CORE_NOTHING && lease.renewing,
	   "who is back in time is asked in this round");
	renewed_by("13");
	ok(out.outcome == CORE_RENEWED && lease.valid_until_us == began_us + VALIDITY_US,
	   "invariant 3: its yes counts, and from the begin of the round");

	hold_and_renew(3);
	renewed_by("0");
	node_lost(0);
	ok(nothing_said() && core_count(&lease, CORE_VOTE_YES) == 1, "who said yes has said so");
	node_ready(0);
	ok(out.renew == set("0") && core_count(&lease, CORE_VOTE_YES) == 0,
	   "but is asked again when it is back: it may have lost the key");
	renewed_by("1");
	ok(nothing_said() && lease.renewing, "and has one vote");
	renewed_by("0");
	ok(out.outcome == CORE_RENEWED, "that of its last answer");

	hold_and_renew(5);
	renewal_refused_by("01");
	node_lost(2);
	ok(out.outcome == CORE_UNRENEWED, "a round without a majority is over");
	node_ready(2);
	renewed_by("34");
	ok(nothing_said(), "later answers do not make it a success");
	renewal_refused_by("2");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "but a later refusal ends the lease, if a majority has refused");

	hold_and_renew(3);
	node_lost(2);
	renewal_refused_by("1");
	ok(out.outcome == CORE_UNRENEWED && lease.state == CORE_HELD,
	   "an error and a refusal of three");
	renewal_refused_by("0");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED, "and then another refusal");

	hold_and_renew(5);
	renewal_refused_by("0");
	renewed_by("123");
	node_lost(1);
	node_lost(2);
	node_ready(1);
	node_ready(2);
	renewal_refused_by("12");
	ok(nothing_said() && lease.state == CORE_HELD,
	   "refusals after a success, at other times, leave the next round to decide");

	hold_and_renew(5);
	node_lost(0);
	node_ready(0);
	renewal_refused_by("01");
	ok(lease.state == CORE_HELD && nothing_said(),
	   "refused by two of five, one of them lately back");
	renewal_refused_by("2");
	ok(lease.state == CORE_LOST && out.outcome == CORE_EXPIRED,
	   "invariant 5: its no counts in the round as any other");
}

static void
test_repair_where_never_asked(void)
{
	start(3);
	up = set("01");
	acquire_once();
	granted_by("01");
	ok(lease.node[2].attempt == 0 && lease.node[2].key == CORE_KEY_ABSENT, "never asked");
	node_ready(2);
	ok(out.renew == set("2") && lease.node[2].attempt == lease.attempt && owes_all_of("2"),
	   "a node that was away at the grant gets the key when it comes");
	ok(lease.node[2].key == CORE_KEY_MAYBE && lease.node[0].key == CORE_KEY_PRESENT,
	   "which is known when it has said so");
	renewed_by("2");
	ok(lease.node[2].key == CORE_KEY_PRESENT, "and only then");
	node_lost(2);
	node_ready(2);
	ok(out.renew == set("2") && lease.node[2].key == CORE_KEY_PRESENT, "and from then on");
	release();
	ok(out.release == set("012") && core_tombstone(&lease) == COUNTER + 1,
	   "invariants 6, 7: and loses it at the release");

	hold(3);
	up |= set("3");
	node_ready(3);
	ok(nothing_said(), "a node that is no member gets none");
	release();
	node_ready(3);
	ok(nothing_said() && lease.node[3].key == CORE_KEY_ABSENT, "and has none to release");

	hold(3);
	happens((core_event){.type = CORE_NODE_READY, .node = 2});
	up = set("01");
	happens((core_event){.type = CORE_NODE_READY, .node = 2});
	ok(nothing_said(), "one that takes no commands after all gets none now");

	start(3);
	acquire_once();
	node_lost(2);
	node_ready(2);
	ok(nothing_said() && lease.state == CORE_ASKING, "while ASKING nothing is repaired");
}

static void
test_awaits_repair(void)
{
	uint32_t round;

	hold(3);
	round = lease.round;
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RENEW, round), "no renewal is awaited");
	node_lost(2);
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RENEW, round), "of a node lost neither");
	node_ready(2);
	ok(core_awaits_answer(&lease, 2, CORE_OP_RENEW, round), "a repair just sent is");
	ok(!core_awaits_answer(&lease, 1, CORE_OP_RENEW, round) &&
		   !core_awaits_answer(&lease, 2, CORE_OP_ACQUIRE, round) &&
		   !core_awaits_answer(&lease, 2, CORE_OP_CONFIRM, round),
	   "alone, and as that");
	renewed_by("2");
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RENEW, round), "until it is answered");
	node_lost(2);
	node_ready(2);
	tick_at(lease.wake_at_us);
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RENEW, round) &&
		   core_awaits_answer(&lease, 2, CORE_OP_RENEW, lease.round),
	   "or another round begins");
	tick_at(lease.valid_until_us);
	ok(lease.state == CORE_LOST && !core_awaits_answer(&lease, 2, CORE_OP_RENEW, lease.round),
	   "or the lease is LOST");
}

/* ---- attempts: a value of its own for each ---- */

static void
test_attempts(void)
{
	lose_the_race();
	ok(lease.attempt == 1 && lease.node[0].attempt == 1, "the first attempt is number 1");
	released_by("0");
	tick_at(lease.wake_at_us);
	ok(lease.attempt == 2 && lease.node[0].attempt == 2 && lease.node[2].attempt == 2,
	   "invariant 6: another attempt has another value, on all nodes asked");
	granted_by("01");
	tick_at(lease.wake_at_us);
	renewed_by("01");
	ok(lease.attempt == 3 && lease.node[0].attempt == 3, "invariant 5: renewals have the next one");
	tick_at(lease.wake_at_us);
	ok(lease.attempt == 3, "and keep it");
}

/* Node 0 has the key of attempt 1; attempt 2 asks nodes 1 and 2 only. */
static void
try_again_without_node_0(void)
{
	lose_the_race();
	node_lost(0);
	tick_at(lease.wake_at_us);
}

static void
test_old_debt_while_asking(void)
{
	try_again_without_node_0();
	ok(lease.state == CORE_ASKING && out.acquire == set("12") && lease.attempt == 2,
	   "a second attempt, without the node that owes an answer to the first");
	ok(lease.node[0].attempt == 1, "invariant 6: whose debt keeps its number");
	node_ready(0);
	ok(out.release == set("0") && lease.node[0].attempt == 1 && lease.state == CORE_ASKING,
	   "and is asked for when the node is back, while ASKING");
	granted_by("0");
	ok(lease.state == CORE_ASKING, "invariant 4: a node not asked has no vote");
	granted_by("12");
	ok(out.outcome == CORE_GRANTED, "the other two grant");
}

static void
test_old_debt_while_held(void)
{
	try_again_without_node_0();
	granted_by("12");
	node_ready(0);
	ok(out.renew == set("0") && out.release == 0 && lease.node[0].attempt == 3 &&
		   lease.node[1].attempt == 2 && lease.state == CORE_HELD,
	   "the key of attempt 1 gives way to that of a renewal, while attempt 2 is HELD");
	renewal_fails_at("0");
	ok(nothing_said() && owes_all_of("0"), "or is still there, if that errors");
	release();
	ok(out.release == set("012") && lease.node[0].attempt == 3 && lease.node[1].attempt == 2,
	   "invariant 7: in the end both are released, as what was sent there last");
	released_by("012");
	ok(lease.state == CORE_FREE, "and all is over");

	try_again_without_node_0();
	granted_by("12");
	up = set("012");
	tick_at(lease.wake_at_us);
	ok(out.renew == set("012") && lease.node[0].attempt == 3, "so it does in a round of renewals");
	renewed_by("0");
	renewed_by("1");
	ok(out.outcome == CORE_RENEWED, "where it counts as any other");

	try_again_without_node_0();
	node_ready(0);
	granted_by("12");
	tick_at(lease.wake_at_us);
	release();
	ok(out.release == set("012"),
	   "invariant 7: a release on the wire before a renewal does not undo that: asked for again");

	try_again_without_node_0();
	node_ready(0);
	ok(out.release == set("0"), "asked for while ASKING, and not answered yet");
	granted_by("12");
	tick_at(lease.wake_at_us);
	reply_of_round(lease.round - 1, 0, CORE_OP_RELEASE, CORE_REPLY_YES);
	ok(nothing_said() && owes_all_of("0"),
	   "its late answer says nothing of what was renewed since");
}

static void
test_old_debt_while_lost(void)
{
	try_again_without_node_0();
	granted_by("12");
	tick_at(lease.valid_until_us);
	node_ready(0);
	ok(lease.state == CORE_LOST && out.release == set("0") && lease.node[0].attempt == 1,
	   "a debt of attempt 1 is asked for while attempt 2 is LOST");
	node_ready(1);
	ok(nothing_said(), "the rest waits for the owner");
}

/*
 * "A release that was not acknowledged stays a debt, per node, until the node is back or the ttl
 * has run out." In the next tests the key of attempt 1 is at node 0, and no release was executed.
 * A release deletes the keys of its own and of earlier attempts, so owing a single release is
 * enough.
 */
static bool
node_0_is_owed(int attempt)
{
	return lease.node[0].attempt == attempt && lease.node[0].key != CORE_KEY_ABSENT;
}

static void
test_next_attempt_after_failed_undo(void)
{
	lose_the_race();
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	ok(node_0_is_owed(2),
	   "invariant 7: an undo that errored is a debt also after the next attempt began");
	refused_by("0");
	ok(lease.node[0].key == CORE_KEY_ABSENT,
	   "until that is refused: only another's key is in its way, never our own");

	lose_the_race();
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	granted_by("0");
	refused_by("12");
	ok(out.release == set("0") && node_0_is_owed(2), "a grant takes its place, and is undone");

	lose_the_race();
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	acquire_fails_at("0");
	ok(node_0_is_owed(2), "invariant 7: an error does not: what was there before is there still");
	refused_by("12");
	ok(lease.state == CORE_BUSY && out.release == set("0"), "so it is asked for again");
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	acquire_fails_at("0");
	granted_by("12");
	release();
	ok(out.release == set("012"), "invariant 11: however often that happens");
	released_by("012");

	start(3);
	acquire_waiting();
	refused_by("12");
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	acquire_fails_at("0");
	refused_by("12");
	ok(out.release == set("0"), "invariant 7: also where it was never known to be there");

	lose_the_race();
	released_by("0");
	tick_at(lease.wake_at_us);
	acquire_fails_at("0");
	ok(lease.node[0].key == CORE_KEY_ABSENT,
	   "where all was undone before, an error leaves nothing");
}

static void
test_old_key_at_renewal(void)
{
	lose_the_race();
	release_fails_at("0");
	tick_at(lease.wake_at_us);
	acquire_fails_at("0");
	granted_by("12");
	tick_at(lease.wake_at_us);
	renewal_fails_at("0");
	renewed_by("12");
	ok(node_0_is_owed(3), "a renewal that errors does not pay the debt of an earlier attempt");
	tick_at(lease.wake_at_us);
	renewal_refused_by("0");
	renewed_by("12");
	ok(node_0_is_owed(3), "nor does one that is refused");
	release();
	ok(out.release == set("012"), "invariant 7: but the release does");
}

static void
test_next_attempt_overtakes_undo(void)
{
	lose_the_race();
	tick_at(lease.wake_at_us);
	node_lost(0);
	node_ready(0);
	ok(node_0_is_owed(2),
	   "invariant 7: an undo lost on the wire is a debt also after the next attempt began");
}

static void
test_undo_answers_after_next_attempt(void)
{
	uint32_t round;

	lose_the_race();
	round = lease.round;
	tick_at(lease.wake_at_us);
	reply_of_round(round, 0, CORE_OP_RELEASE, CORE_REPLY_YES);
	refused_by("0");
	ok(lease.node[0].key == CORE_KEY_ABSENT,
	   "an undo that is answered just before the next refusal leaves no debt");
}

static void
test_next_attempt_not_sent_at_all(void)
{
	lose_the_race();
	up = set("0");
	tick_at(lease.wake_at_us);
	ok(out.acquire == 0, "without a quorum to send to, nobody is asked");
	ok(node_0_is_owed(1),
	   "invariant 7: an unanswered undo is a debt also after an attempt without a quorum");
	release();
	node_lost(0);
	ok(lease.state != CORE_FREE, "invariant 7: and no lease is FREE before it is paid");
}

static void
refused_in_favour_of(int node, uint32_t holder)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = CORE_OP_ACQUIRE,
						 .reply = CORE_REPLY_NO,
						 .round = lease.round,
						 .holder = holder});
}

static void
refused_by_silent(int node, uint32_t holder, bool silent)
{
	happens((core_event){.type = CORE_REPLY,
						 .node = node,
						 .op = CORE_OP_ACQUIRE,
						 .reply = CORE_REPLY_NO,
						 .round = lease.round,
						 .holder = holder,
						 .silent = silent});
}

/* A host that releases silently must not win again and again. */
static void
test_silent_rival(void)
{
	start(5);
	acquire_waiting();
	refused_by("012");
	wake(10 * RETRY_US);
	refused_by_silent(0, 7, true);
	refused_by_silent(1, 7, true);
	refused_by_silent(2, 7, true);
	ok(lease.state == CORE_BUSY && lease.wake_at_us >= now_us + RETRY_US / 2 &&
		   lease.wake_at_us <= now_us + RETRY_US * 3 / 2,
	   "whose rival tells no release asks as often as if it heard nothing");
	tick_at(lease.wake_at_us);
	refused_by_silent(0, 8, false);
	refused_by_silent(1, 8, false);
	refused_by_silent(2, 8, false);
	ok(lease.wake_at_us >= now_us + 5 * RETRY_US, "not so when the next one does");
	tick_at(lease.wake_at_us);
	refused_by_silent(0, 7, false);
	refused_by_silent(1, 8, false);
	refused_by_silent(2, 8, false);
	ok(lease.wake_at_us <= now_us + RETRY_US * 3 / 2,
	   "nor when they differ: perhaps nobody has it, and nobody will release it");
	tick_at(lease.wake_at_us);
	acquire_fails_at("012");
	ok(lease.wake_at_us >= now_us + 5 * RETRY_US, "where no quorum answered there is none");
}

static void
test_split_vote(void)
{
	int64_t second_us = 0;

	start(5);
	acquire_waiting();
	granted_by("01");
	refused_in_favour_of(2, 7);
	refused_in_favour_of(3, 7);
	refused_in_favour_of(4, 9);
	ok(lease.state == CORE_BUSY && lease.wake_at_us <= now_us + 10 * MS,
	   "invariant 12: where nobody won, it asks again within 10 ms");

	random_bits = 29999;
	for (int round = 1; round <= 4; round++)
	{
		tick_at(lease.wake_at_us);
		granted_by("01");
		refused_in_favour_of(2, 7);
		refused_in_favour_of(3, 7);
		refused_in_favour_of(4, 9);
		if (round == 1)
			second_us = lease.wake_at_us - now_us;
	}
	ok(second_us <= 20 * MS, "the second time within twice as long");
	ok(lease.state == CORE_BUSY && lease.wake_at_us > now_us + 10 * MS,
	   "invariant 12: after several such rounds later, since hosts ask in step");

	start(5);
	acquire_waiting();
	granted_by("01");
	refused_in_favour_of(2, 7);
	refused_in_favour_of(3, 7);
	refused_in_favour_of(4, 7);
	ok(lease.state == CORE_BUSY && lease.wake_at_us >= now_us + RETRY_US / 2,
	   "where another has a majority, it waits as usual");

	for (int round = 1; round <= 3; round++)
	{
		tick_at(lease.wake_at_us);
		refused_in_favour_of(2, 7);
		refused_in_favour_of(3, 7);
		refused_in_favour_of(4, 7);
	}
	tick_at(lease.wake_at_us);
	granted_by("01");
	refused_in_favour_of(2, 7);
	refused_in_favour_of(3, 7);
	refused_in_favour_of(4, 9);
	ok(lease.state == CORE_BUSY && lease.wake_at_us <= now_us + 10 * MS,
	   "such rounds do not count as rounds without a winner");

	start(5);
	acquire_waiting();
	refused_in_favour_of(0, 7);
	refused_in_favour_of(1, 8);
	refused_in_favour_of(2, 9);
	ok(lease.state == CORE_BUSY && lease.wake_at_us >= now_us + RETRY_US / 2,
	   "and where others may win, since it got nothing");
}

/* ---- questions of the shell ---- */

static void
test_awaits(void)
{
	uint32_t round;

	start(3);
	acquire_once();
	round = lease.round;
	ok(core_awaits_answer(&lease, 0, CORE_OP_ACQUIRE, round), "an acquire just sent is awaited");
	ok(!core_awaits_answer(&lease, 0, CORE_OP_ACQUIRE, round - 1) &&
		   !core_awaits_answer(&lease, 0, CORE_OP_RENEW, round) &&
		   !core_awaits_answer(&lease, 0, CORE_OP_RELEASE, round),
	   "not in another round, nor another command");
	ok(!core_awaits_answer(&lease, 3, CORE_OP_ACQUIRE, round), "nor from a node that is none");
	granted_by("0");
	ok(!core_awaits_answer(&lease, 0, CORE_OP_ACQUIRE, round), "not when it was answered");
	granted_by("1");
	ok(!core_awaits_answer(&lease, 2, CORE_OP_ACQUIRE, round), "nor when the round was decided");

	tick_at(lease.wake_at_us);
	round = lease.round;
	ok(core_awaits_answer(&lease, 2, CORE_OP_RENEW, round), "a renewal just sent is awaited");
	renewed_by("01");
	ok(core_awaits_answer(&lease, 2, CORE_OP_RENEW, round),
	   "also when the round was decided: it may create the key");
	ok(!core_awaits_answer(&lease, 0, CORE_OP_RENEW, round) &&
		   !core_awaits_answer(&lease, 2, CORE_OP_RENEW, round - 1) &&
		   !core_awaits_answer(&lease, 2, CORE_OP_CONFIRM, round),
	   "not when it was answered, nor in another round, nor another command");

	release();
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RENEW, round),
	   "invariant 14: nor when the owner is done");
	ok(core_awaits_answer(&lease, 2, CORE_OP_RELEASE, lease.round),
	   "a release just sent is awaited");
	released_by("2");
	ok(!core_awaits_answer(&lease, 2, CORE_OP_RELEASE, lease.round), "not when it was answered");
	node_lost(1);
	ok(!core_awaits_answer(&lease, 1, CORE_OP_RELEASE, lease.round),
	   "nor when its connection broke");
}

/* A renewal counts as an attempt; the grant's key belongs to the present attempt. */
static void
test_own_key_while_lost(void)
{
	hold(3);
	node_lost(2);
	tick_at(lease.wake_at_us);
	ok(out.renew == set("01") && lease.node[2].attempt == 1 && lease.attempt == 2,
	   "two of three nodes are asked to renew");
	tick_at(lease.valid_until_us);
	node_ready(2);
	ok(lease.state == CORE_LOST && nothing_sent(),
	   "what is lost is released by its owner, not by a node that comes back");
}

/* The arguments of commands; redlock.lua defines their effect. */
static void
test_commands(void)
{
	core_command command;

	start(3);
	acquire_once();
	granted_with("0", 50);
	command = core_command_to(&lease, 1, CORE_OP_ACQUIRE);
	ok(command.attempt == 1 && command.counter == 0 && command.token == 0,
	   "an acquire has an attempt");
	granted_with("1", 60);
	command = core_command_to(&lease, 0, CORE_OP_CONFIRM);
	ok(command.attempt == 1 && command.counter == 50 && command.token == 60,
	   "a confirmation has the counter of the grant, and the token");
	confirmed_by("0");

	tick_at(lease.wake_at_us);
	command = core_command_to(&lease, 0, CORE_OP_RENEW);
	ok(command.attempt == 2 && command.counter == 60 && command.token == 60,
	   "invariant 5: a renewal is bound by the token");
	renewed_by("01");
	happens((core_event){.type = CORE_REPLY,
						 .node = 2,
						 .op = CORE_OP_RENEW,
						 .reply = CORE_REPLY_NO,
						 .round = lease.round,
						 .token = 500});
	tick_at(lease.wake_at_us);
	command = core_command_to(&lease, 2, CORE_OP_RENEW);
	ok(out.renew == set("012") && command.counter == 60 && command.token == 500 + TTL_US / 4,
	   "or raises that, at the nodes first");
	renewed_by("01");
	ok(core_command_to(&lease, 2, CORE_OP_RENEW).counter == 500 + TTL_US / 4, "then for itself");
	release();
	command = core_command_to(&lease, 2, CORE_OP_RELEASE);
	ok(command.attempt == 2 && command.counter == 500 + TTL_US / 4 + 1,
	   "invariant 6: a release is over all renewals");
}

static void
test_reconnect(void)
{
	start(3);
	acquire_once();
	ok(core_may_reconnect(&lease, 0), "an acquire may be sent twice");
	granted_with("0", COUNTER - 5);
	granted_with("1", COUNTER);
	ok(lease.confirming == set("0") && !core_may_reconnect(&lease, 0),
	   "a confirmation may not, since it would be refused");
}

static void
test_serving(void)
{
	start(3);
	ok(core_served_by(&lease) == 0, "who asks for nothing needs no node");
	acquire_waiting();
	ok(core_served_by(&lease) == set("012") && core_must_move(&lease, (core_lists){set("0123"), 0}),
	   "a request moves to other nodes");
	ok(!core_must_move(&lease, (core_lists){set("012"), 0}), "but not to the same");
	granted_with("012", COUNTER);
	ok(core_served_by(&lease) == set("012") && !core_must_move(&lease, (core_lists){set("345"), 0}),
	   "a lease stays where it is");
	release();
	ok(core_served_by(&lease) == set("012") && !core_must_move(&lease, (core_lists){set("345"), 0}),
	   "also while it is released");
	released_by("012");
	ok(core_served_by(&lease) == 0, "then it needs no node any more");

	start(3);
	acquire_once();
	ok(!core_must_move(&lease, (core_lists){set("345"), 0}), "a try stays, too: it is over soon");
}

/* An old attempt's undo is answered after the next request for the key. */
static void
test_undo_answers_after_repair(void)
{
	lose_the_race();
	node_lost(0);
	tick_at(lease.wake_at_us);
	ok(out.acquire == set("12"), "the next attempt goes to the others");
	node_ready(0);
	ok(out.release == set("0") && lease.state == CORE_ASKING,
	   "what is left of the last one is undone");
	granted_by("12");
	node_ready(0);
	ok(lease.state == CORE_HELD && out.renew == 0, "no key is created behind the unanswered undo");
	released_by("0");
	node_ready(0);
	ok(out.renew == set("0"), "and the key is created there after all");
	release();
	ok(out.release == set("012"), "invariant 7: which is not taken for undone");
}

static void
test_count(void)
{
	start(7);
	up = set("012345");
	acquire_once();
	granted_by("01");
	refused_by("2");
	acquire_fails_at("3");
	ok(core_count(&lease, CORE_VOTE_YES) == 2 && core_count(&lease, CORE_VOTE_NO) == 1 &&
		   core_count(&lease, CORE_VOTE_ERROR) == 2 && core_count(&lease, CORE_VOTE_PENDING) == 2,
	   "votes are counted, and only those of members");
	granted_by("0");
	ok(core_count(&lease, CORE_VOTE_YES) == 2, "invariant 4: a node votes once");
}

int
main(void)
{
	test_quorum();
	test_validity();
	for (int n = 1; n <= N_MAX; n++)
		test_all_votes(n);
	for (int n = 1; n <= N_MAX; n++)
		test_all_unsendable(n);
	for (int n = 1; n <= N_MAX; n++)
		test_all_quarantined(n);
	for (int n = 1; n <= 5; n++)
		test_all_confirms(n);

	test_validity_counts_from_the_send();
	test_majority_too_late();
	test_majority_too_late_when_waiting();
	test_release_before_renewal();
	test_node_never_answers();
	test_node_breaks_while_asked();
	test_node_errors();

	test_late_replies_while_held();
	test_late_loss_while_held();
	test_late_replies_while_busy();
	test_late_replies_while_releasing();
	test_old_round_of_acquires();
	test_old_round_of_renewals();
	test_life_after_life();

	test_once();
	test_waiting();
	test_spread_of_retries();
	test_patience();
	test_patience_begins_anew();
	test_no_end_of_patience();
	test_no_patience_with_refusal();

	test_not_before();
	test_wake_at();
	test_crowd();
	test_wake();
	test_wake_sets_retry();
	test_wake_while_asking();
	test_wake_in_each_state();
	test_holder_expires();
	test_spread_at_expiry();

	test_hold_at_most_within_ttl();
	test_hold_at_most_over_renewals();
	test_hold_at_most_of_the_next();
	test_limit_of_the_holder_before();
	test_limit_of_the_next();
	test_limit_is_looked_for();
	test_prolong_at_the_limit();
	test_prolong_far_from_the_limit();
	test_limit_in_vain();

	test_renewal();
	test_renewal_asks_whom_it_should();
	test_long_life();
	test_renewal_fails();
	test_renewal_unanswered();
	test_renewal_with_broken_nodes();
	test_renewal_refused();
	test_expiry();
	test_no_revival();
	test_renewal_before_expiry_only();

	test_release_in_each_state();
	test_release_while_renewing();
	test_release_at_the_end_of_validity();
	test_undo_after_unanswered_undo();
	test_release_refused();
	test_debt_of_a_broken_connection();
	test_debt_of_a_node_away();
	test_debt_expires();
	test_debt_after_an_error();
	test_debt_of_a_node_that_stays_away();
	test_replaced_connections();
	test_late_refusals();
	test_tries_that_nobody_won();
	test_recalls();
	test_process_met_in_a_round();
	test_no_room_for_releases();
	test_debt_while_busy();

	test_counters_agree();
	test_counters_differ();
	test_straggler_while_confirming();
	test_confirm_refused();
	test_confirm_fails();
	test_node_lost_while_confirming();
	test_confirm_unanswered();
	test_confirm_can_not_be_sent();
	test_validity_after_confirm();
	test_release_while_confirming();
	test_late_confirms();
	test_old_round_of_confirms();
	test_awaits_confirms();
	test_tombstone();
	test_raised_bound();
	test_debts_end_with_tombstone();
	test_quarantine();
	test_debt_in_quarantine();
	test_repair_in_quarantine();
	test_adopted_while_asking(false);
	test_many_attempts();
	test_adopted_while_asking(true);
	test_adopted_patience();
	test_adopted_while_confirming();
	test_adopted_while_held();
	test_adopted_while_releasing();
	test_repair();
	test_repair_before_renewal_round();
	test_repair_in_renewal_round();
	test_repair_where_never_asked();
	test_awaits_repair();

	test_attempts();
	test_old_debt_while_asking();
	test_old_debt_while_held();
	test_old_debt_while_lost();
	test_own_key_while_lost();
	test_next_attempt_after_failed_undo();
	test_old_key_at_renewal();
	test_next_attempt_overtakes_undo();
	test_undo_answers_after_next_attempt();
	test_undo_answers_after_repair();
	test_next_attempt_not_sent_at_all();
	test_split_vote();
	test_next_request();
	test_silent_rival();

	test_awaits();
	test_commands();
	test_reconnect();
	test_serving();
	test_count();

	if (broken_law != NULL)
		printf("# broken: %s\n", broken_law);
	ok(broken_law == NULL, "all laws hold after each of %ld steps", steps_taken);
	return tap_done();
}
