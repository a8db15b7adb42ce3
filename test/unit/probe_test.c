/*
 * probe_test.c
 *		Unit tests of what is done with a probe, src/protocol/probe.c.
 *
 * Protects from: a cycle that nobody breaks, or more than one session; a session that is
 * ended though its cycle never was, since its waits were seen one after another; a path
 * without an end.
 *
 * Schedules are random: sessions on some hosts wait for each other, their waits begin and
 * end, and probes take a step now and then.  What was a deadlock is known from outside.
 */
#include "protocol/probe.h"

#include "tap.h"

#define SESSIONS 8
#define PROBES 64

/* Whom a session waits for; waits that end while a probe is under way have other numbers. */
static struct
{
	int for_whom; /* -1: it runs */
	ProbeStep step;
	ProbeMemory memory;
	bool stuck; /* it was in a cycle when it was told so */
} session[SESSIONS];

static struct
{
	bool used;
	int first;
	uint64_t wait;
	int at;
	ProbePath path;
} probe[PROBES];

static uint64_t state = 1;
static uint64_t waits;
static int ended, wrongly, found;

static uint32_t
dice(uint32_t sides)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint32_t) (((state * UINT64_C(0x2545F4914F6CDD1D) >> 32) * sides) >> 32);
}

static bool
in_cycle(int who)
{
	int at = session[who].for_whom;

	for (int i = 0; i < SESSIONS && at >= 0; i++)
	{
		if (at == who)
			return true;
		at = session[at].for_whom;
	}
	return false;
}

static void
begin_wait(int who, int for_whom)
{
	session[who].for_whom = for_whom;
	session[who].step = (ProbeStep){1 + (uint64_t) who / 2, ++waits, who / 2 != for_whom / 2};
	session[who].memory = (ProbeMemory){0};
}

static void
send_from(int who)
{
	for (int i = 0; i < PROBES; i++)
		if (!probe[i].used)
		{
			probe[i].used = true;
			probe[i].first = who;
			probe[i].wait = session[who].step.wait;
			probe[i].at = session[who].for_whom;
			probe[i].path.count = 0;
			probe[i].path.number = ++session[who].memory.sent;
			(void) probe_visit(&probe[i].path, &session[who].step);
			return;
		}
}

static void
move(int i)
{
	int at = probe[i].at;

	probe[i].used = false;
	if (session[at].for_whom < 0)
		return; /* it runs */
	switch (probe_visit(&probe[i].path, &session[at].step))
	{
		case PROBE_DROP:
			return;
		case PROBE_GO_ON:
			probe[i].at = session[at].for_whom;
			probe[i].used = true;
			return;
		case PROBE_HOME:
			break;
	}
	switch (probe_judge(&session[at].memory, &probe[i].path))
	{
		case PROBE_KNOWN:
			break;
		case PROBE_ONCE:
			send_from(at);
			break;
		case PROBE_DEADLOCK:
			ended++;
			wrongly += !in_cycle(at);
			session[at].for_whom = -1;
			break;
	}
}

/* Who is in a cycle can't end its wait; all others may. */
static void
run_schedule(int seed)
{
	state = (uint64_t) (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
	for (int s = 0; s < SESSIONS; s++)
		session[s].for_whom = -1;
	for (int i = 0; i < PROBES; i++)
		probe[i].used = false;
	for (int i = 0; i < 600; i++)
	{
		int who = (int) dice(SESSIONS);
		int other = (int) dice(SESSIONS);

		switch (dice(6))
		{
			case 0:
				if (session[who].for_whom < 0 && other != who)
					begin_wait(who, other);
				break;
			case 1:
				/* whom it waits for must run to release what it has */
				if (session[who].for_whom >= 0 && session[session[who].for_whom].for_whom < 0)
					session[who].for_whom = -1;
				break;
			case 2:
				if (session[who].for_whom >= 0 && session[who].step.remote)
					send_from(who);
				break;
			default:
				other = (int) dice(PROBES);
				if (probe[other].used)
					move(other);
				break;
		}
	}
	/* time goes on, and nothing new happens: all cycles between hosts are broken */
	for (int round = 0; round < 40; round++)
	{
		for (int s = 0; s < SESSIONS; s++)
			if (session[s].for_whom >= 0 && session[s].step.remote)
				send_from(s);
		for (int i = 0; i < PROBES; i++)
			while (probe[i].used)
				move(i);
	}
	for (int s = 0; s < SESSIONS; s++)
	{
		bool between = false;

		if (!in_cycle(s))
			continue;
		for (int at = session[s].for_whom;; at = session[at].for_whom)
		{
			between = between || session[at].step.remote;
			if (at == s)
				break;
		}
		found += between; /* one that was not */
	}
}

static void
test_schedules(void)
{
	for (int seed = 0; seed < 20000; seed++)
		run_schedule(seed);
	ok(ended > 1000, "%d sessions were told of a deadlock", ended);
	ok(wrongly == 0, "all of them were in one, %d were not", wrongly);
	ok(found == 0, "no cycle between hosts is left, %d were", found);
}

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
	ok(path.count == 3, "what was dropped is not in the path");
	ok(probe_visit(&path, &first) == PROBE_HOME, "a cycle");

	while (path.count < PROBE_STEPS_MAX)
		(void) probe_visit(&path, &(ProbeStep){1, (uint64_t) 100 + (uint64_t) path.count, false});
	ok(probe_visit(&path, &(ProbeStep){1, 1, false}) == PROBE_DROP, "too long a path");
	ok(probe_visit(&path, &first) == PROBE_HOME, "the longest path comes home");
}

static void
test_judgement(void)
{
	ProbePath path = {.number = 1, .count = 2, .step = {{5, 1, true}, {4, 9, true}}};
	ProbeMemory memory = {.sent = 3};

	ok(probe_judge(&memory, &path) == PROBE_ONCE, "seen once");
	ok(probe_judge(&memory, &path) == PROBE_KNOWN, "the same probe again");
	path.number = 3;
	ok(probe_judge(&memory, &path) == PROBE_KNOWN, "one that was sent before the first came home");
	path.number = 4;
	path.step[1].wait = 10;
	memory.sent = 4;
	ok(probe_judge(&memory, &path) == PROBE_ONCE, "other edges are a first time");
	path.number = 5;
	path.step[1].wait = 9;
	memory.sent = 5;
	ok(probe_judge(&memory, &path) == PROBE_ONCE, "... and so are those of before");
	path.number = 6;
	memory.sent = 6;
	ok(probe_judge(&memory, &path) == PROBE_DEADLOCK, "seen twice");

	ok(probe_again_us(0) <= 250000 && probe_again_us(1000) >= 10 * probe_again_us(0),
	   "of many who wait each asks less often");
}

int
main(void)
{
	test_paths();
	test_judgement();
	test_schedules();
	return tap_done();
}
