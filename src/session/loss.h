/*
 * loss.h
 *		What is said of a lease that was lost.
 */
#ifndef REDLOCK_LOSS_H
#define REDLOCK_LOSS_H

#include "shared/lease.h"

/* Why it was lost, a sentence; palloc'd. */
extern char *loss_reason(Lease *lease);

/* An error, 40001; `when` goes on with "was lost". */
extern void loss_fail(const char *name, Lease *lease, const char *when);

#endif /* REDLOCK_LOSS_H */
