/*
 * peer.c
 *		A broker's connections to nodes; see peer.h.
 */
#include "peer.h"

#include "story.h"
#include "wire.h"

static void replace(int host, int node);
static GuardVerdict ask_guard(int host, int node);

/*
 * Closes a connection.  The fate of unanswered commands is unknown: executed,
 * lost, or still to be executed.
 */
void
peer_lose(int h, int n, const char *why)
{
	wire *wire = wire_at(h, n);

	if (wire->state == WIRE_DOWN)
		return;
	tell("host %c: drops its connection to node %d: %s", HOST_NAME(h), n + 1, why);
	wire_close(h, n);
	for (uint32_t i = wire->head; i != wire->tail; i++)
		host_on_lost(h, n, &wire->command[i % WIRE_MAX], false);
	wire->watched = false;
	peer_connect_later(h, n);
}

/*
 * The node may be slow, or the connection dead.  Connects again, without
 * telling the cores of questions that a round waits for.
 */
static void
replace(int h, int n)
{
	wire *wire = wire_at(h, n);

	tell("host %c: replaces its connection to node %d", HOST_NAME(h), n + 1);
	seen.replaced++;
	wire_close(h, n);
	for (uint32_t i = wire->head; i != wire->tail; i++)
		host_on_lost(h, n, &wire->command[i % WIRE_MAX], true);
	wire->watched = false;
	later(w.now_us + 1, EVENT_CONNECT, h, n, 0, wire->epoch);
}

/* Pauses double from ttl/16 to ttl/2, less up to half. */
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
	if (!w.plan.faultless && !w.plan.prompt && !w.calm && chance(4))
	{
		replace(event->host, event->node);
		return;
	}
	wire->watched = true;
	due_us = host_true_time_us(event->host, due_us);
	later(due_us > w.now_us ? due_us : w.now_us + 1, EVENT_OVERDUE, event->host, event->node, 0,
		  event->tag);
}

void
peer_on_handshake(const event *event)
{
	int h = event->host;
	int n = event->node;
	wire *wire = wire_at(h, n);
	GuardVerdict verdict;

	if (event->tag != wire->epoch || wire->gone)
		return;
	verdict = ask_guard(h, n);
	if (hosts[h].node[n].guard.twin != 0)
	{
		tell("host %c: node %d is the same server as another", HOST_NAME(h), n + 1);
		wire_close(h, n);
		/* when the other name has left, this one is no twin */
		if (!w.calm || hosts[h].node[hosts[h].node[n].guard.twin - 1].leaving)
			peer_connect_later(h, n);
		return;
	}
	wire->state = WIRE_UP;
	hosts[h].node[n].failures = 0;
	tell("host %c: node %d is ready", HOST_NAME(h), n + 1);
	if (verdict != GUARD_AS_BEFORE)
	{
		seen.quarantines++;
		tell("host %c: node %d may have forgotten leases and must not vote: %s", HOST_NAME(h),
			 n + 1, verdict == GUARD_FORGOT ? "its marker is another" : "it restarted");
	}
	driver_on_node_ready(&hosts[h].driver, n, host_now_us(h));
}

static GuardVerdict
ask_guard(int h, int n)
{
	GuardMemory *memories[CORE_NODES_MAX] = {NULL};

	for (int i = 0; i < w.plan.places; i++)
		if (hosts[h].node[i].in_use)
			memories[i] = &hosts[h].node[i].guard;
	return guard_meet(memories, n, &wire_at(h, n)->facts, hosts[h].max_ttl_us, host_now_us(h));
}
