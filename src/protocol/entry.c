/*
 * entry.c
 *		Transitions of an entry of the lease table; see entry.h.
 */
#include "protocol/entry.h"

#include <limits.h>

#include "protocol/lua.h"
#include "protocol/rules.h"

static bool can_take_over(const Entry *entry, const EntryRequest *request, int tokens,
						  int64_t now_us);
static bool is_being_asked(const Entry *entry, const EntryRequest *request);
static bool is_limited(const Entry *entry);
static bool more_tokens_come(const Entry *entry, int64_t now_us);
static int64_t tokens_left(const Entry *entry);
static int64_t healthy_us(const Entry *entry, int64_t now_us);

bool
entry_has_lost_name(Wish wish, LeaseState state)
{
	return state == LEASE_LOST && wish_is_held(wish);
}

int64_t
entry_validity_us(const Entry *entry, int64_t now_us)
{
	if (entry->state != LEASE_HELD)
		return 0;
	return rules_validity_us(rules_valid_until_us(entry->granted_until_us, entry->hold_until_us),
							 now_us);
}

int
entry_tokens(const Entry *entry)
{
	int64_t tokens = tokens_left(entry) + entry->handovers + 1;

	return tokens < INT_MAX ? (int) tokens : INT_MAX;
}

bool
entry_other_host_waits(const Entry *entry, int64_t now_us)
{
	return entry->other_host_waits || now_us < entry->writer_until_us;
}

LeaseOpened
entry_open(const Entry *entry, const EntryRequest *request, int64_t now_us)
{
	if (!wish_has_no_holder(entry->wish))
	{
		if (!request->same_gate)
			return LEASE_TAKEN;
		if (entry->wish == WISH_DETACHED)
			return LEASE_DETACHED;
		/* another reader was faster; or the owner has lost its gate, or has another gate */
		return entry->shared && request->shared ? LEASE_READER_ASKS : LEASE_TAKEN;
	}
	if (can_take_over(entry, request, entry_tokens(entry), now_us))
		return LEASE_HANDED_OVER;
	if (request->waits_for_tokens && entry->wish == WISH_IDLE && more_tokens_come(entry, now_us) &&
		can_take_over(entry, request, INT_MAX, now_us))
		return LEASE_MORE_TOKENS;
	return LEASE_OPENED;
}

EntryTaken
entry_take_over(Entry *entry, const EntryRequest *request, int64_t now_us)
{
	/* a permit that was passed on is handed over */
	EntryTaken taken = {.was_kept = entry->wish == WISH_IDLE && entry->keep_idle_us > 0};

	entry->wish = WISH_HOLD;
	entry->keep_idle_us = request->keep_idle_us;
	/* the limit of the new holder takes the place of the former limit */
	entry->hold_at_most_us = request->hold_at_most_us;
	entry->hold_until_us = rules_hold_until_us(now_us, request->hold_at_most_us);
	if (entry->shared)
		entry->readers = 1; /* with the same token as the readers before */
	else
		entry->handovers++;
	taken.asks = taken.was_kept && rules_asks_for_tokens(tokens_left(entry));
	return taken;
}

LeaseOpened
entry_join(const Entry *entry, const EntryRequest *request, int64_t now_us)
{
	if (wish_has_no_holder(entry->wish))
		return LEASE_OPENED;
	if (!request->same_gate)
		return LEASE_TAKEN;
	if (!entry->shared)
		return LEASE_OPENED;
	if (is_being_asked(entry, request))
		return LEASE_READER_ASKS;
	if (!request->same_lock ||
		!rules_may_join(now_us < entry->writer_until_us && !request->waited_for_grant,
						entry_validity_us(entry, now_us), entry->ttl_us))
		return LEASE_WRITER_WAITS;
	return LEASE_JOINED;
}

bool
entry_leave(Entry *entry)
{
	entry->returns = false;
	return --entry->readers == 0;
}

bool
entry_keep_idle(Entry *entry, const EntryRelease *release, int64_t now_us)
{
	if (!entry->may_idle || entry->keep_idle_us <= 0 || release->bars_idle ||
		!rules_may_idle(is_limited(entry), entry_other_host_waits(entry, now_us),
						healthy_us(entry, now_us), entry->ttl_us, entry->handovers,
						more_tokens_come(entry, now_us) ? INT_MAX : entry_tokens(entry)))
		return false;
	entry->returns = false;
	entry->hold_until_us = 0; /* the limit was the owner's */
	entry->idle_until_us = now_us + entry->keep_idle_us;
	entry->wish = WISH_IDLE;
	return true;
}

bool
entry_hand_over(Entry *entry, const EntryRelease *release, int64_t now_us)
{
	int64_t turn_us = now_us - entry->turn_began_us;
	int handovers = entry->turn_handovers + entry->handovers;
	bool passes = release->pass_us > 0;

	entry->returns = release->waiting > 0;
	if (entry->shared ||
		!rules_may_hand_over(entry->hold_at_least_us > 0, healthy_us(entry, now_us), entry->ttl_us,
							 turn_us, handovers, release->handover_limit) ||
		!(passes || rules_turn_lasts(entry->other_host_waits, handovers, release->waiting,
									 turn_us >= entry->long_turn_us)))
	{
		entry->wish = WISH_NOTHING;
		return false;
	}
	entry->hold_until_us = 0;
	entry->idle_until_us = passes ? now_us + release->pass_us : 0;
	entry->wish = passes ? WISH_IDLE : WISH_HAND_OVER;
	return true;
}

Wish
entry_detach(const Entry *entry, bool stopping)
{
	return stopping || entry->state != LEASE_HELD ? WISH_NOTHING : WISH_DETACHED;
}

int64_t
entry_prolong(const Entry *entry, int64_t hold_at_most_us, int64_t now_us)
{
	if (entry_validity_us(entry, now_us) == 0)
		return 0;
	return rules_prolonged_us(entry->hold_until_us, now_us, hold_at_most_us);
}

bool
entry_ends(const Entry *entry, WishOwner owner, EntryEnd why, int64_t now_us)
{
	switch (why)
	{
		case ENTRY_IDLE_IS_OVER:
			return wish_idle_is_over(entry->wish, entry->idle_until_us, now_us);
		case ENTRY_RECALLED:
			return entry->wish == WISH_IDLE;
		case ENTRY_NOBODY_CAME:
			return entry->wish == WISH_HAND_OVER;
		case ENTRY_HOLD_IS_OVER:
			return entry->wish == WISH_DETACHED &&
				   wish_hold_is_over(owner, entry->hold_until_us, now_us);
		case ENTRY_RELEASED:
			return entry->wish == WISH_DETACHED;
		case ENTRY_ORPHANED:
			return wish_is_orphaned(entry->wish, owner);
		case ENTRY_ENDS:
			break;
	}
	return false;
}

/* The writer of a shared lease counts for as long as the nodes hold back new readers for it. */
void
entry_note_waiting_host(Entry *entry, int64_t now_us)
{
	if (entry->shared)
		entry->writer_until_us = now_us + LUA_BARRIER_MS * INT64_C(1000);
	else
		entry->other_host_waits = true;
}

bool
entry_needs_tokens(const Entry *entry, WishOwner owner, int64_t now_us)
{
	return entry->keep_idle_us > 0 && !entry->shared && rules_needs_tokens(tokens_left(entry)) &&
		   wish_may_renew(entry->wish, owner, entry->idle_until_us, now_us);
}

/* Returns true if the entry has the requested lock, with enough validity and tokens. */
static bool
can_take_over(const Entry *entry, const EntryRequest *request, int tokens, int64_t now_us)
{
	return request->same_lock && entry->shared == request->shared &&
		   entry->ttl_us == request->ttl_us && entry->permits == request->permits &&
		   rules_may_take_over(request->hold_at_least_us > 0, entry_validity_us(entry, now_us),
							   entry->ttl_us, entry->handovers, tokens);
}

/*
 * Returns true if another session's request is worth waiting for.  A try does not wait for
 * another host.  A request that failed is about to be cancelled, and the next request may
 * succeed.
 */
static bool
is_being_asked(const Entry *entry, const EntryRequest *request)
{
	if (entry->state == LEASE_WAITING)
		return !request->once || !entry->answered;
	return entry->state != LEASE_HELD;
}

/* A limited lease is not kept idle. */
static bool
is_limited(const Entry *entry)
{
	return entry->hold_at_least_us > 0 || (entry->hold_at_most_us > 0 && !entry->is_queue);
}

static bool
more_tokens_come(const Entry *entry, int64_t now_us)
{
	return now_us < entry->more_tokens_us;
}

/* for future holders */
static int64_t
tokens_left(const Entry *entry)
{
	return entry->last_token - rules_token(entry->first_token, entry->handovers);
}

/*
 * The validity by the nodes, or 0 if the holder has lost the lease.  The holder's limit does not
 * bind the next holder.
 */
static int64_t
healthy_us(const Entry *entry, int64_t now_us)
{
	return entry_validity_us(entry, now_us) > 0 ? rules_validity_us(entry->granted_until_us, now_us)
												: 0;
}
