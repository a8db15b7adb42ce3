/*
 * holder.c
 *		The description of a holder; see holder.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/permits.h"
#include "shared/holder.h"
#include "shared/text.h"

/* the word before the number of permits */
#define PERMITS_WORD "permits="

/* A value is cut to this many bytes, before a whole word is omitted. */
#define VALUE_MIN 8

#define ESCAPED_MAX 4 /* bytes that one byte takes: \xHH */

typedef enum Word
{
	CLUSTER,
	HOST,
	DATABASE,
	PID,
	USER,
	WORDS
} Word;

/* A word of the description. */
typedef struct Part
{
	const char *name;
	const char *value; /* NULL: the name is the whole word */
} Part;

static size_t put_parts(char *out, size_t size, const Part parts[WORDS], size_t most);
static size_t put_value(char *out, size_t size, const char *value, size_t most);
static size_t escape(const char *at, char escaped[ESCAPED_MAX + 1], size_t *escaped_len);
static size_t put(char *out, size_t size, size_t at, const char *text, size_t len);
static const char *take_word(HolderParts *parts, const char *at);
static const char *take_value(char part[HOLDER_PART_SIZE], const char *at);

void
holder_write(char *out, size_t size, const HolderWords *words)
{
	bool named = words->cluster != NULL && words->cluster[0] != '\0';
	char pid[32] = "detached";
	Part parts[WORDS] = {[CLUSTER] = {named ? "cluster=" : NULL, words->cluster},
						 [HOST] = {"host=", words->host},
						 [DATABASE] = {"database=", words->database},
						 [PID] = {pid, NULL},
						 [USER] = {"user=", words->user}};
	const Word dispensable[] = {USER, DATABASE, HOST};
	size_t dropped = 0;
	size_t most = size;
	size_t at = 0;

	for (int i = 0; i < WORDS; i++)
		if (i != PID && parts[i].value == NULL)
			parts[i].value = "";
	if (words->pid != 0)
		snprintf(pid, sizeof(pid), "pid=%d", words->pid);
	if (words->permits > 0)
		at = snprintf(out, size, PERMITS_WORD "%d ", words->permits);
	if (at >= size)
		return;
	while (most > 0 && put_parts(NULL, 0, parts, most) >= size - at)
	{
		most--;
		/* the first word marks the text as a description, so is never omitted */
		if (most < VALUE_MIN && dropped < (named ? 3 : 2))
		{
			parts[dispensable[dropped++]].name = NULL;
			most = size;
		}
	}
	(void) put_parts(out + at, size - at, parts, most);
}

/*
 * Writes the words, with values of up to `most` bytes.  Returns the length of the whole text, even
 * if it is cut to `size`.
 */
static size_t
put_parts(char *out, size_t size, const Part parts[WORDS], size_t most)
{
	size_t at = 0;

	for (int i = 0; i < WORDS; i++)
	{
		if (parts[i].name == NULL)
			continue;
		if (at > 0)
			at = put(out, size, at, " ", 1);
		at = put(out, size, at, parts[i].name, strlen(parts[i].name));
		if (parts[i].value != NULL)
			at += put_value(at < size ? out + at : NULL, at < size ? size - at : 0, parts[i].value,
							most);
	}
	return at;
}

static size_t
put_value(char *out, size_t size, const char *value, size_t most)
{
	size_t at = put(out, size, 0, "\"", 1);
	size_t value_len = 0;
	char escaped[ESCAPED_MAX + 1];
	size_t escaped_len;

	while (*value != '\0')
	{
		size_t len = escape(value, escaped, &escaped_len);

		if (value_len + escaped_len > most)
			break;
		at = put(out, size, at, escaped, escaped_len);
		value_len += escaped_len;
		value += len;
	}
	return put(out, size, at, *value != '\0' ? "\"..." : "\"", *value != '\0' ? 4 : 1);
}

/* Escapes one character.  Returns how many bytes of the value the character has. */
static size_t
escape(const char *at, char escaped[ESCAPED_MAX + 1], size_t *escaped_len)
{
	size_t len = text_utf8_len(at, strlen(at));

	if (len == 0)
		*escaped_len = snprintf(escaped, ESCAPED_MAX + 1, "\\x%02x", (unsigned char) *at);
	else if (*at == '"' || *at == '\\')
		*escaped_len = snprintf(escaped, ESCAPED_MAX + 1, "\\%c", *at);
	else
	{
		memcpy(escaped, at, len);
		*escaped_len = len;
	}
	return len > 0 ? len : 1;
}

/* Writes at this place as much as fits, and a NUL.  Returns the next place. */
static size_t
put(char *out, size_t size, size_t at, const char *text, size_t len)
{
	if (at < size)
	{
		size_t fits = len < size - at - 1 ? len : size - at - 1;

		memcpy(out + at, text, fits);
		out[at + fits] = '\0';
	}
	return at + len;
}

int
holder_permits(const char *text)
{
	int permits = 1;

	if (strncmp(text, PERMITS_WORD, strlen(PERMITS_WORD)) == 0)
	{
		text += strlen(PERMITS_WORD);
		permits = 0;
		while (*text >= '0' && *text <= '9' && permits <= PERMITS_MAX)
			permits = 10 * permits + (*text++ - '0');
		if (*text++ != ' ' || permits > PERMITS_MAX)
			return 0;
	}
	/* 0.1.0 wrote no quotes */
	return strncmp(text, "cluster=\"", 9) == 0 || strncmp(text, "host=", 5) == 0 ? permits : 0;
}

bool
holder_read(HolderParts *parts, const char *text)
{
	memset(parts, 0, sizeof(*parts));
	if (holder_permits(text) == 0)
		return false;
	while (text != NULL && *text != '\0')
	{
		text = take_word(parts, text);
		if (text != NULL && *text == ' ')
			text++;
	}
	return true;
}

/* Reads one word.  Returns the end of the word; NULL: not a word of ours. */
static const char *
take_word(HolderParts *parts, const char *at)
{
	const struct
	{
		const char *name;
		char *part;
	} words[] = {{"cluster=", parts->cluster},
				 {"host=", parts->host},
				 {"database=", parts->database},
				 {"user=", parts->user}};
	char number[HOLDER_PART_SIZE];

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strncmp(at, words[i].name, strlen(words[i].name)) == 0)
			return take_value(words[i].part, at + strlen(words[i].name));
	if (strncmp(at, PERMITS_WORD, strlen(PERMITS_WORD)) == 0)
		return take_value(number, at + strlen(PERMITS_WORD));
	if (strncmp(at, "pid=", 4) == 0)
	{
		at = take_value(number, at + 4);
		parts->pid = (int) strtol(number, NULL, 10);
		return at;
	}
	if (strncmp(at, "detached", 8) == 0 && (at[8] == ' ' || at[8] == '\0'))
	{
		parts->detached = true;
		return at + 8;
	}
	return NULL;
}

/*
 * Reads a value in quotes, or up to the next blank.  A backslash before a quote or a backslash
 * goes; \xHH stays, because its byte is not fit for people.  A value that is too long is cut after
 * a whole character.
 */
static const char *
take_value(char part[HOLDER_PART_SIZE], const char *at)
{
	bool quoted = *at == '"';
	size_t len = 0;

	part[0] = '\0';

	at += quoted;
	while (*at != '\0' && *at != (quoted ? '"' : ' '))
	{
		size_t whole;

		if (quoted && *at == '\\' && (at[1] == '"' || at[1] == '\\'))
			at++;
		whole = text_utf8_len(at, strlen(at));
		if (whole == 0)
			whole = 1;
		if (len + whole < HOLDER_PART_SIZE)
			len = put(part, HOLDER_PART_SIZE, len, at, whole);
		else
			len = HOLDER_PART_SIZE; /* full */
		at += whole;
	}
	if (quoted && *at == '"')
		at++;
	if (quoted && strncmp(at, "...", 3) == 0)
	{
		len = put(part, HOLDER_PART_SIZE, len, at, 3);
		at += 3;
	}
	return at;
}
