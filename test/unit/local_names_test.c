/*
 * local_names_test.c
 *		Unit tests of the names that the node inside the server knows, src/protocol/local_names.c.
 *
 * Protects from: memory growing with the number of names; a key dropped to make room for a name; a
 * token out of order after a counter was dropped; a place lost, or given twice.
 */
#include "protocol/local_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define PLACES 40
#define NOW_US INT64_C(1800000000000000)
#define HOUR_US INT64_C(3600000000)

static local_names *names;
static int64_t now_us;

static void
begin(void)
{
	free(names);
	names = calloc(1, local_names_bytes(PLACES));
	local_names_init(names, PLACES, 7);
	names->mark.text = 1;
	now_us = NOW_US;
}

/* Acquires or releases; returns the token, 0: refused, -1: there is no room. */
static int64_t
execute(core_op op, int number, uint64_t secret)
{
	local_command command = {.op = op,
							 .secret = {0, secret},
							 .attempt = 1,
							 .host = 1,
							 .ttl_ms = op == CORE_OP_ACQUIRE ? 1000000 : 0,
							 .proposal = now_us,
							 .marker = 1,
							 .waited_us = -1};
	local_memory memory = LOCAL_HAS_ROOM;
	local_answer answer;
	local_name *name;
	char key[20];

	snprintf(key, sizeof(key), "name %d", number);
	name = local_names_begin(names, key, strlen(key), now_us);
	if (name == NULL)
		return -1;
	local_execute(&name->data, &names->mark, now_us, &command, &memory, &answer);
	local_names_end(names, name);
	return answer.reply == CORE_REPLY_YES ? answer.token : 0;
}

static int64_t
acquire(int number)
{
	return execute(CORE_OP_ACQUIRE, number, 1);
}

static bool
is_there(int number)
{
	char key[20];
	const local_name *name;

	snprintf(key, sizeof(key), "name %d", number);
	name = local_names_find(names, key, strlen(key), now_us);
	return name != NULL && local_has_key(&name->data);
}

/* All places, once each, are known or free. */
static bool
is_whole(void)
{
	bool seen[PLACES] = {false};
	int count = 0;

	for (int32_t i = names->free; i >= 0 && count <= PLACES; i = names->name[i].next, count++)
		seen[i] = true;
	for (int32_t i = names->oldest; i >= 0 && count <= PLACES; i = names->name[i].newer, count++)
	{
		if (seen[i])
			return false;
		seen[i] = true;
	}
	return count == PLACES;
}

static void
test_bound(void)
{
	int granted = 0;
	local_name *name;

	begin();
	for (int i = 0; i < PLACES; i++)
		granted += acquire(i) > 0;
	ok(granted == PLACES, "as many keys as places");
	ok(acquire(PLACES) == -1, "one more name finds no room");
	ok(execute(CORE_OP_ACQUIRE, 3, 2) == 0, "a key is in the way of another request");
	execute(CORE_OP_RELEASE, 5, 1);
	ok(!is_there(5) && acquire(PLACES) > 0, "a released name makes room");
	granted = 0;
	for (int i = 0; i < PLACES; i++)
		granted += is_there(i);
	ok(granted == PLACES - 1, "all others are there");
	ok(is_whole(), "no place is lost");
	execute(CORE_OP_RELEASE, 7, 1);
	name = local_names_begin(names, "name 7", 6, now_us);
	ok(acquire(PLACES + 1) == -1, "a name in use makes no room,");
	local_names_end(names, name);
	ok(acquire(PLACES + 1) > 0, "until its use ends");
	now_us += 2 * 1000000 * INT64_C(1000);
	ok(acquire(PLACES + 2) > 0, "an expired key makes room");
	now_us += 3 * HOUR_US;
	ok(local_names_find(names, "name 1", 6, now_us) == NULL,
	   "a name whose key and counter have expired is not known");
}

static void
test_floor(void)
{
	int64_t token;
	bool in_order = true;

	begin();
	/* a name that is ahead of the clock makes room, and comes back */
	for (int i = 0; i < 5000; i++)
	{
		token = acquire(0);
		execute(CORE_OP_RELEASE, 0, 1);
	}
	ok(token > now_us + 4000000, "a hot name is ahead of the clock");
	for (int i = 1; i <= 2 * PLACES; i++)
	{
		acquire(i);
		execute(CORE_OP_RELEASE, i, 1);
	}
	ok(acquire(0) > token, "its token stays in order after it made room");
	ok(is_whole(), "no place is lost");
	now_us += 3 * HOUR_US;
	acquire(1000);
	ok(acquire(1001) == now_us, "the floor ends with the counters");
	for (int round = 0; round < 200; round++)
	{
		static int64_t last[100];
		int number = round * 7 % 100;

		token = acquire(number);
		in_order = in_order && token > last[number];
		last[number] = token;
		execute(CORE_OP_RELEASE, number, 1);
	}
	ok(in_order && is_whole(), "100 names take turns in 40 places, in order");
}

static void
test_nothing(void)
{
	int free_before;
	char key[LOCAL_KEY_MAX + 1];

	begin();
	free_before = names->free;
	execute(CORE_OP_RELEASE, 1, 1);
	ok(names->free == free_before && names->oldest == -1, "a release of nothing leaves nothing");
	ok(local_names_begin(names, "", 0, now_us) == NULL, "an empty key has no place");
	memset(key, 'k', sizeof(key));
	ok(local_names_begin(names, key, sizeof(key), now_us) == NULL, "nor has one that is too long");
}

/* The names that a list of keys finds. */
static void
test_places(void)
{
	int there = 0;

	begin();
	execute(CORE_OP_ACQUIRE, 1, 1);
	execute(CORE_OP_ACQUIRE, 2, 2);
	execute(CORE_OP_RELEASE, 1, 1);
	for (int32_t place = 0; place < names->size; place++)
	{
		const local_name *name = local_names_at(names, place, now_us);

		there += name != NULL ? (int) name->data.secret.low : 0;
	}
	ok(there == 2, "a name with a key is found, a name with a counter is not");
	now_us += HOUR_US;
	for (int32_t place = 0; place < names->size; place++)
		there -= local_names_at(names, place, now_us) == NULL;
	ok(there == 2 - names->size, "nor an expired key");
}

/* A name gets the floor as its counter, then a change.  Returns true if the name stays known. */
static bool
stays(void (*change)(local_name *name))
{
	local_name *name;
	int32_t free_before;

	begin();
	names->floor = now_us;
	names->floor_end_ms = now_us / 1000 + 1;
	free_before = names->free;
	name = local_names_begin(names, "name 1", 6, now_us);
	change(name);
	local_names_end(names, name);
	return names->free != free_before;
}

static void
leave(local_name *name)
{
	(void) name;
}

static void
raise(local_name *name)
{
	name->data.counter++;
}

static void
prolong(local_name *name)
{
	name->data.counter_end_ms++;
}

static void
bar(local_name *name)
{
	name->data.barrier.low = 1;
}

static void
bar_alone(local_name *name)
{
	name->data.counter = 0;
	name->data.barrier.low = 1;
}

static void
test_knowledge(void)
{
	ok(!stays(leave), "the floor alone is no knowledge of a name");
	ok(stays(raise) && stays(prolong) && stays(bar) && stays(bar_alone),
	   "another counter, its end, or a writer that waits are");
}

int
main(void)
{
	test_bound();
	test_floor();
	test_nothing();
	test_places();
	test_knowledge();
	free(names);
	return tap_done();
}
