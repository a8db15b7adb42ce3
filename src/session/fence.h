/*
 * fence.h
 *		The fence: the newest fencing token of each resource, in a table of the
 *		database whose data the lock protects.
 */
#ifndef REDLOCK_FENCE_H
#define REDLOCK_FENCE_H

#include "commands/trigger.h"

/*
 * Record the token in schema.redlock_fences, in the current transaction.  Waits
 * for a transaction that has recorded one for the same resource and is not over.
 * Errors: 40001 a newer token is recorded, or was committed since the snapshot of
 * this transaction; 25006 the transaction is read-only; 53400 the row is new, and the role brings
 * in too many new names.
 */
extern void fence_record(const char *schema, const char *resource, int64 token);

/*
 * The same for one who shares the lock: waits for an exclusive holder only, and records the
 * token in schema.redlock_shared_fences.
 */
extern void fence_share(const char *schema, const char *resource, int64 token);

/*
 * The one or the other, for the token that this session has, with the rights that its function
 * redlock_fence has.
 */
extern void fence_pass(const char *schema, const char *resource);

/*
 * What becomes of a row that replication brings, in a trigger before it is written:
 * the newest token stays.
 */
extern Datum fence_merge(TriggerData *trigger);

/* ... to redlock_shared_fences: one that says nothing newer is not written. */
extern Datum fence_merge_shared(TriggerData *trigger);

#endif /* REDLOCK_FENCE_H */
