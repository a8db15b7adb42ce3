/*
 * inspect.c
 *		The functions that look at a lock without acquiring it: redlock_holder,
 *		redlock_holders, redlock_is_locked, redlock_waiters and redlock_inspect; and
 *		redlock_ask_release and redlock_force_release.
 */
#include "postgres.h"

#include <inttypes.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "port/pg_bitutils.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "protocol/permits.h"
#include "protocol/value.h"
#include "session/ask_release.h"
#include "session/encoding.h"
#include "session/force.h"
#include "session/grants.h"
#include "session/inspect_lock.h"
#include "session/list_waiting.h"
#include "session/scan_locks.h"
#include "session/session.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/holder.h"
#include "shared/node_status.h"
#include "shared/text.h"
#include "sql/arguments.h"
#include "sql/intervals.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_holder);
PG_FUNCTION_INFO_V1(redlock_is_locked);
PG_FUNCTION_INFO_V1(redlock_inspect);
PG_FUNCTION_INFO_V1(redlock_force_release);
PG_FUNCTION_INFO_V1(redlock_holders);
PG_FUNCTION_INFO_V1(redlock_waiters);
PG_FUNCTION_INFO_V1(redlock_ask_release);
#pragma GCC visibility pop

/* Columns of redlock_holder. */
enum
{
	STATE,
	MODE,
	HOST,
	CLUSTER,
	DATABASE,
	ROLE,
	PID,
	DETACHED,
	HOST_ID,
	MAY_BE_IDLE,
	KEPT_UNTIL,
	TTL,
	PERMITS,
	PERMITS_TAKEN,
	READER_HOSTS,
	HELD_BY,
	NODES,
	OF_NODES,
	SINCE, /* not of redlock_holders, which reads no counters */
	COLUMNS
};

/* A token may be this far ahead of the clock, and still be the time of the grant. */
#define CLOCKS_APART_US INT64CONST(1000000)

/* A row in the making. */
typedef struct Row
{
	Datum values[COLUMNS];
	bool nulls[COLUMNS];
} Row;

/* Where the rows of redlock_holders go. */
typedef struct RowWriter
{
	ReturnSetInfo *rsinfo;
	MemoryContext context; /* for one row */
} RowWriter;

static void fill_row(Row *row, const InspectAnswer *answer, const Inspection *inspection,
					 bool listed, int permit);
static void fill_holder(Row *row, const Inspection *inspection, const Value *value,
						const char *text, int permit);
static Datum release(FunctionCallInfo fcinfo, char *(*of_lock)(const LockName *name));
static void add_waiting_row(ReturnSetInfo *rsinfo, const WaitingHost *host, bool shared);
static void add_row(void *to, const char *name, const InspectAnswer *answer,
					const Inspection *inspection);
static void set(Row *row, int column, Datum value);
static void set_text(Row *row, int column, const char *utf8);
static Datum hosts_array(const Inspection *inspection);
static char *host_text(uint64 host);
static char *shown(const Inspected *at, size_t from);

/* redlock_holder(resource) */
Datum
redlock_holder(PG_FUNCTION_ARGS)
{
	LockName name;
	TupleDesc desc;
	InspectAnswer *answer;
	Inspection inspection;
	Row row;

	get_name(fcinfo, &name);
	session_check_ready();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(desc->natts == COLUMNS);
	answer = inspect_lock(&name, false);
	inspect_judge(&name, answer, &inspection);
	fill_row(&row, answer, &inspection, false, 0);
	PG_RETURN_DATUM(
		HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), row.values, row.nulls)));
}

/* redlock_is_locked(resource) */
Datum
redlock_is_locked(PG_FUNCTION_ARGS)
{
	LockName name;
	InspectAnswer *answer;
	Inspection inspection;

	get_name(fcinfo, &name);
	session_check_ready();
	answer = inspect_lock(&name, false);
	inspect_judge(&name, answer, &inspection);
	if (inspection.state == INSPECTION_UNKNOWN)
		inspect_fail_unknown(&name, answer);
	PG_RETURN_BOOL(inspection.state != INSPECTION_FREE);
}

/*
 * listed: also tells of a lock that no majority has.  permit: the number, if the key is a
 * permit's.
 */
static void
fill_row(Row *row, const InspectAnswer *answer, const Inspection *inspection, bool listed,
		 int permit)
{
	static const char *const states[] = {[INSPECTION_NO_QUORUM] = "unknown",
										 [INSPECTION_UNKNOWN] = "unknown",
										 [INSPECTION_FREE] = "free",
										 [INSPECTION_HELD] = "held",
										 [INSPECTION_KEPT] = "kept"};
	const Inspected *witness;
	bool has_majority;
	Value value;
	char *text;

	memset(row->nulls, true, sizeof(row->nulls));
	set_text(row, STATE, states[inspection->state]);
	set(row, NODES, Int32GetDatum(pg_popcount32(inspection->nodes)));
	set(row, OF_NODES, Int32GetDatum(pg_popcount32(answer->lists.now | answer->lists.next)));
	has_majority = inspection->state == INSPECTION_HELD || inspection->state == INSPECTION_KEPT;
	if (!listed && !has_majority)
		return;

	witness = &answer->node[inspection->witness];
	value_read(&value, witness->value, witness->value_len);
	if (witness->kind != INSPECTED_STRING)
		memset(&value, 0, sizeof(value));
	text = shown(witness, value.text);
	set_text(row, MODE, value.shared ? "shared" : "exclusive");
	set_text(row, HELD_BY, value.shared ? psprintf("%s%s", LOCK_READERS, text) : text);
	if (inspection->ttl_ms >= (has_majority ? 0 : 1))
		set(row, TTL, IntervalPGetDatum(make_interval_us(inspection->ttl_ms * INT64CONST(1000))));
	if (inspection->state == INSPECTION_KEPT && inspection->ttl_ms >= 0)
		set(row, KEPT_UNTIL,
			TimestampTzGetDatum(GetCurrentTimestamp() + inspection->ttl_ms * INT64CONST(1000)));
	if (value.permits > 0)
	{
		set(row, PERMITS, Int32GetDatum(value.permits));
		if (permit == 0)
			set(row, PERMITS_TAKEN, Int32GetDatum(inspection->permits_taken));
	}
	if (value.shared)
		set(row, READER_HOSTS, hosts_array(inspection));
	if (value.ours)
		set(row, MAY_BE_IDLE, BoolGetDatum(value.may_idle));
	fill_holder(row, inspection, &value, text, permit);
}

/*
 * The holder's columns.  The value of a lock with several holders tells of the last to acquire,
 * perhaps a former holder: the columns stay null, unless the lock has a single reader, the writer
 * of the value.
 */
static void
fill_holder(Row *row, const Inspection *inspection, const Value *value, const char *text,
			int permit)
{
	HolderParts parts;
	TimestampTz granted;
	TimestampTz now;

	if (!value->ours || (value->permits > 0 && permit == 0) ||
		(value->shared && (inspection->readers != 1 || inspection->hosts != 1 ||
						   inspection->host[0] != value->host)))
		return;
	set_text(row, HOST_ID, host_text(value->host));
	if (!holder_read(&parts, text))
		return;
	set_text(row, HOST, parts.host);
	set_text(row, CLUSTER, parts.cluster);
	set_text(row, DATABASE, parts.database);
	set_text(row, ROLE, parts.user);
	if (parts.pid != 0)
		set(row, PID, Int32GetDatum(parts.pid));
	set(row, DETACHED, BoolGetDatum(parts.detached));
	/* a token is the time of the grant, unless the tokens are ahead of the clock */
	granted = inspection->counter - REDLOCK_EPOCHS_APART_US;
	now = GetCurrentTimestamp();
	if (inspection->counter > 0 && !value->shared && granted <= now + CLOCKS_APART_US)
		set(row, SINCE, TimestampTzGetDatum(Min(granted, now)));
}

static void
set(Row *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* An empty text is null. */
static void
set_text(Row *row, int column, const char *utf8)
{
	if (utf8[0] != '\0')
		set(row, column, CStringGetTextDatum(encoding_from_utf8(utf8)));
}

static Datum
hosts_array(const Inspection *inspection)
{
	Datum hosts[LUA_READERS_ASKED];

	for (int i = 0; i < inspection->hosts; i++)
		hosts[i] = CStringGetTextDatum(host_text(inspection->host[i]));
	return PointerGetDatum(
		construct_array(hosts, inspection->hosts, TEXTOID, -1, false, TYPALIGN_INT));
}

static char *
host_text(uint64 host)
{
	return psprintf("%016" PRIx64, host);
}

/* The value from this byte on, fit for people, in UTF-8. */
static char *
shown(const Inspected *at, size_t from)
{
	char *text = palloc(LUA_HELD_MAX + 1);

	text_to_utf8(text, LUA_HELD_MAX + 1, at->value + from, at->value_len - from);
	return text;
}

/* redlock_inspect(resource) */
Datum
redlock_inspect(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LockName name;
	InspectAnswer *answer;

	get_name(fcinfo, &name);
	session_check_ready();
	REDLOCK_BEGIN_ROWS(fcinfo);
	answer = inspect_lock(&name, false);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const Inspected *at = &answer->node[i];
		bool has_key = at->kind == INSPECTED_STRING || at->kind == INSPECTED_OTHER;
		char *fault = inspect_fault(answer, i);
		char marker[LUA_MARKER_MAX + 1];
		NodeStatus status;
		Datum values[6] = {0};
		bool nulls[lengthof(values)];

		if (!((answer->lists.now | answer->lists.next) & CORE_BIT(i)) ||
			!node_status_copy(i, &status))
			continue;
		values[0] = CStringGetTextDatum(status.url.address);
		nulls[0] = false;
		values[1] = CStringGetTextDatum(encoding_from_utf8(shown(at, 0)));
		nulls[1] = !has_key;
		values[2] = IntervalPGetDatum(make_interval_us(at->ttl_ms * INT64CONST(1000)));
		nulls[2] = !has_key || at->ttl_ms < 0;
		values[3] = Int64GetDatum(at->counter);
		nulls[3] = at->counter == 0;
		text_to_printable(marker, sizeof(marker), at->marker, strlen(at->marker));
		values[4] = CStringGetTextDatum(marker);
		nulls[4] = at->marker[0] == '\0';
		values[5] = fault != NULL ? CStringGetTextDatum(fault) : 0;
		nulls[5] = fault == NULL;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* redlock_force_release(resource) */
Datum
redlock_force_release(PG_FUNCTION_ARGS)
{
	return release(fcinfo, force_release);
}

/* redlock_ask_release(resource) */
Datum
redlock_ask_release(PG_FUNCTION_ARGS)
{
	return release(fcinfo, ask_release);
}

/* Returns the holder's description, or null. */
static Datum
release(FunctionCallInfo fcinfo, char *(*of_lock)(const LockName *name))
{
	LockName name;
	char *holder;

	get_name(fcinfo, &name);
	grants_check(&name, 1);
	session_check_ready();
	holder = of_lock(&name);
	if (holder == NULL)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(CStringGetTextDatum(encoding_from_utf8(holder)));
}

/* redlock_holders(prefix) */
Datum
redlock_holders(PG_FUNCTION_ARGS)
{
	RowWriter writer = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	char *prefix;

	require_session();
	session_check_ready();
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the prefix of names of redlocks must not be null")));
	prefix = text_to_cstring(PG_GETARG_TEXT_PP(0));
	prefix = pg_server_to_any(prefix, strlen(prefix), PG_UTF8);
	REDLOCK_BEGIN_ROWS(fcinfo);
	writer.context =
		AllocSetContextCreate(CurrentMemoryContext, "redlock row", ALLOCSET_DEFAULT_SIZES);
	if (strlen(prefix) <= LOCK_NAME_MAX) /* no lock has a longer name */
		scan_locks(prefix, add_row, &writer);
	MemoryContextDelete(writer.context);
	return (Datum) 0;
}

/* A lock with permits has a row for each permit. */
static void
add_row(void *to, const char *name, const InspectAnswer *answer, const Inspection *inspection)
{
	RowWriter *writer = to;
	MemoryContext context;
	const Inspected *witness = &answer->node[inspection->witness];
	size_t name_len = permits_name_len(name, strlen(name));
	int permit;
	char shown_name[LUA_KEY_MAX + 1];
	Value value;
	Row row;
	Datum values[SINCE + 2];
	bool nulls[SINCE + 2] = {0};

	/* a stranger's key may end in anything */
	if (name[name_len] != '\0' &&
		(strspn(name + name_len + 1, "0123456789") != strlen(name + name_len + 1) ||
		 strlen(name + name_len) > PERMITS_SUFFIX_MAX))
		return;
	permit = permits_number(name, strlen(name));
	value_read(&value, witness->value, witness->value_len);
	if (value.permits > 0 && permit == 0)
		return;
	context = MemoryContextSwitchTo(writer->context);
	text_to_utf8(shown_name, sizeof(shown_name), name, name_len);
	fill_row(&row, answer, inspection, true, permit);
	values[0] = CStringGetTextDatum(encoding_from_utf8(shown_name));
	values[1] = Int32GetDatum(permit);
	nulls[1] = permit == 0;
	memcpy(&values[2], row.values, SINCE * sizeof(row.values[0]));
	memcpy(&nulls[2], row.nulls, SINCE * sizeof(row.nulls[0]));
	tuplestore_putvalues(writer->rsinfo->setResult, writer->rsinfo->setDesc, values, nulls);
	MemoryContextSwitchTo(context);
	MemoryContextReset(writer->context);
}

/* redlock_waiters(resource) */
Datum
redlock_waiters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LockName name;
	WaitingHosts *hosts;

	get_name(fcinfo, &name);
	session_check_ready();
	REDLOCK_BEGIN_ROWS(fcinfo);
	hosts = list_waiting(&name);
	for (int i = 0; i < hosts->count; i++)
		for (int shared = 0; shared <= 1; shared++)
			if (hosts->host[i].mode[shared].sessions > 0)
				add_waiting_row(rsinfo, &hosts->host[i], shared);
	return (Datum) 0;
}

/* Adds the sessions of a host that wait in one mode. */
static void
add_waiting_row(ReturnSetInfo *rsinfo, const WaitingHost *host, bool shared)
{
	const WaitingSessions *mode = &host->mode[shared];
	Datum values[6];
	bool nulls[lengthof(values)] = {0};

	values[0] = CStringGetTextDatum(host->machine);
	nulls[0] = host->machine[0] == '\0';
	values[1] = CStringGetTextDatum(host->cluster);
	nulls[1] = host->cluster[0] == '\0';
	values[2] = CStringGetTextDatum(host_text(host->host));
	values[3] = CStringGetTextDatum(shared ? "shared" : "exclusive");
	values[4] = Int32GetDatum(mode->sessions);
	values[5] = IntervalPGetDatum(make_interval_us(mode->waited_us));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}
