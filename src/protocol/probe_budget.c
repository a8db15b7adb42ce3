/*
 * probe_budget.c
 *		The budget of probes; see probe_budget.h.
 */
#include "protocol/probe_budget.h"

#include <stddef.h>

#define SECOND_US INT64_C(1000000)

static ProbeAccount *account_of(ProbeBudget *budget, const ProbePath *path, int64_t now_us,
								int *payers);
static int64_t later_us(int64_t a_us, int64_t b_us);

bool
probe_budget_left(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	int payers;
	const ProbeAccount *account = account_of(budget, path, now_us, &payers);

	return account != NULL && later_us(account->spent_us, budget->spent_us) <= now_us + SECOND_US;
}

void
probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us)
{
	int payers;
	ProbeAccount *account = account_of(budget, path, now_us, &payers);

	budget->spent_us = later_us(budget->spent_us, now_us) + SECOND_US / PROBE_LOOKS_MOST_PER_S;
	if (account == NULL)
		return;
	account->host = path->step[0].host;
	account->wait = path->step[0].wait;
	account->spent_us =
		later_us(account->spent_us, now_us) + payers * SECOND_US / PROBE_LOOKS_PER_S;
}

/*
 * Returns the account of the wait that sent the probe, or a free account, or NULL if none is free.
 * payers: the waits that have an account, with this wait.
 */
static ProbeAccount *
account_of(ProbeBudget *budget, const ProbePath *path, int64_t now_us, int *payers)
{
	ProbeAccount *own = NULL, *unused = NULL;

	*payers = 0;
	for (int i = 0; i < PROBE_ACCOUNTS; i++)
	{
		ProbeAccount *account = &budget->account[i];

		if (account->spent_us <= now_us - SECOND_US)
			unused = account;
		else
		{
			(*payers)++;
			if (account->host == path->step[0].host && account->wait == path->step[0].wait)
				own = account;
		}
	}
	if (own != NULL)
		return own;
	(*payers)++;
	return unused;
}

static int64_t
later_us(int64_t a_us, int64_t b_us)
{
	return a_us > b_us ? a_us : b_us;
}
