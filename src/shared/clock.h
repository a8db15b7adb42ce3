/*
 * clock.h
 *		The clocks.
 */
#ifndef REDLOCK_CLOCK_H
#define REDLOCK_CLOCK_H

#include <time.h>

/*
 * The one clock for all that lasts: CLOCK_BOOTTIME in microseconds, the same in
 * all processes of a host.  It never jumps, and goes on while the machine
 * sleeps, so a lease can't outlive a suspended laptop or VM.
 */
extern int64 redlock_clock_us(void);

#ifdef CLOCK_BOOTTIME
#define REDLOCK_CLOCK CLOCK_BOOTTIME
#else
#define REDLOCK_CLOCK CLOCK_MONOTONIC
#endif

/*
 * Microseconds since 1970, which may jump.  Only for what must be comparable
 * between hosts and may be wrong: what is proposed as a token, and how long
 * counters are kept.
 */
extern int64 redlock_wall_clock_us(void);

#endif /* REDLOCK_CLOCK_H */
