/*
 * pattern.h
 *		Patterns of names of locks, as those of LIKE: '%' stands for any characters, '_' for one
 *		character, and '\' takes the special meaning from the next character.
 *
 * Pure.  All texts are UTF-8.  A character equals itself only, so the verdict does not depend on a
 * collation, and is the same in each database.
 */
#ifndef REDLOCK_PATTERN_H
#define REDLOCK_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

/* limit for a pattern, in bytes */
#define PATTERN_MAX 1024

/* Why a pattern matches no name of a lock. */
typedef enum PatternFault
{
	PATTERN_GOOD,
	PATTERN_EMPTY,
	PATTERN_ENDS_IN_ESCAPE, /* nothing stands after the last '\' */
	PATTERN_LONG,           /* the pattern is over its limit */
	PATTERN_LONG_NAMES,     /* each name that matches is over the limit of names */
	PATTERN_LISTS           /* each name that matches has the form of a list */
} PatternFault;

/* Control characters are the caller's part: names have none.  name_max: the limit of names. */
extern PatternFault pattern_check(const char *pattern, size_t name_max);

/* Returns false for any name if the pattern has a fault. */
extern bool pattern_matches(const char *pattern, const char *name);

/* Writes the pattern that matches this name only.  out: room for 2 * strlen(name) + 1 bytes. */
extern void pattern_of_name(char *out, const char *name);

#endif /* REDLOCK_PATTERN_H */
