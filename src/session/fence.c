/*
 * fence.c
 *		The fence; see fence.h.
 *
 * One statement passes the fence: it inserts the row, or updates the row unless the row has a
 * newer token.  The row lock lasts until the end of the transaction.  So fenced transactions on a
 * resource commit one after another, in the order of their tokens, in spite of any clock, pause or
 * network.
 *
 * A trigger makes rows from logical replication pass the same statement.  Written directly, such a
 * row could bring back an older token, or violate the primary key and stop the subscription.  A
 * row with nothing newer is not written, so is not replicated further: servers that replicate to
 * each other come to rest.
 *
 * Readers do not wait for each other.  A reader locks the row in share mode, so an exclusive
 * holder waits for the reader; then the reader compares tokens.  The reader adds its own token to
 * a second table, where an older exclusive holder finds the token later; added rows block no
 * session.  The search in the second table uses a snapshot newer than the wait, at any isolation
 * level.  A share lock does not change the row, so fails no transaction at REPEATABLE READ.
 *
 * Source of the idea: Martin Kleppmann, "How to do distributed locking" (2016), the section on
 * fencing tokens.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/extension.h"
#include "session/fence.h"
#include "shared/new_names.h"

static SPIPlanPtr plan = NULL;
static char *plan_schema = NULL;
static bool raising = false; /* our statement runs: the trigger lets its row pass */

static bool raise_token(const char *schema, Datum resource, Datum token, Datum passed_at,
						bool passes);
static void prepare(const char *schema);
static int64 read_newer(const char *schema, const char *resource);
static void fail_newer(const char *resource, int64 token, int64 newer);
static bool lock_shared(const char *schema, Datum resource, int64 *token);
static int64 newest_shared(const char *schema, Datum resource);
static bool has_shared_table(const char *schema);
static void forget_shared(const char *schema, Datum resource, int64 token);
static int execute(const char *format, const char *schema, int count, Datum *values,
				   bool read_only);

void
fence_record(const char *schema, const char *resource, int64 token)
{
	Datum name = CStringGetTextDatum(resource);
	int64 shared;

	PreventCommandIfReadOnly("redlock_fence()");
	SPI_connect();
	if (!raise_token(schema, name, Int64GetDatum(token), TimestampTzGetDatum(GetCurrentTimestamp()),
					 true))
		fail_newer(resource, token, read_newer(schema, resource));
	shared = newest_shared(schema, name);
	if (shared > token)
		fail_newer(resource, token, shared);
	if (shared > 0)
		forget_shared(schema, name, token);
	SPI_finish();
}

void
fence_share(const char *schema, const char *resource, int64 token)
{
	Datum values[] = {CStringGetTextDatum(resource), Int64GetDatum(token),
					  TimestampTzGetDatum(GetCurrentTimestamp())};
	int64 exclusive;

	PreventCommandIfReadOnly("redlock_fence()");
	/* the session has the lock from a newer version of the extension, which was dropped */
	if (!has_shared_table(schema))
		elog(ERROR, "schema \"%s\" has no table redlock_shared_fences of redlock_pg", schema);
	SPI_connect();
	while (!lock_shared(schema, values[0], &exclusive))
	{
		/* the first pass of this resource; concurrent sessions wait for our row */
		raising = true;
		PG_TRY();
		{
			(void) execute("INSERT INTO %s.redlock_fences (resource, token, passed_at)"
						   " VALUES ($1, 0, $3)"
						   " ON CONFLICT (resource) DO NOTHING",
						   schema, 3, values, false);
			if (SPI_processed > 0)
				new_names_add_row();
		}
		PG_FINALLY();
		{
			raising = false;
		}
		PG_END_TRY();
	}
	if (exclusive > token)
		fail_newer(resource, token, exclusive);
	if (newest_shared(schema, values[0]) < token)
	{
		forget_shared(schema, values[0], token);
		(void) execute("INSERT INTO %s.redlock_shared_fences (resource, token, passed_at)"
					   " VALUES ($1, $2, $3)",
					   schema, 3, values, false);
	}
	SPI_finish();
}

static void
fail_newer(const char *resource, int64 token, int64 newer)
{
	ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					errmsg("a newer holder of redlock \"%.*s\" has passed the fence",
						   (int) permits_name_len(resource, strlen(resource)), resource),
					errdetail("The token of this session is " INT64_FORMAT
							  ", the token of the newer holder is " INT64_FORMAT ".",
							  token, newer),
					errhint("Roll back, and start the work over: the lease of this session has "
							"ended. If every holder gets this error, the nodes have lost counters "
							"that were ahead of the clocks: wait until the clocks have caught up, "
							"or see \"Reset a fence\" in docs/how-to/fence-a-job.md.")));
}

/* Returns false if there is no row yet. */
static bool
lock_shared(const char *schema, Datum resource, int64 *token)
{
	bool null;

	(void) execute("SELECT token FROM %s.redlock_fences"
				   " WHERE resource OPERATOR(pg_catalog.=) $1 FOR SHARE",
				   schema, 1, &resource, false);
	if (SPI_processed == 0)
		return false;
	*token = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	return true;
}

/* Returns the newest shared token, committed or of this transaction; 0: none. */
static int64
newest_shared(const char *schema, Datum resource)
{
	bool null;
	Datum token;

	if (!has_shared_table(schema))
		return 0;
	(void) execute("SELECT pg_catalog.max(token) FROM %s.redlock_shared_fences"
				   " WHERE resource OPERATOR(pg_catalog.=) $1",
				   schema, 1, &resource, true);
	token = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
	return null ? 0 : DatumGetInt64(token);
}

/*
 * A database with the objects of 0.1.0 has no such table, so a role with CREATE on the schema can
 * make one.  Statements on that table would run the role's code with the rights of redlock_fence.
 */
static bool
has_shared_table(const char *schema)
{
	static Oid known = InvalidOid; /* a table of redlock_pg: no later table has this OID */
	const char name[] = "redlock_shared_fences";
	Oid namespace = get_namespace_oid(schema, false);
	Oid table = get_relname_relid(name, namespace);

	if (table != known)
		known = extension_table(name, namespace);
	return OidIsValid(table) && table == known;
}

/*
 * Deletes the shared rows with older tokens, which this token makes useless.  Skips rows that
 * another transaction is deleting.  Deletes nothing under a transaction snapshot: a row deleted
 * since would fail this transaction.
 */
static void
forget_shared(const char *schema, Datum resource, int64 token)
{
	Datum values[] = {resource, Int64GetDatum(token)};

	if (IsolationUsesXactSnapshot())
		return;
	(void) execute("DELETE FROM %1$s.redlock_shared_fences WHERE id OPERATOR(pg_catalog.=) ANY"
				   " (ARRAY(SELECT id FROM %1$s.redlock_shared_fences"
				   " WHERE resource OPERATOR(pg_catalog.=) $1"
				   " AND token OPERATOR(pg_catalog.<) $2 FOR UPDATE SKIP LOCKED))",
				   schema, 2, values, false);
}

/*
 * Executes a statement for shared locks, with $1, $2, $3 of these types.  read_only: under the
 * newest snapshot.
 */
static int
execute(const char *format, const char *schema, int count, Datum *values, bool read_only)
{
	Oid types[] = {TEXTOID, INT8OID, TIMESTAMPTZOID};
	const char *quoted = quote_identifier(schema);
	SPIPlanPtr once = SPI_prepare(psprintf(format, quoted), count, types);
	int rc;

	if (once == NULL)
		elog(ERROR, "could not prepare a fence: %s", SPI_result_code_string(SPI_result));
	rc = SPI_execute_snapshot(once, values, NULL, read_only ? GetLatestSnapshot() : InvalidSnapshot,
							  InvalidSnapshot, read_only, true, 0);
	if (rc < 0)
		elog(ERROR, "could not pass a fence: %s", SPI_result_code_string(rc));
	return rc;
}

void
fence_pass(const char *schema, const char *resource)
{
	Oid types[] = {TEXTOID};
	Datum values[1];
	StringInfoData sql;

	SPI_connect();
	values[0] = CStringGetTextDatum(resource);
	initStringInfo(&sql);
	appendStringInfo(&sql, "SELECT %s.redlock_fence($1)", quote_identifier(schema));
	if (SPI_execute_with_args(sql.data, lengthof(types), types, values, NULL, false, 0) !=
		SPI_OK_SELECT)
		elog(ERROR, "could not pass a fence: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
}

Datum
fence_merge(TriggerData *trigger)
{
	HeapTuple row =
		TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple;
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	Datum values[3];
	bool null = false;
	int i;

	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		SPI_gettypeid(desc, 1) != TEXTOID || SPI_gettypeid(desc, 2) != INT8OID ||
		SPI_gettypeid(desc, 3) != TIMESTAMPTZOID)
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("redlock_fence_merge is for the rows of redlock_fences only")));
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		return PointerGetDatum(NULL);
	for (i = 0; i < 3 && !null; i++)
		values[i] = SPI_getbinval(row, desc, i + 1, &null);
	if (raising || null)
		return PointerGetDatum(row);
	SPI_connect();
	raise_token(get_namespace_name(RelationGetNamespace(trigger->tg_relation)), values[0],
				values[1], values[2], false);
	SPI_finish();
	return PointerGetDatum(NULL);
}

Datum
fence_merge_shared(TriggerData *trigger)
{
	HeapTuple row = trigger->tg_trigtuple;
	TupleDesc desc = RelationGetDescr(trigger->tg_relation);
	Datum values[2];
	bool null = false;
	bool newer;
	int i;

	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) || !TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) || SPI_gettypeid(desc, 2) != TEXTOID ||
		SPI_gettypeid(desc, 3) != INT8OID)
		ereport(
			ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg("redlock_shared_fences_merge is for new rows of redlock_shared_fences only")));
	for (i = 0; i < 2 && !null; i++)
		values[i] = SPI_getbinval(row, desc, i + 2, &null);
	if (null)
		return PointerGetDatum(row);
	SPI_connect();
	(void) execute("SELECT FROM %1$s.redlock_fences WHERE resource OPERATOR(pg_catalog.=) $1"
				   " AND token OPERATOR(pg_catalog.>=) $2"
				   " UNION ALL "
				   "SELECT FROM %1$s.redlock_shared_fences"
				   " WHERE resource OPERATOR(pg_catalog.=) $1"
				   " AND token OPERATOR(pg_catalog.>=) $2",
				   get_namespace_name(RelationGetNamespace(trigger->tg_relation)), 2, values, true);
	newer = SPI_processed == 0;
	SPI_finish();
	return PointerGetDatum(newer ? row : NULL);
}

/*
 * Returns whether the row was written.  The row is not written over a newer token, nor over the
 * same token, unless the holder passes now, or the new row passed later.
 */
static bool
raise_token(const char *schema, Datum resource, Datum token, Datum passed_at, bool passes)
{
	Datum values[] = {resource, token, passed_at, BoolGetDatum(passes)};
	bool null;
	int rc = 0;

	if (plan == NULL || strcmp(plan_schema, schema) != 0)
		prepare(schema);
	raising = true;
	PG_TRY();
	{
		rc = SPI_execute_plan(plan, values, NULL, false, 0);
	}
	PG_FINALLY();
	{
		raising = false;
	}
	PG_END_TRY();
	if (rc != SPI_OK_INSERT_RETURNING)
		elog(ERROR, "could not record a fencing token: %s", SPI_result_code_string(rc));
	if (SPI_processed == 0)
		return false;
	if (passes &&
		DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null)))
		new_names_add_row();
	return true;
}

static void
prepare(const char *schema)
{
	Oid types[] = {TEXTOID, INT8OID, TIMESTAMPTZOID, BOOLOID};
	StringInfoData sql;
	SPIPlanPtr made;
	char *made_for;

	if (plan != NULL)
		SPI_freeplan(plan);
	plan = NULL;
	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "INSERT INTO %s.redlock_fences AS f (resource, token, passed_at)"
					 " VALUES ($1, $2, $3)"
					 " ON CONFLICT (resource) DO UPDATE"
					 " SET token = EXCLUDED.token, passed_at = EXCLUDED.passed_at"
					 " WHERE f.token OPERATOR(pg_catalog.<) EXCLUDED.token"
					 " OR f.token OPERATOR(pg_catalog.=) EXCLUDED.token"
					 " AND ($4 OR f.passed_at OPERATOR(pg_catalog.<) EXCLUDED.passed_at)"
					 /*
					  * xmax is 0 in a new row only: an update locks the row first, which sets xmax
					  */
					 " RETURNING xmax OPERATOR(pg_catalog.=) 0",
					 quote_identifier(schema));
	made = SPI_prepare(sql.data, lengthof(types), types);
	if (made == NULL)
		elog(ERROR, "could not prepare a fence: %s", SPI_result_code_string(SPI_result));
	made_for = MemoryContextStrdup(TopMemoryContext, schema);
	if (plan_schema != NULL)
		pfree(plan_schema);
	plan_schema = made_for;
	SPI_keepplan(made);
	plan = made;
}

/* Returns the newer token, for the message. */
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
