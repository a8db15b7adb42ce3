/*
 * fence.c
 *		The fence; see fence.h.
 *
 * One statement does it: the row is inserted, or updated if the token there is
 * not newer.  Its row lock lasts until the end of the transaction, so fenced
 * transactions on a resource commit one after another, in the order of their
 * tokens, whatever clocks, pauses and networks do.
 *
 * Source of the idea: Martin Kleppmann, "How to do distributed locking" (2016),
 * the section on fencing tokens.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "fence.h"

static SPIPlanPtr plan = NULL;
static char *plan_schema = NULL;

static void prepare(const char *schema);
static int64 read_newer(const char *schema, const char *resource);

void
fence_record(const char *schema, const char *resource, int64 token)
{
	Datum values[] = {CStringGetTextDatum(resource), Int64GetDatum(token)};
	int64 newer;
	int rc;

	SPI_connect();
	if (plan == NULL || strcmp(plan_schema, schema) != 0)
		prepare(schema);
	rc = SPI_execute_plan(plan, values, NULL, false, 0);
	if (rc != SPI_OK_INSERT)
		elog(ERROR, "could not record a fencing token: %s", SPI_result_code_string(rc));
	if (SPI_processed == 0)
	{
		newer = read_newer(schema, resource);
		ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
						errmsg("a newer holder of redlock \"%s\" has passed the fence", resource),
						errdetail("The token of this session is " INT64_FORMAT
								  ", that of the newer holder " INT64_FORMAT ".",
								  token, newer),
						errhint("The lease was lost without notice. Start the work over.")));
	}
	SPI_finish();
}

static void
prepare(const char *schema)
{
	Oid types[] = {TEXTOID, INT8OID};
	StringInfoData sql;
	SPIPlanPtr made;

	if (plan != NULL)
		SPI_freeplan(plan);
	plan = NULL;
	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "INSERT INTO %s.redlock_fences AS f (resource, token, passed_at)"
					 " VALUES ($1, $2, pg_catalog.clock_timestamp())"
					 " ON CONFLICT (resource) DO UPDATE"
					 " SET token = EXCLUDED.token, passed_at = EXCLUDED.passed_at"
					 " WHERE f.token OPERATOR(pg_catalog.<=) EXCLUDED.token",
					 quote_identifier(schema));
	made = SPI_prepare(sql.data, lengthof(types), types);
	if (made == NULL)
		elog(ERROR, "could not prepare a fence: %s", SPI_result_code_string(SPI_result));
	if (plan_schema != NULL)
		pfree(plan_schema);
	plan_schema = MemoryContextStrdup(TopMemoryContext, schema);
	SPI_keepplan(made);
	plan = made;
}

/* For the message. */
static int64
read_newer(const char *schema, const char *resource)
{
	Oid types[] = {TEXTOID};
	Datum values[] = {CStringGetTextDatum(resource)};
	StringInfoData sql;
	bool null = true;
	Datum token = 0;

	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT token FROM %s.redlock_fences"
					 " WHERE resource OPERATOR(pg_catalog.=) $1",
					 quote_identifier(schema));
	if (SPI_execute_with_args(sql.data, lengthof(types), types, values, NULL, false, 1) ==
			SPI_OK_SELECT &&
		SPI_processed == 1)
		token = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
	return null ? 0 : DatumGetInt64(token);
}
