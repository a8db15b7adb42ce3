/*
 * ask_release.c
 *		Asking the holder of a lock to release the lock; see ask_release.h.
 *
 * The session looks at the lock first: an error, or the line in the log, comes before the ask.
 * Then the broker looks again, and publishes the ask to all hosts with a key of the lock.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "protocol/permits.h"
#include "protocol/value.h"
#include "session/ask_release.h"
#include "session/encoding.h"
#include "session/inspect_lock.h"

static void check_can_hear(const LockName *name, const Value *value, const char *holder);
static void ask_key(const LockName *name, int permit);

char *
ask_release(const LockName *name)
{
	InspectAnswer *answer = inspect_lock(name, true);
	const Inspected *witness;
	Inspection inspection;
	Value value;
	char *holder;

	inspect_judge(name, answer, &inspection);
	if (inspection.state == INSPECTION_UNKNOWN)
		inspect_fail_unknown(name, answer);
	if (inspection.state != INSPECTION_HELD)
		return NULL;
	witness = &answer->node[inspection.witness];
	value_read(&value, witness->value, witness->value_len);
	holder = inspect_held_by(answer, &inspection);
	check_can_hear(name, &value, holder);
	ereport(LOG, (errmsg("the release of redlock \"%s\" is asked for by role \"%s\"", name->name,
						 encoding_of_name(GetUserNameFromId(GetUserId(), false))),
				  errdetail("It is held by: %s.", encoding_from_utf8(holder))));
	if (value.permits == 0)
		ask_key(name, 0);
	for (int permit = 1; permit <= value.permits; permit++)
		if (inspect_has_permit(answer, permit))
			ask_key(name, permit);
	return holder;
}

/* Only a host of redlock_pg gets messages. */
static void
check_can_hear(const LockName *name, const Value *value, const char *holder)
{
	if (!value->ours)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the holder of redlock \"%s\" can't be asked for the release", name->name),
				 errdetail("Another program holds the lock: %s.", encoding_from_utf8(holder)),
				 errhint("End that program's work, or call redlock_force_release.")));
}

/* Asks the holders of the lock itself, or the holder of one permit.  permit 0: the lock. */
static void
ask_key(const LockName *name, int permit)
{
	InspectAnswer *answer = palloc(sizeof(InspectAnswer));
	InspectQuestion question = {.kind = INSPECT_ASK, .for_operator = true};

	inspect_set_key(&question, name, permit);
	inspect_key(name, &question, answer);
	pfree(answer);
}
