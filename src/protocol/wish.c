/*
 * wish.c
 *		What the broker does about a wish; see wish.h.
 */
#include "protocol/wish.h"

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

/*
 * An idle lease is young, since hand-over ends long before the first renewal.  An owner
 * that went away without giving up its lease can't be; but it must not renew.
 */
bool
wish_is_orphaned(Wish wish, bool owner_lives)
{
	return wish == WISH_IDLE || (wish == WISH_HOLD && !owner_lives);
}
