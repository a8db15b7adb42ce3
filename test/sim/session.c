/*
 * session.c
 *		Sessions; see session.h.
 *
 * Functions that model src/shared/lease*.c have the names from there.
 */
#include "session.h"

#include <assert.h>
#include <string.h>

#include "host_world.h"
#include "operator.h"
#include "protocol/rules.h"
#include "story.h"

#define LAST 1 /* tag of the last request, when all faults have ended */

static void come(int host, int resource, bool last);
static int named(int host, int resource);
static int open_entry(int host, int resource, bool last, bool shared);
static void open_other(int host, int entry, int resource, bool shared);
static void join(int host, int entry, int resource);
static void leave(int host, int entry, int session);
static int find_entry(int host);
static void begin(int host, int entry, int resource, int64_t token, bool handed_over);
static int64_t keep_idle_us(void);
static int64_t hold_at_most_us(void);
static EntryRequest request_of(int host, int entry, int resource, bool shared);
static void take_over(int host, int entry, const EntryRequest *request);
static int64_t moment_us(void);
static void detach(int host, int entry, int64_t hold_us);
static void end_holding(int host, int entry);
static void store_idle(int host, int entry, const Entry *values);
static void cancel(int host, int entry);
static void free_name(int host, int entry);
static int64_t validity_us(int host, int entry);
static void ask_for_tokens(int host, int entry);
static int next_wants(int host, int resource);
static void next_asks(int host, int resource);

/* The session has the lease now: plans its writes and its end. */
static void
begin(int h, int s, int resource, int64_t token, bool handed_over)
{
	entry *entry = entry_at(h, s);
	int64_t hold_us = 1 + w.plan.hold_us / 2 + dice_us(w.plan.hold_us);
	int id = check_returned(h, s, resource, token, handed_over);

	entry->session = id;
	entry->owner = OWNER_HOLDS;
	entry->was_detached = false;
	entry->returned = true;
	if (id < 0)
	{
		/* no room to record the session */
		if (entry->shared)
			leave(h, s, id);
		else
			end_holding(h, s);
		return;
	}
	if (may(FAULT_APP_PAUSE) && chance(4))
	{
		seen.fault[FAULT_APP_PAUSE]++;
		sessions[id].paused = true;
		hold_us += w.plan.ttl_us / 2 + dice_us(w.plan.ttl_us * 3);
		later(w.now_us + hold_us - 1, EVENT_WRITE, h, 0, s, (uint32_t) id);
	}
	if (w.calm)
		hold_us = 1;
	if (entry->detach)
		detach(h, s, hold_us);
	if (chance((uint32_t) w.plan.write_odds))
		later(w.now_us + dice_us(hold_us), EVENT_WRITE, h, 0, s, (uint32_t) id);
	if (!entry->detach || w.calm || !chance(3)) /* else the detached lock is forgotten */
		later(w.now_us + hold_us, EVENT_DONE, h, 0, s, (uint32_t) id);
}

/*
 * Detaches the lease of a session.  Some callers prolong it, perhaps in the
 * last moment.
 */
static void
detach(int h, int s, int64_t hold_us)
{
	entry *entry = entry_at(h, s);
	Entry values = session_entry(h, s);
	Wish wish = entry_detach(&values, w.calm);

	seen.detached++;
	tell("host %c: request %u is detached", HOST_NAME(h), entry->secret);
	entry->was_detached = true;
	if (wish == WISH_NOTHING)
	{
		free_name(h, s);
		host_push(h, s);
		next_asks(h, entry->resource);
		return;
	}
	entry->wish = wish;
	entry->owner = OWNER_DETACHED;
	for (int i = 0; i < 3 && chance(2); i++)
		later(w.now_us + dice_us(chance(2) ? hold_us : entry->hold_at_most_us), EVENT_PROLONG, h, 0,
			  s, entry->drive.generation);
}

void
session_on_prolong(const event *event)
{
	int h = event->host;
	entry *entry = entry_at(h, event->entry);
	int64_t hold_at_most_us = 1 + dice_us(entry->hold_at_most_us + 1);
	Entry values = session_entry(h, event->entry);
	int64_t until_us = entry_prolong(&values, hold_at_most_us, host_now_us(h));

	if (w.calm || entry->drive.generation != event->tag || entry->wish != WISH_DETACHED ||
		until_us == 0)
		return;
	tell("host %c: request %u is prolonged", HOST_NAME(h), entry->secret);
	check_prolonged(h, event->entry, hold_at_most_us);
	entry->hold_until_us = until_us;
	host_push(h, event->entry);
}

void
session_on_ask(const event *event)
{
	int h = event->host;
	bool last = event->tag == LAST;

	if (!w.calm)
		come(h, event->node + hosts[h].prefix * w.plan.names, false);
	else if (last)
		come(h, event->node, true);
}

static void
come(int h, int resource, bool last)
{
	gate *gate = gate_of(h, resource);
	bool shared = w.plan.share && !last && chance(2);
	int s = named(h, resource);
	Entry values = s >= 0 ? session_entry(h, s) : (Entry){0};
	EntryRequest request = {.same_gate = true, .shared = shared};

	request.same_lock = s >= 0 && entry_at(h, s)->resource == resource;
	if (last || s < 0)
		open_entry(h, resource, last, shared);
	else if (shared && values.readers > 0 &&
			 entry_join(&values, &request, host_now_us(h)) == LEASE_JOINED)
		join(h, s, resource);
	else if (gate->waiting < QUEUE_MAX)
	{
		gate->wants[gate->waiting++] = (uint8_t) resource;
		if (host_stays(entry_at(h, gate->named)) && gate->waiting == 1)
			later(w.now_us + dice_us(w.plan.delay_us / 2), EVENT_TAKE, h, resource, gate->named,
				  entry_at(h, gate->named)->drive.generation);
	}
}

/*
 * Returns the entry that the name leads to, or -1.  A lost lease has no name,
 * even before the broker's owner reads of the loss.
 */
static int
named(int h, int resource)
{
	int s = gate_of(h, resource)->named;

	return s >= 0 && entry_has_lost_name(entry_at(h, s)->wish, session_entry(h, s).state) ? -1 : s;
}

Entry
session_entry(int h, int s)
{
	const entry *entry = entry_at(h, s);
	int most = w.plan.spent + entry->span; /* tokens that sessions may get */
	Entry values = {.wish = entry->wish,
					.shared = entry->shared,
					.other_host_waits = entry->wanted,
					.may_idle = entry->may_stay,
					.returns = entry->returns,
					.readers = entry->joined,
					.handovers = entry->handovers,
					.turn_handovers = entry->drive.turn_handovers - w.plan.spent,
					.ttl_us = entry->ttl_us,
					.hold_at_least_us = entry->keep_us,
					.hold_at_most_us = entry->hold_at_most_us,
					.keep_idle_us = entry->keep_idle_us,
					.granted_until_us = entry->drive.core.granted_until_us,
					.hold_until_us = entry->hold_until_us,
					.idle_until_us = entry->idle_until_us,
					.writer_until_us = entry->want_until_us,
					.first_token = entry->drive.first_token,
					.last_token = entry->last_token,
					.turn_began_us = entry->drive.turn_began_us,
					.long_turn_us = entry->drive.long_turn_us};

	values.state = entry->drive.core.state == CORE_HELD   ? LEASE_HELD
				   : entry->drive.core.state == CORE_LOST ? LEASE_LOST
														  : LEASE_WAITING;
	if (values.last_token - values.first_token + 1 > most)
		values.last_token = values.first_token + most - 1;
	/* more tokens do not help beyond the hand-over limit */
	if (entry->handovers + 1 < most)
		values.more_tokens_us = entry->more_tokens_us;
	return values;
}

static void
join(int h, int s, int resource)
{
	entry *entry = entry_at(h, s);

	seen.joined++;
	entry->joined++;
	tell("host %c: another session shares request %u", HOST_NAME(h), entry->secret);
	check_joined(h, s);
	begin(h, s, resource, rules_token(entry->drive.first_token, entry->handovers), false);
}

static void
leave(int h, int s, int id)
{
	Entry values = session_entry(h, s);
	bool is_last = entry_leave(&values);

	if (id >= 0)
		sessions[id].done = true;
	entry_at(h, s)->joined = values.readers;
	if (is_last)
		end_holding(h, s);
	check_left(h, s);
}

bool
session_has(int id, int h, int s)
{
	const entry *entry = entry_at(h, s);

	return sessions[id].host == h && sessions[id].entry == s && !sessions[id].done &&
		   sessions[id].generation == entry->drive.generation &&
		   (entry->shared ? entry->owner == OWNER_HOLDS : entry->session == id);
}

/* Returns the entry, or -1 if there is none. */
static int
open_entry(int h, int resource, bool last, bool shared)
{
	gate *gate = gate_of(h, resource);
	int s = named(h, resource) < 0 ? find_entry(h) : -1;
	entry *entry;

	/*
	 * A new broker frees released entries only after it has probed all nodes
	 * once: try again.
	 */
	if (s < 0 && last && !w.late)
		later(w.now_us + w.plan.retry_us, EVENT_ASK, h, resource, 0, LAST);
	if (s < 0 || (!last && w.secrets + 1 >= ASKED_MAX))
		return -1;
	entry = entry_at(h, s);
	assert(!entry->in_use && entry->drive.core.state == CORE_FREE);
	seen.beside_lost += gate->named >= 0;
	gate->named = s;
	entry->in_use = true;
	entry->resource = resource;
	entry->wish = WISH_NONE;
	entry->owner = OWNER_ASKS;
	entry->ttl_us =
		w.plan.ttl_us * (!last && operator_allows_longer() && chance(2) ? w.plan.longer : 1);
	seen.longer += entry->ttl_us > w.plan.ttl_us;
	entry->once = !last && chance(3);
	entry->shared = shared;
	entry->joined = 0;
	entry->told = entry->drive.granted = entry->returned = entry->forgiven = false;
	entry->secret = 0;
	entry->keep_us = w.plan.keep && !last && !shared && chance(3)
						 ? 1 + dice_us(w.plan.ttl_us / (w.plan.joint ? 1 : 2))
						 : 0;
	entry->hold_at_most_us = shared ? 0 : hold_at_most_us();
	entry->hold_until_us = 0;
	entry->detach = entry->hold_at_most_us > 0 && chance(2);
	entry->span =
		entry->ttl_us > w.plan.ttl_us ? 1 : w.plan.span; /* no other session asks for this ttl */
	entry->handovers = w.plan.spent;
	entry->drive.turn_handovers = 0;
	entry->keep_idle_us = last ? 0 : keep_idle_us();
	entry->may_stay = entry->keep_idle_us > 0;
	entry->idle_until_us = 0;
	entry->looks_at_us = INT64_MAX;
	entry->more_tokens_us = 0;
	entry->wanted = entry->returns = entry->goes_on = entry->was_detached = entry->check.wanted =
		false;
	entry->session = -1;
	if (!entry->once && may(FAULT_CANCEL) && chance(4))
		later(w.now_us + dice_us(2 * w.plan.ttl_us), EVENT_CANCEL, h, 0, s,
			  entry->drive.generation);
	later(w.now_us + moment_us(), EVENT_ASKED, h, 0, s, entry->drive.generation);
	return s;
}

/*
 * The next session's terms do not fit the lease in hand-over, so the session
 * asks the nodes: go_on of src/shared/lease.c.
 */
static void
open_other(int h, int s, int resource, bool shared)
{
	entry *from = entry_at(h, s);
	bool was_left = from->wish == WISH_HAND_OVER;
	int other;

	free_name(h, s);
	other = open_entry(h, resource, false, shared);
	if (other >= 0 && was_left && !shared)
	{
		entry *to = entry_at(h, other);

		seen.gone_on++;
		from->goes_on = true;
		to->wanted = from->wanted;
		to->drive.turn_began_us = from->drive.turn_began_us;
		to->drive.long_turn_us = from->drive.long_turn_us;
		to->drive.turn_handovers = from->drive.turn_handovers + from->handovers - w.plan.spent + 1;
	}
	host_push(h, s);
}

/*
 * A session's keep_idle: often the plan's, sometimes less, but a millisecond
 * at least.
 */
static int64_t
keep_idle_us(void)
{
	if (w.plan.keep_idle_us == 0 || chance(6))
		return 0;
	return chance(4) ? MS + dice_us(w.plan.keep_idle_us / 2) : w.plan.keep_idle_us;
}

/* A session's limit: up to more than two ttls; 0: no limit. */
static int64_t
hold_at_most_us(void)
{
	if (!w.plan.limit || !chance(3))
		return 0;
	return chance(3) ? 1 + dice_us(w.plan.ttl_us / 2)
					 : w.plan.ttl_us / 2 + dice_us(2 * w.plan.ttl_us);
}

/*
 * Time from one step of a session to the next; a stalled session takes longer.
 */
static int64_t
moment_us(void)
{
	if (may(FAULT_APP_PAUSE) && chance(8))
	{
		seen.fault[FAULT_APP_PAUSE]++;
		return dice_us(3 * w.plan.ttl_us);
	}
	return 1 + dice_us(w.plan.delay_us / 2);
}

void
session_on_asked(const event *event)
{
	entry *entry = entry_at(event->host, event->entry);

	if (entry->drive.generation != event->tag || entry->owner != OWNER_ASKS ||
		entry->wish != WISH_NONE)
		return;
	entry->waits_since_us = host_now_us(event->host);
	entry->wish = WISH_HOLD;
	host_push(event->host, event->entry);
}

/* The session reads the outcome later.  Some are cancelled about then. */
void
session_told(int h, int s)
{
	entry *entry = entry_at(h, s);
	int64_t read_us = w.now_us + moment_us();

	if (entry->owner != OWNER_ASKS)
		return;
	if (may(FAULT_CANCEL) && chance(8))
		later(w.now_us + dice_us(w.plan.delay_us), EVENT_CANCEL, h, 0, s, entry->drive.generation);
	later(read_us, EVENT_READ, h, 0, s, entry->drive.generation);
}

/*
 * wait_for_answer of src/session/request.c: the session checks by itself that
 * a granted lease is still valid.
 */
void
session_on_read(const event *event)
{
	int h = event->host;
	int s = event->entry;
	entry *entry = entry_at(h, s);

	if (entry->drive.generation != event->tag || entry->owner != OWNER_ASKS || !entry->told)
		return;
	if (!entry->drive.granted)
	{
		cancel(h, s);
		return;
	}
	if (validity_us(h, s) == 0)
	{
		seen.too_late++;
		tell("host %c: the session of request %u finds its lease lost", HOST_NAME(h),
			 entry->secret);
		cancel(h, s);
		return;
	}
	entry->joined = 1;
	if (w.plan.spent > 0)
		ask_for_tokens(h, s);
	begin(h, s, entry->resource, rules_token(entry->drive.first_token, entry->handovers), false);
}

/*
 * Returns a free entry, or -1.  Forgets the oldest debts if no entry is free.
 */
static int
find_entry(int h)
{
	do
	{
		for (int s = 0; s < w.plan.entries; s++)
			if (!entry_at(h, s)->in_use)
				return s;
	} while (host_forget_debt(h));
	return -1;
}

/* The owner is done: the lease is kept idle, handed over, or released. */
static void
end_holding(int h, int s)
{
	entry *entry = entry_at(h, s);
	Entry values = session_entry(h, s);
	EntryRelease release = {.bars_idle = w.calm,
							.waiting = gate_of(h, entry->resource)->waiting,
							.handover_limit = entry->span - 1};

	assert(wish_is_held(entry->wish) &&
		   (entry->owner == OWNER_HOLDS || entry->owner == OWNER_DETACHED));
	entry->session = -1;
	entry->owner = OWNER_NOBODY;
	if (entry->wish == WISH_DETACHED)
		entry->returns = release.waiting > 0;
	else if (entry_keep_idle(&values, &release, host_now_us(h)))
	{
		store_idle(h, s, &values);
		check_stay(h, s);
		tell("host %c: request %u is kept idle", HOST_NAME(h), entry->secret);
		if (entry->idle_until_us < entry->looks_at_us)
			host_push(h, s);
		if (release.waiting > 0)
			later(w.now_us + dice_us(w.plan.delay_us), EVENT_TAKE, h, entry->resource, s,
				  entry->drive.generation);
		return;
	}
	else if (entry_hand_over(&values, &release, host_now_us(h)))
	{
		store_idle(h, s, &values);
		check_held_for(h, s, 0);
		later(w.now_us + dice_us(w.plan.delay_us), EVENT_TAKE, h, entry->resource, s,
			  entry->drive.generation);
		return;
	}
	else
		entry->returns = values.returns;
	tell("host %c: the owner releases request %u", HOST_NAME(h), entry->secret);
	free_name(h, s);
	host_push(h, s);
	next_asks(h, entry->resource);
}

static void
store_idle(int h, int s, const Entry *values)
{
	entry *entry = entry_at(h, s);

	entry->returns = values->returns;
	entry->hold_until_us = values->hold_until_us;
	entry->idle_until_us = values->idle_until_us;
	entry->wish = values->wish;
}

/*
 * The asking session goes without the lock, even if the broker has granted it
 * by now.
 */
static void
cancel(int h, int s)
{
	entry *entry = entry_at(h, s);

	tell("host %c: the session of request %u stops without the lock", HOST_NAME(h), entry->secret);
	free_name(h, s);
	host_push(h, s);
	next_asks(h, entry->resource);
	if (w.calm && h == w.last_host && !w.last_granted[entry->resource] && !w.late)
		later(w.now_us + w.plan.retry_us, EVENT_ASK, h, entry->resource, 0, LAST);
}

/* Frees the name, unless another entry took it since this lease was lost. */
static void
free_name(int h, int s)
{
	gate *gate = gate_of(h, entry_at(h, s)->resource);

	if (gate->named == s)
		gate->named = -1;
	entry_at(h, s)->wish = WISH_NOTHING;
	entry_at(h, s)->owner = OWNER_NOBODY;
	entry_at(h, s)->session = -1;
}

void
session_disown(int h, int s)
{
	check_disowned(h, s);
	free_name(h, s);
	next_asks(h, entry_at(h, s)->resource);
}

static int64_t
validity_us(int h, int s)
{
	Entry values = session_entry(h, s);

	return entry_validity_us(&values, host_now_us(h));
}

static void
ask_for_tokens(int h, int s)
{
	entry_at(h, s)->more_tokens_us = host_now_us(h) + w.plan.answer_us;
	host_push(h, s);
}

/*
 * Takes the first session out of the gate's queue.  Returns the lock it asks
 * for.
 */
static int
next_wants(int h, int resource)
{
	gate *gate = gate_of(h, resource);
	int wants = gate->wants[0];

	gate->waiting--;
	memmove(gate->wants, gate->wants + 1, (size_t) gate->waiting);
	return wants;
}

static void
next_asks(int h, int resource)
{
	if (gate_of(h, resource)->waiting == 0)
		return;
	later(w.now_us + dice_us(w.plan.delay_us), EVENT_NEXT, h, next_wants(h, resource), 0, 0);
}

void
session_lost(int h, int s)
{
	next_asks(h, entry_at(h, s)->resource);
}

void
session_on_take(const event *event)
{
	int h = event->host;
	entry *entry = entry_at(h, event->entry);
	gate *gate = gate_of(h, event->node);

	if (w.calm || gate->waiting == 0)
		return;
	if (may(FAULT_CANCEL) && chance(8))
	{
		seen.fault[FAULT_CANCEL]++;
		gate->waiting = 0; /* all waiters are cancelled */
		return;
	}
	if (entry->drive.generation == event->tag && wish_has_no_holder(entry->wish))
	{
		bool shared = w.plan.share && chance(2) ? !entry->shared : entry->shared;
		EntryRequest request = request_of(h, event->entry, gate->wants[0], shared);
		Entry values = session_entry(h, event->entry);

		switch (entry_open(&values, &request, host_now_us(h)))
		{
			case LEASE_HANDED_OVER:
				seen.taken_idle += entry->wish == WISH_IDLE;
				take_over(h, event->entry, &request);
				if (w.plan.spent > 0 && chance(2))
					ask_for_tokens(h, event->entry);
				begin(h, event->entry, next_wants(h, event->node),
					  rules_token(entry->drive.first_token, entry->handovers), !entry->shared);
				return;
			case LEASE_MORE_TOKENS:
				seen.awaited_tokens++;
				later(w.now_us + MS, EVENT_TAKE, h, event->node, event->entry, event->tag);
				return;
			default:
				open_other(h, event->entry, next_wants(h, event->node), shared);
				return;
		}
	}
	next_asks(h, event->node);
}

/* The request of the next session at the gate, with the entry's ttl. */
static EntryRequest
request_of(int h, int s, int resource, bool shared)
{
	return (EntryRequest){.same_gate = true,
						  .same_lock = entry_at(h, s)->resource == resource,
						  .shared = shared,
						  .waits_for_tokens = true,
						  .ttl_us = entry_at(h, s)->ttl_us,
						  .hold_at_most_us = shared ? 0 : hold_at_most_us(),
						  .keep_idle_us = keep_idle_us()};
}

/*
 * The next session takes the lease over.  Wakes the broker if it would look
 * too late for the new limit.
 */
static void
take_over(int h, int s, const EntryRequest *request)
{
	entry *entry = entry_at(h, s);
	Entry values = session_entry(h, s);

	(void) entry_take_over(&values, request, host_now_us(h));
	entry->wish = values.wish;
	entry->handovers = values.handovers;
	entry->joined = entry->shared ? values.readers : 1;
	entry->keep_idle_us = values.keep_idle_us;
	entry->hold_at_most_us = values.hold_at_most_us;
	entry->hold_until_us = values.hold_until_us;
	entry->detach = entry->hold_at_most_us > 0 && chance(2);
	check_held_for(h, s, entry->hold_at_most_us);
	if (entry->hold_until_us != 0 && entry->hold_until_us < entry->looks_at_us)
		host_push(h, s);
}

void
session_want(int h, int s)
{
	Entry values = session_entry(h, s);

	entry_at(h, s)->check.wanted = !entry_at(h, s)->shared;
	entry_note_waiting_host(&values, host_now_us(h));
	entry_at(h, s)->wanted = values.other_host_waits;
	entry_at(h, s)->want_until_us = values.writer_until_us;
	session_recall(h, s);
}

bool
session_is_wanted(int h, int s)
{
	Entry values = session_entry(h, s);

	return entry_other_host_waits(&values, host_now_us(h));
}

void
session_recall(int h, int s)
{
	entry *entry = entry_at(h, s);
	Entry values = session_entry(h, s);

	if (!entry_ends(&values, host_owner_of(entry), ENTRY_RECALLED, 0))
		return;
	seen.recalled++;
	tell("host %c: request %u is recalled", HOST_NAME(h), entry->secret);
	session_disown(h, s);
	host_push(h, s);
}

/* A waiter is cancelled, or its time is over; perhaps just after the grant. */
void
session_on_cancel(const event *event)
{
	entry *entry = entry_at(event->host, event->entry);

	if (entry->drive.generation != event->tag || entry->owner != OWNER_ASKS)
		return;
	seen.fault[FAULT_CANCEL]++;
	seen.cancelled += entry->drive.granted;
	cancel(event->host, event->entry);
}

void
session_on_done(const event *event)
{
	session *session = &sessions[event->tag];
	entry *entry = entry_at(session->host, session->entry);

	bool has = session_has((int) event->tag, session->host, session->entry);

	session->done = true;
	if (has && entry->shared)
		leave(session->host, session->entry, (int) event->tag);
	else if (has)
		end_holding(session->host, session->entry);
}

void
session_on_next(const event *event)
{
	if (!w.calm)
		come(event->host, event->node, false); /* another may have taken the name */
}

void
session_asks_last(int h, int64_t at_us)
{
	for (int r = 0; r < w.plan.resources; r++)
		later(at_us, EVENT_ASK, h, r, 0, LAST);
}

/*
 * Most crashing sessions release on their way out.  If the process just
 * vanishes, the broker must find out.
 */
void
session_crash(int h)
{
	int s = hosts[h].gate[dice((uint32_t) w.plan.resources)].named;
	entry *entry = s >= 0 ? entry_at(h, s) : NULL;

	if (entry == NULL || (entry->owner != OWNER_HOLDS && entry->owner != OWNER_ASKS))
		return;
	seen.fault[FAULT_CRASH]++;
	tell("host %c: the session of request %u crashes", HOST_NAME(h), entry->secret);
	if (entry->shared && entry->owner == OWNER_HOLDS)
	{
		for (int i = 0; i < session_count; i++)
			if (session_has(i, h, s))
			{
				leave(h, s, i);
				return;
			}
	}
	if (entry->session >= 0)
		sessions[entry->session].done = true;
	if (entry->wish == WISH_HOLD && !entry->shared && chance(3))
	{
		seen.vanished++;
		entry->session = -1;
		entry->owner = OWNER_VANISHED;
	}
	else if (entry->owner == OWNER_HOLDS)
		end_holding(h, s);
	else
		cancel(h, s);
}

/* All sessions of the host release or cancel; idle leases end. */
void
session_stop(int h)
{
	for (int s = 0; s < w.plan.entries; s++)
	{
		entry *entry = entry_at(h, s);

		if (!entry->in_use || (entry->owner == OWNER_NOBODY && !wish_has_no_holder(entry->wish)))
			continue;
		free_name(h, s);
		host_push(h, s);
	}
}
