/*
 * world.c
 *		True time, the queue of events, clocks and dice; see world.h.
 */
#include "world.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "check.h"

#define MILLION 1000000

world w;

static bool is_before(const event *a, const event *b);
static void name_servers(int *server_of, int host);
static void begin_server(server *server, persistence persistence);
static int64_t skew(int64_t true_us, int32_t ppm);

void
world_begin(uint64_t seed)
{
	/* the queue and the limbo are large, and empty */
	memset(&w, 0, offsetof(world, event));
	for (int i = 0; i < LIMBO_MAX; i++)
		w.limbo[i].used = false;
	w.now_us = START_US;
	w.dice = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
	dice(2);
	plan_make(&w.plan, seed);
	w.calm_at_us = START_US + w.plan.length_us;
	w.last_host = (int) dice((uint32_t) w.plan.hosts);
	for (int h = 0; h < w.plan.hosts; h++)
		name_servers(w.server_of[h], h);
	for (int i = 0; i < w.plan.servers; i++)
		begin_server(&w.server[i], w.plan.persistence[i]);
}

/*
 * Each host may number nodes in another order, and list one server twice where
 * another host has another: quorums of two hosts still share a server.
 */
static void
name_servers(int *server_of, int host)
{
	for (int i = 0; i < w.plan.nodes; i++)
		server_of[i] = i < w.plan.servers ? i : (int) dice((uint32_t) w.plan.servers);
	if (!w.plan.renamed || host == 0)
		return;
	for (int i = w.plan.nodes - 1; i > 0; i--)
	{
		int other = (int) dice((uint32_t) i + 1);
		int server = server_of[i];

		server_of[i] = server_of[other];
		server_of[other] = server;
	}
	if (w.plan.doubled)
		server_of[dice((uint32_t) w.plan.nodes)] = server_of[0];
}

/* The server has been up for long, and may have counted before. */
static void
begin_server(server *server, persistence persistence)
{
	int64_t now_us;

	if (may(FAULT_NODE_DRIFT))
	{
		seen.fault[FAULT_NODE_DRIFT]++;
		server->wall.ppm = (int32_t) dice(9801) - 4900;
	}
	now_us = server_clock_us(server);
	server->run_id = ++w.run_ids;
	server->started_us = now_us - 100 * HOUR;
	server->data.mark.text = ++w.markers;
	for (int r = 0; r < w.plan.resources; r++)
		if (chance(3))
		{
			node_data *data = &server->data.lock[r];

			data->counter = now_us - SECOND + dice_us(SECOND + w.plan.max_ttl_us / 16);
			data->counter_end_ms = now_us / 1000 + 100000000;
		}
	if (persistence == KEEPS_SNAPSHOTS)
	{
		server->save_every_us = w.plan.ttl_us / 8 + dice_us(w.plan.ttl_us);
		server->save_at_us = w.now_us + dice_us(server->save_every_us);
		server->saved = server->data;
	}
}

/* xorshift64*: Vigna, 2016 */
uint32_t
dice(uint32_t sides)
{
	w.dice ^= w.dice >> 12;
	w.dice ^= w.dice << 25;
	w.dice ^= w.dice >> 27;
	return (uint32_t) (((w.dice * UINT64_C(0x2545F4914F6CDD1D) >> 32) * sides) >> 32);
}

int64_t
dice_us(int64_t below_us)
{
	assert(below_us > 0 && below_us <= UINT32_MAX);
	return dice((uint32_t) below_us);
}

bool
chance(uint32_t one_in)
{
	return dice(one_in) == 0;
}

/* A binary heap, the earliest on top. */
void
later(int64_t at_us, event_kind kind, int host, int node, int entry, uint32_t tag)
{
	event new = {.at_us = at_us,
				 .order = w.order++,
				 .kind = (uint8_t) kind,
				 .host = (uint8_t) host,
				 .node = (uint8_t) node,
				 .entry = (uint8_t) entry,
				 .tag = tag};
	int at = w.events++;

	assert(at < EVENTS_MAX);
	assert(at_us >= w.now_us);
	for (; at > 0 && is_before(&new, &w.event[(at - 1) / 2]); at = (at - 1) / 2)
		w.event[at] = w.event[(at - 1) / 2];
	w.event[at] = new;
}

bool
next_event(event *event)
{
	struct event last;
	int at = 0;

	if (w.events == 0)
		return false;
	*event = w.event[0];
	last = w.event[--w.events];
	for (int child = 1; child < w.events; child = 2 * at + 1)
	{
		if (child + 1 < w.events && is_before(&w.event[child + 1], &w.event[child]))
			child++;
		if (!is_before(&w.event[child], &last))
			break;
		w.event[at] = w.event[child];
		at = child;
	}
	w.event[at] = last;
	assert(event->at_us >= w.now_us);
	w.now_us = event->at_us;
	w.taken++;
	return true;
}

static bool
is_before(const event *a, const event *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

int64_t
clock_us(const sim_clock *clock)
{
	return clock->offset_us + w.now_us + skew(w.now_us, clock->ppm);
}

/* Returns the first instant at which the clock shows clock_us or more. */
int64_t
true_time_us(const sim_clock *clock, int64_t clock_us)
{
	int64_t since_us = clock_us - clock->offset_us - START_US;
	int64_t at_us = START_US + since_us;

	if (clock->ppm != 0)
	{
		at_us = START_US + since_us * MILLION / (MILLION + clock->ppm) - 1;
		while (clock->offset_us + at_us + skew(at_us, clock->ppm) < clock_us)
			at_us++;
	}
	return at_us;
}

static int64_t
skew(int64_t true_us, int32_t ppm)
{
	return ppm == 0 ? 0 : (true_us - START_US) * ppm / MILLION;
}

int64_t
server_clock_us(const server *server)
{
	return WALL_US + clock_us(&server->wall);
}
