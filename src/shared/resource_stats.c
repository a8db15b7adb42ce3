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

/* Times of all names of a set, also of names that have lost their places. */
typedef struct SetSums
{
	pg_atomic_uint64 waited_us;
	pg_atomic_uint64 held_us;
	char pad[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint64)]; /* the next set has another lock */
} SetSums;

typedef struct ResourceTable
{
	uint64 hash[RESOURCE_STATS_MAX];  /* 0: free */
	uint64 usage[RESOURCE_STATS_MAX]; /* without `joined` */
	SetSums sums[RESOURCE_STATS_SETS];
	ResourceStats stats[RESOURCE_STATS_MAX];
} ResourceTable;

static ResourceTable *table = NULL;

static uint64 usage_of(int place);
static void begin(int place, uint64 hash, const char *name, int name_len);
static void add(pg_atomic_uint64 *sum, int64 us);
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
	for (int i = 0; i < RESOURCE_STATS_SETS; i++)
	{
		pg_atomic_init_u64(&table->sums[i].waited_us, 0);
		pg_atomic_init_u64(&table->sums[i].held_us, 0);
	}
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
		if (usage_of(i) < usage_of(least))
			least = i;
	}
	begin(least, hash, name, name_len);
	return least;
}

/* A joining reader has a shared lock, so raises `joined` alone. */
static uint64
usage_of(int place)
{
	return table->usage[place] + pg_atomic_read_u64(&table->stats[place].joined);
}

static void
begin(int place, uint64 hash, const char *name, int name_len)
{
	ResourceStats *stats = &table->stats[place];

	Assert(name_len > 0 && name_len <= LOCK_NAME_MAX);

	table->usage[place] = usage_of(place);
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
	if (waited_us >= 0)
		add(&table->sums[place / RESOURCE_STATS_OF_SET].waited_us, waited_us);
}

void
resource_stats_held(int place, int64 held_us)
{
	ResourceStats *stats = &table->stats[place];

	seqlock_begin_write(&stats->version);
	add_time(&stats->held, held_us);
	seqlock_end_write(&stats->version);
	add(&table->sums[place / RESOURCE_STATS_OF_SET].held_us, held_us);
}

/* The caller's lock keeps other writers out, so no locked instruction. */
static void
add(pg_atomic_uint64 *sum, int64 us)
{
	pg_atomic_write_u64(sum, pg_atomic_read_u64(sum) + (uint64) us);
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

void
resource_stats_reset_sums(int set)
{
	pg_atomic_write_u64(&table->sums[set].waited_us, 0);
	pg_atomic_write_u64(&table->sums[set].held_us, 0);
}

void
resource_stats_sums(int64 *waited_us, int64 *held_us)
{
	*waited_us = *held_us = 0;
	for (int set = 0; set < RESOURCE_STATS_SETS; set++)
	{
		*waited_us += (int64) pg_atomic_read_u64(&table->sums[set].waited_us);
		*held_us += (int64) pg_atomic_read_u64(&table->sums[set].held_us);
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

bool
resource_stats_save(int place, ResourceStatsKept *kept)
{
	kept->hash = table->hash[place];
	kept->usage = table->usage[place];
	return resource_stats_copy(place, &kept->stats);
}

void
resource_stats_restore(const ResourceStatsKept *kept)
{
	int first = (int) (kept->hash % RESOURCE_STATS_SETS) * RESOURCE_STATS_OF_SET;

	for (int i = first; i < first + RESOURCE_STATS_OF_SET; i++)
	{
		ResourceStats *stats = &table->stats[i];

		if (stats->name_len > 0)
			continue;
		table->hash[i] = kept->hash;
		table->usage[i] = kept->usage;
		*stats = kept->stats;
		pg_atomic_init_u32(&stats->version.number, 0);
		return;
	}
}

void
resource_stats_restore_sums(int64 waited_us, int64 held_us)
{
	pg_atomic_write_u64(&table->sums[0].waited_us, (uint64) waited_us);
	pg_atomic_write_u64(&table->sums[0].held_us, (uint64) held_us);
}
