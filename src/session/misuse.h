/*
 * misuse.h
 *		Warnings of calls that are legal, and are hardly what the caller means.
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

/* The level of such a warning: the server log gets the first warning of each kind. */
extern int misuse_level(Misuse misuse);

/* The locks were granted: warn if they end with the statement, or if the snapshot is older. */
extern void misuse_warn_of_scope(const LockRequest *request);

/* The same for a transaction that was attached to a detached lock. */
extern void misuse_warn_of_attaching(const char *name, const DetachedLease *detached);

#endif /* REDLOCK_MISUSE_H */
