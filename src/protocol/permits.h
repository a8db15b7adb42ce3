/*
 * permits.h
 *		A lock that up to n may hold at a time: n permits, each an exclusive lock of its own.
 *		(What SQL calls a slot: in C a slot is one of the lease table.)
 *
 * Counting holders at each node would admit more than n: three nodes that count to two each
 * admit three holders of a majority.  So each permit has a key, a lease and tokens of its own.
 * That of the first permit is the key of the lock itself: a caller who knows of no permits, or
 * of fewer, contends for those that it knows, and never more than the largest n are held.
 *
 * Who finds no permit free takes the lock named queue, which is exclusive, too, and waits for
 * any permit while it has that: so one session of all hosts waits for permits, and the others
 * for the queue, in the order in which they wait for any lock.  While the queue is held, nodes
 * give no permit to other hosts.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PERMITS_H
#define REDLOCK_PERMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PERMITS_MAX 1000

/* In place of a permit's number: the queue. */
#define PERMITS_QUEUE 0

/* Bytes behind the name: what is in no name, and a number. */
#define PERMITS_SUFFIX_MAX 5

/* What the name of a lock becomes for one of its permits; returns its length. */
extern size_t permits_name(char *to, const char *name, size_t len, int permit);

/* The length of the lock's name in such a one. */
extern size_t permits_name_len(const char *name, size_t len);

/* Which permit it is of; 1 of a name that says nothing of it. */
extern int permits_number(const char *name, size_t len);

/* With which permit of n a host begins, so that hosts are not in each other's way. */
extern int permits_first(uint64_t host, int n);

/* The one after this. */
extern int permits_next(int permit, int n);

#endif /* REDLOCK_PERMITS_H */
