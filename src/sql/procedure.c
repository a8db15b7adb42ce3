/*
 * procedure.c
 *		redlock_lock, a procedure; how a procedure waits without a snapshot.
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
#pragma GCC visibility pop

static const TermArguments lock_terms = {
	.ttl = 2, .scope = 3, .hold_limits = 4, .keep_idle = 6, .mode = 7, .permits = 8};

/*
 * redlock_lock(resource, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, permits):
 * a procedure, so that it waits without a snapshot.  It returns nothing, since a CALL that does
 * keeps one.
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

/* Of a procedure: can it not end the transaction? */
bool
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
