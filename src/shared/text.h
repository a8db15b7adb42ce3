/*
 * text.h
 *		Texts from strangers, made fit for people's eyes.
 */
#ifndef REDLOCK_TEXT_H
#define REDLOCK_TEXT_H

#include <stddef.h>

/*
 * Returns the first control character (C0, DEL or C1) of a UTF-8 text, or NULL.  Names and prefixes
 * appear unchanged in logs and on terminals, so they must have none.
 */
extern const unsigned char *text_find_control(const char *utf8);

/* Returns how many bytes the first character has; 0: not UTF-8, or a control character. */
extern size_t text_utf8_len(const char *text, size_t len);

/*
 * Copies `len` bytes of UTF-8, cut after a whole character to fit.  Writes '?' for each byte that
 * is not UTF-8 or belongs to a control character.
 */
extern void text_to_utf8(char *out, size_t size, const char *from, size_t len);

/*
 * Copies the error text of a node as printable ASCII, cut to fit: the first sentence, without the
 * full stop, and without the place in a script.
 */
extern void text_of_node(char *out, size_t size, const char *from, size_t len);

/* Copies `len` bytes as printable ASCII, cut to fit. */
extern void text_to_printable(char *out, size_t size, const char *from, size_t len);

#endif /* REDLOCK_TEXT_H */
