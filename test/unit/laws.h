/*
 * laws.h
 *		The laws that hold after each step of a lease.
 *
 * Used by the unit tests and by the simulator, which drive core_step() in their own ways.
 * "invariant 4" and the like are numbers of CONTRIBUTING.md.
 */
#ifndef REDLOCK_LAWS_H
#define REDLOCK_LAWS_H

#include "protocol/core.h"

/* Returns the law that the step from `before` to `after` has broken, or NULL. */
extern const char *laws_broken(const core_lease *before, const core_event *event,
							   const core_lease *after, const core_out *out);

#endif /* REDLOCK_LAWS_H */
