/*
 * rules.h
 *		Tokens of a grant, and for how long: keys and counters at the nodes, and a
 *		lock within one server.
 *
 * Rules on which safety rests, without state.  Plain C99: the simulator links them.
 * Instants and times are microseconds, but for what the scripts take in milliseconds.
 */
#ifndef REDLOCK_RULES_H
#define REDLOCK_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/lua.h"

/* Of the tokens of a grant, one for each holder of its turn, the first. */
extern int64_t rules_first_token(int64_t granted);

/* ... and that of the holder after so many hand-overs. */
extern int64_t rules_token(int64_t first_token, int handovers);

/*
 * Tokens that a grant has for holders yet to come, beside that of the present one: is it
 * time to have its bound raised?  A session says so once in a while
 * (rules_asks_for_tokens), since it wakes the broker by that, which may have to do it.
 */
#define RULES_MORE_TOKENS (32 * LUA_SPAN)
extern bool rules_wants_tokens(int64_t left);
extern bool rules_asks_for_tokens(int64_t left);

/*
 * By how many: RULES_MORE_TOKENS, but never to more than that ahead of time.  Turns that each
 * raise the bound and use little of it must not carry the counters away from the clocks: order
 * outlives a loss of data only if time has gone beyond all counters when the nodes vote
 * again, after max_ttl, which is longer than that.  0: by none.
 */
extern int64_t rules_more_tokens(int64_t bound, int64_t wall_clock_us);

/* To its owner: for how long a lease that was granted is valid yet; 0: it is not. */
extern int64_t rules_validity_us(int64_t valid_until_us, int64_t now_us);

/*
 * Until when the session that gets the lock at now_us may hold it, by the nodes or by a hand-over;
 * 0: no limit.  Each holder of a turn has its own hold_at_most, 0: none.
 */
extern int64_t rules_hold_until_us(int64_t now_us, int64_t hold_at_most_us);

/*
 * To its owner: until when a lease is valid that the nodes granted until granted_until_us, and
 * that this owner may hold until hold_until_us; 0: without a limit.
 */
extern int64_t rules_valid_until_us(int64_t granted_until_us, int64_t hold_until_us);

/*
 * Until when a lease may be held that was to end at hold_until_us, and is prolonged for so
 * long from now: never shorter than it was.
 */
extern int64_t rules_prolonged_us(int64_t hold_until_us, int64_t now_us, int64_t hold_at_most_us);

/*
 * What a release says of the key: the milliseconds for which it is kept, or
 * LUA_DELETE, LUA_DELETE_AND_TELL.  ends: core_ends;
 * returned: granted, and to a caller; keep_until_us: of hold_at_least, or 0.
 */
extern int64_t rules_release_ms(bool ends, bool returned, int64_t keep_until_us, int64_t now_us);

/*
 * A host's turn: from a grant by the nodes, over hand-overs from session to session
 * of this server, to the release.  Sessions of other hosts wait meanwhile.
 */
extern int64_t rules_turn_us(int64_t ttl_us);

/*
 * May a lease be left to the next session, rather than released?  kept: by hold_at_least, so its
 * key has to outlive the release.  validity_us: by the nodes, without the owner's hold_at_most; 0
 * if that is over.
 */
extern bool rules_may_hand_over(bool kept, int64_t validity_us, int64_t ttl_us,
								int64_t turn_so_far_us, int handovers, int limit);

/*
 * So many sessions of this server wait for the lock now.  Does its turn last after so many
 * hand-overs?  wanted: hosts elsewhere wait; is_long: it has lasted for rules_long_turn_us.
 */
extern bool rules_turn_lasts(bool wanted, int handovers, int waiting, bool is_long);
extern int64_t rules_long_turn_us(int64_t hold_back_us);

/*
 * May the next session take the lease over?  keeps: this session wants hold_at_least, which counts
 * from a grant by the nodes.  tokens: of the grant.
 */
extern bool rules_may_take_over(bool keeps, int64_t validity_us, int64_t ttl_us, int handovers,
								int tokens);

/*
 * May a lease with this validity stay with nobody, for the next session of this server?
 * limited: by hold_at_least or hold_at_most of its owner, which do not go with keep_idle.
 * wanted: another host wants it.  Then turns count again: rules_may_hand_over.
 * tokens: of the grant; INT_MAX while more are under way, since the next session waits for them.
 */
extern bool rules_may_stay(bool limited, bool wanted, int64_t validity_us, int64_t ttl_us,
						   int handovers, int tokens);

/*
 * May a session join those of this server that share the lease?  wanted: another host wants the
 * lock for itself, and the session was not there when the lease was granted.
 */
extern bool rules_may_join(bool wanted, int64_t validity_us, int64_t ttl_us);

/*
 * The lock is granted in shared mode, so when this round asked for it the nodes held nobody
 * back: who had told before that it wants it alone, which counts until want_until_us, has had it
 * or gave up.  Does it still want it?
 */
extern bool rules_want_is_later(int64_t want_until_us, int64_t round_began_us);

/*
 * The time in which a host that a release has woken can ask: two of its round trips and a
 * bit, but no more than a tenth of a second.  Others hold back for as long.
 */
extern int64_t rules_hold_back_us(int64_t round_trip_us);

/*
 * For so long a try waits for a host to give up what it has for nobody: no more than a tenth
 * of a second, too, since most often somebody has the lock.
 */
extern int64_t rules_recall_us(int64_t round_trip_us);

/*
 * A release named so many hosts, in the order of their turns (waiters.h).  How long does
 * the one in this place hold back, or one that was not named, which has place `named`?
 * -1: it does not ask because of the release.  So many hosts wait, and the turn before took
 * so long, the way to it included.
 */
extern int64_t rules_turn_after_us(int place, int named, int waiting, uint32_t random,
								   int64_t hold_back_us, int64_t turn_us);

/*
 * A release may have been missed: so long after that a host asks.  -1: it does not, so many wait
 * that some ask anyway.
 */
extern int64_t rules_miss_us(int waiting, uint32_t random);

/* A host's turn is over, and took so long: when may it ask again, if so many wait? */
extern int64_t rules_pause_us(int named, int64_t hold_back_us, int64_t turn_us);

#endif /* REDLOCK_RULES_H */
