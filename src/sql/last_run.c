/*
 * last_run.c
 *		redlock_last_run: the last recorded run of a job, on any host.
 */
#include "postgres.h"

#include <inttypes.h>

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "session/encoding.h"
#include "session/run_notes.h"
#include "session/session.h"
#include "shared/clock.h"
#include "shared/text.h"
#include "sql/arguments.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_last_run);
#pragma GCC visibility pop

enum
{
	STARTED,
	ENDED,
	STATUS,
	TOKEN,
	CLUSTER,
	HOST,
	HOST_ID,
	DATABASE,
	ROLE,
	PID,
	MESSAGE,
	NODES,
	OF_NODES,
	COLUMNS
};

typedef struct Row
{
	Datum values[COLUMNS];
	bool nulls[COLUMNS];
} Row;

static void fill_run(Row *row, const RunNote *run);
static bool may_read_message(const RunNote *run);
static void set(Row *row, int column, Datum value);
static void set_text(Row *row, int column, const char *text);
static Datum timestamp_of(int64 us);

/* redlock_last_run(resource) */
Datum
redlock_last_run(PG_FUNCTION_ARGS)
{
	InspectAnswer *answer = palloc(sizeof(InspectAnswer));
	LockName name;
	TupleDesc desc;
	Row row;

	get_name(fcinfo, &name);
	session_check_ready();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(desc->natts == COLUMNS);
	run_notes_ask(&name, answer);
	memset(row.nulls, true, sizeof(row.nulls));
	set(&row, NODES, Int32GetDatum(pg_popcount32(answer->noted)));
	set(&row, OF_NODES, Int32GetDatum(pg_popcount32(answer->lists.now | answer->lists.next)));
	if (answer->noted != 0)
		fill_run(&row, &answer->last_run);
	PG_RETURN_DATUM(
		HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), row.values, row.nulls)));
}

static void
fill_run(Row *row, const RunNote *run)
{
	set(row, STARTED, timestamp_of(run->started_us));
	set(row, ENDED, timestamp_of(run->ended_us));
	set_text(row, STATUS, run_note_status[run->status]);
	set(row, TOKEN, Int64GetDatum(run->token));
	set_text(row, CLUSTER, run->cluster);
	set_text(row, HOST, run->host);
	set_text(row, HOST_ID, psprintf("%016" PRIx64, run->host_id));
	set_text(row, DATABASE, run->database);
	set_text(row, ROLE, run->role);
	if (run->pid != 0)
		set(row, PID, Int32GetDatum(run->pid));
	if (may_read_message(run))
		set_text(row, MESSAGE, run->message);
}

/*
 * As in redlock_runs, the text of an error is for the role of the run; and for monitoring. Compares
 * names as the node has them: a shown name may have escapes.
 */
static bool
may_read_message(const RunNote *run)
{
	char own[sizeof(run->role)];

	encoding_to_utf8(own, sizeof(own), GetUserNameFromId(GetUserId(), false));
	return strcmp(run->role, own) == 0 || has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

static void
set(Row *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/*
 * Sets a column to a text from the nodes, made fit for people, in the encoding of this database;
 * null if the text is empty.
 */
static void
set_text(Row *row, int column, const char *text)
{
	char utf8[RUN_NOTE_MESSAGE_MAX + 1];
	char *shown;

	text_to_utf8(utf8, sizeof(utf8), text, strlen(text));
	shown = encoding_from_utf8(utf8);
	if (shown[0] != '\0')
		set(row, column, CStringGetTextDatum(shown));
}

/* us: since 1970 */
static Datum
timestamp_of(int64 us)
{
	return TimestampTzGetDatum(us - REDLOCK_EPOCHS_APART_US);
}
