/*
 * wish.h
 *		The wish of a lease's owner, and the broker's actions.
 *
 * The owner writes a wish and wakes the broker.  The broker may be slow, or may have been
 * replaced by another broker.  So each decision depends only on the present wish and the state
 * of the lease, and can be repeated.
 *
 * A detached lease belongs to no process.  It is held until its release, or until hold_until_us.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_WISH_H
#define REDLOCK_WISH_H

#include <stdbool.h>

#include "protocol/core.h"

/* how the owner left the entry; entry.h has the transitions */
typedef enum Wish
{
	WISH_NONE = 0,  /* entry not in use, or not asked for yet */
	WISH_HOLD,      /* a session holds the lock or wants it; or readers do */
	WISH_DETACHED,  /* held by no process */
	WISH_HAND_OVER, /* held for the next session at the gate */
	WISH_IDLE,      /* idle until idle_until_us, for the next session: by keep_idle, or a permit
					 * for the head of its queue */
	WISH_NOTHING    /* the owner has released the lease */
} Wish;

/* the owner of the wish */
typedef enum WishOwner
{
	WISH_OWNER_GONE = 0, /* the process ended without releasing the lease */
	WISH_OWNER_LIVES,
	WISH_OWNER_NONE /* the lease is detached, or was detached when it was released */
} WishOwner;

typedef enum WishAct
{
	WISH_WAIT = 0, /* done, or under way, or too early */
	WISH_ASK,      /* ask the nodes for the lock */
	WISH_RELEASE,  /* release the lease, or cancel the request */
	WISH_FREE      /* free the entry: it has no debt */
} WishAct;

/*
 * Returns the broker's next action.  serves: see Driver.serves.  answered: the
 * owner knows the outcome of its request.  release_waits: see release_queue_waits.
 */
extern WishAct wish_act(Wish wish, core_state state, bool serves, bool answered,
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

/* Returns true if the idle time of a lease is over; checked before each timer. */
extern bool wish_idle_is_over(Wish wish, int64_t idle_until_us, int64_t now_us);

/*
 * Returns true if a detached lease has reached the end of its time; checked before each timer,
 * and when the validity ends.  Such a lease is released, and its end is not a loss.
 */
extern bool wish_hold_is_over(WishOwner owner, int64_t hold_until_us, int64_t now_us);

/* Returns true if a lease has no holder when a renewal is due. */
extern bool wish_is_orphaned(Wish wish, WishOwner owner);

/* Returns true if the lease may be renewed: it has a holder, or may still get a holder. */
extern bool wish_may_renew(Wish wish, WishOwner owner, int64_t idle_until_us, int64_t now_us);

/*
 * When to look at a held lease: at wake_at_us, for the core, or sooner, when an idle time may
 * end.  With a holder, this is keep_idle_us (0: off) from now, or a second if that is longer.
 * Also look at hold_until_us, the holder's limit (0: none), because the core may not know the
 * limit yet.
 */
extern int64_t wish_look_at_us(Wish wish, int64_t wake_at_us, int64_t idle_until_us,
							   int64_t keep_idle_us, int64_t hold_until_us, int64_t now_us);

#endif /* REDLOCK_WISH_H */
