/*
 * node_stats.c
 *		What the broker has counted of each node; see node_stats.h.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "protocol/core.h"
#include "shared/node_stats.h"

/* All fields of NodeStats are counters; the first has the time of the reset. */
#define FIELDS (sizeof(NodeStats) / sizeof(pg_atomic_uint64))

NodeStats *node_stats = NULL;

Size
node_stats_size(void)
{
	return CORE_NODES_MAX * sizeof(NodeStats);
}

void
node_stats_set_up(void)
{
	bool found;

	node_stats = ShmemInitStruct("redlock_pg node statistics", node_stats_size(), &found);
	if (found)
		return;
	for (Size i = 0; i < CORE_NODES_MAX * FIELDS; i++)
		pg_atomic_init_u64(&((pg_atomic_uint64 *) node_stats)[i], 0);
}

void
node_stats_reset(int node)
{
	pg_atomic_uint64 *counters = (pg_atomic_uint64 *) &node_stats[node];

	StaticAssertStmt(offsetof(NodeStats, reset_at) == 0, "the loop begins after the time");
	for (Size i = 1; i < FIELDS; i++)
		pg_atomic_write_u64(&counters[i], 0);
	pg_atomic_write_u64(&node_stats[node].reset_at, (uint64) GetCurrentTimestamp());
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
