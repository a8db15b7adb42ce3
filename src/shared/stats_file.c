/*
 * stats_file.c
 *		The statistics on disk; see stats_file.h.
 *
 * The postmaster writes the file when it ends, after all other processes, so that the file has the
 * last release.  The next start reads and removes the file: a backup of a running server has none.
 * The postmaster does not write after a crash or an immediate stop, as PostgreSQL discards its own
 * statistics.  A file that is missing or damaged costs the statistics, and never the start.
 */
#include "postgres.h"

#include <unistd.h>

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"

#include "protocol/core.h"
#include "shared/lease.h"
#include "shared/node_stats.h"
#include "shared/node_status.h"
#include "shared/resource_stats.h"
#include "shared/stats_file.h"

#define STATS_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/redlock_pg.stat"

#define STATS_MAGIC 0x5265646c
#define STATS_LAYOUT 1 /* raise after a change of a field that keeps the sizes */

/* The header.  Then come `nodes` NodeStatsKept, `resources` ResourceStatsKept, and the checksum. */
typedef struct StatsHeader
{
	uint32 magic;
	uint32 layout;
	uint32 header_size;
	uint32 node_size;
	uint32 resource_size;
	uint32 nodes;
	uint32 resources;
	uint32 unused; /* 0 */
	uint64 counter[COUNTERS];
	TimestampTz reset_at; /* of the counters and the sums */
	int64 waited_us;
	int64 held_us;
} StatsHeader;

#define STATS_FILE_SIZE_MAX                                                                        \
	(sizeof(StatsHeader) + CORE_NODES_MAX * sizeof(NodeStatsKept) +                                \
	 RESOURCE_STATS_MAX * sizeof(ResourceStatsKept) + sizeof(pg_crc32c))

typedef struct StatsWriter
{
	FILE *file;
	pg_crc32c crc;
	bool good;
} StatsWriter;

static void write_at_exit(int code, Datum argument);
static bool stopped_cleanly(void);
static bool write_file(FILE *file);
static int write_nodes(StatsWriter *writer);
static int write_resources(StatsWriter *writer);
static void put(StatsWriter *writer, const void *data, size_t size);
static void read_file(void);
static const char *verdict(const char *contents, size_t size);
static void restore(const char *contents);

void
stats_file_set_up(void)
{
	read_file();
	on_shmem_exit(write_at_exit, (Datum) 0);
}

static void
write_at_exit(int code, Datum argument)
{
	FILE *file;
	bool good;

	if (!stopped_cleanly())
		return;
	file = AllocateFile(STATS_FILE ".new", PG_BINARY_W);
	good = file != NULL && write_file(file);
	if (file != NULL)
		good = FreeFile(file) == 0 && good;
	if (good)
		(void) durable_rename(STATS_FILE ".new", STATS_FILE, LOG);
	else
	{
		ereport(LOG, (errcode_for_file_access(),
					  errmsg("could not write redlock statistics file \"%s\": %m", STATS_FILE),
					  errhint("After the next start the statistics begin at zero.")));
		(void) unlink(STATS_FILE ".new");
	}
}

/*
 * Also true if the start has failed before the recovery: then the file is written again.  The exit
 * code does not tell: a failed start has code 1, and an immediate stop has code 0.
 */
static bool
stopped_cleanly(void)
{
	bool crc_is_good;
	ControlFileData *control = get_controlfile(DataDir, &crc_is_good);

	return crc_is_good &&
		   (control->state == DB_SHUTDOWNED || control->state == DB_SHUTDOWNED_IN_RECOVERY);
}

static bool
write_file(FILE *file)
{
	StatsWriter counting = {.good = true};
	StatsWriter writer = {.file = file, .good = true};
	StatsHeader header = {.magic = STATS_MAGIC,
						  .layout = STATS_LAYOUT,
						  .header_size = sizeof(StatsHeader),
						  .node_size = sizeof(NodeStatsKept),
						  .resource_size = sizeof(ResourceStatsKept),
						  .nodes = write_nodes(&counting),
						  .resources = write_resources(&counting),
						  .reset_at = lease_counts_reset_at()};

	for (int i = 0; i < COUNTERS; i++)
		header.counter[i] = lease_counted(i);
	resource_stats_sums(&header.waited_us, &header.held_us);

	INIT_CRC32C(writer.crc);
	put(&writer, &header, sizeof(header));
	(void) write_nodes(&writer);
	(void) write_resources(&writer);
	FIN_CRC32C(writer.crc);
	return writer.good && fwrite(&writer.crc, sizeof(writer.crc), 1, file) == 1;
}

/* Returns the number of nodes.  A writer without a file only counts. */
static int
write_nodes(StatsWriter *writer)
{
	const NodeStatsKept *not_taken;
	int count = 0;
	int next = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatsKept kept = {0};

		if (!node_status[i].in_use)
			continue;
		strlcpy(kept.address, node_status[i].url.address, sizeof(kept.address));
		node_stats_save(i, &kept);
		put(writer, &kept, sizeof(kept));
		count++;
	}
	/* no broker has listed these nodes since the start */
	while (count < CORE_NODES_MAX && (not_taken = node_stats_not_taken(&next)) != NULL)
	{
		put(writer, not_taken, sizeof(*not_taken));
		count++;
	}
	return count;
}

static int
write_resources(StatsWriter *writer)
{
	static ResourceStatsKept kept; /* bytes between fields are zero */
	int count = 0;

	for (int i = 0; i < RESOURCE_STATS_MAX; i++)
		if (resource_stats_save(i, &kept))
		{
			put(writer, &kept, sizeof(kept));
			count++;
		}
	return count;
}

static void
put(StatsWriter *writer, const void *data, size_t size)
{
	if (writer->file == NULL || !writer->good)
		return;
	COMP_CRC32C(writer->crc, data, size);
	writer->good = fwrite(data, size, 1, writer->file) == 1;
}

static void
read_file(void)
{
	FILE *file;
	char *contents;
	size_t size;
	const char *fault;

	(void) unlink(STATS_FILE ".new"); /* left by a crash */
	file = AllocateFile(STATS_FILE, PG_BINARY_R);
	if (file == NULL && errno == ENOENT)
		return;
	contents = file != NULL ? palloc_extended(STATS_FILE_SIZE_MAX + 1, MCXT_ALLOC_NO_OOM) : NULL;
	if (file == NULL)
		fault = psprintf("The file can't be read: %m.");
	else if (contents == NULL)
		fault = "There is not enough memory to read the file.";
	else
	{
		size = fread(contents, 1, STATS_FILE_SIZE_MAX + 1, file);
		fault = verdict(contents, size);
	}
	if (file != NULL)
		(void) FreeFile(file);
	/* a file that stays would come back after a crash */
	if (durable_unlink(STATS_FILE, LOG) != 0 && fault == NULL)
		fault = "The file can't be removed.";
	if (fault == NULL)
		restore(contents);
	else
		ereport(LOG, (errcode(ERRCODE_DATA_CORRUPTED),
					  errmsg("redlock statistics file \"%s\" is not used", STATS_FILE),
					  errdetail_internal("%s", fault),
					  errhint("The statistics begin at zero. Nothing needs to be done.")));
	if (contents != NULL)
		pfree(contents);
}

/* Returns the fault of the file, or NULL. */
static const char *
verdict(const char *contents, size_t size)
{
	const StatsHeader *header = (const StatsHeader *) contents;
	size_t body;
	pg_crc32c crc;
	pg_crc32c expected;

	if (size < sizeof(StatsHeader) || header->magic != STATS_MAGIC)
		return "The file is damaged.";
	if (header->layout != STATS_LAYOUT || header->header_size != sizeof(StatsHeader) ||
		header->node_size != sizeof(NodeStatsKept) ||
		header->resource_size != sizeof(ResourceStatsKept))
		return "Another version of redlock_pg has written the file.";
	if (header->nodes > CORE_NODES_MAX || header->resources > RESOURCE_STATS_MAX)
		return "The file is damaged.";
	body = sizeof(StatsHeader) + header->nodes * sizeof(NodeStatsKept) +
		   header->resources * sizeof(ResourceStatsKept);
	if (size != body + sizeof(expected))
		return "The file is damaged.";
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, contents, body);
	FIN_CRC32C(crc);
	memcpy(&expected, contents + body, sizeof(expected));
	return EQ_CRC32C(crc, expected) ? NULL : "The file is damaged.";
}

static void
restore(const char *contents)
{
	const StatsHeader *header = (const StatsHeader *) contents;
	const NodeStatsKept *node = (const NodeStatsKept *) (header + 1);
	const ResourceStatsKept *resource = (const ResourceStatsKept *) (node + header->nodes);

	lease_restore_counts(header->counter, header->reset_at);
	resource_stats_restore_sums(header->waited_us, header->held_us);
	for (uint32 i = 0; i < header->nodes; i++)
		node_stats_restore(&node[i]);
	for (uint32 i = 0; i < header->resources; i++)
		resource_stats_restore(&resource[i]);
}
