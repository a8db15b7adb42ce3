/*
 * permits.h
 *		A lock with n permits: n sessions may hold it at a time.  Each permit is an exclusive
 *		lock of its own.
 *
 * Counting holders at each node would admit more than n: three nodes that count to two admit
 * three holders of a majority.  So each permit has its own key, lease and tokens.  While a node
 * has the key of a permit, the node also has the key of the lock itself, which states n.  The
 * node refuses each session that states a different number, or none (redlock.lua).
 *
 * A session that finds no free permit takes an exclusive lock, the queue, and then waits for any
 * permit.  So one session of all hosts waits for permits.  All further sessions wait for the
 * queue, in the order of waiters for any lock.  While the queue is held, nodes give no permit to
 * other hosts, and later sessions of the same server queue too.
 *
 * This file decides the actions of a session, from the first try until a permit is granted.  A
 * node that refuses a permit names a free permit.  So a round of tries is short: it ends when no
 * permit is free.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PERMITS_H
#define REDLOCK_PERMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PERMITS_MAX 1000

/* the queue, in place of a permit's number */
#define PERMITS_QUEUE 0

/* bytes behind the name: a byte that no name contains, and a number */
#define PERMITS_SUFFIX_MAX 5

/* result of a failed try, in place of the number of a free permit */
#define PERMITS_NONE_FREE 0
#define PERMITS_TAKEN_HERE (-1) /* a session of this server holds this permit, or asks for it */

/* poll interval of a waiter, ± 50% */
#define PERMITS_LOOK_US INT64_C(500000)

/* how long a server that has the queue keeps a released permit for its waiting session */
#define PERMITS_PASS_US INT64_C(50000)

/* what a session that wants a permit does next */
typedef enum permits_step
{
	PERMITS_TRY, /* try search->permit; if a session of this server has this permit, without
				  * asking a node */
	PERMITS_ENTER_QUEUE,
	PERMITS_LEAVE_QUEUE, /* the queue was lost */
	PERMITS_WAIT,        /* until a message, the loss of the queue, or look_at_us */
	PERMITS_TIME_OUT,
	PERMITS_FAIL /* a search with `once` has failed */
} permits_step;

typedef struct permits_search
{
	/* set by the caller */
	uint64_t host;
	int n;
	bool once; /* do not wait */
	int64_t deadline_us;

	/* the next action */
	permits_step step;
	int permit;
	int64_t look_at_us;

	/* state of this round, which tries each permit at most once */
	int gone;
	uint32_t told;
} permits_search;

typedef enum permits_place
{
	PERMITS_OUTSIDE,
	PERMITS_IN_QUEUE,
	PERMITS_QUEUE_LOST /* lost, and not yet left */
} permits_place;

/* the result of an action */
typedef struct permits_seen
{
	int64_t now_us;
	uint32_t random;
	int free; /* after a try: a free permit, or PERMITS_NONE_FREE, PERMITS_TAKEN_HERE */
	permits_place place;
	uint32_t told;   /* in the queue: number of messages about free permits; the caller reads
					  * `told` first */
	int told_permit; /* permit of the last message; PERMITS_NONE_FREE: unknown */
} permits_seen;

/*
 * Begins a search.  others_wait: sessions of this server hold the queue, or ask for it.  Returns
 * the first step.
 */
extern permits_step permits_begin(permits_search *search, bool others_wait);

/* Returns the next step.  Not after a grant, and not after PERMITS_TIME_OUT or PERMITS_FAIL. */
extern permits_step permits_next(permits_search *search, const permits_seen *seen);

/* Writes the name of a permit of the lock `name`; returns its length. */
extern size_t permits_name(char *to, const char *name, size_t len, int permit);

/* The length of the lock's name within the name of a permit. */
extern size_t permits_name_len(const char *name, size_t len);

/* The permit's number; PERMITS_QUEUE for the queue and for the lock itself. */
extern int permits_number(const char *name, size_t len);

#endif /* REDLOCK_PERMITS_H */
