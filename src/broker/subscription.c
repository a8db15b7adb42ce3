/*
 * subscription.c
 *		What this server hears; see subscription.h.
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "broker/subscription.h"
#include "protocol/waiters.h"
#include "shared/guc.h"

/* LUA_HOST and the digits of a host's id; it has a NUL in it. */
#define CHANNEL_HEAD (sizeof(LUA_HOST) - 1)
#define CHANNEL_SIZE (CHANNEL_HEAD + LOCK_HOST_DIGITS + 1)

static core_mask deaf_to_us; /* the log says that they don't let us subscribe */

static size_t own_channel(char channel[CHANNEL_SIZE]);

void
subscription_begin(Lease *lease)
{
	lease->subscribed = true;
	lease->joined = lease->announced = 0;
	lease->ended = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		RedisNode *subscriber = node_at(i + NODE_SUBSCRIBER);

		if ((lease->core.members & CORE_BIT(i)) && subscriber->state == NODE_READY)
			node_subscribe(subscriber, lease->key, lease->key_len, true);
	}
}

void
subscription_end(Lease *lease)
{
	lease->subscribed = false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lease->core.members & CORE_BIT(i)) &&
			node_at(i + NODE_SUBSCRIBER)->state == NODE_READY)
			node_subscribe(node_at(i + NODE_SUBSCRIBER), lease->key, lease->key_len, false);
}

void
subscription_open(int node, int64 now_us)
{
	if (node_at(node + NODE_SUBSCRIBER)->state == NODE_UNUSED)
		node_open(node + NODE_SUBSCRIBER, &node_at(node)->url, NULL, now_us);
}

Lease *
subscription_joined(const RedisNode *node, const char *channel, size_t len)
{
	core_mask bit = CORE_BIT(node->slot - NODE_SUBSCRIBER);
	Lease *lease = subscription_lease(channel, len);

	deaf_to_us &= ~bit;
	if (lease == NULL || !lease->subscribed || (lease->joined & bit))
		return NULL;
	lease->joined |= bit;
	return pg_popcount32(lease->joined) == core_quorum(lease->core.members) ? lease : NULL;
}

Lease *
subscription_told(const RedisNode *node, const char *channel, size_t len, int64 token)
{
	Lease *lease = subscription_lease(channel, len);

	if (lease == NULL || !lease->subscribed || /* it waits no longer */
		!waiters_count_told(&lease->announced, &lease->ended,
							CORE_BIT(node->slot - NODE_SUBSCRIBER), token) ||
		pg_popcount32(lease->announced) != core_quorum(lease->core.members))
		return NULL;
	lease_count(COUNT_WOKEN);
	return lease;
}

bool
subscription_is_own(const char *channel, size_t len)
{
	char own[CHANNEL_SIZE];

	return len == own_channel(own) && memcmp(channel, own, len) == 0;
}

static size_t
own_channel(char channel[CHANNEL_SIZE])
{
	memcpy(channel, LUA_HOST, CHANNEL_HEAD);
	snprintf(channel + CHANNEL_HEAD, CHANNEL_SIZE - CHANNEL_HEAD, "%016" INT64_MODIFIER "x",
			 lease_table->host_id);
	return CHANNEL_SIZE - 1;
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
subscription_on_change(RedisNode *node, void (*lost)(Lease *lease))
{
	core_mask bit = CORE_BIT(node->slot - NODE_SUBSCRIBER);

	if (node->state == NODE_REFUSED && !(deaf_to_us & bit))
	{
		deaf_to_us |= bit;
		ereport(LOG,
				(errmsg("redlock node %s does not let us subscribe: %s", node->url.address,
						node->error),
				 errdetail("Sessions that wait for a lock have to ask for it again and again.")));
	}
	if (node->state == NODE_READY)
	{
		char own[CHANNEL_SIZE];

		node_subscribe(node, own, own_channel(own), true);
	}
	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		if (!lease->in_use || !lease->subscribed || !(lease->core.members & bit))
			continue;
		if (node->state == NODE_READY)
			node_subscribe(node, lease->key, lease->key_len, true);
		else if (lease->joined & bit)
		{
			lease->joined &= ~bit;
			if (pg_popcount32(lease->joined) == core_quorum(lease->core.members) - 1)
				lost(lease);
		}
	}
}

void
subscription_close(int node, int64 now_us)
{
	deaf_to_us &= ~CORE_BIT(node);
	if (node_at(node + NODE_SUBSCRIBER)->state != NODE_UNUSED)
		node_close(node_at(node + NODE_SUBSCRIBER), now_us);
}
