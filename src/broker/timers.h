/*
 * timers.h
 *		When something is to be done for one of many: a heap of timers, the earliest first.
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

/* In the current memory context. */
extern pairingheap *timers_make(void);

/* In place of what was set before; 0: no more. */
extern void timers_set(pairingheap *timers, Timer *timer, int64 at_us);

/* The earliest, or NULL. */
extern Timer *timers_first(pairingheap *timers);

#endif /* REDLOCK_TIMERS_H */
