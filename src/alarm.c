/*
 * alarm.c
 *		An alarm of this process; see alarm.h.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "alarm.h"
#include "clock.h"

/* PostgreSQL uses no real-time signals, the C library the lowest ones. */
#define ALARM_SIGNAL (SIGRTMAX - 4)

static timer_t timer;
static void (*ring)(void);
static volatile int64 due_us = PG_INT64_MAX;

static void on_signal(int signal_number);

void
alarm_set_up(void (*ring_function)(void))
{
	struct sigaction action = {0};
	struct sigaction before;
	struct sigevent event = {0};

	if (ring != NULL)
		return;

	if (sigaction(ALARM_SIGNAL, NULL, &before) == 0 && before.sa_handler != SIG_DFL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
						errmsg("signal %d is in use in this session", ALARM_SIGNAL),
						errdetail("redlock_pg needs it to tell of lost leases.")));
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = ALARM_SIGNAL;
	if (timer_create(REDLOCK_CLOCK, &event, &timer) != 0)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES),
						errmsg("could not create a timer for leases: %m")));
	ring = ring_function;
	action.sa_handler = on_signal;
	action.sa_flags = SA_RESTART;
	sigemptyset(&action.sa_mask);
	sigaction(ALARM_SIGNAL, &action, NULL);
}

/* Async-signal-safe, as timer_settime is. */
void
alarm_at(int64 at_us)
{
	struct itimerspec when = {0};

	due_us = at_us;
	when.it_value.tv_sec = at_us / 1000000;
	when.it_value.tv_nsec = at_us % 1000000 * 1000;
	timer_settime(timer, TIMER_ABSTIME, &when, NULL);
}

int64
alarm_due_us(void)
{
	return due_us;
}

void
alarm_ring(int pid)
{
	(void) kill(pid, ALARM_SIGNAL);
}

static void
on_signal(int signal_number)
{
	int saved_errno = errno;

	due_us = PG_INT64_MAX;
	ring();
	errno = saved_errno;
}
