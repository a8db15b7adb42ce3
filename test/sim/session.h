/*
 * session.h
 *		The sessions of a host: they ask, wait at the gate, hold, write to the
 *		database, hand over and let go.
 */
#ifndef SIM_SESSION_H
#define SIM_SESSION_H

#include "host.h"

/* The broker has told the owner something, and set its latch. */
extern void session_told(int host, int entry);

/* The broker has told it that its lease is lost. */
extern void session_lost(int host, int entry);

/* For the broker: nobody has it.  It is no longer found by the name of the lock. */
extern void session_disown(int host, int entry);

/* The broker hears that another host waits for it, or tried to have it. */
extern void session_want(int host, int entry);
extern void session_recall(int host, int entry);
extern bool session_is_wanted(int host, int entry);

/* The values of the entry that the transitions of protocol/entry.c need. */
extern Entry session_entry(int host, int entry);

extern void session_asks_last(int host, int64_t at_us);

/* Does this session have what is in the entry? */
extern bool session_has(int session, int host, int entry);

extern void session_crash(int host); /* who holds the lock, or asks for it */
extern void session_stop(int host);  /* who holds or wants it goes */

/* Events */
extern void session_on_ask(const event *event);
extern void session_on_asked(const event *event);
extern void session_on_read(const event *event);
extern void session_on_next(const event *event);
extern void session_on_take(const event *event);
extern void session_on_cancel(const event *event);
extern void session_on_prolong(const event *event);
extern void session_on_done(const event *event);

#endif /* SIM_SESSION_H */
