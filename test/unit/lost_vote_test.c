/*
 * lost_vote_test.c
 *		Exhaustive search for two leases beside a node that loses its data: core.c, guard.c and
 *		local_node.c together.
 *
 * Protects from (invariant 1): a node votes for host B and loses the vote; then a renewal of host A
 * counts at this node, while B still counts the vote.  The model Lease_lost_renewed tells this run.
 *
 * Host A holds a lease by two of three nodes, and does not reach one of them any more.  Host B asks
 * for the lock.  The third node restarts empty, or is flushed.  The search tries all orders of the
 * steps: a node executes a command, and the host receives the answer; A connects again; a host
 * acts at its time; the loss; time passes.  So commands may also be late or lost.
 */
#include "protocol/core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/guard.h"
#include "protocol/local_node.h"
#include "tap.h"

#define MS INT64_C(1000)
#define TTL_US (1000 * MS)
#define ANSWER_US (100 * MS)
#define HOSTS 2
#define NODES 3
#define CUT 0     /* A does not reach this node any more */
#define FORGETS 2 /* this node loses its data, and has never voted for A */
#define STEPS_MAX 40
#define STATES_MAX 500000
#define SEEN_MAX (1 << 20)

/* Times of steps, counted from A's grant; A's keys end before the last time. */
typedef struct schedule
{
	const char *what;
	int times;
	int64_t time_us[3];
} schedule;

static const schedule schedules[] = {
	{"B's round outlasts A's keys", 3, {TTL_US - 70 * MS, TTL_US - 50 * MS, TTL_US + 10 * MS}},
	{"a renewal of A may count before the end of A's keys",
	 3,
	 {TTL_US - 230 * MS, TTL_US - 110 * MS, TTL_US + 10 * MS}},
};

typedef struct message
{
	bool used;
	uint32_t round;
	local_command command;
} message;

/* Compared by its bytes, so no field holds an address. */
typedef struct world
{
	int64_t now_us;
	int time; /* of the schedule */
	core_lease lease[HOSTS];
	message sent[HOSTS][NODES];
	bool connected[HOSTS][NODES];
	GuardMemory guard[HOSTS][NODES];
	local_data data[NODES];
	local_mark mark[NODES];
	int process[NODES];
	uint64_t markers; /* the number of written markers */
	bool asked;       /* B has asked */
	bool lost;        /* a node has lost its data */
} world;

static const schedule *schedule_now;
static world w;
static uint64_t *seen;
static long states;
static long renewed, unrenewed, granted, forgot; /* numbers of steps */
static const int64_t start_us = 1000 * 1000 * MS;
static const char *trace[STEPS_MAX];
static int trace_of[STEPS_MAX][2];
static long violations;
static bool complete; /* no limit has ended the search */

static core_mask
nodes_of(int h, bool voters)
{
	core_mask nodes = 0;

	for (int n = 0; n < NODES; n++)
		if (w.connected[h][n] && (!voters || guard_may_vote(&w.guard[h][n], w.now_us)))
			nodes |= CORE_BIT(n);
	return nodes;
}

static void
send_to(int h, int n, core_op op)
{
	const core_lease *lease = &w.lease[h];
	message *sent = &w.sent[h][n];

	memset(sent, 0, sizeof(*sent));
	sent->used = true;
	sent->round = lease->round;
	sent->command.op = op;
	sent->command.secret.high = (uint64_t) h + 1;
	sent->command.attempt = lease->attempt;
	sent->command.host = h + 1;
	sent->command.ttl_ms = TTL_US / 1000;
	sent->command.proposal = w.now_us;
	sent->command.marker = strtoull(w.guard[h][n].marker, NULL, 10);
	sent->command.counter = op == CORE_OP_RENEW ? lease->bound : lease->token_at[n];
	sent->command.token = op == CORE_OP_RENEW ? lease->raise : lease->token;
}

static void
happens(int h, core_event event)
{
	core_out out;

	event.now_us = w.now_us;
	event.can_send = event.can_release = nodes_of(h, false);
	event.can_vote = nodes_of(h, true);
	core_step(&w.lease[h], &event, &out);
	for (int n = 0; n < NODES; n++)
	{
		if (out.acquire & CORE_BIT(n))
			send_to(h, n, CORE_OP_ACQUIRE);
		if (out.confirm & CORE_BIT(n))
			send_to(h, n, CORE_OP_CONFIRM);
		if (out.renew & CORE_BIT(n))
			send_to(h, n, CORE_OP_RENEW);
	}
	renewed += out.outcome == CORE_RENEWED;
	granted += out.outcome == CORE_GRANTED && h == 1;
	unrenewed += out.outcome == CORE_UNRENEWED;
}

static void
disconnect(int h, int n)
{
	w.connected[h][n] = false;
	happens(h, (core_event){.type = CORE_NODE_LOST, .node = n});
}

/* The node executes the command, and the host receives the answer. */
static void
execute(int h, int n)
{
	message sent = w.sent[h][n];
	local_memory memory = LOCAL_HAS_ROOM;
	local_answer answer;

	memset(&w.sent[h][n], 0, sizeof(w.sent[h][n]));
	local_expire(&w.data[n], w.now_us);
	local_execute(&w.data[n], &w.mark[n], w.now_us, &sent.command, &memory, &answer);
	forgot += answer.error == LOCAL_FORGOT && sent.command.op == CORE_OP_RENEW;
	if (!w.connected[h][n])
		return;
	happens(h, (core_event){.type = CORE_REPLY,
							.node = n,
							.op = sent.command.op,
							.reply = answer.reply,
							.round = sent.round,
							.counts_after_us =
								guard_counts_after_us(&w.guard[h][n], sent.command.op, ANSWER_US),
							.token = answer.token,
							.busy_us = answer.busy_ms * 1000});
	if (answer.error == LOCAL_FORGOT)
		disconnect(h, n);
}

static void
meet(int h, int n, int32_t uptime_s)
{
	GuardMemory *nodes[CORE_NODES_MAX] = {0};
	GuardFacts facts = {.uptime_s = uptime_s};
	bool known = w.guard[h][n].marker[0] != '\0';

	for (int i = 0; i < NODES; i++)
		nodes[i] = &w.guard[h][i];
	snprintf(facts.run_id, sizeof(facts.run_id), "node %d, process %d", n, w.process[n]);
	facts.loss = (int) local_marker(&w.mark[n], w.now_us, w.markers + 1, known, TTL_US / 1000);
	if (w.mark[n].text > w.markers)
		w.markers = w.mark[n].text;
	snprintf(facts.marker, sizeof(facts.marker), "%" PRIu64, w.mark[n].text);
	guard_meet(nodes, n, &facts, TTL_US, w.now_us);
	w.connected[h][n] = true;
	if (w.lease[h].state != CORE_FREE)
		happens(h, (core_event){.type = CORE_NODE_READY, .node = n});
}

static void
lose(int n, bool restart)
{
	w.lost = true;
	memset(&w.data[n], 0, sizeof(w.data[n]));
	memset(&w.mark[n], 0, sizeof(w.mark[n]));
	if (!restart)
		return;
	w.process[n]++;
	for (int h = 0; h < HOSTS; h++)
	{
		memset(&w.sent[h][n], 0, sizeof(w.sent[h][n]));
		disconnect(h, n);
	}
}

static void
ask(int h)
{
	happens(h, (core_event){.type = CORE_ACQUIRE,
							.lists = {CORE_BIT(NODES) - 1, 0},
							.once = true,
							.ttl_us = TTL_US,
							.answer_us = ANSWER_US,
							.patience_us = ANSWER_US,
							.retry_us = 10 * MS});
}

static bool
is_valid(int h)
{
	return w.lease[h].state == CORE_HELD && w.now_us < w.lease[h].valid_until_us;
}

/* FNV-1a (Fowler, Noll, Vo) by words; of two states with the same hash one is tried. */
static bool
was_seen(void)
{
	uint64_t words[(sizeof(w) + 7) / 8] = {0};
	uint64_t hash = UINT64_C(14695981039346656037);
	uint32_t at;

	memcpy(words, &w, sizeof(w));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
	{
		hash = (hash ^ words[i]) * UINT64_C(1099511628211);
		hash ^= hash >> 32;
	}
	hash += hash == 0;
	for (at = (uint32_t) (hash % SEEN_MAX); seen[at] != 0; at = (at + 1) % SEEN_MAX)
		if (seen[at] == hash)
			return true;
	seen[at] = hash;
	return false;
}

static void search(int depth);

/* Takes a step, and tries all steps that may follow. */
static void
try_next(int depth, const char *step, int h, int n)
{
	trace[depth] = step;
	trace_of[depth][0] = h;
	trace_of[depth][1] = n;
	search(depth + 1);
}

static void
show(int depth)
{
	printf("# two leases are valid:\n");
	for (int i = 0; i < depth; i++)
		printf("#   %s, host %c, node %d\n", trace[i], 'A' + trace_of[i][0], trace_of[i][1] + 1);
}

#define TRY(condition, step, h, n, what)                                                           \
	do                                                                                             \
	{                                                                                              \
		if (condition)                                                                             \
		{                                                                                          \
			what;                                                                                  \
			try_next(depth, step, h, n);                                                           \
			w = before;                                                                            \
		}                                                                                          \
	} while (0)

/* Tries all steps from this state, and leaves the state as it was. */
static void
search(int depth)
{
	world before;

	if (is_valid(0) && is_valid(1) && violations++ == 0)
		show(depth);
	complete = complete && depth < STEPS_MAX && states < STATES_MAX;
	if (violations > 0 || !complete || was_seen())
		return;
	states++;
	before = w;
	TRY(!w.asked, "asks", 1, 0, w.asked = true; ask(1));
	for (int h = 0; h < HOSTS; h++)
	{
		TRY(w.lease[h].wake_at_us != 0 && w.now_us >= w.lease[h].wake_at_us, "acts", h, 0,
			happens(h, (core_event){.type = CORE_TICK}));
		for (int n = 0; n < NODES; n++)
		{
			TRY(w.sent[h][n].used, "is answered", h, n, execute(h, n));
			TRY(!w.connected[h][n] && h == 0 && n != CUT, "connects", h, n, meet(h, n, 0));
		}
	}
	TRY(!w.lost && w.asked, "restarts", 0, FORGETS, lose(FORGETS, true));
	TRY(!w.lost && w.asked, "is flushed", 0, FORGETS, lose(FORGETS, false));
	TRY(w.time + 1 < schedule_now->times, "time", 0, 0,
		w.now_us = start_us + schedule_now->time_us[++w.time]);
}

static void
test_schedule(const schedule *schedule)
{
	schedule_now = schedule;
	memset(seen, 0, SEEN_MAX * sizeof(*seen));
	states = renewed = unrenewed = granted = forgot = violations = 0;
	complete = true;
	memset(&w, 0, sizeof(w));
	w.now_us = start_us - 1;
	for (int h = 0; h < HOSTS; h++)
		for (int n = 0; n < NODES; n++)
			meet(h, n, 24 * 3600);
	w.now_us = start_us;
	ask(0);
	execute(0, 0);
	execute(0, 1);
	memset(&w.sent[0][FORGETS], 0, sizeof(w.sent[0][FORGETS]));
	disconnect(0, CUT);
	ok(w.lease[0].state == CORE_HELD, "A holds a lease by two nodes");
	w.now_us = start_us + schedule->time_us[0];
	search(0);
	ok(violations == 0 && complete, "invariant 1: %s: two leases are never valid, in %ld states",
	   schedule->what, states);
	ok(renewed > 0 && unrenewed > 0 && granted > 0 && forgot > 0,
	   "A was renewed %ld times and not renewed %ld times, B was granted %ld leases; a node had "
	   "forgotten %ld times",
	   renewed, unrenewed, granted, forgot);
}

int
main(void)
{
	seen = malloc(SEEN_MAX * sizeof(*seen));
	for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++)
		test_schedule(&schedules[i]);
	free(seen);
	return tap_done();
}
