/*
 * value.c
 *		The form of a lock's value; see value.h.
 */
#include "protocol/value.h"

#include <string.h>

#include "protocol/permits.h"

/* before the number of permits, in the text for people: see holder.h */
#define PERMITS_WORD "permits="

static bool are_digits(const char *at, int count, bool hex);
static uint64_t host_of(const char *at);
static int permits_of(const char *at, const char *end);

void
value_read(Value *value, const char *bytes, size_t len)
{
	char kind;

	memset(value, 0, sizeof(*value));
	if (len < VALUE_HEAD || !are_digits(bytes, VALUE_REQUEST, true) ||
		bytes[VALUE_REQUEST] != ':' ||
		!are_digits(bytes + VALUE_ATTEMPT_AT, VALUE_ATTEMPT_DIGITS, false) ||
		bytes[VALUE_HOST_AT - 1] != ':' ||
		!are_digits(bytes + VALUE_HOST_AT, LOCK_HOST_DIGITS, true))
		return;
	kind = bytes[VALUE_HEAD - 1];
	value->text = VALUE_HEAD;
	if (kind == LUA_SHARED[0] && len > VALUE_HEAD)
	{
		value->shared = true;
		kind = bytes[value->text++];
	}
	if (kind != ' ' && kind != LUA_MAY_IDLE[0])
	{
		memset(value, 0, sizeof(*value));
		return;
	}
	value->ours = true;
	value->host = host_of(bytes + VALUE_HOST_AT);
	value->kept = !value->shared && len - value->text >= strlen(LUA_KEPT) &&
				  memcmp(bytes + value->text, LUA_KEPT, strlen(LUA_KEPT)) == 0;
	if (value->kept)
		value->text += strlen(LUA_KEPT);
	value->may_idle = !value->kept && kind == LUA_MAY_IDLE[0];
	if (!value->shared)
		value->permits = permits_of(bytes + value->text, bytes + len);
}

static bool
are_digits(const char *at, int count, bool hex)
{
	for (int i = 0; i < count; i++)
		if (!((at[i] >= '0' && at[i] <= '9') || (hex && at[i] >= 'a' && at[i] <= 'f')))
			return false;
	return true;
}

static uint64_t
host_of(const char *at)
{
	uint64_t host = 0;

	for (int i = 0; i < LOCK_HOST_DIGITS; i++)
		host = host * 16 + (at[i] <= '9' ? at[i] - '0' : at[i] - 'a' + 10);
	return host;
}

/* The number of permits, or 0. */
static int
permits_of(const char *at, const char *end)
{
	int permits = 0;

	if ((size_t) (end - at) < strlen(PERMITS_WORD) ||
		memcmp(at, PERMITS_WORD, strlen(PERMITS_WORD)) != 0)
		return 0;
	for (at += strlen(PERMITS_WORD); at < end && *at >= '0' && *at <= '9'; at++)
		if ((permits = permits * 10 + *at - '0') > PERMITS_MAX)
			return 0;
	return at < end && *at == ' ' ? permits : 0;
}
