/*
 * probe_budget.h
 *		The budget of probes that a host follows.
 *
 * A look passes a probe on, or asks the lock manager, which takes all its partition locks twice.
 * All waits, of any host, share PROBE_LOOKS_PER_S looks a second equally; a wait may spend the
 * share of a second at once.  A probe is accepted while its wait has something left.  An accepted
 * probe goes the whole way, and the wait pays for each look, also beyond its share.  Hosts may be
 * hostile, so PROBE_LOOKS_MOST_PER_S limits all waits together.
 *
 * Each wait has an account of its own.  Accounts that waits share by a hash would let an expensive
 * wait keep another wait's probes out for as long as both last: a deadlock was then found after
 * 100 s.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PROBE_BUDGET_H
#define REDLOCK_PROBE_BUDGET_H

#include "protocol/probe.h"

#define PROBE_LOOKS_PER_S 400
#define PROBE_LOOKS_MOST_PER_S (2 * PROBE_LOOKS_PER_S)

/* The most waits that pay within a second.  A further wait has nothing left until one is gone. */
#define PROBE_ACCOUNTS 1024

/* Each look moves the time ahead.  A time over a second ahead: nothing is left. */
typedef struct ProbeAccount
{
	uint64_t host;
	uint64_t wait;
	int64_t spent_us; /* a second ago or earlier: the account is free */
} ProbeAccount;

/* zeroed at first */
typedef struct ProbeBudget
{
	int64_t spent_us; /* by all waits together */
	ProbeAccount account[PROBE_ACCOUNTS];
} ProbeBudget;

/* Have the wait that sent the probe, and all waits together, some budget left? */
extern bool probe_budget_left(ProbeBudget *budget, const ProbePath *path, int64_t now_us);

/* The wait that sent the probe pays for a look. */
extern void probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us);

#endif /* REDLOCK_PROBE_BUDGET_H */
