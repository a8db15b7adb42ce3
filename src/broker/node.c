/*
 * node.c
 *		One connection to one Redis node; see node.h.
 *
 * hiredis is used for what it does well, the protocol and its buffers; its
 * sockets are non-blocking and driven by our loop.  Its asynchronous API is not
 * used: one kind of callback and one ring are all that pipelined commands with
 * replies in order need, and leases must outlive a connection.
 */
#include "postgres.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "pgtime.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "broker/loop.h"
#include "broker/node.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/text.h"

/*
 * Pause before connecting again, when all addresses have failed: doubles from MIN to MAX,
 * less up to half.
 */
#define BACKOFF_MIN_US INT64CONST(50000)
#define BACKOFF_MAX_US INT64CONST(1000000)

/* A wait for an address that takes so long is told; the question goes on. */
#define RESOLVE_US INT64CONST(30000000)

#define NODE_TIMEOUT_US ((int64) redlock_node_timeout_ms * 1000)
#define MAX_TTL_US ((int64) redlock_max_ttl_ms * 1000)

/* How often a connection is checked; those of a host in one pass of its loop. */
#define CHECK_US INT64CONST(5000000)

/*
 * A connection that is silent for so long is replaced, since it may be dead; not more
 * often than that, since the node may be slow.
 */
#define DOUBT_US (NODE_TIMEOUT_US / 4)
#define DOUBT_AGAIN_US INT64CONST(60000000)

/* What is asked in the handshake. */
typedef enum Question
{
	ASK_AUTH,
	ASK_SELECT,
	ASK_PING,
	ASK_SERVER,
	ASK_REPLICATION,
	ASK_PERSISTENCE,
	ASK_MEMORY,
	ASK_FSYNC,
	ASK_MARKER,
	ASK_SCRIPT,
	ASK_EVALSHA,
	TELL_NAME,
	TELL_LIBRARY,
	TELL_VERSION
} Question;

/* What it takes to answer, for people: a command, and what an ACL has to allow. */
static const struct
{
	const char *command;
	const char *rights;
	bool lua;
} needs[] = {
	[ASK_AUTH] = {"AUTH", "+auth"},
	[ASK_SELECT] = {"SELECT", "+select"},
	[ASK_PING] = {"PING", "+ping"},
	[ASK_SERVER] = {"INFO", "+info"},
	[ASK_REPLICATION] = {"INFO", "+info"},
	[ASK_PERSISTENCE] = {"INFO", "+info"},
	[ASK_MEMORY] = {"INFO", "+info"},
	[ASK_FSYNC] = {"CONFIG GET", "+config|get"},
	[ASK_MARKER] = {"EVAL", "+eval +get +set +time ~redlock:?marker", true},
	[ASK_SCRIPT] = {"SCRIPT LOAD", "+script|load", true},
	[ASK_EVALSHA] = {"EVALSHA", "+evalsha", true},
};

/* In the list of a node's clients, with the host's name behind it. */
#define CLIENT_NAME "redlock_pg/"

/* Of a script that no node has. */
#define NO_SHA "0000000000000000000000000000000000000000"

StaticAssertDecl((NODE_IN_FLIGHT_MAX & (NODE_IN_FLIGHT_MAX - 1)) == 0,
				 "the numbers of commands in flight wrap");

static RedisNode nodes[NODE_SLOTS];
static const NodeHandler *handler;
static void *(*create_array)(const redisReadTask *task, RedlockElements elements); /* hiredis's */

static void end_batch(RedisNode *node);
static void watch(RedisNode *node);
static void on_connection(RedisNode *node, int64 now_us);
static void send_alone(RedisNode *node, const InFlight *sent, int argc, const char **argv,
					   const size_t *argvlen);
static void set_state(RedisNode *node, NodeState state, const char *error);
static void start(RedisNode *node, int64 now_us);
static void connect_to(RedisNode *node, int64 now_us);
static void limit_delivery(RedisNode *node);
static int64 answer_due_us(const RedisNode *node, int64 now_us);
static bool may_doubt(const RedisNode *node, int64 now_us);
static void replace_connection(RedisNode *node, int64 now_us);
static void check_connection(RedisNode *node, int64 now_us);
static void limit_replies(redisReader *reader);
static void *create_short_array(const redisReadTask *task, RedlockElements elements);
static void begin_handshake(RedisNode *node, int64 now_us);
static void ask_voter(RedisNode *node);
static void tell_name(RedisNode *node);
static bool is_optional(Question what);
static void hear(RedisNode *node, const redisReply *reply, int64 now_us);
static void append(RedisNode *node, int argc, const char **argv, const size_t *argvlen);
REDLOCK_NORETURN static void out_of_memory(const RedisNode *node);
static void ask(RedisNode *node, Question what, int argc, const char **argv);
static void on_handshake(RedisNode *node, const redisReply *reply, int64 now_us);
static const char *find_fault(RedisNode *node, Question what, const redisReply *reply);
static const char *explain_error(Question what, const redisReply *reply);
static bool is_refusal(const redisReply *reply);
static bool begins_with(const char *text, const char *with);
static void read_fsync(RedisNode *node, const redisReply *reply);
static const redisReply *configured(const redisReply *reply, const char *name);
static void read_memory(RedisNode *node, const redisReply *reply);
static int64 info_number(const redisReply *reply, const char *name);
static bool read_marker(RedisNode *node, const redisReply *reply);
static bool info_value(const redisReply *reply, const char *name, char *value, size_t size);
static void ask_guard(RedisNode *node);
static bool is_durable(const RedisNode *node);
static void describe(RedisNode *node, GuardVerdict verdict);
static void get_ready(RedisNode *node, const char *error);
static void begin_duty(RedisNode *node, int64 now_us);
static bool is_alert(const RedisNode *node);
static bool is_unanswered(const RedisNode *node);
static void on_reply(RedisNode *node, const redisReply *reply, int64 now_us);
static bool is_answer_due(const RedisNode *node);
static void read_replies(RedisNode *node, int64 now_us);
static bool is_pong(const redisReply *reply);
static void drop(RedisNode *node);
static void fail(RedisNode *node, NodeState state, const char *error, int64 now_us);
static void fail_io(RedisNode *node, const char *doing, int64 now_us);

void
node_init(const NodeHandler *node_handler)
{
	handler = node_handler;
	for (int i = 0; i < NODE_SLOTS; i++)
		nodes[i].slot = i;
}

RedisNode *
node_at(int slot)
{
	Assert(slot >= 0 && slot < NODE_SLOTS);
	return &nodes[slot];
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
node_open(int slot, const NodeUrl *url, GuardMemory *guard, int64 now_us)
{
	RedisNode *node = node_at(slot);

	Assert(node->state == NODE_UNUSED);

	memset(node, 0, sizeof(*node));
	node->slot = slot;
	node->url = *url;
	node->guard = guard;
	if (!node_is_subscriber(node))
	{
		node->in_flight =
			MemoryContextAlloc(TopMemoryContext, NODE_IN_FLIGHT_MAX * sizeof(InFlight));
		node->batch = MemoryContextAllocZero(TopMemoryContext, sizeof(ScriptBatch));
	}
	start(node, now_us);
}

void
node_close(RedisNode *node, int64 now_us)
{
	fail(node, NODE_UNUSED, "", now_us);
	if (!node_is_subscriber(node))
	{
		pfree(node->in_flight);
		pfree(node->batch);
	}
	node->in_flight = NULL;
	node->batch = NULL;
}

void
node_reopen(RedisNode *node, const NodeUrl *url, int64 now_us)
{
	/* an answer to the former user or password explains nothing any more */
	bool is_same_user = strcmp(node->url.user, url->user) == 0 &&
						strcmp(node->url.password, url->password) == 0 && node->url.tls == url->tls;

	fail(node, NODE_BACKING_OFF, is_same_user ? NULL : "", now_us);
	node->url = *url;
	node->failures = 0;
	start(node, now_us);
}

void
node_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent)
{
	InFlight *entry;

	Assert(node_can_send(node));
	Assert(command->op != CORE_OP_ACQUIRE || node_can_vote(node));

	entry = &node->in_flight[node->in_flight_tail++ % NODE_IN_FLIGHT_MAX];
	*entry = *sent;
	entry->by_text = node->by_text;
	entry->last = entry->check = false;
	entry->call = 0;
	script_add(node->batch, command);
	node->flush_wanted = true;
	if (node->batch->count == SCRIPT_BATCH_MAX)
		end_batch(node);
}

/* What was sent since the last one becomes a call of the script. */
static void
end_batch(RedisNode *node)
{
	if (!script_append(node->connection, node->batch, node->guard->marker,
					   node->by_text ? NULL : node->sha))
		out_of_memory(node);
	node->in_flight[(node->in_flight_tail - 1) % NODE_IN_FLIGHT_MAX].last = true;
	node->by_text = false;
}

void
node_call(RedisNode *node, int call, int argc, const char **argv, const size_t *argvlen,
		  int64 now_us)
{
	InFlight sent = {.call = call, .last = true, .sent_us = now_us};

	Assert(node_can_send(node) && call != 0);
	send_alone(node, &sent, argc, argv, argvlen);
}

/* Behind what is in the batch. */
static void
send_alone(RedisNode *node, const InFlight *sent, int argc, const char **argv,
		   const size_t *argvlen)
{
	if (node->batch->count > 0)
		end_batch(node);
	append(node, argc, argv, argvlen);
	node->in_flight[node->in_flight_tail++ % NODE_IN_FLIGHT_MAX] = *sent;
	node->flush_wanted = true;
}

void
node_subscribe(RedisNode *node, const char *channel, size_t len, bool join)
{
	const char *argv[] = {join ? "SUBSCRIBE" : "UNSUBSCRIBE", channel};
	size_t argvlen[] = {strlen(argv[0]), len};

	Assert(node_is_subscriber(node) && node->state == NODE_READY);

	append(node, lengthof(argv), argv, argvlen);
	node->flush_wanted = true;
}

bool
node_flush(RedisNode *node, int64 now_us)
{
	int done = 0;

	if (!node->flush_wanted || node->connection == NULL || node->state == NODE_CONNECTING)
		return true;
	if (!node_is_subscriber(node) && node->batch->count > 0)
		end_batch(node);
	if (node->tls != NULL)
		tls_before_io();
	if (redisBufferWrite(node->connection, &done) != REDIS_OK)
	{
		fail_io(node, "write", now_us);
		return false;
	}
	node->flush_wanted = !done;
	watch(node);
	return true;
}

/* A write by TLS that is not done may wait for bytes to read: then room is no news. */
static void
watch(RedisNode *node)
{
	loop_watch(node->slot, node->connection->fd,
			   node->tls != NULL ? tls_waits_for_room(node->tls) : node->flush_wanted);
}

void
node_on_socket(RedisNode *node, bool readable, bool writable, int64 now_us)
{
	if (node->connection == NULL)
		return; /* closed earlier in this pass */

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
			fail_io(node, "connect", now_us);
			return;
		}
		if (writable)
			on_connection(node, now_us);
		return;
	}
	if (readable)
		read_replies(node, now_us);
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
			fail(node, NODE_REFUSED, error, now_us);
			return;
		}
	}
	begin_handshake(node, now_us);
}

int64
node_on_time(RedisNode *node, int64 now_us, int64 looked_us)
{
	char error[SCRIPT_TEXT_MAX + 1];
	ResolverAnswer answer;
	const char *phase;
	int64 due_us;

	switch (node->state)
	{
		case NODE_UNUSED:
			return PG_INT64_MAX;

		case NODE_RESOLVING:
			switch (resolver_read(node->slot, &answer))
			{
				case RESOLVER_PENDING:
					if (now_us < node->deadline_us)
						return Min(node->deadline_us, now_us + RESOLVER_POLL_US);
					fail(node, NODE_BACKING_OFF, "no answer from the host name resolver", now_us);
					return node->retry_at_us;
				case RESOLVER_FAILED:
					fail(node, NODE_BACKING_OFF, answer.error, now_us);
					return node->retry_at_us;
				case RESOLVER_DONE:
					node->addresses = node->untried = answer.addresses;
					node->next_address = 0;
					memcpy(node->address, answer.address, sizeof(node->address));
					connect_to(node, now_us);
					return node_on_time(node, now_us, looked_us);
			}
			break;

		case NODE_CONNECTING:
		case NODE_HANDSHAKE:
			if (looked_us < node->deadline_us)
				return node->deadline_us;
			phase = node->state == NODE_CONNECTING ? "connecting" : "handshake";
			if (node->tls != NULL && tls_phase(node->tls) != NULL)
				phase = tls_phase(node->tls);
			snprintf(error, sizeof(error), "no answer within %d ms (%s)", redlock_node_timeout_ms,
					 phase);
			fail(node, NODE_BACKING_OFF, error, now_us);
			return node->retry_at_us;

		case NODE_READY:
		case NODE_QUARANTINED:
			if (node->state == NODE_QUARANTINED && guard_may_vote(node->guard, now_us))
			{
				if (node->facts.evicts)
					guard_distrust(node->guard, MAX_TTL_US, now_us);
				else
					get_ready(node, "");
			}
			if (now_us >= node->check_at_us)
				check_connection(node, now_us);
			due_us = answer_due_us(node, now_us);
			if (looked_us < due_us)
			{
				due_us = Min(due_us, node->check_at_us);
				return node->state == NODE_QUARANTINED ? Min(due_us, node->guard->until_us)
													   : due_us;
			}
			if (may_doubt(node, now_us))
			{
				replace_connection(node, now_us);
				return node_on_time(node, now_us, looked_us);
			}
			snprintf(error, sizeof(error), "no answer within %d ms", redlock_node_timeout_ms);
			fail(node, NODE_BACKING_OFF, error, now_us);
			return node->retry_at_us;

		case NODE_BACKING_OFF:
		case NODE_REFUSED:
			if (now_us < node->retry_at_us)
				return node->retry_at_us;
			start(node, now_us);
			return node_on_time(node, now_us, looked_us);
	}
	return PG_INT64_MAX;
}

static void
set_state(RedisNode *node, NodeState state, const char *error)
{
	NodeState before = node->state;

	node->state = state;
	if (error != NULL)
		node_set_error(node, error);
	handler->changed(node, before);
}

void
node_set_error(RedisNode *node, const char *error)
{
	strlcpy(node->error, error, sizeof(node->error));
	node->error_at = error[0] != '\0' ? GetCurrentTimestamp() : 0;
}

/* Find the address, then connect to it. */
static void
start(RedisNode *node, int64 now_us)
{
	const char *problem;

	Assert(node->connection == NULL);

	if (node_is_subscriber(node))
	{
		const RedisNode *voter = node_at(node->slot - NODE_SUBSCRIBER);

		if (!node_is_on_duty(voter))
		{
			fail(node, NODE_BACKING_OFF, "its node is not ready", now_us);
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
	if (node->untried > 0)
	{
		connect_to(node, now_us);
		return;
	}

	/* not asked yet, or all its addresses failed */
	problem = resolver_ask(node->slot, node->url.host);
	if (problem != NULL)
	{
		fail(node, NODE_BACKING_OFF, problem, now_us);
		return;
	}
	node->deadline_us = now_us + RESOLVE_US;
	set_state(node, NODE_RESOLVING, NULL);
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
		fail(node, NODE_BACKING_OFF, "out of memory", now_us);
		return;
	}
	if (node->connection->err)
	{
		fail_io(node, "connect", now_us);
		return;
	}
	limit_replies(node->connection->reader);
	limit_delivery(node);
	node->unparsed = 0;
	node->began_us = now_us;
	node->deadline_us = now_us + NODE_TIMEOUT_US;
	loop_watch(node->slot, node->connection->fd, true); /* writable means connected */
	set_state(node, NODE_CONNECTING, NULL);
}

/*
 * What is not acknowledged in time is given up here.  The system would go on sending
 * it for minutes, also after the socket was closed, and the node execute it so late.
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

/* When the oldest of what was sent must be answered. */
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
 * May an answer that is out be asked for on another connection?  If nothing was heard
 * since, and there is time to connect, and for the answer.  For messages nobody waits.
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
	fail(node, NODE_BACKING_OFF, error, now_us);
	node->replacing = false;
	node->retry_at_us = now_us;
}

/* One that is used is checked, too: its answer tells what may change at any time. */
static void
check_connection(RedisNode *node, int64 now_us)
{
	InFlight check = {.check = true, .last = true, .sent_us = now_us};

	node->check_at_us = now_us - now_us % CHECK_US + CHECK_US;
	if (node_is_subscriber(node))
	{
		if (node->pinged_us != 0)
			return;
		append(node, 1, (const char *[]){"PING"}, NULL);
		node->pinged_us = now_us;
		node->flush_wanted = true;
	}
	else if (node_can_send(node))
		send_alone(node, &check, 2, (const char *[]){"INFO", "memory"}, NULL);
}

/*
 * hiredis allocates, and frees one by one, as many elements as an array says to
 * have: a line of a hostile node would keep it busy for seconds.
 */
static void
limit_replies(redisReader *reader)
{
	static redisReplyObjectFunctions limited;

	create_array = reader->fn->createArray;
	limited = *reader->fn;
	limited.createArray = create_short_array;
	reader->fn = &limited;
}

static void *
create_short_array(const redisReadTask *task, RedlockElements elements)
{
	return elements <= NODE_ELEMENTS_MAX ? create_array(task, elements) : NULL;
}

/* All that must be said and known first, in one write. */
static void
begin_handshake(RedisNode *node, int64 now_us)
{
	node->questions = node->answers = 0;
	set_state(node, NODE_HANDSHAKE, NULL);

	if (node->url.user[0] != '\0')
		ask(node, ASK_AUTH, 3, (const char *[]){"AUTH", node->url.user, node->url.password});
	else if (node->url.password[0] != '\0')
		ask(node, ASK_AUTH, 2, (const char *[]){"AUTH", node->url.password});
	if (node_is_subscriber(node))
		ask(node, ASK_PING, 1, (const char *[]){"PING"});
	else
		ask_voter(node);
	tell_name(node);
	Assert(node->questions <= lengthof(node->question));

	node->flush_wanted = true;
	node_flush(node, now_us);
}

static void
ask_voter(RedisNode *node)
{
	char db[12];
	char random[17];
	char max_ttl[12];
	uint64 bits;

	if (node->url.db != 0)
	{
		snprintf(db, sizeof(db), "%d", node->url.db);
		ask(node, ASK_SELECT, 2, (const char *[]){"SELECT", db});
	}
	ask(node, ASK_SERVER, 2, (const char *[]){"INFO", "server"});
	ask(node, ASK_REPLICATION, 2, (const char *[]){"INFO", "replication"});
	ask(node, ASK_PERSISTENCE, 2, (const char *[]){"INFO", "persistence"});
	ask(node, ASK_MEMORY, 2, (const char *[]){"INFO", "memory"});
	ask(node, ASK_FSYNC, 3, (const char *[]){"CONFIG", "GET", "*appendfsync*"});

	if (!pg_strong_random(&bits, sizeof(bits)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate random bytes for a redlock node")));
	snprintf(random, sizeof(random), "%016llx", (unsigned long long) bits);
	snprintf(max_ttl, sizeof(max_ttl), "%d", redlock_max_ttl_ms);
	ask(node, ASK_MARKER, 6,
		(const char *[]){"EVAL", lua_marker_script, "0", random, node->guard->marker, max_ttl});
	ask(node, ASK_SCRIPT, 3, (const char *[]){"SCRIPT", "LOAD", lua_script});
	ask(node, ASK_EVALSHA, 3, (const char *[]){"EVALSHA", NO_SHA, "0"});
}

/*
 * For people who list the node's clients.  It must come behind all questions: answers to it are
 * ignored, and the first answer of a node may say why the node refuses us.
 */
static void
tell_name(RedisNode *node)
{
	char name[sizeof(CLIENT_NAME) + HOSTS_NAME_MAX];

	strlcpy(name, CLIENT_NAME, sizeof(name));
	strlcat(name, host_list_own_name(), sizeof(name));
	for (char *c = name; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			*c = '_'; /* a node takes no others */
	ask(node, TELL_NAME, 3, (const char *[]){"CLIENT", "SETNAME", name});
	ask(node, TELL_LIBRARY, 4, (const char *[]){"CLIENT", "SETINFO", "LIB-NAME", "redlock_pg"});
	ask(node, TELL_VERSION, 4, (const char *[]){"CLIENT", "SETINFO", "LIB-VER", REDLOCK_VERSION});
}

/* Some nodes lack the command, or forbid it by their ACL. */
static bool
is_optional(Question what)
{
	return what >= TELL_NAME;
}

static void
ask(RedisNode *node, Question what, int argc, const char **argv)
{
	append(node, argc, argv, NULL);
	node->question[node->questions++] = what;
}

static void
append(RedisNode *node, int argc, const char **argv, const size_t *argvlen)
{
	if (redisAppendCommandArgv(node->connection, argc, argv, argvlen) != REDIS_OK)
		out_of_memory(node);
}

static void
out_of_memory(const RedisNode *node)
{
	ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY),
					errmsg("out of memory for commands to redlock node %s", node->url.address)));
}

static void
on_handshake(RedisNode *node, const redisReply *reply, int64 now_us)
{
	Question what = node->question[node->answers++];
	const char *fault = find_fault(node, what, reply);
	char error[SCRIPT_TEXT_MAX + 1];

	if (fault != NULL)
	{
		bool passing = begins_with(fault, "LOADING") || begins_with(fault, "BUSY") ||
					   begins_with(fault, "ERR max number of clients");

		fail(node, passing ? NODE_BACKING_OFF : NODE_REFUSED, fault, now_us);
		return;
	}
	if (node->answers < node->questions)
		return;

	if (!node_is_subscriber(node))
	{
		ask_guard(node);
		if (node->guard->twin != 0)
		{
			snprintf(error, sizeof(error), "it is the same server as node %.100s",
					 nodes[node->guard->twin - 1].url.address);
			fail(node, NODE_REFUSED, error, now_us);
			return;
		}
	}
	node->failures = 0;
	node->next_address = node->used_address; /* it is good: begin with it */
	node->untried = node->addresses;
	begin_duty(node, now_us);
}

/* Is it fit, and may it vote?  What the guard says is remembered for people, too. */
static void
ask_guard(RedisNode *node)
{
	GuardMemory *memories[CORE_NODES_MAX];
	int64 now_us = redlock_clock_us();

	node->facts.durable = is_durable(node);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		memories[i] = nodes[i].state != NODE_UNUSED ? nodes[i].guard : NULL;
	describe(node, guard_meet(memories, node->slot, &node->facts, MAX_TTL_US, now_us));
}

/* redlock.nodes may say what a node does not tell, and that it forgets whatever it tells. */
static bool
is_durable(const RedisNode *node)
{
	if (node->url.durable == URL_NOT_DURABLE || node->forgets[0] != '\0')
		return false;
	return node->url.durable == URL_DURABLE || node->untold[0] == '\0';
}

/* A time of day, since the text is read later, by whomever. */
static void
describe(RedisNode *node, GuardVerdict verdict)
{
	pg_time_t started = (pg_time_t) (redlock_wall_clock_us() / 1000000 - node->facts.uptime_s);
	char *reason = node->guard->reason;
	char when[64];

	switch (verdict)
	{
		case GUARD_AS_BEFORE:
			break;
		case GUARD_RESTARTED:
			pg_strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %Z",
						pg_localtime(&started, log_timezone));
			snprintf(reason, GUARD_REASON_SIZE,
					 "it restarted at %s and may have forgotten leases: %s", when,
					 node->url.durable == URL_NOT_DURABLE ? "durable=no"
					 : node->forgets[0] != '\0'           ? node->forgets
														  : node->untold);
			break;
		case GUARD_FORGOT:
			strlcpy(reason, "its data was lost, and leases with it", GUARD_REASON_SIZE);
			break;
		case GUARD_EVICTS:
			snprintf(reason, GUARD_REASON_SIZE, "its maxmemory-policy, %s, may throw away leases",
					 node->eviction);
			break;
	}
}

static void
begin_duty(RedisNode *node, int64 now_us)
{
	node->made_in_us = now_us - node->began_us;
	node->check_at_us = now_us - now_us % CHECK_US + CHECK_US;
	node->pinged_us = 0;
	if (!node_is_subscriber(node) && !guard_may_vote(node->guard, now_us))
		set_state(node, NODE_QUARANTINED, node->guard->reason);
	else
		get_ready(node, NULL);
}

/* What it can't be trusted with, though redlock.nodes says so, stays to be seen. */
static void
get_ready(RedisNode *node, const char *error)
{
	char praised[SCRIPT_TEXT_MAX + 1];

	if (node_is_praised(node))
	{
		snprintf(praised, sizeof(praised), "redlock.nodes says durable=yes, but %s", node->forgets);
		error = praised;
	}
	set_state(node, NODE_READY, error);
}

/* Why this node must not vote, as far as this reply tells; or NULL. */
static const char *
find_fault(RedisNode *node, Question what, const redisReply *reply)
{
	static char fault[SCRIPT_TEXT_MAX + 1];
	char value[64];

	if (what == ASK_FSYNC)
	{
		read_fsync(node, reply); /* not all who are fit may be asked */
		return NULL;
	}
	if (is_optional(what))
		return NULL;
	if (what == ASK_EVALSHA && reply->type == REDIS_REPLY_ERROR &&
		begins_with(reply->str, "NOSCRIPT"))
		return NULL; /* it looked for the script, so it may */
	if (reply->type == REDIS_REPLY_ERROR)
		return explain_error(what, reply);
	switch (what)
	{
		case ASK_AUTH:
		case ASK_SELECT:
		case ASK_PING:
			return NULL;

		case ASK_SERVER:
			if (!info_value(reply, "run_id", node->facts.run_id, sizeof(node->facts.run_id)))
				return "its INFO server has no run_id";
			if (!info_value(reply, "uptime_in_seconds", value, sizeof(value)))
				return "its INFO server has no uptime_in_seconds";
			node->facts.uptime_s = Max(0, Min(strtoll(value, NULL, 10), PG_INT32_MAX));
			/* Valkey has another name for it */
			if ((info_value(reply, "redis_mode", value, sizeof(value)) ||
				 info_value(reply, "server_mode", value, sizeof(value))) &&
				strcmp(value, "standalone") != 0)
			{
				snprintf(fault, sizeof(fault),
						 "it runs in %s mode; a node must be a standalone server", value);
				return fault;
			}
			return NULL;

		case ASK_REPLICATION:
			if (!info_value(reply, "role", value, sizeof(value)))
				return "its INFO replication has no role";
			if (strcmp(value, "master") != 0)
				return "it is a replica; a node must be an independent server";
			return NULL;

		case ASK_PERSISTENCE:
			node->forgets[0] = node->untold[0] = '\0';
			if (!info_value(reply, "aof_enabled", value, sizeof(value)))
				strlcpy(node->untold, "its INFO persistence has no aof_enabled",
						sizeof(node->untold));
			else if (strcmp(value, "1") != 0)
				strlcpy(node->forgets, "its appendonly is no", sizeof(node->forgets));
			return NULL;

		case ASK_MEMORY:
			read_memory(node, reply);
			return NULL;

		case ASK_MARKER:
			if (!read_marker(node, reply))
				return "it did not tell its marker";
			if (reply->element[2]->len == 0)
				return NULL;
			text_to_printable(value, sizeof(value), reply->element[2]->str, reply->element[2]->len);
			snprintf(fault, sizeof(fault), "its user lacks rights for each lock; grant %s", value);
			return fault;

		case ASK_SCRIPT:
			if (reply->type != REDIS_REPLY_STRING || reply->len != SCRIPT_SHA_SIZE - 1)
				return "it did not load a script";
			strlcpy(node->sha, reply->str, SCRIPT_SHA_SIZE);
			return NULL;

		case ASK_EVALSHA:
			return "it executes scripts that it was not given";

		case ASK_FSYNC:
		case TELL_NAME:
		case TELL_LIBRARY:
		case TELL_VERSION:
			break; /* above */
	}
	return NULL;
}

/*
 * An error of the handshake, with what is missing.  That of an unknown command repeats
 * its arguments, which may be a password.
 */
static const char *
explain_error(Question what, const redisReply *reply)
{
	static char fault[SCRIPT_TEXT_MAX + 1];
	char end[64] = "";

	if (begins_with(reply->str, "ERR unknown command") ||
		begins_with(reply->str, "ERR unknown subcommand"))
	{
		snprintf(fault, sizeof(fault), "it has no command %s, which a node needs (%s)",
				 needs[what].command,
				 needs[what].lua ? "renamed, or a server without Lua" : "renamed");
		return fault;
	}
	if (begins_with(reply->str, "ERR Could not find scripting engine"))
		return "it is a server without Lua, which a node needs";
	if (is_refusal(reply))
		snprintf(end, sizeof(end), "; grant %s", needs[what].rights);
	text_of_node(fault, sizeof(fault) - strlen(end), reply->str, reply->len);
	strlcat(fault, end, sizeof(fault));
	return fault;
}

/* Does it say that the user lacks a right? */
static bool
is_refusal(const redisReply *reply)
{
	return begins_with(reply->str, "NOPERM") || begins_with(reply->str, "ERR ACL failure") ||
		   strstr(reply->str, "The user executing the script can't") != NULL;
}

void
node_explain_refusal(const redisReply *reply, const char *lacks, char *text)
{
	char end[112] = "";
	size_t room;

	if (reply->type != REDIS_REPLY_ERROR || lacks[0] == '\0' || !is_refusal(reply))
		return;
	snprintf(end, sizeof(end), "; grant %s", lacks);
	room = SCRIPT_TEXT_MAX - strlen(end);
	strlcpy(text + Min(strlen(text), room), end, sizeof(end));
}

static bool
begins_with(const char *text, const char *with)
{
	return pg_strncasecmp(text, with, strlen(with)) == 0;
}

/* Does it answer before the disk has a command? */
static void
read_fsync(RedisNode *node, const redisReply *reply)
{
	static const char *const durable[][2] = {{"appendfsync", "always"},
											 {"no-appendfsync-on-rewrite", "no"}};
	char value[16];
	int told = 0;

	for (int i = 0; i < lengthof(durable); i++)
	{
		const redisReply *is = configured(reply, durable[i][0]);

		if (is == NULL)
			continue;
		told++;
		if (strcmp(is->str, durable[i][1]) != 0 && node->forgets[0] == '\0')
		{
			text_to_printable(value, sizeof(value), is->str, is->len);
			snprintf(node->forgets, sizeof(node->forgets), "its %s is %s", durable[i][0], value);
		}
	}
	if (told < lengthof(durable))
		strlcpy(node->untold, "it does not answer CONFIG GET", sizeof(node->untold));
	/* one that is durable by its replicas may have no such file */
	if (told == 0 && node->url.durable == URL_DURABLE)
		node->forgets[0] = '\0';
}

/* In the reply of CONFIG GET, which has names and values in turn; NULL: not there. */
static const redisReply *
configured(const redisReply *reply, const char *name)
{
	if (reply->type != REDIS_REPLY_ARRAY)
		return NULL;
	for (size_t i = 0; i + 1 < reply->elements; i += 2)
		if (reply->element[i]->type == REDIS_REPLY_STRING &&
			reply->element[i + 1]->type == REDIS_REPLY_STRING &&
			strcmp(reply->element[i]->str, name) == 0)
			return reply->element[i + 1];
	return NULL;
}

/*
 * Reads how full the memory is, and whether the node evicts keys.  A node that hides its policy is
 * trusted.
 */
static void
read_memory(RedisNode *node, const redisReply *reply)
{
	char policy[sizeof(node->eviction)];

	node->memory_used = info_number(reply, "used_memory");
	node->memory_limit = info_number(reply, "maxmemory");
	handler->measured(node);
	node->eviction[0] = '\0';
	if (node->memory_limit > 0 && info_value(reply, "maxmemory_policy", policy, sizeof(policy)) &&
		strcmp(policy, "noeviction") != 0)
		strlcpy(node->eviction, policy, sizeof(node->eviction));
	node->facts.evicts = node->eviction[0] != '\0';
}

static bool
read_marker(RedisNode *node, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 5 ||
		reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len == 0 ||
		reply->element[0]->len > LUA_MARKER_MAX || reply->element[1]->type != REDIS_REPLY_INTEGER ||
		reply->element[1]->integer < GUARD_FRESH || reply->element[1]->integer > GUARD_LOST_ONCE)
		return false;
	for (int i = 2; i < 5; i++)
		if (reply->element[i]->type != REDIS_REPLY_STRING)
			return false;
	text_to_printable(node->lacks_for_locks, sizeof(node->lacks_for_locks), reply->element[3]->str,
					  reply->element[3]->len);
	text_to_printable(node->lacks_for_hosts, sizeof(node->lacks_for_hosts), reply->element[4]->str,
					  reply->element[4]->len);
	strlcpy(node->facts.marker, reply->element[0]->str, sizeof(node->facts.marker));
	node->facts.loss = reply->element[1]->integer;
	return true;
}

/* The value of a line "name:value" in the reply of INFO. */
static bool
info_value(const redisReply *reply, const char *name, char *value, size_t size)
{
	size_t name_len = strlen(name);
	const char *line = reply->str;

	if (reply->type != REDIS_REPLY_STRING)
		return false;
	while (line != NULL)
	{
		if (strncmp(line, name, name_len) == 0 && line[name_len] == ':')
		{
			line += name_len + 1;
			text_to_printable(value, size, line, strcspn(line, "\r\n"));
			return true;
		}
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return false;
}

/* 0: it is not there, or below. */
static int64
info_number(const redisReply *reply, const char *name)
{
	char value[64];

	return info_value(reply, name, value, sizeof(value)) ? Max(strtoll(value, NULL, 10), 0) : 0;
}

static void
read_replies(RedisNode *node, int64 now_us)
{
	redisContext *connection = node->connection;

	size_t before = connection->reader->len;

	do
	{
		if (node->tls != NULL)
			tls_before_io();
		if (redisBufferRead(connection) != REDIS_OK)
		{
			fail_io(node, "read", now_us);
			return;
		}
	} while (node->tls != NULL && tls_has_more(node->tls));
	if (node->tls != NULL)
		watch(node);
	if (is_alert(node))
	{
		fail(node, NODE_REFUSED, "it speaks TLS: its URL should begin with rediss://", now_us);
		return;
	}
	node->unparsed += connection->reader->len - before;
	node->heard_us = now_us;
	while (node->connection == connection)
	{
		void *reply = NULL;

		if (redisReaderGetReply(connection->reader, &reply) != REDIS_OK)
		{
			fail(node, NODE_BACKING_OFF, "it does not speak the Redis protocol", now_us);
			return;
		}
		if (reply == NULL)
			break;

		if (node->state == NODE_HANDSHAKE && node->answers < node->questions)
			on_handshake(node, reply, now_us);
		else if (is_answer_due(node))
			on_reply(node, reply, now_us);
		else if (node_is_subscriber(node))
			hear(node, reply, now_us);
		else
			fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
		freeReplyObject(reply);
		if (node->connection == connection)
			node->unparsed = connection->reader->len - connection->reader->pos;
	}
	if (node->connection != connection)
		return;
	if (node->unparsed > NODE_REPLY_MAX)
		fail(node, NODE_BACKING_OFF, "it sends more than any reply could have", now_us);
	else if (node->unparsed > 0 && !is_answer_due(node) && node->state != NODE_HANDSHAKE &&
			 !node_is_subscriber(node))
		fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
}

/* What a server of TLS says to one that speaks otherwise, if it says anything. */
static bool
is_alert(const RedisNode *node)
{
	const redisReader *reader = node->connection->reader;

	return is_unanswered(node) && reader->len > reader->pos && reader->buf[reader->pos] == 0x15;
}

/* Does it have reason to believe that we speak the wrong language? */
static bool
is_unanswered(const RedisNode *node)
{
	return node->state == NODE_HANDSHAKE && node->answers == 0 && node->tls == NULL &&
		   !node->url.is_unix;
}

static void
on_reply(RedisNode *node, const redisReply *reply, int64 now_us)
{
	const InFlight *first = &node->in_flight[node->in_flight_head % NODE_IN_FLIGHT_MAX];
	char changed[SCRIPT_TEXT_MAX + 1] = "";
	int count = 1;

	if (first->call != 0)
	{
		int call = first->call;

		node->in_flight_head++;
		if (call != NODE_SAID)
			handler->called(node, call, reply, now_us);
		return;
	}
	if (first->check)
	{
		bool evicted = node->facts.evicts;

		node->in_flight_head++;
		read_memory(node, reply);
		if (evicted && !node->facts.evicts)
			set_state(node, node->state, NULL); /* its quarantine has an end now */
		if (node->facts.evicts)
		{
			guard_distrust(node->guard, MAX_TTL_US, now_us);
			describe(node, GUARD_EVICTS);
			set_state(node, NODE_QUARANTINED, node->guard->reason);
		}
		return;
	}
	while (!node->in_flight[(node->in_flight_head + count - 1) % NODE_IN_FLIGHT_MAX].last)
		count++;
	for (int i = 0; i < count; i++)
	{
		InFlight sent = node->in_flight[node->in_flight_head++ % NODE_IN_FLIGHT_MAX];
		ScriptAnswer answer;

		script_read(sent.op, reply, i, count, &answer);
		if (answer.reply >= CORE_REPLY_ERROR)
			node_explain_refusal(reply->type == REDIS_REPLY_ARRAY && reply->elements == count
									 ? reply->element[i]
									 : reply,
								 node->lacks_for_locks, answer.text);
		if (answer.forgot || answer.demoted)
			strlcpy(changed, answer.text, sizeof(changed));
		if (answer.unknown_script && !sent.by_text)
			node->by_text = true;
		handler->answered(node, &sent, &answer, now_us);
	}
	if (changed[0] != '\0')
		fail(node, NODE_BACKING_OFF, changed, now_us); /* for another handshake */
}

/* Was a batch sent that is not yet answered? */
static bool
is_answer_due(const RedisNode *node)
{
	return !node_is_subscriber(node) && node_in_flight(node) > (uint32) node->batch->count;
}

/* A message, the confirmation that a channel was joined or left, or an answer to PING. */
static void
hear(RedisNode *node, const redisReply *reply, int64 now_us)
{
	redisReply **element = reply->element;

	if (reply->type == REDIS_REPLY_ERROR)
	{
		char error[SCRIPT_TEXT_MAX + 1];

		/* a host that may not subscribe waits by asking */
		text_of_node(error, sizeof(error), reply->str, reply->len);
		fail(node, NODE_REFUSED, error, now_us);
		return;
	}
	if (node->pinged_us != 0 && is_pong(reply))
		node->pinged_us = 0;
	else if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
			 element[0]->type != REDIS_REPLY_STRING || element[1]->type != REDIS_REPLY_STRING)
		fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
	else if (strcmp(element[0]->str, "message") == 0 && element[2]->type == REDIS_REPLY_STRING)
		handler->heard(node, element[1]->str, element[1]->len, element[2]->str, element[2]->len,
					   now_us);
	else if (strcmp(element[0]->str, "subscribe") == 0)
		handler->joined(node, element[1]->str, element[1]->len, now_us);
}

/* It looks otherwise on a connection that has subscribed to something. */
static bool
is_pong(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_STATUS ||
		   (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2);
}

/* Close the socket. */
static void
drop(RedisNode *node)
{
	if (node->connection == NULL)
		return;
	loop_forget(node->slot);
	redisFree(node->connection);
	node->connection = NULL;
	node->tls = NULL;
	node->flush_wanted = false;
}

/*
 * The connection is over.  What was sent and not answered may have been
 * executed or not, or may still be: the handler is told of each.
 */
static void
fail(RedisNode *node, NodeState state, const char *error, int64 now_us)
{
	int64 pause_us;
	bool has_others = node->connection != NULL && !node_is_on_duty(node) && node->untried > 0;

	drop(node);
	if (!node_is_subscriber(node))
		node->batch->count = node->batch->len = 0;
	node->by_text = false;
	pause_us = BACKOFF_MAX_US;
	if (state != NODE_REFUSED && node->failures < 5)
		pause_us = Min(BACKOFF_MIN_US << node->failures, BACKOFF_MAX_US);
	node->failures++;
	node->retry_at_us = now_us;
	if (!has_others) /* addresses to try */
		node->retry_at_us +=
			pause_us / 2 + pg_prng_uint32(&pg_global_prng_state) % (uint32) (pause_us / 2);
	set_state(node, state, error);

	/* it may hang as well, and its own check be seconds away */
	if (!node->replacing && !node_is_subscriber(node) &&
		node_at(node->slot + NODE_SUBSCRIBER)->connection != NULL)
		fail(node_at(node->slot + NODE_SUBSCRIBER), NODE_BACKING_OFF, "its node is not ready",
			 now_us);

	while (node_in_flight(node) > 0)
	{
		InFlight sent = node->in_flight[node->in_flight_head++ % NODE_IN_FLIGHT_MAX];

		if (sent.call == NODE_SAID)
			continue;
		if (sent.call != 0)
			handler->called(node, sent.call, NULL, now_us);
		else if (!sent.check)
			handler->lost(node, &sent, now_us);
	}
}

static void
fail_io(RedisNode *node, const char *doing, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];
	redisContext *connection = node->connection;
	NodeState state = NODE_BACKING_OFF;

	if (is_unanswered(node) &&
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
	fail(node, state, error, now_us);
}
