/*
 * words.c
 *		Writes and reads words; see words.h.
 */
#include "protocol/words.h"

#include <string.h>

#include "protocol/lua.h"

/* Digits of a number that is read: as many fit into 64 bits. */
#define DIGITS_MAX 19

static bool is_digit(char c, unsigned *value);

char *
words_put(char *at, const char *word, size_t len)
{
	memcpy(at, word, len);
	at[len] = '\0';
	return at + len + 1;
}

char *
words_put_text(char *at, const char *word)
{
	return words_put(at, word, strlen(word));
}

char *
words_put_number(char *at, int64_t number)
{
	char digits[WORDS_NUMBER_MAX];
	size_t first = sizeof(digits);
	uint64_t rest = number < 0 ? 0 - (uint64_t) number : (uint64_t) number;

	do
		digits[--first] = (char) ('0' + rest % 10);
	while ((rest /= 10) > 0);
	if (number < 0)
		digits[--first] = '-';
	return words_put(at, digits + first, sizeof(digits) - first);
}

char *
words_put_id(char *at, uint64_t id)
{
	for (int i = LOCK_HOST_DIGITS; i-- > 0;)
		*at++ = "0123456789abcdef"[id >> 4 * i & 15];
	*at = '\0';
	return at + 1;
}

bool
words_take(const char **at, const char *end, const char **word, size_t *len)
{
	const char *stop = *at;

	while (stop < end && *stop != '\0')
		stop++;
	if (stop == end)
		return false;
	*word = *at;
	*len = (size_t) (stop - *at);
	*at = stop + 1;
	return true;
}

bool
words_take_text(const char **at, const char *end, char *text, size_t size)
{
	const char *next = *at;
	const char *word;
	size_t len;

	if (!words_take(&next, end, &word, &len) || len >= size)
		return false;
	memcpy(text, word, len + 1);
	*at = next;
	return true;
}

bool
words_take_printable(const char **at, const char *end, char *text, size_t size)
{
	return words_take_text(at, end, text, size) && words_are_printable(text, ' ');
}

bool
words_take_number(const char **at, const char *end, int64_t most, int64_t *number)
{
	const char *word;
	uint64_t value = 0;
	unsigned digit;
	size_t len;

	if (!words_take(at, end, &word, &len) || len == 0 || len > DIGITS_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!is_digit(word[i], &digit) || digit > 9)
			return false;
		value = 10 * value + digit;
	}
	if (value > (uint64_t) most)
		return false;
	*number = (int64_t) value;
	return true;
}

bool
words_take_id(const char **at, const char *end, uint64_t *id)
{
	const char *word;
	unsigned digit;
	size_t len;

	*id = 0;
	if (!words_take(at, end, &word, &len) || len != LOCK_HOST_DIGITS)
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!is_digit(word[i], &digit))
			return false;
		*id = 16 * *id + digit;
	}
	return true;
}

static bool
is_digit(char c, unsigned *value)
{
	*value = (unsigned) (c <= '9' ? c - '0' : c - 'a' + 10);
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

bool
words_are_printable(const char *text, char first)
{
	for (; *text != '\0'; text++)
		if (*text < first || *text > '~')
			return false;
	return true;
}
