/*
 * lease.h
 *		Shared memory: the lease table, the work queue of the broker, and the
 *		counters.
 *
 * The functions are in lease.c and in the files lease_*.c; src/README.md lists the subject of each
 * file.
 *
 * Each field has a mark, which says how processes access the field:
 *
 *	 table lock (t)		   written under the exclusive table lock of the name, within
 *						   Lease.version.  Constant from lease_open until the entry is
 *						   freed, except at a hand-over or at the detaching.  There are
 *						   LEASE_PARTITIONS table locks (LWLocks), each for the names of
 *						   some hashes: see lease_lock_of
 *	 (T)				   written under the table lock at any time, outside of
 *						   Lease.version: a copy may have an older value
 *	 free mutex (f)		   the list of free entries
 *	 queue mutex (q)	   the queue
 *	 (m)				   written by the broker alone, under holder_version
 *	 owner (o)			   written by the owner before it queues the lease; read by the
 *						   broker after it took the lease from the queue.  Later writers:
 *						   the holder changes `scope`, `since` and `token`, for views, and
 *						   `wait_began_us` of a queue; the next owner changes the former three
 *						   and `handovers`, under the table lock
 *	 broker only (b)	   read and written by the broker alone
 *	 grant (g)			   written by the broker before `state` is LEASE_HELD,
 *						   constant from then on
 *	 atomics (a)		   read without a lock; the writers are below
 *
 * The session that takes an entry sets first values, under the exclusive table lock
 * (lease_take_entry).  The writers of the atomics from then on:
 *
 *	 wish				   the owner, from WISH_NONE to WISH_HOLD, without a lock
 *						   (lease_ask).  For each other change any process, under the
 *						   exclusive table lock
 *	 idle_until_us		   the owner or the last reader at a release, under the exclusive
 *						   table lock
 *	 hold_until_us		   the broker at the grant, without a lock; later any session,
 *						   under the exclusive table lock
 *	 more_tokens_us		   the broker; the session that takes the lease over
 *	 company			   the owner; the broker only changes LEASE_AMONG to
 *						   LEASE_AMONG_REFUSED
 *	 readers			   each reader, under the table lock: see the field
 *	 asks				   the broker adds; each new owner begins with 0, under the table lock
 *	 permits_told, free_permit	the broker; of a queue also a session that releases a permit
 *	 all others			   the broker
 *
 * A view takes no lock: it copies the entry (lease_copy).  So views never keep the broker waiting.
 *
 * Lock order: the detaching lock; one table lock; one mutex, or a lock inside PostgreSQL's lock
 * manager.  No lock is held across a wait.
 *
 * Each decision below is a transition of protocol/entry.h.  The caller takes the table lock, copies
 * the values (lease_entry), decides, stores the changed values, and releases the table lock.  Three
 * functions take no lock: lease_ask; lease_needs_tokens, whose answer is a hint; and
 * lease_note_waiting_host of a shared lease, whose writer_until_us only the broker writes.
 *
 * Hand-over: a session releases a valid lease while another session of this server waits at the
 * gate.  The releasing session may keep the lease at the nodes for the waiter: it writes
 * WISH_HAND_OVER, and the entry keeps its name without an owner.  The next session through the gate
 * takes the lease over under the table lock, without the broker and without the network.  A waiter
 * that cancels at the gate calls lease_release_hand_over, which releases a lease in hand-over.
 *
 * Limit: each holder has its own limit (hold_until_us), or none; a lease without a holder has no
 * limit.  The broker reads the limit whenever it looks at the lease.  A session wakes the broker
 * only if its limit ends before the broker would look (looks_at_us).
 *
 * Idle lease: by keep_idle a session may keep the lease without a waiter (WISH_IDLE), until
 * idle_until_us.  The broker renews an idle lease until then, and releases it after.  The session
 * wakes the broker only if idle_until_us comes before the broker would look (looks_at_us).  An idle
 * lease ends early by lease_release_idle: a recall, room for another lease, a reload, the server's
 * stop, redlock_release_idle.  It also ends early when a session opens the name with other terms,
 * or finds no token left.  A permit is idle for PERMITS_PASS_US if the owner of the permit's queue
 * is a session of this server.
 *
 * Detached lease: after the grant a session may give the lease to its role (WISH_DETACHED), and
 * leave the gate.  No process owns a detached lease.  The entry keeps its name until a session
 * releases the lease (lease_release_detached), or the broker ends it: at hold_until_us, after a
 * loss, or when the server stops.  A session that passes the gate finds the name taken, stays in
 * the gate, and is woken by its latch (waiters_in_gate).  The entry of a detached lease may be
 * reused at any time, so DetachedLease names the lease by entry and generation.
 *
 * The life of an entry: a backend takes an entry (lease_open), asks the broker for the lease
 * (lease_ask), and releases the lease (lease_release).  The release removes the name from the
 * index, so another session can take the name at once.  The broker frees the entry when no node
 * has to be told anything more.
 *
 * Shared lease: many sessions hold one lease.  The first reader asks the broker; later readers join
 * after the grant (`readers`).  Readers enter the gate in share mode, so many are in the gate at a
 * time.  The last reader releases the lease, or keeps it idle.  A shared lease is never handed over
 * at the gate, since a reader need not wait there.
 *
 * Lost lease: the entry belongs to its owner until the owner releases it, but another session may
 * take the name before.  Each loss gives the name another gate (lease_gate), so the loser does not
 * keep other sessions out.
 */
#ifndef REDLOCK_LEASE_H
#define REDLOCK_LEASE_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "driver/driver_lease.h"
#include "protocol/core.h"
#include "protocol/entry.h"
#include "protocol/lua.h"
#include "protocol/scopes.h"
#include "protocol/settling.h"
#include "protocol/standing.h"
#include "protocol/steps.h"
#include "shared/resource_stats.h"
#include "shared/seqlock.h"

/* Signal handlers read 64-bit atomics, and must not wait for the spinlock of a simulation. */
#ifdef PG_HAVE_ATOMIC_U64_SIMULATION
#error "redlock_pg needs a processor with atomic operations on 64 bits"
#endif

#define LEASE_TEXT_SIZE 384 /* bytes for a key and two texts about the holder */

/* LeaseTable.unsettled while the lists of nodes are to change */
#define LEASE_UNSETTLED_UNKNOWN PG_UINT32_MAX

/* Lease.silent_nodes before the broker has asked the nodes */
#define LEASE_NOT_ASKED PG_UINT32_MAX

/* May the request release some of several locks while it waits?  See protocol/several.h. */
typedef enum LeaseCompany
{
	LEASE_ALONE = 0,    /* the owner waits for this lock, and releases none */
	LEASE_AMONG,        /* one of several locks: the broker tells the owner of a refusal, since
						 * the owner may have to release its later locks */
	LEASE_AMONG_REFUSED /* ... refused: another host holds this lock, or has a claim to go first */
} LeaseCompany;

typedef struct Lease
{
	/* (t) */
	SeqLock version;
	bool in_use;
	uint64 hash; /* of the name; key of the index */
	uint64 gate; /* the owner holds this gate; waiters queue at it */
	uint16 prefix_len;
	uint16 key_len;
	char key[LEASE_TEXT_SIZE]; /* prefix and name in UTF-8, then lease_holder (o) and
								* lease_held_by (m); a long key leaves both less room */
	/* (t); a hand-over changes these fields, and the gate */
	int owner_pid; /* 0: detached, also after the release until the entry is freed */
	int owner_procno;
	Oid owner_role;
	Oid owner_database;
	int keep_idle_ms;      /* how long the lease may be idle after its owner; 0: not at all */
	bool other_host_waits; /* (T) another host waits: the lease must not become idle */
	bool may_idle;         /* the request told the nodes that the lease may become idle */
	bool shared;           /* by readers; the owner is the reader that asked the broker */
	bool waiters_in_gate;  /* (T) detached or shared: sessions wait in the gate for the end of this
							* lease.  Readers set it under the shared table lock */
	bool is_queue;         /* the lock is a queue for permits; its holder waits for a permit */
	uint16 permits;        /* a permit, or a queue: of a lock with this many permits; else 0 */

	int stats_place;     /* (T) place in the statistics of resources, or RESOURCE_STATS_NONE */
	int commits;         /* (T) detached: attached transactions that the guard let commit */
	int64 wait_began_us; /* start of the call that waits; (t) until the grant */
	int64 held_since_us; /* (T) 0: no holder */

	int next_named; /* (T) next entry number in the bucket, or -1 */
	int next_free;  /* (f) entry number, or -1 */

	/* (q) */
	uint32 queued;   /* equal to LeaseTable.queue_number: in the queue; 0, or the number of
					  * an earlier broker's queue: not in the queue */
	int next_queued; /* entry number, or -1 */

	/* (o) */
	bool once;            /* a try */
	bool patient;         /* asks again without a quorum, until the owner cancels */
	bool returns;         /* (T) released while sessions of this server wait */
	bool goes_on;         /* (T) released; the host's turn goes on with another lease */
	int handovers;        /* count of hand-overs since the nodes granted the lease */
	int64 waits_since_us; /* start of the wait, for messages to the holding host */
	LockScope scope;      /* the widest scope of its holder */
	int ttl_ms;
	int hold_at_least_ms; /* the nodes keep the key this long, even after a release */
	int hold_at_most_ms;  /* limit of the holder; 0: none; (t) like keep_idle_ms */
	TimestampTz since;    /* time of the request, later of the grant */
	int64 token;          /* returned by redlock_acquire; 0 before */

	/* (a) */
	pg_atomic_uint32 wish;             /* Wish */
	pg_atomic_uint32 state;            /* LeaseState */
	pg_atomic_uint64 granted_until_us; /* redlock_clock_us() time; 0: none */
	pg_atomic_uint64 idle_until_us;    /* end of WISH_IDLE */
	pg_atomic_uint64 hold_until_us;    /* end of the holder's hold_at_most; 0: no limit */
	pg_atomic_uint64 looks_at_us;      /* when the broker looks next whether the lease's time
										* is over; PG_INT64_MAX: only when woken */
	pg_atomic_uint64 last_token;      /* the grant's last token: first_token + LUA_SPAN - 1, or more
									   * after renewals */
	pg_atomic_uint64 more_tokens_us;  /* the broker asks for more tokens; the answer comes by then
									   * or not at all */
	pg_atomic_uint32 silent_nodes;    /* no usable answer in the last round, or yet in the first
									   * round */
	pg_atomic_uint32 denying_nodes;   /* the last round did not find the key there */
	pg_atomic_uint32 other_permits;   /* the holder there has another number of permits */
	pg_atomic_uint32 permits_told;    /* queue: count of hints to its holder: a permit
									   * may be free */
	pg_atomic_uint32 free_permit;     /* a refused permit: a free permit; a queue:
									   * the permit in the last message to its holder; or 0 */
	pg_atomic_uint32 company;         /* LeaseCompany */
	pg_atomic_uint32 readers;         /* count of readers.  Each reader counts itself under the
									   * table lock: exclusive from or to 0, else shared */
	pg_atomic_uint32 asks;            /* count of asks for the release since the owner took the
									   * entry */
	pg_atomic_uint64 writer_until_us; /* shared: a writer waits at least until then; the lease
									   * must not become idle, and no session may join */

	/* (m) */
	SeqLock holder_version;
	bool held_by_host;      /* a host wrote the holder's text, not a plain Redlock client */
	TimestampTz kept_until; /* end of hold_at_least after a release by another host; 0: not
							 * released */

	/* (b) */
	uint8 secret[LOCK_SECRET_BYTES];
	DriverLease drive; /* Exceptions.  first_token: (g).  The fields for the turn: the session that
						* takes the entry, under the table lock, before the request; then (g).
						* generation: the broker under the exclusive table lock; sessions read it
						* under that lock, or after a read barrier.  core.members: sessions read it
						* for a message */
} Lease;

StaticAssertDecl(sizeof(Lease) <= 1160, "an entry takes little more than a kilobyte");

/* A detached lease at the time of a look.  The lease may have ended since. */
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
	COUNTERS_OF_0_1, /* number of counters in redlock_pg 0.1.0 */
	COUNT_TAKEN_IDLE = COUNTERS_OF_0_1,
	COUNT_RECALLED,
	COUNT_JOINED,
	COUNT_TRIES_REFUSED,
	COUNT_TIMED_OUT,
	COUNT_DEADLOCKS,
	COUNTERS /* number of counters */
} LeaseCounter;

/* Several sets of counters, since processes should not share one cache line. */
#define COUNT_STRIPES 16

typedef union LeaseCounts /* index: procno modulo COUNT_STRIPES */
{
	pg_atomic_uint64 counter[COUNTERS];
	char pad[128];
} LeaseCounts;

StaticAssertDecl(COUNTERS * sizeof(pg_atomic_uint64) <= 128, "a process counts in one place");

/* Counters of losses.  Names may share a counter: then a loss may cost a waiter its queue place. */
#define LOSSES 256

/* Number of table locks: PostgreSQL's own lock table has as many partitions. */
#define LEASE_PARTITIONS 16

/* Texts of deadlocks.  A text is in use until the entry of its lease is freed. */
#define CYCLES 16
#define CYCLE_SIZE 12288

typedef struct LeaseTable
{
	uint64 host_id;      /* of this server: random, constant while the shared memory lives */
	LWLockPadded *locks; /* LEASE_PARTITIONS, and the detaching lock */
	int *bucket;         /* (T) first entry number of each bucket, or -1 */
	int buckets;         /* a power of two, LEASE_PARTITIONS or more */
	bool stopping;       /* the server stops: no lease may become idle or detached.  Set under all
						  * table locks in turn; cleared by the next broker, without these locks */
	int entries;
	int max_locks;          /* redlock.max_locks, or less if the lock manager lacks room */
	pg_atomic_uint32 used;  /* entries in use */
	pg_atomic_uint32 owned; /* leases not yet released, and lost leases: <= max_locks */
	pg_atomic_uint32 hand;  /* where the next search for an idle lease begins */
	slock_t free_mutex;
	int first_free; /* (f) entry number, or -1 */
	slock_t queue_mutex;
	int queue_head; /* (q) entry numbers, or -1 */
	int queue_tail;
	uint32 queue_number;          /* (q) each broker has a new queue.  Never 0: with a new
								   * broker each second, it wraps after 136 years */
	Latch *broker_latch;          /* (q) NULL: no broker runs */
	int broker_pid;               /* (q) 0: no broker runs */
	pg_atomic_uint32 assignments; /* of settings; see guc.h */
	LeaseCounts counts[COUNT_STRIPES];
	pg_atomic_uint64 reset_at;       /* of the counts; TimestampTz */
	pg_atomic_uint32 losses[LOSSES]; /* count of lost leases; index: hash modulo LOSSES */
	pg_atomic_uint32 more_joins;     /* joins beyond each session's own share (own_joins) */
	pg_atomic_uint32 gates_ahead;    /* see lease_reserve_gates */
	Settling settling;               /* (b) */
	Standing standing;               /* (b) */
	StepMemory own_mark;             /* (b) */
	dsm_handle local_names;          /* (b) memory of the node inside the server; see
									  * broker/node_local.h */
	uint64 settings;                 /* (b) hash of the settings behind `standing`; 0: none */
	pg_atomic_uint32 unsettled;      /* count of leases not on all lists; LEASE_UNSETTLED_UNKNOWN:
									  * the lists are to change */
	pg_atomic_uint64 unsettled_until_us; /* end of the last kept key that is not on all lists;
										  * redlock_clock_us() time */
	int cycle_entry[CYCLES];             /* written by the broker; -1: text not in use */
	char cycle[CYCLES][CYCLE_SIZE];
	pg_atomic_uint64 gate_victim;  /* number of the wait at a gate that ends by a deadlock; or 0 */
	int64 gate_victim_us;          /* (b) since when */
	char gate_cycle[CYCLE_SIZE];   /* (b) the text for this wait */
	pg_atomic_uint64 *reader_bits; /* lease_reader_words() for each entry: a bit for each
									* procno; (T) */
	pg_atomic_uint64 *asked_gate;  /* by procno: hash of the name whose gate the process asked
									* for last; the complement once the gate has changed */
	pg_atomic_uint64 *parked;      /* by procno: see lease_park */
	pg_atomic_uint64 *parked_us;   /* ... the start, redlock_clock_us() time, and as lowest bit the
									* mode */
	Lease lease[FLEXIBLE_ARRAY_MEMBER];
} LeaseTable;

/* NULL unless preloaded */
extern LeaseTable *lease_table;

/* The hint if redlock_pg is not preloaded. */
#define LEASE_PRELOAD_STEP                                                                         \
	"Add redlock_pg to shared_preload_libraries in postgresql.conf, beside the libraries there, "  \
	"and restart the server."

/* Raises an error (55000) unless preloaded. */
extern void lease_require_preload(void);

/* The postmaster requests the memory; the caller of set_up holds AddinShmemInitLock.  See memory.c.
 */
extern void lease_memory_request(void);
extern void lease_memory_set_up(void);

/* The terms of a session's request. */
typedef struct LeaseTerms
{
	LockScope scope;
	int ttl_ms;
	int hold_at_least_ms;
	int hold_at_most_ms;
	int keep_idle_ms;
	int permits; /* a permit, or a queue: of a lock with this many permits; else 0 */
	bool is_queue;
	bool shared;
	bool waited_for_grant; /* was waiting at the grant (LEASE_READER_ASKS), so may join */
	bool waits_for_tokens; /* has time for LEASE_MORE_TOKENS; else asks the nodes */
	bool once;             /* a try */
	bool patient;          /* asks again without a quorum, until the owner cancels */
	int64 began_us;        /* start of the call, for the statistics */
} LeaseTerms;

/*
 * Gates
 */

extern uint64 lease_hash(const char *name, int len); /* for the index and the gate */
extern uint64 lease_gate(uint64 hash);               /* of the named lease, else the present gate */
extern uint64 lease_present_gate(uint64 hash);       /* of the next lease; a loss changes it */
extern bool lease_gate_changed(uint64 hash);         /* async-signal-safe */

/*
 * Reserve room in the server's lock table for gates in which a call for several locks waits before
 * it has leases: no lease counts for these gates.  Such gates may fill a quarter of the lock table.
 * Returns false, and reserves nothing, if there is no room.
 */
extern bool lease_reserve_gates(int count);
extern void lease_return_gates(int count);
extern void lease_leave_gates(void); /* at the end of the process */

/*
 * Sessions
 */

/* A lock, for a caller that has entered the lock's gate. */
typedef struct LeaseKey
{
	uint64 hash; /* of the name */
	uint64 gate;
	const char *text; /* the key at the nodes: prefix and name */
	int prefix_len;
	int len;
} LeaseKey;

extern LeaseOpened lease_open(const LeaseKey *key, const LeaseTerms *terms, Lease **lease);

/*
 * Take over a lease in hand-over.  The caller is in the gate.  Returns NULL if there is none, or
 * none with these terms.
 */
extern Lease *lease_take_hand_over(const LeaseKey *key, const LeaseTerms *terms);
extern void lease_ask(Lease *lease);
extern void lease_release(Lease *lease, int (*waiting)(uint64 gate));
extern void lease_release_hand_over(uint64 hash);

/*
 * Detached leases
 */

/*
 * The owner gives a granted lease to its role, and fills in *detached.  From then on the former
 * owner has no more rights than another session.  The lease may end at once: see
 * lease_detached_validity_us.
 */
extern void lease_detach(Lease *lease, DetachedLease *detached);

/* Enclose the count of a role's detached leases and the detaching of more.  The first call takes
 * the detaching lock; the caller has no table lock. */
extern void lease_begin_detaching(void);
extern void lease_end_detaching(void);

/* Takes no table lock: the count is approximate if detached leases begin or end during the call. */
extern int lease_count_detached(Oid role);
extern bool lease_find_detached(uint64 hash, const char *name, int name_len, DetachedLease *found);
extern int64 lease_detached_validity_us(const DetachedLease *detached); /* 0: ended */

/* As lease_missing_nodes; empty if the entry has another lease by now. */
extern char *lease_detached_missing_nodes(const DetachedLease *detached);

typedef enum DetachedRelease
{
	DETACHED_RELEASED,
	DETACHED_ENDED,  /* before */
	DETACHED_COMMITS /* not released: the writes of an attached transaction are not yet visible */
} DetachedRelease;

extern DetachedRelease lease_release_detached(const DetachedLease *detached);

/*
 * An attached transaction begins its commit after the guard, and ends the commit when the changes
 * are visible, or void.  In between no session releases the lease by its token.
 * lease_begin_commit returns false if the lease has ended.
 */
extern bool lease_begin_commit(const DetachedLease *detached);
extern void lease_end_commit(const DetachedLease *detached);

/* Returns the new limit of the lease; 0: the lease has ended. */
extern int64 lease_prolong(const DetachedLease *detached, int64 hold_at_most_us);

/* The owner of a permit queue has not stopped: sets the limit to hold_at_most_us from now. */
extern void lease_go_on(Lease *lease, int64 hold_at_most_us);

/*
 * Looks
 */

extern bool lease_is_taken(uint64 hash);     /* a session of this server has or waits for it */
extern bool lease_lacks_holder(uint64 hash); /* idle, or in hand-over */
extern int lease_permits(uint64 hash);       /* number of permits in its terms; -1: not taken */
extern bool lease_is_idle(Lease *lease);     /* WISH_IDLE; `lease` may be a copy */

/* Ends all idle leases; returns their number. */
extern int64 lease_release_all_idle(void);

/*
 * Does this host give way to another host with different settings, once its last lock has ended?
 * Then sessions neither take over nor join leases, except at a hand-over.
 */
extern bool lease_gives_way(void);

/*
 * Ends this lease if idle; returns whether it was.  If the entry has another lease by now, then the
 * other lease ends, if idle: harmless.
 */
extern bool lease_release_idle(Lease *lease);
extern Lease *lease_find(uint64 hash);    /* the lease in the index, even if lost; or NULL */
extern Lease *lease_at_gate(uint64 gate); /* a lease that is held or asked for; or NULL */
extern LeaseState lease_state(Lease *lease);
extern int64 lease_validity_us(Lease *lease);    /* 0 unless held and valid */
extern int64 lease_valid_until_us(Lease *lease); /* of a granted lease; async-signal-safe */
extern bool lease_limit_ended(Lease *lease);     /* of a lost lease: hold_at_most was the reason */
extern int64 lease_token(Lease *lease);          /* of the present owner */
extern void lease_usage(int *owned, int *releasing);
extern int lease_entries_used(void);

/*
 * Counts the leases of this server that are not on all lists, and tells until when keys are kept
 * that are not (redlock_clock_us() time; 0: none).  Returns false if the count is unknown, since a
 * change of redlock.nodes or redlock.nodes_next is not yet in force.
 */
extern bool lease_unsettled(int *leases, int64 *kept_until_us);
extern const char *lease_name(const Lease *lease); /* of its lock, in UTF-8; a static text */
extern char *lease_held_by_text(Lease *lease);     /* palloc'd; NULL: not known */

/*
 * Counts the asks for the release.  A holder compares the count with the count at its own grant: a
 * reader that joins later has not been asked.
 */
extern uint32 lease_asks(Lease *lease);

/* Copies the first bytes of lease_held_by.  Returns true if a host wrote the text. */
extern bool lease_held_by_head(Lease *lease, char *text, size_t size);
extern const char *lease_cycle_text(Lease *lease); /* of a deadlock */

/* The nodes that the last round lacked, each with the reason; none before a round.  palloc'd. */
extern char *lease_missing_nodes(Lease *lease);

/* A session waits for the broker to ask the nodes. */
extern bool lease_is_unasked(uint64 hash);

/*
 * The silent nodes, if a session waits for this name and half of the nodes are silent; or NULL.
 * number: differs between requests of this server.
 */
extern char *lease_unanswered(uint64 hash, uint64 *number);

/*
 * Copies the fields before `secret`, without a lock.  Returns false if the entry is free, or its
 * writer is stopped in the middle of a change.
 */
extern bool lease_copy(Lease *lease, Lease *copy);

extern void lease_count(LeaseCounter counter);
extern uint64 lease_counted(LeaseCounter counter); /* sum over all processes */
extern int lease_broker_pid(void);                 /* 0: no broker runs */
extern bool lease_broker_runs(void);               /* async-signal-safe */
extern void lease_wake_broker(void);
extern TimestampTz lease_counts_reset_at(void);
extern void lease_reset_counts(void);
extern void lease_restore_counts(const uint64 *counter, TimestampTz reset_at);

/*
 * Statistics of resources
 */

/* A call has ended without the lock.  waited_us: -1 for a try. */
extern void lease_stats_failed(uint64 hash, const char *name, int name_len, ResourceEvent event,
							   int64 waited_us);
extern void lease_stats_reset(void);
extern void lease_stats_reset_sums(void);

/* The broker: before the owner learns of the grant, or of the loss. */
extern void lease_stats_granted(Lease *lease, int64 now_us);
extern void lease_stats_lost(Lease *lease);

/*
 * The broker
 */

extern void lease_set_held_by(Lease *lease, const char *held_by, bool by_host,
							  TimestampTz kept_until);

/* Tells the holder of a permit queue that this permit is probably free; 0: some permit. */
extern void lease_tell_permit(Lease *lease, int permit);

/*
 * Tells the owner of a refusal: the owner may have to release its later locks.  first: since the
 * silence of the nodes; the owner now waits for a holder.
 */
extern void lease_tell_refused(Lease *lease, bool first);

/* Returns false if all places for texts are in use: a place is free again with the entry. */
extern bool lease_tell_deadlock(Lease *lease, const char *cycle);
extern void lease_broker_attach(Latch *latch); /* with a new, empty queue */
extern void lease_broker_detach(void);
extern int lease_take_queue(void); /* first entry of the chain, or -1 */
extern int lease_next_in_chain(int entry);
extern bool lease_is_queued(const Lease *lease);

/* The next three end the lease for the given reason, or return false if the reason does not hold.
 */
extern bool lease_release_orphan(Lease *lease);                /* the owner has gone */
extern bool lease_end_idle(Lease *lease, int64 now_us);        /* idle for long enough */
extern bool lease_end_hold(Lease *lease, int64 now_us);        /* lease_hold_is_over */
extern bool lease_hold_is_over(Lease *lease, int64 now_us);    /* detached for long enough */
extern int64 lease_hold_until_us(Lease *lease, int64 now_us);  /* 0: no limit */
extern bool lease_end_detached(Lease *lease);                  /* ends a detached lease */
extern void lease_end_unowned(void);                           /* at a stop: idle, detached */
extern void lease_note_waiting_host(Lease *lease);             /* also recalls the lease */
extern void lease_recall(Lease *lease);                        /* another host waits, or tried */
extern void lease_note_ask(Lease *lease);                      /* also recalls the lease */
extern bool lease_needs_tokens(Lease *lease, int64 now_us);    /* few tokens are left */
extern void lease_expect_tokens(Lease *lease, int64 until_us); /* 0: no more tokens come */
extern int64 lease_look_at_us(Lease *lease, int64 wake_at_us); /* next look at a held lease */
extern void lease_free(Lease *lease);

/* Also wakes the owner, or the readers.  The caller has no table lock: a loss takes the lock. */
extern void lease_set_state(Lease *lease, LeaseState state);

extern bool lease_owner_lives(const Lease *lease);

/* Is the process with this number a reader of the lease? */
extern bool lease_has_reader(const Lease *lease, int procno);

/*
 * The number of the wait of a process in the lock manager or in a gate, by its begin.  Bit 62 tells
 * such a number from the number of a request's wait.
 */
extern uint64 lease_wait_number(int procno, int64 since_us);

/*
 * The broker ends the wait with this number, at a gate, by a deadlock.  The caller wakes the
 * session.  Returns false while another session has to notice its own.
 */
extern bool lease_tell_gate_deadlock(uint64 wait, const char *cycle, int64 now_us);

/* Returns the number of this session's wait at a gate if a deadlock ends it, or 0.  Async-safe. */
extern uint64 lease_gate_deadlock(void);

/* The same of a wait of a reader that is parked in the gate. */
extern uint64 lease_parked_deadlock(void);

/* Copies the cycle of this wait, palloc'd; empty if it came too late.  Makes room for the next. */
extern char *lease_take_gate_cycle(uint64 wait);

/*
 * Announces that this session waits in the gate of this name, to share the lock or for the end of a
 * detached lease, and releases nothing during the wait.  hash 0: ends the
 * announcement.
 */
extern void lease_park(uint64 hash, bool shared);

/* The announcement of any process. */
typedef struct LeaseParked
{
	uint64 hash; /* 0: none */
	int64 since_us;
	bool shared; /* the session wants to share the lock */
} LeaseParked;

extern LeaseParked lease_parked(int procno);

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

/* Size in bytes of each of the two texts after the key. */
static inline int
lease_text_size(const Lease *lease)
{
	return Min((LEASE_TEXT_SIZE - lease->key_len - 1) / 2, LOCK_HOLDER_MAX + 1);
}

/* Text about the session that asks for the lock or holds it, a part of the lock's value. */
static inline char *
lease_holder(Lease *lease)
{
	return lease->key + lease->key_len + 1;
}

/* Text in UTF-8 that the holder on another host wrote about itself. */
static inline char *
lease_held_by(Lease *lease)
{
	return lease_holder(lease) + lease_text_size(lease);
}

#endif /* REDLOCK_LEASE_H */
