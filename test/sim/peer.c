/*
 * peer.c
 *		Connections to nodes, as the broker sees them; see peer.h.
 */
#include "peer.h"

#include "story.h"
#include "wire.h"

/* A node counts its uptime in whole seconds, by a clock that may be set. */
#define UPTIME_SLACK_US (2 * SECOND)

static bool is_twin(int host, int node);
static void review(int host, int node);

/* What was sent and not answered may have been executed or not, or may still be. */
void
peer_lose(int h, int n, const char *why)
{
	wire *wire = wire_at(h, n);

	if (wire->state == WIRE_DOWN)
		return;
	tell("host %c: drops its connection to node %d: %s", HOST_NAME(h), n + 1, why);
	wire_close(h, n);
	for (uint32_t i = wire->head; i != wire->tail; i++)
	{
		const command *command = &wire->command[i % WIRE_MAX];

		if (slot_at(h, command->slot)->generation == command->generation)
			host_step(h, command->slot, CORE_NODE_LOST, n);
	}
	wire->watched = false;
	peer_connect_later(h, n);
}

/* Doubles from ttl/16 to ttl/2, less up to half. */
void
peer_connect_later(int h, int n)
{
	int *failures = &hosts[h].node[n].failures;
	int64_t pause_us = w.plan.ttl_us / 16 << (*failures < 3 ? *failures : 3);

	++*failures;
	later(w.now_us + pause_us / 2 + dice_us(pause_us / 2), EVENT_CONNECT, h, n, 0,
		  wire_at(h, n)->epoch);
}

void
peer_on_overdue(const event *event)
{
	wire *wire = wire_at(event->host, event->node);
	int64_t due_us;

	if (event->tag != wire->epoch)
		return;
	wire->watched = false;
	if (wire_in_flight(wire) == 0)
		return;
	due_us = wire->command[wire->head % WIRE_MAX].sent_us + w.plan.answer_us;
	if (host_now_us(event->host) >= due_us)
	{
		peer_lose(event->host, event->node, "no answer in time");
		return;
	}
	wire->watched = true;
	due_us = host_true_time_us(event->host, due_us);
	later(due_us > w.now_us ? due_us : w.now_us + 1, EVENT_OVERDUE, event->host, event->node, 0,
		  event->tag);
}

void
peer_on_greeted(const event *event)
{
	int h = event->host;
	int n = event->node;
	wire *wire = wire_at(h, n);

	if (event->tag != wire->epoch || wire->gone)
		return;
	if (is_twin(h, n))
	{
		tell("host %c: node %d is the same server as another", HOST_NAME(h), n + 1);
		wire_close(h, n);
		if (!w.calm)
			peer_connect_later(h, n);
		return;
	}
	wire->state = WIRE_UP;
	hosts[h].node[n].failures = 0;
	tell("host %c: node %d is ready", HOST_NAME(h), n + 1);
	review(h, n);
	for (int s = 0; s < SLOTS_MAX; s++)
		host_greet(h, s, n);
}

/*
 * find_twin of node.c.  Twins stay so until the other was greeted anew and is
 * another process, and this one still has the same: a process seen before and
 * after another was seen elsewhere is not that other.
 */
static bool
is_twin(int h, int n)
{
	host *host = &hosts[h];
	uint32_t run_id = wire_at(h, n)->facts.run_id;
	int other = host->node[n].twin;
	int twin = -1;

	if (other >= 0)
	{
		bool apart = wire_at(h, other)->state == WIRE_UP &&
					 host->node[other].greeted_us > host->node[n].twin_since_us &&
					 wire_at(h, other)->facts.run_id != host->node[n].twin_run_id &&
					 run_id == host->node[n].twin_run_id;

		if (!apart)
			twin = other;
	}
	for (int i = 0; i < w.plan.nodes && twin < 0; i++)
		if (i != n && wire_at(h, i)->state == WIRE_UP && wire_at(h, i)->facts.run_id == run_id)
			twin = i;
	if (twin >= 0 && (other < 0 || run_id != host->node[n].twin_run_id))
	{
		host->node[n].twin_since_us = host_now_us(h);
		host->node[n].twin_run_id = run_id;
	}
	host->node[n].twin = twin;
	host->node[n].greeted_us = host_now_us(h);
	return twin >= 0;
}

/* guard_review of guard.c */
static void
review(int h, int n)
{
	const facts *facts = &wire_at(h, n)->facts;
	uint32_t known = hosts[h].node[n].marker;
	bool new_process = hosts[h].node[n].run_id != facts->run_id;
	bool young = facts->uptime_s * SECOND < w.plan.max_ttl_us + UPTIME_SLACK_US;
	bool another = known != 0 && known != facts->marker;
	bool lost =
		another ? facts->marked != MARKED_LONG_LOST : known == 0 && facts->marked == MARKED_LOST;

	if ((new_process && young && !facts->durable) || lost)
	{
		seen.quarantines++;
		tell("host %c: node %d may have forgotten leases and must not vote: %s", HOST_NAME(h),
			 n + 1, lost ? "its marker is another" : "it restarted");
		hosts[h].node[n].until_us =
			host_now_us(h) + 2 * w.plan.max_ttl_us - core_validity_us(w.plan.max_ttl_us);
	}
	hosts[h].node[n].run_id = facts->run_id;
	hosts[h].node[n].marker = facts->marker;
}
