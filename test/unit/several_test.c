/*
 * several_test.c
 *		Unit tests of acquiring several locks at once, src/protocol/several.c.
 *
 * Protects from: hosts with different orders of names; locks kept while the call waits for an
 * earlier lock; a lock released although the call may keep it; a part of the locks taken for all.
 */
#include "protocol/several.h"

#include <string.h>

#include "tap.h"

/* Names in their order. */
static const char *const names[] = {"1", "A", "a", "aa", "ab", "b", "\xc3\xa4", "\xe6\x97\xa5"};

/* g: granted, r: refused, a: asked */
static const struct
{
	const char *state;
	int count;
	several_step step;
	int from;
} cases[] = {
	{"", 1, SEVERAL_ASK, 0},
	{"a", 1, SEVERAL_WAIT_FOR_LAST, -1},
	{"r", 1, SEVERAL_WAIT_FOR_LAST, -1},
	{"g", 1, SEVERAL_DONE, -1},
	{"aaa", 3, SEVERAL_WAIT, -1},
	{"gaa", 3, SEVERAL_WAIT, -1},
	{"gga", 3, SEVERAL_WAIT_FOR_LAST, -1},
	{"agg", 3, SEVERAL_WAIT, -1},
	{"ggg", 3, SEVERAL_DONE, -1},
	{"raa", 3, SEVERAL_WAIT, 1},
	{"rag", 3, SEVERAL_WAIT, 1},
	{"rga", 3, SEVERAL_WAIT, 1},
	{"rgg", 3, SEVERAL_RELEASE, 1},
	{"grg", 3, SEVERAL_RELEASE, 2},
	{"arg", 3, SEVERAL_RELEASE, 2},
	{"rrg", 3, SEVERAL_RELEASE, 1},
	{"ggr", 3, SEVERAL_WAIT_FOR_LAST, -1},
	{"agr", 3, SEVERAL_WAIT, -1},
	{"r", 3, SEVERAL_WAIT_FOR_LAST, -1},
	{"gr", 3, SEVERAL_WAIT_FOR_LAST, -1},
	{"ar", 3, SEVERAL_WAIT, -1},
	{"g", 3, SEVERAL_ASK, 1},
	{"gg", 3, SEVERAL_ASK, 2},
};

static void
test_order(void)
{
	int count = (int) (sizeof(names) / sizeof(names[0]));

	for (int i = 0; i < count; i++)
		for (int j = 0; j < count; j++)
		{
			int order = several_compare(names[i], strlen(names[i]), names[j], strlen(names[j]));

			ok((order > 0) - (order < 0) == (i > j) - (i < j), "\"%s\" and \"%s\"", names[i],
			   names[j]);
		}
}

static void
test_steps(void)
{
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
	{
		several_state state[SEVERAL_MAX];
		int asked = (int) strlen(cases[c].state);
		int from = -1;
		several_step step;

		for (int i = 0; i < asked; i++)
			state[i] = cases[c].state[i] == 'g'   ? SEVERAL_GRANTED
					   : cases[c].state[i] == 'r' ? SEVERAL_REFUSED
												  : SEVERAL_ASKED;
		step = several_next(state, asked, cases[c].count, &from);
		ok(step == cases[c].step && from == cases[c].from, "%s of %d: step %d from %d",
		   cases[c].state, cases[c].count, step, from);
	}
}

/* A call that does not wait. */
static void
test_again(void)
{
	int again = 0;

	ok(!several_try_again(0, 0), "a try that is refused its first name has failed");
	while (again < 10 && several_try_again(1, again))
		again++;
	ok(again == SEVERAL_AGAIN_MAX, "one that has the first asks again %d times", again);
}

int
main(void)
{
	test_order();
	test_steps();
	test_again();
	return tap_done();
}
