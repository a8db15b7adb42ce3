/*
 * encoding.h
 *		Texts in UTF-8, as the nodes keep them, and in the encoding of this database.
 *
 * Neither way can fail: what can't be converted is escaped or left as it is.
 */
#ifndef REDLOCK_ENCODING_H
#define REDLOCK_ENCODING_H

/* A character that this database can't say becomes its bytes in UTF-8, each as \xHH.  palloc'd */
extern char *encoding_from_utf8(const char *utf8);

/* Bytes that are no text of this database stay as they are.  The text is cut to fit. */
extern void encoding_to_utf8(char *utf8, size_t size, const char *text);

#endif /* REDLOCK_ENCODING_H */
