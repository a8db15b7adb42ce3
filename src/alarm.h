/*
 * alarm.h
 *		An alarm of this process, on the clock of the leases.
 *
 * PostgreSQL's timeouts go by the wall clock, which may be set back while a lease
 * runs out, and each error disables them.  This is a timer of POSIX on the clock of
 * clock.h, with a real-time signal of its own: only processes that asked for it
 * have it, and no child inherits it.
 *
 * Used by sessions that hold locks.  Another process may ring it, too.
 */
#ifndef REDLOCK_ALARM_H
#define REDLOCK_ALARM_H

/*
 * Before any other function here; once more does nothing.  `ring` runs in the signal
 * handler, with errno saved.  An error if the signal or a timer can't be had.
 */
extern void alarm_set_up(void (*ring)(void));

/* Ring at this time, or at once if it is over; in place of any earlier setting. */
extern void alarm_at(int64 at_us);

/* When it is to ring next; PG_INT64_MAX: not set. */
extern int64 alarm_due_us(void);

/*
 * Ring the alarm of another process, which must have set it up: the caller holds a
 * lock without which that process can't end.
 */
extern void alarm_ring(int pid);

#endif /* REDLOCK_ALARM_H */
