/*
 * wish_test.c
 *		Unit tests of the broker's acts on a wish, src/protocol/wish.c.
 *
 * Protects from: a request sent twice, or before the nodes were probed; a released lease being
 * renewed; an entry freed while keys are owed to nodes; a lease kept without a holder, or idle
 * beyond its time; a detached lease taken for an orphan, or outliving its end or its loss.
 */
#include "protocol/wish.h"

#include "tap.h"

#define S INT64_C(1000000)

static const char *const state_name[] = {"FREE", "ASKING", "BUSY", "HELD", "LOST", "RELEASING"};

static WishAct
expected(Wish wish, core_state state, bool serves, bool answered, bool release_waits)
{
	if (wish == WISH_HOLD)
		return state == CORE_FREE && serves && !answered ? WISH_ASK : WISH_WAIT;
	if (wish != WISH_NOTHING || state == CORE_RELEASING)
		return WISH_WAIT;
	if (state == CORE_FREE)
		return WISH_FREE;
	return release_waits ? WISH_WAIT : WISH_RELEASE;
}

int
main(void)
{
	for (core_state state = CORE_FREE; state <= CORE_RELEASING; state++)
	{
		bool good[WISH_NOTHING + 1] = {true, true, true, true, true, true};

		for (Wish wish = WISH_NONE; wish <= WISH_NOTHING; wish++)
			for (int i = 0; i < 8; i++)
				if (wish_act(wish, state, i & 1, i & 2, i & 4) !=
					expected(wish, state, i & 1, i & 2, i & 4))
					good[wish] = false;
		ok(good[WISH_NONE], "%s: nothing is done that was not asked for", state_name[state]);
		ok(good[WISH_HOLD], "%s: the lock is asked for once, when the nodes were tried",
		   state_name[state]);
		ok(good[WISH_IDLE] && good[WISH_HAND_OVER] && good[WISH_DETACHED],
		   "%s: an idle lease and a detached lease are left alone", state_name[state]);
		ok(good[WISH_NOTHING], "%s: what is done with is released once, and then free",
		   state_name[state]);
	}
	ok(wish_is_orphaned(WISH_HAND_OVER, WISH_OWNER_LIVES) &&
		   wish_is_orphaned(WISH_HAND_OVER, WISH_OWNER_GONE),
	   "a lease that waits for the next in the gate until a renewal is due was left for nobody");
	ok(!wish_is_orphaned(WISH_IDLE, WISH_OWNER_LIVES) &&
		   !wish_is_orphaned(WISH_IDLE, WISH_OWNER_GONE),
	   "an idle lease was not");
	ok(wish_is_orphaned(WISH_HOLD, WISH_OWNER_GONE) &&
		   !wish_is_orphaned(WISH_HOLD, WISH_OWNER_LIVES),
	   "the lease of an owner which is gone was, and no other");
	ok(!wish_is_orphaned(WISH_NOTHING, WISH_OWNER_GONE) &&
		   !wish_is_orphaned(WISH_NONE, WISH_OWNER_GONE),
	   "what was given back is no orphan");
	ok(!wish_is_orphaned(WISH_DETACHED, WISH_OWNER_NONE), "nor is a detached lease");

	ok(!wish_hold_is_over(WISH_OWNER_NONE, 100, 99) && wish_hold_is_over(WISH_OWNER_NONE, 100, 100),
	   "a detached lease is over when it is to end");
	ok(!wish_hold_is_over(WISH_OWNER_LIVES, 100, 200) &&
		   !wish_hold_is_over(WISH_OWNER_GONE, 100, 200) &&
		   !wish_hold_is_over(WISH_OWNER_LIVES, 0, 200),
	   "that of an owner loses its validity then, and is its owner's to give back");
	ok(!wish_idle_is_over(WISH_IDLE, 100, 99) && wish_idle_is_over(WISH_IDLE, 100, 100),
	   "an idle time ends when it is to end");
	ok(!wish_idle_is_over(WISH_HOLD, 100, 200) && !wish_idle_is_over(WISH_NOTHING, 100, 200),
	   "where there is one");
	ok(!wish_idle_is_over(WISH_HAND_OVER, 0, 200), "a lease in hand-over is not idle");

	ok(wish_may_renew(WISH_HOLD, WISH_OWNER_LIVES, 0, 100) &&
		   wish_may_renew(WISH_HOLD, WISH_OWNER_LIVES, 50, 100),
	   "a lease is renewed for its owner");
	ok(wish_may_renew(WISH_DETACHED, WISH_OWNER_NONE, 0, 100) &&
		   !wish_may_renew(WISH_NOTHING, WISH_OWNER_NONE, 0, 100),
	   "also when it is detached");
	ok(!wish_may_renew(WISH_HOLD, WISH_OWNER_GONE, 200, 100), "who lives");
	ok(wish_may_renew(WISH_IDLE, WISH_OWNER_GONE, 101, 100) &&
		   !wish_may_renew(WISH_IDLE, WISH_OWNER_GONE, 100, 100),
	   "and while it is idle");
	ok(!wish_may_renew(WISH_NOTHING, WISH_OWNER_LIVES, 200, 100) &&
		   !wish_may_renew(WISH_NONE, WISH_OWNER_LIVES, 200, 100),
	   "and not when it was given back");

	ok(wish_look_at_us(WISH_IDLE, 100, 50, 10, 0, 20) == 50,
	   "it is looked at the end of its idle time");
	ok(wish_look_at_us(WISH_IDLE, 100, 150, 10, 0, 20) == 100, "and when a renewal is due");
	ok(wish_look_at_us(WISH_HAND_OVER, 100, 0, 10, 0, 20) == 100,
	   "without an idle time: then only");
	ok(wish_look_at_us(WISH_HOLD, 100 * S, 50, 30 * S, 0, 60 * S) == 90 * S,
	   "of an owner: when one could end");
	ok(wish_look_at_us(WISH_HOLD, 100 * S, 50, 30, 0, 60 * S) == 61 * S,
	   "but not again and again where idle times are short");
	ok(wish_look_at_us(WISH_HOLD, 100 * S, 50, 0, 0, 60 * S) == 100 * S, "if one could begin");
	ok(wish_look_at_us(WISH_NOTHING, 100, 50, 30, 0, 60) == 100, "and not when it was given back");
	ok(wish_look_at_us(WISH_HOLD, 100, 0, 0, 70, 60) == 70 &&
		   wish_look_at_us(WISH_HOLD, 100 * S, 0, 30, 60 * S + 1, 60 * S) == 60 * S + 1,
	   "it is looked when its owner may hold it no longer");
	ok(wish_look_at_us(WISH_HOLD, 100, 0, 0, 150, 60) == 100, "if that is sooner");
	ok(wish_look_at_us(WISH_HAND_OVER, 100, 0, 0, 70, 60) == 100 &&
		   wish_look_at_us(WISH_NOTHING, 100, 0, 0, 70, 60) == 100,
	   "and if it has an owner");
	return tap_done();
}
