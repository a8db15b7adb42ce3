/*
 * wire.c
 *		Connections, and the execution of commands; see wire.h.
 */
#include "wire.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "debt.h"
#include "host.h"
#include "story.h"
#include "word.h"

wire wires[HOSTS_MAX][NODES_MAX];
core_mask stained[HOSTS_MAX];

static uint32_t first_number(void);
static int64_t delay_us(void);
static int64_t max_us(int64_t a, int64_t b);
static void abandon(wire *wire, int host, int node, bool late);
static void leave_in_limbo(const command *command, int node, int64_t at_us);
static void execute(int node, int server, const command *command, answer *answer, wire *behind);

/* All connections are up, except those to a twin. */
void
wire_begin(void)
{
	memset(stained, 0, sizeof(stained));
	for (int h = 0; h < w.plan.hosts; h++)
		for (int n = 0; n < w.plan.places; n++)
		{
			memset(&wires[h][n], 0, offsetof(wire, command));
			wires[h][n].head = wires[h][n].executed = wires[h][n].tail = first_number();
			wires[h][n].epoch = first_number();
			wires[h][n].state = n < w.plan.nodes && twin_of(h, n) < 0 ? WIRE_UP : WIRE_DOWN;
		}
}

/* In aged schedules numbers are about to wrap. */
static uint32_t
first_number(void)
{
	return w.plan.aged ? UINT32_MAX - dice(8) : 0;
}

static int64_t
delay_us(void)
{
	int64_t us = w.plan.delay_us / 2 + dice_us(w.plan.delay_us);

	if (may(FAULT_DELAY) && chance(16))
	{
		seen.fault[FAULT_DELAY]++;
		us += chance(3) ? dice_us(w.plan.ttl_us) : dice_us(w.plan.answer_us);
	}
	return us;
}

static int64_t
max_us(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

void
wire_connect(int host, int node)
{
	wire *wire = wire_at(host, node);

	assert(wire->state == WIRE_DOWN);
	wire->state = WIRE_HANDSHAKE;
	wire->gone = wire->by_text = false;
	wire->head = wire->executed = wire->tail = first_number();
	wire->to_at_us = max_us(w.now_us, w.cut_to_us[host][node]) + delay_us();
	later(wire->to_at_us, EVENT_REACH, host, node, 0, wire->epoch);
}

/* Executes INFO, CONFIG GET and the marker script. */
void
wire_on_reach(const event *event)
{
	wire *wire = wire_at(event->host, event->node);
	server *server = server_at(event->host, event->node);
	int64_t now_us = server_clock_us(server);
	GuardFacts *facts = &wire->facts;

	if (event->tag != wire->epoch || wire->gone)
		return;
	if (server->paused_until_us > w.now_us)
	{
		later(server->paused_until_us, EVENT_REACH, event->host, event->node, 0, wire->epoch);
		return;
	}
	wire_save(server);
	for (int r = 0; r < w.plan.resources; r++)
		wire_expire(w.server_of[event->host][event->node], r);
	server->scriptless = false; /* SCRIPT LOAD */
	if (server->flushed && server->data.mark.lost_us == 0 &&
		host_marker(event->host, event->node) == 0)
		check_fooled(event->host, event->node);
	wire_text(facts->run_id, server->run_id);
	facts->uptime_s = now_us / SECOND - server->started_us / SECOND;
	facts->durable = w.plan.persistence[w.server_of[event->host][event->node]] == KEEPS_ALL;
	/* in the order of GuardFacts */
	facts->loss = (int) local_marker(&server->data.mark, now_us, w.markers + 1,
									 host_marker(event->host, event->node) != 0,
									 hosts[event->host].max_ttl_us / 1000);
	wire_text(facts->marker, server->data.mark.text);
	if (server->data.mark.text > w.markers)
		w.markers = server->data.mark.text;
	wire->from_at_us = max_us(w.now_us, w.cut_from_us[event->host][event->node]) + delay_us();
	later(wire->from_at_us, EVENT_HANDSHAKE, event->host, event->node, 0, wire->epoch);
}

void
wire_text(char *text, uint32_t number)
{
	snprintf(text, sizeof("4294967295"), "%u", (unsigned) number);
}

void
wire_send(int host, int node, const command *command)
{
	wire *wire = wire_at(host, node);
	int64_t at_us;

	assert(wire_can_send(host, node));
	wire->command[wire->tail % WIRE_MAX] = *command;
	wire->command[wire->tail % WIRE_MAX].batch = (uint32_t) w.taken;
	wire->command[wire->tail++ % WIRE_MAX].by_text = wire->by_text;
	if (wire->gone)
		return;
	if (may(FAULT_LOSS) && chance(40))
	{
		seen.fault[FAULT_LOSS]++;
		tell("network: what host %c sends to node %d is lost, and the connection with it",
			 HOST_NAME(host), node + 1);
		wire->executed = wire->tail; /* leaves nothing in the socket */
		wire_break(host, node, false, chance(2));
		return;
	}
	at_us = max_us(w.now_us, w.cut_to_us[host][node]) + delay_us();
	wire->to_at_us = max_us(wire->to_at_us, at_us);
	later(wire->to_at_us, EVENT_ARRIVE, host, node, 0, wire->epoch);
}

void
wire_on_arrive(const event *event)
{
	wire *wire = wire_at(event->host, event->node);
	server *server = server_at(event->host, event->node);
	int64_t until_us = server->paused_until_us;
	uint32_t at;

	if (event->tag != wire->epoch || wire->gone)
		return;
	until_us = max_us(until_us, w.cut_to_us[event->host][event->node]);
	if (until_us > w.now_us)
	{
		wire->to_at_us = max_us(wire->to_at_us, until_us);
		later(until_us, EVENT_ARRIVE, event->host, event->node, 0, event->tag);
		return;
	}
	assert(wire->executed != wire->tail);
	at = wire->executed++ % WIRE_MAX;
	if (wire->command[at].batch == wire->batch)
		seen.mixed +=
			wire->command[at].resource != wire->command[(at + WIRE_MAX - 1) % WIRE_MAX].resource;
	else
	{
		wire->batch = wire->command[at].batch;
		wire->failing_at = may(FAULT_BATCH) && chance(20) ? (int) dice(4) : -1;
		wire->memory = may(FAULT_FULL) && chance(4) ? LOCAL_FULL : LOCAL_HAS_ROOM;
	}
	if (wire->failing_at == 0)
	{
		/* this command or an earlier one failed the whole call */
		wire->answer[at] = (struct answer){.reply = CORE_REPLY_UNKNOWN};
		debt_failed(event->host, event->node);
		seen.fault[FAULT_BATCH]++;
		story_answer("does not execute, for", &wire->command[at], &wire->answer[at], event->node);
	}
	else
	{
		execute(event->node, w.server_of[event->host][event->node], &wire->command[at],
				&wire->answer[at], wire);
		if (wire->failing_at > 0)
		{
			wire->failing_at--;
			wire->answer[at] = (struct answer){.reply = CORE_REPLY_UNKNOWN};
		}
	}
	if (may(FAULT_DUPLICATE) && chance(10))
	{
		seen.fault[FAULT_DUPLICATE]++;
		stained[event->host] |= CORE_BIT(w.server_of[event->host][event->node]);
		leave_in_limbo(&wire->command[at], event->node, w.now_us + dice_us(2 * w.plan.ttl_us));
	}
	until_us = max_us(w.now_us, w.cut_from_us[event->host][event->node]) + delay_us();
	wire->from_at_us = max_us(wire->from_at_us, until_us);
	later(wire->from_at_us, EVENT_ANSWER, event->host, event->node, 0, event->tag);
}

void
wire_on_answer(const event *event)
{
	wire *wire = wire_at(event->host, event->node);
	int64_t until_us = w.cut_from_us[event->host][event->node];
	command command;
	answer answer;

	if (event->tag != wire->epoch || wire->gone)
		return;
	if (until_us > w.now_us)
	{
		wire->from_at_us = max_us(wire->from_at_us, until_us);
		later(until_us, EVENT_ANSWER, event->host, event->node, 0, event->tag);
		return;
	}
	assert(wire->head != wire->executed);
	command = wire->command[wire->head % WIRE_MAX];
	answer = wire->answer[wire->head++ % WIRE_MAX];
	host_on_answer(event->host, event->node, &command, &answer);
}

void
wire_close(int host, int node)
{
	wire *wire = wire_at(host, node);

	if (!wire->gone)
		abandon(wire, host, node, may(FAULT_RESET) && chance(2));
	wire->state = WIRE_DOWN;
	wire->epoch++;
}

/*
 * The connection is dead.  The host gets an error, or, if `silent`, notices
 * only missing answers.
 */
void
wire_break(int host, int node, bool late, bool silent)
{
	wire *wire = wire_at(host, node);

	if (wire->state == WIRE_DOWN || wire->gone)
		return;
	abandon(wire, host, node, late);
	wire->gone = true;
	if (!silent || wire->state == WIRE_HANDSHAKE)
		later(w.now_us + dice_us(w.plan.delay_us * 2), EVENT_BROKEN, host, node, 0, wire->epoch);
}

/* Commands and answers in flight vanish, and all later ones. */
void
wire_drop(int host, int node)
{
	wire *wire = wire_at(host, node);

	if (wire->state == WIRE_DOWN || wire->gone)
		return;
	wire->executed = wire->tail;
	wire_break(host, node, false, true);
}

/*
 * A first part of the unexecuted commands stays in the socket: all, some, or
 * none.
 */
static void
abandon(wire *wire, int host, int node, bool late)
{
	uint32_t count = wire->tail - wire->executed;
	uint32_t left;
	int64_t at_us = max_us(w.now_us, w.cut_to_us[host][node]);

	stained[host] |= CORE_BIT(w.server_of[host][node]);
	if (count == 0)
		return;
	left = late ? count - dice(count) : dice(count + 1);
	for (uint32_t i = 0; i < left; i++)
	{
		at_us += dice_us(w.plan.delay_us);
		if (late && (i == 0 || chance(4)))
			at_us += dice_us(chance(2) ? w.plan.answer_us : 3 * w.plan.ttl_us);
		leave_in_limbo(&wire->command[(wire->executed + i) % WIRE_MAX], node, at_us);
	}
}

static void
leave_in_limbo(const command *command, int node, int64_t at_us)
{
	for (int i = 0; i < LIMBO_MAX; i++)
		if (!w.limbo[i].used)
		{
			int server = w.server_of[command->host][node];

			w.limbo[i] = (limbo){*command, node, server, w.server[server].run_id, true};
			later(at_us, EVENT_LATE, 0, node, 0, (uint32_t) i);
			return;
		}
}

/* A node's sockets end with its process. */
void
wire_on_late(const event *event)
{
	limbo *limbo = &w.limbo[event->tag];
	server *server = &w.server[limbo->server];
	answer answer;

	if (server->paused_until_us > w.now_us && server->run_id == limbo->run_id)
	{
		later(server->paused_until_us, EVENT_LATE, 0, event->node, 0, event->tag);
		return;
	}
	limbo->used = false;
	if (server->run_id != limbo->run_id || w.calm)
		return;
	/* lost: the model has few places for readers, and the script any number */
	if (server->data.lock[limbo->command.resource].readers > LOCAL_READERS_MAX / 2)
		return;
	seen.late++;
	story_command("long ago sent to", &limbo->command, event->node, "executed only now");
	execute(event->node, limbo->server, &limbo->command, &answer, NULL);
}

/*
 * `behind`: the connection that delivered the command in order; NULL: it came
 * late.
 */
static void
execute(int node, int s, const command *command, answer *answer, wire *behind)
{
	server *server = &w.server[s];
	node_memory memory = behind != NULL ? behind->memory : LOCAL_HAS_ROOM;
	store before;

	wire_save(server);
	if (server->scriptless && !command->by_text)
	{
		debt_failed(command->host, node);
		*answer = (struct answer){.reply = CORE_REPLY_ERROR, .error = NODE_NOSCRIPT};
		story_answer("executes, for", command, answer, node);
		return;
	}
	server->scriptless = false;
	if (may(FAULT_ERROR) && chance(25))
	{
		seen.fault[FAULT_ERROR]++;
		debt_failed(command->host, node);
		*answer = (struct answer){.reply = CORE_REPLY_ERROR, .error = NODE_FAILED};
		story_answer("executes, for", command, answer, node);
		return;
	}
	wire_expire(s, command->resource);
	before = server->data;
	node_execute(&server->data.lock[command->resource], &server->data.mark, server_clock_us(server),
				 command, &memory, answer);
	if (behind != NULL)
		behind->memory = memory;
	if (answer->error == NODE_FAILED)
		seen.fault[FAULT_FULL]++;
	if (answer->error == NODE_FAILED || answer->error == NODE_FORGOT)
		debt_failed(command->host, node);
	story_answer("executes, for", command, answer, node);
	check_executed(node, s, command, &before, answer, behind);
	answer->waiting = word_waiting(command->resource);
	word_tell(s, command, answer);
	if (may(FAULT_NONSENSE) && chance(25))
	{
		seen.fault[FAULT_NONSENSE]++;
		*answer = (struct answer){.reply = CORE_REPLY_UNKNOWN};
	}
}

/* An expired counter is no loss, unless the node's clock was set. */
void
wire_expire(int s, int resource)
{
	server *server = &w.server[s];

	if (local_expire(&server->data.lock[resource], server_clock_us(server)) &&
		(w.plan.faults & (FAULT_BIT(FAULT_NODE_FORWARD) | FAULT_BIT(FAULT_NODE_BACK) |
						  FAULT_BIT(FAULT_BOOT_STEP))) != 0)
		check_forgot(s, resource);
}

/* Writes the data that a restart would find: the last snapshot. */
void
wire_save(server *server)
{
	if (server->save_every_us == 0 || w.now_us < server->save_at_us)
		return;
	server->saved = server->data;
	server->save_at_us +=
		(w.now_us - server->save_at_us) / server->save_every_us * server->save_every_us +
		server->save_every_us;
}
