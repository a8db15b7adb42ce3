/*
 * value_fuzz.c
 *		The value under a lock's name, by src/protocol/value.c.
 *
 * Claims: a value of another form leaves no trace in the result; a value that is read, and written
 * again from the result, has the same bytes.
 */
#include "fuzz.h"

#include "protocol/permits.h"
#include "protocol/value.h"
#include "protocol/words.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Writes the head of the value as the result has it.  Returns the length of the head. */
static size_t
write_head(char *head, const Value *value, const char *bytes)
{
	char *at = head;

	memcpy(at, bytes, VALUE_HOST_AT); /* the secret and the attempt are in no result */
	at = words_put_id(at + VALUE_HOST_AT, value->host) - 1;
	if (value->shared)
		*at++ = LUA_SHARED[0];
	/* the end of a lease leaves open whether the lease could be idle */
	*at++ = value->may_idle || (value->kept && bytes[VALUE_HEAD - 1] == LUA_MAY_IDLE[0])
				? LUA_MAY_IDLE[0]
				: ' ';
	if (value->kept)
	{
		memcpy(at, LUA_KEPT, strlen(LUA_KEPT));
		at += strlen(LUA_KEPT);
	}
	return (size_t) (at - head);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *bytes = (const char *) data;
	const Value none = {0};
	char head[VALUE_HEAD + 16];
	char word[32];
	Value value;

	memset(&value, 0x55, sizeof(value));
	value_read(&value, bytes, size);
	if (!value.ours)
	{
		must(memcmp(&value, &none, sizeof(value)) == 0);
		return 0;
	}
	must(value.text >= VALUE_HEAD && value.text <= size);
	must(write_head(head, &value, bytes) == value.text);
	must(memcmp(head, bytes, value.text) == 0);
	must(!(value.kept && value.may_idle) && !(value.shared && value.kept));
	must(value.permits >= 0 && value.permits <= PERMITS_MAX);
	if (value.permits > 0)
	{
		size_t len = size - value.text;
		size_t digits;

		snprintf(word, sizeof(word), "permits=%d ", value.permits);
		must(!value.shared && len >= strlen(word));
		/* zeros may stand before the number */
		for (digits = 8; bytes[value.text + digits] == '0'; digits++)
			;
		must(len - digits >= strlen(word + 8));
		must(memcmp(bytes + value.text + digits, word + 8, strlen(word + 8)) == 0);
	}
	return 0;
}
