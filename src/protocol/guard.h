/*
 * guard.h
 *		The restart guard: when a node that may have forgotten leases must not
 *		vote for new ones, and for how long; and which nodes are one server.
 *
 * A node that lost its data could grant a lock that another host still holds by
 * the vote that was lost.  So it is quarantined for redlock.max_ttl, the longest
 * that a forgotten lease can live without renewal, by our own clock.  Two signs
 * tell of a loss:
 *
 * - The server process is not the one that this host has seen on the node; or it
 *	 is the first, and younger than max_ttl by what it says.  A durable node forgets
 *	 nothing by a restart: it writes each command to disk before it answers
 *	 (appendonly yes, appendfsync always, no-appendfsync-on-rewrite no), or its
 *	 administrator says that what it answered survives.
 * - The marker is not the one that this host has seen on the node.  Each acquire
 *	 brings the one that it knows, and is refused where another is, or none; so
 *	 FLUSHALL is noticed by the next one.  If the new marker says that a loss was
 *	 noticed longer than max_ttl ago, all that was forgotten has ended.
 *
 * A node that evicts keys when its memory is full is in quarantine for as long as it
 * may, and for max_ttl from when it was last found so.
 *
 * What a host has never seen it can't miss.  A loss before its server started is
 * found by the first sign, or by the marker if another host noticed the loss.
 *
 * The marker is random, and each acquire brings it, on purpose.  Cheaper ones, a
 * marker that is just there, or one that is looked at only where the counter is
 * new, let the simulator find two holders: late releases create counters, and a
 * host that ends its quarantine wipes out what another has noticed since.
 *
 * A server that is configured by two names must vote once.  Nodes with one run_id
 * are twins, and the one that is met last is refused.  When the server restarts
 * its other name may be met first, and is used then.  So a vote counts only in rounds
 * that began after `met_us`.  At the instant when a round begins
 *
 * - no two nodes that are used have the same run_id, be they connected or not;
 * - each whose vote will count has its process already: that was met before, and
 *	 answers later.
 *
 * So the votes of a round are those of different processes that lived at one instant,
 * and these are different servers.  It does not matter what names meant at other
 * times, nor which connections are alive.
 *
 * Pure, like the core: what a node said and instants are arguments.  The simulator
 * runs these decisions as they are.
 */
#ifndef REDLOCK_GUARD_H
#define REDLOCK_GUARD_H

#include "protocol/core.h"
#include "protocol/lua.h"

#define GUARD_RUN_ID_SIZE 64
#define GUARD_REASON_SIZE 128
#define GUARD_FORMER_MAX 4 /* processes of a node before the present one */

/* What this host remembers of a node, in shared memory.  Written by the broker. */
typedef struct GuardMemory
{
	char run_id[GUARD_RUN_ID_SIZE];  /* empty: never seen */
	char marker[LUA_MARKER_MAX + 1]; /* empty: never seen */
	char reason[GUARD_REASON_SIZE];  /* of the last quarantine, for people; by node_checks.c */
	int64_t until_us;                /* must not vote before; 0: never was in quarantine */

	int twin;       /* must not be used: it is the server of this node,
					 * index + 1; 0: of none */
	int64_t met_us; /* since when this process is used by this name */

	int64_t started_us; /* the process, by our clock, and no later */

	/* processes that this host met in this place before, the last one first */
	char former[GUARD_FORMER_MAX][GUARD_RUN_ID_SIZE];
} GuardMemory;

/* What a node says of itself when we connect. */
typedef struct GuardFacts
{
	char run_id[GUARD_RUN_ID_SIZE];
	int32_t uptime_s;
	bool durable; /* what it answered survives its restarts */
	bool evicts;  /* keys, when its memory is full */
	char marker[LUA_MARKER_MAX + 1];
	enum
	{
		GUARD_FRESH,       /* the marker tells of no loss */
		GUARD_LOST_LATELY, /* it does, less than max_ttl ago */
		GUARD_LOST_ONCE    /* it does, but that is over */
	} loss;
} GuardFacts;

/* What is to be done with a node after the handshake. */
typedef enum GuardVerdict
{
	GUARD_AS_BEFORE, /* it forgot nothing new; an earlier quarantine may last */
	GUARD_RESTARTED, /* a quarantine begins: it restarted ... */
	GUARD_FORGOT,    /* ... or its data was lost */
	GUARD_EVICTS     /* ... or it may throw away leases */
} GuardVerdict;

/*
 * Compare what a node said with what is remembered of all, and remember it; also of a
 * twin, which may be used later.  nodes: by index, NULL where there is none.  now_us: of
 * after its answer, and before anything else is done.
 */
extern GuardVerdict guard_meet(GuardMemory *const *nodes, int node, const GuardFacts *facts,
							   int64_t max_ttl_us, int64_t now_us);

/* May it vote for new leases? */
extern bool guard_may_vote(const GuardMemory *memory, int64_t now_us);

/* A quarantine begins, or begins anew: it is known to evict, or did until now. */
extern void guard_distrust(GuardMemory *memory, int64_t max_ttl_us, int64_t now_us);

#endif /* REDLOCK_GUARD_H */
