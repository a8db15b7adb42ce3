/*
 * encoding.h
 *		Conversion between UTF-8, for the nodes, and the encoding of this database.
 *
 * Conversion never fails: a character without a counterpart is escaped, or its bytes stay
 * unchanged.
 */
#ifndef REDLOCK_ENCODING_H
#define REDLOCK_ENCODING_H

/*
 * Converts from UTF-8; palloc'd.  A character that the database's encoding lacks becomes its UTF-8
 * bytes, each as \xHH.
 */
extern char *encoding_from_utf8(const char *utf8);

/*
 * Returns the name of a database or a role, which any database of the server may have created, in
 * its own encoding; palloc'd.  If the name is no text in this database's encoding, its bytes beyond
 * ASCII are escaped, each as \xHH.
 */
extern char *encoding_of_name(const char *name);

/*
 * Converts to UTF-8, and cuts the text to fit.  Bytes that are not text in the database's encoding
 * stay unchanged.
 */
extern void encoding_to_utf8(char *utf8, size_t size, const char *text);

#endif /* REDLOCK_ENCODING_H */
