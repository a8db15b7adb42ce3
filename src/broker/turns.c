/*
 * turns.c
 *		Whose turn is next; see turns.h.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "broker/members.h"
#include "broker/turns.h"
#include "protocol/rules.h"
#include "shared/node_status.h"

/* Two names in one place cost a pause, no more. */
#define PLACES 256

static Waiters **waiters; /* of each slot of the lease table; NULL: nobody waits */
static int64 *asked_us;   /* of each slot: when it was asked for */
static int64 begin_us[PLACES];

static Waiters *waiters_of(const Lease *lease);
static int64 hold_back_us(void);

void
turns_init(void)
{
	waiters = MemoryContextAllocExtended(TopMemoryContext, lease_table->slots * sizeof(Waiters *),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	asked_us = MemoryContextAllocExtended(TopMemoryContext, lease_table->slots * sizeof(int64),
										  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

void
turns_want(Lease *lease, const Waiter *waiter, int64 now_us)
{
	waiters_add(waiters_of(lease), waiter->host, now_us - waiter->since_us, now_us);
	lease_want(lease);
}

static Waiters *
waiters_of(const Lease *lease)
{
	Waiters **own = &waiters[lease_slot(lease)];

	if (*own == NULL)
		*own = MemoryContextAllocZero(TopMemoryContext, sizeof(Waiters));
	return *own;
}

const Waiters *
turns_waiters(const Lease *lease)
{
	return waiters[lease_slot(lease)];
}

/* Who waits behind us is known when it is our turn, and does not have to tell again. */
int64
turns_hear(Lease *lease, const Waiters *named, int64 now_us)
{
	int place = waiters_place(named, lease_table->host_id);
	int64 after_us = rules_turn_after_us(place, named->count, lease->core.waiting, hold_back_us());

	if (named->count > 0)
	{
		*waiters_of(lease) = *named;
		waiters_pass(waiters_of(lease), lease_table->host_id);
		if (waiters_of(lease)->count > 0)
			lease_want(lease);
	}
	return after_us < 0 ? 0 : now_us + after_us;
}

void
turns_end(const Lease *lease, int64 now_us)
{
	const Waiters *own = turns_waiters(lease);

	if (own != NULL && own->count > 0)
		begin_us[lease->hash % PLACES] = now_us + own->count * hold_back_us();
}

int64
turns_ask(const Lease *lease, int64 now_us)
{
	asked_us[lease_slot(lease)] = now_us;
	return begin_us[lease->hash % PLACES];
}

/* It was an earlier broker that was asked, if we do not know. */
int64
turns_waited_us(const Lease *lease, int64 now_us)
{
	int64 *since_us = &asked_us[lease_slot(lease)];

	if (*since_us == 0)
		*since_us = now_us;
	return now_us - *since_us;
}

void
turns_forget(const Lease *lease)
{
	Waiters **own = &waiters[lease_slot(lease)];

	if (*own != NULL)
		pfree(*own);
	*own = NULL;
}

/* By the round trip of the median node. */
static int64
hold_back_us(void)
{
	int64 rtt_us[CORE_NODES_MAX];
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int64 rtt = (int64) pg_atomic_read_u64(&node_status[i].rtt_us);
		int at = count;

		if (!(members() & CORE_BIT(i)))
			continue;
		for (; at > 0 && rtt_us[at - 1] > rtt; at--)
			rtt_us[at] = rtt_us[at - 1];
		rtt_us[at] = rtt;
		count++;
	}
	return rules_hold_back_us(count > 0 ? rtt_us[count / 2] : 0);
}
