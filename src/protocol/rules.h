/*
 * rules.h
 *		Rules for tokens and times: the tokens of a grant, the life of keys and counters at the
 *		nodes, the time for which a host keeps a lock.
 *
 * Safety rests on these rules.  The rules have no state.  The simulator links this file: plain
 * C99.  Times are microseconds, except for the milliseconds that the scripts take.
 */
#ifndef REDLOCK_RULES_H
#define REDLOCK_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/lua.h"

/* The first token of a grant.  A grant has one token for each holder of its turn. */
extern int64_t rules_first_token(int64_t granted);

/* the token of the holder after this many hand-overs */
extern int64_t rules_token(int64_t first_token, int handovers);

/*
 * left: tokens that a grant still has for future holders.  rules_needs_tokens returns true if the
 * broker should raise the bound of the grant.  rules_asks_for_tokens returns true if the session
 * should wake the broker for this.  The session does so only once in a while, since a wake-up
 * costs.
 */
#define RULES_MORE_TOKENS (32 * LUA_SPAN)
extern bool rules_needs_tokens(int64_t left);
extern bool rules_asks_for_tokens(int64_t left);

/*
 * By how many tokens the broker raises the bound: RULES_MORE_TOKENS, but at most to
 * RULES_MORE_TOKENS ahead of the wall clock; 0: do not raise.  Otherwise turns that raise the
 * bound and use few tokens would move the counters away from the clocks.  After a loss of data,
 * tokens stay in order only if the clock has passed all counters when the nodes vote again.  The
 * nodes vote again after max_ttl, which is longer than RULES_MORE_TOKENS.
 */
extern int64_t rules_more_tokens(int64_t bound, int64_t wall_clock_us);

/* how long a granted lease is still valid, for its owner; 0: the lease is over */
extern int64_t rules_validity_us(int64_t valid_until_us, int64_t now_us);

/*
 * Until when a session may hold the lock that it gets at now_us, from the nodes or by a
 * hand-over; 0: no limit.  Each holder of a turn has its own hold_at_most; 0: none.
 */
extern int64_t rules_hold_until_us(int64_t now_us, int64_t hold_at_most_us);

/*
 * Until when a lease is valid, for its owner.  granted_until_us: by the nodes; hold_until_us: by
 * the owner's limit, or 0.
 */
extern int64_t rules_valid_until_us(int64_t granted_until_us, int64_t hold_until_us);

/*
 * The new end of a lease that is prolonged for hold_at_most_us from now; never sooner than
 * hold_until_us, its former end.
 */
extern int64_t rules_prolonged_us(int64_t hold_until_us, int64_t now_us, int64_t hold_at_most_us);

/*
 * The argument of a release: the milliseconds for which the node keeps the key, or LUA_DELETE,
 * LUA_DELETE_AND_TELL. ends: core_ends; returned: the lease was granted and returned to a
 * caller; keep_until_us: the end of hold_at_least, or 0.
 */
extern int64_t rules_release_ms(bool ends, bool returned, int64_t keep_until_us, int64_t now_us);

/*
 * How long a host's turn may last.  A turn goes from a grant by the nodes, over hand-overs
 * between sessions of this server, to the release.  Sessions of other hosts wait for the end of
 * the turn.
 */
extern int64_t rules_turn_us(int64_t ttl_us);

/*
 * Returns true if a lease may be kept for the next session, in place of a release.  kept: by
 * hold_at_least, so the key must outlive the release.  validity_us: by the nodes, without the
 * owner's hold_at_most; 0 if hold_at_most is over.
 */
extern bool rules_may_hand_over(bool kept, int64_t validity_us, int64_t ttl_us,
								int64_t turn_so_far_us, int handovers, int limit);

/*
 * Returns true if the turn goes on after this many hand-overs.  waiting: sessions of this server
 * that wait now; other_host_waits: at least one; is_long: the turn has lasted for
 * rules_long_turn_us.
 */
extern bool rules_turn_lasts(bool other_host_waits, int handovers, int waiting, bool is_long);
extern int64_t rules_long_turn_us(int64_t hold_back_us);

/*
 * Returns true if the next session may take over the lease.  keeps: the next session wants
 * hold_at_least, which counts from a grant by the nodes.  tokens: of the grant.
 */
extern bool rules_may_take_over(bool keeps, int64_t validity_us, int64_t ttl_us, int handovers,
								int tokens);

/*
 * Returns true if a lease with this validity may become idle for the next session of this server.
 * limited: by its owner's hold_at_least or hold_at_most, which exclude keep_idle.
 * other_host_waits: then rules_may_hand_over decides.  tokens: of the grant; INT_MAX while the
 * broker is asking for more, since the next session waits for them.
 */
extern bool rules_may_idle(bool limited, bool other_host_waits, int64_t validity_us, int64_t ttl_us,
						   int handovers, int tokens);

/*
 * Returns true if a session may join the readers of a lease of this server.  writer_waits: another
 * host waits for exclusive mode, and the session was not waiting at the grant.
 */
extern bool rules_may_join(bool writer_waits, int64_t validity_us, int64_t ttl_us);

/*
 * Returns true if a writer has announced itself since the round of this shared grant began.
 * When the round began, the nodes held back no readers: any writer known before had got the
 * lock, or had cancelled. writer_until_us: set by the writer's last announcement.
 */
extern bool rules_writer_asked_later(int64_t writer_until_us, int64_t round_began_us);

/*
 * The time that a host needs to ask after a release wakes it: two of its round trips and a bit,
 * at most a tenth of a second.  Waiters further behind hold back for this time.
 */
extern int64_t rules_hold_back_us(int64_t round_trip_us);

/*
 * For how long a try waits for a host to release an idle lease: at most a tenth of a second,
 * because most often a session holds the lock.
 */
extern int64_t rules_recall_us(int64_t round_trip_us);

/*
 * How long a host holds back after a release; -1: the release is no reason to ask.  place: the
 * host's place among the waiters that the release named (waiters.h), or `named` if it was not
 * named.  named: number of these waiters.  waiting: number of waiting hosts.  turn_us: duration of
 * the turn before, with the way to the nodes.
 */
extern int64_t rules_turn_after_us(int place, int named, int waiting, uint32_t random,
								   int64_t hold_back_us, int64_t turn_us);

/*
 * How long after a release that may have been missed a host asks; -1: not at all, because so
 * many hosts wait that some ask anyway.
 */
extern int64_t rules_miss_us(int waiting, uint32_t random);

/*
 * How long a host waits after its own turn before it asks again.  named: waiters that its release
 * names before the host itself; turn_us: duration of the turn.
 */
extern int64_t rules_pause_us(int named, int64_t hold_back_us, int64_t turn_us);

#endif /* REDLOCK_RULES_H */
