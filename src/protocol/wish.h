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

typedef enum Wish
{
	WISH_NONE = 0, /* slot not in use, or not asked for yet */
	WISH_HOLD,     /* the owner wants the lock, or holds it */
	WISH_IDLE,     /* held, for the next in the gate, or by keep_idle; has no owner */
	WISH_NOTHING   /* the owner is done with it */
} Wish;

/* Whose wish it is. */
typedef enum WishOwner
{
	WISH_OWNER_GONE = 0, /* its process ended, and did not give it up */
	WISH_OWNER_LIVES,
	WISH_OWNER_NONE /* the lease is detached */
} WishOwner;

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

/*
 * Looked at before each timer, and when validity has ended.  Has a detached lease been held
 * for as long as it may?  Then nobody has lost it, and it is given back if it was not yet.
 */
extern bool wish_hold_is_over(WishOwner owner, int64_t hold_until_us, int64_t now_us);

/* Looked at when a renewal is due.  Was the lease left for nobody? */
extern bool wish_is_orphaned(Wish wish, WishOwner owner, int64_t idle_until_us);

/* Is it held by no process?  Then nobody gives it back who has lost it. */
extern bool wish_is_detached(Wish wish, WishOwner owner);

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
