/*
 * holder_fuzz.c
 *		The description of a holder in a lock's value, by src/shared/holder.c.
 *
 * Claims: a text of no host leaves no part; each part ends, and is cut after a whole character;
 * parts that are fit for people are the same after they are written and read again; a description
 * fits into any memory, and states its permits.
 */
#include "fuzz.h"

#include "protocol/lua.h"
#include "protocol/permits.h"
#include "shared/holder.h"
#include "shared/text.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool
is_fit(const char *part)
{
	size_t len = strlen(part);

	while (len > 0)
	{
		size_t whole = text_utf8_len(part, len);

		if (whole == 0)
			return false;
		part += whole;
		len -= whole;
	}
	return true;
}

static void
write_and_read(const HolderParts *parts, int permits)
{
	HolderWords words = {.permits = permits > 1 ? permits : 0,
						 .cluster = parts->cluster,
						 .host = parts->host,
						 .database = parts->database,
						 .pid = parts->pid,
						 .user = parts->user};
	HolderParts again;
	char text[16 * HOLDER_PART_SIZE];

	holder_write(text, sizeof(text), &words);
	must(holder_read(&again, text));
	must(holder_permits(text) == (permits > 1 ? permits : 1));
	must(again.pid == parts->pid && again.detached == (parts->pid == 0));
	if (!is_fit(parts->cluster) || !is_fit(parts->host) || !is_fit(parts->database) ||
		!is_fit(parts->user))
		return;
	must(strcmp(again.cluster, parts->cluster) == 0);
	must(strcmp(again.host, parts->host) == 0);
	must(strcmp(again.database, parts->database) == 0);
	must(strcmp(again.user, parts->user) == 0);
}

/* Writes the parts into memory that may be too small. */
static void
write_cut(const HolderParts *parts, int permits, size_t size)
{
	HolderWords words = {permits,         parts->cluster, parts->host,
						 parts->database, parts->pid,     parts->user};
	char *text = malloc(size);

	memset(text, 'x', size);
	holder_write(text, size, &words);
	must(memchr(text, '\0', size) != NULL);
	if (size > LOCK_HOLDER_MAX)
		must(holder_permits(text) == (permits > 0 ? permits : 1));
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const HolderParts none = {0};
	Bytes bytes = {data, data + size};
	size_t room = 1 + take_below(&bytes, 200);
	char *text = take_text_copy(&bytes, LUA_HELD_MAX);
	int permits = holder_permits(text);
	HolderParts parts;

	memset(&parts, 0x55, sizeof(parts));
	must(permits >= 0 && permits <= PERMITS_MAX);
	must(holder_read(&parts, text) == (permits > 0));
	/* a part is cut between characters only */
	must(!is_fit(text) || (is_fit(parts.cluster) && is_fit(parts.host) && is_fit(parts.database) &&
						   is_fit(parts.user)));
	if (permits == 0)
		must(memcmp(&parts, &none, sizeof(parts)) == 0);
	must(memchr(parts.cluster, '\0', HOLDER_PART_SIZE) &&
		 memchr(parts.host, '\0', HOLDER_PART_SIZE) &&
		 memchr(parts.database, '\0', HOLDER_PART_SIZE) &&
		 memchr(parts.user, '\0', HOLDER_PART_SIZE));
	if (permits > 0)
	{
		write_and_read(&parts, permits);
		write_cut(&parts, permits > 1 ? permits : 0, room);
	}
	free(text);
	return 0;
}
