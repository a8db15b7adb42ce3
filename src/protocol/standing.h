/*
 * standing.h
 *		Which of several hosts with different settings takes locks: the one that was there
 *		first.
 *
 * Each host says in its entry at the nodes whether it takes locks (HostStanding).  A host that
 * starts, or gets other settings, takes none before it has written two entries, and has looked at
 * the other hosts after each: first that it asks, then that it takes locks.
 *
 *		ASKS --nobody disagrees--> TAKES --nobody disagrees--> TAKES, and begun
 *		 ^ |                        |                           |
 *		 | +--another takes locks---+                           | another takes locks for longer
 *		 |                v                                     v
 *		 +--all others- REFUSES <----its last lock has ended-- HOLDS
 *			refuse
 *
 * Why no two hosts that disagree take locks at a time, if both reach one node: a node writes an
 * entry and tells of the others in one step.  Take the two last entries TAKES that came before the
 * hosts began.  The later one at that node was answered with the earlier one, so its host did not
 * begin.  A host that has begun disregards ASKS and REFUSES alone, whose hosts must write TAKES,
 * and look, before they begin.
 *
 * Two hosts that began while they could not see each other both say TAKES.  Then the one that has
 * taken locks for longer stays, and takes none until the other one's have ended.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_STANDING_H
#define REDLOCK_STANDING_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/hosts.h"

/* A host stays established beside another that has taken locks for so much less. */
#define STANDING_MARGIN_US INT64_C(5000000)

/*
 * A host takes no locks if a quorum has not answered its entry for so long: it may be forgotten
 * soon, and a newcomer could begin.
 */
#define STANDING_LAPSE_US INT64_C(30000000)

/* A host has lapsed, by any clock, when its last entry is so old at another host's look. */
#define STANDING_SILENT_US (STANDING_LAPSE_US + INT64_C(1000000))

/* What a host remembers as long as it runs, zero at first. */
typedef struct Standing
{
	HostStanding says; /* in the entries that the host writes */
	bool begun;        /* the host may take locks unless `stopped` */
	bool stopped;      /* another host is in the way */
	bool took;         /* hosts with other settings may not exclude the locks of this host */
	int64_t begun_us;  /* start of taking locks; 0: the host takes none */
	int64_t heard_us;  /* sending time of the last entry that a quorum has answered */
	uint64_t number;   /* counts changes of `says`; each entry carries the number */
} Standing;

/* Another host with different settings. */
typedef struct StandingOther
{
	uint64_t id;
	HostStanding says;
	int64_t takes_for_us; /* how long the host has taken locks */
	bool holds;           /* the host has locks by former lists of nodes */
} StandingOther;

/* What a look shows. */
typedef struct StandingView
{
	uint64_t id;                 /* of this host */
	bool has_leases;             /* this host has locks, or asks for some */
	const StandingOther *others; /* hosts with other settings of which nodes told */
	int count;
	int64_t asked_us; /* sending time of the first entry that was answered */
} StandingView;

/* This host has got other settings.  has_leases: it has locks, or asks for some. */
extern void standing_reset(Standing *standing, bool has_leases);

/* redlock.on_disagreement is warn, or is no more. */
extern void standing_warn(Standing *standing, bool warns, bool has_leases, int64_t now_us);

/* Must it look once more before it takes locks, as a newcomer?  To be asked before a look. */
extern bool standing_has_lapsed(Standing *standing, int64_t now_us);

/* A host with these settings, which differ in these kinds (HostsDifference). */
extern StandingOther standing_other(uint64_t id, const HostConfig *theirs, unsigned kinds,
									int64_t takes_for_us);

/* Is it in the way of this host's locks? */
extern bool standing_stops(const Standing *standing, const StandingOther *other);

/*
 * Decides by what the nodes told.  The caller guarantees that a quorum, and each node that this
 * host reaches, answered an entry with the present number.
 */
extern void standing_look(Standing *standing, const StandingView *view, int64_t now_us);

extern bool standing_may_take(const Standing *standing, int64_t now_us);

#endif /* REDLOCK_STANDING_H */
