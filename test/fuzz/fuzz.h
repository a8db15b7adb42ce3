/*
 * fuzz.h
 *		Claims of the fuzzing targets, and small values made of an input's bytes.
 *
 * libFuzzer passes each input in memory of exactly its size, so the address sanitizer sees a read
 * beyond the end.
 */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program, which libFuzzer reports with the input, unless the claim holds. */
#define must(claim) ((claim) ? (void) 0 : fuzz_fail(__FILE__, __LINE__, #claim))

static inline void
fuzz_fail(const char *file, int line, const char *claim)
{
	fprintf(stderr, "%s:%d: it does not hold: %s\n", file, line, claim);
	abort();
}

/* the rest of an input */
typedef struct Bytes
{
	const uint8_t *at;
	const uint8_t *end;
} Bytes;

/* Takes a number below `most`, from one byte; 0 at the end of the input. */
static inline unsigned
take_below(Bytes *bytes, unsigned most)
{
	return bytes->at < bytes->end ? *bytes->at++ % most : 0;
}

/* Takes a number of 64 bits; zeros at the end of the input. */
static inline int64_t
take_int64(Bytes *bytes)
{
	uint64_t number = 0;

	for (int i = 0; i < 8; i++)
		number = number << 8 | take_below(bytes, 256);
	return (int64_t) number;
}

/* Takes up to `most` bytes as a text in memory of exactly its size.  The caller frees the text. */
static inline char *
take_text_copy(Bytes *bytes, size_t most)
{
	size_t len = (size_t) (bytes->end - bytes->at);
	char *text;

	len = len < most ? len : most;
	text = malloc(len + 1);
	memcpy(text, bytes->at, len);
	text[len] = '\0';
	bytes->at += len;
	return text;
}

static inline const char *
skip_zeros(const char *word, const char *end)
{
	while (end - word > 1 && word[0] == '0' && word[1] != '\0')
		word++;
	return word;
}

/*
 * Does `text` begin with the words that were written from it?  Zeros before a word do not count: a
 * reader drops those of numbers.
 */
static inline bool
has_words(const char *text, size_t len, const char *written, size_t written_len)
{
	const char *end = text + len;
	const char *written_end = written + written_len;

	while (written < written_end)
	{
		const char *word;
		size_t size;

		text = skip_zeros(text, end);
		word = skip_zeros(written, written_end);
		size = strlen(word) + 1;
		if ((size_t) (end - text) < size || memcmp(text, word, size) != 0)
			return false;
		text += size;
		written = word + size;
	}
	return true;
}

#endif /* TEST_FUZZ_H */
