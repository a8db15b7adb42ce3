/*
 * loss.h
 *		Messages about a lost lease.
 */
#ifndef REDLOCK_LOSS_H
#define REDLOCK_LOSS_H

#include "shared/lease.h"

/* The hint for a session that goes on. */
#define LOSS_HINT                                                                                  \
	"Roll back, release the lock if it is held at session scope, and start the work over. "        \
	"Another session may hold the lock by now."

/* Returns why the lease was lost: a sentence; palloc'd. */
extern char *loss_reason(Lease *lease);

/* Returns why a statement is cancelled, or else the session terminated; palloc'd. */
extern char *loss_message(bool cancels, const char *name);

/* Raises an error (40001); `when` continues "was lost". */
extern void loss_fail(const char *name, char *reason, const char *when);

/* Raises a warning: the session released a lock whose lease was lost before. */
extern void loss_warn(const char *name, const char *reason);

#endif /* REDLOCK_LOSS_H */
