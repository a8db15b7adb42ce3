/*
 * grants.c
 *		redlock_grant and redlock_revoke: the patterns of names that roles may lock.
 *
 * A grant names the role by its OID, in a column of type regrole.  So a later role of the same name
 * has no grants of a dropped role, a renamed role keeps its grants, and pg_dump writes the name.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "protocol/pattern.h"
#include "shared/lease.h"
#include "shared/text.h"

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_grant);
PG_FUNCTION_INFO_V1(redlock_revoke);
PG_FUNCTION_INFO_V1(redlock_grants_change);
#pragma GCC visibility pop

static void check_arguments(FunctionCallInfo fcinfo);
static void check_pattern(const char *pattern);
static const char *fault_text(const char *utf8);
static bool change(FunctionCallInfo fcinfo, const char *format);

/* redlock_grant(role, pattern); SECURITY DEFINER */
Datum
redlock_grant(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("redlock_grant()");
	check_arguments(fcinfo);
	if (!SearchSysCacheExists1(AUTHOID, PG_GETARG_DATUM(0)))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("role with OID %u does not exist", PG_GETARG_OID(0))));
	check_pattern(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	PG_RETURN_BOOL(change(fcinfo, "INSERT INTO %s.redlock_grants (role, pattern) VALUES ($1, $2)"
								  " ON CONFLICT DO NOTHING"));
}

/* redlock_revoke(role, pattern); SECURITY DEFINER.  The role may have been dropped. */
Datum
redlock_revoke(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("redlock_revoke()");
	check_arguments(fcinfo);
	PG_RETURN_BOOL(change(fcinfo, "DELETE FROM %s.redlock_grants"
								  " WHERE role OPERATOR(pg_catalog.=) $1"
								  " AND pattern OPERATOR(pg_catalog.=) $2"));
}

static void
check_arguments(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the role of a grant must not be null")));
	if (PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
						errmsg("the pattern of a grant must not be null")));
}

/* A pattern that matches no name is a mistake. */
static void
check_pattern(const char *pattern)
{
	const char *fault = fault_text(pg_server_to_any(pattern, strlen(pattern), PG_UTF8));

	if (fault == NULL)
		return;
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("pattern \"%s\" matches no name of a redlock", pattern),
					errdetail_internal("%s", fault),
					errhint("Write %% for any characters, _ for one character, and a backslash "
							"before a %%, _ or backslash of the name.")));
}

/* Returns a sentence, or NULL for a good pattern. */
static const char *
fault_text(const char *utf8)
{
	if (text_find_control(utf8) != NULL)
		return "No name contains control characters.";
	switch (pattern_check(utf8, LOCK_NAME_MAX))
	{
		case PATTERN_GOOD:
			return NULL;
		case PATTERN_EMPTY:
			return "The pattern is empty.";
		case PATTERN_ENDS_IN_ESCAPE:
			return "The pattern ends in a backslash.";
		case PATTERN_LONG:
			return psprintf("The pattern has %d bytes in UTF-8; the limit is %d.",
							(int) strlen(utf8), PATTERN_MAX);
		case PATTERN_LONG_NAMES:
			return psprintf("A name has at most %d bytes in UTF-8.", LOCK_NAME_MAX);
		case PATTERN_LISTS:
			return "No name has the form of a list.";
	}
	return NULL;
}

/* Executes the statement; returns whether it changed a row. */
static bool
change(FunctionCallInfo fcinfo, const char *format)
{
	const char *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));
	Oid types[] = {REGROLEOID, TEXTOID};
	Datum values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	bool changed;
	int rc;

	SPI_connect();
	rc = SPI_execute_with_args(psprintf(format, quote_identifier(schema)), lengthof(types), types,
							   values, NULL, false, 0);
	if (rc < 0)
		elog(ERROR, "could not change the grants: %s", SPI_result_code_string(rc));
	changed = SPI_processed > 0;
	SPI_finish();
	return changed;
}

/*
 * redlock_grants_change(), a trigger of redlock_grants.  Default privileges of the schema may let
 * other roles write to the table, so the trigger refuses them.
 */
Datum
redlock_grants_change(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_grants_change is for the rows of redlock_grants only")));
	if (!has_privs_of_role(GetUserId(), trigger->tg_relation->rd_rel->relowner))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("only the owner of redlock_grants may change its rows"),
						errhint("Call redlock_grant or redlock_revoke.")));
	CacheInvalidateRelcache(trigger->tg_relation); /* see session/grants.c */
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple
																	  : trigger->tg_trigtuple);
}
