/*
 * clock.h
 *		The clocks.
 */
#ifndef REDLOCK_CLOCK_H
#define REDLOCK_CLOCK_H

#include <time.h>

/*
 * The clock of all durations: CLOCK_BOOTTIME in microseconds, the same in all processes of a host.
 * This clock never jumps, and goes on while the machine sleeps, so a lease ends in time on a
 * suspended laptop or VM.
 */
extern int64 redlock_clock_us(void);

#ifdef CLOCK_BOOTTIME
#define REDLOCK_CLOCK CLOCK_BOOTTIME
#else
#define REDLOCK_CLOCK CLOCK_MONOTONIC
#endif

/*
 * Microseconds since 1970.  May jump.  Only for values that hosts compare and that may be wrong:
 * the proposed token, and how long nodes keep counters.
 */
extern int64 redlock_wall_clock_us(void);

#endif /* REDLOCK_CLOCK_H */
