/*
 * script.c
 *		Commands to a node and the reading of its replies; see script.h.
 *
 * This file writes the Redis protocol itself: hiredis would allocate and copy for each command.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/builtins.h"

#include "broker/script.h"
#include "protocol/permits.h"
#include "protocol/rules.h"
#include "protocol/value.h"
#include "protocol/words.h"
#include "shared/clock.h"
#include "shared/text.h"

/* No token is from before 2020. */
#define TOKEN_MIN INT64CONST(1577836800000000)

/* Larger values count as these: a node must not cause an endless wait or an overflow. */
#define WAITING_MAX 1024
#define BUSY_MAX_MS PG_INT32_MAX

/* No host waits for longer than 30 years. */
#define WAITED_MAX_US INT64CONST(999999999999999)

StaticAssertDecl(SCRIPT_VALUE_SIZE > VALUE_HEAD + LOCK_HOLDER_MAX, "a lock's value must fit");

StaticAssertDecl(SCRIPT_VALUE_SIZE <= LUA_HELD_MAX + 1, "a node must return a lock's value whole");
StaticAssertDecl(VALUE_HEAD + 1 + sizeof(LUA_KEPT) + SCRIPT_TEXT_MAX <= LUA_HELD_MAX,
				 "where a node cuts a value must not be seen");

/* The text before a batch: the script or its hash, the marker, and three short words. */
#define HEAD_MAX (LUA_SCRIPT_MAX + LUA_MARKER_MAX + 64)

StaticAssertDecl(SCRIPT_COMMAND_MAX >= 16 + LOCK_PREFIX_MAX + LOCK_NAME_MAX + SCRIPT_VALUE_SIZE +
										   5 * WORDS_NUMBER_MAX +
										   WAITERS_MAX * (LOCK_HOST_DIGITS + 1 + WORDS_NUMBER_MAX) +
										   sizeof("$1000\r\n\r\n"),
				 "each command must fit");

static char *put(char *at, const char *text, size_t len);
static char *put_bulk(char *at, const char *text, size_t len);
static void read_reply(core_op op, const redisReply *reply, ScriptAnswer *answer);
static void read_holder(const redisReply *reply, ScriptAnswer *answer);
static char *put_waiters(char *at, const Waiters *waiters, int64 now_us);
static bool take_host(const char **at, const char *end, uint64 *host);
static bool take_text(const char **at, const char *end, char *text, size_t size);
static bool take_probe(const char **at, const char *end, ScriptProbe *probe);
static bool take_waiter(const char **at, const char *end, int64 now_us, Waiters *waiters);
static bool is_try(const char *at, const char *end);

/* First word of a probe whose last wait is a writer's; a reader's. */
#define PROBE "probe"
#define PROBE_SHARED "probe shared"

static const char digits[] = "0123456789abcdef";

size_t
script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, uint64 host, bool shared,
			 bool may_idle, const char *holder)
{
	size_t holder_len = strlen(holder);
	char *out = value;

	for (int i = 0; i < LOCK_SECRET_BYTES; i++)
	{
		*out++ = digits[secret[i] >> 4];
		*out++ = digits[secret[i] & 15];
	}
	*out++ = ':';
	out += VALUE_ATTEMPT_DIGITS;
	*out++ = ':';
	out = words_put_id(out, host) - 1; /* without its NUL */
	if (shared)
		*out++ = LUA_SHARED[0];
	*out++ = may_idle ? LUA_MAY_IDLE[0] : ' ';
	Assert(holder_len <= (size_t) (value + SCRIPT_VALUE_SIZE - out));
	memcpy(out, holder, holder_len);
	return out - value + holder_len;
}

void
script_set_attempt(char *value, uint32 attempt)
{
	char *digits = value + VALUE_ATTEMPT_AT;

	for (int i = VALUE_ATTEMPT_DIGITS; i-- > 0; attempt /= 10)
		digits[i] = '0' + attempt % 10;
	Assert(attempt == 0);
}

void
script_add(ScriptBatch *batch, const ScriptCommand *command)
{
	char text[SCRIPT_COMMAND_MAX];
	char *at = text;
	const char *name;

	Assert(batch->count < SCRIPT_BATCH_MAX);
	name = lua_command_name[command->shared][command->op];
	at = words_put_text(at, name);
	at = words_put(at, command->key, command->key_len);
	at = words_put(at, command->value, command->value_len);
	switch (command->op)
	{
		case CORE_OP_ACQUIRE:
			at = words_put_number(at, command->ttl_ms);
			at = words_put_number(at, command->wall_clock_us);
			at = command->waited_us >= 0 ? words_put_number(at, command->waited_us)
										 : words_put_text(at, LUA_TRY);
			if (command->permits > 0)
				at = words_put_number(at, command->permits);
			break;
		case CORE_OP_CONFIRM:
			at = words_put_number(at, command->core.counter);
			at = words_put_number(at, command->core.token);
			at = words_put_text(at, "");
			break;
		case CORE_OP_RENEW:
			at = words_put_number(at, command->ttl_ms);
			at = words_put_number(at, command->core.counter);
			at = words_put_number(at, Max(command->core.token, command->core.counter));
			break;
		case CORE_OP_RELEASE:
			at = words_put_number(at, command->ttl_ms);
			at = words_put_number(at, command->core.counter);
			at = words_put_number(at, command->shared ? 0 : command->token);
			if (command->token > 0 && command->waiters != NULL)
				at = put_waiters(at, command->waiters, command->now_us);
			break;
	}
	batch->len = put_bulk(batch->text + batch->len, text, at - text) - batch->text;
	batch->count++;
}

bool
script_append(redisContext *connection, ScriptBatch *batch, const char *marker, const char *sha)
{
	char head[HEAD_MAX];
	char *at = head;
	bool good;

	*at++ = '*';
	at += pg_ultoa_n(4 + batch->count, at);
	at = put(at, "\r\n", 2);
	if (sha != NULL)
	{
		at = put_bulk(at, "EVALSHA", 7);
		at = put_bulk(at, sha, SCRIPT_SHA_SIZE - 1);
	}
	else
	{
		at = put_bulk(at, "EVAL", 4);
		at = put_bulk(at, lua_script, strlen(lua_script));
	}
	at = put_bulk(at, "0", 1);
	at = put_bulk(at, marker, strlen(marker));
	Assert(at <= head + HEAD_MAX);

	good = redisAppendFormattedCommand(connection, head, at - head) == REDIS_OK &&
		   redisAppendFormattedCommand(connection, batch->text, batch->len) == REDIS_OK;
	batch->count = 0;
	batch->len = 0;
	return good;
}

static char *
put(char *at, const char *text, size_t len)
{
	memcpy(at, text, len);
	return at + len;
}

static char *
put_bulk(char *at, const char *text, size_t len)
{
	*at++ = '$';
	at += pg_ultoa_n(len, at);
	at = put(at, "\r\n", 2);
	at = put(at, text, len);
	return put(at, "\r\n", 2);
}

void
script_read(core_op op, const redisReply *reply, int i, int count, ScriptAnswer *answer)
{
	static const redisReply strange = {.type = REDIS_REPLY_NIL};

	if (reply->type == REDIS_REPLY_ARRAY && reply->elements == (size_t) count)
		read_reply(op, reply->element[i], answer);
	else if (reply->type == REDIS_REPLY_ERROR)
	{
		read_reply(op, reply, answer);
		if (count > 1 && !answer->unknown_script)
			answer->reply = CORE_REPLY_UNKNOWN; /* another command may have failed */
	}
	else
		read_reply(op, &strange, answer);
}

static void
read_reply(core_op op, const redisReply *reply, ScriptAnswer *answer)
{
	memset(answer, 0, offsetof(ScriptAnswer, text)); /* not the text: it is long */
	answer->text[0] = '\0';

	if ((op == CORE_OP_ACQUIRE || op == CORE_OP_RENEW) && reply->type == REDIS_REPLY_STRING)
	{
		answer->token = strtoll(reply->str, NULL, 10);
		answer->reply = op == CORE_OP_ACQUIRE ? CORE_REPLY_YES : CORE_REPLY_NO;
		if (answer->token < TOKEN_MIN ||
			answer->token > redlock_wall_clock_us() + SCRIPT_TOKEN_AHEAD_MAX_US)
		{
			answer->reply = CORE_REPLY_UNKNOWN;
			strlcpy(answer->text, "its counter is out of all bounds", sizeof(answer->text));
		}
	}
	else if (op != CORE_OP_ACQUIRE && reply->type == REDIS_REPLY_INTEGER)
	{
		answer->reply = reply->integer >= 1 ? CORE_REPLY_YES : CORE_REPLY_NO;
	}
	else if (op == CORE_OP_ACQUIRE && reply->type == REDIS_REPLY_ARRAY &&
			 (reply->elements == 3 ||
			  (reply->elements == 4 && reply->element[3]->type == REDIS_REPLY_INTEGER)) &&
			 reply->element[0]->type == REDIS_REPLY_INTEGER &&
			 reply->element[1]->type == REDIS_REPLY_STRING &&
			 reply->element[2]->type == REDIS_REPLY_INTEGER)
	{
		answer->reply = CORE_REPLY_NO;
		answer->busy_ms = Min(Max(reply->element[0]->integer, 0), BUSY_MAX_MS);
		answer->waiting = Min(Max(reply->element[2]->integer, 0), WAITING_MAX);
		if (reply->elements == 4)
			answer->free_permit =
				reply->element[3]->integer <= PERMITS_MAX ? Max(reply->element[3]->integer, 0) : 0;
		read_holder(reply->element[1], answer);
	}
	else if (reply->type == REDIS_REPLY_ERROR)
	{
		answer->reply = CORE_REPLY_ERROR;
		answer->unknown_script = strncmp(reply->str, "NOSCRIPT", 8) == 0;
		answer->forgot = strncmp(reply->str, LUA_FORGOT, strlen(LUA_FORGOT)) == 0;
		answer->demoted = strstr(reply->str, "READONLY ") != NULL; /* older nodes: not first */
		if (answer->forgot)
			strlcpy(answer->text, "its data was lost; connecting again", sizeof(answer->text));
		else
			text_of_node(answer->text, sizeof(answer->text), reply->str, reply->len);
	}
	else
	{
		answer->reply = CORE_REPLY_UNKNOWN;
		strlcpy(answer->text, "reply of an unexpected type", sizeof(answer->text));
	}
}

/*
 * Reads the holder from the value in the way.  A value of redlock_pg has the holder's text after a
 * fixed part; any other value is shown whole.
 */
static void
read_holder(const redisReply *reply, ScriptAnswer *answer)
{
	Value value;
	size_t said = 0;

	value_read(&value, reply->str, reply->len);
	answer->ours = value.ours;
	answer->kept = value.kept;
	answer->may_idle = value.may_idle;
	answer->by_readers = value.shared;
	/* the same hash for all attempts of a request, and for all readers */
	answer->holder = value.shared ? SCRIPT_READERS
								  : hash_bytes((const unsigned char *) reply->str,
											   value.ours ? VALUE_REQUEST : (size_t) reply->len);
	if (!value.kept)
		answer->host = value.host;
	if (value.shared)
		said = strlcpy(answer->text, LOCK_READERS, sizeof(answer->text));
	text_to_utf8(answer->text + said, sizeof(answer->text) - said, reply->str + value.text,
				 reply->len - value.text);
}

/* Writes each waiter's id and its wait so far, in us. */
static char *
put_waiters(char *at, const Waiters *waiters, int64 now_us)
{
	for (int i = 0; i < waiters->count; i++)
	{
		at = words_put_id(at, waiters->waiter[i].host);
		at = words_put_number(at, now_us - waiters->waiter[i].since_us);
	}
	return at;
}

void
script_hear(const char *text, size_t len, int64 sent_us, ScriptMessage *message)
{
	const char *end = text + len;
	const char *word;
	size_t word_len;
	int64 permit;

	message->word = SCRIPT_FREE;
	message->token = 0;
	message->waiters.count = 0;
	message->shared = false;
	if (!words_take(&text, end, &word, &word_len))
		return;
	if (strcmp(word, "free") == 0 &&
		words_take_number(&text, end, LUA_COUNTER_END, &message->token))
		while (message->waiters.count < WAITERS_MAX &&
			   take_waiter(&text, end, sent_us, &message->waiters))
			;
	if (strcmp(word, "permit") == 0 && words_take_number(&text, end, PERMITS_MAX, &permit))
	{
		message->word = SCRIPT_PERMIT;
		message->permit = (int) permit;
		return;
	}
	if (strcmp(word, "forced") == 0 && words_take(&text, end, &message->key, &message->key_len))
	{
		message->word = SCRIPT_FORCED;
		return;
	}
	if (strcmp(word, "ask") == 0 && words_take(&text, end, &message->key, &message->key_len) &&
		words_take_id(&text, end, &message->ask))
	{
		message->word = SCRIPT_ASK;
		return;
	}
	if (strcmp(word, "want") == 0 && words_take(&text, end, &message->key, &message->key_len) &&
		(take_waiter(&text, end, sent_us, &message->waiters) || is_try(text, end)))
	{
		message->word = SCRIPT_WANT;
		message->shared = words_take(&text, end, &word, &word_len) && strcmp(word, LUA_SHARED) == 0;
	}
	else if ((strcmp(word, PROBE) == 0 || strcmp(word, PROBE_SHARED) == 0) &&
			 take_probe(&text, end, &message->probe))
	{
		message->word = SCRIPT_PROBE;
		message->probe.shared = strcmp(word, PROBE_SHARED) == 0;
	}
	else if (strcmp(word, WAITING_QUESTION) == 0 &&
			 waiting_read_question(text, end, &message->question))
		message->word = SCRIPT_QUESTION;
	else if (strcmp(word, WAITING_ANSWER) == 0 &&
			 waiting_read_answer(text, end, &message->number, &message->waiting))
		message->word = SCRIPT_WAITS;
}

/* Takes a waiter.  False: no valid host and time; anybody may publish. */
static bool
take_waiter(const char **at, const char *end, int64 now_us, Waiters *waiters)
{
	const char *next = *at;
	uint64 host;
	int64 waited_us;

	if (!take_host(&next, end, &host) || !words_take_number(&next, end, WAITED_MAX_US, &waited_us))
		return false;
	waiters_add(waiters, host, waited_us, now_us);
	*at = next;
	return true;
}

/* Is the rest a host that tries, and does not wait? */
static bool
is_try(const char *at, const char *end)
{
	uint64 host;
	const char *word;
	size_t len;

	return take_host(&at, end, &host) && words_take(&at, end, &word, &len) &&
		   strcmp(word, LUA_TRY) == 0;
}

static bool
take_host(const char **at, const char *end, uint64 *host)
{
	return words_take_id(at, end, host) && *host != 0;
}

/* Takes a text for people. */
static bool
take_text(const char **at, const char *end, char *text, size_t size)
{
	const char *word;
	size_t len;

	if (!words_take(at, end, &word, &len))
		return false;
	text_to_utf8(text, size, word, len);
	return true;
}

size_t
script_host_channel(uint64 host, char channel[SCRIPT_CHANNEL_SIZE])
{
	memcpy(channel, LUA_HOST, sizeof(LUA_HOST) - 1);
	return words_put_id(channel + sizeof(LUA_HOST) - 1, host) - 1 - channel; /* without its NUL */
}

size_t
script_write_free(char text[SCRIPT_COMMAND_MAX], const ScriptCommand *release)
{
	char *at = words_put_text(text, "free");

	at = words_put_number(at, release->shared ? 0 : release->token);
	if (release->token > 0 && release->waiters != NULL)
		at = put_waiters(at, release->waiters, release->now_us);
	return at - text;
}

size_t
script_write_permit(char text[SCRIPT_WANT_MAX], int permit)
{
	return words_put_number(words_put_text(text, "permit"), permit) - text;
}

size_t
script_write_want(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len, uint64 host,
				  int64 waited_us, bool shared)
{
	char *at = words_put_text(text, "want");

	at = words_put(at, key, key_len);
	at = words_put_id(at, host);
	at = waited_us >= 0 ? words_put_number(at, waited_us) : words_put_text(at, LUA_TRY);
	if (shared)
		at = words_put_text(at, LUA_SHARED);
	Assert(at - text <= SCRIPT_WANT_MAX);
	return at - text;
}

size_t
script_write_forced(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len)
{
	char *at = words_put_text(text, "forced");

	at = words_put(at, key, key_len);
	Assert(at - text <= SCRIPT_WANT_MAX);
	return at - text;
}

size_t
script_write_ask(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len, uint64 ask)
{
	char *at = words_put_text(text, "ask");

	at = words_put(at, key, key_len);
	at = words_put_id(at, ask);
	Assert(at - text <= SCRIPT_WANT_MAX);
	return at - text;
}

size_t
script_write_probe(char text[SCRIPT_PROBE_MAX], const char *key, size_t key_len,
				   const ScriptProbe *probe)
{
	const char *word = probe->shared ? PROBE_SHARED : PROBE;
	char *at = words_put_text(text, word);

	at = words_put(at, key, key_len);
	at = words_put_number(at, 2 * (int64) probe->path.number + probe->path.by_queue);
	for (int i = 0; i < probe->path.count; i++)
	{
		const ProbeStep *step = &probe->path.step[i];
		const ScriptStep *words = &probe->text[i];

		at = words_put_id(at, step->host);
		at = words_put_number(at, (int64) step->wait);
		at = words_put_number(at, step->remote);
		at = words_put_number(at, words->pid);
		at = words_put_text(at, words->server);
		at = words_put_text(at, words->what);
	}
	Assert(at - text <= SCRIPT_PROBE_MAX);
	return at - text;
}

/* Takes a probe.  False: damaged, or without a step. */
static bool
take_probe(const char **at, const char *end, ScriptProbe *probe)
{
	int64 number;

	probe->path.count = 0;
	if (!words_take(at, end, &probe->key, &probe->key_len) ||
		!words_take_number(at, end, 2 * (int64) PG_UINT32_MAX + 1, &number))
		return false;
	probe->path.number = (uint32) (number / 2);
	probe->path.by_queue = number % 2 != 0;
	while (*at < end)
	{
		ScriptStep *words = &probe->text[probe->path.count];
		ProbeStep step;
		uint64 host;
		int64 wait, remote, pid;

		if (probe->path.count == PROBE_STEPS_MAX || !take_host(at, end, &host) ||
			!words_take_number(at, end, PG_INT64_MAX, &wait) ||
			!words_take_number(at, end, 1, &remote) ||
			!words_take_number(at, end, PG_INT32_MAX, &pid) ||
			!take_text(at, end, words->server, sizeof(words->server)) ||
			!take_text(at, end, words->what, sizeof(words->what)))
			return false;
		words->pid = pid;
		step = (ProbeStep){host, wait, remote != 0};
		if (probe_visit(&probe->path, &step) != PROBE_GO_ON)
			return false;
	}
	return probe->path.count > 0;
}
