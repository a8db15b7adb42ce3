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
 * A wait has one of PROBE_PLACES places, by a hash with a secret: no host can aim at the place of
 * another wait.  Two waits in one place share.  An expensive wait would keep the other out for as
 * long as both last, so all places change with each PROBE_PLACES_LAST_US (stochastic fairness
 * queueing: McKenney, 1990).
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PROBE_BUDGET_H
#define REDLOCK_PROBE_BUDGET_H

#include "protocol/probe.h"

#define PROBE_LOOKS_PER_S 400
#define PROBE_LOOKS_MOST_PER_S (2 * PROBE_LOOKS_PER_S)
#define PROBE_PLACES 1024
#define PROBE_PLACES_LAST_US INT64_C(5000000)

/*
 * Zeroed but for the secret, which is random.  Each look moves a time ahead.  A time over a second
 * ahead: nothing is left.
 */
typedef struct ProbeBudget
{
	uint64_t secret;
	int64_t all_us;                 /* of all waits together */
	int64_t place_us[PROBE_PLACES]; /* of the waits in a place */
} ProbeBudget;

/* Have the wait that sent the probe, and all waits together, some budget left? */
extern bool probe_budget_left(const ProbeBudget *budget, const ProbePath *path, int64_t now_us);

/* The wait that sent the probe pays for a look. */
extern void probe_budget_pay(ProbeBudget *budget, const ProbePath *path, int64_t now_us);

#endif /* REDLOCK_PROBE_BUDGET_H */
