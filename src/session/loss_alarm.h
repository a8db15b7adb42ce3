/*
 * loss_alarm.h
 *		The alarm that tells this session of a lost lease.
 */
#ifndef REDLOCK_LOSS_ALARM_H
#define REDLOCK_LOSS_ALARM_H

#include "session/holdings.h"

/*
 * Make the timer; no-op when called again.  Errors: 55006 the signal is in use, 53000 no timer
 * can be made.
 */
extern void loss_alarm_set_up(void);

/* Put the reason into errors that a loss caused, by a hook; once in a session.  Never fails. */
extern void loss_alarm_watch_errors(void);

/* This holding is new: the alarm must ring when its lease ends. */
extern void loss_alarm_set_for(const Holding *holding);

/* In PG_CATCH: has the alarm cancelled the statement, and is this the error of that? */
extern bool loss_alarm_cancelled(void);

#endif /* REDLOCK_LOSS_ALARM_H */
