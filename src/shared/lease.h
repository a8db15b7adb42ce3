/*
 * lease.h
 *		Shared memory: the lease table, the work queue of the broker, and the
 *		counters.
 *
 * The functions are in lease.c and in the files lease_*.c; src/README.md says which file has which
 * subject.
 *
 * A field is touched as its mark says:
 *
 *	 table lock (LWLock)   the index by name, and the fields of a lease marked (t):
 *						   written while the entry is taken, constant until it is
 *						   freed.  There are LEASE_PARTITIONS of them, each for the
 *						   names whose hash falls to it: see lease_lock_of
 *	 free mutex			   the free entries, and the field marked (f)
 *	 queue mutex		   the queue and the fields marked (q)
 *	 (m)				   written by the broker alone, under holder_version
 *	 owner only (o)		   written by the owning backend, before it queues the
 *						   lease; read by the broker after it took it from the
 *						   queue, and by views, which may see an older value
 *	 broker only (b)	   read and written by the broker alone
 *	 grant (g)			   written by the broker before `state` is LEASE_HELD,
 *						   constant from then on
 *	 atomics (a)		   one writer each: the owner writes `wish`, `company` and
 *						   `idle_until_us`, the broker all others; but for `joined`,
 *						   and what a queue is told of permits, by whoever gives one back.
 *						   When a lease is detached, whoever has the table lock writes
 *						   `wish`.  After the grant whoever has the table lock writes
 *						   `hold_until_us`
 *
 * Readers take no lock, but copy (lease_copy): they must not keep the broker
 * waiting, however many they are.  What is marked (t) changes
 * under Lease.version.
 *
 * Order: the detaching lock, one table lock, one of the mutexes or of the lock manager's own.  No
 * lock is held across a wait.
 *
 * Each decision below is a transition of protocol/entry.h: under the table lock the values that it
 * needs are copied (lease_entry), and what has changed is stored.
 *
 * Hand-over: a session that releases a valid lease while another session of this
 * server waits at the gate may leave it without an owner (WISH_HAND_OVER): it keeps its
 * name, and the next through the gate takes it over under the table lock, without
 * the broker and without the network.  A session that gives up waiting at the gate
 * calls lease_release_idle, so that an idle lease that nobody comes for is released.
 * Each holder has a limit of its own (hold_until_us), or none; while the lease is idle there is
 * none.  The broker reads the limit whenever it looks at the lease, and is woken only if the next
 * holder's limit ends before that (looks_at_us).
 *
 * Stay: by keep_idle it may leave the lease idle though nobody waits (WISH_IDLE), until
 * idle_until_us.  The broker is woken only if it would look at the lease later than that
 * (looks_at_us); it ends the stay, and until then it renews.  lease_want ends it, too,
 * and so does whoever needs room in the table.  A permit stays so for a moment where the
 * owner of its queue is of this server (PERMITS_PASS_US).
 *
 * Detached: after the grant a session may leave the lease to its role (WISH_DETACHED).  From
 * then on it belongs to no process, and the gate is left; it keeps its name until somebody
 * gives it back (lease_release_detached), or the broker ends it: when hold_until_us comes,
 * when it was lost, or when the server stops.  Who passes the gate finds the name taken,
 * stays in the gate, and is woken by its latch (is_awaited).  An entry may be another
 * lease's at any time, so those who do not own it know it by its generation (DetachedLease).
 *
 * An entry is taken by a backend (lease_open), asked for (lease_ask) and released
 * (lease_release): from then on it is no longer found by its name, so the name can
 * be taken again at once, and the broker frees the entry when no node is owed
 * anything.
 *
 * A shared lease has many sessions.  The first asks for it, the others join it when it is
 * granted (`joined`); its gate is entered in share mode, so that all of them can.  The last one
 * out releases it, or leaves it to stay.  It is never left for the next through the gate, who
 * need not wait there.
 *
 * A lost lease is its owner's until the owner releases it, but another session may
 * take its name before that.  The loser's gate is not in the way: each loss moves
 * the name on to another gate (lease_gate).
 */
#ifndef REDLOCK_LEASE_H
#define REDLOCK_LEASE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "driver/driver_lease.h"
#include "protocol/core.h"
#include "protocol/entry.h"
#include "protocol/lua.h"
#include "protocol/settling.h"
#include "protocol/standing.h"
#include "protocol/steps.h"
#include "shared/seqlock.h"

#define LEASE_TEXT_SIZE 384 /* bytes for a key, and two texts of who holds it */

/* LeaseTable.unsettled */
#define LEASE_UNSETTLED_UNKNOWN PG_UINT32_MAX

/* Lease.silent_nodes before the broker has asked them */
#define LEASE_NOT_ASKED PG_UINT32_MAX

/* Asked for together with others, of which some may be given back (protocol/several.h). */
typedef enum LeaseCompany
{
	LEASE_ALONE = 0,    /* the owner waits for this one, and gives nothing back meanwhile */
	LEASE_AMONG,        /* it does not yet know for which it will wait */
	LEASE_AMONG_REFUSED /* ... and another host has this one, or is to have it first */
} LeaseCompany;

typedef enum LockScope
{
	SCOPE_TRANSACTION, /* released after commit or abort, or after
						* ROLLBACK TO an earlier savepoint */
	SCOPE_CALL,        /* survives the COMMITs of a procedure; released with
						* the transaction in which the outermost CALL or DO
						* ends */
	SCOPE_SESSION,     /* until released, DISCARD ALL, session's end */
	SCOPE_DETACHED     /* until released by its token, or hold_at_most ends */
} LockScope;

typedef struct Lease
{
	/* (t) */
	SeqLock version;
	bool in_use;
	uint64 hash; /* of the name; key of the index */
	uint64 gate; /* which its owner holds, and others wait at */
	uint16 prefix_len;
	uint16 key_len;
	char key[LEASE_TEXT_SIZE]; /* prefix, then the name in UTF-8; after it
								* lease_holder (o) and lease_held_by (m), cut
								* where the key is long */
	/* (t), but changed by a hand-over, as the gate is */
	int owner_pid; /* 0: detached, or was when it was released */
	int owner_procno;
	Oid owner_role;
	Oid owner_database;
	int keep_idle_ms; /* how long it may stay after its owner; 0: not */
	bool wanted;      /* by another host: it must not stay */
	bool may_stay;    /* as the nodes were told when it was asked for */
	bool shared;      /* by many sessions, its owner is the one that asked for it */
	bool is_awaited;  /* (t) detached, or shared: sessions wait in the gate for its end */
	bool is_queue;    /* for permits; while it is held, its owner waits for one */
	uint16 permits;   /* it is one of so many, or their queue; 0: of no such lock */

	int next_named; /* (t) entry number of the next in its bucket, or -1 */
	int next_free;  /* (f) entry number, or -1 */

	/* (q) */
	uint32 queued;   /* queue_number of the queue that it is in; 0: in none, or
					  * that of an earlier broker */
	int next_queued; /* entry number, or -1 */

	/* (o) */
	bool once;            /* a try */
	bool patient;         /* asks on without a quorum, until it is given up */
	bool returns;         /* released, and sessions of this server wait on */
	bool goes_on;         /* (t) released, and the turn goes on with another lease */
	int handovers;        /* so often handed over since the nodes granted it */
	int64 waits_since_us; /* what hosts are told that have it */
	LockScope scope;      /* the widest that it is held at */
	int ttl_ms;
	int hold_at_least_ms; /* the key stays that long, even after a release */
	int hold_at_most_ms;  /* 0, or validity ends then; (t) as keep_idle_ms */
	TimestampTz since;    /* asked for; then: granted */
	int64 token;          /* what redlock_acquire returned; 0 before */

	/* (a) */
	pg_atomic_uint32 wish;             /* Wish */
	pg_atomic_uint32 state;            /* LeaseState */
	pg_atomic_uint64 granted_until_us; /* redlock_clock_us() time; 0: none */
	pg_atomic_uint64 idle_until_us;    /* WISH_IDLE: ends then */
	pg_atomic_uint64 hold_until_us;    /* ends by hold_at_most of its holder then; 0: it does not */
	pg_atomic_uint64 looks_at_us;      /* the broker looks whether a stay or a hold is over then;
										* PG_INT64_MAX: it has to be woken */
	pg_atomic_uint64 last_token;       /* of the grant: LUA_SPAN, or more since renewals */
	pg_atomic_uint64 more_tokens_us;   /* they are asked for, and come by then or do not */
	pg_atomic_uint32 silent_nodes;     /* of the last round, or of the first while it
										* is out: no usable answer (yet) */
	pg_atomic_uint32 denying_nodes;    /* of the last round: the key is not there */
	pg_atomic_uint32 permits_told;     /* held, of a queue: so often its owner was told that a
										* permit may be free */
	pg_atomic_uint32 free_permit;      /* refused, of a permit: another that is free; of a
										* queue: that of which its owner was told last; or 0 */
	pg_atomic_uint32 company;          /* LeaseCompany; the broker only makes LEASE_AMONG
										* LEASE_AMONG_REFUSED */
	pg_atomic_uint32 joined;           /* sessions that share it: each counts itself, under the
										* table lock in any mode; from or to none exclusively */
	pg_atomic_uint64 want_until_us;    /* shared: a writer waits until then, or longer; the lease
										* must not stay, and no session may join */

	/* (m) */
	SeqLock holder_version;
	bool held_by_host;      /* a host wrote who holds it, not a plain Redlock client */
	TimestampTz kept_until; /* it was released elsewhere, and is kept until then by its
							 * hold_at_least; 0: it was not */

	/* (b) */
	uint8 secret[LOCK_SECRET_BYTES];
	DriverLease drive; /* but the fields for the turn and the first token, which are (g) */
} Lease;

StaticAssertDecl(sizeof(Lease) <= 1128, "an entry takes little more than a kilobyte");

/* A detached lease, as it was found; it may have ended since. */
typedef struct DetachedLease
{
	Lease *lease;
	uint64 hash;
	uint32 generation;
	int64 token;
	Oid role;
} DetachedLease;

typedef enum LeaseCounter
{
	COUNT_GRANTED,
	COUNT_REFUSED,
	COUNT_UNREACHABLE,
	COUNT_RENEWED,
	COUNT_UNRENEWED,
	COUNT_LOST,
	COUNT_RELEASED,
	COUNT_HANDED_OVER,
	COUNT_WOKEN,
	COUNTERS_OF_0_1, /* how many redlock_pg 0.1.0 has */
	COUNT_TAKEN_IDLE = COUNTERS_OF_0_1,
	COUNT_RECALLED,
	COUNTERS /* how many */
} LeaseCounter;

/* Processes count in one of these each, as one cache line would go to and fro between them. */
#define COUNT_STRIPES 16

typedef union LeaseCounts /* by procno modulo COUNT_STRIPES */
{
	pg_atomic_uint64 counter[COUNTERS];
	char pad[128];
} LeaseCounts;

StaticAssertDecl(COUNTERS * sizeof(pg_atomic_uint64) <= 128, "a process counts in one place");

/* Counters of losses; two names in one cost a place in the queue, no more. */
#define LOSSES 256

/* Table locks, as many as PostgreSQL's own lock table has. */
#define LEASE_PARTITIONS 16

/* Texts of deadlocks, each until the entry of its lease is freed. */
#define CYCLES 16
#define CYCLE_SIZE 12288

typedef struct LeaseTable
{
	uint64 host_id;      /* of this server, for the life of its shared memory; random */
	LWLockPadded *locks; /* LEASE_PARTITIONS, and the detaching lock */
	int *bucket;         /* (t) entry number of the first name in each, or -1 */
	int buckets;         /* a power of two, LEASE_PARTITIONS or more */
	bool stays_end;      /* (t) the server stops: no lease stays with nobody */
	int entries;
	int max_locks;          /* redlock.max_locks, or what the lock manager has room for */
	pg_atomic_uint32 used;  /* entries in use */
	pg_atomic_uint32 owned; /* leases not yet released, lost ones too: <= max_locks */
	pg_atomic_uint32 hand;  /* the entry from which on an idle lease is looked for */
	slock_t free_mutex;
	int first_free; /* (f) entry number, or -1 */
	slock_t queue_mutex;
	int queue_head; /* (q) entry numbers, or -1 */
	int queue_tail;
	uint32 queue_number; /* (q) each broker has a new queue.  Never 0: one broker a
						  * second, and it would wrap after 136 years */
	Latch *broker_latch; /* (q) NULL: no broker runs */
	int broker_pid;      /* (q) 0: no broker runs */
	LeaseCounts counts[COUNT_STRIPES];
	pg_atomic_uint32 losses[LOSSES]; /* by hash: so many leases were lost */
	pg_atomic_uint32 more_joined;    /* leases that sessions share beyond the own_joins of each */
	pg_atomic_uint32 gates_ahead;    /* see lease_reserve_gates */
	Settling settling;               /* (b) */
	Standing standing;               /* (b) */
	StepMemory own_mark;             /* (b) */
	uint64 settings;                 /* (b) hash of those that the standing is of; 0: none */
	pg_atomic_uint32 unsettled;      /* leases that do not rest on the lists in force;
									  * LEASE_UNSETTLED_UNKNOWN: these are to change */
	pg_atomic_uint64 unsettled_until_us; /* of keys that are kept; redlock_clock_us() time */
	int cycle_entry[CYCLES];             /* written by the broker; -1: not in use */
	char cycle[CYCLES][CYCLE_SIZE];
	pg_atomic_uint64 *sharers;   /* by entry, sharers_words() each: a bit for each procno; (t) */
	pg_atomic_uint64 *awaited;   /* by procno: the hash of the name whose gate it asked for
								  * last; another value if that has changed since */
	pg_atomic_uint64 *parked;    /* by procno: see lease_park */
	pg_atomic_uint64 *parked_us; /* ... since when; redlock_clock_us() time */
	Lease lease[FLEXIBLE_ARRAY_MEMBER];
} LeaseTable;

/* NULL unless preloaded */
extern LeaseTable *lease_table;

/* An error (55000) unless preloaded. */
extern void lease_require_preload(void);

/* Its memory: requested by the postmaster, and set up under AddinShmemInitLock.  See memory.c. */
extern void lease_memory_request(void);
extern void lease_memory_set_up(void);

/* backends */
typedef struct LeaseTerms
{
	LockScope scope;
	int ttl_ms;
	int hold_at_least_ms;
	int hold_at_most_ms;
	int keep_idle_ms;
	int permits; /* it is one of so many, or their queue; 0: of no such lock */
	bool is_queue;
	bool shared;
	bool awaited;       /* came to LEASE_AWAITED: is one of those who share it when it is granted */
	bool awaits_tokens; /* has time for LEASE_MORE_TOKENS; else it asks the nodes */
	bool once;          /* a try */
	bool patient;       /* asks on without a quorum, until it is given up */
} LeaseTerms;

extern uint64 lease_hash(const char *name, int len); /* for the index and the gate */
extern uint64 lease_gate(uint64 hash);         /* of the lease that has the name, if there is one */
extern uint64 lease_present_gate(uint64 hash); /* of the next one: the same, but for losses */
extern bool lease_gate_changed(uint64 hash);   /* async-signal-safe */

/*
 * A call for several locks enters their gates before it asks for the first, and waits in them: so
 * many places in the server's lock table that no lease counts for.  Redlocks may fill a quarter of
 * it so.  False: it has no room for them.
 */
extern bool lease_reserve_gates(int count);
extern void lease_return_gates(int count);
extern void lease_leave_gates(void); /* at the end of the process: another gets its place */

/* A lock, for a caller who has entered its gate. */
typedef struct LeaseKey
{
	uint64 hash; /* of the name */
	uint64 gate;
	const char *text; /* the key at the nodes: prefix and name */
	int prefix_len;
	int len;
} LeaseKey;

extern LeaseOpened lease_open(const LeaseKey *key, const LeaseTerms *terms, Lease **lease);

/* What another session left for the next through the gate; NULL: nothing, or a lease of other
 * terms. */
extern Lease *lease_take_left(const LeaseKey *key, const LeaseTerms *terms);
extern void lease_ask(Lease *lease);
extern void lease_release(Lease *lease, int (*waiting)(uint64 gate)); /* never fails; of a shared
																	   * one: by one session */
extern void lease_release_idle(uint64 hash);

/*
 * Of a lease that was granted: its owner has no more to do with it than others.  Fills in
 * *detached; the lease may have ended already: see lease_detached_validity_us.
 */
extern void lease_detach(Lease *lease, DetachedLease *detached);
/* One session after the other counts those of its role, and detaches some; lease_detach. */
extern void lease_begin_detaching(void);
extern void lease_end_detaching(void);
extern int lease_count_detached(Oid role); /* without the locks: some may come and go meanwhile */
extern bool lease_find_detached(uint64 hash, const char *name, int name_len, DetachedLease *found);
extern int64 lease_detached_validity_us(const DetachedLease *detached);   /* 0: it has ended */
extern char *lease_detached_missing_nodes(const DetachedLease *detached); /* as that below */
extern bool lease_release_detached(const DetachedLease *detached);        /* false: it has ended */

/* Returns until when it is held then, if it is renewed; 0: it has ended. */
extern int64 lease_prolong(const DetachedLease *detached, int64 hold_at_most_us);

/* By its owner: hold_at_most of a queue ends so long from now, as it is not stopped. */
extern void lease_go_on(Lease *lease, int64 hold_at_most_us);
extern bool lease_is_taken(uint64 hash); /* by a session of this server */
extern bool lease_is_idle(uint64 hash);  /* it is left to whoever of this server comes next */
extern int lease_permits(uint64 hash);   /* what that one said of permits; -1: it is not taken */
extern bool lease_stays(Lease *lease);   /* with nobody, by keep_idle; also of a copy */
extern int64 lease_give_up_stays(void);  /* all; how many */
/* If it stays with nobody.  Its entry may be another's by now, which loses a stay then, no more. */
extern bool lease_give_up_stay(Lease *lease);
extern Lease *lease_find(uint64 hash);    /* NULL: no lease has this name */
extern Lease *lease_at_gate(uint64 gate); /* who has it or asks for it; or NULL */
extern LeaseState lease_state(Lease *lease);
extern int64 lease_validity_us(Lease *lease);    /* 0 unless held and valid */
extern int64 lease_valid_until_us(Lease *lease); /* of one that was granted; async-signal-safe */
extern int64 lease_token(Lease *lease);          /* of the present owner's turn */
extern void lease_usage(int *owned, int *releasing);
extern int lease_entries_used(void);

/*
 * What of this server does not rest on the lists of nodes in force: so many leases, and,
 * until then, keys that are kept (redlock_clock_us() time; 0: none).  False: not known,
 * since what redlock.nodes and redlock.nodes_next say is not yet in force.
 */
extern bool lease_unsettled(int *leases, int64 *kept_until_us);
extern const char *lease_name(const Lease *lease); /* of its lock, in UTF-8; a static text */
extern char *lease_held_by_text(Lease *lease);     /* palloc'd; NULL: not known */
/* The first bytes.  False: a plain Redlock client wrote the text, or nobody did. */
extern bool lease_held_by_head(Lease *lease, char *text, size_t size);
extern const char *lease_cycle_text(Lease *lease); /* of a deadlock */
extern char *lease_missing_nodes(Lease *lease);    /* in the last round, and why; palloc'd */
extern bool lease_is_unasked(uint64 hash);  /* a session waits for the broker to ask for it */
extern char *lease_unanswered(uint64 hash); /* so, if most say nothing to who asks; or NULL */

/*
 * A copy for those who only look.  False: not in use, or its writer is stopped in
 * the middle of a change.
 */
extern bool lease_copy(Lease *lease, Lease *copy); /* all before secret */

extern void lease_count(LeaseCounter counter);
extern uint64 lease_counted(LeaseCounter counter); /* by all processes */
extern int lease_broker_pid(void);                 /* 0: no broker runs */
extern void lease_wake_broker(void);

/* the broker */
extern void lease_tell_holder(Lease *lease, const char *held_by, bool by_host,
							  TimestampTz kept_until);
/* To a queue that is held: this one may be free; 0: some may be. */
extern void lease_tell_permit(Lease *lease, int permit);
extern void lease_tell_refused(Lease *lease); /* the owner may be waiting to give others back */
/* False: too many owners have not yet looked. */
extern bool lease_tell_deadlock(Lease *lease, const char *cycle);
extern bool lease_had_broker(void);            /* since the server started */
extern void lease_broker_attach(Latch *latch); /* with a new queue, which is empty */
extern void lease_broker_detach(void);
extern int lease_take_queue(void); /* first entry of the chain, or -1 */
extern int lease_next_in_chain(int entry);
extern bool lease_is_queued(const Lease *lease);
extern bool lease_release_orphan(Lease *lease);                /* if its owner has gone */
extern bool lease_end_stay(Lease *lease, int64 now_us);        /* if it has lasted long enough */
extern bool lease_end_hold(Lease *lease, int64 now_us);        /* if that is over: */
extern bool lease_hold_is_over(Lease *lease, int64 now_us);    /* it was detached long enough */
extern int64 lease_hold_until_us(Lease *lease, int64 now_us);  /* 0: no limit */
extern bool lease_give_up_detached(Lease *lease);              /* if it is detached */
extern void lease_end_all_stays(void);                         /* nor is one left detached */
extern void lease_want(Lease *lease);                          /* another host waits for it */
extern void lease_recall(Lease *lease);                        /* ... or tried to have it */
extern bool lease_wants_tokens(Lease *lease, int64 now_us);    /* its grant has few left */
extern void lease_expect_tokens(Lease *lease, int64 until_us); /* 0: none are under way */
extern int64 lease_look_at_us(Lease *lease, int64 wake_at_us); /* when to look, if it is held */
extern void lease_free(Lease *lease);
extern void lease_set_state(Lease *lease, LeaseState state); /* wakes owner */
extern bool lease_owner_lives(const Lease *lease);

/* Does this process share the lease? */
extern bool lease_is_shared_by(const Lease *lease, int procno);

/*
 * This session waits in the gate of this name, for others of this server that share the lock or
 * ask for that, and gives back nothing meanwhile.  0: it does not.
 */
extern void lease_park(uint64 hash);
extern uint64 lease_parked(int procno, int64 *since_us); /* any process */

static inline Lease *
lease_at(int entry)
{
	return &lease_table->lease[entry];
}

static inline int
lease_index(const Lease *lease)
{
	return lease - lease_table->lease;
}

/* Bytes for each of the two texts after the key. */
static inline int
lease_text_size(const Lease *lease)
{
	return Min((LEASE_TEXT_SIZE - lease->key_len - 1) / 2, LOCK_HOLDER_MAX + 1);
}

/* The session that asks for the lock, or holds it: this goes into the lock's value. */
static inline char *
lease_holder(Lease *lease)
{
	return lease->key + lease->key_len + 1;
}

/* The holder elsewhere, as it wrote itself; in UTF-8. */
static inline char *
lease_held_by(Lease *lease)
{
	return lease_holder(lease) + lease_text_size(lease);
}

#endif /* REDLOCK_LEASE_H */
