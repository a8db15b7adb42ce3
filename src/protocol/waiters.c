/*
 * waiters.c
 *		Which hosts wait; see waiters.h.
 */
#include "protocol/waiters.h"

static void drop(Waiters *waiters, int from, int count);

void
waiters_add(Waiters *waiters, uint64_t host, int64_t waited_us, int64_t now_us)
{
	Waiter newcomer = {host, waited_us < now_us ? now_us - waited_us : 0};
	int at = waiters_place(waiters, host);

	if (at < waiters->count)
		drop(waiters, at, 1);
	for (at = waiters->count; at > 0 && waiters->waiter[at - 1].since_us > newcomer.since_us;)
		at--;
	if (at == WAITERS_MAX)
		return;
	if (waiters->count == WAITERS_MAX)
		waiters->count--;
	for (int i = waiters->count++; i > at; i--)
		waiters->waiter[i] = waiters->waiter[i - 1];
	waiters->waiter[at] = newcomer;
}

int
waiters_place(const Waiters *waiters, uint64_t host)
{
	int place = 0;

	while (place < waiters->count && waiters->waiter[place].host != host)
		place++;
	return place;
}

void
waiters_pass(Waiters *waiters, uint64_t self)
{
	int place = waiters_place(waiters, self);

	drop(waiters, 0, place < waiters->count ? place + 1 : place > 0);
}

bool
waiters_count_told(uint32_t *nodes, int64_t *ended, uint32_t node, int64_t token)
{
	if (token > 0 && token < *ended)
		return false;
	if (token == 0 && *ended < 0)
	{
		/* what was told before it asked; those of readers add up from here */
		*nodes = 0;
		*ended = 0;
	}
	if ((token > *ended && token != -*ended) || (token == 0 && (*nodes & node) != 0))
		*nodes = 0;
	if (token > 0)
		*ended = token;
	if (*nodes & node)
		return false;
	*nodes |= node;
	return true;
}

void
waiters_asked(int64_t *ended)
{
	if (*ended > 0)
		*ended = -*ended;
}

static void
drop(Waiters *waiters, int from, int count)
{
	waiters->count -= count;
	for (int i = from; i < waiters->count; i++)
		waiters->waiter[i] = waiters->waiter[i + count];
}
