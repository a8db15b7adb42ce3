/*
 * node_pipeline.c
 *		Commands and replies of a connection: batches, writing, reading, and which reply answers
 *		which command.
 *
 * hiredis handles the protocol and its buffers; our loop drives its non-blocking sockets.  The
 * asynchronous API of hiredis is not used: one ring is enough for pipelined commands with replies
 * in order, and leases must outlive a connection.
 */
#include "postgres.h"

#include "broker/loop.h"
#include "broker/node_internal.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/text.h"

/* The round trip to a near node, at most. */
#define NEAR_US INT64CONST(1000)

StaticAssertDecl((NODE_IN_FLIGHT_MAX & (NODE_IN_FLIGHT_MAX - 1)) == 0,
				 "the numbers of commands in flight wrap");

static void *(*create_array)(const redisReadTask *task, RedlockElements elements); /* of hiredis */

static void end_batch(RedisNode *node);
static bool batch_waits(const RedisNode *node);
static void watch(RedisNode *node);
static void *create_short_array(const redisReadTask *task, RedlockElements elements);
static void hear(RedisNode *node, const redisReply *reply, int64 now_us);
REDLOCK_NORETURN static void out_of_memory(const RedisNode *node);
static bool is_alert(const RedisNode *node);
static void on_reply(RedisNode *node, const redisReply *reply, int64 now_us);
static void on_check(RedisNode *node, NodeCheck check, const redisReply *reply, int64 now_us);
static bool is_answer_due(const RedisNode *node);
static bool is_pong(const redisReply *reply);

void
node_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent)
{
	InFlight *entry;

	Assert(node_can_send(node));
	Assert(command->op != CORE_OP_ACQUIRE || node_can_vote(node));

	if (node->url.is_local)
	{
		node_local_send(node, command, sent);
		return;
	}
	entry = &node->in_flight[node->in_flight_tail++ % NODE_IN_FLIGHT_MAX];
	*entry = *sent;
	entry->by_text = node->by_text;
	entry->last = false;
	entry->check = NODE_NO_CHECK;
	entry->call = 0;
	script_add(node->batch, command);
	node->flush_wanted = true;
	if (node->batch->count == SCRIPT_BATCH_MAX)
		end_batch(node);
}

/* Turns the commands of the batch into one call of the script. */
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

	Assert(node_can_send(node) && call != 0 && !node->url.is_local);
	node_send_alone(node, &sent, argc, argv, argvlen);
}

/* Sends a command of its own, after the batch. */
void
node_send_alone(RedisNode *node, const InFlight *sent, int argc, const char **argv,
				const size_t *argvlen)
{
	if (node->batch->count > 0)
		end_batch(node);
	node_append(node, argc, argv, argvlen);
	node->in_flight[node->in_flight_tail++ % NODE_IN_FLIGHT_MAX] = *sent;
	node->flush_wanted = true;
}

void
node_subscribe(RedisNode *node, const char *channel, size_t len, bool begin)
{
	const char *argv[] = {begin ? "SUBSCRIBE" : "UNSUBSCRIBE", channel};
	size_t argvlen[] = {strlen(argv[0]), len};

	Assert(node_is_subscriber(node) && node->state == NODE_READY);

	if (node->url.is_local)
	{
		if (begin)
			node_local_subscribe(node, channel, len);
		return;
	}
	node_append(node, lengthof(argv), argv, argvlen);
	node->flush_wanted = true;
}

bool
node_flush(RedisNode *node, int64 now_us)
{
	int done = 0;

	if (node->url.is_local)
		return node_local_flush(node, now_us);
	if (!node->flush_wanted || node->connection == NULL || node->state == NODE_CONNECTING)
		return true;
	if (!node_is_subscriber(node) && node->batch->count > 0)
	{
		if (batch_waits(node))
			return true;
		for (int i = 1; i <= node->batch->count; i++)
			node->in_flight[(node->in_flight_tail - i) % NODE_IN_FLIGHT_MAX].sent_us = now_us;
		end_batch(node);
	}
	if (node->tls != NULL)
		tls_before_io();
	if (redisBufferWrite(node->connection, &done) != REDIS_OK)
	{
		node_fail_io(node, "write", now_us);
		return false;
	}
	node->flush_wanted = !done;
	watch(node);
	return true;
}

/*
 * Should the batch wait for answers to what was sent?  By TLS, a node reads one record at a time,
 * and answers before the next record.  So commands that arrive in one record cost the node less.
 * A near node's answer is late only if the node is busy, and then the node would read the batch no
 * sooner.  One command under way is no sign of a busy node: the release before a session's next
 * acquire.
 */
static bool
batch_waits(const RedisNode *node)
{
	bool all_written = node->connection->obuf[0] == '\0';

	return node->tls != NULL && node->nearest_us < NEAR_US && all_written &&
		   node_in_flight(node) >= (uint32) node->batch->count + 2;
}

/*
 * Sets the events to wait for.  An unfinished TLS write may wait for bytes to read; then a
 * writable socket is no news.
 */
static void
watch(RedisNode *node)
{
	loop_watch(node->index, node->connection->fd,
			   node->tls != NULL ? tls_waits_for_room(node->tls) : node->flush_wanted);
}

/*
 * Limits arrays in replies.  hiredis allocates, and frees one by one, as many elements as an array
 * announces: one line of a hostile node would keep hiredis busy for seconds.
 */
void
node_limit_replies(redisReader *reader)
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

void
node_append(RedisNode *node, int argc, const char **argv, const size_t *argvlen)
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

void
node_read_replies(RedisNode *node, int64 now_us)
{
	redisContext *connection = node->connection;

	size_t before = connection->reader->len;

	do
	{
		if (node->tls != NULL)
			tls_before_io();
		if (redisBufferRead(connection) != REDIS_OK)
		{
			node_fail_io(node, "read", now_us);
			return;
		}
	} while (node->tls != NULL && tls_has_more(node->tls));
	/*
	 * An answer must not seem older than it is: this process may have been stopped since now_us.
	 * guard_counts_after_us relies on late answers that grant nothing.
	 */
	now_us = redlock_clock_us();
	if (node->tls != NULL)
		watch(node);
	if (is_alert(node))
	{
		node_fail(node, NODE_REFUSED, "it speaks TLS: its URL should begin with rediss://", now_us);
		return;
	}
	node->unparsed += connection->reader->len - before;
	node->heard_us = now_us;
	while (node->connection == connection)
	{
		void *reply = NULL;

		if (redisReaderGetReply(connection->reader, &reply) != REDIS_OK)
		{
			node_fail(node, NODE_BACKING_OFF, "it does not speak the Redis protocol", now_us);
			return;
		}
		if (reply == NULL)
			break;

		if (node->state == NODE_HANDSHAKE && node->answers < node->questions)
			node_on_handshake(node, reply, now_us);
		else if (is_answer_due(node))
			on_reply(node, reply, now_us);
		else if (node_is_subscriber(node))
			hear(node, reply, now_us);
		else
			node_fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
		freeReplyObject(reply);
		if (node->connection == connection)
			node->unparsed = connection->reader->len - connection->reader->pos;
	}
	if (node->connection != connection)
		return;
	if (node->unparsed > NODE_REPLY_MAX)
		node_fail(node, NODE_BACKING_OFF, "it sends more than any reply could have", now_us);
	else if (node->unparsed > 0 && !is_answer_due(node) && node->state != NODE_HANDSHAKE &&
			 !node_is_subscriber(node))
		node_fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
}

/* Did the node send a TLS alert, as some TLS servers answer a plain client? */
static bool
is_alert(const RedisNode *node)
{
	const redisReader *reader = node->connection->reader;

	return node_is_unanswered(node) && reader->len > reader->pos &&
		   reader->buf[reader->pos] == 0x15;
}

static void
on_reply(RedisNode *node, const redisReply *reply, int64 now_us)
{
	const InFlight *first = &node->in_flight[node->in_flight_head % NODE_IN_FLIGHT_MAX];
	char changed[SCRIPT_TEXT_MAX + 1] = "";
	int count = 1;

	node->nearest_us = Min(node->nearest_us, now_us - first->sent_us);
	if (first->call != 0)
	{
		int call = first->call;

		node->in_flight_head++;
		if (call != NODE_SAID)
			node_handler->called(node, call, reply, now_us);
		return;
	}
	if (first->check != NODE_NO_CHECK)
	{
		NodeCheck check = first->check;

		node->in_flight_head++;
		on_check(node, check, reply, now_us);
		return;
	}
	while (!node->in_flight[(node->in_flight_head + count - 1) % NODE_IN_FLIGHT_MAX].last)
		count++;
	for (int i = 0; i < count; i++)
	{
		InFlight sent = node->in_flight[node->in_flight_head++ % NODE_IN_FLIGHT_MAX];
		ScriptAnswer answer;

		script_read(sent.command.op, reply, i, count, &answer);
		if (answer.reply >= CORE_REPLY_ERROR)
			node_explain_refusal(reply->type == REDIS_REPLY_ARRAY && reply->elements == count
									 ? reply->element[i]
									 : reply,
								 node->lacks_for_locks, answer.text);
		if (answer.forgot || answer.demoted)
			strlcpy(changed, answer.text, sizeof(changed));
		if (answer.unknown_script && !sent.by_text)
			node->by_text = true;
		node_handler->answered(node, &sent, &answer, now_us);
	}
	if (changed[0] != '\0')
		node_fail(node, NODE_BACKING_OFF, changed, now_us); /* forces a new handshake */
}

/* An error is no news: an evicting node may go on.  Either answer alone may show an eviction. */
static void
on_check(RedisNode *node, NodeCheck check, const redisReply *reply, int64 now_us)
{
	bool evicted = node->guard->lost_us == GUARD_EVICTING;
	GuardVerdict verdict;

	if (reply->type == REDIS_REPLY_ERROR)
		return;
	if (check == NODE_CHECK_MEMORY)
		node_read_memory(node, reply);
	else
		node_read_stats(node, reply);
	verdict = guard_look(node->guard, &node->facts, MAX_TTL_US, now_us);
	node_describe(node, verdict);
	if (verdict != GUARD_AS_BEFORE)
		node_set_state(node, NODE_QUARANTINED, node->guard->reason);
	else if (evicted)
		node_set_state(node, node->state, NULL); /* the quarantine has an end now */
}

/* Is a sent batch unanswered? */
static bool
is_answer_due(const RedisNode *node)
{
	return !node_is_subscriber(node) && node_in_flight(node) > (uint32) node->batch->count;
}

/* Handles a message, a confirmed subscription or its end, or an answer to PING. */
static void
hear(RedisNode *node, const redisReply *reply, int64 now_us)
{
	redisReply **element = reply->element;

	if (reply->type == REDIS_REPLY_ERROR)
	{
		char error[SCRIPT_TEXT_MAX + 1];

		/* without messages, waiters poll */
		text_of_node(error, sizeof(error), reply->str, reply->len);
		node_fail(node, NODE_REFUSED, error, now_us);
		return;
	}
	if (node->pinged_us != 0 && is_pong(reply))
		node->pinged_us = 0;
	else if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
			 element[0]->type != REDIS_REPLY_STRING || element[1]->type != REDIS_REPLY_STRING)
		node_fail(node, NODE_BACKING_OFF, "it answered without being asked", now_us);
	else if (strcmp(element[0]->str, "message") == 0 && element[2]->type == REDIS_REPLY_STRING)
		node_handler->heard(node, element[1]->str, element[1]->len, element[2]->str,
							element[2]->len, now_us);
	else if (strcmp(element[0]->str, "subscribe") == 0)
		node_handler->subscribed(node, element[1]->str, element[1]->len, now_us);
}

/* The answer to PING; an array on a connection with subscriptions. */
static bool
is_pong(const redisReply *reply)
{
	return reply->type == REDIS_REPLY_STATUS ||
		   (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2);
}
