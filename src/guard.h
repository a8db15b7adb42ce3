/*
 * guard.h
 *		The restart guard: when a node that may have forgotten leases must not
 *		vote for new ones, and for how long.
 *
 * A node that lost its data could grant a lock that another host still holds by
 * the vote that was lost.  So it is quarantined for redlock.max_ttl, the longest
 * that a forgotten lease can live without renewal, by our own clock.  Two signs
 * tell of a loss:
 *
 * - The server process is one that this host has not seen before, and it is
 *	 younger than max_ttl.  A node that writes each command to disk before it
 *	 answers (appendonly yes, appendfsync always) forgets nothing by a restart.
 * - The marker that this host has seen on the node is gone.  Acquires look for
 *	 it, so FLUSHALL is noticed by the next one.  The host that noticed it first
 *	 writes a marker that says so to all others, and a good one when its
 *	 quarantine has ended.
 *
 * What a host has never seen it can't miss: a loss before its server started is
 * found by the first sign, or by the second if another host noticed it.
 */
#ifndef REDLOCK_GUARD_H
#define REDLOCK_GUARD_H

#define GUARD_RUN_ID_SIZE 64
#define GUARD_REASON_SIZE 128

typedef enum GuardMarker
{
	GUARD_UNMARKED, /* not there, or never seen */
	GUARD_MARKED,   /* no data was lost that matters */
	GUARD_LOST      /* a host noticed a loss, and is in quarantine */
} GuardMarker;

/* What this host remembers of a node, in shared memory.  Written by the broker. */
typedef struct GuardMemory
{
	char run_id[GUARD_RUN_ID_SIZE]; /* empty: never seen */
	GuardMarker marker;             /* as last seen or written */
	char reason[GUARD_REASON_SIZE];
	int64 until_us; /* must not vote before; 0: never was in quarantine */

	/* two nodes that are one server; see find_twin in node.c */
	int64 greeted_us;                    /* when it said what it is */
	int twin;                            /* slot + 1 of the other; 0: none */
	int64 twin_since_us;                 /* when it was compared, */
	char twin_run_id[GUARD_RUN_ID_SIZE]; /* being this */
} GuardMemory;

/* What a node says of itself when we connect. */
typedef struct GuardFacts
{
	char run_id[GUARD_RUN_ID_SIZE];
	int64 uptime_s;
	bool aof;          /* appendonly yes */
	bool fsync_always; /* appendfsync always */
	GuardMarker marker;
} GuardFacts;

/*
 * Compare, remember, and begin a quarantine if one is due.  Returns what the
 * node's marker should be: GUARD_LOST if it is in quarantine, else GUARD_MARKED.
 */
extern GuardMarker guard_review(GuardMemory *memory, const GuardFacts *facts, int max_ttl_ms,
								int64 now_us);

#endif /* REDLOCK_GUARD_H */
