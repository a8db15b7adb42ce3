/*
 * deadlock.c
 *		Deadlocks across hosts: sessions wait for each other, with the real
 *		probes.
 *
 * The simulator's sessions hold one lock at a time.  Here a session takes
 * several locks, of all hosts and of its host, in any order or in a fixed
 * order, and the program knows all waits.  The shell (src/broker/deadlock.c) is
 * abridged: at most one session of a host waits for a lock, so no session
 * queues at a gate. PostgreSQL ends a cycle within a host; here the program
 * ends the cycle at once.
 *
 * Protects from: a cycle never broken, broken late, or broken by more than one
 * session; a session ended outside of any cycle, because probes saw its waits
 * one after another.
 *
 * Prints TAP.  A failed check also prints "# seed N violates invariant 19:
 * ...", for mutants.pl.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../unit/dice.h"
#include "invariant.h"
#include "protocol/probe.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)
#define NEVER INT64_MAX

#define HOSTS_MAX 4
#define SESSIONS_MAX 16
#define LOCKS_MAX 24
#define TAKES_MAX 4
#define PROBES_MAX 512
#define WAITS_KEPT (1 << 20) /* longer than any probe is in flight */

typedef struct story
{
	int hosts;
	int sessions;  /* of each host */
	int shared;    /* locks of all hosts */
	int local;     /* locks of each host: PostgreSQL's own */
	bool ordered;  /* all sessions take locks in one order */
	bool cancels;  /* some cancel a wait, with or without their transaction */
	bool restless; /* all cancel soon, keep their locks, and wait for the next */
	bool faults;   /* messages are lost, late, doubled and forged */
	int64_t delay_us;
	int64_t length_us;
} story;

/* The end of a wait. */
typedef enum ending
{
	GRANTED,
	GAVE_UP,
	VICTIM
} ending;

typedef struct session
{
	int host;
	int lock[TAKES_MAX]; /* the locks to take, in this order */
	int takes;
	int taken;
	int64_t acts_at_us; /* runs until then; NEVER: waits for the next lock */
	/* of a wait */
	ProbeStep step;
	ProbeMemory memory;
	int64_t gives_up_at_us;
	int64_t probes_at_us;
	int64_t learns_at_us; /* hears of the lock's new holder then */
	int held_by;          /* the last known host of the lock's holder */
	bool in_cycle;
	ending broken_by; /* how that cycle ended */
	int64_t cycle_since_us;
} session;

typedef struct word
{
	int64_t at_us;
	int host;
	int lock;
	ProbePath path;
} word;

static story s;
static session sessions[SESSIONS_MAX];
static int holder[LOCKS_MAX]; /* a session; -1: none */
static word words[PROBES_MAX];
static int under_way;
static int64_t now_us;
static uint64_t seed;
static uint64_t waits;
static struct
{
	int64_t from_us;
	int64_t until_us;
} lasted[WAITS_KEPT]; /* each wait, by its number */

static struct
{
	int cycles; /* between hosts */
	int victims;
	int late; /* victims of a cycle just ended by a cancel */
	int twice;
	int innocent;
	int64_t longest_us; /* from the last wait of a cycle to its end */
	int64_t committed;
} seen;

static void wait_for_next(int i);
static void send_on(int i, const ProbePath *path);

/* ---- the world ---- */

static int
count(void)
{
	return s.hosts * s.sessions;
}

static bool
waits_now(int i)
{
	return sessions[i].acts_at_us == NEVER;
}

static int
awaited(int i)
{
	return sessions[i].lock[sessions[i].taken];
}

/* Returns the session that i waits for; -1: i runs. */
static int
next_of(int i)
{
	return waits_now(i) ? holder[awaited(i)] : -1;
}

/*
 * Stores the members of i's cycle, beginning with i.  Returns their number; 0:
 * i is in no cycle.
 */
static int
cycle_of(int i, int members[SESSIONS_MAX])
{
	int size = 0;

	for (int at = i; size < SESSIONS_MAX;)
	{
		members[size++] = at;
		at = next_of(at);
		if (at == i)
			return size;
		if (at < 0)
			break;
	}
	return 0;
}

static void
plan(int i)
{
	session *own = &sessions[i];

	own->takes = own->taken = 0;
	for (int tries = 2 + (int) dice(TAKES_MAX - 1); tries > 0; tries--)
	{
		int local = s.local > 0 && dice(3) == 0;
		int lock = local ? s.shared + own->host * s.local + (int) dice((uint32_t) s.local)
						 : (int) dice((uint32_t) s.shared);
		int at = own->takes;
		bool known = false;

		for (int k = 0; k < own->takes; k++)
			known = known || own->lock[k] == lock;
		if (known)
			continue;
		for (; s.ordered && at > 0 && own->lock[at - 1] > lock; at--)
			own->lock[at] = own->lock[at - 1];
		own->lock[at] = lock;
		own->takes++;
	}
	own->acts_at_us = now_us + 1 + dice((uint32_t) (20 * MS));
}

/* The session stops waiting for its lock. */
static void
end_wait(int i, ending how)
{
	int members[SESSIONS_MAX];
	int size = cycle_of(i, members);

	for (int k = 0; k < size; k++)
	{
		sessions[members[k]].in_cycle = false;
		sessions[members[k]].broken_by = how;
	}
	lasted[sessions[i].step.wait % WAITS_KEPT].until_us = now_us;
	sessions[i].acts_at_us = now_us + 1 + dice((uint32_t) (5 * MS));
	sessions[i].gives_up_at_us = sessions[i].probes_at_us = sessions[i].learns_at_us = NEVER;
}

/*
 * Begins a wait, or changes it for a new holder.  A holder on another kind of
 * host begins a new wait.
 */
static void
see_holder(int i, bool begins)
{
	session *own = &sessions[i];
	int host = sessions[holder[awaited(i)]].host;

	if (begins || own->step.remote != (host != own->host))
	{
		if (!begins)
			lasted[own->step.wait % WAITS_KEPT].until_us = now_us;
		own->step = (ProbeStep){1 + (uint64_t) own->host, ++waits, host != own->host};
		own->memory = (ProbeMemory){0};
		own->in_cycle = false;
		lasted[waits % WAITS_KEPT].from_us = now_us;
		lasted[waits % WAITS_KEPT].until_us = NEVER;
		own->held_by = host;
		own->probes_at_us = !own->step.remote ? NEVER
							: s.restless      ? now_us + 1 + dice((uint32_t) (4 * s.delay_us))
											  : now_us + 100 * MS + 30 * MS * own->host;
	}
	if (own->held_by != host)
		own->learns_at_us = now_us + s.delay_us + dice((uint32_t) (4 * s.delay_us));
}

/* Passes the lock to the longest waiter. */
static void
release(int lock)
{
	int next = -1;

	for (int i = 0; i < count(); i++)
		if (waits_now(i) && awaited(i) == lock &&
			(next < 0 || sessions[i].step.wait < sessions[next].step.wait))
			next = i;
	if (next >= 0)
	{
		end_wait(next, GRANTED);
		sessions[next].taken++;
	}
	holder[lock] = next;
	for (int i = 0; i < count(); i++)
		if (waits_now(i) && awaited(i) == lock)
			see_holder(i, false);
}

static void
end_transaction(int i)
{
	while (sessions[i].taken > 0)
		release(sessions[i].lock[--sessions[i].taken]);
	plan(i);
}

static void
abort_wait(int i, ending how)
{
	end_wait(i, how);
	end_transaction(i);
}

/* As after a rollback to a savepoint: the session keeps its locks. */
static void
skip(int i)
{
	session *own = &sessions[i];

	own->takes--;
	for (int k = own->taken; k < own->takes; k++)
		own->lock[k] = own->lock[k + 1];
}

static void
act(int i)
{
	session *own = &sessions[i];

	if (own->taken == own->takes)
	{
		seen.committed++;
		end_transaction(i);
		return;
	}
	own->acts_at_us = now_us + 1 + dice((uint32_t) (5 * MS));
	if (holder[awaited(i)] < 0)
	{
		holder[awaited(i)] = i;
		own->taken++;
		return;
	}
	for (int k = 0; k < count(); k++)
		if (sessions[k].host == own->host && waits_now(k) && awaited(k) == awaited(i))
		{
			skip(i);
			return;
		}
	wait_for_next(i);
}

static void
wait_for_next(int i)
{
	int members[SESSIONS_MAX];
	int size;
	bool between_hosts = false;

	sessions[i].acts_at_us = NEVER;
	see_holder(i, true);
	if (s.restless)
		sessions[i].gives_up_at_us = now_us + 1 + dice((uint32_t) (20 * s.delay_us));
	else if (s.cancels && dice(4) == 0)
		sessions[i].gives_up_at_us = now_us + 1 + dice((uint32_t) SECOND);

	size = cycle_of(i, members);
	for (int k = 0; k < size; k++)
	{
		between_hosts = between_hosts || sessions[members[k]].step.remote;
		sessions[members[k]].in_cycle = true;
		sessions[members[k]].cycle_since_us = now_us;
	}
	if (size > 0 && !between_hosts)
		abort_wait(i, GAVE_UP);
	else
		seen.cycles += size > 0;
}

/* ---- the probes ---- */

static void
say(int host, int lock, const ProbePath *path, int64_t at_us)
{
	if (under_way < PROBES_MAX)
		words[under_way++] = (word){at_us, host, lock, *path};
}

static void
send_on(int i, const ProbePath *path)
{
	int64_t at_us = now_us + s.delay_us / 2 + dice((uint32_t) s.delay_us);
	ProbePath forged = {.number = dice(100), .count = 1 + (int) dice(3)};

	if (s.faults && dice(10) == 0)
	{
		for (int k = 0; k < forged.count; k++)
			forged.step[k] =
				(ProbeStep){1 + dice(HOSTS_MAX), (UINT64_C(1) << 40) + k, dice(2) == 0};
		say((int) dice((uint32_t) s.hosts), (int) dice((uint32_t) s.shared), &forged, at_us);
	}
	if (s.faults && dice(6) == 0)
		return;
	if (s.faults && dice(6) == 0)
		say(sessions[i].held_by, awaited(i), path, at_us + dice((uint32_t) SECOND));
	if (s.faults && dice(6) == 0)
		at_us += dice((uint32_t) SECOND);
	say(sessions[i].held_by, awaited(i), path, at_us);
}

static void
send_probe(int i)
{
	ProbePath path = {.number = ++sessions[i].memory.sent};

	(void) probe_visit(&path, &sessions[i].step);
	send_on(i, &path);
}

/*
 * Did all waits of the path overlap in time?  Then each session waited for the
 * next: a waiting session releases nothing.
 */
static bool
lasted_together(const ProbePath *path)
{
	int64_t from_us = 0;
	int64_t until_us = NEVER;

	for (int k = 0; k < path->count; k++)
	{
		uint64_t at = path->step[k].wait % WAITS_KEPT;

		from_us = lasted[at].from_us > from_us ? lasted[at].from_us : from_us;
		until_us = lasted[at].until_us < until_us ? lasted[at].until_us : until_us;
	}
	return from_us < until_us;
}

static void
judge(int i, const ProbePath *path)
{
	session *own = &sessions[i];

	switch (probe_judge(&own->memory, path, now_us, 0))
	{
		case PROBE_KNOWN:
			break;
		case PROBE_ONCE:
			send_probe(i);
			break;
		case PROBE_DEADLOCK:
			seen.victims++;
			if (!lasted_together(path))
				seen.innocent++;
			else if (!own->in_cycle && own->broken_by == VICTIM)
				seen.twice++;
			else if (!own->in_cycle)
				seen.late++;
			else if (now_us - own->cycle_since_us > seen.longest_us)
				seen.longest_us = now_us - own->cycle_since_us;
			abort_wait(i, VICTIM);
			break;
	}
}

/* Handles a probe at the host of the lock's holder, or a former holder. */
static void
hear(const word *word)
{
	ProbePath path = word->path;

	for (int i = holder[word->lock]; i >= 0 && sessions[i].host == word->host; i = next_of(i))
	{
		ProbeAct what;

		if (!waits_now(i))
			return;
		what = probe_visit(&path, &sessions[i].step);
		if (what == PROBE_HOME && sessions[i].step.remote)
			judge(i, &path);
		else if (what == PROBE_GO_ON && sessions[i].step.remote)
			send_on(i, &path);
		if (what != PROBE_GO_ON || sessions[i].step.remote)
			return;
	}
}

/* ---- time ---- */

static int64_t
earliest(const session *own)
{
	int64_t at_us = own->acts_at_us;

	at_us = own->gives_up_at_us < at_us ? own->gives_up_at_us : at_us;
	at_us = own->probes_at_us < at_us ? own->probes_at_us : at_us;
	return own->learns_at_us < at_us ? own->learns_at_us : at_us;
}

static void
handle(int i)
{
	session *own = &sessions[i];

	if (own->acts_at_us <= now_us)
		act(i);
	else if (own->gives_up_at_us <= now_us && dice(s.restless ? 16 : 2) == 0)
		abort_wait(i, GAVE_UP);
	else if (own->gives_up_at_us <= now_us)
	{
		end_wait(i, GAVE_UP);
		skip(i);
	}
	else if (own->learns_at_us <= now_us)
	{
		own->held_by = sessions[holder[awaited(i)]].host;
		own->learns_at_us = NEVER;
	}
	else
	{
		own->probes_at_us = now_us + probe_again_us(s.hosts - 1, s.sessions);
		send_probe(i);
	}
}

static void
run(const story *story)
{
	s = *story;
	dice_begin(seed);
	memset(&seen, 0, sizeof(seen));
	now_us = 0;
	waits = 0;
	under_way = 0;
	for (int lock = 0; lock < LOCKS_MAX; lock++)
		holder[lock] = -1;
	assert(count() <= SESSIONS_MAX && s.shared + s.hosts * s.local <= LOCKS_MAX);
	for (int i = 0; i < count(); i++)
	{
		sessions[i] = (session){.host = i / s.sessions};
		sessions[i].gives_up_at_us = sessions[i].probes_at_us = sessions[i].learns_at_us = NEVER;
		plan(i);
	}
	while (now_us < s.length_us)
	{
		int first = 0;
		int word = -1;

		for (int i = 1; i < count(); i++)
			if (earliest(&sessions[i]) < earliest(&sessions[first]))
				first = i;
		for (int i = 0; i < under_way; i++)
			if (words[i].at_us < (word < 0 ? earliest(&sessions[first]) : words[word].at_us))
				word = i;
		if (word >= 0)
		{
			struct word heard = words[word];

			words[word] = words[--under_way];
			now_us = heard.at_us > now_us ? heard.at_us : now_us;
			hear(&heard);
			continue;
		}
		now_us = earliest(&sessions[first]) > now_us ? earliest(&sessions[first]) : now_us;
		handle(first);
	}
	for (int i = 0; i < count(); i++)
		if (sessions[i].in_cycle && now_us - sessions[i].cycle_since_us > seen.longest_us)
			seen.longest_us = now_us - sessions[i].cycle_since_us;
}

/* ---- the stories ---- */

#define check(good, ...) check_invariant(19, seed, good, __VA_ARGS__)

/*
 * Each cycle costs one transaction, soon, as docs/reference/waiting.md
 * promises.
 */
static void
test_cycles(void)
{
	static const int64_t delays_us[] = {MS / 2, 5 * MS, 50 * MS};

	for (int story = 0; story < 24; story++)
	{
		bool faults = story % 2 == 1;
		struct story cycles = {.hosts = 2 + story / 4 % 3,
							   .sessions = 1 + story / 2 % 4,
							   .shared = 6,
							   .local = story / 2 % 4 > 0 ? 2 : 0,
							   .cancels = story >= 12,
							   .faults = faults,
							   .delay_us = delays_us[story % 3],
							   .length_us = 100 * SECOND};
		int64_t limit_us = faults ? 30 * SECOND : 190 * MS + 20 * cycles.delay_us + 500 * MS;

		seed = (uint64_t) story + 1;
		run(&cycles);
		check(seen.victims > 20 && seen.innocent == 0 && seen.twice == 0 &&
				  (cycles.cancels || seen.late == 0) && seen.longest_us <= limit_us,
			  "%d hosts with %d sessions, %.1f ms away%s%s: %d cycles, %d sessions ended for them, "
			  "%d for one that another has ended, %d that were in none, %d for one that was "
			  "given up just before; the longest lasted %.0f ms; %" PRId64 " commits",
			  cycles.hosts, cycles.sessions, (double) cycles.delay_us / 1000,
			  cycles.cancels ? ", cancels" : "", faults ? ", faults" : "", seen.cycles,
			  seen.victims, seen.twice, seen.innocent, seen.late, (double) seen.longest_us / 1000,
			  seen.committed);
	}
}

/* Waits seen one after another are no cycle, even if a probe comes home. */
static void
test_restless(void)
{
	for (seed = 1; seed <= 12; seed++)
	{
		struct story restless = {.hosts = 2 + (int) seed % 3,
								 .sessions = 12 / (2 + (int) seed % 3),
								 .shared = 4 + (int) seed % 5,
								 .local = (int) seed % 2,
								 .restless = true,
								 .faults = seed > 4,
								 .delay_us = (seed % 3 == 0 ? 100 : 20) * MS,
								 .length_us = 2000 * SECOND};

		run(&restless);
		check(
			seen.cycles > 1000 && seen.victims > 20 && seen.innocent == 0 && seen.twice == 0,
			"%d hosts with %d sessions that don't wait for long: %d cycles, %d sessions ended, %d "
			"that were in none, %d for one that another has ended",
			restless.hosts, restless.sessions, seen.cycles, seen.victims, seen.innocent,
			seen.twice);
	}
}

static void
test_order(void)
{
	struct story order = {.hosts = 4,
						  .sessions = 4,
						  .shared = 6,
						  .local = 2,
						  .ordered = true,
						  .cancels = true,
						  .faults = true,
						  .delay_us = MS / 2,
						  .length_us = 1800 * SECOND};

	for (seed = 1; seed <= 2; seed++)
	{
		order.delay_us = seed % 2 == 0 ? 20 * MS : MS / 2;
		run(&order);
		check(seen.committed > 10000 && seen.cycles == 0 && seen.victims == 0,
			  "half an hour of work in one order, %.1f ms away: %" PRId64 " commits, %d sessions "
			  "ended",
			  (double) order.delay_us / 1000, seen.committed, seen.victims);
	}
}

int
main(void)
{
	test_cycles();
	test_restless();
	test_order();
	return tap_done();
}
