/*
 * host.c
 *		One host: clocks, processes, and faults; see host.h.
 */
#include "host.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "force.h"
#include "host_world.h"
#include "peer.h"
#include "protocol/rules.h"
#include "reload.h"
#include "session.h"
#include "story.h"
#include "word.h"

/* The driver's record of a command in flight. */
#define SENT_BY(command)                                                                           \
	(command)->entry, (command)->generation, (command)->round, (command)->op, (command)->why

/* The clock of leases and connections. */
#define LEASE_CLOCK(host) (&(host)->mono)

host hosts[HOSTS_MAX];

static void begin_clocks(host *host);
static void crowd(int host);
static void send_releases(int host);
static void take_queue(int host);
static void on_timer(const event *event);
static void on_broker(const event *event);
static void on_settled(const event *event);

int64_t
host_now_us(int host)
{
	return clock_us(LEASE_CLOCK(&hosts[host]));
}

/* The true time at which the clock of leases shows clock_us. */
int64_t
host_true_time_us(int host, int64_t clock_us)
{
	return true_time_us(LEASE_CLOCK(&hosts[host]), clock_us);
}

int64_t
host_wall_us(int host)
{
	return WALL_US + clock_us(&hosts[host].wall);
}

/* Hosts know their nodes from earlier times, except hosts that start late. */
void
host_begin(void)
{
	int64_t at_us = 0;
	int who = 0;

	for (int h = 0; h < w.plan.hosts; h++)
	{
		host *host = &hosts[h];

		memset(host, 0, offsetof(struct host, entry) + sizeof(entry) * (size_t) w.plan.entries);
		begin_clocks(host);
		host->max_ttl_us = w.plan.max_ttl_us;
		for (int g = 0; g < w.plan.resources; g++)
			host->gate[g].named = -1;
		for (int s = 0; s < w.plan.entries && w.plan.aged; s++)
		{
			host->entry[s].drive.generation = UINT32_MAX - dice(3);
			host->entry[s].drive.core.round = UINT32_MAX - dice(6);
		}
		host->members = CORE_BIT(w.plan.nodes) - 1;
		host->lists = (core_lists){host->members, 0};
		settling_set_lists(&host->settling, host->lists, host->members);
		host_world_begin(h);
		host->driver.serves = true;
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
		/* sometimes one host asks for all locks at once */
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
	else if (w.plan.faults != 0) /* as NTP leaves clocks */
		host->wall.offset_us = dice_us(w.plan.max_ttl_us / 8) - w.plan.max_ttl_us / 16;
}

/* The last digits choose the turn: see DRIVER_PAUSES. */
uint64_t
host_hash(int resource)
{
	int gate = w.plan.gate[resource];

	return (uint64_t) gate * DRIVER_PAUSES + (uint64_t) w.plan.turn[gate];
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
	const entry *entry = entry_at(host, s);

	return entry->in_use && entry->wish != WISH_NOTHING && entry->drive.core.state == CORE_HELD &&
		   host_now_us(host) <
			   rules_valid_until_us(entry->drive.core.granted_until_us, entry->hold_until_us);
}

void
host_handle(const event *event)
{
	host *host = &hosts[event->host];

	if (host->paused_until_us > w.now_us)
	{
		later(host->paused_until_us + dice(4), event->kind, event->host, event->node, event->entry,
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
		case EVENT_FORCED:
			force_on_answer(event);
			break;
		case EVENT_FORCE_OVER:
			force_on_over(event);
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
on_timer(const event *event)
{
	entry *entry = entry_at(event->host, event->entry);

	take_queue(event->host); /* a pass begins with the queue */
	if (event->tag != entry->timer_tag)
		return;
	entry->timer_at_us = 0;
	driver_on_timer(&hosts[event->host].driver, event->entry, host_now_us(event->host));
}

/* Wakes the broker, which reads the entry's wish in its next pass. */
void
host_push(int h, int s)
{
	host *host = &hosts[h];

	if (host->broker_down)
		return; /* the next broker reads all entries */
	if (!entry_at(h, s)->queued)
	{
		entry_at(h, s)->queued = true;
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
		entry_at(h, s)->queued = false;
		driver_act(&host->driver, s, host_now_us(h));
		seen.waited += host->release[s].waits;
	}
}

/*
 * Models releases of other locks.  The releases fill each node for a third of
 * the time, at different times.  The last request finds room at all nodes.
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
				release_queue_sent(&host->driver.releases, n, CORE_OP_RELEASE, CORE_RELEASE);
			else
				release_queue_answered(&host->driver.releases, n, CORE_OP_RELEASE, CORE_RELEASE);
	}
}

static void
send_releases(int h)
{
	host *host = &hosts[h];

	driver_send_unsent(&host->driver, host_now_us(h));
	(void) driver_begin_releases(&host->driver, host_now_us(h));
	if (w.plan.crowd_us != 0 && host->room_at_us <= w.now_us &&
		!release_queue_is_idle(&host->driver.releases, host->driver.world->can_send(&host->driver)))
	{
		host->room_at_us = w.now_us + w.plan.crowd_us;
		later(host->room_at_us, EVENT_TIMER, h, 0, 0, 0); /* for no lease: tags begin at 1 */
	}
}

bool
host_forget_debt(int h)
{
	return !hosts[h].broker_down && driver_forget_debt(&hosts[h].driver, host_now_us(h));
}

void
host_on_answer(int h, int n, const command *command, const answer *answer)
{
	entry *entry = entry_at(h, command->entry);
	bool lacks_script = answer->error == NODE_NOSCRIPT && !command->by_text;
	core_event event = {.type = CORE_REPLY,
						.now_us = host_now_us(h),
						.node = n,
						.op = command->op,
						.reply = answer->reply,
						.round = command->round,
						.counts_after_us = guard_counts_after_us(
							&hosts[h].node[n].guard, command->op, hosts[h].driver.answer_us),
						.token = answer->token,
						.holder = answer->holder,
						.silent = fault_is_plain(answer->holder),
						.may_idle = answer->may_stay,
						.busy_us = answer->busy_ms * 1000,
						.waiting = answer->waiting};

	if (answer->error == NODE_NOSCRIPT)
		wire_at(h, n)->by_text = true;
	if (command->op == CORE_OP_ACQUIRE && answer->reply == CORE_REPLY_YES && answer->token == 0)
		event.reply =
			CORE_REPLY_UNKNOWN; /* the key exists, but the counter is missing: see script.c */
	if (driver_on_answer(&hosts[h].driver, n, &(DriverSent){SENT_BY(command)}, lacks_script,
						 host_now_us(h)))
	{
		story_answer("->", command, answer, n);
		check_answered(h, command->entry, n, command, answer);
		driver_step_answer(&hosts[h].driver, command->entry, &event);
		if (command->op == CORE_OP_ACQUIRE && event.reply == CORE_REPLY_YES)
			fault_on_vote(h, command->entry, n);
	}
	else if (lacks_script && entry->drive.generation == command->generation)
		seen.sent_again++;
	if (answer->error == NODE_FORGOT)
		peer_lose(h, n, "it forgot its marker");
}

/*
 * A command was lost with its connection.  The driver asks again over the
 * replacement, if a round waits for the answer.
 */
void
host_on_lost(int h, int n, const command *command, bool replacing)
{
	(void) driver_on_lost(&hosts[h].driver, n, &(DriverSent){SENT_BY(command)}, replacing,
						  host_now_us(h));
}

/* The new broker adopts the leases.  All connections are closed. */
static void
on_broker(const event *event)
{
	int h = event->host;
	int64_t settled_us = w.now_us + w.plan.delay_us * 2 + dice_us(w.plan.answer_us);

	if (!hosts[h].broker_down)
		return;
	tell("host %c: a new broker", HOST_NAME(h));
	hosts[h].broker_down = false;
	hosts[h].broker_began_us = host_now_us(h);
	for (int n = 0; n < w.plan.places; n++)
		if (hosts[h].node[n].in_use)
			wire_connect(h, n);
	reload_nodes(h);
	driver_adopt(&hosts[h].driver, host_now_us(h) + w.plan.delay_us * 2 + w.plan.answer_us,
				 host_now_us(h));
	later(settled_us, EVENT_SETTLED, h, 0, 0, 0);
}

static void
on_settled(const event *event)
{
	if (hosts[event->host].broker_down)
		return;
	take_queue(event->host);
	driver_serve(&hosts[event->host].driver, host_now_us(event->host));
}

/* Has no host a lease, or a command in flight? */
bool
host_all_idle(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
	{
		if (hosts[h].broker_down || hosts[h].paused_until_us > w.now_us)
			return false;
		for (int s = 0; s < w.plan.entries; s++)
			if (entry_at(h, s)->in_use)
				return false;
		for (int n = 0; n < w.plan.places; n++)
			if (wire_at(h, n)->state == WIRE_HANDSHAKE || wire_in_flight(wire_at(h, n)) != 0)
				return false;
	}
	return true;
}

/* Faults */

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
			wire_at(h, n)->epoch++; /* no reconnect: the broker is down */
		wire_at(h, n)->watched = false;
	}
	for (int s = 0; s < w.plan.entries; s++)
	{
		entry_at(h, s)->timer_at_us = 0;
		entry_at(h, s)->timer_tag++;
	}
	host_world_begin(h);
	hosts[h].crowded = 0;
	for (int s = 0; s < w.plan.entries; s++)
		entry_at(h, s)->queued = false;
	hosts[h].queued_count = 0;
	hosts[h].broker_down = true;
	later(w.now_us + for_us, EVENT_BROKER, h, 0, 0, 0);
}

/*
 * A crash of the server, or its restart: shared memory is new.  Leases are
 * gone without a release, and the host meets all nodes for the first time.
 */
void
host_restart(int h, int64_t for_us)
{
	host *host = &hosts[h];

	host_stop_broker(h, for_us);
	for (int s = 0; s < w.plan.entries; s++)
	{
		uint32_t generation = entry_at(h, s)->drive.generation + 1;
		uint32_t timer_tag = entry_at(h, s)->timer_tag + 1;

		if (entry_at(h, s)->in_use)
			check_freed(h, s, true);
		memset(entry_at(h, s), 0, sizeof(entry));
		entry_at(h, s)->drive.generation = generation;
		entry_at(h, s)->timer_tag = timer_tag;
		entry_at(h, s)->session = -1;
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
