/*
 * node_status.h
 *		Shared memory: the state of the nodes, for people and for the next broker.
 *
 * The broker alone writes: `guard` and the atomics at any time, all else under `version`.  A
 * backend copies (node_status_copy) and takes no lock, so backends never keep the broker waiting.
 */
#ifndef REDLOCK_NODE_STATUS_H
#define REDLOCK_NODE_STATUS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "protocol/core.h"
#include "protocol/guard.h"
#include "shared/seqlock.h"
#include "shared/url.h"

/* The log and redlock_diagnose warn of a node this full. */
#define NODE_MEMORY_WARN_PERCENT 80
#define NODE_MEMORY_STEP                                                                           \
	"Raise maxmemory of the node, or find out what fills the node. A full node grants no lock "    \
	"with a new name."

/* clock_ahead_us while no answer has told the node's time */
#define NODE_CLOCK_UNKNOWN PG_INT64_MIN

/* Two clocks may differ this much in rate: the bound of core_validity_us. */
#define NODE_CLOCK_DRIFT_PPM 10000

/* Facts of the last handshake. */
typedef struct NodeFacts
{
	char version[32]; /* as "Redis 7.0.15"; empty: not told yet */
	char forgets[48]; /* why a restart of the node may lose grants; empty: it does not */
	char
		lacks_for_locks[48]; /* rights that the user lacks for shared locks and permits; or empty */
	char lacks_for_hosts[96];    /* ... for the list of hosts */
	char lacks_for_messages[32]; /* ... for messages to hosts */
	char lacks_for_looks[32];    /* ... for the look at all keys */
} NodeFacts;

/* The node's list of hosts, and its vote on new locks. */
typedef enum NodeList
{
	NODE_LIST_AWAITED, /* not told since the connect: no vote */
	NODE_LIST_TOLD,    /* a vote */
	NODE_LIST_IN_DOUBT /* told; another host may mean another node: no vote yet */
} NodeList;

/* Does the node send messages of other hosts? */
typedef enum NodeDeaf
{
	NODE_SENDS,
	NODE_DENIES, /* it refuses subscriptions, perhaps for lack of rights */
	NODE_IS_FULL /* it has no room for the connection */
} NodeDeaf;

/* The node index is the place in the array, and the bit in a core_mask. */
typedef struct NodeStatus
{
	SeqLock version;
	bool in_use;
	bool now;    /* the node is on the list of redlock.nodes in force */
	bool next;   /* ... of redlock.nodes_next.  On neither list the node is leaving: a lease that it
					granted still lives */
	NodeUrl url; /* how to reach the node; the address is the identity of the node, and people may
					see no more: the rest has passwords */
	char state[16];
	bool evicts; /* in quarantine while the node has an eviction policy */
	char last_error[160];
	TimestampTz last_error_at;
	TimestampTz since; /* of the state, or of the first of several failed attempts to connect */
	NodeFacts facts;
	GuardMemory guard;
	pg_atomic_uint32 list_of_hosts;    /* NodeList */
	pg_atomic_uint64 vote_counts_us;   /* when its vote last began to count; 0: never */
	pg_atomic_uint32 deaf;             /* NodeDeaf */
	pg_atomic_uint64 clock_faster_ppm; /* int64: see node_clock.c; 0: equally fast, or unknown */
	pg_atomic_uint64 clock_ahead_us; /* node's wall clock less this host's; or NODE_CLOCK_UNKNOWN */
	pg_atomic_uint64 rtt_us;         /* smoothed; 0: unknown */
	pg_atomic_uint64 memory_used;    /* bytes; 0: not told */
	pg_atomic_uint64 memory_limit;   /* maxmemory; 0: none, or not told */
	pg_atomic_uint64 votes_yes;
	pg_atomic_uint64 votes_no;
	pg_atomic_uint64 votes_error;
} NodeStatus;

/* CORE_NODES_MAX; NULL unless preloaded */
extern NodeStatus *node_status;

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size node_status_size(void);
extern void node_status_set_up(void);

/*
 * Copies the state, without user and password.  Returns false if the node index is not in use, or
 * if the writer is stopped in the middle of a change.
 */
extern bool node_status_copy(int node, NodeStatus *copy);

/* Is a list of nodes in force? */
extern bool node_status_listed(void);

/*
 * May a quorum be within reach?  False while too many nodes refuse this host, or have failed and
 * are not ready again.
 */
extern bool node_status_may_have_quorum(void);

/* Why the node gives no vote, as a part of a sentence; palloc'd. */
extern char *node_status_silence(const NodeStatus *status);

/* The last look at the node's list of hosts. */
extern NodeList node_status_list(const NodeStatus *status);

/* Returns sentences that advise a person how to get votes from the node; NULL: none is known. */
extern const char *node_status_step(const NodeStatus *status);

/* How a person gets messages from such a node; not for NODE_SENDS. */
extern const char *node_status_deaf_step(NodeDeaf deaf);

/*
 * Describes the answers of these nodes for a lease, and the reasons of the silent nodes, as a part
 * of a sentence; palloc'd.  Empty: no nodes.
 */
extern char *node_status_explain(core_mask yes, core_mask denying, core_mask silent);

/*
 * Advises a person how to get answers from silent nodes, in sentences; palloc'd.  Empty: no advice.
 */
extern char *node_status_advise(core_mask silent);

#endif /* REDLOCK_NODE_STATUS_H */
