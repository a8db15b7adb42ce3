/*
 * clock.c
 *		The clocks; see clock.h.
 */
#include "postgres.h"

#include "shared/clock.h"

int64
redlock_clock_us(void)
{
	struct timespec now;

	clock_gettime(REDLOCK_CLOCK, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64
redlock_wall_clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
