/*
 * run.c
 *		redlock_run, a procedure that runs a command under a lock.
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
#pragma GCC visibility pop

static const TermArguments run_terms = {.ttl = 3,
										.only_scope = SCOPE_CALL,
										.hold_at_least = 4,
										.hold_at_most = 5,
										.keep_idle = 6,
										.mode = 9,
										.permits = 10};

/* the run, for explain_run */
typedef struct RunContext
{
	const char *name;
	const char *command;
} RunContext;

/* hint for statements that PostgreSQL forbids in functions and procedures */
#define OWN_STATEMENT_HINT                                                                         \
	"Acquire the lock by CALL redlock_lock, run the command as a statement of its own, and "       \
	"release "                                                                                     \
	"the lock."

static bool acquire_and_run(const LockRequest *request, const char *command, bool atomic,
							const char *fences, Run *record);
static void run_locked(const LockName *name, const char *command, bool atomic, const char *fences,
					   Run *record);
static void run_command(const char *command, bool atomic);
static void begin_record(void);
static void run_recorded(const LockName *name, const char *command, Run *record);
static void check_command(const char *command);
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
	bool atomic = is_atomic(fcinfo);
	Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	MemoryContext context = CurrentMemoryContext;
	bool in_transaction = atomic || IsSubTransaction();
	const char *fences;
	bool fence;
	bool record;
	bool ran;
	Run run;
	char *command;

	get_name(fcinfo, &name);
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the command to run under redlock \"%s\" must not be null", name.name)));
	command = text_to_cstring(PG_GETARG_TEXT_PP(1));
	get_wait(fcinfo, 2, &request);
	get_terms(fcinfo, &run_terms, 0, &request);
	fence = get_flag(fcinfo, 7, "fence");
	record = get_flag(fcinfo, 8, "record");
	if (fence || record) /* before the lock is taken from a server that can write */
		PreventCommandIfReadOnly("redlock_run() with fence or record");
	fences = fence ? get_namespace_name(schema) : NULL;
	request.skip = true;
	request.commits = record && !in_transaction;
	if (!IsPostmasterEnvironment)
		request_fail_no_broker(); /* nor could any process record the run */

	if (record)
		runs_prepare(&run, schema, name.name, name.utf8, command, in_transaction);
	if (!record || in_transaction)
		ran = acquire_and_run(&request, command, atomic, fences, record ? &run : NULL);
	else
	{
		PG_TRY();
		{
			ran = acquire_and_run(&request, command, atomic, fences, &run);
		}
		PG_CATCH();
		{
			runs_fail(&run, session_loss_reason(name.hash, name.name), loss_alarm_cancelled(),
					  context);
			PG_RE_THROW();
		}
		PG_END_TRY();
		if (ran)
			runs_note(&run);
	}
	if (!ran)
		request_tell_skipped(&request);
	return (Datum) 0;
}

/*
 * Returns false if the run was skipped.  fences: schema of redlock_fences, or NULL for a run
 * without fence.  record: NULL for a run without record.
 */
static bool
acquire_and_run(const LockRequest *request, const char *command, bool atomic, const char *fences,
				Run *record)
{
	const LockName *name = request->names;
	RunContext run = {.name = name->name, .command = command};
	ErrorContextCallback context = {.callback = explain_run, .arg = &run};

	context.previous = error_context_stack;
	error_context_stack = &context;
	check_command(command);
	error_context_stack = context.previous;

	if (!acquire_without_snapshot(request, atomic))
	{
		if (record != NULL && record->in_transaction)
			runs_skip(record, request_skipped());
		else if (record != NULL)
		{
			SPI_connect_ext(SPI_OPT_NONATOMIC);
			begin_record();
			runs_skip(record, request_skipped());
			SPI_commit(); /* the transaction after the call is not ours */
			SPI_finish();
		}
		return false;
	}

	error_context_stack = &context;
	session_begin_run(name->hash, name->name);
	PG_TRY();
	{
		run_locked(name, command, atomic, fences, record);
	}
	PG_FINALLY();
	{
		session_end_run(name->hash, name->name);
	}
	PG_END_TRY();
	error_context_stack = context.previous;
	return true;
}

static void
run_locked(const LockName *name, const char *command, bool atomic, const char *fences, Run *record)
{
	bool commits = record != NULL && !record->in_transaction;

	SPI_connect_ext(atomic ? 0 : SPI_OPT_NONATOMIC);
	if (commits)
		begin_record();
	if (fences != NULL)
		session_fence(name->hash, name->name, fences);
	if (commits)
		run_recorded(name, command, record);
	else
	{
		if (!atomic)
			ForgetPortalSnapshots(); /* older than the commits for which the fence waited */
		if (record != NULL)
			runs_begin(record, session_token(name->hash, name->name));
		run_command(command, atomic);
		if (record != NULL)
			runs_succeed(record);
	}
	SPI_finish();
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
		rc = SPI_execute_extended(pnstrdup(begin, len),
								  &(SPIExecuteOptions){.allow_nonatomic = procedure && !atomic});
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

/* Runs the command and its last commit, and records a failure of either. */
static void
run_recorded(const LockName *name, const char *command, Run *record)
{
	runs_begin(record, session_token(name->hash, name->name));
	SPI_commit();
	runs_enter(record);
	run_command(command, false);
	runs_succeed(record);
	SPI_commit();
	runs_leave(record);
}

Datum
redlock_run_0_2(PG_FUNCTION_ARGS)
{
	return redlock_run(fcinfo);
}

/* Refuses commands for which SPI would do nothing, or would report only a code. */
static void
check_command(const char *command)
{
	List *statements = pg_parse_query(command);
	ListCell *cell;

	if (statements == NIL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the command to run under a redlock must not be empty")));
	foreach (cell, statements)
	{
		Node *statement = lfirst_node(RawStmt, cell)->stmt;

		if (IsA(statement, TransactionStmt))
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("redlock_run can't run %s", CreateCommandName(statement)),
							errhint("Commit in a procedure or DO, and run the CALL or DO.")));
		if (IsA(statement, CopyStmt) && castNode(CopyStmt, statement)->filename == NULL)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("redlock_run can't run COPY to or from the client"),
							errhint(OWN_STATEMENT_HINT)));
	}
}

/* Completes an error in a command that redlock_run runs or refuses. */
static void
explain_run(void *arg)
{
	const RunContext *run = arg;
	int position = geterrposition();

	/* A position in our command, not in the client's statement.  SPI sets its own positions. */
	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(run->command);
	}
	if (geterrcode() == ERRCODE_ACTIVE_SQL_TRANSACTION && wants_own_statement())
		errhint(OWN_STATEMENT_HINT);
	errcontext("redlock_run of redlock \"%s\"", run->name);
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
