/*
 * list_waiting.h
 *		Asking all hosts for the sessions that wait for a lock.
 */
#ifndef REDLOCK_LIST_WAITING_H
#define REDLOCK_LIST_WAITING_H

#include "protocol/waiting_hosts.h"
#include "session/request.h"

/*
 * Returns the hosts with sessions that wait for the lock; palloc'd.  The caller has called
 * session_check_ready.  Warns if the list is incomplete.  Raises an error as inspect_lock and
 * inspect_judge do, and (08006) if no node passes the question on.
 */
extern WaitingHosts *list_waiting(const LockName *name);

#endif /* REDLOCK_LIST_WAITING_H */
