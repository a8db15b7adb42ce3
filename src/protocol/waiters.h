/*
 * waiters.h
 *		The hosts that wait for a lock of this host, the longest waiter first.
 *
 * A refused acquire tells the holder's host of the waiter, and how long the waiter has waited.
 * A release names the waiters, in the order of their turns.  An unnamed waiter announces itself
 * to a named waiter.  All these messages are hints: each may be lost, late, doubled or forged.
 * The hints decide which host asks first, never which host gets the lock.
 *
 * Pure, like the core.  Hosts are known by their ids, which are never 0.
 */
#ifndef REDLOCK_WAITERS_H
#define REDLOCK_WAITERS_H

#include <stdbool.h>
#include <stdint.h>

/* waiters behind these are not remembered, and announce themselves again */
#define WAITERS_MAX 8

typedef struct Waiter
{
	uint64_t host;
	int64_t since_us; /* on this host's clock, from the duration that the waiter reported */
	bool alone;       /* waits for exclusive mode, while this host holds the lock in shared mode */
} Waiter;

typedef struct Waiters
{
	int count;
	Waiter waiter[WAITERS_MAX]; /* the longest waiter first */
} Waiters;

/* Adds a host, with its waiting time; replaces any former record of the host. */
extern void waiters_add(Waiters *waiters, uint64_t host, int64_t waited_us, int64_t now_us);

/* the host's place in the list, from 0; the length of the list if the host is missing */
extern int waiters_place(const Waiters *waiters, uint64_t host);

/* the waiters known to a host with the lock, or to a waiting host */
typedef struct WaitersKnown
{
	Waiters named; /* named by the last release, and to be named by this host's release */
	Waiters told;  /* waiters that have announced themselves since the release */
} WaitersKnown;

/*
 * A release named these waiters.  Keeps the waiters behind this host, for this host's own turn.
 * Waiters before this host did not come, or will announce themselves again.  An unnamed host
 * comes between two turns, and drops only the first waiter.  Dropping all would lose the order
 * wherever unnamed hosts come often.  A waiter in `told` may have come too late to be named, and
 * is kept.  But it is kept only until the next release, because it may have had its turn by
 * then.
 */
extern void waiters_hear(WaitersKnown *known, const Waiters *named, uint64_t self);

/* Records the announcement of a waiter. */
extern void waiters_tell(WaitersKnown *known, Waiter waiter);

/*
 * The waiters named by this host's release.  again: this host's own id if it waits for another
 * turn, or 0.  If writers wait (`alone`), the release names only writers, since the nodes refuse
 * new readers.  Readers announce themselves to the named waiters.
 */
extern Waiters *waiters_to_name(WaitersKnown *known, uint64_t again, int64_t now_us);

/*
 * The host to which an unnamed waiter announces itself; 0: none.  It is the second named waiter:
 * the turn of the first may be over before the message arrives.
 */
extern uint64_t waiters_whom_to_tell(const Waiters *named, uint64_t self);

#endif /* REDLOCK_WAITERS_H */
