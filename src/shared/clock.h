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

/* Microseconds from 1970 to the beginning of TimestampTz. */
#define REDLOCK_EPOCHS_APART_US                                                                    \
	(INT64CONST(86400000000) * (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE))

#endif /* REDLOCK_CLOCK_H */
