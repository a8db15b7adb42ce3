/*
 * misuse.h
 *		Warnings about legal calls that rarely do what the caller means.
 */
#ifndef REDLOCK_MISUSE_H
#define REDLOCK_MISUSE_H

#include "session/request.h"

typedef enum Misuse
{
	MISUSE_ENDS_AT_ONCE,
	MISUSE_OLD_SNAPSHOT,
	MISUSE_NOT_HELD,
	MISUSE_TRANSACTION_SCOPE
} Misuse;

/* Returns the level of a warning: the server log gets the first warning of each kind. */
extern int misuse_level(Misuse misuse);

/*
 * Called after the grant.  Warns if the locks end with the statement, or if the snapshot is older
 * than the locks.
 */
extern void misuse_warn_of_scope(const LockRequest *request);

/* The same for a transaction that was attached to a detached lock. */
extern void misuse_warn_of_attaching(const char *name, const DetachedLease *detached);

#endif /* REDLOCK_MISUSE_H */
