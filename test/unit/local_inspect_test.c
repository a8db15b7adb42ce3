/*
 * local_inspect_test.c
 *		Unit tests of looks and forced releases at a node without Redis,
 *		src/protocol/local_inspect.c.  test/sim/conformance.c compares forced releases with the
 *		script.
 *
 * Protects from: a permit that a look does not show; a forced release of a lock whose permits
 * sessions have; a stranger's value that counts as a holder's.
 */
#include <string.h>

#include "protocol/local_inspect.h"
#include "tap.h"

#define NOW_US INT64_C(1800000000000000)
#define SECRET "0123456789abcdeffedcba9876543210"
#define HEAD SECRET ":000000001:00c0ffee00c0ffee"

static local_data data;
static local_data the_permit;
static Inspected at;
static bool permit_is_there;
static int permit_number = 3;

static const local_data *
find_permit(const void *names, int permit)
{
	(void) names;
	return permit_is_there && permit == permit_number ? &the_permit : NULL;
}

static local_order
order_of(const char *held)
{
	memset(&data, 0, sizeof(data));
	data.secret = (local_id){1, 2};
	data.key_end_ms = NOW_US / 1000 + 5000;
	data.counter = 70;
	data.counter_end_ms = data.key_end_ms;
	return (local_order){.held = held, .held_is_text = true, .find_permit = find_permit};
}

/* Returns the permit bits of the first eight permits. */
static int
look(const char *held)
{
	local_order order = order_of(held);

	local_look(&data, NOW_US, &order, &at);
	return at.permit[0];
}

/* Releases any key by force.  Returns whether the key is deleted. */
static bool
force(const char *held, bool of_permit)
{
	local_order order = order_of(held);
	bool told;

	order.of_permit = of_permit;
	told = local_force(&data, NOW_US, &order, &at);
	ok(told == at.forced && local_has_key(&data) != at.forced, "the answer tells what is done");
	return at.forced;
}

static void
test_look(void)
{
	char long_value[LUA_HELD_MAX + 9] = {0};
	local_order order = order_of("");

	memset(long_value, 'x', sizeof(long_value) - 1);
	permit_is_there = true;
	ok(look(HEAD " host=\"a\"") == 0 && at.kind == INSPECTED_STRING && at.ttl_ms == 5000 &&
		   at.counter == 70 && strcmp(at.value, HEAD " host=\"a\"") == 0,
	   "the key, its life and its counter");
	ok(look(long_value) == 0 && at.value_len == LUA_HELD_MAX, "the first part of a long value");
	order.held_is_text = false;
	local_look(&data, NOW_US, &order, &at);
	ok(at.kind == INSPECTED_OTHER, "a key of another type");
	local_look(&data, NOW_US + 6000000, &order, &at);
	ok(at.kind == INSPECTED_NONE && at.counter == 0, "an expired key");
	ok(look(HEAD " permits=4 host=\"a\"") == 4, "the third of four permits");
	ok(look(HEAD " permits=2 host=\"a\"") == 0, "beyond the number of permits");
	permit_number = 8;
	ok(look(HEAD " permits=9 host=\"a\"") == 128 && at.permit[1] == 0, "the last of eight");
	permit_number = 9;
	ok(look(HEAD " permits=9 host=\"a\"") == 0 && at.permit[1] == 1, "the first of the next eight");
	permit_number = 3;
	permit_is_there = false;
	ok(look(HEAD " permits=4 host=\"a\"") == 0, "no permit");
}

static void
test_force(void)
{
	static const char *const strange[] = {"",
										  ":",
										  SECRET "::00c0ffee00c0ffee permits=4 a",
										  SECRET ":000000001: permits=4 a",
										  SECRET "-000000001:00c0ffee00c0ffee permits=4 a",
										  SECRET ":000000001-00c0ffee00c0ffee permits=4 a",
										  SECRET ":000000001:00c0ffee permits=4 a",
										  SECRET "00000000:12345678901234567: permits=4 a",
										  SECRET "0000000000::00c0ffee00c0ffe permits=4 a",
										  HEAD "permits=4 a",
										  HEAD "-permits=4 a",
										  HEAD "= permits=4 a",
										  HEAD " permits= a",
										  HEAD " permits:4 a",
										  HEAD " permits=2000 a",
										  HEAD " permits=10000 a",
										  HEAD " permits=4",
										  HEAD " permits=4a"};
	bool all = true;

	permit_is_there = true;
	ok(!force(HEAD " permits=4 a", false), "a lock with permits stays");
	ok(!force(HEAD " permits=1000 a", false), "also with as many as there may be");
	ok(force(HEAD " permits=4 a", true), "a permit does not");
	permit_is_there = false;
	ok(force(HEAD " permits=4 a", false), "nor a lock whose permits are free");
	ok(at.counter == 70 && at.after == 71 && data.counter == 71, "the counter grows");
	permit_is_there = true;
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
		all = force(strange[i], false) && all;
	ok(all, "the values of others have no permits");
}

int
main(void)
{
	test_look();
	test_force();
	return tap_done();
}
