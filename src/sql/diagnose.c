/*
 * diagnose.c
 *		redlock_diagnose: faults of this installation in words, and what to do.
 *
 * Each check has one subject.  A check reads shared memory, settings and the catalog, and never
 * fails: the function is called when things are broken.  The list of hosts alone needs the broker,
 * and is asked for once, with little patience.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "session/encoding.h"
#include "session/extension.h"
#include "session/grants.h"
#include "session/request.h"
#include "session/session.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/new_names.h"
#include "sql/diagnose_internal.h"

/* How long the broker may take for the list of hosts. */
#define PATIENCE_US (4 * redlock_node_timeout_ms * INT64CONST(1000))

/* A warning when the lease table is this full. */
#define ROOM_WARN_PERCENT 80

typedef struct Finding
{
	const char *subject;
	const char *finding;
	const char *remedy; /* NULL: none is needed */
} Finding;

/* The needs of a check. */
typedef enum Needs
{
	NOTHING,
	PRELOAD, /* shared memory */
	BROKER   /* a running broker: without a broker, the state of the nodes is stale */
} Needs;

/* 15 declares functions that SQL calls without PGDLLEXPORT */
#pragma GCC visibility push(default)
PG_FUNCTION_INFO_V1(redlock_diagnose);
#pragma GCC visibility pop

static void look(Diagnosis *diagnosis);
static bool is_there(const Diagnosis *diagnosis, Needs needs);
static void put_row(ReturnSetInfo *rsinfo, Severity severity, const Finding *finding);
static const char *check_preload(Diagnosis *diagnosis);
static const char *check_extension(Diagnosis *diagnosis);
static char *extension_version(void);
static bool is_older(const char *version, const char *than);
static const char *check_settings(Diagnosis *diagnosis);
static const char *check_broker(Diagnosis *diagnosis);
static const char *check_room(Diagnosis *diagnosis);
static const char *check_new_names(Diagnosis *diagnosis);
static const char *check_grants(Diagnosis *diagnosis);
static const char *check_privileges(Diagnosis *diagnosis);
static void look_at_owner(Diagnosis *diagnosis, Oid table, Oid schema, const char *name);
static List *writers(Oid table);
static List *add_writers(List *roles, Oid owner, Datum acl);

static const struct
{
	const char *subject;
	Needs needs;
	DiagnoseCheck check;
} checks[] = {
	{"preload", NOTHING, check_preload},
	{"extension", NOTHING, check_extension},
	{"settings", PRELOAD, check_settings},
	{"broker", PRELOAD, check_broker},
	{"lists of nodes", PRELOAD, diagnose_lists},
	{"quorum", BROKER, diagnose_quorum},
	{"nodes", BROKER, diagnose_states},
	{"eviction", BROKER, diagnose_eviction},
	{"memory", BROKER, diagnose_memory},
	{"persistence", BROKER, diagnose_persistence},
	{"clocks", BROKER, diagnose_clocks},
	{"rights", BROKER, diagnose_rights},
	{"versions", BROKER, diagnose_versions},
	{"hosts", BROKER, diagnose_hosts},
	{"names of hosts", BROKER, diagnose_names},
	{"change of nodes", BROKER, diagnose_change},
	{"room", PRELOAD, check_room},
	{"new names", PRELOAD, check_new_names},
	{"grants", PRELOAD, check_grants},
	{"privileges", NOTHING, check_privileges},
};

/* The worst findings come first. */
Datum
redlock_diagnose(PG_FUNCTION_ARGS)
{
	Diagnosis *diagnosis = palloc0(sizeof(Diagnosis));
	ListCell *cell;

	REDLOCK_BEGIN_ROWS(fcinfo);
	look(diagnosis);
	for (int i = 0; i < lengthof(checks); i++)
	{
		const char *checked;

		if (!is_there(diagnosis, checks[i].needs))
			continue;
		diagnosis->subject = checks[i].subject;
		diagnosis->found = false;
		checked = checks[i].check(diagnosis);
		if (!diagnosis->found && checked != NULL)
			diagnose_add(diagnosis, DIAGNOSE_OK, checked, NULL);
	}
	for (int severity = 0; severity < DIAGNOSE_SEVERITIES; severity++)
		foreach (cell, diagnosis->findings[severity])
			put_row((ReturnSetInfo *) fcinfo->resultinfo, severity, lfirst(cell));
	return (Datum) 0;
}

/* Reads the facts that several checks need. */
static void
look(Diagnosis *diagnosis)
{
	if (lease_table == NULL)
		return;
	diagnosis->broker_pid = lease_broker_pid();
	diagnosis->asked = ASK_HOSTS_NO_BROKER;
	if (diagnosis->broker_pid != 0 && redlock_nodes()->count > 0)
		diagnosis->hosts =
			ask_hosts_if_possible(PATIENCE_US, &diagnosis->asked, &diagnosis->list_state);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status_copy(i, &diagnosis->status[i]) &&
			(diagnosis->status[i].now || diagnosis->status[i].next))
			diagnosis->listed |= CORE_BIT(i);
}

static bool
is_there(const Diagnosis *diagnosis, Needs needs)
{
	switch (needs)
	{
		case NOTHING:
			return true;
		case PRELOAD:
			return lease_table != NULL;
		case BROKER:
			return diagnosis->broker_pid != 0;
	}
	return false;
}

void
diagnose_add(Diagnosis *diagnosis, Severity severity, const char *finding, const char *remedy)
{
	Finding *entry = palloc(sizeof(Finding));

	*entry = (Finding){diagnosis->subject, finding, remedy};
	diagnosis->findings[severity] = lappend(diagnosis->findings[severity], entry);
	diagnosis->found = true;
}

static void
put_row(ReturnSetInfo *rsinfo, Severity severity, const Finding *finding)
{
	static const char *const words[] = {
		[DIAGNOSE_ERROR] = "error", [DIAGNOSE_WARNING] = "warning", [DIAGNOSE_OK] = "ok"};
	Datum values[4] = {CStringGetTextDatum(words[severity]), CStringGetTextDatum(finding->subject),
					   CStringGetTextDatum(finding->finding)};
	bool nulls[4] = {false, false, false, finding->remedy == NULL};

	if (finding->remedy != NULL)
		values[3] = CStringGetTextDatum(finding->remedy);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static const char *
check_preload(Diagnosis *diagnosis)
{
	if (lease_table != NULL)
		return "The library " REDLOCK_VERSION " is preloaded.";
	diagnose_add(diagnosis, DIAGNOSE_ERROR,
				 "The library is not preloaded, so no lock can be acquired.", LEASE_PRELOAD_STEP);
	return NULL;
}

static const char *
check_extension(Diagnosis *diagnosis)
{
	char *version = extension_version();

	if (version == NULL)
		return NULL;
	if (strcmp(version, REDLOCK_VERSION) == 0)
		return "The SQL objects of this database have the version of the library.";
	diagnose_add(diagnosis, DIAGNOSE_WARNING,
				 psprintf("The SQL objects of this database have the version %s, and the library "
						  "has the version " REDLOCK_VERSION ".",
						  version),
				 is_older(version, REDLOCK_VERSION)
					 ? "Run ALTER EXTENSION redlock_pg UPDATE in this database."
					 : "Restart the server, which then loads the new library.");
	return NULL;
}

/* Returns the version of the SQL objects in this database; NULL: no extension. */
static char *
extension_version(void)
{
	Relation relation = table_open(ExtensionRelationId, AccessShareLock);
	char *version = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("redlock_pg"));
	scan = systable_beginscan(relation, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool null;
		Datum value =
			heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(relation), &null);

		version = null ? NULL : TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return version;
}

/* Compares versions of the form 1.2.3. */
static bool
is_older(const char *version, const char *than)
{
	int one[3] = {0};
	int other[3] = {0};

	(void) sscanf(version, "%d.%d.%d", &one[0], &one[1], &one[2]);
	(void) sscanf(than, "%d.%d.%d", &other[0], &other[1], &other[2]);
	for (int i = 0; i < 3; i++)
		if (one[i] != other[i])
			return one[i] < other[i];
	return false;
}

static const char *
check_settings(Diagnosis *diagnosis)
{
	if (redlock_ttl_ms > redlock_max_ttl_ms)
		diagnose_add(
			diagnosis, DIAGNOSE_ERROR,
			psprintf("redlock.ttl, %d ms, is longer than redlock.max_ttl, %d ms: calls that "
					 "name no ttl fail.",
					 redlock_ttl_ms, redlock_max_ttl_ms),
			"Lower redlock.ttl of this session, or raise redlock.max_ttl on all hosts.");
	if (redlock_on_disagreement == ON_DISAGREEMENT_WARN)
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 "redlock.on_disagreement is warn: this host takes locks even if another host "
					 "could get the same locks.",
					 "When all hosts have the same nodes, set redlock.on_disagreement to refuse.");
	return "redlock.ttl is within redlock.max_ttl, and this host refuses locks in a conflict.";
}

static const char *
check_broker(Diagnosis *diagnosis)
{
	if (diagnosis->broker_pid == 0)
		diagnose_add(
			diagnosis, DIAGNOSE_ERROR, "No broker runs, so no lock can be acquired or renewed.",
			IsPostmasterEnvironment ? request_advise_no_broker() : "Start the server as usual.");
	else if (diagnosis->asked == ASK_HOSTS_SILENT)
		diagnose_add(diagnosis, DIAGNOSE_ERROR,
					 psprintf("The broker has not answered within %d ms. " REQUEST_BROKER_SILENT,
							  (int) (PATIENCE_US / 1000)),
					 psprintf(REQUEST_BROKER_SILENT_STEP, diagnosis->broker_pid));
	return psprintf("The broker runs, as process %d.", diagnosis->broker_pid);
}

static const char *
check_room(Diagnosis *diagnosis)
{
	int locks;
	int releasing;
	int percent;

	lease_usage(&locks, &releasing);
	percent = (int) (100.0 * locks / lease_table->max_locks);
	if (percent >= ROOM_WARN_PERCENT)
		diagnose_add(diagnosis, locks < lease_table->max_locks ? DIAGNOSE_WARNING : DIAGNOSE_ERROR,
					 psprintf("%d of %d places for locks of this server are taken.", locks,
							  lease_table->max_locks),
					 request_advise_table_full());
	return psprintf("%d of %d places for locks of this server are taken.", locks,
					lease_table->max_locks);
}

static const char *
check_new_names(Diagnosis *diagnosis)
{
	NewNames list[NEW_NAMES_ROLES];
	int count = new_names_list(list);

	for (int i = 0; i < count; i++)
	{
		char *name = GetUserNameFromId(list[i].role, true);

		if (list[i].refused_lately)
			diagnose_add(
				diagnosis, DIAGNOSE_WARNING,
				psprintf("Role \"%s\" was refused new names of locks within the last "
						 "hour, after " INT64_FORMAT " new names.",
						 name != NULL ? encoding_of_name(name) : psprintf("%u", list[i].role),
						 list[i].names),
				NEW_NAMES_STEP);
	}
	return "No role was refused new names of locks within the last hour.";
}

/* Grants and redlock.restrict, each without the other, are mistakes. */
static const char *
check_grants(Diagnosis *diagnosis)
{
	GrantsCount count;
	bool is_there = grants_count(&count);

	if (count.dropped > 0)
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 psprintf("Grants of dropped roles in redlock_grants: %d.", count.dropped),
					 psprintf("Run SELECT %s(role_id::regrole, pattern) FROM %s WHERE role_id NOT "
							  "IN (SELECT oid FROM "
							  "pg_roles).",
							  extension_name("redlock_revoke"), extension_name("redlock_grants")));
	if (count.renamed > 0)
		diagnose_add(
			diagnosis, DIAGNOSE_WARNING,
			psprintf("Grants of renamed roles in redlock_grants, which pg_dump leaves out: "
					 "%d.",
					 count.renamed),
			psprintf("Run SELECT %s(role_id::regrole, pattern) FROM %s WHERE role_id IN (SELECT "
					 "oid FROM "
					 "pg_roles).",
					 extension_name("redlock_grant"), extension_name("redlock_grants")));
	if (redlock_restrict && count.all == 0)
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 is_there ? "redlock.restrict is on, and no role has a grant: only superusers "
								"can acquire locks in this database."
							  : "redlock.restrict is on, and this database has no table "
								"redlock_grants: only superusers can acquire locks.",
					 is_there ? psprintf("Call %s for each role that needs locks.",
										 extension_name("redlock_grant"))
							  : "Run ALTER EXTENSION redlock_pg UPDATE in this database.");
	if (!redlock_restrict && count.all > 0)
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 psprintf("redlock.restrict is off, so each role may lock each name. Grants "
							  "without effect in redlock_grants: %d.",
							  count.all),
					 "Set redlock.restrict = on, in postgresql.conf or for this database.");
	return redlock_restrict
			   ? psprintf("redlock.restrict is on. Grants in redlock_grants: %d.", count.all)
			   : "redlock.restrict is off, and no role has a grant.";
}

/*
 * Sessions write the tables with the rights of the owner.  So a role with TRIGGER on a table can
 * run its code with these rights, and a role that writes a table can change fences and grants.
 */
static const char *
check_privileges(Diagnosis *diagnosis)
{
	static const char *const tables[] = {"redlock_fences", "redlock_shared_fences",
										 "redlock_grants", "redlock_runs"};
	Oid extension = get_extension_oid("redlock_pg", true);
	Oid schema = OidIsValid(extension) ? extension_schema(extension) : InvalidOid;

	for (int i = 0; i < lengthof(tables); i++)
	{
		Oid of = extension_table(tables[i], schema);
		List *roles = writers(of);
		const char *table = extension_name(tables[i]);
		StringInfoData names;
		ListCell *cell;

		look_at_owner(diagnosis, of, schema, table);
		if (roles == NIL)
			continue;
		initStringInfo(&names);
		foreach (cell, roles)
			appendStringInfo(&names, "%s%s", cell == list_head(roles) ? "" : ", ",
							 (char *) lfirst(cell));
		diagnose_add(
			diagnosis, DIAGNOSE_WARNING,
			psprintf("Roles have more privileges on the table %s than SELECT: %s. With TRIGGER, a "
					 "role becomes as powerful as the owner of the table.",
					 table, names.data),
			psprintf("Run REVOKE ALL ON %s FROM %s CASCADE, then GRANT SELECT ON %s TO PUBLIC. "
					 "Look for triggers of other roles on the table.",
					 table, names.data, table));
	}
	return "No role but the owner and superusers has more than SELECT on the tables of redlock_pg.";
}

/* May the owner of a table use the schema?  Sessions write the table with the owner's rights. */
static void
look_at_owner(Diagnosis *diagnosis, Oid table, Oid schema, const char *name)
{
	HeapTuple relation = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	const char *owner;
	const char *in;
	Oid role;

	if (!HeapTupleIsValid(relation))
		return;
	role = ((Form_pg_class) GETSTRUCT(relation))->relowner;
	ReleaseSysCache(relation);
	if (DatumGetBool(DirectFunctionCall3(has_schema_privilege_id_id, ObjectIdGetDatum(role),
										 ObjectIdGetDatum(schema), CStringGetTextDatum("USAGE"))))
		return;
	owner = quote_identifier(GetUserNameFromId(role, false));
	in = quote_identifier(get_namespace_name(schema));
	diagnose_add(diagnosis, DIAGNOSE_ERROR,
				 psprintf("The owner of the table %s, %s, lacks USAGE on the schema %s: calls that "
						  "write the table fail.",
						  name, owner, in),
				 psprintf("Run GRANT USAGE ON SCHEMA %s TO %s.", in, owner));
}

/*
 * Returns the roles with another privilege than SELECT on a table, or on a column, without the
 * owner and superusers, as a statement writes the roles.  Takes no lock on the table.
 */
static List *
writers(Oid table)
{
	HeapTuple relation = SearchSysCache1(RELOID, ObjectIdGetDatum(table));
	List *roles = NIL;
	Oid owner;
	bool null;
	Datum acl;

	if (!HeapTupleIsValid(relation))
		return NIL;
	owner = ((Form_pg_class) GETSTRUCT(relation))->relowner;
	acl = SysCacheGetAttr(RELOID, relation, Anum_pg_class_relacl, &null);
	if (!null)
		roles = add_writers(roles, owner, acl);
	for (int i = 1; i <= ((Form_pg_class) GETSTRUCT(relation))->relnatts; i++)
	{
		HeapTuple column =
			SearchSysCache2(ATTNUM, ObjectIdGetDatum(table), Int16GetDatum((int16) i));

		if (!HeapTupleIsValid(column))
			continue;
		acl = SysCacheGetAttr(ATTNUM, column, Anum_pg_attribute_attacl, &null);
		if (!null)
			roles = add_writers(roles, owner, acl);
		ReleaseSysCache(column);
	}
	ReleaseSysCache(relation);
	return roles;
}

static List *
add_writers(List *roles, Oid owner, Datum acl)
{
	Acl *privileges = DatumGetAclPCopy(acl);
	AclItem *items = ACL_DAT(privileges);

	for (int i = 0; i < ACL_NUM(privileges); i++)
	{
		Oid role = items[i].ai_grantee;
		const char *name = "PUBLIC";
		ListCell *cell;

		if ((ACLITEM_GET_PRIVS(items[i]) & ~ACL_SELECT) == 0 || role == owner)
			continue;
		if (role != ACL_ID_PUBLIC)
		{
			if (superuser_arg(role))
				continue;
			name = GetUserNameFromId(role, true);
			if (name == NULL)
				continue; /* dropped just now */
			name = encoding_of_name(quote_identifier(name));
		}
		foreach (cell, roles)
			if (strcmp(lfirst(cell), name) == 0)
				break;
		if (cell == NULL)
			roles = lappend(roles, pstrdup(name));
	}
	return roles;
}
