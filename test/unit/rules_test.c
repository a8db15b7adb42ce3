/*
 * rules_test.c
 *		Unit tests of the rules of tokens and times, src/protocol/rules.c.
 *
 * Protects from: a counter forgotten while tokens may depend on it; a lock kept longer or shorter
 * than asked for; a hand-over without an end, of a lease nearly over, or with a token of the next
 * grant; hosts waiting for ever, or asking all at once.
 */
#include "protocol/rules.h"

#include <limits.h>

#include "protocol/lua.h"
#include "protocol/waiters.h"
#include "tap.h"

#define NOW_US INT64_C(1700000000000000)
#define SECOND INT64_C(1000000)
#define TTL_US (10 * SECOND)

static void
test_tokens(void)
{
	ok(rules_first_token(5000) == 5000 - (LUA_SPAN - 1),
	   "a grant's tokens end with what it counted");
	ok(rules_token(rules_first_token(5000), 0) == rules_first_token(5000) &&
		   rules_token(rules_first_token(5000), LUA_SPAN - 1) == 5000,
	   "one for each holder, and the last is what it counted");
}

static void
test_validity(void)
{
	ok(rules_prolonged_us(100, 50, 60) == 110, "a lease that is prolonged ends later");
	ok(rules_prolonged_us(100, 50, 50) == 100 && rules_prolonged_us(100, 50, 1) == 100,
	   "and never sooner");
	ok(rules_validity_us(TTL_US, TTL_US - 1) == 1, "a lease is valid until its end");
	ok(rules_validity_us(TTL_US, TTL_US) == 0 && rules_validity_us(TTL_US, 2 * TTL_US) == 0,
	   "and not from then on");
}

static void
test_release(void)
{
	int64_t now_us = 77 * SECOND;

	ok(rules_release_ms(false, false, 0, now_us) == LUA_DELETE, "an undone attempt is told nobody");
	ok(rules_release_ms(true, true, 0, now_us) == LUA_DELETE_AND_TELL,
	   "the end of a lease or request is told");
	ok(rules_release_ms(true, true, now_us, now_us) == LUA_DELETE_AND_TELL,
	   "also when hold_at_least is just over");
	ok(rules_release_ms(true, true, now_us + 1, now_us) == 1, "what is left of it is rounded up");
	ok(rules_release_ms(true, true, now_us + SECOND, now_us) == 1000, "or exact");
	ok(rules_release_ms(true, false, now_us + SECOND, now_us) == LUA_DELETE_AND_TELL,
	   "what no caller was told of is not kept");
	ok(rules_release_ms(false, true, now_us + SECOND, now_us) == LUA_DELETE, "nor an attempt");
}

static void
test_hand_over(void)
{
	int64_t healthy_us = TTL_US / 2 + 1;

	ok(rules_turn_us(TTL_US) == SECOND, "a turn takes a tenth of the ttl");
	ok(rules_may_hand_over(false, healthy_us, TTL_US, SECOND - 1, 0, 1),
	   "a lease is left to the next");
	ok(!rules_may_hand_over(false, healthy_us, TTL_US, SECOND, 0, 1), "until the turn is over");
	ok(!rules_may_hand_over(false, healthy_us - 1, TTL_US, 0, 0, 1), "or it is not in good health");
	ok(!rules_may_hand_over(false, healthy_us, TTL_US, 0, 1, 1), "or so many had it");
	ok(!rules_may_hand_over(false, healthy_us, TTL_US, 0, 0, 0), "with a limit of none: never");
	ok(!rules_may_hand_over(true, healthy_us, TTL_US, 0, 0, 1),
	   "nor a lease whose key has to outlive the release");

	ok(rules_may_take_over(false, healthy_us, TTL_US, 0, 2), "and taken over by the next");
	ok(!rules_may_take_over(false, healthy_us - 1, TTL_US, 0, 2), "if it is in good health yet");
	ok(!rules_may_take_over(false, healthy_us, TTL_US, 1, 2), "and a token is left");
	ok(!rules_may_take_over(false, 0, TTL_US, 0, 2), "and it is valid at all");
	ok(!rules_may_take_over(true, healthy_us, TTL_US, 0, 2),
	   "and the next does not want the key kept, which counts from a grant");
}

static void
test_hold(void)
{
	ok(rules_hold_until_us(100, 50) == 150, "each holder has the lock for its own hold_at_most");
	ok(rules_hold_until_us(100, 0) == 0, "or without a limit");
	ok(rules_valid_until_us(100, 99) == 99, "a limit ends the lease of its holder");
	ok(rules_valid_until_us(100, 101) == 100, "the nodes do, where that is sooner");
	ok(rules_valid_until_us(100, 0) == 100, "and where there is no limit");
}

static int64_t
max_us(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void
test_turns(void)
{
	const int64_t hold_back_us = 3000;
	const int64_t long_us = SECOND;
	int64_t latest_us = 0;
	int asked = 0;
	int silent = 0;

	ok(rules_turn_lasts(false, 999, 1, true), "a turn lasts as long as nobody else waits");
	ok(!rules_turn_lasts(false, 0, 0, false), "and a session of this server does");
	ok(rules_turn_lasts(true, 10, 3, false), "else each of four sessions has it three times");
	ok(!rules_turn_lasts(true, 11, 3, false), "which is eleven hand-overs");
	ok(rules_turn_lasts(true, 2, 3, true), "and once, if that takes long");
	ok(!rules_turn_lasts(true, 3, 3, true), "which is three");
	ok(rules_long_turn_us(hold_back_us) == 30000, "it is long beside the way to another host");
	ok(!rules_turn_lasts(true, 0, 0, false), "none without anybody to hand it to");

	ok(rules_hold_back_us(500) == 3000, "others hold back for two round trips and 2 ms");
	ok(rules_hold_back_us(60 * SECOND) == 100000, "but not for longer than a tenth of a second");

	ok(rules_recall_us(500) == 11000, "a try waits for two round trips and 10 ms");
	ok(rules_recall_us(60 * SECOND) == 100000, "but not for longer than a tenth of a second, too");

	ok(rules_turn_after_us(0, 8, 8, 0, hold_back_us, long_us) == 0, "who is next asks at once");
	ok(rules_turn_after_us(1, 8, 8, 0, hold_back_us, long_us) == hold_back_us,
	   "the second holds back");
	ok(rules_turn_after_us(2, 8, 8, 0, hold_back_us, long_us) == 4 * hold_back_us &&
		   rules_turn_after_us(3, 8, 8, 0, hold_back_us, long_us) == 9 * hold_back_us,
	   "those behind for longer and longer");
	ok(rules_turn_after_us(7, 8, 8, 0, 100000, long_us) == 700000, "with a limit");
	ok(rules_turn_after_us(1, 8, 8, 1024u * 2999, hold_back_us, long_us) == 2 * hold_back_us - 1 &&
		   rules_turn_after_us(1, 8, 8, 1024 * 3000, hold_back_us, long_us) == hold_back_us,
	   "up to once more, by chance");
	ok(rules_turn_after_us(1, 1, 8, 0, hold_back_us, long_us) == 2 * hold_back_us &&
		   rules_turn_after_us(5, 5, 8, 0, hold_back_us, long_us) == 2 * hold_back_us,
	   "who is not named comes after the second");
	ok(rules_turn_after_us(0, 0, 1, UINT32_MAX, hold_back_us, long_us) == 0,
	   "at once, if it is alone and nobody is named");
	for (uint32_t i = 0; i < 1000; i++)
		latest_us =
			max_us(latest_us, rules_turn_after_us(0, 0, 8, i * 4294967, hold_back_us, long_us));
	ok(latest_us > hold_back_us && latest_us < 2 * hold_back_us, "if several are, not all at once");
	latest_us = 0;
	for (uint32_t i = 0; i < 1000; i++)
	{
		int64_t us = rules_turn_after_us(0, 0, 1000, i * 4294967, hold_back_us, long_us);

		silent += us < 0;
		latest_us = max_us(latest_us, us);
	}
	ok(silent == 0 && latest_us > 200 * hold_back_us && latest_us < 250 * hold_back_us,
	   "each host of a crowd asks, in the course of a longer time");
	ok(rules_turn_after_us(0, 0, 1000, UINT32_MAX, 100000, long_us) > 24 * SECOND,
	   "far away, of a time longer than the dice have numbers");
	for (uint32_t i = 0; i < 1000; i++)
		asked += rules_turn_after_us(8, 8, 1000, i * 7919, hold_back_us, long_us) >= 0;
	ok(asked == 4, "a handful of a crowd");
	ok(rules_turn_after_us(0, 8, 1000, 999, hold_back_us, long_us) == 0, "and those who are named");

	ok(rules_turn_after_us(0, 8, 8, 0, hold_back_us, 4000) == 0,
	   "after short turns the next asks at once, too");
	ok(rules_turn_after_us(1, 8, 8, 0, hold_back_us, 4000) == hold_back_us + 5000,
	   "the second holds back until the turn of the next is over, too");
	ok(rules_turn_after_us(1, 8, 8, 0, hold_back_us, 30000) == hold_back_us + 37500 &&
		   rules_turn_after_us(1, 8, 8, 0, hold_back_us, 30001) == hold_back_us,
	   "but not for a long one");
	ok(rules_pause_us(3, hold_back_us, long_us) == 3 * hold_back_us,
	   "who had its turn pauses for each that waits");
	ok(rules_pause_us(3, hold_back_us, 4000) == 3 * hold_back_us + 5000, "and for a short turn");
}

static void
test_may_idle(void)
{
	int64_t healthy_us = TTL_US / 2 + 1;
	int asked = 0;

	ok(rules_may_idle(false, false, healthy_us, TTL_US, 0, 2),
	   "a lease becomes idle for the next session");
	ok(rules_may_idle(false, false, healthy_us, TTL_US, 98, 100), "however many had it");
	ok(!rules_may_idle(false, false, healthy_us, TTL_US, 99, 100), "while a token is left");
	ok(rules_may_idle(false, false, healthy_us, TTL_US, 99, INT_MAX), "or more are under way");
	ok(!rules_may_idle(false, false, healthy_us - 1, TTL_US, 0, 2), "and it is in good health");
	ok(!rules_may_idle(false, true, healthy_us, TTL_US, 0, 2), "unless another host waits");
	ok(!rules_may_idle(true, false, healthy_us, TTL_US, 0, 2), "or one owner has limited it");
	ok(rules_may_join(false, healthy_us, TTL_US) &&
		   !rules_may_join(false, healthy_us - 1, TTL_US) &&
		   !rules_may_join(true, healthy_us, TTL_US),
	   "a lease in good health is joined, unless a writer waits");
	ok(!rules_writer_asked_later(0, 5000) &&
		   !rules_writer_asked_later(5000 + LUA_BARRIER_MS * 1000, 5000) &&
		   rules_writer_asked_later(5001 + LUA_BARRIER_MS * 1000, 5000),
	   "a writer that asked before the round has had its turn, one that asked later still waits");

	ok(!rules_needs_tokens(LUA_SPAN - 1), "a new grant has tokens enough");
	ok(rules_needs_tokens(LUA_SPAN / 2) && rules_needs_tokens(1) && rules_needs_tokens(0),
	   "one that has given out many needs more");
	for (int left = 0; left <= LUA_SPAN; left++)
		asked += rules_asks_for_tokens(left);
	ok(asked == 4, "and asks for them now and then");
	ok(!rules_needs_tokens(RULES_MORE_TOKENS), "until it has them");
	ok(rules_more_tokens(NOW_US - 1, NOW_US) == RULES_MORE_TOKENS, "it gets a number of them");
	ok(rules_more_tokens(NOW_US + 10, NOW_US) == RULES_MORE_TOKENS - 10,
	   "but not more than that ahead of time");
	ok(rules_more_tokens(NOW_US + RULES_MORE_TOKENS, NOW_US) == 0 &&
		   rules_more_tokens(NOW_US + SECOND, NOW_US) == 0,
	   "and none if it is ahead");
}

static void
test_miss(void)
{
	ok(rules_miss_us(WAITERS_MAX, 0) > 0,
	   "a host that may have missed a release asks after a pause");
	ok(rules_miss_us(WAITERS_MAX + 1, 0) < 0, "but not in a crowd");
}

int
main(void)
{
	test_miss();
	test_tokens();
	test_validity();
	test_release();
	test_hand_over();
	test_hold();
	test_turns();
	test_may_idle();
	return tap_done();
}
