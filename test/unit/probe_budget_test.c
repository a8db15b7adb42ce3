/*
 * probe_budget_test.c
 *		Unit tests of the budget of probes, src/protocol/probe_budget.c.
 *
 * Protects from: a deadlock found a minute late, since an expensive wait spends the budget of the
 * deadlock's wait, again and again; a host that takes more than its share.
 */
#include <string.h>

#include "protocol/probe_budget.h"

#include "tap.h"

#define SECOND_US INT64_C(1000000)
#define START_US (1000 * SECOND_US)
#define HOST UINT64_C(0x08d71566c955515)
#define GENERATION UINT64_C(0x1eb41)

static ProbeBudget budget;

/* The wait of an entry of a host's lease table, as in broker/deadlock.c. */
static ProbePath
wait_of(uint64_t host, int entry)
{
	return (ProbePath){
		.number = 1, .count = 1, .step = {{host, (uint64_t) entry << 32 | GENERATION, true}}};
}

static void
begin(void)
{
	memset(&budget, 0, sizeof(budget));
}

/* A probe arrives, and needs a number of looks.  Returns false if the budget drops the probe. */
static bool
probe(const ProbePath *wait, int looks, int64_t now_us)
{
	int visits = probe_budget_visits(&budget, wait, now_us);

	for (int i = 0; i < looks && i < visits; i++)
		probe_budget_pay(&budget, wait, now_us);
	return visits > 0;
}

/* Sends probes of one look until nothing is left.  Returns the number of accepted probes. */
static int
spend(const ProbePath *wait, int64_t now_us)
{
	int looks = 0;

	while (looks <= PROBE_LOOKS_MOST_PER_S + 1 && probe(wait, 1, now_us))
		looks++;
	return looks;
}

static void
test_shares(void)
{
	ProbePath a = wait_of(HOST, 1);
	ProbePath b = wait_of(HOST, 2);
	ProbePath other_host = wait_of(HOST + 1, 1);

	begin();
	ok(spend(&a, START_US) == PROBE_LOOKS_PER_S + 1, "a wait alone may spend a second's looks");
	ok(spend(&b, START_US) == PROBE_LOOKS_PER_S / 2 + 1, "a second wait has the half");
	ok(spend(&other_host, START_US) == PROBE_LOOKS_PER_S / 3 + 1,
	   "the wait of this number on another host has a third");
	ok(spend(&a, START_US) == 0, "a further wait takes from what the first may spend");
	ok(spend(&a, START_US + 3 * SECOND_US) == PROBE_LOOKS_PER_S / 3,
	   "in three seconds a third each");
	ok(spend(&a, START_US + 9 * SECOND_US) > PROBE_LOOKS_PER_S, "after the end of the others all");
	ok(spend(&b, START_US + 9 * SECOND_US) == PROBE_LOOKS_PER_S / 2 + 1,
	   "a new wait has its share");

	begin();
	ok(probe(&a, 1, START_US), "a probe");
	for (int i = 0; i < 10 * PROBE_LOOKS_PER_S; i++)
		probe_budget_pay(&budget, &a, START_US);
	ok(!probe(&b, 1, START_US), "beyond the limit for all waits, another wait has nothing left");
	ok(probe(&b, 1, START_US + 5 * SECOND_US), "... until the time of the limit is over");
}

static void
test_visits(void)
{
	ProbePath wait = wait_of(HOST, 0);
	int64_t now_us = START_US;

	begin();
	ok(probe_budget_visits(&budget, &wait, now_us) == PROBE_VISITS_MAX,
	   "a wait alone visits all processes at once");
	begin();
	for (int i = 1; i <= PROBE_LOOKS_PER_S / 10; i++)
	{
		ProbePath other = wait_of(HOST, i);

		(void) probe(&other, 0, now_us);
	}
	ok(probe_budget_visits(&budget, &wait, now_us) == 9, "a wait among many visits its share");
	for (int i = 1; i <= PROBE_LOOKS_PER_S; i++)
	{
		ProbePath other = wait_of(HOST, i);

		(void) probe(&other, 0, now_us);
	}
	ok(probe_budget_visits(&budget, &wait, now_us) == 2 * PROBE_VISITS_FIRST &&
		   probe_budget_visits(&budget, &wait, now_us) == 4 * PROBE_VISITS_FIRST &&
		   probe_budget_visits(&budget, &wait, now_us) == PROBE_VISITS_MAX &&
		   probe_budget_visits(&budget, &wait, now_us) == PROBE_VISITS_MAX,
	   "... or twice as many as before, up to the most");
}

static void
test_accounts(void)
{
	ProbePath further = wait_of(HOST + 1, 0);
	uint64_t first = wait_of(HOST, 0).step[0].wait;
	int others = 0;
	bool has_first = false;

	begin();
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		ProbePath wait = wait_of(HOST, i);

		(void) probe(&wait, 0, START_US + i);
	}
	ok(probe(&further, 1, START_US + SECOND_US), "a wait more than there are accounts takes one,");
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		others += budget.account[i].host == HOST;
		has_first =
			has_first || (budget.account[i].host == HOST && budget.account[i].wait == first);
	}
	ok(others == PROBE_ACCOUNTS - 1 && !has_first, "... of the wait heard of least recently");
}

/* Probes of the expensive waits arrive, each with as many looks as allowed. */
static void
crowd(int from, int to, int64_t now_us)
{
	for (int i = from; i < to; i++)
	{
		ProbePath wait = wait_of(i % 2 == 0 ? HOST : HOST + (uint64_t) i, i);

		(void) probe(&wait, PROBE_VISITS_MAX, now_us);
	}
}

#define PAUSE_US (SECOND_US / 4)

/*
 * Beside many expensive waits, whose probes come first, a cheap wait must have its looks.  The
 * expensive waits are all new at first; later some end each time, and as many begin.
 */
static void
test_expensive(int count, int ends)
{
	ProbePath cheap = wait_of(HOST, 0);
	int accepted = 0, rounds = 0;
	int64_t late_us = 0, last_us = START_US;

	begin();
	for (int64_t now_us = START_US; now_us < START_US + 60 * SECOND_US; now_us += PAUSE_US)
	{
		crowd(1 + rounds * ends, 1 + rounds * ends + count, now_us);
		rounds++;
		if (!probe(&cheap, 1, now_us))
			continue;
		accepted++;
		late_us = now_us - last_us > late_us ? now_us - last_us : late_us;
		last_us = now_us;
	}
	ok(accepted > 20 && late_us < 10 * SECOND_US,
	   "beside %d expensive waits, %d new each time: %d probes in a minute, %d ms between two",
	   count, ends, accepted, (int) (late_us / 1000));
}

/* After the end of many expensive waits, neither their debts nor its own keep a wait back. */
static void
test_crowd_ends(void)
{
	ProbePath own = wait_of(HOST, 0);
	int64_t now_us = START_US, ended_us;

	begin();
	for (; now_us < START_US + 20 * SECOND_US; now_us += PAUSE_US)
	{
		crowd(1, 450, now_us);
		(void) probe(&own, PROBE_VISITS_MAX, now_us);
	}
	ended_us = now_us;
	for (int accepted = 0; accepted < 2; now_us += PAUSE_US)
		accepted += probe(&own, PROBE_VISITS_MAX, now_us);
	ok(now_us - ended_us <= PROBE_WAIT_GONE_US + SECOND_US,
	   "after the end of many expensive waits: two probes within %d ms",
	   (int) ((now_us - ended_us) / 1000));
}

int
main(void)
{
	test_shares();
	test_visits();
	test_accounts();
	test_expensive(60, 0);
	test_expensive(450, 0);
	test_expensive(450, 6);
	test_crowd_ends();
	return tap_done();
}
