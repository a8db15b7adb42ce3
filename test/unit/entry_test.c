/*
 * entry_test.c
 *		Unit tests of the transitions of an entry of the lease table, src/protocol/entry.c.
 *
 * Protects from: a session taking over another lock, an ended lease, or another session's lease; a
 * reader joining beside a writer's turn; an idle or handed over lease beyond its limits; an entry
 * ending for a foreign reason.
 */
#include "protocol/entry.h"

#include <limits.h>

#include "protocol/lua.h"

#include "tap.h"

#define NOW INT64_C(1000000000)
#define TTL INT64_C(10000000)

/* A held and valid lease, open to all sessions, with tokens left. */
static Entry
entry_with(Wish wish)
{
	return (Entry){.wish = wish,
				   .state = LEASE_HELD,
				   .answered = true,
				   .may_idle = true,
				   .ttl_us = TTL,
				   .keep_idle_us = 1000,
				   .granted_until_us = NOW + TTL,
				   .idle_until_us = NOW + 1000,
				   .first_token = 1,
				   .last_token = LUA_SPAN,
				   .turn_began_us = NOW,
				   .long_turn_us = TTL};
}

static const EntryRequest same = {.same_gate = true, .same_lock = true, .ttl_us = TTL};

/* The result for a session that opens this entry, by a request changed in one place. */
static LeaseOpened
opened(Entry entry, EntryRequest request)
{
	return entry_open(&entry, &request, NOW);
}

static void
test_open(void)
{
	Entry idle = entry_with(WISH_IDLE);
	EntryRequest other = same;
	static const struct
	{
		Wish wish;
		LeaseOpened here;
		LeaseOpened elsewhere;
	} table[] = {{WISH_HOLD, LEASE_TAKEN, LEASE_TAKEN},
				 {WISH_DETACHED, LEASE_DETACHED, LEASE_TAKEN},
				 {WISH_HAND_OVER, LEASE_HANDED_OVER, LEASE_HANDED_OVER},
				 {WISH_IDLE, LEASE_HANDED_OVER, LEASE_HANDED_OVER}};

	for (int i = 0; i < 4; i++)
	{
		other.same_gate = false;
		ok(opened(entry_with(table[i].wish), same) == table[i].here &&
			   opened(entry_with(table[i].wish), other) == table[i].elsewhere,
		   "wish %d: what a session finds, here and at another gate", (int) table[i].wish);
	}
	other = same;
	other.same_lock = false;
	ok(opened(idle, other) == LEASE_OPENED, "another lock with the same hash is not taken over");
	other = same;
	other.shared = true;
	ok(opened(idle, other) == LEASE_OPENED, "nor is one of another mode,");
	other = same;
	other.ttl_us = TTL / 2;
	ok(opened(idle, other) == LEASE_OPENED, "of another ttl,");
	other = same;
	other.permits = 2;
	ok(opened(idle, other) == LEASE_OPENED, "of another number of permits,");
	other = same;
	other.hold_at_least_us = 1;
	ok(opened(idle, other) == LEASE_OPENED, "for a session with hold_at_least,");
	idle.granted_until_us = NOW;
	ok(opened(idle, same) == LEASE_OPENED, "or one that is over");
	idle = entry_with(WISH_IDLE);
	idle.state = LEASE_LOST;
	ok(opened(idle, same) == LEASE_OPENED, "or lost");
	idle = entry_with(WISH_IDLE);
	idle.last_token = idle.first_token;
	other = same;
	other.waits_for_tokens = true;
	ok(opened(idle, same) == LEASE_OPENED && opened(idle, other) == LEASE_OPENED,
	   "nor one without a token for the next,");
	idle.more_tokens_us = NOW + 1;
	ok(opened(idle, same) == LEASE_OPENED && opened(idle, other) == LEASE_MORE_TOKENS,
	   "unless tokens are under way, and the session waits for them");
	idle.more_tokens_us = NOW;
	ok(opened(idle, other) == LEASE_OPENED, "but no longer than they may take");
	idle.last_token = idle.first_token + INT_MAX;
	ok(entry_tokens(&idle) == INT_MAX, "more tokens than a number can say are that number");
	ok(entry_has_lost_name(WISH_HOLD, LEASE_LOST) &&
		   entry_has_lost_name(WISH_DETACHED, LEASE_LOST) &&
		   !entry_has_lost_name(WISH_HOLD, LEASE_HELD) &&
		   !entry_has_lost_name(WISH_IDLE, LEASE_LOST),
	   "a lease that its holder lost has no name any more");
}

static void
test_take_over(void)
{
	Entry entry = entry_with(WISH_IDLE);
	EntryRequest request = same;
	EntryTaken taken;

	entry.hold_until_us = NOW + 5;
	request.hold_at_most_us = 100;
	request.keep_idle_us = 7;
	taken = entry_take_over(&entry, &request, NOW);
	ok(entry.wish == WISH_HOLD && entry.handovers == 1 && entry.hold_until_us == NOW + 100 &&
		   entry.keep_idle_us == 7 && taken.was_kept,
	   "the next session has its own limits, and the next token");
	entry = entry_with(WISH_HAND_OVER);
	entry.hold_until_us = NOW + 5;
	taken = entry_take_over(&entry, &same, NOW);
	ok(entry.hold_until_us == 0 && !taken.was_kept && !taken.asks, "or no limit");
	entry = entry_with(WISH_HAND_OVER);
	entry.last_token = entry.first_token + 1 + LUA_SPAN / 4;
	ok(!entry_take_over(&entry, &same, NOW).asks, "a hand-over asks for no tokens");
	entry = entry_with(WISH_IDLE);
	entry.last_token = entry.first_token + 1 + LUA_SPAN / 4;
	ok(entry_take_over(&entry, &same, NOW).asks, "an idle lease with few tokens left does");
	entry = entry_with(WISH_IDLE);
	entry.keep_idle_us = 0;
	ok(!entry_take_over(&entry, &same, NOW).was_kept, "a permit that was passed on was not kept");
	entry = entry_with(WISH_IDLE);
	entry.shared = true;
	(void) entry_take_over(&entry, &same, NOW);
	ok(entry.handovers == 0 && entry.readers == 1, "readers have the token of all readers");
}

static void
test_readers(void)
{
	Entry entry = entry_with(WISH_HOLD);
	EntryRequest reader = same;

	entry.shared = reader.shared = true;
	entry.readers = 2;
	ok(entry_join(&entry, &reader, NOW) == LEASE_JOINED, "a reader joins");
	ok(opened(entry, reader) == LEASE_READER_ASKS, "or waits, if it comes too late to join");
	ok(opened(entry, same) == LEASE_TAKEN, "a writer finds the readers");
	entry.writer_until_us = NOW + 1;
	ok(entry_join(&entry, &reader, NOW) == LEASE_WRITER_WAITS, "not while a writer waits,");
	reader.waited_for_grant = true;
	ok(entry_join(&entry, &reader, NOW) == LEASE_JOINED, "unless it was there at the grant");
	reader.same_lock = false;
	ok(entry_join(&entry, &reader, NOW) == LEASE_WRITER_WAITS, "nor a lock with the same hash,");
	reader.same_lock = true;
	reader.same_gate = false;
	ok(entry_join(&entry, &reader, NOW) == LEASE_TAKEN, "nor at another gate");
	reader.same_gate = true;
	entry.state = LEASE_WAITING;
	ok(entry_join(&entry, &reader, NOW) == LEASE_READER_ASKS,
	   "it waits while the nodes are asked,");
	reader.once = true;
	ok(entry_join(&entry, &reader, NOW) != LEASE_READER_ASKS, "a try does not, for another host");
	entry.answered = false;
	ok(entry_join(&entry, &reader, NOW) == LEASE_READER_ASKS, "but for the first answer");
	entry = entry_with(WISH_IDLE);
	entry.shared = true;
	ok(entry_join(&entry, &reader, NOW) == LEASE_OPENED, "an idle lease has no readers to join");
	entry = entry_with(WISH_HOLD);
	ok(entry_join(&entry, &reader, NOW) == LEASE_OPENED, "nor has an exclusive lease");
	entry.readers = 2;
	ok(!entry_leave(&entry) && entry_leave(&entry), "the last one out is known");
}

static void
test_release(void)
{
	EntryRelease release = {.waiting = 1, .handover_limit = 1000};
	Entry entry = entry_with(WISH_HOLD);

	entry.hold_until_us = NOW + 5;
	ok(entry_keep_idle(&entry, &release, NOW) && entry.wish == WISH_IDLE &&
		   entry.idle_until_us == NOW + 1000 && entry.hold_until_us == 0,
	   "a lease becomes idle, without the limit of its owner");
	for (int i = 0; i < 9; i++)
	{
		EntryRelease how = release;
		bool idle;

		entry = entry_with(WISH_HOLD);
		entry.may_idle = i != 0;
		entry.keep_idle_us = i == 1 ? 0 : 1000;
		how.bars_idle = i == 2;
		entry.hold_at_least_us = i == 3;
		entry.hold_at_most_us = i == 4;
		entry.other_host_waits = i == 5;
		entry.last_token = i == 6 ? 1 : LUA_SPAN;
		entry.state = i == 7 ? LEASE_LOST : LEASE_HELD;
		entry.granted_until_us = i == 8 ? NOW : NOW + TTL;
		idle = entry_keep_idle(&entry, &how, NOW);
		ok(!idle && entry.wish == WISH_HOLD, "for each of nine reasons it does not: %d", i);
	}
	entry = entry_with(WISH_HOLD);
	entry.hold_at_most_us = 1;
	entry.is_queue = true;
	ok(entry_keep_idle(&entry, &release, NOW), "the limit of a queue does not count");
	entry = entry_with(WISH_HOLD);
	entry.hold_until_us = NOW + 5;
	ok(entry_hand_over(&entry, &release, NOW) && entry.wish == WISH_HAND_OVER && entry.returns &&
		   entry.hold_until_us == 0,
	   "a lease is left for the next at the gate, without the limit of its owner");
	entry = entry_with(WISH_HOLD);
	release.waiting = 0;
	ok(!entry_hand_over(&entry, &release, NOW) && entry.wish == WISH_NOTHING && !entry.returns,
	   "if there is one");
	entry = entry_with(WISH_HOLD);
	release.pass_us = 10;
	ok(entry_hand_over(&entry, &release, NOW) && entry.wish == WISH_IDLE &&
		   entry.idle_until_us == NOW + 10,
	   "a permit is passed on for a moment");
	release = (EntryRelease){.waiting = 1, .handover_limit = 1000};
	for (int i = 0; i < 5; i++)
	{
		EntryRelease how = release;

		entry = entry_with(WISH_HOLD);
		entry.shared = i == 0;
		entry.hold_at_least_us = i == 1;
		how.handover_limit = i == 2 ? 0 : 1000;
		entry.turn_began_us = i == 3 ? NOW - TTL : NOW;
		entry.other_host_waits = i == 4;
		entry.turn_handovers = i == 4 ? 900 : 0;
		ok(!entry_hand_over(&entry, &how, NOW) && entry.wish == WISH_NOTHING,
		   "for each of five reasons it is not: %d", i);
	}
}

static void
test_ends(void)
{
	static const Wish ends[ENTRY_ENDS] = {WISH_IDLE,     WISH_IDLE,     WISH_HAND_OVER,
										  WISH_DETACHED, WISH_DETACHED, WISH_HAND_OVER};
	Entry entry;

	for (EntryEnd why = ENTRY_IDLE_IS_OVER; why < ENTRY_ENDS; why++)
	{
		bool good = true;

		for (Wish wish = WISH_NONE; wish <= WISH_NOTHING; wish++)
		{
			WishOwner owner = wish == WISH_DETACHED ? WISH_OWNER_NONE : WISH_OWNER_LIVES;

			entry = entry_with(wish);
			entry.hold_until_us = NOW;
			entry.idle_until_us = NOW;
			good = good && entry_ends(&entry, owner, why, NOW) == (wish == ends[why]);
		}
		ok(good, "reason %d ends the entries that it is a reason for", (int) why);
	}
	entry = entry_with(WISH_DETACHED);
	ok(entry_detach(&entry, false) == WISH_DETACHED && entry_detach(&entry, true) == WISH_NOTHING,
	   "a lease is detached, unless the server stops");
	entry.state = LEASE_LOST;
	ok(entry_detach(&entry, false) == WISH_NOTHING, "or it was lost");
	ok(entry_prolong(&entry, 100, NOW) == 0, "a lost lease is not prolonged,");
	entry.state = LEASE_HELD;
	entry.hold_until_us = NOW + 50;
	ok(entry_prolong(&entry, 100, NOW) == NOW + 100 && entry_prolong(&entry, 10, NOW) == NOW + 50,
	   "nor is another made shorter");
	entry = entry_with(WISH_HOLD);
	entry_note_waiting_host(&entry, NOW);
	ok(entry.other_host_waits && entry_other_host_waits(&entry, NOW),
	   "another host waits for it, until it ends");
	entry = entry_with(WISH_HOLD);
	entry.shared = true;
	entry_note_waiting_host(&entry, NOW);
	ok(!entry.other_host_waits && entry_other_host_waits(&entry, NOW) &&
		   !entry_other_host_waits(&entry, NOW + LUA_BARRIER_MS * INT64_C(1000)),
	   "or for as long as nodes hold readers back");
	entry = entry_with(WISH_IDLE);
	entry.last_token = entry.first_token;
	ok(entry_needs_tokens(&entry, WISH_OWNER_LIVES, NOW) &&
		   !entry_needs_tokens(&entry, WISH_OWNER_LIVES, NOW + TTL),
	   "tokens are asked for while it is idle");
	entry.keep_idle_us = 1;
	ok(entry_needs_tokens(&entry, WISH_OWNER_LIVES, NOW), "however short that is");
}

int
main(void)
{
	test_open();
	test_take_over();
	test_readers();
	test_release();
	test_ends();
	return tap_done();
}
