/*
 * driver_world.h
 *		The world of the lease driver: what the driver asks of nodes, clocks, dice and owners,
 *		and the memory that the world provides.  See driver.h.
 */
#ifndef REDLOCK_DRIVER_WORLD_H
#define REDLOCK_DRIVER_WORLD_H

#include <stddef.h>

#include "driver/driver_lease.h"
#include "protocol/core.h"
#include "protocol/hearing.h"
#include "protocol/release_queue.h"
#include "protocol/settling.h"
#include "protocol/waiters.h"
#include "protocol/wish.h"

/* Number of places for pauses.  Names share a place by their hashes; the last pause stays. */
#define DRIVER_PAUSES 256

/*
 * The terms of the session that asked, constant until the lease is freed.  A later holder's limit
 * comes by hold_until_us.
 */
typedef struct DriverTerms
{
	uint64_t hash; /* of the lock's name */
	int64_t ttl_us;
	int64_t keep_us;         /* nodes keep the key this long after the grant, even if it is
							  * released; 0: not */
	int64_t hold_at_most_us; /* 0: no limit */
	int64_t waits_since_us;  /* start of the wait, for messages to other hosts */
	bool once;               /* a try */
	bool patient;            /* goes on asking without a quorum, until the owner cancels */
	bool shared;
	bool is_queue; /* of a lock with permits: the holder of the queue waits for a permit */
} DriverTerms;

/* the driver's memory of an entry; zeroed at first */
typedef struct DriverEntry
{
	DriverTerms terms;
	bool forced;         /* the key may be gone by force: renew as soon as no round is out */
	bool hears;          /* this host is on the lock's channel */
	Hearing hearing;     /* the nodes' confirmations and messages about the channel */
	WaitersKnown *known; /* hosts that wait for the lock; NULL: none */
	int64_t heard_us;    /* time of the last release since the request began, or of its beginning */
} DriverEntry;

/* after a release of a name: the pause of this host, or the memory of a turn that goes on */
typedef struct DriverPause
{
	int64_t end_us;
	uint64_t paused;     /* the name that pauses until end_us */
	uint64_t tell;       /* host to tell if this host asks during the pause; 0: none, because
						  * this host was named too */
	uint64_t hash;       /* the name whose turn goes on */
	WaitersKnown *known; /* hosts that wait for the end of the turn; NULL: none */
} DriverPause;

/* a command under way; by it the answer finds the lease */
typedef struct DriverSent
{
	int entry;
	uint32_t generation;
	uint32_t round;
	core_op op;
	core_event_type why; /* the event that asked for the command */
} DriverSent;

/* the arguments of a command, beside the lock's key and value */
typedef struct DriverCommand
{
	DriverSent sent;
	int64_t now_us;
	int64_t ttl_ms;         /* acquire, renew: life of the key; release: rules_release_ms */
	int64_t waited_us;      /* acquire: waiting time, for the holder's host; -1: a try */
	int64_t token;          /* release: token of the ended lease, for its waiters; 0: none */
	const Waiters *waiters; /* release: the next waiters; NULL: none */
} DriverCommand;

/* messages to the owner of a lease */
typedef enum DriverNews
{
	DRIVER_NO_NODES,    /* no list of nodes is in force */
	DRIVER_MUST_WAIT,   /* another host has the lock, or no quorum has answered yet */
	DRIVER_GRANTED,     /* see first_token, and granted_until_us of the core */
	DRIVER_REFUSED,     /* a try was refused */
	DRIVER_UNREACHABLE, /* no quorum answered */
	DRIVER_RENEWED,
	DRIVER_UNRENEWED, /* a round of renewals failed */
	DRIVER_LOST,
	DRIVER_RELEASED, /* the release begins, or waits for room */
	DRIVER_HEARD     /* a majority has published that the lock is free */
} DriverNews;

/* how a turn of this host ends */
typedef enum DriverTurnEnd
{
	TURN_ENDS,
	TURN_RETURNS, /* sessions of this host wait for another turn */
	TURN_GOES_ON  /* the turn goes on with another lease of the same name */
} DriverTurnEnd;

typedef struct Driver Driver;

/*
 * The functions that the driver needs.  The functions end_idle .. release_orphan may end a lease
 * in place of its owner.  Each returns true if it did; the wish is then WISH_NOTHING.
 * note_waiting_host may end an idle lease, and returns nothing: the entry is then in the work
 * queue.
 */
typedef struct DriverWorld
{
	/* the nodes */
	core_lists (*lists)(const Driver *driver);   /* the lists in force */
	core_mask (*can_send)(const Driver *driver); /* nodes that take commands now */
	core_mask (*can_vote)(const Driver *driver, int64_t now_us);
	core_mask (*on_duty)(const Driver *driver);              /* connected and usable */
	int64_t (*round_trip_us)(const Driver *driver);          /* to the median node */
	void (*compose)(Driver *driver, DriverCommand *command); /* several sends follow */
	void (*send)(Driver *driver, int node, const DriverCommand *command);

	/* wall clock, dice and timers */
	int64_t (*wall_clock_us)(const Driver *driver); /* since 1970 */
	uint32_t (*random)(Driver *driver);
	void (*set_timer)(Driver *driver, int entry, int64_t at_us); /* for driver_on_timer; 0: none */

	/* other hosts */
	void (*hear)(Driver *driver, int entry, bool begin); /* the lock's channel */
	void (*tell_host)(Driver *driver, uint64_t host, int entry, int64_t now_us); /* of our wait */
	WaitersKnown *(*make_waiters)(Driver *driver);                               /* zeroed */
	void (*drop_waiters)(Driver *driver, WaitersKnown *known);

	/* the owner */
	void (*get_terms)(const Driver *driver, int entry, DriverTerms *terms);
	void (*new_value)(Driver *driver,
					  int entry); /* a request begins: the lock gets another value */
	Wish (*wish)(const Driver *driver, int entry);
	bool (*is_answered)(const Driver *driver, int entry); /* the owner knows the outcome */
	bool (*is_returned)(const Driver *driver, int entry); /* a caller has the token */
	void (*tell)(Driver *driver, int entry, DriverNews news, int64_t now_us);
	void (*no_more_waits)(Driver *driver, int entry); /* the request was granted, or released */
	int64_t (*hold_until_us)(const Driver *driver, int entry, int64_t now_us); /* 0: no limit */
	bool (*hold_is_over)(const Driver *driver, int entry, int64_t now_us);
	int64_t (*look_at_us)(Driver *driver, int entry, int64_t wake_at_us); /* see wish_look_at_us */
	bool (*needs_tokens)(const Driver *driver, int entry, int64_t now_us);
	void (*expect_tokens)(Driver *driver, int entry, int64_t until_us); /* 0: none */
	DriverTurnEnd (*turn_end)(const Driver *driver, int entry);
	bool (*end_idle)(Driver *driver, int entry, int64_t now_us); /* if keep_idle is over */
	bool (*end_hold)(Driver *driver, int entry,
					 int64_t now_us);                /* if a detached lease has reached its end */
	bool (*release_idle)(Driver *driver, int entry); /* if the lease is idle */
	bool (*end_detached)(Driver *driver, int entry);
	bool (*release_orphan)(Driver *driver, int entry, int64_t now_us); /* if the owner has gone */
	void (*note_waiting_host)(Driver *driver, int entry);              /* another host waits */
	void (*tell_permit)(Driver *driver, int entry, int permit); /* queue: the permit may be free */
	void (*count_unsettled)(Driver *driver, int change);        /* see settling_on_all_lists */
	void (*free)(Driver *driver, int entry);                    /* the entry has no debt left */

	/* called before each step of a core (out is NULL) and after it; may be NULL */
	void (*watch)(Driver *driver, int entry, const core_event *event, const core_out *out);
} DriverWorld;

struct Driver
{
	const DriverWorld *world;
	int host;      /* for the world */
	uint64_t id;   /* id of this host, as other hosts know it; never 0 */
	int entries;   /* number of entries */
	char *leases;  /* the DriverLease of the first entry */
	size_t stride; /* distance in bytes between two DriverLeases */
	DriverEntry *entry;
	ReleaseQueue releases;
	Settling *settling;    /* outlives the driver, like DriverLease */
	bool serves;           /* requests may ask the nodes: each node was probed once, and
							* the nodes were asked about other hosts */
	int64_t answer_us;     /* time limit for a node's answer */
	int64_t retry_us;      /* mean pause between two rounds, without a subscription */
	int64_t retry_told_us; /* the same, when nodes publish its release */
	DriverPause pause[DRIVER_PAUSES];
};

static inline DriverLease *
driver_lease(const Driver *driver, int entry)
{
	return (DriverLease *) (driver->leases + driver->stride * (size_t) entry);
}

#endif /* REDLOCK_DRIVER_WORLD_H */
