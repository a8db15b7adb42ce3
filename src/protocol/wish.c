/*
 * wish.c
 *		What the broker does about a wish; see wish.h.
 */
#include "protocol/wish.h"

/*
 * A lease that is held for long is not looked at more often for the sake of a short stay that
 * might follow: who gives it back sooner wakes the broker.
 */
#define HELD_LOOK_US 1000000

WishAct
wish_act(Wish wish, core_state state, bool settled, bool answered, bool release_waits)
{
	switch (wish)
	{
		case WISH_NONE:
		case WISH_IDLE:
			break;
		case WISH_HOLD:
			if (state == CORE_FREE && settled && !answered)
				return WISH_ASK;
			break;
		case WISH_NOTHING:
			if (state == CORE_FREE)
				return WISH_FREE;
			/* also while the nodes settle: what was given back is not renewed */
			if (state != CORE_RELEASING && !release_waits)
				return WISH_RELEASE;
			break;
	}
	return WISH_WAIT;
}

bool
wish_stay_is_over(Wish wish, int64_t idle_until_us, int64_t now_us)
{
	return wish == WISH_IDLE && idle_until_us != 0 && now_us >= idle_until_us;
}

bool
wish_hold_is_over(WishOwner owner, int64_t hold_until_us, int64_t now_us)
{
	return owner == WISH_OWNER_NONE && now_us >= hold_until_us;
}

/*
 * An idle lease that does not stay is young, since hand-over ends long before the first
 * renewal.  An owner that went away without giving up its lease can't be; but it must not
 * renew.
 */
bool
wish_is_orphaned(Wish wish, WishOwner owner, int64_t idle_until_us)
{
	return (wish == WISH_IDLE && idle_until_us == 0) ||
		   (wish == WISH_HOLD && owner == WISH_OWNER_GONE);
}

bool
wish_is_detached(Wish wish, WishOwner owner)
{
	return wish == WISH_HOLD && owner == WISH_OWNER_NONE;
}

bool
wish_may_renew(Wish wish, WishOwner owner, int64_t idle_until_us, int64_t now_us)
{
	return (wish == WISH_HOLD && owner != WISH_OWNER_GONE) ||
		   (wish == WISH_IDLE && now_us < idle_until_us);
}

int64_t
wish_look_at_us(Wish wish, int64_t wake_at_us, int64_t idle_until_us, int64_t keep_idle_us,
				int64_t hold_until_us, int64_t now_us)
{
	int64_t end_us = 0;

	if (wish == WISH_IDLE)
		end_us = idle_until_us;
	else if (wish == WISH_HOLD && keep_idle_us > 0)
		end_us = now_us + (keep_idle_us > HELD_LOOK_US ? keep_idle_us : HELD_LOOK_US);
	if (wish == WISH_HOLD && hold_until_us != 0 && (end_us == 0 || hold_until_us < end_us))
		end_us = hold_until_us;
	return end_us != 0 && end_us < wake_at_us ? end_us : wake_at_us;
}
