/*
 * alarm.c
 *		Alarms of this process; see alarm.h.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "shared/alarm.h"
#include "shared/clock.h"

/* PostgreSQL uses no real-time signals; the C library uses the lowest. */
#define ALARM_SIGNAL (SIGRTMAX - 4)

typedef struct Alarm
{
	timer_t timer;
	void (*ring)(void);
	volatile int64 due_us;
} Alarm;

static Alarm alarms[ALARM_PURPOSES];

static void on_signal(int signal_number, siginfo_t *info, void *context);

void
alarm_set_up(AlarmPurpose purpose, void (*ring)(void))
{
	Alarm *alarm = &alarms[purpose];
	struct sigaction action = {0};
	struct sigaction before;
	struct sigevent event = {0};

	if (alarm->ring != NULL)
		return;

	if (sigaction(ALARM_SIGNAL, NULL, &before) == 0 && before.sa_handler != SIG_DFL &&
		before.sa_sigaction != on_signal)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("signal %d is in use in this session", ALARM_SIGNAL),
			 errdetail("redlock_pg needs the signal to notice the end of a lease."),
			 errhint(
				 "Use redlock_pg and the library that takes the signal in separate sessions.")));
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = ALARM_SIGNAL;
	event.sigev_value.sival_int = purpose;
	if (timer_create(REDLOCK_CLOCK, &event, &alarm->timer) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not create a timer for leases: %m"),
				 errhint("Raise the limit of pending signals of the server's user (ulimit -i).")));
	alarm->due_us = PG_INT64_MAX;
	alarm->ring = ring;
	action.sa_sigaction = on_signal;
	action.sa_flags = SA_RESTART | SA_SIGINFO;
	sigemptyset(&action.sa_mask);
	sigaction(ALARM_SIGNAL, &action, NULL);
}

/* Async-signal-safe.  Blocks the signal, since the handler of the alarm may set the alarm, too. */
void
alarm_at(AlarmPurpose purpose, int64 at_us)
{
	struct itimerspec when = {0};
	sigset_t signals;
	sigset_t before;

	at_us = Max(at_us, 1); /* 0 would disarm the timer */
	when.it_value.tv_sec = at_us / 1000000;
	when.it_value.tv_nsec = at_us % 1000000 * 1000;
	sigemptyset(&signals);
	sigaddset(&signals, ALARM_SIGNAL);
	sigprocmask(SIG_BLOCK, &signals, &before);
	alarms[purpose].due_us = at_us;
	timer_settime(alarms[purpose].timer, TIMER_ABSTIME, &when, NULL);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

int64
alarm_due_us(AlarmPurpose purpose)
{
	return alarms[purpose].due_us;
}

void
alarm_ring(int pid)
{
	(void) kill(pid, ALARM_SIGNAL);
}

void
alarm_ring_gate(int pid)
{
	union sigval nothing = {0};

	(void) sigqueue(pid, ALARM_SIGNAL, nothing);
}

static void
on_signal(int signal_number, siginfo_t *info, void *context)
{
	Alarm *alarm = &alarms[info->si_code == SI_TIMER   ? info->si_value.sival_int
						   : info->si_code == SI_QUEUE ? ALARM_GATE
													   : ALARM_LOSS];
	int saved_errno = errno;

	alarm->due_us = PG_INT64_MAX;
	alarm->ring();
	errno = saved_errno;
}
