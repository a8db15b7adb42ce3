/*
 * subscription.c
 *		Messages of other hosts; see subscription.h.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "port/pg_bitutils.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "broker/node_local.h"
#include "broker/subscription.h"
#include "driver/driver.h"
#include "protocol/permits.h"
#include "shared/guc.h"
#include "shared/node_status.h"

static Driver *driver;

/*
 * By entry of the lease table: for a held queue, the nodes that have published each permit; or
 * NULL.
 */
static core_mask **told_permits;

/* logged: these nodes refuse subscriptions */
static core_mask deaf_to_us;
static core_mask deaf_to_locks; /* of these: nodes that refused a lock's channel, not our own */
static core_mask own_confirmed; /* nodes that confirmed our own channel in this connection */

static bool hears(const Lease *lease);
static void say_by(core_mask nodes, int argc, const char **argv, const size_t *argvlen,
				   int64 now_us);

void
subscription_init(Driver *of_leases)
{
	driver = of_leases;
	told_permits =
		MemoryContextAllocExtended(TopMemoryContext, lease_table->entries * sizeof(core_mask *),
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

void
subscription_begin(Lease *lease)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		RedisNode *subscriber = node_at(i + NODE_SUBSCRIBER);

		if ((lease->drive.core.members & CORE_BIT(i)) && subscriber->state == NODE_READY)
			node_subscribe(subscriber, lease->key, lease->key_len, true);
	}
}

void
subscription_end(Lease *lease)
{
	core_mask **told = &told_permits[lease_index(lease)];

	if (*told != NULL)
		pfree(*told);
	*told = NULL;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->drive.core.members & CORE_BIT(i)) &&
			node_at(i + NODE_SUBSCRIBER)->state == NODE_READY)
			node_subscribe(node_at(i + NODE_SUBSCRIBER), lease->key, lease->key_len, false);
}

static bool
hears(const Lease *lease)
{
	return driver->entry[lease_index(lease)].hears;
}

void
subscription_open(int node, int64 now_us)
{
	if (node_at(node + NODE_SUBSCRIBER)->state == NODE_UNUSED)
		node_open(node + NODE_SUBSCRIBER, &node_at(node)->url, NULL, now_us);
}

Lease *
subscription_confirmed(const RedisNode *node, const char *channel, size_t len)
{
	core_mask bit = CORE_BIT(node->index - NODE_SUBSCRIBER);
	bool is_own = subscription_is_own(channel, len);

	/* each connection begins with our own channel; a node may allow only this channel */
	if (is_own)
		own_confirmed |= bit;
	if (!is_own || !(deaf_to_locks & bit))
		deaf_to_us &= ~bit;
	return subscription_lease(channel, len);
}

/* A node's second message about a permit tells of the next release. */
Lease *
subscription_told_permit(const RedisNode *node, const char *channel, size_t len, int permit)
{
	core_mask bit = CORE_BIT(node->index - NODE_SUBSCRIBER);
	Lease *lease = subscription_lease(channel, len);
	core_mask **told;
	core_mask *by;
	bool enough;

	if (lease == NULL || !lease->is_queue || !hears(lease) || lease->drive.core.state != CORE_HELD)
		return NULL;
	told = &told_permits[lease_index(lease)];
	if (*told == NULL)
		*told = MemoryContextAllocZero(TopMemoryContext, (PERMITS_MAX + 1) * sizeof(core_mask));
	by = &(*told)[permit];
	if (*by & bit)
		*by = 0;
	enough = core_has_quorum(lease->drive.core.lists, *by);
	*by |= bit;
	return !enough && core_has_quorum(lease->drive.core.lists, *by) ? lease : NULL;
}

bool
subscription_is_own(const char *channel, size_t len)
{
	char own[SCRIPT_CHANNEL_SIZE];

	return len == script_host_channel(lease_table->host_id, own) && memcmp(channel, own, len) == 0;
}

void
subscription_say(uint64 host, const char *text, size_t len, int64 now_us)
{
	char channel[SCRIPT_CHANNEL_SIZE];
	const char *argv[] = {"PUBLISH", channel, text};
	size_t argvlen[] = {7, script_host_channel(host, channel), len};
	core_mask local = nodes_that(node_is_local);

	if (local != 0 && host == lease_table->host_id)
		node_local_publish(channel, argvlen[1], text, len);
	else
		say_by(nodes_that(node_can_send) & ~local, lengthof(argv), argv, argvlen, now_us);
}

void
subscription_say_by_all(uint64 host, const char *text, size_t len, int64 now_us)
{
	char channel[SCRIPT_CHANNEL_SIZE];
	const char *argv[] = {"PUBLISH", channel, text};
	size_t argvlen[] = {7, script_host_channel(host, channel), len};

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!node_can_send(node_at(i)))
			continue;
		if (node_is_local(node_at(i)))
			node_local_publish(channel, argvlen[1], text, len);
		else
			node_call(node_at(i), NODE_SAID, lengthof(argv), argv, argvlen, now_us);
	}
}

void
subscription_say_to_readers(const Lease *lease, const char *text, size_t len, int64 now_us)
{
	core_mask nodes = core_votes(&lease->drive.core, CORE_VOTE_NO) & nodes_that(node_can_send);
	char random[16];
	const char *argv[] = {"EVAL", lua_readers_script, "0", lease->key, text, random};
	size_t argvlen[] = {4, strlen(lua_readers_script), 1, lease->key_len, len, 0};

	if (nodes & nodes_that(node_is_local))
	{
		subscription_say(lease_table->host_id, text, len, now_us); /* all its readers are ours */
		return;
	}
	argvlen[5] = pg_ultoa_n(pg_prng_uint32(&pg_global_prng_state), random);
	say_by(nodes, lengthof(argv), argv, argvlen, now_us);
}

static void
say_by(core_mask nodes, int argc, const char **argv, const size_t *argvlen, int64 now_us)
{
	uint32 skip = pg_prng_uint32(&pg_global_prng_state) % Max(pg_popcount32(nodes), 1);

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((nodes & CORE_BIT(i)) && skip-- == 0)
			node_call(node_at(i), NODE_SAID, argc, argv, argvlen, now_us);
}

Lease *
subscription_lease(const char *key, size_t len)
{
	size_t prefix_len = strlen(redlock_key_prefix);
	Lease *lease;

	if (len <= prefix_len)
		return NULL;
	lease = lease_find(lease_hash(key + prefix_len, len - prefix_len));
	if (lease == NULL || lease->key_len != len || memcmp(lease->key, key, len) != 0)
		return NULL;
	return lease;
}

void
subscription_on_change(RedisNode *node, int64 now_us)
{
	core_mask bit = CORE_BIT(node->index - NODE_SUBSCRIBER);
	NodeDeaf deaf = node->state != NODE_REFUSED            ? NODE_SENDS
					: node_is_full_of_clients(node->error) ? NODE_IS_FULL
														   : NODE_DENIES;

	if (node->state == NODE_REFUSED || node->state == NODE_READY)
		pg_atomic_write_u32(&node_status[node->index - NODE_SUBSCRIBER].deaf, deaf);
	if (node->state == NODE_REFUSED && !(deaf_to_us & bit))
	{
		deaf_to_us |= bit;
		deaf_to_locks = (deaf_to_locks & ~bit) | (own_confirmed & bit);
		ereport(LOG, (errmsg("redlock node %s does not let us subscribe: %s", node->url.address,
							 node->error),
					  errdetail("Waiting sessions poll the nodes."),
					  errhint("%s", node_status_deaf_step(deaf))));
	}
	own_confirmed &= ~bit;
	if (node->state == NODE_READY)
	{
		char own[SCRIPT_CHANNEL_SIZE];

		node_subscribe(node, own, script_host_channel(lease_table->host_id, own), true);
	}
	for (int i = 0; i < lease_table->entries; i++)
	{
		Lease *lease = lease_at(i);

		if (!hears(lease) || !(lease->drive.core.members & bit))
			continue;
		if (node->state == NODE_READY)
			node_subscribe(node, lease->key, lease->key_len, true);
		else
			driver_on_left(driver, i, node->index - NODE_SUBSCRIBER, now_us);
	}
}

void
subscription_close(int node, int64 now_us)
{
	deaf_to_us &= ~CORE_BIT(node);
	if (node_at(node + NODE_SUBSCRIBER)->state != NODE_UNUSED)
		node_close(node_at(node + NODE_SUBSCRIBER), now_us);
}
