/*
 * list_hosts.h
 *		The hosts that share the nodes, as the broker reads them from the nodes.
 */
#ifndef REDLOCK_LIST_HOSTS_H
#define REDLOCK_LIST_HOSTS_H

#include "shared/host_list.h"

/* Palloc'd.  An error if there is no broker, or no quorum. */
extern HostList *list_hosts(void);

/* The same, but NULL in place of an error. */
extern HostList *list_hosts_if_possible(void);

#endif /* REDLOCK_LIST_HOSTS_H */
