/*
 * misuse.c
 *		Warnings about legal calls that rarely do what the caller means; see misuse.h.
 *
 * A statement of the client gets at most one such warning.
 */
#include "postgres.h"

#include "access/xact.h"
#include "nodes/params.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "session/misuse.h"

static TimestampTz warned_statement; /* start of the last statement with a warning */

static void warn_of_snapshot(const char *name, const char *hint);
static bool called_by_client(void);

/*
 * The client gets each warning of a misuse.  The server log gets the first warning of each kind in
 * a session: a habit repeats at each call, and logging costs more than the call.
 */
int
misuse_level(Misuse misuse)
{
	static uint32 logged = 0;
	bool again = (logged & (1u << misuse)) != 0;

	logged |= 1u << misuse;
	return again ? WARNING_CLIENT_ONLY : WARNING;
}

void
misuse_warn_of_scope(const LockRequest *request)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();
	bool ends_at_once = called_by_client() && !IsInTransactionBlock(true);

	if (warned_statement == statement)
		return;
	if (ends_at_once && request->terms.scope == SCOPE_TRANSACTION)
	{
		warned_statement = statement;
		ereport(misuse_level(MISUSE_ENDS_AT_ONCE),
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("redlock \"%s\" will be released at the end of this statement",
						request->names[0].name),
				 errhint("Acquire the lock in a transaction block, or at the scope \"session\".")));
	}
	else if ((!ends_at_once || request->terms.scope == SCOPE_CALL) && !request->commits &&
			 IsolationUsesXactSnapshot() && FirstSnapshotSet)
		warn_of_snapshot(request->names[0].name,
						 "Use READ COMMITTED, or acquire the lock before the transaction at the "
						 "scope \"session\".");
}

/* The snapshot was taken after the transaction had begun. */
void
misuse_warn_of_attaching(const char *name, const DetachedLease *detached)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (warned_statement == statement)
		return;
	if (called_by_client() && !IsInTransactionBlock(true))
	{
		warned_statement = statement;
		ereport(misuse_level(MISUSE_ENDS_AT_ONCE),
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("redlock_attach for \"%s\" ends with this statement", name),
				 errhint("Call redlock_attach in a transaction block, before the work.")));
	}
	else if (IsolationUsesXactSnapshot() &&
			 GetCurrentTransactionStartTimestamp() < detached->lease->since)
		warn_of_snapshot(name, "Use READ COMMITTED, or begin the transaction after the grant.");
}

static void
warn_of_snapshot(const char *name, const char *hint)
{
	warned_statement = GetCurrentStatementStartTimestamp();
	ereport(misuse_level(MISUSE_OLD_SNAPSHOT),
			(errcode(ERRCODE_WARNING),
			 errmsg("the transaction's snapshot is older than the grant of redlock \"%s\"", name),
			 errdetail(
				 "Changes that the last holder committed may not be visible to this transaction."),
			 errhint("%s", hint)));
}

/*
 * Is the running call the statement of the client itself?  A function, procedure, trigger, COPY or
 * replication may do more work in the same statement.  Each of these pushes a callback onto the
 * error context stack.  A statement of the client has no callback there, or the callback for its
 * parameters.
 */
static bool
called_by_client(void)
{
	for (ErrorContextCallback *c = error_context_stack; c != NULL; c = c->previous)
		if (c->callback != ParamsErrorCallback)
			return false;
	return true;
}
