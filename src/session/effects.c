/*
 * effects.c
 *		Effects of a transaction; see effects.h.
 *
 * A transaction id shows that a transaction changed this database.  Some effects have no
 * transaction id:
 *
 *	 INSERT, UPDATE, DELETE,	another extension may execute the statement elsewhere
 *	 MERGE, COPY, TRUNCATE
 *	 NOTIFY						gets an id only during the commit
 *	 foreign tables				the remote server has the transaction
 *	 functions in languages		may do anything
 *	 except SQL and PL/pgSQL
 *	 messages outside of transactions, files and programs on the server, ALTER SYSTEM,
 *	 databases, tablespaces, subscriptions, replication slots and origins, setval
 *
 * Three hooks note such effects.  The first acquire of a session sets the hooks, so a backend that
 * takes no lock pays nothing.  The hooks push nothing, so no error path leaves anything behind.
 *
 * The object access hook sees functions: the executor calls the hook when it prepares an
 * expression; CALL, the fast path and simple expressions of PL/pgSQL do the same.  A function in
 * SQL or PL/pgSQL has the effects of its statements, which pass the same hooks.  A STABLE or
 * IMMUTABLE function promises to have no effects.  The hook does not see the functions of triggers,
 * so the executor's hook looks at the triggers of the written tables.
 *
 * postgres_fdw commits the remote transaction in its own PRE_COMMIT callback.  PostgreSQL first
 * calls the callback registered last.  So our callback is registered again after this session's
 * first write by a wrapper.  A COPY to a partitioned table does not tell whether a wrapper wrote.
 * So our callback is registered again after each such COPY.  Older registrations are removed when
 * PostgreSQL has called all callbacks of the transaction: another extension's callback may run
 * statements while PostgreSQL reads the list.  A wrapper may register its callback only at its
 * first row: such a callback may come after ours.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/defrem.h"
#include "commands/proclang.h"
#include "executor/executor.h"
#include "foreign/fdwapi.h"
#include "foreign/foreign.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "session/effects.h"
#include "shared/compat.h"

/* The name of our library in the extension's script. */
#define OUR_LIBRARY "$libdir/redlock_pg"

static void (*refuse_lost)(void) = NULL;
static XactCallback xact_callback = NULL;
static bool noted = false;         /* this transaction has had an effect without an id */
static bool in_call = false;       /* a CALL or DO runs, */
static bool noted_in_call = false; /* ... and may have effects after each commit */

static List *wrappers = NIL;            /* handlers of the wrappers that have begun a write */
static bool callback_due = false;       /* a wrapper may have registered after us */
static intptr_t first_registration = 0; /* our callbacks in PostgreSQL's list, by their argument */
static intptr_t last_registration = 0;

/*
 * Functions without an effect: a repeated call needs no look at the catalog.  The OID gives the
 * place.  Each change of a function empties all places.
 */
#define PLACES 16
static Oid without_effect[PLACES];
static uint64 function_changes = 0;

static ExecutorStart_hook_type next_ExecutorStart = NULL;
static ExecutorEnd_hook_type next_ExecutorEnd = NULL;
static object_access_hook_type next_object_access = NULL;

static void start_statement(QueryDesc *query, int eflags);
static void end_statement(QueryDesc *query);
static bool names_foreign_table(const PlannedStmt *plan);
static void note_triggers(List *results);
static void note_results(QueryDesc *query, List *results);
static bool has_begun(QueryDesc *query, ResultRelInfo *result);
static bool finds_scan(PlanState *state, void *result);
static void access_object(ObjectAccessType access, Oid class, Oid object, int sub, void *arg);
static bool has_effect(Oid function);
static bool look_up_effect(Oid function);
static void forget_functions(Datum arg, int cache, uint32 hash);
static bool builtin_has_effect(Oid function);
static bool is_ours(HeapTuple function);
static bool is_procedural(Oid language);
static void note_at_once(void);
static bool is_other_language(const Node *statement);
static List *foreign_tables(const UtilityWrites *writes);
static void note_wrapper(Oid foreign_table);
static Oid handler_of(Oid foreign_table);
static void register_callback(void);

void
effects_watch(void (*refuse)(void), XactCallback callback)
{
	CacheRegisterSyscacheCallback(PROCOID, forget_functions, (Datum) 0);
	RegisterXactCallback(callback, (void *) last_registration);
	xact_callback = callback;
	refuse_lost = refuse;
	noted = true; /* the hooks did not see what this transaction did before */
	next_ExecutorStart = ExecutorStart_hook ? ExecutorStart_hook : standard_ExecutorStart;
	ExecutorStart_hook = start_statement;
	next_ExecutorEnd = ExecutorEnd_hook ? ExecutorEnd_hook : standard_ExecutorEnd;
	ExecutorEnd_hook = end_statement;
	next_object_access = object_access_hook;
	object_access_hook = access_object;
}

bool
effects_are_there(void)
{
	return noted || TransactionIdIsValid(GetTopTransactionIdIfAny());
}

void
effects_end_transaction(void)
{
	noted = noted_in_call;
}

void
effects_end_call(void)
{
	in_call = noted_in_call = false;
}

/*
 * Statements
 */

/* Not every wrapper can roll back, so a write to a foreign table counts as an effect at once. */
static void
start_statement(QueryDesc *query, int eflags)
{
	const PlannedStmt *plan = query->plannedstmt;
	bool writes = (plan->commandType != CMD_SELECT || plan->hasModifyingCTE) &&
				  (eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0;

	if (writes && names_foreign_table(plan))
		note_at_once();
	next_ExecutorStart(query, eflags);
	if (writes)
		note_triggers(query->estate->es_opened_result_relations);
}

static bool
names_foreign_table(const PlannedStmt *plan)
{
	ListCell *cell;

	foreach (cell, plan->rtable)
		if (lfirst_node(RangeTblEntry, cell)->relkind == RELKIND_FOREIGN_TABLE)
			return true;
	return false;
}

/*
 * Counts each trigger of a written table, even if the statement does not fire the trigger.  Misses
 * the triggers of partitions that the executor opens for single rows.
 */
static void
note_triggers(List *results)
{
	ListCell *cell;

	foreach (cell, results)
	{
		const TriggerDesc *triggers = ((ResultRelInfo *) lfirst(cell))->ri_TrigDesc;

		for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
			if (has_effect(triggers->triggers[i].tgfoid))
				note_at_once();
	}
}

/* Notes the written partitions: the executor routes rows, so partitions are known only now. */
static void
end_statement(QueryDesc *query)
{
	if ((query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE) &&
		(query->estate->es_top_eflags & EXEC_FLAG_EXPLAIN_ONLY) == 0)
	{
		noted = true;
		note_results(query, query->estate->es_opened_result_relations);
		note_results(query, query->estate->es_tuple_routing_result_relations);
	}
	next_ExecutorEnd(query);
	register_callback();
}

static void
note_results(QueryDesc *query, List *results)
{
	ListCell *cell;

	foreach (cell, results)
	{
		ResultRelInfo *result = lfirst(cell);

		if (result->ri_FdwRoutine != NULL && has_begun(query, result))
			note_wrapper(RelationGetRelid(result->ri_RelationDesc));
	}
}

/*
 * Has the wrapper begun to write?  For a statement that runs remotely as a whole, the wrapper
 * begins with the foreign scan.  PostgreSQL may have pruned this scan.
 */
static bool
has_begun(QueryDesc *query, ResultRelInfo *result)
{
	ListCell *cell;

	if (!result->ri_usesFdwDirectModify || finds_scan(query->planstate, result))
		return true;
	foreach (cell, query->estate->es_subplanstates)
		if (finds_scan(lfirst(cell), result))
			return true;
	return false;
}

static bool
finds_scan(PlanState *state, void *result)
{
	if (state == NULL)
		return false;
	if (IsA(state, ForeignScanState) && ((ForeignScanState *) state)->resultRelInfo == result)
		return true;
	return planstate_tree_walker(state, finds_scan, result);
}

/*
 * Functions
 */

static void
access_object(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (next_object_access != NULL)
		next_object_access(access, class, object, sub, arg);
	if (access != OAT_FUNCTION_EXECUTE)
		return;
	if (object == F_PG_NOTIFY)
		noted = true; /* like NOTIFY */
	else if (has_effect(object))
		note_at_once();
}

static bool
has_effect(Oid function)
{
	Oid *place = &without_effect[function % PLACES];
	uint64 changes = function_changes;

	if (function < FirstUnpinnedObjectId)
		return builtin_has_effect(function);
	if (*place == function)
		return false;
	if (look_up_effect(function))
		return true;
	if (changes == function_changes)
		*place = function;
	return false;
}

static bool
look_up_effect(Oid function)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool has;

	if (!HeapTupleIsValid(tuple))
		return false; /* dropped: the call will fail */
	form = (Form_pg_proc) GETSTRUCT(tuple);
	has = form->provolatile == PROVOLATILE_VOLATILE &&
		  (form->prolang == ClanguageId ? !is_ours(tuple) : !is_procedural(form->prolang));
	ReleaseSysCache(tuple);
	return has;
}

static void
forget_functions(Datum arg, int cache, uint32 hash)
{
	memset(without_effect, 0, sizeof(without_effect));
	function_changes++;
}

/* Functions of PostgreSQL that have effects at once. */
static bool
builtin_has_effect(Oid function)
{
	switch (function)
	{
		case F_LO_EXPORT:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_COPY_LOGICAL_REPLICATION_SLOT_NAME_NAME_BOOL_NAME:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME:
		case F_PG_COPY_PHYSICAL_REPLICATION_SLOT_NAME_NAME_BOOL:
		case F_PG_CREATE_LOGICAL_REPLICATION_SLOT:
		case F_PG_CREATE_PHYSICAL_REPLICATION_SLOT:
		case F_PG_DROP_REPLICATION_SLOT:
		case F_PG_LOGICAL_SLOT_GET_BINARY_CHANGES:
		case F_PG_LOGICAL_SLOT_GET_CHANGES:
		case F_PG_REPLICATION_ORIGIN_ADVANCE:
		case F_PG_REPLICATION_SLOT_ADVANCE:
		case F_SETVAL_REGCLASS_INT8:
		case F_SETVAL_REGCLASS_INT8_BOOL:
		case REDLOCK_F_EMIT_MESSAGE_TEXT:
		case REDLOCK_F_EMIT_MESSAGE_BYTEA:
			return true;
	}
	return false;
}

static bool
is_ours(HeapTuple function)
{
	bool null;
	Datum library = SysCacheGetAttr(PROCOID, function, Anum_pg_proc_probin, &null);

	return !null && strcmp(TextDatumGetCString(library), OUR_LIBRARY) == 0;
}

/* The statements of such a function pass the hooks. */
static bool
is_procedural(Oid language)
{
	return language == SQLlanguageId || language == get_language_oid("plpgsql", true);
}

static void
note_at_once(void)
{
	noted = true;
	noted_in_call = noted_in_call || in_call;
	refuse_lost();
}

/*
 * Utility statements
 */

UtilityWrites
effects_begin_utility(Node *statement)
{
	UtilityWrites writes = {0};
	ListCell *cell;
	bool calls = IsA(statement, CallStmt) || IsA(statement, DoStmt);
	bool other_language = calls && is_other_language(statement);

	if (xact_callback == NULL)
	{
		in_call = in_call || calls;
		noted_in_call = noted_in_call || other_language;
		return writes;
	}
	switch (nodeTag(statement))
	{
		case T_NotifyStmt:
			noted = true; /* a rollback undoes NOTIFY, so the guard looks at the commit */
			break;
		case T_AlterSystemStmt:
		case T_CreatedbStmt:
		case T_AlterDatabaseStmt:
		case T_DropdbStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_CreateSubscriptionStmt:
		case T_AlterSubscriptionStmt:
		case T_DropSubscriptionStmt:
			note_at_once(); /* PostgreSQL writes files or calls another server before the commit */
			break;
		case T_CopyStmt:
			if (((CopyStmt *) statement)->is_program ||
				(!((CopyStmt *) statement)->is_from && ((CopyStmt *) statement)->filename != NULL))
				note_at_once();
			if (((CopyStmt *) statement)->is_from)
			{
				Oid relation = RangeVarGetRelid(((CopyStmt *) statement)->relation, NoLock, true);

				noted = true;
				writes.routed = get_rel_relkind(relation) == RELKIND_PARTITIONED_TABLE;
				if (writes.routed)
					writes.parents = list_make1_oid(relation);
				else
					writes.alone = list_make1_oid(relation);
			}
			break;
		case T_TruncateStmt:
			noted = true;
			foreach (cell, ((TruncateStmt *) statement)->relations)
			{
				const RangeVar *name = lfirst_node(RangeVar, cell);
				Oid relation = RangeVarGetRelid(name, NoLock, true);

				if (name->inh)
					writes.parents = lappend_oid(writes.parents, relation);
				else
					writes.alone = lappend_oid(writes.alone, relation);
			}
			break;
		default:
			break;
	}
	if (foreign_tables(&writes) != NIL || (IsA(statement, DoStmt) && other_language))
		note_at_once();
	/* now no error can come before effects_end_call */
	in_call = in_call || calls;
	noted_in_call = noted_in_call || other_language;
	return writes;
}

/*
 * Looks for foreign tables again: others may have attached or dropped partitions while the
 * statement waited for its locks.  The wrappers of a COPY to a partitioned table may have got no
 * row, and may register later.
 */
void
effects_end_utility(UtilityWrites writes)
{
	ListCell *cell;

	foreach (cell, foreign_tables(&writes))
		if (!writes.routed)
			note_wrapper(lfirst_oid(cell));
		else if (!list_member_oid(wrappers, handler_of(lfirst_oid(cell))))
			callback_due = true;
	register_callback();
}

/* PostgreSQL's list begins with the newest. */
void
effects_end_callbacks(void)
{
	for (intptr_t i = last_registration - 1; i >= first_registration; i--)
		UnregisterXactCallback(xact_callback, (void *) i);
	first_registration = last_registration;
}

/* Does the CALL or DO run a language whose statements do not pass the hooks? */
static bool
is_other_language(const Node *statement)
{
	ListCell *cell;

	if (IsA(statement, CallStmt))
		return look_up_effect(((const CallStmt *) statement)->funcexpr->funcid);
	foreach (cell, ((const DoStmt *) statement)->args)
	{
		DefElem *element = lfirst_node(DefElem, cell);

		if (strcmp(element->defname, "language") == 0)
			return strcmp(strVal(element->arg), "plpgsql") != 0;
	}
	return false;
}

/* Without a relation PostgreSQL will raise the error. */
static List *
foreign_tables(const UtilityWrites *writes)
{
	List *all = list_copy(writes->alone);
	List *tables = NIL;
	ListCell *cell;

	foreach (cell, writes->parents)
		if (OidIsValid(lfirst_oid(cell)))
			all = list_concat(all, find_all_inheritors(lfirst_oid(cell), NoLock, NULL));
	foreach (cell, all)
		if (get_rel_relkind(lfirst_oid(cell)) == RELKIND_FOREIGN_TABLE)
			tables = lappend_oid(tables, lfirst_oid(cell));
	return tables;
}

/*
 * Callbacks
 */

static void
note_wrapper(Oid foreign_table)
{
	Oid handler = handler_of(foreign_table);
	MemoryContext context;

	if (list_member_oid(wrappers, handler))
		return;
	context = MemoryContextSwitchTo(TopMemoryContext);
	wrappers = lappend_oid(wrappers, handler);
	MemoryContextSwitchTo(context);
	callback_due = true;
}

/* Does not load the wrapper: PostgreSQL loads no wrapper of a partition without a written row. */
static Oid
handler_of(Oid foreign_table)
{
	ForeignServer *server = GetForeignServer(GetForeignServerIdByRelId(foreign_table));

	return GetForeignDataWrapper(server->fdwid)->fdwhandler;
}

/*
 * Called after a statement: a wrapper that wrote for the first time has registered its callback by
 * now.
 */
static void
register_callback(void)
{
	if (!callback_due)
		return;
	RegisterXactCallback(xact_callback, (void *) ++last_registration);
	callback_due = false;
}
