/*
 * session.h
 *		The sessions of a host: they ask, wait at the gate, hold the lock,
 *		write to the database, hand over and release.
 */
#ifndef SIM_SESSION_H
#define SIM_SESSION_H

#include "host.h"

/* The broker reported an outcome and set the owner's latch. */
extern void session_told(int host, int entry);

/* The broker reported that the lease is lost. */
extern void session_lost(int host, int entry);

/*
 * The broker ends the lease for its owner.  The lock's name no longer leads to
 * the entry.
 */
extern void session_disown(int host, int entry);

/* Another host waits for the lock, or asks for the idle lease. */
extern void session_want(int host, int entry);
extern void session_recall(int host, int entry);
extern bool session_is_wanted(int host, int entry);

/* The entry's values, for the transitions of protocol/entry.c. */
extern Entry session_entry(int host, int entry);

extern void session_asks_last(int host, int64_t at_us);

/* Does this session hold the lease of this entry? */
extern bool session_has(int session, int host, int entry);

extern void session_crash(int host); /* of one session that holds a lock or asks for one */
extern void session_stop(int host);  /* all sessions release or cancel */

extern void session_on_ask(const event *event);
extern void session_on_asked(const event *event);
extern void session_on_read(const event *event);
extern void session_on_next(const event *event);
extern void session_on_take(const event *event);
extern void session_on_cancel(const event *event);
extern void session_on_prolong(const event *event);
extern void session_on_done(const event *event);

#endif /* SIM_SESSION_H */
