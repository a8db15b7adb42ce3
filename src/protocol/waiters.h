/*
 * waiters.h
 *		Which hosts wait for a lock that this host has, the longest first.
 *
 * A refused acquire tells the holder's host who asked and for how long it has waited; a
 * release tells the waiters whose turn is next.  A waiter that this did not name tells one
 * of those that it named.  All of it are hints, which may be lost, late,
 * doubled or forged: they decide who asks first, never who is granted anything.
 *
 * Pure, like the core.  Hosts are known by their ids, which are never 0.
 */
#ifndef REDLOCK_WAITERS_H
#define REDLOCK_WAITERS_H

#include <stdbool.h>
#include <stdint.h>

/* Who waits behind so many is not remembered, and asks again. */
#define WAITERS_MAX 8

typedef struct Waiter
{
	uint64_t host;
	int64_t since_us; /* on this host's clock, by what the asker says of its own */
	bool alone;       /* it has told that it wants alone what this host shares */
} Waiter;

typedef struct Waiters
{
	int count;
	Waiter waiter[WAITERS_MAX]; /* the longest first */
} Waiters;

/* A host waits, since so long; what was known of it before is forgotten. */
extern void waiters_add(Waiters *waiters, uint64_t host, int64_t waited_us, int64_t now_us);

/* Its place in the list, from 0; the list's length if it has none. */
extern int waiters_place(const Waiters *waiters, uint64_t host);

/* What a host knows that waits for a lock, or has it. */
typedef struct WaitersKnown
{
	Waiters named; /* by the last release that it heard, and to be named by its own */
	Waiters told;  /* who has told since that it waits */
} WaitersKnown;

/*
 * A release named these.  What of them is left when this host has the lock: those behind it;
 * who is before it did not come, or asks again.  If it is not among them it came between, and
 * only the first had to come until then: were all forgotten, there would be no order for
 * long where hosts that were not named come often.  Who has told may have come too late to be
 * named, and is kept; but not until the release after that: it may have had its turn by then.
 */
extern void waiters_hear(WaitersKnown *known, const Waiters *named, uint64_t self);

/* A host tells the one that has the lock that it waits. */
extern void waiters_tell(WaitersKnown *known, Waiter waiter);

/*
 * This host releases the lock, and wants another turn if "again" is its own id, not 0: returns
 * whom it is to name.  While hosts want alone what it shared, the nodes refuse it to those who
 * would share it: so it names the former only.  The others tell these.
 */
extern Waiters *waiters_to_name(WaitersKnown *known, uint64_t again, int64_t now_us);

/*
 * Whom a host tells that waits and was not named; 0: nobody.  The second, as the first may be
 * done before it hears.
 */
extern uint64_t waiters_whom_to_tell(const Waiters *named, uint64_t self);

#endif /* REDLOCK_WAITERS_H */
