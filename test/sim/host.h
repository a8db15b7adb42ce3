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

/* The owner of an entry.  What the broker knows of it is the wish alone. */
typedef enum owner
{
	OWNER_NOBODY, /* nobody yet, or nobody any more */
	OWNER_ASKS,   /* waits for an answer, or has not yet read it */
	OWNER_HOLDS,
	OWNER_DETACHED, /* no session: who knows the token works, prolongs and gives back */
	OWNER_VANISHED  /* without a word: its process is gone, its wish is there */
} owner;

typedef struct entry
{
	DriverLease drive;
	round_check check; /* of check.c */
	bool in_use;
	int resource;
	Wish wish;
	owner owner;
	bool was_detached; /* also when it was released */
	bool queued;       /* for the broker */
	uint32_t secret;
	bool once;
	bool told;     /* the outcome */
	bool returned; /* a session was told a token */
	bool forgiven; /* its debts were forgotten */
	int64_t ttl_us;
	int64_t hold_at_most_us;
	int64_t hold_until_us; /* of its holder, from the grant or a hand-over on; 0: no limit */
	bool detach;           /* its owner detaches it */
	int64_t keep_us;       /* the key stays so long after the grant, even if released */
	int span;              /* sessions that may hold it */
	int handovers;
	int64_t last_token;       /* of the grant, or its bound since a renewal */
	int64_t more_tokens_us;   /* more are asked for, and come by then or do not */
	int64_t relisted_true_us; /* its nodes are others since then */
	int64_t keep_idle_us;
	bool may_stay; /* as the nodes were told when it was asked for */
	bool shared;   /* by `joined` sessions */
	int joined;
	int64_t want_until_us; /* ... as long as nobody wants it alone */
	int64_t idle_until_us; /* of WISH_IDLE */
	int64_t looks_at_us;   /* the broker looks whether a stay or a hold is over */
	bool wanted;           /* by other hosts, as the sessions know */
	bool returns;          /* released, and sessions of this host wait on */
	bool goes_on;          /* released, and the turn goes on with another entry */
	int64_t waits_since_us;
	int64_t asked_us;    /* the broker began to ask */
	int session;         /* who holds it; -1: nobody yet, or nobody any more */
	int64_t timer_at_us; /* true time */
	uint32_t timer_tag;
} entry;

/* Of the names with one hash. */
typedef struct gate
{
	int named;                /* the entry that is found by it; -1 */
	int waiting;              /* sessions, */
	uint8_t wants[QUEUE_MAX]; /* ... which resource each */
} gate;

typedef struct host
{
	sim_clock mono;
	sim_clock wall;
	int64_t paused_until_us;
	bool broker_down;
	int64_t broker_began_us;
	Driver driver;
	/* its memory */
	DriverEntry of_entry[ENTRIES_MAX];
	Release release[ENTRIES_MAX];
	WaitersKnown known[KNOWN_MAX];
	bool known_used[KNOWN_MAX];
	bool moves;         /* the lists of nodes change just now */
	int64_t room_at_us; /* it is looked then whether there is room; true time */
	core_mask crowded;  /* nodes that are full of other locks' releases */
	gate gate[RESOURCES_MAX];
	int queued[ENTRIES_MAX]; /* entries whose owner wishes something else, in order */
	int queued_count;
	bool pass_due; /* an EVENT_PASS is under way */
	struct
	{
		GuardMemory guard;
		int failures;
		bool in_use;
		bool leaving; /* no longer listed, but some lease was granted by it */
		int address;  /* by which it is known */
	} node[NODES_MAX];
	core_mask members; /* the nodes that are listed */
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
extern uint32_t host_marker(int host, int node); /* that it knows; 0: none */
extern bool host_is_valid(int host, int entry);  /* to the one who holds it */
extern int64_t host_now_us(int host);
extern int64_t host_true_time_us(int host, int64_t clock_us);

extern int64_t host_wall_us(int host);
extern uint64_t host_hash(int resource); /* of its name */

extern void host_on_lost(int host, int node, const command *command, bool replacing);
extern bool host_forget_debt(int host); /* the oldest: an entry is needed.  False: none is owed */
extern void host_push(int host, int entry); /* its owner wishes something else */

/* A node of this host, from the one given on. */
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
extern void host_restart(int host, int64_t for_us); /* it forgets all */
extern void host_calm(int host);

#endif /* SIM_HOST_H */
