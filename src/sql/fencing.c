/*
 * fencing.c
 *		redlock_fence, and the triggers of the tables that it writes.
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
PG_FUNCTION_INFO_V1(redlock_fence_merge);
PG_FUNCTION_INFO_V1(redlock_shared_fences_merge);
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
