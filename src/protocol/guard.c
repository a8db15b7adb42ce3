/*
 * guard.c
 *		The restart guard; see guard.h.
 */
#include "protocol/guard.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define SECOND INT64_C(1000000)

/* uptime is counted in whole seconds, by a clock that may be set */
#define UPTIME_SLACK_S 2

static int64_t by_any_clock_us(int64_t us);
static bool is_same(const char *a, const char *b);
static int find_twin(GuardMemory *const *nodes, int node, const char *run_id);
static GuardVerdict review(GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us);
static void remember(GuardMemory *memory, const GuardFacts *facts, GuardVerdict verdict,
					 int64_t max_ttl_us, int64_t now_us);
static bool has_evicted(const GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us);
static bool is_young(const GuardFacts *facts, int64_t max_ttl_us);

GuardVerdict
guard_meet(GuardMemory *const *nodes, int node, const GuardFacts *facts, int64_t max_ttl_us,
		   int64_t now_us)
{
	GuardMemory *memory = nodes[node];
	bool other = !is_same(memory->run_id, facts->run_id);
	GuardVerdict verdict = facts->evicts ? GUARD_EVICTS : review(memory, facts, max_ttl_us);

	remember(memory, facts, verdict, max_ttl_us, now_us);
	/* after another known process, the reported uptime is not used; see review */
	if (memory->run_id[0] == '\0')
		memory->started_us = now_us - facts->uptime_s * SECOND;
	else if (other)
	{
		memory->started_us = now_us;
		for (int i = GUARD_FORMER_MAX - 1; i > 0; i--)
			memcpy(memory->former[i], memory->former[i - 1], sizeof(memory->former[i]));
		memcpy(memory->former[0], memory->run_id, sizeof(memory->run_id));
	}
	if (memory->twin != 0 || other)
		memory->met_us = now_us;
	memory->twin = find_twin(nodes, node, facts->run_id) + 1;
	memcpy(memory->run_id, facts->run_id, sizeof(memory->run_id));
	memcpy(memory->marker, facts->marker, sizeof(memory->marker));
	memory->durable = facts->durable;
	return verdict;
}

GuardVerdict
guard_look(GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us, int64_t now_us)
{
	GuardVerdict verdict = facts->evicts                            ? GUARD_EVICTS
						   : has_evicted(memory, facts, max_ttl_us) ? GUARD_EVICTED
																	: GUARD_AS_BEFORE;

	if (verdict != GUARD_AS_BEFORE)
		memory->met_us = now_us; /* votes under way do not count */
	remember(memory, facts, verdict, max_ttl_us, now_us);
	return verdict;
}

static void
remember(GuardMemory *memory, const GuardFacts *facts, GuardVerdict verdict, int64_t max_ttl_us,
		 int64_t now_us)
{
	if (verdict != GUARD_AS_BEFORE || memory->lost_us == GUARD_EVICTING)
		guard_distrust(memory, facts->evicts, max_ttl_us, now_us);
	memory->evicted = facts->evicted;
}

/* The quarantine lasts as long as a lease that begins now could live, by any clock. */
void
guard_distrust(GuardMemory *memory, bool evicts, int64_t max_ttl_us, int64_t now_us)
{
	memory->until_us = now_us + by_any_clock_us(max_ttl_us);
	memory->lost_us = evicts ? GUARD_EVICTING : now_us;
	assert(memory->until_us > now_us);
}

bool
guard_may_vote(const GuardMemory *memory, int64_t now_us)
{
	return now_us >= memory->until_us;
}

int64_t
guard_counts_after_us(const GuardMemory *memory, core_op op, int64_t answer_us)
{
	int64_t renewals_us = memory->lost_us;

	if (renewals_us != GUARD_EVICTING)
		renewals_us += by_any_clock_us(answer_us);
	return op == CORE_OP_RENEW && renewals_us > memory->met_us ? renewals_us : memory->met_us;
}

/* How long may a time last that another clock measures? */
static int64_t
by_any_clock_us(int64_t us)
{
	return 2 * us - core_validity_us(us);
}

static bool
is_same(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/*
 * The node that is used for this process; -1: none.  The node may be unconnected: it may have
 * voted just before, and a live process may still execute late commands.
 */
static int
find_twin(GuardMemory *const *nodes, int node, const char *run_id)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (i != node && nodes[i] != NULL && nodes[i]->twin == 0 &&
			is_same(nodes[i]->run_id, run_id))
			return i;
	return -1;
}

/*
 * Returns why a quarantine begins, or GUARD_AS_BEFORE.  A node computes its uptime from its wall
 * clock, which may step after the start.  Then a process of some seconds reports a long uptime.
 * After another known process the uptime is not used.  The known process answered at some time
 * in the past, and may have lost its data at any time since.  Its last commands may never have
 * reached the disk, although the new process writes each command there.
 */
static GuardVerdict
review(GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us)
{
	bool met = memory->marker[0] != '\0';
	bool new_process = met ? !is_same(memory->run_id, facts->run_id) : is_young(facts, max_ttl_us);

	if (new_process && !(facts->durable && (memory->durable || !met)))
		return GUARD_RESTARTED;
	if (met ? !is_same(memory->marker, facts->marker) && facts->loss != GUARD_LOST_ONCE
			: facts->loss == GUARD_LOST_LATELY)
		return GUARD_FORGOT;
	return has_evicted(memory, facts, max_ttl_us) ? GUARD_EVICTED : GUARD_AS_BEFORE;
}

/*
 * Has the node evicted keys since this host's last look, or, at the first look, perhaps within
 * max_ttl?  CONFIG RESETSTAT sets the count to 0, and hides earlier evictions.
 */
static bool
has_evicted(const GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us)
{
	if (facts->evicted == 0)
		return false;
	if (memory->marker[0] == '\0')
		return is_young(facts, max_ttl_us);
	return !is_same(memory->run_id, facts->run_id) || memory->evicted != facts->evicted;
}

static bool
is_young(const GuardFacts *facts, int64_t max_ttl_us)
{
	return facts->uptime_s < (max_ttl_us + SECOND - 1) / SECOND + UPTIME_SLACK_S;
}
