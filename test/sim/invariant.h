/*
 * invariant.h
 *		A TAP test whose failure has the format that mutants.pl reads.
 */
#ifndef SIM_INVARIANT_H
#define SIM_INVARIANT_H

#include <inttypes.h>
#include <stdio.h>

#include "../unit/tap.h"

#define check_invariant(number, seed, good, ...)                                                   \
	do                                                                                             \
	{                                                                                              \
		bool is_good = (good);                                                                     \
		ok(is_good, __VA_ARGS__);                                                                  \
		if (!is_good)                                                                              \
		{                                                                                          \
			printf("# seed %" PRIu64 " violates invariant %d: ", (uint64_t) (seed), number);       \
			printf(__VA_ARGS__);                                                                   \
			printf("\n");                                                                          \
			fflush(stdout); /* mutants.pl waits for no more */                                     \
		}                                                                                          \
	} while (0)

#endif /* SIM_INVARIANT_H */
