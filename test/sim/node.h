/*
 * node.h
 *		A simulated Redis node: what it stores of a lock, its marker, and the scripts.
 *
 * This is the model of redlock.lua and marker.lua of src/protocol; test/sim/conformance.c
 * compares it with a real redis-server.  It knows no world: the node's wall clock is an
 * argument.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"
#include "protocol/waiters.h"

/* How the marker came to be, as far as it says. */
typedef enum marked
{
	MARKED_FRESH, /* by one who had seen none before */
	MARKED_LOST,  /* by one who missed another, within max_ttl */
	MARKED_LONG_LOST
} marked;

/* One of those who share the lock. */
typedef struct node_reader
{
	uint32_t secret;
	uint32_t attempt;
	int host;
	int64_t granted; /* the counter */
	int64_t end_ms;
} node_reader;

#define NODE_READERS_MAX 12 /* a model's limit: the script has none */

/*
 * Secrets stand for the 32 hex digits of a request.  A plain Redlock client has
 * secrets, too, without attempts.
 */
typedef struct node_data
{
	uint32_t secret;    /* of the key's value; 0: there is no key */
	uint32_t attempt;   /* of the key's value */
	bool kept;          /* and that it was released */
	int host;           /* its id; 0: a plain client's value has none */
	bool may_stay;      /* and that the host may have it for nobody */
	bool shared;        /* and that it is of readers; what follows of them counts only then */
	int permits;        /* and that the lock has so many; 0: it does not say so */
	int64_t key_end_ms; /* the key expires after this, by the node's clock */
	int64_t counter;    /* 0: there is none */
	int64_t counter_end_ms;
	int64_t since; /* -1: there is none */
	int readers;
	node_reader reader[NODE_READERS_MAX];
	uint32_t barrier; /* the secret of who waits; 0: there is none */
	int64_t barrier_counter;
	int64_t barrier_end_ms;
} node_data;

/* One for all locks. */
typedef struct node_mark
{
	uint32_t text;   /* what is random of it; 0: there is none */
	int64_t lost_us; /* "lost" and this time are a part of it; 0: not */
} node_mark;

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
	NODE_OK = 0,
	NODE_FORGOT,
	NODE_AHEAD,
	NODE_FAILED,  /* OOM, LOADING and the like */
	NODE_NOSCRIPT /* it does not know the script */
} node_error;

typedef enum tells
{
	TELLS_NOTHING = 0,
	TELLS_FREE, /* to those who wait for the lock */
	TELLS_WANT  /* to the host that holds it */
} tells;

typedef struct answer
{
	core_reply reply;
	node_error error;
	int64_t token;    /* a granted acquire; a renewal that the counter refuses */
	int64_t busy_ms;  /* a refused acquire */
	uint32_t holder;  /* a refused acquire: the secret in the way */
	bool may_stay;    /* a refused acquire: of what is in the way */
	int waiting;      /* a refused acquire: as many hosts wait for the release */
	tells tells;      /* it publishes */
	int holder_host;  /* ... to this one, by its id */
	bool tells_queue; /* ... also to those who wait for any permit */
	int free_permit;  /* a refused acquire of a permit: another; 0: none is free */
	bool in_front;    /* a refused acquire: it is told that nobody waits */
	bool shared;      /* a refused acquire: readers are in the way; ... to all of these: */
	int readers;
	int reader_host[NODE_READERS_MAX];
} answer;

/* Of a node, to a call of the script. */
typedef enum node_memory
{
	NODE_HAS_ROOM,
	NODE_WRITES, /* it is full, but the call has changed something: only new names are refused */
	NODE_FULL
} node_memory;

/* `data`: of the command's lock. */
extern void node_execute(node_data *data, const node_mark *mark, int64_t now_us,
						 const command *command, node_memory *memory, answer *answer);

/* Reads the marker, or writes one; `seen`: another was seen before. */
extern marked node_marker(node_mark *mark, int64_t now_us, uint32_t fresh, bool seen,
						  int64_t max_ttl_ms);

/* SET NX PX, and compare-and-delete: a plain Redlock client. */
extern bool node_plain_set(node_data *data, int64_t now_us, uint32_t secret, int64_t ttl_ms);
extern bool node_plain_delete(node_data *data, int64_t now_us, uint32_t secret);

/* What has expired is not there.  Returns whether the counter went. */
extern bool node_expire(node_data *data, int64_t now_us);

#endif /* SIM_NODE_H */
