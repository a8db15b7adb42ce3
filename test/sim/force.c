/*
 * force.c
 *		Forced releases; see force.h.
 *
 * protocol/force_release.c decides.  The commands do not use the connections
 * of wire.c.  So a command may overtake any other command, and may come after
 * the verdict.  An answer is lost if its connection was closed in between.
 *
 * Invariant 23 demands of a complete forced release, for each lease granted
 * before the last look at the lock:
 *
 * - A majority of the nodes has executed the command.
 * - Where a majority showed a holder at the look, no other request's key is
 *   deleted, not even by late commands.
 * - No majority renews the lease any more, also by late commands.
 * - Later grants have tokens above all tokens of the lease.
 * - Without delays of messages (plan.prompt): each forced release of a held
 *   lock is complete, unless the holder or another administrator releases the
 *   lock first, or the time of a kept key ends.  The holder loses the lease
 *   within HEARS_US.
 */
#include "force.h"

#include <stdio.h>
#include <string.h>

#include "check.h"
#include "debt.h"
#include "fault.h"
#include "host.h"
#include "protocol/force_release.h"
#include "story.h"
#include "wire.h"
#include "word.h"

#define FORCES_MAX 2
#define ORDERS_MAX 128

/* The message, the rest of a round of renewals, and one more round. */
#define HEARS_US (10 * w.plan.delay_us + 2 * MS)

/* A command for a node, then its answer. */
typedef struct order
{
	bool used;
	int force;
	uint32_t number; /* of the question */
	int host;
	int node;
	int server;
	uint32_t run_id;
	uint32_t epoch; /* of the connection */
	int resource;
	bool forgetful; /* the node was in quarantine at the send */
	bool looks;
	uint32_t secret; /* as `shown` below, when the command was sent */
	ForceRelease what;
	Inspected answer;
} order;

/* A session that releases a lock. */
static struct force
{
	bool used;
	int host;
	int resource;
	uint32_t number; /* of its last question; no two of a schedule are equal */
	int64_t broker_began_us;
	bool looks; /* the first question only looks */
	int64_t looked_us;
	bool unclear; /* at the look no majority had one lock, or another key was at a node */
	bool over;    /* the holder or a reader, or another administrator, has released the lock */
	int64_t kept_until_us; /* of a lock that was released before; else INT64_MAX */
	uint32_t shown;        /* the request whose keys a majority had; 0: none, or readers */
	core_lists lists;
	uint32_t forgets;   /* losses of counters before the last question */
	core_mask waiting;  /* nodes that owe an answer */
	core_mask executed; /* nodes that have executed the last question */
	ForceRelease release;
	Inspected node[CORE_NODES_MAX];
} forces[FORCES_MAX];

static order orders[ORDERS_MAX];
static uint32_t numbers;

/* by request */
static struct
{
	core_mask taken;   /* servers where a forced release has deleted its key */
	uint32_t kept;     /* losses of counters before the last such deletion */
	bool over;         /* a complete forced release has ended its lease */
	uint32_t forgets;  /* losses of counters before the commands of that release */
	core_mask renewed; /* servers that have renewed its key since */
} requests[SECRETS_MAX];

/* by lock, at the lock's last complete forced release */
static struct
{
	int64_t at_us; /* 0: never */
	int64_t floor; /* the largest token of all leases that forced releases have ended */
	uint32_t forgets;
} ended[RESOURCES_MAX];

static bool goes_on(struct force *force);
static void ask(struct force *force);
static bool send_order(const struct force *force, int node);
static bool may_vote(int h, int n);
static int64_t way_us(void);
static void execute(order *order);
static void take(const order *order, const node_data *before);
static void take_from(uint32_t secret, const order *order);
static uint32_t shown_at_look(const struct force *force);
static void end_if_done(struct force *force);
static void tell_holders(const struct force *force);
static void end(struct force *force, ForceVerdict verdict);
static void end_leases(const struct force *force);

void
force_reset(void)
{
	numbers = 0;
	memset(requests, 0, sizeof(requests));
	memset(ended, 0, sizeof(ended));
	for (int i = 0; i < FORCES_MAX; i++)
		forces[i].used = false;
	for (int i = 0; i < ORDERS_MAX; i++)
		orders[i].used = false;
}

void
force_release(int h, int resource)
{
	int i = 0;

	while (i < FORCES_MAX && forces[i].used)
		i++;
	if (i == FORCES_MAX || hosts[h].broker_down)
		return;
	seen.fault[FAULT_FORCE]++;
	tell("host %c: an administrator releases lock %d by force", HOST_NAME(h), resource + 1);
	forces[i] = (struct force){.used = true,
							   .host = h,
							   .resource = resource,
							   .looks = true,
							   .broker_began_us = hosts[h].broker_began_us};
	ask(&forces[i]);
}

bool
force_all_idle(void)
{
	for (int i = 0; i < FORCES_MAX; i++)
		if (forces[i].used)
			return false;
	for (int i = 0; i < ORDERS_MAX; i++)
		if (orders[i].used)
			return false;
	return true;
}

/* A new broker does not repeat the question of another broker: the session gets an error. */
static bool
goes_on(struct force *force)
{
	if (force->used && (w.calm || hosts[force->host].broker_down ||
						hosts[force->host].broker_began_us != force->broker_began_us))
		end(force, FORCE_FAILED);
	return force->used;
}

/* begin() of inspector.c */
static void
ask(struct force *force)
{
	int h = force->host;
	int64_t over_us = host_true_time_us(h, host_now_us(h) + w.plan.answer_us);

	force->lists = hosts[h].lists;
	force->number = ++numbers;
	force->forgets = check_forgets(force->resource);
	force->waiting = force->executed = 0;
	memset(force->node, 0, sizeof(force->node));
	if (force->looks)
		force->looked_us = w.now_us;
	for (int n = 0; n < w.plan.places; n++)
		if ((hosts[h].members & CORE_BIT(n)) && wire_can_send(h, n) && send_order(force, n))
			force->waiting |= CORE_BIT(n);
	later(over_us > w.now_us ? over_us : w.now_us, EVENT_FORCE_OVER, h, 0, (int) (force - forces),
		  force->number);
}

static bool
send_order(const struct force *force, int n)
{
	int h = force->host;
	int64_t at_us = w.cut_to_us[h][n] > w.now_us ? w.cut_to_us[h][n] : w.now_us;

	for (int i = 0; i < ORDERS_MAX; i++)
	{
		if (orders[i].used)
			continue;
		orders[i] = (order){.used = true,
							.force = (int) (force - forces),
							.number = force->number,
							.host = h,
							.node = n,
							.server = w.server_of[h][n],
							.run_id = server_at(h, n)->run_id,
							.epoch = wire_at(h, n)->epoch,
							.resource = force->resource,
							.forgetful = !may_vote(h, n),
							.looks = force->looks,
							.secret = force->shown,
							.what = force->release};
		later(at_us + way_us(), EVENT_FORCE, h, n, 0, (uint32_t) i);
		return true;
	}
	return false;
}

/* A node READY, to the broker. */
static bool
may_vote(int h, int n)
{
	return wire_at(h, n)->state == WIRE_UP &&
		   guard_may_vote(&hosts[h].node[n].guard, host_now_us(h));
}

static int64_t
way_us(void)
{
	int64_t us = w.plan.delay_us / 2 + dice_us(w.plan.delay_us);

	if (may(FAULT_DELAY) && chance(4))
		us += chance(2) ? dice_us(2 * w.plan.ttl_us) : dice_us(w.plan.answer_us);
	return us;
}

void
force_on_arrive(const event *event)
{
	order *order = &orders[event->tag];
	server *server = &w.server[order->server];
	int64_t back_us = w.cut_from_us[order->host][order->node];

	if (server->paused_until_us > w.now_us && server->run_id == order->run_id)
	{
		later(server->paused_until_us, EVENT_FORCE, order->host, order->node, 0, event->tag);
		return;
	}
	if (server->run_id != order->run_id || w.calm || (may(FAULT_LOSS) && chance(20)))
	{
		order->used = false;
		return;
	}
	execute(order);
	later((back_us > w.now_us ? back_us : w.now_us) + way_us(), EVENT_FORCED, order->host,
		  order->node, 0, event->tag);
}

static void
execute(order *order)
{
	server *server = &w.server[order->server];
	node_data *data = &server->data.lock[order->resource];
	struct force *force = &forces[order->force];
	char held[LUA_HELD_MAX + 1];
	node_order what = {.looks = order->looks,
					   .held = held,
					   .held_is_text = true,
					   .least = order->what.least,
					   .value = order->what.value,
					   .value_len = order->what.value_len};
	node_data before;

	memset(&order->answer, 0, sizeof(order->answer));
	if (may(FAULT_ERROR) && chance(10))
	{
		order->answer.kind = INSPECTED_ERROR;
		return;
	}
	wire_save(server);
	wire_expire(order->server, order->resource);
	before = *data;
	if (fault_is_plain(node_number(data->secret)))
		snprintf(held, sizeof(held), "plain %u", node_number(data->secret));
	else
		node_write_value(held, sizeof(held), data);
	if (node_force(data, server_clock_us(server), &what, &order->answer))
		word_freed(order->server, order->resource);
	wire_text(order->answer.marker, (uint32_t) server->data.mark.text);
	if (order->looks)
		return;
	tell("node %d executes, for host %c: release lock %d by force%s: %s", order->node + 1,
		 HOST_NAME(order->host), order->resource + 1,
		 what.value_len > 0 ? ", if the key is as before" : "",
		 order->answer.forced ? "done" : "another key is there");
	debt_forced(order->server, order->resource);
	if (order->answer.forced && local_has_key(&before))
		take(order, &before);
	if (force->used && force->number == order->number)
		force->executed |= CORE_BIT(order->node);
}

/* Notes the requests whose keys were deleted. */
static void
take(const order *order, const node_data *before)
{
	check_demand(FORCED,
				 order->secret == 0 || before->shared ||
					 node_number(before->secret) == order->secret,
				 "host %c deletes the key of request %u, and looked at request %u",
				 HOST_NAME(order->host), node_number(before->secret), order->secret);
	fault_plain_forced(node_number(before->secret));
	take_from(node_number(before->secret), order);
	for (int i = 0; before->shared && i < before->readers; i++)
		take_from(node_number(before->reader[i].secret), order);
}

static void
take_from(uint32_t secret, const order *order)
{
	requests[secret].taken |= CORE_BIT(order->server);
	requests[secret].kept = check_forgets(order->resource);
}

/* inspector_hear() */
void
force_on_answer(const event *event)
{
	order order = orders[event->tag];
	struct force *force = &forces[order.force];
	const wire *wire = wire_at(order.host, order.node);
	Inspected *at = &force->node[order.node];

	orders[event->tag].used = false;
	if (!goes_on(force) || force->number != order.number ||
		!(force->waiting & CORE_BIT(order.node)) || wire->epoch != order.epoch || wire->gone)
		return;
	*at = order.answer;
	at->may_have_forgotten =
		order.forgetful || !may_vote(order.host, order.node) ||
		strcmp(at->marker, hosts[order.host].node[order.node].guard.marker) != 0;
	force->waiting &= ~CORE_BIT(order.node);
	end_if_done(force);
}

void
force_on_over(const event *event)
{
	struct force *force = &forces[event->entry];

	if (!goes_on(force) || force->number != event->tag)
		return;
	force->waiting = 0;
	end_if_done(force);
}

static void
end_if_done(struct force *force)
{
	ForceVerdict verdict;
	Inspection inspection;

	if (force->waiting != 0)
		return;
	if (force->looks)
	{
		force->looks = false;
		inspection_judge(&inspection, force->lists, force->node, false);
		force->unclear = inspection.state != INSPECTION_HELD && inspection.state != INSPECTION_KEPT;
		for (int n = 0; n < w.plan.places; n++)
			if (force->node[n].kind == INSPECTED_STRING && !(inspection.nodes & CORE_BIT(n)))
				force->unclear = true;
		force->kept_until_us = inspection.state == INSPECTION_KEPT
								   ? force->looked_us + inspection.ttl_ms * MS
								   : INT64_MAX;
		force->shown = shown_at_look(force);
		force_begin(&force->release, force->lists, force->node, false, host_wall_us(force->host),
					dice(FORCE_SPREAD));
		ask(force);
		return;
	}
	tell_holders(force);
	verdict = force_judge(&force->release, force->lists, force->node);
	if (verdict == FORCE_AGAIN)
	{
		seen.forced_again++;
		tell("host %c: another round is needed", HOST_NAME(force->host));
		ask(force);
	}
	else
		end(force, verdict);
}

/* The request that a majority shows; readers and plain clients count as none. */
static uint32_t
shown_at_look(const struct force *force)
{
	for (int n = 0; n < w.plan.places; n++)
	{
		core_mask same = 0;
		unsigned secret;

		if (force->node[n].kind != INSPECTED_STRING ||
			sscanf(force->node[n].value, "%32x:", &secret) != 1)
			continue;
		for (int other = 0; other < w.plan.places; other++)
			if (force->node[other].kind == INSPECTED_STRING &&
				strncmp(force->node[other].value, force->node[n].value, 33) == 0 &&
				force->node[other].value[59] != LUA_SHARED[0])
				same |= CORE_BIT(other);
		if (core_has_quorum(force->lists, same))
			return secret;
	}
	return 0;
}

static void
tell_holders(const struct force *force)
{
	uint64_t to[INSPECTION_HOSTS_MAX];
	int count = inspection_hosts(force->node, true, to);

	for (int i = 0; i < count; i++)
		for (int n = 0; n < w.plan.places; n++)
			if (wire_at(force->host, n)->state == WIRE_UP)
				word_forced(force->host, n, force->resource, to[i]);
}

/* The session gets the verdict. */
static void
end(struct force *force, ForceVerdict verdict)
{
	int h = force->host;

	force->used = false;
	tell("host %c: lock %d is %sreleased by force", HOST_NAME(h), force->resource + 1,
		 verdict == FORCE_DONE ? "" : "not ");
	if (w.calm)
		return;
	check_demand(FORCED,
				 verdict == FORCE_DONE || !w.plan.prompt || force->unclear || force->over ||
					 w.now_us >= force->kept_until_us,
				 "host %c can't release lock %d by force, though all nodes are well", HOST_NAME(h),
				 force->resource + 1);
	if (verdict != FORCE_DONE)
	{
		seen.forced_failed++;
		return;
	}
	seen.forced++;
	for (int i = 0; i < FORCES_MAX; i++)
		if (forces[i].used && forces[i].resource == force->resource)
			forces[i].over = true;
	check_demand(FORCED, core_has_quorum(force->lists, force->executed),
				 "host %c takes lock %d as released, by a minority of the nodes", HOST_NAME(h),
				 force->resource + 1);
	if (w.plan.guarded)
		end_leases(force);
}

static void
end_leases(const struct force *force)
{
	int r = force->resource;

	if (ended[r].forgets != check_forgets(r))
		ended[r].floor = 0; /* the counters that kept the tokens of former leases are lost */
	ended[r].at_us = w.now_us;
	ended[r].forgets = force->forgets;
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
		{
			const entry *entry = entry_at(h, s);

			if (!entry->in_use || entry->resource != r || entry->drive.core.state != CORE_HELD ||
				entry->check.granted_true_us > force->looked_us)
				continue;
			seen.forced_over++;
			requests[entry->secret].over = true;
			requests[entry->secret].forgets = force->forgets;
			requests[entry->secret].renewed = 0;
			if (ended[r].floor < entry->drive.core.bound)
				ended[r].floor = entry->drive.core.bound;
			if (w.plan.prompt)
				later(w.now_us + HEARS_US, EVENT_FORCE_LATE, h, 0, s, entry->secret);
		}
}

void
force_on_late(const event *event)
{
	const entry *entry = entry_at(event->host, event->entry);

	check_demand(FORCED,
				 !entry->in_use || entry->secret != event->tag || entry->wish == WISH_NOTHING ||
					 entry->drive.core.state != CORE_HELD,
				 "host %c holds request %u, and has not heard of the forced release",
				 HOST_NAME(event->host), event->tag);
}

void
force_on_release(int h, int s)
{
	const entry *entry = entry_at(h, s);

	for (int i = 0; i < FORCES_MAX; i++)
		if (forces[i].used && forces[i].resource == entry->resource &&
			(forces[i].looks || forces[i].shown == 0 || forces[i].shown == entry->secret))
			forces[i].over = true;
}

bool
force_took(uint32_t secret)
{
	return requests[secret].taken != 0;
}

void
force_releases(int server, const command *command)
{
	if (requests[command->secret].kept == check_forgets(command->resource))
		requests[command->secret].taken &= ~CORE_BIT(server);
}

void
force_on_renewal(int server, const command *command)
{
	const entry *entry = entry_at(command->host, command->entry);
	core_lists lists = entry->drive.core.lists;

	if (!requests[command->secret].over || entry->secret != command->secret ||
		entry->drive.core.state != CORE_HELD ||
		requests[command->secret].forgets != check_forgets(command->resource))
		return;
	if (!entry->drive.core.settled)
		lists.next = 0;
	requests[command->secret].renewed |= CORE_BIT(server);
	check_demand(FORCED, !check_is_quorum(command->host, lists, requests[command->secret].renewed),
				 "a majority renews request %u of host %c, which was released by force",
				 command->secret, HOST_NAME(command->host));
}

void
force_on_grant(int h, int s)
{
	const entry *entry = entry_at(h, s);
	int r = entry->resource;

	if (ended[r].at_us == 0 || entry->check.began_true_us < ended[r].at_us ||
		ended[r].forgets != check_forgets(r))
		return;
	check_demand(FORCED, entry->drive.core.token - LUA_SPAN + 1 > ended[r].floor,
				 "request %u of host %c is granted tokens of a lease that was released by force",
				 entry->secret, HOST_NAME(h));
}
