/*
 * replies_fuzz.c
 *		Replies of nodes to the commands on locks, by src/broker/script.c: hiredis reads the bytes,
 *		and the script's reader makes a vote.
 *
 * Claims: each field is within the bounds of script.h; a grant has a token that may spread to other
 * nodes; each text is fit for people; an answer that is no answer counts for no command.
 */
#include "postgres.h"

#include "fuzz.h"

#include "broker/script.h"
#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/text.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOW_US INT64CONST(1700000000000000)

static void *(*create_array)(const redisReadTask *task, RedlockElements elements);

int64
redlock_wall_clock_us(void)
{
	return NOW_US;
}

/* as node_limit_replies */
static void *
create_short_array(const redisReadTask *task, RedlockElements elements)
{
	return elements <= SCRIPT_BATCH_MAX ? create_array(task, elements) : NULL;
}

static void
check(core_op op, const redisReply *reply, int count, const ScriptAnswer *is)
{
	must(is->reply == CORE_REPLY_YES || is->reply == CORE_REPLY_NO ||
		 is->reply == CORE_REPLY_ERROR || is->reply == CORE_REPLY_UNKNOWN);
	must(memchr(is->text, '\0', sizeof(is->text)) != NULL);
	for (const char *at = is->text; *at != '\0'; at += text_utf8_len(at, strlen(at)))
		must(text_utf8_len(at, strlen(at)) > 0);
	if (op == CORE_OP_ACQUIRE && is->reply == CORE_REPLY_YES)
		must(is->token > NOW_US / 2 && is->token <= NOW_US + SCRIPT_TOKEN_AHEAD_MAX_US);
	must(is->busy_ms >= 0 && is->busy_ms <= PG_INT32_MAX);
	must(is->waiting >= 0 && is->free_permit >= 0 && is->free_permit <= PERMITS_MAX);
	must(is->ours || !(is->kept || is->may_idle || is->by_readers || is->host != 0));
	must(!is->kept || is->host == 0);
	must(!(is->unknown_script || is->forgot || is->demoted) || is->reply == CORE_REPLY_ERROR ||
		 is->reply == CORE_REPLY_UNKNOWN);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != (size_t) count)
		must(is->reply == CORE_REPLY_ERROR || is->reply == CORE_REPLY_UNKNOWN);
}

static void
read_all(redisReply *reply)
{
	static ScriptAnswer answer;

	for (int count = 1; count <= 3; count++)
		for (int i = 0; i < count; i++)
			for (int op = CORE_OP_ACQUIRE; op <= CORE_OP_RELEASE; op++)
			{
				memset(&answer, 0x55, sizeof(answer));
				script_read((core_op) op, reply, i, count, &answer);
				check((core_op) op, reply, count, &answer);
			}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	redisReader *reader = redisReaderCreate();
	redisReplyObjectFunctions limited = *reader->fn;
	void *reply = NULL;

	create_array = limited.createArray;
	limited.createArray = create_short_array;
	reader->fn = &limited;
	(void) redisReaderFeed(reader, (const char *) data, size);
	while (redisReaderGetReply(reader, &reply) == REDIS_OK && reply != NULL)
	{
		read_all(reply);
		freeReplyObject(reply);
	}
	redisReaderFree(reader);
	return 0;
}
