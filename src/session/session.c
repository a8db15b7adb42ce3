/*
 * session.c
 *		The locks of this session: acquire, release, check; see session.h.
 *
 * holdings.c keeps the table of the session's holdings.  transaction.c releases locks at the end
 * of transactions, and guards commits.  loss_alarm.c tells the session of a loss.
 *
 * A session that never acquires runs one hook of this extension, which looks at the kind of a
 * utility statement.  The first acquire sets up the rest.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "replication/walsender.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/detached.h"
#include "session/effects.h"
#include "session/fence.h"
#include "session/gate.h"
#include "session/holdings.h"
#include "session/loss.h"
#include "session/loss_alarm.h"
#include "session/misuse.h"
#include "session/permit_queue.h"
#include "session/session_internal.h"
#include "session/transaction.h"
#include "shared/guc.h"

static int call_depth = 0;

static ProcessUtility_hook_type next_ProcessUtility = NULL;

static int find_missing(const LockRequest *request, LockName *missing);
static bool ask_and_hold(const LockRequest *ask, const LockRequest *request);
static void fail_held(const Holding *holding);
static void fail_upgrade(const char *name);
static void fail_other_permits(const Holding *holding, int permits);
static void hold_all(const LockRequest *request);
static void detach_all(const LockRequest *request);
static void begin_turn(Lease *lease, TimestampTz granted_at);
static void hold_again(Holding *holding, LockScope scope);
static Holding *take(const LockName *granted, LockScope scope);
static void undo(const LockName *name, LockScope scope, bool counted);
static int64 relied_on(const Holding *holding);
static int64 release_all(bool note_losses);
static bool ends_prepared(const Node *statement);
static void run_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
						ProcessUtilityContext context, ParamListInfo params,
						QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc);

void
session_install_hooks(void)
{
	next_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = run_utility;
}

/* Sets up the session, once.  Set-ups that may fail come before set-ups that must not run twice. */
void
session_start(void)
{
	static bool started = false;

	if (started)
		return;

	loss_alarm_set_up();
	gate_set_up();
	holdings_set_up();
	transaction_set_up();
	loss_alarm_watch_errors();
	started = true;
}

/*
 * Acquiring
 */

bool
session_acquire(const LockRequest *request)
{
	LockName missing[SEVERAL_MAX];
	LockRequest ask = *request;

	session_check_ready();
	if (request->terms.scope == SCOPE_CALL && call_depth <= request->by_call)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock \"%s\" can't be acquired at call scope outside of CALL or DO",
						request->names[0].name),
				 errhint("Call from a procedure or DO, or use the scope \"session\".")));
	session_start();
	ask.names = missing;
	ask.count = find_missing(request, missing);
	if (request->terms.scope != SCOPE_DETACHED)
		holdings_check_limit(ask.count);
	else
		detached_check_limit(ask.count, lease_count_detached(GetUserId()));
	if (ask.count == 0)
		hold_all(request);
	else if (!ask_and_hold(&ask, request))
		return false;
	if (request->terms.scope != SCOPE_DETACHED)
		misuse_warn_of_scope(request);
	return true;
}

/*
 * Fills in the names that this session does not hold yet; returns their number.  Raises an error if
 * the session holds a lock in a way that does not fit the request.
 */
static int
find_missing(const LockRequest *request, LockName *missing)
{
	int count = 0;

	for (int i = 0; i < request->count; i++)
	{
		Holding *holding = holding_find(request->names[i].hash, request->names[i].name);

		for (int j = 0; j < count; j++)
			if (missing[j].hash == request->names[i].hash)
				holding_fail_same_hash(request->names[i].name, missing[j].name);
		if (holding == NULL)
			missing[count++] = request->names[i];
		else if (holding->attached || request->terms.scope == SCOPE_DETACHED)
			fail_held(holding);
		else if (!holding_is_valid(holding, 0))
			holding_fail_lost(holding, "");
		else if (holding->lease->permits != request->permits)
			fail_other_permits(holding, request->permits);
		else if (holding->shared && !request->terms.shared)
			fail_upgrade(holding->name);
	}
	return count;
}

/*
 * Acquires the locks of `ask`, the names that the session does not hold yet, and then holds the
 * whole request.
 */
static bool
ask_and_hold(const LockRequest *ask, const LockRequest *request)
{
	volatile bool granted = false;

	request_log_begin();
	PG_TRY();
	{
		granted = ask->permits > 0 ? permit_queue_acquire(ask) : request_acquire(ask);
		request_log_end(granted);
		if (granted)
			hold_all(request);
	}
	PG_CATCH();
	{
		request_count_failure(ask, geterrcode());
		request_end();
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!granted)
		request_count_failure(ask, ERRCODE_LOCK_NOT_AVAILABLE);
	request_end();
	return granted;
}

void
session_check_ready(void)
{
	if (!IsPostmasterEnvironment)
		request_fail_no_broker(); /* at once: single-user mode never has a broker */
	session_refuse_walsender();
	if (redlock_nodes()->count == 0)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("redlock.nodes is not set"), errhint(SESSION_NODES_STEP)));
}

/* At shutdown the server waits for walsenders after the broker, and the broker waits for locks. */
void
session_refuse_walsender(void)
{
	if (am_walsender)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("redlocks can't be used in a replication connection")));
}

/* A lock belongs to a session or is detached, never both. */
static void
fail_held(const Holding *holding)
{
	if (holding->attached)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("this transaction is attached to redlock \"%s\"", holding->name),
						errdetail("A detached lock can't be acquired before its release."),
						errhint("Remove the call: the transaction relies on the lock already.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("this session holds redlock \"%s\" already", holding->name),
			 errdetail("A lock that a session holds can't be acquired detached."),
			 errhint("Release the lock first, or end the transaction that holds the lock.")));
}

/* Two readers that both upgrade would wait for each other. */
static void
fail_upgrade(const char *name)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("redlock \"%s\", which this session holds in shared mode, can't become "
				"exclusive",
				name),
		 errdetail(
			 "Two readers that both asked for exclusive mode would wait for each other for ever."),
		 errhint(
			 "Release the lock, or end the transaction, and acquire the lock in exclusive mode. "
			 "Then read the protected data again. Or acquire in exclusive mode from the start.")));
}

static void
fail_other_permits(const Holding *holding, int permits)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("this session holds redlock \"%s\" with another number of permits",
						   holding->name),
					errdetail("This session holds the lock with permits => %d, and asks for "
							  "permits => %d; leaving out permits means 1.",
							  Max(holding->lease->permits, 1), Max(permits, 1)),
					errhint("Ask for the same number of permits each time.")));
}

/*
 * Counts the acquisitions of a request whose missing locks have been granted.  All or none: an
 * error undoes the earlier names.
 */
static void
hold_all(const LockRequest *request)
{
	volatile int done = 0;

	if (request->terms.scope == SCOPE_DETACHED)
	{
		detach_all(request);
		return;
	}
	PG_TRY();
	{
		for (; done < request->count; done++)
		{
			const LockName *name = &request->names[done];
			Holding *holding = holding_find(name->hash, name->name);

			if (holding != NULL && !holding_is_valid(holding, 0))
				holding_fail_lost(holding, ""); /* lost while the session waited for other locks */
			if (holding != NULL)
				hold_again(holding, request->terms.scope);
			else
				holding = take(name, request->terms.scope);
			holding_count_up(holding, request->terms.scope);
			loss_alarm_set_for(holding);
			if (request->tokens != NULL)
				request->tokens[done] = holding_token(holding);
		}
	}
	PG_CATCH();
	{
		for (int i = 0; i <= done; i++)
			undo(&request->names[i], request->terms.scope, i < done);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Detaches the granted leases.  Checks the limit of the role again, since other sessions of the
 * role may have detached leases since: the detaching lock admits one session at a time.  Detaches a
 * lease before it leaves the gate, so that the next session in the gate finds the lease.
 *
 * A lease may have ended since its grant: this process may have been stopped, or the server stops.
 * Then the caller must not get the token.  No session would release the other leases, so they are
 * released here.
 */
static void
detach_all(const LockRequest *request)
{
	DetachedLease detached[SEVERAL_MAX];
	TimestampTz granted_at = GetCurrentTimestamp(); /* no wait under the lock */
	int held;
	int ended = -1;

	lease_begin_detaching();
	held = lease_count_detached(GetUserId());
	/* the limit of detached_check_limit, now under the lock: change both */
	if (held + request->count > redlock_max_locks_per_session)
	{
		lease_end_detaching();
		detached_check_limit(request->count, held);
	}
	for (int i = 0; i < request->count; i++)
	{
		uint64 gate;
		Lease *lease = request_take(&gate);

		begin_turn(lease, granted_at);
		if (request->tokens != NULL)
			request->tokens[i] = lease->token;
		lease_detach(lease, &detached[i]);
		gate_leave(gate, (GateUse){0}); /* the gate was entered at transaction level */
	}
	lease_end_detaching();
	for (int i = 0; i < request->count && ended < 0; i++)
		if (lease_detached_validity_us(&detached[i]) == 0)
			ended = i;
	if (ended < 0)
		return;
	for (int i = 0; i < request->count; i++)
		(void) lease_release_detached(&detached[i]);
	loss_fail(request->names[ended].name, detached_reason(&detached[ended]), "");
}

/* Sets time and token of a lease that was granted, handed over or joined. */
static void
begin_turn(Lease *lease, TimestampTz granted_at)
{
	if (lease->handovers == 0 && lease->token == 0)
		lease->since = granted_at != 0 ? granted_at : GetCurrentTimestamp();
	lease->token = lease_token(lease); /* the same token for all readers */
}

/*
 * Enters the gate again for another acquisition.  That fails only after pg_advisory_unlock_all; the
 * session owns the lease anyway.
 */
static void
hold_again(Holding *holding, LockScope scope)
{
	if (scope != SCOPE_TRANSACTION)
		(void) holding_keep_gate(holding);
	else if (!holding_is_of_subxact(holding))
		(void) gate_enter_again(holding->gate, (GateUse){.shared = holding->shared});
}

/* Makes a holding for a granted lease, with no acquisitions counted. */
static Holding *
take(const LockName *granted, LockScope scope)
{
	Holding *holding = holding_enter(granted);

	holding->lease = request_take(&holding->gate);
	holding->shared = holding->lease->shared;
	begin_turn(holding->lease, 0);
	holding->asks = lease_asks(holding->lease);
	holding->gate_era = scope != SCOPE_TRANSACTION ? gate_era() : 0;
	holding_enlist(holding);
	return holding;
}

/*
 * After an error: undoes an acquisition.  The end of the transaction undoes acquisitions at
 * transaction scope.
 */
static void
undo(const LockName *name, LockScope scope, bool counted)
{
	Holding *holding = holding_find(name->hash, name->name);

	if (holding == NULL)
		return;
	if (counted && scope == SCOPE_SESSION)
		holding->session_count--;
	else if (counted && scope == SCOPE_CALL)
		holding->call_count--;
	holding_release(holding);
}

/*
 * Looking and releasing
 */

bool
session_release(uint64 hash, const char *name)
{
	Holding *holding = holding_find(hash, name);
	bool valid;

	if (holding == NULL || holding->attached)
	{
		ereport(misuse_level(MISUSE_NOT_HELD),
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not hold redlock \"%s\"", name),
				 errhint("See the view redlock_locks. Release a detached lock by its token.")));
		return false;
	}
	if (holding_lasting(holding) == 0)
	{
		ereport(misuse_level(MISUSE_TRANSACTION_SCOPE),
				(errcode(ERRCODE_WARNING),
				 errmsg("redlock \"%s\" is held at transaction scope only", name),
				 errhint("Commit or roll back: the end of the transaction releases the lock.")));
		return false;
	}
	valid = holding_is_valid(holding, 0);
	if (holding_lasting(holding) <= relied_on(holding))
	{
		if (!valid)
			holding_fail_lost(holding, "");
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("redlock \"%s\" can't be released while redlock_run relies on it", name),
				 errdetail("The rest of the run would go on without the lock."),
				 errhint("Let the run end: the lock is released with it.")));
	}
	if (!valid)
	{
		loss_warn(name, holding_reason(holding));
		transaction_note_lost(holding);
	}

	if (holding->session_count > 0)
		holding->session_count--;
	else if (holding->call_count > 0)
		holding->call_count--;
	else
		holding->ended_count--;
	holding_release(holding);
	return valid;
}

/*
 * Returns the number of acquisitions that must stay until the runs of redlock_run, and their last
 * transaction, have ended.
 */
static int64
relied_on(const Holding *holding)
{
	return Max(holding->runs, holding->fences != NULL ? 1 : 0);
}

void
session_begin_run(uint64 hash, const char *name)
{
	holding_find(hash, name)->runs++;
}

void
session_end_run(uint64 hash, const char *name)
{
	holding_find(hash, name)->runs--;
}

int64
session_release_all(void)
{
	return release_all(true);
}

/* note_losses: a lost lease fails the commit of the present transaction. */
static int64
release_all(bool note_losses)
{
	dlist_mutable_iter iter;
	int64 released = 0;

	dlist_foreach_modify(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		int64 stays = Min(relied_on(holding), holding->call_count + holding->ended_count);
		int64 count = holding_lasting(holding) - stays;

		if (count == 0)
			continue;
		if (note_losses && !holding_is_valid(holding, 0))
			transaction_note_lost(holding);
		holding->session_count = 0;
		holding->call_count = Min(holding->call_count, stays);
		holding->ended_count = stays - holding->call_count;
		holding_release(holding);
		released += count;
	}
	return released;
}

int64
session_check(uint64 hash, const char *name)
{
	return holding_validity_us(holding_find_valid(hash, name));
}

bool
session_release_wanted(uint64 hash, const char *name)
{
	Holding *holding = holding_find_valid(hash, name);

	return lease_asks(holding->lease) != holding->asks;
}

const char *
session_lost(char **reason)
{
	const Holding *holding = holding_first_lost();

	if (holding == NULL)
		return NULL;
	*reason = holding_reason(holding);
	return holding->name;
}

char *
session_loss_reason(uint64 hash, const char *name)
{
	Holding *holding = holding_find(hash, name);

	return holding != NULL && !holding_is_valid(holding, 0) ? holding_reason(holding) : NULL;
}

int64
session_valid_token(uint64 hash, const char *name)
{
	return holding_token(holding_find_valid(hash, name));
}

char *
session_fenced_name(uint64 hash, const char *name)
{
	const Lease *lease = holding_find_valid(hash, name)->lease;
	int len = strlen(name);
	char *fenced = palloc0(len + PERMITS_SUFFIX_MAX + 1);

	memcpy(fenced, name, len);
	if (lease->permits > 0)
		(void) permits_name(fenced, name, len, permits_number(lease->key, lease->key_len));
	return fenced;
}

bool
session_shares(uint64 hash, const char *name)
{
	Holding *holding = holding_find(hash, name);

	return holding != NULL && holding->shared;
}

int64
session_token(uint64 hash, const char *name)
{
	Holding *holding = holding_find(hash, name);

	return holding != NULL ? holding_token(holding) : 0;
}

void
session_fence(uint64 hash, const char *name, const char *schema)
{
	Holding *holding;

	fence_pass(schema, name);
	holding = holding_find_valid(hash, name);
	holding_fence(holding, schema);
}

/*
 * Statements
 */

static bool
ends_prepared(const Node *statement)
{
	TransactionStmtKind kind = IsA(statement, TransactionStmt)
								   ? ((const TransactionStmt *) statement)->kind
								   : TRANS_STMT_BEGIN;

	return kind == TRANS_STMT_COMMIT_PREPARED || kind == TRANS_STMT_ROLLBACK_PREPARED;
}

/*
 * Counts how deep CALL and DO are nested, and sees DISCARD ALL.  In a session that has taken a
 * lock, also sees statements with effects.  Pushes nothing, so no error path leaves anything
 * behind.
 */
static void
run_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *queryEnv,
			DestReceiver *dest, QueryCompletion *qc)
{
	Node *statement = pstmt->utilityStmt;
	UtilityWrites writes = effects_begin_utility(statement);

	/* the end of this transaction resumes the alarm; in a block the statement is an error */
	if (ends_prepared(statement) && context == PROCESS_UTILITY_TOPLEVEL && !IsTransactionBlock() &&
		!dlist_is_empty(&holdings))
		loss_alarm_hold();

	if (IsA(statement, CallStmt) || IsA(statement, DoStmt))
	{
		call_depth++;
		PG_TRY();
		{
			next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest,
								qc);
		}
		PG_FINALLY();
		{
			if (--call_depth == 0)
			{
				transaction_end_call();
				effects_end_call();
			}
		}
		PG_END_TRY();
		return;
	}

	/* read before the call: pstmt may be gone after it */
	if (IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL)
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		release_all(false); /* the transaction of DISCARD ALL has no other work */
	}
	else
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	if (writes.alone != NIL || writes.parents != NIL)
		effects_end_utility(writes);
}
