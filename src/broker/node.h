/*
 * node.h
 *		One non-blocking connection to one node: its state, its commands in flight, its deadlines.
 *
 * 	 UNUSED      the index belongs to no node
 * 	 RESOLVING   waits for the address of the host name
 * 	 CONNECTING  the socket is not yet open
 * 	 HANDSHAKE   the socket is open: the TLS handshake, if any; then the answers to
 * 				 AUTH, SELECT, the checks, the loading of scripts and the client name
 * 	 READY       takes commands
 * 	 QUARANTINED takes all commands but acquires, until guard->until_us: the node may
 * 				 have forgotten leases, or may forget leases (see guard.h)
 * 	 BACKING_OFF failed, did not answer, or answers that the fault will pass (it loads
 * 				 data, is busy, or has too many clients); connects again at retry_at_us
 * 	 REFUSED     answers but must not vote (wrong password, a replica, ...); tried
 * 				 again at retry_at_us
 *
 * The commands of a pass go out in batches.  A batch is one call of the script, and has one reply.
 * Replies come in the order of the commands, so the commands in flight are a ring.  A connection
 * that leaves a command unanswered is closed, never reused: its state is unknown.
 *
 * A connection may be dead without a sign, when a firewall has forgotten it.  So each connection
 * is checked every few seconds, which also keeps firewalls from forgetting.  A command that meets
 * a dead connection is sent again on a new connection, while there is time (`replacing`).
 *
 * Each node has two indexes: its own, for commands, and the index of its subscriber.  The
 * subscriber is a second connection, for messages, opened on first use.
 *
 * The node inside the server (redlock.nodes = 'local') has no connection; node_local.h tells how it
 * answers.
 *
 * Used by the broker only.  The files node.c and node_*.c know nothing of leases.  They call the
 * functions of NodeHandler.
 */
#ifndef REDLOCK_NODE_H
#define REDLOCK_NODE_H

#include "datatype/timestamp.h"

#include "broker/resolver.h"
#include "broker/script.h"
#include "broker/tls.h"
#include "driver/driver_world.h"
#include "protocol/core.h"
#include "protocol/guard.h"
#include "shared/url.h"

/* The most commands in flight on one connection. */
#define NODE_IN_FLIGHT_MAX 16384

/* The subscriber of a node has the node's index plus this. */
#define NODE_SUBSCRIBER CORE_NODES_MAX
#define NODE_INDEXES (2 * CORE_NODES_MAX)

/* A longer reply breaks the connection.  Ours are shorter: INFO takes some kilobytes. */
#define NODE_REPLY_MAX (64 * 1024)
#define NODE_ELEMENTS_MAX SCRIPT_BATCH_MAX

typedef enum NodeState
{
	NODE_UNUSED = 0,
	NODE_RESOLVING,
	NODE_CONNECTING,
	NODE_HANDSHAKE,
	NODE_READY,
	NODE_QUARANTINED,
	NODE_BACKING_OFF,
	NODE_REFUSED
} NodeState;

/* InFlight.call of a command whose answer is ignored */
#define NODE_SAID (-1)

/* The commands of a check. */
typedef enum NodeCheck
{
	NODE_NO_CHECK,
	NODE_CHECK_MEMORY,
	NODE_CHECK_STATS
} NodeCheck;

/* A command in flight: the context for its reply. */
typedef struct InFlight
{
	DriverSent command;
	bool by_text;    /* the script's text was sent along */
	bool last;       /* last of its batch, which has one reply */
	int call;        /* the value given to node_call, for no lease; or 0 */
	NodeCheck check; /* of the connection, for no lease */
	int64 sent_us;
} InFlight;

typedef struct RedisNode
{
	int index; /* bit in a core_mask */
	NodeState state;
	NodeUrl url;
	char error[SCRIPT_TEXT_MAX + 1]; /* why the state is not READY, or the last error */
	TimestampTz error_at;            /* time of the error; 0: none */
	GuardMemory *guard;              /* memory of the restart guard; NULL: a subscriber */
	GuardFacts facts;                /* facts of the last handshake */
	char version[32];                /* program and version; or empty */
	char eviction[32];               /* the policy if it evicts keys; or empty */
	int64 memory_used;               /* bytes; 0: unknown */
	int64 memory_limit;              /* maxmemory in bytes; 0: none, or unknown */
	bool warned_of_memory;           /* logged: little memory is left */
	char forgets[48];                /* why a restart may lose grants, as the node says; or empty */
	char untold[48];                 /* facts about that which the node hides; or empty */
	char lacks_for_locks[48];        /* rights that our user lacks for some locks; or empty */
	char lacks_for_hosts[96];        /* ... for the list of hosts */
	char lacks_for_messages[32];     /* ... for messages to hosts */
	char lacks_for_looks[32];        /* ... for the look at all keys */
	bool warned;                     /* logged: durable=yes in redlock.nodes is wrong */

	/* last error logged since the node was on duty; empty and 0: none */
	char logged[SCRIPT_TEXT_MAX + 1];
	int64 logged_us;

	redisContext *connection;
	TlsConnection *tls; /* NULL: no TLS */
	bool flush_wanted;  /* output waits */
	char sha[SCRIPT_SHA_SIZE];
	bool by_text; /* the node has lost the script: send its text */

	size_t unparsed; /* bytes after the last whole reply */

	uint8 question[16]; /* HANDSHAKE: what each reply answers */
	int questions;
	int answers;

	ScriptBatch *batch;    /* commands not yet in the connection's buffer */
	InFlight *in_flight;   /* ring of NODE_IN_FLIGHT_MAX */
	ScriptAnswer *answer;  /* of each command in flight, if the node is local; else NULL */
	uint32 in_flight_head; /* oldest unanswered command */
	uint32 in_flight_tail; /* next free; both may wrap, as the ring's size is a power of two */

	char address[RESOLVED_MAX][RESOLVER_ADDRESS_SIZE]; /* numeric */
	int addresses;
	int untried;         /* addresses left before a new lookup */
	int next_address;    /* the next one to try */
	int used_address;    /* address of the connection */
	int failures;        /* failures in a row */
	int brief_duties;    /* connections in a row that broke soon after their handshake */
	bool refused;        /* an address has refused us since the last lookup of the name */
	bool was_refused;    /* ... or between the two lookups before */
	int64 deadline_us;   /* RESOLVING; then one for CONNECTING and HANDSHAKE together */
	int64 resolve_by_us; /* RESOLVING: nobody waits for the lookup any longer */
	int64 retry_at_us;   /* BACKING_OFF, REFUSED */

	int64 began_us;    /* start of the connection */
	int64 made_in_us;  /* duration until the end of the handshake */
	int64 heard_us;    /* last read */
	int64 check_at_us; /* next check */
	int64 nearest_us;  /* the shortest round trip since the last check; PG_INT64_MAX: none yet */
	int64 pinged_us;   /* subscriber: time of the unanswered check; 0: none */
	int64 doubted_us;  /* last replacement by doubt; 0: never */
	bool replacing;    /* lost commands may be sent again in a moment */
} RedisNode;

typedef struct NodeHandler
{
	void (*answered)(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					 int64 now_us);
	/* a command has no answer; the node is connected again, at once if `replacing` */
	void (*lost)(RedisNode *node, const InFlight *sent, int64 now_us);
	void (*changed)(RedisNode *node, NodeState before); /* state or error */
	void (*measured)(RedisNode *node);                  /* memory_used and memory_limit were read */
	/* a node_call was answered; NULL: it never will be */
	void (*called)(RedisNode *node, int call, const redisReply *reply, int64 now_us);
	/* subscribers only: a subscription was confirmed */
	void (*subscribed)(RedisNode *node, const char *channel, size_t len, int64 now_us);
	/* ... or a message came; text ends in a NUL */
	void (*heard)(RedisNode *node, const char *channel, size_t len, const char *text,
				  size_t text_len, int64 now_us);
} NodeHandler;

/* Is an attempt to connect under way? */
static inline bool
node_is_tried(const RedisNode *node)
{
	return node->state >= NODE_RESOLVING && node->state <= NODE_HANDSHAKE;
}

/*
 * Is the first attempt to reach this node under way, so that nobody knows yet whether the node is
 * within reach?  The first attempt tries each address of the node's name.  A lookup of the name
 * counts for some seconds only.
 */
static inline bool
node_is_first_tried(const RedisNode *node, int64 now_us)
{
	if (node->state == NODE_RESOLVING)
		return node->failures == 0 && now_us < node->resolve_by_us;
	return node->failures < node->addresses &&
		   (node_is_tried(node) || (node->state == NODE_BACKING_OFF && node->untried > 0));
}

/* Is the error a refusal for lack of room for another connection? */
extern bool node_is_full_of_clients(const char *error);

/* Has the connection broken for the first time since the node was on duty? */
static inline bool
node_is_back_soon(const RedisNode *node)
{
	return node->failures <= 1 && (node_is_tried(node) || node->state == NODE_BACKING_OFF);
}

/* To be called once, before all other functions of this header. */
extern void node_init(const NodeHandler *handler);

extern RedisNode *node_at(int index);
extern const char *node_state_name(NodeState state);

/* Returns why a restart of the node may lose grants; empty: it loses none. */
extern const char *node_forgets(const RedisNode *node);

/* node_open gives a free index to a node, and begins to connect.  node_close frees the index. */
extern void node_open(int index, const NodeUrl *url, GuardMemory *guard, int64 now_us);
extern void node_close(RedisNode *node, int64 now_us);

/* Sets the node's last error; empty: none. */
extern void node_set_error(RedisNode *node, const char *error);

/*
 * If the reply says that our user lacks a right, appends to `text` what the administrator must
 * grant.  text: a buffer of SCRIPT_TEXT_MAX + 1 bytes.
 */
extern void node_explain_refusal(const redisReply *reply, const char *lacks, char *text);

/* Connects again at once by a changed URL of the same address. */
extern void node_reopen(RedisNode *node, const NodeUrl *url, int64 now_us);

static inline bool
node_is_subscriber(const RedisNode *node)
{
	return node->index >= NODE_SUBSCRIBER;
}

/* Is it the node inside this server? */
static inline bool
node_is_local(const RedisNode *node)
{
	return node->state != NODE_UNUSED && node->url.is_local;
}

/* Has the node passed the handshake and its checks? */
static inline bool
node_is_on_duty(const RedisNode *node)
{
	return node->state == NODE_READY || node->state == NODE_QUARANTINED;
}

/* Does redlock.nodes say durable=yes wrongly?  Then the node's own answer counts. */
static inline bool
node_is_praised(const RedisNode *node)
{
	return node->url.durable == URL_DURABLE && node->forgets[0] != '\0';
}

static inline bool
node_can_send(const RedisNode *node)
{
	return node_is_on_duty(node) &&
		   node->in_flight_tail - node->in_flight_head < NODE_IN_FLIGHT_MAX;
}

/* May the node take acquires, too? */
static inline bool
node_can_vote(const RedisNode *node)
{
	return node->state == NODE_READY && node_can_send(node);
}

/* Returns the nodes for which are_so is true. */
static inline core_mask
nodes_that(bool (*are_so)(const RedisNode *))
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (are_so(node_at(i)))
			nodes |= CORE_BIT(i);
	return nodes;
}

static inline uint32
node_in_flight(const RedisNode *node)
{
	return node->in_flight_tail - node->in_flight_head;
}

/*
 * Appends a command; node_flush writes it.  The caller guarantees node_can_send.  Fills in
 * by_text, last, check and call of `sent`.  Raises an error if memory is short.
 */
extern void node_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent);

/*
 * The same for a command that is not about a lock.  `call`, not 0, comes back with the answer.  The
 * node must not be local.
 */
extern void node_call(RedisNode *node, int call, int argc, const char **argv, const size_t *argvlen,
					  int64 now_us);

/* Joins or leaves a channel.  The node must be a READY subscriber. */
extern void node_subscribe(RedisNode *node, const char *channel, size_t len, bool begin);

/*
 * Writes as much as the socket takes now; a local node answers.  False: the handler may have
 * appended commands, because the connection broke, or because a local node has answered.
 */
extern bool node_flush(RedisNode *node, int64 now_us);

/* To be called when the node's socket is ready. */
extern void node_on_socket(RedisNode *node, bool readable, bool writable, int64 now_us);

/*
 * Handles deadlines, retries and resolved names.  Returns when to call it again.  looked_us: all
 * bytes that had arrived by then were read, so an answer due earlier is late.
 */
extern int64 node_on_time(RedisNode *node, int64 now_us, int64 looked_us);

/* Asks for the node's memory and evictions if this is due; answers come before later commands. */
extern void node_look(RedisNode *node, int64 now_us);

#endif /* REDLOCK_NODE_H */
