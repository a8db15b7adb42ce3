/*
 * runs.c
 *		The table redlock_runs; see runs.h.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "session/runs.h"
#include "shared/guc.h"
#include "shared/run_report.h"
#include "shared/text.h"

#define COMMAND_MAX 1024 /* bytes of a command that are written down */

static void write_row(Oid schema, const char *resource, const char *command, const char *status,
					  int64 token, pg_uuid_t *id);
static void tidy(Oid schema);
static int execute(Oid schema, const char *sql, int count, Oid *types, Datum *values,
				   const char *nulls);
static bool become_owner(Oid schema, Oid *user, int *context);
static Datum host_name(void);

void
runs_begin(Oid schema, const char *resource, const char *command, int64 token, pg_uuid_t *id)
{
	tidy(schema);
	write_row(schema, resource, command, "running", token, id);
}

void
runs_skip(Oid schema, const char *resource, const char *command)
{
	pg_uuid_t id;

	write_row(schema, resource, command, "skipped", 0, &id);
}

static void
write_row(Oid schema, const char *resource, const char *command, const char *status, int64 token,
		  pg_uuid_t *id)
{
	int len = pg_mbcliplen(command, strlen(command), COMMAND_MAX);
	Oid types[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT4OID, TEXTOID};
	Datum values[] = {CStringGetTextDatum(resource),
					  PointerGetDatum(cstring_to_text_with_len(command, len)),
					  host_name(),
					  CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)),
					  Int64GetDatum(token),
					  Int32GetDatum(MyProcPid),
					  CStringGetTextDatum(status)};
	bool null;

	SPI_connect();
	if (execute(schema,
				"INSERT INTO %s.redlock_runs"
				" (resource, command, host, database, role, token, pid, started, ended, status)"
				" VALUES ($1, $2, $3, pg_catalog.current_database(), $4, nullif($5, 0), $6,"
				" pg_catalog.clock_timestamp(),"
				" CASE WHEN $7 OPERATOR(pg_catalog.=) 'skipped'"
				" THEN pg_catalog.clock_timestamp() END, $7) RETURNING id",
				lengthof(types), types, values, NULL) != SPI_OK_INSERT_RETURNING ||
		SPI_processed != 1)
		elog(ERROR, "could not record a run");
	*id = *DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	SPI_finish();
}

static void
tidy(Oid schema)
{
	Oid types[] = {TEXTOID};
	Datum values[] = {host_name()};
	Oid keep_types[] = {INT4OID};
	Datum keep_values[] = {Int32GetDatum(redlock_runs_keep_min)};

	SPI_connect();
	(void) execute(schema,
				   "UPDATE %s.redlock_runs r"
				   " SET status = 'failed', ended = pg_catalog.clock_timestamp(),"
				   " message = 'its session ended without a word'"
				   " WHERE status OPERATOR(pg_catalog.=) 'running'"
				   " AND host OPERATOR(pg_catalog.=) $1"
				   " AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity a"
				   " WHERE a.pid OPERATOR(pg_catalog.=) r.pid"
				   " AND a.backend_start OPERATOR(pg_catalog.<=) r.started)",
				   lengthof(types), types, values, NULL);
	if (redlock_runs_keep_min > 0)
		(void) execute(schema,
					   "DELETE FROM %s.redlock_runs"
					   " WHERE started OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp()"
					   " OPERATOR(pg_catalog.-) pg_catalog.make_interval(mins => $1))"
					   " AND status OPERATOR(pg_catalog.<>) 'running'",
					   lengthof(keep_types), keep_types, keep_values, NULL);
	SPI_finish();
}

void
runs_succeed(Oid schema, const pg_uuid_t *id)
{
	Oid types[] = {UUIDOID};
	Datum values[] = {UUIDPGetDatum(id)};

	SPI_connect();
	(void) execute(schema,
				   "UPDATE %s.redlock_runs"
				   " SET status = 'succeeded', ended = pg_catalog.clock_timestamp()"
				   " WHERE id OPERATOR(pg_catalog.=) $1",
				   lengthof(types), types, values, NULL);
	SPI_finish();
}

/* Its table, written with the rights of its owner; %s is the schema. */
static int
execute(Oid schema, const char *sql, int count, Oid *types, Datum *values, const char *nulls)
{
	char *text = psprintf(sql, quote_identifier(get_namespace_name(schema)));
	Oid user;
	int context;
	int rc;

	if (!become_owner(schema, &user, &context))
		elog(ERROR, "there is no table redlock_runs in the schema of redlock_run");
	rc = SPI_execute_with_args(text, count, types, values, nulls, false, 0);
	SetUserIdAndSecContext(user, context);
	if (rc < 0)
		elog(ERROR, "could not write redlock_runs: %s", SPI_result_code_string(rc));
	return rc;
}

/* After an error PostgreSQL sets both back. */
static bool
become_owner(Oid schema, Oid *user, int *context)
{
	Oid table = get_relname_relid("redlock_runs", schema);
	HeapTuple tuple =
		OidIsValid(table) ? SearchSysCache1(RELOID, ObjectIdGetDatum(table)) : (HeapTuple) NULL;
	Oid owner;

	if (!HeapTupleIsValid(tuple))
		return false;
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	GetUserIdAndSecContext(user, context);
	SetUserIdAndSecContext(owner, *context | SECURITY_LOCAL_USERID_CHANGE);
	return true;
}

/* As in redlock_hosts. */
static Datum
host_name(void)
{
	char name[256] = "";
	char printable[256];

	if (cluster_name[0] != '\0')
		strlcpy(name, cluster_name, sizeof(name));
	else
		gethostname(name, sizeof(name) - 1);
	text_to_printable(printable, sizeof(printable), name, strlen(name));
	return CStringGetTextDatum(printable);
}

/*
 * Runs that fail
 */

void
runs_fail(Oid schema, const pg_uuid_t *id, const char *resource, bool lost, MemoryContext context)
{
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData *error = CopyErrorData();
	BackgroundWorker worker = {0};
	RunReport report = {.database = MyDatabaseId, .schema = schema, .id = *id, .lost = lost};
	int len = pg_mbcliplen(error->message, strlen(error->message), RUN_MESSAGE_SIZE - 1);
	int place;

	memcpy(report.message, error->message, len);
	place = run_report_put(&report);
	strlcpy(worker.bgw_name, "redlock run", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "redlock run", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "redlock_pg");
	strcpy(worker.bgw_function_name, "redlock_runs_main");
	worker.bgw_main_arg = Int32GetDatum(place);
	if (place < 0 || !RegisterDynamicBackgroundWorker(&worker, NULL))
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not record that this run of redlock \"%s\" failed", resource),
				 errdetail("It stays \"running\" in redlock_runs until the next one that "
						   "this server records after the end of this session."),
				 errhint("Raise max_worker_processes, now %d.", max_worker_processes)));
	FreeErrorData(error);
	MemoryContextSwitchTo(error_context);
}

void
redlock_runs_main(Datum place)
{
	RunReport report;
	Oid types[] = {UUIDOID, TEXTOID, TEXTOID};
	Datum values[3];

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	if (!run_report_take(DatumGetInt32(place), &report))
		return;
	BackgroundWorkerInitializeConnectionByOid(report.database, InvalidOid, 0);
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, "recording that a run failed");
	SPI_connect();
	values[0] = UUIDPGetDatum(&report.id);
	values[1] = CStringGetTextDatum(report.lost ? "lost" : "failed");
	values[2] = CStringGetTextDatum(report.message);
	/* the extension may have gone meanwhile */
	if (get_namespace_name(report.schema) != NULL &&
		OidIsValid(get_relname_relid("redlock_runs", report.schema)))
		(void) execute(report.schema,
					   "UPDATE %s.redlock_runs"
					   " SET status = $2, ended = pg_catalog.clock_timestamp(), message = $3"
					   " WHERE id OPERATOR(pg_catalog.=) $1",
					   lengthof(types), types, values, NULL);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}
