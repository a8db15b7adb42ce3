/*
 * world.h
 *		One simulated world: true time, what is to happen, clocks and dice.
 *
 * A schedule is what a seed makes of it: the plan (plan.c) says how big the world
 * is and what may go wrong, the dice decide the rest.  Everything lies in one
 * static struct; nothing is allocated while a schedule runs.
 *
 * Read as a program: an event is taken from the queue in order of true
 * time and handed to those whom it concerns (sim.c); they put new ones there.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "node.h"
#include "protocol/core.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)
#define HOUR (3600 * SECOND)
#define NEVER INT64_MAX

#define HOSTS_MAX 4
#define NODES_MAX 8   /* entries of nodes, as CORE_NODES_MAX */
#define SERVERS_MAX 6 /* Redis servers */
#define RESOURCES_MAX 4
#define ENTRIES_MAX 8 /* lease entries of a host */
#define WIRE_MAX 32   /* commands in flight on a connection, as in the broker */
#define LIMBO_MAX 128 /* commands left in old sockets */
#define SESSIONS_MAX 200
#define EVENTS_MAX 2048

/*
 * Requests of a schedule.  Sessions begin no more than ASKED_MAX.  A change of lists lets each
 * waiting entry begin another request, so lists change below MOVED_MAX only.  The rest is for the
 * last ask.
 */
#define ASKED_MAX 200
#define MOVED_MAX (ASKED_MAX + 2 * HOSTS_MAX * ENTRIES_MAX)
#define SECRETS_MAX (MOVED_MAX + HOSTS_MAX * ENTRIES_MAX + 100)

/* True time begins here; a wall clock that is right tells WALL_US more. */
#define START_US (1000 * SECOND)
#define WALL_US (INT64_C(1750000000) * SECOND)

typedef enum fault
{
	FAULT_LOSS,
	FAULT_DELAY,
	FAULT_CUT,
	FAULT_PARTITION,
	FAULT_RESET,
	FAULT_DUPLICATE,
	FAULT_ERROR,
	FAULT_NONSENSE,
	FAULT_NODE_PAUSE,
	FAULT_RESTART,
	FAULT_RESTART_LOST,
	FAULT_ROLLBACK,
	FAULT_FLUSH,
	FAULT_ROLLING,
	FAULT_TWIN,
	FAULT_NODE_FORWARD,
	FAULT_NODE_BACK,
	FAULT_NODE_DRIFT,
	FAULT_WALL_WRONG,
	FAULT_WALL_JUMP,
	FAULT_HOST_DRIFT,
	FAULT_HOST_WILD,
	FAULT_HOST_PAUSE,
	FAULT_APP_PAUSE,
	FAULT_BROKER,
	FAULT_CRASH,
	FAULT_CANCEL,
	FAULT_PLAIN,
	FAULT_STRANGER,
	FAULT_EVICT,
	FAULT_SUSPEND,
	FAULT_DROP,
	FAULT_BATCH,
	FAULT_NOSCRIPT,
	FAULT_SILENCE,
	FAULT_BOOT_STEP,
	FAULT_SERVER,
	FAULT_FULL,
	FAULT_WORD,         /* what hosts tell each other is lost, late, doubled, forged */
	FAULT_RELOAD_NODES, /* by an operator who does as README.md says */
	FAULT_RELOAD_PREFIX,
	FAULT_RELOAD_TTL,
	FAULT_SEVERAL, /* not a fault: several resources */
	FAULTS
} fault;

#define FAULT_BIT(fault) (UINT64_C(1) << (fault))

typedef enum persistence
{
	KEEPS_ALL,       /* appendfsync always */
	KEEPS_SNAPSHOTS, /* loses what came after the last one */
	KEEPS_NOTHING
} persistence;

typedef enum event_kind
{
	/* of a host's processes: late when it is paused */
	EVENT_ANSWER,    /* a reply arrives */
	EVENT_BROKEN,    /* the host notices that a connection is gone */
	EVENT_OVERDUE,   /* the oldest command of a connection may be overdue */
	EVENT_CONNECT,   /* time to connect */
	EVENT_HANDSHAKE, /* the node has told all that we ask at first */
	EVENT_TIMER,     /* of a lease */
	EVENT_HEAR,      /* a node told what another host said */
	EVENT_BROKER,    /* a new broker is there */
	EVENT_SETTLED,   /* ... and has tried all nodes */
	EVENT_RELOAD,    /* the broker puts redlock.nodes into force */
	EVENT_PASS,      /* the broker takes its queue */
	EVENT_ASK,       /* a session wants the lock */
	EVENT_ASKED,     /* ... which has an entry, writes its wish */
	EVENT_READ,      /* ... and looks at what it is told */
	EVENT_NEXT,      /* the next of those who wait at the gate asks */
	EVENT_TAKE,      /* ... or takes over */
	EVENT_CANCEL,    /* a session waits no longer */
	EVENT_WRITE,     /* a session passes the fence of the database, and reads */
	EVENT_STORE,     /* ... and stores what it made of that */
	EVENT_PROLONG,   /* ... and goes on with a detached lease for longer */
	EVENT_DONE,      /* a session lets the lock go */
	EVENT_HOST_LAST = EVENT_DONE,
	/* of others */
	EVENT_ARRIVE, /* a command arrives at its node */
	EVENT_REACH,  /* a connection reaches its node */
	EVENT_LATE,   /* a command left in an old socket is executed */
	EVENT_FAULT,
	EVENT_OPERATOR, /* somebody changes settings */
	EVENT_PLAIN,    /* the plain Redlock client does something */
	EVENT_CALM,     /* no more faults */
	EVENT_LIMIT     /* by now a grant must have come */
} event_kind;

typedef struct event
{
	int64_t at_us;
	uint32_t order; /* of events at one time */
	uint8_t kind;
	uint8_t host;
	uint8_t node; /* or, of what sessions do, the resource */
	uint8_t entry;
	uint32_t tag; /* tells whether the event still means something */
} event;

/* A clock runs evenly between settings: now * (1 + ppm / 10^6) + offset. */
typedef struct sim_clock
{
	int64_t offset_us;
	int32_t ppm;
} sim_clock;

/* What a seed decides at first. */
typedef struct plan
{
	uint64_t seed;
	uint64_t faults; /* the classes that may be injected */
	int hosts;
	int nodes;     /* in redlock.nodes, at first */
	int places;    /* entries for nodes; more than nodes where that changes */
	bool joint;    /* they change by two lists at a time */
	int servers;   /* one less with a twin; one more, where redlock.nodes changes */
	int resources; /* keys on the nodes: a prefix and a name */
	int names;     /* of resources: each key is that of a name, and of one of two prefixes, if
					* there are more keys than names */
	int gate[RESOURCES_MAX]; /* the hash of the name: two may have the same */
	int turn[RESOURCES_MAX]; /* ... modulo TURNS of lease.h, by gate */
	int entries;             /* of each host */
	bool renamed;            /* the names of nodes mean other servers on other hosts, */
	bool doubled;            /* ... some of which list a server twice */
	persistence persistence[SERVERS_MAX];
	int64_t ttl_us;
	int64_t max_ttl_us;
	int longer; /* so many times as long are ttl and max_ttl, where an operator raises it */
	int64_t answer_us;
	int64_t retry_us;
	bool aged;        /* entries, requests and connections are near the ends of their numbers */
	int64_t delay_us; /* mean, one way */
	int64_t hold_us;  /* mean */
	int64_t length_us;
	int64_t fault_every_us;
	int releases_max; /* unanswered at a node, UNHURRIED_MAX in the broker */
	int64_t crowd_us; /* so long a node is full of other locks' releases, now and then; 0 */
	int span;         /* tokens of a grant that are handed out, redlock.handover_limit + 1 */
	int spent;        /* so many tokens of a grant are taken for given out */
	int asks;
	int write_odds;
	int64_t keep_idle_us; /* most leave the lease to nobody for so long; 0: none does */
	bool share;           /* some share the lock */
	bool keep;            /* some hold the key for some time after their release */
	bool limit;           /* some limit how long they hold */
	/* which invariants these faults leave */
	bool guarded;      /* 1, 8: clocks are within bounds and nobody deletes keys */
	bool sane;         /* wall clocks are so near to each other that order outlives counters */
	bool measured;     /* 12: leases and keys end in time */
	bool faultless;    /* nothing goes wrong at all */
	bool lawful;       /* the laws of the core: in some schedules, they cost time */
	bool rolling;      /* 16: nodes fail, but not too many at once */
	int64_t settle_us; /* ... and others fail this long after they are back, or longer */
} plan;

typedef struct store
{
	node_data lock[RESOURCES_MAX];
	node_mark mark;
} store;

typedef struct server
{
	store data;
	store saved; /* by the last snapshot */
	int64_t save_every_us;
	int64_t save_at_us;
	sim_clock wall;
	uint32_t run_id;
	int64_t started_us; /* by its wall clock */
	int64_t paused_until_us;
	int64_t lost_at_us; /* true time of the last loss of data; 0: none */
	bool flushed;       /* ... by a process that lives on */
	bool scriptless;    /* it does not know our script */
} server;

typedef struct limbo
{
	command command;
	int node; /* as the host counted */
	int server;
	uint32_t run_id;
	bool used;
} limbo;

typedef struct world
{
	plan plan;
	int64_t now_us;
	int64_t calm_at_us;
	uint64_t dice;
	bool calm;     /* no more faults; all let go, but for one who asks */
	bool over;     /* an invariant was violated */
	int last_host; /* who asks when it is calm */
	bool last_granted[RESOURCES_MAX];
	bool late;             /* ... or can't be, and is told to go */
	int64_t settled_at_us; /* FAULT_ROLLING: all have been back for long enough by then */
	server server[SERVERS_MAX];
	int server_of[HOSTS_MAX][NODES_MAX];       /* what each host's names of nodes mean */
	int64_t cut_to_us[HOSTS_MAX][NODES_MAX];   /* nothing gets through until then */
	int64_t cut_from_us[HOSTS_MAX][NODES_MAX]; /* ... in the other direction */
	uint32_t markers;
	uint32_t run_ids;
	uint32_t secrets;
	uint32_t order;
	int events;
	int taken; /* events so far */
	event event[EVENTS_MAX];
	limbo limbo[LIMBO_MAX];
} world;

extern world w;

extern void world_begin(uint64_t seed);
extern uint32_t dice(uint32_t sides); /* 0 .. sides - 1 */
extern int64_t dice_us(int64_t below_us);
extern bool chance(uint32_t one_in);

extern void later(int64_t at_us, event_kind kind, int host, int node, int entry, uint32_t tag);
extern bool next_event(event *event);

extern int64_t clock_us(const sim_clock *clock);
extern int64_t true_time_us(const sim_clock *clock, int64_t clock_us);
extern int64_t server_clock_us(const server *server);

static inline server *
server_at(int host, int node)
{
	return &w.server[w.server_of[host][node]];
}

/* An earlier node of this host that is the same server; or -1. */
static inline int
twin_of(int host, int node)
{
	for (int i = 0; i < node; i++)
		if (w.server_of[host][i] == w.server_of[host][node])
			return i;
	return -1;
}

static inline bool
may(fault fault)
{
	return (w.plan.faults & FAULT_BIT(fault)) != 0 && !w.calm;
}

/* plan.c */
extern uint64_t plan_allowed; /* faults of the campaign */
extern void plan_make(plan *plan, uint64_t seed);

#endif /* SIM_WORLD_H */
