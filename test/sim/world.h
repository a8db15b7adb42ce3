/*
 * world.h
 *		One simulated world: true time, the queue of events, clocks and
 *		dice.
 *
 * A seed makes a schedule.  The plan (plan.c) decides the size of the world
 * and the classes of faults; the dice decide the rest.  All data are in one
 * static struct, without allocations during a schedule.
 *
 * The program takes the next event from the queue, in order of true time, and
 * calls its handler (sim.c), which may schedule new events.
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
#define NODES_MAX 8   /* node indexes of a host, as CORE_NODES_MAX */
#define SERVERS_MAX 6 /* Redis servers */
#define RESOURCES_MAX 4
#define ENTRIES_MAX 8 /* lease entries of a host */
#define WIRE_MAX 32   /* commands in flight on a connection, as in the broker */
#define LIMBO_MAX 128 /* commands left in old sockets */
#define SESSIONS_MAX 200
#define EVENTS_MAX 2048

/*
 * Requests of a schedule.  Sessions begin no more than ASKED_MAX.  A change of
 * lists makes each waiting entry begin another request, so lists change below
 * MOVED_MAX only.  The rest is for the last requests.
 */
#define ASKED_MAX 200
#define MOVED_MAX (ASKED_MAX + 2 * HOSTS_MAX * ENTRIES_MAX)
#define SECRETS_MAX (MOVED_MAX + HOSTS_MAX * ENTRIES_MAX + 100)

/* The begin of true time.  A correct wall clock shows WALL_US more. */
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
	FAULT_LOST_VOTE, /* a node loses its data while a round counts the node's vote */
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
	FAULT_WORD,         /* messages between hosts are lost, late, doubled, forged */
	FAULT_RELOAD_NODES, /* by an operator who follows docs/how-to */
	FAULT_RELOAD_PREFIX,
	FAULT_RELOAD_TTL,
	FAULT_SEVERAL, /* not a fault: several resources */
	FAULT_FORCE,   /* an administrator releases locks by force */
	FAULTS
} fault;

#define FAULT_BIT(fault) (UINT64_C(1) << (fault))

typedef enum persistence
{
	KEEPS_ALL,       /* appendfsync always */
	KEEPS_SNAPSHOTS, /* loses data since the last snapshot */
	KEEPS_NOTHING
} persistence;

typedef enum event_kind
{
	/* of a host's processes: a paused host handles them late */
	EVENT_ANSWER,     /* a reply arrives */
	EVENT_BROKEN,     /* the host notices a broken connection */
	EVENT_OVERDUE,    /* the oldest command of a connection may be overdue */
	EVENT_CONNECT,    /* time to connect */
	EVENT_HANDSHAKE,  /* the node's answers in the handshake arrive */
	EVENT_TIMER,      /* of a lease */
	EVENT_HEAR,       /* a message from another host arrives */
	EVENT_FORCED,     /* a node's answer to a forced release arrives */
	EVENT_FORCE_OVER, /* the time for these answers is over */
	EVENT_BROKER,     /* a new broker starts */
	EVENT_SETTLED,    /* the new broker has probed all nodes once */
	EVENT_RELOAD,     /* the broker puts redlock.nodes into force */
	EVENT_PASS,       /* the broker takes its queue */
	EVENT_ASK,        /* a session asks for a lock */
	EVENT_ASKED,      /* a session with an entry writes its wish */
	EVENT_READ,       /* a session reads its outcome */
	EVENT_NEXT,       /* the next session at the gate asks */
	EVENT_TAKE,       /* the next session takes a lease over */
	EVENT_CANCEL,     /* a waiting session is cancelled */
	EVENT_WRITE,      /* a session passes the database's fence, and reads */
	EVENT_STORE,      /* a session stores a new version */
	EVENT_PROLONG,    /* a detached lease is prolonged */
	EVENT_DONE,       /* a session is done with the lock */
	EVENT_HOST_LAST = EVENT_DONE,
	/* of others */
	EVENT_ARRIVE, /* a command arrives at its node */
	EVENT_REACH,  /* a connection reaches its node */
	EVENT_LATE,   /* a command from an old socket is executed */
	EVENT_FAULT,
	EVENT_FORCE,      /* a command of a forced release arrives at its node */
	EVENT_FORCE_LATE, /* a holder must have heard of a forced release by now */
	EVENT_OPERATOR,   /* the operator changes settings */
	EVENT_PLAIN,      /* the plain Redlock client acts */
	EVENT_CALM,       /* the end of all faults */
	EVENT_LIMIT       /* time limit of the last grants */
} event_kind;

typedef struct event
{
	int64_t at_us;
	uint32_t order; /* of events at one time */
	uint8_t kind;
	uint8_t host;
	uint8_t node; /* or the resource, of a session's event */
	uint8_t entry;
	uint32_t tag; /* detects outdated events */
} event;

/* A clock runs evenly between settings: now * (1 + ppm / 10^6) + offset. */
typedef struct sim_clock
{
	int64_t offset_us;
	int32_t ppm;
} sim_clock;

/* The decisions of a seed at the begin. */
typedef struct plan
{
	uint64_t seed;
	uint64_t faults; /* classes that may be injected */
	int hosts;
	int nodes;               /* in redlock.nodes, at first */
	int places;              /* node indexes; more than nodes where the list changes */
	bool joint;              /* the list changes through redlock.nodes_next */
	int servers;             /* one less with a twin; one more where redlock.nodes changes */
	int resources;           /* keys on the nodes: a prefix and a name */
	int names;               /* of locks. With two prefixes there are twice as many keys as names */
	int gate[RESOURCES_MAX]; /* the hash of the name; two names may share it */
	int turn[RESOURCES_MAX]; /* the place in the memory of turns, by gate */
	int entries;             /* of each host */
	bool renamed;            /* node names mean other servers on other hosts */
	bool doubled;            /* some hosts list a server twice */
	persistence persistence[SERVERS_MAX];
	int64_t ttl_us;
	int64_t max_ttl_us;
	int longer; /* factor of ttl and max_ttl, where the operator raises them */
	int64_t answer_us;
	int64_t retry_us;
	bool aged;        /* entries, requests and connections are near their last numbers */
	int64_t delay_us; /* mean, one way */
	int64_t hold_us;  /* mean */
	int64_t length_us;
	int64_t fault_every_us;
	int releases_max; /* unanswered at a node, UNHURRIED_MAX in the broker */
	int64_t crowd_us; /* how long other locks' releases fill a node at a time; 0: never */
	int span;         /* tokens of a grant for sessions: redlock.handover_limit + 1 */
	int spent;        /* tokens of a grant counted as spent at first */
	int asks;
	int write_odds;
	int64_t keep_idle_us; /* most sessions leave idle leases for this long; 0: none */
	bool share;           /* some requests are shared */
	bool keep;            /* some requests keep the key after their release */
	bool limit;           /* some requests limit their hold */
	/* the invariants to demand under these faults */
	bool guarded;      /* 1, 8: clocks within bounds, no deleted keys */
	bool sane;         /* wall clocks agree so well that order survives lost counters */
	bool measured;     /* 12: leases and keys end in time */
	bool faultless;    /* no faults at all */
	bool prompt;       /* 23: a forced release succeeds, and its holder hears at once */
	bool lawful;       /* the laws of the core, which take time: in some schedules */
	bool rolling;      /* 16: only minorities of nodes fail at a time */
	int64_t settle_us; /* minimal pause between outages */
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
	bool flushed;       /* lost by FLUSHALL, in a process that lives on */
	bool scriptless;    /* our script is unknown */
} server;

typedef struct limbo
{
	command command;
	int node; /* as the host numbers it */
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
	bool calm;     /* faults are over; all hosts release, except for the last requests */
	bool over;     /* an invariant was violated */
	int last_host; /* the host that asks in the calm */
	bool last_granted[RESOURCES_MAX];
	bool late;             /* the time limit has passed: its sessions are told to stop */
	int64_t settled_at_us; /* FAULT_ROLLING: from then on the next outage may begin */
	server server[SERVERS_MAX];
	int server_of[HOSTS_MAX][NODES_MAX];       /* the server of each host's node */
	int64_t cut_to_us[HOSTS_MAX][NODES_MAX];   /* commands are held back until then */
	int64_t cut_from_us[HOSTS_MAX][NODES_MAX]; /* replies are held back until then */
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

/* Returns an earlier node of this host that is the same server; or -1. */
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
