/*
 * node.h
 *		One connection to one Redis node, never blocking: its state, its commands
 *		in flight, its deadlines.
 *
 *	 UNUSED      the index belongs to no node
 *	 RESOLVING   waits for the address of its host name
 *	 CONNECTING  the socket is not yet open
 *	 HANDSHAKE    AUTH, SELECT, the facts, the loading of scripts and our name are out;
 *				 where there is TLS, when its own handshake is over
 *	 READY       takes commands
 *	 QUARANTINED takes all commands but acquires, until guard->until_us: it may
 *				 have forgotten leases, or forget them (see guard.h)
 *	 BACKING_OFF broke or did not answer; connects again at retry_at_us
 *	 REFUSED     answers but must not vote (wrong password, a replica, ...);
 *				 looked at again at retry_at_us
 *
 * The commands of a pass go out in batches, each a call of the script that has
 * one reply.  Replies come in the order of the commands, so the commands in flight
 * are a ring.  A connection on which a command was not answered in time is closed,
 * never reused: its state is unknown.
 *
 * A connection may be dead without a sign: a firewall has forgotten it.  So each is
 * sent a check every few seconds, which also keeps firewalls from forgetting it.  A
 * command that meets a dead one all the same is sent again on a new connection, while
 * there is time (`replacing`).
 *
 * Each node has two indexes: its own, for commands, and that of its subscriber, a
 * second connection for the messages of releases, opened when it is first needed.
 *
 * Used by the broker only.  The files node.c and node_*.c know nothing of leases: they tell
 * what happened through NodeHandler.
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

/* Bound of commands in flight on one connection. */
#define NODE_IN_FLIGHT_MAX 16384

/* The subscriber of a node has the node's index plus this. */
#define NODE_SUBSCRIBER CORE_NODES_MAX
#define NODE_INDEXES (2 * CORE_NODES_MAX)

/* No reply to a command of ours is longer: INFO takes some kilobytes. */
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

/* InFlight.call, where nobody waits for the answer */
#define NODE_SAID (-1)

/* A command in flight: what the broker needs to know when the reply comes. */
typedef struct InFlight
{
	DriverSent command;
	bool by_text; /* the script's text was sent along */
	bool last;    /* of its batch: one reply answers all of it */
	bool check;   /* of the connection: no lease is concerned */
	int call;     /* what node_call was given, and then no lease either; or 0 */
	int64 sent_us;
} InFlight;

typedef struct RedisNode
{
	int index; /* its bit in a core_mask */
	NodeState state;
	NodeUrl url;
	char error[SCRIPT_TEXT_MAX + 1]; /* why it is not READY, or what its
									  * last error was */
	TimestampTz error_at;            /* when that was; 0: there is none */
	GuardMemory *guard;              /* what is remembered of it; NULL for a subscriber */
	GuardFacts facts;                /* what it said when we connected */
	char eviction[32];               /* how it may throw keys away; empty: it doesn't */
	int64 memory_used;               /* bytes that it told last; 0: it does not tell */
	int64 memory_limit;              /* its maxmemory; 0: it has none, or does not tell */
	bool warned_of_memory;           /* that little is left of it */
	char forgets[48];                /* what it says by which a restart may lose grants; empty:
									  * nothing */
	char untold[48];                 /* what it does not tell of that; empty: all is told */
	char lacks_for_locks[48];        /* rights that its user lacks for some locks; empty: none */
	char lacks_for_hosts[96];        /* ... for the list of hosts */
	bool warned;                     /* that redlock.nodes praises it for more than it says */

	/* the last error in the log since it was on duty, and when; empty and 0: none */
	char logged[SCRIPT_TEXT_MAX + 1];
	int64 logged_us;

	redisContext *connection;
	TlsConnection *tls; /* the connection's, if it has TLS */
	bool flush_wanted;  /* there is output to write */
	char sha[SCRIPT_SHA_SIZE];
	bool by_text; /* it does not know the script any more */

	size_t unparsed; /* bytes since the last whole reply */

	uint8 question[16]; /* replies still to come while HANDSHAKE */
	int questions;
	int answers;

	ScriptBatch *batch;    /* what is not yet in the connection's buffer */
	InFlight *in_flight;   /* ring of NODE_IN_FLIGHT_MAX */
	uint32 in_flight_head; /* next to be answered */
	uint32 in_flight_tail; /* next free; tail - head are in flight, also when they
							* have wrapped: the ring's size is a power of two */

	char address[RESOLVED_MAX][RESOLVER_ADDRESS_SIZE]; /* numeric */
	int addresses;
	int untried;       /* of them, before the name is asked for again */
	int next_address;  /* they take turns */
	int used_address;  /* of the connection */
	int failures;      /* in a row, with a pause after each */
	int64 deadline_us; /* RESOLVING, CONNECTING, HANDSHAKE */
	int64 retry_at_us; /* BACKING_OFF, REFUSED */

	int64 began_us;    /* the connection */
	int64 made_in_us;  /* from there to the end of the handshake */
	int64 heard_us;    /* something was read */
	int64 check_at_us; /* the next is sent */
	int64 pinged_us;   /* a subscriber's unanswered check; 0: none */
	int64 doubted_us;  /* a connection was replaced; 0: never */
	bool replacing;    /* what is lost just now can be asked again in a moment */
} RedisNode;

typedef struct NodeHandler
{
	void (*answered)(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					 int64 now_us);
	/* the node is connected to again; at once if it is `replacing` */
	void (*lost)(RedisNode *node, const InFlight *sent, int64 now_us);
	void (*changed)(RedisNode *node, NodeState before); /* state or error */
	void (*measured)(RedisNode *node);                  /* it told of its memory */
	/* node_call was answered; or it will not be: NULL */
	void (*called)(RedisNode *node, int call, const redisReply *reply, int64 now_us);
	/* subscribers only: a channel was joined */
	void (*joined)(RedisNode *node, const char *channel, size_t len, int64 now_us);
	/* ... or told this; text ends in a NUL */
	void (*heard)(RedisNode *node, const char *channel, size_t len, const char *text,
				  size_t text_len, int64 now_us);
} NodeHandler;

/* Once, before anything else. */
/* Is it being connected to, and not yet known whether in vain? */
static inline bool
node_is_tried(const RedisNode *node)
{
	return node->state >= NODE_RESOLVING && node->state <= NODE_HANDSHAKE;
}

extern void node_init(const NodeHandler *handler);

extern RedisNode *node_at(int index);
extern const char *node_state_name(NodeState state);

/* Give the index to a node and begin to connect; give it up. */
extern void node_open(int index, const NodeUrl *url, GuardMemory *guard, int64 now_us);
extern void node_close(RedisNode *node, int64 now_us);

/* What went wrong just now; empty: nothing that need be told any more. */
extern void node_set_error(RedisNode *node, const char *error);

/*
 * Where the reply says that the user lacks a right: adds to the text, of SCRIPT_TEXT_MAX bytes at
 * most, what the administrator must grant.
 */
extern void node_explain_refusal(const redisReply *reply, const char *lacks, char *text);

/* Connect again at once, with new credentials, or other words about the node. */
extern void node_reopen(RedisNode *node, const NodeUrl *url, int64 now_us);

static inline bool
node_is_subscriber(const RedisNode *node)
{
	return node->index >= NODE_SUBSCRIBER;
}

/* The handshake is over, and it was found to be fit. */
static inline bool
node_is_on_duty(const RedisNode *node)
{
	return node->state == NODE_READY || node->state == NODE_QUARANTINED;
}

/* Does redlock.nodes say durable=yes, and it something else?  Then that counts. */
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

/* Takes acquires, too. */
static inline bool
node_can_vote(const RedisNode *node)
{
	return node->state == NODE_READY && node_can_send(node);
}

/* Those for which one of these is true. */
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
 * Append a command; it is written by node_flush.  The node must be able to send.
 * Of `sent`, by_text, last, check and call are filled in here.
 */
extern void node_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent);

/* The same with what is no command about a lock; `call`, not 0, comes back with the answer. */
extern void node_call(RedisNode *node, int call, int argc, const char **argv, const size_t *argvlen,
					  int64 now_us);

/* Subscribe to, or leave, a channel.  READY subscribers only. */
extern void node_subscribe(RedisNode *node, const char *channel, size_t len, bool join);

/*
 * Write what can be written without waiting.  False: the connection broke; what the
 * handler was told of may have sent something to other nodes.
 */
extern bool node_flush(RedisNode *node, int64 now_us);

/* Its socket is ready. */
extern void node_on_socket(RedisNode *node, bool readable, bool writable, int64 now_us);

/*
 * Deadlines, retries and resolved names; returns when to be called again.  What had
 * come by looked_us has been read: an answer is late if it was due before.
 */
extern int64 node_on_time(RedisNode *node, int64 now_us, int64 looked_us);

#endif /* REDLOCK_NODE_H */
