/*
 * core.h
 *		The Redlock protocol of one lease over N independent nodes, as a
 *		sans-I/O state machine.
 *
 * The machine is driven by core_step(lease, event, out): what happened goes
 * in, what to send comes out.  It has no socket, clock, allocator or random
 * source of its own: instants and random bits are fields of the event.  So the
 * same object file runs in the broker, in the unit tests and in a simulator.
 *
 * Source of the algorithm: "Distributed Locks with Redis" (the Redlock
 * algorithm), redis.io.  What differs is said in core.c.  Fencing tokens, and
 * what they guard, are our own; src/README.md has the argument.
 *
 * The contract with the shell around it:
 *
 * - Instants are int64 microseconds of one monotonic clock that also counts
 *	 time asleep.  They never run backwards from one step to the next.
 * - Commands to one node are executed in the order in which the steps asked
 *	 for them, as long as its connection lives.
 * - For each command asked for, the shell reports at most one CORE_REPLY, with
 *	 the round it was asked in (core_lease.round at that time).  When the
 *	 connection dies it reports one CORE_NODE_LOST for the node instead; or, if all
 *	 that is out are acquires and renewals that are awaited, and another connection
 *	 is made at once, only CORE_NODE_READY when there is one.
 * - A lease is used by one thread of one process at a time, without locks.
 */
#ifndef REDLOCK_CORE_H
#define REDLOCK_CORE_H

#include <stdbool.h>
#include <stdint.h>

/* Node indexes: configured nodes, and those that leave after a reload. */
#define CORE_NODES_MAX 16

typedef uint32_t core_mask; /* a set of nodes, one bit for each index */

#define CORE_BIT(node) ((core_mask) 1 << (node))

/*
 * The nodes that vote.  While one list takes the place of another, a majority of each is
 * needed (joint consensus; Ongaro, "Consensus: Bridging Theory and Practice", 2014,
 * section 4.3): so a lock is exclusive among hosts of which some have the one list, some
 * both; and among hosts of which some have both, some the other.
 */
typedef struct core_lists
{
	core_mask now;
	core_mask next; /* the list that is to take its place; 0: none */
} core_lists;

/*
 * Attempts of one request; then it is given up, and asked anew by another.  The
 * renewals of the last one still have a number.
 */
#define CORE_ATTEMPT_MAX (((uint32_t) 1 << 27) - 2)

typedef enum core_state
{
	CORE_FREE = 0, /* nothing is asked for, nothing is owed.
					* Left by ACQUIRE. */
	CORE_ASKING,   /* a round of acquires is out, or the writing of its
					* token.  Left by its decision: HELD, BUSY or
					* RELEASING. */
	CORE_BUSY,     /* the last round was refused and undone, or another
					* host has its turn; waits to ask (again).  Left by
					* TICK, WAKE, RELEASE. */
	CORE_HELD,     /* valid until valid_until_us.  Left by RELEASE, or to
					* LOST when validity ran out. */
	CORE_LOST,     /* validity ran out before it was renewed; final but
					* for RELEASE. */
	CORE_RELEASING /* keys are being deleted; those on nodes that can't be
					* reached are debts.  Left to FREE when nothing is
					* owed, or all of it has expired.  Entered from BUSY
					* by itself, without an outcome, when the request has
					* used up its attempts: the shell asks anew, with
					* another value. */
} core_state;

/* What this lease knows of its own key at one node. */
typedef enum core_key
{
	CORE_KEY_ABSENT = 0, /* not there, and nothing under way */
	CORE_KEY_MAYBE,      /* asked for, outcome unknown */
	CORE_KEY_PRESENT     /* confirmed by the node, if only an earlier attempt's; or
						  * asked for before, so an error now proves nothing */
} core_key;

typedef enum core_vote
{
	CORE_VOTE_NONE = 0, /* not asked in this round */
	CORE_VOTE_PENDING,
	CORE_VOTE_YES,
	CORE_VOTE_NO,   /* the node answered, and refused */
	CORE_VOTE_ERROR /* no usable answer */
} core_vote;

typedef struct core_node
{
	uint32_t key : 2;      /* core_key */
	uint32_t vote : 3;     /* core_vote, of the current round */
	uint32_t attempt : 27; /* the last attempt of this request that was sent; 0:
							* none; `key` speaks of it, and of all before it */
} core_node;

/* One lease.  Plain data without pointers: it may live in shared memory. */
typedef struct core_lease
{
	core_state state;
	core_mask members;    /* the nodes that vote on this lease: those of `lists` */
	core_lists lists;     /* ... which it needs a majority of each of */
	core_lists wanted;    /* what takes the place of `lists` as soon as it may, while HELD */
	core_mask left;       /* nodes of an earlier list that are owed a release */
	core_mask releasing;  /* nodes with an unanswered release */
	core_mask confirming; /* ASKING: nodes with an unanswered confirm */
	bool settled;         /* HELD, or was: a majority of each list has had the key
						   * since it is there.  Until then `lists.now` alone counts
						   * for renewals */
	bool once;            /* a "try": one round that finds a holder, but see recall_until_us */
	bool renewing;        /* HELD: a round of renewals is out */
	bool renewed;         /* a renewal of this grant was sent to some node */
	bool silent;          /* RELEASING: nobody is told, see core_ends */
	bool woken;           /* ASKING: a wake came after this round began */
	bool rival_is_silent; /* ASKING: it tells no release */
	bool rival_may_stay;  /* ASKING: it gives up what it has for nobody when that is wanted */
	int8_t rival_lead;    /* ASKING: by how many more than all others it seems to hold: at
						   * most all nodes */
	uint32_t rival;       /* ASKING: who seems to hold most of the refusing nodes */
	int32_t waiting;      /* ASKING, BUSY: hosts that wait for the lock, as a majority says */
	uint32_t splits;      /* rounds in a row that nobody seems to have won: no more than
						   * attempts of one request */
	uint32_t attempt;     /* number of the last round of acquires of this
						   * request, or if `renewed` the next one, of its
						   * renewals; a part of the lock's value, so no late
						   * command of an earlier attempt can touch a later
						   * one; at most CORE_ATTEMPT_MAX + 1 */
	uint32_t round;       /* number of the last round of any kind.  It wraps: no
						   * reply is under way for 2^32 rounds */
	int64_t ttl_us;
	int64_t answer_us;   /* a round is decided this long after it began */
	int64_t patience_us; /* how long "no quorum reachable" is retried; by a try, how long a
						  * rival that may stay */
	int64_t retry_us;    /* mean pause between two asking rounds */
	int64_t unheard_us;  /* ... while no release may be told: a silent rival holds the lock, or
						  * it is not sure that anybody does */
	int64_t round_began_us;
	int64_t granted_until_us;            /* HELD: the keys outlive this, as the nodes said */
	int64_t valid_until_us;              /* HELD: the sooner of granted_until_us and hold_until_us;
										  * LOST: validity ended here; else 0 */
	int64_t recall_until_us;             /* a try is refused from then on, whoever the rival is; 0:
										  * it was refused by none but those that stay */
	int64_t hold_at_most_us;             /* 0, or validity ends this long after the grant */
	int64_t hold_until_us;               /* HELD: when that is, or as LIMIT said; 0: never */
	int64_t not_before_us;               /* BUSY: another host has its turn until then; a wake
										  * that says so changes it.  Not of a try: 0 */
	int64_t free_at_us;                  /* ASKING: the holder's keys have expired by then, if
										  * it does not renew them; 0: unknown */
	int64_t next_at_us;                  /* HELD: next round of renewals; BUSY: next round
										  * of acquires; RELEASING: debts asked again */
	int64_t unreachable_since_us;        /* 0: the last round found a quorum */
	int64_t owed_until_us;               /* RELEASING: all keys have expired by then; HELD: those
										  * at the nodes that were left */
	int64_t wake_at_us;                  /* next TICK wanted; 0: none */
	int64_t token;                       /* the fencing token: ASKING: being written, or 0;
										  * HELD, LOST, RELEASING: a majority held it, or 0 if
										  * the lock was not granted */
	int64_t bound;                       /* HELD, LOST, RELEASING: no token above `token`
										  * and up to this was or will be granted */
	int64_t raise;                       /* HELD: what a round of renewals makes of it */
	int64_t token_at[CORE_NODES_MAX];    /* the node's counter after its yes to an acquire,
										  * or as told by its no to a renewal; 0: none */
	uint16_t waiting_at[CORE_NODES_MAX]; /* hosts that wait for it, as the node's last no said */
	core_node node[CORE_NODES_MAX];
} core_lease;

typedef enum core_event_type
{
	CORE_ACQUIRE,    /* FREE only; uses lists, ttl_us .. once, can_send */
	CORE_RELIST,     /* the lists are others from now on; uses lists.  Comes into force
					  * while the lease is HELD: at once if it only brings a next
					  * list, or takes it away; the next list takes the place of the
					  * other when the lease is settled; all else waits for the
					  * lease to end.  A request keeps its lists: see core_must_move */
	CORE_RELEASE,    /* any state; the owner is done or gives up */
	CORE_FORGET,     /* RELEASING: what is owed is forgotten; it expires by itself */
	CORE_REPLY,      /* uses node, op, round, reply, busy_us */
	CORE_NODE_LOST,  /* the node's connection broke: what was sent to it and
					  * not answered may or may not have been executed */
	CORE_NODE_READY, /* the node can be reached (again), or takes releases again */
	CORE_ADOPT,      /* another shell takes over, and all connections are new:
					  * what was asked and not answered is lost, as by NODE_LOST.
					  * A round of acquires that was out was nobody's failure:
					  * asking begins anew, and patience with it; uses
					  * not_before_us, or a WAKE comes first */
	CORE_WAKE,       /* the lock may be free; uses retry_us, not_before_us, by_us.  A hint to
					  * ask, or, if that is under way, to ask again */
	CORE_EXTEND,     /* HELD: renew now, and raise the bound by `token`; in vain while a
					  * round of renewals is out */
	CORE_LIMIT,      /* HELD: it may be held until hold_until_us, later or sooner than before; 0:
					  * for as long as it is renewed.  The shell says it before any other event
					  * but RELEASE, when the holder has prolonged the lease, or the lease has
					  * another holder.  Sends nothing: a renewal that is due waits for TICK */
	CORE_TICK        /* wake_at_us has come */
} core_event_type;

typedef enum core_op
{
	CORE_OP_ACQUIRE, /* set the value if the key is free, raise the counter */
	CORE_OP_CONFIRM, /* where both are still as after our acquire, set the
					  * counter to the token */
	CORE_OP_RENEW,   /* extend the key of a renewal; unless the counter may tell
					  * of a later grant, create it */
	CORE_OP_RELEASE  /* delete the key, raise the counter above the bound */
} core_op;

typedef enum core_reply
{
	CORE_REPLY_YES,    /* done */
	CORE_REPLY_NO,     /* refused: another value is there, or may have been */
	CORE_REPLY_ERROR,  /* the node answered that it did not execute it */
	CORE_REPLY_UNKNOWN /* a malformed reply: it may have been executed */
} core_reply;

typedef struct core_event
{
	core_event_type type;
	int64_t now_us;
	uint32_t random;       /* 32 random bits, for the spread of retries */
	core_mask can_send;    /* nodes that take commands now */
	core_mask can_vote;    /* of these, nodes that may grant: not in quarantine */
	core_mask can_release; /* of these, nodes that take releases of leases that are over
							* (RELEASING) now; see core_unpaid */
	int node;              /* REPLY, NODE_LOST, NODE_READY */
	core_op op;            /* REPLY */
	core_reply reply;      /* REPLY */
	uint32_t round;        /* REPLY: the round it was asked in */
	int64_t met_us;        /* REPLY: since when the process that answers is known to be
							* that of this node, and of no other */
	uint32_t holder;       /* REPLY, a refused acquire: hash of the value in its way */
	bool silent;           /* REPLY, a refused acquire: whose release will not be told */
	bool may_stay;         /* REPLY, a refused acquire: whose host may have the lock for nobody */
	int64_t token;         /* REPLY, a granted acquire: the node's counter, > 0; a
							* refused renewal: the same if that is why, else 0.
							* EXTEND: see there */
	int64_t busy_us;       /* REPLY, a refused acquire: time until the holder's key
							* expires; 0: unknown */
	uint16_t waiting;      /* REPLY, a refused acquire: hosts that wait for it */
	int64_t retry_us;      /* ACQUIRE; WAKE: from now on, where releases are told */
	int64_t not_before_us; /* ACQUIRE, ADOPT: do not ask before; 0: at once.  WAKE: ask
							* then; 0: as soon as not_before_us of the lease allows */
	int64_t by_us;         /* WAKE: ask by then, if not sooner; 0: now */
	int64_t hold_until_us; /* LIMIT */
	core_lists lists;      /* ACQUIRE, RELIST */
	/* ACQUIRE only: */
	bool once;
	int64_t ttl_us;
	int64_t answer_us;
	int64_t patience_us;
	int64_t hold_at_most_us; /* 0: no limit */
} core_event;

typedef enum core_outcome
{
	CORE_NOTHING = 0,
	CORE_GRANTED,     /* now HELD */
	CORE_MUST_WAIT,   /* now BUSY */
	CORE_REFUSED,     /* a "try" found a quorum and not the lock */
	CORE_UNREACHABLE, /* no quorum of nodes could be reached */
	CORE_RENEWED,     /* valid_until_us moved on */
	CORE_UNRENEWED,   /* a round of renewals failed; another will be tried */
	CORE_EXPIRED      /* now LOST */
} core_outcome;

/* What a step asks of the shell; sends go out in this order. */
typedef struct core_out
{
	core_mask release; /* delete the value of node[i].attempt, or of any
						* attempt before it */
	core_mask acquire; /* set the value of `attempt` if free */
	core_mask confirm; /* replace the counter token_at[i] by `token` */
	core_mask renew;   /* extend the value of `attempt`, or create it unless the
						* counter is larger than `bound`: then others may have been
						* granted something since; and raise the counter to `raise` */
	core_outcome outcome;
} core_out;

extern void core_step(core_lease *lease, const core_event *event, core_out *out);

/* floor(N/2) + 1 of the configured nodes, never of the reachable ones */
extern int core_quorum(core_mask members);

/* Is there a majority of each list among these nodes? */
extern bool core_has_quorum(core_lists lists, core_mask nodes);

/* Validity that a ttl gives, less the bound for clock drift. */
extern int64_t core_validity_us(int64_t ttl_us);

/*
 * What a release raises the node's counter to, so that renewals of ours that
 * come late do nothing; 0: leave it, there were none.
 */
extern int64_t core_tombstone(const core_lease *lease);

/*
 * Nodes that are owed a release, of which none is under way.  Where such a node is
 * connected, but was not in can_release (BUSY: in can_send) for lack of room, the
 * shell says NODE_READY when there is room.
 */
extern core_mask core_unpaid(const core_lease *lease);

/* What a command says beside the lock's key and value. */
typedef struct core_command
{
	uint32_t attempt; /* a part of the value */
	int64_t counter;  /* CONFIRM: the node's, which is replaced; RENEW: the bound; RELEASE:
					   * core_tombstone; ACQUIRE: 0 */
	int64_t token;    /* CONFIRM: what replaces it; RENEW: what the bound becomes; else 0 */
} core_command;

/* Of the command to this node that the last step asked for, or that core_awaits. */
extern core_command core_command_to(const core_lease *lease, int node, core_op op);

/* May a command of this round still count? */
extern bool core_awaits(const core_lease *lease, int node, core_op op, uint32_t round);

/*
 * The node's connection broke, and another is made at once: can what it was sent be asked
 * anew on that?  See the contract above: NODE_READY comes in place of NODE_LOST.
 */
extern bool core_may_reconnect(const core_lease *lease, int node);

/* The nodes that this lease can't do without, also those that are no longer listed. */
extern core_mask core_served_by(const core_lease *lease);

/* A round is out that may raise the bound: when that ends at the latest; else 0. */
extern int64_t core_raises_until_us(const core_lease *lease);

/* Is what it releases the end of a lease, or of a request whose round was out? */
extern bool core_ends(const core_lease *lease);

/* The nodes are others from now on: is this request to be given up, and asked of them? */
extern bool core_must_move(const core_lease *lease, core_lists lists);

/* The nodes with the given vote in the current round, and their number. */
extern core_mask core_votes(const core_lease *lease, core_vote vote);
extern int core_count(const core_lease *lease, core_vote vote);

#endif /* REDLOCK_CORE_H */
