/*
 * ask_release.h
 *		Asking the holder of a lock, on any host, to release the lock.
 */
#ifndef REDLOCK_ASK_RELEASE_H
#define REDLOCK_ASK_RELEASE_H

#include "session/request.h"

/*
 * Sends the ask to the hosts of all holders.  Does not wait for the release, nor for the message:
 * an ask may be lost.  Returns the description of the holder, palloc'd, in UTF-8; NULL: nobody
 * holds the lock.  The caller has called session_check_ready.  Raises an error (08006) if the nodes
 * do not tell the holder; 55000 if the holder is no session of redlock_pg, or as inspect_lock.
 * Logs the ask.
 */
extern char *ask_release(const LockName *name);

#endif /* REDLOCK_ASK_RELEASE_H */
