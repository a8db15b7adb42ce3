/*
 * rules.c
 *		Tokens and times; see rules.h.
 */
#include "protocol/rules.h"

#include "protocol/waiters.h"

#define TURN_ROUNDS 3
#define LONG_TURN 10
#define HOLD_BACK_US 2000
#define HOLD_BACK_MAX_US 100000
#define RECALL_US 10000
#define MISS_US 50000
#define SHORT_TURN_US 30000
#define ASK_OF_A_CROWD 4

static int64_t while_next_us(int64_t turn_us);
static bool is_healthy(int64_t validity_us, int64_t ttl_us);

/* Each grant raises the nodes' counters by LUA_SPAN. */
int64_t
rules_first_token(int64_t granted)
{
	return granted - LUA_SPAN + 1;
}

int64_t
rules_token(int64_t first_token, int handovers)
{
	return first_token + handovers;
}

bool
rules_needs_tokens(int64_t left)
{
	return left <= LUA_SPAN * 3 / 4;
}

int64_t
rules_more_tokens(int64_t bound, int64_t wall_clock_us)
{
	int64_t room = wall_clock_us + RULES_MORE_TOKENS - bound;

	return room < 0 ? 0 : room < RULES_MORE_TOKENS ? room : RULES_MORE_TOKENS;
}

bool
rules_asks_for_tokens(int64_t left)
{
	return rules_needs_tokens(left) && left % (LUA_SPAN / 4) == 0;
}

int64_t
rules_validity_us(int64_t valid_until_us, int64_t now_us)
{
	return valid_until_us > now_us ? valid_until_us - now_us : 0;
}

int64_t
rules_hold_until_us(int64_t now_us, int64_t hold_at_most_us)
{
	return hold_at_most_us > 0 ? now_us + hold_at_most_us : 0;
}

int64_t
rules_valid_until_us(int64_t granted_until_us, int64_t hold_until_us)
{
	return hold_until_us > 0 && hold_until_us < granted_until_us ? hold_until_us : granted_until_us;
}

int64_t
rules_prolonged_us(int64_t hold_until_us, int64_t now_us, int64_t hold_at_most_us)
{
	int64_t us = now_us + hold_at_most_us;

	return us > hold_until_us ? us : hold_until_us;
}

/*
 * A release publishes the end of a lease, but not the undoing of an attempt: otherwise
 * contenders would wake each other without end.  One undone attempt is published: the attempt
 * that is out when its request is cancelled.  This attempt may have refused other hosts, and no
 * other message tells these hosts of the free lock.  hold_at_least does not apply to a lease that
 * was never returned to a caller.
 */
int64_t
rules_release_ms(bool ends, bool returned, int64_t keep_until_us, int64_t now_us)
{
	if (!ends)
		return LUA_DELETE;
	if (returned && now_us < keep_until_us)
		return (keep_until_us - now_us + 999) / 1000;
	return LUA_DELETE_AND_TELL;
}

int64_t
rules_turn_us(int64_t ttl_us)
{
	return ttl_us / 10;
}

bool
rules_may_hand_over(bool kept, int64_t validity_us, int64_t ttl_us, int64_t turn_so_far_us,
					int handovers, int limit)
{
	return !kept && handovers < limit && turn_so_far_us < rules_turn_us(ttl_us) &&
		   is_healthy(validity_us, ttl_us);
}

/*
 * While other hosts wait, each session here gets a few turns in a row.  Fewer turns make the
 * round trip of all sessions shorter.  With equally many sessions on each host, no session waits
 * for longer than TURN_ROUNDS times the mean.  More than one turn in a row is worthwhile only
 * while the way to another host costs much, compared with the turns.
 */
bool
rules_turn_lasts(bool other_host_waits, int handovers, int waiting, bool is_long)
{
	int rounds = is_long ? 1 : TURN_ROUNDS;

	return waiting > 0 && (!other_host_waits || handovers < rounds * (waiting + 1) - 1);
}

int64_t
rules_long_turn_us(int64_t hold_back_us)
{
	return LONG_TURN * hold_back_us;
}

bool
rules_may_take_over(bool keeps, int64_t validity_us, int64_t ttl_us, int handovers, int tokens)
{
	return !keeps && handovers + 1 < tokens && is_healthy(validity_us, ttl_us);
}

bool
rules_may_idle(bool limited, bool other_host_waits, int64_t validity_us, int64_t ttl_us,
			   int handovers, int tokens)
{
	return !limited && !other_host_waits && handovers + 1 < tokens &&
		   is_healthy(validity_us, ttl_us);
}

bool
rules_may_join(bool writer_waits, int64_t validity_us, int64_t ttl_us)
{
	return !writer_waits && is_healthy(validity_us, ttl_us);
}

bool
rules_writer_asked_later(int64_t writer_until_us, int64_t round_began_us)
{
	return writer_until_us > round_began_us + LUA_BARRIER_MS * INT64_C(1000);
}

int64_t
rules_hold_back_us(int64_t round_trip_us)
{
	int64_t us = 2 * round_trip_us + HOLD_BACK_US;

	return us < HOLD_BACK_MAX_US ? us : HOLD_BACK_MAX_US;
}

int64_t
rules_recall_us(int64_t round_trip_us)
{
	int64_t us = 2 * round_trip_us + RECALL_US;

	return us < HOLD_BACK_MAX_US ? us : HOLD_BACK_MAX_US;
}

/*
 * The first waiter asks at once, the second waiter when the first should have asked.  Waiters
 * further behind are needed only if several waiters before them did not come.  A waiter that was
 * not named asks when the next turn has begun, and so makes itself known; in a crowd only about
 * ASK_OF_A_CROWD of these waiters ask.  If the release names no waiter, all waiters ask one
 * after another: of a crowd most may have gone, and the last one must not stay silent.  Chance
 * spreads the requests: a host that always asked at the end of a turn would always come before
 * the next waiter.
 */
int64_t
rules_turn_after_us(int place, int named, int waiting, uint32_t random, int64_t hold_back_us,
					int64_t turn_us)
{
	bool crowd = waiting > WAITERS_MAX;
	int64_t us = place * place * hold_back_us;

	if (named > 0 && place == named && crowd && random % (uint32_t) waiting >= ASK_OF_A_CROWD)
		return -1;
	random /= 1024;
	if (named == 0)
		return waiting > 1 ? ((waiting - 1) * hold_back_us / 4 * random) >> 22 : 0;
	if (place == 0)
		return 0;
	if (place == named)
		us = 2 * hold_back_us;
	us = us < place * HOLD_BACK_MAX_US ? us : place * HOLD_BACK_MAX_US;
	return us + while_next_us(turn_us) + random % hold_back_us;
}

int64_t
rules_miss_us(int waiting, uint32_t random)
{
	return waiting > WAITERS_MAX ? -1 : MISS_US / 2 + (int64_t) (random % MISS_US);
}

int64_t
rules_pause_us(int named, int64_t hold_back_us, int64_t turn_us)
{
	return named * hold_back_us + while_next_us(turn_us);
}

/*
 * While turns are short, a host that holds back waits until the next turn is over too, because
 * it hears of the end of the turn.  A failed request costs about as much as a turn, and a
 * request at the end of the turn would break the order.  While turns are long, failed requests
 * are rare.  Waiting for a host that does not come would then cost much.
 */
static int64_t
while_next_us(int64_t turn_us)
{
	return turn_us <= SHORT_TURN_US ? turn_us + turn_us / 4 : 0;
}

/* renewed less than half a ttl ago */
static bool
is_healthy(int64_t validity_us, int64_t ttl_us)
{
	return validity_us > ttl_us / 2;
}
