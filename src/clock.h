/*
 * clock.h
 *		The one clock: CLOCK_BOOTTIME in microseconds, the same in all processes
 *		of a host.  It never jumps, and goes on while the machine sleeps, so a
 *		lease can't outlive a suspended laptop or VM.
 */
#ifndef REDLOCK_CLOCK_H
#define REDLOCK_CLOCK_H

extern int64 redlock_clock_us(void);

#endif /* REDLOCK_CLOCK_H */
