/*
 * resource_stats.c
 *		Counts and times of the most used resources; see resource_stats.h.
 *
 * A new name begins with the usage of the name before it in the place (the algorithm
 * Space-Saving).  So a name with more than a sixteenth of the events of its set stays in the table.
 * Names with a single use push each other out, and no busy name.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "shared/resource_stats.h"

typedef struct ResourceTable
{
	uint64 hash[RESOURCE_STATS_MAX]; /* 0: free */
	uint64 usage[RESOURCE_STATS_MAX];
	ResourceStats stats[RESOURCE_STATS_MAX];
} ResourceTable;

static ResourceTable *table = NULL;

static void begin(int place, uint64 hash, const char *name, int name_len);
static void add_time(ResourceTimes *times, int64 us);
static void clear(ResourceStats *stats);

Size
resource_stats_size(void)
{
	return sizeof(ResourceTable);
}

void
resource_stats_set_up(void)
{
	bool found;

	table = ShmemInitStruct("redlock_pg resource statistics", resource_stats_size(), &found);
	if (found)
		return;
	memset(table, 0, sizeof(ResourceTable));
	for (int i = 0; i < RESOURCE_STATS_MAX; i++)
	{
		pg_atomic_init_u32(&table->stats[i].version.number, 0);
		pg_atomic_init_u64(&table->stats[i].joined, 0);
	}
}

int
resource_stats_find(int place, uint64 hash, const char *name, int name_len)
{
	int first = (int) (hash % RESOURCE_STATS_SETS) * RESOURCE_STATS_OF_SET;
	int least = first;

	if (place != RESOURCE_STATS_NONE && table->hash[place] == hash)
		return place;
	for (int i = first; i < first + RESOURCE_STATS_OF_SET; i++)
	{
		if (table->hash[i] == hash && table->stats[i].name_len > 0)
			return i;
		if (table->usage[i] < table->usage[least])
			least = i;
	}
	begin(least, hash, name, name_len);
	return least;
}

static void
begin(int place, uint64 hash, const char *name, int name_len)
{
	ResourceStats *stats = &table->stats[place];

	Assert(name_len > 0 && name_len <= LOCK_NAME_MAX);

	seqlock_begin_write(&stats->version);
	table->hash[place] = hash;
	memcpy(stats->name, name, name_len);
	stats->name_len = name_len;
	clear(stats);
	seqlock_end_write(&stats->version);
}

static void
clear(ResourceStats *stats)
{
	stats->since = GetCurrentTimestamp();
	memset(stats->count, 0, sizeof(stats->count));
	memset(&stats->waited, 0, sizeof(stats->waited));
	memset(&stats->held, 0, sizeof(stats->held));
	pg_atomic_write_u64(&stats->joined, 0);
}

void
resource_stats_count(int place, ResourceEvent event, int64 waited_us)
{
	ResourceStats *stats = &table->stats[place];

	table->usage[place]++;
	seqlock_begin_write(&stats->version);
	stats->count[event]++;
	if (waited_us >= 0)
		add_time(&stats->waited, waited_us);
	seqlock_end_write(&stats->version);
}

void
resource_stats_held(int place, int64 held_us)
{
	ResourceStats *stats = &table->stats[place];

	seqlock_begin_write(&stats->version);
	add_time(&stats->held, held_us);
	seqlock_end_write(&stats->version);
}

static void
add_time(ResourceTimes *times, int64 us)
{
	times->sum_us += us;
	times->max_us = Max(times->max_us, us);
	times->bucket[stat_bucket(us)]++;
}

void
resource_stats_join(int place, uint64 hash)
{
	if (place != RESOURCE_STATS_NONE && table->hash[place] == hash)
		pg_atomic_fetch_add_u64(&table->stats[place].joined, 1);
}

/* The names stay: leases remember their places. */
void
resource_stats_reset(int set)
{
	for (int i = set * RESOURCE_STATS_OF_SET; i < (set + 1) * RESOURCE_STATS_OF_SET; i++)
	{
		table->usage[i] = 0;
		seqlock_begin_write(&table->stats[i].version);
		clear(&table->stats[i]);
		seqlock_end_write(&table->stats[i].version);
	}
}

bool
resource_stats_copy(int place, ResourceStats *copy)
{
	ResourceStats *stats = &table->stats[place];
	int tries = 0;

	do
	{
		uint32 version = seqlock_begin_read(&stats->version);
		int64 events;

		*copy = *stats;
		if (!seqlock_end_read(&stats->version, version))
			continue;
		events = (int64) pg_atomic_read_u64(&copy->joined);
		for (int i = 0; i < RESOURCE_EVENTS; i++)
			events += copy->count[i];
		return copy->name_len > 0 && events > 0;
	} while (seqlock_try_again(&tries));
	return false;
}
