/*
 * waiting_here.h
 *		Counts of this server's waiting sessions, for other hosts.
 */
#ifndef REDLOCK_WAITING_HERE_H
#define REDLOCK_WAITING_HERE_H

#include "protocol/waiting_hosts.h"

/*
 * Describes this host as a waiter for the lock with the key.  Counts the sessions at
 * the gate, in the gate and at the nodes; for a lock with permits, also those in the queue for
 * permits.  A try does not wait.
 *
 * Takes only a table lock of the lease table, and sessions do nothing for the count.  So
 * a session that just begins or ends its wait may be left out.
 */
extern void waiting_here(const char *key, size_t key_len, WaitingHost *host);

#endif /* REDLOCK_WAITING_HERE_H */
