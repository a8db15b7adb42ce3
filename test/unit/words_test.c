/*
 * words_test.c
 *		Unit tests of words, src/protocol/words.c.
 *
 * Protects from: a word of another release, or of a stranger, read as another word; a read past
 * the end of the text; a number or an id changed between writing and reading.
 */
#include "protocol/words.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

/* A text in memory of exactly its size: a sanitizer sees each read beyond the text. */
static bool
takes_number(const char *text, size_t len, int64_t most, int64_t *number)
{
	char *exactly = malloc(len + 1); /* malloc(0) may return NULL */
	const char *at = exactly;
	bool good;

	memcpy(exactly, text, len);
	good = words_take_number(&at, exactly + len, most, number);
	free(exactly);
	return good;
}

static void
test_numbers(void)
{
	static const int64_t numbers[] = {0, 1, 9, 10, 99, 1000, INT32_MAX, INT64_MAX};
	static const struct
	{
		const char *text;
		size_t len;
		int64_t most;
		const char *what;
	} bad[] = {{"", 0, 9, "nothing"},
			   {"", 1, 9, "an empty word"},
			   {"7", 1, 9, "no NUL"},
			   {"10", 3, 9, "more than the most"},
			   {"-1", 3, 9, "negative"},
			   {"+1", 3, 9, "a sign"},
			   {" 1", 3, 9, "a blank"},
			   {"1a", 3, INT64_MAX, "a letter"},
			   {"9223372036854775808", 20, INT64_MAX, "over 63 bits"},
			   {"9999999999999999999", 20, INT64_MAX, "19 nines"},
			   {"00000000000000000001", 21, INT64_MAX, "20 digits"}};
	char text[WORDS_NUMBER_MAX + 1];
	int64_t number;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
	{
		char *end;

		memset(text, '#', sizeof(text));
		end = words_put_number(text, numbers[i]);
		ok(end <= text + WORDS_NUMBER_MAX && *end == '#' &&
			   takes_number(text, (size_t) (end - text), numbers[i], &number) &&
			   number == numbers[i],
		   "number %lld comes back", (long long) numbers[i]);
	}
	ok(words_put_number(text, INT64_MIN) == text + WORDS_NUMBER_MAX &&
		   strcmp(text, "-9223372036854775808") == 0,
	   "the longest number is written");
	number = 7;
	ok(!takes_number("8", 2, 7, &number) && number == 7,
	   "a number beyond the most changes nothing");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(!takes_number(bad[i].text, bad[i].len, bad[i].most, &number), "no number: %s",
		   bad[i].what);
}

static void
test_ids(void)
{
	static const char *const bad[] = {"",
									  "0123",
									  "0123456789abcdef0",
									  "0123456789ABCDEF",
									  "0123456789abcdeg",
									  "0x23456789abcdef"};
	char text[32];
	const char *at = text;
	uint64_t id;
	char *end = words_put_id(text, UINT64_C(0xfedcba9876543210));

	ok(end == text + 17 && strcmp(text, "fedcba9876543210") == 0, "an id is written");
	ok(words_take_id(&at, end, &id) && at == end && id == UINT64_C(0xfedcba9876543210),
	   "it comes back");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		at = bad[i];
		ok(!words_take_id(&at, bad[i] + strlen(bad[i]) + 1, &id), "no id: \"%s\"", bad[i]);
	}
}

static void
test_texts(void)
{
	char text[32];
	char *end = words_put(words_put_text(text, "one"), "two words", 3);
	const char *at = text;
	const char *word;
	char room[4];
	size_t len;

	ok(end == text + 8 && memcmp(text, "one\0two", 8) == 0, "two words are written");
	ok(words_take(&at, end, &word, &len) && word == text && len == 3, "the first is read");
	ok(!words_take_text(&at, end, room, 3) && at == text + 4, "the second has no room");
	ok(words_take_text(&at, end, room, 4) && strcmp(room, "two") == 0, "... and has room");
	ok(at == end && !words_take(&at, end, &word, &len), "there is no third");
	ok(words_are_printable("a b~", ' '), "a blank is printable");
	ok(!words_are_printable("a b", '!'), "... or not");
	ok(!words_are_printable("a\tb", ' ') && !words_are_printable("a\x7f", ' ') &&
		   !words_are_printable("\xc3\xa4", ' '),
	   "control characters and letters beyond ASCII are not");
	end = words_put_text(text, "a\nb");
	at = text;
	ok(!words_take_printable(&at, end, room, sizeof(room)), "a word of these is refused");
}

int
main(void)
{
	test_numbers();
	test_ids();
	test_texts();
	return tap_done();
}
