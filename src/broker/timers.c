/*
 * timers.c
 *		A heap of timers; see timers.h.
 */
#include "postgres.h"

#include "broker/timers.h"

static int compare(const pairingheap_node *a, const pairingheap_node *b, void *arg);

pairingheap *
timers_make(void)
{
	return pairingheap_allocate(compare, NULL);
}

/* Reversed: the pairing heap puts its largest element first, and the earliest is wanted. */
static int
compare(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	int64 a_us = pairingheap_const_container(Timer, heap_node, a)->at_us;
	int64 b_us = pairingheap_const_container(Timer, heap_node, b)->at_us;

	return a_us < b_us ? 1 : a_us > b_us ? -1 : 0;
}

void
timers_set(pairingheap *timers, Timer *timer, int64 at_us)
{
	if (timer->at_us == at_us)
		return;
	if (timer->at_us != 0)
		pairingheap_remove(timers, &timer->heap_node);
	timer->at_us = at_us;
	if (timer->at_us != 0)
		pairingheap_add(timers, &timer->heap_node);
}

Timer *
timers_first(pairingheap *timers)
{
	if (pairingheap_is_empty(timers))
		return NULL;
	return pairingheap_container(Timer, heap_node, pairingheap_first(timers));
}
