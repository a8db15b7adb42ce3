/*
 * text.h
 *		Texts of strangers that people will see.
 */
#ifndef REDLOCK_TEXT_H
#define REDLOCK_TEXT_H

#include <stddef.h>

/*
 * The first control character of a text in UTF-8 (C0, DEL or C1), or NULL: names
 * and prefixes go into logs and onto terminals as they are, so they have none.
 */
extern const unsigned char *text_find_control(const char *utf8);

/*
 * How many bytes the first character of these has: 0 if it is no UTF-8, or a control character.
 */
extern size_t text_utf8_len(const char *text, size_t len);

/*
 * Copies `len` bytes of UTF-8, cut after a whole character to fit, with '?' for each byte that is
 * no UTF-8 or is of a control character.
 */
extern void text_to_utf8(char *out, size_t size, const char *from, size_t len);

/*
 * The text of an error that a node answered, as printable ASCII, cut to fit: its first sentence,
 * without a full stop, and without the place in a script where it was met.
 */
extern void text_of_node(char *out, size_t size, const char *from, size_t len);

/* Copies `len` bytes as printable ASCII, cut to fit. */
extern void text_to_printable(char *out, size_t size, const char *from, size_t len);

#endif /* REDLOCK_TEXT_H */
