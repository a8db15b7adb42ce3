/*
 * host.h
 *		A host: its lease driver (src/driver), its sessions, and its nodes.
 */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "check.h"
#include "driver/driver.h"
#include "protocol/entry.h"
#include "wire.h"
#include "world.h"

#define QUEUE_MAX 3 /* sessions at a gate */
#define KNOWN_MAX (ENTRIES_MAX + RESOURCES_MAX)

/* The owner of an entry.  The broker reads only the wish. */
typedef enum owner
{
	OWNER_NOBODY, /* not yet taken, or released */
	OWNER_ASKS,   /* waits for an answer, or has not yet read the answer */
	OWNER_HOLDS,
	OWNER_DETACHED, /* no session: callers with the token prolong and release */
	OWNER_VANISHED  /* its process died without a release; the wish remains */
} owner;

typedef struct entry
{
	DriverLease drive;
	round_check check; /* of check.c */
	bool in_use;
	int resource;
	Wish wish;
	owner owner;
	bool was_detached; /* remains set after the release */
	bool queued;       /* for the broker */
	uint32_t secret;
	bool once;
	bool told;     /* the outcome was reported to the owner */
	bool returned; /* a session got a token */
	bool forgiven; /* its debts were forgotten */
	int64_t ttl_us;
	int64_t hold_at_most_us;
	int64_t hold_until_us; /* holder's limit, since the grant or a hand-over; 0: no limit */
	bool detach;           /* its owner detaches it */
	int64_t keep_us;       /* how long after the grant the key stays, even if released */
	int span;              /* sessions that may hold the lease in turn */
	int handovers;
	int64_t last_token;       /* of the grant, or its bound since a renewal */
	int64_t more_tokens_us;   /* more tokens are requested and come by then, or not at all */
	int64_t relisted_true_us; /* when its list of nodes last changed */
	int64_t keep_idle_us;
	bool may_stay; /* may become idle, as the nodes were told */
	bool shared;   /* held by `joined` readers */
	int joined;
	int64_t want_until_us; /* a writer of another host waits until then */
	int64_t idle_until_us; /* of WISH_IDLE */
	int64_t looks_at_us;   /* when the broker next checks the idle time or the limit */
	bool wanted;           /* other hosts wait, as the sessions know */
	bool returns;          /* released while sessions of this host wait */
	bool goes_on;          /* released; the turn goes on with another entry */
	int64_t waits_since_us;
	int64_t asked_us;    /* when the broker began to ask */
	int session;         /* the holder; -1: none */
	int64_t timer_at_us; /* true time */
	uint32_t timer_tag;
} entry;

/* The local queue of all names with one hash. */
typedef struct gate
{
	int named;                /* entry with the name; -1: none */
	int waiting;              /* sessions in the queue */
	uint8_t wants[QUEUE_MAX]; /* the resource each waits for */
} gate;

typedef struct host
{
	sim_clock mono;
	sim_clock wall;
	int64_t paused_until_us;
	bool broker_down;
	int64_t broker_began_us;
	Driver driver;
	/* memory of the driver */
	DriverEntry of_entry[ENTRIES_MAX];
	Release release[ENTRIES_MAX];
	WaitersKnown known[KNOWN_MAX];
	bool known_used[KNOWN_MAX];
	bool moves;         /* the node lists are changing */
	int64_t room_at_us; /* when the releases are next checked for room; true time */
	core_mask crowded;  /* nodes full of other locks' releases */
	gate gate[RESOURCES_MAX];
	int queued[ENTRIES_MAX]; /* entries with a new wish, in order */
	int queued_count;
	bool pass_due; /* an EVENT_PASS is scheduled */
	struct
	{
		GuardMemory guard;
		int failures;
		bool in_use;
		bool leaving; /* no longer listed, but serves a lease */
		int address;  /* index in the operator's list of names */
	} node[NODES_MAX];
	core_mask members; /* the listed nodes */
	core_lists lists;
	Settling settling;
	int64_t max_ttl_us;
	int64_t max_ttl_since_us; /* true time */
	int prefix;               /* of keys: 0 or 1 */
	entry entry[ENTRIES_MAX];
} host;

extern host hosts[HOSTS_MAX];

extern void host_begin(void);
extern void host_handle(const event *event);
extern void host_on_answer(int host, int node, const command *command, const answer *answer);
extern uint32_t host_marker(int host, int node); /* the marker known to the host; 0: none */
extern bool host_is_valid(int host, int entry);  /* as its holder sees the lease */
extern int64_t host_now_us(int host);
extern int64_t host_true_time_us(int host, int64_t clock_us);

extern int64_t host_wall_us(int host);
extern uint64_t host_hash(int resource); /* of the lock's name */

extern void host_on_lost(int host, int node, const command *command, bool replacing);
extern bool
host_forget_debt(int host); /* Forgets the oldest debt, to free an entry. False: no debt. */
extern void host_push(int host, int entry); /* The owner changed its wish: wakes the broker. */

/* Returns the first node in use, from the given index on. */
extern int host_node(int host, int node);

static inline gate *
gate_of(int host, int resource)
{
	return &hosts[host].gate[w.plan.gate[resource]];
}

static inline bool
host_stays(const entry *entry)
{
	return entry->wish == WISH_IDLE;
}

static inline entry *
entry_at(int host, int entry)
{
	return &hosts[host].entry[entry];
}

extern bool host_all_idle(void);

/* Faults */
extern void host_pause(int host, int64_t for_us);
extern void host_stop_broker(int host, int64_t for_us);
extern void host_restart(int host, int64_t for_us); /* shared memory is lost */
extern void host_calm(int host);

#endif /* SIM_HOST_H */
