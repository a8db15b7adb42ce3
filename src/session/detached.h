/*
 * detached.h
 *		Detached leases, for the sessions that know their tokens.
 */
#ifndef REDLOCK_DETACHED_H
#define REDLOCK_DETACHED_H

#include "datatype/timestamp.h"
#include "session/request.h"

/*
 * Finds the detached lease of this server with this name and token.  Errors: 55000 there is none,
 * 42501 the lease belongs to a role whose privileges the caller lacks.
 */
extern void detached_find(const LockName *name, int64 token, DetachedLease *found);

/* Returns the validity left in microseconds.  Errors: as detached_find. */
extern int64 detached_check(const LockName *name, int64 token);

/*
 * Lets the lease be held until hold_at_most_us from now, unless its limit is later already.
 * Returns the limit.  Errors: as detached_find.
 */
extern TimestampTz detached_prolong(const LockName *name, int64 token, int64 hold_at_most_us);

/* Raises an error (55000): the lease was found, and has ended since. */
extern void detached_fail_ended(const LockName *name);

/*
 * Returns the reason why a lease on which this transaction relies has ended: a sentence; palloc'd.
 */
extern char *detached_reason(const DetachedLease *detached);

/*
 * Raises an error (53400) if this role would hold too many detached locks on this server: `held`
 * now, and `more` in addition.
 */
extern void detached_check_limit(int more, int held);

#endif /* REDLOCK_DETACHED_H */
