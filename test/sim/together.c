/*
 * together.c
 *		Sessions acquire several locks at once, with the real decisions.
 *
 * The nodes are abridged: a lock is granted or refused, and granted later to a
 * waiter, the first or any.  Sessions of a host queue at gates, one gate for
 * each lock.  Commands and answers take time.  A session may stall before
 * reading its answers, or be cancelled.
 *
 * Protects from: sessions that wait in a circle, or for ever; a session that
 * continues with a part of its locks; a session that waits for its last lock
 * only, by its announcement, and releases others (the broker's deadlock.c
 * relies on the announcement); a release without a message; needless
 * exchanges.
 *
 * Prints TAP.  A failed check also prints "# seed N violates invariant 20:
 * ...", for mutants.pl.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/dice.h"
#include "invariant.h"
#include "protocol/several.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)

#define HOSTS_MAX 8
#define SESSIONS_MAX 32
#define TAKES_MAX 6
#define EVENTS_MAX 4096

/* Some names begin with another name. */
static const char *const names[] = {"a", "ab", "abc", "b", "ba", "bb", "c", "ca", "d", "da"};

#define LOCKS ((int) (sizeof(names) / sizeof(names[0])))

typedef struct story
{
	int hosts;
	int sessions; /* of each host */
	int takes;    /* at most this many locks at once */
	bool any;     /* the next waiter is random, not the first */
	bool stops;   /* sometimes a session stalls */
	bool gives_up;
	int64_t delay_us;
	int64_t hold_us;
	int64_t length_us;
} story;

typedef enum event_type
{
	BEGIN, /* a session asks for locks */
	ASKS,  /* a command arrives: acquire */
	GIVES, /* ... release */
	TOLD,  /* an answer arrives */
	READS, /* a session reads its answers */
	DONE,  /* a session releases its locks */
	GIVES_UP
} event_type;

typedef struct event
{
	int64_t at_us;
	event_type type;
	int session;
	int lock;
	uint64_t request;
	several_state answer;
} event;

typedef struct session
{
	int host;
	int lock[TAKES_MAX]; /* in the order of names */
	int count;
	int gates; /* number of gates it has entered */
	int asked;
	uint64_t request[TAKES_MAX];
	several_state state[TAKES_MAX];
	bool at_gate; /* waits at a gate */
	bool holds;
	bool alone; /* announced: waits only for the last lock */
	bool wants;
	uint64_t turn; /* number of its current wish */
	int64_t since_us;
} session;

typedef struct lock
{
	uint64_t owner; /* a request; 0: free */
	int owner_session;
	uint64_t waiter[SESSIONS_MAX]; /* in order */
	int waiter_session[SESSIONS_MAX];
	int waiters;
} lock;

/* A gate of one host, for one lock. */
typedef struct gate
{
	int inside; /* a session; -1: none */
	int queue[SESSIONS_MAX];
	int waiting;
} gate;

static story s;
static session sessions[SESSIONS_MAX];
static lock locks[LOCKS];
static gate gates[HOSTS_MAX][LOCKS];
static event events[EVENTS_MAX];
static int event_count;
static int64_t arrived_us[HOSTS_MAX][2];
static int64_t now_us;
static uint64_t seed;
static uint64_t requests;

static struct
{
	int64_t held;
	int64_t gave_up;
	int64_t asks;
	int64_t partial;    /* went on without all locks */
	int64_t behind;     /* waited for the last lock without an earlier one */
	int64_t unanswered; /* released a lock whose grant it may not have seen */
	int64_t alone_gave; /* released after the announcement `alone` */
	int64_t stuck;
	int64_t waited_us;
	int64_t longest_us;
} seen;

static void enter_gates(int i);
static void go_on(int i);

static int
count(void)
{
	return s.hosts * s.sessions;
}

static void
later(int64_t in_us, event_type type, int i, int lock, uint64_t request, several_state answer)
{
	assert(event_count < EVENTS_MAX);
	events[event_count++] = (event){now_us + in_us, type, i, lock, request, answer};
}

/* Over a host's connection to the nodes, or back: in order. */
static int64_t
way_us(int i, bool back)
{
	int64_t *last_us = &arrived_us[sessions[i].host][back];
	int64_t at_us = now_us + s.delay_us / 2 + dice((uint32_t) s.delay_us / 4 + 1);

	if (at_us <= *last_us)
		at_us = *last_us + 1;
	*last_us = at_us;
	return at_us - now_us;
}

/* ---- the nodes ---- */

static void
grant(int lock, uint64_t request, int i)
{
	locks[lock].owner = request;
	locks[lock].owner_session = i;
	later(way_us(i, true), TOLD, i, lock, request, SEVERAL_GRANTED);
}

static void
asks(const event *event)
{
	lock *lock = &locks[event->lock];

	if (lock->owner == 0)
	{
		grant(event->lock, event->request, event->session);
		return;
	}
	lock->waiter_session[lock->waiters] = event->session;
	lock->waiter[lock->waiters++] = event->request;
	later(way_us(event->session, true), TOLD, event->session, event->lock, event->request,
		  SEVERAL_REFUSED);
}

static void
remove_waiter(lock *lock, int at)
{
	lock->waiters--;
	memmove(&lock->waiter[at], &lock->waiter[at + 1],
			(size_t) (lock->waiters - at) * sizeof(uint64_t));
	memmove(&lock->waiter_session[at], &lock->waiter_session[at + 1],
			(size_t) (lock->waiters - at) * sizeof(int));
}

static void
gives(const event *event)
{
	lock *lock = &locks[event->lock];
	int next = 0;

	for (int at = 0; at < lock->waiters; at++)
		if (lock->waiter[at] == event->request)
		{
			remove_waiter(lock, at);
			return;
		}
	if (lock->owner != event->request)
		return;
	lock->owner = 0;
	if (lock->waiters == 0)
		return;
	if (s.any)
		next = (int) dice((uint32_t) lock->waiters);
	grant(event->lock, lock->waiter[next], lock->waiter_session[next]);
	remove_waiter(lock, next);
}

/* ---- the sessions ---- */

static int
compare(const void *one, const void *other)
{
	const char *a = names[*(const int *) one];
	const char *b = names[*(const int *) other];

	return several_compare(a, strlen(a), b, strlen(b));
}

static void
want(int i)
{
	session *own = &sessions[i];

	own->count = 0;
	for (int tries = 1 + (int) dice((uint32_t) s.takes); tries > 0; tries--)
	{
		int lock = (int) dice((uint32_t) LOCKS);
		bool known = false;

		for (int k = 0; k < own->count; k++)
			known = known || own->lock[k] == lock;
		if (!known)
			own->lock[own->count++] = lock;
	}
	qsort(own->lock, (size_t) own->count, sizeof(int), compare);
	own->gates = own->asked = 0;
	own->at_gate = own->holds = own->alone = false;
	own->wants = true;
	own->turn++;
	own->since_us = now_us;
	if (s.gives_up && dice(4) == 0)
		later(dice((uint32_t) (20 * s.hold_us)), GIVES_UP, i, 0, own->turn, SEVERAL_ASKED);
	go_on(i);
}

static void
leave_gate(int i, int lock)
{
	gate *gate = &gates[sessions[i].host][lock];
	int next;

	if (gate->inside != i)
	{
		for (int at = 0; at < gate->waiting; at++)
			if (gate->queue[at] == i)
			{
				memmove(&gate->queue[at], &gate->queue[at + 1],
						(size_t) (--gate->waiting - at) * sizeof(int));
				return;
			}
		return;
	}
	gate->inside = -1;
	if (gate->waiting == 0)
		return;
	next = gate->queue[0];
	memmove(&gate->queue[0], &gate->queue[1], (size_t) --gate->waiting * sizeof(int));
	gate->inside = next;
	sessions[next].gates++;
	sessions[next].at_gate = false;
	later(1, READS, next, 0, 0, SEVERAL_ASKED);
}

/* Releases the locks from index `from` on, and leaves their gates. */
static void
give_back(int i, int from)
{
	session *own = &sessions[i];

	for (int k = own->count - 1; k >= from; k--)
	{
		if (k < own->asked)
			later(way_us(i, false), GIVES, i, own->lock[k], own->request[k], SEVERAL_ASKED);
		leave_gate(i, own->lock[k]);
	}
	own->at_gate = false;
	own->gates = own->gates < from ? own->gates : from;
	own->asked = own->asked < from ? own->asked : from;
}

/* Enters the gates in order, then asks for all locks together. */
static void
enter_gates(int i)
{
	session *own = &sessions[i];

	while (own->gates < own->count)
	{
		gate *gate = &gates[own->host][own->lock[own->gates]];

		if (gate->inside >= 0)
		{
			gate->queue[gate->waiting++] = i;
			own->at_gate = true;
			return;
		}
		gate->inside = i;
		own->gates++;
	}
	seen.asks++;
	for (; own->asked < own->count; own->asked++)
	{
		own->request[own->asked] = ++requests;
		own->state[own->asked] = SEVERAL_ASKED;
		later(way_us(i, false), ASKS, i, own->lock[own->asked], requests, SEVERAL_ASKED);
	}
}

/* Do the nodes grant these locks to the session? */
static bool
has(int i, int from, int to)
{
	const session *own = &sessions[i];

	for (int k = from; k < to; k++)
		if (locks[own->lock[k]].owner != own->request[k])
			return false;
	return true;
}

static void
go_on(int i)
{
	session *own = &sessions[i];

	for (int steps = 0; own->wants && !own->holds && !own->at_gate; steps++)
	{
		int from = -1;

		if (own->gates > own->asked) /* it went through a gate just now */
		{
			enter_gates(i);
			continue;
		}
		switch (several_next(own->state, own->asked, own->count, &from))
		{
			case SEVERAL_DONE:
				seen.partial += own->asked < own->count || !has(i, 0, own->count);
				seen.held++;
				seen.waited_us += now_us - own->since_us;
				if (now_us - own->since_us > seen.longest_us)
					seen.longest_us = now_us - own->since_us;
				own->holds = true;
				later(s.hold_us / 2 + dice((uint32_t) s.hold_us + 1), DONE, i, 0, 0, SEVERAL_ASKED);
				return;
			case SEVERAL_ASK:
				own->alone = false;
				enter_gates(i);
				if (!own->at_gate)
					return;
				break;
			case SEVERAL_RELEASE:
				seen.alone_gave += own->alone;
				for (int k = from; k < own->asked; k++)
					seen.unanswered += own->state[k] == SEVERAL_ASKED;
				give_back(i, from);
				break;
			case SEVERAL_WAIT_FOR_LAST:
				seen.behind += !has(i, 0, own->asked - 1);
				own->alone = true;
				return;
			case SEVERAL_WAIT:
				return;
		}
		if (steps > 10)
		{
			seen.stuck++;
			return;
		}
	}
}

static void
end(int i)
{
	give_back(i, 0);
	sessions[i].wants = sessions[i].holds = false;
	if (now_us < s.length_us)
		later(1 + dice((uint32_t) s.hold_us), BEGIN, i, 0, 0, SEVERAL_ASKED);
}

static void
told(const event *event)
{
	session *own = &sessions[event->session];

	for (int k = 0; k < own->asked; k++)
		if (own->wants && own->request[k] == event->request)
			own->state[k] = event->answer;
	later(s.stops && dice(10) == 0 ? dice((uint32_t) (10 * s.hold_us + 10 * s.delay_us)) : 1, READS,
		  event->session, 0, 0, SEVERAL_ASKED);
}

/* ---- time ---- */

static void
handle(const event *event)
{
	int i = event->session;

	switch (event->type)
	{
		case BEGIN:
			want(i);
			break;
		case ASKS:
			asks(event);
			break;
		case GIVES:
			gives(event);
			break;
		case TOLD:
			told(event);
			break;
		case READS:
			go_on(i);
			break;
		case DONE:
			end(i);
			break;
		case GIVES_UP:
			if (!sessions[i].wants || sessions[i].holds || sessions[i].turn != event->request)
				break;
			seen.gave_up++;
			end(i);
			break;
	}
}

/* Runs until no event is left: a session that waits then waits for ever. */
static void
run(const story *story)
{
	s = *story;
	dice_begin(seed);
	memset(&seen, 0, sizeof(seen));
	memset(locks, 0, sizeof(locks));
	memset(arrived_us, 0, sizeof(arrived_us));
	now_us = 0;
	requests = 0;
	event_count = 0;
	assert(count() <= SESSIONS_MAX && s.takes <= TAKES_MAX && s.hosts <= HOSTS_MAX);
	for (int h = 0; h < s.hosts; h++)
		for (int k = 0; k < LOCKS; k++)
			gates[h][k] = (gate){.inside = -1};
	for (int i = 0; i < count(); i++)
	{
		sessions[i] = (session){.host = i / s.sessions};
		later(dice((uint32_t) s.hold_us), BEGIN, i, 0, 0, SEVERAL_ASKED);
	}
	while (event_count > 0 && seen.asks < 1000 + 10 * (seen.held + seen.gave_up))
	{
		int first = 0;
		event event;

		for (int e = 1; e < event_count; e++)
			if (events[e].at_us < events[first].at_us)
				first = e;
		event = events[first];
		events[first] = events[--event_count];
		now_us = event.at_us;
		handle(&event);
	}
	for (int i = 0; i < count(); i++)
		seen.stuck += sessions[i].wants;
}

/* ---- the stories ---- */

#define check(good, ...) check_invariant(20, seed, good, __VA_ARGS__)

/* All sessions end; none waits 20 times as long as the mean. */
static void
test_contended(void)
{
	static const int64_t delays_us[] = {MS / 10, MS, 20 * MS};

	for (int number = 0; number < 24; number++)
	{
		story story = {.hosts = 1 + number % 8,
					   .takes = 2 + number % 5,
					   .any = number % 3 == 2,
					   .stops = number / 2 % 2 == 1,
					   .gives_up = number / 4 % 2 == 1,
					   .delay_us = delays_us[number % 3],
					   .hold_us = (number % 4 + 1) * 2 * MS,
					   .length_us = 200 * SECOND};
		int64_t mean_us;

		story.sessions = SESSIONS_MAX / story.hosts < 6 ? SESSIONS_MAX / story.hosts : 6;
		seed = (uint64_t) number + 1;
		run(&story);
		mean_us = seen.held > 0 ? seen.waited_us / seen.held : 0;
		check(seen.held > 500 && seen.stuck == 0 && seen.partial == 0 && seen.behind == 0 &&
				  seen.alone_gave == 0 && seen.unanswered == 0 &&
				  seen.asks < 8 * (seen.held + seen.gave_up) &&
				  (story.any || seen.longest_us < 20 * mean_us),
			  "%d hosts with %d sessions that take up to %d locks, %.1f ms away%s%s%s: %" PRId64
			  " held, %" PRId64 " gave up, %.2f exchanges each; %" PRId64 " wait for ever, %" PRId64
			  " held a part, %" PRId64 " had one behind, %" PRId64
			  " gave back what they keep, %" PRId64
			  " what was not answered; longest wait %.1f times the mean",
			  story.hosts, story.sessions, story.takes, (double) story.delay_us / 1000,
			  story.any ? ", without turns" : "", story.stops ? ", stopped" : "",
			  story.gives_up ? ", some give up" : "", seen.held, seen.gave_up,
			  (double) seen.asks / (double) (seen.held + seen.gave_up + 1), seen.stuck,
			  seen.partial, seen.behind, seen.alone_gave, seen.unanswered,
			  (double) seen.longest_us / (double) (mean_us + 1));
	}
}

/* A session without rivals asks once. */
static void
test_free(void)
{
	story story = {.hosts = 1,
				   .sessions = 1,
				   .takes = TAKES_MAX,
				   .delay_us = MS,
				   .hold_us = 5 * MS,
				   .length_us = 10 * SECOND};

	seed = 1;
	run(&story);
	check(seen.held > 500 && seen.asks == seen.held && seen.stuck == 0,
		  "a session that is alone: %" PRId64 " held, %" PRId64 " exchanges", seen.held, seen.asks);
}

int
main(void)
{
	test_contended();
	test_free();
	return tap_done();
}
