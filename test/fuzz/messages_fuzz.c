/*
 * messages_fuzz.c
 *		Messages between hosts, by src/broker/script.c and the files of the protocol that it calls.
 *
 * Claims: a message, heard and written again, is heard as the same message; the key lies within the
 * text; texts for people have no control characters; waiting hosts are in order; no message writes
 * beyond its own part of the result.
 */
#include "postgres.h"

#include "fuzz.h"

#include "broker/script.h"
#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/text.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOW_US INT64CONST(1700000000000000)
#define KEY_MAX (LOCK_PREFIX_MAX + LOCK_NAME_MAX)

int64
redlock_wall_clock_us(void)
{
	return NOW_US;
}

static void
must_be_fit(const char *text, size_t room)
{
	must(memchr(text, '\0', room) != NULL);
	for (; *text != '\0'; text += text_utf8_len(text, strlen(text)))
		must(text_utf8_len(text, strlen(text)) > 0);
}

static void
check_waiters(const Waiters *waiters, int most)
{
	must(waiters->count >= 0 && waiters->count <= most);
	for (int i = 0; i < waiters->count; i++)
	{
		const Waiter *waiter = &waiters->waiter[i];

		must(waiter->host != 0 && waiter->since_us >= 0 && waiter->since_us <= NOW_US);
		must(i == 0 || waiters->waiter[i - 1].since_us <= waiter->since_us);
		must(waiters_place(waiters, waiter->host) == i);
	}
}

static void
check_probe(const ScriptProbe *probe)
{
	must(probe->path.count > 0 && probe->path.count <= PROBE_STEPS_MAX);
	for (int i = 0; i < probe->path.count; i++)
	{
		must(probe->path.step[i].host != 0 && probe->text[i].pid >= 0);
		must_be_fit(probe->text[i].server, SCRIPT_SERVER_SIZE);
		must_be_fit(probe->text[i].what, SCRIPT_WHAT_SIZE);
	}
}

static void
check_key(const char *key, size_t len, const char *text, size_t text_len)
{
	must(key >= text && len < text_len && key + len < text + text_len && key[len] == '\0');
}

static void
check(const ScriptMessage *is, const char *text, size_t len)
{
	must(is->token >= 0 && is->token <= LUA_COUNTER_END);
	check_waiters(&is->waiters, is->word == SCRIPT_FREE ? WAITERS_MAX : is->word == SCRIPT_WANT);
	switch (is->word)
	{
		case SCRIPT_FREE:
			break;
		case SCRIPT_PERMIT:
			must(is->permit >= 0 && is->permit <= PERMITS_MAX);
			break;
		case SCRIPT_FORCED:
		case SCRIPT_ASK:
		case SCRIPT_WANT:
			check_key(is->key, is->key_len, text, len);
			break;
		case SCRIPT_PROBE:
			check_key(is->probe.key, is->probe.key_len, text, len);
			check_probe(&is->probe);
			break;
		case SCRIPT_QUESTION:
			check_key(is->question.key, is->question.key_len, text, len);
			must(is->question.host != 0 && is->question.key_len > 0 &&
				 is->question.key_len <= KEY_MAX);
			break;
		case SCRIPT_WAITS:
			must(is->waiting.host != 0);
			must_be_fit(is->waiting.cluster, sizeof(is->waiting.cluster));
			must_be_fit(is->waiting.machine, sizeof(is->waiting.machine));
			must(is->waiting.mode[0].sessions >= 0 && is->waiting.mode[1].sessions >= 0);
			break;
	}
}

/* Only an answer may write the part of the message behind the probe. */
static void
check_rest(const ScriptMessage *is, const char *text, size_t len, uint8_t before)
{
	const uint8_t *rest = (const uint8_t *) &is->waiting;

	if (len >= sizeof(WAITING_ANSWER) && memcmp(text, WAITING_ANSWER, sizeof(WAITING_ANSWER)) == 0)
		return;
	for (size_t i = 0; i < sizeof(is->waiting); i++)
		must(rest[i] == before);
}

/* Writes the message as this server would.  Returns its length; 0: hosts write no such message. */
static size_t
write_again(char *text, const ScriptMessage *is)
{
	ScriptCommand release = {.token = is->token, .waiters = &is->waiters, .now_us = NOW_US};
	bool waits = is->waiters.count > 0;

	switch (is->word)
	{
		case SCRIPT_FREE:
			return is->token > 0 ? script_write_free(text, &release) : 0;
		case SCRIPT_PERMIT:
			return script_write_permit(text, is->permit);
		case SCRIPT_FORCED:
			return is->key_len <= KEY_MAX ? script_write_forced(text, is->key, is->key_len) : 0;
		case SCRIPT_ASK:
			return is->key_len <= KEY_MAX ? script_write_ask(text, is->key, is->key_len, is->ask)
										  : 0;
		case SCRIPT_WANT:
			return is->key_len <= KEY_MAX
					   ? script_write_want(
							 text, is->key, is->key_len, waits ? is->waiters.waiter[0].host : 1,
							 waits ? NOW_US - is->waiters.waiter[0].since_us : -1, is->shared)
					   : 0;
		case SCRIPT_PROBE:
			return is->probe.key_len <= KEY_MAX
					   ? script_write_probe(text, is->probe.key, is->probe.key_len, &is->probe)
					   : 0;
		case SCRIPT_QUESTION:
			return waiting_write_question(text, &is->question);
		case SCRIPT_WAITS:
			return waiting_write_answer(text, is->number, &is->waiting);
	}
	return 0;
}

static bool
same_waiters(const Waiters *one, const Waiters *other)
{
	bool same = one->count == other->count;

	for (int i = 0; same && i < one->count; i++)
		same = one->waiter[i].host == other->waiter[i].host &&
			   one->waiter[i].since_us == other->waiter[i].since_us;
	return same;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static ScriptMessage heard;
	static ScriptMessage again;
	static char text[SCRIPT_PROBE_MAX];
	static char text_again[SCRIPT_PROBE_MAX];
	size_t len;

	memset(&heard, 0x55, sizeof(heard));
	script_hear((const char *) data, size, NOW_US, &heard);
	check(&heard, (const char *) data, size);
	check_rest(&heard, (const char *) data, size, 0x55);
	len = write_again(text, &heard);
	if (len == 0)
		return 0;
	must(len <= sizeof(text));
	memset(&again, 0xaa, sizeof(again));
	script_hear(text, len, NOW_US, &again);
	check(&again, text, len);
	must(again.word == heard.word && again.token == heard.token);
	must(same_waiters(&again.waiters, &heard.waiters));
	must(write_again(text_again, &again) == len && memcmp(text, text_again, len) == 0);
	return 0;
}
