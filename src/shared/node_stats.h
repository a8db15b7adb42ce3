/*
 * node_stats.h
 *		Shared memory: what the broker has counted of each node; the rows of redlock_stat_nodes.
 *
 * The broker alone counts.  Any process may reset the counts.  Each count is an atomic, so a reader
 * takes no lock.  A count and a reset at the same moment may leave a row with a part of that count.
 * The counts outlive the broker.
 */
#ifndef REDLOCK_NODE_STATS_H
#define REDLOCK_NODE_STATS_H

#include "port/atomics.h"

#include "protocol/node_error.h"
#include "shared/stat_times.h"

/* The node index is the place in the array. */
typedef struct NodeStats
{
	pg_atomic_uint64 reset_at; /* TimestampTz */
	pg_atomic_uint64 commands; /* on locks; sent */
	pg_atomic_uint64 errors[NODE_ERRORS];
	pg_atomic_uint64 connects;
	pg_atomic_uint64 quarantines;
	pg_atomic_uint64 answer_us;
	pg_atomic_uint64 max_answer_us;
	pg_atomic_uint64 answers[STAT_BUCKETS]; /* their sum is the count of answers */
} NodeStats;

/* CORE_NODES_MAX; NULL unless preloaded */
extern NodeStats *node_stats;

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size node_stats_size(void);
extern void node_stats_set_up(void);

/* Begins anew: a node gets this index, or a role resets the counts. */
extern void node_stats_reset(int node);

/*
 * The broker
 */

static inline void
node_stats_count(pg_atomic_uint64 *counter)
{
	pg_atomic_fetch_add_u64(counter, 1);
}

extern void node_stats_answered(int node, int64 us);

#endif /* REDLOCK_NODE_STATS_H */
