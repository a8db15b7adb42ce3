/*
 * core.h
 *		The Redlock protocol of one lease over N independent nodes, as a sans-I/O state machine.
 *
 * core_step(lease, event, out) drives the machine: the event says what happened, `out` says what
 * to send.  The machine has no socket, clock, allocator or random source.  Instants and random
 * bits are fields of the event.  So the broker, the unit tests and a simulator run the same
 * object file.
 *
 * Source of the algorithm: "Distributed Locks with Redis" (the Redlock algorithm), redis.io.
 * core.c lists the differences.  Fencing tokens are an addition; docs/design/tokens.md has the
 * argument.
 *
 * The contract with the shell around the machine:
 *
 * - Instants are int64 microseconds of one monotonic clock, which also counts time asleep.  An
 *   instant is never earlier than the instant of the step before.
 *
 * - As long as a connection lives, its node executes commands in the order in which the steps
 *   asked for the commands.
 *
 * - For each command, the shell reports at most one CORE_REPLY, with the round of the command
 *   (core_lease.round when the step asked for the command).
 *
 * - When the connection dies, the shell reports one CORE_NODE_LOST for the node in place of the
 *   replies.  There is one exception: every unanswered command is an acquire or a renewal for
 *   which core_awaits_answer returns true, and the shell makes another connection at once.  Then
 *   the shell reports only CORE_NODE_READY, when the new connection is ready.
 *
 * - One thread of one process uses a lease at a time, without locks.
 */
#ifndef REDLOCK_CORE_H
#define REDLOCK_CORE_H

#include <stdbool.h>
#include <stdint.h>

/* node indexes: for configured nodes, and for nodes that leave after a reload */
#define CORE_NODES_MAX 16

typedef uint32_t core_mask; /* a set of nodes, one bit for each index */

#define CORE_BIT(node) ((core_mask) 1 << (node))

/*
 * The nodes that vote.  While one list replaces another, a quorum is a majority of each list
 * (joint consensus; Ongaro, "Consensus: Bridging Theory and Practice", 2014, section 4.3).  So a
 * lock is exclusive among hosts with the first list and hosts with both lists, and among hosts
 * with both lists and hosts with the second list.
 */
typedef struct core_lists
{
	core_mask now;
	core_mask next; /* the list that will replace `now`; 0: none */
} core_lists;

/*
 * Attempts of one request.  After the last attempt the lease is released, and the shell asks
 * with another request.  Renewals after the last attempt use one more number.
 */
#define CORE_ATTEMPT_MAX (((uint32_t) 1 << 27) - 2)

typedef enum core_state
{
	CORE_FREE = 0, /* no request, and no debt.  Left by ACQUIRE. */
	CORE_ASKING,   /* a round of acquires is out, or the token is being written.  Left by the
					* decision of the round, to HELD, BUSY, RELEASING or FREE; by RELEASE; by ADOPT,
					* to   BUSY. */
	CORE_BUSY,     /* pause before the next round: the last round failed (refused, or no quorum)
					* or was decided too late, and was undone, another host has its turn, or the request
					* was adopted.  Left by TICK, WAKE, RELEASE. */
	CORE_HELD,     /* valid until valid_until_us.  Left by RELEASE, or to LOST when the validity
					* ends or no majority is left. */
	CORE_LOST,     /* the validity ended before a renewal, or refusals left no majority.  Left by
					* RELEASE only. */
	CORE_RELEASING /* keys are being deleted; keys at unreachable nodes are debts.  Left to FREE
					* when no debt is left, when all keys have expired, or by FORGET.  BUSY also
					* enters this state without an outcome, when the request has used up its
					* attempts: the shell then asks again with another value. */
} core_state;

/* what this lease knows of its own key at one node */
typedef enum core_key
{
	CORE_KEY_ABSENT = 0, /* the node has no key, and no command is under way */
	CORE_KEY_MAYBE,      /* asked for; outcome unknown */
	CORE_KEY_PRESENT     /* the node confirmed this attempt or an earlier attempt; or an earlier
						  * command may have set the key, so an error now does not prove absence */
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
	uint32_t attempt : 27; /* last attempt of this request sent to the node; 0: none.  `key`
							* covers this attempt and all earlier attempts */
} core_node;

/* One lease.  Plain data without pointers, so a lease may live in shared memory. */
typedef struct core_lease
{
	core_state state;
	core_mask members;    /* the nodes that vote on this lease: all nodes of `lists` */
	core_lists lists;     /* the lease needs a majority of each list */
	core_lists target;    /* HELD: replaces `lists` as soon as core_may_relist allows */
	core_mask left;       /* nodes of an earlier list that still need a release */
	core_mask releasing;  /* nodes with an unanswered release */
	core_mask confirming; /* ASKING: nodes with an unanswered confirm */
	bool settled;         /* HELD, LOST: since `lists.next` was set, a majority of each list has
						   * had the key.  While false, renewals need `lists.now` only */
	bool once;            /* a "try": one round that finds a holder, but see recall_until_us */
	bool renewing;        /* HELD: a round of renewals is out */
	bool renewed;         /* a renewal of this grant was sent to some node */
	bool silent;          /* RELEASING: no release is published, see core_ends */
	bool woken;           /* ASKING: a WAKE came after this round began */
	bool rival_is_silent; /* ASKING: the rival publishes no release */
	bool rival_may_idle;  /* ASKING: the rival releases an idle lease when this host recalls the
						   * lease */
	int8_t rival_lead;    /* ASKING: the rival's count in the majority vote, see on_refusal */
	uint32_t rival;       /* ASKING: hash of the value of the probable holder of most refusing
						   * nodes */
	int32_t waiting;      /* ASKING, BUSY: hosts that wait for the lock, as a majority says */
	uint32_t splits;      /* rounds in a row that probably had no winner; at most
						   * CORE_ATTEMPT_MAX */
	int32_t late_rounds;  /* rounds in a row whose majority came too late, see ask_again */
	uint32_t attempt;     /* number of the last round of acquires of this request; once
						   * `renewed`, number of the renewals.  The lock's value contains the
						   * attempt, so a late command of an earlier attempt can't touch the key
						   * of a later attempt.  At most CORE_ATTEMPT_MAX + 1 */
	uint32_t round;       /* number of the last round of any kind.  It may wrap: no reply is
						   * under way for 2^32 rounds */
	int64_t ttl_us;
	int64_t answer_us;   /* time limit of a round */
	int64_t patience_us; /* for how long the request is retried without a quorum.  A try: for how
						  * long it waits for a rival with an idle lease */
	int64_t retry_us;    /* mean pause between two rounds of acquires, or of releases */
	int64_t unheard_us;  /* mean pause while no release may be published: a silent rival holds
						  * the lock, or no rival holds a majority */
	int64_t round_began_us;
	int64_t granted_until_us;            /* HELD: the nodes keep the keys for longer than this */
	int64_t valid_until_us;              /* HELD: the sooner of granted_until_us and
										  * hold_until_us; LOST: when the validity ended; else 0 */
	int64_t recall_until_us;             /* when a try ends, whatever the rival is; 0: the try
										  * has not gone past its first round */
	int64_t hold_at_most_us;             /* 0: no limit; else the validity ends this long after
										  * the grant */
	int64_t hold_until_us;               /* HELD: when the holder's limit ends, by
										  * hold_at_most_us or by LIMIT; 0: never */
	int64_t not_before_us;               /* BUSY: another host has its turn until then; a WAKE
										  * with not_before_us changes it.  A try: 0 */
	int64_t free_at_us;                  /* ASKING: when the holder's keys have expired, unless
										  * the holder renews them; 0: unknown */
	int64_t next_at_us;                  /* HELD: next round of renewals; BUSY: next round of
										  * acquires; RELEASING: next release of debts */
	int64_t unreachable_since_us;        /* start of the first round without a quorum; 0: the
										  * last round found a quorum */
	int64_t owed_until_us;               /* all keys have expired by then.  RELEASING: at all
										  * nodes; HELD: at the nodes in `left` */
	int64_t wake_at_us;                  /* when the lease needs the next TICK; 0: never */
	int64_t token;                       /* the fencing token.  ASKING: the token being written,
										  * or 0; HELD, LOST, RELEASING: the token that a
										  * majority confirmed, or 0 if the lock was not granted */
	int64_t bound;                       /* HELD, LOST, RELEASING: no other grant has or will
										  * have a token from `token` + 1 to `bound` */
	int64_t raise;                       /* HELD: value of `bound` after the current round of
										  * renewals */
	int64_t token_at[CORE_NODES_MAX];    /* the node's counter: after a granted acquire, or from
										  * a refused renewal; 0: unknown */
	uint16_t waiting_at[CORE_NODES_MAX]; /* hosts that wait for the lock, from the node's last
										  * refusal */
	core_node node[CORE_NODES_MAX];
} core_lease;

typedef enum core_event_type
{
	CORE_ACQUIRE,    /* FREE only; uses lists, ttl_us .. hold_at_most_us, retry_us,
					  * not_before_us, once */
	CORE_RELIST,     /* HELD: `lists` is the new configuration.  Adding or removing the next list
					  * takes effect at once.  Promoting the next list takes effect when the
					  * lease is `settled`.  Any other change waits for the end of the lease.  A
					  * request keeps its lists: see core_must_move */
	CORE_RELEASE,    /* any state; the owner is done or cancels */
	CORE_FORGET,     /* RELEASING: drop the debts; the keys expire by themselves */
	CORE_REPLY,      /* uses node, op, round, reply, counts_after_us, and the fields of a reply */
	CORE_NODE_LOST,  /* the node's connection broke: the node may or may not have executed
					  * unanswered commands */
	CORE_NODE_READY, /* the node takes commands (again), or takes releases again */
	CORE_ADOPT,      /* another shell takes over, with new connections.  Unanswered commands are
					  * lost, as by NODE_LOST.  A lost round of acquires is not a failure: the
					  * request starts again, and so does its patience_us.  Uses not_before_us,
					  * unless a WAKE comes first */
	CORE_WAKE,       /* the lock may be free: ask, or ask again after the current round.  Uses
					  * retry_us, not_before_us, by_us */
	CORE_EXTEND,     /* HELD: renew now, and raise the bound by `token`; ignored while a round of
					  * renewals is out */
	CORE_LIMIT,      /* HELD: the holder's limit is now hold_until_us, sooner or later than
					  * before; 0: no limit.  After a holder prolongs the lease, or after a
					  * hand-over, LIMIT is the first event, except for RELEASE.  Sends nothing:
					  * a due renewal waits for TICK */
	CORE_TICK        /* wake_at_us has come */
} core_event_type;

typedef enum core_op
{
	CORE_OP_ACQUIRE, /* set the value if the key is free, raise the counter */
	CORE_OP_CONFIRM, /* set the counter to the token, if key and counter are as our acquire left
					  * them */
	CORE_OP_RENEW,   /* extend the key; create a missing key, unless the counter may tell of a
					  * later grant */
	CORE_OP_RELEASE  /* delete the key; after a renewal, also raise the counter above the bound */
} core_op;

typedef enum core_reply
{
	CORE_REPLY_YES,    /* done */
	CORE_REPLY_NO,     /* refused: the node has another value, or may have had another value */
	CORE_REPLY_ERROR,  /* the node answered, and did not execute the command */
	CORE_REPLY_UNKNOWN /* a malformed reply: the node may have executed the command */
} core_reply;

typedef struct core_event
{
	core_event_type type;
	int64_t now_us;
	uint32_t random;         /* 32 random bits, for the spread of retries */
	core_mask can_send;      /* nodes that take commands now */
	core_mask can_vote;      /* nodes of can_send that may grant: not in quarantine */
	core_mask can_release;   /* nodes of can_send that take releases from RELEASING leases now; see
							  * core_unpaid */
	int node;                /* REPLY, NODE_LOST, NODE_READY */
	core_op op;              /* REPLY */
	core_reply reply;        /* REPLY */
	uint32_t round;          /* REPLY: the round of the command */
	int64_t counts_after_us; /* REPLY: the vote counts in rounds that began after this time; see
							  * guard_counts_after_us */
	uint32_t holder;         /* REPLY, a refused acquire: hash of the value at the node */
	bool silent;             /* REPLY, a refused acquire: the holder publishes no release */
	bool may_idle;         /* REPLY, a refused acquire: the holder's host may keep the lease idle */
	int64_t token;         /* REPLY, a granted acquire: the node's counter, > 0; a renewal that
							* was refused for a larger counter: the counter; any other refused
							* renewal: 0.  EXTEND: see CORE_EXTEND */
	int64_t busy_us;       /* REPLY, a refused acquire: time until the holder's key expires; 0:
							* unknown */
	uint16_t waiting;      /* REPLY, a refused acquire: hosts that wait for the lock */
	int64_t retry_us;      /* ACQUIRE: mean pause between rounds; WAKE: the same, where releases
							* are published; 0: as before */
	int64_t not_before_us; /* ACQUIRE, ADOPT: ask at this time at the earliest; 0: at once.
							* WAKE: ask at this time; 0: as soon as not_before_us of the lease
							* allows */
	int64_t by_us;         /* WAKE: ask at this time at the latest; 0: now */
	int64_t hold_until_us; /* LIMIT */
	core_lists lists;      /* ACQUIRE, RELIST */
	/* ACQUIRE only */
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
	CORE_REFUSED,     /* a "try" found a quorum, but did not get the lock */
	CORE_UNREACHABLE, /* no quorum of nodes could be reached */
	CORE_RENEWED,     /* valid_until_us is later than before */
	CORE_UNRENEWED,   /* a round of renewals failed; another round follows */
	CORE_EXPIRED      /* now LOST */
} core_outcome;

/* What a step asks of the shell.  The shell sends the commands in this order. */
typedef struct core_out
{
	core_mask release; /* delete the value of node[i].attempt or of an earlier attempt */
	core_mask acquire; /* set the value of `attempt` if the key is free */
	core_mask confirm; /* replace the counter token_at[i] by `token` */
	core_mask renew;   /* extend the value of `attempt` and raise the counter to `raise`; create
						* a missing key, unless the counter is above `bound`: then another
						* session may have been granted the lock since */
	core_outcome outcome;
} core_out;

extern void core_step(core_lease *lease, const core_event *event, core_out *out);

/* floor(N/2) + 1 of the configured nodes, whether reachable or not */
extern int core_quorum(core_mask members);

/* Returns true if `nodes` contain a majority of each list. */
extern bool core_has_quorum(core_lists lists, core_mask nodes);

/* The validity of a ttl: the ttl less the bound for clock drift. */
extern int64_t core_validity_us(int64_t ttl_us);

/*
 * The number to which a release raises the node's counter, for the node to refuse late renewals
 * of this lease. 0: no renewal was sent, and the counter stays.
 */
extern int64_t core_tombstone(const core_lease *lease);

/*
 * The nodes that still need a release and have no release under way.  A connected node may lack
 * room for releases, and is then missing from can_release (in state BUSY: from can_send).  When
 * the node has room again, the shell reports NODE_READY.
 */
extern core_mask core_unpaid(const core_lease *lease);

/* the arguments of a command, beside the lock's key and value */
typedef struct core_command
{
	uint32_t attempt; /* part of the value */
	int64_t counter;  /* CONFIRM: the counter to be replaced; RENEW: the bound; RELEASE: the
					   * tombstone; ACQUIRE: 0 */
	int64_t token;    /* CONFIRM: the new counter; RENEW: the new bound; else 0 */
} core_command;

/*
 * The arguments of a command to this node.  The last step must have asked for the command, or
 * core_awaits_answer must return true.
 */
extern core_command core_command_to(const core_lease *lease, int node, core_op op);

/* Returns true if a reply to this command, of this round, can still count. */
extern bool core_awaits_answer(const core_lease *lease, int node, core_op op, uint32_t round);

/*
 * The node's connection broke, and the shell makes another one at once.  Returns true if the
 * unanswered command may be sent again on the new connection.  Then NODE_READY replaces
 * NODE_LOST, see the contract above.
 */
extern bool core_may_reconnect(const core_lease *lease, int node);

/* the nodes that this lease needs, including nodes that are no longer listed */
extern core_mask core_served_by(const core_lease *lease);

/* the latest end of a round of renewals that may raise the bound; 0: there is no such round */
extern int64_t core_raises_until_us(const core_lease *lease);

/* Returns true if the release ends a lease, or a request whose round was out. */
extern bool core_ends(const core_lease *lease);

/*
 * Returns true if this request must be released and made again, because `lists` differ from its
 * own.
 */
extern bool core_must_move(const core_lease *lease, core_lists lists);

/* The nodes with the given vote in the current round; their number. */
extern core_mask core_votes(const core_lease *lease, core_vote vote);
extern int core_count(const core_lease *lease, core_vote vote);

#endif /* REDLOCK_CORE_H */
