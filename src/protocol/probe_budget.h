/*
 * probe_budget.h
 *		The budget of probes that a host follows.
 *
 * A look passes a probe on, or asks the lock manager, which takes all its partition locks twice.
 * All waits, of any host, share PROBE_LOOKS_PER_S looks a second equally; a wait may spend the
 * share of a second at once.  A probe is accepted while its wait has something left.  The wait of
 * an accepted probe pays for each look, also beyond its share.  Hosts may be hostile, so
 * PROBE_LOOKS_MOST_PER_S limits all waits together: probes visit few processes when a second's
 * looks are spent in advance, and none after two seconds'.
 *
 * An accepted probe visits few processes at first, and each time twice as many: else the first
 * probes of many waits, each behind a long queue, spend the budget of all for a minute, also of a
 * wait whose cycle is short.  A wait whose share of a second suffices visits all processes at once.
 *
 * The shares follow a virtual clock, which passes more slowly the more waits there are (Demers,
 * Keshav, Shenker: Analysis and Simulation of a Fair Queueing Algorithm, 1989).  A debt therefore
 * shrinks faster when other waits have ended.  A wait without a probe for PROBE_WAIT_GONE_US has
 * ended.
 *
 * Each wait has an account of its own.  An account shared by a hash would let an expensive wait
 * keep another wait's probes out for as long as both last.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PROBE_BUDGET_H
#define REDLOCK_PROBE_BUDGET_H

#include "protocol/probe.h"

#define PROBE_LOOKS_PER_S 400
#define PROBE_LOOKS_MOST_PER_S (2 * PROBE_LOOKS_PER_S)
#define PROBE_VISITS_MAX 64
#define PROBE_VISITS_FIRST 8
#define PROBE_WAIT_GONE_US (2 * PROBE_AGAIN_MAX_US)

/* The most waits with an account.  A further wait takes the account with the oldest last probe. */
#define PROBE_ACCOUNTS 1024

typedef struct ProbeAccount
{
	uint64_t host;
	uint64_t wait;
	int64_t heard_us; /* of the last probe; 0: the account is free */
	int64_t spent_ns; /* by the virtual clock; over a share of a second ahead: nothing is left */
	int visits;       /* of the next probe */
} ProbeAccount;

/* zeroed at first */
typedef struct ProbeBudget
{
	int64_t spent_us; /* by all waits together */
	int64_t clock_ns; /* the virtual clock at now_us */
	int64_t now_us;
	int waits; /* with an account at now_us */
	ProbeAccount account[PROBE_ACCOUNTS];
} ProbeBudget;

/*
 * A probe has arrived.  Returns how many processes it may visit; 0: the wait that sent the probe,
 * or all waits together, have nothing left.
 */
extern int probe_budget_visits(ProbeBudget *budget, const ProbePath *path, int64_t now_us);

/* The wait that sent the accepted probe pays for a look. */
extern void probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us);

#endif /* REDLOCK_PROBE_BUDGET_H */
