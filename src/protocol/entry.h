/*
 * entry.h
 *		The entry of the lease table: how sessions pass a lease from one to the next.
 *
 * Each transition is a function of an Entry, a copy of the values that the decision needs.  The
 * function changes the copy, and the caller stores the fields that the comment names.  The caller
 * has the table lock from before the copy until the values are stored.  Locks, barriers and
 * wake-ups are the caller's.
 *
 *	 WISH_NONE      lease_ask, without lock -> WISH_HOLD
 *	                a release before lease_ask -> WISH_NOTHING
 *	 WISH_HOLD      entry_keep_idle         -> WISH_IDLE
 *	                entry_hand_over         -> WISH_HAND_OVER; WISH_IDLE, a permit that is passed;
 *	                                           WISH_NOTHING
 *	                entry_detach            -> WISH_DETACHED, or WISH_NOTHING
 *	                entry_join, entry_leave -> WISH_HOLD, with one reader more, or less; the last
 *	                                           reader: WISH_IDLE or WISH_NOTHING
 *	                entry_prolong           -> WISH_HOLD, of a permit's queue
 *	                ENTRY_ORPHANED          -> WISH_NOTHING
 *	 WISH_IDLE      entry_take_over         -> WISH_HOLD
 *	                ENTRY_IDLE_IS_OVER, ENTRY_RECALLED, opened with other terms -> WISH_NOTHING
 *	 WISH_HAND_OVER entry_take_over         -> WISH_HOLD
 *	                ENTRY_NOBODY_CAME, ENTRY_ORPHANED, opened with other terms -> WISH_NOTHING
 *	 WISH_DETACHED  entry_prolong           -> WISH_DETACHED
 *	                ENTRY_HOLD_IS_OVER, ENTRY_RELEASED -> WISH_NOTHING
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
	LEASE_REFUSED,     /* a try found another holder; final */
	LEASE_UNREACHABLE, /* no quorum answered; final */
	LEASE_DEADLOCKED,  /* the holder waits for the owner, perhaps through others.  A grant may come
						* until the owner has read this state; then final */
	LEASE_LOST         /* was held; the validity ended, or no majority was left; final */
} LeaseState;

/* The answer to a session that wants a lock and has passed the gate. */
typedef enum LeaseOpened
{
	LEASE_OPENED,
	LEASE_HANDED_OVER,  /* and granted: no need to ask */
	LEASE_JOINED,       /* and granted: one reader more */
	LEASE_READER_ASKS,  /* another reader asks for the lock: our latch is set at the outcome */
	LEASE_WRITER_WAITS, /* another host waits for exclusive mode: new readers must wait */
	LEASE_TAKEN,        /* the name is in use in this server */
	LEASE_DETACHED,     /* ... by a detached lease; its end sets our latch */
	LEASE_TOO_MANY_READERS,
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
	bool other_host_waits; /* for this lease */
	bool may_idle;         /* the nodes know from the request that the lease may become idle */
	bool is_queue;         /* of permits: hold_at_most_us bounds a stopped owner only */
	bool returns;          /* released while sessions of this host wait */
	int readers;           /* shared: number of sessions that hold the lease */
	int permits;           /* number of the lock's permits; 0: none */
	int handovers;         /* since the nodes granted the lease */
	int turn_handovers;    /* earlier hand-overs of this turn */
	int64_t ttl_us;
	int64_t hold_at_least_us;
	int64_t hold_at_most_us;
	int64_t keep_idle_us; /* 0: the lease is not kept idle */
	int64_t granted_until_us;
	int64_t hold_until_us;   /* 0: no limit */
	int64_t idle_until_us;   /* WISH_IDLE only */
	int64_t writer_until_us; /* shared: a writer of another host waits at least until then */
	int64_t first_token;
	int64_t last_token;     /* of the grant, or the bound after renewals */
	int64_t more_tokens_us; /* the broker has asked for more tokens; they come by this time or
							 * not at all */
	int64_t turn_began_us;
	int64_t long_turn_us;
} Entry;

/* the request of a session that has passed the gate */
typedef struct EntryRequest
{
	bool same_gate; /* the session came through the entry's gate */
	bool same_lock; /* the key is the same: two names may have one hash */
	bool shared;
	bool once;             /* a try */
	bool waited_for_grant; /* the reader was already waiting at the grant */
	bool waits_for_tokens; /* can wait for LEASE_MORE_TOKENS; else the session asks the nodes */
	int permits;
	int64_t ttl_us;
	int64_t hold_at_least_us;
	int64_t hold_at_most_us;
	int64_t keep_idle_us;
} EntryRequest;

/* the server's state at a release */
typedef struct EntryRelease
{
	bool bars_idle;     /* the server stops, or its host gives way to another host */
	int waiting;        /* sessions at the gate */
	int handover_limit; /* hand-overs of a turn */
	int64_t pass_us;    /* time for the session at the head of the permits' queue to come; 0:
						 * there is none */
} EntryRelease;

typedef struct EntryTaken
{
	bool was_kept; /* was an idle lease, by keep_idle */
	bool asks;     /* the session wakes the broker for more tokens */
} EntryTaken;

/* why an entry without an acting owner ends */
typedef enum EntryEnd
{
	ENTRY_IDLE_IS_OVER, /* keep_idle is over */
	ENTRY_RECALLED,     /* another host recalls the lease, or the table needs room */
	ENTRY_NOBODY_CAME,  /* the waiter for which the lease was kept has gone */
	ENTRY_HOLD_IS_OVER, /* a detached lease has reached the end of its time */
	ENTRY_RELEASED,     /* a detached lease was released by its token, was lost, or the server
						 * stops */
	ENTRY_ORPHANED,     /* a renewal is due for a lease without a holder */
	ENTRY_ENDS          /* number of reasons */
} EntryEnd;

/*
 * Returns true for a lost lease: it has no claim to its name, whether its owner knows of the
 * loss or not.
 */
extern bool entry_has_lost_name(Wish wish, LeaseState state);

/* how long the lease is still valid; 0: not held, or over */
extern int64_t entry_validity_us(const Entry *entry, int64_t now_us);

/* The tokens of this grant, for past and future holders. */
extern int entry_tokens(const Entry *entry);

/* Returns true if another host waits, or a writer of another host. */
extern bool entry_other_host_waits(const Entry *entry, int64_t now_us);

/*
 * A session wants the lock whose name this entry has.  Returns LEASE_HANDED_OVER: the caller
 * goes on with entry_take_over.  LEASE_OPENED: the session needs another lease, so the caller
 * releases the lease of this entry.  Any other result leaves the entry unchanged.
 */
extern LeaseOpened entry_open(const Entry *entry, const EntryRequest *request, int64_t now_us);

/*
 * Makes the session the holder.  Changes wish, keep_idle_us, hold_at_most_us, hold_until_us,
 * handovers, readers.
 */
extern EntryTaken entry_take_over(Entry *entry, const EntryRequest *request, int64_t now_us);

/*
 * A reader wants to join the lease.  Returns LEASE_JOINED: the caller counts the reader, if
 * there is room.  LEASE_OPENED: there is no lease to join; see entry_open.
 */
extern LeaseOpened entry_join(const Entry *entry, const EntryRequest *request, int64_t now_us);

/*
 * A reader leaves.  Changes readers, returns.  Returns true for the last reader: the caller goes
 * on as with a release.
 */
extern bool entry_leave(Entry *entry);

/*
 * The owner or the last reader is done.  Returns true if keep_idle keeps the lease, and then has
 * changed wish, returns, idle_until_us, hold_until_us.  The function does not read `waiting` and
 * `pass_us` of the release.
 */
extern bool entry_keep_idle(Entry *entry, const EntryRelease *release, int64_t now_us);

/*
 * The lease is not kept idle.  Returns true if the lease is kept for the next session at the
 * gate, or at the head of the permits' queue.  Changes wish, returns, idle_until_us,
 * hold_until_us.  Returns false if the name is free.  Changes wish, returns.
 */
extern bool entry_hand_over(Entry *entry, const EntryRelease *release, int64_t now_us);

/* The owner turns the lease into a detached lease of its role.  Returns the new wish. */
extern Wish entry_detach(const Entry *entry, bool stopping);

/* Returns the new hold_until_us; 0: the lease has ended, and can't be prolonged. */
extern int64_t entry_prolong(const Entry *entry, int64_t hold_at_most_us, int64_t now_us);

/* Returns true if the entry ends for this reason; the caller then sets the wish to WISH_NOTHING. */
extern bool entry_ends(const Entry *entry, WishOwner owner, EntryEnd why, int64_t now_us);

/* Another host waits for the lease.  Changes other_host_waits, or writer_until_us if shared. */
extern void entry_note_waiting_host(Entry *entry, int64_t now_us);

/* Returns true if the broker should ask for more tokens. */
extern bool entry_needs_tokens(const Entry *entry, WishOwner owner, int64_t now_us);

#endif /* REDLOCK_ENTRY_H */
