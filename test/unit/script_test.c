/*
 * script_test.c
 *		Unit tests of commands to a node and the reading of its replies, src/broker/script.c.
 *
 * Protects from: a command read by the script in another sense, or too long for a batch; a
 * malformed reply, or the reply to another command, counting as a vote; a stranger's text shown
 * unchanged; a read past the end of a reply (with sanitizers, scripts/lint.sh).
 *
 * hiredis reads the replies, written as a node sends replies, and the commands.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "broker/script.h"
#include "protocol/rules.h"
#include "shared/clock.h"

#include "tap.h"

#define NOW_US INT64CONST(1700000000000000)
#define SHA "0123456789abcdef0123456789abcdef01234567"
#define SECRET "0123456789abcdeffedcba9876543210"
#define HOST "00c0ffee00c0ffee"
#define VALUE SECRET ":000000001:" HOST " host a"

int64
redlock_wall_clock_us(void)
{
	return NOW_US;
}

/* ---- replies ---- */

#define UNEXPECTED                                                                                 \
	{                                                                                              \
		.reply = CORE_REPLY_UNKNOWN, .text = "reply of an unexpected type"                         \
	}
#define OUT_OF_BOUNDS(number)                                                                      \
	{                                                                                              \
		.reply = CORE_REPLY_UNKNOWN, .token = number, .text = "its counter is out of all bounds"   \
	}

/* Replies to a command that is alone in its batch. */
static const struct
{
	const char *what;
	core_op op;
	const char *reply;
	ScriptAnswer answer;
} replies[] = {
	/* acquire: a counter */
	{"a counter",
	 CORE_OP_ACQUIRE,
	 "$16\r\n1700000000000001\r\n",
	 {.reply = CORE_REPLY_YES, .token = NOW_US + 1}},
	{"the least counter",
	 CORE_OP_ACQUIRE,
	 "$16\r\n1577836800000000\r\n",
	 {.reply = CORE_REPLY_YES, .token = INT64CONST(1577836800000000)}},
	{"one less", CORE_OP_ACQUIRE, "$16\r\n1577836799999999\r\n",
	 OUT_OF_BOUNDS(INT64CONST(1577836799999999))},
	{"the largest counter",
	 CORE_OP_ACQUIRE,
	 "$16\r\n3951799813685248\r\n",
	 {.reply = CORE_REPLY_YES, .token = NOW_US + (INT64CONST(1) << 51)}},
	{"one more", CORE_OP_ACQUIRE, "$16\r\n3951799813685249\r\n",
	 OUT_OF_BOUNDS(NOW_US + (INT64CONST(1) << 51) + 1)},
	{"more than 64 bits", CORE_OP_ACQUIRE, "$20\r\n99999999999999999999\r\n",
	 OUT_OF_BOUNDS(PG_INT64_MAX)},
	{"a negative counter", CORE_OP_ACQUIRE, "$17\r\n-1700000000000000\r\n", OUT_OF_BOUNDS(-NOW_US)},
	{"an empty counter", CORE_OP_ACQUIRE, "$0\r\n\r\n", OUT_OF_BOUNDS(0)},
	{"a counter of letters", CORE_OP_ACQUIRE, "$3\r\nabc\r\n", OUT_OF_BOUNDS(0)},

	/* acquire: the key in the way */
	{"another's lock",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$66\r\n" VALUE "\r\n:7\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1500, .ours = true, .waiting = 7, .text = "host a"}},
	{"a lock that is kept",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$71\r\n" SECRET ":000000001:" HOST " kept host a\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1500, .ours = true, .kept = true, .text = "host a"}},
	{"a lock that may be idle",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$66\r\n" SECRET ":000000001:" HOST "~host a\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1500, .ours = true, .may_idle = true, .text = "host a"}},
	{"a lock that is shared",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$67\r\n" SECRET ":000000001:" HOST "= host a\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO,
	  .busy_ms = 1500,
	  .ours = true,
	  .text = "those who share it, last to join: host a"}},
	{"one that is shared, and may be idle",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$67\r\n" SECRET ":000000001:" HOST "=~host a\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO,
	  .busy_ms = 1500,
	  .ours = true,
	  .may_idle = true,
	  .text = "those who share it, last to join: host a"}},
	{"one that is kept",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1500\r\n$71\r\n" SECRET ":000000001:" HOST "~kept host a\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1500, .ours = true, .kept = true, .text = "host a"}},
	{"a holder without a name",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$60\r\n" SECRET ":000000001:" HOST " \r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .ours = true}},
	{"a key without a time to live",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:-1\r\n$8\r\nstranger\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .text = "stranger"}},
	{"a key that lives for ever and a day",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:9223372036854775807\r\n$8\r\nstranger\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = PG_INT32_MAX, .text = "stranger"}},
	{"an empty value",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$0\r\n\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1}},
	{"a stranger that says \"kept\"",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$6\r\nkept x\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = "kept x"}},
	{"a stranger's control characters",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$7\r\n\033[31m\r\n\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = "?[31m??"}},
	{"a value that is cut short",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$59\r\n" SECRET ":000000001:" HOST "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET ":000000001:" HOST}},
	{"a secret that is a digit too long",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$61\r\n" SECRET "0:000000001:" HOST " "
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET "0:000000001:" HOST " "}},
	{"a secret in capitals",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n"
	 "0123456789ABCDEFFEDCBA9876543210:000000001:" HOST " host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO,
	  .busy_ms = 1,
	  .text = "0123456789ABCDEFFEDCBA9876543210:000000001:" HOST " host a"}},
	{"another sign behind the secret",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n" SECRET "-000000001:" HOST " host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET "-000000001:" HOST " host a"}},
	{"an attempt that is no number",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n" SECRET ":00000000x:" HOST " host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET ":00000000x:" HOST " host a"}},
	{"another sign behind the attempt",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n" SECRET ":000000001-" HOST " host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET ":000000001-" HOST " host a"}},
	{"a host that is no number",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n" SECRET ":000000001:"
	 "00c0ffee00c0ffex"
	 " host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO,
	  .busy_ms = 1,
	  .text = SECRET ":000000001:"
					 "00c0ffee00c0ffex"
					 " host a"}},
	{"a value without a host, of release 0.1.0",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$74\r\n" SECRET ":000000001 "
	 "host a of long ago, with a name"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO,
	  .busy_ms = 1,
	  .text = SECRET ":000000001 "
					 "host a of long ago, with a name"}},
	{"no space before the holder",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$66\r\n" SECRET ":000000001:" HOST "-host a"
	 "\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = SECRET ":000000001:" HOST "-host a"}},
	{"fewer than none wait",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$1\r\nx\r\n:-1\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = "x"}},
	{"more wait than count",
	 CORE_OP_ACQUIRE,
	 "*3\r\n:1\r\n$1\r\nx\r\n:9223372036854775807\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .waiting = 1024, .text = "x"}},

	{"none of the permits is free",
	 CORE_OP_ACQUIRE,
	 "*4\r\n:1\r\n$1\r\nx\r\n:0\r\n:0\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = "x"}},
	{"another permit is free",
	 CORE_OP_ACQUIRE,
	 "*4\r\n:1\r\n$1\r\nx\r\n:0\r\n:7\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .free_permit = 7, .text = "x"}},
	{"one that can't be is free",
	 CORE_OP_ACQUIRE,
	 "*4\r\n:1\r\n$1\r\nx\r\n:0\r\n:4294967297\r\n",
	 {.reply = CORE_REPLY_NO, .busy_ms = 1, .text = "x"}},

	/* acquire: none of these is a vote */
	{"1 for a counter", CORE_OP_ACQUIRE, ":1\r\n", UNEXPECTED},
	{"a counter that is no text", CORE_OP_ACQUIRE, ":1700000000000001\r\n", UNEXPECTED},
	{"OK", CORE_OP_ACQUIRE, "+OK\r\n", UNEXPECTED},
	{"a counter as a status", CORE_OP_ACQUIRE, "+1700000000000001\r\n", UNEXPECTED},
	{"nothing", CORE_OP_ACQUIRE, "$-1\r\n", UNEXPECTED},
	{"no array", CORE_OP_ACQUIRE, "*-1\r\n", UNEXPECTED},
	{"an empty array", CORE_OP_ACQUIRE, "*0\r\n", UNEXPECTED},
	{"an array of one", CORE_OP_ACQUIRE, "*1\r\n:1500\r\n", UNEXPECTED},
	{"an array of two", CORE_OP_ACQUIRE, "*2\r\n:1500\r\n$1\r\nx\r\n", UNEXPECTED},
	{"an array of five", CORE_OP_ACQUIRE, "*5\r\n:1500\r\n$1\r\nx\r\n:0\r\n:0\r\n:0\r\n",
	 UNEXPECTED},
	{"a free permit that is no number", CORE_OP_ACQUIRE,
	 "*4\r\n:1500\r\n$1\r\nx\r\n:0\r\n$1\r\n1\r\n", UNEXPECTED},
	{"a refusal with a text for a number", CORE_OP_ACQUIRE, "*3\r\n:1500\r\n$1\r\nx\r\n$1\r\nx\r\n",
	 UNEXPECTED},
	{"a refusal the wrong way round", CORE_OP_ACQUIRE, "*3\r\n$1\r\nx\r\n:1500\r\n:0\r\n",
	 UNEXPECTED},
	{"a refusal without a value", CORE_OP_ACQUIRE, "*3\r\n:1500\r\n$-1\r\n:0\r\n", UNEXPECTED},
	{"a refusal without a time", CORE_OP_ACQUIRE, "*3\r\n$-1\r\n$1\r\nx\r\n:0\r\n", UNEXPECTED},
	{"a refusal without a number", CORE_OP_ACQUIRE, "*3\r\n:1500\r\n$1\r\nx\r\n$-1\r\n",
	 UNEXPECTED},
	{"a refusal with an array in it", CORE_OP_ACQUIRE, "*3\r\n:1\r\n*1\r\n$1\r\nx\r\n:0\r\n",
	 UNEXPECTED},

	/* confirm */
	{"confirmed", CORE_OP_CONFIRM, ":1\r\n", {.reply = CORE_REPLY_YES}},
	{"not confirmed", CORE_OP_CONFIRM, ":0\r\n", {.reply = CORE_REPLY_NO}},
	{"confirmed less than not", CORE_OP_CONFIRM, ":-1\r\n", {.reply = CORE_REPLY_NO}},
	{"confirmed by a counter", CORE_OP_CONFIRM, "$16\r\n1700000000000001\r\n", UNEXPECTED},
	{"confirmed by a text", CORE_OP_CONFIRM, "$1\r\n1\r\n", UNEXPECTED},
	{"confirmed by nothing", CORE_OP_CONFIRM, "$-1\r\n", UNEXPECTED},

	/* renew */
	{"renewed", CORE_OP_RENEW, ":1\r\n", {.reply = CORE_REPLY_YES}},
	{"not renewed", CORE_OP_RENEW, ":0\r\n", {.reply = CORE_REPLY_NO}},
	{"not renewed, since there is a later token",
	 CORE_OP_RENEW,
	 "$16\r\n1700000000000001\r\n",
	 {.reply = CORE_REPLY_NO, .token = NOW_US + 1}},
	{"a later token out of all bounds", CORE_OP_RENEW, "$16\r\n9007199254740991\r\n",
	 OUT_OF_BOUNDS(INT64CONST(9007199254740991))},
	{"renewed by OK", CORE_OP_RENEW, "+OK\r\n", UNEXPECTED},
	{"refused as an acquire is", CORE_OP_RENEW, "*3\r\n:1500\r\n$1\r\nx\r\n:0\r\n", UNEXPECTED},

	/* release */
	{"not there to be released", CORE_OP_RELEASE, ":0\r\n", {.reply = CORE_REPLY_NO}},
	{"released", CORE_OP_RELEASE, ":1\r\n", {.reply = CORE_REPLY_YES}},
	{"released by a counter", CORE_OP_RELEASE, "$16\r\n1700000000000001\r\n", UNEXPECTED},

	/* errors of any command */
	{"an error", CORE_OP_ACQUIRE, "-ERR x\r\n", {.reply = CORE_REPLY_ERROR, .text = "ERR x"}},
	{"an error without a text", CORE_OP_CONFIRM, "-\r\n", {.reply = CORE_REPLY_ERROR}},
	{"an error in control characters",
	 CORE_OP_RENEW,
	 "-ERR \033\302\233\r\n",
	 {.reply = CORE_REPLY_ERROR, .text = "ERR ???"}},
	{"an unknown script",
	 CORE_OP_RELEASE,
	 "-NOSCRIPT No matching script.\r\n",
	 {.reply = CORE_REPLY_ERROR, .unknown_script = true, .text = "NOSCRIPT No matching script"}},
	{"half of NOSCRIPT",
	 CORE_OP_ACQUIRE,
	 "-NOSCR\r\n",
	 {.reply = CORE_REPLY_ERROR, .text = "NOSCR"}},
	{"NOSCRIPT later in the text",
	 CORE_OP_ACQUIRE,
	 "-ERR NOSCRIPT\r\n",
	 {.reply = CORE_REPLY_ERROR, .text = "ERR NOSCRIPT"}},
	{"a marker that is not there",
	 CORE_OP_ACQUIRE,
	 "-" LUA_FORGOT " it\r\n",
	 {.reply = CORE_REPLY_ERROR, .forgot = true, .text = "its data was lost; connecting again"}},
	{"a replica",
	 CORE_OP_ACQUIRE,
	 "-READONLY You can't\r\n",
	 {.reply = CORE_REPLY_ERROR, .demoted = true, .text = "READONLY You can't"}},
	{"a replica of Redis 6",
	 CORE_OP_RENEW,
	 "-ERR Error running script: 149: -READONLY You can't\r\n",
	 {.reply = CORE_REPLY_ERROR,
	  .demoted = true,
	  .text = "ERR Error running script: 149: -READONLY You can't"}},
};

/* A node's reply, as hiredis reads it. */
static redisReply *
parse(const char *text, size_t len)
{
	redisReader *reader = redisReaderCreate();
	void *reply = NULL;

	if (redisReaderFeed(reader, text, len) != REDIS_OK ||
		redisReaderGetReply(reader, &reply) != REDIS_OK || reply == NULL)
	{
		printf("Bail out! hiredis does not read it: %.*s\n", (int) len, text);
		exit(1);
	}
	redisReaderFree(reader);
	return reply;
}

static void
read_one(core_op op, const char *text, int i, int count, ScriptAnswer *answer)
{
	redisReply *reply = parse(text, strlen(text));

	memset(answer, 0x55, sizeof(*answer)); /* script_read must set all fields */
	script_read(op, reply, i, count, answer);
	freeReplyObject(reply);
}

/* Compares all fields but the holder's hash. */
static bool
same(const ScriptAnswer *a, const ScriptAnswer *b)
{
	return a->reply == b->reply && a->unknown_script == b->unknown_script &&
		   a->forgot == b->forgot && a->demoted == b->demoted && a->token == b->token &&
		   a->busy_ms == b->busy_ms && a->ours == b->ours && a->kept == b->kept &&
		   a->may_idle == b->may_idle && a->waiting == b->waiting &&
		   a->free_permit == b->free_permit && strcmp(a->text, b->text) == 0;
}

static void
test_replies(void)
{
	ScriptAnswer answer;

	for (int i = 0; i < lengthof(replies); i++)
	{
		char text[256];

		snprintf(text, sizeof(text), "*1\r\n%s", replies[i].reply);
		read_one(replies[i].op, text, 0, 1, &answer);
		ok(same(&answer, &replies[i].answer), "%s: %s", lua_command_name[0][replies[i].op],
		   replies[i].what);
	}
}

/* A reply other than an array of the right length counts for all commands of the batch. */
static void
test_batches(void)
{
	static const ScriptAnswer unexpected = UNEXPECTED;
	static const char three[] = "*3\r\n:1\r\n-ERR x\r\n*3\r\n:7\r\n$1\r\nx\r\n:0\r\n";
	static const char *const none[] = {
		"*0\r\n",
		"*-1\r\n",
		"$-1\r\n",
		":1\r\n",
		"+OK\r\n",
		"$1\r\n1\r\n",
		"*1\r\n:1\r\n",
		"*3\r\n:1\r\n:1\r\n:1\r\n",
		"*1\r\n*2\r\n:1\r\n:1\r\n",
	};
	ScriptAnswer answer;

	read_one(CORE_OP_RELEASE, three, 0, 3, &answer);
	ok(answer.reply == CORE_REPLY_YES, "the first of three");
	read_one(CORE_OP_RENEW, three, 1, 3, &answer);
	ok(answer.reply == CORE_REPLY_ERROR && strcmp(answer.text, "ERR x") == 0,
	   "the second, which alone met an error");
	read_one(CORE_OP_ACQUIRE, three, 2, 3, &answer);
	ok(answer.reply == CORE_REPLY_NO && answer.busy_ms == 7, "the third");

	for (int i = 0; i < lengthof(none); i++)
	{
		bool all = true;

		for (int command = 0; command < 2; command++)
		{
			read_one(CORE_OP_CONFIRM, none[i], command, 2, &answer);
			all = all && same(&answer, &unexpected);
		}
		ok(all, "no answer to a batch of two (%d)", i);
	}

	read_one(CORE_OP_CONFIRM, "-ERR x\r\n", 0, 1, &answer);
	ok(answer.reply == CORE_REPLY_ERROR, "an error of the only command is its own");
	read_one(CORE_OP_CONFIRM, "-ERR x\r\n", 0, 2, &answer);
	ok(answer.reply == CORE_REPLY_UNKNOWN && strcmp(answer.text, "ERR x") == 0,
	   "of one of two, nobody knows whose it is");
	read_one(CORE_OP_CONFIRM, "-" LUA_FORGOT "\r\n", 1, 2, &answer);
	ok(answer.reply == CORE_REPLY_UNKNOWN && answer.forgot, "nor of a marker that went meanwhile");
	read_one(CORE_OP_CONFIRM, "-NOSCRIPT\r\n", 1, 2, &answer);
	ok(answer.reply == CORE_REPLY_ERROR && answer.unknown_script,
	   "by an unknown script nothing was executed");
}

/* The hash identifies the request in the way; a long text is cut. */
static void
test_holders(void)
{
	static const char refused[] = "*1\r\n*3\r\n:1\r\n$1\r\n%c\r\n:0\r\n";
	char text[512];
	ScriptAnswer a;
	ScriptAnswer b;

	snprintf(text, sizeof(text), refused, 'a');
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &a);
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &b);
	ok(a.holder == b.holder, "the same holder has the same hash");
	snprintf(text, sizeof(text), refused, 'b');
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &b);
	ok(a.holder != b.holder, "another has another");

	snprintf(text, sizeof(text), "*1\r\n*3\r\n:1\r\n$200\r\n%0200d\r\n:0\r\n", 0);
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &a);
	ok(strlen(a.text) == SCRIPT_TEXT_MAX && !a.ours, "a long value of a stranger is cut");
	snprintf(text, sizeof(text), "-%0200d\r\n", 0);
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &a);
	ok(strlen(a.text) == SCRIPT_TEXT_MAX, "so is an error");
}

/* ---- commands ---- */

static char key[] = "redlock:job";
static char value[] = VALUE;

static const Waiters two = {2, {{0xc0ffee00c0ffee, 1000}, {0xfedcba9876543210, 5000000}}};

/* The words of a command after key and value, with a '|' after each. */
static const struct
{
	const char *what;
	ScriptCommand command;
	const char *words;
} commands[] = {
	{"acquire",
	 {.op = CORE_OP_ACQUIRE, .wall_clock_us = NOW_US, .ttl_ms = 10000, .waited_us = 37},
	 "10000|1700000000000000|37|"},
	{"try",
	 {.op = CORE_OP_ACQUIRE, .wall_clock_us = NOW_US, .ttl_ms = 10000, .waited_us = -1},
	 "10000|1700000000000000|try|"},
	{"acquire one of 5 permits",
	 {.op = CORE_OP_ACQUIRE,
	  .wall_clock_us = NOW_US,
	  .ttl_ms = 10000,
	  .waited_us = -1,
	  .permits = 5},
	 "10000|1700000000000000|try|5|"},
	{"confirm a token of now",
	 {.op = CORE_OP_CONFIRM,
	  .wall_clock_us = NOW_US,
	  .core.counter = NOW_US - 5,
	  .core.token = NOW_US},
	 "1699999999999995|1700000000000000||"},
	{"confirm a token that is ahead",
	 {.op = CORE_OP_CONFIRM,
	  .wall_clock_us = NOW_US,
	  .core.counter = NOW_US,
	  .core.token = NOW_US + 9000},
	 "1700000000000000|1700000000009000||"},
	{"renew",
	 {.op = CORE_OP_RENEW,
	  .wall_clock_us = NOW_US,
	  .ttl_ms = 3600000,
	  .core.counter = NOW_US,
	  .core.token = NOW_US},
	 "3600000|1700000000000000|1700000000000000|"},
	{"renew, and raise the bound",
	 {.op = CORE_OP_RENEW,
	  .wall_clock_us = NOW_US,
	  .ttl_ms = 100,
	  .core.counter = NOW_US,
	  .core.token = NOW_US + 7000},
	 "100|1700000000000000|1700000000007000|"},
	{"release, and tell", {.op = CORE_OP_RELEASE, .wall_clock_us = NOW_US}, "0|0|0|"},
	{"release, and tell of which lease",
	 {.op = CORE_OP_RELEASE, .wall_clock_us = NOW_US, .token = NOW_US},
	 "0|0|1700000000000000|"},
	{"release, and name who is next",
	 {.op = CORE_OP_RELEASE,
	  .wall_clock_us = NOW_US,
	  .token = NOW_US,
	  .waiters = &two,
	  .now_us = 5000000},
	 "0|0|1700000000000000|00c0ffee00c0ffee|4999000|fedcba9876543210|0|"},
	{"release without a word",
	 {.op = CORE_OP_RELEASE, .wall_clock_us = NOW_US, .ttl_ms = LUA_DELETE},
	 "-1|0|0|"},
	{"release with a tombstone, and keep the key",
	 {.op = CORE_OP_RELEASE,
	  .wall_clock_us = NOW_US,
	  .ttl_ms = 30000,
	  .core.counter = NOW_US + 1000000},
	 "30000|1700000001000000|0|"},
};

static void
add(ScriptBatch *batch, ScriptCommand command)
{
	if (command.key == NULL)
	{
		command.key = key;
		command.key_len = strlen(key);
		command.value = value;
		command.value_len = strlen(value);
	}
	script_add(batch, &command);
}

/* A batch as a node receives it, read by hiredis. */
static redisReply *
send_batch(ScriptBatch *batch, const char *marker, const char *sha)
{
	static char sent[1024 * 1024];
	int sockets[2];
	size_t len = 0;
	int done = 0;
	redisContext *connection;
	redisReply *reply = NULL;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
		return NULL;
	connection = redisConnectFd(sockets[0]);
	if (script_append(connection, batch, marker, sha))
	{
		while (!done && redisBufferWrite(connection, &done) == REDIS_OK)
		{
			ssize_t got = recv(sockets[1], sent + len, sizeof(sent) - len, MSG_DONTWAIT);

			len += Max(got, 0);
		}
		redisFree(connection); /* closes the socket, so that the reader sees the end */
		for (ssize_t got; (got = recv(sockets[1], sent + len, sizeof(sent) - len, 0)) > 0;)
			len += got;
		reply = parse(sent, len);
	}
	close(sockets[1]);
	return reply;
}

static bool
is_text(const redisReply *reply, const char *text)
{
	return reply->type == REDIS_REPLY_STRING && reply->len == strlen(text) &&
		   memcmp(reply->str, text, reply->len) == 0;
}

/* With a '|' in place of each NUL. */
static bool
is_command(const redisReply *reply, core_op op, const char *words)
{
	char text[512];
	int len =
		snprintf(text, sizeof(text), "%s|%s|%s|%s", lua_command_name[0][op], key, value, words);

	for (int i = 0; i < len; i++)
		if (text[i] == '|')
			text[i] = '\0';
	return reply->type == REDIS_REPLY_STRING && reply->len == len &&
		   memcmp(reply->str, text, len) == 0;
}

static void
test_commands(void)
{
	ScriptBatch *batch = calloc(1, sizeof(*batch));
	redisReply *sent;

	for (int i = 0; i < lengthof(commands); i++)
	{
		add(batch, commands[i].command);
		sent = send_batch(batch, "marker", SHA);
		ok(sent != NULL && sent->type == REDIS_REPLY_ARRAY && sent->elements == 5 &&
			   is_text(sent->element[0], "EVALSHA") && is_text(sent->element[1], SHA) &&
			   is_text(sent->element[2], "0") && is_text(sent->element[3], "marker") &&
			   is_command(sent->element[4], commands[i].command.op, commands[i].words),
		   "%s", commands[i].what);
		freeReplyObject(sent);
		ok(batch->count == 0 && batch->len == 0, "and the batch is empty");
	}

	for (int i = 0; i < lengthof(commands); i++)
		add(batch, commands[i].command);
	sent = send_batch(batch, "", NULL);
	ok(sent != NULL && sent->elements == 4 + lengthof(commands) &&
		   is_text(sent->element[0], "EVAL") && is_text(sent->element[1], lua_script) &&
		   is_text(sent->element[2], "0") && is_text(sent->element[3], ""),
	   "by the script's text, with an empty marker");
	for (int i = 0; i < lengthof(commands); i++)
		ok(is_command(sent->element[4 + i], commands[i].command.op, commands[i].words),
		   "%s, in its place", commands[i].what);
	freeReplyObject(sent);
	free(batch);
}

/* A full batch of the longest commands. */
static void
test_room(void)
{
	static char longest_key[LOCK_PREFIX_MAX + LOCK_NAME_MAX];
	static char longest_value[SCRIPT_VALUE_SIZE];
	char marker[LUA_MARKER_MAX + 1];
	ScriptBatch *batch = calloc(1, sizeof(*batch));
	redisReply *sent;
	Waiters crowd = {.count = WAITERS_MAX};
	bool whole = true;

	memset(longest_key, 'k', sizeof(longest_key));
	memset(longest_value, 'v', sizeof(longest_value));
	memset(marker, 'm', LUA_MARKER_MAX);
	marker[LUA_MARKER_MAX] = '\0';
	for (int i = 0; i < WAITERS_MAX; i++)
		crowd.waiter[i] = (Waiter){i + 1, -PG_INT64_MAX / 2};
	for (int i = 0; i < SCRIPT_BATCH_MAX; i++)
		add(batch, (ScriptCommand){.op = CORE_OP_RELEASE,
								   .key = longest_key,
								   .key_len = sizeof(longest_key),
								   .value = longest_value,
								   .value_len = sizeof(longest_value),
								   .ttl_ms = PG_INT64_MIN,
								   .core.counter = PG_INT64_MAX,
								   .token = PG_INT64_MAX,
								   .waiters = &crowd,
								   .now_us = PG_INT64_MAX / 2});
	sent = send_batch(batch, marker, NULL);
	ok(sent != NULL && sent->elements == 4 + SCRIPT_BATCH_MAX &&
		   is_text(sent->element[1], lua_script) && is_text(sent->element[3], marker),
	   "the largest batch has room");
	for (int i = 1; i < SCRIPT_BATCH_MAX; i++)
		whole =
			whole && sent->element[4 + i]->len == sent->element[4]->len &&
			memcmp(sent->element[4 + i]->str, sent->element[4]->str, sent->element[4]->len) == 0;
	ok(whole && sent->element[4]->len > sizeof(longest_key) + sizeof(longest_value) + 3 * 19 +
											WAITERS_MAX * (LOCK_HOST_DIGITS + 17),
	   "and all of it is sent");
	freeReplyObject(sent);
	free(batch);
}

/* Reading a lock's value returns the written parts. */
static void
test_values(void)
{
	static const uint8 secret[LOCK_SECRET_BYTES] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
													0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10};
	static const struct
	{
		uint32 attempt;
		const char *digits;
	} attempts[] = {{0, "000000000"}, {1, "000000001"}, {(1 << 27) - 1, "134217727"}};
	char *written = malloc(SCRIPT_VALUE_SIZE);
	char holder[LOCK_HOLDER_MAX + 1];
	char text[512];
	size_t len;
	ScriptAnswer answer;

	for (int i = 0; i < lengthof(attempts); i++)
	{
		len = script_value(written, secret, 0xc0ffee00c0ffee, false, i == 0, "host a");
		script_set_attempt(written, attempts[i].attempt);
		snprintf(text, sizeof(text), SECRET ":%s:" HOST "%chost a", attempts[i].digits,
				 i == 0 ? '~' : ' ');
		ok(len == strlen(text) && memcmp(written, text, len) == 0, "the value of attempt %u",
		   attempts[i].attempt);
	}

	memset(holder, 'h', LOCK_HOLDER_MAX);
	holder[LOCK_HOLDER_MAX] = '\0';
	len = script_value(written, secret, PG_UINT64_MAX, false, true, holder);
	script_set_attempt(written, 1);
	snprintf(text, sizeof(text), "*1\r\n*3\r\n:1\r\n$%d\r\n%.*s\r\n:0\r\n", (int) len, (int) len,
			 written);
	read_one(CORE_OP_ACQUIRE, text, 0, 1, &answer);
	ok(answer.ours && answer.may_idle && !answer.kept && strcmp(answer.text, holder) == 0,
	   "the longest holder is told");
	free(written);
}

/* ---- messages ---- */

#define A "000000000000000a"
#define B "000000000000000b"

/* Messages, with a '|' for each NUL.  A message may come from a stranger. */
static const struct
{
	const char *what;
	const char *text;
	ScriptWord word;
	int64 token;
	int count;
	uint64 host[WAITERS_MAX];
} messages[] = {
	{"a release", "free|1700000000000000|", SCRIPT_FREE, NOW_US, 0, {0}},
	{"that names two", "free|17|" A "|20|" B "|10|", SCRIPT_FREE, 17, 2, {10, 11}},
	{"in the order of their turns", "free|17|" A "|10|" B "|20|", SCRIPT_FREE, 17, 2, {11, 10}},
	{"one host twice", "free|17|" A "|10|" A "|20|", SCRIPT_FREE, 17, 1, {10}},
	{"by release 0.1.0", "free", SCRIPT_FREE, 0, 0, {0}},
	{"by a plain client", "what it likes|" A "|1|", SCRIPT_FREE, 0, 0, {0}},
	{"without a token", "free|", SCRIPT_FREE, 0, 0, {0}},
	{"with an empty token", "free||" A "|1|", SCRIPT_FREE, 0, 0, {0}},
	{"with a negative token", "free|-1|" A "|1|", SCRIPT_FREE, 0, 0, {0}},
	{"with a token that is none", "free|17x|" A "|1|", SCRIPT_FREE, 0, 0, {0}},
	{"with a token out of all bounds", "free|99999999999999999|" A "|1|", SCRIPT_FREE, 0, 0, {0}},
	{"cut short in its token", "free|17", SCRIPT_FREE, 0, 0, {0}},
	{"cut short in a host", "free|17|" A "|1|00000000", SCRIPT_FREE, 17, 1, {10}},
	{"cut short in a time", "free|17|" A "|1|" B "|2", SCRIPT_FREE, 17, 1, {10}},
	{"a host that is too short", "free|17|00a|1|" B "|2|", SCRIPT_FREE, 17, 0, {0}},
	{"a host that is too long", "free|17|0" A "|1|" B "|2|", SCRIPT_FREE, 17, 0, {0}},
	{"a host in capitals", "free|17|000000000000000A|1|", SCRIPT_FREE, 17, 0, {0}},
	{"no host", "free|17|0000000000000000|1|" B "|2|", SCRIPT_FREE, 17, 0, {0}},
	{"a time that is none", "free|17|" A "|1x|", SCRIPT_FREE, 17, 0, {0}},
	{"a time before", "free|17|" A "|-1|", SCRIPT_FREE, 17, 0, {0}},
	{"a longest time", "free|17|" A "|999999999999999|", SCRIPT_FREE, 17, 1, {10}},
	{"a longer one", "free|17|" A "|1000000000000000|", SCRIPT_FREE, 17, 0, {0}},
	{"an empty time", "free|17|" A "||", SCRIPT_FREE, 17, 0, {0}},
	{"a want", "want|redlock:job|" A "|5|", SCRIPT_WANT, 0, 1, {10}},
	{"a try", "want|redlock:job|" A "|try|", SCRIPT_WANT, 0, 0, {0}},
	{"a try of nobody", "want|redlock:job|try|", SCRIPT_FREE, 0, 0, {0}},
	{"another word for it", "want|redlock:job|" A "|tries|", SCRIPT_FREE, 0, 0, {0}},
	{"a want without a host", "want|redlock:job|", SCRIPT_FREE, 0, 0, {0}},
	{"a want without a time", "want|redlock:job|" A "|", SCRIPT_FREE, 0, 0, {0}},
	{"a want cut short", "want|redlock:job|" A "|5", SCRIPT_FREE, 0, 0, {0}},
	{"a want of nothing", "want|", SCRIPT_FREE, 0, 0, {0}},
	{"a forced release", "forced|redlock:job|", SCRIPT_FORCED, 0, 0, {0}},
	{"a forced release cut short", "forced|redlock:job", SCRIPT_FREE, 0, 0, {0}},
	{"a forced release of nothing", "forced|", SCRIPT_FREE, 0, 0, {0}},
	{"an ask", "ask|redlock:job|" A "|", SCRIPT_ASK, 0, 0, {0}},
	{"an ask without a number", "ask|redlock:job|", SCRIPT_FREE, 0, 0, {0}},
	{"an ask with a short number", "ask|redlock:job|00a|", SCRIPT_FREE, 0, 0, {0}},
	{"an ask with a number that is none",
	 "ask|redlock:job|00000000000000xy|",
	 SCRIPT_FREE,
	 0,
	 0,
	 {0}},
	{"an ask cut short", "ask|redlock:job|" A, SCRIPT_FREE, 0, 0, {0}},
	{"an ask for nothing", "ask|", SCRIPT_FREE, 0, 0, {0}},
	{"a permit", "permit|1|", SCRIPT_PERMIT, 0, 0, {0}},
	{"a permit without a number", "permit|", SCRIPT_FREE, 0, 0, {0}},
	{"a permit that can't be", "permit|1001|", SCRIPT_FREE, 0, 0, {0}},
	{"a question", "who waits|redlock:job|" A "|" B "|", SCRIPT_QUESTION, 0, 0, {0}},
	{"a question cut short", "who waits|redlock:job|" A "|" B, SCRIPT_FREE, 0, 0, {0}},
	{"an answer", "waits|" A "|" B "|a|m|1|2|3|4|", SCRIPT_WAITS, 0, 0, {0}},
	{"an answer of nobody", "waits|" A "|0000000000000000|a|m|1|2|3|4|", SCRIPT_FREE, 0, 0, {0}},
	{"another word", "wants|redlock:job|" A "|5|", SCRIPT_FREE, 0, 0, {0}},
	{"a longer word", "freedom|17|", SCRIPT_FREE, 0, 0, {0}},
	{"nothing", "", SCRIPT_FREE, 0, 0, {0}},
	{"an empty word", "|", SCRIPT_FREE, 0, 0, {0}},
};

static void
hear(const char *text, size_t len, ScriptMessage *message)
{
	char *exact = malloc(len + 1); /* so that a sanitizer sees a read past its end */

	memcpy(exact, text, len);
	exact[len] = '\0';
	memset(message, 0x55, sizeof(*message));
	script_hear(exact, len, 77000000, message);
	if (message->word == SCRIPT_WANT || message->word == SCRIPT_FORCED ||
		message->word == SCRIPT_ASK)
		ok(message->key_len == strlen(key) && memcmp(message->key, key, message->key_len) == 0,
		   "the key of the message");
	free(exact);
}

static void
test_messages(void)
{
	char text[4096];
	ScriptMessage message;
	int len;

	for (int i = 0; i < lengthof(messages); i++)
	{
		bool good = true;

		len = snprintf(text, sizeof(text), "%s", messages[i].text);
		for (int at = 0; at < len; at++)
			if (text[at] == '|')
				text[at] = '\0';
		hear(text, len, &message);
		good = message.word == messages[i].word && message.token == messages[i].token &&
			   message.waiters.count == messages[i].count;
		for (int w = 0; good && w < messages[i].count; w++)
			good = message.waiters.waiter[w].host == messages[i].host[w];
		ok(good, "message: %s", messages[i].what);
	}

	len = sprintf(text, "want%credlock:job%c" A "%c5%c", 0, 0, 0, 0);
	hear(text, len, &message);
	ok(message.waiters.waiter[0].since_us == 77000000 - 5, "since when, by our clock");
	for (int shared = 0; shared < 2; shared++)
	{
		len = (int) script_write_want(text, key, strlen(key), 10, 5000, shared);
		hear(text, len, &message);
		ok(message.word == SCRIPT_WANT && message.waiters.count == 1 &&
			   message.waiters.waiter[0].host == 10 &&
			   message.waiters.waiter[0].since_us == 77000000 - 5000 && message.shared == shared,
		   "a want that this server writes%s", shared ? ", of a reader" : "");
	}

	len = (int) script_write_forced(text, key, strlen(key));
	hear(text, len, &message);
	ok(message.word == SCRIPT_FORCED, "a forced release that this server tells");

	len = (int) script_write_ask(text, key, strlen(key), UINT64CONST(0xfedcba9876543210));
	hear(text, len, &message);
	ok(message.word == SCRIPT_ASK && message.ask == UINT64CONST(0xfedcba9876543210),
	   "an ask that this server writes");

	len = sprintf(text, "free%c17%c", 0, 0);
	for (int i = 0; i < 50; i++)
		len += sprintf(text + len, "%016x%c%d%c", i + 1, 0, 50 - i, 0);
	hear(text, len, &message);
	ok(message.waiters.count == WAITERS_MAX && message.waiters.waiter[0].host == 1 &&
		   message.waiters.waiter[WAITERS_MAX - 1].host == WAITERS_MAX,
	   "no more hosts than can be named");
}

/* Probes with a '|' for each NUL, and STEPS for the longest path. */
static const struct
{
	const char *what;
	const char *text;
	int count; /* 0: not a probe */
	bool shared;
} probes[] = {
	{"one step", "probe|redlock:job|7|" A "|1|1|123|a|redlock \"x\"|", 1},
	{"to share a lock", "probe shared|redlock:job|7|" A "|1|1|123|a|redlock \"x\"|", 1, true},
	{"for what is none", "probe any|redlock:job|7|" A "|1|1|123|a|redlock \"x\"|", 0},
	{"two steps", "probe|redlock:job|7|" A "|1|1|123|a|x|" B "|2|0|456|b|y|", 2},
	{"as many as can be", "probe|redlock:job|7|STEPS", PROBE_STEPS_MAX},
	{"one more", "probe|redlock:job|7|STEPS" B "|1|0|1|b|y|", 0},
	{"no step", "probe|redlock:job|7|", 0},
	{"no number", "probe|redlock:job||" A "|1|1|123|a|x|", 0},
	{"a number out of all bounds", "probe|redlock:job|8589934592|" A "|1|1|123|a|x|", 0},
	{"a wait twice", "probe|redlock:job|7|" A "|1|1|123|a|x|" A "|1|1|123|a|x|", 0},
	{"a wait that drops it", "probe|redlock:job|7|" A "|1|1|123|a|x|" B "|1|1|123|a|x|", 0},
	{"a host that is none", "probe|redlock:job|7|0000000000000000|1|1|123|a|x|", 0},
	{"a flag that is none", "probe|redlock:job|7|" A "|1|2|123|a|x|", 0},
	{"a process that can't be", "probe|redlock:job|7|" A "|1|1|2147483648|a|x|", 0},
	{"a negative wait", "probe|redlock:job|7|" A "|-1|1|123|a|x|", 0},
	{"cut short in a step", "probe|redlock:job|7|" A "|1|1|123|a|x|" B "|1|0", 0},
	{"cut short in a text", "probe|redlock:job|7|" A "|1|1|123|a|x", 0},
	{"no key", "probe|", 0},
};

static void
test_probes(void)
{
	char text[SCRIPT_PROBE_MAX];
	char again[SCRIPT_PROBE_MAX];
	char long_text[300];
	ScriptMessage message;
	ScriptProbe *probe = &message.probe;
	size_t len;

	for (int i = 0; i < lengthof(probes); i++)
	{
		const char *steps = strstr(probes[i].text, "STEPS");

		len = sprintf(text, "%.*s", steps ? (int) (steps - probes[i].text) : 1000, probes[i].text);
		for (int s = 0; steps && s < PROBE_STEPS_MAX; s++)
			len += sprintf(text + len, A "|%d|0|%d|a|x|", s + 1, s + 1);
		if (steps)
			len += sprintf(text + len, "%s", steps + 5);
		for (size_t at = 0; at < len; at++)
			if (text[at] == '|')
				text[at] = '\0';
		hear(text, len, &message);
		ok((message.word == SCRIPT_PROBE) == (probes[i].count > 0) &&
			   (probes[i].count == 0 ||
				(probe->path.count == probes[i].count && probe->shared == probes[i].shared)),
		   "probe: %s", probes[i].what);
	}

	/* the longest probe is written, and read unchanged */
	memset(long_text, 'x', sizeof(long_text));
	probe->shared = true;
	probe->path.number = PG_UINT32_MAX;
	probe->path.by_queue = true;
	probe->path.count = PROBE_STEPS_MAX;
	for (int i = 0; i < PROBE_STEPS_MAX; i++)
	{
		probe->path.step[i] = (ProbeStep){PG_UINT64_MAX - i, PG_INT64_MAX - 1, i % 2};
		probe->text[i].pid = PG_INT32_MAX;
		snprintf(probe->text[i].server, SCRIPT_SERVER_SIZE, "%.*s", SCRIPT_SERVER_SIZE - 1,
				 long_text);
		snprintf(probe->text[i].what, SCRIPT_WHAT_SIZE, "%.*s", SCRIPT_WHAT_SIZE - 1, long_text);
	}
	len = script_write_probe(text, long_text, 300, probe);
	memset(&message, 0, sizeof(message));
	hear(text, len, &message);
	ok(message.word == SCRIPT_PROBE && message.probe.path.count == PROBE_STEPS_MAX &&
		   message.probe.shared && message.probe.path.by_queue &&
		   message.probe.path.number == PG_UINT32_MAX,
	   "the longest probe is read");
	ok(script_write_probe(again, long_text, 300, &message.probe) == len &&
		   memcmp(text, again, len) == 0,
	   "... as it was written");
}

int
main(void)
{
	test_probes();
	test_replies();
	test_batches();
	test_holders();
	test_commands();
	test_room();
	test_values();
	test_messages();
	return tap_done();
}
