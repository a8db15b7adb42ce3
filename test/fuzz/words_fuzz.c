/*
 * words_fuzz.c
 *		Words of messages and of texts at the nodes, by src/protocol/words.c.
 *
 * Claims: a word that is refused changes neither the place nor the caller's memory, as words.h
 * promises for each reader; a word that is read, and written again, is read the same.
 */
#include "fuzz.h"

#include "protocol/lua.h"
#include "protocol/words.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
take_plain(const char *start, const char *end)
{
	const char *at = start;
	const char *word = NULL;
	size_t len = 77;

	if (words_take(&at, end, &word, &len))
	{
		must(word == start && word[len] == '\0' && memchr(word, '\0', len) == NULL);
		must(at == start + len + 1 && at <= end);
	}
	else
		must(at == start && word == NULL && len == 77 && memchr(start, '\0', end - start) == NULL);
}

static void
take_number(const char *start, const char *end, int64_t most)
{
	const char *at = start;
	const char *again;
	int64_t number = -77;
	int64_t other;
	char text[WORDS_NUMBER_MAX];

	if (!words_take_number(&at, end, most, &number))
	{
		must(number == -77);
		return;
	}
	must(number >= 0 && number <= most && at > start && at <= end);
	again = text;
	must(words_put_number(text, number) <= text + sizeof(text));
	must(words_take_number(&again, text + sizeof(text), most, &other) && other == number);
	must(number == 0 ||
		 !words_take_number(&(const char *){text}, text + sizeof(text), number - 1, &other));
}

static void
take_id(const char *start, const char *end)
{
	const char *at = start;
	char text[LOCK_HOST_DIGITS + 1];
	uint64_t id;

	if (words_take_id(&at, end, &id))
	{
		must(at == start + sizeof(text) && words_put_id(text, id) == text + sizeof(text));
		must(memcmp(text, start, sizeof(text)) == 0);
	}
}

static void
take_texts(const char *start, const char *end, size_t room)
{
	const char *at = start;
	char *text = malloc(room);

	memset(text, 'x', room);
	if (words_take_text(&at, end, text, room))
		must(at == start + strlen(text) + 1 && memcmp(text, start, strlen(text) + 1) == 0);
	else
	{
		must(at == start);
		for (size_t i = 0; i < room; i++)
			must(text[i] == 'x');
	}
	at = start;
	if (words_take_printable(&at, end, text, room))
		for (const char *c = text; *c != '\0'; c++)
			must(*c >= ' ' && *c <= '~');
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	int64_t number = take_int64(&bytes);
	size_t room = 1 + take_below(&bytes, 64);
	const char *start = (const char *) bytes.at;
	const char *end = (const char *) bytes.end;
	char text[WORDS_NUMBER_MAX];
	char expected[32];

	/* any number is written as C writes it */
	snprintf(expected, sizeof(expected), "%lld", (long long) number);
	must(words_put_number(text, number) == text + strlen(expected) + 1 &&
		 strcmp(text, expected) == 0);

	take_plain(start, end);
	take_number(start, end, number & INT64_MAX);
	take_id(start, end);
	take_texts(start, end, room);
	return 0;
}
