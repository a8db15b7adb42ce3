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

/* A host whose turn is next, as a release says. */
typedef struct told_waiter
{
	uint64_t host;
	int64_t waited_us;
} told_waiter;

typedef struct command
{
	core_op op;
	int resource; /* which lock; its name is in the key */
	uint32_t secret;
	uint32_t attempt;
	int64_t ttl_ms;               /* release: what becomes of the key, as in redlock.lua */
	int64_t proposal;             /* acquire */
	uint32_t marker;              /* acquire: what must be there */
	int64_t counter;              /* confirm: granted; renew: bound; release: tombstone */
	int64_t token;                /* confirm; renew: what the bound becomes */
	int64_t waited_us;            /* acquire: what the holder's host is told; -1: it is a try */
	int permit;                   /* the key is of this permit of a lock; 0: it is of a lock */
	node_data *lock_data;         /* ... the node's of that lock */
	const node_data *permit_data; /* ... [0] of the queue, [n] of permit n, ... */
	int permits_known;            /* ... up to this one; there are no others */
	int permits;                  /* acquire of a permit: how many the lock has */
	int64_t ended; /* release: the token of the lease, as waiters are told; 0: none */
	int waiting;   /* release: so many of them are named */
	told_waiter waiter[WAITERS_MAX];
	/* what the shell remembers of it */
	int host;         /* its id, less one, is in the value */
	bool may_stay;    /* so is this */
	int says_permits; /* so is this number; 0: none */
	bool shared;      /* it is one of readers, and so is this */
	int entry;
	uint32_t generation;
	uint32_t round;
	core_event_type why; /* the event that asked for it */
	int64_t sent_us;
	uint32_t batch; /* those of one number are executed by one call of the script */
	bool by_text;   /* of which the script's text was sent along */
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
	int64_t token;     /* a granted acquire; a renewal that the counter refuses */
	int64_t busy_ms;   /* a refused acquire */
	uint32_t holder;   /* a refused acquire: the secret in the way */
	bool may_stay;     /* a refused acquire: of what is in the way */
	int waiting;       /* a refused acquire: as many hosts wait for the release */
	local_tells tells; /* it publishes */
	int holder_host;   /* ... to this one, by its id */
	bool tells_queue;  /* ... also to those who wait for any permit */
	int free_permit;   /* a refused acquire of a permit: another; 0: none is free */
	bool in_front;     /* a refused acquire: it is told that nobody waits */
	bool shared;       /* a refused acquire: readers are in the way; ... to all of these: */
	int readers;
	int reader_host[LOCAL_READERS_MAX];
} answer;

/* `data`: of the command's lock. */
extern void node_execute(node_data *data, const node_mark *mark, int64_t now_us,
						 const command *command, node_memory *memory, answer *answer);

#endif /* SIM_NODE_H */
