/*
 * transaction.c
 *		The effect of a transaction's end, and of the process's end, on the holdings; see
 *		transaction.h.
 *
 *	 PRE_COMMIT			the session enters gates again that pg_advisory_unlock_all took;
 *						then the guard: each lease must still be valid, else 40001; without
 *						effects, leases at session scope need not be.  If the
 *						transaction has effects, fenced calls then record their tokens, and
 *						the guard runs again.  Then no session can release a detached lock
 *						of this transaction, locks of CALLs that have ended enter their gates
 *						at transaction level, and the alarm of losses is held, all until the
 *						transaction has ended
 *	 PRE_PREPARE		an error if the session holds a lock at transaction or call scope, or is
 *						attached to a lock; else gates, guard and alarm as at PRE_COMMIT
 *	 COMMIT, ABORT,		nothing yet: other extensions commit elsewhere in their callbacks for
 *	 PREPARE			these events, which may come later
 *	 BEFORE_LOCKS		locks at transaction scope, and locks of CALLs that have ended, are
 *						released.  This phase comes after the transaction has left the proc
 *						array, and after all callbacks: its effects are visible (or void) before
 *						another session can be granted the lock.  And the phase comes before
 *						PostgreSQL sends changes of the catalogs, and frees tables and gates: a
 *						session of this server waits at the gate for these
 *	 ABORT_SUB			locks that the subtransaction acquired are released
 *	 before_shmem_exit	all locks are released, and a request under way is cancelled
 *
 * Locks at session scope outlive the transaction: redlock_release and DISCARD ALL release them
 * (session.c).  A detached lock belongs to no session, so no event releases a detached lock.
 *
 * No release at one of these events allocates memory, touches a socket or can fail.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "session/effects.h"
#include "session/fence.h"
#include "session/gate.h"
#include "session/loss.h"
#include "session/loss_alarm.h"
#include "session/permit_queue.h"
#include "session/transaction.h"
#include "shared/guc.h"
#include "shared/run_report.h"

/* How long a commit tries to get gates back that were taken from the session. */
#define GATE_TRIES 100
#define GATE_PAUSE_US 1000

static char *released_lost = NULL; /* lock whose lost lease was released in this transaction, */
static char *released_reason;      /* ... and why it was lost */

static bool guarded = false;    /* the guard has seen this commit with effects */
static bool call_ended = false; /* some ended_count is not zero */
static bool ended = false;      /* the transaction has ended, and still has resources */

static void on_xact(XactEvent event, void *arg);
static bool record_fences(void);
static void guard_commit(bool effects);
static void begin_commits(void);
static void refuse_lost(void);
static void restore_gates(void);
static void keep_gates(void);
static void refuse_prepare(void);
static void on_release(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg);
static void end_transaction(void);
static void on_subxact(SubXactEvent event, SubTransactionId mine, SubTransactionId parent,
					   void *arg);
static void end_subxact(SubTransactionId subid);
static void keep_subxact(SubTransactionId subid, SubTransactionId parent);
static void release_at_exit(int code, Datum arg);

void
transaction_set_up(void)
{
	RegisterSubXactCallback(on_subxact, NULL);
	RegisterResourceReleaseCallback(on_release, NULL);
	effects_watch(refuse_lost, on_xact);
	before_shmem_exit(release_at_exit, (Datum) 0);
}

void
transaction_note_lost(const Holding *holding)
{
	MemoryContext context;

	if (released_lost != NULL || !IsTransactionState())
		return;
	context = MemoryContextSwitchTo(TopTransactionContext);
	released_reason = holding_reason(holding);
	released_lost = pstrdup(holding->name);
	MemoryContextSwitchTo(context);
}

/*
 * The last transaction of the CALL or DO has not ended: its commit or abort releases the locks of
 * call scope.
 */
void
transaction_end_call(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		call_ended = call_ended || holding->call_count > 0;
		holding->ended_count += holding->call_count;
		holding->call_count = 0;
	}
}

/*
 * Transactions
 */

/*
 * PostgreSQL may call this several times at one event, since it may be registered several times
 * (effects.c).  The first call comes before other extensions commit elsewhere.  If the callbacks of
 * other extensions have the first effects, a later call guards the commit again.
 */
static void
on_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			/* PostgreSQL removes temporary tables at the exit, after the end of all work */
			if (guarded || proc_exit_inprogress)
				break;
			guarded = effects_are_there();
			restore_gates();
			guard_commit(guarded);
			if (guarded && record_fences())
				guard_commit(true); /* recording may have waited */
			begin_commits();
			keep_gates();
			loss_alarm_hold();
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			restore_gates();
			guard_commit(effects_are_there());
			loss_alarm_hold();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			guarded = false;
			released_lost = NULL;
			effects_end_transaction();
			ended = true;
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/*
 * Records the tokens of fenced calls again, as a transaction with effects commits.  The calls have
 * recorded their tokens before their work (session_fence).  If a newer holder has recorded its
 * token since, raises an error: an older holder cannot commit.  Returns true if there was a token.
 *
 * The user is the user of the call: the committing role may lack rights that the owner of a
 * SECURITY DEFINER function had.  After an error, the abort of the transaction sets the user back.
 */
static bool
record_fences(void)
{
	bool read_only = XactReadOnly;
	bool recorded = false;
	Oid user;
	int context;
	dlist_iter iter;

	GetUserIdAndSecContext(&user, &context);
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->fences == NULL)
			continue;
		PushActiveSnapshot(GetTransactionSnapshot()); /* none may be active */
		XactReadOnly = false; /* read-only mode may have been set after the transaction wrote */
		SetUserIdAndSecContext(holding->fenced_by, context | SECURITY_LOCAL_USERID_CHANGE);
		fence_pass(holding->fences, holding->name);
		SetUserIdAndSecContext(user, context);
		XactReadOnly = read_only;
		PopActiveSnapshot();
		recorded = true;
	}
	return recorded;
}

/*
 * Raises an error if a lease is lost or about to end.  A transaction without effects does not fail
 * because of a session-scope lease: the session must be able to look around, and to release the
 * lease.  A transaction without effects and without a snapshot has no work at all: with such a
 * transaction a CALL ends whose procedure has committed.
 */
static void
guard_commit(bool effects)
{
	dlist_iter iter;

	if (effects && released_lost != NULL)
		loss_fail(released_lost, released_reason, " before the commit");
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->xact_holds == NULL && !effects &&
			(holding_lasting(holding) == holding->session_count || !FirstSnapshotSet))
			continue;
		if (holding_is_valid(holding, redlock_commit_margin_ms * INT64CONST(1000)))
			continue;
		if (!holding_is_valid(holding, 0))
			holding_fail_lost(holding, " before the commit");
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lease on redlock \"%s\" might end during the commit", holding->name),
				 errdetail("The lease is valid for less than redlock.commit_margin, %d ms.",
						   redlock_commit_margin_ms),
				 errhint("Start the work over. Use a longer ttl for more time.")));
	}
}

/* From now on a release by token would let another session in before the commit is visible. */
static void
begin_commits(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding->attached || holding->commits)
			continue;
		holding->commits = lease_begin_commit(&holding->detached);
		if (!holding->commits)
			holding_fail_lost(holding, " before the commit");
	}
}

/*
 * Called before a statement with an immediate effect: the guard at the commit would come too late.
 * Raises 40001 if a lease of this session is lost.
 */
static void
refuse_lost(void)
{
	dlist_iter iter;

	if (released_lost != NULL)
		loss_fail(released_lost, released_reason, "");
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding_is_valid(holding, 0))
			holding_fail_lost(holding, "");
	}
}

/*
 * Enters the gates again that pg_advisory_unlock_all took in this transaction.  A waiter that
 * entered a gate in between finds the lease taken, and leaves again at once.
 */
static void
restore_gates(void)
{
	static uint32 complete_era = 1;
	int tries = GATE_TRIES;
	dlist_iter iter;

	if (complete_era == gate_era())
		return;
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		while (holding_lasting(holding) > 0 && !holding_keep_gate(holding))
		{
			if (tries-- == 0)
				return; /* the next commit tries again */
			pg_usleep(GATE_PAUSE_US);
		}
	}
	complete_era = gate_era();
}

/* The end of the transaction leaves these gates only with the table locks. */
static void
keep_gates(void)
{
	dlist_iter iter;

	if (!call_ended)
		return;
	dlist_foreach(iter, &holdings)
	{
		const Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->ended_count > 0 && holding->gate_era == gate_era())
			(void) gate_enter_again(holding->gate, (GateUse){.shared = holding->shared});
	}
}

static void
refuse_prepare(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		const Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->attached)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that is attached to redlock \"%s\"",
							holding->name),
					 errdetail("No session would guard the lock until COMMIT PREPARED."),
					 errhint("Use COMMIT.")));
		if (holding->xact_holds != NULL || holding->ended_count > 0)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("cannot PREPARE a transaction that holds redlock \"%s\" at "
								   "transaction or call scope",
								   holding->name),
							errhint("Acquire the lock at session scope, or use COMMIT.")));
	}
}

/* PostgreSQL calls this for each owner of resources. */
static void
on_release(ResourceReleasePhase phase, bool is_commit, bool is_top_level, void *arg)
{
	if (!ended || !is_top_level || phase != RESOURCE_RELEASE_BEFORE_LOCKS)
		return;
	ended = false;
	end_transaction();
	effects_end_callbacks();
	loss_alarm_resume();
}

static void
end_transaction(void)
{
	dlist_mutable_iter iter;

	if (holdings_xact_holds() > 0 || holdings_fenced() > 0 || call_ended)
		dlist_foreach_modify(iter, &holdings)
		{
			Holding *holding = dlist_container(Holding, link, iter.cur);

			while (holding->xact_holds != NULL)
				holding_drop_xact_hold(holding);
			holding->ended_count = 0;
			if (holding->runs == 0)
				holding_end_fence(holding);
			holding_release(holding);
		}
	call_ended = false;
	Assert(holdings_xact_holds() == 0);
}

/*
 * Subtransactions
 */

static void
on_subxact(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (holdings_xact_holds() == 0)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		end_subxact(mine);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		keep_subxact(mine, parent);
}

static void
end_subxact(SubTransactionId subid)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		XactHold *hold = holding->xact_holds;

		if (hold == NULL || hold->subid != subid)
			continue;
		holding_drop_xact_hold(holding);
		holding_release(holding);
	}
}

static void
keep_subxact(SubTransactionId subid, SubTransactionId parent)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		XactHold *hold = holding->xact_holds;

		if (hold == NULL || hold->subid != subid)
			continue;
		if (hold->next != NULL && hold->next->subid == parent)
			holding_drop_xact_hold(holding);
		else
			hold->subid = parent;
	}
}

/*
 * The end of the process
 */

/*
 * Runs before the abort of an open transaction, or after: PostgreSQL aborts the transaction before
 * this call if the session has temporary tables that are younger than its first lock.  The
 * transaction cannot commit any more, so its effects will never be visible.
 *
 * From 17 on, transaction_timeout ends a session that still stands in the queue of a lock.  The
 * session leaves the queue first: another session would hand a lease over to this waiter.
 */
static void
release_at_exit(int code, Datum arg)
{
	LockErrorCleanup();
	permit_queue_cancel();
	request_cancel();
	lease_leave_gates();
	run_report_end_session();
	holdings_end_all();
}
