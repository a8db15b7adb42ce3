/*
 * probe_budget.c
 *		The budget of probes; see probe_budget.h.
 */
#include "protocol/probe_budget.h"

#include <stddef.h>

#define SECOND_US INT64_C(1000000)
#define SECOND_NS (1000 * SECOND_US)

static ProbeAccount *account_of(ProbeBudget *budget, const ProbePath *path, int64_t now_us);
static int64_t larger(int64_t a, int64_t b);

int
probe_budget_visits(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	ProbeAccount *account = account_of(budget, path, now_us);
	int visits = (int) larger(account->visits, PROBE_LOOKS_PER_S / budget->waits);

	account->heard_us = now_us;
	if (budget->spent_us > now_us + 2 * SECOND_US ||
		account->spent_ns > budget->clock_ns + SECOND_NS / budget->waits)
		return 0;
	if (budget->spent_us > now_us + SECOND_US)
		return PROBE_VISITS_FIRST;
	if (account->visits < PROBE_VISITS_MAX)
		account->visits *= 2;
	return visits < PROBE_VISITS_MAX ? visits : PROBE_VISITS_MAX;
}

void
probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	ProbeAccount *account = account_of(budget, path, now_us);

	budget->spent_us = larger(budget->spent_us, now_us) + SECOND_US / PROBE_LOOKS_MOST_PER_S;
	account->spent_ns = larger(account->spent_ns, budget->clock_ns) + SECOND_NS / PROBE_LOOKS_PER_S;
}

/*
 * Returns the account of the wait that sent the probe, perhaps a new account.  Counts the waits,
 * and sets the virtual clock.
 */
static ProbeAccount *
account_of(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	ProbeAccount *own = NULL, *oldest = &budget->account[0];

	budget->waits = 0;
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		ProbeAccount *account = &budget->account[i];

		if (account->heard_us <= now_us - PROBE_WAIT_GONE_US)
			account->heard_us = 0;
		if (account->heard_us < oldest->heard_us)
			oldest = account;
		if (account->heard_us == 0)
			continue;
		budget->waits++;
		if (account->host == path->step[0].host && account->wait == path->step[0].wait)
			own = account;
	}
	if (own == NULL)
	{
		budget->waits++;
		*oldest = (ProbeAccount){
			.host = path->step[0].host, .wait = path->step[0].wait, .visits = PROBE_VISITS_FIRST};
		own = oldest;
	}
	budget->clock_ns += (now_us - budget->now_us) * 1000 / budget->waits;
	budget->now_us = now_us;
	return own;
}

static int64_t
larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}
