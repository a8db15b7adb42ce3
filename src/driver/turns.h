/*
 * turns.h
 *		Whose turn is next: which other hosts wait for a lease of this one, as they say, and
 *		when this host asks again after a release.
 *
 * A part of the driver.  The next driver begins without it, which costs some waiters a turn.
 */
#ifndef REDLOCK_TURNS_H
#define REDLOCK_TURNS_H

#include "driver/driver_world.h"

/* Another host wants the lock of this lease; shared: to share it. */
extern void turns_want(Driver *driver, int entry, const Waiter *waiter, bool shared);

/* Which hosts a release of this lease names, and which hosts have asked for it; NULL: none. */
extern const Waiters *turns_named(const Driver *driver, int entry);
extern const Waiters *turns_told(const Driver *driver, int entry);

/*
 * The lease that this one waits for was released, and named these hosts.  Returns when this one is
 * to ask; 0: not because of the release.
 */
extern int64_t turns_hear(Driver *driver, int entry, const Waiters *named, int64_t now_us);

/* The release may have been missed. */
extern int64_t turns_miss(Driver *driver, int entry, int64_t now_us);

/*
 * The lease is released: this host's next request for the lock lets the named hosts go first.
 * Where the turn goes on, the next request asks at once, and knows who waits.
 */
extern void turns_end(Driver *driver, int entry, int64_t now_us);

/* The lease is asked for.  Returns when it may ask; 0: at once. */
extern int64_t turns_begin(Driver *driver, int entry, int64_t now_us);

/* For how long a try of this host waits for a lease that another host has for nobody. */
extern int64_t turns_recall_us(const Driver *driver);

/* A turn of this host that lasts longer is a long one: see rules_turn_lasts. */
extern int64_t turns_long_us(const Driver *driver);

/* For how long this host has waited. */
extern int64_t turns_waited_us(const Driver *driver, int entry, int64_t now_us);

/* The entry is freed. */
extern void turns_forget(Driver *driver, int entry);

#endif /* REDLOCK_TURNS_H */
