/*
 * fence.h
 *		The fence: a table with the newest fencing token of each resource, in the database whose
 *		data the lock protects.
 */
#ifndef REDLOCK_FENCE_H
#define REDLOCK_FENCE_H

#include "commands/trigger.h"

/*
 * Records the token in schema.redlock_fences, in the current transaction.  Waits for an open
 * transaction that has recorded a token for the same resource.  Errors: 40001 a newer token is
 * recorded, or was committed after the snapshot of this transaction; 25006 the transaction is read-
 * only; 53400 the row is new, and the role brings in too many new names.
 */
extern void fence_record(const char *schema, const char *resource, int64 token);

/*
 * The same for a reader: waits for an exclusive holder only, and records the token in
 * schema.redlock_shared_fences.
 */
extern void fence_share(const char *schema, const char *resource, int64 token);

/*
 * Calls redlock_fence of the schema for the lock that this session holds.  redlock_fence runs with
 * its own rights and calls one of the functions above.
 */
extern void fence_pass(const char *schema, const char *resource);

/* Trigger before logical replication writes a row of redlock_fences: the newest token stays. */
extern Datum fence_merge(TriggerData *trigger);

/* The same for redlock_shared_fences: a row with nothing newer is not written. */
extern Datum fence_merge_shared(TriggerData *trigger);

#endif /* REDLOCK_FENCE_H */
