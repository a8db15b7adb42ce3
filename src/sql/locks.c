/*
 * locks.c
 *		The functions that SQL calls to acquire, release, check, extend and attach locks.
 *
 * Each function converts its arguments, and the session does the work.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "session/detached.h"
#include "session/grants.h"
#include "session/session.h"
#include "shared/lease.h"
#include "sql/arguments.h"
#include "sql/intervals.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_acquire);
PG_FUNCTION_INFO_V1(redlock_acquire_0_2);
PG_FUNCTION_INFO_V1(redlock_acquire_all);
PG_FUNCTION_INFO_V1(redlock_try);
PG_FUNCTION_INFO_V1(redlock_try_all);
PG_FUNCTION_INFO_V1(redlock_try_detached);
PG_FUNCTION_INFO_V1(redlock_try_0_2);
PG_FUNCTION_INFO_V1(redlock_release);
PG_FUNCTION_INFO_V1(redlock_release_detached);
PG_FUNCTION_INFO_V1(redlock_release_all);
PG_FUNCTION_INFO_V1(redlock_release_idle);
PG_FUNCTION_INFO_V1(redlock_check);
PG_FUNCTION_INFO_V1(redlock_check_detached);
PG_FUNCTION_INFO_V1(redlock_extend);
PG_FUNCTION_INFO_V1(redlock_attach);
PG_FUNCTION_INFO_V1(redlock_token);
PG_FUNCTION_INFO_V1(redlock_release_wanted);
#pragma GCC visibility pop

static const TermArguments acquire_terms = {.ttl = 2,
											.scope = 3,
											.hold_at_least = 4,
											.hold_at_most = 5,
											.keep_idle = 6,
											.mode = 7,
											.permits = 8};
static const TermArguments acquire_all_terms = {
	.ttl = 2, .scope = 3, .hold_at_least = 4, .hold_at_most = 5, .keep_idle = 6, .mode = 7};
static const TermArguments try_terms = {.ttl = 1,
										.scope = 2,
										.hold_at_least = 3,
										.hold_at_most = 4,
										.keep_idle = 5,
										.mode = 6,
										.permits = 7};
static const TermArguments try_all_terms = {
	.ttl = 1, .scope = 2, .hold_at_least = 3, .hold_at_most = 4, .keep_idle = 5, .mode = 6};
static const TermArguments try_detached_terms = {
	.ttl = 3, .only_scope = SCOPE_DETACHED, .hold_at_least = 4, .hold_at_most = 1};

/*
 * redlock_acquire(resource, wait, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode,
 * permits)
 */
Datum
redlock_acquire(PG_FUNCTION_ARGS)
{
	LockName name;
	int64 token = 0;
	LockRequest request = {.names = &name, .count = 1, .tokens = &token};

	get_name(fcinfo, &name);
	get_wait(fcinfo, 1, &request);
	get_terms(fcinfo, &acquire_terms, 0, &request);
	(void) session_acquire(&request);
	PG_RETURN_INT64(token);
}

/*
 * In 0.2.0 redlock_acquire, redlock_try and redlock_run got keep_idle and mode.  The functions
 * of 0.1.0 still work: see is_argument.
 */
Datum
redlock_acquire_0_2(PG_FUNCTION_ARGS)
{
	return redlock_acquire(fcinfo);
}

/*
 * redlock_acquire_all(resources, wait, ...)
 *
 * Returns the tokens, in the order of the names.  It is not an overload of redlock_acquire:
 * PostgreSQL resolves a parameter without a type to text, so a list from a driver would become
 * one name.
 */
Datum
redlock_acquire_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {0};
	int count;
	LockName *given = get_names(fcinfo, &request, &count);
	Datum *tokens = palloc(count * sizeof(Datum));

	request.tokens = palloc(request.count * sizeof(int64));
	get_wait(fcinfo, 1, &request);
	get_terms(fcinfo, &acquire_all_terms, TERM(TERM_SEVERAL), &request);
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

/* redlock_try(resource, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, permits, wait) */
Datum
redlock_try(PG_FUNCTION_ARGS)
{
	LockName name;
	LockRequest request = {.names = &name, .count = 1};

	get_name(fcinfo, &name);
	get_try_wait(fcinfo, 8, &request);
	get_terms(fcinfo, &try_terms, 0, &request);
	PG_RETURN_BOOL(session_acquire(&request));
}

/* redlock_try_all(resources, ttl, scope, hold_at_least, hold_at_most, keep_idle, mode, wait) */
Datum
redlock_try_all(PG_FUNCTION_ARGS)
{
	LockRequest request = {0};
	int count;

	(void) get_names(fcinfo, &request, &count);
	get_try_wait(fcinfo, 7, &request);
	get_terms(fcinfo, &try_all_terms, TERM(TERM_SEVERAL), &request);
	PG_RETURN_BOOL(session_acquire(&request));
}

/*
 * redlock_try_detached(resource, hold_at_most, wait, ttl, hold_at_least)
 *
 * Returns the token, since only a token releases a detached lock.
 */
Datum
redlock_try_detached(PG_FUNCTION_ARGS)
{
	LockName name;
	int64 token = 0;
	LockRequest request = {.names = &name, .count = 1, .tokens = &token};

	get_name(fcinfo, &name);
	get_try_wait(fcinfo, 2, &request);
	get_terms(fcinfo, &try_detached_terms, 0, &request);
	if (!session_acquire(&request))
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
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
	PG_RETURN_INT64(lease_release_all_idle());
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
	grants_check(&name, 1);
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
	grants_check(&name, 1);
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

/* redlock_release_wanted(resource) */
Datum
redlock_release_wanted(PG_FUNCTION_ARGS)
{
	LockName name;

	get_name(fcinfo, &name);
	PG_RETURN_BOOL(session_release_wanted(name.hash, name.name));
}
