/*
 * steps_test.c
 *		Unit tests of src/protocol/steps.c: how a host leaves a list of nodes while two lists are
 *		in force.
 *
 * Protects from: a step taken before its announcement was answered, beside another host's step, or
 * without marks; two hosts waiting for each other's steps for ever; replaced nodes counting as in
 * use, and nodes in use counting as replaced; a stranger's mark read past its end (with
 * sanitizers, scripts/lint.sh).
 */
#include <string.h>

#include "protocol/steps.h"

#include "tap.h"

static void
test_next(void)
{
	StepView view = {0};

	ok(step_next(&view) == STEP_WAIT, "no step while it is not clear");
	view.clear = true;
	ok(step_next(&view) == STEP_ANNOUNCE, "then it is announced");
	view.announced = true;
	ok(step_next(&view) == STEP_WAIT, "until that was heard");
	view.heard = true;
	ok(step_next(&view) == STEP_MARK, "then the nodes are marked");
	view.marked = true;
	ok(step_next(&view) == STEP_TAKE, "and it is taken");
	view.heard = false;
	ok(step_next(&view) == STEP_WAIT, "not when what was heard is old");
	view.heard = true;
	view.clear = false;
	ok(step_next(&view) == STEP_WITHDRAW, "it is withdrawn when it is not clear any more");
}

static void
test_rivals(void)
{
	StepView view = {.clear = true, .rival = true};

	ok(step_next(&view) == STEP_WAIT, "while another host has announced a step this one does not");
	view.announced = view.heard = view.marked = true;
	ok(step_next(&view) == STEP_WAIT, "of two the one with the smaller id waits");
	view.goes_first = true;
	ok(step_next(&view) == STEP_WITHDRAW, "and the other withdraws");
	view.announced = false;
	ok(step_next(&view) == STEP_WAIT, "and waits");
}

/* lists: for each node a digit: 1 now, 2 next, 3 both. */
static HostConfig
host(const char *lists, HostStep step)
{
	HostConfig config = {.prefix = "redlock:", .max_ttl_ms = 60000, .step = step};

	for (; *lists != '\0'; lists++)
	{
		HostNode *node = &config.node[config.count];

		if (*lists != '0')
		{
			node->address[0] = node->process[0] = node->last[0] = (char) ('a' + config.count);
			node->now = (*lists - '0') % 2 == 1;
			node->next = (*lists - '0') / 2 == 1;
		}
		config.count++;
	}
	return config;
}

static bool
rivals(HostConfig one, HostConfig other)
{
	return steps_are_rivals(&one, &other);
}

static void
test_which_are_rivals(void)
{
	ok(rivals(host("111222", HOST_GOES_ON), host("111222", HOST_GOES_BACK)),
	   "one goes on, the other goes back");
	ok(rivals(host("111222", HOST_GOES_BACK), host("111222", HOST_GOES_ON)), "and the other way");
	ok(!rivals(host("111222", HOST_GOES_ON), host("111222", HOST_GOES_ON)), "both go on");
	ok(!rivals(host("111222", HOST_GOES_ON), host("111222", HOST_STAYS)), "one stays");
	ok(!rivals(host("1113", HOST_GOES_ON), host("1113", HOST_GOES_ON)), "both go to one node");
	ok(rivals(host("111222000", HOST_GOES_ON), host("000111222", HOST_GOES_ON)),
	   "the next change has begun");
}

/* ---- marks ---- */

static StepMarks known;

/* For each node, its place in the list of its mark; '.': no mark; '?': no answer. */
static core_mask
mark(const char *places, int count, int64_t version)
{
	core_mask told = 0;

	memset(&known, 0, sizeof(known));
	for (int i = 0; places[i] != '\0'; i++)
	{
		if (places[i] == '?')
			continue;
		told |= CORE_BIT(i);
		if (places[i] == '.')
			continue;
		known.mark[i].version = version;
		known.mark[i].list = 7;
		known.mark[i].count = count;
		known.mark[i].place = places[i] - '0';
		for (int j = 0; j < count; j++)
			known.mark[i].address[j] = 30 + (uint64_t) j;
	}
	known.told = told;
	return told;
}

static bool
left(core_mask now, core_mask next, core_mask told)
{
	known.told = told;
	return steps_left((core_lists){now, next}, 1, 2, &known);
}

static void
test_left(void)
{
	core_mask told = mark("...", 0, 0);

	ok(!left(7, 0, told), "no marks");
	told = mark("000123", 3, 1);
	ok(left(7, 0, told), "the former nodes alone were left");
	ok(!left(070, 0, told), "the new ones were not");
	ok(!left(7, 070, told), "nor were both lists");
	ok(!left(070, 7, told), "in either order");
	ok(steps_left((core_lists){7, 0}, 1, 0, &known) &&
		   !steps_left((core_lists){7, 0}, 7, 0, &known) &&
		   !steps_left((core_lists){7, 0700}, 1, 7, &known),
	   "the list that the mark names was not, whatever the nodes have");
	told = mark("000...123", 3, 1);
	ok(left(7, 070, told), "other new nodes are not those that the mark names");
	ok(!left(7, 0700, told), "these are");
	told = mark("00012.", 3, 1);
	ok(left(070, 0, told), "a node that lacks the mark is none that it names");
	known.address[5] = 32;
	ok(!left(070, 0, told), "but for the one with the same address");
	told = mark("0001??", 3, 1);
	ok(!left(070, 0, told), "one that does not tell may be any");
	ok(!left(0, 0, told), "a host without nodes has left none");
	told = mark("????..0", 3, 1);
	ok(!left(7, 070, told), "the nodes that do not tell may be those of either list");
	told = mark("00????", 3, 1);
	ok(left(7, 0, told), "one node does not tell");
	ok(!left(7, 070, told), "nor do the new ones");
	told = mark("0??", 3, 1);
	ok(left(7, 0, told), "a majority does not tell");
	told = mark("120", 3, 1);
	ok(left(7, 0, told), "one of three nodes was replaced");
	told = mark("12?", 3, 1);
	ok(!left(7, 0, told), "if that does not tell, the others are enough to exclude");
	told = mark("1234", 4, 1);
	ok(!left(7, 0, told), "a node was added");
	told = mark("1203", 3, 1);
	ok(!left(15, 0, told), "one of four was removed");
	told = mark("12003", 3, 1);
	ok(left(7, 0, told), "what is in another list only does not count");

	told = mark("0..", 3, 1);
	ok(!left(7, 0, told), "a mark that a majority lacks was not written for this list");
	told = mark("00.", 3, 1);
	ok(left(7, 0, told), "a minority may lack it");
	told = mark("000123", 3, 1);
	known.mark[0].version = 2;
	known.mark[0].list = 9;
	ok(left(7, 0, told) && !left(070, 0, told), "it does not hide the one before");

	told = mark("000123", 3, 1);
	for (int i = 0; i < 3; i++)
	{
		known.mark[i].version = 2;
		known.mark[i].place = i + 1;
	}
	ok(!left(7, 0, told), "back at the former nodes");
	ok(!left(070, 0, told & 070), "while nobody knows of the way back");
	for (int i = 3; i < 6; i++)
		known.mark[i] = (StepMark){.version = 2, .list = 7, .count = 3};
	ok(left(070, 0, told), "the others were left");
	known.mark[0] = (StepMark){.version = 1, .list = 7, .count = 3};
	known.address[0] = 50;
	for (int i = 1; i < 6; i++)
		known.mark[i].address[0] = 50;
	ok(!left(7, 0, told), "a node that was away then has an outdated mark");

	told = mark("000", 3, 1);
	known.mark[1].list = 8;
	known.mark[2].list = 9;
	ok(left(7, 0, told), "hosts that call the nodes by other names");
	told = mark("123", 3, 1);
	known.mark[1].list = 8;
	known.mark[2].list = 9;
	ok(!left(7, 0, told), "they may call nodes of the new list so");

	told = mark("00123", 3, 1);
	known.mark[4] = (StepMark){0};
	ok(left(3, 034, told),
	   "in two lists, a node of the new list without the mark may be another node");
	known.process[4] = 77;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		known.mark[i].process[2] = 77;
	ok(!left(3, 034, told), "... its process tells which node it is");
	known.process[4] = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		known.mark[i].process[2] = 0;
	ok(left(3, 034, told), "... and an unknown process tells nothing");
}

static bool
may_mark(core_mask nodes, uint64_t list)
{
	steps_remember(&known, nodes, list);
	return steps_may_mark(nodes, &known);
}

static void
test_may_mark(void)
{
	core_mask told = mark("...", 0, 0);

	ok(may_mark(7, 1), "without marks a host may mark");
	told = mark("123", 3, 1);
	ok(may_mark(7, 1), "the same nodes by other addresses");
	ok(may_mark(7, 7), "the marked list itself");
	ok(may_mark(3, 1), "one node less");
	told = mark("123.", 3, 1);
	ok(may_mark(017, 1), "one node more");
	told = mark("12?", 3, 1);
	ok(!may_mark(7, 1), "a node without a report may be another node");
	ok(!left(7, 0, told), "... so a host with the list goes on, without a mark");
	known.address[2] = 32;
	ok(may_mark(7, 1), "its address tells which node it is");
	known.mark[2] = known.mark[1];
	known.mark[2].place = 3;
	known.address[2] = 0;
	known.own.version = 0;
	ok(!may_mark(7, 1), "... and not the mark of the node before");
	(void) mark("123?", 3, 1);
	ok(!may_mark(017, 1), "one node more, without a report, may be wrong");
	(void) mark("12?.", 3, 1);
	ok(!may_mark(017, 1), "one node more, while another node is unknown");
	known.address[2] = 32;
	ok(may_mark(017, 1), "... unless its address tells which node it is");
	(void) mark("12.", 3, 1);
	known.own = (StepMemory){.list = 1, .version = 1};
	ok(may_mark(7, 1), "a host repairs the mark of its own list, by any addresses");
	known.own.list = 2;
	ok(!may_mark(7, 1), "... of this list");
	told = mark("12.", 3, 1);
	ok(!may_mark(7, 1), "an exchanged node");
	(void) mark("1..", 3, 1);
	ok(may_mark(7, 1), "a mark that a majority of the list lacks does not count");
}

static void
test_lost_marks(void)
{
	core_mask told = mark("0..", 3, 1);

	ok(!left(7, 0, told), "a mark that a majority lacks does not count");
	told = mark("0.0", 3, 1);
	ok(left(7, 0, told), "a mark that a minority lacks counts");
	known.mark[2].version = 2;
	known.mark[2].list = 9;
	ok(!left(7, 0, told), "a node with a later mark lacks the older mark");

	told = mark("000", 3, 5);
	known.own = (StepMemory){.list = 1, .version = 4};
	ok(left(7, 0, told), "a later mark than that of the own list counts");
	known.own.version = 5;
	ok(!left(7, 0, told), "an older mark does not");
	known.own.list = 2;
	ok(left(7, 0, told), "a memory of another list says nothing");
	told = mark("000...123", 3, 5);
	known.own = (StepMemory){.list = 1, .version = 9};
	ok(left(7, 070, told), "nor does a memory of one of two lists");
}

static void
test_memory(void)
{
	mark("000", 3, 5);
	steps_remember(&known, 7, 7);
	ok(known.own.list == 7 && known.own.version == 5, "the own list's mark is remembered");
	known.mark[1].version = 6;
	known.mark[2].version = 8;
	known.mark[2].list = 9;
	steps_remember(&known, 7, 7);
	ok(known.own.version == 6, "its latest one");
	known.mark[0].version = 7;
	steps_remember(&known, 7, 7);
	ok(known.own.version == 7, "of any node");
	known.own.version = 6;
	memset(known.mark, 0, sizeof(known.mark));
	steps_remember(&known, 7, 7);
	ok(known.own.version == 6, "also when the nodes have lost it");
	known.mark[0] = (StepMark){.version = 9, .list = 7};
	known.told &= ~CORE_BIT(0);
	steps_remember(&known, 7, 7);
	ok(known.own.version == 6, "a node that has not told is not asked");
	steps_remember(&known, 7, 9);
	ok(known.own.list == 9 && known.own.version == 0, "another list has no mark");

	mark("231", 3, 5);
	steps_remember(&known, 7, 8);
	ok(known.own.version == 5, "a mark by other names, if each node has a place in its list");
	known.own.version = 0;
	steps_remember(&known, 017, 8);
	ok(known.own.version == 0, "not if a node has none");
	mark("231", 3, 5);
	known.mark[2].list = 9;
	steps_remember(&known, 7, 8);
	ok(known.own.version == 0, "nor if one has a mark of another list");
	mark("231", 4, 5);
	steps_remember(&known, 7, 8);
	ok(known.own.version == 0, "nor if the mark names one more");
	for (int i = 0; i < 2; i++)
	{
		mark(i == 0 ? "23?" : "23.", 3, 5);
		steps_remember(&known, 7, 8);
		ok(known.own.version == 0, "nor if a node has not told, or lacks the mark");
		known.process[2] = 77;
		for (int j = 0; j < 2; j++)
			known.mark[j].process[0] = 77;
		steps_remember(&known, 7, 8);
		ok(known.own.version == 5, "... but for a known process");
		known.process[2] = 78;
		ok(!steps_left((core_lists){7, 0}, 8, 0, &known),
		   "the memory stays after a restart of the node");
		known.own = (StepMemory){0};
		known.mark[1].place = 1;
		known.process[2] = 77;
		steps_remember(&known, 7, 8);
		ok(known.own.version == 0, "two nodes have no common place");
	}
}

/* ---- the choice of a mark ---- */

static StepMark chosen;
static int32_t places[CORE_NODES_MAX];

static int64_t
choose(uint64_t list)
{
	chosen = (StepMark){.list = list, .count = 3, .process = {91, 92, 93}};
	for (int i = 0; i < 3; i++)
		places[i] = i + 1;
	steps_choose_mark(&known, 7, 5000, &chosen, places);
	return chosen.version;
}

static void
test_choice(void)
{
	mark("...", 0, 0);
	ok(choose(8) == 5000 && chosen.list == 8 && places[2] == 3, "no mark: a new version");
	mark("2310", 3, 4000);
	known.process[1] = 92;
	ok(steps_names(&known, &known.mark[0], 7, 8), "a mark with other addresses for the list");
	ok(choose(8) == 4000 && chosen.list == 7, "another host's mark of the list is kept");
	ok(places[0] == 2 && places[1] == 3 && places[2] == 1 && places[3] == 0, "with its places");
	ok(chosen.process[2] == 92 && chosen.process[1] == 0, "and the processes that this host knows");
	ok(choose(7) == 4000 && places[0] == 1, "the own mark, with the own places");
	known.own = (StepMemory){.list = 8, .version = 4500};
	ok(choose(8) == 4500 && chosen.list == 8, "a later mark of the own list is written again");
	known.own.version = 4000;
	ok(choose(8) == 4000 && chosen.list == 7, "a mark as late is not replaced");
	mark("12.", 3, 4000);
	ok(!steps_names(&known, &known.mark[0], 7, 8), "a mark that may name another node");
	ok(choose(8) == 5000 && chosen.list == 8 && places[2] == 3, "is replaced");
	mark("120", 2, 4000);
	ok(choose(8) == 5000, "so is the mark of a shorter list");
	mark("123", 3, 4000);
	known.mark[1].list = 9;
	ok(steps_latest(&known)->list == 9, "of two marks with one version, the hash decides");
}

static void
test_versions(void)
{
	mark("...", 0, 0);
	ok(steps_next_version(&known, 1, 5000) == 5000, "the first version is the time");
	mark("000", 3, 4000);
	ok(steps_next_version(&known, 1, 5000) == 5000, "so is that of a later list");
	ok(steps_next_version(&known, 1, 4000) == 4001, "which is larger than the one before");
	ok(steps_next_version(&known, 7, 5000) == 4000, "the same list has the same version");
	known.own = (StepMemory){.list = 1, .version = 4500};
	ok(steps_next_version(&known, 1, 5000) == 4500, "also where nodes have lost it");
	known.own.version = 4000;
	ok(steps_next_version(&known, 1, 5000) == 4000, "or another list has a mark as late");
	known.own.version = 3000;
	ok(steps_next_version(&known, 1, 5000) == 5000, "but not after another list took over");
	known.own = (StepMemory){.list = 1};
	mark("...", 0, 0);
	ok(steps_next_version(&known, 1, 5000) == 5000, "a list without a mark has no version yet");
}

static bool
may_follow(core_mask to, core_mask leave, bool asked, core_mask told)
{
	known.told = told;
	return steps_forbid((core_lists){to, 0}, 1, (core_lists){leave, 0}, 2, asked, &known) == NULL;
}

static void
test_follow(void)
{
	core_mask told = mark("......", 3, 0);

	ok(may_follow(7, 070, false, told), "without marks each list may follow");
	told = mark("000123", 3, 1);
	ok(may_follow(070, 7, true, told), "the list that the mark names may");
	ok(may_follow(7, 070, true, told),
	   "back to one that was left, if the other one's nodes were asked");
	ok(!may_follow(7, 070, false, told), "not if they were not");
	told = mark("000123...", 3, 1);
	ok(!may_follow(7, 0700, true, told), "nor if the mark names a third list");
	known.own = (StepMemory){.list = 2, .version = 1};
	ok(may_follow(7, 0700, true, told), "but if the list to leave was marked as late");
	ok(may_follow(7, 0700, false, told), "... whether its nodes were asked or not");
	known.own.list = 1;
	ok(may_follow(7, 0700, true, told), "or the list to stay, on the way back");
	known.own.list = 3;
	ok(!may_follow(7, 0700, true, told), "not if a list was that has no part in the step");
	known.own = (StepMemory){.list = 2, .version = 0};
	ok(!may_follow(7, 0700, true, told), "nor if its mark is earlier");
}

#define TEXT(version, count, place, host)                                                          \
	version "0123456789abcdef\0" count place host "a:1\0"                                          \
			"0123456789abcdef\0"                                                                   \
			"0000000000000000\0"
#define READS(...) steps_read_mark(&after, TEXT(__VA_ARGS__), sizeof(TEXT(__VA_ARGS__)) - 1)

static void
test_marks_text(void)
{
	StepMark before = {.version = STEPS_VERSION_MAX,
					   .list = UINT64_C(0xfedcba9876543210),
					   .count = 3,
					   .place = 2,
					   .address = {1, 2, UINT64_MAX},
					   .process = {UINT64_MAX, 0, 3},
					   .host = "berlin",
					   .nodes = "a:1, b:1"};
	StepMark after;
	char text[LUA_MARK_MAX];
	size_t len = steps_write_mark(&before, text);
	int wrong = 0;

	ok(steps_read_mark(&after, text, len) && memcmp(&before, &after, sizeof(after)) == 0,
	   "a mark is read as it was written");
	for (size_t some = 0; some < len; some++)
		wrong += steps_read_mark(&after, text, some);
	ok(wrong == 0, "none is read of a part");
	memset(before.host, 'h', HOSTS_NAME_MAX);
	memset(before.nodes, 'n', STEPS_NODES_TEXT_MAX);
	before.version = INT32_MAX;
	before.count = HOSTS_NODES_MAX - 1;
	ok(steps_write_mark(&before, text) <= LUA_MARK_MAX, "the longest has room");
	ok(READS("1\0", "1\0", "1\0", "h\0"), "a short one is read");
	ok(!READS("0\0", "1\0", "1\0", "h\0"), "not with version 0");
	ok(!READS("1\0", "0\0", "0\0", "h\0"), "without nodes");
	ok(!READS("1\0", "1\0", "2\0", "h\0"), "with a place of none");
	ok(!READS("1\0", "16\0", "0\0", "h\0"), "with too many nodes");
	ok(!READS("1\0", "1\0", "1\0", "h\33\0"), "or with control characters");
}

int
main(void)
{
	test_next();
	test_rivals();
	test_which_are_rivals();
	test_left();
	test_may_mark();
	test_lost_marks();
	test_memory();
	test_choice();
	test_versions();
	test_follow();
	test_marks_text();
	return tap_done();
}
