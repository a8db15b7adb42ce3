/*
 * loss_alarm.h
 *		The alarm that tells this session of a lost lease.
 */
#ifndef REDLOCK_LOSS_ALARM_H
#define REDLOCK_LOSS_ALARM_H

#include "session/holdings.h"

/*
 * Makes the timer; does nothing when called again.  Errors: 55006 the signal is in use, 53000 no
 * timer is available.
 */
extern void loss_alarm_set_up(void);

/*
 * Sets a hook that puts the reason into errors after a loss; called once in a session.  Never
 * fails.
 */
extern void loss_alarm_watch_errors(void);

/* Sets the alarm for a new holding: the alarm rings when the holding's lease ends. */
extern void loss_alarm_set_for(const Holding *holding);

/*
 * A commit, PREPARE or COMMIT PREPARED begins: until loss_alarm_resume the alarm cancels nothing.
 * A cancel would end the commit's wait for synchronous standbys, and the client would take the
 * transaction for replicated.  An earlier cancel by the alarm is handled now: raises the error.
 */
extern void loss_alarm_hold(void);

/* The transaction has ended: the alarm tells of losses again.  Never fails. */
extern void loss_alarm_resume(void);

/* For PG_CATCH: has the alarm cancelled the statement, and is this error the result? */
extern bool loss_alarm_cancelled(void);

#endif /* REDLOCK_LOSS_ALARM_H */
