/*
 * runs.c
 *		The table redlock_runs; see runs.h.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "session/loss.h"
#include "session/runs.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/run_report.h"

#define COMMAND_MAX 1024 /* bytes of a command that are written down */

static int runs_under_way = 0; /* of this session: they nest */
static uint64 writer;          /* number of this process, if it is one */

static void write_row(Oid schema, const char *resource, const char *command, const char *status,
					  int64 token, RunRow *row);
static void tidy(Oid schema);
static Datum *gone_sessions(Oid schema, int *count);
static int execute(Oid schema, const char *sql, int count, Oid *types, Datum *values);
static void become_owner(Oid schema, Oid *user, int *context);
static Oid find_table(Oid schema);
static bool start_writer(uint64 number);
static void write_end(const RunReport *report);
static void end_writer(int code, Datum arg);
static void explain_writer(void *arg);

void
runs_require(Oid schema)
{
	char *name = get_namespace_name(schema);

	if (!OidIsValid(find_table(schema)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("there is no table redlock_runs to record a run in"),
				 name != NULL
					 ? errdetail("It should be in the schema of redlock_run, \"%s\".", name)
					 : errdetail("The schema of redlock_run is gone, too."),
				 errhint("Give the table its name and schema again, or, where it was dropped, drop "
						 "the extension and create it anew. Without record it is not needed.")));
}

void
runs_begin(Oid schema, const char *resource, const char *command, int64 token, RunRow *row)
{
	tidy(schema);
	write_row(schema, resource, command, "running", token, row);
}

void
runs_skip(Oid schema, const char *resource, const char *command)
{
	RunRow row;

	tidy(schema);
	write_row(schema, resource, command, "skipped", 0, &row);
}

static void
write_row(Oid schema, const char *resource, const char *command, const char *status, int64 token,
		  RunRow *row)
{
	int len = pg_mbcliplen(command, strlen(command), COMMAND_MAX);
	bool skipped = token == 0;
	Oid types[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID,
				   INT4OID, INT8OID, INT8OID, TEXTOID, BOOLOID};
	Datum values[] = {CStringGetTextDatum(resource),
					  PointerGetDatum(cstring_to_text_with_len(command, len)),
					  CStringGetTextDatum(host_list_own_name()),
					  CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)),
					  Int64GetDatum(token),
					  Int32GetDatum(MyProcPid),
					  Int64GetDatum((int64) GetSystemIdentifier()),
					  Int64GetDatum(run_report_session()),
					  CStringGetTextDatum(status),
					  BoolGetDatum(skipped)};
	bool null;

	SPI_connect();
	if (execute(schema,
				"INSERT INTO %1$s.redlock_runs (resource, command, host, database, role, token,"
				" pid, server, session, started, ended, status)"
				" VALUES ($1, $2, $3, pg_catalog.current_database(), $4,"
				" CASE WHEN $10 THEN NULL ELSE $5 END, $6, $7, $8, pg_catalog.clock_timestamp(),"
				" CASE WHEN $10 THEN pg_catalog.clock_timestamp() END, $9) RETURNING id, ctid",
				lengthof(types), types, values) != SPI_OK_INSERT_RETURNING ||
		SPI_processed != 1)
		elog(ERROR, "could not record a run");
	row->id = *DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	row->place = *(ItemPointer) DatumGetPointer(
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &null));
	SPI_finish();
}

/*
 * Runs whose sessions have gone end; nobody knows when they did.  Old rows go.  Another
 * session may be at the same, or a transaction of the owner's keep a row: who records a run
 * waits for neither, and the next one comes by.
 */
static void
tidy(Oid schema)
{
	int count;
	Datum *gone;
	Oid types[] = {INT8OID, INT8ARRAYOID};
	Datum values[2] = {Int64GetDatum((int64) GetSystemIdentifier())};
	Oid keep_types[] = {INT4OID};
	Datum keep_values[] = {Int32GetDatum(redlock_runs_keep_s)};

	SPI_connect();
	gone = gone_sessions(schema, &count);
	values[1] = PointerGetDatum(
		construct_array(gone, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	if (count > 0)
		(void) execute(
			schema,
			"UPDATE %1$s.redlock_runs"
			" SET status = 'failed', message = 'it ended without a word'"
			" WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT id FROM %1$s.redlock_runs"
			" WHERE status OPERATOR(pg_catalog.=) 'running'"
			" AND server OPERATOR(pg_catalog.=) $1"
			" AND session OPERATOR(pg_catalog.=) ANY ($2) FOR UPDATE SKIP LOCKED))",
			lengthof(types), types, values);
	if (redlock_runs_keep_s > 0)
		(void) execute(
			schema,
			"DELETE FROM %1$s.redlock_runs"
			" WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT id FROM %1$s.redlock_runs"
			" WHERE started OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp()"
			" OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $1))"
			" AND status OPERATOR(pg_catalog.<>) 'running' FOR UPDATE SKIP LOCKED))",
			lengthof(keep_types), keep_types, keep_values);
	SPI_finish();
}

/*
 * With runs that are said to be running on this server.  A session is known as living before
 * its first row is there, so the rows are read first.  This one is among the gone if it has
 * no recorded run under way: the report of that one was lost.
 */
static Datum *
gone_sessions(Oid schema, int *count)
{
	Oid types[] = {INT8OID};
	Datum values[] = {Int64GetDatum((int64) GetSystemIdentifier())};
	Datum *gone;

	(void) execute(schema,
				   "SELECT session FROM %1$s.redlock_runs"
				   " WHERE status OPERATOR(pg_catalog.=) 'running'"
				   " AND server OPERATOR(pg_catalog.=) $1",
				   lengthof(types), types, values);
	gone = palloc(SPI_processed * sizeof(Datum));
	*count = 0;
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool null;
		Datum session = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null);
		bool own = DatumGetInt64(session) == run_report_session();

		if (own ? runs_under_way == 0 : !run_report_lives(DatumGetInt64(session)))
			gone[(*count)++] = session;
	}
	return gone;
}

void
runs_enter(void)
{
	runs_under_way++;
}

void
runs_leave(void)
{
	runs_under_way--;
}

/*
 * In the last transaction of the run, so that a run which has succeeded is one that has
 * committed.  That one may be SERIALIZABLE: who looks into an index there conflicts with all
 * who write to the same page of it, that is with all other runs.  So the row is found by its
 * place, if it has not been moved meanwhile.
 */
void
runs_succeed(Oid schema, const RunRow *row)
{
	Oid types[] = {UUIDOID, TIDOID};
	Datum values[] = {UUIDPGetDatum(&row->id), PointerGetDatum(&row->place)};

	SPI_connect();
	(void) execute(schema,
				   "UPDATE %1$s.redlock_runs"
				   " SET status = 'succeeded', ended = pg_catalog.clock_timestamp()"
				   " WHERE ctid OPERATOR(pg_catalog.=) $2 AND id OPERATOR(pg_catalog.=) $1",
				   lengthof(types), types, values);
	if (SPI_processed == 0)
		(void) execute(schema,
					   "UPDATE %1$s.redlock_runs"
					   " SET status = 'succeeded', ended = pg_catalog.clock_timestamp()"
					   " WHERE id OPERATOR(pg_catalog.=) $1",
					   1, types, values);
	SPI_finish();
}

/*
 * Its table, written with the rights of its owner; %1$s is the schema.  Nothing may be looked up
 * where the caller says: each name in the statement is qualified, and the path is ours.  However
 * small the table is, it is not read as a whole; see runs_succeed.
 */
static int
execute(Oid schema, const char *sql, int count, Oid *types, Datum *values)
{
	bool read_only = XactReadOnly;
	char *text;
	int nest_level;
	Oid user;
	int context;
	int rc;

	runs_require(schema);
	become_owner(schema, &user, &context);
	text = psprintf(sql, quote_identifier(get_namespace_name(schema)));
	nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
	if (!RecoveryInProgress())
		XactReadOnly = false; /* the command may have set it */
	rc = SPI_execute_with_args(text, count, types, values, NULL, false, 0);
	XactReadOnly = read_only;
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	if (rc < 0)
		elog(ERROR, "could not write redlock_runs: %s", SPI_result_code_string(rc));
	return rc;
}

/* After an error PostgreSQL sets both back. */
static void
become_owner(Oid schema, Oid *user, int *context)
{
	Oid table = find_table(schema);
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	Oid owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", table);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	GetUserIdAndSecContext(user, context);
	SetUserIdAndSecContext(owner,
						   *context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
}

static Oid
find_table(Oid schema)
{
	return get_relname_relid("redlock_runs", schema);
}

/*
 * Where servers replicate to each other, what one has written comes back: a row that is there,
 * or a status that it has.
 */
Datum
runs_merge(TriggerData *trigger)
{
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	bool update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	HeapTuple row = update ? trigger->tg_newtuple : trigger->tg_trigtuple;
	int id = SPI_fnumber(desc, "id");
	int status = SPI_fnumber(desc, "status");
	Oid types[] = {UUIDOID};
	Datum values[1];
	bool null = true;
	bool known;

	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(trigger->tg_event) || SPI_gettypeid(desc, id) != UUIDOID ||
		SPI_gettypeid(desc, status) != TEXTOID)
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_runs_merge is for the rows of redlock_runs only")));
	if (update)
	{
		const char *before = SPI_getvalue(trigger->tg_trigtuple, desc, status);
		const char *after = SPI_getvalue(row, desc, status);

		known = before != NULL && after != NULL && strcmp(before, after) == 0;
	}
	else
	{
		values[0] = SPI_getbinval(row, desc, id, &null);
		if (null)
			return PointerGetDatum(row); /* the table refuses it */
		SPI_connect();
		(void) execute(RelationGetNamespace(trigger->tg_relation),
					   "SELECT FROM %1$s.redlock_runs WHERE id OPERATOR(pg_catalog.=) $1",
					   lengthof(types), types, values);
		known = SPI_processed > 0;
		SPI_finish();
	}
	return PointerGetDatum(known ? NULL : row);
}

/*
 * Runs that fail
 */

void
runs_fail(Oid schema, const pg_uuid_t *id, const char *resource, bool lost, bool cancelled,
		  MemoryContext context)
{
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData *error = CopyErrorData();
	RunReport report = {.database = MyDatabaseId,
						.schema = schema,
						.id = *id,
						.lost = lost,
						.ended = GetCurrentTimestamp()};
	/* as the client is told */
	char *message = lost && cancelled ? loss_message(true, resource) : error->message;
	RunReportFate fate;

	memcpy(report.message, message, pg_mbcliplen(message, strlen(message), RUN_MESSAGE_SIZE - 1));
	fate = run_report_put(&report, start_writer);
	if (fate != RUN_REPORT_TOLD)
		ereport(
			WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not record that this run of redlock \"%s\" failed", resource),
			 errdetail("%s It stays \"running\" in redlock_runs until this session records "
					   "another run, or, after its end, another of this server does.",
					   fate == RUN_REPORT_NO_PLACE
						   ? "Reports of other runs that failed wait to be written."
						   : "No process could be started that writes it; the next "
							 "one for this database will."),
			 fate == RUN_REPORT_NO_PLACE
				 ? errhint("See in pg_stat_activity what the process \"redlock run\" waits for, "
						   "and its errors in the server log.")
				 : errhint("Raise max_worker_processes, now %d.", max_worker_processes)));
	FreeErrorData(error);
	MemoryContextSwitchTo(error_context);
}

static bool
start_writer(uint64 number)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, "redlock run", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "redlock run", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "redlock_pg");
	strcpy(worker.bgw_function_name, "redlock_runs_main");
	memcpy(worker.bgw_extra, &number, sizeof(number));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/*
 * Writes all reports of its database.  That may have been closed for new connections since
 * the run began.  An error is in the server log, with the run; the next report may do.
 */
void
redlock_runs_main(Datum unused)
{
	RunReport report;
	ErrorContextCallback context = {.callback = explain_writer, .arg = &report};

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	memcpy(&writer, MyBgworkerEntry->bgw_extra, sizeof(writer));
	before_shmem_exit(end_writer, (Datum) 0);
	if (!run_report_next(writer, &report))
		return;
	error_context_stack = &context;
	BackgroundWorkerInitializeConnectionByOid(report.database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	pgstat_report_activity(STATE_RUNNING, "recording that a run failed");
	do
	{
		PG_TRY();
		{
			write_end(&report);
		}
		PG_CATCH();
		{
			HOLD_INTERRUPTS();
			EmitErrorReport();
			AbortOutOfAnyTransaction();
			FlushErrorState();
			RESUME_INTERRUPTS();
		}
		PG_END_TRY();
	} while (run_report_next(writer, &report));
	error_context_stack = NULL;
}

static void
write_end(const RunReport *report)
{
	Oid types[] = {UUIDOID, TEXTOID, TEXTOID, TIMESTAMPTZOID};
	Datum values[4];

	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED; /* whatever the default of the database */
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	values[0] = UUIDPGetDatum(&report->id);
	values[1] = CStringGetTextDatum(report->lost ? "lost" : "failed");
	values[2] = CStringGetTextDatum(report->message);
	values[3] = TimestampTzGetDatum(report->ended);
	if (OidIsValid(find_table(report->schema))) /* the extension may have gone meanwhile */
		(void) execute(report->schema,
					   "UPDATE %1$s.redlock_runs"
					   " SET status = $2, ended = $4, message = $3"
					   " WHERE id OPERATOR(pg_catalog.=) $1",
					   lengthof(types), types, values);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
end_writer(int code, Datum arg)
{
	run_report_end_writer(writer);
}

static void
explain_writer(void *arg)
{
	const RunReport *report = arg;

	errcontext("writing to redlock_runs that run %s failed",
			   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&report->id))));
}
