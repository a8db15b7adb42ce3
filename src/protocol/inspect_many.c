/*
 * inspect_many.c
 *		The records of inspect_many.lua; see inspect_many.h.
 */
#include "protocol/inspect_many.h"

#include <string.h>

static bool take_host(const char **at, uint64_t *host);

int
inspect_many_write(char *at, const Inspected *key)
{
	static const int kinds[] = {[INSPECTED_NONE] = LUA_KEY_NONE,
								[INSPECTED_STRING] = LUA_KEY_STRING,
								[INSPECTED_OTHER] = LUA_KEY_OTHER};
	char *begin = at;
	bool there = key->kind != INSPECTED_NONE;

	at = words_put_number(at, kinds[key->kind]);
	at = words_put_number(at, there ? key->ttl_ms + 1 : 0);
	at = words_put_number(at, key->readers);
	at = words_put_number(at, key->hosts);
	at = words_put_number(at, key->value_len);
	for (int i = 0; i < key->hosts; i++)
		at = words_put_id(at, key->host[i]) - 1; /* without its NUL */
	memcpy(at, key->value, (size_t) key->value_len);
	return (int) (at + key->value_len - begin);
}

int
inspect_many_count(const char *text, size_t len, int keys)
{
	const char *at = text;
	const char *end = text + len;
	int count = 0;

	while (at < end)
	{
		Inspected key;

		if (count == keys || !inspect_many_read(&at, end, &key))
			return 0;
		count++;
	}
	return count < keys && len + INSPECT_MANY_RECORD_MAX <= LUA_KEYS_SIZE ? 0 : count;
}

bool
inspect_many_read(const char **at, const char *end, Inspected *key)
{
	static const InspectedKind kinds[] = {[LUA_KEY_NONE] = INSPECTED_NONE,
										  [LUA_KEY_STRING] = INSPECTED_STRING,
										  [LUA_KEY_OTHER] = INSPECTED_OTHER,
										  [LUA_KEY_ERROR] = INSPECTED_ERROR};
	int64_t kind, life_ms, readers, hosts, bytes;

	if (!words_take_number(at, end, LUA_KEY_ERROR, &kind) ||
		!words_take_number(at, end, LUA_LIFE_MAX, &life_ms) ||
		!words_take_number(at, end, INT32_MAX, &readers) ||
		!words_take_number(at, end, LUA_READERS_ASKED, &hosts) ||
		!words_take_number(at, end, LUA_HELD_MAX, &bytes) ||
		end - *at < hosts * LUA_HOST_DIGITS + bytes)
		return false;
	key->kind = kinds[kind];
	key->ttl_ms = life_ms - 1;
	key->readers = (int) readers;
	key->hosts = (int) hosts;
	for (int i = 0; i < hosts; i++)
		if (!take_host(at, &key->host[i]))
			return false;
	key->value_len = (int) bytes;
	memcpy(key->value, *at, bytes);
	key->value[bytes] = '\0';
	*at += bytes;
	memset(key->permit, 0, sizeof(key->permit));
	key->error[0] = '\0';
	return true;
}

/* An id without a NUL.  The caller has checked the length. */
static bool
take_host(const char **at, uint64_t *host)
{
	char word[LUA_HOST_DIGITS + 1] = {0};
	const char *begin = word;

	memcpy(word, *at, LUA_HOST_DIGITS);
	*at += LUA_HOST_DIGITS;
	return words_take_id(&begin, word + sizeof(word), host);
}
