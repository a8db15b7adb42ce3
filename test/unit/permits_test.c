/*
 * permits_test.c
 *		Unit tests of the names of permits, src/protocol/permits.c.
 *
 * Protects from: two permits with one key; a first permit that is not the lock itself, so that
 * who knows of no permits is not excluded; a number that is read otherwise than it was written.
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

	ok(permits_name(name, "job", 3, 1) == 3 && memcmp(name, "job", 3) == 0,
	   "the first permit is the lock itself");
	ok(permits_name(name, "job", 3, PERMITS_QUEUE) == 4 && memcmp(name, "job" LUA_PERMIT, 4) == 0,
	   "the queue has no number");
	ok(permits_name(name, "job", 3, 10) == 6 && memcmp(name, "job" LUA_PERMIT "10", 6) == 0,
	   "the others have theirs");
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
}

static void
test_order(void)
{
	bool seen[PERMITS_MAX + 1] = {false};
	int permit = permits_first(UINT64_MAX, PERMITS_MAX);
	bool good = true;

	for (int i = 0; i < PERMITS_MAX; i++)
	{
		good = good && permit >= 1 && permit <= PERMITS_MAX && !seen[permit];
		seen[permit] = true;
		permit = permits_next(permit, PERMITS_MAX);
	}
	ok(good && permit == permits_first(UINT64_MAX, PERMITS_MAX), "one after the other comes each");
	ok(permits_first(3, 5) != permits_first(5, 5) && permits_first(3, 2) != permits_first(5, 2),
	   "hosts, whose ids are odd, begin at different ones");
	ok(permits_first(7, 1) == 1 && permits_next(1, 1) == 1, "of one");
}

int
main(void)
{
	test_names();
	test_order();
	return tap_done();
}
