/*
 * detached.c
 *		Detached leases, for the sessions that know their tokens; see detached.h.
 *
 * A token is close to the time of the grant, so a stranger can guess a token, and the view
 * redlock_locks shows tokens.  A token only names the lease; the role protects the lease.  So the
 * role is checked first, and a caller without the role's privileges learns nothing of the token.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/acl.h"
#include "utils/timestamp.h"

#include "session/detached.h"
#include "session/encoding.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/wait_events.h"

/* How often a session looks whether the nodes have renewed a lease. */
#define RENEWED_CHECK_MS 2

static void fail_denied(const LockName *name, const char *role);
static void fail_not_found(const LockName *name, const char *detail);

void
detached_find(const LockName *name, int64 token, DetachedLease *found)
{
	if (!lease_find_detached(name->hash, name->utf8, name->utf8_len, found))
		fail_not_found(name, "This server has no detached lock of this name.");
	if (!has_privs_of_role(GetUserId(), found->role))
		fail_denied(name, GetUserNameFromId(found->role, true));
	if (found->token != token)
		fail_not_found(name, "The detached lock of this name has another token.");
}

/* role: NULL if dropped. */
static void
fail_denied(const LockName *name, const char *role)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
		 errmsg("permission denied for redlock \"%s\"", name->name),
		 role != NULL
			 ? errdetail("The detached lock belongs to role \"%s\".", encoding_of_name(role))
			 : errdetail("The detached lock belongs to a dropped role."),
		 role != NULL
			 ? errhint(
				   "Call the function as that role, or as a role with the privileges of that role.")
			 : errhint("Call the function as a superuser.")));
}

static void
fail_not_found(const LockName *name, const char *detail)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("no detached redlock \"%s\" has this token", name->name),
					errdetail_internal("%s", detail),
					errhint("Check the token, and whether this server acquired the lock; see the "
							"view redlock_locks. If both are right, the lock has ended: by a "
							"release, by its hold_at_most, or by a loss, as at a restart of the "
							"server. Then start the work over.")));
}

void
detached_fail_ended(const LockName *name)
{
	fail_not_found(name, "The lock has just ended.");
}

int64
detached_check(const LockName *name, int64 token)
{
	DetachedLease detached;
	int64 validity_us;

	detached_find(name, token, &detached);
	validity_us = lease_detached_validity_us(&detached);
	if (validity_us == 0)
		detached_fail_ended(name);
	return validity_us;
}

/*
 * The broker does not renew a lease beyond its limit, so a lease near its limit may have little
 * validity left.  A caller that was told of a later limit must not find the lease lost.  So if less
 * than half a ttl is left, this function waits for a renewal.
 */
TimestampTz
detached_prolong(const LockName *name, int64 token, int64 hold_at_most_us)
{
	DetachedLease detached;
	int64 granted_until_us;
	int64 ended_us;
	int64 until_us;

	detached_find(name, token, &detached);
	granted_until_us = (int64) pg_atomic_read_u64(&detached.lease->granted_until_us);
	ended_us = (int64) pg_atomic_read_u64(&detached.lease->hold_until_us);
	until_us = lease_prolong(&detached, hold_at_most_us);
	if (until_us == 0)
		detached_fail_ended(name);
	while (until_us > ended_us && until_us > granted_until_us &&
		   (int64) pg_atomic_read_u64(&detached.lease->granted_until_us) == granted_until_us)
	{
		int64 left_us = lease_detached_validity_us(&detached);

		if (left_us == 0)
			detached_fail_ended(name);
		if (left_us > detached.lease->ttl_ms * INT64CONST(1000) / 2)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, RENEWED_CHECK_MS,
						 wait_event(WAITS_FOR_RENEWAL));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (lease_detached_validity_us(&detached) == 0)
		detached_fail_ended(name);
	return GetCurrentTimestamp() + until_us - redlock_clock_us();
}

char *
detached_reason(const DetachedLease *detached)
{
	char *nodes = lease_detached_missing_nodes(detached);

	if (nodes[0] == '\0')
		return pstrdup("The lock was released by its token, its hold_at_most ended, or the broker "
					   "did not renew the lease in time.");
	return psprintf("No quorum of nodes renewed the lease in time: %s.", nodes);
}

/*
 * The end of a session does not release detached locks, so the limit of a session is here the limit
 * of a role on this server.
 */
void
detached_check_limit(int more, int held)
{
	if (held + more <= redlock_max_locks_per_session)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("role \"%s\" holds too many detached redlocks on this server",
					encoding_of_name(GetUserNameFromId(GetUserId(), false))),
			 errdetail("The role holds %d and asks for %d more; the limit of "
					   "redlock.max_locks_per_session is %d.",
					   held, more, redlock_max_locks_per_session),
			 errhint("Release some by redlock_release(resource, token); the view redlock_locks has "
					 "the tokens. Or let a superuser raise redlock.max_locks_per_session.")));
}
