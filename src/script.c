/*
 * script.c
 *		Commands to a node and the reading of its replies; see script.h.
 *
 * Commands are written in the Redis protocol here, and not by hiredis, which
 * would allocate and copy for each of them.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/builtins.h"

#include "clock.h"
#include "lease.h"
#include "script.h"

StaticAssertDecl(SCRIPT_VALUE_SIZE >= 2 * LEASE_SECRET_BYTES + 12 + LEASE_HOLDER_MAX,
				 "a lock's value must fit");

/*
 * No counter runs ahead of time that far (70 years).  One node that says so must
 * not make it true on all others, where the token is written.
 */
#define TOKEN_AHEAD_MAX_US (INT64CONST(1) << 51)

/* None is from before 2020. */
#define TOKEN_MIN INT64CONST(1577836800000000)

#define ATTEMPT_DIGITS 9 /* enough for the 27 bits of core_node */

/* The longest command: a script's text, a key, a value, and numbers. */
#define COMMAND_MAX 4096

typedef struct Writer
{
	char *at;
	char text[COMMAND_MAX];
} Writer;

static void put(Writer *writer, const char *text, size_t len);
static void put_bulk(Writer *writer, const char *text, size_t len);
static void put_number(Writer *writer, int64 number);
static int64 keep_ms(int64 counter, int64 wall_clock_us);
static void read_holder(const redisReply *reply, ScriptAnswer *answer);

size_t
script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, const char *holder)
{
	static const char digits[] = "0123456789abcdef";
	size_t holder_len = strlen(holder);
	char *out = value;

	for (int i = 0; i < LEASE_SECRET_BYTES; i++)
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
	char *digits = value + 2 * LEASE_SECRET_BYTES + 1;

	for (int i = ATTEMPT_DIGITS; i-- > 0; attempt /= 10)
		digits[i] = '0' + attempt % 10;
	Assert(attempt == 0);
}

int
script_of(const ScriptCommand *command)
{
	if (command->op == CORE_OP_RELEASE && command->ttl_ms == SCRIPT_DELETE_AND_TELL &&
		command->counter == 0)
		return LUA_DONE;
	return command->op;
}

bool
script_append(redisContext *connection, const ScriptCommand *command, const char *sha)
{
	/* arrays of the protocol begin with their length */
	static const char *const start[LUA_SCRIPTS] = {
		[CORE_OP_ACQUIRE] = "*8\r\n", [CORE_OP_CONFIRM] = "*8\r\n", [CORE_OP_RENEW] = "*8\r\n",
		[CORE_OP_RELEASE] = "*8\r\n", [LUA_DONE] = "*5\r\n",
	};
	int script = script_of(command);
	Writer writer;

	writer.at = writer.text;
	put(&writer, start[script], 4);
	if (sha != NULL)
	{
		put(&writer, "$7\r\nEVALSHA\r\n", 13);
		put_bulk(&writer, sha, SCRIPT_SHA_SIZE - 1);
	}
	else
	{
		put_bulk(&writer, "EVAL", 4);
		put_bulk(&writer, lua_script[script], strlen(lua_script[script]));
	}
	put(&writer, "$1\r\n1\r\n", 7);
	put_bulk(&writer, command->key, command->key_len);
	put_bulk(&writer, command->value, command->value_len);

	switch (script)
	{
		case CORE_OP_ACQUIRE:
			put_number(&writer, command->ttl_ms);
			put_number(&writer, command->wall_clock_us);
			put_bulk(&writer, command->marker, strlen(command->marker));
			break;
		case CORE_OP_CONFIRM:
			put_number(&writer, command->counter);
			put_number(&writer, command->token);
			put_number(&writer, keep_ms(command->token, command->wall_clock_us));
			break;
		case CORE_OP_RENEW:
		case CORE_OP_RELEASE:
			put_number(&writer, command->ttl_ms);
			put_number(&writer, command->counter);
			put_number(&writer, keep_ms(command->counter, command->wall_clock_us));
			break;
		case LUA_DONE:
			break;
	}
	return redisAppendFormattedCommand(connection, writer.text, writer.at - writer.text) ==
		   REDIS_OK;
}

/* A counter that ran ahead of time is kept for that much longer. */
static int64
keep_ms(int64 counter, int64 wall_clock_us)
{
	return LUA_COUNTER_KEEP_MS + Max(counter - wall_clock_us, 0) / 1000;
}

static void
put(Writer *writer, const char *text, size_t len)
{
	Assert(len <= (size_t) (writer->text + COMMAND_MAX - writer->at));
	memcpy(writer->at, text, len);
	writer->at += len;
}

static void
put_bulk(Writer *writer, const char *text, size_t len)
{
	*writer->at++ = '$';
	writer->at += pg_ultoa_n(len, writer->at);
	put(writer, "\r\n", 2);
	put(writer, text, len);
	put(writer, "\r\n", 2);
}

static void
put_number(Writer *writer, int64 number)
{
	char digits[MAXINT8LEN + 1];

	put_bulk(writer, digits, pg_lltoa(number, digits));
}

void
script_read(core_op op, const redisReply *reply, ScriptAnswer *answer)
{
	answer->unknown_script = false;
	answer->forgot = false;
	answer->token = 0;
	answer->busy_ms = 0;
	answer->holder = 0;
	answer->told = 0;
	answer->text[0] = '\0';

	if (op == CORE_OP_ACQUIRE && reply->type == REDIS_REPLY_STRING)
	{
		answer->token = strtoll(reply->str, NULL, 10);
		answer->reply = CORE_REPLY_YES;
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
		script_printable(answer->text, sizeof(answer->text), reply->str, reply->len);
	}
	else
	{
		answer->reply = CORE_REPLY_UNKNOWN;
		strlcpy(answer->text, "reply of an unexpected type", sizeof(answer->text));
	}
}

/* Our own values say it behind the first space; others' are shown as they are. */
static void
read_holder(const redisReply *reply, ScriptAnswer *answer)
{
	const char *from = reply->str;
	const char *end = reply->str + reply->len;

	if (reply->len > 2 * LEASE_SECRET_BYTES && from[2 * LEASE_SECRET_BYTES] == ':' &&
		strspn(from, "0123456789abcdef") == 2 * LEASE_SECRET_BYTES)
	{
		const char *space = memchr(from, ' ', reply->len);

		from = space ? space + 1 : from;
	}
	script_printable(answer->text, sizeof(answer->text), from, end - from);
}

void
script_printable(char *out, size_t size, const char *text, size_t len)
{
	size_t n = Min(len, size - 1);

	for (size_t i = 0; i < n; i++)
		out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	out[n] = '\0';
}
