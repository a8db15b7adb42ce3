/*
 * turns.h
 *		The next turn: which other hosts say that they wait for a lease of this host, and when
 *		this host asks again after a release.
 *
 * A part of the driver.  The next driver begins without these records, which costs some waiters
 * a turn.
 */
#ifndef REDLOCK_TURNS_H
#define REDLOCK_TURNS_H

#include "driver/driver_world.h"

/* Another host waits for the lock of this lease.  shared: in shared mode. */
extern void turns_note_waiter(Driver *driver, int entry, const Waiter *waiter, bool shared);

/*
 * The hosts that a release of this lease names; the hosts that have asked for the lease since.
 * NULL: none.
 */
extern const Waiters *turns_named(const Driver *driver, int entry);
extern const Waiters *turns_told(const Driver *driver, int entry);

/*
 * The lease that this host waits for was released, and the release named these hosts.  Returns when
 * this host asks; 0: the release is no reason to ask.
 */
extern int64_t turns_hear(Driver *driver, int entry, const Waiters *named, int64_t now_us);

/* A release may have been missed.  Returns when this host asks; 0: not because of this. */
extern int64_t turns_miss(Driver *driver, int entry, int64_t now_us);

/*
 * The lease is released.  The next request of this host for the lock lets the named hosts go
 * first.  If the turn goes on, the next request asks at once, and inherits the known waiters.
 */
extern void turns_end(Driver *driver, int entry, int64_t now_us);

/* A request begins.  Returns when it may ask; 0: at once. */
extern int64_t turns_begin(Driver *driver, int entry, int64_t now_us);

/* For how long a try of this host waits for an idle lease of another host. */
extern int64_t turns_recall_us(const Driver *driver);

/* From this duration on, a turn of this host is long: see rules_turn_lasts. */
extern int64_t turns_long_us(const Driver *driver);

/* For how long this host has waited. */
extern int64_t turns_waited_us(const Driver *driver, int entry, int64_t now_us);

/* Forgets the entry's waiters; the entry is freed. */
extern void turns_forget(Driver *driver, int entry);

#endif /* REDLOCK_TURNS_H */
