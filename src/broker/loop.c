/*
 * loop.c
 *		The broker's wait-event loop; see loop.h.
 *
 * A wait-event set cannot forget a socket.  So a new set is made when a connection came or went; a
 * change of the events to wait for is a cheap modification.
 */
#include "postgres.h"

#include <poll.h>

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "broker/loop.h"
#include "shared/compat.h"
#include "shared/wait_events.h"

typedef struct Watched
{
	int fd; /* -1: none */
	bool want_write;
	int position; /* in the wait-event set */
} Watched;

static Watched watched[LOOP_SOCKETS_MAX];
static bool initialized = false;
static WaitEventSet *wait_set = NULL;
static bool stale = true; /* wait_set must be made again */

static void initialize(void);
static void make_wait_set(void);
static int look_at_sockets(LoopEvent *events);
static uint32 wanted_events(const Watched *w);

void
loop_watch(int node, int fd, bool want_write)
{
	Watched *w = &watched[node];

	initialize();
	if (w->fd != fd)
	{
		Assert(w->fd == -1);
		w->fd = fd;
		w->want_write = want_write;
		stale = true;
	}
	else if (w->want_write != want_write)
	{
		w->want_write = want_write;
		if (!stale)
			ModifyWaitEvent(wait_set, w->position, wanted_events(w), NULL);
	}
}

void
loop_forget(int node)
{
	initialize();
	if (watched[node].fd != -1)
	{
		watched[node].fd = -1;
		stale = true;
	}
}

int
loop_wait(int64 timeout_us, LoopEvent events[LOOP_EVENTS_MAX])
{
	WaitEvent occurred[LOOP_EVENTS_MAX];
	long timeout_ms = -1;
	int count;
	int n = 0;

	initialize();
	if (stale)
		make_wait_set();
	if (timeout_us >= 0)
		timeout_ms = Min((timeout_us + 999) / 1000, 60000);

	count = WaitEventSetWait(wait_set, timeout_ms, occurred, lengthof(occurred),
							 wait_event(WAITS_IN_BROKER));
	if (count == 1 && (occurred[0].events & WL_LATCH_SET))
		n = look_at_sockets(events);
	for (int i = 0; i < count; i++)
	{
		if (occurred[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
		else if (occurred[i].events & WL_SOCKET_MASK)
		{
			LoopEvent *event = &events[n++];

			event->node = (int) (intptr_t) occurred[i].user_data;
			event->readable = (occurred[i].events & WL_SOCKET_READABLE) != 0;
			event->writable = (occurred[i].events & WL_SOCKET_WRITEABLE) != 0;
		}
	}
	return n;
}

/*
 * Polls the sockets.  PostgreSQL 15 polls none when the latch is set, and backends may set the
 * latch all the time.
 */
static int
look_at_sockets(LoopEvent *events)
{
	struct pollfd sockets[LOOP_SOCKETS_MAX];
	int node[LOOP_SOCKETS_MAX];
	int count = 0;
	int n = 0;

	for (int i = 0; i < LOOP_SOCKETS_MAX; i++)
		if (watched[i].fd != -1)
		{
			sockets[count].fd = watched[i].fd;
			sockets[count].events = POLLIN | (watched[i].want_write ? POLLOUT : 0);
			node[count++] = i;
		}
	if (poll(sockets, count, 0) <= 0)
		return 0;
	for (int i = 0; i < count; i++)
		if (sockets[i].revents != 0)
		{
			bool broken = (sockets[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
			LoopEvent *event = &events[n++];

			event->node = node[i];
			event->readable = broken || (sockets[i].revents & POLLIN) != 0;
			event->writable =
				watched[node[i]].want_write && (broken || (sockets[i].revents & POLLOUT) != 0);
		}
	return n;
}

static void
initialize(void)
{
	if (initialized)
		return;
	for (int i = 0; i < LOOP_SOCKETS_MAX; i++)
		watched[i].fd = -1;
	initialized = true;
}

static void
make_wait_set(void)
{
	if (wait_set != NULL)
		FreeWaitEventSet(wait_set);
	wait_set = REDLOCK_CREATE_WAIT_SET(LOOP_EVENTS_MAX);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < LOOP_SOCKETS_MAX; i++)
		if (watched[i].fd != -1)
			watched[i].position = AddWaitEventToSet(wait_set, wanted_events(&watched[i]),
													watched[i].fd, NULL, (void *) (intptr_t) i);
	stale = false;
}

static uint32
wanted_events(const Watched *w)
{
	return WL_SOCKET_READABLE | (w->want_write ? WL_SOCKET_WRITEABLE : 0);
}
