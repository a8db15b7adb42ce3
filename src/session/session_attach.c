/*
 * session_attach.c
 *		Detached locks: how a transaction attaches, and how a session releases a lock by token;
 *		see session.h.
 *
 * A detached lease belongs to no session.  An attached transaction has a holding for the lease
 * (holdings.h).  So the commit guard, the alarm and the checks treat the lease like a lease of
 * this session; only the release differs.
 */
#include "postgres.h"

#include "session/detached.h"
#include "session/holdings.h"
#include "session/loss.h"
#include "session/loss_alarm.h"
#include "session/misuse.h"
#include "session/session_internal.h"

static Holding *attach(const LockName *name, const DetachedLease *detached);

void
session_attach(const LockName *name, int64 token)
{
	Holding *holding = holding_find(name->hash, name->name);
	DetachedLease detached;

	session_refuse_walsender(); /* the broker waits for an attached commit, too */
	session_start();
	if (holding != NULL && !holding_is_valid(holding, 0))
		holding_fail_lost(holding, ""); /* even if a new lease of this name is detached by now */
	detached_find(name, token, &detached);
	if (lease_detached_validity_us(&detached) == 0)
		detached_fail_ended(name);
	if (holding == NULL)
	{
		holdings_check_limit(1);
		holding = attach(name, &detached);
	}
	else if (holding_token(holding) != token)
		holding_fail_lost(holding, ""); /* lost just now */
	PG_TRY();
	{
		holding_count_up(holding, SCOPE_TRANSACTION);
	}
	PG_CATCH();
	{
		holding_release(holding);
		PG_RE_THROW();
	}
	PG_END_TRY();
	loss_alarm_set_for(holding);
	misuse_warn_of_attaching(name->name, &detached);
}

static Holding *
attach(const LockName *name, const DetachedLease *detached)
{
	Holding *holding = holding_enter(name);

	holding->lease = detached->lease;
	holding->attached = true;
	holding->detached = *detached;
	holding_enlist(holding);
	return holding;
}

/*
 * Refuses to release a lock to which this transaction is attached, or to which a committing
 * transaction is attached: the writes of the transaction are not yet visible, and the next holder
 * would miss these writes.
 */
bool
session_release_detached(const LockName *name, int64 token)
{
	Holding *holding = holding_find(name->hash, name->name);
	DetachedLease detached;
	bool valid;

	detached_find(name, token, &detached);
	if (holding != NULL && holding->attached && holding->detached.token == token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("redlock \"%s\" can't be released while this transaction is attached to it",
						name->name),
				 errdetail("The next holder would not see the changes of this transaction."),
				 errhint("Commit, then release the lock.")));
	valid = lease_detached_validity_us(&detached) > 0;
	switch (lease_release_detached(&detached))
	{
		case DETACHED_RELEASED:
			break;
		case DETACHED_ENDED:
			detached_fail_ended(name);
			break;
		case DETACHED_COMMITS:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("redlock \"%s\" can't be released while a transaction attached to it "
							"commits",
							name->name),
					 errdetail("The next holder would not see the changes of that transaction."),
					 errhint("Release the lock when that transaction has ended; see "
							 "pg_stat_activity.")));
	}
	if (!valid)
		loss_warn(name->name, detached_reason(&detached));
	return valid;
}
