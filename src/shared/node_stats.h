/*
 * node_stats.h
 *		Shared memory: what the broker has counted of each node; the rows of redlock_stat_nodes.
 *
 * The broker alone counts.  Any process may reset the counts.  Each count is an atomic, so a reader
 * takes no lock.  A count and a reset at the same moment may leave a row with a part of that count.
 * The counts outlive the broker, and a clean restart of the server: see stats_file.h.
 */
#ifndef REDLOCK_NODE_STATS_H
#define REDLOCK_NODE_STATS_H

#include "port/atomics.h"

#include "protocol/node_error.h"
#include "shared/stat_times.h"
#include "shared/url.h"

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

/* All fields of NodeStats are counts; the first has the time of the reset. */
#define NODE_STATS_FIELDS (sizeof(NodeStats) / sizeof(pg_atomic_uint64))

/* The counts of a node on disk, while the server is down. */
typedef struct NodeStatsKept
{
	char address[sizeof(((NodeUrl *) NULL)->address)]; /* empty: none */
	uint64 count[NODE_STATS_FIELDS];
} NodeStatsKept;

/* CORE_NODES_MAX; NULL unless preloaded */
extern NodeStats *node_stats;

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size node_stats_size(void);
extern void node_stats_set_up(void);

/* A role resets the counts of all nodes. */
extern void node_stats_reset(void);

/* The postmaster, while no other process runs. */
extern void node_stats_save(int node, NodeStatsKept *kept); /* the caller writes the address */
extern void node_stats_restore(const NodeStatsKept *kept);

/* Returns the next restored counts that no node has taken; *next begins with 0.  NULL: no more. */
extern const NodeStatsKept *node_stats_not_taken(int *next);

/*
 * The broker
 */

/* The node of this address gets the index.  Its counts begin with the restored counts, or at 0. */
extern void node_stats_begin(int node, const char *address);

static inline void
node_stats_count(pg_atomic_uint64 *counter)
{
	pg_atomic_fetch_add_u64(counter, 1);
}

extern void node_stats_answered(int node, int64 us);

#endif /* REDLOCK_NODE_STATS_H */
