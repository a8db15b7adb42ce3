/*
 * grants.c
 *		The patterns of names that roles may lock; see grants.h.
 *
 * A session reads the table with a catalog snapshot, as PostgreSQL reads privileges.  So a revoke
 * counts from its commit on, at any isolation level; and the read needs no right on the table, no
 * snapshot of the caller, and no transaction that may write.
 *
 * The session remembers the patterns of the roles as which it runs.  Any change of the table, of a
 * role or of a membership makes it read again: a trigger of the table invalidates the table's
 * relcache entry, in all sessions and on standbys.
 *
 * A grant belongs to the role with its OID: a later role of the same name gains nothing.  The name
 * of the role is for dumps.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "protocol/pattern.h"
#include "session/encoding.h"
#include "session/extension.h"
#include "session/grants.h"
#include "shared/compat.h"
#include "shared/guc.h"

/* Roles whose patterns a session remembers. */
#define ROLES_MAX 8

/* Patterns that an error lists. */
#define LISTED_MAX 10

typedef struct RolePatterns
{
	Oid role;
	uint64 change;         /* value of `changes` before the read */
	MemoryContext context; /* NULL: an empty place */
	List *patterns;        /* of char *, in UTF-8 */
} RolePatterns;

static RolePatterns remembered[ROLES_MAX];
static int next_place = 0;
static uint64 changes = 0; /* of the table, of roles and of memberships */
static Oid table_id = InvalidOid;
static bool watching = false;

static bool may_lock(const List *patterns, const LockName *name);
REDLOCK_NORETURN static void fail_denied(const LockName *name, const List *patterns);
static char *list_of(const List *patterns);
static const List *patterns_of(Oid role);
static RolePatterns *place_of(Oid role);
static void read_patterns(RolePatterns *read);
static Relation open_table(void);
static Oid find_table(void);
static void watch(void);
static void forget_table(Datum arg, Oid relation);
static void forget_roles(Datum arg, int cache, uint32 hash);

void
grants_check(const LockName *names, int count)
{
	const List *patterns;

	if (!redlock_restrict)
		return;
	watch();
	AcceptInvalidationMessages(); /* of a revoke that another session has committed */
	if (superuser())
		return;
	patterns = patterns_of(GetUserId());
	for (int i = 0; i < count; i++)
		if (!may_lock(patterns, &names[i]))
			fail_denied(&names[i], patterns);
}

static bool
may_lock(const List *patterns, const LockName *name)
{
	ListCell *cell;

	foreach (cell, patterns)
		if (pattern_matches(lfirst(cell), name->utf8))
			return true;
	return false;
}

static void
fail_denied(const LockName *name, const List *patterns)
{
	const char *known = GetUserNameFromId(GetUserId(), true);
	const char *role = known != NULL ? encoding_of_name(known) : psprintf("%u", GetUserId());
	char *pattern = palloc(2 * name->utf8_len + 1);

	pattern_of_name(pattern, name->utf8);
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for redlock \"%s\"", name->name),
			 patterns != NIL
				 ? errdetail("redlock.restrict is on, and role \"%s\" may lock only names like %s.",
							 role, list_of(patterns))
				 : errdetail("redlock.restrict is on, and role \"%s\" may lock no name.", role),
			 errhint("Use another name, or let a superuser run: SELECT %s(%s, %s);",
					 extension_name("redlock_grant"), quote_literal_cstr(quote_identifier(role)),
					 quote_literal_cstr(encoding_from_utf8(pattern)))));
}

static char *
list_of(const List *patterns)
{
	StringInfoData text;
	ListCell *cell;

	initStringInfo(&text);
	foreach (cell, patterns)
	{
		int number = foreach_current_index(cell);

		if (number == LISTED_MAX)
		{
			appendStringInfo(&text, ", and %d more", list_length(patterns) - LISTED_MAX);
			break;
		}
		appendStringInfo(&text, "%s%s", number > 0 ? ", " : "",
						 quote_literal_cstr(encoding_from_utf8(lfirst(cell))));
	}
	return text.data;
}

/* The list is good until the next call. */
static const List *
patterns_of(Oid role)
{
	RolePatterns *place = place_of(role);
	RolePatterns read = {.role = role, .change = changes};

	if (place->context != NULL && place->role == role && place->change == changes)
		return place->patterns;
	read.context =
		AllocSetContextCreate(CurrentMemoryContext, "redlock grants", ALLOCSET_SMALL_SIZES);
	read_patterns(&read);
	MemoryContextSetParent(read.context, CacheMemoryContext);
	if (place->context != NULL)
		MemoryContextDelete(place->context);
	*place = read;
	return place->patterns;
}

/* Returns the place with this role; if there is none, the place for it. */
static RolePatterns *
place_of(Oid role)
{
	for (int i = 0; i < ROLES_MAX; i++)
		if (remembered[i].context != NULL && remembered[i].role == role)
			return &remembered[i];
	next_place = (next_place + 1) % ROLES_MAX;
	return &remembered[next_place];
}

/* The patterns of the role, and of the roles whose privileges it has. */
static void
read_patterns(RolePatterns *read)
{
	MemoryContext caller = MemoryContextSwitchTo(read->context);
	Relation table = open_table();
	SysScanDesc scan;
	HeapTuple row;

	if (table == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock.restrict is on, and this database has no table redlock_grants"),
				 errhint("Let a superuser run ALTER EXTENSION redlock_pg UPDATE in this database, "
						 "or turn off redlock.restrict.")));
	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		TupleDesc desc = RelationGetDescr(table);
		bool no_role;
		bool no_pattern;
		Oid role = DatumGetObjectId(heap_getattr(row, GRANTS_ROLE_ID, desc, &no_role));
		Datum value = heap_getattr(row, GRANTS_PATTERN, desc, &no_pattern);
		char *pattern;

		/* a role without a row in pg_authid was dropped while its session lives */
		if (no_role || no_pattern || !has_privs_of_role(read->role, role) ||
			!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
			continue;
		pattern = TextDatumGetCString(value);
		read->patterns =
			lappend(read->patterns, pg_server_to_any(pattern, strlen(pattern), PG_UTF8));
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	MemoryContextSwitchTo(caller);
}

bool
grants_count(GrantsCount *count)
{
	Relation table = open_table();
	SysScanDesc scan;
	HeapTuple row;

	memset(count, 0, sizeof(*count));
	if (table == NULL)
		return false;
	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		TupleDesc desc = RelationGetDescr(table);
		bool null;
		Oid role = DatumGetObjectId(heap_getattr(row, GRANTS_ROLE_ID, desc, &null));
		const char *name = GetUserNameFromId(role, true);
		Datum then = heap_getattr(row, GRANTS_ROLE, desc, &null);

		count->all++;
		if (name == NULL)
			count->dropped++;
		else if (null || strcmp(NameStr(*DatumGetName(then)), name) != 0)
			count->renamed++;
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return true;
}

/* Returns NULL if the database has no table of grants. */
static Relation
open_table(void)
{
	Relation table;

	table_id = find_table();
	table = OidIsValid(table_id) ? try_table_open(table_id, AccessShareLock) : NULL;
	if (table != NULL && !grants_is_table(table))
	{
		table_close(table, AccessShareLock);
		table = NULL;
	}
	return table;
}

static Oid
find_table(void)
{
	Oid extension = get_extension_oid("redlock_pg", true);

	if (!OidIsValid(extension))
		return InvalidOid;
	return extension_table("redlock_grants", extension_schema(extension));
}

bool
grants_is_table(Relation table)
{
	TupleDesc desc = RelationGetDescr(table);

	return table->rd_rel->relkind == RELKIND_RELATION && desc->natts >= GRANTS_ROLE_ID &&
		   TupleDescAttr(desc, GRANTS_ROLE - 1)->atttypid == NAMEOID &&
		   TupleDescAttr(desc, GRANTS_PATTERN - 1)->atttypid == TEXTOID &&
		   TupleDescAttr(desc, GRANTS_ROLE_ID - 1)->atttypid == OIDOID;
}

/* Learns of each change of the table, of roles and of memberships, from now on. */
static void
watch(void)
{
	if (watching)
		return;
	CacheRegisterRelcacheCallback(forget_table, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, forget_roles, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, forget_roles, (Datum) 0);
	/* the owner of a database is a member of pg_database_owner */
	CacheRegisterSyscacheCallback(DATABASEOID, forget_roles, (Datum) 0);
	watching = true;
}

static void
forget_table(Datum arg, Oid relation)
{
	if (!OidIsValid(relation) || relation == table_id)
		changes++;
}

static void
forget_roles(Datum arg, int cache, uint32 hash)
{
	changes++;
}
