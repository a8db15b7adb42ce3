/*
 * permits.c
 *		Sessions share the permits of a lock, with the real decisions.
 *
 * The nodes are abridged: one place grants a permit, or refuses it and names a
 * free permit.  While the queue is held, other hosts get none.  The queue is
 * an exclusive lock with an order.  The queue's holder gets messages about
 * releases, which may be late, doubled or lost.  A session runs when an event
 * has occurred since its last run, as by a latch, and may stall before.
 * kinds.c has another world, with nodes and without the queue.
 *
 * Protects from: more holders than permits; a free permit while a session
 * waits; a session beyond its timeout, or without an end; a session that
 * overtakes the queue, or continues with a lost queue; needless exchanges;
 * permits or places that remain at the end.
 *
 * Prints TAP.  A failed check also prints "# seed N violates invariant 21:
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
#include "kinds.h"
#include "protocol/permits.h"

#define MS INT64_C(1000)
#define SECOND (1000 * MS)

#define HOSTS_MAX 8
#define SESSIONS_MAX 64 /* of all hosts */
#define N_MAX 16
#define EVENTS_MAX 4096
#define KINDS_WORLDS 5000

#define TTL_US SECOND
#define STOPPED_US (2 * SECOND) /* a stalled session loses the queue after this time */

/*
 * Delays from a published release to a grant: the message, a round in flight,
 * and another round.
 */
#define SOON_DELAYS 8

typedef struct story
{
	int hosts;
	int sessions; /* of each host */
	int n;
	int other_n;   /* of every third host; 0: the same for all */
	bool tries;    /* some do not wait */
	bool unheard;  /* messages are late, doubled or lost */
	bool dies;     /* sometimes a holder dies */
	bool stops;    /* sometimes a session stalls */
	bool gives_up; /* some are cancelled, or have a timeout */
	bool loses;    /* sometimes the queue is lost */
	int64_t delay_us;
	int64_t hold_us;
	int64_t length_us;
} story;

typedef enum event_type
{
	BEGIN,     /* a session asks for a permit */
	ASKS,      /* a command arrives: acquire */
	GIVES,     /* ... release */
	ENTERS,    /* ... enter the queue */
	LEAVES,    /* ... leave the queue */
	ANSWERS,   /* an answer arrives */
	HAS_QUEUE, /* ... the queue is granted */
	TOLD,      /* a message arrives: a permit was released */
	RUNS,      /* a session runs after an event */
	LOOKS,     /* a session looks by itself */
	DONE,      /* a session releases its permit */
	DIES,
	EXPIRES, /* the permit of a dead session */
	LOSES,   /* the queue */
	CANCELLED,
	TIME_OVER
} event_type;

typedef struct event
{
	int64_t at_us;
	event_type type;
	int session;
	int permit;
	uint64_t id;
	bool yes; /* ANSWERS: granted; GIVES: held before */
} event;

typedef enum doing
{
	IDLE,
	ASKING,
	QUEUEING,
	WAITING,
	HOLDING
} doing;

typedef struct session
{
	int host;
	permits_search search;
	doing doing;
	bool is_woken;
	int64_t stopped_until_us;
	int64_t since_us; /* when it began to want a permit */

	int permit; /* the permit it asks for or holds; 0: none */
	uint64_t request;
	bool is_answered;
	bool is_granted;
	int free;
	int64_t refused_us;    /* last */
	bool asked[N_MAX + 1]; /* in this round */
	uint32_t round_told;

	uint64_t ticket; /* of its place in the queue; 0: none */
	int64_t entered_us;
	permits_place place;
	bool was_queued;
	uint32_t told;
	int told_permit;
} session;

static story s;
static session sessions[SESSIONS_MAX];
static event events[EVENTS_MAX];
static int event_count;
static int64_t arrived_us[HOSTS_MAX][2];
static int64_t now_us;
static uint64_t seed;
static uint64_t ids;

/* At the nodes. */
static struct
{
	uint64_t owner; /* a request; 0: free */
	int64_t freed_us;
	bool told; /* published in time, to the queue's holder */
} permits[N_MAX + 1];

static struct
{
	uint64_t ticket;
	int session;
	int64_t since_us;  /* on its host */
} queue[SESSIONS_MAX]; /* the first has the queue */

static int queued;
static int64_t queue_us; /* when the first got it */

static struct
{
	int64_t wants;
	int64_t held;
	int64_t in_vain;
	int64_t timed_out;
	int64_t cancelled;
	int64_t died;
	int64_t stopped;
	int64_t queues; /* granted */
	int64_t lost_queues;
	int64_t told;
	int64_t unheard;
	int64_t looks;
	int64_t asks;

	int64_t many;     /* more holders than permits */
	int64_t beyond;   /* asked for a permit beyond its own number */
	int64_t idle;     /* free too long while a session waited */
	int64_t overtook; /* was granted a permit before the queue */
	int64_t again;    /* asked twice for one permit in a round */
	int64_t astray;   /* asked without the queue it needs */
	int64_t misled;   /* waited, looked or failed without reason */
	int64_t late;     /* waited longer than its timeout */
	int64_t stuck;
	int64_t left;
} seen, total;

static void go_on(int i, permits_step step);
static void end(int i);

static int
count(void)
{
	return s.hosts * s.sessions;
}

static int64_t
soon_us(void)
{
	return SOON_DELAYS * s.delay_us;
}

static int
n_of(int host)
{
	return s.other_n > 0 && host % 3 == 1 ? s.other_n : s.n;
}

static void
later(int64_t in_us, event_type type, int i, int permit, uint64_t id, bool yes)
{
	assert(event_count < EVENTS_MAX);
	events[event_count++] = (event){now_us + in_us, type, i, permit, id, yes};
}

/* Drops a session's events of one type. */
static void
forget(int i, event_type type)
{
	for (int e = event_count - 1; e >= 0; e--)
		if (events[e].session == i && events[e].type == type)
			events[e] = events[--event_count];
}

static int64_t
delay_us(void)
{
	return s.delay_us / 2 + dice((uint32_t) s.delay_us / 4 + 1);
}

/* Over a host's connection to the nodes, or back: in order. */
static int64_t
way_us(int i, bool back)
{
	int64_t *last_us = &arrived_us[sessions[i].host][back];
	int64_t at_us = now_us + delay_us();

	if (at_us <= *last_us)
		at_us = *last_us + 1;
	*last_us = at_us;
	return at_us - now_us;
}

/* ---- the nodes ---- */

static bool
is_before(int i)
{
	return queued > 0 && sessions[queue[0].session].host != sessions[i].host;
}

static void
asks(const event *event)
{
	int i = event->session;
	int n = n_of(sessions[i].host);
	int free = PERMITS_NONE_FREE;
	bool granted = permits[event->permit].owner == 0 && !is_before(i);

	if (granted)
	{
		permits[event->permit].owner = event->id;
		seen.overtook += queued > 0 && queue[0].session != i && sessions[i].doing == ASKING &&
						 sessions[i].request == event->id &&
						 sessions[i].since_us > queue[0].since_us;
	}
	else if (!is_before(i))
		for (int k = 1; k < n && free == PERMITS_NONE_FREE; k++)
		{
			int other = (event->permit - 1 + k) % n + 1;

			if (permits[other].owner == 0)
				free = other;
		}
	later(way_us(i, true), ANSWERS, i, free, event->id, granted);
}

/*
 * Tells the queue's holder in time, late, twice or not at all.  Returns
 * whether in time.
 */
static bool
tell(int permit)
{
	uint32_t fate = s.unheard ? dice(8) : 3;

	seen.unheard += fate < 3;
	if (fate < 2)
		later(delay_us() + dice(2 * SECOND), TOLD, queue[0].session, permit, 0, false);
	if (fate > 2 || fate == 1)
		later(delay_us(), TOLD, queue[0].session, permit, 0, false);
	return fate > 2 || fate == 1;
}

static void
set_free(const event *event, bool tells)
{
	if (permits[event->permit].owner != event->id)
		return;
	permits[event->permit].owner = 0;
	permits[event->permit].freed_us = now_us;
	permits[event->permit].told = tells && queued > 0 && tell(event->permit);
}

static void
give_queue(void)
{
	queue_us = now_us;
	if (queued > 0)
		later(way_us(queue[0].session, true), HAS_QUEUE, queue[0].session, 0, queue[0].ticket,
			  false);
}

static void
enters(const event *event)
{
	queue[queued].ticket = event->id;
	queue[queued].session = event->session;
	queue[queued].since_us = sessions[event->session].entered_us;
	if (++queued == 1)
		give_queue();
}

static void
leaves(uint64_t ticket)
{
	for (int at = 0; at < queued; at++)
		if (queue[at].ticket == ticket)
		{
			memmove(&queue[at], &queue[at + 1], (size_t) (--queued - at) * sizeof(queue[0]));
			if (at == 0)
				give_queue();
			return;
		}
}

/* By another session of the host, as holder or with a request. */
static bool
is_taken(const session *own, int permit)
{
	for (int i = 0; i < count(); i++)
		if (&sessions[i] != own && sessions[i].host == own->host && sessions[i].permit == permit)
			return true;
	return false;
}

/* No permit may stay free for long if the queue's holder could take it. */
static void
look_for_idle(void)
{
	const session *first = &sessions[queue[0].session];

	for (int p = 1; queued > 0 && p <= n_of(first->host); p++)
	{
		int64_t since_us = permits[p].freed_us;
		int64_t limit_us = soon_us();

		if (permits[p].owner != 0)
			continue;
		if (is_taken(first, p))
		{
			/*
			 * it is asked for in vain, and no message tells when the request
			 * ends
			 */
			permits[p].freed_us = now_us;
			permits[p].told = false;
			continue;
		}
		if (since_us > queue_us && !permits[p].told)
			limit_us += PERMITS_LOOK_US * 3 / 2;
		if (since_us < queue_us)
			since_us = queue_us;
		if (since_us < first->stopped_until_us)
			since_us = first->stopped_until_us;
		if (now_us - since_us <= limit_us)
			continue;
		seen.idle++;
		permits[p].freed_us = now_us;
	}
}

/* ---- the sessions ---- */

/* Makes the session run soon, once for all events until then. */
static void
wake(int i)
{
	session *own = &sessions[i];
	int64_t pause_us = 1 + dice((uint32_t) s.delay_us / 4 + 1);

	if (own->is_woken)
		return;
	own->is_woken = true;
	if (s.stops && dice(300) == 0)
	{
		pause_us = dice(3 * (uint32_t) STOPPED_US);
		own->stopped_until_us = now_us + pause_us;
		seen.stopped++;
		if (own->ticket != 0 && pause_us > STOPPED_US)
			later(STOPPED_US, LOSES, i, 0, own->ticket, false);
	}
	later(pause_us, RUNS, i, 0, 0, false);
}

static void
want(int i)
{
	session *own = &sessions[i];
	bool others_wait = false;

	seen.wants++;
	for (int k = 0; k < count(); k++)
		others_wait = others_wait || (sessions[k].host == own->host && sessions[k].ticket != 0 &&
									  sessions[k].place != PERMITS_QUEUE_LOST);
	own->search = (permits_search){.host = 2 * (uint64_t) own->host + 1,
								   .n = n_of(own->host),
								   .once = s.tries && dice(4) == 0,
								   .deadline_us = INT64_MAX};
	own->since_us = now_us;
	own->was_queued = others_wait;
	if (s.gives_up && dice(4) == 0)
		later(dice(20 * (uint32_t) s.hold_us), CANCELLED, i, 0, 0, false);
	if (s.gives_up && dice(4) == 0)
	{
		own->search.deadline_us = now_us + dice(20 * (uint32_t) s.hold_us);
		later(own->search.deadline_us - now_us, TIME_OVER, i, 0, 0, false);
	}
	go_on(i, permits_begin(&own->search, others_wait));
}

static bool
is_late(const session *own)
{
	int64_t until_us = own->search.deadline_us;

	if (until_us < own->stopped_until_us)
		until_us = own->stopped_until_us;
	return until_us < now_us - soon_us();
}

static void
leave_queue(int i)
{
	session *own = &sessions[i];

	if (own->ticket != 0)
		later(way_us(i, false), LEAVES, i, 0, own->ticket, false);
	own->ticket = 0;
	own->place = PERMITS_OUTSIDE;
}

static void
hold(int i)
{
	session *own = &sessions[i];
	int holders = 0;

	own->doing = HOLDING;
	leave_queue(i);
	for (int k = 0; k < count(); k++)
		holders += sessions[k].doing == HOLDING;
	seen.many += holders > (s.n > s.other_n ? s.n : s.other_n);
	seen.late += is_late(own);
	seen.held++;
	forget(i, CANCELLED);
	forget(i, TIME_OVER);
	later(s.hold_us / 2 + dice((uint32_t) s.hold_us + 1), s.dies && dice(20) == 0 ? DIES : DONE, i,
		  0, 0, false);
}

/*
 * A requested permit may have been granted by now; no message tells of its
 * release.
 */
static void
give_back(int i)
{
	session *own = &sessions[i];

	if (own->permit != 0)
		later(way_us(i, false), GIVES, i, own->permit, own->request,
			  own->doing == HOLDING || (own->is_answered && own->is_granted));
	own->permit = 0;
}

/* Returns false if a session of this host has the permit. */
static bool
try(int i)
{
	session *own = &sessions[i];
	int permit = own->search.permit;

	seen.beyond += permit < 1 || permit > own->search.n;
	seen.astray +=
		own->place == PERMITS_QUEUE_LOST || (own->place == PERMITS_OUTSIDE && own->was_queued);
	assert(permit >= 1 && permit <= N_MAX);
	if (is_taken(own, permit))
		return false;
	if (own->doing != ASKING)
	{
		memset(own->asked, 0, sizeof(own->asked));
		own->round_told = own->told;
	}
	seen.again +=
		own->asked[permit] && own->told == own->round_told; /* else it began another round */
	own->asked[permit] = true;
	seen.asks++;
	own->doing = ASKING;
	own->permit = permit;
	own->request = ++ids;
	own->is_answered = false;
	later(way_us(i, false), ASKS, i, permit, own->request, false);
	return true;
}

static permits_seen
what_it_sees(const session *own)
{
	return (permits_seen){.now_us = now_us,
						  .random = dice(UINT32_MAX),
						  .free = own->free,
						  .place = own->place,
						  .told = own->told,
						  .told_permit = own->told_permit};
}

static void
go_on(int i, permits_step step)
{
	session *own = &sessions[i];

	for (int steps = 0; steps < 100; steps++)
	{
		permits_seen now;

		switch (step)
		{
			case PERMITS_TRY:
				if (try(i))
					return;
				own->free = PERMITS_TAKEN_HERE;
				break;
			case PERMITS_ENTER_QUEUE:
				seen.misled += own->search.once || own->ticket != 0;
				own->doing = QUEUEING;
				own->was_queued = true;
				own->ticket = ++ids;
				own->entered_us = now_us;
				own->told = dice(3); /* earlier messages of its entry */
				own->told_permit = PERMITS_NONE_FREE;
				if (own->search.deadline_us <= now_us)
				{
					seen.timed_out++;
					end(i);
					return;
				}
				later(way_us(i, false), ENTERS, i, 0, own->ticket, false);
				return;
			case PERMITS_LEAVE_QUEUE:
				seen.misled += own->place != PERMITS_QUEUE_LOST;
				own->doing = QUEUEING;
				leave_queue(i);
				break;
			case PERMITS_WAIT:
				seen.astray += own->place != PERMITS_IN_QUEUE;
				own->doing = WAITING;
				if (own->search.look_at_us < s.length_us + 100 * SECOND)
					later(own->search.look_at_us > now_us ? own->search.look_at_us - now_us : 1,
						  LOOKS, i, 0, 0, false);
				return;
			case PERMITS_TIME_OUT:
				seen.misled += own->search.deadline_us > now_us;
				seen.late += is_late(own);
				seen.timed_out++;
				end(i);
				return;
			case PERMITS_FAIL:
				seen.misled += !own->search.once;
				seen.in_vain++;
				end(i);
				return;
		}
		now = what_it_sees(own);
		step = permits_next(&own->search, &now);
	}
	seen.stuck++;
	end(i);
}

static void
end(int i)
{
	static const event_type own_events[] = {RUNS, LOOKS, CANCELLED, TIME_OVER};

	give_back(i);
	leave_queue(i);
	for (size_t k = 0; k < sizeof(own_events) / sizeof(own_events[0]); k++)
		forget(i, own_events[k]);
	sessions[i].is_woken = false;
	sessions[i].doing = IDLE;
	if (now_us < s.length_us)
		later(1 + dice((uint32_t) s.hold_us), BEGIN, i, 0, 0, false);
}

static void
run_session(int i)
{
	session *own = &sessions[i];
	permits_seen now;

	own->is_woken = false;
	if ((own->doing == ASKING && !own->is_answered) ||
		(own->doing == QUEUEING && own->place == PERMITS_OUTSIDE) || own->doing == HOLDING)
		return; /* sleeps on */
	forget(i, LOOKS);
	if (own->doing == ASKING && own->is_granted)
	{
		hold(i);
		return;
	}
	if (own->doing == ASKING)
	{
		own->permit = 0;
		own->refused_us = now_us;
	}
	now = what_it_sees(own);
	go_on(i, permits_next(&own->search, &now));
}

static void
is_told(const event *event)
{
	for (int i = 0; i < count(); i++)
		if (sessions[i].host == sessions[event->session].host &&
			sessions[i].place == PERMITS_IN_QUEUE)
		{
			seen.told++;
			sessions[i].told++;
			sessions[i].told_permit = event->permit;
			wake(i);
		}
}

static void
answers(const event *event)
{
	session *own = &sessions[event->session];

	if (own->doing != ASKING || own->request != event->id)
		return;
	own->is_answered = true;
	own->is_granted = event->yes;
	own->free = event->permit;
	wake(event->session);
}

static void
has_queue(const event *event)
{
	session *own = &sessions[event->session];

	if (own->ticket != event->id)
		return;
	seen.queues++;
	own->place = PERMITS_IN_QUEUE;
	wake(event->session);
	/* the host subscribes from now on, and may have missed a release */
	later(s.delay_us + delay_us(), TOLD, event->session, PERMITS_NONE_FREE, 0, false);
	if (s.loses && dice(10) == 0)
		later(dice((uint32_t) SECOND), LOSES, event->session, 0, event->id, false);
}

static void
loses(const event *event)
{
	session *own = &sessions[event->session];

	if (own->ticket != event->id || own->place != PERMITS_IN_QUEUE)
		return;
	seen.lost_queues++;
	own->place = PERMITS_QUEUE_LOST;
	leaves(event->id);
	wake(event->session);
}

/* ---- time ---- */

static void
handle(const event *event)
{
	int i = event->session;
	session *own = &sessions[i];

	switch (event->type)
	{
		case BEGIN:
			want(i);
			break;
		case ASKS:
			asks(event);
			break;
		case GIVES:
			set_free(event, event->yes);
			break;
		case ENTERS:
			enters(event);
			break;
		case LEAVES:
			leaves(event->id);
			break;
		case ANSWERS:
			answers(event);
			break;
		case HAS_QUEUE:
			has_queue(event);
			break;
		case TOLD:
			is_told(event);
			break;
		case RUNS:
			run_session(i);
			break;
		case LOOKS:
			seen.looks++;
			seen.misled +=
				now_us < own->search.deadline_us && now_us < own->refused_us + PERMITS_LOOK_US / 2;
			wake(i);
			break;
		case DONE:
			end(i);
			break;
		case DIES:
			seen.died++;
			later(TTL_US, EXPIRES, i, own->permit, own->request, false);
			own->permit = 0;
			end(i);
			break;
		case EXPIRES:
			set_free(event, false);
			break;
		case LOSES:
			loses(event);
			break;
		case CANCELLED:
			if (now_us < own->stopped_until_us)
			{
				later(own->stopped_until_us - now_us, CANCELLED, i, 0, 0, false);
				break;
			}
			seen.cancelled++;
			end(i);
			break;
		case TIME_OVER:
			if (own->doing != QUEUEING || own->place != PERMITS_OUTSIDE)
				break; /* the session notices by itself */
			seen.timed_out++;
			end(i);
			break;
	}
}

static void
prepare(const story *story)
{
	s = *story;
	assert(count() <= SESSIONS_MAX && s.hosts <= HOSTS_MAX && s.n <= N_MAX && s.other_n <= N_MAX);
	dice_begin(seed);
	memset(&seen, 0, sizeof(seen));
	memset(permits, 0, sizeof(permits));
	memset(arrived_us, 0, sizeof(arrived_us));
	now_us = 0;
	ids = 0;
	queued = 0;
	event_count = 0;
	for (int i = 0; i < count(); i++)
		sessions[i] = (session){.host = i / s.sessions};
}

/* Events that allow a session one exchange, or two. */
static int64_t
reasons(void)
{
	return seen.wants + seen.queues + seen.told + seen.looks;
}

static void
run_until(int64_t until_us)
{
	while (event_count > 0 && seen.asks < 1000 + 10 * reasons())
	{
		int first = 0;
		event event;

		for (int e = 1; e < event_count; e++)
			if (events[e].at_us < events[first].at_us)
				first = e;
		if (events[first].at_us > until_us)
			break;
		event = events[first];
		events[first] = events[--event_count];
		now_us = event.at_us;
		look_for_idle();
		handle(&event);
	}
	now_us = until_us;
}

/*
 * Runs until all sessions are idle, or long after all should have had a
 * permit.
 */
static void
finish(void)
{
	int64_t *sum = (int64_t *) &total;
	const int64_t *of_this = (const int64_t *) &seen;

	run_until(s.length_us + 100 * SECOND);
	for (int i = 0; i < count(); i++)
		seen.stuck += sessions[i].doing != IDLE;
	for (int p = 1; p <= N_MAX; p++)
		seen.left += permits[p].owner != 0;
	seen.left += queued;
	for (size_t k = 0; k < sizeof(seen) / sizeof(int64_t); k++)
		sum[k] += of_this[k];
}

static void
run(const story *story)
{
	prepare(story);
	for (int i = 0; i < count(); i++)
		later(dice((uint32_t) s.hold_us), BEGIN, i, 0, 0, false);
	finish();
}

/* ---- the stories ---- */

#define check(good, ...) check_invariant(21, seed, good, __VA_ARGS__)

/* All sessions end, soon and in order, and nothing remains. */
static void
test_contended(void)
{
	static const int64_t delays_us[] = {MS / 10, MS, 20 * MS};

	for (int number = 0; number < 96; number++)
	{
		story story = {.hosts = 1 + number % HOSTS_MAX,
					   .sessions = 8,
					   .n = 1 + number * 5 % N_MAX,
					   .other_n = number % 5 == 4 ? 1 + number % N_MAX : 0,
					   .tries = number % 7 == 6,
					   .unheard = number & 1,
					   .dies = number & 2,
					   .stops = number & 4,
					   .gives_up = number & 8,
					   .loses = number & 16,
					   .delay_us = delays_us[number % 3],
					   .length_us = 60 * SECOND};

		/* so that permits are scarce, or turns in the queue */
		story.hold_us = MS + story.n * story.delay_us * (1 + number / 3 % 4);
		while (story.sessions > 1 && story.hosts * story.sessions > (2 + number % 4) * story.n)
			story.sessions--;
		seed = (uint64_t) number + 1;
		run(&story);
		check(seen.held > 100 && seen.many == 0 && seen.beyond == 0 && seen.idle == 0 &&
				  seen.overtook == 0 && seen.again == 0 && seen.astray == 0 && seen.misled == 0 &&
				  seen.late == 0 && seen.asks <= 2 * reasons() && seen.stuck == 0 && seen.left == 0,
			  "%d permits, %d hosts with %d sessions, %.1f ms away%s%s%s%s%s%s%s: %" PRId64
			  " held, %" PRId64 " gave up, %.2f exchanges each; %" PRId64 " too many, %" PRId64
			  " beyond the last, %" PRId64 " free too long, %" PRId64 " out of order, %" PRId64
			  " again, %" PRId64 " astray, %" PRId64 " misled, %" PRId64 " too late, %" PRId64
			  " wait for ever, %" PRId64 " left",
			  story.n, story.hosts, story.sessions, (double) story.delay_us / 1000,
			  story.other_n > 0 ? ", different numbers" : "",
			  story.tries ? ", some do not wait" : "", story.unheard ? ", unheard" : "",
			  story.dies ? ", some die" : "", story.stops ? ", stopped" : "",
			  story.gives_up ? ", some give up" : "", story.loses ? ", the queue is lost" : "",
			  seen.held, seen.in_vain + seen.timed_out + seen.cancelled,
			  (double) seen.asks / (double) (seen.wants + 1), seen.many, seen.beyond, seen.idle,
			  seen.overtook, seen.again, seen.astray, seen.misled, seen.late, seen.stuck,
			  seen.left);
	}
	ok(total.in_vain > 0 && total.timed_out > 0 && total.cancelled > 0 && total.died > 0 &&
		   total.stopped > 0 && total.lost_queues > 0 && total.unheard > 0 && total.looks > 0,
	   "all of it: %" PRId64 " held, %" PRId64 " exchanges, %" PRId64 " had the queue, %" PRId64
	   " lost it; %" PRId64 " times told, %" PRId64 " late, twice or never, %" PRId64
	   " looks; %" PRId64 " stopped, %" PRId64 " died, %" PRId64 " cancelled, %" PRId64
	   " timed out, %" PRId64 " in vain",
	   total.held, total.asks, total.queues, total.lost_queues, total.told, total.unheard,
	   total.looks, total.stopped, total.died, total.cancelled, total.timed_out, total.in_vain);
}

/* Hosts that come at once find a permit each, without collisions. */
static void
test_spread(void)
{
	for (int n = HOSTS_MAX; n <= N_MAX; n++)
	{
		story story = {
			.hosts = HOSTS_MAX, .sessions = 1, .n = n, .delay_us = MS, .hold_us = SECOND};

		seed = (uint64_t) n;
		prepare(&story);
		for (int i = 0; i < story.hosts; i++)
			want(i);
		finish();
		check(seen.held == story.hosts && seen.asks == story.hosts && seen.left == 0,
			  "%d hosts come at once for %d permits: %" PRId64 " held, %" PRId64 " exchanges",
			  story.hosts, n, seen.held, seen.asks);
	}
}

/*
 * One session, while others hold some permits for ever.  If the first permit
 * it tries is free, it needs one exchange, else two.  If all are held, it
 * needs an exchange for each look, and one for a published permit.
 */
static void
test_exchanges(void)
{
	int64_t sessions_seen = 0;
	int64_t once = 0;
	int64_t twice = 0;
	int64_t more = 0;
	int64_t looks = 0;
	int64_t hasty = 0;
	int64_t told = 0;

	for (int n = 1; n <= N_MAX; n++)
		for (int taken = 0; taken <= n; taken++)
			for (int host = 0; host < HOSTS_MAX; host++)
			{
				story story = {
					.hosts = HOSTS_MAX, .sessions = 1, .n = n, .delay_us = MS, .hold_us = SECOND};
				event release = {.type = GIVES, .id = UINT64_MAX};

				seed = (uint64_t) ((n * 100 + taken) * 10 + host);
				prepare(&story);
				for (int left = taken; left > 0;)
				{
					int permit = 1 + (int) dice((uint32_t) n);

					left -= permits[permit].owner == 0;
					permits[permit].owner = UINT64_MAX;
				}
				want(host);
				run_until(20 * MS);
				sessions_seen++;
				once += taken < n && seen.held == 1 && seen.asks == 1;
				twice += taken < n && seen.held == 1 && seen.asks == 2;
				if (taken < n)
				{
					more += seen.held != 1 || seen.asks > 2;
					continue;
				}
				/* first try; try with the queue; try after the subscription */
				more += seen.held != 0 || seen.asks != 3;
				run_until(10 * SECOND);
				looks += seen.looks;
				hasty += seen.looks < 10 || seen.looks > 40 || seen.asks != 3 + seen.looks;
				for (int64_t last = seen.looks; seen.looks == last && now_us < 20 * SECOND;)
					run_until(now_us + 20 * MS);
				run_until(now_us + 20 * MS); /* the look is over, and no other is near */
				release.permit = 1 + (int) dice((uint32_t) n);
				seen.asks = 0;
				set_free(&release, true);
				run_until(now_us + soon_us());
				told += seen.held == 1 && seen.asks == 1;
			}
	seed = 1;
	check(more == 0 && once > twice && twice > 0,
		  "of %" PRId64 " sessions, each alone with some permits that others have, %" PRId64
		  " need one exchange, %" PRId64 " two, %" PRId64 " others than they should",
		  sessions_seen, once, twice, more);
	check(hasty == 0 && looks > 0,
		  "while all are held for 10 s a session asks %.1f times, and %" PRId64
		  " ask more or less than they should",
		  (double) looks / (N_MAX * HOSTS_MAX), hasty);
	check(told == N_MAX * HOSTS_MAX, "%" PRId64 " of %d have the one they are told of at once",
		  told, N_MAX * HOSTS_MAX);
}

/* No lease of the whole lock is valid beside a permit: see kinds.c. */
static void
test_kinds(uint64_t from, uint64_t worlds)
{
	kinds_seen kinds;
	bool holds = kinds_run(from, worlds, &kinds);

	check_invariant(21, kinds.seed, holds,
					"%" PRIu64 " worlds with a lock and its permits: %" PRId64
					" grants of the lock, %" PRId64 " of permits, %" PRId64 " renewals, %" PRId64
					" losses of data; no two conflicting leases are valid",
					kinds.seed - from, kinds.whole, kinds.permits, kinds.renewed, kinds.losses);
	check_invariant(21, kinds.seed,
					kinds.whole > 0 && kinds.permits > 0 && kinds.renewed > 0 &&
						kinds.refused > 0 && kinds.losses > 0 && kinds.together > 0,
					"and there was something to check: %" PRId64
					" renewals met a lease of another kind, %" PRId64 " permits were held together",
					kinds.refused, kinds.together);
}

/* permits [WORLDS [SEED]]: only so many worlds of kinds.c, from this seed on */
int
main(int argc, char **argv)
{
	if (argc > 1)
	{
		test_kinds(argc > 2 ? strtoull(argv[2], NULL, 10) : 0, strtoull(argv[1], NULL, 10));
		return tap_done();
	}
	test_kinds(0, KINDS_WORLDS);
	test_contended();
	test_spread();
	test_exchanges();
	return tap_done();
}
