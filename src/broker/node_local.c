/*
 * node_local.c
 *		The node inside the server; see node_local.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "lib/ilist.h"
#include "storage/dsm.h"
#include "utils/memutils.h"

#include "broker/node_internal.h"
#include "broker/node_local.h"
#include "protocol/local_names.h"
#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/text.h"

/*
 * Size of the node's table of names: for each lock that this server can hold, one name, and one
 * more for a lock with permits or for the counter of another name.
 */
#define NAMES (2 * redlock_max_locks + 256)

/* The notes of last runs follow the names. */
#define NOTES_AT MAXALIGN(local_names_bytes(NAMES))
#define MEMORY_BYTES (NOTES_AT + sizeof(local_notes))

/* All leases are this server's. */
#define OWN_HOST 1

/* A message, or the confirmation of a subscription. */
typedef struct Message
{
	slist_node next;
	bool subscribed;
	size_t channel_len;
	size_t len;
	char *text;
	char channel[FLEXIBLE_ARRAY_MEMBER];
} Message;

static local_names *names = NULL;
static slist_head messages = SLIST_STATIC_INIT(messages); /* the last one first */
static RedisNode *subscriber = NULL;                      /* NULL: nobody listens */

static bool attach(char *error, size_t size);
static dsm_segment *map_memory(dsm_handle handle, char *error, size_t size);
static void describe_self(RedisNode *node);
static void execute(const RedisNode *node, const ScriptCommand *command, ScriptAnswer *answer);
static void note_holder(local_name *name, const local_command *what, const char *holder);
static void write_answer(const ScriptCommand *command, const local_answer *from,
						 ScriptAnswer *answer);
static void describe_holder(const ScriptCommand *command, const local_answer *from,
							ScriptAnswer *answer);
static void fail(ScriptAnswer *answer, const char *text);
static void publish(const ScriptCommand *command, const local_answer *answer, int permit,
					size_t lock_len);
static void add_message(bool subscribed, const char *channel, size_t channel_len, const char *text,
						size_t len);
static bool deliver(RedisNode *node, int64 now_us);

/*
 * The node's begin
 */

/* Takes the place of connecting and of the handshake. */
void
node_local_begin(RedisNode *node, int64 now_us)
{
	char error[SCRIPT_TEXT_MAX + 1];

	node->began_us = node->heard_us = now_us;
	if (node_is_subscriber(node))
		subscriber = node;
	else
	{
		bool is_new = node->guard->run_id[0] == '\0';

		if (!attach(error, sizeof(error)))
		{
			node_fail(node, NODE_BACKING_OFF, error, now_us);
			return;
		}
		describe_self(node);
		node_ask_guard(node);
		if (is_new)
			ereport(LOG, (errmsg("redlock.nodes is local: no lock reaches beyond this server")));
	}
	node->state = NODE_HANDSHAKE; /* as other nodes before their duty */
	node->failures = 0;
	node->flush_wanted = true; /* another pass: the broker waits for its first look at the nodes */
	node_begin_duty(node, now_us);
}

/*
 * Attaches the former broker's memory, or makes new memory.  Returns false without memory: `error`
 * has the reason.
 */
static bool
attach(char *error, size_t size)
{
	dsm_segment *segment = NULL;
	bool is_new = false;

	if (names != NULL)
		return true;
	strlcpy(error, "the server has no shared memory for it", size);
	if (lease_table->local_names != DSM_HANDLE_INVALID)
		segment = map_memory(lease_table->local_names, error, size);
	if (segment == NULL)
	{
		segment = map_memory(DSM_HANDLE_INVALID, error, size);
		is_new = true;
	}
	if (segment == NULL)
		return false;
	dsm_pin_mapping(segment);
	names = dsm_segment_address(segment);
	if (!is_new)
		return true;
	memset(names, 0, MEMORY_BYTES);
	local_names_init(names, NAMES, pg_prng_uint32(&pg_global_prng_state));
	names->began_us = redlock_wall_clock_us();
	names->clock_us = redlock_clock_us();
	dsm_pin_segment(segment);
	lease_table->local_names = dsm_segment_handle(segment);
	return true;
}

/*
 * Attaches this segment, or makes one.  Returns NULL, with the reason in `error`, if that fails:
 * memory may be short, or the system has removed the segment (RemoveIPC of systemd).  Logs nothing:
 * the broker tries again each second, and the message of PostgreSQL names another segment each
 * time.
 */
static dsm_segment *
map_memory(dsm_handle handle, char *error, size_t size)
{
	dsm_segment *volatile segment = NULL;
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		if (handle != DSM_HANDLE_INVALID)
			segment = dsm_attach(handle);
		else
			segment = dsm_create(MEMORY_BYTES, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		ErrorData *data;

		MemoryContextSwitchTo(context);
		data = CopyErrorData();
		FlushErrorState();
		snprintf(error, size, "the server has no shared memory for it: %s",
				 strerror(data->saved_errno));
		FreeErrorData(data);
	}
	PG_END_TRY();
	return segment;
}

local_names *
node_local_names(void)
{
	return names;
}

local_notes *
node_local_notes(void)
{
	return (local_notes *) ((char *) names + NOTES_AT);
}

/*
 * The node's clock begins as the wall clock when the memory begins, and goes on as the clock of the
 * leases.  So a step of the wall clock ends no key too early.  Proposals use the same clock: tokens
 * of this node need no other order.
 */
int64
node_local_now_us(void)
{
	return names->began_us + redlock_clock_us() - names->clock_us;
}

/* As a node answers in the handshake. */
static void
describe_self(RedisNode *node)
{
	GuardFacts *facts = &node->facts;
	int64 now_us = node_local_now_us();
	uint64 fresh = pg_prng_uint64(&pg_global_prng_state) | 1;

	memset(facts, 0, sizeof(*facts));
	switch (local_marker(&names->mark, now_us, fresh, node->guard->marker[0] != '\0',
						 redlock_max_ttl_ms))
	{
		case LOCAL_MARKED_FRESH:
			facts->loss = GUARD_FRESH;
			break;
		case LOCAL_MARKED_LOST:
			facts->loss = GUARD_LOST_LATELY;
			break;
		case LOCAL_MARKED_LONG_LOST:
			facts->loss = GUARD_LOST_ONCE;
			break;
	}
	node_local_marker(facts->marker, sizeof(facts->marker));
	strlcpy(facts->run_id, facts->marker, sizeof(facts->run_id));
	facts->uptime_s = (int32) ((now_us - names->began_us) / 1000000);
}

void
node_local_marker(char *text, size_t size)
{
	snprintf(text, size, "%016" PRIx64, names->mark.text);
}

/*
 * Commands
 */

void
node_local_send(RedisNode *node, const ScriptCommand *command, const InFlight *sent)
{
	uint32 at = node->in_flight_tail++ % NODE_IN_FLIGHT_MAX;

	node->in_flight[at] = *sent;
	node->in_flight[at].by_text = false;
	node->in_flight[at].check = NODE_NO_CHECK;
	node->in_flight[at].last = true;
	node->in_flight[at].call = 0;
	execute(node, command, &node->answer[at]);
}

static void
execute(const RedisNode *node, const ScriptCommand *command, ScriptAnswer *answer)
{
	static local_data nothing;
	local_command what = {.op = command->op,
						  .attempt = command->core.attempt,
						  .host = OWN_HOST,
						  .shared = command->shared,
						  .may_idle = command->may_idle,
						  .ttl_ms = command->ttl_ms,
						  .counter = command->core.counter,
						  .token = Max(command->core.token, command->core.counter),
						  .waited_us = command->waited_us,
						  .permits = command->permits};
	size_t lock_len = permits_name_len(command->key, command->key_len);
	NodeLocalPermits permits = {command->key, lock_len, node_local_now_us()};
	local_memory memory = LOCAL_HAS_ROOM;
	local_answer reply;
	local_name *name;
	local_name *lock = NULL;
	char marker[LUA_MARKER_MAX + 1];

	memcpy(&what.secret, command->secret, sizeof(what.secret));
	what.says_permits = command->permits;
	what.proposal = permits.now_us;
	node_local_marker(marker, sizeof(marker));
	what.marker = strcmp(marker, node->guard->marker) == 0 ? names->mark.text : 0;
	what.permit = permits_number(command->key, command->key_len);
	what.find_permit = node_local_find_permit;
	what.names = &permits;

	name = local_names_begin(names, command->key, command->key_len, permits.now_us);
	if (name != NULL && what.permit > 0)
		lock = local_names_begin(names, command->key, lock_len, permits.now_us);
	if ((name == NULL || (what.permit > 0 && lock == NULL)) &&
		(command->op == CORE_OP_ACQUIRE || command->op == CORE_OP_RENEW))
		fail(answer, "OOM in the node: it knows as many names as it can");
	else
	{
		memset(&nothing, 0, sizeof(nothing));
		if (what.permit > 0)
			what.lock_data = lock != NULL ? &lock->data : &nothing;
		local_execute(name != NULL ? &name->data : &nothing, &names->mark, permits.now_us, &what,
					  &memory, &reply);
		write_answer(command, &reply, answer);
		publish(command, &reply, what.permit, lock_len);
		note_holder(name, &what, command->holder);
		note_holder(lock, &what, command->holder);
	}
	if (lock != NULL)
		local_names_end(names, lock);
	if (name != NULL)
		local_names_end(names, name);
}

const local_data *
node_local_find_permit(const void *permits, int permit)
{
	const NodeLocalPermits *of = permits;
	char key[LOCAL_KEY_MAX];
	size_t len = permits_name(key, of->key, of->key_len, permit);
	const local_name *name = local_names_find(names, key, len, of->now_us);

	return name != NULL && local_has_key(&name->data) ? &name->data : NULL;
}

/* The text of a value is that of its request. */
static void
note_holder(local_name *name, const local_command *what, const char *holder)
{
	if (name != NULL && local_is(name->data.secret, what->secret))
		strlcpy(name->holder, holder, sizeof(name->holder));
}

/*
 * Answers
 */

static void
write_answer(const ScriptCommand *command, const local_answer *from, ScriptAnswer *answer)
{
	memset(answer, 0, offsetof(ScriptAnswer, text));
	answer->text[0] = '\0';
	answer->reply = from->reply;
	answer->token = from->token;
	switch (from->error)
	{
		case LOCAL_OK:
			if (command->op == CORE_OP_ACQUIRE && from->reply == CORE_REPLY_NO)
				describe_holder(command, from, answer);
			break;
		case LOCAL_FORGOT:
			fail(answer, "its data was lost; connecting again");
			answer->forgot = true;
			break;
		case LOCAL_AHEAD:
			fail(answer, "AHEAD of all time: the counter");
			break;
		case LOCAL_FAILED:
			fail(answer, "OOM in the node: too many readers");
			break;
	}
}

/* A refused acquire: whose key, or barrier, is in the way. */
static void
describe_holder(const ScriptCommand *command, const local_answer *from, ScriptAnswer *answer)
{
	const local_name *held = (const local_name *) from->held;
	const char *before = "";

	answer->busy_ms = Min(Max(from->busy_ms, 0), PG_INT32_MAX);
	answer->holder = from->shared
						 ? SCRIPT_READERS
						 : hash_bytes((const unsigned char *) &from->holder, sizeof(from->holder));
	answer->ours = true;
	answer->kept = held != NULL && held->data.kept;
	answer->may_idle = from->may_idle;
	answer->by_readers = from->shared;
	answer->free_permit = from->free_permit;
	if (!answer->kept)
		answer->host = command->host;
	if (from->shared)
		before = LOCK_READERS;
	snprintf(answer->text, sizeof(answer->text), "%s%s", before,
			 held == NULL ? LUA_WAITED_FOR "a session of this server" : held->holder);
}

static void
fail(ScriptAnswer *answer, const char *text)
{
	memset(answer, 0, offsetof(ScriptAnswer, text));
	answer->reply = CORE_REPLY_ERROR;
	strlcpy(answer->text, text, sizeof(answer->text));
}

bool
node_local_flush(RedisNode *node, int64 now_us)
{
	uint32 count;
	bool forgot = false;
	bool has_begun = node->flush_wanted;

	node->flush_wanted = false;
	if (node_is_subscriber(node))
		return deliver(node, now_us) && !has_begun;
	if (!node_is_on_duty(node))
		return true;
	count = node_in_flight(node);
	for (uint32 i = 0; i < count; i++)
	{
		uint32 at = node->in_flight_head++ % NODE_IN_FLIGHT_MAX;
		InFlight sent = node->in_flight[at];
		ScriptAnswer answer = node->answer[at];

		forgot = forgot || answer.forgot;
		node_handler->answered(node, &sent, &answer, now_us);
	}
	node->heard_us = now_us;
	if (node_in_flight(node) == 0)
		node->in_flight_head = node->in_flight_tail = 0; /* the same memory again */
	if (forgot)
		node_fail(node, NODE_BACKING_OFF, "its data was lost; connecting again", now_us);
	return count == 0 && !has_begun;
}

/*
 * Messages
 */

/* Publishes what the script publishes, on the same channels. */
static void
publish(const ScriptCommand *command, const local_answer *answer, int permit, size_t lock_len)
{
	char text[SCRIPT_COMMAND_MAX];
	char channel[Max(SCRIPT_CHANNEL_SIZE, LOCAL_KEY_MAX)];
	size_t channel_len;

	switch (answer->tells)
	{
		case LOCAL_TELLS_NOTHING:
			break;
		case LOCAL_TELLS_FREE:
			node_local_publish(command->key, command->key_len, text,
							   script_write_free(text, command));
			if (permit == 0 || !answer->tells_queue)
				break;
			channel_len = permits_name(channel, command->key, lock_len, PERMITS_QUEUE);
			node_local_publish(channel, channel_len, text, script_write_permit(text, permit));
			break;
		case LOCAL_TELLS_WANT:
			/* all readers are this host's: one message */
			channel_len = script_host_channel(command->host, channel);
			node_local_publish(channel, channel_len, text,
							   script_write_want(text, command->key, command->key_len,
												 command->host, command->waited_us, false));
			break;
	}
}

void
node_local_publish(const char *channel, size_t channel_len, const char *text, size_t len)
{
	add_message(false, channel, channel_len, text, len);
}

void
node_local_subscribe(RedisNode *node, const char *channel, size_t len)
{
	Assert(node == subscriber);
	add_message(true, channel, len, "", 0);
}

static void
add_message(bool subscribed, const char *channel, size_t channel_len, const char *text, size_t len)
{
	Message *message;

	if (subscriber == NULL || !subscriber->url.is_local || subscriber->state != NODE_READY)
		return;
	message = MemoryContextAlloc(TopMemoryContext,
								 offsetof(Message, channel) + channel_len + 1 + len + 1);
	message->subscribed = subscribed;
	message->channel_len = channel_len;
	message->len = len;
	message->text = message->channel + channel_len + 1;
	memcpy(message->channel, channel, channel_len);
	message->channel[channel_len] = '\0';
	memcpy(message->text, text, len);
	message->text[len] = '\0';
	slist_push_head(&messages, &message->next);
}

/* Delivers the messages that are there, in their order.  Returns true if there were none. */
static bool
deliver(RedisNode *node, int64 now_us)
{
	slist_head due = SLIST_STATIC_INIT(due);
	bool none = slist_is_empty(&messages);

	while (!slist_is_empty(&messages))
		slist_push_head(&due, slist_pop_head_node(&messages));
	while (!slist_is_empty(&due))
	{
		Message *message = slist_container(Message, next, slist_pop_head_node(&due));

		if (node->state != NODE_READY)
			; /* closed by an earlier message: as a broken connection loses messages */
		else if (message->subscribed)
			node_handler->subscribed(node, message->channel, message->channel_len, now_us);
		else
			node_handler->heard(node, message->channel, message->channel_len, message->text,
								message->len, now_us);
		pfree(message);
	}
	return none;
}
