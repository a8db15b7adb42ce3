/*
 * inspect_many_fuzz.c
 *		Records of many locks in one answer, by src/protocol/inspect_many.c.
 *
 * Claims: each record ends within the answer, and has a value and hosts within their bounds; as
 * many records are read as are counted.
 */
#include "fuzz.h"

#include "protocol/inspect_many.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	int keys = 1 + (int) take_below(&bytes, INSPECT_MANY_KEYS);
	const char *at = (const char *) bytes.at;
	const char *end = (const char *) bytes.end;
	int count = inspect_many_count(at, (size_t) (end - at), keys);
	Inspected key;

	must(count >= 0 && count <= keys);
	for (int i = 0; i < count; i++)
	{
		const char *before = at;

		must(inspect_many_read(&at, end, &key) && at > before && at <= end);
		must(key.kind >= INSPECTED_ERROR && key.kind <= INSPECTED_OTHER);
		must(key.value_len >= 0 && key.value_len <= LUA_HELD_MAX);
		must(memcmp(at - key.value_len, key.value, (size_t) key.value_len) == 0);
		must(key.ttl_ms >= -1 && key.readers >= 0);
		must(key.hosts >= 0 && key.hosts <= LUA_READERS_ASKED);
	}
	must(count == 0 || at == end);
	return 0;
}
