/*
 * standing_test.c
 *		Unit tests of src/protocol/standing.c: the choice of the host that takes locks, when
 *		several hosts have different settings.
 *
 * Protects from: a host taking locks before its announcement, or before a look at other hosts; a
 * newcomer stopping established hosts; two hosts waiting without an end for each other, or for a
 * dead host; a host going on beside another host with locks.
 */
#include <string.h>

#include "protocol/standing.h"

#include "tap.h"

#define SECOND INT64_C(1000000)

/* This host's id is 5. */
static void
look(Standing *standing, bool has_leases, const StandingOther *other, int64_t now_us)
{
	StandingView view = {.id = 5,
						 .has_leases = has_leases,
						 .others = other,
						 .count = other != NULL ? 1 : 0,
						 .asked_us = now_us};

	standing_look(standing, &view, now_us);
}

static bool
may_take(const Standing *standing)
{
	return standing_may_take(standing, standing->heard_us);
}

static Standing
begun(int64_t now_us)
{
	Standing standing = {0};

	look(&standing, false, NULL, now_us);
	look(&standing, false, NULL, now_us);
	return standing;
}

static StandingOther
other(HostStanding says, uint64_t id)
{
	return (StandingOther){.id = id, .says = says};
}

static void
test_alone(void)
{
	Standing standing = {0};

	ok(standing.says == HOST_ASKS && !may_take(&standing), "a host asks at first");
	look(&standing, false, NULL, 0);
	ok(standing.says == HOST_TAKES && !may_take(&standing), "then says that it takes locks");
	look(&standing, false, NULL, 0);
	ok(standing.says == HOST_TAKES && may_take(&standing), "and takes them");
	standing_reset(&standing, true);
	ok(standing.says == HOST_ASKS && !may_take(&standing),
	   "with other settings it asks again, whatever it holds");
	ok(standing.number == 2, "entries with what it said before are told from later ones");
}

static void
test_newcomer(void)
{
	Standing standing = {0};
	StandingOther they = other(HOST_TAKES, 9);

	look(&standing, false, &they, 0);
	ok(standing.says == HOST_REFUSES && !may_take(&standing),
	   "one that comes while another takes locks refuses");
	look(&standing, false, &they, 0);
	ok(standing.says == HOST_REFUSES, "as long as that one does");
	look(&standing, false, NULL, 0);
	ok(standing.says == HOST_ASKS, "then it asks");

	for (int says = HOST_TAKES; says <= HOST_WARNS; says++)
	{
		standing = (Standing){.says = HOST_TAKES};
		they = other((HostStanding) says, 9);
		look(&standing, false, &they, 0);
		ok(says == HOST_REFUSES ? may_take(&standing) : standing.says == HOST_REFUSES,
		   "before it begins it looks once more: %d", says);
	}
	standing = (Standing){.says = HOST_TAKES};
	they = other(HOST_REFUSES, 9);
	they.holds = true;
	look(&standing, false, &they, 0);
	ok(!may_take(&standing), "and waits for locks of former nodes");
}

static void
test_two_newcomers(void)
{
	Standing standing = {0};
	StandingOther before = other(HOST_ASKS, 4);
	StandingOther after = other(HOST_ASKS, 6);

	look(&standing, false, &after, 0);
	ok(standing.says == HOST_ASKS && !may_take(&standing),
	   "of two that ask the one with the smaller id waits for the other");
	after.says = HOST_REFUSES;
	look(&standing, false, &after, 0);
	ok(standing.says == HOST_TAKES, "which gives way");
	after.says = HOST_ASKS;
	look(&standing, false, &after, 0);
	ok(may_take(&standing), "and must look again before it takes locks");

	standing = (Standing){0};
	look(&standing, false, &before, 0);
	ok(standing.says == HOST_REFUSES, "the one with the larger id gives way");
	look(&standing, false, &before, 0);
	ok(standing.says == HOST_REFUSES, "while the other asks");
	before.says = HOST_REFUSES;
	look(&standing, false, &before, 0);
	ok(standing.says == HOST_ASKS, "and asks when all others refuse");
}

static void
test_established(void)
{
	Standing standing = begun(0);
	StandingOther they = other(HOST_ASKS, 4);

	look(&standing, true, &they, 0);
	ok(may_take(&standing), "a host goes on beside one that asks");
	they.says = HOST_REFUSES;
	look(&standing, true, &they, 0);
	ok(may_take(&standing), "and beside one that refuses");
	they.holds = true;
	look(&standing, true, &they, 0);
	ok(!may_take(&standing) && standing.says == HOST_TAKES,
	   "not while that one has locks of former nodes");
	they = other(HOST_HOLDS, 4);
	look(&standing, true, &they, 0);
	ok(!may_take(&standing) && standing.says == HOST_TAKES, "nor while it holds some");
	they = other(HOST_WARNS, 4);
	look(&standing, true, &they, 0);
	ok(!may_take(&standing) && standing.says == HOST_TAKES,
	   "nor while it takes locks all the same");
	look(&standing, true, NULL, 0);
	ok(may_take(&standing), "and goes on without a conflict");
}

static void
test_two_established(void)
{
	Standing standing = begun(0);
	StandingOther they = other(HOST_TAKES, 4);

	they.takes_for_us = 10 * SECOND;
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_TAKES && !may_take(&standing),
	   "of two that take locks the one that did so for longer stays, and waits");
	they.takes_for_us = 60 * SECOND - STANDING_MARGIN_US;
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_TAKES, "also by the least difference that counts");
	they.says = HOST_HOLDS;
	look(&standing, true, &they, 60 * SECOND);
	ok(!may_take(&standing), "for the other one's locks");
	they.says = HOST_REFUSES;
	look(&standing, true, &they, 60 * SECOND);
	ok(may_take(&standing), "and goes on");

	they = other(HOST_TAKES, 4);
	they.takes_for_us = 58 * SECOND;
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_HOLDS && !may_take(&standing),
	   "if they began at about the same time both give way");
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_HOLDS, "it says that it holds locks while it has some");
	they.says = HOST_HOLDS;
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_HOLDS && !may_take(&standing), "beside another that does");
	look(&standing, false, &they, 60 * SECOND);
	ok(standing.says == HOST_REFUSES, "and refuses then");

	standing = begun(0);
	they = other(HOST_TAKES, 4);
	they.takes_for_us = 90 * SECOND;
	look(&standing, false, &they, 60 * SECOND);
	ok(standing.says == HOST_REFUSES, "one without locks refuses at once");

	standing = begun(0);
	look(&standing, true, &they, 60 * SECOND);
	standing_reset(&standing, true);
	ok(standing.says == HOST_HOLDS,
	   "what it took beside another is not forgotten with its settings");
	look(&standing, true, NULL, 60 * SECOND);
	ok(standing.says == HOST_TAKES && !may_take(&standing),
	   "one that holds locks says that it takes");
	they = other(HOST_WARNS, 4);
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_HOLDS, "and holds them again, when another does");
}

static void
test_warns(void)
{
	Standing standing = begun(0);
	StandingOther they = other(HOST_TAKES, 4);

	standing_warn(&standing, true, true, 0);
	they.takes_for_us = 90 * SECOND;
	look(&standing, true, &they, 60 * SECOND);
	ok(standing.says == HOST_WARNS && may_take(&standing), "one that only warns takes locks");
	standing_reset(&standing, true);
	ok(standing.says == HOST_WARNS, "whatever its settings");
	standing_warn(&standing, false, true, 60 * SECOND);
	ok(standing.says == HOST_HOLDS && !may_take(&standing), "until it does not any more");
	standing_warn(&standing, true, false, 60 * SECOND);
	standing_warn(&standing, false, false, 60 * SECOND);
	ok(standing.says == HOST_ASKS, "without locks it asks");
}

static void
test_lapse(void)
{
	Standing standing = begun(60 * SECOND);
	StandingOther they = other(HOST_TAKES, 9);
	StandingView view;

	ok(standing_may_take(&standing, 60 * SECOND + STANDING_LAPSE_US) &&
		   !standing_has_lapsed(&standing, 60 * SECOND + STANDING_LAPSE_US),
	   "what the nodes answered counts for a while");
	ok(!standing_may_take(&standing, 61 * SECOND + STANDING_LAPSE_US), "not longer");
	ok(standing_has_lapsed(&standing, 61 * SECOND + STANDING_LAPSE_US),
	   "it looks again, as a newcomer");
	look(&standing, true, &they, 100 * SECOND);
	ok(standing.says == HOST_HOLDS, "and gives way to one that came meanwhile");

	standing = begun(60 * SECOND);
	(void) standing_has_lapsed(&standing, 100 * SECOND);
	look(&standing, true, NULL, 100 * SECOND);
	ok(may_take(&standing) && standing.begun_us == 60 * SECOND,
	   "if nobody came it goes on, and was there all the time");
	view = (StandingView){.id = 5, .has_leases = true, .asked_us = 60 * SECOND};
	standing_look(&standing, &view, 100 * SECOND);
	ok(!standing_may_take(&standing, 100 * SECOND), "an answer that is heard late is an old one");
}

/* Does a host with these differences stop an established host? */
static bool
stops(HostStanding says, unsigned kinds)
{
	Standing standing = begun(60 * SECOND);
	HostConfig theirs = {.standing = says};
	StandingOther they = standing_other(9, &theirs, kinds, 0);

	return standing_stops(&standing, &they);
}

static void
test_kinds(void)
{
	ok(!stops(HOST_TAKES, 0), "a host that agrees stops nobody");
	ok(stops(HOST_TAKES, HOSTS_NODES) && stops(HOST_HOLDS, HOSTS_MAX_TTL),
	   "a host that takes locks, or holds some, by other settings does");
	ok(!stops(HOST_REFUSES, HOSTS_NODES) && !stops(HOST_ASKS, HOSTS_NODES),
	   "a host that takes none does not");
	ok(stops(HOST_REFUSES, HOSTS_HELD) && stops(HOST_TAKES, HOSTS_HELD),
	   "but for locks by a former list of nodes");
}

/* One node for each character of `lists`: in the first list (1), in the next (2), or in both (3).
 */
static HostConfig
config_of(const char *lists, char first, HostStep step)
{
	HostConfig config = {.standing = HOST_TAKES, .step = step};

	for (; *lists != '\0'; lists++)
	{
		HostNode *node = &config.node[config.count++];

		node->address[0] = node->process[0] = node->last[0] = first++;
		node->now = (*lists - '0') % 2 == 1;
		node->next = (*lists - '0') / 2 == 1;
	}
	return config;
}

static void
test_without_quorum(void)
{
	HostConfig theirs = config_of("111", 'a', HOST_STAYS);

	theirs.standing = HOST_ASKS;
	theirs.node[0].process[0] = '\0';
	ok(standing_other(9, &theirs, HOSTS_MAX_TTL, 0).says == HOST_ASKS,
	   "a host that asks, and does not reach one of three nodes, may take locks");
	theirs.node[1].process[0] = '\0';
	ok(standing_other(9, &theirs, HOSTS_MAX_TTL, 0).says == HOST_REFUSES,
	   "a host that asks without a quorum counts as a host that refuses");
	theirs.standing = HOST_TAKES;
	ok(standing_other(9, &theirs, HOSTS_MAX_TTL, 0).says == HOST_TAKES,
	   "but not a host that takes locks");
}

static StandingWait
wait_for(HostConfig theirs, HostsDifference difference, int64_t age_us)
{
	HostConfig ours = config_of("111222", 'a', HOST_STAYS);
	Standing standing = begun(0);
	StandingWait wait = {0};

	standing_add_wait(&standing, &ours, &theirs, &difference, age_us, &wait);
	return wait;
}

static void
test_waits(void)
{
	HostsDifference none = {0};
	HostsDifference guess = {.guess_kinds = HOSTS_NODES, .guessed = 6};
	HostConfig stays = config_of("111222", 'd', HOST_STAYS);
	HostConfig goes_along = config_of("111222", 'a', HOST_GOES_ON);
	HostConfig goes_away = config_of("111222", 'd', HOST_GOES_ON);
	HostConfig refuses = config_of("111222", 'a', HOST_STAYS);

	ok(wait_for(goes_away, none, 0).step, "a host that leaves this host's lists is waited for");
	ok(!wait_for(goes_along, none, 0).step, "but not a host that goes to a list of this host");
	ok(!wait_for(stays, none, 0).step, "nor a host that stays");
	ok(wait_for(stays, guess, 0).guessed == 6 && !wait_for(stays, guess, 0).step,
	   "a guess about nodes is waited for");
	refuses.standing = HOST_REFUSES;
	ok(wait_for(refuses, guess, 0).guessed == 0, "but not if the other host takes no locks");
	ok(wait_for(goes_away, guess, STANDING_SILENT_US).step &&
		   wait_for(goes_away, guess, STANDING_SILENT_US).guessed == 6,
	   "a host that hangs is waited for until its standing has lapsed");
	ok(!wait_for(goes_away, guess, STANDING_SILENT_US + 1).step &&
		   wait_for(goes_away, guess, STANDING_SILENT_US + 1).guessed == 0,
	   "and not for longer");
}

int
main(void)
{
	test_alone();
	test_newcomer();
	test_two_newcomers();
	test_established();
	test_two_established();
	test_warns();
	test_lapse();
	test_kinds();
	test_without_quorum();
	test_waits();
	return tap_done();
}
