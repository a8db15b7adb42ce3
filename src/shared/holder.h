/*
 * holder.h
 *		How a session that holds a lock describes itself in the lock's value.
 *
 * People read it, with redis-cli and in errors of other hosts.  It is UTF-8, whatever the encoding
 * of the session's database.  Pure.
 */
#ifndef REDLOCK_HOLDER_H
#define REDLOCK_HOLDER_H

#include <stddef.h>

/* Texts should be UTF-8; NULL is the same as empty. */
typedef struct HolderWords
{
	int permits;         /* the lock has so many; 0: it has none */
	const char *cluster; /* cluster_name; empty: it is not set */
	const char *host;    /* name of the machine */
	const char *database;
	int pid; /* 0: the lock is detached */
	const char *user;
} HolderWords;

/*
 * Writes the description:
 *
 *		[permits=N ][cluster="..." ]host="..." database="..." pid=N user="..."
 *
 * A quote and a backslash in a value have a backslash in front.  A byte that is no UTF-8 or is of
 * a control character becomes \xHH.  If the text is too long, the longest values are cut, each
 * with ... behind its closing quote; in a very short text some words are missing.
 */
extern void holder_write(char *out, size_t size, const HolderWords *words);

/*
 * How many permits the lock has, as this description says: 1 if it says nothing of them; 0 if this
 * is no description by a host, of this version or an earlier one.
 */
extern int holder_permits(const char *text);

#endif /* REDLOCK_HOLDER_H */
