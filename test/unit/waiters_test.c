/*
 * waiters_test.c
 *		Unit tests of the list of hosts that wait, src/protocol/waiters.c.
 *
 * Protects from: a turn going to another host than the longest waiter; a host named twice, or
 * again and again although it does not come; a list lengthened or reordered by strangers.
 */
#include "protocol/waiters.h"

#include <string.h>

#include "tap.h"

#define NOW_US INT64_C(50000000)

/* The hosts in their order, as letters. */
static const char *
names(const Waiters *waiters)
{
	static char text[WAITERS_MAX + 1];

	for (int i = 0; i < waiters->count; i++)
		text[i] = (char) waiters->waiter[i].host;
	text[waiters->count] = '\0';
	return text;
}

static void
add(Waiters *waiters, char host, int64_t waited_us)
{
	waiters_add(waiters, (uint64_t) host, waited_us, NOW_US);
}

static Waiters
list(const char *hosts)
{
	Waiters waiters = {0};

	for (int i = 0; hosts[i] != '\0'; i++)
		add(&waiters, hosts[i], 1000 - i);
	return waiters;
}

static void
test_order(void)
{
	Waiters waiters = {0};

	ok(waiters_place(&waiters, 'a') == 0, "in an empty list nobody has a place");
	add(&waiters, 'b', 20);
	add(&waiters, 'a', 30);
	add(&waiters, 'd', 0);
	add(&waiters, 'c', 10);
	ok(strcmp(names(&waiters), "abcd") == 0, "the longest comes first");
	add(&waiters, 'e', 10);
	ok(strcmp(names(&waiters), "abced") == 0, "of two the one who was known first");
	add(&waiters, 'd', 40);
	ok(strcmp(names(&waiters), "dabce") == 0, "who is there already has one place, the new one");
	add(&waiters, 'd', 5);
	ok(strcmp(names(&waiters), "abced") == 0, "also if it began anew");
	ok(waiters_place(&waiters, 'c') == 2 && waiters_place(&waiters, 'x') == 5,
	   "each has its place, others none");

	waiters_add(&waiters, 'l', INT64_MAX, NOW_US);
	waiters_add(&waiters, 'm', NOW_US, NOW_US);
	ok(strcmp(names(&waiters), "lmabced") == 0 && waiters.waiter[0].since_us == 0,
	   "who says to have waited since ever has waited as long as can be");
}

static void
test_room(void)
{
	Waiters waiters = list("abcdefgh");

	ok(waiters.count == WAITERS_MAX, "the list is full");
	add(&waiters, 'z', 1);
	ok(strcmp(names(&waiters), "abcdefgh") == 0, "who has waited for less has no place in it");
	add(&waiters, 'y', 998);
	ok(strcmp(names(&waiters), "abcydefg") == 0, "who has for longer takes that of the last");
	add(&waiters, 'g', 2000);
	ok(strcmp(names(&waiters), "gabcydef") == 0, "who is there already takes no other's");
	for (int i = 0; i < 100000; i++)
		waiters_add(&waiters, (uint64_t) i + 1, i, NOW_US);
	ok(waiters.count == WAITERS_MAX, "however many come");
}

static const char *
heard(WaitersKnown *known, const char *named, uint64_t self)
{
	Waiters waiters = list(named);

	waiters_hear(known, &waiters, self);
	return names(&known->named);
}

static void
test_hear(void)
{
	WaitersKnown known = {0};

	ok(strcmp(heard(&known, "abcd", 'a'), "bcd") == 0, "who is next leaves those behind it");
	ok(strcmp(heard(&known, "bcd", 'c'), "d") == 0, "who did not come is not named again");
	ok(strcmp(heard(&known, "d", 'd'), "") == 0, "the last leaves nobody");
	ok(strcmp(heard(&known, "", 'd'), "") == 0, "of nobody nobody is left");
	ok(strcmp(heard(&known, "abcdefgh", 'x'), "bcdefgh") == 0,
	   "who was not named comes between: the first was late");

	add(&known.told, 'z', 1);
	ok(strcmp(heard(&known, "abc", 'a'), "bcz") == 0,
	   "who told before a release, and was not named by it, is not forgotten");
	ok(strcmp(heard(&known, "bcd", 'b'), "cd") == 0, "but not kept until the release after that");
	add(&known.told, 'c', 1);
	ok(strcmp(heard(&known, "abc", 'b'), "c") == 0 && known.told.count == 0,
	   "who told and was named is where it was named");
	add(&known.told, 'a', 2000);
	add(&known.told, 'z', 1);
	ok(strcmp(names(waiters_to_name(&known, 0, NOW_US)), "acz") == 0 && known.told.count == 0,
	   "who tells the holder is named, by how long it has waited");
}

static void
tell(WaitersKnown *known, char host, int64_t waited_us, bool alone)
{
	waiters_tell(known, (Waiter){(uint64_t) host, NOW_US - waited_us, alone});
}

static void
test_name(void)
{
	WaitersKnown known = {0};

	ok(waiters_to_name(&known, 's', NOW_US)->count == 0, "nobody waits, so nobody is named");
	tell(&known, 'a', 20, false);
	tell(&known, 'b', 30, false);
	ok(strcmp(names(waiters_to_name(&known, 's', NOW_US)), "bas") == 0,
	   "a host that waits for another turn is the last");
	tell(&known, 'c', 10, true);
	tell(&known, 'd', 25, true);
	ok(strcmp(names(waiters_to_name(&known, 's', NOW_US)), "dc") == 0,
	   "a writer comes first, and readers are not named");
	tell(&known, 'c', 10, false);
	tell(&known, 'd', 25, false);
	ok(strcmp(names(waiters_to_name(&known, 0, NOW_US)), "dc") == 0,
	   "also when they wait as readers now");
}

static void
test_whom_to_tell(void)
{
	Waiters waiters = list("abc");

	ok(waiters_whom_to_tell(&waiters, 'x') == 'b', "who was not named tells the second");
	ok(waiters_whom_to_tell(&waiters, 'c') == 0, "who was named tells nobody");
	waiters = list("a");
	ok(waiters_whom_to_tell(&waiters, 'x') == 'a', "or the only one");
	ok(waiters_whom_to_tell(&waiters, 'a') == 0, "unless that is it");
	waiters = list("");
	ok(waiters_whom_to_tell(&waiters, 'x') == 0, "or there is none");
}

int
main(void)
{
	test_order();
	test_room();
	test_hear();
	test_name();
	test_whom_to_tell();
	return tap_done();
}
