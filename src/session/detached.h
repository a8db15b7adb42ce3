/*
 * detached.h
 *		Detached leases, for the sessions that know their tokens.
 */
#ifndef REDLOCK_DETACHED_H
#define REDLOCK_DETACHED_H

#include "datatype/timestamp.h"
#include "session/request.h"

/*
 * The detached lease of this server that has this name and token.  Errors: 55000 there is
 * none, 42501 it belongs to a role whose privileges the caller has not.
 */
extern void detached_find(const LockName *name, int64 token, DetachedLease *found);

/* Validity left in microseconds.  Errors: those of detached_find. */
extern int64 detached_check(const LockName *name, int64 token);

/*
 * It may be held for so long from now, unless it may be held for longer already.  Returns
 * until when.  Errors: those of detached_find.
 */
extern TimestampTz detached_prolong(const LockName *name, int64 token, int64 hold_at_most_us);

/* An error, 55000: it was found, and has ended since. */
extern void detached_fail_ended(const LockName *name);

/* Why a lease that this transaction relies on is not there any more: a sentence; palloc'd. */
extern char *detached_reason(const DetachedLease *detached);

/*
 * An error (53400) if this role, which holds `held` detached locks on this server, would hold too
 * many with so many more.
 */
extern void detached_check_limit(int more, int held);

#endif /* REDLOCK_DETACHED_H */
