/*
 * alarm.h
 *		Alarms of this process, on the clock of the leases.
 *
 * PostgreSQL's timeouts use the wall clock, which may be set while a lease or a wait runs, and
 * each error disables these timeouts.  An alarm is a POSIX timer on the clock of clock.h, with a
 * real-time signal.  Only a process that asked for alarms has some, and no child inherits an
 * alarm.
 *
 * Sessions that hold locks or wait for locks use alarms.  Another process may ring an alarm, too.
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
 * Called before all functions below; a second call does nothing.  `ring` runs in the signal
 * handler, with errno saved, and with the handler of the other purpose blocked.  Raises an error if
 * the signal or a timer is not available.
 */
extern void alarm_set_up(AlarmPurpose purpose, void (*ring)(void));

/*
 * Sets the alarm to this time, or rings at once if the time is over.  Replaces the earlier setting.
 */
extern void alarm_at(AlarmPurpose purpose, int64 at_us);

/* Returns when the alarm will ring; PG_INT64_MAX: not set. */
extern int64 alarm_due_us(AlarmPurpose purpose);

/*
 * Tells process `pid` of a loss.  The process has set up its alarm; the caller holds a lock that
 * keeps the process from ending.
 */
extern void alarm_ring(int pid);

/* Rings ALARM_GATE of a process that waits at a gate; otherwise as alarm_ring. */
extern void alarm_ring_gate(int pid);

#endif /* REDLOCK_ALARM_H */
