/*
 * driver.c
 *		A host's work for its leases; see driver.h.
 */
#include "driver/driver.h"

#include "driver/turns.h"
#include "protocol/rules.h"

/* an idle time may end this much late, so that one pass ends many: see set_timer */
#define IDLE_GRAIN_US 10000

/* releases that begin before the world looks at its nodes again */
#define RELEASES_PER_PASS 1000

static void ask(Driver *driver, int entry, int64_t now_us);
static void release(Driver *driver, int entry, int64_t now_us);
static void extend(Driver *driver, int entry, int64_t now_us);
static void limit(Driver *driver, int entry, int64_t now_us);
static void step(Driver *driver, int entry, core_event *event);
static void step_simple(Driver *driver, int entry, core_event_type type, int node, int64_t now_us);
static void take(Driver *driver, const ReleaseStep *next, int64_t now_us);
static void wake(Driver *driver, int entry, int64_t retry_us, int64_t not_before_us,
				 int64_t now_us);
static void ask_if_missed(Driver *driver, int entry, int64_t now_us);
static void renew_if_forced(Driver *driver, int entry, int64_t now_us);
static void publish(Driver *driver, int entry, core_outcome outcome, int64_t now_us);
static void note_grant(Driver *driver, int entry, int64_t now_us);
static void on_expiry(Driver *driver, int entry, int64_t now_us);
static bool may_repeat(const Driver *driver, int node, const DriverSent *sent, int64_t now_us);
static void send_to(Driver *driver, core_mask nodes, int entry, core_op op, core_event_type why,
					int64_t now_us);
static int64_t release_ms(Driver *driver, int entry, int64_t now_us);
static void set_timer(Driver *driver, int entry);
static void hear(Driver *driver, int entry, bool begin);
static void move_askers(Driver *driver, core_lists lists, int64_t now_us);
static bool waits(const Driver *driver, int entry);

void
driver_init(Driver *driver, Release *release, int room)
{
	release_queue_init(&driver->releases, release, driver->entries, room);
	for (int entry = 0; entry < driver->entries; entry++)
		if (driver_lease(driver, entry)->core.state != CORE_FREE)
			driver->world->get_terms(driver, entry, &driver->entry[entry].terms);
}

/*
 * Wishes
 */

void
driver_act(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;

	switch (wish_act(driver->world->wish(driver, entry), core->state, driver->serves,
					 driver->world->is_answered(driver, entry),
					 release_queue_waits(&driver->releases, entry)))
	{
		case WISH_WAIT:
			if (core->state == CORE_HELD)
			{
				set_timer(driver, entry); /* an idle time may end sooner */
				extend(driver, entry, now_us);
				limit(driver, entry, now_us);
			}
			break;
		case WISH_ASK:
			ask(driver, entry, now_us);
			break;
		case WISH_FREE:
			turns_forget(driver, entry);
			driver->world->free(driver, entry);
			break;
		case WISH_RELEASE:
			release(driver, entry, now_us);
			break;
	}
}

static void
ask(Driver *driver, int entry, int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, entry);
	DriverTerms *terms = &driver->entry[entry].terms;
	core_event event = {
		.type = CORE_ACQUIRE, .now_us = now_us, .lists = driver->world->lists(driver)};
	int other;

	if (event.lists.now == 0)
	{
		driver->world->tell(driver, entry, DRIVER_NO_NODES, now_us);
		return;
	}
	driver->world->get_terms(driver, entry, terms);
	/* our own key would refuse the request */
	while ((other = release_queue_find(&driver->releases, terms->hash)) >= 0)
	{
		ReleaseStep next;

		while (release_queue_hurry(&driver->releases, other, &next))
			take(driver, &next, now_us);
	}
	driver->world->new_value(driver, entry);
	event.once = terms->once;
	event.ttl_us = terms->ttl_us;
	event.answer_us = driver->answer_us;
	event.patience_us = terms->once      ? turns_recall_us(driver)
						: terms->patient ? INT64_MAX
										 : 2 * driver->answer_us;
	event.retry_us = driver->retry_us;
	event.hold_at_most_us = terms->hold_at_most_us;
	event.not_before_us = turns_begin(driver, entry, now_us);
	lease->granted = false;
	lease->keep_until_us = 0;
	step(driver, entry, &event);
}

static void
release(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;

	limit(driver, entry, now_us);
	/* a loss is also reported if the owner noticed it first */
	if (core->state == CORE_HELD && now_us >= core->valid_until_us &&
		!driver->world->hold_is_over(driver, entry, now_us))
		step_simple(driver, entry, CORE_TICK, 0, now_us);
	driver->world->tell(driver, entry, DRIVER_RELEASED, now_us);
	if (release_queue_begin(&driver->releases, entry, core, driver->entry[entry].terms.hash,
							driver->world->can_send(driver)))
		step_simple(driver, entry, CORE_RELEASE, 0, now_us);
	else
		set_timer(driver, entry);
}

/*
 * Asks for more tokens ahead of time, so sessions can take over an idle lease without asking the
 * nodes.
 */
static void
extend(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	core_event event = {.type = CORE_EXTEND, .now_us = now_us};

	if (!driver->world->needs_tokens(driver, entry, now_us))
		return;
	event.token = rules_more_tokens(core->bound, driver->world->wall_clock_us(driver));
	if (event.token > 0)
		step(driver, entry, &event);
	driver->world->expect_tokens(driver, entry, core_raises_until_us(core));
}

/*
 * Tells the core of a new limit: the holder may have prolonged the lease, or the lease has
 * another holder.
 */
static void
limit(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	core_event event = {.type = CORE_LIMIT, .now_us = now_us};

	if (core->state != CORE_HELD)
		return;
	event.hold_until_us = driver->world->hold_until_us(driver, entry, now_us);
	if (event.hold_until_us != core->hold_until_us)
		step(driver, entry, &event);
}

void
driver_on_timer(Driver *driver, int entry, int64_t now_us)
{
	limit(driver, entry, now_us);
	if (driver->world->end_idle(driver, entry, now_us) ||
		driver->world->end_hold(driver, entry, now_us))
		driver_act(driver, entry, now_us);
	else if (now_us < driver_lease(driver, entry)->core.wake_at_us)
		set_timer(driver, entry); /* an idle time or a hold might have ended, but goes on */
	else if (driver->world->release_orphan(driver, entry, now_us))
	{
		driver_act(driver, entry, now_us);
		set_timer(driver, entry); /* the release may be under way, with debts */
	}
	else
		step_simple(driver, entry, CORE_TICK, 0, now_us);
}

void
driver_hold_requests(Driver *driver)
{
	driver->serves = false;
}

/*
 * Serves requests from now on, also requests that came before.  Also serves wishes that an earlier
 * driver did not see or did not finish.  The world's queue has already brought the releases.
 */
void
driver_serve(Driver *driver, int64_t now_us)
{
	driver->serves = true;
	for (int entry = 0; entry < driver->entries; entry++)
	{
		if (driver_lease(driver, entry)->core.state == CORE_BUSY &&
			driver->world->wish(driver, entry) == WISH_HOLD)
			wake(driver, entry, driver->retry_us, 0, now_us);
		else
			driver_act(driver, entry, now_us);
	}
}

/*
 * Steps
 */

/*
 * Lets the core of a lease take one step, and does what the step asks for.  The outcome comes
 * first, and anything that can fail follows later.  So the next driver never finds a core with
 * another outcome than its owner.
 */
static void
step(Driver *driver, int entry, core_event *event)
{
	const DriverWorld *world = driver->world;
	DriverLease *lease = driver_lease(driver, entry);
	core_lease *core = &lease->core;
	bool was_settled;
	uint32_t round;
	core_out out;

	/* release() tells the limit before a RELEASE */
	if (event->type != CORE_LIMIT && event->type != CORE_RELEASE)
		limit(driver, entry, event->now_us);
	round = core->round;
	was_settled = settling_on_all_lists(driver->settling, core);
	event->random = world->random(driver);
	event->can_send = world->can_send(driver);
	event->can_vote = world->can_vote(driver, event->now_us);
	event->can_release = release_queue_can_release(&driver->releases, entry, event->can_send);
	if (world->watch != NULL)
		world->watch(driver, entry, event, NULL);
	core_step(core, event, &out);
	if (world->watch != NULL)
		world->watch(driver, entry, event, &out);
	if (settling_on_all_lists(driver->settling, core) != was_settled)
		world->count_unsettled(driver, was_settled ? 1 : -1);
	publish(driver, entry, out.outcome, event->now_us);
	if (event->type == CORE_RELEASE && lease->granted)
		turns_end(driver, entry, event->now_us);

	send_to(driver, out.release, entry, CORE_OP_RELEASE, event->type, event->now_us);
	send_to(driver, out.acquire, entry, CORE_OP_ACQUIRE, event->type, event->now_us);
	send_to(driver, out.confirm, entry, CORE_OP_CONFIRM, event->type, event->now_us);
	send_to(driver, out.renew, entry, CORE_OP_RENEW, event->type, event->now_us);
	if (core->round != round && core->state == CORE_ASKING)
		hearing_asked(&driver->entry[entry].hearing);
	if (!waits(driver, entry))
	{
		if (!driver->entry[entry].terms.is_queue || core->state != CORE_HELD)
			hear(driver, entry, false);
		world->no_more_waits(driver, entry);
	}
	set_timer(driver, entry);
	release_queue_follow(&driver->releases, entry, core, driver->entry[entry].terms.hash, event,
						 world->on_duty(driver));
	if (core->state == CORE_FREE)
		driver_act(driver, entry, event->now_us);
	else if (out.outcome == CORE_MUST_WAIT || event->type == CORE_REPLY)
		ask_if_missed(driver, entry, event->now_us);
	renew_if_forced(driver, entry, event->now_us);
}

static bool
waits(const Driver *driver, int entry)
{
	core_state state = driver_lease(driver, entry)->core.state;

	return state == CORE_ASKING || state == CORE_BUSY;
}

static void
step_simple(Driver *driver, int entry, core_event_type type, int node, int64_t now_us)
{
	core_event event = {.type = type, .now_us = now_us, .node = node};

	step(driver, entry, &event);
}

static void
wake(Driver *driver, int entry, int64_t retry_us, int64_t not_before_us, int64_t now_us)
{
	core_event event = {
		.type = CORE_WAKE, .now_us = now_us, .retry_us = retry_us, .not_before_us = not_before_us};

	step(driver, entry, &event);
}

static void
ask_if_missed(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	core_event event = {.type = CORE_WAKE, .now_us = now_us};

	if (!driver->entry[entry].hears || !hearing_may_miss(&driver->entry[entry].hearing, core))
		return;
	event.by_us = turns_miss(driver, entry, now_us);
	if (event.by_us != 0 && event.by_us < core->next_at_us)
		step(driver, entry, &event);
}

/*
 * Sets the timer.  Timers of held leases may be late by a thousandth of the ttl, so that one
 * pass renews many leases.  Sessions compare with the time without this delay (wish_look_at_us). So
 * a session does not wake the broker for an idle time that ends within the delay.
 */
static void
set_timer(Driver *driver, int entry)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	int64_t at_us = release_queue_wake_at_us(&driver->releases, entry, core);
	int64_t grain_us = driver->entry[entry].terms.ttl_us / 1000;

	if (at_us != 0 && core->state == CORE_HELD)
	{
		int64_t look_at_us = driver->world->look_at_us(driver, entry, at_us);

		if (look_at_us < at_us && grain_us > IDLE_GRAIN_US)
			grain_us = IDLE_GRAIN_US;
		at_us = look_at_us + grain_us - look_at_us % grain_us;
	}
	driver->world->set_timer(driver, entry, at_us);
}

/*
 * Outcomes
 */

static void
publish(Driver *driver, int entry, core_outcome outcome, int64_t now_us)
{
	const DriverWorld *world = driver->world;

	switch (outcome)
	{
		case CORE_NOTHING:
			break;
		case CORE_MUST_WAIT:
			world->tell(driver, entry, DRIVER_MUST_WAIT, now_us);
			hear(driver, entry, true);
			break;
		case CORE_GRANTED:
			note_grant(driver, entry, now_us);
			world->tell(driver, entry, DRIVER_GRANTED, now_us);
			if (driver->entry[entry].terms.is_queue)
				hear(driver, entry, true);
			break;
		case CORE_REFUSED:
			world->tell(driver, entry, DRIVER_REFUSED, now_us);
			break;
		case CORE_UNREACHABLE:
			world->tell(driver, entry, DRIVER_UNREACHABLE, now_us);
			break;
		case CORE_RENEWED:
			world->tell(driver, entry, DRIVER_RENEWED, now_us);
			break;
		case CORE_UNRENEWED:
			world->expect_tokens(driver, entry, 0);
			world->tell(driver, entry, DRIVER_UNRENEWED, now_us);
			break;
		case CORE_EXPIRED:
			on_expiry(driver, entry, now_us);
			break;
	}
}

static void
note_grant(Driver *driver, int entry, int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, entry);
	int64_t keep_us = driver->entry[entry].terms.keep_us;

	lease->granted = true;
	/* another host may have had the lock in between: a new turn */
	if (lease->core.attempt > 1)
		lease->turn_handovers = 0;
	if (lease->turn_handovers == 0)
	{
		lease->turn_began_us = now_us;
		lease->long_turn_us = turns_long_us(driver);
	}
	lease->first_token = rules_first_token(lease->core.token);
	if (keep_us > 0)
		lease->keep_until_us = now_us + keep_us;
}

static void
on_expiry(Driver *driver, int entry, int64_t now_us)
{
	const DriverWorld *world = driver->world;

	if (release_queue_waits(&driver->releases, entry))
		return; /* released in time */
	if (world->release_idle(driver, entry))
		return; /* an idle lease: no session has lost it */
	/* end_hold returns false if a session has just prolonged the hold: the lease is lost */
	if (world->hold_is_over(driver, entry, now_us) && world->end_hold(driver, entry, now_us))
		return; /* the end was due: no loss */
	world->tell(driver, entry, DRIVER_LOST, now_us);
	if (driver->entry[entry].terms.is_queue)
		return;                                /* the owner queues again */
	(void) world->end_detached(driver, entry); /* no other process would end it */
	(void) world->release_idle(driver, entry); /* the owner may have released it just now */
}

/*
 * Commands and answers
 */

static void
send_to(Driver *driver, core_mask nodes, int entry, core_op op, core_event_type why, int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, entry);
	const DriverTerms *terms = &driver->entry[entry].terms;
	DriverCommand command = {.sent = {entry, lease->generation, lease->core.round, op, why},
							 .now_us = now_us};

	if (nodes == 0)
		return;
	command.ttl_ms = terms->ttl_us / 1000;
	if (op == CORE_OP_RELEASE)
		command.ttl_ms = release_ms(driver, entry, now_us);
	command.waited_us = terms->once ? -1 : turns_waited_us(driver, entry, now_us);
	command.token = lease->granted ? lease->core.token : 0;
	command.waiters = turns_named(driver, entry);
	driver->world->compose(driver, &command);
	for (int node = 0; node < CORE_NODES_MAX; node++)
	{
		if (!(nodes & CORE_BIT(node)))
			continue;
		release_queue_sent(&driver->releases, node, op, why);
		driver->world->send(driver, node, &command);
	}
}

/*
 * The argument of a release.  At nodes that a live lease has left, nothing is published and no key
 * is kept: core_ends is false.
 */
static int64_t
release_ms(Driver *driver, int entry, int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, entry);
	int64_t ms =
		rules_release_ms(core_ends(&lease->core), driver->world->is_returned(driver, entry),
						 lease->keep_until_us, now_us);

	if (ms > 0)
		settling_keep(driver->settling, &lease->core, lease->keep_until_us);
	return ms;
}

bool
driver_on_answer(Driver *driver, int node, const DriverSent *sent, bool lacks_script,
				 int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, sent->entry);

	release_queue_answered(&driver->releases, node, sent->op, sent->why);
	/*
	 * The entry has another lease by now.  Its core would ignore the answer, because rounds only
	 * grow.  But the owner of a lock must not hear of another lock.
	 */
	if (lease->generation != sent->generation)
		return false;
	if (!lacks_script || !may_repeat(driver, node, sent, now_us))
		return true;
	send_to(driver, CORE_BIT(node), sent->entry, sent->op, sent->why, now_us);
	return false;
}

static bool
may_repeat(const Driver *driver, int node, const DriverSent *sent, int64_t now_us)
{
	core_event answer = {.type = CORE_REPLY,
						 .node = node,
						 .op = sent->op,
						 .round = sent->round,
						 .now_us = now_us,
						 .can_send = driver->world->can_send(driver),
						 .can_vote = driver->world->can_vote(driver, now_us)};

	return release_queue_may_repeat(&driver->releases, sent->entry,
									&driver_lease(driver, sent->entry)->core, &answer);
}

void
driver_step_answer(Driver *driver, int entry, core_event *reply)
{
	step(driver, entry, reply);
}

bool
driver_on_lost(Driver *driver, int node, const DriverSent *sent, bool replacing, int64_t now_us)
{
	DriverLease *lease = driver_lease(driver, sent->entry);

	release_queue_answered(&driver->releases, node, sent->op, sent->why);
	if (lease->generation != sent->generation)
		return true;
	if (replacing && core_may_reconnect(&lease->core, node))
		return false;
	step_simple(driver, sent->entry, CORE_NODE_LOST, node, now_us);
	return true;
}

void
driver_on_node_ready(Driver *driver, int node, int64_t now_us)
{
	for (int entry = 0; entry < driver->entries; entry++)
		if (release_queue_node_ready(&driver->releases, entry, &driver_lease(driver, entry)->core,
									 node, driver->world->can_send(driver)))
			step_simple(driver, entry, CORE_NODE_READY, node, now_us);
}

/*
 * Releases: protocol/release_queue.c decides
 */

static void
take(Driver *driver, const ReleaseStep *next, int64_t now_us)
{
	step_simple(driver, next->entry, next->type, next->node, now_us);
}

void
driver_send_unsent(Driver *driver, int64_t now_us)
{
	ReleaseStep next;

	while (release_queue_next_unsent(&driver->releases, driver->world->can_send(driver), &next))
		take(driver, &next, now_us);
}

bool
driver_begin_releases(Driver *driver, int64_t now_us)
{
	ReleaseStep next;

	for (int i = 0; i < RELEASES_PER_PASS; i++)
	{
		if (!release_queue_next_waiting(&driver->releases, driver->world->can_send(driver), &next))
			return false; /* an answer makes room */
		take(driver, &next, now_us);
	}
	return true;
}

bool
driver_forget_debt(Driver *driver, int64_t now_us)
{
	ReleaseStep next;

	if (!release_queue_forget(&driver->releases, &next))
		return false;
	take(driver, &next, now_us);
	return true;
}

/*
 * Another driver, and other lists of nodes
 */

void
driver_adopt(Driver *driver, int64_t not_before_us, int64_t now_us)
{
	for (int entry = 0; entry < driver->entries; entry++)
	{
		const core_lease *core = &driver_lease(driver, entry)->core;
		core_event event = {.type = CORE_ADOPT, .now_us = now_us, .not_before_us = not_before_us};

		if (core->state == CORE_FREE)
			continue;
		step(driver, entry, &event);
		if (driver->entry[entry].terms.is_queue && core->state == CORE_HELD)
			hear(driver, entry, true);
		if (driver->world->wish(driver, entry) == WISH_NOTHING)
			driver_act(driver, entry, now_us); /* the lease must not be renewed */
	}
}

int
driver_follow_lists(Driver *driver, int64_t now_us)
{
	core_lists lists = driver->world->lists(driver);
	core_event event = {.type = CORE_RELIST, .now_us = now_us, .lists = lists};
	int unsettled = 0;

	move_askers(driver, lists, now_us);
	/* leases move to the lists in force as soon as the move is safe */
	for (int entry = 0; entry < driver->entries; entry++)
	{
		const core_lease *core = &driver_lease(driver, entry)->core;

		if (core->state == CORE_FREE)
			continue;
		if (!release_queue_waits(&driver->releases, entry) &&
			(core->target.now != lists.now || core->target.next != lists.next))
			step(driver, entry, &event);
		unsettled += !settling_on_all_lists(driver->settling, core);
	}
	return unsettled;
}

static void
move_askers(Driver *driver, core_lists lists, int64_t now_us)
{
	for (int entry = 0; entry < driver->entries; entry++)
	{
		const core_lease *core = &driver_lease(driver, entry)->core;
		ReleaseStep next;

		if (!core_must_move(core, lists))
			continue;
		while (release_queue_move(&driver->releases, entry, core, lists, &next))
			take(driver, &next, now_us);
	}
}

/*
 * Other hosts
 */

static void
hear(Driver *driver, int entry, bool begin)
{
	if (driver->entry[entry].hears == begin)
		return;
	driver->entry[entry].hears = begin;
	driver->entry[entry].hearing = (Hearing){0};
	driver->world->hear(driver, entry, begin);
}

void
driver_on_subscribed(Driver *driver, int entry, int node, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	Hearing *hearing = &driver->entry[entry].hearing;

	if (!driver->entry[entry].hears || (hearing->subscribed & CORE_BIT(node)))
		return;
	if (!hearing_subscribed(hearing, core, node))
	{
		ask_if_missed(driver, entry, now_us);
		return;
	}
	if (driver->entry[entry].terms.is_queue && core->state == CORE_HELD)
		driver->world->tell_permit(driver, entry, 0); /* a permit may have been released unheard */
	wake(driver, entry, driver->retry_told_us, 0, now_us);
}

/* If less than a majority still publishes releases, the request asks more often. */
void
driver_on_left(Driver *driver, int entry, int node, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	Hearing *hearing = &driver->entry[entry].hearing;
	bool enough = core_has_quorum(core->lists, hearing->subscribed);

	if (!driver->entry[entry].hears || !(hearing->subscribed & CORE_BIT(node)))
		return;
	hearing_left(hearing, node);
	if (enough && !core_has_quorum(core->lists, hearing->subscribed))
		wake(driver, entry, driver->retry_us, 0, now_us);
}

void
driver_on_free(Driver *driver, int entry, int node, int64_t token, const Waiters *named,
			   int64_t now_us)
{
	int64_t turn_us;

	if (!driver->entry[entry].hears)
		return; /* the request no longer waits */
	if (!hearing_told(&driver->entry[entry].hearing, &driver_lease(driver, entry)->core, node,
					  token))
	{
		ask_if_missed(driver, entry, now_us);
		return;
	}
	driver->world->tell(driver, entry, DRIVER_HEARD, now_us);
	turn_us = turns_hear(driver, entry, named, now_us);
	if (turn_us != 0)
		wake(driver, entry, driver->retry_told_us, turn_us, now_us);
}

void
driver_on_forced(Driver *driver, int entry, int64_t now_us)
{
	driver->entry[entry].forced = driver_lease(driver, entry)->core.state == CORE_HELD;
	renew_if_forced(driver, entry, now_us);
}

static void
renew_if_forced(Driver *driver, int entry, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	core_event event = {.type = CORE_EXTEND, .now_us = now_us};

	if (!driver->entry[entry].forced || (core->state == CORE_HELD && core->renewing))
		return;
	driver->entry[entry].forced = false;
	/* nothing is renewed without a holder, whatever a message says */
	if (core->state != CORE_HELD || release_queue_waits(&driver->releases, entry) ||
		driver->world->wish(driver, entry) == WISH_NOTHING)
		return;
	if (driver->world->end_idle(driver, entry, now_us) ||
		driver->world->end_hold(driver, entry, now_us) ||
		driver->world->release_orphan(driver, entry, now_us))
	{
		driver_act(driver, entry, now_us);
		set_timer(driver, entry);
		return;
	}
	step(driver, entry, &event);
}
