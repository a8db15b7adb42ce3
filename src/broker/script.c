/*
 * script.c
 *		Commands to a node and the reading of its replies; see script.h.
 *
 * They are written in the Redis protocol here, and not by hiredis, which
 * would allocate and copy for each of them.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/builtins.h"

#include "broker/script.h"
#include "protocol/rules.h"
#include "shared/clock.h"
#include "shared/text.h"

StaticAssertDecl(SCRIPT_VALUE_SIZE >= 2 * LOCK_SECRET_BYTES + 12 + LOCK_HOLDER_MAX,
				 "a lock's value must fit");

/*
 * No counter runs ahead of time that far (70 years).  One node that says so must
 * not make it true on all others, where the token is written.
 */
#define TOKEN_AHEAD_MAX_US (INT64CONST(1) << 51)

/* None is from before 2020. */
#define TOKEN_MIN INT64CONST(1577836800000000)

#define ATTEMPT_DIGITS 9 /* enough for the 27 bits of core_node */

/* Of a value: the secret, ':', the attempt, ' '. */
#define VALUE_HEAD (2 * LOCK_SECRET_BYTES + 1 + ATTEMPT_DIGITS + 1)

/* What goes before a batch: the script or its hash, the marker, and three short words. */
#define HEAD_MAX (LUA_SCRIPT_MAX + LUA_MARKER_MAX + 64)

#define NUMBER_MAX (MAXINT8LEN + 1) /* of digits, and what ends them */

StaticAssertDecl(SCRIPT_COMMAND_MAX >= 8 + LOCK_PREFIX_MAX + LOCK_NAME_MAX + SCRIPT_VALUE_SIZE +
										   4 * NUMBER_MAX + sizeof("$1000\r\n\r\n"),
				 "each command must fit");

static char *put(char *at, const char *text, size_t len);
static char *put_bulk(char *at, const char *text, size_t len);
static char *put_word(char *at, const char *text, size_t len);
static char *put_number(char *at, int64 number);
static void read_reply(core_op op, const redisReply *reply, ScriptAnswer *answer);
static void read_holder(const redisReply *reply, ScriptAnswer *answer);

size_t
script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, const char *holder)
{
	static const char digits[] = "0123456789abcdef";
	size_t holder_len = strlen(holder);
	char *out = value;

	for (int i = 0; i < LOCK_SECRET_BYTES; i++)
	{
		*out++ = digits[secret[i] >> 4];
		*out++ = digits[secret[i] & 15];
	}
	*out++ = ':';
	out += ATTEMPT_DIGITS;
	*out++ = ' ';
	Assert(holder_len <= (size_t) (value + SCRIPT_VALUE_SIZE - out));
	memcpy(out, holder, holder_len);
	return out - value + holder_len;
}

void
script_set_attempt(char *value, uint32 attempt)
{
	char *digits = value + 2 * LOCK_SECRET_BYTES + 1;

	for (int i = ATTEMPT_DIGITS; i-- > 0; attempt /= 10)
		digits[i] = '0' + attempt % 10;
	Assert(attempt == 0);
}

void
script_add(ScriptBatch *batch, const ScriptCommand *command)
{
	char text[SCRIPT_COMMAND_MAX];
	char *at = text;

	Assert(batch->count < SCRIPT_BATCH_MAX);
	at = put_word(at, lua_command_name[command->op], strlen(lua_command_name[command->op]));
	at = put_word(at, command->key, command->key_len);
	at = put_word(at, command->value, command->value_len);
	switch (command->op)
	{
		case CORE_OP_ACQUIRE:
			at = put_number(at, command->ttl_ms);
			at = put_number(at, command->wall_clock_us);
			at = put_word(at, "", 0);
			break;
		case CORE_OP_CONFIRM:
			at = put_number(at, command->core.counter);
			at = put_number(at, command->core.token);
			at = put_number(at, rules_keep_counter_ms(command->core.token, command->wall_clock_us));
			break;
		case CORE_OP_RENEW:
			at = put_number(at, command->ttl_ms);
			at = put_number(at, command->core.counter);
			at = put_number(at, rules_keep_counter_ms(command->core.token, command->wall_clock_us));
			if (command->core.token > command->core.counter)
				at = put_number(at, command->core.token);
			break;
		case CORE_OP_RELEASE:
			at = put_number(at, command->ttl_ms);
			at = put_number(at, command->core.counter);
			at = put_number(at,
							rules_keep_counter_ms(command->core.counter, command->wall_clock_us));
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

static char *
put_word(char *at, const char *text, size_t len)
{
	at = put(at, text, len);
	*at++ = '\0';
	return at;
}

static char *
put_number(char *at, int64 number)
{
	return at + pg_lltoa(number, at) + 1; /* it ends in a NUL */
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
			answer->reply = CORE_REPLY_UNKNOWN; /* it may be that of another command */
	}
	else
		read_reply(op, &strange, answer);
}

static void
read_reply(core_op op, const redisReply *reply, ScriptAnswer *answer)
{
	answer->unknown_script = false;
	answer->forgot = answer->demoted = false;
	answer->token = 0;
	answer->busy_ms = 0;
	answer->holder = 0;
	answer->ours = answer->kept = false;
	answer->told = 0;
	answer->text[0] = '\0';

	if ((op == CORE_OP_ACQUIRE || op == CORE_OP_RENEW) && reply->type == REDIS_REPLY_STRING)
	{
		answer->token = strtoll(reply->str, NULL, 10);
		answer->reply = op == CORE_OP_ACQUIRE ? CORE_REPLY_YES : CORE_REPLY_NO;
		if (answer->token < TOKEN_MIN ||
			answer->token > redlock_wall_clock_us() + TOKEN_AHEAD_MAX_US)
		{
			answer->reply = CORE_REPLY_UNKNOWN;
			strlcpy(answer->text, "its counter is out of all bounds", sizeof(answer->text));
		}
	}
	else if (op != CORE_OP_ACQUIRE && reply->type == REDIS_REPLY_INTEGER)
	{
		answer->reply = reply->integer >= 1 ? CORE_REPLY_YES : CORE_REPLY_NO;
		if (op == CORE_OP_RELEASE && reply->integer > 1)
			answer->told = reply->integer - 1;
	}
	else if (op == CORE_OP_ACQUIRE && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
			 reply->element[0]->type == REDIS_REPLY_INTEGER &&
			 reply->element[1]->type == REDIS_REPLY_STRING)
	{
		answer->reply = CORE_REPLY_NO;
		answer->busy_ms = Max(reply->element[0]->integer, 0);
		answer->holder =
			hash_bytes((const unsigned char *) reply->element[1]->str, reply->element[1]->len);
		read_holder(reply->element[1], answer);
	}
	else if (reply->type == REDIS_REPLY_ERROR)
	{
		answer->reply = CORE_REPLY_ERROR;
		answer->unknown_script = strncmp(reply->str, "NOSCRIPT", 8) == 0;
		answer->forgot = strncmp(reply->str, LUA_FORGOT, strlen(LUA_FORGOT)) == 0;
		answer->demoted = strstr(reply->str, "READONLY ") != NULL; /* older ones begin otherwise */
		text_to_printable(answer->text, sizeof(answer->text), reply->str, reply->len);
	}
	else
	{
		answer->reply = CORE_REPLY_UNKNOWN;
		strlcpy(answer->text, "reply of an unexpected type", sizeof(answer->text));
	}
}

/* Our own values say it after their fixed part; others' are shown as they are. */
static void
read_holder(const redisReply *reply, ScriptAnswer *answer)
{
	const char *from = reply->str;
	const char *end = reply->str + reply->len;
	const size_t secret = 2 * LOCK_SECRET_BYTES;

	answer->ours = reply->len >= VALUE_HEAD && strspn(from, "0123456789abcdef") == secret &&
				   from[secret] == ':' &&
				   strspn(from + secret + 1, "0123456789") == ATTEMPT_DIGITS &&
				   from[VALUE_HEAD - 1] == ' ';
	if (answer->ours)
		from += VALUE_HEAD;
	answer->kept = answer->ours && strncmp(from, LUA_KEPT, strlen(LUA_KEPT)) == 0;
	if (answer->kept)
		from += strlen(LUA_KEPT);
	text_to_printable(answer->text, sizeof(answer->text), from, end - from);
}
