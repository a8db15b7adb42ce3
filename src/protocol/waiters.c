/*
 * waiters.c
 *		The waiting hosts of a lock; see waiters.h.
 */
#include "protocol/waiters.h"

static void insert(Waiters *waiters, Waiter newcomer);
static void drop(Waiters *waiters, int from, int count);

void
waiters_add(Waiters *waiters, uint64_t host, int64_t waited_us, int64_t now_us)
{
	insert(waiters,
		   (Waiter){.host = host, .since_us = waited_us < now_us ? now_us - waited_us : 0});
}

static void
insert(Waiters *waiters, Waiter newcomer)
{
	int at = waiters_place(waiters, newcomer.host);

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
waiters_hear(WaitersKnown *known, const Waiters *named, uint64_t self)
{
	int place = waiters_place(named, self);

	known->named = *named;
	drop(&known->named, 0, place < named->count ? place + 1 : place > 0);
	for (int i = 0; i < known->told.count; i++)
		if (waiters_place(named, known->told.waiter[i].host) == named->count)
			insert(&known->named, known->told.waiter[i]);
	known->told.count = 0;
}

void
waiters_tell(WaitersKnown *known, Waiter waiter)
{
	insert(&known->told, waiter);
}

Waiters *
waiters_to_name(WaitersKnown *known, uint64_t again, int64_t now_us)
{
	Waiters *named = &known->named;
	Waiters alone = {0};

	for (int i = 0; i < known->told.count; i++)
		insert(named, known->told.waiter[i]);
	known->told.count = 0;
	for (int i = 0; i < named->count; i++)
		if (named->waiter[i].alone)
			insert(&alone, named->waiter[i]);
	if (alone.count > 0)
		*named = alone;
	else if (named->count > 0 && again != 0)
		waiters_add(named, again, 0, now_us);
	return named;
}

uint64_t
waiters_whom_to_tell(const Waiters *named, uint64_t self)
{
	if (named->count == 0 || waiters_place(named, self) < named->count)
		return 0;
	return named->waiter[named->count > 1].host;
}

static void
drop(Waiters *waiters, int from, int count)
{
	waiters->count -= count;
	for (int i = from; i < waiters->count; i++)
		waiters->waiter[i] = waiters->waiter[i + count];
}
