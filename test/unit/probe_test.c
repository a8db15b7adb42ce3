/*
 * probe_test.c
 *		Unit tests of probes, src/protocol/probe.c.
 *
 * Protects from: a path without an end; a probe dropped although no other session's probe would
 * find the cycle; a cycle believed at once.  test/sim/deadlock.c has schedules.
 */
#include "protocol/probe.h"

#include "tap.h"

static void
test_paths(void)
{
	ProbePath path = {.number = 1};
	ProbeStep first = {5, 1, true};

	ok(probe_visit(&path, &first) == PROBE_GO_ON, "the first step");
	ok(probe_visit(&path, &(ProbeStep){4, 9, true}) == PROBE_GO_ON, "a wait of a smaller host");
	ok(probe_visit(&path, &(ProbeStep){9, 9, false}) == PROBE_GO_ON,
	   "a wait inside of a larger host");
	ok(probe_visit(&path, &(ProbeStep){9, 8, true}) == PROBE_DROP,
	   "a larger host's wait for another host: its own probe comes home");
	ok(probe_visit(&path, &(ProbeStep){5, 2, true}) == PROBE_DROP, "... or of this host");
	ok(probe_visit(&path, &(ProbeStep){4, 9, true}) == PROBE_DROP, "a cycle without the first");
	ok(probe_visit(&path, &(ProbeStep){5, 1, false}) == PROBE_GO_ON,
	   "the first session's wait inside of its host is another step");
	ok(path.count == 4, "what was dropped is not in the path");
	ok(probe_visit(&path, &first) == PROBE_HOME, "a cycle");

	path = (ProbePath){.number = 1, .count = 1, .step = {first, {4, 9, true}}};
	ok(probe_visit(&path, &(ProbeStep){4, 9, true}) == PROBE_GO_ON,
	   "what is behind the path is not in it");

	while (path.count < PROBE_STEPS_MAX)
		(void) probe_visit(&path, &(ProbeStep){1, (uint64_t) 100 + (uint64_t) path.count, false});
	ok(probe_visit(&path, &(ProbeStep){1, 1, false}) == PROBE_DROP, "too long a path");
	ok(probe_visit(&path, &first) == PROBE_HOME, "the longest path comes home");
}

static void
test_gates(void)
{
	ProbePath path = {.count = 4,
					  .step = {{5, 9, true}, {6, 1, false}, {7, 1, true}, {5, 3, false}}};

	ok(probe_larger_queues(&path) == 1, "a wait at another gate ends first, with a larger number");
	path.step[1].host = 4;
	ok(probe_larger_queues(&path) == 0,
	   "the last wait ends, whatever the numbers of smaller hosts");
	path.step[1] = (ProbeStep){6, 4, false};
	path.step[2].host = 6;
	ok(probe_larger_queues(&path) == 0, "a wait for a row is no gate");
}

#define PATIENCE_US 1000

static void
test_judgement(void)
{
	ProbePath path = {.number = 1, .count = 2, .step = {{5, 1, true}, {4, 9, true}}};
	ProbeMemory memory = {.sent = 3};

	path.number = 0;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_ONCE, "seen once, by a forged number,");
	memory = (ProbeMemory){.sent = 3};
	path.number = 1;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_ONCE, "or by a true one");
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_KNOWN, "the same probe again");
	path.number = 3;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_KNOWN,
	   "one that was sent before the first came home");
	path.number = 4;
	path.step[1].wait = 10;
	memory.sent = 4;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_KNOWN,
	   "the next may come by several cycles");
	path.number = 5;
	memory.sent = 5;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_ONCE,
	   "and then other edges are a first time");
	path.number = 7;
	path.step[1].wait = 9;
	memory.sent = 7;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_ONCE, "... and so are those of before");
	path.number = 8;
	memory.sent = 8;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_DEADLOCK, "seen twice");

	path.number = 9;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_KNOWN, "one that was never sent");
	path.number = 8;

	/* a probe that came by a queue */
	path.by_queue = true;
	ok(probe_judge(&memory, &path, 0, PATIENCE_US) == PROBE_ONCE, "by a queue: seen once");
	path.number = memory.sent = 9;
	ok(probe_judge(&memory, &path, PATIENCE_US - 1, PATIENCE_US) == PROBE_KNOWN,
	   "it may soon be broken by another");
	path.step[1].wait = 10;
	ok(probe_judge(&memory, &path, PATIENCE_US - 1, PATIENCE_US) == PROBE_KNOWN,
	   "another cycle by the same probe does not take its place");
	path.number = memory.sent = 10;
	ok(probe_judge(&memory, &path, PATIENCE_US - 1, PATIENCE_US) == PROBE_KNOWN, "nor by the next");
	path.step[1].wait = 9;
	ok(probe_judge(&memory, &path, PATIENCE_US, PATIENCE_US) == PROBE_DEADLOCK,
	   "and if it lasts it is a deadlock");
	path.step[1].wait = 10;
	path.number = memory.sent = 12;
	ok(probe_judge(&memory, &path, PATIENCE_US, PATIENCE_US) == PROBE_ONCE,
	   "where it is not seen any more, another one begins");
	path.by_queue = false;
	path.step[1].wait = 9;
	ok(probe_judge(&memory, &path, PATIENCE_US, PATIENCE_US) == PROBE_DEADLOCK,
	   "what comes without a queue is judged by itself");

	ok(probe_again_us(0, 1) == 250000 && probe_again_us(1000, 1) >= 10 * probe_again_us(0, 1),
	   "of many who wait each asks less often");
	ok(probe_again_us(0, 80) < 500000 && probe_again_us(0, 600) >= 2000000,
	   "... and if one host has many that wait");
	ok(probe_again_us(INT32_MAX, INT32_MAX) == PROBE_AGAIN_MAX_US, "a bystander knows how seldom");
}

int
main(void)
{
	test_paths();
	test_gates();
	test_judgement();
	return tap_done();
}
