/*
 * turns.c
 *		The next turn; see turns.h.
 */
#include "driver/turns.h"

#include "protocol/rules.h"

static WaitersKnown *known_of(Driver *driver, int entry);
static DriverPause *pause_of(Driver *driver, int entry);
static int64_t hold_back_us(const Driver *driver);

void
turns_note_waiter(Driver *driver, int entry, const Waiter *waiter, bool shared)
{
	bool we_share = driver->entry[entry].terms.shared;

	if (waiter->host == driver->id)
		return; /* a key that this host has not yet deleted refused this host's own request */
	waiters_tell(
		known_of(driver, entry),
		(Waiter){.host = waiter->host, .since_us = waiter->since_us, .alone = we_share && !shared});
	/* a reader of another host does not disturb the readers of this host */
	if (!shared || !we_share)
		driver->world->note_waiting_host(driver, entry);
}

static WaitersKnown *
known_of(Driver *driver, int entry)
{
	WaitersKnown **known = &driver->entry[entry].known;

	if (*known == NULL)
		*known = driver->world->make_waiters(driver);
	return *known;
}

const Waiters *
turns_named(const Driver *driver, int entry)
{
	const WaitersKnown *known = driver->entry[entry].known;

	return known != NULL ? &known->named : NULL;
}

const Waiters *
turns_told(const Driver *driver, int entry)
{
	const WaitersKnown *known = driver->entry[entry].known;

	return known != NULL ? &known->told : NULL;
}

/*
 * The waiters behind this host are known when its turn comes, and need not announce themselves
 * again.
 */
int64_t
turns_hear(Driver *driver, int entry, const Waiters *named, int64_t now_us)
{
	const core_lease *core = &driver_lease(driver, entry)->core;
	int place = waiters_place(named, driver->id);
	uint64_t next = waiters_whom_to_tell(named, driver->id);
	int64_t turn_us = now_us - driver->entry[entry].heard_us;
	int64_t after_us =
		rules_turn_after_us(place, named->count, core->waiting, driver->world->random(driver),
							hold_back_us(driver), turn_us);

	driver->entry[entry].heard_us = now_us;
	if (named->count > 0)
	{
		WaitersKnown *known = known_of(driver, entry);

		waiters_hear(known, named, driver->id);
		/* a waiter may be another reader */
		if (known->named.count > 0 && !driver->entry[entry].terms.shared)
			driver->world->note_waiting_host(driver, entry);
	}
	if (after_us < 0)
		return 0;
	if (next != 0)
		driver->world->tell_host(driver, next, entry, now_us);
	/* a further release does not postpone an unnamed host again */
	if (place == named->count && core->not_before_us > now_us &&
		core->not_before_us < now_us + after_us)
		return core->not_before_us;
	return now_us + after_us;
}

int64_t
turns_miss(Driver *driver, int entry, int64_t now_us)
{
	int64_t after_us =
		rules_miss_us(driver_lease(driver, entry)->core.waiting, driver->world->random(driver));

	return after_us >= 0 ? now_us + after_us : 0;
}

/* A host that had its turn and waits for another is last in the list. */
void
turns_end(Driver *driver, int entry, int64_t now_us)
{
	WaitersKnown *known = driver->entry[entry].known;
	DriverPause *pause = pause_of(driver, entry);
	DriverTurnEnd end = driver->world->turn_end(driver, entry);
	Waiters *named;

	if (known == NULL)
		return;
	if (end == TURN_GOES_ON)
	{
		/* keep the waiters for the next request; the release names no host */
		if (pause->known != NULL)
			driver->world->drop_waiters(driver, pause->known);
		pause->hash = driver->entry[entry].terms.hash;
		pause->known = known;
		driver->entry[entry].known = NULL;
		return;
	}
	named = waiters_to_name(known, end == TURN_RETURNS ? driver->id : 0, now_us);
	if (named->count == 0)
		return;
	pause->end_us = now_us + rules_pause_us(waiters_place(named, driver->id), hold_back_us(driver),
											now_us - driver_lease(driver, entry)->turn_began_us);
	pause->paused = driver->entry[entry].terms.hash;
	pause->tell = waiters_whom_to_tell(named, driver->id);
}

int64_t
turns_begin(Driver *driver, int entry, int64_t now_us)
{
	DriverPause *pause = pause_of(driver, entry);

	driver->entry[entry].heard_us = now_us;
	if (driver_lease(driver, entry)->turn_handovers > 0)
	{
		if (driver->entry[entry].known == NULL && pause->known != NULL &&
			pause->hash == driver->entry[entry].terms.hash)
		{
			driver->entry[entry].known = pause->known;
			pause->known = NULL;
		}
		return 0;
	}
	if (pause->paused != driver->entry[entry].terms.hash)
		return 0;
	if (pause->end_us > now_us && pause->tell != 0)
		driver->world->tell_host(driver, pause->tell, entry, now_us);
	return pause->end_us;
}

static DriverPause *
pause_of(Driver *driver, int entry)
{
	return &driver->pause[driver->entry[entry].terms.hash % DRIVER_PAUSES];
}

int64_t
turns_waited_us(const Driver *driver, int entry, int64_t now_us)
{
	int64_t waited_us = now_us - driver->entry[entry].terms.waits_since_us;

	return waited_us > 0 ? waited_us : 0;
}

void
turns_forget(Driver *driver, int entry)
{
	if (driver->entry[entry].known != NULL)
		driver->world->drop_waiters(driver, driver->entry[entry].known);
	driver->entry[entry].known = NULL;
}

int64_t
turns_long_us(const Driver *driver)
{
	return rules_long_turn_us(hold_back_us(driver));
}

int64_t
turns_recall_us(const Driver *driver)
{
	return rules_recall_us(driver->world->round_trip_us(driver));
}

static int64_t
hold_back_us(const Driver *driver)
{
	return rules_hold_back_us(driver->world->round_trip_us(driver));
}
