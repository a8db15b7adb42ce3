/*
 * list_hosts.h
 *		The list of hosts that share the nodes, as the broker reads it from the nodes.
 */
#ifndef REDLOCK_LIST_HOSTS_H
#define REDLOCK_LIST_HOSTS_H

#include "shared/host_list.h"

/* Returns the list; palloc'd.  Raises an error if there is no broker, or no quorum. */
extern HostList *list_hosts(void);

/* The same, but returns NULL instead of an error. */
extern HostList *list_hosts_if_possible(void);

#endif /* REDLOCK_LIST_HOSTS_H */
