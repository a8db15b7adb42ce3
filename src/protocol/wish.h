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
	WISH_IDLE,     /* held, for the next in the gate, or by keep_idle; has no owner */
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
 * idle_until_us, of an idle lease: when its stay by keep_idle ends; 0: it does not stay,
 * but was left for the next in the gate.
 */

/* Looked at before each timer.  Has the lease stayed for long enough? */
extern bool wish_stay_is_over(Wish wish, int64_t idle_until_us, int64_t now_us);

/* Looked at when a renewal is due.  Was the lease left for nobody? */
extern bool wish_is_orphaned(Wish wish, bool owner_lives, int64_t idle_until_us);

/* In both cases its wish becomes WISH_NOTHING. */

/* May it be renewed at any time, since somebody has it, or may have it yet? */
extern bool wish_may_renew(Wish wish, bool owner_lives, int64_t idle_until_us, int64_t now_us);

/*
 * When to look at a lease that is held: when the core wants it (wake_at_us), or sooner,
 * when a stay may end.  Of one that has an owner that is keep_idle_us (0: off) from now at
 * the soonest.
 */
extern int64_t wish_look_at_us(Wish wish, int64_t wake_at_us, int64_t idle_until_us,
							   int64_t keep_idle_us, int64_t now_us);

#endif /* REDLOCK_WISH_H */
