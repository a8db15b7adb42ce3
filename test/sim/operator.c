/*
 * operator.c
 *		Changes of settings; see operator.h.
 *
 * redlock.max_ttl is raised on one host after the other, before a call uses
 * the new limit.  The operator lowers it when no lease is longer any more, and
 * the raised max_ttl has passed since.
 *
 * The prefix of keys changes at any time, on any host.  The same name then
 * means another lock.
 *
 * redlock.nodes changes by steps: one node is added, removed, or renamed.
 * During a step each host has either list, and may be given either at any
 * time: each majority of one list shares a server with each majority of the
 * other.  The next step begins when all hosts have one list in force, no lease
 * asked by the other list remains, and the longest max_ttl has passed since.
 *
 * With redlock.nodes_next (plan.joint) the new list is any list.  At first
 * each host has the old list or both.  When all hosts have both, and each
 * lease is on all lists, each host gets both or the new list.
 */
#include "operator.h"

#include "check.h"
#include "host.h"
#include "reload.h"
#include "story.h"

/* Addresses from here on are other names of the same servers. */
#define ALIAS SERVERS_MAX

enum
{
	OLD,
	NEW,
	BOTH
};

static struct
{
	list lists[3]; /* indexed by OLD, NEW, BOTH */
	bool settled;  /* joint: no host has the old list alone any more */
	bool under_way;
	int aim;            /* the list for all hosts in the end; -1: undecided */
	int has[HOSTS_MAX]; /* the index of each host's list */
	int64_t over_us;    /* when the last lease of the other list ended; 0: not yet */
} nodes;

static enum {
	LOW,
	RAISING, /* on one host after the other */
	HIGH,    /* calls may use the longer ttl */
	ENDING,  /* calls may not use it any more */
	LOWERING
} max_ttl;

static int64_t longest_over_us; /* ENDING: when the last longer lease ended; 0: not yet */

static void change_nodes(void);
static void change_prefix(int host);
static void change_max_ttl(void);
static bool give_max_ttl(int64_t max_ttl_us);
static bool is_longer_in_use(void);
static void begin_step(void);
static void begin_joint_step(void);
static void change_jointly(void);
static void join(void);
static bool all_have_aim(void);
static bool all_settled(void);
static void end_step(void);
static void give(int host, int which);
static bool is_over(void);
static void next_time(void);

void
operator_begin(void)
{
	nodes.under_way = false;
	nodes.lists[0].count = w.plan.nodes;
	for (int i = 0; i < w.plan.nodes; i++)
	{
		nodes.lists[0].address[i] = i;
		nodes.lists[0].now[i] = true;
		nodes.lists[0].next[i] = false;
	}
	for (int h = 0; h < w.plan.hosts; h++)
		nodes.has[h] = 0;
	if (w.plan.faults & (FAULT_BIT(FAULT_RELOAD_NODES) | FAULT_BIT(FAULT_RELOAD_PREFIX) |
						 FAULT_BIT(FAULT_RELOAD_TTL)))
		next_time();
	max_ttl = LOW;
}

static void
next_time(void)
{
	later(w.now_us + w.plan.ttl_us / 16 + dice_us(w.plan.ttl_us / 4), EVENT_OPERATOR, 0, 0, 0, 0);
}

const list *
operator_list(int host)
{
	return &nodes.lists[nodes.has[host]];
}

int
operator_server(int address)
{
	return address % ALIAS;
}

void
operator_acts(void)
{
	if (w.calm)
		return;
	next_time();
	if ((w.plan.faults & FAULT_BIT(FAULT_RELOAD_NODES)) && w.secrets < MOVED_MAX)
		change_nodes();
	if ((w.plan.faults & FAULT_BIT(FAULT_RELOAD_PREFIX)) && chance(3))
		change_prefix((int) dice((uint32_t) w.plan.hosts));
	if (w.plan.faults & FAULT_BIT(FAULT_RELOAD_TTL))
		change_max_ttl();
}

bool
operator_allows_longer(void)
{
	return max_ttl == HIGH;
}

static void
change_max_ttl(void)
{
	int64_t high_us = w.plan.longer * w.plan.max_ttl_us;

	switch (max_ttl)
	{
		case LOW:
			max_ttl = RAISING;
			break;
		case RAISING:
			if (!give_max_ttl(high_us))
				max_ttl = HIGH;
			break;
		case HIGH:
			if (chance(8))
				max_ttl = ENDING;
			longest_over_us = 0;
			break;
		case ENDING:
			if (is_longer_in_use())
				longest_over_us = 0;
			else if (longest_over_us == 0)
				longest_over_us = w.now_us;
			else if (w.now_us - longest_over_us > high_us + high_us / 50)
				max_ttl = LOWERING;
			break;
		case LOWERING:
			if (!give_max_ttl(w.plan.max_ttl_us))
				max_ttl = LOW;
			break;
	}
}

/*
 * Gives max_ttl_us to the next host with another value.  Returns whether there
 * was such a host.
 */
static bool
give_max_ttl(int64_t max_ttl_us)
{
	for (int h = 0; h < w.plan.hosts; h++)
		if (hosts[h].max_ttl_us != max_ttl_us)
		{
			seen.fault[FAULT_RELOAD_TTL]++;
			hosts[h].max_ttl_us = max_ttl_us;
			hosts[h].max_ttl_since_us = w.now_us;
			tell("operator: host %c gets a redlock.max_ttl of %.3f ms", HOST_NAME(h),
				 (double) max_ttl_us / 1000);
			return true;
		}
	return false;
}

/* As redlock_locks shows on all hosts. */
static bool
is_longer_in_use(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
			if (entry_at(h, s)->in_use && entry_at(h, s)->wish != WISH_NOTHING &&
				entry_at(h, s)->ttl_us > w.plan.ttl_us)
				return true;
	return false;
}

static void
change_prefix(int h)
{
	seen.fault[FAULT_RELOAD_PREFIX]++;
	hosts[h].prefix = 1 - hosts[h].prefix;
	tell("operator: host %c gets the %s redlock.key_prefix", HOST_NAME(h),
		 hosts[h].prefix == 1 ? "second" : "first");
}

static void
change_nodes(void)
{
	int64_t longest_us = w.plan.longer * w.plan.max_ttl_us;

	if (!nodes.under_way && w.plan.joint)
		begin_joint_step();
	else if (!nodes.under_way)
		begin_step();
	else if (w.plan.joint)
		change_jointly();
	else if (nodes.aim < 0)
	{
		give((int) dice((uint32_t) w.plan.hosts), (int) dice(2));
		if (chance(4))
			nodes.aim = chance(4) ? 0 : 1;
	}
	else
	{
		if (!all_have_aim())
			return;
		if (!is_over())
			nodes.over_us = 0;
		else if (nodes.over_us == 0)
			nodes.over_us = w.now_us;
		else if (w.now_us - nodes.over_us > longest_us + longest_us / 50)
			end_step();
	}
}

static void
end_step(void)
{
	nodes.under_way = false;
	seen.replaced_lists += w.plan.joint && nodes.aim == NEW;
	nodes.lists[0] = nodes.lists[nodes.aim];
	for (int h = 0; h < w.plan.hosts; h++)
		nodes.has[h] = 0;
	tell("operator: nothing is left of another redlock.nodes");
	/* tokens from before and after the step are in order by clocks alone */
	check_relisted();
}

/* Gives the list to one host without it.  Returns true if all hosts have it. */
static bool
all_have_aim(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
		if (nodes.has[h] != nodes.aim)
		{
			give(h, nodes.aim);
			return false;
		}
	return true;
}

static void
change_jointly(void)
{
	if (nodes.aim < 0)
	{
		give((int) dice((uint32_t) w.plan.hosts), chance(2) ? BOTH : nodes.settled ? NEW : OLD);
		if (chance(4))
			nodes.aim = nodes.settled ? NEW : chance(4) ? OLD : BOTH;
	}
	else if (!all_have_aim())
		return;
	else if (nodes.aim == BOTH)
	{
		if (!all_settled())
			return;
		tell("operator: all leases are on both lists");
		seen.settled++;
		nodes.settled = true;
		nodes.aim = -1;
		check_relisted(); /* from now on the new list may be asked alone */
	}
	else if (is_over())
		end_step();
}

/* As redlock_stats.unsettled and kept_until show. */
static bool
all_settled(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
	{
		if (!reload_is_done(h) || host_now_us(h) < hosts[h].settling.unsettled_until_us)
			return false;
		for (int s = 0; s < w.plan.entries; s++)
			if (entry_at(h, s)->in_use &&
				!settling_on_all_lists(&hosts[h].settling, &entry_at(h, s)->drive.core))
				return false;
	}
	return true;
}

/*
 * The new list is random.  Servers have their first names, so a server of both
 * lists has one address.
 */
static void
begin_joint_step(void)
{
	list *new = &nodes.lists[NEW];
	core_mask listed = 0;

	nodes.under_way = true;
	nodes.settled = false;
	nodes.aim = -1;
	new->count = 0;
	while (new->count < 1 + (int) dice((uint32_t) w.plan.nodes))
	{
		int server = (int) dice((uint32_t) w.plan.servers);

		if (listed & CORE_BIT(server))
			continue;
		listed |= CORE_BIT(server);
		new->address[new->count] = server;
		new->now[new->count] = true;
		new->next[new->count++] = false;
	}
	join();
	tell("operator: a step begins: %d nodes, of which %d are new", new->count,
		 nodes.lists[BOTH].count - nodes.lists[OLD].count);
}

static void
join(void)
{
	list *both = &nodes.lists[BOTH];

	*both = nodes.lists[OLD];
	for (int i = 0; i < nodes.lists[NEW].count; i++)
	{
		int at = 0;

		while (at < both->count && both->address[at] != nodes.lists[NEW].address[i])
			at++;
		if (at == both->count)
		{
			both->address[both->count] = nodes.lists[NEW].address[i];
			both->now[both->count++] = false;
		}
		both->next[at] = true;
	}
}

static void
begin_step(void)
{
	const list *old = &nodes.lists[0];
	list *new = &nodes.lists[1];
	int at = (int) dice((uint32_t) old->count);
	core_mask listed = 0;

	for (int i = 0; i < old->count; i++)
		listed |= CORE_BIT(operator_server(old->address[i]));
	*new = *old;
	nodes.under_way = true;
	nodes.aim = -1;
	nodes.over_us = 0;
	if (chance(3))
	{
		new->address[at] = (old->address[at] + ALIAS) % (2 * ALIAS);
		tell("operator: a step begins: server %d gets another name",
			 operator_server(old->address[at]) + 1);
	}
	else if (old->count > w.plan.nodes || (old->count > 1 && chance(3)))
	{
		new->address[at] = new->address[--new->count];
		tell("operator: a step begins: server %d is removed",
			 operator_server(old->address[at]) + 1);
	}
	else
	{
		int server = 0;

		while (listed & CORE_BIT(server))
			server++;
		new->now[new->count] = true;
		new->next[new->count] = false;
		new->address[new->count++] = server;
		tell("operator: a step begins: server %d is added", server + 1);
	}
}

static void
give(int h, int which)
{
	if (nodes.has[h] == which)
		return;
	nodes.has[h] = which;
	tell("operator: host %c gets the %s redlock.nodes", HOST_NAME(h),
		 which == 0   ? "old"
		 : which == 1 ? "new"
					  : "old and the new");
	later(w.now_us + dice_us(w.plan.delay_us), EVENT_RELOAD, h, 0, 0, 0);
}

/* The query of docs/how-to/add-or-remove-a-node.md, on all hosts. */
static bool
is_over(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
	{
		if (!reload_is_done(h))
			return false;
		for (int s = 0; s < w.plan.entries; s++)
			if (entry_at(h, s)->in_use && entry_at(h, s)->drive.core.state != CORE_FREE &&
				(entry_at(h, s)->drive.core.lists.now != hosts[h].lists.now ||
				 entry_at(h, s)->drive.core.lists.next != hosts[h].lists.next))
				return false;
	}
	return true;
}
