/*
 * debt.c
 *		Debts and repairs; see debt.h.
 *
 * Demanded where keys and leases end in time (plan.measured), for connections
 * without delays: up, not cut, neither side stopped, room for commands.
 *
 * - No key of a finished request, or of a failed attempt, stays at a node for
 *   longer than its release takes to arrive (ARRIVES_US).  The time begins
 *   when the key is unwanted and the connection is well.  After an error of
 *   the node, or a full connection, the bound grows by the time owed so far
 *   and two pauses between retries.  A waiting request (BUSY) does not repeat
 *   a release then: the next round is near.
 * - A node that came back during a valid lease has its key after the same
 *   time, unless another key or a larger counter was in the way.
 *
 * In a shared lock each reader is a key.
 *
 * Not demanded: for keys placed late, from an old socket, or while the host
 * was stopped and could not drop the connection; and for keys from a snapshot.
 * No host knows of such keys for certain, and they expire within their ttl.
 * The same holds for keys placed through a name that is refused since the
 * server restarted, because its other name was met first.
 */
#include "debt.h"

#include <string.h>

#include "check.h"
#include "fault.h"
#include "host.h"
#include "story.h"
#include "wire.h"

/* The broker's next pass, earlier commands, and then the way there. */
#define ARRIVES_US (5 * w.plan.delay_us + MS)

/* Hosts' clocks run at most half a percent too slow. */
#define SLOWEST(us) ((us) + (us) / 100)

static struct
{
	int host;
	int entry;
	core_mask members;
	bool forgiven;
	int64_t forgotten_us; /* commands in flight then are not sent again; 0: all are */
	int64_t over_us;      /* when the core began to delete its keys; 0: not yet */
} requests[SECRETS_MAX];

/* Of the keys at a server. */
static struct key
{
	uint32_t secret;
	uint32_t attempt;
	int node;     /* the host's index of the server */
	bool in_time; /* placed before the command was overdue */
	int64_t placed_us;
	int64_t unwanted_us; /* since when; 0: the key is wanted */
	int64_t since_us;    /* since when the host's connection is well, too; 0: not well */
} keys[SERVERS_MAX][RESOURCES_MAX], readers[SERVERS_MAX][SECRETS_MAX]; /* the readers' keys */

/* A connection; times are 0 while it is not up, or not well. */
static struct path
{
	uint32_t epoch;
	int64_t up_us;
	int64_t well_us;
	int64_t failed_us;                   /* last error, or last time without room */
	int64_t contested_us[RESOURCES_MAX]; /* last time when another key or counter was in the way of
											a lease, or its repair had no room */
} paths[HOSTS_MAX][NODES_MAX];

static void look_at_paths(void);
static bool is_well(int host, int node);
static void check_debts(int server, int resource);
static void check_debt(int server, struct key *key, uint32_t secret, uint32_t attempt,
					   bool standing, bool kept);
static bool is_lost(uint32_t secret, int host, int node, int64_t placed_us);
static bool is_wanted(uint32_t secret);
static void check_repairs(int host, int entry);

void
debt_begin(void)
{
	memset(requests, 0, sizeof(requests));
	memset(keys, 0, sizeof(keys));
	memset(readers, 0, sizeof(readers));
	memset(paths, 0, sizeof(paths));
}

void
debt_placed(int server, int resource, int node, bool in_time)
{
	keys[server][resource].node = node;
	keys[server][resource].in_time = in_time;
	keys[server][resource].placed_us = w.now_us;
	for (int i = 0; !in_time && i < w.server[server].data.lock[resource].readers; i++)
		readers[server][node_number(w.server[server].data.lock[resource].reader[i].secret)]
			.in_time = false;
}

void
debt_placed_reader(int server, uint32_t secret, int node, bool in_time)
{
	readers[server][secret] = (struct key){.node = node, .in_time = in_time, .placed_us = w.now_us};
}

void
debt_asked(int host, int entry)
{
	uint32_t secret = entry_at(host, entry)->secret;

	requests[secret].host = host;
	requests[secret].entry = entry;
	requests[secret].members = hosts[host].members;
}

void
debt_forgiven(int host, int entry)
{
	requests[entry_at(host, entry)->secret].forgiven = true;
}

void
debt_forgotten(int host, int entry)
{
	requests[entry_at(host, entry)->secret].forgotten_us = w.now_us;
}

void
debt_over(int host, int entry)
{
	requests[entry_at(host, entry)->secret].over_us = w.now_us;
}

/*
 * The host cannot delete any key there any more, so its known keys must be
 * gone.
 */
void
debt_left(int h, int n)
{
	int server = w.server_of[h][n];

	for (int r = 0; r < w.plan.resources; r++)
	{
		uint32_t secret = debt_standing(&w.server[server], r);

		if (w.server[server].data.lock[r].shared)
			continue;
		if (w.plan.measured && secret != 0 && !fault_is_plain(secret) &&
			requests[secret].host == h && (requests[secret].members & CORE_BIT(n)) &&
			!requests[secret].forgiven && !is_lost(secret, h, n, keys[server][r].placed_us) &&
			keys[server][r].in_time && !w.server[server].data.lock[r].kept &&
			!(stained[h] & CORE_BIT(server)))
			violate(7, "host %c leaves node %d, and the key of its request %u stands there",
					HOST_NAME(h), n + 1, secret);
	}
}

void
debt_forced(int server, int resource)
{
	for (int h = 0; h < w.plan.hosts; h++)
		for (int n = 0; n < w.plan.places; n++)
			if (w.server_of[h][n] == server)
				paths[h][n].contested_us[resource] = w.now_us;
}

void
debt_failed(int host, int node)
{
	paths[host][node].failed_us = w.now_us;
}

void
debt_check(void)
{
	if (!w.plan.measured)
		return;
	look_at_paths();
	for (int i = 0; i < w.plan.servers; i++)
		for (int r = 0; r < w.plan.resources; r++)
			check_debts(i, r);
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
			if (entry_at(h, s)->wish != WISH_NOTHING && host_is_valid(h, s))
				check_repairs(h, s);
}

static void
look_at_paths(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
	{
		bool runs = hosts[h].paused_until_us <= w.now_us && !hosts[h].broker_down;

		for (int n = 0; n < w.plan.places; n++)
		{
			const wire *wire = wire_at(h, n);
			struct path *path = &paths[h][n];
			bool up = wire->state == WIRE_UP;

			if (!runs || !up || !is_well(h, n))
				path->well_us = 0;
			else if (path->well_us == 0)
				path->well_us = w.now_us;
			if (up && !wire_can_send(h, n))
				path->failed_us = w.now_us;
			if (!up)
				path->up_us = 0;
			else if (path->up_us == 0 || path->epoch != wire->epoch)
				path->up_us = w.now_us;
			path->epoch = wire->epoch;
		}
	}
}

/* Is a running host's connection free of delays? */

static bool
is_well(int h, int n)
{
	const wire *wire = wire_at(h, n);
	int64_t soon_us = w.now_us + 2 * w.plan.delay_us;

	return wire_can_send(h, n) && !wire->gone && wire->to_at_us <= soon_us &&
		   wire->from_at_us <= soon_us && w.cut_to_us[h][n] <= w.now_us &&
		   w.cut_from_us[h][n] <= w.now_us && server_at(h, n)->paused_until_us <= w.now_us;
}

static void
check_debts(int server, int resource)
{
	const node_data *data = &w.server[server].data.lock[resource];
	int64_t now_ms = server_clock_us(&w.server[server]) / 1000;
	bool standing = debt_standing(&w.server[server], resource) != 0;

	if (!data->shared || !standing)
		check_debt(server, &keys[server][resource], node_number(data->secret), data->attempt,
				   standing, data->kept);
	for (int i = 0; data->shared && standing && i < data->readers; i++)
	{
		const node_reader *reader = &data->reader[i];

		check_debt(server, &readers[server][node_number(reader->secret)],
				   node_number(reader->secret), reader->attempt, now_ms <= reader->end_ms, false);
	}
}

static void
check_debt(int server, struct key *key, uint32_t secret, uint32_t attempt, bool standing, bool kept)
{
	int h = requests[secret].host;
	const entry *entry = entry_at(h, requests[secret].entry);
	const Release *release = &hosts[h].release[requests[secret].entry];
	int64_t began_us = requests[secret].over_us;
	int64_t limit_us;
	int node = key->node;
	bool unwanted = secret != 0 && !is_wanted(secret) && standing;

	if (secret != key->secret || attempt != key->attempt || !unwanted)
		key->unwanted_us = key->since_us = 0;
	key->secret = secret;
	key->attempt = attempt;
	if (!unwanted || fault_is_plain(secret))
		return;
	if (key->unwanted_us == 0)
		key->unwanted_us = w.now_us;
	if (paths[h][node].well_us == 0 || w.server_of[h][node] != server ||
		is_lost(secret, h, node, key->placed_us) || kept || !key->in_time ||
		requests[secret].forgiven ||
		(entry->secret == secret && (release->waits || (release->unsent & CORE_BIT(node)))))
	{
		key->since_us = 0;
		return;
	}
	if (key->since_us < paths[h][node].well_us)
		key->since_us = w.now_us;

	limit_us = key->since_us + ARRIVES_US;
	if (paths[h][node].failed_us >= key->placed_us)
	{
		int64_t from_us = key->since_us;

		if (began_us == 0)
			return;
		if (from_us < paths[h][node].failed_us)
			from_us = paths[h][node].failed_us;
		if (from_us < began_us)
			from_us = began_us;
		limit_us = from_us + SLOWEST(from_us - began_us + 2 * w.plan.retry_us) + ARRIVES_US;
	}
	seen.debts++;
	if (w.now_us > limit_us)
		violate(7,
				"the key of request %u of host %c, which is unwanted for %.3f ms, still stands at "
				"node %d, which can be reached for %.3f ms",
				secret, HOST_NAME(h), (double) (w.now_us - key->unwanted_us) / 1000, node + 1,
				(double) (w.now_us - paths[h][node].well_us) / 1000);
}

/* Its release was lost with a connection, or failed, and is not sent again. */
static bool
is_lost(uint32_t secret, int h, int node, int64_t placed_us)
{
	return requests[secret].forgotten_us != 0 &&
		   (paths[h][node].up_us > requests[secret].forgotten_us ||
			paths[h][node].failed_us >= placed_us);
}

uint32_t
debt_standing(const server *server, int resource)
{
	const node_data *data = &server->data.lock[resource];

	return server_clock_us(server) / 1000 > data->key_end_ms ? 0 : node_number(data->secret);
}

bool
debt_stands(const server *server, int resource, uint32_t secret)
{
	const node_data *data = &server->data.lock[resource];
	uint32_t standing = debt_standing(server, resource);

	if (standing == 0 || !data->shared)
		return standing != 0 && standing == secret;
	for (int i = 0; i < data->readers; i++)
		if (node_number(data->reader[i].secret) == secret)
			return server_clock_us(server) / 1000 <= data->reader[i].end_ms;
	return false;
}

/* Its owner wants it, or may want it, and its attempt has not failed. */
static bool
is_wanted(uint32_t secret)
{
	const entry *entry = entry_at(requests[secret].host, requests[secret].entry);

	return entry->in_use && entry->secret == secret && entry->wish != WISH_NOTHING &&
		   (entry->drive.core.state == CORE_ASKING || entry->drive.core.state == CORE_HELD ||
			entry->drive.core.state == CORE_LOST);
}

static void
check_repairs(int h, int s)
{
	const entry *entry = entry_at(h, s);

	for (int n = 0; n < w.plan.places; n++)
	{
		const server *server = server_at(h, n);
		int64_t up_us = paths[h][n].up_us;
		int64_t counter = server->data.lock[entry->resource].counter;
		uint32_t secret;

		if (up_us <= entry->check.granted_true_us || up_us <= entry->relisted_true_us ||
			!(entry->drive.core.members & CORE_BIT(n)))
			continue;
		secret = debt_standing(server, entry->resource);
		if (secret != 0 && entry->shared && server->data.lock[entry->resource].shared)
		{
			secret = debt_stands(server, entry->resource, entry->secret) ? entry->secret : 0;
			counter = server->data.lock[entry->resource].since;
		}
		if ((secret != 0 && secret != entry->secret) || counter > entry->drive.core.token ||
			(hosts[h].release[s].unsent & CORE_BIT(n)))
			paths[h][n].contested_us[entry->resource] = w.now_us;
		if (paths[h][n].well_us == 0 || paths[h][n].well_us > up_us ||
			w.now_us <= up_us + ARRIVES_US || paths[h][n].failed_us >= up_us ||
			paths[h][n].contested_us[entry->resource] >= up_us || server->lost_at_us >= up_us)
			continue;
		seen.repairs++;
		if (secret != entry->secret)
			violate(12,
					"host %c holds the lock by request %u, and node %d, which is back for %.3f ms, "
					"lacks its key",
					HOST_NAME(h), entry->secret, n + 1, (double) (w.now_us - up_us) / 1000);
	}
}
