/*
 * ask_hosts.h
 *		The list of hosts that share the nodes, as the broker reads it from the nodes.
 */
#ifndef REDLOCK_ASK_HOSTS_H
#define REDLOCK_ASK_HOSTS_H

#include "shared/guc.h"
#include "shared/host_list.h"

/* How long the broker may be missing, busy, or connecting to the nodes. */
#define ASK_HOSTS_PATIENCE_US (INT64CONST(3000000) + 2 * redlock_node_timeout_ms * INT64CONST(1000))

/* How a question to the broker ended. */
typedef enum AskHostsEnd
{
	ASK_HOSTS_ANSWERED, /* with a list or without */
	ASK_HOSTS_NO_BROKER,
	ASK_HOSTS_SILENT
} AskHostsEnd;

/* The hint if too few nodes send the list. */
#define ASK_HOSTS_NO_QUORUM_STEP                                                                   \
	"See the view redlock_nodes, and the server log for nodes that do not keep the list."

/* The hint if the list has more than HOST_LIST_MAX hosts. */
#define ASK_HOSTS_TOO_LONG_STEP                                                                    \
	"Keep other programs from writing to the list of hosts at the nodes."

/* Returns the list; palloc'd.  Raises an error if there is no broker, or no quorum. */
extern HostList *ask_hosts(void);

/*
 * The same with another patience, but returns NULL instead of an error, and fills in *end, and with
 * ASK_HOSTS_ANSWERED also *state.  NULL with HOST_LIST_MADE: the broker dropped the list before
 * this session copied the list.
 */
extern HostList *ask_hosts_if_possible(int64 patience_us, AskHostsEnd *end, HostListState *state);

#endif /* REDLOCK_ASK_HOSTS_H */
