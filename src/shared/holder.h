/*
 * holder.h
 *		The description of a holder in the lock's value.
 *
 * The session that holds the lock writes the description, and people read it: with redis-cli, and
 * in errors of other hosts.  The text is UTF-8 in any database encoding.  Pure.
 */
#ifndef REDLOCK_HOLDER_H
#define REDLOCK_HOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* Texts should be UTF-8; NULL is the same as empty. */
typedef struct HolderWords
{
	int permits;         /* number of permits of the lock; 0: none */
	const char *cluster; /* cluster_name; empty: not set */
	const char *host;    /* name of the machine */
	const char *database;
	int pid; /* 0: the lock is detached */
	const char *user;
} HolderWords;

/*
 * Writes the description:
 *
 * 	[permits=N ][cluster="..." ]host="..." database="..." pid=N user="..."
 *
 * A backslash precedes each quote and backslash in a value.  A byte that is not UTF-8, or belongs
 * to a control character, becomes \xHH.  If the text is too long, the longest values are cut: then
 * ... follows the closing quote.  A very short text lacks some words.
 */
extern void holder_write(char *out, size_t size, const HolderWords *words);

/*
 * Returns the number of permits in this description, 1 if the description has no such number.
 * Returns 0 if no host wrote the text, in this version or an earlier one.
 */
extern int holder_permits(const char *text);

/* A description as its parts; empty: the description has no such word. */
#define HOLDER_PART_SIZE 160
typedef struct HolderParts
{
	char cluster[HOLDER_PART_SIZE];
	char host[HOLDER_PART_SIZE];
	char database[HOLDER_PART_SIZE];
	char user[HOLDER_PART_SIZE];
	int pid; /* 0: none, as of a detached lock */
	bool detached;
} HolderParts;

/*
 * Reads a description, as holder_write or a host of 0.1.0 wrote it.  A value that was cut ends in
 * "...".  Returns false if no host wrote the text; the parts are empty then.
 */
extern bool holder_read(HolderParts *parts, const char *text);

#endif /* REDLOCK_HOLDER_H */
