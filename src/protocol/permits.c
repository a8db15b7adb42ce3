/*
 * permits.c
 *		Asking for one of several permits, and their names; see permits.h.
 */
#include "protocol/permits.h"

#include <string.h>

#include "protocol/lua.h"

static permits_step decide(permits_search *search, const permits_seen *seen);
static void begin_round(permits_search *search, int permit);
static bool choose_other(permits_search *search, int free);
static bool is_one(const permits_search *search, int permit);

permits_step
permits_begin(permits_search *search, bool others_wait)
{
	begin_round(search, PERMITS_NONE_FREE);
	search->step = !others_wait ? PERMITS_TRY : search->once ? PERMITS_FAIL : PERMITS_ENTER_QUEUE;
	return search->step;
}

permits_step
permits_next(permits_search *search, const permits_seen *seen)
{
	search->step = decide(search, seen);
	return search->step;
}

static permits_step
decide(permits_search *search, const permits_seen *seen)
{
	bool has_tried = search->step == PERMITS_TRY;

	if (seen->place == PERMITS_QUEUE_LOST)
		return PERMITS_LEAVE_QUEUE;
	if (has_tried && choose_other(search, seen->free))
		return PERMITS_TRY;
	if (search->once)
		return PERMITS_FAIL;
	if (seen->place == PERMITS_OUTSIDE)
		return PERMITS_ENTER_QUEUE;
	if (has_tried)
	{
		if (seen->now_us >= search->deadline_us)
			return PERMITS_TIME_OUT;
		search->look_at_us =
			seen->now_us + PERMITS_LOOK_US / 2 + seen->random % (uint32_t) PERMITS_LOOK_US;
		if (search->look_at_us > search->deadline_us)
			search->look_at_us = search->deadline_us;
	}
	if (search->step != PERMITS_ENTER_QUEUE && seen->told == search->told &&
		seen->now_us < search->look_at_us)
		return PERMITS_WAIT;
	/* a message after this point may come too late for this round, and begins another round */
	search->told = seen->told;
	begin_round(search, seen->told_permit);
	return PERMITS_TRY;
}

/*
 * Hosts begin at different permits, to keep out of each other's way, unless the host knows of a
 * free permit.
 */
static void
begin_round(permits_search *search, int permit)
{
	search->permit = is_one(search, permit)
						 ? permit
						 : (int) (search->host / 2 % (uint64_t) search->n) + 1; /* ids are odd */
	search->gone = 0;
}

/*
 * Chooses a permit after a failed try.  Returns false if no permit is free, or all were tried.
 * A node names the next free permit, so the permits before it are not free.  If the named permit
 * is taken on this server, for instance by a session that was stopped while asking, the search
 * goes on behind it.  So the search does not ask again for the permit that a node has just
 * refused.
 */
static bool
choose_other(permits_search *search, int free)
{
	int next = is_one(search, free) ? free : search->permit % search->n + 1;

	if (free == PERMITS_NONE_FREE)
		return false;
	search->gone +=
		next > search->permit ? next - search->permit : next - search->permit + search->n;
	search->permit = next;
	return search->gone < search->n;
}

/* A session with a larger number of permits may report permits that this lock does not have. */
static bool
is_one(const permits_search *search, int permit)
{
	return permit >= 1 && permit <= search->n;
}

/* redlock.lua uses the same names. */
size_t
permits_name(char *to, const char *name, size_t len, int permit)
{
	size_t at = len;
	int unit = 1000;

	memcpy(to, name, len);
	to[at++] = LUA_PERMIT[0];
	for (; unit > 0; unit /= 10)
		if (permit >= unit)
			to[at++] = (char) ('0' + permit / unit % 10);
	return at;
}

size_t
permits_name_len(const char *name, size_t len)
{
	size_t at = 0;

	while (at < len && name[at] != LUA_PERMIT[0])
		at++;
	return at;
}

int
permits_number(const char *name, size_t len)
{
	size_t at = permits_name_len(name, len);
	int permit = 0;

	while (++at < len)
		permit = permit * 10 + (name[at] - '0');
	return permit;
}
