/*
 * words.h
 *		Words of messages between hosts, and of what hosts write at the nodes: each ends in a NUL.
 *
 * Any process may publish a message or write such a text, so a reader trusts no word.
 */
#ifndef REDLOCK_WORDS_H
#define REDLOCK_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORDS_NUMBER_MAX 21 /* bytes of a number: sign, digits and the NUL */

/*
 * Write a word at `at`, where the caller has room.  Return the place behind the word's NUL.  A
 * number is decimal.  An id has LOCK_HOST_DIGITS hexadecimal digits.
 */
extern char *words_put(char *at, const char *word, size_t len);
extern char *words_put_text(char *at, const char *word);
extern char *words_put_number(char *at, int64_t number);
extern char *words_put_id(char *at, uint64_t id);

/*
 * Read the word at *at, which is before `end`, and move *at behind the word.  Return false if the
 * word is malformed: no NUL before `end`; more than `size` bytes with the NUL; not printable ASCII;
 * no number from 0 to `most`, which then stays as it was; no id.
 */
extern bool words_take(const char **at, const char *end, const char **word, size_t *len);
extern bool words_take_text(const char **at, const char *end, char *text, size_t size);
extern bool words_take_printable(const char **at, const char *end, char *text, size_t size);
extern bool words_take_number(const char **at, const char *end, int64_t most, int64_t *number);
extern bool words_take_id(const char **at, const char *end, uint64_t *id);

/* Returns true if the text is printable ASCII, from `first` on ('!' excludes blanks) */
extern bool words_are_printable(const char *text, char first);

#endif /* REDLOCK_WORDS_H */
