/*
 * force_release.h
 *		A forced release: has a majority of nodes deleted the key of a lock for good, in spite of
 *		the former holder's renewals?
 *
 * A node refuses a renewal if its counter is above the bound of the holder (core.h), so the
 * counter of each node must be raised above this bound.  The administrator does not know the
 * bound.  But a bound rests on a majority of counters, and this majority shares a node with each
 * other majority.  So a round of deletions suffices if each node of some majority now has a counter
 * above all counters that the nodes of this majority had before.  Nodes outside of this majority
 * need not agree: a node may lie.  Otherwise another round raises the counters higher.
 *
 * Each administrator takes a random distance.  If several administrators release a lock at a time,
 * the largest distance is above the counters of all calls, and this call needs one round.
 *
 * Only the key of the holder is deleted, of any attempt, if a quorum shows one holder: a command
 * may be late, and another holder may have come.  Of a lock with permits, each node may have the
 * value of another permit, so a key with as many permits is deleted.  Otherwise the first round
 * deletes each key.
 *
 * Pure.
 */
#ifndef REDLOCK_FORCE_RELEASE_H
#define REDLOCK_FORCE_RELEASE_H

#include "protocol/inspection.h"
#include "protocol/value.h"

/* After so many rounds the administrator has to try again. */
#define FORCE_ROUNDS_MAX 5

/* The random distance is below this number. */
#define FORCE_SPREAD 1000

/* A key of redlock_pg at some node, at the look. */
typedef struct ForceSeen
{
	bool shared;
	char request[VALUE_REQUEST];
} ForceSeen;

/* A forced release under way, with the arguments of the next round's command. */
typedef struct ForceRelease
{
	int round;
	bool of_permit;    /* the key of a permit */
	bool holder_known; /* a quorum has shown one holder, at the look or in the first round */
	bool permits;      /* these were holders of permits */
	int seen_count;    /* number of `seen` */
	ForceSeen seen[CORE_NODES_MAX];
	int64_t distance;
	int64_t least; /* the least new counter; 0: the counters stay */
	int value_len; /* 0: any value is to be deleted */
	char value[LUA_HELD_MAX];
} ForceRelease;

typedef enum ForceVerdict
{
	FORCE_DONE,
	FORCE_AGAIN, /* the next round begins */
	FORCE_FAILED /* too few nodes have deleted the key, or the rounds are used up */
} ForceVerdict;

/*
 * Prepares the first round by a look at the lock.  The least counter leaves room for the raise by a
 * release or a renewal of the holder during the call, so that one round suffices then, too.
 * Without any counter, the wall clock takes its place, as for a grant.  `random` has random bits.
 */
extern void force_begin(ForceRelease *force, core_lists lists, const Inspected *node,
						bool of_permit, int64_t wall_clock_us, uint64_t random);

/* Judges a round; node[i].after tells the node's new counter.  FORCE_AGAIN: prepares the next. */
extern ForceVerdict force_judge(ForceRelease *force, core_lists lists, const Inspected *node);

#endif /* REDLOCK_FORCE_RELEASE_H */
