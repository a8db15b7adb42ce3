/*
 * reload.c
 *		The nodes of a host; see reload.h.
 *
 * Functions that model src/broker/members.c have the names from there.
 */
#include "reload.h"

#include <string.h>

#include "check.h"
#include "debt.h"
#include "host.h"
#include "operator.h"
#include "protocol/node_index.h"
#include "story.h"

/* Pause between attempts to put a list into force. */
#define RECONFIGURE_US (w.plan.ttl_us / 4)

static bool assign_indexes(int host, const list *list, int *place);
static void open_nodes(int host, const list *list, const int *place);
static void move_leases(int host);
static bool close_left_nodes(int host);
static NodeIndexUse index_use(int host);
static void close_left_node(int host, int node);

void
reload_on_reload(const event *event)
{
	/* a new broker reads the file anyway */
	if (!hosts[event->host].broker_down)
		reload_nodes(event->host);
}

bool
reload_is_done(int h)
{
	const list *list = operator_list(h);
	int found = 0;

	for (int n = 0; n < w.plan.places; n++)
		for (int i = 0; i < list->count; i++)
			found += (hosts[h].members & CORE_BIT(n)) != 0 &&
					 hosts[h].node[n].address == list->address[i];
	for (int n = 0; n < w.plan.places; n++)
		for (int i = 0; i < list->count; i++)
			if (hosts[h].node[n].address == list->address[i] && (hosts[h].members & CORE_BIT(n)) &&
				(((hosts[h].lists.now & CORE_BIT(n)) != 0) != list->now[i] ||
				 ((hosts[h].lists.next & CORE_BIT(n)) != 0) != list->next[i]))
				return false;
	return found == list->count && found == __builtin_popcount(hosts[h].members);
}

void
reload_nodes(int h)
{
	const list *list = operator_list(h);
	bool done = reload_is_done(h);
	int place[LIST_MAX];

	if ((w.plan.faults & FAULT_BIT(FAULT_RELOAD_NODES)) == 0)
		return;
	if (!assign_indexes(h, list, place))
	{
		tell("host %c: its redlock.nodes is not yet in force", HOST_NAME(h));
		seen.short_of_indexes++;
		later(w.now_us + RECONFIGURE_US, EVENT_RELOAD, h, 0, 0, 0);
		return;
	}
	if (!done)
	{
		seen.fault[FAULT_RELOAD_NODES]++;
		tell("host %c: its redlock.nodes is in force", HOST_NAME(h));
	}
	open_nodes(h, list, place);
	move_leases(h);
	if (!close_left_nodes(h))
		later(w.now_us + RECONFIGURE_US, EVENT_RELOAD, h, 0, 0, 0);
}

static bool
assign_indexes(int h, const list *list, int *place)
{
	host *host = &hosts[h];
	core_mask replaced = 0;

	for (int i = 0; i < list->count; i++)
	{
		place[i] = -1;
		for (int n = 0; n < w.plan.places; n++)
			if (host->node[n].in_use && host->node[n].address == list->address[i])
				place[i] = n;
	}
	if (!node_index_assign(index_use(h), w.plan.places, place, list->count, &host->members))
		return false;
	host->lists = (core_lists){0};
	for (int i = 0; i < list->count; i++)
	{
		host->lists.now |= list->now[i] ? CORE_BIT(place[i]) : 0;
		host->lists.next |= list->next[i] ? CORE_BIT(place[i]) : 0;
	}
	for (int i = 0; i < list->count; i++)
	{
		if (host->node[place[i]].in_use && host->node[place[i]].address != list->address[i])
			close_left_node(h, place[i]);
		if (!host->node[place[i]].in_use)
			replaced |= CORE_BIT(place[i]);
	}
	settling_set_lists(&host->settling, host->lists, replaced);
	for (int n = 0; n < w.plan.places; n++)
		host->node[n].leaving = host->node[n].in_use && !(host->members & CORE_BIT(n));
	return true;
}

static void
open_nodes(int h, const list *list, const int *place)
{
	for (int i = 0; i < list->count; i++)
	{
		int n = place[i];

		if (hosts[h].node[n].in_use)
			continue;
		/*
		 * A mutant that keeps the memory cannot be found from outside: another
		 * server has another run_id, so the guard assumes a restart and is
		 * more cautious.
		 */
		memset(&hosts[h].node[n], 0, sizeof(hosts[h].node[n]));
		hosts[h].node[n].in_use = true;
		hosts[h].node[n].address = list->address[i];
		w.server_of[h][n] = operator_server(list->address[i]);
		tell("host %c: node %d is server %d from now on", HOST_NAME(h), n + 1,
			 w.server_of[h][n] + 1);
		wire_connect(h, n);
	}
}

/* Moves requests to the new nodes, and gives leases the lists in force. */
static void
move_leases(int h)
{
	for (int s = 0; s < w.plan.entries; s++)
		seen.moved += core_must_move(&entry_at(h, s)->drive.core, hosts[h].lists);
	hosts[h].moves = true;
	(void) driver_follow_lists(&hosts[h].driver, host_now_us(h));
	hosts[h].moves = false;
}

/*
 * Closes nodes that serve no lease.  Returns true when no leaving node
 * remains.
 */
static bool
close_left_nodes(int h)
{
	core_mask done = node_index_to_leave(index_use(h), hosts[h].members);
	bool all_closed = true;

	for (int n = 0; n < w.plan.places; n++)
	{
		if (done & CORE_BIT(n))
			close_left_node(h, n);
		else if (hosts[h].node[n].in_use && hosts[h].node[n].leaving)
			all_closed = false;
	}
	return all_closed;
}

static NodeIndexUse
index_use(int h)
{
	NodeIndexUse use = {0};

	for (int s = 0; s < w.plan.entries; s++)
		if (entry_at(h, s)->in_use)
			use.leased |= core_served_by(&entry_at(h, s)->drive.core);
	for (int n = 0; n < w.plan.places; n++)
	{
		if (!hosts[h].node[n].in_use)
			continue;
		use.taken |= CORE_BIT(n);
		if (wire_in_flight(wire_at(h, n)) > 0)
			use.in_flight |= CORE_BIT(n);
	}
	return use;
}

static void
close_left_node(int h, int n)
{
	wire *wire = wire_at(h, n);

	tell("host %c: leaves node %d", HOST_NAME(h), n + 1);
	seen.left++;
	debt_left(h, n);
	if (wire->state != WIRE_DOWN)
		wire_close(h, n);
	else
		wire->epoch++; /* stops reconnecting */
	wire->watched = false;
	hosts[h].node[n].in_use = hosts[h].node[n].leaving = false;
}

void
reload_forget(int h)
{
	if ((w.plan.faults & FAULT_BIT(FAULT_RELOAD_NODES)) == 0)
		return;
	memset(hosts[h].node, 0, sizeof(hosts[h].node));
	hosts[h].members = 0;
	hosts[h].lists = (core_lists){0};
	hosts[h].settling = (Settling){0};
}
