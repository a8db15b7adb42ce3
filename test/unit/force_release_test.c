/*
 * force_release_test.c
 *		Unit tests of forced releases, src/protocol/force_release.c.
 *
 * Protects from: a forced release that a renewal of the former holder undoes.
 */
#include <string.h>

#include "dice.h"
#include "protocol/force_release.h"
#include "tap.h"

#define NOW_US INT64_C(1700000000000000)
#define VALUE "0123456789abcdeffedcba9876543210:000000001:00c0ffee00c0ffee host=\"a\""

static const core_lists five = {.now = 31};

static Inspected node[CORE_NODES_MAX];
static ForceRelease force;

static void
reset(void)
{
	memset(node, 0, sizeof(node));
	for (int i = 0; i < 5; i++)
		node[i].kind = INSPECTED_NONE;
	force_begin(&force, five, node, NOW_US);
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
	force_begin(&force, five, node, NOW_US);
	return force.least;
}

static void
test_least(void)
{
	reset();
	ok(first_least() == 0, "without keys and counters nothing is raised");
	node[1].kind = INSPECTED_STRING;
	node[1].value_len = 5;
	strcpy(node[1].value, "plain");
	ok(first_least() == 0, "nor for a plain client");
	node[1].value_len = (int) strlen(VALUE);
	strcpy(node[1].value, VALUE);
	ok(first_least() == NOW_US, "a lost counter follows the clock");
	node[3].counter = 10;
	node[4].counter = 12;
	node[5].counter = 99;
	ok(first_least() == 13, "above the counters of the nodes in force");
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
	node[2].may_have_forgotten = false;
	node[2].forced = false;
	node[2].counter = 99;
	ok(force_judge(&force, five, node) == FORCE_DONE, "one with another's key refuses renewals");
	reset();
	for (int i = 0; i < 5; i++)
		forced(i, 0, 0);
	ok(force_judge(&force, five, node) == FORCE_DONE, "plain clients have no counters");
}

static void
has(int i, const char *value)
{
	node[i].value_len = (int) strlen(value);
	strcpy(node[i].value, value);
}

/* The holder has keys at a majority; a request that is over has left a key at another node. */
static void
test_value(void)
{
	reset();
	for (int i = 0; i < 5; i++)
		forced(i, 10 + i, 11 + i);
	for (int i = 0; i < 3; i++)
		has(i, VALUE);
	has(4, "plain");
	ok(force.value_len == 0, "the first round deletes any key");
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.round == 2 &&
		   force.value_len == (int) strlen(VALUE) && memcmp(force.value, VALUE, strlen(VALUE)) == 0,
	   "the next deletes that of the holder");
	has(0, "plain");
	for (int i = 0; i < 5; i++)
		forced(i, 20 + i, 21 + i);
	ok(force_judge(&force, five, node) == FORCE_AGAIN && force.value_len == (int) strlen(VALUE),
	   "and no later holder's");
	reset();
	for (int i = 0; i < 5; i++)
	{
		forced(i, 10 + i, 11 + i);
		node[i].kind = INSPECTED_NONE;
	}
	for (int round = 1; round < FORCE_ROUNDS_MAX; round++)
		ok(force_judge(&force, five, node) == FORCE_AGAIN && force.value_len == 1 &&
			   force.value[0] == '-',
		   "where no key was, round %d deletes none", round + 1);
	ok(force_judge(&force, five, node) == FORCE_FAILED, "no round follows the last");
}

/*
 * A holder renews with rising bounds while rounds of forced releases go on, each command at a
 * random moment.  Whenever a round counts as done, no majority accepts the bound any more.
 */

typedef struct World
{
	bool key[5];
	int64_t counter[5];
	int64_t bound;
	int64_t raise;
	unsigned said_yes;
	unsigned answered;
} World;

static void
renew_at(World *world, int i)
{
	if (!world->key[i] && world->counter[i] > world->bound)
	{
		world->answered |= 1u << i;
		return;
	}
	world->key[i] = true;
	if (world->counter[i] < world->raise)
		world->counter[i] = world->raise;
	world->answered |= 1u << i;
	world->said_yes |= 1u << i;
}

static int
bits(unsigned nodes)
{
	int count = 0;

	for (; nodes != 0; nodes &= nodes - 1)
		count++;
	return count;
}

static bool
is_undone(uint32_t seed)
{
	World world = {.bound = 100, .raise = 100};
	unsigned asked = 0;
	ForceVerdict verdict = FORCE_AGAIN;

	dice_begin(seed);
	for (int i = 0; i < 5; i++)
	{
		world.key[i] = dice(4) > 0 || i < 3;
		world.counter[i] = i < 3 ? 100 : dice(200);
	}
	reset();
	for (int i = 0; i < 5; i++)
		node[i].counter = i < 3 || dice(2) ? world.counter[i] : 0;
	force.least = 101;
	while (verdict == FORCE_AGAIN)
	{
		memset(node, 0, sizeof(node));
		for (int i = 0; i < 5; i++)
			node[i].kind = INSPECTED_SILENT;
		asked = 0;
		while (bits(asked) < 5)
		{
			int i = (int) dice(5);

			if (dice(2))
			{
				/* a new round of renewals may raise the bound */
				if (world.answered == 31 || (bits(world.said_yes) >= 3 && dice(2)))
				{
					if (bits(world.said_yes) >= 3)
						world.bound = world.raise;
					world.raise = world.bound + dice(3) * 50;
					world.answered = world.said_yes = 0;
				}
				if (!(world.answered & 1u << i))
					renew_at(&world, i);
			}
			else if (!(asked & 1u << i))
			{
				int64_t before = world.counter[i];

				asked |= 1u << i;
				if (dice(4) == 0)
					continue; /* no answer, and not executed */
				world.key[i] = false;
				world.counter[i] = before >= force.least ? before + 1 : force.least;
				forced(i, before, world.counter[i]);
			}
		}
		verdict = force_judge(&force, five, node);
		if (verdict == FORCE_FAILED)
			return false; /* the administrator tries again */
	}
	if (verdict != FORCE_DONE)
		return false;
	/* the round that is out ends, and two more come */
	for (int round = 0; round < 3; round++)
	{
		for (int i = 0; i < 5; i++)
			if (!(world.answered & 1u << i))
				renew_at(&world, i);
		if (bits(world.said_yes) >= 3)
			world.bound = world.raise;
		world.raise = world.bound;
		if (round < 2)
			world.answered = world.said_yes = 0;
	}
	return bits(world.said_yes) >= 3;
}

static void
test_renewals(void)
{
	int undone = 0;

	for (uint32_t seed = 1; seed <= 50000; seed++)
		undone += is_undone(seed);
	ok(undone == 0, "no renewal undoes a forced release: %d do", undone);
}

int
main(void)
{
	test_least();
	test_rounds();
	test_value();
	test_renewals();
	return tap_done();
}
