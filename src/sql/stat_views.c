/*
 * stat_views.c
 *		The rows of the views redlock_stat_nodes and redlock_stat_resources, and their reset.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "protocol/permits.h"
#include "session/encoding.h"
#include "shared/compat.h"
#include "shared/lease.h"
#include "shared/node_stats.h"
#include "shared/node_status.h"
#include "shared/resource_stats.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_stat_node_rows);
PG_FUNCTION_INFO_V1(redlock_stat_resource_rows);
PG_FUNCTION_INFO_V1(redlock_stat_reset);
#pragma GCC visibility pop

#define NODE_COLUMNS (NODE_ERRORS + 10)
#define RESOURCE_COLUMNS (RESOURCE_EVENTS + 10)

static void node_row(Tuplestorestate *rows, TupleDesc desc, int node, const NodeStatus *status);
static void resource_row(Tuplestorestate *rows, TupleDesc desc, const ResourceStats *stats);
static int put_times(Datum *values, const ResourceTimes *times);
static Datum histogram(const int64 *bucket);
static Datum milliseconds(int64 us);
static int64 read_count(const pg_atomic_uint64 *counter);

Datum
redlock_stat_node_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NodeStatus status;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status_copy(i, &status))
			node_row(rsinfo->setResult, rsinfo->setDesc, i, &status);
	return (Datum) 0;
}

static void
node_row(Tuplestorestate *rows, TupleDesc desc, int node, const NodeStatus *status)
{
	const NodeStats *stats = &node_stats[node];
	Datum values[NODE_COLUMNS] = {0};
	bool nulls[NODE_COLUMNS] = {0};
	int64 bucket[STAT_BUCKETS];
	int64 answers = 0;
	int64 memory_used = read_count(&status->memory_used);
	int column = 0;

	Assert(desc->natts == NODE_COLUMNS);

	for (int i = 0; i < STAT_BUCKETS; i++)
		answers += bucket[i] = read_count(&stats->answers[i]);
	values[column++] = CStringGetTextDatum(status->url.address);
	values[column++] = Int64GetDatum(read_count(&stats->commands));
	values[column++] = Int64GetDatum(answers);
	for (int i = 0; i < NODE_ERRORS; i++)
		values[column++] = Int64GetDatum(read_count(&stats->errors[i]));
	values[column++] = Int64GetDatum(read_count(&stats->connects));
	values[column++] = Int64GetDatum(read_count(&stats->quarantines));
	values[column++] = milliseconds(read_count(&stats->answer_us));
	values[column++] = milliseconds(read_count(&stats->max_answer_us));
	values[column++] = histogram(bucket);
	nulls[column] = memory_used == 0;
	values[column++] = Int64GetDatum(memory_used);
	values[column++] = TimestampTzGetDatum(read_count(&stats->reset_at));
	Assert(column == NODE_COLUMNS);
	tuplestore_putvalues(rows, desc, values, nulls);
}

/* Rows come from copies, taken without a lock. */
Datum
redlock_stat_resource_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext context = CurrentMemoryContext;
	MemoryContext row_context;
	ResourceStats copy;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	row_context = AllocSetContextCreate(context, "redlock row", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < RESOURCE_STATS_MAX; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!resource_stats_copy(i, &copy))
			continue;
		MemoryContextSwitchTo(row_context);
		resource_row(rsinfo->setResult, rsinfo->setDesc, &copy);
		MemoryContextSwitchTo(context);
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	return (Datum) 0;
}

static void
resource_row(Tuplestorestate *rows, TupleDesc desc, const ResourceStats *stats)
{
	Datum values[RESOURCE_COLUMNS] = {0};
	bool nulls[RESOURCE_COLUMNS] = {0};
	int permit = permits_number(stats->name, stats->name_len);
	int len = permits_name_len(stats->name, stats->name_len);
	int column = 0;

	Assert(desc->natts == RESOURCE_COLUMNS);

	values[column++] = CStringGetTextDatum(encoding_from_utf8(pnstrdup(stats->name, len)));
	nulls[column] = permit == 0;
	values[column++] = Int32GetDatum(permit);
	for (int i = 0; i < RESOURCE_EVENTS; i++)
	{
		values[column++] = Int64GetDatum(stats->count[i]);
		if (i == RESOURCE_FROM_IDLE)
			values[column++] = Int64GetDatum(read_count(&stats->joined));
	}
	column += put_times(&values[column], &stats->waited);
	column += put_times(&values[column], &stats->held);
	values[column++] = TimestampTzGetDatum(stats->since);
	Assert(column == RESOURCE_COLUMNS);
	tuplestore_putvalues(rows, desc, values, nulls);
}

static int
put_times(Datum *values, const ResourceTimes *times)
{
	values[0] = milliseconds(times->sum_us);
	values[1] = milliseconds(times->max_us);
	values[2] = histogram(times->bucket);
	return 3;
}

static Datum
histogram(const int64 *bucket)
{
	Datum elements[STAT_BUCKETS];

	for (int i = 0; i < STAT_BUCKETS; i++)
		elements[i] = Int64GetDatum(bucket[i]);
	return PointerGetDatum(construct_array(elements, STAT_BUCKETS, INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

static Datum
milliseconds(int64 us)
{
	return Float8GetDatum((double) us / 1000.0);
}

static int64
read_count(const pg_atomic_uint64 *counter)
{
	return (int64) pg_atomic_read_u64((pg_atomic_uint64 *) counter);
}

/* redlock_stat_reset(target), for operators.  NULL: all, as in pg_stat_reset_shared. */
Datum
redlock_stat_reset(PG_FUNCTION_ARGS)
{
	char *target = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));
	bool nodes = target == NULL || strcmp(target, "nodes") == 0;
	bool resources = target == NULL || strcmp(target, "resources") == 0;
	bool stats = target == NULL || strcmp(target, "stats") == 0;

	if (!nodes && !resources && !stats)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("unrecognized reset target: \"%s\"", target),
						errhint("Target must be \"nodes\", \"resources\" or \"stats\".")));
	lease_require_preload();
	if (nodes)
		node_stats_reset();
	if (resources)
		lease_stats_reset();
	if (stats)
	{
		lease_reset_counts();
		lease_stats_reset_sums();
	}
	PG_RETURN_VOID();
}
