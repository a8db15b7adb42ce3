/*
 * redlock_pg.c
 *		Distributed locks for SQL: the functions that SQL calls.
 *
 * Thin on purpose: arguments are checked and converted here, and rows made.
 * See src/README.md for the house.
 */
#include "postgres.h"

#include <inttypes.h>

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "parser/scansup.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "broker/broker.h"
#include "protocol/permits.h"
#include "session/detached.h"
#include "session/encoding.h"
#include "session/fence.h"
#include "session/gate.h"
#include "session/list_hosts.h"
#include "session/runs.h"
#include "session/session.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/new_names.h"
#include "shared/node_status.h"
#include "shared/text.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_acquire);
PG_FUNCTION_INFO_V1(redlock_acquire_0_2);
PG_FUNCTION_INFO_V1(redlock_acquire_all);
PG_FUNCTION_INFO_V1(redlock_try);
PG_FUNCTION_INFO_V1(redlock_try_0_2);
PG_FUNCTION_INFO_V1(redlock_try_all);
PG_FUNCTION_INFO_V1(redlock_release);
PG_FUNCTION_INFO_V1(redlock_release_all);
PG_FUNCTION_INFO_V1(redlock_release_idle);
PG_FUNCTION_INFO_V1(redlock_release_detached);
PG_FUNCTION_INFO_V1(redlock_check);
PG_FUNCTION_INFO_V1(redlock_check_detached);
PG_FUNCTION_INFO_V1(redlock_extend);
PG_FUNCTION_INFO_V1(redlock_attach);
PG_FUNCTION_INFO_V1(redlock_token);
PG_FUNCTION_INFO_V1(redlock_fence);
PG_FUNCTION_INFO_V1(redlock_fence_merge);
PG_FUNCTION_INFO_V1(redlock_shared_fences_merge);
PG_FUNCTION_INFO_V1(redlock_run);
PG_FUNCTION_INFO_V1(redlock_run_0_2);
PG_FUNCTION_INFO_V1(redlock_lock);
PG_FUNCTION_INFO_V1(redlock_runs_merge);
PG_FUNCTION_INFO_V1(redlock_lease_rows);
PG_FUNCTION_INFO_V1(redlock_lock_rows);
PG_FUNCTION_INFO_V1(redlock_node_rows);
PG_FUNCTION_INFO_V1(redlock_node_list_rows);
PG_FUNCTION_INFO_V1(redlock_role_rows);
PG_FUNCTION_INFO_V1(redlock_host_rows);
PG_FUNCTION_INFO_V1(redlock_stats_row);
PG_FUNCTION_INFO_V1(redlock_unsettled_row);
PG_FUNCTION_INFO_V1(redlock_counter_row);
#pragma GCC visibility pop

/* What redlock_run runs, for errors. */
typedef struct RunContext
{
	const char *name;
	const char *command;
} RunContext;

/* For what redlock_run can't do; PostgreSQL forbids it in functions and procedures. */
#define OWN_STATEMENT_HINT                                                                         \
	"Acquire the lock by CALL redlock_lock, run the command as a statement of its own, and "       \
	"release "                                                                                     \
	"the lock."

/* Of an array of names, in which each may stand more than once. */
#define ELEMENTS_MAX 10000

/* Columns of redlock_lock_rows; redlock_lease_rows of 0.1.0 had only those up to the gate. */
#define LOCK_COLUMNS 16
#define LOCK_COLUMNS_0_1 12

static bool is_atomic(FunctionCallInfo fcinfo);
static bool acquire_without_snapshot(const LockRequest *request, bool atomic);
static inline bool says(const text *given, const char *word);
static void get_mode(FunctionCallInfo fcinfo, int arg, LockRequest *request);
static bool get_flag(FunctionCallInfo fcinfo, int arg, const char *name);
static bool acquire_and_run(const LockRequest *request, const char *command, bool atomic,
							const char *fences, Run *record);
static void run_locked(const LockName *name, const char *command, bool atomic, const char *fences,
					   Run *record);
static void begin_record(void);
static void run_command(const char *command, bool atomic);
static void run_recorded(const LockName *name, const char *command, Run *record);
static void check_command(const char *command);
static void explain_run(void *arg);
static bool wants_own_statement(void);
static void require_session(void);
static void get_name(FunctionCallInfo fcinfo, LockName *name);
static void check_name(char *name, int element, LockName *checked);
static bool is_list(const char *name);
static const char *which_name(int element);
static LockName *get_names(FunctionCallInfo fcinfo, LockRequest *request, int *count);
static int compare_names(const void *one, const void *other);
static void get_acquire(FunctionCallInfo fcinfo, LockRequest *request);
static void get_try(FunctionCallInfo fcinfo, int wait, LockRequest *request);
static void get_slots(FunctionCallInfo fcinfo, int arg, int keep_idle_arg, LockRequest *request);
static void check_detached(FunctionCallInfo fcinfo, int arg, const LockRequest *request);
static int64 get_token(FunctionCallInfo fcinfo, int arg);
static void get_wait(FunctionCallInfo fcinfo, int arg, LockRequest *request);
static int64 get_wait_ms(FunctionCallInfo fcinfo, int arg);
static void get_hold_limits(FunctionCallInfo fcinfo, int arg, LeaseTerms *terms);
static int64 get_hold_us(FunctionCallInfo fcinfo, int arg, const char *name);
static int get_keep_idle_ms(FunctionCallInfo fcinfo, int arg, const LeaseTerms *terms);
static void check_max_hold(FunctionCallInfo fcinfo, int arg, const char *name, int64 us);
static int get_ttl_ms(FunctionCallInfo fcinfo, int arg);
static LockScope get_scope(FunctionCallInfo fcinfo, int arg);
static int64 interval_us(const Interval *interval);
static char *interval_text(Interval *interval);
static Interval *make_interval_us(int64 us);
static void lease_row(Tuplestorestate *rows, TupleDesc desc, const Lease *original, Lease *lease);
static bool reader_rows(Tuplestorestate *rows, TupleDesc desc, const Lease *lease, Datum *values,
						bool *nulls);
static TimestampTz idle_since(Lease *lease);
static const char *scope_name(LockScope scope);
static const char *lease_state_name(Lease *lease);
static void node_row(Tuplestorestate *rows, TupleDesc desc, NodeStatus *status);
static Datum counter_datum(LeaseCounter counter);
static void host_row(Tuplestorestate *rows, TupleDesc desc, const HostList *list,
					 const HostRow *host);
static bool has_next(const HostConfig *ours, const HostConfig *theirs);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return; /* the functions will say what to do */
	guc_define();
	lease_install_hooks();
	session_install_hooks();
	broker_register();
}

/*
 * redlock_acquire(resource, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, slots)
 */
Datum
redlock_acquire(PG_FUNCTION_ARGS)
{
	LockName name;
	int64 token = 0;
	LockRequest request = {.names = &name, .count = 1, .tokens = &token};

	get_name(fcinfo, &name);
	get_acquire(fcinfo, &request);
	get_slots(fcinfo, 8, 6, &request);
	(void) session_acquire(&request);
	PG_RETURN_INT64(token);
}

/* Since 0.2.0 these three have keep_idle and mode; those of 0.1.0 work, too: get_keep_idle_ms. */
Datum
redlock_acquire_0_2(PG_FUNCTION_ARGS)
{
	return redlock_acquire(fcinfo);
}

/*
 * redlock_acquire_all(resources, wait, ...): the tokens, in the order of the names.  An overload of
 * redlock_acquire would not do: PostgreSQL resolves a parameter without a type to text, so a list
 * from a driver would become one name.
 */
Datum
redlock_acquire_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {0};
	int count;
	LockName *given = get_names(fcinfo, &request, &count);
	Datum *tokens = palloc(count * sizeof(Datum));

	request.tokens = palloc(request.count * sizeof(int64));
	get_acquire(fcinfo, &request);
	(void) session_acquire(&request);
	for (int i = 0; i < count; i++)
	{
		const LockName *name =
			bsearch(&given[i], request.names, request.count, sizeof(LockName), compare_names);

		tokens[i] = Int64GetDatum(request.tokens[name - request.names]);
	}
	PG_RETURN_ARRAYTYPE_P(
		construct_array(tokens, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

static void
get_acquire(FunctionCallInfo fcinfo, LockRequest *request)
{
	get_wait(fcinfo, 1, request);
	request->terms.ttl_ms = get_ttl_ms(fcinfo, 2);
	request->terms.scope = get_scope(fcinfo, 3);
	get_hold_limits(fcinfo, 4, &request->terms);
	request->terms.keep_idle_ms = get_keep_idle_ms(fcinfo, 6, &request->terms);
	get_mode(fcinfo, 7, request);
	check_detached(fcinfo, 5, request);
}

/* redlock_try(resource, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, slots, wait) */
Datum
redlock_try(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1};

	get_name(fcinfo, &name);
	get_try(fcinfo, 8, &request);
	get_slots(fcinfo, 7, 5, &request);
	PG_RETURN_BOOL(session_acquire(&request));
}

/* redlock_try_all(resources, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, wait) */
Datum
redlock_try_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {0};
	int count;

	(void) get_names(fcinfo, &request, &count);
	get_try(fcinfo, 7, &request);
	PG_RETURN_BOOL(session_acquire(&request));
}

/*
 * A try that waits returns false when the time is over.  The functions of 0.1.0 lack the argument
 * number `wait`.
 */
static void
get_try(FunctionCallInfo fcinfo, int wait, LockRequest *request)
{
	request->terms.once = true;
	if (wait < PG_NARGS())
		get_wait(fcinfo, wait, request);
	if (request->terms.once)
		request->wait_ms = -1;
	request->skip = !request->terms.once;
	request->terms.ttl_ms = get_ttl_ms(fcinfo, 1);
	request->terms.scope = get_scope(fcinfo, 2);
	get_hold_limits(fcinfo, 3, &request->terms);
	request->terms.keep_idle_ms = get_keep_idle_ms(fcinfo, 5, &request->terms);
	get_mode(fcinfo, 6, request);
	check_detached(fcinfo, 4, request);
}

/* What no session's end gives back must end by itself. */
static void
check_detached(FunctionCallInfo fcinfo, int arg, const LockRequest *request)
{
	if (request->terms.scope != SCOPE_DETACHED)
		return;
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("hold_at_most must be given for a detached redlock"),
				 errdetail("A detached lock belongs to no session, so no session's end releases "
						   "it."),
				 errhint("Give the time until the work next tells that it goes on, by "
						 "redlock_extend.")));
	check_max_hold(fcinfo, arg, "hold_at_most", get_hold_us(fcinfo, arg, "hold_at_most"));
}

Datum
redlock_try_0_2(PG_FUNCTION_ARGS)
{
	return redlock_try(fcinfo);
}

/* redlock_release(resource) */
Datum
redlock_release(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	PG_RETURN_BOOL(session_release(name.hash, name.name));
}

/* redlock_release(resource, token) */
Datum
redlock_release_detached(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	PG_RETURN_BOOL(session_release_detached(&name, get_token(fcinfo, 1)));
}

/* redlock_release_all() */
Datum
redlock_release_all(PG_FUNCTION_ARGS)
{
	require_session();
	PG_RETURN_INT64(session_release_all());
}

/* redlock_release_idle(), for operators */
Datum
redlock_release_idle(PG_FUNCTION_ARGS)
{
	lease_require_preload();
	PG_RETURN_INT64(lease_give_up_stays());
}

/* redlock_check(resource) */
Datum
redlock_check(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	PG_RETURN_INTERVAL_P(make_interval_us(session_check(name.hash, name.name)));
}

/* redlock_check(resource, token) */
Datum
redlock_check_detached(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	PG_RETURN_INTERVAL_P(make_interval_us(detached_check(&name, get_token(fcinfo, 1))));
}

/* redlock_extend(resource, token, hold_at_most) */
Datum
redlock_extend(PG_FUNCTION_ARGS)
{
	LockName name;
	int64 token;
	int64 us;

	get_name(fcinfo, &name);
	token = get_token(fcinfo, 1);
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("hold_at_most must not be null")));
	us = get_hold_us(fcinfo, 2, "hold_at_most");
	check_max_hold(fcinfo, 2, "hold_at_most", us);
	PG_RETURN_TIMESTAMPTZ(detached_prolong(&name, token, us / 1000 * 1000));
}

/* redlock_attach(resource, token) */
Datum
redlock_attach(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	session_attach(&name, get_token(fcinfo, 1));
	PG_RETURN_VOID();
}

/* redlock_token(resource) */
Datum
redlock_token(PG_FUNCTION_ARGS)
{
	LockName name;
	int64 token;

	get_name(fcinfo, &name);
	token = session_token(name.hash, name.name);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* redlock_fence(resource); SECURITY DEFINER */
Datum
redlock_fence(PG_FUNCTION_ARGS)
{
	LockName name;
	char *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));
	int64 token;

	get_name(fcinfo, &name);
	token = session_valid_token(name.hash, name.name);
	if (session_shares(name.hash, name.name))
		fence_share(schema, name.name, token);
	else
		fence_record(schema, session_fenced_name(name.hash, name.name), token);
	PG_RETURN_INT64(token);
}

/* redlock_fence_merge(), a trigger of redlock_fences */
Datum
redlock_fence_merge(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_fence_merge must be called as a trigger")));
	return fence_merge((TriggerData *) fcinfo->context);
}

/* redlock_shared_fences_merge(), a trigger of redlock_shared_fences */
Datum
redlock_shared_fences_merge(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_shared_fences_merge must be called as a trigger")));
	return fence_merge_shared((TriggerData *) fcinfo->context);
}

/* redlock_runs_merge(), a trigger of redlock_runs */
Datum
redlock_runs_merge(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_runs_merge must be called as a trigger")));
	return runs_merge((TriggerData *) fcinfo->context);
}

/*
 * redlock_lock(resource, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, slots): a
 * procedure, so that it waits without a snapshot.  It returns nothing, since a CALL that does keeps
 * one.
 */
Datum
redlock_lock(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1, .by_call = true};
	LockScope scope;

	get_name(fcinfo, &name);
	scope = get_scope(fcinfo, 3);
	if (scope == SCOPE_TRANSACTION)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("redlock_lock can't acquire at transaction scope"),
						errdetail("The transaction of a CALL ends with it."),
						errhint("Use redlock_acquire, or the scope \"session\" or \"call\".")));
	if (scope == SCOPE_DETACHED)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("redlock_lock can't acquire a detached lock"),
						errdetail("It returns no token, by which such a lock is released."),
						errhint("Use redlock_acquire.")));
	get_acquire(fcinfo, &request);
	get_slots(fcinfo, 8, 6, &request);
	(void) acquire_without_snapshot(&request, is_atomic(fcinfo));
	return (Datum) 0;
}

/* Of a procedure: can it not end the transaction? */
static bool
is_atomic(FunctionCallInfo fcinfo)
{
	return fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		   castNode(CallContext, fcinfo->context)->atomic;
}

/*
 * A snapshot that waits keeps VACUUM from its work, and CREATE INDEX CONCURRENTLY from its
 * end.  Where a procedure might commit it may do without its snapshots, as it does when it
 * commits; what runs next takes a new one.
 */
static bool
acquire_without_snapshot(const LockRequest *request, bool atomic)
{
	bool acquired;

	if (!atomic)
		ForgetPortalSnapshots();
	acquired = session_acquire(request);
	if (!atomic)
		EnsurePortalSnapshotExists();
	return acquired;
}

/*
 * redlock_run(resource, command, wait, ttl, hold_at_least, hold_at_most, keep_idle, fence, record,
 *			   mode, slots)
 *
 * At call scope, so that the command may commit; in C, so that it may be a CALL
 * that does.
 */
Datum
redlock_run(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1};
	bool atomic = is_atomic(fcinfo);
	Oid schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	MemoryContext context = CurrentMemoryContext;
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
	request.terms.ttl_ms = get_ttl_ms(fcinfo, 3);
	get_hold_limits(fcinfo, 4, &request.terms);
	request.terms.keep_idle_ms = get_keep_idle_ms(fcinfo, 6, &request.terms);
	fence = get_flag(fcinfo, 7, "fence");
	record = get_flag(fcinfo, 8, "record");
	get_mode(fcinfo, 9, &request);
	get_slots(fcinfo, 10, 6, &request);
	if (fence || record) /* before the lock is taken from who could do the work */
		PreventCommandIfReadOnly("redlock_run() with fence or record");
	if (record && (atomic || IsSubTransaction()))
		ereport(ERROR, (errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
						errmsg("a run can't be recorded in a transaction block or a function"),
						errdetail("Its row in redlock_runs is committed before the command."),
						errhint("Call redlock_run in a statement of its own, or without record.")));
	request.terms.scope = SCOPE_CALL;
	request.skip = true;
	request.commits = record;
	if (!IsPostmasterEnvironment)
		request_fail_no_broker(); /* nor is there a process that would record it */

	if (!record)
		ran = acquire_and_run(&request, command, atomic, fence ? get_namespace_name(schema) : NULL,
							  NULL);
	else
	{
		runs_prepare(&run, schema, name.name, name.utf8, command);
		PG_TRY();
		{
			ran = acquire_and_run(&request, command, false,
								  fence ? get_namespace_name(schema) : NULL, &run);
		}
		PG_CATCH();
		{
			runs_fail(&run, session_loss_reason(name.hash, name.name),
					  session_is_cancelled_by_loss(), context);
			PG_RE_THROW();
		}
		PG_END_TRY();
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
		if (record != NULL)
		{
			SPI_connect_ext(SPI_OPT_NONATOMIC);
			begin_record();
			runs_skip(record, request_skipped());
			SPI_commit(); /* the caller's next transaction is none of ours */
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
	SPI_connect_ext(atomic ? 0 : SPI_OPT_NONATOMIC);
	if (record != NULL)
		begin_record();
	if (fences != NULL)
		session_fence(name->hash, name->name, fences);
	if (record != NULL)
		run_recorded(name, command, record);
	else
	{
		if (!atomic)
			ForgetPortalSnapshots(); /* older than the commits for which the fence waited */
		run_command(command, atomic);
	}
	SPI_finish();
}

/*
 * One statement after the other: CALL and DO as procedures run them, so that they may commit;
 * the others with a snapshot of their own, so that each sees what the former did.
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
 * A transaction of our own: whatever isolation the command wants, others who record runs are
 * not in the way.
 */
static void
begin_record(void)
{
	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
}

/* Its last commit is ours, so that one which fails is recorded, too. */
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

/* What SPI would do nothing for, or name by a code only. */
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
							errhint("Let a procedure or DO commit, and run that.")));
		if (IsA(statement, CopyStmt) && castNode(CopyStmt, statement)->filename == NULL)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("redlock_run can't run COPY to or from the client"),
							errhint(OWN_STATEMENT_HINT)));
	}
}

/* Of an error in a command that redlock_run runs, or can't run. */
static void
explain_run(void *arg)
{
	const RunContext *run = arg;
	int position = geterrposition();

	/* in our command, not in the statement of the client; SPI does that for its own */
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
 * Is the error that is reported just now PostgreSQL's, of a statement that it keeps from
 * functions?  Its code alone does not tell: other errors have it, and hints of their own.
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

/*
 * Arguments
 */

/* What a session holds is known to its own process only. */
static void
require_session(void)
{
	lease_require_preload();
	if (IsParallelWorker())
		ereport(ERROR, (errcode(ERRCODE_INVALID_TRANSACTION_STATE),
						errmsg("redlocks can't be used in a parallel worker"),
						errhint("Mark the function that calls this one as PARALLEL UNSAFE.")));
}

static void
get_name(FunctionCallInfo fcinfo, LockName *name)
{
	require_session();
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the name of a redlock must not be null")));
	check_name(text_to_cstring(PG_GETARG_TEXT_PP(0)), 0, name);
}

/*
 * The name goes into the key in UTF-8, whatever encoding this database has.  `element`: of an
 * array, counted from one; 0 for a name that is alone.
 */
static void
check_name(char *name, int element, LockName *checked)
{
	char *utf8;
	int utf8_len;
	const unsigned char *control;

	if (name[0] == '\0')
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the name of a redlock must not be empty"),
						element > 0 ? errdetail("%s is empty.", which_name(element)) : 0));
	utf8 = pg_server_to_any(name, strlen(name), PG_UTF8);
	utf8_len = (int) strlen(utf8);
	if (utf8_len > LOCK_NAME_MAX)
		ereport(ERROR, (errcode(ERRCODE_NAME_TOO_LONG), errmsg("the name of a redlock is too long"),
						errdetail("%s has %d bytes in UTF-8; the limit is %d.", which_name(element),
								  utf8_len, LOCK_NAME_MAX)));
	if (is_list(name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the name of a redlock must not have the form of a list"),
				 errdetail("%s is in brackets, as some drivers send an array or a tuple.",
						   which_name(element)),
				 element > 0 ? errhint("Choose another name.")
							 : errhint("To acquire several locks, call redlock_acquire_all or "
									   "redlock_try_all with an array. Otherwise choose another "
									   "name.")));
	control = text_find_control(utf8);
	if (control != NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the name of a redlock must not contain control characters"),
						errdetail("%s contains U+%04X.", which_name(element),
								  *control == 0xc2 ? control[1] : control[0])));
	checked->name = name;
	checked->utf8 = utf8;
	checked->utf8_len = utf8_len;
	checked->hash = lease_hash(utf8, utf8_len);
}

/* {a,b} or [0:1]={a,b}, an array; (a,b), a row. */
static bool
is_list(const char *name)
{
	char last = name[strlen(name) - 1];

	return ((name[0] == '{' || name[0] == '[') && last == '}') || (name[0] == '(' && last == ')');
}

/* For messages. */
static const char *
which_name(int element)
{
	return element > 0 ? psprintf("Element %d of the array", element) : "It";
}

/* Returns them as they were given, *count; the request gets each once, in the order of all hosts.
 */
static LockName *
get_names(FunctionCallInfo fcinfo, LockRequest *request, int *count)
{
	ArrayType *array;
	Datum *elements;
	bool *nulls;
	LockName *given;
	LockName *names;

	require_session();
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the array of redlock names must not be null"),
						errhint("Give at least one name.")));
	array = PG_GETARG_ARRAYTYPE_P(0);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
						errmsg("the array of redlock names must have one dimension"),
						errdetail("It has %d.", ARR_NDIM(array)),
						errhint("Give all names in one row: ARRAY['a', 'b'].")));
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > ELEMENTS_MAX)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						errmsg("too many redlocks are asked for at once"),
						errdetail("The array has %d elements; the limit is %d, with duplicates.",
								  ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), ELEMENTS_MAX),
						errhint("Give each name once.")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, count);
	if (*count == 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("the array of redlock names must not be empty"),
						errhint("Give at least one name.")));

	given = palloc(*count * sizeof(LockName));
	names = palloc(*count * sizeof(LockName));
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
							errmsg("the name of a redlock must not be null"),
							errdetail("Element %d of the array is null.", i + 1),
							errhint("Leave it out, or give it a name.")));
		check_name(TextDatumGetCString(elements[i]), i + 1, &given[i]);
		names[i] = given[i];
	}
	qsort(names, *count, sizeof(LockName), compare_names);
	request->names = names;
	for (int i = 0; i < *count; i++)
		if (i == 0 || compare_names(&names[i], &names[request->count - 1]) != 0)
			names[request->count++] = names[i];
	if (request->count > SEVERAL_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many redlocks are asked for at once"),
				 errdetail("There are %d names; the limit is %d.", request->count, SEVERAL_MAX),
				 errhint("Acquire one lock that stands for all, or acquire them in several "
						 "calls, on all hosts in the same order.")));
	return given;
}

static int
compare_names(const void *one, const void *other)
{
	const LockName *a = one;
	const LockName *b = other;

	return several_compare(a->utf8, a->utf8_len, b->utf8, b->utf8_len);
}

static void
get_wait(FunctionCallInfo fcinfo, int arg, LockRequest *request)
{
	request->wait_ms = get_wait_ms(fcinfo, arg);
	request->terms.once = request->wait_ms == 0;
	request->terms.patient = request->wait_ms > 0;
}

/* In whole milliseconds, rounded up; -1: as long as it takes */
static int64
get_wait_ms(FunctionCallInfo fcinfo, int arg)
{
	int64 us;

	if (PG_ARGISNULL(arg))
		return -1;
	us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("wait must not be negative"),
				 errhint("Use NULL to wait for as long as it takes, or zero not to wait.")));
	if (us > DURATION_MAX_MS * INT64CONST(1000))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("wait must not be longer than %d days", DURATION_MAX_DAYS),
						errhint("Use NULL to wait for as long as it takes.")));
	return (us + 999) / 1000;
}

/*
 * hold_at_least, and behind it hold_at_most, in whole milliseconds: no shorter
 * than the one says, no longer than the other.
 */
static void
get_hold_limits(FunctionCallInfo fcinfo, int arg, LeaseTerms *terms)
{
	int64 least_us = get_hold_us(fcinfo, arg, "hold_at_least");
	int64 most_us = get_hold_us(fcinfo, arg + 1, "hold_at_most");

	check_max_hold(fcinfo, arg, "hold_at_least", least_us);
	if (most_us > DURATION_MAX_MS * INT64CONST(1000))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("hold_at_most must not be longer than %d days", DURATION_MAX_DAYS),
						errhint("Leave it out for no limit, where the lock is not detached.")));
	if (most_us > 0 && least_us > most_us)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("hold_at_least must not be longer than hold_at_most"),
						errdetail("The lock can't be kept longer than it may be held."),
						errhint("Make hold_at_most at least as long, or leave one of them out.")));
	terms->hold_at_least_ms = (int) ((least_us + 999) / 1000);
	terms->hold_at_most_ms = (int) (most_us / 1000);
}

/* 0: not given */
static int64
get_hold_us(FunctionCallInfo fcinfo, int arg, const char *name)
{
	int64 us;

	if (PG_ARGISNULL(arg))
		return 0;
	us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (us < 1000)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("%s must be at least 1 ms", name)));
	return us;
}

/*
 * In whole milliseconds, rounded up; 0: the lock does not stay.  The functions of 0.1.0
 * have no such argument.
 */
static int
get_keep_idle_ms(FunctionCallInfo fcinfo, int arg, const LeaseTerms *terms)
{
	bool limited = terms->hold_at_least_ms > 0 || terms->hold_at_most_ms > 0;
	int64 us = limited ? 0 : redlock_keep_idle_ms * INT64CONST(1000);

	if (arg < PG_NARGS() && !PG_ARGISNULL(arg))
		us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (us < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("keep_idle must not be negative"),
				 errhint("Use zero to give the lock up when it is released.")));
	if (us > 0 && limited)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("keep_idle can't be combined with hold_at_least or hold_at_most"),
						errdetail("A lock with such a limit does not stay with its server when it "
								  "is released."),
						errhint("Leave keep_idle out; a detached lock must have hold_at_most.")));
	check_max_hold(fcinfo, arg, "keep_idle", us);
	return (int) ((us + 999) / 1000);
}

/* Functions of earlier versions have no such argument.  redlock.keep_idle is not for permits. */
static void
get_slots(FunctionCallInfo fcinfo, int arg, int keep_idle_arg, LockRequest *request)
{
	const LockName *name = &request->names[0];
	int slots;

	if (arg >= PG_NARGS())
		return;
	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("slots must not be null")));
	slots = PG_GETARG_INT32(arg);
	if (slots < 1 || slots > PERMITS_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("slots must be from 1 to %d, not %d", PERMITS_MAX, slots)));
	if (slots == 1)
		return;
	if (request->terms.shared)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("mode \"shared\" can't be combined with slots"),
						errdetail("Any number of sessions share a lock, each slot has one holder."),
						errhint("Leave out the one or the other.")));
	if (name->utf8_len > LOCK_NAME_MAX - PERMITS_SUFFIX_MAX)
		ereport(ERROR, (errcode(ERRCODE_NAME_TOO_LONG), errmsg("the name of a redlock is too long"),
						errdetail("It has %d bytes in UTF-8; the limit is %d of one with slots.",
								  name->utf8_len, LOCK_NAME_MAX - PERMITS_SUFFIX_MAX)));
	if (request->terms.scope == SCOPE_DETACHED)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("a slot of a redlock can't be detached"),
						errdetail("A slot is one of a session."),
						errhint("Acquire one lock for each slot, under names of your own.")));
	if (!PG_ARGISNULL(keep_idle_arg) && request->terms.keep_idle_ms > 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("keep_idle can't be combined with slots"),
						errdetail("A slot that stays with a server would not be free for others."),
						errhint("Leave keep_idle out.")));
	request->terms.keep_idle_ms = 0;
	request->permits = slots;
}

/* Of an argument, or of the setting of that name where it is not given. */
static void
check_max_hold(FunctionCallInfo fcinfo, int arg, const char *name, int64 us)
{
	bool given = arg < PG_NARGS() && !PG_ARGISNULL(arg);

	if (us <= redlock_max_hold_ms * INT64CONST(1000))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a %s of %s is over redlock.max_hold, which is %s", name,
					given ? interval_text(PG_GETARG_INTERVAL_P(arg))
						  : GetConfigOptionByName(psprintf("redlock.%s", name), NULL, false),
					GetConfigOptionByName("redlock.max_hold", NULL, false)),
			 !given ? errhint("Lower redlock.%s, or give a shorter %s with the call.", name, name)
			 : redlock_max_hold_ms > 0
				 ? errhint("Use a shorter one, or have a superuser raise the setting.")
				 : errhint("Leave it out: where redlock.max_hold is 0, no lock may outlast "
						   "its session. A superuser may raise the setting.")));
}

static int64
get_token(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the token of a redlock must not be null")));
	return PG_GETARG_INT64(arg);
}

/*
 * Many sessions may share a lease, each for as long as it likes: limits of one can't be kept for
 * it alone.  The functions of 0.1.0 have no such argument.
 */
static void
get_mode(FunctionCallInfo fcinfo, int arg, LockRequest *request)
{
	LeaseTerms *terms = &request->terms;
	text *mode;

	if (arg >= PG_NARGS())
		return;
	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("mode must not be null")));
	mode = PG_GETARG_TEXT_PP(arg);
	terms->shared = says(mode, "shared");
	if (!terms->shared && !says(mode, "exclusive"))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("\"%s\" is no mode of a redlock", text_to_cstring(mode)),
						errhint("Use \"exclusive\" or \"shared\".")));
	if (terms->shared && request->terms.scope == SCOPE_DETACHED)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("a shared redlock can't be detached"),
						errdetail("The sessions of a server share one lease with one token, which "
								  "does not tell whose part is given back."),
						errhint("Use another scope, or the mode \"exclusive\".")));
	if (terms->shared && (terms->hold_at_least_ms > 0 || terms->hold_at_most_ms > 0))
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("mode \"shared\" can't be combined with hold_at_least or hold_at_most"),
			 errdetail("The sessions of a server share one lease, which lasts as long as one of "
					   "them holds the lock."),
			 errhint("Leave them out, or use the mode \"exclusive\".")));
}

static inline bool
says(const text *given, const char *word)
{
	return VARSIZE_ANY_EXHDR(given) == strlen(word) &&
		   memcmp(VARDATA_ANY(given), word, strlen(word)) == 0;
}

/* redlock_run of 0.1.0 has no such arguments. */
static bool
get_flag(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (arg >= PG_NARGS())
		return false;
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
	return PG_GETARG_BOOL(arg);
}

/* In whole milliseconds, rounded down */
static int
get_ttl_ms(FunctionCallInfo fcinfo, int arg)
{
	int64 ttl_us = redlock_ttl_ms * INT64CONST(1000);

	if (!PG_ARGISNULL(arg))
		ttl_us = interval_us(PG_GETARG_INTERVAL_P(arg));
	if (ttl_us <= 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("ttl must be positive")));
	if (ttl_us < TTL_MIN_MS * 1000)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("ttl must be at least %d ms", TTL_MIN_MS)));
	if (ttl_us > redlock_max_ttl_ms * INT64CONST(1000))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a ttl of %s is over redlock.max_ttl, which is %s",
						PG_ARGISNULL(arg) ? GetConfigOptionByName("redlock.ttl", NULL, false)
										  : interval_text(PG_GETARG_INTERVAL_P(arg)),
						GetConfigOptionByName("redlock.max_ttl", NULL, false)),
				 errhint("%sLeases are renewed while their session lives, so a job may run longer "
						 "than the ttl.",
						 PG_ARGISNULL(arg) ? "Lower redlock.ttl, or give a ttl. " : "")));
	return (int) (ttl_us / 1000);
}

static LockScope
get_scope(FunctionCallInfo fcinfo, int arg)
{
	static Oid last_value = InvalidOid; /* most calls name the same */
	static LockScope last_scope;
	char *label;

	if (PG_ARGISNULL(arg))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("scope must not be null")));
	if (PG_GETARG_OID(arg) == last_value)
		return last_scope;
	label = DatumGetCString(DirectFunctionCall1(enum_out, PG_GETARG_DATUM(arg)));
	last_value = PG_GETARG_OID(arg);
	last_scope = strcmp(label, "session") == 0    ? SCOPE_SESSION
				 : strcmp(label, "call") == 0     ? SCOPE_CALL
				 : strcmp(label, "detached") == 0 ? SCOPE_DETACHED
												  : SCOPE_TRANSACTION;
	return last_scope;
}

/*
 * As intervals are compared: a month has 30 days.  Years too far from zero are
 * brought nearer, to what is over all limits still.
 */
static int64
interval_us(const Interval *interval)
{
	static const double far = 1e15;
	double us =
		(double) interval->time +
		((double) interval->day + (double) interval->month * DAYS_PER_MONTH) * USECS_PER_DAY;

	return (int64) Min(Max(us, -far), far);
}

/* For messages. */
static char *
interval_text(Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(interval)));
}

static Interval *
make_interval_us(int64 us)
{
	Interval *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return interval;
}

/*
 * Rows
 */

/* Rows are made of copies, taken without a lock; see lease.h. */
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
	for (int i = 0; i < lease_table->slots; i++)
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

/* Since 0.2.0: with role and until, slot and mode. */
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
	bool idle = lease_stays(lease);
	int64 until_us =
		(int64) pg_atomic_read_u64(idle ? &lease->idle_until_us : &lease->hold_until_us);
	bool held = idle || (lease_state(lease) == LEASE_HELD &&
						 pg_atomic_read_u32(&lease->wish) == WISH_HOLD &&
						 !lease->is_queue); /* that is the place of one who waits for a slot */
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
	if (!by_many || idle || desc->natts == LOCK_COLUMNS_0_1 ||
		!reader_rows(rows, desc, original, values, nulls))
		tuplestore_putvalues(rows, desc, values, nulls);
}

/* A row for each session of this server that shares the lease.  False: none does. */
static bool
reader_rows(Tuplestorestate *rows, TupleDesc desc, const Lease *lease, Datum *values, bool *nulls)
{
	bool any = false;

	for (int i = 0; i < MaxBackends; i++)
	{
		int pid = lease_is_shared_by(lease, i) ? GetPGProcByNumber(i)->pid : 0;

		if (pid == 0)
			continue;
		values[3] = Int32GetDatum(pid);
		nulls[3] = false;
		tuplestore_putvalues(rows, desc, values, nulls);
		any = true;
	}
	return any;
}

/* Nobody looked at the wall clock then. */
static TimestampTz
idle_since(Lease *lease)
{
	int64 until_us = (int64) pg_atomic_read_u64(&lease->idle_until_us);
	int64 stays_us =
		lease->keep_idle_ms > 0 ? lease->keep_idle_ms * INT64CONST(1000) : PERMITS_PASS_US;

	return GetCurrentTimestamp() - (redlock_clock_us() - (until_us - stays_us));
}

static const char *
scope_name(LockScope scope)
{
	switch (scope)
	{
		case SCOPE_TRANSACTION:
			return "transaction";
		case SCOPE_CALL:
			return "call";
		case SCOPE_SESSION:
			return "session";
		case SCOPE_DETACHED:
			return "detached";
	}
	return NULL;
}

static const char *
lease_state_name(Lease *lease)
{
	if (pg_atomic_read_u32(&lease->wish) == WISH_NOTHING)
		return "releasing";
	if (lease_stays(lease))
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
	nulls[10] = quarantine_us <= 0 || status->evicts; /* that has no end */
	tuplestore_putvalues(rows, desc, values, nulls);
}

static Datum
counter_datum(LeaseCounter counter)
{
	return Int64GetDatum((int64) lease_counted(counter));
}

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
	list = list_hosts();
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

/* What is not as a host writes it was not written by one. */
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

/* Would the next list of this host, if it has one, alone keep that one apart from it? */
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
	Datum values[COUNTERS + 4] = {0};
	bool nulls[COUNTERS + 4] = {0};
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
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* Since 0.2.0: what has been counted since then stands behind. */
Datum
redlock_counter_row(PG_FUNCTION_ARGS)
{
	return redlock_stats_row(fcinfo);
}
