/*
 * inspect_lock.h
 *		Asking the nodes what they keep of a lock, without acquiring it.
 */
#ifndef REDLOCK_INSPECT_LOCK_H
#define REDLOCK_INSPECT_LOCK_H

#include "session/request.h"
#include "shared/compat.h"
#include "shared/inspect_queue.h"

/*
 * Returns the answers of the nodes; palloc'd.  The caller has called session_check_ready.
 * for_operator: see InspectQuestion.  Raises an error (55000) if the broker does not ask the nodes,
 * if other sessions have all places, or if no list of nodes is in force.
 */
extern InspectAnswer *inspect_lock(const LockName *name, bool for_operator);

/*
 * Asks about a key, or sends the order of `question`.  The caller fills in the fields for a forced
 * release.  Errors: as above; name: for their texts.
 */
extern void inspect_key(const LockName *name, InspectQuestion *question, InspectAnswer *answer);

/*
 * Asks the next question of a list.  The caller has the list's place.  The result is in shared
 * memory until the next question.  Errors: as above.
 */
extern const InspectAnswer *inspect_for_list(const LockName *prefix,
											 const InspectQuestion *question, int place);

/* At the end of a process, or after an error: leaves the place in *place, if not -1. */
extern void inspect_leave(int code, Datum place);

/* Sets the key of `question` to the key of the lock (permit 0), or of a permit. */
extern void inspect_set_key(InspectQuestion *question, const LockName *name, int permit);

/* Does a node tell that this permit is taken? */
extern bool inspect_has_permit(const InspectAnswer *answer, int permit);

/*
 * Returns the description of the holder in the value that the inspection shows, or the value of a
 * plain client; palloc'd, in UTF-8.
 */
extern char *inspect_held_by(const InspectAnswer *answer, const Inspection *inspection);

/*
 * Judges the answers.  In a conflict that stops this host, a free lock is unknown.  Raises an error
 * (08006) if less than a quorum answered.
 */
extern void inspect_judge(const LockName *name, const InspectAnswer *answer,
						  Inspection *inspection);

/* Raises an error (08006): nodes without a usable answer, or other nodes, decide. */
REDLOCK_NORETURN extern void inspect_fail_unknown(const LockName *name,
												  const InspectAnswer *answer);

#endif /* REDLOCK_INSPECT_LOCK_H */
