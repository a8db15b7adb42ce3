/*
 * node.c
 *		One connection to one node: its states, from finding the address to closing the socket, its
 *		deadlines and retries; see node.h.
 *
 * node_checks.c runs the handshake.  node_pipeline.c writes commands and reads replies.  Both call
 * back into this file, by node_internal.h, when a connection changes its state.
 */
#include "postgres.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "broker/loop.h"
#include "broker/node_internal.h"
#include "shared/guc.h"
#include "shared/node_stats.h"

/*
 * Pause before a new attempt when all addresses have failed: doubles from MIN to MAX, and is
 * shortened at random by up to half.
 */
#define BACKOFF_MIN_US INT64CONST(50000)
#define BACKOFF_MAX_US INT64CONST(1000000)

/* A name lookup that takes longer is reported as an error; the lookup goes on. */
#define RESOLVE_US INT64CONST(30000000)

#define NODE_TIMEOUT_US ((int64) redlock_node_timeout_ms * 1000)

/* A host that asks for other hosts waits this long for the first lookup of a name, at least. */
#define FIRST_LOOKUP_US INT64CONST(5000000)

/* Pause between checks of a connection.  All connections are checked in the same pass. */
#define CHECK_US INT64CONST(5000000)

/*
 * A connection that leaves a command unanswered for DOUBT_US is replaced: it may be dead.  The
 * node may just be slow, so each connection is doubted once in DOUBT_AGAIN_US.
 */
#define DOUBT_US (NODE_TIMEOUT_US / 4)
#define DOUBT_AGAIN_US INT64CONST(60000000)

static RedisNode nodes[NODE_INDEXES];
const NodeHandler *node_handler;

static void on_connection(RedisNode *node, int64 now_us);
static void start(RedisNode *node, int64 now_us);
static int64 resolving_on_time(RedisNode *node, int64 now_us, int64 looked_us);
static void fail_to_connect(RedisNode *node, int64 now_us);
static int64 duty_on_time(RedisNode *node, int64 now_us, int64 looked_us);
static void connect_to(RedisNode *node, int64 now_us);
static void limit_delivery(RedisNode *node);
static int64 answer_due_us(const RedisNode *node, int64 now_us);
static bool may_doubt(const RedisNode *node, int64 now_us);
static void replace_connection(RedisNode *node, int64 now_us);
static void check_connection(RedisNode *node, int64 now_us);
static void get_ready(RedisNode *node, const char *error);
static void drop(RedisNode *node);
static void count_failure(const RedisNode *node, NodeState state, const char *error);
static const char *fail_at_address(RedisNode *node, NodeState *state, const char *error,
								   bool has_others);

void
node_init(const NodeHandler *handler)
{
	node_handler = handler;
	for (int i = 0; i < NODE_INDEXES; i++)
		nodes[i].index = i;
}

RedisNode *
node_at(int index)
{
	Assert(index >= 0 && index < NODE_INDEXES);
	return &nodes[index];
}

const char *
node_state_name(NodeState state)
{
	switch (state)
	{
		case NODE_UNUSED:
			return "unused";
		case NODE_RESOLVING:
			return "resolving";
		case NODE_CONNECTING:
		case NODE_HANDSHAKE:
			return "connecting";
		case NODE_READY:
			return "ready";
		case NODE_QUARANTINED:
			return "quarantined";
		case NODE_BACKING_OFF:
			return "backing off";
		case NODE_REFUSED:
			return "refused";
	}
	return "unknown";
}

void
node_open(int index, const NodeUrl *url, GuardMemory *guard, int64 now_us)
{
	RedisNode *node = node_at(index);

	Assert(node->state == NODE_UNUSED);

	memset(node, 0, sizeof(*node));
	node->index = index;
	node->url = *url;
	node->guard = guard;
	if (!node_is_subscriber(node))
	{
		node->in_flight =
			MemoryContextAlloc(TopMemoryContext, NODE_IN_FLIGHT_MAX * sizeof(InFlight));
		node->batch = MemoryContextAllocZero(TopMemoryContext, sizeof(ScriptBatch));
		if (url->is_local)
			node->answer =
				MemoryContextAlloc(TopMemoryContext, NODE_IN_FLIGHT_MAX * sizeof(ScriptAnswer));
	}
	start(node, now_us);
}

void
node_close(RedisNode *node, int64 now_us)
{
	node_fail(node, NODE_UNUSED, "", now_us);
	if (!node_is_subscriber(node))
	{
		pfree(node->in_flight);
		pfree(node->batch);
	}
	if (node->answer != NULL)
		pfree(node->answer);
	node->answer = NULL;
	node->in_flight = NULL;
	node->batch = NULL;
}

void
node_reopen(RedisNode *node, const NodeUrl *url, int64 now_us)
{
	/* an error of a former user or password explains nothing now */
	bool is_same_user = strcmp(node->url.user, url->user) == 0 &&
						strcmp(node->url.password, url->password) == 0 && node->url.tls == url->tls;

	node_fail(node, NODE_BACKING_OFF, is_same_user ? NULL : "", now_us);
	node->url = *url;
	node->failures = node->brief_duties = 0;
	node->refused = node->was_refused = false;
	start(node, now_us);
}

void
node_on_socket(RedisNode *node, bool readable, bool writable, int64 now_us)
{
	if (node->connection == NULL)
		return; /* the pass has closed it */

	if (node->state == NODE_CONNECTING)
	{
		int error = 0;
		socklen_t size = sizeof(error);

		if (getsockopt(node->connection->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
			error = errno;
		if (error != 0)
		{
			errno = error;
			node->connection->err = REDIS_ERR_IO;
			node_fail_io(node, "connect", now_us);
			return;
		}
		if (writable)
			on_connection(node, now_us);
		return;
	}
	if (readable)
		node_read_replies(node, now_us);
	if (writable)
		node_flush(node, now_us);
}

static void
on_connection(RedisNode *node, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];

	if (node->url.tls)
	{
		node->tls = tls_begin(node->connection, node->url.host, error, sizeof(error));
		if (node->tls == NULL)
		{
			node_fail(node, NODE_REFUSED, error, now_us);
			return;
		}
	}
	node_begin_handshake(node, now_us);
}

int64
node_on_time(RedisNode *node, int64 now_us, int64 looked_us)
{
	switch (node->state)
	{
		case NODE_UNUSED:
			return PG_INT64_MAX;

		case NODE_RESOLVING:
			return resolving_on_time(node, now_us, looked_us);

		case NODE_CONNECTING:
		case NODE_HANDSHAKE:
			if (node->url.is_local)
			{
				node_local_begin(node, now_us);
				return node->state == NODE_BACKING_OFF ? node->retry_at_us : now_us;
			}
			if (looked_us < node->deadline_us)
				return node->deadline_us;
			fail_to_connect(node, now_us);
			return node->retry_at_us;

		case NODE_READY:
		case NODE_QUARANTINED:
			return duty_on_time(node, now_us, looked_us);

		case NODE_BACKING_OFF:
		case NODE_REFUSED:
			if (now_us < node->retry_at_us)
				return node->retry_at_us;
			start(node, now_us);
			return node_on_time(node, now_us, looked_us);
	}
	return PG_INT64_MAX;
}

static int64
resolving_on_time(RedisNode *node, int64 now_us, int64 looked_us)
{
	ResolverAnswer answer;

	switch (resolver_read(node->index, &answer))
	{
		case RESOLVER_PENDING:
			if (now_us < node->deadline_us)
				return Min(node->deadline_us, now_us + RESOLVER_POLL_US);
			node_fail(node, NODE_BACKING_OFF, "no answer from the host name resolver", now_us);
			break;
		case RESOLVER_FAILED:
			node_fail(node, NODE_BACKING_OFF, answer.error, now_us);
			break;
		case RESOLVER_DONE:
			node->addresses = node->untried = answer.addresses;
			node->next_address = 0;
			node->was_refused = node->refused;
			node->refused = false;
			memcpy(node->address, answer.address, sizeof(node->address));
			connect_to(node, now_us);
			return node_on_time(node, now_us, looked_us);
	}
	return node->retry_at_us;
}

static void
fail_to_connect(RedisNode *node, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];
	const char *phase = node->state == NODE_CONNECTING ? "connecting" : "handshake";

	if (node->tls != NULL && tls_phase(node->tls) != NULL)
		phase = tls_phase(node->tls);
	snprintf(error, sizeof(error), "no answer within %d ms (%s)", redlock_node_timeout_ms, phase);
	node_fail(node, NODE_BACKING_OFF, error, now_us);
}

static int64
duty_on_time(RedisNode *node, int64 now_us, int64 looked_us)
{
	char error[SCRIPT_TEXT_MAX + 1];
	int64 due_us;

	if (node->url.is_local && node->state == NODE_READY)
		return PG_INT64_MAX; /* it answers in the same pass */
	if (node->state == NODE_QUARANTINED && guard_may_vote(node->guard, now_us))
	{
		if (node->facts.evicts)
			guard_distrust(node->guard, true, MAX_TTL_US, now_us);
		else
			get_ready(node, "");
	}
	if (node->url.is_local)
		return node->state == NODE_QUARANTINED ? node->guard->until_us : PG_INT64_MAX;
	node_look(node, now_us);
	due_us = answer_due_us(node, now_us);
	if (looked_us < due_us)
	{
		due_us = Min(due_us, node->check_at_us);
		return node->state == NODE_QUARANTINED ? Min(due_us, node->guard->until_us) : due_us;
	}
	if (may_doubt(node, now_us))
	{
		replace_connection(node, now_us);
		return node_on_time(node, now_us, looked_us);
	}
	snprintf(error, sizeof(error), "no answer within %d ms", redlock_node_timeout_ms);
	node_fail(node, NODE_BACKING_OFF, error, now_us);
	return node->retry_at_us;
}

void
node_set_state(RedisNode *node, NodeState state, const char *error)
{
	NodeState before = node->state;

	node->state = state;
	if (error != NULL)
		node_set_error(node, error);
	node_handler->changed(node, before);
}

void
node_set_error(RedisNode *node, const char *error)
{
	strlcpy(node->error, error, sizeof(node->error));
	node->error_at = error[0] != '\0' ? GetCurrentTimestamp() : 0;
}

/* Finds the address of a node, then connects. */
static void
start(RedisNode *node, int64 now_us)
{
	const char *problem;

	Assert(node->connection == NULL);

	if (node_is_subscriber(node))
	{
		const RedisNode *voter = node_at(node->index - NODE_SUBSCRIBER);

		if (!node_is_on_duty(voter))
		{
			node_fail(node, NODE_BACKING_OFF, "its node is not ready", now_us);
			return;
		}
		strlcpy(node->address[0], voter->address[voter->used_address], sizeof(node->address[0]));
		node->addresses = node->untried = 1;
		node->next_address = 0;
	}
	else if (node->url.is_unix || resolver_is_address(node->url.host))
	{
		strlcpy(node->address[0], node->url.is_unix ? "" : node->url.host,
				sizeof(node->address[0]));
		node->addresses = node->untried = 1;
		node->next_address = 0;
	}
	if (node->url.is_local)
	{
		node_set_state(node, NODE_CONNECTING, NULL); /* until the next look at its deadlines */
		return;
	}
	if (node->untried > 0)
	{
		connect_to(node, now_us);
		return;
	}

	/* first attempt, or all addresses failed */
	problem = resolver_ask(node->index, node->url.host);
	if (problem != NULL)
	{
		node_fail(node, NODE_BACKING_OFF, problem, now_us);
		return;
	}
	node->deadline_us = now_us + RESOLVE_US;
	node->resolve_by_us = now_us + Max(NODE_TIMEOUT_US, FIRST_LOOKUP_US);
	node_set_state(node, NODE_RESOLVING, NULL);
}

static void
connect_to(RedisNode *node, int64 now_us)
{
	node->used_address = node->next_address;
	node->next_address = (node->next_address + 1) % node->addresses;
	node->untried--;
	node->connection =
		node->url.is_unix ? redisConnectUnixNonBlock(node->url.host)
						  : redisConnectNonBlock(node->address[node->used_address], node->url.port);

	if (node->connection == NULL)
	{
		node_fail(node, NODE_BACKING_OFF, "out of memory", now_us);
		return;
	}
	if (node->connection->err)
	{
		node_fail_io(node, "connect", now_us);
		return;
	}
	node_limit_replies(node->connection->reader);
	limit_delivery(node);
	node->unparsed = 0;
	node->began_us = now_us;
	node->nearest_us = PG_INT64_MAX;
	node->deadline_us = now_us + NODE_TIMEOUT_US;
	loop_watch(node->index, node->connection->fd, true); /* writable: connected */
	node_set_state(node, NODE_CONNECTING, NULL);
}

/*
 * Makes the kernel drop bytes that the node does not acknowledge in time.  Otherwise the kernel
 * would send them for minutes, even after a close, and the node would execute old commands.
 */
static void
limit_delivery(RedisNode *node)
{
#ifdef TCP_USER_TIMEOUT
	unsigned int timeout_ms = redlock_node_timeout_ms;

	if (!node->url.is_unix)
		(void) setsockopt(node->connection->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
						  sizeof(timeout_ms));
#endif
}

/* Returns when the oldest unanswered command, or check, must be answered. */
static int64
answer_due_us(const RedisNode *node, int64 now_us)
{
	int64 sent_us = node->pinged_us;

	if (node_in_flight(node) > 0)
		sent_us = node->in_flight[node->in_flight_head % NODE_IN_FLIGHT_MAX].sent_us;
	if (sent_us == 0)
		return PG_INT64_MAX;
	return sent_us + (may_doubt(node, now_us) ? DOUBT_US : NODE_TIMEOUT_US);
}

/*
 * May this connection be replaced, and its commands be sent again?  Only if nothing was read since
 * the oldest command, and the time suffices to connect and to get the answer.  A subscriber is not
 * replaced: nobody waits for its messages.
 */
static bool
may_doubt(const RedisNode *node, int64 now_us)
{
	return node_in_flight(node) > 0 &&
		   node->heard_us <= node->in_flight[node->in_flight_head % NODE_IN_FLIGHT_MAX].sent_us &&
		   DOUBT_US + 2 * node->made_in_us < NODE_TIMEOUT_US &&
		   (node->doubted_us == 0 || now_us - node->doubted_us >= DOUBT_AGAIN_US);
}

static void
replace_connection(RedisNode *node, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];

	snprintf(error, sizeof(error), "no answer within %d ms; connecting again",
			 (int) (DOUBT_US / 1000));
	node->doubted_us = now_us;
	node->replacing = true;
	node_fail(node, NODE_BACKING_OFF, error, now_us);
	node->replacing = false;
	node->retry_at_us = now_us;
}

void
node_look(RedisNode *node, int64 now_us)
{
	if (node_is_on_duty(node) && !node->url.is_local && now_us >= node->check_at_us)
		check_connection(node, now_us);
}

/*
 * Sends a check, also on a busy connection: the answers tell the node's memory, its eviction
 * policy, and how many keys it has evicted.
 */
static void
check_connection(RedisNode *node, int64 now_us)
{
	InFlight memory = {.check = NODE_CHECK_MEMORY, .last = true, .sent_us = now_us};
	InFlight stats = {.check = NODE_CHECK_STATS, .last = true, .sent_us = now_us};

	node->check_at_us = now_us - now_us % CHECK_US + CHECK_US;
	node->nearest_us = PG_INT64_MAX;
	if (node_is_subscriber(node))
	{
		if (node->pinged_us != 0)
			return;
		node_append(node, 1, (const char *[]){"PING"}, NULL);
		node->pinged_us = now_us;
		node->flush_wanted = true;
	}
	else if (node_can_send(node))
	{
		node_send_alone(node, &memory, 2, (const char *[]){"INFO", "memory"}, NULL);
		if (node_can_send(node))
			node_send_alone(node, &stats, 2, (const char *[]){"INFO", "stats"}, NULL);
	}
}

void
node_begin_duty(RedisNode *node, int64 now_us)
{
	node->made_in_us = now_us - node->began_us;
	node->refused = node->was_refused = false;
	node->check_at_us = now_us - now_us % CHECK_US + CHECK_US;
	node->pinged_us = 0;
	if (!node_is_subscriber(node) && !guard_may_vote(node->guard, now_us))
		node_set_state(node, NODE_QUARANTINED, node->guard->reason);
	else
		get_ready(node, NULL);
}

/* Makes a node READY.  If redlock.nodes says durable=yes wrongly, the error stays in view. */
static void
get_ready(RedisNode *node, const char *error)
{
	char praised[SCRIPT_TEXT_MAX + 1];

	if (node_is_praised(node))
	{
		snprintf(praised, sizeof(praised), "redlock.nodes says durable=yes, but %s", node->forgets);
		error = praised;
	}
	node_set_state(node, NODE_READY, error);
}

/* Has the node not answered at all?  It may expect TLS. */
bool
node_is_unanswered(const RedisNode *node)
{
	return node->state == NODE_HANDSHAKE && node->answers == 0 && node->tls == NULL &&
		   !node->url.is_unix;
}

/* Closes the socket. */
static void
drop(RedisNode *node)
{
	if (node->connection == NULL)
		return;
	loop_forget(node->index);
	redisFree(node->connection);
	node->connection = NULL;
	node->tls = NULL;
	node->flush_wanted = false;
}

/* An empty error is none: the broker closes the connection because of other settings. */
static void
count_failure(const RedisNode *node, NodeState state, const char *error)
{
	bool connecting = node->state == NODE_RESOLVING || node->state == NODE_CONNECTING;

	if (node_is_subscriber(node) || error == NULL || error[0] == '\0')
		return;
	node_stats_count(&node_stats[node->index]
						  .errors[node_error_class(error, connecting, state == NODE_REFUSED)]);
}

/*
 * Chooses the error that people see, when one of several addresses fails.  The addresses fail in
 * turn, again and again, so their errors would alternate, in the view and in the log.  A refusal
 * counts most: a server has answered.  Otherwise the error of the last address counts.  Returns
 * NULL to keep the error before.
 */
static const char *
fail_at_address(RedisNode *node, NodeState *state, const char *error, bool has_others)
{
	if (*state == NODE_REFUSED)
		node->refused = true;
	else if (*state == NODE_BACKING_OFF && (node->refused || (has_others && node->was_refused)))
	{
		*state = NODE_REFUSED;
		return NULL;
	}
	else if (*state == NODE_BACKING_OFF && has_others)
		return NULL;
	return error;
}

/*
 * Closes the connection.  An unanswered command may have been executed, or may be executed later;
 * the handler receives each one.
 */
void
node_fail(RedisNode *node, NodeState state, const char *error, int64 now_us)
{
	int64 pause_us;
	bool was_on_duty = node_is_on_duty(node);
	int failures;
	bool has_others = node->connection != NULL && !node_is_on_duty(node) && node->untried > 0;

	count_failure(node, state, error);
	if (node->connection != NULL && !node_is_on_duty(node) && node->addresses > 1)
		error = fail_at_address(node, &state, error, has_others);
	drop(node);
	if (!node_is_subscriber(node))
		node->batch->count = node->batch->len = 0;
	node->by_text = false;
	/* a node may pass each handshake, and close the connection at the first command */
	if (was_on_duty && now_us - node->began_us - node->made_in_us >= BACKOFF_MAX_US)
		node->brief_duties = 0;
	failures = Max(node->failures, node->brief_duties);
	pause_us = BACKOFF_MAX_US;
	if (state != NODE_REFUSED && failures < 5)
		pause_us = Min(BACKOFF_MIN_US << failures, BACKOFF_MAX_US);
	node->failures++;
	node->brief_duties += was_on_duty;
	node->retry_at_us = now_us;
	if (!has_others) /* else the next address is tried at once */
		node->retry_at_us +=
			pause_us / 2 + pg_prng_uint32(&pg_global_prng_state) % (uint32) (pause_us / 2);
	node_set_state(node, state, error);

	/* the subscriber may hang, too; its next check may be seconds away */
	if (!node->replacing && !node_is_subscriber(node) &&
		node_at(node->index + NODE_SUBSCRIBER)->connection != NULL)
		node_fail(node_at(node->index + NODE_SUBSCRIBER), NODE_BACKING_OFF, "its node is not ready",
				  now_us);

	while (node_in_flight(node) > 0)
	{
		InFlight sent = node->in_flight[node->in_flight_head++ % NODE_IN_FLIGHT_MAX];

		if (sent.call == NODE_SAID)
			continue;
		if (sent.call != 0)
			node_handler->called(node, sent.call, NULL, now_us);
		else if (sent.check == NODE_NO_CHECK)
			node_handler->lost(node, &sent, now_us);
	}
}

void
node_fail_io(RedisNode *node, const char *doing, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];
	redisContext *connection = node->connection;
	NodeState state = NODE_BACKING_OFF;

	if (node_is_unanswered(node) &&
		(connection->err == REDIS_ERR_EOF ||
		 (connection->err == REDIS_ERR_IO && (errno == ECONNRESET || errno == EPIPE))))
		strlcpy(error,
				"it closed the connection without an answer; if it wants TLS, its URL begins with "
				"rediss://",
				sizeof(error));
	else if (connection->err == REDIS_ERR_EOF)
		strlcpy(error, "it closed the connection", sizeof(error));
	else if (connection->err == REDIS_ERR_IO)
		snprintf(error, sizeof(error), "could not %s: %s", doing,
				 connection->errstr[0] != '\0' ? connection->errstr : strerror(errno));
	else
		snprintf(error, sizeof(error), "could not %s: %s", doing, connection->errstr);
	if (node->tls != NULL && tls_explain(node->tls, error, sizeof(error)))
		state = NODE_REFUSED;
	node_fail(node, state, error, now_us);
}
