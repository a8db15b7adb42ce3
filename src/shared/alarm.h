/*
 * alarm.h
 *		Alarms of this process, on the clock of the leases.
 *
 * PostgreSQL's timeouts go by the wall clock, which may be set while a lease or a
 * wait runs out, and each error disables them.  These are timers of POSIX on the
 * clock of clock.h, with a real-time signal of their own: only processes that asked
 * for them have them, and no child inherits them.
 *
 * Used by sessions that hold locks, or wait for them.  Another process may ring, too.
 */
#ifndef REDLOCK_ALARM_H
#define REDLOCK_ALARM_H

typedef enum AlarmPurpose
{
	ALARM_LOSS, /* a lease ends */
	ALARM_GATE, /* a wait at the gate */
	ALARM_PURPOSES
} AlarmPurpose;

/*
 * Before any other function here; once more does nothing.  `ring` runs in the signal
 * handler, with errno saved and the other purpose's handler kept out.  An error if the
 * signal or a timer can't be had.
 */
extern void alarm_set_up(AlarmPurpose purpose, void (*ring)(void));

/* Ring at this time, or at once if it is over; in place of any earlier setting. */
extern void alarm_at(AlarmPurpose purpose, int64 at_us);

/* When it is to ring next; PG_INT64_MAX: not set. */
extern int64 alarm_due_us(AlarmPurpose purpose);

/*
 * Tell another process of a loss.  It must have set up its alarm, and the caller holds
 * a lock without which that process can't end.
 */
extern void alarm_ring(int pid);

#endif /* REDLOCK_ALARM_H */
