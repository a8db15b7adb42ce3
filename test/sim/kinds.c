/*
 * kinds.c
 *		A lock as a whole beside its permits: the real core, guard and nodes; see kinds.h.
 *
 * Each host has one request at a time: for the whole lock, or for one permit of some number of
 * permits.  Three nodes keep the keys.  Connections break and come back, messages are slow or
 * executed after the connection's end, and a node loses its data.  The hosts' clocks agree.  The
 * driver and the queue are left out.
 *
 * Protects from (invariant 1): two conflicting leases that are valid at once.  Grants of the whole
 * lock leave no trace at the permit's own key and counter, so renewals look at the lock's key.
 */
#include "kinds.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/dice.h"
#include "protocol/core.h"
#include "protocol/guard.h"
#include "protocol/local_node.h"
#include "protocol/lua.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)

#define HOSTS 4
#define NODES 3
#define N_MAX 3
#define LOCK (N_MAX + 1) /* the data of the lock itself, behind the queue (0) and the permits */
#define EVENTS_MAX 1024

#define TTL_US SECOND
#define START_US (1000 * SECOND)
#define LENGTH_US (20 * TTL_US)

typedef enum event_type
{
	ASKS,     /* a host begins a request */
	ENDS,     /* a session releases its lease, or is cancelled */
	WAKES,    /* the core's timer */
	ARRIVES,  /* a command, at a node */
	ANSWERS,  /* ... its answer, at the host */
	BREAKS,   /* some connection */
	CONNECTS, /* a host connects again */
	LOSES     /* some node loses its data */
} event_type;

typedef struct event
{
	int64_t at_us;
	event_type type;
	int host;
	int node;
	uint64_t id; /* of the request, of the timer, or of the connection */
	int process; /* of the node, at the sending */
	uint32_t round;
	local_command command;
	core_reply reply;
	local_error error;
	int64_t token;
	int64_t busy_us;
} event;

static struct host
{
	core_lease lease;
	uint64_t request;
	int permits; /* 0: the whole lock */
	int permit;
	bool asks; /* an event ASKS is due */
	uint64_t timer;
	GuardMemory guard[NODES];
	bool connected[NODES];
	uint64_t connection[NODES];
	int64_t arrives_us[NODES]; /* of the last command */
	int64_t answers_us[NODES]; /* of the last answer */
} hosts[HOSTS];

static struct node
{
	local_data data[LOCK + 1];
	local_mark mark;
	int process;
} nodes[NODES];

static kinds_seen seen;

static event events[EVENTS_MAX];
static int event_count;
static int64_t now_us;
static int64_t delay_us; /* mean, one way */
static int64_t answer_us;
static int64_t hold_us;
static uint64_t ids;
static uint64_t markers;
static bool is_violated;

static void happens(int h, core_event event);

static event *
later(int64_t at_us, event_type type, int h, int n, uint64_t id)
{
	event *event = &events[event_count++];

	assert(event_count <= EVENTS_MAX);
	memset(event, 0, sizeof(*event));
	event->at_us = at_us;
	event->type = type;
	event->host = h;
	event->node = n;
	event->id = id;
	return event;
}

/* In order over a connection; seldom very late. */
static int64_t
way_us(int64_t *last_us)
{
	int64_t at_us = now_us + delay_us / 2 + dice((uint32_t) delay_us);

	if (dice(8) == 0)
		at_us += dice((uint32_t) answer_us);
	if (at_us <= *last_us)
		at_us = *last_us + 1;
	*last_us = at_us;
	return at_us;
}

static bool
is_valid(int h)
{
	return hosts[h].lease.state == CORE_HELD && now_us < hosts[h].lease.valid_until_us;
}

/* ---- nodes ---- */

static const local_data *
find_permit(const void *names, int permit)
{
	const local_data *data = (const local_data *) names + permit;

	return local_has_key(data) ? data : NULL;
}

static void
arrives(const event *sent)
{
	struct node *node = &nodes[sent->node];
	struct host *host = &hosts[sent->host];
	local_command command = sent->command;
	local_data *data = &node->data[command.permit > 0 ? command.permit : LOCK];
	local_memory memory = LOCAL_HAS_ROOM;
	bool is_connected = sent->id == host->connection[sent->node];
	local_answer answer;
	event *back;

	/* a node may still execute commands of a broken connection */
	if (sent->process != node->process || (!is_connected && dice(2) == 0))
		return;
	for (int i = 0; i <= LOCK; i++)
		local_expire(&node->data[i], now_us);
	command.lock_data = command.permit > 0 ? &node->data[LOCK] : NULL;
	command.find_permit = find_permit;
	command.names = node->data;
	seen.refused += command.op == CORE_OP_RENEW && command.permit > 0 && !local_has_key(data) &&
					local_has_key(&node->data[LOCK]) &&
					node->data[LOCK].permits != command.says_permits;
	local_execute(data, &node->mark, now_us, &command, &memory, &answer);
	if (!is_connected)
		return;
	back = later(way_us(&host->answers_us[sent->node]), ANSWERS, sent->host, sent->node, sent->id);
	back->command = sent->command;
	back->round = sent->round;
	back->reply = answer.reply;
	back->error = answer.error;
	back->token = answer.token;
	back->busy_us = answer.busy_ms * 1000;
}

/* ---- hosts ---- */

static core_mask
connected_to(int h, bool voters)
{
	core_mask mask = 0;

	for (int n = 0; n < NODES; n++)
		if (hosts[h].connected[n] && (!voters || guard_may_vote(&hosts[h].guard[n], now_us)))
			mask |= CORE_BIT(n);
	return mask;
}

static void
send_to(int h, int n, core_op op)
{
	struct host *host = &hosts[h];
	core_command core = core_command_to(&host->lease, n, op);
	event *sent = later(way_us(&host->arrives_us[n]), ARRIVES, h, n, host->connection[n]);

	sent->process = nodes[n].process;
	sent->round = host->lease.round;
	sent->command = (local_command){.op = op,
									.secret = {0, host->request},
									.attempt = core.attempt,
									.host = h + 1,
									.says_permits = host->permits,
									.ttl_ms = op == CORE_OP_RELEASE ? LUA_DELETE : TTL_US / 1000,
									.proposal = now_us,
									.marker = strtoull(host->guard[n].marker, NULL, 10),
									.counter = core.counter,
									.token = core.token,
									.permit = host->permit,
									.permits = host->permits};
}

/* Different permits of the same number of permits do not conflict; all other leases do. */
static bool
conflict(const struct host *a, const struct host *b)
{
	return a->permits != b->permits || a->permit == b->permit;
}

/* A lease is valid from now on, or for longer. */
static void
check_alone(int h)
{
	for (int other = 0; other < HOSTS; other++)
	{
		if (other == h || !is_valid(other))
			continue;
		seen.together++;
		is_violated = is_violated || conflict(&hosts[h], &hosts[other]);
	}
}

static void
note(int h, core_outcome outcome)
{
	struct host *host = &hosts[h];

	switch (outcome)
	{
		case CORE_GRANTED:
			seen.whole += host->permits == 0;
			seen.permits += host->permits > 0;
			check_alone(h);
			later(now_us + dice((uint32_t) hold_us), ENDS, h, 0, host->request);
			break;
		case CORE_RENEWED:
			seen.renewed++;
			check_alone(h);
			break;
		case CORE_EXPIRED:
		case CORE_REFUSED:
		case CORE_UNREACHABLE:
			later(now_us + dice((uint32_t) delay_us), ENDS, h, 0, host->request);
			break;
		default:
			break;
	}
}

static void
happens(int h, core_event event)
{
	struct host *host = &hosts[h];
	core_lease *lease = &host->lease;
	core_out out;

	event.now_us = now_us;
	event.random = dice(UINT32_MAX);
	event.can_send = event.can_release = connected_to(h, false);
	event.can_vote = connected_to(h, true);
	core_step(lease, &event, &out);
	for (int n = 0; n < NODES; n++)
	{
		if (out.release & CORE_BIT(n))
			send_to(h, n, CORE_OP_RELEASE);
		if (out.acquire & CORE_BIT(n))
			send_to(h, n, CORE_OP_ACQUIRE);
		if (out.confirm & CORE_BIT(n))
			send_to(h, n, CORE_OP_CONFIRM);
		if (out.renew & CORE_BIT(n))
			send_to(h, n, CORE_OP_RENEW);
	}
	note(h, out.outcome);
	host->timer = ++ids;
	if (lease->wake_at_us != 0)
		later(lease->wake_at_us > now_us ? lease->wake_at_us : now_us, WAKES, h, 0, host->timer);
	if (lease->state == CORE_FREE && !host->asks)
	{
		host->asks = true;
		later(now_us + dice((uint32_t) hold_us), ASKS, h, 0, 0);
	}
}

static void
asks(int h)
{
	struct host *host = &hosts[h];

	host->asks = false;
	host->request = ++ids;
	host->permits = dice(2) == 0 ? 0 : 1 + (int) dice(N_MAX);
	host->permit = host->permits > 0 ? 1 + (int) dice((uint32_t) host->permits) : 0;
	happens(h, (core_event){.type = CORE_ACQUIRE,
							.lists = {CORE_BIT(NODES) - 1, 0},
							.once = dice(2) == 0,
							.ttl_us = TTL_US,
							.answer_us = answer_us,
							.patience_us = 2 * answer_us,
							.retry_us = 50 * MS});
	if (dice(2) == 0)
		later(now_us + dice(3 * (uint32_t) TTL_US), ENDS, h, 0, host->request);
}

static void
disconnect(int h, int n, int64_t for_us)
{
	struct host *host = &hosts[h];

	if (!host->connected[n])
		return;
	host->connected[n] = false;
	host->connection[n] = ++ids;
	later(now_us + 1 + for_us, CONNECTS, h, n, host->connection[n]);
	happens(h, (core_event){.type = CORE_NODE_LOST, .node = n});
}

static void
answers(const event *event)
{
	struct host *host = &hosts[event->host];
	core_op op = event->command.op;

	if (event->id != host->connection[event->node])
		return;
	if (event->command.secret.low == host->request)
		happens(event->host, (core_event){.type = CORE_REPLY,
										  .node = event->node,
										  .op = op,
										  .reply = event->reply,
										  .round = event->round,
										  .counts_after_us = guard_counts_after_us(
											  &host->guard[event->node], op, answer_us),
										  .token = event->token,
										  .busy_us = event->busy_us});
	if (event->error == LOCAL_FORGOT)
		disconnect(event->host, event->node, dice((uint32_t) delay_us));
}

/* The handshake takes no time. */
static void
meet(int h, int n, int32_t uptime_s)
{
	struct host *host = &hosts[h];
	GuardMemory *memories[CORE_NODES_MAX] = {NULL};
	GuardFacts facts = {.uptime_s = uptime_s};
	bool known = host->guard[n].marker[0] != '\0';

	for (int i = 0; i < NODES; i++)
		memories[i] = &host->guard[i];
	snprintf(facts.run_id, sizeof(facts.run_id), "node %d, process %d", n, nodes[n].process);
	facts.loss = (int) local_marker(&nodes[n].mark, now_us, markers + 1, known, TTL_US / 1000);
	if (nodes[n].mark.text > markers)
		markers = nodes[n].mark.text;
	snprintf(facts.marker, sizeof(facts.marker), "%" PRIu64, nodes[n].mark.text);
	(void) guard_meet(memories, n, &facts, TTL_US, now_us);
	host->connected[n] = true;
	host->connection[n] = ++ids;
	host->arrives_us[n] = host->answers_us[n] = now_us;
}

static void
loses(int n)
{
	bool restarts = dice(2) == 0;

	seen.losses++;
	memset(nodes[n].data, 0, sizeof(nodes[n].data));
	memset(&nodes[n].mark, 0, sizeof(nodes[n].mark));
	if (!restarts)
		return;
	nodes[n].process++;
	for (int h = 0; h < HOSTS; h++)
		disconnect(h, n, dice((uint32_t) TTL_US / 8));
}

/* ---- time ---- */

static void
handle(const event *event)
{
	int h = event->host;
	int n = event->node;
	struct host *host = &hosts[h];

	switch (event->type)
	{
		case ASKS:
			asks(h);
			break;
		case ENDS:
			if (event->id == host->request && host->lease.state != CORE_FREE &&
				host->lease.state != CORE_RELEASING)
				happens(h, (core_event){.type = CORE_RELEASE});
			break;
		case WAKES:
			if (event->id == host->timer)
				happens(h, (core_event){.type = CORE_TICK});
			break;
		case ARRIVES:
			arrives(event);
			break;
		case ANSWERS:
			answers(event);
			break;
		case BREAKS:
			disconnect((int) dice(HOSTS), (int) dice(NODES), dice(2 * (uint32_t) TTL_US));
			later(now_us + dice((uint32_t) TTL_US / 2), BREAKS, 0, 0, 0);
			break;
		case CONNECTS:
			if (event->id != host->connection[n])
				break;
			meet(h, n, 0);
			if (host->lease.state != CORE_FREE)
				happens(h, (core_event){.type = CORE_NODE_READY, .node = n});
			break;
		case LOSES:
			loses((int) dice(NODES));
			later(now_us + dice(8 * (uint32_t) TTL_US), LOSES, 0, 0, 0);
			break;
	}
}

static void
begin_world(uint64_t seed)
{
	dice_begin(seed);
	memset(hosts, 0, sizeof(hosts));
	memset(nodes, 0, sizeof(nodes));
	event_count = 0;
	ids = markers = 0;
	is_violated = false;
	delay_us = (1 + dice(30)) * MS;
	answer_us = TTL_US / 10 + dice((uint32_t) TTL_US);
	hold_us = TTL_US / 4 << dice(4);
	now_us = START_US - 1;
	for (int h = 0; h < HOSTS; h++)
		for (int n = 0; n < NODES; n++)
			meet(h, n, 24 * 3600);
	now_us = START_US;
	for (int h = 0; h < HOSTS; h++)
	{
		hosts[h].asks = true;
		later(now_us + dice((uint32_t) hold_us), ASKS, h, 0, 0);
	}
	if (dice(4) > 0)
		later(now_us, BREAKS, 0, 0, 0);
	if (dice(2) == 0)
		later(now_us + dice(4 * (uint32_t) TTL_US), LOSES, 0, 0, 0);
}

/* Returns false if two conflicting leases were valid at once. */
static bool
run_world(uint64_t seed)
{
	begin_world(seed);
	while (!is_violated)
	{
		int first = 0;
		event event;

		for (int e = 1; e < event_count; e++)
			if (events[e].at_us < events[first].at_us)
				first = e;
		event = events[first];
		if (event.at_us > START_US + LENGTH_US)
			break;
		events[first] = events[--event_count];
		now_us = event.at_us;
		handle(&event);
	}
	return !is_violated;
}

bool
kinds_run(uint64_t from, uint64_t worlds, kinds_seen *result)
{
	memset(&seen, 0, sizeof(seen));
	for (seen.seed = from; seen.seed < from + worlds; seen.seed++)
		if (!run_world(seen.seed))
			break;
	*result = seen;
	return seen.seed == from + worlds;
}
