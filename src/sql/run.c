/*
 * run.c
 *		redlock_run and redlock_run_all, procedures that run a command under locks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/scansup.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#include "session/loss_alarm.h"
#include "session/runs.h"
#include "session/session.h"
#include "sql/arguments.h"
#include "sql/procedure.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_run);
PG_FUNCTION_INFO_V1(redlock_run_0_2);
PG_FUNCTION_INFO_V1(redlock_run_all);
#pragma GCC visibility pop

static const TermArguments run_terms = {.ttl = 3,
										.only_scope = SCOPE_CALL,
										.hold_at_least = 4,
										.hold_at_most = 5,
										.keep_idle = 6,
										.mode = 9,
										.permits = 10};

/* A call of redlock_run or redlock_run_all. */
typedef struct RunCall
{
	const char *procedure;
	const LockRequest *request;
	const LockName *job; /* the first name, as given: the run is recorded under this name */
	const char *command;
	bool atomic;
	const char *fences; /* schema of redlock_fences; NULL: without fence */
	Run *record;        /* NULL: without record */
} RunCall;

/* hint for statements that PostgreSQL forbids in functions and procedures */
#define OWN_STATEMENT_HINT                                                                         \
	"Acquire the lock by CALL redlock_lock, run the command as a statement of its own, and "       \
	"release "                                                                                     \
	"the lock."

static void run(FunctionCallInfo fcinfo, LockRequest *request, RunCall *call);
static void run_and_report(const RunCall *call);
static bool acquire_and_run(const RunCall *call);
static void skip(const RunCall *call);
static void run_locked(const RunCall *call);
static void pass_fences(const RunCall *call);
static void run_command(const char *command, bool atomic);
static void begin_record(void);
static int64 token_of_job(const RunCall *call);
static void run_recorded(const RunCall *call);
static void check_command(const RunCall *call);
static void explain_run(void *arg);
static bool wants_own_statement(void);

/*
 * redlock_run(resource, command, wait, ttl, hold_at_least, hold_at_most, keep_idle, fence, record,
 * 			mode, permits)
 *
 * The lock has call scope, because the command may commit.  The procedure is in C, because the
 * command may be a CALL with a commit.
 */
Datum
redlock_run(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1};
	RunCall call = {.procedure = "redlock_run", .job = &name};

	get_name(fcinfo, &name);
	run(fcinfo, &request, &call);
	return (Datum) 0;
}

Datum
redlock_run_0_2(PG_FUNCTION_ARGS)
{
	return redlock_run(fcinfo);
}

/*
 * redlock_run_all(resources, command, wait, ttl, hold_at_least, hold_at_most, keep_idle, fence,
 * 			record, mode)
 *
 * As redlock_run, under several locks.
 */
Datum
redlock_run_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {0};
	RunCall call = {.procedure = "redlock_run_all"};
	int count;

	call.job = get_names(fcinfo, &request, &count);
	run(fcinfo, &request, &call);
	return (Datum) 0;
}

/* Reads the arguments after the names, and runs the command, or tells that the run is skipped. */
static void
run(FunctionCallInfo fcinfo, LockRequest *request, RunCall *call)
{
	Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	Terms given = request->count > 1 ? TERM(TERM_SEVERAL) : 0;
	bool fence;
	bool record;
	Run recorded;

	call->request = request;
	call->atomic = is_atomic(fcinfo);
	if (PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the command to run under redlock \"%s\" must not be null",
							   call->job->name)));
	call->command = text_to_cstring(PG_GETARG_TEXT_PP(1));
	get_wait(fcinfo, 2, request);
	get_terms(fcinfo, &run_terms, given, request);
	fence = get_flag(fcinfo, 7, "fence");
	record = get_flag(fcinfo, 8, "record");
	if (fence || record) /* before the lock is taken from a server that can write */
		PreventCommandIfReadOnly(psprintf("%s() with fence or record", call->procedure));
	if (fence)
	{
		call->fences = get_namespace_name(schema);
		if (call->fences == NULL) /* dropped while the arguments were computed */
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_FUNCTION),
							errmsg("%s has been dropped during the call", call->procedure)));
	}
	request->skip = true;
	if (!IsPostmasterEnvironment)
		request_fail_no_broker(); /* nor could any process record the run */

	if (record)
	{
		call->record = &recorded;
		runs_prepare(&recorded, schema, call->job->name, call->job->utf8, call->command,
					 call->atomic || IsSubTransaction());
		request->commits = !recorded.in_transaction;
	}
	if (request->commits)
		run_and_report(call);
	else if (!acquire_and_run(call))
		request_tell_skipped();
}

/* As acquire_and_run; a run that fails is recorded, too. */
static void
run_and_report(const RunCall *call)
{
	MemoryContext context = CurrentMemoryContext;
	bool ran;

	PG_TRY();
	{
		ran = acquire_and_run(call);
	}
	PG_CATCH();
	{
		const LockRequest *request = call->request;
		RunLoss loss = {.of_run = true, .cancelled = loss_alarm_cancelled()};

		for (int i = 0; i < request->count && loss.reason == NULL; i++)
		{
			loss.name = request->names[i].name;
			loss.reason = session_loss_reason(request->names[i].hash, loss.name);
		}
		if (loss.reason == NULL && loss.cancelled)
		{
			loss.of_run = false;
			loss.name = session_lost(&loss.reason);
		}
		runs_fail(call->record, &loss, context);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (ran)
		runs_note(call->record);
	else
		request_tell_skipped();
}

/* Returns false if the run was skipped. */
static bool
acquire_and_run(const RunCall *call)
{
	const LockRequest *request = call->request;
	ErrorContextCallback context = {.callback = explain_run, .arg = unconstify(RunCall *, call)};

	context.previous = error_context_stack;
	error_context_stack = &context;
	check_command(call);
	error_context_stack = context.previous;

	if (!acquire_without_snapshot(request, call->atomic))
	{
		if (call->record != NULL)
			skip(call);
		return false;
	}

	error_context_stack = &context;
	for (int i = 0; i < request->count; i++)
		session_begin_run(request->names[i].hash, request->names[i].name);
	PG_TRY();
	{
		run_locked(call);
	}
	PG_FINALLY();
	{
		for (int i = 0; i < request->count; i++)
			session_end_run(request->names[i].hash, request->names[i].name);
	}
	PG_END_TRY();
	error_context_stack = context.previous;
	return true;
}

/* Records a skipped run. */
static void
skip(const RunCall *call)
{
	const char *reason = request_skipped();

	if (call->request->count > 1)
		reason = psprintf("Redlock \"%s\" is held by another. %s", request_skipped_name(), reason);
	if (call->record->in_transaction)
	{
		runs_skip(call->record, reason);
		return;
	}
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	begin_record();
	runs_skip(call->record, reason);
	SPI_commit(); /* the transaction after the call is not ours */
	SPI_finish();
}

static void
run_locked(const RunCall *call)
{
	bool commits = call->request->commits;

	SPI_connect_ext(call->atomic ? 0 : SPI_OPT_NONATOMIC);
	if (commits)
		begin_record();
	if (call->fences != NULL)
		pass_fences(call);
	if (commits)
		run_recorded(call);
	else
	{
		if (!call->atomic)
			ForgetPortalSnapshots(); /* older than the commits for which the fence waited */
		if (call->record != NULL)
			runs_begin(call->record, token_of_job(call));
		run_command(call->command, call->atomic);
		if (call->record != NULL)
			runs_succeed(call->record);
	}
	SPI_finish();
}

/* In the order of the request, the same in all sessions: fences have row locks. */
static void
pass_fences(const RunCall *call)
{
	const LockRequest *request = call->request;

	for (int i = 0; i < request->count; i++)
		session_fence(request->names[i].hash, request->names[i].name, call->fences);
}

/*
 * Runs the statements of the command one after another.  CALL and DO run as in a procedure, and
 * may commit.  Any other statement gets its own snapshot, which contains the effects of the
 * earlier statements.
 */
static void
run_command(const char *command, bool atomic)
{
	ListCell *cell;

	foreach (cell, pg_parse_query(command))
	{
		RawStmt *raw = lfirst_node(RawStmt, cell);
		const char *begin = command + raw->stmt_location;
		int len = raw->stmt_len > 0 ? raw->stmt_len : (int) strlen(begin);
		bool procedure = IsA(raw->stmt, CallStmt) || IsA(raw->stmt, DoStmt);
		int rc;

		for (; len > 0 && scanner_isspace(*begin); len--)
			begin++;
		/* SPI would keep the rows until the end of the run */
		rc = SPI_execute_extended(
			pnstrdup(begin, len),
			&(SPIExecuteOptions){.allow_nonatomic = procedure && !atomic, .dest = None_Receiver});
		if (rc < 0)
			elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(rc));
	}
}

/*
 * Begins a transaction for the record, always READ COMMITTED.  Whatever isolation level the
 * command wants, concurrent records of runs do not conflict.
 */
static void
begin_record(void)
{
	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
}

static int64
token_of_job(const RunCall *call)
{
	return session_token(call->job->hash, call->job->name);
}

/* Runs the command and its last commit, and records a failure of either. */
static void
run_recorded(const RunCall *call)
{
	runs_begin(call->record, token_of_job(call));
	SPI_commit();
	runs_enter(call->record);
	run_command(call->command, false);
	runs_succeed(call->record);
	SPI_commit();
	runs_leave(call->record);
}

/* Refuses commands for which SPI would do nothing, or would report only a code. */
static void
check_command(const RunCall *call)
{
	List *statements = pg_parse_query(call->command);
	ListCell *cell;

	if (statements == NIL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the command to run under a redlock must not be empty")));
	foreach (cell, statements)
	{
		Node *statement = lfirst_node(RawStmt, cell)->stmt;

		if (IsA(statement, TransactionStmt))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("%s can't run %s", call->procedure, CreateCommandName(statement)),
					 errhint("Commit in a procedure or DO, and run the CALL or DO.")));
		if (IsA(statement, CopyStmt) && castNode(CopyStmt, statement)->filename == NULL)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("%s can't run COPY to or from the client", call->procedure),
							errhint(OWN_STATEMENT_HINT)));
	}
}

/* Completes an error in a command that is run or refused. */
static void
explain_run(void *arg)
{
	const RunCall *call = arg;
	int more = call->request->count - 1;
	int position = geterrposition();

	/* A position in our command, not in the client's statement.  SPI sets its own positions. */
	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(call->command);
	}
	if (geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION && wants_own_statement())
		errhint(OWN_STATEMENT_HINT);
	errcontext("%s of redlock \"%s\"%s", call->procedure, call->job->name,
			   more > 0 ? psprintf(" and %d more", more) : "");
}

/*
 * Returns true if the current error is PostgreSQL's, for a statement forbidden in functions.
 * The error code is not enough, because further errors have the same code, with their own hints.
 */
static bool
wants_own_statement(void)
{
	MemoryContext context =
		AllocSetContextCreate(CurrentMemoryContext, "redlock error", ALLOCSET_SMALL_SIZES);
	MemoryContext error_context = MemoryContextSwitchTo(context);
	ErrorData *error = CopyErrorData();
	bool wants = error->hint == NULL && error->funcname != NULL &&
				 strcmp(error->funcname, "PreventInTransactionBlock") == 0;

	MemoryContextSwitchTo(error_context);
	MemoryContextDelete(context);
	return wants;
}
