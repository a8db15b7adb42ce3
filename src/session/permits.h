/*
 * permits.h
 *		Asking for one of several permits of a lock (protocol/permits.h), and waiting for any.
 */
#ifndef REDLOCK_SESSION_PERMITS_H
#define REDLOCK_SESSION_PERMITS_H

#include "session/request.h"

/* As request_acquire, of a request for one name with permits. */
extern bool permits_acquire(const LockRequest *request, void (*hold)(const LockRequest *whole),
							const LockRequest *whole);

/* The session ends.  Never fails. */
extern void permits_give_up(void);

#endif /* REDLOCK_SESSION_PERMITS_H */
