/*
 * kinds.h
 *		A lock as a whole beside its permits: a part of the program "permits".
 */
#ifndef SIM_KINDS_H
#define SIM_KINDS_H

#include <stdbool.h>
#include <stdint.h>

/* Counts of all worlds. */
typedef struct kinds_seen
{
	uint64_t seed;    /* of the wrong world; without a wrong world, the seed after the last */
	int64_t whole;    /* grants of the whole lock */
	int64_t permits;  /* grants of permits */
	int64_t renewed;  /* rounds of renewals */
	int64_t refused;  /* renewals of a permit without its key, beside a lease of another kind */
	int64_t losses;   /* of a node's data */
	int64_t together; /* permits that were held beside another */
} kinds_seen;

/*
 * Runs worlds of consecutive seeds.  Returns false if two conflicting leases were valid at once.
 */
extern bool kinds_run(uint64_t from, uint64_t worlds, kinds_seen *seen);

#endif /* SIM_KINDS_H */
