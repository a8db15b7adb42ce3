/*
 * inspector.c
 *		Questions of sessions about locks; see inspector.h.
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "broker/inspector.h"
#include "broker/members.h"
#include "broker/node_local.h"
#include "broker/subscription.h"
#include "broker/waiting.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/inspect_queue.h"
#include "shared/text.h"

/* The calls that load a script; the answer is the script's hash. */
#define CALL_LOAD INSPECTOR_CALLS
#define CALL_FIRST (INSPECTOR_CALLS + INSPECT_KINDS)

/*
 * The number of a call contains the place, the question modulo ROUNDS, to recognize late answers,
 * and whether the script went as text.
 */
#define ROUNDS (1 << 20)

/* A question under way; by place. */
typedef struct Out
{
	bool in_use;
	int round;
	core_mask waiting;  /* nodes that owe an answer */
	core_mask asked_up; /* nodes that were READY at the send */
	int64 until_us;     /* later answers do not count */
} Out;

static Out out[INSPECT_PLACES];

/* The scripts, by InspectKind; and the hashes that each node reports: a node may lie. */
static const char *const script[] = {
	[INSPECT_LOCK] = lua_inspect_script,      [INSPECT_ASK] = lua_inspect_script,
	[INSPECT_FORCE] = lua_force_script,       [INSPECT_SCAN] = lua_scan_script,
	[INSPECT_MANY] = lua_inspect_many_script, [INSPECT_RUN] = lua_run_note_script};
static char sha[lengthof(script)][CORE_NODES_MAX][SCRIPT_SHA_SIZE]; /* empty: unknown */

static void begin(int place, int64 now_us);
static void send_question(int place, RedisNode *node, bool by_text, int64 now_us);
static void add_argument(const char **argv, size_t *argvlen, int *argc, const char *text,
						 size_t len);
static void note_forgetting(int place, const RedisNode *node, Inspected *at);
static void end_if_done(int place, int64 now_us);
static void log_lost_note(int place);
static void tell_holders(int place, int64 now_us);
static bool read_answer(Inspected *at, const redisReply *reply, const InspectQuestion *question);
static bool read_reply(int place, int index, const redisReply *reply);
static bool read_keys(InspectAnswer *answer, int index, const redisReply *reply);
static bool read_records(InspectAnswer *answer, int index, const redisReply *reply);
static bool keep_text(int index, const redisReply *reply);
static void read_error(Inspected *at, const redisReply *reply);
static bool read_note(InspectAnswer *answer, int index, const redisReply *reply);
static bool is_text(const redisReply *reply, size_t most);

void
inspector_init(void)
{
	inspect_queue_adopt();
}

int64
inspector_on_time(bool may_take, int64 now_us, int64 looked_us)
{
	int64 wake_at_us = PG_INT64_MAX;
	int taken = 0;
	int place;

	/* questions that are answered at once could come without end */
	while (may_take && taken < INSPECT_PLACES && (place = inspect_queue_take()) >= 0)
	{
		taken++;
		if (inspect_queue_question(place)->kind == INSPECT_WAITING)
			waiting_ask(place, now_us);
		else
			begin(place, now_us);
	}
	if (taken == INSPECT_PLACES)
		wake_at_us = now_us;
	for (int i = 0; i < INSPECT_PLACES; i++)
	{
		if (out[i].in_use && looked_us >= out[i].until_us)
		{
			out[i].waiting = 0;
			end_if_done(i, now_us);
		}
		if (out[i].in_use)
			wake_at_us = Min(wake_at_us, out[i].until_us);
	}
	return wake_at_us;
}

static void
begin(int place, int64 now_us)
{
	InspectAnswer *answer = inspect_queue_answer(place);
	const InspectQuestion *question = inspect_queue_question(place);
	InspectKind kind = question->kind;
	bool is_list = kind == INSPECT_SCAN || kind == INSPECT_MANY;
	core_mask asked = members() & (is_list ? question->nodes : PG_UINT32_MAX);

	memset(answer, 0, sizeof(*answer));
	answer->lists = members_lists();
	out[place].in_use = true;
	out[place].round = (out[place].round + 1) % ROUNDS;
	out[place].waiting = out[place].asked_up = 0;
	out[place].until_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(asked & CORE_BIT(i)) || !node_can_send(node_at(i)))
			continue;
		if (node_at(i)->state == NODE_READY)
			out[place].asked_up |= CORE_BIT(i);
		if (node_is_local(node_at(i)))
		{
			node_local_inspect(question, answer, inspect_queue_texts(), i);
			note_forgetting(place, node_at(i), &answer->node[i]);
		}
		else
		{
			bool by_text = sha[kind][i][0] == '\0';

			out[place].waiting |= CORE_BIT(i);
			send_question(place, node_at(i), by_text, now_us);
			if (by_text && node_can_send(node_at(i)))
				node_call(node_at(i), CALL_LOAD + kind, 3,
						  (const char *[]){"SCRIPT", "LOAD", script[kind]}, NULL, now_us);
		}
	}
	end_if_done(place, now_us);
}

static void
send_question(int place, RedisNode *node, bool by_text, int64 now_us)
{
	const InspectQuestion *question = inspect_queue_question(place);
	InspectKind kind = question->kind;
	char number[32];
	const char *argv[7] = {by_text ? "EVAL" : "EVALSHA",
						   by_text ? script[kind] : sha[kind][node->index], "0"};
	size_t len[lengthof(argv)] = {strlen(argv[0]), strlen(argv[1]), 1};
	int call = CALL_FIRST + 2 * (out[place].round * INSPECT_PLACES + place) + by_text;
	int argc = 3;

	if (kind == INSPECT_SCAN)
		add_argument(argv, len, &argc, question->value, question->value_len);
	if (kind == INSPECT_RUN)
		add_argument(argv, len, &argc, redlock_key_prefix, strlen(redlock_key_prefix));
	if (kind == INSPECT_MANY)
		add_argument(argv, len, &argc, inspect_queue_texts()->keys.text,
					 inspect_queue_texts()->keys.len);
	else
		add_argument(argv, len, &argc, question->key, question->key_len);
	if (kind == INSPECT_FORCE)
	{
		snprintf(number, sizeof(number), INT64_FORMAT, question->least);
		add_argument(argv, len, &argc, number, strlen(number));
		add_argument(argv, len, &argc, question->value, question->value_len);
	}
	if (kind == INSPECT_RUN)
	{
		snprintf(number, sizeof(number), INT64_FORMAT, redlock_last_run_keep_s * INT64CONST(1000));
		add_argument(argv, len, &argc, question->value, question->value_len);
		add_argument(argv, len, &argc, number, strlen(number));
	}
	node_call(node, call, argc, argv, len, now_us);
}

static void
add_argument(const char **argv, size_t *argvlen, int *argc, const char *text, size_t len)
{
	argv[*argc] = text;
	argvlen[(*argc)++] = len;
}

void
inspector_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us)
{
	bool by_text = (call - CALL_FIRST) % 2;
	int number = (call - CALL_FIRST) / 2;
	int place = number % INSPECT_PLACES;
	InspectKind kind;
	Inspected *at;

	if (call < CALL_FIRST)
	{
		if (reply != NULL && reply->type == REDIS_REPLY_STRING && reply->len == SCRIPT_SHA_SIZE - 1)
			strlcpy(sha[call - CALL_LOAD][node->index], reply->str, SCRIPT_SHA_SIZE);
		return;
	}
	if (!out[place].in_use || out[place].round != number / INSPECT_PLACES ||
		!(out[place].waiting & CORE_BIT(node->index)))
		return;
	kind = inspect_queue_question(place)->kind;
	if (reply != NULL && reply->type == REDIS_REPLY_ERROR && !by_text &&
		strncmp(reply->str, "NOSCRIPT", 8) == 0 && node_can_send(node))
	{
		send_question(place, node, true, now_us);
		return;
	}
	out[place].waiting &= ~CORE_BIT(node->index);
	at = &inspect_queue_answer(place)->node[node->index];
	if (reply != NULL && !read_reply(place, node->index, reply))
	{
		sha[kind][node->index][0] = '\0'; /* may be the hash of another script */
		at->kind = INSPECTED_ERROR;
		if (at->error[0] == '\0')
			strlcpy(at->error, "reply of an unexpected type", sizeof(at->error));
		node_explain_refusal(reply,
							 kind == INSPECT_SCAN  ? "+scan"
							 : kind == INSPECT_RUN ? node->lacks_for_hosts
												   : node->lacks_for_locks,
							 at->error);
	}
	note_forgetting(place, node, at);
	end_if_done(place, now_us);
}

/*
 * Since the handshake the node may have restarted, or lost its data.  A node can execute a
 * command in a quarantine and answer after the quarantine's end, so the state at the send counts,
 * too.
 */
static void
note_forgetting(int place, const RedisNode *node, Inspected *at)
{
	bool is_ready = node->state == NODE_READY && (out[place].asked_up & CORE_BIT(node->index));

	at->may_have_forgotten = inspect_queue_question(place)->kind != INSPECT_RUN &&
							 (!is_ready || strcmp(at->marker, node->guard->marker) != 0);
}

static void
end_if_done(int place, int64 now_us)
{
	if (out[place].waiting != 0)
		return;
	out[place].in_use = false;
	switch (inspect_queue_question(place)->kind)
	{
		case INSPECT_ASK:
		case INSPECT_FORCE:
			tell_holders(place, now_us);
			break;
		case INSPECT_RUN:
			if (inspect_is_order(inspect_queue_question(place)))
				log_lost_note(place);
			break;
		case INSPECT_LOCK:
		case INSPECT_SCAN:
		case INSPECT_MANY:
		case INSPECT_WAITING: /* waiting.c ends these */
			break;
	}
	inspect_queue_finish(place);
}

/* Logs a note that no quorum of nodes has taken. */
static void
log_lost_note(int place)
{
	const InspectQuestion *question = inspect_queue_question(place);
	const InspectAnswer *answer = inspect_queue_answer(place);
	Inspection inspection;
	char *faults;

	inspection_judge(&inspection, answer->lists, answer->node, false);
	if (inspection.state != INSPECTION_NO_QUORUM)
		return;
	faults = inspect_faults(answer);
	ereport(LOG, (errmsg("no quorum of redlock nodes has noted the last run of \"%.*s\"",
						 question->key_len, question->key),
				  faults[0] != '\0' ? errdetail("No usable answer from: %s.", faults)
									: errdetail("No list of nodes is in force."),
				  errhint("See redlock_runs for this run: redlock_last_run may tell of an earlier "
						  "run.")));
	pfree(faults);
}

/*
 * After a forced release: tells the hosts of the deleted keys; these hosts renew at once, in vain.
 * After an ask: tells the hosts with keys that an operator asks for the release.
 */
static void
tell_holders(int place, int64 now_us)
{
	const InspectQuestion *question = inspect_queue_question(place);
	bool force = question->kind == INSPECT_FORCE;
	char text[SCRIPT_WANT_MAX];
	size_t len = force ? script_write_forced(text, question->key, question->key_len)
					   : script_write_ask(text, question->key, question->key_len,
										  pg_prng_uint64(&pg_global_prng_state) | 1);
	uint64 host[INSPECTION_HOSTS_MAX];
	int count = inspection_hosts(inspect_queue_answer(place)->node, force, host);

	for (int i = 0; i < count; i++)
		subscription_say_by_all(host[i], text, len, now_us);
}

/* Returns false if the reply is an error, or malformed. */
static bool
read_reply(int place, int index, const redisReply *reply)
{
	InspectAnswer *answer = inspect_queue_answer(place);
	InspectKind kind = inspect_queue_question(place)->kind;

	if (kind == INSPECT_SCAN)
		return read_keys(answer, index, reply);
	if (kind == INSPECT_MANY)
		return read_records(answer, index, reply);
	if (kind == INSPECT_RUN)
		return read_note(answer, index, reply);
	return read_answer(&answer->node[index], reply, inspect_queue_question(place));
}

/* Reads a note, and keeps the note of the newest run.  A malformed note counts as no note. */
static bool
read_note(InspectAnswer *answer, int index, const redisReply *reply)
{
	Inspected *at = &answer->node[index];
	RunNote note;
	int newer;

	read_error(at, reply);
	if (!is_text(reply, LUA_NOTE_MAX))
		return false;
	at->kind = INSPECTED_NONE;
	if (!run_note_read(&note, reply->str, reply->len, redlock_wall_clock_us()))
		return true;
	newer = answer->noted == 0 ? 1 : run_note_compare(&note, &answer->last_run);
	if (newer > 0)
	{
		answer->last_run = note;
		answer->noted = 0;
	}
	if (newer >= 0)
		answer->noted |= CORE_BIT(index);
	return true;
}

/* Reads the keys of one step.  Returns false if the answer is an error, or malformed. */
static bool
read_keys(InspectAnswer *answer, int index, const redisReply *reply)
{
	read_error(&answer->node[index], reply);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
		!is_text(reply->element[0], sizeof(answer->cursor) - 1) ||
		!keep_text(index, reply->element[1]))
		return false;
	answer->node[index].kind = INSPECTED_NONE;
	strlcpy(answer->cursor, reply->element[0]->str, sizeof(answer->cursor));
	return true;
}

/* The session reads the records: the broker has other work. */
static bool
read_records(InspectAnswer *answer, int index, const redisReply *reply)
{
	Inspected *at = &answer->node[index];

	read_error(at, reply);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
		!is_text(reply->element[0], LUA_MARKER_MAX) || !keep_text(index, reply->element[1]))
		return false;
	at->kind = INSPECTED_NONE;
	strlcpy(at->marker, reply->element[0]->str, sizeof(at->marker));
	return true;
}

/* Keeps a text for the listing session.  Returns false if the reply is no text that fits. */
static bool
keep_text(int index, const redisReply *reply)
{
	InspectText *said = &inspect_queue_texts()->said[index];

	if (!is_text(reply, sizeof(said->text)))
		return false;
	said->len = reply->len;
	memcpy(said->text, reply->str, reply->len);
	return true;
}

static void
read_error(Inspected *at, const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		text_of_node(at->error, sizeof(at->error), reply->str, reply->len);
}

/* Reads the answer about one key.  Returns false for an error, or a malformed answer. */
static bool
read_answer(Inspected *at, const redisReply *reply, const InspectQuestion *question)
{
	bool force = question->kind == INSPECT_FORCE;
	const redisReply *lock = reply;
	redisReply **part;
	int64 kind;

	if (reply->type == REDIS_REPLY_ARRAY && reply->elements == (force ? 4 : 2) &&
		is_text(reply->element[0], LUA_MARKER_MAX))
	{
		strlcpy(at->marker, reply->element[0]->str, sizeof(at->marker));
		lock = reply->element[1];
	}
	if (lock->type == REDIS_REPLY_ERROR)
	{
		read_error(at, lock);
		return false;
	}
	part = lock->element;
	if (force && lock != reply &&
		(reply->element[2]->type != REDIS_REPLY_INTEGER ||
		 !is_text(reply->element[3], LUA_COUNTER_DIGITS)))
		return false;
	if (lock == reply || lock->type != REDIS_REPLY_ARRAY || lock->elements != 7 ||
		part[0]->type != REDIS_REPLY_INTEGER || !is_text(part[1], LUA_HELD_MAX + 32) ||
		part[2]->type != REDIS_REPLY_INTEGER || !is_text(part[3], LUA_HELD_MAX) ||
		part[4]->type != REDIS_REPLY_INTEGER ||
		!is_text(part[5], LUA_READERS_ASKED * LOCK_HOST_DIGITS) || !is_text(part[6], PERMITS_MAX))
		return false;
	kind = part[0]->integer;
	at->kind = kind == LUA_KEY_NONE     ? INSPECTED_NONE
			   : kind == LUA_KEY_STRING ? INSPECTED_STRING
										: INSPECTED_OTHER;
	at->value_len = Min(part[1]->len, LUA_HELD_MAX);
	memcpy(at->value, part[1]->str, at->value_len);
	at->value[at->value_len] = '\0';
	at->ttl_ms = part[2]->integer < 0 ? -1 : Min(part[2]->integer, PG_INT32_MAX);
	at->counter = strtoll(part[3]->str, NULL, 10);
	if (force)
	{
		at->forced = reply->element[2]->integer == LUA_FORCED;
		at->after = strtoll(reply->element[3]->str, NULL, 10);
	}
	if (at->counter < 0 || at->counter > redlock_wall_clock_us() + SCRIPT_TOKEN_AHEAD_MAX_US ||
		at->after > Max(at->counter + 1, question->least))
	{
		/* such a counter must not spread to other nodes */
		strlcpy(at->error, "its counter is out of all bounds", sizeof(at->error));
		at->kind = INSPECTED_ERROR;
		at->counter = at->after = 0;
		at->forced = false;
		return false;
	}
	at->readers = Max(Min(part[4]->integer, PG_INT32_MAX), 0);
	at->hosts = part[5]->len / LOCK_HOST_DIGITS;
	for (int i = 0; i < at->hosts; i++)
	{
		char id[LOCK_HOST_DIGITS + 1];

		strlcpy(id, part[5]->str + i * LOCK_HOST_DIGITS, sizeof(id));
		at->host[i] = strtoull(id, NULL, 16);
	}
	for (int n = 0; n < part[6]->len; n++)
		if (part[6]->str[n] == '1')
			at->permit[n / 8] |= 1 << n % 8;
	return true;
}

static bool
is_text(const redisReply *reply, size_t most)
{
	return reply->type == REDIS_REPLY_STRING && reply->len <= most;
}
