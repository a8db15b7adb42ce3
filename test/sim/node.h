/*
 * node.h
 *		A simulated Redis node: src/protocol/local_node.h, with small numbers in place of the random
 *		bits of requests.
 *
 * test/sim/conformance.c compares it with a real redis-server.  It knows no world: the node's wall
 * clock is an argument.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"
#include "protocol/inspection.h"
#include "protocol/local_node.h"
#include "protocol/waiters.h"

typedef local_data node_data;
typedef local_reader node_reader;
typedef local_mark node_mark;
typedef local_memory node_memory;

/* The secret of request number n; the number of a secret, 0: of no request. */
static inline local_id
node_secret(uint32_t n)
{
	return (local_id){0, n};
}

static inline uint32_t
node_number(local_id secret)
{
	return (uint32_t) secret.low;
}

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
	NODE_OK = LOCAL_OK,
	NODE_FORGOT = LOCAL_FORGOT,
	NODE_AHEAD = LOCAL_AHEAD,
	NODE_FAILED = LOCAL_FAILED, /* OOM, LOADING and the like */
	NODE_NOSCRIPT               /* it does not know the script */
} node_error;

typedef struct answer
{
	core_reply reply;
	node_error error;
	int64_t token;     /* a granted acquire; a renewal refused by the counter */
	int64_t busy_ms;   /* a refused acquire */
	uint32_t holder;   /* a refused acquire: the secret in the way */
	bool may_stay;     /* a refused acquire: the lease in the way may be idle */
	int waiting;       /* a refused acquire: how many hosts wait for the release */
	local_tells tells; /* a published message */
	int holder_host;   /* ... to this host, by its id */
	bool tells_queue;  /* ... also to waiters for any permit */
	int free_permit;   /* a refused acquire of a permit: a free one; 0: none */
	bool in_front;     /* a refused acquire: the first in the queue */
	bool shared;       /* a refused acquire: readers are in the way, and all get the message */
	int readers;
	int reader_host[LOCAL_READERS_MAX];
} answer;

/* `data`: of the command's lock. */
extern void node_execute(node_data *data, const node_mark *mark, int64_t now_us,
						 const command *command, node_memory *memory, answer *answer);

/* Writes the value of our key, as the scripts do. */
extern void node_write_value(char *text, size_t size, const node_data *data);

/* The order of an administrator to release a lock by force. */
typedef struct node_order
{
	bool looks;        /* no order: inspect.lua only reads */
	const char *held;  /* the text of the key, if there is one */
	bool held_is_text; /* the key is a string */
	int64_t least;
	const char *value;            /* the value to be deleted */
	int value_len;                /* 0: any */
	bool of_permit;               /* the key is of a permit */
	const node_data *permit_data; /* as in `command` */
	int permits_known;
} node_order;

/*
 * Executes force_release.lua, or reads only.  Fills in the answer, except for the marker.  Returns
 * true if the script publishes the release of the key.
 */
extern bool node_force(node_data *data, int64_t now_us, const node_order *order, Inspected *at);

#endif /* SIM_NODE_H */
