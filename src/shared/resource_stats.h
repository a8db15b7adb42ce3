/*
 * resource_stats.h
 *		Shared memory: counts and times of the most used resources of this server, for the view
 *		redlock_stat_resources.
 *
 * A place is found by the hash of the lock's name.  The table has sets of a few places, and a name
 * can be in one set only.  In a full set a new name takes the place of the least used name.
 *
 * The caller of each function that changes a place has the exclusive table lock of the name, see
 * lease.h: names of one set have the same table lock.  Exception: resource_stats_join.  A reader
 * copies, and takes no lock.
 */
#ifndef REDLOCK_RESOURCE_STATS_H
#define REDLOCK_RESOURCE_STATS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "protocol/lua.h"
#include "shared/seqlock.h"
#include "shared/stat_times.h"

#define RESOURCE_STATS_SETS 64
#define RESOURCE_STATS_OF_SET 16
#define RESOURCE_STATS_MAX (RESOURCE_STATS_SETS * RESOURCE_STATS_OF_SET)

/* number of no place */
#define RESOURCE_STATS_NONE (-1)

/* In the order of the columns of redlock_stat_resources. */
typedef enum ResourceEvent
{
	RESOURCE_FROM_NODES, /* granted by the nodes */
	RESOURCE_HANDED_OVER,
	RESOURCE_FROM_IDLE,
	RESOURCE_REFUSED, /* a try in vain */
	RESOURCE_TIMED_OUT,
	RESOURCE_LOST,
	RESOURCE_DEADLOCK,
	RESOURCE_EVENTS /* number of events */
} ResourceEvent;

typedef struct ResourceTimes
{
	int64 sum_us;
	int64 max_us;
	int64 bucket[STAT_BUCKETS];
} ResourceTimes;

typedef struct ResourceStats
{
	SeqLock version;
	int name_len;                 /* 0: the place is free */
	char name[LOCK_NAME_MAX + 1]; /* in UTF-8; for a permit with the suffix of the permit */
	TimestampTz since;
	int64 count[RESOURCE_EVENTS];
	ResourceTimes waited; /* until the lock was acquired, or the wait was over */
	ResourceTimes held;   /* by holders that have released the lock */
	pg_atomic_uint64 joined;
} ResourceStats;

/* A place on disk, while the server is down. */
typedef struct ResourceStatsKept
{
	uint64 hash;
	uint64 usage;
	ResourceStats stats;
} ResourceStatsKept;

/* The caller of set_up holds AddinShmemInitLock. */
extern Size resource_stats_size(void);
extern void resource_stats_set_up(void);

/*
 * Returns the number of the place of this name.  `place` is the number that the caller remembers,
 * or RESOURCE_STATS_NONE.
 */
extern int resource_stats_find(int place, uint64 hash, const char *name, int name_len);

/* Counts an event.  waited_us: the wait that the event has ended; -1: the event ends no wait. */
extern void resource_stats_count(int place, ResourceEvent event, int64 waited_us);
extern void resource_stats_held(int place, int64 held_us);

/* The caller has the table lock, perhaps shared.  Does nothing if the place has another name. */
extern void resource_stats_join(int place, uint64 hash);

/* Sets the counts of a set to zero, except for the sums. */
extern void resource_stats_reset(int set);
extern void resource_stats_reset_sums(int set);

/* The times of all names together, since the last reset of the sums. */
extern void resource_stats_sums(int64 *waited_us, int64 *held_us);

/* Copies the counts; false: nothing is counted there, or the writer is stopped. */
extern bool resource_stats_copy(int place, ResourceStats *copy);

/*
 * The postmaster, while no other process runs.  save returns false if nothing is counted there.
 */
extern bool resource_stats_save(int place, ResourceStatsKept *kept);
extern void resource_stats_restore(const ResourceStatsKept *kept);
extern void resource_stats_restore_sums(int64 waited_us, int64 held_us);

#endif /* REDLOCK_RESOURCE_STATS_H */
