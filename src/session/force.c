/*
 * force.c
 *		Releasing a lock by force; see force.h.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"

#include "protocol/force_release.h"
#include "protocol/permits.h"
#include "protocol/standing.h"
#include "session/encoding.h"
#include "session/force.h"
#include "session/inspect_lock.h"
#include "shared/clock.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/node_status.h"

static void refuse_in_conflict(const LockName *name);
static void force_key(const LockName *name, int permit, InspectAnswer *answer);
REDLOCK_NORETURN static void fail(const LockName *name, const InspectAnswer *answer);
static bool ready_nodes_refuse(const InspectAnswer *answer);

char *
force_release(const LockName *name)
{
	InspectAnswer *answer = inspect_lock(name, true);
	InspectAnswer *of_permit = palloc(sizeof(InspectAnswer));
	Inspection inspection;
	char *holder = NULL;

	inspect_judge(name, answer, &inspection);
	refuse_in_conflict(name);
	if (inspection.witness >= 0)
		holder = inspect_held_by(answer, &inspection);
	/* before: a failure may have released the lock at some nodes */
	ereport(LOG, (errmsg("redlock \"%s\" is released by force by role \"%s\"", name->name,
						 encoding_of_name(GetUserNameFromId(GetUserId(), false))),
				  errdetail("It is held by: %s.",
							holder != NULL ? encoding_from_utf8(holder) : "nobody")));
	for (int permit = 1; permit <= PERMITS_MAX; permit++)
		if (inspect_has_permit(answer, permit))
			force_key(name, permit, of_permit);
	force_key(name, 0, answer);
	return holder;
}

/*
 * Raises an error if this host may not take locks: the holder's host may have other nodes, and so
 * go on.
 */
static void
refuse_in_conflict(const LockName *name)
{
	HostConflict conflict;

	if (standing_may_take(&lease_table->standing, redlock_clock_us()))
		return;
	host_list_conflict(&conflict);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("redlock \"%s\" is not released by force, since another host may hold the lock "
					"at other nodes",
					name->name),
			 conflict.name[0] != '\0'
				 ? errdetail_internal("%s", conflict.detail)
				 : errdetail("This host is still asking the nodes whether other hosts have the "
							 "same settings."),
			 conflict.name[0] != '\0'
				 ? errhint("Call redlock_force_release on a host that takes locks. Or mend this "
						   "host: %s",
						   conflict.hint)
				 : errhint("Try again.")));
}

/* Releases the lock itself, or one of its permits.  permit 0: the lock, as `answer` tells it. */
static void
force_key(const LockName *name, int permit, InspectAnswer *answer)
{
	InspectQuestion question = {.kind = INSPECT_LOCK, .for_operator = true};
	ForceRelease force;
	ForceVerdict verdict;

	inspect_set_key(&question, name, permit);
	if (permit != 0)
		inspect_key(name, &question, answer);
	force_begin(&force, answer->lists, answer->node, permit != 0, redlock_wall_clock_us(),
				pg_prng_uint64(&pg_global_prng_state));
	question.kind = INSPECT_FORCE;
	do
	{
		question.least = force.least;
		question.value_len = force.value_len;
		memcpy(question.value, force.value, force.value_len);
		inspect_key(name, &question, answer);
		verdict = force_judge(&force, answer->lists, answer->node);
	} while (verdict == FORCE_AGAIN);
	if (verdict == FORCE_FAILED)
		fail(name, answer);
}

static void
fail(const LockName *name, const InspectAnswer *answer)
{
	char *text = inspect_faults(answer);

	ereport(
		ERROR,
		(errcode(ERRCODE_CONNECTION_FAILURE),
		 errmsg("redlock \"%s\" is not released at a quorum of nodes", name->name),
		 text[0] != '\0'
			 ? errdetail("The key may remain at: %s.", text)
			 : errdetail("Sessions acquired or renewed the lock during the call, or nodes "
						 "lost their data. The holder may have lost the lock."),
		 text[0] != '\0' && ready_nodes_refuse(answer)
			 ? errhint("These nodes are ready, and refuse again until the reason is mended: see "
					   "docs/reference/errors.md. If the counter of the lock is wrong, end the "
					   "holder's work, delete the counter at these nodes, and call again.")
		 : text[0] != '\0'
			 ? errhint("Call redlock_force_release again when redlock_nodes shows these nodes "
					   "ready. The other nodes have deleted the holder's key.")
			 : errhint("Call redlock_holder. If a holder is left, call redlock_force_release "
					   "again.")));
}

/* Are all nodes that did not release the lock ready, and answered with an error? */
static bool
ready_nodes_refuse(const InspectAnswer *answer)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus status;

		if (inspect_fault(answer, i) != NULL &&
			(answer->node[i].kind != INSPECTED_ERROR || !node_status_copy(i, &status) ||
			 strcmp(status.state, "ready") != 0))
			return false;
	}
	return true;
}
