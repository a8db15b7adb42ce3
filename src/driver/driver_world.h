/*
 * driver_world.h
 *		The world of the lease driver: what the driver asks of nodes, clocks, dice and owners, and
 *		the memory that the world provides.  See driver.h.
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

/* Two names may share a pause, by their hashes: then a request for one name may wait in vain. */
#define DRIVER_PAUSES 256

/* What the owner asks for: constant until the lease is freed. */
typedef struct DriverTerms
{
	uint64_t hash; /* of the name */
	int64_t ttl_us;
	int64_t keep_us;         /* the key stays so long after the grant, even if released */
	int64_t hold_at_most_us; /* 0: no limit */
	int64_t waits_since_us;  /* what other hosts are told */
	bool once;               /* a try */
	bool patient;            /* asks on without a quorum, until it is given up */
	bool shared;
	bool is_queue; /* of a lock with permits: while it is held, its owner waits for a permit */
} DriverTerms;

/* Of each entry, for the life of the driver; zeroed at first. */
typedef struct DriverEntry
{
	DriverTerms terms;
	bool hears;          /* it is on the lock's channel */
	Hearing hearing;     /* what nodes confirmed and told there */
	WaitersKnown *known; /* hosts that wait for the lock; NULL: none */
	int64_t heard_us;    /* of the last release since it began to ask, or the beginning */
} DriverEntry;

/* After a release of a name: the pause of this host, or what its turn goes on with. */
typedef struct DriverPause
{
	int64_t end_us;
	uint64_t tell;       /* this host, if it asks meanwhile; 0: nobody, it was named, too */
	uint64_t hash;       /* the name whose turn goes on */
	WaitersKnown *known; /* hosts that wait for the end of the turn; NULL: none */
} DriverPause;

/* A command under way, so that its answer finds the lease. */
typedef struct DriverSent
{
	int entry;
	uint32_t generation;
	uint32_t round;
	core_op op;
	core_event_type why; /* the event that asked for it */
} DriverSent;

/* A command, beside the lock's key and value. */
typedef struct DriverCommand
{
	DriverSent sent;
	int64_t now_us;
	int64_t ttl_ms;         /* acquire, renew: the key's; release: rules_release_ms */
	int64_t waited_us;      /* acquire: what the holder's host is told; -1: it is a try */
	int64_t token;          /* release: of the lease, as its waiters are told; 0: none */
	const Waiters *waiters; /* release: whose turn is next; NULL: nobody's */
} DriverCommand;

/* What the owner of a lease is told. */
typedef enum DriverNews
{
	DRIVER_NO_NODES,    /* no list of nodes is in force */
	DRIVER_MUST_WAIT,   /* another host has the lock, or no quorum answers yet */
	DRIVER_GRANTED,     /* see first_token, and granted_until_us of the core */
	DRIVER_REFUSED,     /* a try */
	DRIVER_UNREACHABLE, /* no quorum answered */
	DRIVER_RENEWED,
	DRIVER_UNRENEWED, /* a round of renewals failed */
	DRIVER_LOST,
	DRIVER_RELEASED, /* the release begins, or waits for room */
	DRIVER_HEARD     /* a majority told that the lock is free */
} DriverNews;

/* How a turn of this host ends. */
typedef enum DriverTurnEnd
{
	TURN_ENDS,
	TURN_RETURNS, /* sessions of this host wait on, for another turn */
	TURN_GOES_ON  /* with another lease of the same name */
} DriverTurnEnd;

typedef struct Driver Driver;

/*
 * What the driver needs of the world.  Where a function ends a lease for its owner (end_stay ..
 * release_orphan), it returns whether it did, and the wish is WISH_NOTHING then.
 */
typedef struct DriverWorld
{
	/* the nodes */
	core_lists (*lists)(const Driver *driver);   /* in force */
	core_mask (*can_send)(const Driver *driver); /* they take commands now */
	core_mask (*can_vote)(const Driver *driver, int64_t now_us);
	core_mask (*on_duty)(const Driver *driver);              /* connected and fit */
	int64_t (*round_trip_us)(const Driver *driver);          /* to the median node */
	void (*compose)(Driver *driver, DriverCommand *command); /* sends to some nodes follow */
	void (*send)(Driver *driver, int node, const DriverCommand *command);

	/* the clock of people, dice, and timers */
	int64_t (*wall_clock_us)(const Driver *driver); /* since 1970 */
	uint32_t (*random)(Driver *driver);
	void (*set_timer)(Driver *driver, int entry, int64_t at_us); /* for driver_on_timer; 0: none */

	/* other hosts */
	void (*hear)(Driver *driver, int entry, bool begin); /* join the lock's channel, or leave it */
	void (*tell_host)(Driver *driver, uint64_t host, int entry, int64_t now_us); /* that we wait */
	WaitersKnown *(*make_waiters)(Driver *driver);                               /* zeroed */
	void (*drop_waiters)(Driver *driver, WaitersKnown *known);

	/* the owner */
	void (*get_terms)(const Driver *driver, int entry, DriverTerms *terms);
	void (*new_value)(Driver *driver,
					  int entry); /* a request begins: its lock gets another value */
	Wish (*wish)(const Driver *driver, int entry);
	bool (*is_answered)(const Driver *driver, int entry); /* the owner knows the outcome */
	bool (*is_returned)(const Driver *driver, int entry); /* a caller was told the token */
	void (*tell)(Driver *driver, int entry, DriverNews news, int64_t now_us);
	void (*no_more_waits)(Driver *driver, int entry); /* it was granted, or given up */
	int64_t (*hold_until_us)(const Driver *driver, int entry, int64_t now_us); /* 0: no limit */
	bool (*hold_is_over)(const Driver *driver, int entry, int64_t now_us);
	int64_t (*look_at_us)(Driver *driver, int entry, int64_t wake_at_us); /* see wish_look_at_us */
	bool (*wants_tokens)(const Driver *driver, int entry, int64_t now_us);
	void (*expect_tokens)(Driver *driver, int entry, int64_t until_us); /* 0: none are under way */
	DriverTurnEnd (*turn_end)(const Driver *driver, int entry);
	bool (*end_stay)(Driver *driver, int entry, int64_t now_us); /* if it has lasted long enough */
	bool (*end_hold)(Driver *driver, int entry,
					 int64_t now_us);                /* if it was detached long enough */
	bool (*give_up_stay)(Driver *driver, int entry); /* if it stays with nobody */
	bool (*give_up_detached)(Driver *driver, int entry);
	bool (*release_orphan)(Driver *driver, int entry, int64_t now_us); /* if its owner has gone */
	void (*want)(Driver *driver, int entry);                           /* another host waits */
	void (*tell_permit)(Driver *driver, int entry, int permit); /* of a queue: it may be free */
	void (*count_unsettled)(Driver *driver, int change);        /* leases: see settling_has */
	void (*free)(Driver *driver, int entry);                    /* nothing is owed */

	/* each step of a core, before (out is NULL) and after; NULL: nobody looks */
	void (*watch)(Driver *driver, int entry, const core_event *event, const core_out *out);
} DriverWorld;

struct Driver
{
	const DriverWorld *world;
	int host;      /* for the world */
	uint64_t id;   /* of this host, as others know it; never 0 */
	int entries;   /* of leases */
	char *leases;  /* the DriverLease of the first entry, */
	size_t stride; /* ... and how far the next is */
	DriverEntry *entry;
	ReleaseQueue releases;
	Settling *settling;    /* as DriverLease: it outlives the driver */
	bool serves;           /* each node was tried once: requests may ask */
	int64_t answer_us;     /* a node has to answer within this */
	int64_t retry_us;      /* mean pause between two rounds for a lock that another has, */
	int64_t retry_told_us; /* ... when nodes tell of its release */
	DriverPause pause[DRIVER_PAUSES];
};

static inline DriverLease *
driver_lease(const Driver *driver, int entry)
{
	return (DriverLease *) (driver->leases + driver->stride * (size_t) entry);
}

#endif /* REDLOCK_DRIVER_WORLD_H */
