/*
 * wish.h
 *		What the owner of a lease wants of the broker, and what the broker does about it.
 *
 * The owner writes its wish and wakes the broker, which may be slow, or another by then.
 * So each decision is made of the wish as it is now and of the state of the lease, and
 * can be repeated.
 *
 * A detached lease belongs to no process: it is held until it is given back, or until
 * hold_until_us.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_WISH_H
#define REDLOCK_WISH_H

#include <stdbool.h>

#include "protocol/core.h"

/* The entry as its owner left it; entry.h has the transitions. */
typedef enum Wish
{
	WISH_NONE = 0,  /* entry not in use, or not asked for yet */
	WISH_HOLD,      /* a session wants the lock, or holds it; or several readers do */
	WISH_DETACHED,  /* held by no process */
	WISH_HAND_OVER, /* held, for the next session in the gate */
	WISH_IDLE,      /* held until idle_until_us, for the next session that comes: by keep_idle, or
					 * a permit for the head of its queue */
	WISH_NOTHING    /* released: the owner is done with it */
} Wish;

/* Whose wish it is. */
typedef enum WishOwner
{
	WISH_OWNER_GONE = 0, /* its process ended, and did not give it up */
	WISH_OWNER_LIVES,
	WISH_OWNER_NONE /* the lease is detached, or was when it was released */
} WishOwner;

typedef enum WishAct
{
	WISH_WAIT = 0, /* it is done, or under way, or it is not yet time */
	WISH_ASK,      /* ask the nodes for the lock */
	WISH_RELEASE,  /* give it back, or the request up */
	WISH_FREE      /* nothing is owed: the entry is free */
} WishAct;

/*
 * settled: the broker has tried each node once.  answered: the owner was told the outcome
 * of its request.  release_waits: see release_queue_waits.
 */
extern WishAct wish_act(Wish wish, core_state state, bool settled, bool answered,
						bool release_waits);

static inline bool
wish_is_held(Wish wish)
{
	return wish == WISH_HOLD || wish == WISH_DETACHED;
}

static inline bool
wish_has_no_holder(Wish wish)
{
	return wish == WISH_HAND_OVER || wish == WISH_IDLE;
}

/* Looked at before each timer.  Has the lease stayed for long enough? */
extern bool wish_stay_is_over(Wish wish, int64_t idle_until_us, int64_t now_us);

/*
 * Looked at before each timer, and when validity has ended.  Has a detached lease been held
 * for as long as it may?  Then nobody has lost it, and it is given back if it was not yet.
 */
extern bool wish_hold_is_over(WishOwner owner, int64_t hold_until_us, int64_t now_us);

/* Looked at when a renewal is due.  Was the lease left for nobody? */
extern bool wish_is_orphaned(Wish wish, WishOwner owner);

/* In all these cases its wish becomes WISH_NOTHING. */

/* May it be renewed at any time, since somebody has it, or may have it yet? */
extern bool wish_may_renew(Wish wish, WishOwner owner, int64_t idle_until_us, int64_t now_us);

/*
 * When to look at a lease that is held: when the core wants it (wake_at_us), or sooner,
 * when a stay may end.  Of one that has an owner that is keep_idle_us (0: off), or a second, from
 * now; and when the owner may hold it no longer (hold_until_us; 0: no limit), of which the core may
 * not know yet.
 */
extern int64_t wish_look_at_us(Wish wish, int64_t wake_at_us, int64_t idle_until_us,
							   int64_t keep_idle_us, int64_t hold_until_us, int64_t now_us);

#endif /* REDLOCK_WISH_H */
