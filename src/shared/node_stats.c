/*
 * node_stats.c
 *		What the broker has counted of each node; see node_stats.h.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "protocol/core.h"
#include "shared/node_stats.h"

typedef struct NodeStatsTable
{
	NodeStats stats[CORE_NODES_MAX];
	NodeStatsKept kept[CORE_NODES_MAX]; /* restored, until the broker knows the node's index.  The
										 * postmaster writes before other processes start; later
										 * the broker, or a reset, clears `address` */
} NodeStatsTable;

NodeStats *node_stats = NULL;
static NodeStatsKept *kept_stats = NULL;

static pg_atomic_uint64 *counts_of(int node);
static void clear(int node);

Size
node_stats_size(void)
{
	return sizeof(NodeStatsTable);
}

void
node_stats_set_up(void)
{
	bool found;
	NodeStatsTable *table =
		ShmemInitStruct("redlock_pg node statistics", node_stats_size(), &found);

	node_stats = table->stats;
	kept_stats = table->kept;
	if (found)
		return;
	for (int node = 0; node < CORE_NODES_MAX; node++)
	{
		kept_stats[node].address[0] = '\0';
		for (Size i = 0; i < NODE_STATS_FIELDS; i++)
			pg_atomic_init_u64(&counts_of(node)[i], 0);
	}
}

static pg_atomic_uint64 *
counts_of(int node)
{
	return (pg_atomic_uint64 *) &node_stats[node];
}

void
node_stats_reset(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		kept_stats[i].address[0] = '\0';
		clear(i);
	}
}

static void
clear(int node)
{
	StaticAssertStmt(offsetof(NodeStats, reset_at) == 0, "the loop begins after the time");
	for (Size i = 1; i < NODE_STATS_FIELDS; i++)
		pg_atomic_write_u64(&counts_of(node)[i], 0);
	pg_atomic_write_u64(&node_stats[node].reset_at, (uint64) GetCurrentTimestamp());
}

void
node_stats_save(int node, NodeStatsKept *kept)
{
	for (Size i = 0; i < NODE_STATS_FIELDS; i++)
		kept->count[i] = pg_atomic_read_u64(&counts_of(node)[i]);
}

void
node_stats_restore(const NodeStatsKept *kept)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (kept_stats[i].address[0] == '\0')
		{
			kept_stats[i] = *kept;
			return;
		}
}

const NodeStatsKept *
node_stats_not_taken(int *next)
{
	while (*next < CORE_NODES_MAX)
	{
		const NodeStatsKept *kept = &kept_stats[(*next)++];

		if (kept->address[0] != '\0')
			return kept;
	}
	return NULL;
}

void
node_stats_begin(int node, const char *address)
{
	clear(node);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (strcmp(kept_stats[i].address, address) == 0)
		{
			for (Size j = 0; j < NODE_STATS_FIELDS; j++)
				pg_atomic_write_u64(&counts_of(node)[j], kept_stats[i].count[j]);
			kept_stats[i].address[0] = '\0';
		}
}

void
node_stats_answered(int node, int64 us)
{
	NodeStats *stats = &node_stats[node];

	us = Max(us, 0);
	pg_atomic_fetch_add_u64(&stats->answer_us, us);
	if ((uint64) us > pg_atomic_read_u64(&stats->max_answer_us))
		pg_atomic_write_u64(&stats->max_answer_us, us);
	node_stats_count(&stats->answers[stat_bucket(us)]);
}
