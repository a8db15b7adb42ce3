/*
 * guard_test.c
 *		Unit tests of the restart guard, src/protocol/guard.c.
 *
 * Protects from (invariants 1, 4 and 8): a node voting although it may have forgotten a lease, by
 * its age, by its marker, or by a second loss; a quarantine of a node with all its data; a server
 * voting by two names, or by neither name.
 *
 * Most stories play with the nodes 0 .. 2 of one host.  The guard does not ask for connections, so
 * each story holds while any of the nodes is away.
 */
#include "protocol/guard.h"

#include <string.h>

#include "tap.h"

#define SECOND INT64_C(1000000)
#define MAX_TTL_US (60 * SECOND)
#define NODES 3

/* max_ttl and the bound for drift, written out */
#define QUARANTINE_US (60 * SECOND + 600000 + 2000)

#define DAY_S (24 * 3600)

static GuardMemory memory[NODES];
static int64_t now_us;

static GuardFacts
facts_of(const char *run_id, int32_t uptime_s, bool durable, const char *marker, int loss)
{
	GuardFacts facts = {.uptime_s = uptime_s, .durable = durable};

	strcpy(facts.run_id, run_id);
	strcpy(facts.marker, marker);
	facts.loss = loss;
	return facts;
}

static GuardVerdict
meet_with(int node, const GuardFacts *facts)
{
	GuardMemory *nodes[CORE_NODES_MAX] = {&memory[0], &memory[1], &memory[2]};

	now_us++;
	return guard_meet(nodes, node, facts, MAX_TTL_US, now_us);
}

static GuardVerdict
look(const GuardFacts *facts)
{
	return guard_look(&memory[0], facts, MAX_TTL_US, now_us);
}

static GuardVerdict
meet(int node, const char *run_id, int32_t uptime_s, bool durable, const char *marker, int loss)
{
	GuardFacts facts = facts_of(run_id, uptime_s, durable, marker, loss);

	return meet_with(node, &facts);
}

/* Meets an old, durable process with this run_id. */
static GuardVerdict
meet_as(int node, const char *run_id)
{
	return meet(node, run_id, DAY_S, true, "m1", GUARD_FRESH);
}

static void
begin(void)
{
	memset(memory, 0, sizeof(memory));
	now_us = 1000 * SECOND;
}

static void
test_first_sight(void)
{
	static const struct
	{
		const char *what;
		int32_t uptime_s;
		bool durable;
		int loss;
		GuardVerdict verdict;
	} table[] = {
		{"an old process", DAY_S, false, GUARD_FRESH, GUARD_AS_BEFORE},
		{"a young one", 5, false, GUARD_FRESH, GUARD_RESTARTED},
		/* whole seconds: the true age may be almost a second less */
		{"one that says max_ttl", 60, false, GUARD_FRESH, GUARD_RESTARTED},
		{"one that says a second more", 61, false, GUARD_FRESH, GUARD_RESTARTED},
		{"one that says two seconds more", 62, false, GUARD_FRESH, GUARD_AS_BEFORE},
		{"a young one that keeps all", 5, true, GUARD_FRESH, GUARD_AS_BEFORE},
		{"one whose clock was set back", -DAY_S, false, GUARD_FRESH, GUARD_RESTARTED},
		{"one as old as numbers go", INT32_MAX, false, GUARD_FRESH, GUARD_AS_BEFORE},
		{"one as young as numbers go", INT32_MIN, false, GUARD_FRESH, GUARD_RESTARTED},
		{"one of which others say that it forgot", DAY_S, true, GUARD_LOST_LATELY, GUARD_FORGOT},
		{"... longer ago than max_ttl", DAY_S, true, GUARD_LOST_ONCE, GUARD_AS_BEFORE},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
	{
		begin();
		ok(meet(0, "p1", table[i].uptime_s, table[i].durable, "m1", table[i].loss) ==
			   table[i].verdict,
		   "first sight of %s", table[i].what);
		ok(guard_may_vote(&memory[0], now_us) == (table[i].verdict == GUARD_AS_BEFORE),
		   "... and whether it may vote");
	}
}

/* A node that was seen as p1 with marker m1 is met again. */
static void
test_next_sight(void)
{
	static const struct
	{
		const char *what;
		bool was_durable;
		const char *run_id;
		int32_t uptime_s;
		bool durable;
		const char *marker;
		int loss;
		GuardVerdict verdict;
	} table[] = {
		{"nothing new", false, "p1", DAY_S, false, "m1", GUARD_FRESH, GUARD_AS_BEFORE},
		{"the process is young, but the same", false, "p1", 5, false, "m1", GUARD_FRESH,
		 GUARD_AS_BEFORE},
		{"a new process", false, "p2", 1, false, "m1", GUARD_FRESH, GUARD_RESTARTED},
		{"a new one after one that kept all", true, "p2", 1, false, "m1", GUARD_FRESH,
		 GUARD_RESTARTED},
		{"a new one that keeps all", false, "p2", 1, true, "m1", GUARD_FRESH, GUARD_RESTARTED},
		{"both keep all", true, "p2", 1, true, "m1", GUARD_FRESH, GUARD_AS_BEFORE},
		{"a new one, and the clock steps at the node's boot", false, "p2", 300 * DAY_S, false, "m1",
		 GUARD_FRESH, GUARD_RESTARTED},
		{"... with another's marker of long ago", false, "p2", 300 * DAY_S, false, "m2 lost 1",
		 GUARD_LOST_ONCE, GUARD_RESTARTED},
		{"another marker", false, "p1", DAY_S, true, "m2", GUARD_FRESH, GUARD_FORGOT},
		{"another that tells of a loss", false, "p1", DAY_S, true, "m2", GUARD_LOST_LATELY,
		 GUARD_FORGOT},
		{"another that tells of an old loss", false, "p1", DAY_S, true, "m2", GUARD_LOST_ONCE,
		 GUARD_AS_BEFORE},
		{"a loss that was seen before", false, "p1", DAY_S, true, "m1", GUARD_LOST_LATELY,
		 GUARD_AS_BEFORE},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
	{
		GuardVerdict verdict;

		begin();
		meet(0, "p1", DAY_S, table[i].was_durable, "m1", GUARD_FRESH);
		verdict = meet(0, table[i].run_id, table[i].uptime_s, table[i].durable, table[i].marker,
					   table[i].loss);
		ok(verdict == table[i].verdict, "seen again: %s", table[i].what);
		ok(guard_may_vote(&memory[0], now_us) == (verdict == GUARD_AS_BEFORE),
		   "... and whether it may vote");
		ok(meet(0, table[i].run_id, table[i].uptime_s, table[i].durable, table[i].marker,
				table[i].loss) == GUARD_AS_BEFORE,
		   "... which is remembered");
	}
}

static void
test_quarantine(void)
{
	int64_t ends_us;

	begin();
	meet(0, "p1", DAY_S, false, "m1", GUARD_FRESH);
	meet(0, "p2", 1, false, "m1", GUARD_FRESH);
	ends_us = now_us + QUARANTINE_US;
	ok(!guard_may_vote(&memory[0], ends_us - 1), "a quarantine lasts for max_ttl and the drift");
	ok(guard_may_vote(&memory[0], ends_us), "and then ends");

	now_us += 30 * SECOND;
	meet(0, "p2", 31, false, "m1", GUARD_FRESH);
	ok(memory[0].until_us == ends_us, "a connection that breaks does not extend it");
	meet(0, "p3", 1, false, "m1", GUARD_FRESH);
	ends_us = now_us + QUARANTINE_US;
	ok(memory[0].until_us == ends_us, "a second restart does");
	now_us += 30 * SECOND;
	meet(0, "p3", 31, false, "m2", GUARD_LOST_LATELY);
	ok(memory[0].until_us == now_us + QUARANTINE_US, "so does a loss of its data");
}

static void
test_evicts(void)
{
	GuardFacts facts = facts_of("p1", DAY_S, true, "m1", GUARD_FRESH);

	begin();
	meet_with(0, &facts);
	facts.evicts = true;
	ok(meet_with(0, &facts) == GUARD_EVICTS && memory[0].until_us == now_us + QUARANTINE_US,
	   "invariant 8: a node that evicts keys does not vote, whatever else it says");
	now_us += 30 * SECOND;
	ok(meet_with(0, &facts) == GUARD_EVICTS && memory[0].until_us == now_us + QUARANTINE_US,
	   "for as long as it may");
	now_us += 30 * SECOND;
	guard_distrust(&memory[0], true, MAX_TTL_US, now_us);
	ok(memory[0].until_us == now_us + QUARANTINE_US, "or is found to");

	strcpy(facts.run_id, "p2");
	strcpy(facts.marker, "m2");
	facts.evicts = false;
	facts.loss = GUARD_LOST_LATELY;
	ok(meet_with(0, &facts) == GUARD_FORGOT, "when it does no more, all else counts again");
	facts.evicts = true;
	strcpy(facts.marker, "m3");
	meet_with(0, &facts);
	facts.evicts = false;
	ok(meet_with(0, &facts) == GUARD_AS_BEFORE && !guard_may_vote(&memory[0], now_us),
	   "what it said meanwhile is remembered");
}

/* A host that did not look while a node evicted keys. */
static void
test_evicted(void)
{
	GuardFacts facts = facts_of("p1", DAY_S, true, "m1", GUARD_FRESH);
	GuardFacts young = facts_of("p1", 30, true, "m1", GUARD_FRESH);

	begin();
	facts.evicted = 5;
	ok(meet_with(0, &facts) == GUARD_AS_BEFORE, "an unknown node evicted keys, perhaps long ago");
	ok(meet_with(0, &facts) == GUARD_AS_BEFORE && look(&facts) == GUARD_AS_BEFORE,
	   "a known one none since");
	facts.evicted = 6;
	ok(meet_with(0, &facts) == GUARD_EVICTED && memory[0].until_us == now_us + QUARANTINE_US,
	   "invariant 8: a node that has evicted keys since the last look does not vote");
	now_us += SECOND;
	facts.evicted = 7;
	ok(look(&facts) == GUARD_EVICTED && memory[0].until_us == now_us + QUARANTINE_US &&
		   memory[0].lost_us == now_us,
	   "whether it is met again or looked at");
	ok(guard_counts_after_us(&memory[0], CORE_OP_ACQUIRE, SECOND) == now_us,
	   "invariant 1: nor do its votes count that are under way");
	now_us += SECOND;
	ok(look(&facts) == GUARD_AS_BEFORE && memory[0].until_us == now_us + QUARANTINE_US - SECOND,
	   "each eviction counts once");
	facts.evicted = 3;
	ok(look(&facts) == GUARD_EVICTED, "a count may begin again");
	facts.evicted = 0;
	ok(look(&facts) == GUARD_AS_BEFORE, "at 0 without an eviction");
	strcpy(facts.run_id, "p2");
	facts.evicted = 3;
	ok(meet_with(0, &facts) == GUARD_EVICTED, "the next process has evicted keys since its start");

	now_us += SECOND;
	facts.evicts = true;
	ok(look(&facts) == GUARD_EVICTS && memory[0].lost_us == GUARD_EVICTING,
	   "a look finds a policy");
	now_us += SECOND;
	facts.evicts = false;
	ok(look(&facts) == GUARD_AS_BEFORE && memory[0].until_us == now_us + QUARANTINE_US &&
		   memory[0].lost_us == now_us,
	   "and the next look its end");

	begin();
	young.evicted = 1;
	ok(meet_with(0, &young) == GUARD_EVICTED, "an unknown node, young, evicted keys lately");
}

static bool
is_twin_of(int node, int other)
{
	return memory[node].twin == other + 1;
}

static bool
is_used(int node)
{
	return memory[node].twin == 0;
}

static void
test_twins(void)
{
	begin();
	meet_as(0, "p1");
	meet_as(1, "p2");
	meet_as(2, "p1");
	ok(is_twin_of(2, 0), "a second name of a server is refused, and says which it is");
	meet_as(2, "p1");
	ok(is_twin_of(2, 0), "also when it tries again");
	meet_as(0, "p1");
	ok(is_used(0), "the first name is used");
	meet_as(2, "p1");
	ok(is_twin_of(2, 0), "the second one still not");

	/* the server restarts */
	meet_as(0, "p3");
	meet_as(2, "p3");
	ok(is_used(0) && is_twin_of(2, 0), "after a restart the name is used that is met first");
	meet_as(2, "p4");
	meet_as(0, "p4");
	ok(is_used(2) && is_twin_of(0, 2), "be it the one or the other");
	ok(is_used(1), "which concerns no other node");

	/* now a server of its own */
	meet_as(0, "p5");
	ok(is_used(0) && is_used(2), "a name that leads to another server is used again");

	/* two names change their places */
	begin();
	meet_as(0, "p1");
	meet_as(1, "p2");
	meet_as(0, "p2");
	ok(is_twin_of(0, 1), "a name that leads to another's server is refused");
	meet_as(1, "p1");
	ok(is_used(1), "that one may have a new server, which no other has");
	meet_as(0, "p2");
	ok(is_used(0), "and then the first may have its former one");
}

/* An answer of node 0 counts in rounds after this time. */
static int64_t
counts_after_us(core_op op)
{
	return guard_counts_after_us(&memory[0], op, SECOND / 2);
}

/* A renewal that follows a loss too closely may count beside another host's lost vote. */
static void
test_renewals_after_a_loss(void)
{
	/* node_timeout and the bound for drift, written out */
	static const int64_t after_us = 500000 + 5000 + 2000;
	GuardFacts facts = facts_of("p1", DAY_S, false, "m1", GUARD_FRESH);
	int64_t met_us;

	begin();
	meet_with(0, &facts);
	met_us = now_us;
	ok(counts_after_us(CORE_OP_RENEW) == met_us, "a renewal counts where nothing was lost");
	strcpy(facts.marker, "m2");
	facts.loss = GUARD_LOST_LATELY;
	meet_with(0, &facts);
	ok(counts_after_us(CORE_OP_RENEW) == now_us + after_us,
	   "invariant 1: a flush: renewals count when all rounds of then have ended");
	ok(counts_after_us(CORE_OP_ACQUIRE) == met_us && counts_after_us(CORE_OP_CONFIRM) == met_us,
	   "an acquire waits for the end of the quarantine");
	now_us += SECOND;
	strcpy(facts.run_id, "p2");
	meet_with(0, &facts);
	ok(counts_after_us(CORE_OP_RENEW) == now_us + after_us, "invariant 1: and a restart");
	now_us += SECOND;
	facts.durable = true;
	meet_with(0, &facts);
	strcpy(facts.run_id, "p3");
	meet_with(0, &facts);
	ok(counts_after_us(CORE_OP_RENEW) == now_us, "a durable node loses nothing by a restart");

	facts.evicts = true;
	meet_with(0, &facts);
	ok(counts_after_us(CORE_OP_RENEW) == INT64_MAX,
	   "invariant 1: no renewal counts where keys are evicted");
	now_us += SECOND;
	facts.evicts = false;
	ok(meet_with(0, &facts) == GUARD_AS_BEFORE && memory[0].until_us == now_us + QUARANTINE_US &&
		   counts_after_us(CORE_OP_RENEW) == now_us + after_us,
	   "until a look finds that this is over");
	guard_distrust(&memory[0], true, MAX_TTL_US, now_us);
	ok(counts_after_us(CORE_OP_RENEW) == INT64_MAX, "the same of a check");
	now_us += SECOND;
	guard_distrust(&memory[0], false, MAX_TTL_US, now_us);
	ok(counts_after_us(CORE_OP_RENEW) == now_us + after_us, "and of the next");
}

/* From when does a node's vote count? */
static void
test_met(void)
{
	int64_t met_us;

	begin();
	meet_as(0, "p1");
	met_us = now_us;
	ok(memory[0].met_us == met_us, "a process is known from its first handshake");
	meet_as(0, "p1");
	meet(0, "p1", DAY_S, false, "m2", GUARD_LOST_LATELY);
	ok(memory[0].met_us == met_us, "and after a connection that broke, or a loss of data");
	meet_as(0, "p2");
	ok(memory[0].met_us == now_us, "the next process is a new one");
	meet_as(0, "p1");
	ok(memory[0].met_us == now_us, "so is one of long ago, since another was there between");

	meet_as(1, "p1");
	meet_as(0, "p3");
	meet_as(1, "p1");
	ok(is_used(1) && memory[1].met_us == now_us,
	   "what a twin said does not count: its server may have voted by the other name");
	met_us = now_us;
	meet_as(1, "p1");
	ok(memory[1].met_us == met_us, "from then on it does");
}

/* The start of a process.  A new broker keeps the memory of nodes. */
static void
test_started(void)
{
	int64_t started_us;

	begin();
	now_us = 10 * DAY_S * SECOND;
	meet(0, "p1", DAY_S, true, "m1", GUARD_FRESH);
	ok(memory[0].started_us == now_us - DAY_S * SECOND, "a node met first: since it says");
	now_us += 100 * SECOND;
	meet(0, "p2", 1, true, "m1", GUARD_FRESH);
	started_us = memory[0].started_us;
	ok(started_us == now_us, "another process: since we know of it");
	now_us += 3 * SECOND;
	meet(0, "p2", DAY_S, true, "m1", GUARD_FRESH);
	ok(memory[0].started_us == started_us,
	   "its clock is set forward, and it is met again: it did not start earlier");
	now_us += 3 * SECOND;
	meet(0, "p3", DAY_S, true, "m1", GUARD_FRESH);
	ok(memory[0].started_us == now_us, "another that looks old: no earlier either");
	ok(strcmp(memory[0].former[0], "p2") == 0 && strcmp(memory[0].former[1], "p1") == 0 &&
		   memory[0].former[2][0] == '\0',
	   "the processes before it are remembered, each once");
	meet(0, "p4", DAY_S, true, "m1", GUARD_FRESH);
	meet(0, "p5", DAY_S, true, "m1", GUARD_FRESH);
	meet(0, "p6", DAY_S, true, "m1", GUARD_FRESH);
	ok(strcmp(memory[0].former[0], "p5") == 0 && strcmp(memory[0].former[3], "p2") == 0,
	   "four of them");
}

/* The guard sees and remembers the facts of a twin. */
static void
test_twin_forgets(void)
{
	begin();
	meet(0, "p1", DAY_S, false, "m1", GUARD_FRESH);
	meet(1, "p1", DAY_S, false, "m1", GUARD_FRESH);
	ok(is_twin_of(1, 0) && guard_may_vote(&memory[1], now_us), "a twin that forgot nothing");
	ok(meet(1, "p2", 300 * DAY_S, false, "m1", GUARD_FRESH) == GUARD_RESTARTED && is_used(1) &&
		   !guard_may_vote(&memory[1], now_us),
	   "invariant 8: it restarts, and its other name is met first: no vote, whatever its age");
	ok(meet(0, "p2", 300 * DAY_S, false, "m1", GUARD_FRESH) == GUARD_RESTARTED &&
		   is_twin_of(0, 1) && !guard_may_vote(&memory[0], now_us),
	   "nor by the first");

	begin();
	meet_as(0, "p1");
	meet_as(1, "p1");
	ok(meet(1, "p2", DAY_S, true, "m2", GUARD_LOST_LATELY) == GUARD_FORGOT && is_used(1) &&
		   !guard_may_vote(&memory[1], now_us),
	   "invariant 8: it lost its data, and its other name is met first: no vote");
}

int
main(void)
{
	test_first_sight();
	test_next_sight();
	test_quarantine();
	test_evicts();
	test_evicted();
	test_twins();
	test_met();
	test_renewals_after_a_loss();
	test_started();
	test_twin_forgets();
	return tap_done();
}
