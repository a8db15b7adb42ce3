/*
 * guard.h
 *		The restart guard: when and how long a node that may have forgotten leases must not vote
 *		for new leases; and which nodes are the same server.
 *
 * A node that lost its data could grant a lock that another host still holds by the lost vote.
 * So the node is in quarantine for redlock.max_ttl and the drift of clocks (guard_distrust), by
 * this host's clock.  No forgotten lease lives longer without a renewal.  Two signs show a loss:
 *
 * - The server process is not the process that this host has seen on the node.  Or it is the
 *   first process seen, and reports an uptime below max_ttl plus 2 s.  A durable node forgets
 *   nothing by a restart: it writes each command to disk before it answers (appendonly yes,
 *   appendfsync always, no-appendfsync-on-rewrite no), or its administrator declares that answered
 *   commands survive.  Both processes must be durable: a former process that is not may have lost
 *   its last commands, and a present process that is not may read older data.
 *
 * - The marker is not the marker that this host has seen on the node.  Acquires, and renewals
 *   that would create their key, bring the known marker.  A node with another marker, or without
 *   a marker, refuses them.  So the next command after FLUSHALL notices the loss.  If the new
 *   marker says that a host noticed the loss longer than max_ttl ago, all forgotten leases have
 *   ended.
 *
 * A node may be configured to evict keys when its memory is full.  Such a node is in quarantine
 * until max_ttl after this host last saw this configuration.  A host that did not look at the node
 * meanwhile sees at its next look that the node's count of evicted keys has changed.
 *
 * In quarantine the node takes renewals.  Renewals count as votes when redlock.node_timeout and
 * the drift of clocks are over since this host noticed the loss (guard_counts_after_us).  Before,
 * another host may still count a vote that the node has lost.  The round of such a vote began
 * before the loss, and a round grants nothing later than node_timeout.  Without this rule the
 * model Lease_lost_renewed has two holders.  Renewals never count at a node that evicts keys.
 *
 * A host can't miss data that it has never seen.  A loss before the host's server started is
 * found by the first sign, or by the marker if another host noticed the loss.
 *
 * The marker is random, and each acquire brings it, for a reason.  The simulator found two
 * holders with cheaper markers: a constant marker, and a marker that is checked only where the
 * counter is new.  A late release creates a counter, so a lost counter would seem to be there.
 * And a host that ends its quarantine would wipe out a later loss that another host has noticed.
 *
 * A server that is configured by two names must vote once.  Nodes with the same run_id are
 * twins; the node that was met last is refused.  After a restart of the server, its second name
 * may be met first, and is then used.  So a vote counts only in rounds that began after
 * `met_us`.  When a round begins,
 *
 * - no two used nodes have the same run_id, connected or not;
 *
 * - each node whose vote will count already has its process: this host met the process before,
 *   and the process answers later.
 *
 * So the votes of a round come from different processes, alive at the same instant, hence from
 * different servers.  The meaning of the names at any earlier or later time does not matter, nor
 * do the connections.
 *
 * Pure, like the core: a node's answers and instants are arguments.  The simulator runs the same
 * decisions.
 */
#ifndef REDLOCK_GUARD_H
#define REDLOCK_GUARD_H

#include "protocol/core.h"
#include "protocol/lua.h"

#define GUARD_RUN_ID_SIZE 64
#define GUARD_REASON_SIZE 128
#define GUARD_FORMER_MAX 4       /* remembered earlier processes of a node */
#define GUARD_EVICTING INT64_MAX /* as lost_us: the node evicts keys */

/* This host's memory of a node, in shared memory.  Only the broker writes to it. */
typedef struct GuardMemory
{
	char run_id[GUARD_RUN_ID_SIZE];  /* empty: never seen */
	char marker[LUA_MARKER_MAX + 1]; /* empty: never seen */
	bool durable;                    /* answered commands survive the end of this process */
	int64_t evicted;                 /* keys that this process has evicted */
	char reason[GUARD_REASON_SIZE];  /* why the last quarantine began, for people; node_checks.c
									  * writes it */
	int64_t until_us;                /* the node must not vote before; 0: the node was never in
									  * quarantine */
	int64_t lost_us;                 /* when this host last noticed that the node may have lost
									  * data; GUARD_EVICTING; 0: never */

	int twin;       /* index + 1 of another node for the same server: do not use this node; 0:
					 * none */
	int64_t met_us; /* since when the process is used by this name */

	int64_t started_us; /* the process started at this time or earlier, by this host's clock */

	/* earlier processes of this node, the last one first */
	char former[GUARD_FORMER_MAX][GUARD_RUN_ID_SIZE];
} GuardMemory;

/* what a node says of itself during the handshake */
typedef struct GuardFacts
{
	char run_id[GUARD_RUN_ID_SIZE];
	int32_t uptime_s;
	bool durable;    /* answered commands survive restarts */
	bool evicts;     /* the node evicts keys when its memory is full */
	int64_t evicted; /* count of evicted keys since the start or a reset; 0: untold */
	char marker[LUA_MARKER_MAX + 1];
	enum
	{
		GUARD_FRESH,       /* the marker shows no loss */
		GUARD_LOST_LATELY, /* the marker shows a loss less than max_ttl ago */
		GUARD_LOST_ONCE    /* the marker shows a loss more than max_ttl ago */
	} loss;
} GuardFacts;

/* the decision after the handshake */
typedef enum GuardVerdict
{
	GUARD_AS_BEFORE, /* no new loss; an earlier quarantine may last */
	GUARD_RESTARTED, /* a quarantine begins: the node restarted */
	GUARD_FORGOT,    /* a quarantine begins: the node lost data */
	GUARD_EVICTS,    /* a quarantine begins: the node may evict leases */
	GUARD_EVICTED    /* a quarantine begins: the node has evicted keys since the last look */
} GuardVerdict;

/*
 * Compares the facts with what the host remembers of all nodes, and remembers the facts; also
 * those of a twin, which may be used later.  nodes: by index, NULL where there is no node.
 * now_us: read after the node's answer; nothing else may be done in between.  Returns the
 * decision.
 */
extern GuardVerdict guard_meet(GuardMemory *const *nodes, int node, const GuardFacts *facts,
							   int64_t max_ttl_us, int64_t now_us);

/* The same of a look at a connected node: only `evicts` and `evicted` may differ from the facts of
 * the handshake. */
extern GuardVerdict guard_look(GuardMemory *memory, const GuardFacts *facts, int64_t max_ttl_us,
							   int64_t now_us);

/* Returns true if the node may vote for new leases. */
extern bool guard_may_vote(const GuardMemory *memory, int64_t now_us);

/*
 * Begins a quarantine, or begins the quarantine again.  evicts: the node evicts keys, and loses
 * data until a call with evicts = false.
 */
extern void guard_distrust(GuardMemory *memory, bool evicts, int64_t max_ttl_us, int64_t now_us);

/*
 * An answer of the node is a vote in rounds that began after this time; INT64_MAX: in none.
 * answer_us: the longest round of acquires of any host, redlock.node_timeout.
 */
extern int64_t guard_counts_after_us(const GuardMemory *memory, core_op op, int64_t answer_us);

#endif /* REDLOCK_GUARD_H */
