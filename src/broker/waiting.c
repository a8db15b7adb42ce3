/*
 * waiting.c
 *		The hosts that wait for a lock; see waiting.h.
 *
 * The question goes to the channels of the lock and of its queue for permits, where waiting hosts
 * listen, and to the hosts that hold the lock, where sessions may wait at the gate.  A question
 * ends when a quorum of nodes is complete, or when the other nodes have failed, and at most after
 * redlock.node_timeout: a host whose messages take longer cannot acquire a lock either.
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "broker/members.h"
#include "broker/waiting.h"
#include "protocol/permits.h"
#include "shared/guc.h"
#include "shared/inspect_queue.h"
#include "shared/lease.h"
#include "shared/text.h"
#include "shared/waiting_here.h"

/* The number of a call tells the place, and the question modulo ROUNDS. */
#define ROUNDS (1 << 20)

/* A question under way; by place. */
typedef struct Asking
{
	bool in_use;
	int round;
	uint64 number;  /* of the message */
	int64 until_us; /* later answers do not count */
	WaitingTally tally[CORE_NODES_MAX];
} Asking;

static Asking asking[INSPECT_PLACES];
static WaitingAnswered answered;

static void ask_by(int place, RedisNode *node, const char *text, size_t len, int64 now_us);
static void publish(int call, RedisNode *node, const char *channel, size_t channel_len,
					const char *text, size_t len, int64 now_us);
static int find(uint64 number);
static bool is_complete(int place);
static void end_if_over(int place);
static void end(int place);

void
waiting_ask(int place, int64 now_us)
{
	Asking *own = &asking[place];
	InspectAnswer *answer = inspect_queue_answer(place);
	const InspectQuestion *question = inspect_queue_question(place);
	char text[WAITING_QUESTION_SIZE];
	size_t len;

	memset(answer, 0, sizeof(*answer));
	answer->lists = members_lists();
	memset(own->tally, 0, sizeof(own->tally));
	own->in_use = true;
	own->round = (own->round + 1) % ROUNDS;
	own->number = pg_prng_uint64(&pg_global_prng_state);
	own->until_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
	len = waiting_write_question(text, &(WaitingQuestion){question->key, question->key_len,
														  lease_table->host_id, own->number});
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && !node_is_local(node_at(i)) &&
			node_at(i + NODE_SUBSCRIBER)->state == NODE_READY)
			ask_by(place, node_at(i), text, len, now_us);
	end_if_over(place);
}

static void
ask_by(int place, RedisNode *node, const char *text, size_t len, int64 now_us)
{
	const InspectQuestion *question = inspect_queue_question(place);
	int call = WAITING_CALLS + asking[place].round * INSPECT_PLACES + place;
	char channel[LOCK_PREFIX_MAX + LOCK_NAME_MAX + PERMITS_SUFFIX_MAX + 1];

	publish(call, node, question->key, question->key_len, text, len, now_us);
	publish(call, node, channel,
			permits_name(channel, question->key, question->key_len, PERMITS_QUEUE), text, len,
			now_us);
	for (int i = 0; i < question->holders; i++)
		if (question->holder[i] != lease_table->host_id)
			publish(call, node, channel, script_host_channel(question->holder[i], channel), text,
					len, now_us);
}

static void
publish(int call, RedisNode *node, const char *channel, size_t channel_len, const char *text,
		size_t len, int64 now_us)
{
	WaitingTally *tally = &asking[(call - WAITING_CALLS) % INSPECT_PLACES].tally[node->index];
	const char *argv[] = {"PUBLISH", channel, text};
	size_t argvlen[] = {7, channel_len, len};

	if (!node_can_send(node))
	{
		tally->failed = true;
		return;
	}
	tally->asked = true;
	tally->owed++;
	node_call(node, call, lengthof(argv), argv, argvlen, now_us);
}

int64
waiting_on_time(int64 looked_us)
{
	int64 wake_at_us = PG_INT64_MAX;

	for (int i = 0; i < INSPECT_PLACES; i++)
	{
		if (asking[i].in_use && looked_us >= asking[i].until_us)
			end(i);
		if (asking[i].in_use)
			wake_at_us = Min(wake_at_us, asking[i].until_us);
	}
	return wake_at_us;
}

void
waiting_hear_node(const RedisNode *node, int call, const redisReply *reply)
{
	int place = (call - WAITING_CALLS) % INSPECT_PLACES;
	WaitingTally *tally = &asking[place].tally[node->index];
	Inspected *at = &inspect_queue_answer(place)->node[node->index];

	if (!asking[place].in_use || asking[place].round != (call - WAITING_CALLS) / INSPECT_PLACES)
		return;
	tally->owed--;
	if (reply != NULL && reply->type == REDIS_REPLY_INTEGER)
	{
		tally->subscribers += Max(Min(reply->integer, PG_INT32_MAX), 0);
		if (!tally->failed)
			at->kind = INSPECTED_NONE;
	}
	else
	{
		tally->failed = true;
		at->kind = reply != NULL ? INSPECTED_ERROR : INSPECTED_SILENT;
		if (reply != NULL && reply->type == REDIS_REPLY_ERROR)
			text_of_node(at->error, sizeof(at->error), reply->str, reply->len);
		else
			strlcpy(at->error, "reply of an unexpected type", sizeof(at->error));
	}
	end_if_over(place);
}

void
waiting_hear_host(const RedisNode *subscriber, uint64 number, const WaitingHost *host)
{
	int place = find(number);

	if (place < 0)
		return;
	asking[place].tally[subscriber->index - NODE_SUBSCRIBER].answers++;
	waiting_add(&inspect_queue_answer(place)->waiting, host);
	end_if_over(place);
}

/* The asking session knows the sessions of its own server: the broker only counts itself. */
void
waiting_answer(const RedisNode *subscriber, const WaitingQuestion *question, int64 now_us)
{
	RedisNode *node = node_at(subscriber->index - NODE_SUBSCRIBER);
	WaitingHost host = {.host = lease_table->host_id};
	char channel[SCRIPT_CHANNEL_SIZE];
	char text[WAITING_ANSWER_SIZE];
	const char *argv[] = {"PUBLISH", channel, text};
	size_t argvlen[] = {7, script_host_channel(question->host, channel), 0};

	if (question->host == lease_table->host_id)
	{
		waiting_hear_host(subscriber, question->number, &host);
		return;
	}
	if (node_is_local(node) || !node_can_send(node) ||
		!waiting_may_answer(&answered, question->number, node->index, now_us))
		return;
	waiting_here(question->key, question->key_len, &host);
	argvlen[2] = waiting_write_answer(text, question->number, &host);
	node_call(node, NODE_SAID, lengthof(argv), argv, argvlen, now_us);
}

/* Returns the place of the question with this number, or -1. */
static int
find(uint64 number)
{
	for (int i = 0; i < INSPECT_PLACES; i++)
		if (asking[i].in_use && asking[i].number == number)
			return i;
	return -1;
}

static bool
is_complete(int place)
{
	return core_has_quorum(inspect_queue_answer(place)->lists,
						   waiting_complete(asking[place].tally));
}

static void
end_if_over(int place)
{
	const WaitingTally *tally = asking[place].tally;

	if (is_complete(place) ||
		(waiting_complete(tally) | waiting_failed(tally)) == CORE_BIT(CORE_NODES_MAX) - 1)
		end(place);
}

static void
end(int place)
{
	InspectAnswer *answer = inspect_queue_answer(place);

	asking[place].in_use = false;
	answer->complete = is_complete(place);
	answer->missing = waiting_missing(asking[place].tally);
	inspect_queue_finish(place);
}
