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

/* Pays until nothing is left; returns the number of looks. */
static int
spend(const ProbePath *wait, int64_t now_us)
{
	int looks = 0;

	for (; looks <= PROBE_LOOKS_MOST_PER_S + 1 && probe_budget_left(&budget, wait, now_us); looks++)
		probe_budget_pay(&budget, wait, now_us);
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
	ok(spend(&a, START_US) == 0 &&
		   spend(&a, START_US + SECOND_US / 4) == PROBE_LOOKS_PER_S / 4 / 3 + 1,
	   "each look takes the time of three");
	ok(spend(&a, START_US + 9 * SECOND_US) == PROBE_LOOKS_PER_S + 1, "a wait that ended has none");

	begin();
	for (int i = 0; i < 10 * PROBE_LOOKS_PER_S; i++)
		probe_budget_pay(&budget, &a, START_US);
	ok(spend(&b, START_US) == 0, "beyond the limit for all waits, another wait has nothing left");
	ok(spend(&b, START_US + 5 * SECOND_US) > 0, "... until the time of the limit is over");
}

static void
test_accounts(void)
{
	int left = 0;

	begin();
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		ProbePath wait = wait_of(HOST, i);

		probe_budget_pay(&budget, &wait, START_US + i * SECOND_US / PROBE_ACCOUNTS / 2);
	}
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		ProbePath wait = wait_of(HOST, i);

		left += probe_budget_left(&budget, &wait, START_US + 2 * SECOND_US);
	}
	ok(left > PROBE_ACCOUNTS * 9 / 10 && left < PROBE_ACCOUNTS,
	   "many waits have an account each: %d", left);
	ok(!probe_budget_left(&budget, &(ProbePath){.count = 1, .step = {{HOST + 1, 0, true}}},
						  START_US + SECOND_US),
	   "one more wait finds no free account,");
	ok(probe_budget_left(&budget, &(ProbePath){.count = 1, .step = {{HOST + 1, 0, true}}},
						 START_US + 2 * SECOND_US),
	   "... until the first ones are free again");
}

#define EXPENSIVE 60
#define PAUSE_US (SECOND_US / 4)

/* A probe of an expensive wait arrives; it takes as many looks as it may visit processes. */
static void
explore(const ProbePath *wait, int64_t now_us)
{
	if (probe_budget_left(&budget, wait, now_us))
		for (int i = 0; i < 64; i++)
			probe_budget_pay(&budget, wait, now_us);
}

/*
 * Beside expensive waits, whose probes always come first, another wait must have its looks.
 */
static void
test_expensive(void)
{
	ProbePath cheap = wait_of(HOST, 0);
	int accepted = 0;
	int64_t first_us = 0;

	begin();
	for (int64_t now_us = START_US; now_us < START_US + 60 * SECOND_US; now_us += PAUSE_US)
	{
		for (int i = 1; i <= EXPENSIVE; i++)
		{
			ProbePath wait = wait_of(i % 2 == 0 ? HOST : HOST + (uint64_t) i, i);

			explore(&wait, now_us);
		}
		if (!probe_budget_left(&budget, &cheap, now_us))
			continue;
		accepted++;
		if (first_us == 0)
			first_us = now_us - START_US;
		probe_budget_pay(&budget, &cheap, now_us);
	}
	ok(first_us < 10 * SECOND_US && accepted > 150,
	   "beside expensive waits a cheap one pays its looks: first after %d ms, %d in a minute",
	   (int) (first_us / 1000), accepted);
}

int
main(void)
{
	test_shares();
	test_accounts();
	test_expensive();
	return tap_done();
}
