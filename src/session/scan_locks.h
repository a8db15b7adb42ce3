/*
 * scan_locks.h
 *		Listing the locks that the nodes keep, of all hosts.
 */
#ifndef REDLOCK_SCAN_LOCKS_H
#define REDLOCK_SCAN_LOCKS_H

#include "shared/inspect_queue.h"

/* What to do with one lock; `name` is in UTF-8, as far as the name's writer wrote UTF-8. */
typedef void (*ScanHandler)(void *to, const char *name, const InspectAnswer *answer,
							const Inspection *inspection);

/*
 * Calls the handler for each lock whose name begins with `prefix`, in UTF-8, of at most
 * LOCK_NAME_MAX bytes.  The caller has called session_check_ready.  Waits while another session of
 * this server scans.  Raises an error (08006) if a quorum of nodes may keep a lock that no
 * answering node keeps; 55000 as inspect_lock.
 */
extern void scan_locks(const char *prefix, ScanHandler handler, void *to);

#endif /* REDLOCK_SCAN_LOCKS_H */
