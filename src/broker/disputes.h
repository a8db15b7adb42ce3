/*
 * disputes.h
 *		Comparing other hosts with this one: disputes, this host's standing
 *		(protocol/standing.h), and the words for the log and for sessions.
 *
 * Used by the parts of the registry; the registry_... functions by the broker, through registry.h.
 */
#ifndef REDLOCK_DISPUTES_H
#define REDLOCK_DISPUTES_H

#include "protocol/hosts.h"

/* Settings or lists of nodes may have changed: to be called before anything is asked by them. */
extern void registry_configured(int64 now_us);

/* May new locks be asked of the nodes?  Is it known that they may not? */
extern bool registry_may_ask(int64 now_us);
extern bool registry_is_stopped(void);

/* Goes on with what the former broker told. */
extern void disputes_init(void);

/* Looks at what the nodes have told. */
extern void find_disputes(int64 now_us);
extern bool disputes_any(void);

/* Reads the entries that nodes told of.  Returns whether there is more than what was read. */
extern bool read_all_told(int64 now_us, void (*read)(const HostRecord *record, int64 seen_us));

/* Is the entry another host's, with this prefix and a configuration that was not yet compared? */
extern bool read_other(const HostRecord *record, int64 seen_us, HostFacts *facts,
					   HostConfig *theirs);

#endif /* REDLOCK_DISPUTES_H */
