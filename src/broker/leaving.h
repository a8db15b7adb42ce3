/*
 * leaving.h
 *		The veto on leaving a list of nodes; announcing and taking a step; marking the list in
 *		force.
 *
 * Used by the registry; the registry_... functions by the broker, through registry.h.
 */
#ifndef REDLOCK_LEAVING_H
#define REDLOCK_LEAVING_H

#include "protocol/core.h"

/*
 * May this host have these lists, and leave the one that they lack?  Not while there is a
 * host that only that one keeps apart from it.  It announces the step, and marks the nodes; so it
 * is to be called again until it says yes, and what it allows is to be done at once.  back: to
 * redlock.nodes as it was, as one does when the nodes of redlock.nodes_next are no good: where most
 * of them are away they need not answer.
 */
extern bool registry_may_leave(core_lists to, bool back, int64 since_us, int64 now_us);

/* No such step is wanted any more. */
extern void registry_stay(void);

/*
 * Where lists have been marked, this host's says so when it has changed in another way, too; and
 * nodes that lack the mark of this list get it.
 */
extern void mark_present_list(int64 now_us);

#endif /* REDLOCK_LEAVING_H */
