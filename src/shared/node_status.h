/*
 * node_status.h
 *		Shared memory: the state of the nodes, for people and for the next broker.
 *
 * The broker alone writes it: `guard` and the atomics at any time, all else under
 * `version`.  Backends take no lock, but copy (node_status_copy): readers must not
 * keep the broker waiting, however many they are.
 */
#ifndef REDLOCK_NODE_STATUS_H
#define REDLOCK_NODE_STATUS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "protocol/core.h"
#include "protocol/guard.h"
#include "shared/seqlock.h"
#include "shared/url.h"

/* The index is the bit of the node in a core_mask. */
typedef struct NodeStatus
{
	SeqLock version;
	bool in_use;
	bool now;    /* in redlock.nodes, as far as that is in force, */
	bool next;   /* or in redlock.nodes_next; in neither, it is leaving: some lease that
				  * was granted by it lives on */
	NodeUrl url; /* how to reach it; its address is its identity, and all
				  * that may be shown: the rest has passwords */
	char state[16];
	bool evicts; /* in quarantine as long as it has an eviction policy */
	char last_error[160];
	TimestampTz last_error_at;
	TimestampTz since; /* of the state */
	GuardMemory guard;
	pg_atomic_uint32 told_of_hosts; /* 0: not since it was connected, so it has no vote */
	pg_atomic_uint64 rtt_us;
	pg_atomic_uint64 memory_used;  /* bytes; 0: not told */
	pg_atomic_uint64 memory_limit; /* maxmemory; 0: none, or not told */
	pg_atomic_uint64 votes_yes;
	pg_atomic_uint64 votes_no;
	pg_atomic_uint64 votes_error;
} NodeStatus;

/* CORE_NODES_MAX; NULL unless preloaded */
extern NodeStatus *node_status;

/* Of the shared memory that it takes; to be called where that is requested, and set up. */
extern Size node_status_size(void);
extern void node_status_set_up(void);

/*
 * A copy without user and password.  False: not in use, or its writer is stopped in
 * the middle of a change.
 */
extern bool node_status_copy(int node, NodeStatus *copy);

/* Is a list of nodes in force? */
extern bool node_status_listed(void);

/*
 * What these nodes said of a lease, and why some said nothing, as a part of a
 * sentence; palloc'd.  Empty: there are none.
 */
extern char *node_status_explain(core_mask yes, core_mask denying, core_mask silent);

/* Steps by which a person gets answers from silent nodes, in sentences; palloc'd.  Empty: no step
 * is known. */
extern char *node_status_advise(core_mask silent);

#endif /* REDLOCK_NODE_STATUS_H */
