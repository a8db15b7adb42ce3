/*
 * merge.c
 *		The triggers by which logical replication writes the extension's tables.
 *
 * Each table has its own rules for a row from another server: see session/fence.h and
 * session/runs.h.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

#include "session/fence.h"
#include "session/runs.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_fence_merge);
PG_FUNCTION_INFO_V1(redlock_shared_fences_merge);
PG_FUNCTION_INFO_V1(redlock_runs_merge);
#pragma GCC visibility pop

static TriggerData *as_trigger(FunctionCallInfo fcinfo, const char *function);

/* redlock_fence_merge(), a trigger of redlock_fences */
Datum
redlock_fence_merge(PG_FUNCTION_ARGS)
{
	return fence_merge(as_trigger(fcinfo, "redlock_fence_merge"));
}

/* redlock_shared_fences_merge(), a trigger of redlock_shared_fences */
Datum
redlock_shared_fences_merge(PG_FUNCTION_ARGS)
{
	return fence_merge_shared(as_trigger(fcinfo, "redlock_shared_fences_merge"));
}

/* redlock_runs_merge(), a trigger of redlock_runs */
Datum
redlock_runs_merge(PG_FUNCTION_ARGS)
{
	return runs_merge(as_trigger(fcinfo, "redlock_runs_merge"));
}

static TriggerData *
as_trigger(FunctionCallInfo fcinfo, const char *function)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("%s must be called as a trigger", function)));
	return (TriggerData *) fcinfo->context;
}
