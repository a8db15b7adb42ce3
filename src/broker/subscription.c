/*
 * subscription.c
 *		Waiting for a release; see subscription.h.
 */
#include "postgres.h"

#include "broker/subscription.h"
#include "shared/guc.h"

static core_mask deaf_to_us; /* the log says that they don't let us subscribe */

void
subscription_begin(Lease *lease, int64 now_us)
{
	lease->subscribed = true;
	lease->joined = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		RedisNode *subscriber = node_at(i + NODE_SUBSCRIBER);

		if (!(lease->core.members & CORE_BIT(i)) || node_at(i)->state == NODE_UNUSED)
			continue;
		if (subscriber->state == NODE_UNUSED)
			node_open(i + NODE_SUBSCRIBER, &node_at(i)->url, NULL, now_us);
		else if (subscriber->state == NODE_READY)
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

Lease *
subscription_hear(const RedisNode *node, const char *channel, size_t len, bool told)
{
	size_t prefix_len = strlen(redlock_key_prefix);
	core_mask bit = CORE_BIT(node->slot - NODE_SUBSCRIBER);
	Lease *lease;
	core_mask *heard;

	deaf_to_us &= ~bit;
	if (len <= prefix_len)
		return NULL;
	lease = lease_find(lease_hash(channel + prefix_len, len - prefix_len));
	if (lease == NULL || !lease->subscribed || lease->key_len != len ||
		memcmp(lease->key, channel, len) != 0)
		return NULL; /* it waits no longer */

	heard = told ? &lease->announced : &lease->joined;
	if (core_has_quorum(lease->core.lists, *heard))
		return NULL;
	*heard |= bit;
	if (!core_has_quorum(lease->core.lists, *heard))
		return NULL;
	if (told)
		lease_count(COUNT_WOKEN);
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
	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		if (!lease->in_use || !lease->subscribed || !(lease->core.members & bit))
			continue;
		if (node->state == NODE_READY)
			node_subscribe(node, lease->key, lease->key_len, true);
		else if (lease->joined & bit)
		{
			bool enough = core_has_quorum(lease->core.lists, lease->joined);

			lease->joined &= ~bit;
			if (enough && !core_has_quorum(lease->core.lists, lease->joined))
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
