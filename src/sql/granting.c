/*
 * granting.c
 *		redlock_grant and redlock_revoke: the patterns of names that roles may lock.
 *
 * Rows of redlock_grants belong to this database and to the roles of this cluster.  A trigger finds
 * the role of each row by its name, also when a dump is restored.  Logical replication, as of a
 * publication FOR ALL TABLES, brings no rows: it brings no roles and no privileges either.  No
 * trigger of ours sees a TRUNCATE, which replication executes.
 */
#include "postgres.h"

#include "access/htup_details.h"
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

#include "protocol/pattern.h"
#include "session/grants.h"
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
static bool change(FunctionCallInfo fcinfo, const char *format, Oid type, Datum *values);
static bool has_same_role(HeapTuple one, HeapTuple other, TupleDesc desc);
static HeapTuple with_role_id(HeapTuple row, TupleDesc desc);

/*
 * redlock_grant(role, pattern); SECURITY DEFINER
 *
 * Granting again to a renamed role writes the new name.
 */
Datum
redlock_grant(PG_FUNCTION_ARGS)
{
	Datum values[2];
	NameData name;
	char *role;

	PreventCommandIfReadOnly("redlock_grant()");
	check_arguments(fcinfo);
	role = GetUserNameFromId(PG_GETARG_OID(0), true);
	if (role == NULL)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
						errmsg("role with OID %u does not exist", PG_GETARG_OID(0))));
	check_pattern(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	namestrcpy(&name, role);
	values[0] = NameGetDatum(&name);
	values[1] = PG_GETARG_DATUM(1);
	PG_RETURN_BOOL(change(fcinfo,
						  "INSERT INTO %s.redlock_grants AS g (role, pattern) VALUES ($1, $2)"
						  " ON CONFLICT (role_id, pattern) DO UPDATE SET role = EXCLUDED.role"
						  " WHERE g.role OPERATOR(pg_catalog.<>) EXCLUDED.role",
						  NAMEOID, values));
}

/* redlock_revoke(role, pattern); SECURITY DEFINER.  The role may have been dropped. */
Datum
redlock_revoke(PG_FUNCTION_ARGS)
{
	Datum values[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};

	PreventCommandIfReadOnly("redlock_revoke()");
	check_arguments(fcinfo);
	PG_RETURN_BOOL(change(fcinfo,
						  "DELETE FROM %s.redlock_grants"
						  " WHERE role_id OPERATOR(pg_catalog.=) $1"
						  " AND pattern OPERATOR(pg_catalog.=) $2",
						  OIDOID, values));
}

static void
check_arguments(FunctionCallInfo fcinfo)
{
	/* the trigger keeps the rows of replication out, and so the rows of this session */
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("grants can't be changed with session_replication_role = replica"),
						errhint("Run RESET session_replication_role, then repeat the call.")));
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
	int len = strlen(pattern);
	const char *fault = fault_text(pg_server_to_any(pattern, len, PG_UTF8));

	if (fault == NULL)
		return;
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("pattern \"%.*s\" matches no name of a redlock",
						   pg_mbcliplen(pattern, len, LOCK_NAME_MAX), pattern),
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

/*
 * Executes the statement, whose $1 has this type, and whose $2 is a text; returns whether a row was
 * written or deleted.
 */
static bool
change(FunctionCallInfo fcinfo, const char *format, Oid type, Datum *values)
{
	const char *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));
	Oid types[] = {type, TEXTOID};
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
 * redlock_grants_change(), a trigger of redlock_grants
 *
 * Refuses all roles but the owner, since default privileges may let other roles write.
 */
Datum
redlock_grants_change(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	TupleDesc desc;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) || !grants_is_table(trigger->tg_relation))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_grants_change is for the rows of redlock_grants only")));
	desc = RelationGetDescr(trigger->tg_relation);
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		return PointerGetDatum(NULL);
	if (!has_privs_of_role(GetUserId(), trigger->tg_relation->rd_rel->relowner))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						errmsg("only the owner of redlock_grants may change its rows"),
						errhint("Call redlock_grant or redlock_revoke.")));
	CacheInvalidateRelcache(trigger->tg_relation); /* see session/grants.c */
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		return PointerGetDatum(with_role_id(trigger->tg_trigtuple, desc));
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		return PointerGetDatum(trigger->tg_trigtuple);
	/* an unchanged name may be another role's by now */
	if (has_same_role(trigger->tg_trigtuple, trigger->tg_newtuple, desc))
		return PointerGetDatum(trigger->tg_newtuple);
	return PointerGetDatum(with_role_id(trigger->tg_newtuple, desc));
}

static bool
has_same_role(HeapTuple one, HeapTuple other, TupleDesc desc)
{
	bool null;
	bool other_null;
	Datum name = heap_getattr(one, GRANTS_ROLE, desc, &null);
	Datum other_name = heap_getattr(other, GRANTS_ROLE, desc, &other_null);

	return !null && !other_null &&
		   strcmp(NameStr(*DatumGetName(name)), NameStr(*DatumGetName(other_name))) == 0;
}

/* Returns NULL if no role has the name: a dump may come from another cluster. */
static HeapTuple
with_role_id(HeapTuple row, TupleDesc desc)
{
	int column = GRANTS_ROLE_ID;
	bool null;
	Datum role = heap_getattr(row, GRANTS_ROLE, desc, &null);
	Datum role_id;

	if (null)
		return row; /* the constraint refuses the row */
	role_id = ObjectIdGetDatum(get_role_oid(NameStr(*DatumGetName(role)), true));
	if (!OidIsValid(DatumGetObjectId(role_id)))
	{
		ereport(WARNING, (errcode(ERRCODE_UNDEFINED_OBJECT),
						  errmsg("role \"%s\" does not exist, and its grant is left out",
								 NameStr(*DatumGetName(role))),
						  errhint("Create the role, then call redlock_grant.")));
		return NULL;
	}
	return heap_modify_tuple_by_cols(row, desc, 1, &column, &role_id, &null);
}
