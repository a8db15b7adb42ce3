/*
 * entry.h
 *		The entry of the lease table: how sessions pass a lease from one to the next.
 *
 * Each transition is a function of an Entry, a copy of the values that the decision needs.  The
 * function changes the copy, and the caller stores the fields that the comment names.  The caller
 * has the table lock from before the copy until the values are stored.  Locks, barriers and
 * wake-ups are the caller's.
 *
 *	 WISH_NONE      asks                    -> WISH_HOLD
 *	 WISH_HOLD      entry_stay              -> WISH_IDLE
 *	                entry_hand_over         -> WISH_HAND_OVER; WISH_IDLE, a permit that is passed;
 *	                                           WISH_NOTHING
 *	                entry_detach            -> WISH_DETACHED, or WISH_NOTHING
 *	                entry_join, entry_leave -> WISH_HOLD, with one reader more, or less
 *	                entry_prolong           -> WISH_HOLD, of a permit's queue
 *	                ENTRY_ORPHANED          -> WISH_NOTHING
 *	 WISH_IDLE      entry_take_over         -> WISH_HOLD
 *	                ENTRY_STAY_IS_OVER, ENTRY_RECALLED, another lock is opened -> WISH_NOTHING
 *	 WISH_HAND_OVER entry_take_over         -> WISH_HOLD
 *	                ENTRY_NOBODY_CAME, ENTRY_ORPHANED, another lock is opened -> WISH_NOTHING
 *	 WISH_DETACHED  entry_prolong           -> WISH_DETACHED
 *	                ENTRY_HOLD_IS_OVER, ENTRY_GIVEN_BACK -> WISH_NOTHING
 *	 WISH_NOTHING   the broker frees the entry -> WISH_NONE
 *
 * Pure, like the core.  Times are microseconds.
 */
#ifndef REDLOCK_ENTRY_H
#define REDLOCK_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/wish.h"

typedef enum LeaseState
{
	LEASE_WAITING = 0, /* being asked for */
	LEASE_HELD,        /* granted; see entry_validity_us */
	LEASE_REFUSED,     /* a try found it held by another; final */
	LEASE_UNREACHABLE, /* no quorum answered; final */
	LEASE_DEADLOCKED,  /* the holder waits for the owner, perhaps through others; final */
	LEASE_LOST         /* was held; validity ran out; final */
} LeaseState;

/* The answer to a session that wants a lock and has passed the gate. */
typedef enum LeaseOpened
{
	LEASE_OPENED,
	LEASE_HANDED_OVER, /* and granted: no need to ask */
	LEASE_JOINED,      /* and granted: one reader more */
	LEASE_AWAITED,     /* another reader asks for the lock: our latch is set at the outcome */
	LEASE_WANTED,      /* another host waits for exclusive mode: new readers must wait */
	LEASE_TAKEN,       /* the name is in use in this server */
	LEASE_DETACHED,    /* ... by a detached lease; its end sets our latch */
	LEASE_TOO_MANY_JOINED,
	LEASE_NO_ENTRY,    /* released leases are in the way: try again in a moment */
	LEASE_MORE_TOKENS, /* idle, but out of tokens: try again in a moment */
	LEASE_TABLE_FULL
} LeaseOpened;

typedef struct Entry
{
	Wish wish;
	LeaseState state;
	bool answered; /* all nodes have answered the present request */
	bool shared;
	bool wanted;        /* another host waits */
	bool may_stay;      /* as the nodes were told when the lease was asked for */
	bool is_queue;      /* of permits: hold_at_most_us bounds a stopped owner only */
	bool returns;       /* released, and sessions of this host wait */
	int readers;        /* shared: so many sessions hold the lease */
	int permits;        /* the lock has so many; 0: it has none */
	int handovers;      /* since the nodes granted the lease, */
	int turn_handovers; /* ... and of this turn before */
	int64_t ttl_us;
	int64_t hold_at_least_us;
	int64_t hold_at_most_us;
	int64_t keep_idle_us; /* 0: it does not stay */
	int64_t granted_until_us;
	int64_t hold_until_us; /* 0: no limit */
	int64_t idle_until_us; /* of WISH_IDLE */
	int64_t want_until_us; /* shared: a writer of another host waits until then, or longer */
	int64_t first_token;
	int64_t last_token;     /* of the grant, or the bound that renewals have raised */
	int64_t more_tokens_us; /* the broker asks for more tokens; they come by then or do not */
	int64_t turn_began_us;
	int64_t long_turn_us;
} Entry;

/* What a session asks for that has passed the gate. */
typedef struct EntryRequest
{
	bool same_gate; /* the session came through the entry's gate */
	bool same_lock; /* the key is the same: two keys may have one hash */
	bool shared;
	bool once;          /* a try */
	bool awaited;       /* a reader that was waiting at the grant */
	bool awaits_tokens; /* has time for LEASE_MORE_TOKENS; else it asks the nodes */
	int permits;
	int64_t ttl_us;
	int64_t hold_at_least_us;
	int64_t hold_at_most_us;
	int64_t keep_idle_us;
} EntryRequest;

/* The server's part in a release. */
typedef struct EntryRelease
{
	bool stays_end;     /* the server stops: no lease stays */
	int waiting;        /* sessions at the gate */
	int handover_limit; /* hand-overs of a turn */
	int64_t pass_us;    /* the session at the head of the permits' queue has so long to come;
						 * 0: there is none */
} EntryRelease;

typedef struct EntryTaken
{
	bool was_kept; /* by keep_idle */
	bool asks;     /* the session has the broker ask for more tokens */
} EntryTaken;

/* Reasons for which an entry without an acting owner ends. */
typedef enum EntryEnd
{
	ENTRY_STAY_IS_OVER, /* keep_idle has lasted long enough */
	ENTRY_RECALLED,     /* another host wants the lease, or the table needs room */
	ENTRY_NOBODY_CAME,  /* the waiter for which the lease was left has gone */
	ENTRY_HOLD_IS_OVER, /* a detached lease was held for as long as it may */
	ENTRY_GIVEN_BACK,   /* a detached lease was released by its token, was lost, or the server
						 * stops */
	ENTRY_ORPHANED,     /* a renewal is due that would be for nobody */
	ENTRY_ENDS          /* how many */
} EntryEnd;

/*
 * A lease that its owner lost has no claim to its name, whether the owner knows of the loss or not.
 */
extern bool entry_has_lost_name(Wish wish, LeaseState state);

/* 0: not held, or over */
extern int64_t entry_validity_us(const Entry *entry, int64_t now_us);

/* Tokens for holders of this grant, those of the past included. */
extern int entry_tokens(const Entry *entry);

/* Another host waits, or a writer does. */
extern bool entry_is_wanted(const Entry *entry, int64_t now_us);

/*
 * A session wants the lock of this entry, which has the name.  LEASE_HANDED_OVER: the caller goes
 * on with entry_take_over.  LEASE_OPENED: the session needs another lease, so the caller releases
 * this one.  Else the entry stays as it is.
 */
extern LeaseOpened entry_open(const Entry *entry, const EntryRequest *request, int64_t now_us);

/* Changes wish, keep_idle_us, hold_at_most_us, hold_until_us, handovers, readers. */
extern EntryTaken entry_take_over(Entry *entry, const EntryRequest *request, int64_t now_us);

/*
 * A reader wants to join the lease.  LEASE_JOINED: the caller counts it, if there is room.
 * LEASE_OPENED: there is nothing to join; see entry_open.
 */
extern LeaseOpened entry_join(const Entry *entry, const EntryRequest *request, int64_t now_us);

/*
 * A reader leaves: changes readers.  Returns whether it was the last one; then the caller goes on
 * as with a release.
 */
extern bool entry_leave(Entry *entry);

/*
 * The owner is done, or the last reader.  True: the lease stays by keep_idle.  Then it has changed
 * wish, idle_until_us, hold_until_us.  The fields `waiting` and `pass_us` need not be known yet.
 */
extern bool entry_stay(Entry *entry, const EntryRelease *release, int64_t now_us);

/*
 * The lease does not stay.  True: it is left for the next at the gate, or for the next that waits
 * for a permit.  Changes wish, returns, idle_until_us, hold_until_us.  False: changes wish and
 * returns; the name is free.
 */
extern bool entry_hand_over(Entry *entry, const EntryRelease *release, int64_t now_us);

/* The owner leaves a granted lease to its role.  Returns the wish from then on. */
extern Wish entry_detach(const Entry *entry, bool stays_end);

/* Returns the new hold_until_us; 0: the lease has ended, and can't be prolonged. */
extern int64_t entry_prolong(const Entry *entry, int64_t hold_at_most_us, int64_t now_us);

/* Does the entry end for this reason?  Then its wish becomes WISH_NOTHING. */
extern bool entry_ends(const Entry *entry, WishOwner owner, EntryEnd why, int64_t now_us);

/* Another host wants the lease.  Changes wanted; or want_until_us, of a shared lease. */
extern void entry_want(Entry *entry, int64_t now_us);

/* Is it time that the broker asks for more tokens? */
extern bool entry_wants_tokens(const Entry *entry, WishOwner owner, int64_t now_us);

#endif /* REDLOCK_ENTRY_H */
