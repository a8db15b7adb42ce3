/*
 * turns.h
 *		Whose turn is next: which other hosts wait for a lease of this one, as they say, and
 *		when this host asks again after a release.
 *
 * Used by the broker only.  A successor begins without it, which costs some waiters a
 * turn.
 */
#ifndef REDLOCK_TURNS_H
#define REDLOCK_TURNS_H

#include "protocol/waiters.h"
#include "shared/lease.h"

extern void turns_init(void);

/* Another host wants what this lease has, or asks for; shared: it wants to share it. */
extern void turns_want(Lease *lease, const Waiter *waiter, bool shared, int64 now_us);

/* Who is named by a release of this lease; NULL: nobody. */
extern const Waiters *turns_waiters(const Lease *lease);

/* Who has told that it wants this lease; NULL: nobody. */
extern const Waiters *turns_told(const Lease *lease);

/*
 * The lease that this one waits for was released, and named these.  Returns when it is to
 * ask; 0: not because of that.
 */
extern int64 turns_hear(Lease *lease, const Waiters *named, int64 now_us);

/* ... or may have been, and that was missed. */
extern int64 turns_miss(const Lease *lease, int64 now_us);

/*
 * The lease is released: this host's next request for it lets those go first.  Where the turn goes
 * on, the next request asks at once, and knows who waits.
 */
extern void turns_end(Lease *lease, int64 now_us);

/* It is asked for.  Returns when it may ask; 0: at once. */
extern int64 turns_begin(const Lease *lease, int64 now_us);

/* For how long a try of this host waits for a lease that another has for nobody. */
extern int64 turns_recall_us(void);

/* For how long a message is under way. */
extern int64 turns_way_us(void);

/* From when on the turn of this host is a long one: see rules_turn_lasts. */
extern int64 turns_long_us(void);

/* For how long it has been. */
extern int64 turns_waited_us(const Lease *lease, int64 now_us);

/* Its slot is freed. */
extern void turns_forget(const Lease *lease);

#endif /* REDLOCK_TURNS_H */
