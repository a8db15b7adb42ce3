/*
 * permits.c
 *		Names of permits; see permits.h.
 */
#include "protocol/permits.h"

#include <string.h>

#include "protocol/lua.h"

/* redlock.lua knows these names, too. */
size_t
permits_name(char *to, const char *name, size_t len, int permit)
{
	size_t at = len;
	int unit = 1000;

	memcpy(to, name, len);
	if (permit == 1)
		return at;
	to[at++] = LUA_PERMIT[0];
	for (; unit > 0; unit /= 10)
		if (permit >= unit)
			to[at++] = (char) ('0' + permit / unit % 10);
	return at;
}

size_t
permits_name_len(const char *name, size_t len)
{
	size_t at = 0;

	while (at < len && name[at] != LUA_PERMIT[0])
		at++;
	return at;
}

int
permits_number(const char *name, size_t len)
{
	size_t at = permits_name_len(name, len);
	int permit = 0;

	if (at == len)
		return 1;
	while (++at < len)
		permit = permit * 10 + (name[at] - '0');
	return permit;
}

int
permits_first(uint64_t host, int n)
{
	return (int) (host / 2 % (uint64_t) n) + 1; /* ids are odd */
}

int
permits_next(int permit, int n)
{
	return permit % n + 1;
}
