/*
 * permits_test.c
 *		Unit tests of permits, their names and their queue, src/protocol/permits.c.
 *
 * Protects from: two permits with one key; a first permit apart from the lock itself, which would
 * not exclude clients without permits; a number changed between writing and reading; a permit left
 * out, tried twice, or not the caller's; a round of tries in vain; a lost wake-up; a wait without
 * an end; a lost queue that the session does not leave.
 */
#include "protocol/permits.h"

#include <string.h>

#include "protocol/lua.h"
#include "tap.h"

static void
test_names(void)
{
	static const char *const names[] = {"a", "job", "\xc3\xa4 1", "x10"};
	char last[64] = "";
	char name[64];
	bool good = true;

	ok(permits_name(name, "job", 3, 1) == 5 && memcmp(name, "job" LUA_PERMIT "1", 5) == 0,
	   "each permit has its number behind the name of the lock");
	ok(permits_name(name, "job", 3, PERMITS_QUEUE) == 4 && memcmp(name, "job" LUA_PERMIT, 4) == 0,
	   "the queue has no number");
	ok(permits_name(name, "job", 3, 10) == 6 && memcmp(name, "job" LUA_PERMIT "10", 6) == 0,
	   "of several digits, too");
	for (int i = 0; i < (int) (sizeof(names) / sizeof(names[0])); i++)
		for (int permit = 0; permit <= PERMITS_MAX; permit++)
		{
			size_t len = strlen(names[i]);
			size_t all = permits_name(name, names[i], len, permit);

			name[all] = '\0';
			good = good && all <= len + PERMITS_SUFFIX_MAX && strcmp(name, last) != 0 &&
				   permits_name_len(name, all) == len && permits_number(name, all) == permit;
			strcpy(last, name);
		}
	ok(good, "each is read as it was written, and has room");
	ok(permits_name_len("job", 3) == 3 && permits_number("job", 3) == 0,
	   "a name without a permit is the name of the lock");
}

static permits_search search;
static permits_seen seen;

static permits_step
begin(uint64_t host, int n)
{
	search = (permits_search){.host = host, .n = n, .deadline_us = INT64_MAX};
	seen = (permits_seen){.now_us = 1000};
	return permits_begin(&search, false);
}

static permits_step
next(void)
{
	return permits_next(&search, &seen);
}

/* The step after a refused try. */
static permits_step
refused(int free)
{
	seen.free = free;
	return next();
}

/* A session holds the queue, and waits for the first time. */
static void
wait_in_queue(uint64_t host, int n)
{
	begin(host, n);
	refused(PERMITS_NONE_FREE);
	seen.place = PERMITS_IN_QUEUE;
	next();
	refused(PERMITS_NONE_FREE);
}

static void
tell(int permit)
{
	seen.told++;
	seen.told_permit = permit;
}

/* Permits of this server are skipped, all remaining permits come once, from any first permit. */
static void
test_order(void)
{
	for (int n = 1; n <= PERMITS_MAX; n = n < 5 ? n + 1 : n * 5)
	{
		bool tried[PERMITS_MAX + 1] = {false};
		permits_step step = begin(UINT64_MAX - 2 * 7, n);
		int count = 0;

		for (; step == PERMITS_TRY; step = refused(PERMITS_TAKEN_HERE))
		{
			bool is_new = search.permit >= 1 && search.permit <= n && !tried[search.permit];

			tried[search.permit] = true;
			count += is_new ? 1 : n;
		}
		ok(count == n && step == PERMITS_ENTER_QUEUE, "of %d each is looked at once", n);
	}
	for (int host = 1; host < 20; host += 2)
	{
		int first;

		begin((uint64_t) host, 5);
		first = search.permit;
		begin((uint64_t) host + 2, 5);
		ok(search.permit != first, "hosts %d and %d begin at different ones", host, host + 2);
	}
}

static void
test_round(void)
{
	permits_step step;
	int count = 1;

	begin(1, 9);
	ok(refused(7) == PERMITS_TRY && search.permit == 7, "the one that a node names is next");
	ok(refused(PERMITS_TAKEN_HERE) == PERMITS_TRY && search.permit == 8,
	   "the one after it, if it is taken here");
	ok(refused(9) == PERMITS_TRY && search.permit == 9, "or the one named then");
	ok(refused(PERMITS_NONE_FREE) == PERMITS_ENTER_QUEUE, "none if none is free");

	for (step = begin(1, 4); (step = refused(search.permit % 4 + 1)) == PERMITS_TRY;)
		count++;
	ok(count == 4 && step == PERMITS_ENTER_QUEUE, "no more tries than there are permits");

	begin(3, 4);
	ok(refused(1) == PERMITS_TRY && search.permit == 1 &&
		   refused(PERMITS_TAKEN_HERE) == PERMITS_ENTER_QUEUE,
	   "if the only one that is free is taken here, the one before it is not tried again");
	begin(3, 4);
	ok(refused(2) == PERMITS_ENTER_QUEUE, "nor one that a node both refuses and names");

	begin(1, 4);
	refused(5);
	ok(search.permit == 2, "a node can't name one beyond the last");
	refused(-7);
	ok(search.permit == 3, "or before the first");
}

static void
test_once(void)
{
	begin(1, 2);
	search.once = true;
	ok(refused(2) == PERMITS_TRY && refused(PERMITS_NONE_FREE) == PERMITS_FAIL,
	   "who does not wait does not take the queue");

	search = (permits_search){.host = 1, .n = 2, .once = true};
	ok(permits_begin(&search, true) == PERMITS_FAIL, "nor does it come between those who wait");
	search = (permits_search){.host = 1, .n = 2};
	ok(permits_begin(&search, true) == PERMITS_ENTER_QUEUE, "who waits queues behind them");
}

static void
test_queue(void)
{
	begin(1, 4);
	refused(PERMITS_NONE_FREE);
	seen.place = PERMITS_IN_QUEUE;
	ok(next() == PERMITS_TRY && search.permit == 1, "with the queue it begins again");
	ok(refused(PERMITS_NONE_FREE) == PERMITS_WAIT, "and waits");
	ok(next() == PERMITS_WAIT, "also when it is woken by something else");
	tell(3);
	ok(next() == PERMITS_TRY && search.permit == 3, "it tries the one of which it is told");
	ok(refused(PERMITS_NONE_FREE) == PERMITS_WAIT, "once");
	tell(5);
	ok(next() == PERMITS_TRY && search.permit == 1, "but for one beyond its last, its own first");
	refused(PERMITS_NONE_FREE);
	tell(PERMITS_NONE_FREE);
	ok(next() == PERMITS_TRY && search.permit == 1, "and if it is not told which");

	tell(2);
	ok(refused(4) == PERMITS_TRY && search.permit == 4, "what it is told meanwhile can wait");
	ok(refused(PERMITS_NONE_FREE) == PERMITS_TRY && search.permit == 2,
	   "until the round is over, and no longer");
	seen.told -= 5; /* as after a wrap-around */
	ok(refused(PERMITS_NONE_FREE) == PERMITS_TRY, "another count is another, larger or not");
}

static void
test_time(void)
{
	int64_t soonest_us = INT64_MAX;
	int64_t latest_us = 0;

	for (uint32_t i = 0; i < 1000; i++)
	{
		begin(1, 2);
		seen.place = PERMITS_IN_QUEUE;
		seen.random = i * (UINT32_MAX / 999);
		refused(PERMITS_NONE_FREE);
		if (search.look_at_us - seen.now_us < soonest_us)
			soonest_us = search.look_at_us - seen.now_us;
		if (search.look_at_us - seen.now_us > latest_us)
			latest_us = search.look_at_us - seen.now_us;
	}
	ok(soonest_us >= PERMITS_LOOK_US / 2 && soonest_us < PERMITS_LOOK_US * 3 / 4 &&
		   latest_us > PERMITS_LOOK_US * 5 / 4 && latest_us <= PERMITS_LOOK_US * 3 / 2,
	   "it looks by itself after half of the time to one and a half");

	wait_in_queue(1, 2);
	seen.now_us = search.look_at_us - 1;
	ok(next() == PERMITS_WAIT, "not sooner");
	seen.now_us++;
	ok(next() == PERMITS_TRY && refused(PERMITS_NONE_FREE) == PERMITS_WAIT &&
		   search.look_at_us > seen.now_us,
	   "then it looks, and waits again");

	search.deadline_us = seen.now_us + 5;
	tell(1);
	next();
	ok(refused(PERMITS_NONE_FREE) == PERMITS_WAIT && search.look_at_us == search.deadline_us,
	   "no longer than to the end of its time");
	seen.now_us = search.deadline_us;
	ok(next() == PERMITS_TRY, "when it tries a last time");
	tell(1);
	ok(refused(PERMITS_NONE_FREE) == PERMITS_TIME_OUT, "and gives up, whatever it is told");
}

static void
test_lost(void)
{
	wait_in_queue(1, 4);
	seen.place = PERMITS_QUEUE_LOST;
	ok(next() == PERMITS_LEAVE_QUEUE, "who waits leaves a queue that is lost");
	seen.place = PERMITS_OUTSIDE;
	ok(next() == PERMITS_ENTER_QUEUE, "and enters it again");
	seen.place = PERMITS_QUEUE_LOST;
	ok(next() == PERMITS_LEAVE_QUEUE, "as often as that happens");

	wait_in_queue(1, 4);
	tell(2);
	next();
	seen.place = PERMITS_QUEUE_LOST;
	ok(refused(3) == PERMITS_LEAVE_QUEUE, "it tries no other permit by a queue that is lost");
}

int
main(void)
{
	test_names();
	test_order();
	test_round();
	test_once();
	test_queue();
	test_time();
	test_lost();
	return tap_done();
}
