/*
 * transaction.c
 *		What the end of a transaction, or of this process, does to the holdings; see
 *		transaction.h.
 *
 *	 PRE_COMMIT			the session enters gates again that pg_advisory_unlock_all took;
 *						then the guard: each lease must still be valid, else 40001; then
 *						fenced calls record their tokens
 *	 PRE_PREPARE		an error if the session holds a lock at transaction or call scope, or is
 *						attached to a lock
 *	 COMMIT, ABORT		locks at transaction scope, and locks of CALLs that have ended, are
 *						released.  Both events come after the transaction has left the proc
 *						array: its effects are visible (or void) before another session can be
 *						granted the lock.  And both come before PostgreSQL frees the gate
 *	 ABORT_SUB			locks that the subtransaction acquired are released
 *	 before_shmem_exit	all locks are released, and a request under way is cancelled
 *
 * Locks at session scope outlive the transaction: redlock_release and DISCARD ALL release them
 * (session.c).  A detached lock belongs to no session, so no event releases it.
 *
 * No release at one of these events allocates memory, touches a socket or can fail.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "session/effects.h"
#include "session/fence.h"
#include "session/gate.h"
#include "session/loss.h"
#include "session/permit_queue.h"
#include "session/transaction.h"
#include "shared/guc.h"
#include "shared/run_report.h"

/* How long a commit tries to get gates back that were taken from the session. */
#define GATE_TRIES 100
#define GATE_PAUSE_US 1000

static char *released_lost = NULL; /* lock whose lost lease was released in this transaction, */
static char *released_reason;      /* ... and why it was lost */

static bool guarded = false;    /* this commit, when it had all its effects */
static bool call_ended = false; /* some ended_count is not zero */

static void on_xact(XactEvent event, void *arg);
static bool record_fences(void);
static void guard_commit(bool effects);
static void refuse_lost(void);
static void restore_gates(void);
static void refuse_prepare(void);
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
	effects_watch(refuse_lost, on_xact);
	before_shmem_exit(release_at_exit, (Datum) 0);
}

/* The release must not hide the loss from the commit of what was done before. */
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
 * The outermost CALL or DO has ended, but its last transaction has not: what it
 * holds is released with that one, by commit or abort.
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
 * It may be registered several times (effects.c).  The first to be called comes before other
 * extensions commit elsewhere.  If their callbacks are the first to have effects, a later one
 * looks again.
 */
static void
on_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (guarded)
				break;
			guarded = effects_are_there();
			restore_gates();
			guard_commit(guarded);
			if (guarded && record_fences())
				guard_commit(true); /* it may have waited */
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			restore_gates();
			guard_commit(effects_are_there());
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			guarded = false;
			released_lost = NULL;
			effects_end_transaction();
			end_transaction();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/*
 * A transaction with effects records the token as it commits: a newer holder has recorded its
 * own before its work, so an older holder does not commit.
 */
static bool
record_fences(void)
{
	bool read_only = XactReadOnly;
	bool recorded = false;
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->fences == NULL)
			continue;
		PushActiveSnapshot(GetTransactionSnapshot()); /* that of the portal is gone, or it is */
		XactReadOnly = false; /* it may have been set after the transaction wrote */
		fence_pass(holding->fences, holding->name);
		XactReadOnly = read_only;
		PopActiveSnapshot();
		recorded = true;
	}
	return recorded;
}

/*
 * A lost session-scope lease must not keep a session from looking around and
 * releasing it, so a transaction without effects does not fail.
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

		if (holding->xact_holds == NULL && holding_lasting(holding) == holding->session_count &&
			!effects)
			continue;
		if (holding_is_valid(holding, redlock_commit_margin_ms * INT64CONST(1000)))
			continue;
		if (!holding_is_valid(holding, 0))
			holding_fail_lost(holding, " before the commit");
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lease on redlock \"%s\" might end during the commit", holding->name),
				 errdetail("Less of its validity is left than redlock.commit_margin, %d ms.",
						   redlock_commit_margin_ms),
				 errhint("Start the work over. A longer ttl leaves more time.")));
	}
}

/* Before an effect that the end of the transaction may come too late for. */
static void
refuse_lost(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding_is_valid(holding, 0))
			holding_fail_lost(holding, "");
	}
}

/*
 * Enter again what pg_advisory_unlock_all took in this transaction.  A waiter that
 * came through meanwhile finds the lease taken, and leaves again at once.
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
				return; /* at the next commit, then */
			pg_usleep(GATE_PAUSE_US);
		}
	}
	complete_era = gate_era();
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
					 errdetail("The lock would not be looked after until COMMIT PREPARED."),
					 errhint("Use COMMIT.")));
		if (holding->xact_holds != NULL || holding->ended_count > 0)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("cannot PREPARE a transaction that holds redlock \"%s\" at "
								   "transaction or call scope",
								   holding->name),
							errhint("Acquire it at session scope, or use COMMIT.")));
	}
}

static void
end_transaction(void)
{
	dlist_mutable_iter iter;

	if (holdings_xact_holds() > 0 || call_ended)
		dlist_foreach_modify(iter, &holdings)
		{
			Holding *holding = dlist_container(Holding, link, iter.cur);

			while (holding->xact_holds != NULL)
				holding_drop_xact_hold(holding);
			holding->ended_count = 0;
			if (holding->call_count == 0)
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
 * Runs before the abort of a transaction that is still open; it can't commit
 * any more, so nothing of it will ever be seen.
 */
static void
release_at_exit(int code, Datum arg)
{
	permit_queue_give_up();
	request_give_up();
	lease_leave_gates();
	run_report_end_session();
	holdings_end_all();
}
