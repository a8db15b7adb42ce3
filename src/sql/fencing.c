/*
 * fencing.c
 *		The function redlock_fence.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/lsyscache.h"

#include "session/fence.h"
#include "session/session.h"
#include "sql/arguments.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_fence);
#pragma GCC visibility pop

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
