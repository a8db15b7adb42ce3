/*
 * standing.h
 *		Decides which of several hosts with different settings takes locks: the earliest host.
 *
 * Each host's entry at the nodes says whether the host takes locks (HostStanding).  A host after
 * a start, or with new settings, must write two entries before it takes locks: first HOST_ASKS,
 * then HOST_TAKES.  After each entry the host looks at all hosts' entries.
 *
 *    ASKS ----no conflict-----> TAKES ----no conflict-----> TAKES, and begun
 *     ^ |                        | ^                         |
 *     | +--another takes locks---+ |                         | another takes locks for longer
 *     |                v           +--nobody takes or asks-- v
 *     +--all others- REFUSES <----its last lock has ended-- HOLDS
 *      refuse
 *
 * Instead of HOLDS, a host without locks gives way to REFUSES.  A host that asks also refuses if a
 * host with a smaller id asks.  New settings lead to ASKS; or to HOLDS, while the host has locks
 * that hosts with different settings may not exclude (`took`).
 *
 * Two hosts with different settings never take locks at the same time, if both reach one node.
 * The node writes an entry and returns all entries in one step.  Consider each host's last TAKES
 * entry before the host began.  The node answered the later entry with the earlier entry, so the
 * later host did not begin.  A host that has begun ignores only ASKS and REFUSES.  Hosts with
 * such entries must write TAKES, and look, before they begin.
 *
 * If two hosts began without seeing each other, both say TAKES when they meet.  The host that
 * has taken locks for longer stays, if the difference is STANDING_MARGIN_US or more; else both give
 * way.  The host that stays takes no new locks until the locks of the second host have ended.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_STANDING_H
#define REDLOCK_STANDING_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/hosts.h"

/*
 * A host counts as established if it has taken locks for longer than another host, by this
 * margin.
 */
#define STANDING_MARGIN_US INT64_C(5000000)

/*
 * If no quorum has answered the host's entry for this long, the host takes no locks: the nodes
 * may soon forget the entry, and a newcomer could begin.
 */
#define STANDING_LAPSE_US INT64_C(30000000)

/* A host whose last entry is this old has lapsed, whatever the drift of clocks. */
#define STANDING_SILENT_US (STANDING_LAPSE_US + INT64_C(1000000))

/* A host's memory, as long as the host runs; zeroed at first. */
typedef struct Standing
{
	HostStanding says; /* in the entries that the host writes */
	bool begun;        /* the host may take locks unless `stopped` */
	bool stopped;      /* another host is in the way */
	bool took;         /* hosts with different settings may not exclude this host's locks */
	int64_t begun_us;  /* start of taking locks; 0: the host takes none */
	int64_t heard_us;  /* sending time of the last entry that a quorum has answered */
	uint64_t number;   /* counts changes of `says`; each entry carries the number */
} Standing;

/* another host, with different settings */
typedef struct StandingOther
{
	uint64_t id;
	HostStanding says;
	int64_t takes_for_us; /* how long the host has taken locks */
	bool holds;           /* the host holds leases by former lists of nodes */
} StandingOther;

/* all hosts' state at one look */
typedef struct StandingView
{
	uint64_t id;                 /* of this host */
	bool has_leases;             /* this host holds locks, or asks for some */
	const StandingOther *others; /* reported hosts with different settings */
	int count;
	int64_t asked_us; /* sending time of the first entry that was answered */
} StandingView;

/* This host has got other settings.  has_leases: the host holds locks, or asks for some. */
extern void standing_reset(Standing *standing, bool has_leases);

/* redlock.on_disagreement becomes warn, or is no longer warn. */
extern void standing_warn(Standing *standing, bool warns, bool has_leases, int64_t now_us);

/*
 * Returns true if the host must look again before it takes locks, like a newcomer; the host has
 * then no longer begun.  Call this function before a look.
 */
extern bool standing_has_lapsed(Standing *standing, int64_t now_us);

/* A host with these settings.  kinds: how the settings differ (HostsDifference). */
extern StandingOther standing_other(uint64_t id, const HostConfig *theirs, unsigned kinds,
									int64_t takes_for_us);

/* Returns true if the given host keeps this host from taking locks. */
extern bool standing_stops(const Standing *standing, const StandingOther *other);

/* Why a newcomer waits for the next entries of other hosts */
typedef struct StandingWait
{
	bool step;         /* an announced step leads away from this host's lists */
	core_mask guessed; /* places in `ours` of nodes that may be nodes of another host */
} StandingWait;

/*
 * Adds the reasons to wait for the next entry of another host to *wait.  After a wrong guess about
 * a node, or after the other host's step, both hosts could get one lock.  A live host writes again
 * within seconds.  A host that hangs must look again once its standing has lapsed.
 *
 * difference: between `ours` and `theirs`; age_us: age of the other host's entry.
 */
extern void standing_add_wait(const Standing *standing, const HostConfig *ours,
							  const HostConfig *theirs, const HostsDifference *difference,
							  int64_t age_us, StandingWait *wait);

/*
 * Decides from the nodes' answers.  The caller guarantees: a quorum, and each node that this
 * host reaches, has answered an entry with the present number.
 */
extern void standing_look(Standing *standing, const StandingView *view, int64_t now_us);

extern bool standing_may_take(const Standing *standing, int64_t now_us);

#endif /* REDLOCK_STANDING_H */
