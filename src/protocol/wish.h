/*
 * wish.h
 *		What the owner of a lease wants of the broker, and what the broker does about it.
 *
 * The owner writes its wish and wakes the broker, which may be slow, or another by then.
 * So each decision is made of the wish as it is now and of the state of the lease, and
 * can be repeated.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_WISH_H
#define REDLOCK_WISH_H

#include <stdbool.h>

#include "protocol/core.h"

typedef enum Wish
{
	WISH_NONE = 0, /* slot not in use, or not asked for yet */
	WISH_HOLD,     /* the owner wants the lock, or holds it */
	WISH_IDLE,     /* held, for the next in the gate; has no owner */
	WISH_NOTHING   /* the owner is done with it */
} Wish;

typedef enum WishAct
{
	WISH_WAIT = 0, /* it is done, or under way, or it is not yet time */
	WISH_ASK,      /* ask the nodes for the lock */
	WISH_RELEASE,  /* give it back, or the request up */
	WISH_FREE      /* nothing is owed: the slot is free */
} WishAct;

/*
 * settled: the broker has tried each node once.  answered: the owner was told the outcome
 * of its request.  release_waits: see release_queue_waits.
 */
extern WishAct wish_act(Wish wish, core_state state, bool settled, bool answered,
						bool release_waits);

/*
 * Looked at when a renewal is due.  Was the lease left for nobody?  Then its wish becomes
 * WISH_NOTHING.
 */
extern bool wish_is_orphaned(Wish wish, bool owner_lives);

#endif /* REDLOCK_WISH_H */
