/*
 * force_release_test.c
 *		Unit tests of forced releases, src/protocol/force_release.c.
 *
 * Protects from: a renewal of the former holder undoing a forced release.
 */
#include <stdio.h>
#include <string.h>

#include "dice.h"
#include "protocol/force_release.h"
#include "tap.h"

#define NOW_US INT64_C(1700000000000000)
#define HOLDER "0123456789abcdeffedcba9876543210:000000001:00c0ffee00c0ffee host=\"a\""
#define OTHER "abcdef0123456789fedcba9876543210:000000001:00c0ffee00c0ffee host=\"b\""
#define READER "0123456789abcdef0123456789abcdef:000000001:00c0ffee00c0ffee= host=\"a\""
#define PERMIT "0123456789abcdeffedcba9876543210:000000001:00c0ffee00c0ffee permits=3 host=\"a\""
#define PERMIT_2 "abcdef0123456789fedcba9876543210:000000001:00c0ffee00c0ffee permits=3 host=\"b\""

static const core_lists five = {.now = 31};

static Inspected node[CORE_NODES_MAX];
static ForceRelease force;

static void
reset(void)
{
	memset(node, 0, sizeof(node));
	for (int i = 0; i < 5; i++)
		node[i].kind = INSPECTED_NONE;
	force_begin(&force, five, node, false, NOW_US, 0);
}

static void
has(int i, const char *value)
{
	node[i].kind = INSPECTED_STRING;
	node[i].value_len = (int) strlen(value);
	strcpy(node[i].value, value);
}

/* The look: node i has a key from[i] with the counter 10. */
static void
look(const char *const from[5], bool of_permit)
{
	reset();
	for (int i = 0; i < 5; i++)
	{
		node[i].counter = 10;
		if (from[i] != NULL)
			has(i, from[i]);
	}
	force_begin(&force, five, node, of_permit, NOW_US, 0);
}

static bool
deletes(const char *value)
{
	return force.value_len == (int) strlen(value) && memcmp(force.value, value, strlen(value)) == 0;
}

/* Node i keeps a key in spite of a round. */
static void
keeps(int i, const char *value, int64_t counter)
{
	has(i, value);
	node[i].forced = false;
	node[i].counter = counter;
	node[i].after = 0;
}

static void
forced(int i, int64_t before, int64_t after)
{
	node[i].kind = INSPECTED_STRING;
	node[i].forced = true;
	node[i].counter = before;
	node[i].after = after;
}

static int64_t
first_least(void)
{
	force_begin(&force, five, node, false, NOW_US, 0);
	return force.least;
}

static void
test_least(void)
{
	reset();
	ok(first_least() == 0, "without keys and counters nothing is raised");
	has(1, "plain");
	ok(first_least() == 0, "nor for a plain client");
	has(1, HOLDER);
	ok(first_least() == NOW_US, "a lost counter follows the clock");
	node[3].counter = 10;
	node[4].counter = 12;
	node[5].counter = 99;
	ok(first_least() == 13 + LUA_SPAN, "a span above the counters of the nodes in force");
	force_begin(&force, five, node, false, NOW_US, FORCE_SPREAD + 7);
	ok(force.least == 20 + LUA_SPAN, "and the distance");
	for (int i = 0; i < 5; i++)
		forced(i, 10 + i, 11 + i);
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.least == 13 + 1 + 7,
	   "also in the next round: %d", (int) force.least);
}

static void
test_rounds(void)
{
	reset();
	for (int i = 0; i < 5; i++)
		forced(i, 10, 11);
	ok(force_judge(&force, five, node) == FORCE_DONE, "all nodes agree");
	forced(0, 15, 16);
	ok(force_judge(&force, five, node) == FORCE_DONE,
	   "a majority agrees, without a higher counter");
	forced(0, 10, 3);
	ok(force_judge(&force, five, node) == FORCE_DONE, "without a node that lies");
	forced(0, 11, 12);
	forced(1, 10, 11);
	forced(2, 10, 11);
	node[3].kind = node[4].kind = INSPECTED_SILENT;
	ok(force_judge(&force, five, node) == FORCE_AGAIN, "a counter must be above, not equal");
	reset();
	for (int i = 0; i < 5; i++)
		forced(i, 10, 11);
	forced(0, 15, 16);
	node[3].kind = INSPECTED_SILENT;
	node[4].kind = INSPECTED_ERROR;
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.least == 17,
	   "a counter of three is above what two have now");
	for (int i = 0; i < 3; i++)
		forced(i, node[i].after, 17);
	ok(force_judge(&force, five, node) == FORCE_DONE, "the next round is above all counters");
	reset();
	node[4].kind = INSPECTED_ERROR;
	forced(0, 15, 16);
	forced(1, 10, 11);
	forced(2, 10, 11);
	forced(3, 99, 100);
	forced(1, 12, 13);
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.least == 17,
	   "the next round need not pass the highest of four");
	node[3].forced = false;
	node[3].kind = INSPECTED_SILENT;
	forced(1, 0, 16);
	forced(2, 10, 16);
	ok(force_judge(&force, five, node) == FORCE_DONE, "three nodes are enough");
	node[2].may_have_forgotten = true;
	ok(force_judge(&force, five, node) == FORCE_FAILED, "one that may have forgotten is none");
	look((const char *[]){HOLDER, HOLDER, HOLDER, NULL, NULL}, false);
	for (int i = 0; i < 2; i++)
		forced(i, 10, 11);
	for (int i = 2; i < 5; i++)
		keeps(i, OTHER, 11);
	node[2].kind = INSPECTED_OTHER;
	ok(force_judge(&force, five, node) == FORCE_DONE, "a later request's key counts,");
	node[3].kind = node[4].kind = INSPECTED_OTHER;
	ok(force_judge(&force, five, node) == FORCE_FAILED, "but no text about a key");
	reset();
	for (int i = 0; i < 5; i++)
		forced(i, 0, 0);
	ok(force_judge(&force, five, node) == FORCE_DONE, "plain clients have no counters");
}

/* The value to delete.  An ended request may have left a key at some node. */
static void
test_value(void)
{
	look((const char *[5]){OTHER, HOLDER, HOLDER, HOLDER, NULL}, false);
	ok(force.round == 1 && deletes(HOLDER), "only the key of the holder is deleted");
	for (int i = 0; i < 5; i++)
		forced(i, 10 + i, 11 + i);
	has(0, OTHER);
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.round == 2 && deletes(HOLDER),
	   "the same in the next round");
	look((const char *[5]){OTHER, HOLDER, HOLDER, NULL, NULL}, false);
	ok(force.value_len == 0, "without a holder at a quorum, any key");
	for (int i = 0; i < 5; i++)
		forced(i, 10 + i, 11 + i);
	has(0, OTHER);
	for (int i = 1; i < 4; i++)
		has(i, HOLDER);
	ok(force_judge(&force, five, node) == FORCE_AGAIN && deletes(HOLDER),
	   "until the first round shows a holder");
	look((const char *[5]){OTHER, HOLDER, HOLDER, NULL, NULL}, false);
	for (int i = 0; i < 5; i++)
		forced(i, 10 + i, 11 + i);
	for (int round = 1; round < FORCE_ROUNDS_MAX; round++)
		ok(force_judge(&force, five, node) == FORCE_AGAIN && deletes("-"),
		   "where no holder was, round %d deletes nothing", round + 1);
	ok(force_judge(&force, five, node) == FORCE_FAILED, "no round follows the last");
	look((const char *[5]){"plain", "plain", "plain", OTHER, NULL}, false);
	ok(deletes("plain"), "a plain client's key");
	look((const char *[5]){PERMIT, PERMIT, PERMIT_2, PERMIT_2, NULL}, false);
	ok(deletes(PERMIT), "a key with as many permits: a later holder's key stays");
	look((const char *[5]){PERMIT_2, PERMIT_2, PERMIT, PERMIT, PERMIT}, true);
	ok(deletes(PERMIT), "the key of a permit has one holder");
}

/* Another request's key remains. */
static void
test_others(void)
{
	look((const char *[5]){HOLDER, HOLDER, HOLDER, HOLDER, NULL}, false);
	for (int i = 0; i < 2; i++)
		forced(i, 10, 11);
	for (int i = 2; i < 5; i++)
		keeps(i, OTHER, 12);
	ok(force_judge(&force, five, node) == FORCE_DONE, "its acquire has raised the counter");
	keeps(2, OTHER, 10);
	forced(0, 20, 21);
	node[3].kind = node[4].kind = INSPECTED_SILENT;
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.least == 22, "but not high enough");
	keeps(2, OTHER, 0);
	ok(force_judge(&force, five, node) == FORCE_FAILED, "a key without a counter proves nothing");
	keeps(2, "plain", 12);
	ok(force_judge(&force, five, node) == FORCE_FAILED, "nor does a plain client's key");
	keeps(2, PERMIT, 12);
	ok(force_judge(&force, five, node) == FORCE_FAILED, "nor a lock with permits");
	look((const char *[5]){HOLDER, HOLDER, OTHER, OTHER, NULL}, false);
	for (int i = 0; i < 5; i++)
		keeps(i, HOLDER, 12);
	ok(force_judge(&force, five, node) == FORCE_FAILED,
	   "nor any key, if no look has shown the holder");
	look((const char *[5]){HOLDER, HOLDER, OTHER, OTHER, OTHER}, false);
	for (int i = 0; i < 5; i++)
		forced(i, 100, 102);
	for (int i = 0; i < 3; i++)
		keeps(i, HOLDER, 100);
	ok(deletes(OTHER) && force_judge(&force, five, node) == FORCE_FAILED,
	   "nor a key that the look has seen: the look is not one moment");
	look((const char *[5]){PERMIT, PERMIT, PERMIT, PERMIT, PERMIT}, false);
	for (int i = 0; i < 5; i++)
		keeps(i, PERMIT_2, 10 + i);
	ok(force_judge(&force, five, node) == FORCE_DONE, "later permits stay");
	look((const char *[5]){READER, READER, READER, NULL, NULL}, false);
	for (int i = 0; i < 5; i++)
		keeps(i, OTHER, 12);
	ok(force_judge(&force, five, node) == FORCE_DONE, "a writer comes after readers");
	look((const char *[5]){PERMIT, PERMIT, PERMIT, NULL, NULL}, true);
	for (int i = 0; i < 5; i++)
		keeps(i, PERMIT_2, 12);
	ok(force_judge(&force, five, node) == FORCE_DONE, "and another holder of one permit");
}

/*
 * A holder with a majority renews with rising bounds, other requests ask and stop, and a forced
 * release looks and goes through its rounds.  Each command is executed at a random moment, or later
 * than its round, or never, and its answer may be lost.  When a round counts as done, no majority
 * accepts the former holder's renewals any more.  If the look has shown the holder, no command
 * deletes the key of another request.
 */

#define OTHERS 3
#define NOBODY (-1)

typedef struct Late
{
	int node;
	ForceRelease force;
} Late;

typedef struct World
{
	int key[5]; /* NOBODY; 0: the holder; else another request */
	int64_t counter[5];
	int64_t bound;
	int64_t raise;
	unsigned said_yes;
	unsigned answered;
	bool done;
	bool later; /* this round of renewals began after the forced release */
	bool undone;
	int robbed; /* keys of other requests that were deleted */
	Late late[64];
	int lates;
} World;

static World world;

static int
bits(unsigned nodes)
{
	int count = 0;

	for (; nodes != 0; nodes &= nodes - 1)
		count++;
	return count;
}

static void
renew_at(int i)
{
	bool refused = world.key[i] > 0 || (world.key[i] == NOBODY && world.counter[i] > world.bound);

	world.answered |= 1u << i;
	if (refused)
		return;
	world.key[i] = 0;
	if (world.counter[i] < world.raise)
		world.counter[i] = world.raise;
	world.said_yes |= 1u << i;
	world.undone = world.undone || (world.later && bits(world.said_yes) >= 3);
}

/* A new round of renewals may raise the bound. */
static void
renew_again(void)
{
	if (bits(world.said_yes) >= 3)
		world.bound = world.raise;
	world.raise = world.bound + dice(3) * LUA_SPAN;
	world.answered = world.said_yes = 0;
	world.later = world.done;
}

static void
write_key(char *value, int key)
{
	snprintf(value, LUA_HELD_MAX, "%032x:%09d:%016x host=\"a\"", key + 1, 1, key);
}

static bool
force_at(int i, const ForceRelease *order)
{
	char held[LUA_HELD_MAX] = "";

	if (world.key[i] != NOBODY)
		write_key(held, world.key[i]);
	if (world.key[i] != NOBODY && order->value_len > 0 &&
		(order->value_len != (int) strlen(held) ||
		 memcmp(order->value, held, (size_t) order->value_len) != 0))
		return false;
	world.robbed += world.key[i] > 0;
	world.key[i] = NOBODY;
	world.counter[i] = world.counter[i] >= order->least ? world.counter[i] + 1 : order->least;
	return true;
}

/* An event outside of the forced release. */
static void
go_on(void)
{
	int i = (int) dice(5);
	int other = 1 + (int) dice(OTHERS);

	switch (dice(4))
	{
		case 0:
			if (world.answered == 31 || (bits(world.said_yes) >= 3 && dice(2)))
				renew_again();
			if (!(world.answered & 1u << i))
				renew_at(i);
			break;
		case 1:
			if (world.key[i] == NOBODY)
			{
				world.key[i] = other;
				world.counter[i] += LUA_SPAN * (1 + dice(3));
			}
			break;
		case 2: /* the attempt is over, or its key expires */
			if (world.key[i] > 0)
				world.key[i] = NOBODY;
			break;
		default:
			if (world.lates > 0 && dice(4) == 0)
			{
				const Late *late = &world.late[--world.lates];

				force_at(late->node, &late->force);
			}
	}
}

static void
read_at(int i)
{
	node[i].kind = world.key[i] == NOBODY ? INSPECTED_NONE : INSPECTED_STRING;
	node[i].counter = world.counter[i];
	if (world.key[i] != NOBODY)
		write_key(node[i].value, world.key[i]);
	node[i].value_len = (int) strlen(node[i].value);
}

/* Asks each node once: a look, or a round. */
static void
ask(bool looks)
{
	unsigned asked = 0;

	memset(node, 0, sizeof(node));
	for (int i = 0; i < 5; i++)
		node[i].kind = INSPECTED_SILENT;
	while (asked != 31)
	{
		int i = (int) dice(5);

		if (dice(2))
			go_on();
		if (asked & 1u << i)
			continue;
		asked |= 1u << i;
		switch (dice(12))
		{
			case 0: /* lost */
				break;
			case 1:
				if (!looks && world.lates < 64)
					world.late[world.lates++] = (Late){i, force};
				break;
			case 2: /* the answer is lost */
				if (!looks)
					force_at(i, &force);
				break;
			default:
				read_at(i);
				if (!looks && force_at(i, &force))
					forced(i, node[i].counter, world.counter[i]);
		}
	}
}

typedef struct Sum
{
	int done;
	int again; /* done after more than one round */
	int shown; /* the look shows the holder */
	int others;
	int undone;
	int robbed;
} Sum;

static void
add_one(Sum *sum, uint32_t seed)
{
	ForceVerdict verdict = FORCE_AGAIN;
	bool shown;
	bool others = false;

	dice_begin(seed);
	memset(&world, 0, sizeof(world));
	world.bound = world.raise = 100;
	for (int i = 0; i < 5; i++)
	{
		world.key[i] = i < 3 || dice(4) > 0 ? 0 : (int) dice(OTHERS + 1);
		world.counter[i] = world.key[i] == 0 ? 100 : dice(10 * LUA_SPAN);
	}
	ask(true);
	force_begin(&force, five, node, false, NOW_US, 0);
	shown = force.value_len > 0;
	while (verdict == FORCE_AGAIN)
	{
		ask(false);
		for (int i = 0; i < 5; i++)
			others = others || (node[i].kind == INSPECTED_STRING && !node[i].forced);
		verdict = force_judge(&force, five, node);
	}
	sum->shown += shown;
	sum->robbed += shown && world.robbed > 0;
	if (verdict != FORCE_DONE)
		return; /* the administrator tries again */
	sum->done++;
	sum->again += force.round > 1;
	sum->others += others;
	world.done = true;
	for (int step = 0; step < 300; step++)
		go_on();
	sum->undone += world.undone;
}

static void
test_renewals(void)
{
	Sum sum = {0};

	for (uint32_t seed = 1; seed <= 100000; seed++)
		add_one(&sum, seed);
	ok(sum.undone == 0, "of %d forced releases, %d are undone by a renewal", sum.done, sum.undone);
	ok(sum.robbed == 0, "of %d with a known holder, %d delete another request's key", sum.shown,
	   sum.robbed);
	ok(sum.done > 1000 && sum.again > 1000 && sum.others > 1000,
	   "%d have more than one round, in %d others' keys remain", sum.again, sum.others);
}

int
main(void)
{
	test_least();
	test_rounds();
	test_value();
	test_others();
	test_renewals();
	return tap_done();
}
