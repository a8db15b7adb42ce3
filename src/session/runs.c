/*
 * runs.c
 *		The table redlock_runs; see runs.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "common/pg_prng.h"
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
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "session/ask_hosts.h"
#include "session/extension.h"
#include "session/loss.h"
#include "session/run_notes.h"
#include "session/runs.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/run_report.h"

/*
 * Limit of the old rows that a run deletes.  A run adds one row, so the table shrinks while more
 * than one in PRUNE_MAX runs prunes.
 */
#define PRUNE_MAX 1000

/*
 * A skipped run prunes with this inverse probability: a host that never gets the lock only adds
 * rows.
 */
#define SKIPS_A_PRUNE 100

/* Messages for a run that can no longer report its end. */
#define SESSION_GONE                                                                               \
	"the session ended before the run did, or the end of the run could not be written"
#define SERVER_GONE                                                                                \
	"the server stopped, crashed or lost the nodes, and nobody knows how the run ended"

/* A new row; the columns about this server are filled in by insert_row. */
typedef struct NewRow
{
	const char *resource;
	const char *command;
	const char *role;
	int64 token; /* 0: none */
	int pid;
	int64 session;
	TimestampTz started;
	TimestampTz ended; /* 0: not yet */
	const char *status;
	const char *message; /* or NULL */
} NewRow;

static int runs_under_way = 0; /* of this session: runs nest */
static uint64 writer;          /* number of this process, if a writer */

static Oid require_table(Oid schema);
static void insert_row(Oid schema, const NewRow *row, Run *run);
static void end_left_runs(Oid schema);
static bool is_listed(const HostList *hosts, uint64 id);
static void end_runs_of(Oid schema, Datum *sessions, int count, const char *message);
static Datum uuid_array(const pg_uuid_t *ids, int count);
static void prune(Oid schema);
static int execute(Oid schema, const char *sql, int count, Oid *types, Datum *values,
				   const char *nulls);
static void become_owner(Oid table, Oid *user, int *context);
static int knowledge(HeapTuple row, TupleDesc desc, int status, int ended);
static const char *explain_failure(const Run *run, const ErrorData *error, const RunLoss *loss);
static void copy_text(char *to, const char *text, size_t size);
static bool start_writer(uint64 number);
static void wait_without_end(void);
static void attempt(void (*step)(const RunReport *report), const RunReport *report);
static void write_end(const RunReport *report);
static void leave_note(const RunReport *report);
static void end_writer(int code, Datum arg);
static void explain_writer(void *arg);

/* Returns redlock_runs of this schema, or raises an error (42P01). */
static Oid
require_table(Oid schema)
{
	Oid table = extension_table("redlock_runs", schema);
	char *name = get_namespace_name(schema);

	if (!OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("there is no table redlock_runs to record a run in"),
				 name != NULL
					 ? errdetail("The table belongs in the schema of redlock_run, \"%s\".", name)
					 : errdetail("The schema of redlock_run is gone, too."),
				 errhint("Restore the name and the schema of the table. If the table was dropped, "
						 "drop and create the extension. Or call redlock_run without record.")));
	return table;
}

void
runs_prepare(Run *run, Oid schema, const char *resource, const char *utf8, const char *command,
			 bool in_transaction)
{
	(void) require_table(schema);
	*run = (Run){
		.schema = schema,
		.resource = resource,
		.utf8 = utf8,
		.command = pnstrdup(command, pg_mbcliplen(command, strlen(command), RUN_COMMAND_SIZE - 1)),
		.role = GetUserNameFromId(GetUserId(), false),
		.session = run_report_session(),
		.in_transaction = in_transaction,
		.called = GetCurrentTimestamp()};
}

void
runs_begin(Run *run, int64 token)
{
	NewRow row = {.resource = run->resource,
				  .command = run->command,
				  .role = run->role,
				  .token = token,
				  .pid = MyProcPid,
				  .session = run->session,
				  .status = "running"};

	SPI_connect();
	if (!run->in_transaction)
	{
		end_left_runs(run->schema);
		prune(run->schema);
	}
	row.started = GetCurrentTimestamp();
	insert_row(run->schema, &row, run);
	run->token = token;
	run->started = row.started;
	SPI_finish();
}

void
runs_skip(Run *run, const char *message)
{
	NewRow row = {.resource = run->resource,
				  .command = run->command,
				  .role = run->role,
				  .pid = MyProcPid,
				  .session = run->session,
				  .status = "skipped",
				  .message = message};

	SPI_connect();
	if (!run->in_transaction && pg_prng_uint32(&pg_global_prng_state) % SKIPS_A_PRUNE == 0)
		prune(run->schema);
	row.started = row.ended = GetCurrentTimestamp();
	insert_row(run->schema, &row, NULL);
	SPI_finish();
}

/* Inserts a row, within SPI.  Fills in the place of the row in `run`, unless NULL. */
static void
insert_row(Oid schema, const NewRow *row, Run *run)
{
	Oid types[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID,        INT4OID,       INT8OID,
				   TEXTOID, INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum values[] = {
		CStringGetTextDatum(row->resource),
		CStringGetTextDatum(row->command),
		CStringGetTextDatum(host_list_own_name()),
		CStringGetTextDatum(row->role),
		Int64GetDatum(row->token),
		Int32GetDatum(row->pid),
		Int64GetDatum((int64) GetSystemIdentifier()),
		CStringGetTextDatum(psprintf("%016" PRIx64, lease_table->host_id)),
		Int64GetDatum(row->session),
		CStringGetTextDatum(row->status),
		row->message != NULL ? CStringGetTextDatum(row->message) : (Datum) 0,
		TimestampTzGetDatum(row->started),
		TimestampTzGetDatum(row->ended),
	};
	char nulls[lengthof(types) + 1] = "             ";
	bool null;

	nulls[4] = row->token == 0 ? 'n' : ' ';
	nulls[10] = row->message == NULL ? 'n' : ' ';
	nulls[12] = row->ended == 0 ? 'n' : ' ';
	if (execute(schema,
				"INSERT INTO %1$s.redlock_runs (resource, command, host, database, role, token,"
				" pid, server, host_id, session, status, message, started, ended)"
				" VALUES ($1, $2, $3, pg_catalog.current_database(), $4, $5, $6, $7, $8, $9, $10,"
				" $11, $12, $13) RETURNING id, ctid",
				lengthof(types), types, values, nulls) != SPI_OK_INSERT_RETURNING ||
		SPI_processed != 1)
		elog(ERROR, "could not record a run");
	if (run == NULL)
		return;
	run->id = *DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	run->place = *(ItemPointer) DatumGetPointer(
		SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &null));
}

/*
 * Ends the rows of runs that can no longer report their end; the end time is unknown.
 *
 * Rows of this server's present start are over if the session is gone, and no writer is about to
 * write the end.  The rows are read before the sessions, since a session is known as living before
 * its first row exists; the reports are read last, since a session puts its report before it ends.
 * This session counts as gone if it has no recorded run under way: then its report was lost, or
 * still waits for its writer.
 *
 * A row of another start, with our system identifier, may be from a former start of this server.
 * Or it is from a server with the same identifier: a standby or a copy, or the original of either.
 * No file tells these apart, as a copy has every file.  The nodes do: their list of hosts has each
 * living server.  So a run of another start goes on while the list has its host, and while there is
 * no list.
 */
static void
end_left_runs(Oid schema)
{
	Oid types[] = {INT8OID};
	Datum values[] = {Int64GetDatum((int64) GetSystemIdentifier())};
	HostList *hosts = NULL;
	AskHostsEnd end;
	HostListState state;
	bool asked = false;
	Datum *without_session;
	Datum *without_server;
	int sessions = 0;
	int servers = 0;
	SPITupleTable *rows;
	uint64 count;

	(void) execute(schema,
				   "SELECT session, host_id FROM %1$s.redlock_runs"
				   " WHERE status OPERATOR(pg_catalog.=) 'running'"
				   " AND server OPERATOR(pg_catalog.=) $1",
				   lengthof(types), types, values, NULL);
	rows = SPI_tuptable;
	count = SPI_processed;
	without_session = palloc(count * sizeof(Datum));
	without_server = palloc(count * sizeof(Datum));
	for (uint64 i = 0; i < count; i++)
	{
		bool null;
		Datum session = SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &null);
		uint64 id = strtoull(SPI_getvalue(rows->vals[i], rows->tupdesc, 2), NULL, 16);
		bool own = DatumGetInt64(session) == run_report_session();

		if (id == lease_table->host_id)
		{
			if (own ? runs_under_way == 0 : !run_report_lives(DatumGetInt64(session)))
				without_session[sessions++] = session;
			continue;
		}
		if (!asked)
			hosts = ask_hosts_if_possible(ASK_HOSTS_PATIENCE_US, &end, &state);
		asked = true;
		if (hosts != NULL && !is_listed(hosts, id))
			without_server[servers++] = session;
	}
	end_runs_of(schema, without_session, sessions, SESSION_GONE);
	end_runs_of(schema, without_server, servers, SERVER_GONE);
}

static bool
is_listed(const HostList *hosts, uint64 id)
{
	for (int i = 0; i < hosts->count; i++)
		if (hosts->row[i].id == id)
			return true;
	return false;
}

/* Skips locked rows: another session may do the same.  Skips runs whose ends a writer writes. */
static void
end_runs_of(Oid schema, Datum *sessions, int count, const char *message)
{
	Oid types[] = {INT8OID, INT8ARRAYOID, TEXTOID, UUIDARRAYOID};
	Datum values[] = {Int64GetDatum((int64) GetSystemIdentifier()), 0, CStringGetTextDatum(message),
					  0};
	pg_uuid_t *waiting;
	int waiting_count;

	if (count == 0)
		return;
	waiting = palloc(MaxBackends * sizeof(pg_uuid_t));
	waiting_count = run_report_waiting(MyDatabaseId, waiting);
	values[3] = uuid_array(waiting, waiting_count);
	values[1] = PointerGetDatum(
		construct_array(sessions, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	(void) execute(schema,
				   "UPDATE %1$s.redlock_runs SET status = 'failed', message = $3"
				   " WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT id FROM %1$s.redlock_runs"
				   " WHERE status OPERATOR(pg_catalog.=) 'running'"
				   " AND server OPERATOR(pg_catalog.=) $1"
				   " AND session OPERATOR(pg_catalog.=) ANY ($2)"
				   " AND id OPERATOR(pg_catalog.<>) ALL ($4) FOR UPDATE SKIP LOCKED))",
				   lengthof(types), types, values, NULL);
}

static Datum
uuid_array(const pg_uuid_t *ids, int count)
{
	Datum *elements = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
		elements[i] = UUIDPGetDatum(&ids[i]);
	return PointerGetDatum(
		construct_array(elements, count, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/*
 * Deletes the oldest of the rows that are too old.  A row of a run under way stays, unless it is of
 * another server: such a row may be of a server that is gone, or from before pg_upgrade.  The bound
 * is computed here, once: an index does not serve a volatile bound.  Skips locked rows: a
 * transaction of the owner may keep a row.
 */
static void
prune(Oid schema)
{
	Oid types[] = {TIMESTAMPTZOID, INT4OID, INT8OID};
	Datum values[] = {
		TimestampTzGetDatum(GetCurrentTimestamp() - redlock_runs_keep_s * USECS_PER_SEC),
		Int32GetDatum(PRUNE_MAX), Int64GetDatum((int64) GetSystemIdentifier())};

	if (redlock_runs_keep_s == 0)
		return;
	(void) execute(schema,
				   "DELETE FROM %1$s.redlock_runs"
				   " WHERE id OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT id FROM %1$s.redlock_runs"
				   " WHERE started OPERATOR(pg_catalog.<) $1"
				   " AND (status OPERATOR(pg_catalog.<>) 'running'"
				   " OR server OPERATOR(pg_catalog.<>) $3)"
				   " ORDER BY started LIMIT $2 FOR UPDATE SKIP LOCKED))",
				   lengthof(types), types, values, NULL);
}

void
runs_enter(Run *run)
{
	run->begun = true;
	runs_under_way++;
}

void
runs_leave(Run *run)
{
	run->begun = false;
	runs_under_way--;
}

/*
 * Writes the success in the last transaction of the run: a run has succeeded if and only if the
 * transaction has committed.  The transaction may be SERIALIZABLE: an index scan conflicts with
 * every write to the same index page, and thus with all concurrent runs.  The statement finds the
 * row by its place, unless the row has moved.
 */
void
runs_succeed(Run *run)
{
	Oid types[] = {UUIDOID, TIMESTAMPTZOID, TIDOID};
	Datum values[] = {UUIDPGetDatum(&run->id), 0, PointerGetDatum(&run->place)};
	Oid extension;

	/* the extension may have moved to another schema during the run */
	AcceptInvalidationMessages();
	extension = get_extension_oid("redlock_pg", true);
	if (OidIsValid(extension))
		run->schema = extension_schema(extension);
	run->ended = GetCurrentTimestamp();
	values[1] = TimestampTzGetDatum(run->ended);
	SPI_connect();
	(void) execute(run->schema,
				   "UPDATE %1$s.redlock_runs SET status = 'succeeded', ended = $2"
				   " WHERE ctid OPERATOR(pg_catalog.=) $3 AND id OPERATOR(pg_catalog.=) $1",
				   lengthof(types), types, values, NULL);
	if (SPI_processed == 0)
		(void) execute(run->schema,
					   "UPDATE %1$s.redlock_runs SET status = 'succeeded', ended = $2"
					   " WHERE id OPERATOR(pg_catalog.=) $1",
					   2, types, values, NULL);
	SPI_finish();
}

void
runs_note(const Run *run)
{
	EndedRun ended = {.resource = run->utf8,
					  .role = run->role,
					  .token = run->token,
					  .pid = MyProcPid,
					  .started = run->started,
					  .ended = run->ended,
					  .status = RUN_NOTE_SUCCEEDED};

	run_notes_leave(&ended);
}

/*
 * Executes a statement on redlock_runs, with the rights of the table's owner; %1$s is the schema.
 * The caller's settings must not decide any lookup: each name in the statement is qualified, and
 * this function sets the search path.  Sequential scans are off, however small the table: see
 * runs_succeed.  Without sequential scans a plan may look expensive enough for JIT, which would
 * take longer than the statement.
 */
static int
execute(Oid schema, const char *sql, int count, Oid *types, Datum *values, const char *nulls)
{
	bool read_only = XactReadOnly;
	char *text;
	int nest_level;
	Oid user;
	int context;
	int rc;

	become_owner(require_table(schema), &user, &context);
	text = psprintf(sql, quote_identifier(get_namespace_name(schema)));
	nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
	(void) set_config_option("jit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
							 false);
	if (!RecoveryInProgress())
		XactReadOnly = false; /* the command may have set read-only mode */
	rc = SPI_execute_with_args(text, count, types, values, nulls, false, 0);
	XactReadOnly = read_only;
	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(user, context);
	if (rc < 0)
		elog(ERROR, "could not write redlock_runs: %s", SPI_result_code_string(rc));
	return rc;
}

/* The caller restores user and context; after an error PostgreSQL restores both. */
static void
become_owner(Oid table, Oid *user, int *context)
{
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

/*
 * Skips a row that exists, and an update that knows no more than the row.  Servers that replicate
 * to each other get their own changes back, also outdated changes.
 */
Datum
runs_merge(TriggerData *trigger)
{
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	bool update = TRIGGER_FIRED_BY_UPDATE(trigger->tg_event);
	HeapTuple row = update ? trigger->tg_newtuple : trigger->tg_trigtuple;
	int id = SPI_fnumber(desc, "id");
	int status = SPI_fnumber(desc, "status");
	int ended = SPI_fnumber(desc, "ended");
	Oid types[] = {UUIDOID};
	Datum values[1];
	bool null = true;
	bool known;

	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(trigger->tg_event) || SPI_gettypeid(desc, id) != UUIDOID ||
		SPI_gettypeid(desc, status) != TEXTOID || SPI_gettypeid(desc, ended) != TIMESTAMPTZOID)
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_runs_merge is for the rows of redlock_runs only")));
	if (update)
		known = knowledge(row, desc, status, ended) <=
				knowledge(trigger->tg_trigtuple, desc, status, ended);
	else
	{
		values[0] = SPI_getbinval(row, desc, id, &null);
		if (null)
			return PointerGetDatum(row); /* the table refuses the row */
		SPI_connect();
		(void) execute(RelationGetNamespace(trigger->tg_relation),
					   "SELECT FROM %1$s.redlock_runs WHERE id OPERATOR(pg_catalog.=) $1",
					   lengthof(types), types, values, NULL);
		known = SPI_processed > 0;
		SPI_finish();
	}
	return PointerGetDatum(known ? NULL : row);
}

/*
 * How much a row knows of the run's end: 0 nothing, 1 that the run ended somehow, 2 all.  3: the
 * table refuses the row.
 */
static int
knowledge(HeapTuple row, TupleDesc desc, int status, int ended)
{
	const char *text = SPI_getvalue(row, desc, status);
	bool null;

	if (text == NULL)
		return 3;
	if (strcmp(text, "running") == 0)
		return 0;
	(void) SPI_getbinval(row, desc, ended, &null);
	return null ? 1 : 2;
}

/*
 * Runs that fail
 */

void
runs_fail(Run *run, const RunLoss *loss, MemoryContext context)
{
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData *error = CopyErrorData();
	RunReport report = {.database = MyDatabaseId,
						.id = run->id,
						.begun = run->begun,
						.lost = loss->reason != NULL && loss->of_run,
						.token = run->token,
						.started = run->started,
						.ended = GetCurrentTimestamp(),
						.called = run->called,
						.pid = MyProcPid,
						.session = run->session};
	RunReportFate fate;

	copy_text(report.message, explain_failure(run, error, loss), RUN_MESSAGE_SIZE);
	if (run->begun)
		runs_leave(run);
	strlcpy(report.resource, run->utf8, sizeof(report.resource));
	strlcpy(report.command, run->command, sizeof(report.command));
	strlcpy(report.role, run->role, sizeof(report.role));
	fate = run_report_put(&report, start_writer);
	if (fate != RUN_REPORT_TOLD)
		ereport(
			WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not record that this run of redlock \"%s\" failed", run->resource),
			 errdetail(
				 "%s %s",
				 fate == RUN_REPORT_NO_PLACE
					 ? "Reports of other failed runs wait to be written."
					 : "No process could be started to write the report; the next process for this "
					   "database will write the report.",
				 report.begun
					 ? "The run stays \"running\" in redlock_runs until this session records "
					   "another run, or ends and another session of this server records a run."
					 : "The run had not begun: until then, redlock_runs has no row of this run."),
			 fate == RUN_REPORT_NO_PLACE
				 ? errhint("See in pg_stat_activity what the process \"redlock run\" waits for, "
						   "and its errors in the server log.")
				 : errhint("Raise max_worker_processes, now %d.", max_worker_processes)));
	FreeErrorData(error);
	MemoryContextSwitchTo(error_context);
}

/*
 * Returns the message that the client gets, and why the lease was lost.  An error before the
 * command has a detail of ours, which is added.  An error of an extension may have no message:
 * PostgreSQL then tells the client the same.
 */
static const char *
explain_failure(const Run *run, const ErrorData *error, const RunLoss *loss)
{
	const char *message = error->message != NULL ? error->message : "missing error text";

	if (loss->reason == NULL && (run->begun || error->detail == NULL))
		return message;
	if (loss->reason == NULL)
		return psprintf("%s. %s", message, error->detail);
	if (loss->cancelled)
		return psprintf("%s. %s", loss_message(true, loss->name), loss->reason);
	if (error->detail != NULL && strcmp(error->detail, loss->reason) == 0)
		return psprintf("%s. %s", message, loss->reason);
	return psprintf("%s. The lease on redlock \"%s\" was lost. %s", message, loss->name,
					loss->reason);
}

/* Copies as many whole characters as fit. */
static void
copy_text(char *to, const char *text, size_t size)
{
	int len = pg_mbcliplen(text, strlen(text), size - 1);

	memcpy(to, text, len);
	to[len] = '\0';
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
 * Writes all reports of a database, even if the database no longer accepts connections.  An error
 * goes into the server log, with the run's context; the next report may succeed.
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
	wait_without_end();
	pgstat_report_activity(STATE_RUNNING, "recording that a run failed");
	do
	{
		attempt(write_end, &report);
		if (report.begun)
			attempt(leave_note, &report);
	} while (run_report_next(writer, &report));
	error_context_stack = NULL;
}

/* Limits of the database, like lock_timeout, would end the writer. */
static void
wait_without_end(void)
{
	static const char *const limits[] = {"lock_timeout", "transaction_timeout"};

	for (int i = 0; i < lengthof(limits); i++)
		if (GetConfigOption(limits[i], true, false) != NULL) /* the second since PostgreSQL 17 */
			SetConfigOption(limits[i], "0", PGC_USERSET, PGC_S_OVERRIDE);
}

/* Takes a step of the writer.  An error goes to the server log, and stops no further step. */
static void
attempt(void (*step)(const RunReport *report), const RunReport *report)
{
	PG_TRY();
	{
		step(report);
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
}

static void
write_end(const RunReport *report)
{
	const char *status = report->lost ? "lost" : "failed";
	Oid types[] = {UUIDOID, TEXTOID, TEXTOID, TIMESTAMPTZOID};
	Datum values[4];
	Oid extension;
	Oid schema;

	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED; /* at any default of the database */
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	values[0] = UUIDPGetDatum(&report->id);
	values[1] = CStringGetTextDatum(status);
	values[2] = CStringGetTextDatum(report->message);
	values[3] = TimestampTzGetDatum(report->ended);
	extension = get_extension_oid("redlock_pg", true);
	schema = OidIsValid(extension) ? extension_schema(extension) : InvalidOid;
	if (!OidIsValid(schema))
		; /* dropped, with the table */
	else if (report->begun)
		(void) execute(schema,
					   "UPDATE %1$s.redlock_runs"
					   " SET status = $2, ended = $4, message = $3"
					   " WHERE id OPERATOR(pg_catalog.=) $1",
					   lengthof(types), types, values, NULL);
	else
	{
		NewRow row = {.resource =
						  pg_any_to_server(report->resource, strlen(report->resource), PG_UTF8),
					  .command = report->command,
					  .role = report->role,
					  .pid = report->pid,
					  .session = report->session,
					  .started = report->called,
					  .ended = report->ended,
					  .status = status,
					  .message = report->message};

		prune(schema);
		insert_row(schema, &row, NULL);
	}
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
leave_note(const RunReport *report)
{
	EndedRun ended = {.resource = report->resource,
					  .role = report->role,
					  .token = report->token,
					  .pid = report->pid,
					  .started = report->started,
					  .ended = report->ended,
					  .status = report->lost ? RUN_NOTE_LOST : RUN_NOTE_FAILED,
					  .message = report->message};

	StartTransactionCommand();
	run_notes_leave(&ended);
	CommitTransactionCommand();
}

static void
end_writer(int code, Datum arg)
{
	run_report_end_writer(writer, start_writer);
}

static void
explain_writer(void *arg)
{
	const RunReport *report = arg;

	if (report->begun)
		errcontext("writing to redlock_runs that run %s failed",
				   DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&report->id))));
	else
		errcontext("writing to redlock_runs that a run of process %d failed before it began",
				   report->pid);
}
