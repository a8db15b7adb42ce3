/*
 * inspect_many.h
 *		What a node keeps of many locks: strict reading of the records of inspect_many.lua.
 *
 * A node may lie.  A malformed text counts as no answer.
 *
 * Pure.
 */
#ifndef REDLOCK_INSPECT_MANY_H
#define REDLOCK_INSPECT_MANY_H

#include <stddef.h>

#include "protocol/inspection.h"
#include "protocol/words.h"

/* Keys of one question. */
#define INSPECT_MANY_KEYS 32

/* Bytes of the longest record. */
#define INSPECT_MANY_RECORD_MAX                                                                    \
	(5 * WORDS_NUMBER_MAX + LUA_READERS_ASKED * LUA_HOST_DIGITS + LUA_HELD_MAX)

/*
 * Writes the record of a key, as inspect_many.lua does, and returns the length.  `at` has
 * INSPECT_MANY_RECORD_MAX bytes.
 */
extern int inspect_many_write(char *at, const Inspected *key);

/*
 * Returns the number of records in the text, 0 if the text is malformed.  `keys`: the number of
 * keys in the question.  Fewer records are right only if one more might not have fitted.
 */
extern int inspect_many_count(const char *text, size_t len, int keys);

/*
 * Reads the record at *at into the fields of `key` from kind to permits, except may_have_forgotten,
 * counter and marker; moves *at behind the record.  Returns false if the record is malformed.
 */
extern bool inspect_many_read(const char **at, const char *end, Inspected *key);

#endif /* REDLOCK_INSPECT_MANY_H */
