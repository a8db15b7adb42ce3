/*
 * procedure.h
 *		How a procedure waits for a lock without a snapshot.
 */
#ifndef REDLOCK_PROCEDURE_H
#define REDLOCK_PROCEDURE_H

#include "fmgr.h"

#include "session/request.h"

/* Is the procedure called where it can't end the transaction? */
extern bool is_atomic(FunctionCallInfo fcinfo);

/*
 * session_acquire, with its errors.  If the procedure is not atomic, the wait holds no snapshot,
 * and a new one is there afterwards.
 */
extern bool acquire_without_snapshot(const LockRequest *request, bool atomic);

#endif /* REDLOCK_PROCEDURE_H */
