/*
 * wish.c
 *		What the broker does about a wish; see wish.h.
 */
#include "protocol/wish.h"

/*
 * A long hold is not looked at more often because of a short idle time: an owner that releases
 * the lease sooner wakes the broker.
 */
#define HELD_LOOK_US 1000000

WishAct
wish_act(Wish wish, core_state state, bool serves, bool answered, bool release_waits)
{
	switch (wish)
	{
		case WISH_NONE:
		case WISH_DETACHED:
		case WISH_HAND_OVER:
		case WISH_IDLE:
			break;
		case WISH_HOLD:
			if (state == CORE_FREE && serves && !answered)
				return WISH_ASK;
			break;
		case WISH_NOTHING:
			if (state == CORE_FREE)
				return WISH_FREE;
			/* also before the nodes were tried: a released lease is not renewed */
			if (state != CORE_RELEASING && !release_waits)
				return WISH_RELEASE;
			break;
	}
	return WISH_WAIT;
}

bool
wish_idle_is_over(Wish wish, int64_t idle_until_us, int64_t now_us)
{
	return wish == WISH_IDLE && now_us >= idle_until_us;
}

bool
wish_hold_is_over(WishOwner owner, int64_t hold_until_us, int64_t now_us)
{
	return owner == WISH_OWNER_NONE && now_us >= hold_until_us;
}

/*
 * A lease kept for the next session at the gate is young: a hand-over ends long before the first
 * renewal.  The lease of an owner that ended without a release may be old, but the broker must
 * not renew it.
 */
bool
wish_is_orphaned(Wish wish, WishOwner owner)
{
	return wish == WISH_HAND_OVER || (wish == WISH_HOLD && owner == WISH_OWNER_GONE);
}

bool
wish_may_renew(Wish wish, WishOwner owner, int64_t idle_until_us, int64_t now_us)
{
	return (wish == WISH_HOLD && owner != WISH_OWNER_GONE) || wish == WISH_DETACHED ||
		   (wish == WISH_IDLE && now_us < idle_until_us);
}

int64_t
wish_look_at_us(Wish wish, int64_t wake_at_us, int64_t idle_until_us, int64_t keep_idle_us,
				int64_t hold_until_us, int64_t now_us)
{
	int64_t end_us = 0;

	if (wish == WISH_IDLE)
		end_us = idle_until_us;
	else if (wish_is_held(wish) && keep_idle_us > 0)
		end_us = now_us + (keep_idle_us > HELD_LOOK_US ? keep_idle_us : HELD_LOOK_US);
	if (wish_is_held(wish) && hold_until_us != 0 && (end_us == 0 || hold_until_us < end_us))
		end_us = hold_until_us;
	return end_us != 0 && end_us < wake_at_us ? end_us : wake_at_us;
}
