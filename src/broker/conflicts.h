/*
 * conflicts.h
 *		Configuration conflicts: comparing other hosts with this host, this host's standing
 *		(protocol/standing.h), and the texts for the log and for sessions.
 *
 * Used by the parts of the registry.  The broker calls the registry_... functions, through
 * registry.h.
 */
#ifndef REDLOCK_CONFLICTS_H
#define REDLOCK_CONFLICTS_H

#include "protocol/hosts.h"

/*
 * To be called after settings or lists of nodes may have changed, before this host asks a node by
 * the new settings.
 */
extern void registry_configured(int64 now_us);

/*
 * registry_may_ask: may this host ask the nodes for new locks?  registry_is_stopped: is a conflict
 * known to forbid new locks?
 */
extern bool registry_may_ask(int64 now_us);
extern bool registry_is_stopped(void);

/* Takes over the conflict that the former broker published. */
extern void conflicts_init(void);

/*
 * Compares this host with the entries that the nodes have sent, decides whether this host takes
 * locks, and publishes conflicts.  conflicts_any: is there a conflict?
 */
extern void find_conflicts(int64 now_us);
extern bool conflicts_any(void);
extern bool conflicts_with_holders(void); /* with a host that takes or holds locks */

/*
 * Calls read for each entry in the answers of nodes.  Returns true if there are more entries than
 * were read.
 */
extern bool read_all_told(int64 now_us, void (*read)(const HostRecord *record, int64 seen_us));

/*
 * Reads the entry of another host with this key prefix, and counts its configuration as compared
 * in this look.  Only the `read` of read_all_told may call this.  Returns false for any other
 * entry, for a damaged or outdated entry, and for a configuration that was compared before.
 */
extern bool read_other(const HostRecord *record, int64 seen_us, HostFacts *facts,
					   HostConfig *theirs);

#endif /* REDLOCK_CONFLICTS_H */
