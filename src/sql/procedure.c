/*
 * procedure.c
 *		redlock_lock and redlock_lock_all, procedures; how a procedure waits without a snapshot.
 */
#include "postgres.h"

#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "tcop/pquery.h"
#include "utils/portal.h"

#include "session/session.h"
#include "sql/arguments.h"
#include "sql/procedure.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_lock);
PG_FUNCTION_INFO_V1(redlock_lock_all);
#pragma GCC visibility pop

static const TermArguments lock_terms = {.ttl = 2,
										 .scope = 3,
										 .hold_at_least = 4,
										 .hold_at_most = 5,
										 .keep_idle = 6,
										 .mode = 7,
										 .permits = 8};
static const TermArguments lock_all_terms = {
	.ttl = 2, .scope = 3, .hold_at_least = 4, .hold_at_most = 5, .keep_idle = 6, .mode = 7};

/*
 * redlock_lock(resource, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode,
 * permits)
 *
 * A procedure, because a procedure can wait without a snapshot.  It returns no value, because a
 * CALL with a result keeps a snapshot.
 */
Datum
redlock_lock(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1, .by_call = true};

	get_name(fcinfo, &name);
	get_wait(fcinfo, 1, &request);
	get_terms(fcinfo, &lock_terms, TERM(TERM_LOCK_CALL), &request);
	(void) acquire_without_snapshot(&request, is_atomic(fcinfo));
	return (Datum) 0;
}

/*
 * redlock_lock_all(resources, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode)
 *
 * The procedure for redlock_acquire_all, as redlock_lock is for redlock_acquire.
 */
Datum
redlock_lock_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {.by_call = true};
	int count;

	(void) get_names(fcinfo, &request, &count);
	get_wait(fcinfo, 1, &request);
	get_terms(fcinfo, &lock_all_terms, TERM(TERM_LOCK_CALL) | TERM(TERM_SEVERAL), &request);
	(void) acquire_without_snapshot(&request, is_atomic(fcinfo));
	return (Datum) 0;
}

/* Returns true if the procedure can't end the transaction. */
bool
is_atomic(FunctionCallInfo fcinfo)
{
	return fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		   castNode(CallContext, fcinfo->context)->atomic;
}

/*
 * A snapshot held during a wait hinders VACUUM, and keeps CREATE INDEX CONCURRENTLY from
 * finishing.  A procedure that may commit may also drop its snapshots, as a commit does.  The
 * next statement takes a new snapshot.
 */
bool
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
