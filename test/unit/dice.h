/*
 * dice.h
 *		Random numbers that are the same for the same seed, for tests.
 *
 * xorshift64* (Vigna: An experimental exploration of Marsaglia's xorshift generators,
 * scrambled, 2016).  Each program has one row of numbers.
 */
#ifndef TEST_DICE_H
#define TEST_DICE_H

#include <stdbool.h>
#include <stdint.h>

static uint64_t dice_state = 1;

static inline void
dice_begin(uint64_t seed)
{
	dice_state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint32_t
dice(uint32_t sides)
{
	dice_state ^= dice_state >> 12;
	dice_state ^= dice_state << 25;
	dice_state ^= dice_state >> 27;
	return (uint32_t) (((dice_state * UINT64_C(0x2545F4914F6CDD1D) >> 32) * sides) >> 32);
}

#endif /* TEST_DICE_H */
