/*
 * force.h
 *		Releasing a lock of any holder by force, for an administrator.
 */
#ifndef REDLOCK_FORCE_H
#define REDLOCK_FORCE_H

#include "session/request.h"

/*
 * Deletes the keys of the lock, and of its permits, at the nodes.  Returns the description of the
 * holder, palloc'd, in UTF-8; NULL: no node had a key.  The caller has called session_check_ready.
 * Raises an error (08006) that names the nodes where the key may remain, unless a quorum has
 * deleted it; 55000 as inspect_lock.  Logs the release.
 */
extern char *force_release(const LockName *name);

#endif /* REDLOCK_FORCE_H */
