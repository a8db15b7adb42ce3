/*
 * loop.h
 *		The broker's wait: its latch, the postmaster's death, and one socket for
 *		each node.  The only room that knows PostgreSQL's wait events.
 */
#ifndef REDLOCK_LOOP_H
#define REDLOCK_LOOP_H

#define LOOP_SOCKETS_MAX 64
#define LOOP_EVENTS_MAX (LOOP_SOCKETS_MAX + 2) /* the latch, and the postmaster */

typedef struct LoopEvent
{
	int node;
	bool readable;
	bool writable;
} LoopEvent;

/* Watch a node's socket, from now on or with another wish. */
extern void loop_watch(int node, int fd, bool want_write);

/* To be called before the socket is closed. */
extern void loop_forget(int node);

/*
 * Wait until something happens or `timeout_us` have passed (negative: for
 * ever).  All sockets are looked at, also when the latch is set; it is reset.
 * Returns the number of events of sockets.  Exits if the postmaster died.
 */
extern int loop_wait(int64 timeout_us, LoopEvent events[LOOP_EVENTS_MAX]);

#endif /* REDLOCK_LOOP_H */
