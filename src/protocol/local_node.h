/*
 * local_node.h
 *		A node without Redis: what a node keeps of a lock, its marker, and what the scripts do.
 *
 * This is redlock.lua and marker.lua in C, without the messages.  It serves three purposes: the
 * node inside the server (redlock.nodes = 'local', see broker/node_local.h), the nodes of the
 * simulator, and test/sim/conformance.c, which compares it with a real redis-server.  A change of
 * a script changes this file, too.
 *
 * The caller finds the data by the lock's name (see local_names.h), and writes the messages.
 *
 * Pure, like the core: the node's wall clock is an argument.
 */
#ifndef REDLOCK_LOCAL_NODE_H
#define REDLOCK_LOCAL_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"

/* the random bits of a request, which a value has as 32 hex digits; all 0: of no request */
typedef struct local_id
{
	uint64_t high;
	uint64_t low;
} local_id;

#define LOCAL_NOBODY ((local_id){0, 0})

static inline bool
local_is(local_id a, local_id b)
{
	return a.high == b.high && a.low == b.low;
}

/* what the marker tells of a loss */
typedef enum local_marked
{
	LOCAL_MARKED_FRESH, /* its writer had seen no earlier marker */
	LOCAL_MARKED_LOST,  /* its writer missed an earlier marker, within max_ttl */
	LOCAL_MARKED_LONG_LOST
} local_marked;

/* a reader of the lock */
typedef struct local_reader
{
	local_id secret;
	uint32_t attempt;
	int host;
	int64_t granted; /* the counter */
	int64_t end_ms;
} local_reader;

/* readers beyond these are refused as by a full node; the script has no such limit */
#define LOCAL_READERS_MAX 12

/* what a node keeps of one name; all 0: nothing */
typedef struct local_data
{
	local_id secret;    /* of the key's value; LOCAL_NOBODY: there is no key */
	uint32_t attempt;   /* of the key's value */
	bool kept;          /* the key was released, and is kept by hold_at_least */
	int host;           /* number of the value's host; 0: a plain client's value has none */
	bool may_idle;      /* the lease may be idle */
	bool shared;        /* the key is of readers; the fields for readers count only then */
	int permits;        /* the number of permits in the value; 0: none */
	int64_t key_end_ms; /* the key expires after this, by the node's clock */
	int64_t counter;    /* 0: there is none */
	int64_t counter_end_ms;
	int64_t since; /* -1: there is none */
	int readers;
	local_reader reader[LOCAL_READERS_MAX];
	local_id barrier; /* the secret of the writer that waits; LOCAL_NOBODY: there is no barrier */
	int64_t barrier_counter;
	int64_t barrier_end_ms;
} local_data;

static inline bool
local_has_key(const local_data *data)
{
	return !local_is(data->secret, LOCAL_NOBODY);
}

/* one for all names */
typedef struct local_mark
{
	uint64_t text;   /* the random part; 0: there is no marker */
	int64_t lost_us; /* the part behind "lost"; 0: there is none */
} local_mark;

typedef struct local_command
{
	core_op op;

	/* the parts of the value */
	local_id secret;
	uint32_t attempt;
	int host; /* number of the host, from 1 */
	bool shared;
	bool may_idle;
	int says_permits; /* the number of permits in the holder's text; 0: none */

	int64_t ttl_ms;    /* release: what becomes of the key, as in redlock.lua */
	int64_t proposal;  /* acquire */
	uint64_t marker;   /* acquire, renew: the marker that the client knows */
	int64_t counter;   /* confirm: granted; renew: bound; release: tombstone */
	int64_t token;     /* confirm: the new counter; renew: the new bound */
	int64_t waited_us; /* acquire; -1: a try */

	/* for the key of a permit */
	int permit;            /* its number; 0: the key is of a lock, or of a queue */
	int permits;           /* acquire: how many the lock has */
	local_data *lock_data; /* the data of the lock itself; NULL: permit is 0 */
	/* the data of another permit of this lock, 0: of its queue; NULL: there is no such key */
	const local_data *(*find_permit)(const void *names, int permit);
	const void *names;
} local_command;

typedef enum local_error
{
	LOCAL_OK = 0,
	LOCAL_FORGOT,
	LOCAL_AHEAD,
	LOCAL_FAILED /* no memory */
} local_error;

/* the message that the command publishes */
typedef enum local_tells
{
	LOCAL_TELLS_NOTHING = 0,
	LOCAL_TELLS_FREE, /* to the waiters for the lock */
	LOCAL_TELLS_WANT  /* to the host that holds the lock */
} local_tells;

typedef struct local_answer
{
	core_reply reply;
	local_error error;
	int64_t token; /* granted acquire: the counter; renewal: the counter that refuses it */

	/* a refused acquire */
	int64_t busy_ms;
	local_id holder;        /* the secret in the way */
	const local_data *held; /* the key in the way; NULL: a barrier */
	bool may_idle;          /* the key's lease may be idle */
	int free_permit;        /* of a permit: another permit that is free; 0: none */
	bool in_front;          /* the script says that no host waits */
	bool shared;            /* readers are in the way */

	local_tells tells;
	int holder_host; /* LOCAL_TELLS_WANT: to this host; if readers are in the way, to these: */
	int readers;
	int reader_host[LOCAL_READERS_MAX];
	bool tells_queue; /* LOCAL_TELLS_FREE: also to the waiter for any permit */
} local_answer;

/* a node's memory during one call of the script */
typedef enum local_memory
{
	LOCAL_HAS_ROOM,
	LOCAL_WRITES, /* full, but the call has changed something: only new names are refused */
	LOCAL_FULL
} local_memory;

/* Executes a command.  data: of the command's name.  Fills in *answer. */
extern void local_execute(local_data *data, const local_mark *mark, int64_t now_us,
						  const local_command *command, local_memory *memory, local_answer *answer);

/*
 * Reads the marker; writes a missing marker with the random part `fresh`.  seen: the caller has
 * seen an earlier marker.
 */
extern local_marked local_marker(local_mark *mark, int64_t now_us, uint64_t fresh, bool seen,
								 int64_t max_ttl_ms);

/* The SET NX PX, and the compare-and-delete, of a plain Redlock client. */
extern bool local_plain_set(local_data *data, int64_t now_us, local_id secret, int64_t ttl_ms);
extern bool local_plain_delete(local_data *data, int64_t now_us, local_id secret);

/* Removes what has expired.  Returns true if the counter has. */
extern bool local_expire(local_data *data, int64_t now_us);

#endif /* REDLOCK_LOCAL_NODE_H */
