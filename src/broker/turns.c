/*
 * turns.c
 *		Whose turn is next; see turns.h.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/memutils.h"

#include "broker/members.h"
#include "broker/script.h"
#include "broker/subscription.h"
#include "broker/turns.h"
#include "protocol/rules.h"
#include "shared/node_status.h"

/* Two names in one place cost a pause, no more. */
#define PLACES 256

/* Of each slot of the lease table. */
typedef struct Turn
{
	WaitersKnown *known; /* NULL: nobody waits */
	int64 heard_us;      /* of the last release since it began to ask, or that */
} Turn;

/* After a release of a name: the pause of this host, or what the turn goes on with. */
typedef struct Pause
{
	int64 end_us;
	uint64 tell;         /* this host, if it asks meanwhile; 0: nobody, it was named, too */
	uint64 hash;         /* the name whose turn goes on */
	WaitersKnown *known; /* the hosts that wait for its end; NULL: nobody */
} Pause;

static Turn *turns;
static Pause pauses[PLACES];

static WaitersKnown *known_of(const Lease *lease);
static void tell(uint64 host, const Lease *lease, int64 now_us);
static int64 hold_back_us(void);
static int64 round_trip_us(void);

void
turns_init(void)
{
	turns = MemoryContextAllocExtended(TopMemoryContext, lease_table->slots * sizeof(Turn),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

void
turns_want(Lease *lease, const Waiter *waiter, bool shared, int64 now_us)
{
	if (waiter->host == lease_table->host_id)
		return; /* refused by a key that this host has not yet taken back */
	waiters_tell(known_of(lease), (Waiter){.host = waiter->host,
										   .since_us = waiter->since_us,
										   .alone = lease->shared && !shared});
	/* who wants to share it, too, wants nothing of those who do */
	if (!shared || !lease->shared)
		lease_want(lease);
}

static WaitersKnown *
known_of(const Lease *lease)
{
	WaitersKnown **known = &turns[lease_slot(lease)].known;

	if (*known == NULL)
		*known = MemoryContextAllocZero(TopMemoryContext, sizeof(WaitersKnown));
	return *known;
}

const Waiters *
turns_waiters(const Lease *lease)
{
	WaitersKnown *known = turns[lease_slot(lease)].known;

	return known != NULL ? &known->named : NULL;
}

const Waiters *
turns_told(const Lease *lease)
{
	WaitersKnown *known = turns[lease_slot(lease)].known;

	return known != NULL ? &known->told : NULL;
}

/* Who waits behind us is known when it is our turn, and does not have to tell again. */
int64
turns_hear(Lease *lease, const Waiters *named, int64 now_us)
{
	int place = waiters_place(named, lease_table->host_id);
	uint64 next = waiters_whom_to_tell(named, lease_table->host_id);
	int64 turn_us = now_us - turns[lease_slot(lease)].heard_us;
	int64 after_us =
		rules_turn_after_us(place, named->count, lease->core.waiting,
							pg_prng_uint32(&pg_global_prng_state), hold_back_us(), turn_us);

	turns[lease_slot(lease)].heard_us = now_us;
	if (named->count > 0)
	{
		waiters_hear(known_of(lease), named, lease_table->host_id);
		/* who waits may want to share it, too */
		if (known_of(lease)->named.count > 0 && !lease->shared)
			lease_want(lease);
	}
	if (after_us < 0)
		return 0;
	if (next != 0)
		tell(next, lease, now_us);
	/* who was not named is not put off by each release anew */
	if (place == named->count && lease->core.not_before_us > now_us)
		return Min(now_us + after_us, lease->core.not_before_us);
	return now_us + after_us;
}

int64
turns_miss(const Lease *lease, int64 now_us)
{
	int64 after_us = rules_miss_us(lease->core.waiting, pg_prng_uint32(&pg_global_prng_state));

	return after_us >= 0 ? now_us + after_us : 0;
}

/* That this host waits. */
static void
tell(uint64 host, const Lease *lease, int64 now_us)
{
	char text[SCRIPT_WANT_MAX];

	subscription_say(host, text,
					 script_write_want(text, lease->key, lease->key_len, lease_table->host_id,
									   turns_waited_us(lease, now_us), lease->shared),
					 now_us);
}

/* Who has had its turn is the last in the list, if it wants another. */
void
turns_end(Lease *lease, int64 now_us)
{
	WaitersKnown *known = turns[lease_slot(lease)].known;
	Pause *pause = &pauses[lease->hash % PLACES];
	Waiters *named;

	if (known == NULL)
		return;
	if (lease->goes_on)
	{
		/* for the next request; the release names nobody */
		if (pause->known != NULL)
			pfree(pause->known);
		pause->hash = lease->hash;
		pause->known = known;
		turns[lease_slot(lease)].known = NULL;
		return;
	}
	named = waiters_to_name(known, lease->returns ? lease_table->host_id : 0, now_us);
	if (named->count == 0)
		return;
	pause->end_us = now_us + rules_pause_us(waiters_place(named, lease_table->host_id),
											hold_back_us(), now_us - lease->turn_began_us);
	pause->tell = waiters_whom_to_tell(named, lease_table->host_id);
}

int64
turns_begin(const Lease *lease, int64 now_us)
{
	Pause *pause = &pauses[lease->hash % PLACES];
	Turn *turn = &turns[lease_slot(lease)];

	turn->heard_us = now_us;
	if (lease->turn_handovers > 0)
	{
		if (turn->known == NULL && pause->known != NULL && pause->hash == lease->hash)
		{
			turn->known = pause->known;
			pause->known = NULL;
		}
		return 0;
	}
	if (pause->end_us > now_us && pause->tell != 0)
		tell(pause->tell, lease, now_us);
	return pause->end_us;
}

int64
turns_waited_us(const Lease *lease, int64 now_us)
{
	return Max(now_us - lease->waits_since_us, 0);
}

void
turns_forget(const Lease *lease)
{
	Turn *turn = &turns[lease_slot(lease)];

	if (turn->known != NULL)
		pfree(turn->known);
	*turn = (Turn){0};
}

static int64
hold_back_us(void)
{
	return rules_hold_back_us(round_trip_us());
}

int64
turns_long_us(void)
{
	return rules_long_turn_us(hold_back_us());
}

int64
turns_way_us(void)
{
	return round_trip_us() / 2;
}

int64
turns_recall_us(void)
{
	return rules_recall_us(round_trip_us());
}

/* That of the median node. */
static int64
round_trip_us(void)
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
	return count > 0 ? rtt_us[count / 2] : 0;
}
