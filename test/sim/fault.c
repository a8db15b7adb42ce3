/*
 * fault.c
 *		Faults at their own time; see fault.h.  wire.c injects the faults of
 *		messages, at sending or execution.
 */
#include "fault.h"

#include <string.h>

#include "check.h"
#include "debt.h"
#include "force.h"
#include "host.h"
#include "protocol/lua.h"
#include "protocol/rules.h"
#include "session.h"
#include "story.h"
#include "wire.h"

/* The plain client's actions at EVENT_PLAIN, in event.entry. */
enum
{
	PLAIN_SET,
	PLAIN_DECIDE,
	PLAIN_DELETE
};

static struct
{
	uint32_t secret; /* 0: the client is idle */
	int resource;
	int64_t began_us;
	int64_t valid_until_us;
	core_mask yes;
	bool forced;            /* some of its keys were deleted by force */
	bool used[SECRETS_MAX]; /* secrets */
} plain;

static void inject(fault fault);
static int64_t for_us(int64_t most_us);
static void cut(int host, int node, bool to, int64_t until_us);
static void partition(void);
static void restart(fault fault);
static void restart_server(int server, fault fault);
static void step_at_boot(int server);
static void start_anew(int server, int64_t down_us, bool silent);
static void roll(void);
static void stop_broker(int host);
static void flush(int server);
static void set_node_clock(bool forward);
static void set_wall_clock(int host);
static void lose_vote(int host, int entry, int node, int holder, int held);
static bool is_under_way(int host, int node);
static void evict(int server, int resource);
static void suspend(int host, int64_t for_us);
static void silence(void);
static void plain_begins(int resource);

void
fault_begin(void)
{
	plain.secret = 0;
	plain.valid_until_us = 0;
	memset(plain.used, 0, sizeof(plain.used));
	later(w.calm_at_us, EVENT_CALM, 0, 0, 0, 0);
	if (w.plan.faults != 0)
		later(w.now_us + dice_us(w.plan.fault_every_us), EVENT_FAULT, 0, 0, 0, 0);
}

void
fault_happens(void)
{
	static const uint64_t timely =
		FAULT_BIT(FAULT_CUT) | FAULT_BIT(FAULT_PARTITION) | FAULT_BIT(FAULT_RESET) |
		FAULT_BIT(FAULT_NODE_PAUSE) | FAULT_BIT(FAULT_RESTART) | FAULT_BIT(FAULT_RESTART_LOST) |
		FAULT_BIT(FAULT_ROLLBACK) | FAULT_BIT(FAULT_FLUSH) | FAULT_BIT(FAULT_NODE_FORWARD) |
		FAULT_BIT(FAULT_NODE_BACK) | FAULT_BIT(FAULT_WALL_JUMP) | FAULT_BIT(FAULT_HOST_PAUSE) |
		FAULT_BIT(FAULT_BROKER) | FAULT_BIT(FAULT_CRASH) | FAULT_BIT(FAULT_PLAIN) |
		FAULT_BIT(FAULT_STRANGER) | FAULT_BIT(FAULT_EVICT) | FAULT_BIT(FAULT_SUSPEND) |
		FAULT_BIT(FAULT_DROP) | FAULT_BIT(FAULT_NOSCRIPT) | FAULT_BIT(FAULT_SILENCE) |
		FAULT_BIT(FAULT_SERVER) | FAULT_BIT(FAULT_ROLLING) | FAULT_BIT(FAULT_FORCE);
	uint64_t left = w.plan.faults & timely;
	int which;

	if (w.calm || left == 0)
		return;
	which = (int) dice((uint32_t) __builtin_popcountll(left));
	for (; which > 0; which--)
		left &= left - 1;
	inject((fault) __builtin_ctzll(left));
	later(w.now_us + w.plan.fault_every_us / 2 + dice_us(w.plan.fault_every_us), EVENT_FAULT, 0, 0,
		  0, 0);
}

static void
inject(fault fault)
{
	int host = (int) dice((uint32_t) w.plan.hosts);
	int node = host_node(host, (int) dice((uint32_t) w.plan.places));
	int resource = (int) dice((uint32_t) w.plan.resources);
	int64_t time_us = for_us(2 * w.plan.ttl_us);
	server *server = server_at(host, node);

	/* these faults count themselves, if they have an effect */
	if (fault != FAULT_CRASH && fault != FAULT_PLAIN && fault != FAULT_RESTART &&
		fault != FAULT_RESTART_LOST && fault != FAULT_ROLLBACK && fault != FAULT_STRANGER &&
		fault != FAULT_EVICT && fault != FAULT_SUSPEND && fault != FAULT_SILENCE &&
		fault != FAULT_ROLLING && fault != FAULT_BROKER && fault != FAULT_FORCE)
		seen.fault[fault]++;
	switch (fault)
	{
		case FAULT_CUT:
			cut(host, node, chance(2), w.now_us + time_us);
			break;
		case FAULT_PARTITION:
			partition();
			break;
		case FAULT_RESET:
			tell("network: the connection of host %c to node %d is reset", HOST_NAME(host),
				 node + 1);
			wire_break(host, node, true, chance(4));
			break;
		case FAULT_NODE_PAUSE:
			tell("node %d: stops for %.3f ms", w.server_of[host][node] + 1,
				 (double) time_us / 1000);
			server->paused_until_us = w.now_us + time_us;
			break;
		case FAULT_RESTART:
		case FAULT_RESTART_LOST:
		case FAULT_ROLLBACK:
			restart(fault);
			break;
		case FAULT_FLUSH:
			flush(w.server_of[host][node]);
			if (chance(8))
				for (int i = 0; i < w.plan.servers; i++)
					flush(i);
			break;
		case FAULT_NODE_FORWARD:
			set_node_clock(true);
			break;
		case FAULT_NODE_BACK:
			set_node_clock(false);
			break;
		case FAULT_WALL_JUMP:
			set_wall_clock(host);
			break;
		case FAULT_HOST_PAUSE:
			tell("host %c: stops for %.3f ms", HOST_NAME(host), (double) time_us / 1000);
			host_pause(host, time_us);
			break;
		case FAULT_BROKER:
			stop_broker(host);
			break;
		case FAULT_SERVER:
			tell("host %c: its server crashes, and starts with nothing", HOST_NAME(host));
			host_restart(host, for_us(w.plan.ttl_us));
			break;
		case FAULT_CRASH:
			session_crash(host);
			break;
		case FAULT_PLAIN:
			plain_begins(resource);
			break;
		case FAULT_STRANGER:
			if (!local_has_key(&server->data.lock[resource]))
				break;
			seen.fault[FAULT_STRANGER]++;
			tell("a stranger: deletes the key at node %d", w.server_of[host][node] + 1);
			server->data.lock[resource].secret = LOCAL_NOBODY;
			break;
		case FAULT_EVICT:
			evict(w.server_of[host][node], resource);
			break;
		case FAULT_SUSPEND:
			suspend(host, for_us(4 * w.plan.ttl_us));
			break;
		case FAULT_DROP:
			tell("network: the connection of host %c to node %d is dropped, unnoticed by both",
				 HOST_NAME(host), node + 1);
			wire_drop(host, node);
			break;
		case FAULT_NOSCRIPT:
			tell("node %d: SCRIPT FLUSH", node + 1);
			server->scriptless = true;
			break;
		case FAULT_SILENCE:
			silence();
			break;
		case FAULT_ROLLING:
			roll();
			break;
		case FAULT_FORCE:
			force_release(host, resource);
			if (chance(4))
				force_release((host + 1) % w.plan.hosts, resource);
			break;
		default:
			break;
	}
}

/* Redis needs memory and evicts some of our keys. */
static void
evict(int s, int resource)
{
	store *store = &w.server[s].data;
	node_data *data = &store->lock[resource];
	bool key = local_has_key(data) && chance(2);
	bool counter = data->counter != 0 && chance(3);
	bool marker = store->mark.text != 0 && chance(4);

	if (!key && !counter && !marker)
		return;
	seen.fault[FAULT_EVICT]++;
	tell("node %d: evicts%s%s%s", s + 1, key ? " the key" : "", counter ? " the counter" : "",
		 marker ? " the marker" : "");
	if (key)
		data->secret = LOCAL_NOBODY;
	if (marker)
		store->mark.text = 0;
	if (!counter)
		return;
	data->counter = 0;
	check_forgot(s, resource);
}

/*
 * A virtual machine is moved, or saved and resumed.  The machine and its
 * clocks stand still, and the host does not notice the time between.
 */
static void
suspend(int h, int64_t time_us)
{
	if (hosts[h].paused_until_us > w.now_us)
		return;
	seen.fault[FAULT_SUSPEND]++;
	tell("host %c: is suspended for %.3f ms, and its clocks with it", HOST_NAME(h),
		 (double) time_us / 1000);
	host_pause(h, time_us);
	hosts[h].mono.offset_us -= time_us + time_us * hosts[h].mono.ppm / 1000000;
	hosts[h].wall.offset_us -= time_us;
}

/*
 * No request for hours, so that counters expire, or only almost.  No events
 * pass: all clocks are set, when no command is under way.
 */
static void
silence(void)
{
	static const int64_t limits_us[] = {LUA_CLOCK_BOUND_US, LUA_COUNTER_KEEP_MS * MS,
										LUA_CLOCK_BOUND_US + LUA_COUNTER_KEEP_MS * MS, 30 * HOUR};
	int64_t by_us = limits_us[dice(4)] + dice_us(240 * SECOND) - 120 * SECOND;

	if (plain.secret != 0 || !host_all_idle() || !force_all_idle())
		return;
	for (int i = 0; i < LIMBO_MAX; i++)
		if (w.limbo[i].used)
			return;
	seen.fault[FAULT_SILENCE]++;
	tell("all: nothing happens for %d minutes", (int) (by_us / (60 * SECOND)));
	for (int i = 0; i < w.plan.servers; i++)
	{
		w.server[i].saved = w.server[i].data;
		w.server[i].lost_at_us = 0;
		w.server[i].wall.offset_us += by_us;
	}
	for (int h = 0; h < w.plan.hosts; h++)
	{
		hosts[h].mono.offset_us += by_us;
		hosts[h].wall.offset_us += by_us;
	}
}

/* A random duration, which ends before the calm. */
static int64_t
for_us(int64_t most_us)
{
	int64_t left_us = w.calm_at_us - w.now_us;
	int64_t us = 1 + (chance(3) ? dice_us(most_us) : dice_us(most_us / 8));

	return us < left_us ? us : left_us;
}

static void
cut(int host, int node, bool to, int64_t until_us)
{
	int64_t *cut_us = to ? &w.cut_to_us[host][node] : &w.cut_from_us[host][node];

	tell("network: nothing gets %s host %c %s node %d until %.3f ms", to ? "from" : "to",
		 HOST_NAME(host), to ? "to" : "from", node + 1, (double) (until_us - START_US) / 1000);
	if (*cut_us < until_us)
		*cut_us = until_us;
}

static void
partition(void)
{
	int64_t until_us = w.now_us + for_us(3 * w.plan.ttl_us);
	uint32_t nodes = dice(UINT32_C(1) << w.plan.places);
	uint32_t away = dice(UINT32_C(1) << w.plan.hosts);

	for (int h = 0; h < w.plan.hosts; h++)
		for (int n = 0; n < w.plan.places; n++)
			if (((away >> h) & 1) != ((nodes >> n) & 1))
			{
				cut(h, n, true, until_us);
				cut(h, n, false, until_us);
			}
}

static void
restart(fault fault)
{
	static const persistence want[] = {[FAULT_RESTART] = KEEPS_ALL,
									   [FAULT_RESTART_LOST] = KEEPS_NOTHING,
									   [FAULT_ROLLBACK] = KEEPS_SNAPSHOTS};
	int first = (int) dice((uint32_t) w.plan.servers);

	for (int i = 0; i < w.plan.servers; i++)
	{
		int s = (first + i) % w.plan.servers;

		if (w.plan.persistence[s] != want[fault])
			continue;
		seen.fault[fault]++;
		restart_server(s, fault);
		return;
	}
}

static void
restart_server(int s, fault fault)
{
	server *server = &w.server[s];
	store before = server->data;

	if (fault == FAULT_RESTART_LOST)
		memset(&server->data, 0, sizeof(server->data));
	else if (fault == FAULT_ROLLBACK && w.now_us < server->save_at_us)
	{
		server->data = server->saved;
		for (int r = 0; r < w.plan.resources; r++)
			debt_placed(s, r, 0, false);
	}
	tell("node %d: its server restarts%s", s + 1,
		 fault == FAULT_RESTART        ? ", all data are kept"
		 : fault == FAULT_RESTART_LOST ? ", all data are lost"
									   : ", data are as of the last snapshot");
	if (memcmp(&before, &server->data, sizeof(before)) != 0)
		server->lost_at_us = w.now_us;
	for (int r = 0; r < w.plan.resources; r++)
		if (server->data.lock[r].counter < before.lock[r].counter)
			check_forgot(s, r);
	start_anew(s, for_us(w.plan.ttl_us / 2), chance(4));
	if (fault == FAULT_RESTART)
		return;
	server->flushed = false;
	if (may(FAULT_BOOT_STEP) && chance(2))
		step_at_boot(s);
}

/*
 * A new process of the server: commands in its sockets are lost with the old
 * process.
 */
static void
start_anew(int s, int64_t down_us, bool silent)
{
	server *server = &w.server[s];

	for (int h = 0; h < w.plan.hosts; h++)
		for (int n = 0; n < w.plan.places; n++)
			if (w.server_of[h][n] == s)
				wire_break(h, n, false, silent);
	server->run_id = ++w.run_ids;
	server->started_us = server_clock_us(server) + down_us;
	server->paused_until_us = w.now_us + down_us;
}

/*
 * The clock was wrong when the server started, so its uptime is too long.  Not
 * for a server that keeps all data: there this would be a clock set forward.
 */
static void
step_at_boot(int s)
{
	int64_t by_us = chance(2) ? 30 * HOUR : dice_us(3 * w.plan.max_ttl_us + 3 * SECOND);

	seen.fault[FAULT_BOOT_STEP]++;
	tell("node %d: its clock is set %.3f ms forward while it starts", s + 1, (double) by_us / 1000);
	w.server[s].wall.offset_us += by_us;
}

/*
 * A minority of the nodes fails, most often until their keys have expired, and
 * returns with all data.  The next minority fails after a pause.  A stopped
 * node may first execute commands left in its sockets, which creates unwanted
 * keys for a ttl.
 */
static void
roll(void)
{
	int count = 1 + (int) dice((uint32_t) (w.plan.servers - 1) / 2);
	int64_t down_us = dice_us(w.plan.ttl_us) + (chance(3) ? 1 : w.plan.ttl_us);
	int first = (int) dice((uint32_t) w.plan.servers);
	bool restarts = !chance(3);

	if (w.now_us < w.settled_at_us || w.now_us + down_us >= w.calm_at_us)
		return;
	seen.fault[FAULT_ROLLING]++;
	check_outage();
	w.settled_at_us = w.now_us + down_us + (restarts ? 1 : 2) * w.plan.settle_us;
	for (int i = 0; i < count; i++)
	{
		int s = (first + i) % w.plan.servers;

		tell("node %d: %s for %.3f ms", s + 1, restarts ? "is down" : "stops",
			 (double) down_us / 1000);
		if (restarts)
			start_anew(s, down_us, false);
		else
			w.server[s].paused_until_us = w.now_us + down_us;
	}
}

static void
flush(int s)
{
	tell("node %d: FLUSHALL", s + 1);
	memset(&w.server[s].data, 0, sizeof(w.server[s].data));
	w.server[s].lost_at_us = w.now_us;
	w.server[s].flushed = true;
	for (int r = 0; r < w.plan.resources; r++)
		check_forgot(s, r);
}

/*
 * Host h asks for a lock, and counts the node's vote.  If another host holds the lock, the node
 * may lose the vote, as in model/Lease_lost_renewed.cfg.  Chance alone hardly meets this moment.
 */
void
fault_on_vote(int h, int s, int node)
{
	if (!may(FAULT_LOST_VOTE) || entry_at(h, s)->drive.core.state != CORE_ASKING || !chance(2))
		return;
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
			if (i != h && entry_at(i, k)->resource == entry_at(h, s)->resource &&
				host_is_valid(i, k))
			{
				lose_vote(h, s, node, i, k);
				return;
			}
}

/*
 * The node loses its data.  At another node, which has the holder's key and not yet the round's
 * acquire, commands wait until the key has ended; the holder's commands wait longer.  If the round
 * ends before, host h stops, and decides the round late.
 */
static void
lose_vote(int h, int s, int node, int holder, int held)
{
	const core_lease *asking = &entry_at(h, s)->drive.core;
	int64_t end_us = host_true_time_us(h, asking->round_began_us + asking->answer_us);
	int voter = w.server_of[h][node];

	for (int n = 0; n < w.plan.places; n++)
	{
		const server *last = server_at(h, n);
		const node_data *data = &last->data.lock[entry_at(h, s)->resource];
		int64_t free_us;

		if (last == &w.server[voter] || !is_under_way(h, n) ||
			!debt_stands(last, entry_at(holder, held)->resource, entry_at(holder, held)->secret))
			continue;
		free_us = true_time_us(&last->wall, (data->key_end_ms + 1) * 1000 - WALL_US);
		if (free_us >= w.calm_at_us)
			continue;
		seen.fault[FAULT_LOST_VOTE]++;
		cut(h, n, true, free_us);
		if (free_us >= end_us)
			host_pause(h, free_us + 4 * w.plan.delay_us - w.now_us);
		for (int m = 0; m < w.plan.places; m++)
			if (server_at(holder, m) == last)
			{
				cut(holder, m, true, free_us + 2 * w.plan.delay_us);
				if (chance(2))
					wire_break(holder, m, false, false);
			}
		if (w.plan.persistence[voter] == KEEPS_NOTHING && chance(2))
			restart_server(voter, FAULT_RESTART_LOST);
		else
			flush(voter);
		return;
	}
}

/* Does the node still have to execute a command of the host? */
static bool
is_under_way(int h, int n)
{
	const wire *wire = wire_at(h, n);

	return !wire->gone && wire->executed != wire->tail;
}

static void
stop_broker(int h)
{
	/* sometimes leases end before the new broker starts */
	int64_t down_us = for_us(w.plan.rolling ? w.plan.ttl_us / 16
							 : chance(4)    ? w.plan.ttl_us * 2
											: w.plan.ttl_us / 2);

	if (w.plan.rolling)
	{
		if (host_now_us(h) < hosts[h].broker_began_us + 2 * w.plan.ttl_us)
			return;
		if (w.settled_at_us < w.now_us + w.plan.ttl_us)
			w.settled_at_us = w.now_us + w.plan.ttl_us;
	}
	seen.fault[FAULT_BROKER]++;
	tell("host %c: its broker is killed", HOST_NAME(h));
	host_stop_broker(h, down_us);
}

static void
set_node_clock(bool forward)
{
	int s = (int) dice((uint32_t) w.plan.servers);
	int64_t by_us = chance(4) ? HOUR : chance(4) ? 30 * HOUR : dice_us(3 * w.plan.ttl_us);

	tell("node %d: its clock is set %.3f ms %s", s + 1, (double) by_us / 1000,
		 forward ? "forward" : "back");
	w.server[s].wall.offset_us += forward ? by_us : -by_us;
}

static void
set_wall_clock(int h)
{
	int64_t by_us = chance(3)   ? 50 * 60 * SECOND
					: chance(4) ? 9000 * HOUR
					: chance(4) ? 30 * HOUR
								: dice_us(3 * w.plan.ttl_us);

	if (chance(2))
		by_us = -by_us;
	tell("host %c: its wall clock is set by %.3f ms", HOST_NAME(h), (double) by_us / 1000);
	hosts[h].wall.offset_us += by_us;
}

void
fault_calm(void)
{
	int64_t max_ttl_us = w.plan.longer * w.plan.max_ttl_us;
	/* quarantine; then the rest of a key; then a round, and its pauses */
	int64_t bound_us = 2 * max_ttl_us - core_validity_us(max_ttl_us) +
					   w.plan.longer * w.plan.ttl_us + 4 * w.plan.answer_us + 5 * w.plan.retry_us +
					   60 * w.plan.delay_us + 30 * MS;
	/* hosts named before it by the last release may not come */
	bound_us += 16 * rules_hold_back_us(2 * w.plan.delay_us);
	if (w.plan.faults & FAULT_BIT(FAULT_WORD)) /* and forged waiters, or a forged crowd */
		bound_us += WAITERS_MAX * 100 * MS + 5 * w.plan.retry_us;

	w.calm = true;
	tell("no more faults; all sessions release, and host %c asks", HOST_NAME(w.last_host));
	bound_us += bound_us / 50 + 2 * w.plan.longer * w.plan.ttl_us;
	if (!w.plan.measured)
		bound_us = w.plan.ttl_us; /* keys may live for days */
	later(w.now_us + bound_us, EVENT_LIMIT, 0, 0, 0, 0);
	for (int h = 0; h < w.plan.hosts; h++)
		host_calm(h);
}

/*
 * The published algorithm, with a correct clock: SET NX PX on all nodes, a
 * majority within the validity, compare-and-delete.
 */
static void
plain_begins(int resource)
{
	if (plain.secret != 0 || w.secrets + 1 >= ASKED_MAX)
		return;
	seen.fault[FAULT_PLAIN]++;
	plain.secret = ++w.secrets;
	plain.resource = resource;
	plain.used[plain.secret] = true;
	plain.began_us = w.now_us;
	plain.yes = 0;
	plain.forced = false;
	tell("plain client: asks, request %u", plain.secret);
	for (int n = 0; n < w.plan.places; n++)
		later(w.now_us + dice_us(2 * w.plan.delay_us), EVENT_PLAIN, resource, n, PLAIN_SET,
			  plain.secret);
	later(w.now_us + 3 * w.plan.delay_us, EVENT_PLAIN, resource, 0, PLAIN_DECIDE, plain.secret);
}

void
fault_plain(const event *event)
{
	server *server = server_at(0, event->node); /* by the names of host A */
	int resource = event->host;
	int64_t release_us = w.now_us + 1;
	bool yes;

	switch (event->entry)
	{
		case PLAIN_SET:
			if (server->paused_until_us > w.now_us)
				break;
			wire_expire(w.server_of[0][event->node], resource);
			yes = local_plain_set(&server->data.lock[resource], server_clock_us(server),
								  node_secret(event->tag), w.plan.ttl_us / 1000);
			tell("node %d executes, for the plain client: set: %s", event->node + 1,
				 yes ? "yes" : "no");
			if (yes)
				plain.yes |= CORE_BIT(event->node);
			break;
		case PLAIN_DECIDE:
			if (__builtin_popcount(plain.yes) > w.plan.nodes / 2)
			{
				plain.valid_until_us =
					plain.began_us + w.plan.ttl_us - w.plan.ttl_us / 100 - 2 * MS;
				tell("plain client: has the lock");
				release_us += dice_us(w.plan.ttl_us * 2);
				if (fault_plain_is_valid(resource))
					check_plain(resource);
			}
			for (int n = 0; n < w.plan.places; n++)
				later(release_us + dice_us(2 * w.plan.delay_us), EVENT_PLAIN, resource, n,
					  PLAIN_DELETE, event->tag);
			break;
		case PLAIN_DELETE:
			if (plain.secret == event->tag)
			{
				plain.secret = 0;
				plain.valid_until_us = 0;
			}
			wire_expire(w.server_of[0][event->node], resource);
			local_plain_delete(&server->data.lock[resource], server_clock_us(server),
							   node_secret(event->tag));
			break;
	}
}

bool
fault_plain_is_valid(int resource)
{
	return plain.resource == resource && w.now_us < plain.valid_until_us && !plain.forced;
}

void
fault_plain_forced(uint32_t secret)
{
	plain.forced = plain.forced || secret == plain.secret;
}

bool
fault_is_plain(uint32_t secret)
{
	return plain.used[secret];
}
