/*
 * ask_hosts.h
 *		The list of hosts that share the nodes, as the broker reads it from the nodes.
 */
#ifndef REDLOCK_ASK_HOSTS_H
#define REDLOCK_ASK_HOSTS_H

#include "shared/host_list.h"

/* Returns the list; palloc'd.  Raises an error if there is no broker, or no quorum. */
extern HostList *ask_hosts(void);

/* The same, but returns NULL instead of an error. */
extern HostList *ask_hosts_if_possible(void);

#endif /* REDLOCK_ASK_HOSTS_H */
