/*
 * timers.h
 *		A heap of timers, the earliest first: each timer belongs to one of many objects.
 *
 * Used by the broker only.  A timer that was never set is zero.
 */
#ifndef REDLOCK_TIMERS_H
#define REDLOCK_TIMERS_H

#include "lib/pairingheap.h"

typedef struct Timer
{
	pairingheap_node heap_node;
	int64 at_us; /* 0: not set */
} Timer;

/* Allocates in the current memory context. */
extern pairingheap *timers_make(void);

/* Sets, moves, or with 0 removes a timer. */
extern void timers_set(pairingheap *timers, Timer *timer, int64 at_us);

/* Returns the earliest timer, or NULL. */
extern Timer *timers_first(pairingheap *timers);

#endif /* REDLOCK_TIMERS_H */
