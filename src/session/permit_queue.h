/*
 * permit_queue.h
 *		Asking for one of several permits of a lock (protocol/permits.h), and waiting for any.
 */
#ifndef REDLOCK_PERMIT_QUEUE_H
#define REDLOCK_PERMIT_QUEUE_H

#include "session/request.h"

/* As request_acquire, of a request for one name with permits. */
extern bool permit_queue_acquire(const LockRequest *request);

/* The session ends.  Never fails. */
extern void permit_queue_give_up(void);

#endif /* REDLOCK_PERMIT_QUEUE_H */
