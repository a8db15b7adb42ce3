/*
 * procedure.h
 *		How a procedure waits for a lock without a snapshot.
 */
#ifndef REDLOCK_PROCEDURE_H
#define REDLOCK_PROCEDURE_H

#include "fmgr.h"

#include "session/request.h"

/* Returns true if the procedure can't end the transaction at the place of its call. */
extern bool is_atomic(FunctionCallInfo fcinfo);

/*
 * Calls session_acquire, and returns its result; errors are the same.  Unless `atomic`, the wait
 * holds no snapshot, and the caller has a new snapshot afterwards.
 */
extern bool acquire_without_snapshot(const LockRequest *request, bool atomic);

#endif /* REDLOCK_PROCEDURE_H */
