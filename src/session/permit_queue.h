/*
 * permit_queue.h
 *		Asking for one of several permits of a lock (protocol/permits.h), and waiting for any.
 */
#ifndef REDLOCK_PERMIT_QUEUE_H
#define REDLOCK_PERMIT_QUEUE_H

#include "session/request.h"

/* Like request_acquire, for a request of one name with permits. */
extern bool permit_queue_acquire(const LockRequest *request);

/* Called at the end of the session.  Never fails. */
extern void permit_queue_cancel(void);

#endif /* REDLOCK_PERMIT_QUEUE_H */
