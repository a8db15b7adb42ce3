/*
 * permits.h
 *		A lock that up to n may hold at a time: n permits, each an exclusive lock of its own.
 *
 * Counting holders at each node would admit more than n: three nodes that count to two each
 * admit three holders of a majority.  So each permit has a key, a lease and tokens of its own.
 * While a node has one of these keys, it has that of the lock itself, too, which says n: each
 * caller who says another number, or none, is refused there (redlock.lua).
 *
 * Who finds no permit free takes the lock named queue, which is exclusive, too, and waits for
 * any permit while it has that: so one session of all hosts waits for permits, and the others
 * for the queue, in the order in which they wait for any lock.  While the queue is held, nodes
 * give no permit to other hosts, and who comes later on the same server queues behind.
 *
 * What a session does, from its first try until a permit is granted, is decided here.  A node
 * that refuses a permit names another that is free, so a round of tries is short: it ends when
 * none is.
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

/* What is known after a try in vain, in place of the number of a permit that is free. */
#define PERMITS_NONE_FREE 0
#define PERMITS_TAKEN_HERE (-1) /* a session of this server has that one, or asks for it */

/* Who waits looks as often without being told, give or take a half. */
#define PERMITS_LOOK_US INT64_C(500000)

/* For so long a permit is kept on a server that has the queue, for who waits there. */
#define PERMITS_PASS_US INT64_C(50000)

/* What a session that wants a permit does next. */
typedef enum permits_step
{
	PERMITS_TRY, /* search->permit; one that is taken on this server, without asking a node */
	PERMITS_ENTER_QUEUE,
	PERMITS_LEAVE_QUEUE, /* it was lost */
	PERMITS_WAIT,        /* until it is told, or the queue is lost; no longer than to look_at_us */
	PERMITS_TIME_OUT,
	PERMITS_FAIL /* a search that does not wait was in vain */
} permits_step;

typedef struct permits_search
{
	/* the caller's */
	uint64_t host;
	int n;
	bool once; /* does not wait */
	int64_t deadline_us;

	/* to be done */
	permits_step step;
	int permit;
	int64_t look_at_us;

	/* of this round, which goes once around all permits at most */
	int gone;
	uint32_t told;
} permits_search;

typedef enum permits_place
{
	PERMITS_OUTSIDE,
	PERMITS_IN_QUEUE,
	PERMITS_QUEUE_LOST /* and not yet left */
} permits_place;

/* When a step is done. */
typedef struct permits_seen
{
	int64_t now_us;
	uint32_t random;
	int free; /* after a try: another permit, or PERMITS_NONE_FREE, PERMITS_TAKEN_HERE */
	permits_place place;
	uint32_t told;   /* in the queue: so often that a permit may be free, to be read first */
	int told_permit; /* the last one; PERMITS_NONE_FREE: which is not known */
} permits_seen;

/* others_wait: sessions of this server have the queue, or ask for it. */
extern permits_step permits_begin(permits_search *search, bool others_wait);

/* Not to be called when a permit was granted, or after the last two steps. */
extern permits_step permits_next(permits_search *search, const permits_seen *seen);

/* What the name of a lock becomes for one of its permits; returns its length. */
extern size_t permits_name(char *to, const char *name, size_t len, int permit);

/* The length of the lock's name in such a one. */
extern size_t permits_name_len(const char *name, size_t len);

/* The permit's number; PERMITS_QUEUE for the queue and for the lock itself. */
extern int permits_number(const char *name, size_t len);

#endif /* REDLOCK_PERMITS_H */
