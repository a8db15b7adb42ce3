/*
 * script.c
 *		Commands to a node and the reading of its replies; see script.h.
 *
 * A script does one atomic thing and returns a number for yes (1) and no (0),
 * or, where an acquire is refused, the value that stands in its way; a release
 * adds the number of waiters that it told.  Every
 * error reply means that nothing was done: no vote.
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "lease.h"
#include "script.h"

StaticAssertDecl(SCRIPT_VALUE_SIZE >= 2 * LEASE_SECRET_BYTES + 12 + LEASE_HOLDER_MAX,
				 "a lock's value must fit");

const char *const script_text[SCRIPT_COUNT] = {
	[CORE_OP_ACQUIRE] =
		"if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end "
		"return {redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[1]) or ''}",
	/* extends, never shortens */
	[CORE_OP_RENEW] = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
					  "if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then "
					  "redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
					  "return 1",
	/*
	 * Takes this attempt and earlier ones of the same request, not later ones.
	 * Who may not publish can still release: waiters then find out by asking.
	 */
	[CORE_OP_RELEASE] =
		"local v = redis.call('GET', KEYS[1]) "
		"if not (v == ARGV[1] or (v and string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) "
		"and string.sub(v, 34, 42) <= string.sub(ARGV[1], 34, 42))) then return 0 end "
		"local keep = tonumber(ARGV[2]) "
		"if keep > 0 then return redis.call('PEXPIRE', KEYS[1], keep) end "
		"redis.call('DEL', KEYS[1]) "
		"local told = 0 "
		"if keep == 0 then told = redis.pcall('PUBLISH', KEYS[1], 'free') end "
		"return 1 + (tonumber(told) or 0)"};

static void read_holder(const redisReply *reply, ScriptAnswer *answer);

size_t
script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, unsigned attempt,
			 const char *holder)
{
	static const char digits[] = "0123456789abcdef";
	char *out = value;

	for (int i = 0; i < LEASE_SECRET_BYTES; i++)
	{
		*out++ = digits[secret[i] >> 4];
		*out++ = digits[secret[i] & 15];
	}
	return out - value +
		   snprintf(out, SCRIPT_VALUE_SIZE - (out - value), ":%09u %s", attempt, holder);
}

bool
script_append(redisContext *connection, const ScriptCommand *command, const char *sha)
{
	char ttl[24];
	const char *argv[6];
	size_t argvlen[6];

	argv[0] = sha ? "EVALSHA" : "EVAL";
	argvlen[0] = sha ? 7 : 4;
	argv[1] = sha ? sha : script_text[command->op];
	argvlen[1] = strlen(argv[1]);
	argv[2] = "1";
	argvlen[2] = 1;
	argv[3] = command->key;
	argvlen[3] = command->key_len;
	argv[4] = command->value;
	argvlen[4] = command->value_len;
	argv[5] = ttl;
	argvlen[5] = snprintf(ttl, sizeof(ttl), INT64_FORMAT, command->ttl_ms);
	return redisAppendCommandArgv(connection, lengthof(argv), argv, argvlen) == REDIS_OK;
}

void
script_read(core_op op, const redisReply *reply, ScriptAnswer *answer)
{
	answer->unknown_script = false;
	answer->busy_ms = 0;
	answer->holder = 0;
	answer->told = 0;
	answer->text[0] = '\0';

	if (reply->type == REDIS_REPLY_INTEGER)
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
	else
	{
		answer->reply = CORE_REPLY_ERROR;
		if (reply->type == REDIS_REPLY_ERROR)
		{
			answer->unknown_script = strncmp(reply->str, "NOSCRIPT", 8) == 0;
			script_printable(answer->text, sizeof(answer->text), reply->str, reply->len);
		}
		else
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
