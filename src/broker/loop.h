/*
 * loop.h
 *		The broker's wait: its latch, the postmaster's death, and one socket for
 *		each node.  The only file of the broker with a WaitEventSet.
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

/* Watches a node's socket, or changes the events to wait for. */
extern void loop_watch(int node, int fd, bool want_write);

/* To be called before the socket is closed. */
extern void loop_forget(int node);

/*
 * Waits for an event, at most timeout_us (negative: for ever).  Resets the latch, and polls all
 * sockets even if the latch is set.  Returns the number of socket events.  Exits if the postmaster
 * died.
 */
extern int loop_wait(int64 timeout_us, LoopEvent events[LOOP_EVENTS_MAX]);

#endif /* REDLOCK_LOOP_H */
