/*
 * host_world.c
 *		The driver's world in the simulator; see host_world.h.
 *
 * DriverWorld explains each function.  `watch` shows each step of a core to
 * the checks of check.c; sent commands and reported outcomes are checked, too.
 */
#include "host_world.h"

#include <assert.h>
#include <string.h>

#include "debt.h"
#include "driver/turns.h"
#include "fault.h"
#include "force.h"
#include "protocol/rules.h"
#include "session.h"
#include "story.h"
#include "word.h"

/* Only this many requests of a schedule are aged. */
#define AGED_MAX (ASKED_MAX / 4)

static int64_t wall_clock_us(const Driver *driver);
static bool end(int host, int entry, EntryEnd why, int64_t now_us);
static void on_loss(int host, int entry);
static void watch(Driver *driver, int entry, const core_event *event, const core_out *out);
static void before_step(int host, int entry, const core_event *event);
static void on_forget(int host, int entry);
static bool can_send_to(int host, core_mask nodes);
static void grow_old(core_lease *lease);

/* The core before the step that is being watched. */
static core_lease before;

/* The nodes */

static core_lists
get_lists(const Driver *driver)
{
	return hosts[driver->host].lists;
}

static core_mask
can_send(const Driver *driver)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_can_send(driver->host, n))
			nodes |= CORE_BIT(n);
	return nodes;
}

static core_mask
can_vote(const Driver *driver, int64_t now_us)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_can_send(driver->host, n) &&
			guard_may_vote(&hosts[driver->host].node[n].guard, now_us))
			nodes |= CORE_BIT(n);
	return nodes;
}

static core_mask
on_duty(const Driver *driver)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_at(driver->host, n)->state == WIRE_UP)
			nodes |= CORE_BIT(n);
	return nodes;
}

static int64_t
round_trip_us(const Driver *driver)
{
	(void) driver;
	return 2 * w.plan.delay_us;
}

static void
compose(Driver *driver, DriverCommand *what)
{
	if (what->sent.op == CORE_OP_RELEASE)
		check_kept(driver->host, what->sent.entry, what->ttl_ms > 0);
}

static void
send_to_node(Driver *driver, int n, const DriverCommand *what)
{
	int h = driver->host;
	int s = what->sent.entry;
	const entry *entry = entry_at(h, s);
	wire *wire = wire_at(h, n);
	core_command core = core_command_to(&entry->drive.core, n, what->sent.op);
	command command = {.op = what->sent.op,
					   .why = what->sent.why,
					   .resource = entry->resource,
					   .secret = entry->secret,
					   .attempt = core.attempt,
					   .marker = host_marker(h, n),
					   .counter = core.counter,
					   .token = core.token,
					   .ttl_ms = what->ttl_ms,
					   .host = h,
					   .may_stay = entry->may_stay,
					   .shared = entry->shared,
					   .entry = s,
					   .generation = what->sent.generation,
					   .round = what->sent.round,
					   .sent_us = what->now_us};

	if (what->sent.op == CORE_OP_ACQUIRE)
	{
		command.proposal = wall_clock_us(driver);
		command.waited_us = what->waited_us;
	}
	if (what->sent.op == CORE_OP_RELEASE)
	{
		command.ended = what->token;
		command.waiting = what->waiters != NULL ? what->waiters->count : 0;
		for (int i = 0; i < command.waiting; i++)
			command.waiter[i] = (told_waiter){what->waiters->waiter[i].host,
											  what->now_us - what->waiters->waiter[i].since_us};
	}
	check_sent(h, s, n, what->sent.op);
	story_command("->", &command, n, "");
	wire_send(h, n, &command);
	if (wire->watched)
		return;
	wire->watched = true;
	later(w.now_us + w.plan.answer_us / 4, EVENT_OVERDUE, h, n, 0, wire->epoch);
}

/* Clock, dice and timers */

static int64_t
wall_clock_us(const Driver *driver)
{
	return host_wall_us(driver->host);
}

static uint32_t
random_bits(Driver *driver)
{
	(void) driver;
	return dice(UINT32_MAX);
}

/* Only the last event of an entry counts: see timer_tag. */
static void
set_timer(Driver *driver, int s, int64_t wake_at_us)
{
	entry *entry = entry_at(driver->host, s);
	int64_t at_us;

	check_demand(12,
				 entry->drive.core.state != CORE_HELD ||
					 wake_at_us <= entry->drive.core.wake_at_us + entry->ttl_us / 1000,
				 "host %c sets the timer of request %u later than a thousandth of the ttl",
				 HOST_NAME(driver->host), entry->secret);
	if (wake_at_us == 0)
	{
		entry->timer_at_us = 0;
		entry->timer_tag++;
		return;
	}
	at_us = host_true_time_us(driver->host, wake_at_us);
	if (at_us < w.now_us)
		at_us = w.now_us;
	if (entry->timer_at_us != 0 && entry->timer_at_us <= at_us)
		return; /* the event fires early; the driver sets it again */
	entry->timer_at_us = at_us;
	later(at_us, EVENT_TIMER, driver->host, 0, s, ++entry->timer_tag);
}

/* Other hosts */

static void
hear(Driver *driver, int entry, bool begin)
{
	if (begin)
		word_join(driver->host, entry);
}

static void
tell_host(Driver *driver, uint64_t host, int s, int64_t now_us)
{
	const entry *entry = entry_at(driver->host, s);

	word_want(driver->host, entry->resource, entry->shared, turns_waited_us(driver, s, now_us),
			  host);
}

static WaitersKnown *
make_waiters(Driver *driver)
{
	host *host = &hosts[driver->host];

	for (int i = 0; i < KNOWN_MAX; i++)
		if (!host->known_used[i])
		{
			host->known_used[i] = true;
			host->known[i] = (WaitersKnown){0};
			return &host->known[i];
		}
	assert(false);
	return NULL;
}

static void
drop_waiters(Driver *driver, WaitersKnown *known)
{
	hosts[driver->host].known_used[known - hosts[driver->host].known] = false;
}

/* The owner */

static void
get_terms(const Driver *driver, int s, DriverTerms *terms)
{
	const entry *entry = entry_at(driver->host, s);

	*terms = (DriverTerms){.hash = host_hash(entry->resource),
						   .ttl_us = entry->ttl_us,
						   .keep_us = entry->keep_us,
						   .hold_at_most_us = entry->hold_at_most_us,
						   .waits_since_us = entry->waits_since_us,
						   .once = entry->once,
						   .shared = entry->shared};
}

static void
new_value(Driver *driver, int s)
{
	entry *entry = entry_at(driver->host, s);

	assert(w.secrets + 1 < SECRETS_MAX);
	entry->asked_us = host_now_us(driver->host);
	entry->secret = ++w.secrets;
	entry->forgiven = false;
	entry->relisted_true_us = 0;
	tell("host %c: request %u for lock %d%s%s%s", HOST_NAME(driver->host), entry->secret,
		 entry->resource + 1, entry->shared ? ", to share it" : "", entry->once ? ", a try" : "",
		 entry->hold_at_most_us > 0 ? ", for a limited time" : "");
	check_asked(driver->host, s);
}

static Wish
get_wish(const Driver *driver, int entry)
{
	return entry_at(driver->host, entry)->wish;
}

static bool
is_answered(const Driver *driver, int entry)
{
	return entry_at(driver->host, entry)->told;
}

static bool
is_returned(const Driver *driver, int entry)
{
	return entry_at(driver->host, entry)->returned;
}

static void
tell_owner(Driver *driver, int s, DriverNews news, int64_t now_us)
{
	int h = driver->host;
	entry *entry = entry_at(h, s);

	(void) now_us;
	switch (news)
	{
		case DRIVER_MUST_WAIT:
			check_outcome(h, s, CORE_MUST_WAIT);
			break;
		case DRIVER_GRANTED:
			check_outcome(h, s, CORE_GRANTED);
			entry->told = true;
			if (!rules_writer_asked_later(entry->want_until_us, entry->drive.core.round_began_us))
				entry->want_until_us = 0; /* as lease_set_state does */
			entry->hold_until_us = entry->drive.core.hold_until_us;
			entry->last_token = entry->drive.core.bound;
			session_told(h, s);
			break;
		case DRIVER_NO_NODES:
		case DRIVER_REFUSED:
		case DRIVER_UNREACHABLE:
			if (news != DRIVER_NO_NODES)
				check_outcome(h, s, news == DRIVER_REFUSED ? CORE_REFUSED : CORE_UNREACHABLE);
			entry->told = true;
			session_told(h, s);
			break;
		case DRIVER_RENEWED:
			check_outcome(h, s, CORE_RENEWED);
			entry->last_token = entry->drive.core.bound;
			break;
		case DRIVER_UNRENEWED:
			check_outcome(h, s, CORE_UNRENEWED);
			break;
		case DRIVER_LOST:
			check_outcome(h, s, CORE_EXPIRED);
			on_loss(h, s);
			break;
		case DRIVER_RELEASED:
		case DRIVER_HEARD:
			break;
	}
}

/* Tells the sessions of the loss, except stalled ones. */
static void
on_loss(int h, int s)
{
	session_lost(h, s);
	for (int i = 0; i < session_count; i++)
		if (session_has(i, h, s) && !sessions[i].paused)
			later(w.now_us + 1 + dice_us(w.plan.delay_us), EVENT_DONE, h, 0, s, (uint32_t) i);
}

/* Deadlocks have their own simulator: deadlock.c. */
static void
no_more_waits(Driver *driver, int entry)
{
	(void) driver;
	(void) entry;
}

static int64_t
hold_until_us(const Driver *driver, int entry, int64_t now_us)
{
	(void) now_us;
	return entry_at(driver->host, entry)->hold_until_us;
}

static bool
hold_is_over(const Driver *driver, int s, int64_t now_us)
{
	const entry *entry = entry_at(driver->host, s);

	return wish_hold_is_over(host_owner_of(entry), entry->hold_until_us, now_us);
}

static int64_t
look_at_us(Driver *driver, int s, int64_t wake_at_us)
{
	entry *entry = entry_at(driver->host, s);

	entry->looks_at_us =
		wish_look_at_us(entry->wish, wake_at_us, entry->idle_until_us, entry->keep_idle_us,
						entry->hold_until_us, host_now_us(driver->host));
	return entry->looks_at_us;
}

static bool
needs_tokens(const Driver *driver, int s, int64_t now_us)
{
	Entry entry = session_entry(driver->host, s);

	entry.last_token = entry_at(driver->host, s)->last_token;
	return entry_needs_tokens(&entry, host_owner_of(entry_at(driver->host, s)), now_us);
}

static void
expect_tokens(Driver *driver, int entry, int64_t until_us)
{
	entry_at(driver->host, entry)->more_tokens_us = until_us;
}

static DriverTurnEnd
turn_end(const Driver *driver, int entry)
{
	return entry_at(driver->host, entry)->goes_on   ? TURN_GOES_ON
		   : entry_at(driver->host, entry)->returns ? TURN_RETURNS
													: TURN_ENDS;
}

static bool
end(int h, int s, EntryEnd why, int64_t now_us)
{
	Entry entry = session_entry(h, s);

	if (!entry_ends(&entry, host_owner_of(entry_at(h, s)), why, now_us))
		return false;
	session_disown(h, s);
	return true;
}

static bool
end_idle(Driver *driver, int s, int64_t now_us)
{
	if (!end(driver->host, s, ENTRY_IDLE_IS_OVER, now_us))
		return false;
	seen.stays_over++;
	tell("host %c: request %u was idle for long enough", HOST_NAME(driver->host),
		 entry_at(driver->host, s)->secret);
	return true;
}

static bool
end_hold(Driver *driver, int s, int64_t now_us)
{
	if (!end(driver->host, s, ENTRY_HOLD_IS_OVER, now_us))
		return false;
	seen.holds_over++;
	tell("host %c: request %u was detached for long enough", HOST_NAME(driver->host),
		 entry_at(driver->host, s)->secret);
	host_push(driver->host, s);
	return true;
}

static bool
release_idle(Driver *driver, int s)
{
	if (!end(driver->host, s, ENTRY_RECALLED, 0))
		return false;
	host_push(driver->host, s);
	return true;
}

static bool
end_detached(Driver *driver, int s)
{
	if (!end(driver->host, s, ENTRY_RELEASED, 0))
		return false;
	host_push(driver->host, s);
	return true;
}

static bool
release_orphan(Driver *driver, int s, int64_t now_us)
{
	if (!end(driver->host, s, ENTRY_ORPHANED, now_us))
		return false;
	tell("host %c: request %u has lost its owner", HOST_NAME(driver->host),
		 entry_at(driver->host, s)->secret);
	return true;
}

WishOwner
host_owner_of(const entry *entry)
{
	return entry->was_detached              ? WISH_OWNER_NONE
		   : entry->owner == OWNER_VANISHED ? WISH_OWNER_GONE
											: WISH_OWNER_LIVES;
}

static void
note_waiting_host(Driver *driver, int entry)
{
	session_want(driver->host, entry);
}

/* Permits have their own simulator: permits.c. */
static void
tell_permit(Driver *driver, int entry, int permit)
{
	(void) driver;
	(void) entry;
	(void) permit;
	assert(false);
}

/* operator.c counts by itself */
static void
count_unsettled(Driver *driver, int change)
{
	(void) driver;
	(void) change;
}

static void
free_entry(Driver *driver, int s)
{
	entry *entry = entry_at(driver->host, s);

	check_waiters(driver->host);
	check_freed(driver->host, s, entry->forgiven);
	entry->in_use = false;
	entry->wish = WISH_NONE;
	entry->drive.generation++;
}

/* Checks of each step */

static void
watch(Driver *driver, int s, const core_event *event, const core_out *out)
{
	int h = driver->host;
	entry *entry = entry_at(h, s);
	core_lease *core = &entry->drive.core;

	if (out == NULL)
	{
		before_step(h, s, event);
		return;
	}
	if (w.plan.lawful)
		check_laws(&before, event, core, out);
	if (event->type == CORE_ACQUIRE && w.plan.aged && w.secrets < AGED_MAX)
		grow_old(core);
	if (before.state == CORE_HELD && core->members != before.members)
	{
		entry->relisted_true_us = w.now_us;
		seen.relisted++;
	}
	if (before.state != CORE_RELEASING && core->state == CORE_RELEASING)
		check_over(h, s);
	if (before.state == CORE_HELD && core->state == CORE_RELEASING)
		force_on_release(h, s);
	if (out->acquire != 0 && core->round != before.round)
		check_round(h, s);
	else if (core->round != before.round && core->state == CORE_HELD)
		check_renewal(h, s);
}

static void
before_step(int h, int s, const core_event *event)
{
	core_lease *core = &entry_at(h, s)->drive.core;

	assert(!hosts[h].broker_down);
	if (event->type == CORE_ACQUIRE && w.plan.aged)
		core->attempt = UINT32_MAX - dice(8); /* as if the entry had been used for long */
	if (event->type == CORE_FORGET)
		on_forget(h, s);
	before = *core;
}

/*
 * The driver forgets a request's debts, to free an entry or to move the
 * request to other nodes.
 */
static void
on_forget(int h, int s)
{
	entry *entry = entry_at(h, s);

	entry->forgiven = true; /* the owner may be releasing it just now */
	if (hosts[h].moves && can_send_to(h, entry->drive.core.members))
		debt_forgotten(h, s);
	else if (hosts[h].moves || entry->wish != WISH_NOTHING)
		check_freed(h, s, true); /* the owner has not yet read the failure */
}

static bool
can_send_to(int h, core_mask nodes)
{
	for (int n = 0; n < w.plan.places; n++)
		if ((nodes & CORE_BIT(n)) && !wire_can_send(h, n))
			return false;
	return true;
}

/*
 * Ages a request: attempts come near their last number.  The next attempts
 * pass it, for which SECRETS_MAX leaves room.
 */
static void
grow_old(core_lease *lease)
{
	uint32_t attempt = CORE_ATTEMPT_MAX - dice(4);

	if (lease->state == CORE_BUSY)
		attempt--; /* this request has not asked yet */
	for (int n = 0; n < w.plan.places; n++)
		if (lease->node[n].attempt != 0)
			lease->node[n].attempt = attempt;
	lease->attempt = attempt;
	seen.aged++;
}

static const DriverWorld world_of_host = {
	.lists = get_lists,
	.can_send = can_send,
	.can_vote = can_vote,
	.on_duty = on_duty,
	.round_trip_us = round_trip_us,
	.compose = compose,
	.send = send_to_node,
	.wall_clock_us = wall_clock_us,
	.random = random_bits,
	.set_timer = set_timer,
	.hear = hear,
	.tell_host = tell_host,
	.make_waiters = make_waiters,
	.drop_waiters = drop_waiters,
	.get_terms = get_terms,
	.new_value = new_value,
	.wish = get_wish,
	.is_answered = is_answered,
	.is_returned = is_returned,
	.tell = tell_owner,
	.no_more_waits = no_more_waits,
	.hold_until_us = hold_until_us,
	.hold_is_over = hold_is_over,
	.look_at_us = look_at_us,
	.needs_tokens = needs_tokens,
	.expect_tokens = expect_tokens,
	.turn_end = turn_end,
	.end_idle = end_idle,
	.end_hold = end_hold,
	.release_idle = release_idle,
	.end_detached = end_detached,
	.release_orphan = release_orphan,
	.note_waiting_host = note_waiting_host,
	.tell_permit = tell_permit,
	.count_unsettled = count_unsettled,
	.free = free_entry,
	.watch = watch,
};

void
host_world_begin(int h)
{
	host *host = &hosts[h];

	memset(&host->driver, 0, sizeof(host->driver));
	memset(host->of_entry, 0, sizeof(host->of_entry));
	memset(host->known, 0, sizeof(host->known));
	memset(host->known_used, 0, sizeof(host->known_used));
	host->driver.world = &world_of_host;
	host->driver.host = h;
	host->driver.id = (uint64_t) h + 1;
	host->driver.entries = w.plan.entries;
	host->driver.leases = (char *) &host->entry[0].drive;
	host->driver.stride = sizeof(entry);
	host->driver.entry = host->of_entry;
	host->driver.settling = &host->settling;
	host->driver.answer_us = w.plan.answer_us;
	host->driver.retry_us = host->driver.retry_told_us = w.plan.retry_us;
	driver_init(&host->driver, host->release, w.plan.releases_max);
}
