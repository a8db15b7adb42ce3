/*
 * views.c
 *		The rows of the views: leases, nodes, roles, hosts and counters.
 */
#include "postgres.h"

#include <inttypes.h>

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "protocol/permits.h"
#include "protocol/scopes.h"
#include "session/ask_hosts.h"
#include "session/encoding.h"
#include "session/gate.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/holder.h"
#include "shared/lease.h"
#include "shared/new_names.h"
#include "shared/node_status.h"
#include "shared/text.h"
#include "sql/intervals.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_lease_rows);
PG_FUNCTION_INFO_V1(redlock_lock_rows);
PG_FUNCTION_INFO_V1(redlock_node_rows);
PG_FUNCTION_INFO_V1(redlock_node_list_rows);
PG_FUNCTION_INFO_V1(redlock_role_rows);
PG_FUNCTION_INFO_V1(redlock_unsettled_row);
PG_FUNCTION_INFO_V1(redlock_host_rows);
PG_FUNCTION_INFO_V1(redlock_stats_row);
PG_FUNCTION_INFO_V1(redlock_counter_row);
#pragma GCC visibility pop

/* Columns of redlock_lock_rows; redlock_lease_rows of 0.1.0 had the columns up to the gate only. */
#define LOCK_COLUMNS 21
#define LOCK_COLUMNS_0_1 12

static void lease_row(Tuplestorestate *rows, TupleDesc desc, const Lease *original, Lease *lease);
static bool reader_rows(Tuplestorestate *rows, TupleDesc desc, const Lease *lease, Datum *values,
						bool *nulls);
static void holder_columns(const char *held_by, Datum *values, bool *nulls);
static void text_column(const char *utf8, Datum *value, bool *null);
static TimestampTz idle_since(Lease *lease);
static const char *lease_state_name(Lease *lease);
static void node_row(Tuplestorestate *rows, TupleDesc desc, NodeStatus *status);
static Datum counter_datum(LeaseCounter counter);
static void host_row(Tuplestorestate *rows, TupleDesc desc, const HostList *list,
					 const HostRow *host);
static bool has_next(const HostConfig *ours, const HostConfig *theirs);

/* Rows come from copies, taken without a lock; see lease.h. */
Datum
redlock_lease_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Lease *copy = palloc(sizeof(Lease));
	MemoryContext context = CurrentMemoryContext;
	MemoryContext row_context;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	row_context = AllocSetContextCreate(context, "redlock row", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < lease_table->entries; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!lease_table->lease[i].in_use || !lease_copy(&lease_table->lease[i], copy))
			continue;
		MemoryContextSwitchTo(row_context);
		lease_row(rsinfo->setResult, rsinfo->setDesc, &lease_table->lease[i], copy);
		MemoryContextSwitchTo(context);
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	return (Datum) 0;
}

/* In 0.2.0 the rows got role and until, permit and mode, and the holder's columns. */
Datum
redlock_lock_rows(PG_FUNCTION_ARGS)
{
	return redlock_lease_rows(fcinfo);
}

/* `lease` is the copy of `original`. */
static void
lease_row(Tuplestorestate *rows, TupleDesc desc, const Lease *original, Lease *lease)
{
	Datum values[LOCK_COLUMNS] = {0};
	bool nulls[LOCK_COLUMNS] = {0};
	bool idle = lease_is_idle(lease);
	int64 until_us =
		(int64) pg_atomic_read_u64(idle ? &lease->idle_until_us : &lease->hold_until_us);
	bool held = idle || (lease_state(lease) == LEASE_HELD &&
						 wish_is_held(pg_atomic_read_u32(&lease->wish)) &&
						 !lease->is_queue); /* the queue: its holder still waits for a permit */
	char *held_by =
		lease->token == 0 && !held && !lease->is_queue ? lease_held_by_text(lease) : NULL;
	bool by_many = lease->shared && lease->token != 0;

	Assert(desc->natts == LOCK_COLUMNS || desc->natts == LOCK_COLUMNS_0_1);

	values[0] = CStringGetTextDatum(encoding_from_utf8(lease_name(lease)));
	values[1] = CStringGetTextDatum(lease_state_name(lease));
	values[2] = CStringGetTextDatum(scope_name(lease->scope));
	values[3] = Int32GetDatum(lease->owner_pid);
	values[4] = ObjectIdGetDatum(lease->owner_database);
	values[5] = Int64GetDatum(lease->token);
	nulls[2] = nulls[4] = nulls[12] = idle || by_many;
	nulls[3] = idle || by_many || lease->owner_pid == 0;
	nulls[5] = idle || lease->token == 0;
	values[6] = IntervalPGetDatum(make_interval_us(lease_validity_us(lease)));
	nulls[6] = !held;
	values[7] = IntervalPGetDatum(make_interval_us(lease->ttl_ms * INT64CONST(1000)));
	values[8] = TimestampTzGetDatum(idle ? idle_since(lease) : lease->since);
	values[9] = held_by != NULL ? CStringGetTextDatum(encoding_from_utf8(held_by)) : 0;
	nulls[9] = held_by == NULL;
	values[10] = ObjectIdGetDatum(GATE_CLASSID(lease->gate));
	values[11] = ObjectIdGetDatum(GATE_OBJID(lease->gate));
	values[12] = ObjectIdGetDatum(lease->owner_role);
	values[13] = TimestampTzGetDatum(GetCurrentTimestamp() + until_us - redlock_clock_us());
	nulls[13] = !held || until_us == 0;
	values[14] = Int32GetDatum(permits_number(lease->key, lease->key_len));
	nulls[14] = lease->permits == 0 || lease->is_queue;
	values[15] = CStringGetTextDatum(lease->shared ? "shared" : "exclusive");
	holder_columns(lease->held_by_host ? held_by : NULL, &values[16], &nulls[16]);
	if (!by_many || idle || desc->natts == LOCK_COLUMNS_0_1 ||
		!reader_rows(rows, desc, original, values, nulls))
		tuplestore_putvalues(rows, desc, values, nulls);
}

/*
 * Adds a row for each session of this server that shares the lease.  Returns false if there is
 * none.
 */
static bool
reader_rows(Tuplestorestate *rows, TupleDesc desc, const Lease *lease, Datum *values, bool *nulls)
{
	bool any = false;

	for (int i = 0; i < MaxBackends; i++)
	{
		int pid = lease_has_reader(lease, i) ? GetPGProcByNumber(i)->pid : 0;

		if (pid == 0)
			continue;
		values[3] = Int32GetDatum(pid);
		nulls[3] = false;
		tuplestore_putvalues(rows, desc, values, nulls);
		any = true;
	}
	return any;
}

/* The words of a host's description; held_by NULL: no host wrote one. */
static void
holder_columns(const char *held_by, Datum *values, bool *nulls)
{
	HolderParts parts = {0};

	if (held_by != NULL)
		(void) holder_read(&parts, held_by);
	text_column(parts.cluster, &values[0], &nulls[0]);
	text_column(parts.host, &values[1], &nulls[1]);
	text_column(parts.database, &values[2], &nulls[2]);
	text_column(parts.user, &values[3], &nulls[3]);
	values[4] = Int32GetDatum(parts.pid);
	nulls[4] = parts.pid == 0;
}

/* An empty text is null. */
static void
text_column(const char *utf8, Datum *value, bool *null)
{
	*null = utf8[0] == '\0';
	if (!*null)
		*value = CStringGetTextDatum(encoding_from_utf8(utf8));
}

/* The wall clock was not read when the lease became idle, so the time is computed. */
static TimestampTz
idle_since(Lease *lease)
{
	int64 until_us = (int64) pg_atomic_read_u64(&lease->idle_until_us);
	int64 idle_us =
		lease->keep_idle_ms > 0 ? lease->keep_idle_ms * INT64CONST(1000) : PERMITS_PASS_US;

	return GetCurrentTimestamp() - (redlock_clock_us() - (until_us - idle_us));
}

static const char *
lease_state_name(Lease *lease)
{
	if (pg_atomic_read_u32(&lease->wish) == WISH_NOTHING)
		return "releasing";
	if (lease_is_idle(lease))
		return "idle";
	if (lease->is_queue)
		return "waiting"; /* for any permit */
	switch (lease_state(lease))
	{
		case LEASE_HELD:
			return lease_validity_us(lease) > 0 ? "held" : "lost";
		case LEASE_LOST:
			return "lost";
		case LEASE_WAITING:
		case LEASE_REFUSED:
		case LEASE_UNREACHABLE:
		case LEASE_DEADLOCKED:
			break;
	}
	return "waiting";
}

Datum
redlock_node_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NodeStatus status;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status_copy(i, &status))
			node_row(rsinfo->setResult, rsinfo->setDesc, &status);
	return (Datum) 0;
}

/* The columns of redlock_nodes in 0.1.0: no column may be added here. */
static void
node_row(Tuplestorestate *rows, TupleDesc desc, NodeStatus *status)
{
	Datum values[11] = {0};
	bool nulls[11] = {0};
	int64 quarantine_us = status->guard.until_us - redlock_clock_us();
	int64 rtt_us = (int64) pg_atomic_read_u64(&status->rtt_us);

	Assert(desc->natts == lengthof(values));

	values[0] = CStringGetTextDatum(status->url.address);
	values[1] = CStringGetTextDatum(status->now || status->next ? status->state : "leaving");
	values[2] = CStringGetTextDatum(status->last_error);
	values[3] = TimestampTzGetDatum(status->last_error_at);
	nulls[2] = nulls[3] = status->last_error[0] == '\0';
	values[4] = Int64GetDatum(rtt_us);
	nulls[4] = rtt_us == 0;
	values[5] = Int64GetDatum((int64) pg_atomic_read_u64(&status->votes_yes));
	values[6] = Int64GetDatum((int64) pg_atomic_read_u64(&status->votes_no));
	values[7] = Int64GetDatum((int64) pg_atomic_read_u64(&status->votes_error));
	values[8] = TimestampTzGetDatum(status->since);
	values[9] = CStringGetTextDatum(status->guard.reason);
	values[10] = IntervalPGetDatum(make_interval_us(quarantine_us));
	nulls[9] = quarantine_us <= 0;
	nulls[10] = quarantine_us <= 0 || status->evicts; /* no end while the node may evict */
	tuplestore_putvalues(rows, desc, values, nulls);
}

static Datum
counter_datum(LeaseCounter counter)
{
	return Int64GetDatum((int64) lease_counted(counter));
}

/* The columns of redlock_nodes since 0.2.0. */
Datum
redlock_node_list_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NodeStatus status;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		Datum values[4];
		bool nulls[4] = {0};
		int64 used;
		int64 limit;

		if (!node_status_copy(i, &status))
			continue;
		used = (int64) pg_atomic_read_u64(&status.memory_used);
		limit = (int64) pg_atomic_read_u64(&status.memory_limit);
		values[0] = CStringGetTextDatum(status.url.address);
		values[1] = CStringGetTextDatum(status.now && status.next ? "both"
										: status.now              ? "now"
										: status.next             ? "next"
																  : "leaving");
		values[2] = Int64GetDatum(used);
		nulls[2] = used == 0;
		values[3] = Int64GetDatum(limit);
		nulls[3] = limit == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
redlock_role_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NewNames list[NEW_NAMES_ROLES];
	int count;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	count = new_names_list(list);
	for (int i = 0; i < count; i++)
	{
		Datum values[] = {ObjectIdGetDatum(list[i].role), Int64GetDatum(list[i].names),
						  Int64GetDatum(list[i].refused)};
		bool nulls[lengthof(values)] = {0};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

Datum
redlock_unsettled_row(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Datum values[2];
	bool nulls[2];
	int leases;
	int64 kept_until_us;

	lease_require_preload();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	nulls[0] = !lease_unsettled(&leases, &kept_until_us);
	nulls[1] = kept_until_us == 0;
	values[0] = Int32GetDatum(leases);
	values[1] = TimestampTzGetDatum(GetCurrentTimestamp() + kept_until_us - redlock_clock_us());
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

Datum
redlock_host_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext context = CurrentMemoryContext;
	MemoryContext row_context;
	HostList *list;

	lease_require_preload();
	REDLOCK_BEGIN_ROWS(fcinfo);
	if (redlock_nodes()->count == 0)
		return (Datum) 0;
	list = ask_hosts();
	row_context = AllocSetContextCreate(context, "redlock row", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < list->count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(row_context);
		host_row(rsinfo->setResult, rsinfo->setDesc, list, &list->row[i]);
		MemoryContextSwitchTo(context);
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	return (Datum) 0;
}

/* A text of another form was not written by a host: no row. */
static void
host_row(Tuplestorestate *rows, TupleDesc desc, const HostList *list, const HostRow *host)
{
	const HostConfig *ours = &list->own;
	static const char *const standings[] = {[HOST_ASKS] = "asks",
											[HOST_TAKES] = "takes",
											[HOST_REFUSES] = "refuses",
											[HOST_HOLDS] = "holds",
											[HOST_WARNS] = "warns"};
	Datum values[15] = {0};
	bool nulls[15] = {0};
	HostFacts facts;
	HostConfig theirs;
	HostsDifference difference;
	StringInfoData disagreement;
	StringInfoData hint;
	char prefix[LOCK_PREFIX_MAX + 1];
	TimestampTz seen_at = GetCurrentTimestamp() - (redlock_clock_us() - host->seen_us);

	Assert(desc->natts == lengthof(values));

	if (!hosts_read_facts(&facts, (const char *) list + host->facts_at, host->facts_len) ||
		!hosts_read_config(&theirs, (const char *) list + host->config_at, host->config_len))
		return;
	initStringInfo(&disagreement);
	initStringInfo(&hint);
	text_to_printable(prefix, sizeof(prefix), theirs.prefix, strlen(theirs.prefix));
	hosts_compare(ours, &theirs, host->seen_us, &difference);
	host_list_explain(ours, &theirs, &difference, &disagreement, &hint);
	appendStringInfo(&disagreement, " %s", hint.data);

	values[0] = CStringGetTextDatum(facts.name);
	values[1] = CStringGetTextDatum(psprintf("%016" PRIx64, host->id));
	values[2] = CStringGetTextDatum(facts.version);
	values[3] = CStringGetTextDatum(facts.postgres);
	values[4] = CStringGetTextDatum(prefix);
	values[5] = Int32GetDatum(facts.leases);
	values[6] = TimestampTzGetDatum(seen_at - facts.up_for_s * USECS_PER_SEC);
	values[7] = TimestampTzGetDatum(seen_at);
	values[8] = Int32GetDatum(host->nodes);
	values[9] = BoolGetDatum(facts.settled && has_next(ours, &theirs));
	nulls[10] = strcmp(theirs.prefix, ours->prefix) != 0;
	values[10] = BoolGetDatum(host->id == lease_table->host_id || difference.kinds == 0);
	nulls[11] = nulls[10] || DatumGetBool(values[10]);
	values[11] = CStringGetTextDatum(disagreement.data);
	values[12] = BoolGetDatum(host->id == lease_table->host_id);
	values[13] = CStringGetTextDatum(standings[theirs.standing]);
	nulls[14] = theirs.step == HOST_STAYS;
	values[14] = CStringGetTextDatum(theirs.step == HOST_GOES_ON ? "on" : "back");
	tuplestore_putvalues(rows, desc, values, nulls);
}

/*
 * Returns true if this host's next list alone would exclude the other host, or if there is no
 * next list.
 */
static bool
has_next(const HostConfig *ours, const HostConfig *theirs)
{
	HostConfig next = *ours;
	HostsDifference difference;

	next.count = 0;
	for (int i = 0; i < ours->count; i++)
		if (ours->node[i].next && strcmp(ours->prefix, theirs->prefix) == 0)
		{
			next.node[next.count] = ours->node[i];
			next.node[next.count].now = true;
			next.node[next.count++].next = false;
		}
	if (next.count == 0)
		return true;
	hosts_compare(&next, theirs, HOSTS_AT_ANY_TIME, &difference);
	return !(difference.kinds & HOSTS_NODES);
}

Datum
redlock_stats_row(PG_FUNCTION_ARGS)
{
	TupleDesc desc;
	Datum values[COUNTERS + 7] = {0};
	bool nulls[COUNTERS + 7] = {0};
	int64 waited_us;
	int64 held_us;
	int column = 0;
	int broker_pid;
	int locks;
	int releasing;

	lease_require_preload();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);
	/* the function of 0.1.0 ends with broker_pid */
	Assert(desc->natts == lengthof(values) || desc->natts == COUNTERS_OF_0_1 + 4);

	for (int i = 0; i < COUNTERS_OF_0_1; i++)
		values[column++] = counter_datum(i);
	lease_usage(&locks, &releasing);
	broker_pid = lease_broker_pid();
	values[column++] = Int32GetDatum(locks);
	values[column++] = Int32GetDatum(lease_table->max_locks);
	values[column++] = Int32GetDatum(releasing);
	nulls[column] = broker_pid == 0;
	values[column++] = Int32GetDatum(broker_pid);
	for (int i = COUNTERS_OF_0_1; i < COUNTERS; i++)
		values[column++] = counter_datum(i);
	resource_stats_sums(&waited_us, &held_us);
	values[column++] = Float8GetDatum((double) waited_us / 1000.0);
	values[column++] = Float8GetDatum((double) held_us / 1000.0);
	values[column++] = TimestampTzGetDatum(lease_counts_reset_at());
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* In 0.2.0 the row got further counters, two times and the start, behind the columns of 0.1.0. */
Datum
redlock_counter_row(PG_FUNCTION_ARGS)
{
	return redlock_stats_row(fcinfo);
}
