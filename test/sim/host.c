/*
 * host.c
 *		One host's broker, without its connections; see host.h.
 *
 * The names are those of src/broker/broker.c, where there are such.
 */
#include "host.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "peer.h"
#include "protocol/lua.h"
#include "protocol/rules.h"
#include "reload.h"
#include "session.h"
#include "story.h"
#include "word.h"

/* Requests of a schedule that are aged. */
#define AGED_MAX (SECRETS_MAX / 4)

/* The clock of leases and connections. */
#define LEASE_CLOCK(host) (&(host)->mono)

host hosts[HOSTS_MAX];

static int64_t wall_us(int host);
static void begin_clocks(host *host);

static void step(int host, int slot, core_event *event);
static void step_core(core_lease *core, const core_event *event, core_out *out);
static void grow_old(core_lease *lease);
static void send_to(core_mask nodes, int host, int slot, core_op op, core_event_type why);
static void send_to_as(core_mask nodes, int host, int slot, core_op op, core_event_type why,
					   uint32_t round);
static bool send_again(int host, int node, const command *before);
static void send_one(int host, int node, const command *command);
static void publish(int host, int slot, core_outcome outcome);
static void set_timer(int host, int slot);
static bool end_hold(int host, int slot);
static void ask(int host, int slot);
static core_mask nodes_that_can_send(int host);
static core_mask nodes_that_can_vote(int host);
static core_mask nodes_on_duty(int host);
static void crowd(int host);
static void send_releases(int host);
static void hurry_releases_of(int host, int gate);
static void take(int host, const ReleaseStep *next);

static void take_queue(int host);
static void act_on_wish(int host, int slot);
static void extend(int host, int slot);
static void limit(int host, int slot);
static WishOwner owner_of(const slot *slot);
static void on_timer(const event *event);
static void on_broker(const event *event);
static void on_settled(const event *event);

int64_t
host_now_us(int host)
{
	return clock_us(LEASE_CLOCK(&hosts[host]));
}

/* When the clock of its leases will say so. */
int64_t
host_true_time_us(int host, int64_t clock_us)
{
	return true_time_us(LEASE_CLOCK(&hosts[host]), clock_us);
}

static int64_t
wall_us(int host)
{
	return WALL_US + clock_us(&hosts[host].wall);
}

/* Hosts know their nodes from earlier times, but for those that start later. */
void
host_begin(void)
{
	int64_t at_us = 0;
	int who = 0;

	for (int h = 0; h < w.plan.hosts; h++)
	{
		host *host = &hosts[h];

		memset(host, 0, offsetof(struct host, slot) + sizeof(slot) * (size_t) w.plan.slots);
		begin_clocks(host);
		host->settled = true;
		host->max_ttl_us = w.plan.max_ttl_us;
		release_queue_init(&host->releases, host->release, w.plan.slots, w.plan.releases_max);
		for (int g = 0; g < w.plan.resources; g++)
			host->gate[g].named = -1;
		for (int s = 0; s < w.plan.slots && w.plan.aged; s++)
		{
			host->slot[s].generation = UINT32_MAX - dice(3);
			host->slot[s].core.round = UINT32_MAX - dice(6);
		}
		host->members = CORE_BIT(w.plan.nodes) - 1;
		host->lists = (core_lists){host->members, 0};
		settling_set_lists(&host->settling, host->lists, host->members);
		for (int n = 0; n < w.plan.nodes; n++)
		{
			GuardMemory *guard = &host->node[n].guard;

			host->node[n].in_use = true;
			host->node[n].address = n;
			wire_text(guard->run_id, server_at(h, n)->run_id);
			wire_text(guard->marker, server_at(h, n)->data.mark.text);
			guard->twin = twin_of(h, n) + 1;
			if (wire_at(h, n)->state == WIRE_DOWN)
			{
				seen.fault[FAULT_TWIN]++;
				peer_connect_later(h, n);
			}
		}
	}
	for (int h = 0; h < w.plan.hosts; h++)
		if (may(FAULT_SERVER) && chance(3))
			host_restart(h, 1 + dice_us(w.plan.length_us));
	for (int i = 0; i < w.plan.asks; i++)
	{
		/* for all locks at once, now and then */
		if (i % w.plan.names == 0 || chance(2))
		{
			at_us = w.now_us + dice_us(w.plan.length_us);
			who = (int) dice((uint32_t) w.plan.hosts);
		}
		later(at_us, EVENT_ASK, who, i % w.plan.names, 0, 0);
	}
}

static void
begin_clocks(host *host)
{
	static const int64_t wrong_us[] = {SECOND,   50 * 60 * SECOND, HOUR - 2 * SECOND,
									   2 * HOUR, 30 * HOUR,        9000 * HOUR};

	if (may(FAULT_HOST_DRIFT))
	{
		seen.fault[FAULT_HOST_DRIFT]++;
		host->mono.ppm = (int32_t) dice(9801) - 4900;
	}
	if (may(FAULT_HOST_WILD))
	{
		seen.fault[FAULT_HOST_WILD]++;
		host->mono.ppm = (int32_t) dice(900000) - 600000;
	}
	if (may(FAULT_WALL_WRONG) && chance(2))
	{
		seen.fault[FAULT_WALL_WRONG]++;
		host->wall.offset_us = wrong_us[dice(6)] * (chance(2) ? 1 : -1);
		host->wall.offset_us += dice_us(SECOND);
	}
	else if (w.plan.faults != 0) /* as NTP leaves them */
		host->wall.offset_us = dice_us(w.plan.max_ttl_us / 8) - w.plan.max_ttl_us / 16;
}

int
host_node(int host, int node)
{
	for (int i = 0; i < w.plan.places && !hosts[host].node[node].in_use; i++)
		node = (node + 1) % w.plan.places;
	return node;
}

uint32_t
host_marker(int host, int node)
{
	return (uint32_t) strtoul(hosts[host].node[node].guard.marker, NULL, 10);
}

bool
host_is_valid(int host, int s)
{
	const slot *slot = slot_at(host, s);

	return slot->in_use && slot->wish != WISH_NOTHING && slot->core.state == CORE_HELD &&
		   host_now_us(host) <
			   rules_valid_until_us(slot->core.granted_until_us, slot->hold_until_us);
}

void
host_handle(const event *event)
{
	host *host = &hosts[event->host];

	if (host->paused_until_us > w.now_us)
	{
		later(host->paused_until_us + dice(4), event->kind, event->host, event->node, event->slot,
			  event->tag);
		return;
	}
	crowd(event->host);
	switch ((event_kind) event->kind)
	{
		case EVENT_ANSWER:
			wire_on_answer(event);
			break;
		case EVENT_BROKEN:
			if (event->tag == wire_at(event->host, event->node)->epoch)
				peer_lose(event->host, event->node, "the connection broke");
			break;
		case EVENT_OVERDUE:
			peer_on_overdue(event);
			break;
		case EVENT_CONNECT:
			if (event->tag == wire_at(event->host, event->node)->epoch && !host->broker_down)
				wire_connect(event->host, event->node);
			break;
		case EVENT_HANDSHAKE:
			peer_on_handshake(event);
			break;
		case EVENT_TIMER:
			on_timer(event);
			break;
		case EVENT_HEAR:
			word_on_hear(event);
			break;
		case EVENT_BROKER:
			on_broker(event);
			break;
		case EVENT_SETTLED:
			on_settled(event);
			break;
		case EVENT_RELOAD:
			reload_on_reload(event);
			break;
		case EVENT_PASS:
			host->pass_due = false;
			take_queue(event->host);
			break;
		case EVENT_ASK:
			session_on_ask(event);
			break;
		case EVENT_ASKED:
			session_on_asked(event);
			break;
		case EVENT_READ:
			session_on_read(event);
			break;
		case EVENT_NEXT:
			session_on_next(event);
			break;
		case EVENT_TAKE:
			session_on_take(event);
			break;
		case EVENT_CANCEL:
			session_on_cancel(event);
			break;
		case EVENT_WRITE:
			check_write((int) event->tag);
			break;
		case EVENT_STORE:
			check_store((int) event->tag);
			break;
		case EVENT_PROLONG:
			session_on_prolong(event);
			break;
		case EVENT_DONE:
			session_on_done(event);
			break;
		default:
			assert(false);
	}
	if (!host->broker_down)
		send_releases(event->host);
	check_stays(event->host);
}

static void
step(int h, int s, core_event *event)
{
	slot *slot = slot_at(h, s);
	core_lease *core = &slot->core;
	uint32_t round;
	core_state before;
	core_out out;

	assert(!hosts[h].broker_down);
	if (event->type != CORE_LIMIT && event->type != CORE_RELEASE)
		limit(h, s);
	round = core->round;
	before = core->state;
	event->now_us = host_now_us(h);
	event->random = dice(UINT32_MAX);
	event->can_send = nodes_that_can_send(h);
	event->can_vote = nodes_that_can_vote(h);
	event->can_release = release_queue_can_release(&hosts[h].releases, s, event->can_send);
	if (event->type == CORE_ACQUIRE && w.plan.aged)
		core->attempt = UINT32_MAX - dice(8); /* this slot has been used for long */
	step_core(core, event, &out);
	if (event->type == CORE_RELEASE && slot->granted)
		word_end_turn(h, s);
	if (event->type == CORE_ACQUIRE && w.plan.aged && w.secrets < AGED_MAX)
		grow_old(core);

	if (before != CORE_RELEASING && core->state == CORE_RELEASING)
		check_over(h, s);
	if (core->round != round && core->state == CORE_ASKING)
		hearing_asked(&slot->hearing);
	if (out.acquire != 0 && core->round != round)
		check_round(h, s);
	else if (core->round != round && core->state == CORE_HELD)
		check_renewal(h, s);
	send_to(out.release, h, s, CORE_OP_RELEASE, event->type);
	send_to(out.acquire, h, s, CORE_OP_ACQUIRE, event->type);
	send_to(out.confirm, h, s, CORE_OP_CONFIRM, event->type);
	send_to(out.renew, h, s, CORE_OP_RENEW, event->type);
	publish(h, s, out.outcome);
	set_timer(h, s);
	release_queue_follow(&hosts[h].releases, s, core, (uint64_t) w.plan.gate[slot->resource], event,
						 nodes_on_duty(h));
	if (core->state == CORE_FREE)
		act_on_wish(h, s);
	else if (out.outcome == CORE_MUST_WAIT || event->type == CORE_REPLY)
		host_ask_if_missed(h, s);
}

void
host_ask_if_missed(int h, int s)
{
	slot *slot = slot_at(h, s);
	core_event wake = {.type = CORE_WAKE};

	if (!hearing_may_miss(&slot->hearing, &slot->core))
		return;
	wake.by_us = word_miss_us(h, s);
	if (wake.by_us != 0 && wake.by_us < slot->core.next_at_us)
		step(h, s, &wake);
}

/* By the laws of the core, which take their time: not in each schedule. */
static void
step_core(core_lease *core, const core_event *event, core_out *out)
{
	if (w.plan.lawful)
	{
		core_lease before = *core;

		core_step(core, event, out);
		check_laws(&before, event, core, out);
	}
	else
		core_step(core, event, out);
}

/*
 * A request that has asked many times: near the last number of its attempts.  Each is
 * followed by another soon, and there is room for so many in a schedule.
 */
static void
grow_old(core_lease *lease)
{
	uint32_t attempt = CORE_ATTEMPT_MAX - dice(4);

	if (lease->state == CORE_BUSY)
		attempt--; /* it has not asked yet */
	for (int n = 0; n < w.plan.places; n++)
		if (lease->node[n].attempt != 0)
			lease->node[n].attempt = attempt;
	lease->attempt = attempt;
	seen.aged++;
}

void
host_step(int host, int slot, core_event_type type, int node)
{
	core_event event = {.type = type, .node = node, .retry_us = w.plan.retry_us};

	step(host, slot, &event);
}

void
host_relist(int h, int s)
{
	core_event event = {.type = CORE_RELIST, .lists = hosts[h].lists};
	core_mask before = slot_at(h, s)->core.members;

	step(h, s, &event);
	if (slot_at(h, s)->core.members != before)
	{
		slot_at(h, s)->relisted_true_us = w.now_us;
		seen.relisted++;
	}
}

void
host_step_by(int host, int slot, core_event *event)
{
	step(host, slot, event);
}

static void
send_to(core_mask nodes, int h, int s, core_op op, core_event_type why)
{
	send_to_as(nodes, h, s, op, why, slot_at(h, s)->core.round);
}

static void
send_to_as(core_mask nodes, int h, int s, core_op op, core_event_type why, uint32_t round)
{
	const slot *slot = slot_at(h, s);
	int64_t wall = wall_us(h);
	core_command core;
	command command = {.op = op,
					   .why = why,
					   .resource = slot->resource,
					   .secret = slot->secret,
					   .ttl_ms = slot->ttl_us / 1000,
					   .host = h,
					   .may_stay = slot->may_stay,
					   .shared = slot->shared,
					   .slot = s,
					   .generation = slot->generation,
					   .round = round,
					   .sent_us = host_now_us(h)};

	if (nodes == 0)
		return;
	for (int n = 0; n < w.plan.places; n++)
	{
		if (!(nodes & CORE_BIT(n)))
			continue;
		core = core_command_to(&slot->core, n, op);
		command.attempt = core.attempt;
		command.counter = core.counter;
		command.token = core.token;
		switch (op)
		{
			case CORE_OP_ACQUIRE:
				command.proposal = wall;
				command.marker = host_marker(h, n);
				command.waited_us = slot->once ? -1 : host_now_us(h) - slot->asked_us;
				break;
			case CORE_OP_CONFIRM:
			case CORE_OP_RENEW:
				break;
			case CORE_OP_RELEASE:
				command.ttl_ms = rules_release_ms(core_ends(&slot->core), slot->returned,
												  slot->keep_until_us, host_now_us(h));
				if (command.ttl_ms > 0)
				{
					settling_keep(&hosts[h].settling, &slot->core, slot->keep_until_us);
					check_kept(h, s);
				}
				command.ended = slot->granted ? slot->core.token : 0;
				command.waiting = slot->granted ? slot->waiters.named.count : 0;
				for (int i = 0; i < command.waiting; i++)
					command.waiter[i] =
						(told_waiter){slot->waiters.named.waiter[i].host,
									  host_now_us(h) - slot->waiters.named.waiter[i].since_us};
				break;
		}
		check_sent(h, s, n, op);
		send_one(h, n, &command);
	}
}

/* With the script's text, if it may still count. */
static bool
send_again(int h, int n, const command *before)
{
	const slot *slot = slot_at(h, before->slot);

	wire_at(h, n)->by_text = true;
	if (before->by_text || slot->generation != before->generation ||
		!release_queue_may_repeat(&hosts[h].releases, before->slot, &slot->core, n, before->op,
								  before->round, host_now_us(h), nodes_that_can_send(h),
								  nodes_that_can_vote(h)))
		return false;
	seen.sent_again++;
	send_to_as(CORE_BIT(n), h, before->slot, before->op, before->why, before->round);
	return true;
}

static void
send_one(int h, int n, const command *command)
{
	wire *wire = wire_at(h, n);

	story_command("->", command, n, "");
	release_queue_sent(&hosts[h].releases, n, command->op, command->why);
	wire_send(h, n, command);
	if (wire->watched)
		return;
	wire->watched = true;
	later(w.now_us + w.plan.answer_us / 4, EVENT_OVERDUE, h, n, 0, wire->epoch);
}

static void
publish(int h, int s, core_outcome outcome)
{
	slot *slot = slot_at(h, s);

	if (outcome == CORE_NOTHING ||
		(outcome == CORE_EXPIRED && release_queue_waits(&hosts[h].releases, s)))
		return;
	if (outcome == CORE_EXPIRED && end_hold(h, s))
	{
		host_push(h, s);
		return;
	}
	check_outcome(h, s, outcome);
	switch (outcome)
	{
		case CORE_NOTHING:
		case CORE_MUST_WAIT:
			break;
		case CORE_UNRENEWED:
			slot->more_tokens_us = 0;
			break;
		case CORE_RENEWED:
			slot->last_token = slot->core.bound;
			break;
		case CORE_GRANTED:
			slot->granted = slot->told = true;
			if (!rules_want_is_later(slot->want_until_us, slot->core.round_began_us))
				slot->want_until_us = 0; /* lease_set_state */
			slot->hold_until_us = slot->core.hold_until_us;
			if (slot->keep_us > 0)
				slot->keep_until_us = host_now_us(h) + slot->keep_us;
			slot->turn_began_us = host_now_us(h);
			slot->long_turn_us = word_long_turn_us();
			slot->first_token = rules_first_token(slot->core.token);
			slot->last_token = slot->core.bound;
			session_told(h, s);
			break;
		case CORE_REFUSED:
		case CORE_UNREACHABLE:
			slot->told = true;
			session_told(h, s);
			break;
		case CORE_EXPIRED:
			if (host_stays(slot))
			{
				session_disown(h, s); /* nobody has lost it */
				host_push(h, s);
				break;
			}
			if (wish_is_detached(slot->wish, owner_of(slot)))
			{
				session_disown(h, s);
				host_push(h, s);
				break;
			}
			session_lost(h, s);
			for (int i = 0; i < session_count; i++)
				if (session_has(i, h, s) && !sessions[i].paused)
					later(w.now_us + 1 + dice_us(w.plan.delay_us), EVENT_DONE, h, 0, s,
						  (uint32_t) i);
			break;
	}
}

static void
set_timer(int h, int s)
{
	slot *slot = slot_at(h, s);
	int64_t wake_at_us = release_queue_wake_at_us(&hosts[h].releases, s, &slot->core);
	int64_t at_us;

	if (wake_at_us == 0)
	{
		slot->timer_at_us = 0;
		slot->timer_tag++;
		return;
	}
	if (slot->core.state == CORE_HELD)
		wake_at_us = slot->looks_at_us =
			wish_look_at_us(slot->wish, wake_at_us, slot->idle_until_us, slot->keep_idle_us,
							slot->hold_until_us, host_now_us(h));
	at_us = host_true_time_us(h, wake_at_us);
	if (at_us < w.now_us)
		at_us = w.now_us;
	if (slot->timer_at_us != 0 && slot->timer_at_us <= at_us)
		return; /* it will find out that it is early */
	slot->timer_at_us = at_us;
	later(at_us, EVENT_TIMER, h, 0, s, ++slot->timer_tag);
}

static void
on_timer(const event *event)
{
	slot *slot = slot_at(event->host, event->slot);

	take_queue(event->host); /* a pass begins with it */
	if (event->tag != slot->timer_tag)
		return;
	slot->timer_at_us = 0;
	limit(event->host, event->slot);
	if (wish_stay_is_over(slot->wish, slot->idle_until_us, host_now_us(event->host)))
	{
		seen.stays_over++;
		tell("host %c: request %u has stayed for long enough", HOST_NAME(event->host),
			 slot->secret);
		session_disown(event->host, event->slot);
		act_on_wish(event->host, event->slot);
		return;
	}
	if (end_hold(event->host, event->slot))
	{
		act_on_wish(event->host, event->slot);
		return;
	}
	if (host_now_us(event->host) < slot->core.wake_at_us)
	{
		set_timer(event->host, event->slot);
		return;
	}
	if (wish_is_orphaned(slot->wish, owner_of(slot), slot->idle_until_us))
	{
		tell("host %c: request %u was left for nobody", HOST_NAME(event->host), slot->secret);
		session_disown(event->host, event->slot);
		act_on_wish(event->host, event->slot);
		if (slot->in_use)
			set_timer(event->host, event->slot);
	}
	else
		host_step(event->host, event->slot, CORE_TICK, 0);
}

/* lease_end_hold of lease_unowned.c */
static bool
end_hold(int h, int s)
{
	slot *slot = slot_at(h, s);

	if (!wish_is_detached(slot->wish, owner_of(slot)) ||
		!wish_hold_is_over(owner_of(slot), slot->hold_until_us, host_now_us(h)))
		return false;
	seen.holds_over++;
	tell("host %c: request %u was detached for long enough", HOST_NAME(h), slot->secret);
	session_disown(h, s);
	return true;
}

static WishOwner
owner_of(const slot *slot)
{
	return slot->owner == OWNER_DETACHED   ? WISH_OWNER_NONE
		   : slot->owner == OWNER_VANISHED ? WISH_OWNER_GONE
										   : WISH_OWNER_LIVES;
}

/* The broker is woken, and sees it in its next pass. */
void
host_push(int h, int s)
{
	host *host = &hosts[h];

	if (host->broker_down)
		return; /* its successor looks at all */
	if (!slot_at(h, s)->queued)
	{
		slot_at(h, s)->queued = true;
		host->queued[host->queued_count++] = s;
	}
	if (host->pass_due)
		return;
	host->pass_due = true;
	later(w.now_us + dice_us(1 + (chance(4) ? w.plan.delay_us : w.plan.delay_us / 16)), EVENT_PASS,
		  h, 0, 0, 0);
}

static void
take_queue(int h)
{
	host *host = &hosts[h];

	if (host->broker_down)
		return;
	while (host->queued_count > 0)
	{
		int s = host->queued[0];

		host->queued_count--;
		memmove(host->queued, host->queued + 1,
				sizeof(host->queued[0]) * (size_t) host->queued_count);
		slot_at(h, s)->queued = false;
		act_on_wish(h, s);
	}
}

/* Do what the owner wishes, if that is not under way.  Safe to repeat. */
static void
act_on_wish(int h, int s)
{
	slot *slot = slot_at(h, s);

	if (!slot->in_use || hosts[h].broker_down)
		return;
	switch (wish_act(slot->wish, slot->core.state, hosts[h].settled, slot->told,
					 release_queue_waits(&hosts[h].releases, s)))
	{
		case WISH_WAIT:
			if (slot->core.state == CORE_HELD)
			{
				set_timer(h, s); /* its stay may end sooner */
				extend(h, s);
				limit(h, s);
			}
			break;
		case WISH_ASK:
			ask(h, s);
			break;
		case WISH_FREE:
			check_freed(h, s, slot->forgiven);
			slot->in_use = false;
			slot->generation++;
			slot->waiters = (WaitersKnown){0};
			break;
		case WISH_RELEASE:
			limit(h, s);
			if (release_queue_begin(&hosts[h].releases, s, &slot->core,
									(uint64_t) w.plan.gate[slot->resource], nodes_that_can_send(h)))
				host_step(h, s, CORE_RELEASE, 0);
			else
			{
				tell("host %c: the release of request %u waits for room", HOST_NAME(h),
					 slot->secret);
				seen.waited++;
				set_timer(h, s);
			}
			break;
	}
}

/* So that who takes a lease that stays need not ask the nodes for tokens. */
static void
extend(int h, int s)
{
	slot *slot = slot_at(h, s);
	core_event event = {.type = CORE_EXTEND,
						.token = rules_more_tokens(slot->core.bound, wall_us(h))};

	if (slot->keep_idle_us == 0 || slot->shared || !slot->granted ||
		!rules_wants_tokens(slot->last_token - rules_token(slot->first_token, slot->handovers)) ||
		!wish_may_renew(slot->wish, owner_of(slot), slot->idle_until_us, host_now_us(h)))
		return;
	if (event.token > 0)
		step(h, s, &event);
	slot->more_tokens_us = core_raises_until_us(&slot->core);
}

/* It may be held for longer than the core knows, or have another holder. */
static void
limit(int h, int s)
{
	slot *slot = slot_at(h, s);
	core_event event = {.type = CORE_LIMIT, .hold_until_us = slot->hold_until_us};

	if (slot->core.state == CORE_HELD && slot->hold_until_us != slot->core.hold_until_us)
		step(h, s, &event);
}

/*
 * Releases, and repairs of a node that is back: src/protocol/release_queue.c decides
 */

static core_mask
nodes_that_can_send(int h)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_can_send(h, n))
			nodes |= CORE_BIT(n);
	return nodes;
}

static core_mask
nodes_that_can_vote(int h)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_can_send(h, n) && guard_may_vote(&hosts[h].node[n].guard, host_now_us(h)))
			nodes |= CORE_BIT(n);
	return nodes;
}

static core_mask
nodes_on_duty(int h)
{
	core_mask nodes = 0;

	for (int n = 0; n < w.plan.places; n++)
		if (wire_at(h, n)->state == WIRE_UP)
			nodes |= CORE_BIT(n);
	return nodes;
}

/*
 * Releases of other locks fill a node and are answered, one time in three, each node at
 * another; and never for the last to ask.
 */
static void
crowd(int h)
{
	host *host = &hosts[h];

	for (int n = 0; n < w.plan.places; n++)
	{
		bool crowded =
			w.plan.crowd_us != 0 && !w.calm && (w.now_us / w.plan.crowd_us + h + n) % 3 == 0;

		if (crowded == ((host->crowded & CORE_BIT(n)) != 0))
			continue;
		host->crowded ^= CORE_BIT(n);
		for (int i = 0; i < w.plan.releases_max; i++)
			if (crowded)
				release_queue_sent(&host->releases, n, CORE_OP_RELEASE, CORE_RELEASE);
			else
				release_queue_answered(&host->releases, n, CORE_OP_RELEASE, CORE_RELEASE);
	}
}

static void
send_releases(int h)
{
	host *host = &hosts[h];
	ReleaseStep next;

	while (release_queue_next_unsent(&host->releases, nodes_that_can_send(h), &next))
		take(h, &next);
	while (release_queue_next_waiting(&host->releases, nodes_that_can_send(h), &next))
		take(h, &next);
	if (!release_queue_is_idle(&host->releases, nodes_that_can_send(h)) && w.plan.crowd_us != 0 &&
		host->room_at_us <= w.now_us)
	{
		host->room_at_us = w.now_us + w.plan.crowd_us;
		later(host->room_at_us, EVENT_TIMER, h, 0, 0, 0); /* of no lease: tags begin at 1 */
	}
}

/* It may lack the key. */
void
host_node_ready(int h, int s, int n)
{
	if (release_queue_node_ready(&hosts[h].releases, s, &slot_at(h, s)->core, n,
								 nodes_that_can_send(h)))
		host_step(h, s, CORE_NODE_READY, n);
}

/* Ahead of the next request: our own key would be in the way. */
static void
hurry_releases_of(int h, int gate)
{
	int s;

	while ((s = release_queue_find(&hosts[h].releases, (uint64_t) gate)) >= 0)
		host_hurry(h, s);
}

void
host_hurry(int h, int s)
{
	ReleaseStep next;

	while (release_queue_hurry(&hosts[h].releases, s, &next))
		take(h, &next);
}

bool
host_forget_debt(int h)
{
	ReleaseStep next;

	if (hosts[h].broker_down || !release_queue_forget(&hosts[h].releases, &next))
		return false;
	if (next.type == CORE_FORGET)
	{
		slot_at(h, next.slot)->forgiven = true;
		if (slot_at(h, next.slot)->wish != WISH_NOTHING)
			check_freed(h, next.slot, true); /* its owner has not yet read that it failed */
	}
	take(h, &next);
	return true;
}

static void
take(int h, const ReleaseStep *next)
{
	host_step(h, next->slot, next->type, next->node);
}

static void
ask(int h, int s)
{
	slot *slot = slot_at(h, s);
	core_event event = {.type = CORE_ACQUIRE,
						.lists = hosts[h].lists,
						.once = slot->once,
						.ttl_us = slot->ttl_us,
						.answer_us = w.plan.answer_us,
						.patience_us = slot->once ? word_recall_us() : 2 * w.plan.answer_us,
						.retry_us = w.plan.retry_us,
						.hold_at_most_us = slot->hold_at_most_us};

	event.not_before_us = word_begin_us(h, slot->resource, slot->shared);
	slot->asked_us = slot->heard_us = host_now_us(h);
	slot->hearing = (Hearing){0};
	slot->secret = ++w.secrets;
	slot->granted = false;
	slot->forgiven = false;
	slot->keep_until_us = 0;
	slot->relisted_true_us = 0;
	hurry_releases_of(h, w.plan.gate[slot->resource]);
	tell("host %c: request %u for lock %d%s%s%s", HOST_NAME(h), slot->secret, slot->resource + 1,
		 slot->shared ? ", to share it" : "", slot->once ? ", a try" : "",
		 slot->hold_at_most_us > 0 ? ", for a limited time" : "");
	check_asked(h, s);
	step(h, s, &event);
}

void
host_on_answer(int h, int n, const command *command, const answer *answer)
{
	slot *slot = slot_at(h, command->slot);
	core_event event = {.type = CORE_REPLY,
						.node = n,
						.op = command->op,
						.reply = answer->reply,
						.round = command->round,
						.met_us = hosts[h].node[n].guard.met_us,
						.token = answer->token,
						.holder = answer->holder,
						.silent = fault_is_plain(answer->holder),
						.may_stay = answer->may_stay,
						.busy_us = answer->busy_ms * 1000,
						.waiting = answer->waiting};

	release_queue_answered(&hosts[h].releases, n, command->op, command->why);
	if (answer->error == NODE_NOSCRIPT && send_again(h, n, command))
		return;
	if (command->op == CORE_OP_ACQUIRE && answer->reply == CORE_REPLY_YES && answer->token == 0)
		event.reply = CORE_REPLY_UNKNOWN; /* the key is there, but no counter: see script.c */
	if (slot->generation == command->generation)
	{
		story_answer("->", command, answer, n);
		check_answered(h, command->slot, n, command, answer);
		step(h, command->slot, &event);
	}
	if (answer->error == NODE_FORGOT)
		peer_lose(h, n, "it forgot its marker");
}

/* A question that a round waits for is asked again, where the connection is replaced. */
void
host_on_lost(int h, int n, const command *command, bool replacing)
{
	const slot *slot = slot_at(h, command->slot);

	release_queue_answered(&hosts[h].releases, n, command->op, command->why);
	if (slot->generation == command->generation &&
		!(replacing && core_may_reconnect(&slot->core, n)))
		host_step(h, command->slot, CORE_NODE_LOST, n);
}

/* The successor adopts the leases: all connections are gone. */
static void
on_broker(const event *event)
{
	int h = event->host;
	int64_t settled_us = w.now_us + w.plan.delay_us * 2 + dice_us(w.plan.answer_us);
	core_event adoption = {.type = CORE_ADOPT,
						   .not_before_us =
							   host_now_us(h) + w.plan.delay_us * 2 + w.plan.answer_us};

	if (!hosts[h].broker_down)
		return;
	tell("host %c: a new broker", HOST_NAME(h));
	hosts[h].broker_down = false;
	hosts[h].broker_began_us = host_now_us(h);
	for (int n = 0; n < w.plan.places; n++)
		if (hosts[h].node[n].in_use)
			wire_connect(h, n);
	reload_nodes(h);
	for (int s = 0; s < w.plan.slots; s++)
	{
		if (!slot_at(h, s)->in_use || slot_at(h, s)->core.state == CORE_FREE)
			continue;
		step(h, s, &adoption);
		if (slot_at(h, s)->wish == WISH_NOTHING)
			act_on_wish(h, s);
		set_timer(h, s);
	}
	later(settled_us, EVENT_SETTLED, h, 0, 0, 0);
}

static void
on_settled(const event *event)
{
	if (hosts[event->host].broker_down)
		return;
	hosts[event->host].settled = true;
	take_queue(event->host);
	for (int s = 0; s < w.plan.slots; s++)
	{
		if (slot_at(event->host, s)->in_use && slot_at(event->host, s)->core.state == CORE_BUSY &&
			slot_at(event->host, s)->wish == WISH_HOLD)
			host_step(event->host, s, CORE_WAKE, 0);
		else
			act_on_wish(event->host, s);
	}
}

/* No lease, and nothing on the wires. */
bool
host_all_idle(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
	{
		if (hosts[h].broker_down || hosts[h].paused_until_us > w.now_us)
			return false;
		for (int s = 0; s < w.plan.slots; s++)
			if (slot_at(h, s)->in_use)
				return false;
		for (int n = 0; n < w.plan.places; n++)
			if (wire_at(h, n)->state == WIRE_HANDSHAKE || wire_in_flight(wire_at(h, n)) != 0)
				return false;
	}
	return true;
}

/*
 * Faults
 */

void
host_pause(int h, int64_t for_us)
{
	if (hosts[h].paused_until_us < w.now_us + for_us)
		hosts[h].paused_until_us = w.now_us + for_us;
}

void
host_stop_broker(int h, int64_t for_us)
{
	if (hosts[h].broker_down)
		return;
	for (int n = 0; n < w.plan.places; n++)
	{
		if (wire_at(h, n)->state != WIRE_DOWN)
			wire_close(h, n);
		else
			wire_at(h, n)->epoch++; /* nobody is there to connect later */
		wire_at(h, n)->watched = false;
	}
	memset(hosts[h].turn_begins_us, 0, sizeof(hosts[h].turn_begins_us));
	for (int s = 0; s < w.plan.slots; s++)
	{
		slot_at(h, s)->waiters = (WaitersKnown){0};
		slot_at(h, s)->timer_at_us = 0;
		slot_at(h, s)->timer_tag++;
	}
	release_queue_init(&hosts[h].releases, hosts[h].release, w.plan.slots, w.plan.releases_max);
	hosts[h].crowded = 0;
	for (int s = 0; s < w.plan.slots; s++)
		slot_at(h, s)->queued = false;
	hosts[h].queued_count = 0;
	hosts[h].broker_down = true;
	hosts[h].settled = false;
	later(w.now_us + for_us, EVENT_BROKER, h, 0, 0, 0);
}

/*
 * A crash of the server, or its restart: shared memory is new.  Its leases are gone
 * and not released, and it meets all nodes for the first time.
 */
void
host_restart(int h, int64_t for_us)
{
	host *host = &hosts[h];

	host_stop_broker(h, for_us);
	for (int s = 0; s < w.plan.slots; s++)
	{
		uint32_t generation = slot_at(h, s)->generation + 1;
		uint32_t timer_tag = slot_at(h, s)->timer_tag + 1;

		if (slot_at(h, s)->in_use)
			check_freed(h, s, true);
		memset(slot_at(h, s), 0, sizeof(slot));
		slot_at(h, s)->generation = generation;
		slot_at(h, s)->timer_tag = timer_tag;
		slot_at(h, s)->session = -1;
	}
	for (int i = 0; i < session_count; i++)
		if (sessions[i].host == h)
			sessions[i].done = true;
	for (int g = 0; g < w.plan.resources; g++)
		host->gate[g] = (gate){.named = -1};
	for (int n = 0; n < w.plan.places; n++)
	{
		memset(&host->node[n].guard, 0, sizeof(host->node[n].guard));
		host->node[n].failures = 0;
	}
	reload_forget(h);
}

void
host_calm(int h)
{
	hosts[h].paused_until_us = w.now_us;
	hosts[h].wall.offset_us = hosts[h].mono.offset_us;
	for (int g = 0; g < w.plan.resources; g++)
		hosts[h].gate[g].waiting = 0;
	if (hosts[h].broker_down)
		later(w.now_us, EVENT_BROKER, h, 0, 0, 0);
	session_stop(h);
	for (int n = 0; n < w.plan.places; n++)
		if (wire_at(h, n)->state != WIRE_DOWN && wire_at(h, n)->gone)
			later(w.now_us + w.plan.delay_us, EVENT_BROKEN, h, n, 0, wire_at(h, n)->epoch);
	if (h == w.last_host)
		session_asks_last(h, w.now_us + 2 * w.plan.delay_us);
}
