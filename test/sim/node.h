/*
 * node.h
 *		A simulated Redis node: its data of a lock, its marker, and the
 *		scripts.
 *
 * This models redlock.lua and marker.lua of src/protocol.
 * test/sim/conformance.c compares the model with a real redis-server.  The
 * model has no world: the node's wall clock is an argument.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"
#include "protocol/waiters.h"

/* The origin of the marker, as far as the marker says. */
typedef enum marked
{
	MARKED_FRESH, /* by a host that had seen none before */
	MARKED_LOST,  /* by a host that missed another marker, within max_ttl */
	MARKED_LONG_LOST
} marked;

/* A reader of the lock. */
typedef struct node_reader
{
	uint32_t secret;
	uint32_t attempt;
	int host;
	int64_t granted; /* the counter */
	int64_t end_ms;
} node_reader;

#define NODE_READERS_MAX 12 /* a limit of the model; the script has none */

/*
 * Secrets stand for the 32 hex digits of a request.  A plain Redlock client
 * has secrets, too, without attempts.
 */
typedef struct node_data
{
	uint32_t secret;    /* of the key's value; 0: no key */
	uint32_t attempt;   /* of the key's value */
	bool kept;          /* ... the key was released and is kept */
	int host;           /* ... its host's id; 0: a plain client's value */
	bool may_stay;      /* ... the host may keep an idle lease */
	bool shared;        /* ... readers hold it; the fields of readers count only then */
	int permits;        /* ... the number of permits; 0: not said */
	int64_t key_end_ms; /* the key expires after this, by the node's clock */
	int64_t counter;    /* 0: none */
	int64_t counter_end_ms;
	int64_t since; /* -1: none */
	int readers;
	node_reader reader[NODE_READERS_MAX];
	uint32_t barrier; /* the secret of the waiting writer; 0: none */
	int64_t barrier_counter;
	int64_t barrier_end_ms;
} node_data;

/* A node has one marker, for all locks. */
typedef struct node_mark
{
	uint32_t text;   /* its random part; 0: none */
	int64_t lost_us; /* the time behind "lost" in the marker; 0: no such part */
} node_mark;

/* A host whose turn is next, as a release names it. */
typedef struct told_waiter
{
	uint64_t host;
	int64_t waited_us;
} told_waiter;

typedef struct command
{
	core_op op;
	int resource; /* the lock; its name is in the key */
	uint32_t secret;
	uint32_t attempt;
	int64_t ttl_ms;               /* release: the key's fate, as in redlock.lua */
	int64_t proposal;             /* acquire */
	uint32_t marker;              /* acquire: the marker that must be there */
	int64_t counter;              /* confirm: granted; renew: bound; release: tombstone */
	int64_t token;                /* confirm; renew: the new bound */
	int64_t waited_us;            /* acquire: how long the host has waited; -1: a try */
	int permit;                   /* the number of the permit; 0: the key is of a lock */
	node_data *lock_data;         /* ... the node's data of the lock */
	const node_data *permit_data; /* ... [0]: of the queue, [n]: of permit n */
	int permits_known;            /* ... the last permit with data */
	int permits;                  /* acquire of a permit: how many the lock has */
	int64_t ended;                /* release: the lease's token, for waiters; 0: none */
	int waiting;                  /* release: number of named waiters */
	told_waiter waiter[WAITERS_MAX];
	/* the shell's record */
	int host;         /* its id, less one; the id is part of the value */
	bool may_stay;    /* part of the value */
	int says_permits; /* part of the value; 0: none */
	bool shared;      /* by a reader; part of the value */
	int entry;
	uint32_t generation;
	uint32_t round;
	core_event_type why; /* the event that caused the command */
	int64_t sent_us;
	uint32_t batch; /* commands of one number are one call of the script */
	bool by_text;   /* the script's text was sent along */
} command;

typedef enum node_error
{
	NODE_OK = 0,
	NODE_FORGOT,
	NODE_AHEAD,
	NODE_FAILED,  /* OOM, LOADING and the like */
	NODE_NOSCRIPT /* the script is unknown */
} node_error;

typedef enum tells
{
	TELLS_NOTHING = 0,
	TELLS_FREE, /* to waiters for the lock */
	TELLS_WANT  /* to the holder's host */
} tells;

typedef struct answer
{
	core_reply reply;
	node_error error;
	int64_t token;    /* a granted acquire; a renewal refused by the counter */
	int64_t busy_ms;  /* a refused acquire */
	uint32_t holder;  /* a refused acquire: the secret in the way */
	bool may_stay;    /* a refused acquire: the lease in the way may be idle */
	int waiting;      /* a refused acquire: how many hosts wait for the release */
	tells tells;      /* a published message */
	int holder_host;  /* ... to this host, by its id */
	bool tells_queue; /* ... also to waiters for any permit */
	int free_permit;  /* a refused acquire of a permit: a free one; 0: none */
	bool in_front;    /* a refused acquire: the first in the queue */
	bool shared;      /* a refused acquire: readers are in the way, and all get the message */
	int readers;
	int reader_host[NODE_READERS_MAX];
} answer;

/* A node's memory, for a call of the script. */
typedef enum node_memory
{
	NODE_HAS_ROOM,
	NODE_WRITES, /* full, but the call has changed data: only new names are refused */
	NODE_FULL
} node_memory;

/* `data`: of the command's lock. */
extern void node_execute(node_data *data, const node_mark *mark, int64_t now_us,
						 const command *command, node_memory *memory, answer *answer);

/*
 * Reads the marker, or writes one.  `seen`: the host has seen another marker
 * before.
 */
extern marked node_marker(node_mark *mark, int64_t now_us, uint32_t fresh, bool seen,
						  int64_t max_ttl_ms);

/* The commands of a plain Redlock client: SET NX PX; compare-and-delete. */
extern bool node_plain_set(node_data *data, int64_t now_us, uint32_t secret, int64_t ttl_ms);
extern bool node_plain_delete(node_data *data, int64_t now_us, uint32_t secret);

/* Removes expired data.  Returns whether the counter expired. */
extern bool node_expire(node_data *data, int64_t now_us);

#endif /* SIM_NODE_H */
