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
 * May this host leave a list of its two lists, so that the lists `to` are in force?  Not while
 * another host exists that only the list to leave keeps apart from this host.
 *
 * The function announces the step and marks the nodes, so the caller repeats the call until the
 * answer is yes, and then takes the step at once.  since_us: when the step was first requested.
 * back: the step leads back to redlock.nodes, as when the nodes of redlock.nodes_next turn out
 * bad.  If most of the latter are away, their answers are not needed.
 */
extern bool registry_may_leave(core_lists to, bool back, int64 since_us, int64 now_us);

/* Withdraws the announced step. */
extern void registry_stay(void);

/*
 * Keeps marks current, where lists have been marked before: a list that changed without a step
 * gets marks of its own, and each node gets the mark that it lacks.
 */
extern void mark_present_list(int64 now_us);

#endif /* REDLOCK_LEAVING_H */
