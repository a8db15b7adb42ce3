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
wait_of(uint64_t host, uint64_t entry, uint64_t generation)
{
	return (ProbePath){.number = 1, .count = 1, .step = {{host, entry << 32 | generation, true}}};
}

static void
begin(uint64_t secret)
{
	memset(&budget, 0, sizeof(budget));
	budget.secret = secret;
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
	ProbePath a = wait_of(HOST, 1, 1);
	ProbePath b = wait_of(HOST, 2, 1);

	begin(1);
	ok(spend(&a, START_US) == PROBE_LOOKS_PER_S + 1, "a wait alone may spend a second's looks");
	ok(spend(&b, START_US) == PROBE_LOOKS_PER_S / 2 + 1, "a second wait has the half");
	ok(spend(&a, START_US) == 0 && spend(&a, START_US + SECOND_US / 4) == PROBE_LOOKS_PER_S / 8,
	   "each look of either takes the time of two");
	ok(spend(&a, START_US + 9 * SECOND_US) == PROBE_LOOKS_PER_S + 1, "a wait that ended has none");

	begin(1);
	for (int i = 0; i < 10 * PROBE_LOOKS_PER_S; i++)
		probe_budget_pay(&budget, &a, START_US);
	ok(spend(&b, START_US) == 0, "beyond the limit for all waits, another wait has nothing left");
	ok(spend(&b, START_US + 5 * SECOND_US) > 0, "... until the time of the limit is over");
}

/* How many of the others have nothing left after this wait has spent its budget. */
static int
kept_out(const ProbePath *wait, const ProbePath *others, int count)
{
	int out = 0;

	(void) spend(wait, START_US);
	for (int i = 0; i < count; i++)
		out += !probe_budget_left(&budget, &others[i], START_US);
	return out;
}

#define OTHERS 1000

static void
test_places(void)
{
	static ProbePath entries[OTHERS], generations[OTHERS], hosts[OTHERS];
	ProbePath wait = wait_of(HOST, 0, GENERATION);

	for (int i = 0; i < OTHERS; i++)
	{
		entries[i] = wait_of(HOST, (uint64_t) i + 1, GENERATION);
		generations[i] = wait_of(HOST, 0, GENERATION + (uint64_t) (i + 1) * PROBE_PLACES);
		hosts[i] = wait_of(HOST + (uint64_t) (i + 1) * PROBE_PLACES, 0, GENERATION);
	}
	begin(1);
	ok(kept_out(&wait, entries, OTHERS) <= 6, "few other entries of the lease table share a place");
	begin(1);
	ok(kept_out(&wait, generations, OTHERS) <= 6, "... or other generations of an entry");
	begin(1);
	ok(kept_out(&wait, hosts, OTHERS) <= 6, "... or other hosts");
}

/* Another wait with the same place, under the secret of the budget. */
static ProbePath
neighbour(const ProbePath *wait)
{
	ProbePath other;

	(void) spend(wait, START_US);
	for (uint64_t entry = 1;; entry++)
	{
		other = wait_of(HOST, entry, GENERATION);
		if (!probe_budget_left(&budget, &other, START_US))
			return other;
	}
}

/*
 * A probe of the expensive wait takes as many looks as many sessions in one queue, and comes first
 * each time.
 */
static void
test_neighbours(void)
{
	ProbePath wait = wait_of(HOST, 0, GENERATION);
	int late = 0, neighbours = 0;

	for (uint64_t secret = 1; secret <= 200; secret++)
	{
		ProbePath expensive;
		int64_t now_us = START_US;

		begin(secret);
		expensive = neighbour(&wait);
		begin(secret);
		for (; now_us < START_US + 60 * SECOND_US; now_us += SECOND_US / 4)
		{
			if (probe_budget_left(&budget, &expensive, now_us))
				for (int i = 0; i < 2 * PROBE_LOOKS_PER_S; i++)
					probe_budget_pay(&budget, &expensive, now_us);
			if (probe_budget_left(&budget, &wait, now_us))
				break;
		}
		neighbours += now_us > START_US;
		late += now_us > START_US + 2 * PROBE_PLACES_LAST_US;
	}
	ok(neighbours == 200, "an expensive wait in the same place keeps a wait out,");
	ok(late == 0, "... but not for long: %d of 200", late);
}

int
main(void)
{
	test_shares();
	test_places();
	test_neighbours();
	return tap_done();
}
