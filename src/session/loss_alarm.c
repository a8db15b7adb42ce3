/*
 * loss_alarm.c
 *		The alarm that tells this session of a lost lease; see loss_alarm.h.
 *
 * A timer of this process rings when validity ends, so the session notices a loss also when the
 * broker is stopped or gone.  The alarm does what StatementCancelHandler or die would do, but only
 * in a transaction, or in an idle session: a statement that has committed must not fail.  The error
 * that follows blames the user or an administrator.  On the error's way to the log and the client a
 * hook puts the true reason into it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/backend_status.h"
#include "utils/timestamp.h"

#include "session/gate.h"
#include "session/loss.h"
#include "session/loss_alarm.h"
#include "shared/alarm.h"
#include "shared/clock.h"
#include "shared/guc.h"

static volatile sig_atomic_t loss_error = 0; /* SQLSTATE of the error after a loss, still to come */
static volatile TimestampTz loss_statement;  /* ... in the statement with this start */

static volatile sig_atomic_t held = 0;         /* between loss_alarm_hold and loss_alarm_resume */
static volatile sig_atomic_t rang_in_hold = 0; /* the alarm is not set again */

/* How long the alarm waits for a statement outside of a transaction. */
#define BETWEEN_US INT64CONST(1000000)
static int64 between_since_us = 0; /* 0: the alarm does not wait */

static emit_log_hook_type prev_emit_log = NULL;

/* How often an attached transaction looks whether another process has ended the lease. */
#define ATTACHED_LOOK_US INT64CONST(1000000)

static void set_alarm(void);
static int64 looks_at_us(const Holding *holding);
static void on_alarm(void);
static void signal_loss(void);
static bool find_losses(bool note);
static bool waits_for_statement(void);
static bool is_between(void);
static bool is_idle(void);
static bool is_of_loss(int sqlstate, bool cancels);
static void explain_loss(ErrorData *error);

void
loss_alarm_set_up(void)
{
	alarm_set_up(ALARM_LOSS, on_alarm);
}

void
loss_alarm_watch_errors(void)
{
	prev_emit_log = emit_log_hook;
	emit_log_hook = explain_loss;
}

/* Sets the alarm to the first end of a lease of this session, or to the next look. */
static void
set_alarm(void)
{
	int64 first_us = PG_INT64_MAX;
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding->loss_signalled)
			first_us = Min(first_us, looks_at_us(holding));
	}
	if (first_us != PG_INT64_MAX)
		alarm_at(ALARM_LOSS, first_us);
}

/*
 * Returns when to look at this lease next: when its validity ends.  The broker wakes no session for
 * a detached lease, so an attached transaction looks more often.
 */
static int64
looks_at_us(const Holding *holding)
{
	int64 end_us = lease_valid_until_us(holding->lease);

	return holding->attached ? Min(end_us, redlock_clock_us() + ATTACHED_LOOK_US) : end_us;
}

/*
 * Usually the alarm is already set for an earlier lease, which may have been released since: then
 * the alarm rings in vain, once in a ttl.
 */
void
loss_alarm_set_for(const Holding *holding)
{
	int64 at_us = looks_at_us(holding);

	if (at_us < alarm_due_us(ALARM_LOSS))
		alarm_at(ALARM_LOSS, at_us);
}

void
loss_alarm_hold(void)
{
	held = 1;
	if (loss_error != 0)
		CHECK_FOR_INTERRUPTS();
}

void
loss_alarm_resume(void)
{
	held = 0;
	if (rang_in_hold)
	{
		rang_in_hold = 0;
		set_alarm();
	}
}

/*
 * In the signal handler: a validity ends now, or the broker has noticed a loss.  Usually the broker
 * has renewed the lease, and the alarm is set again.
 */
static void
on_alarm(void)
{
	bool lost;

	if (proc_exit_inprogress)
		return;
	if (held)
	{
		rang_in_hold = 1;
		return;
	}
	lost = !holdings_are_changing() && find_losses(false);
	if (holdings_are_changing() || (lost && waits_for_statement()))
	{
		alarm_at(ALARM_LOSS, redlock_clock_us() + 1000);
		return;
	}
	if (lost)
	{
		(void) find_losses(true);
		signal_loss();
	}
	between_since_us = 0;
	set_alarm();
}

/* Is a lease lost without a signal?  With `note`, all such leases count as signalled now. */
static bool
find_losses(bool note)
{
	bool found = false;
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->loss_signalled || holding_is_valid(holding, 0))
			continue;
		found = true;
		holding->loss_signalled = note;
	}
	return found;
}

/*
 * Outside of a transaction the end of the statement, or the begin of a transaction, is near.  But
 * after an error in a pipeline, the session may wait for the client.
 */
static bool
waits_for_statement(void)
{
	int64 now_us = redlock_clock_us();

	if (!is_between())
		return false;
	if (between_since_us == 0)
		between_since_us = now_us;
	return now_us - between_since_us < BETWEEN_US;
}

/* Does what StatementCancelHandler or die does.  Async-signal-safe. */
static void
signal_loss(void)
{
	if (redlock_on_loss == ON_LOSS_ERROR ||
		(redlock_on_loss == ON_LOSS_CANCEL && (is_idle() || is_between())))
		return;
	gate_give_way();
	loss_statement = GetCurrentStatementStartTimestamp();
	if (redlock_on_loss == ON_LOSS_TERMINATE)
	{
		loss_error = ERRCODE_ADMIN_SHUTDOWN;
		ProcDiePending = true;
	}
	else
	{
		loss_error = ERRCODE_QUERY_CANCELED;
		QueryCancelPending = true;
	}
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* Does a statement run outside of a transaction?  An ending subtransaction is inside. */
static bool
is_between(void)
{
	return !IsTransactionState() && GetCurrentTransactionNestLevel() <= 1 && !is_idle();
}

/*
 * Does the session run no statement?  PostgreSQL ignores a cancel of an idle session.  But a
 * statement may have arrived while PostgreSQL reads its configuration: the error of this statement
 * would blame a user.  A process that reports no state counts as idle outside of transactions.
 */
static bool
is_idle(void)
{
	if (MyBackendType != B_BACKEND || MyBEEntry->st_state == STATE_DISABLED)
		return !IsTransactionOrTransactionBlock() || IsAbortedTransactionBlockState();
	return MyBEEntry->st_state == STATE_IDLE || MyBEEntry->st_state == STATE_IDLEINTRANSACTION ||
		   MyBEEntry->st_state == STATE_IDLEINTRANSACTION_ABORTED;
}

static bool
is_of_loss(int sqlstate, bool cancels)
{
	return loss_error != 0 && sqlstate == loss_error &&
		   (!cancels || loss_statement == GetCurrentStatementStartTimestamp());
}

bool
loss_alarm_cancelled(void)
{
	return is_of_loss(geterrcode(), true);
}

/*
 * Hook for an error on its way to the log and the client: writes why the statement was cancelled,
 * or the session ends.  The error's memory context frees the texts.
 */
static void
explain_loss(ErrorData *error)
{
	bool cancels = error->elevel == ERROR;
	bool of_loss = error->elevel >= ERROR && is_of_loss(error->sqlerrcode, cancels);
	const Holding *holding = of_loss ? holding_first_lost() : NULL;

	if (holding != NULL)
	{
		loss_error = 0;
		error->message = loss_message(cancels, holding->name);
		error->detail = holding_reason(holding);
		error->hint = pstrdup(cancels ? LOSS_HINT
									  : "Start the work over in a new session. Another session "
										"may hold the lock by now.");
	}
	if (prev_emit_log)
		prev_emit_log(error);
}
