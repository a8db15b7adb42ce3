/*
 * probe_budget.c
 *		The budget of probes; see probe_budget.h.
 */
#include "protocol/probe_budget.h"

#define SECOND_US INT64_C(1000000)

static int place_of(const ProbeBudget *budget, const ProbePath *path, int64_t now_us);
static int places_in_use(const ProbeBudget *budget, int64_t now_us);
static int64_t later_us(int64_t a_us, int64_t b_us);

bool
probe_budget_left(const ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	return later_us(budget->place_us[place_of(budget, path, now_us)], budget->all_us) <=
		   now_us + SECOND_US;
}

void
probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	int64_t *place_us = &budget->place_us[place_of(budget, path, now_us)];

	*place_us = later_us(*place_us, now_us);
	*place_us += places_in_use(budget, now_us) * SECOND_US / PROBE_LOOKS_PER_S;
	budget->all_us = later_us(budget->all_us, now_us) + SECOND_US / PROBE_LOOKS_MOST_PER_S;
}

static int
place_of(const ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	uint64_t hash = probe_hash(budget->secret, (uint64_t) (now_us / PROBE_PLACES_LAST_US));

	hash = probe_hash(probe_hash(hash, path->step[0].host), path->step[0].wait);
	return (int) (hash % PROBE_PLACES);
}

/* How many places have paid for a look within the last second. */
static int
places_in_use(const ProbeBudget *budget, int64_t now_us)
{
	int count = 0;

	for (int i = 0; i < PROBE_PLACES; i++)
		count += budget->place_us[i] > now_us - SECOND_US;
	return count;
}

static int64_t
later_us(int64_t a_us, int64_t b_us)
{
	return a_us > b_us ? a_us : b_us;
}
