/*
 * watch.c
 *		When the group of the command must end, and how it is ended.
 *
 * Two processes use the Watch, and each may be stopped between any two instructions.  So there is
 * no lock in it: each field is written atomically, and no order of the writes makes the group live
 * longer than the latest kill_at_us.  Each kill_at_us is safe by itself.
 *
 * The front reaps the leader of the group after the end of the keeper.  Until then no other group
 * can have the number.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "redlock_exec.h"

/* KILL is repeated until the group has ended. */
#define KILL_AGAIN_US 50000

/*
 * A server that renews the lease, and then falls silent, has been silent for a longer part of the
 * ttl than this when TERM is due.
 */
#define RECENT_SHARE 5

/* Time for the front or the keeper to wake up, and for the kernel to end the group. */
#define LATENESS_SHARE 20
#define LATENESS_MAX_US 200000

/* The clocks of client and server may differ in speed as those of servers and nodes may. */
#define DRIFT_SHARE 100
#define DRIFT_MIN_US 2000

int64_t
clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* poll's own timeout stands still while the machine sleeps. */
int
timer_open(void)
{
	int timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);

	if (timer < 0)
		fail(EXIT_FAILED, "could not create a timer: %s", strerror(errno));
	return timer;
}

void
timer_set(int timer, int64_t at_us)
{
	struct itimerspec at = {.it_value = {.tv_nsec = 1}}; /* all zero would be no timer */

	if (at_us > 0)
	{
		at.it_value.tv_sec = at_us / 1000000;
		at.it_value.tv_nsec = at_us % 1000000 * 1000 + 1;
	}
	(void) timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

void
timer_read(int timer)
{
	uint64_t times;

	while (read(timer, &times, sizeof(times)) < 0 && errno == EINTR)
		;
}

int64_t
watch_kill_at(int64_t asked_us, int64_t validity_us)
{
	int64_t lateness_us = validity_us / LATENESS_SHARE;

	if (lateness_us > LATENESS_MAX_US)
		lateness_us = LATENESS_MAX_US;
	return asked_us + validity_us - validity_us / DRIFT_SHARE - DRIFT_MIN_US - lateness_us;
}

Watch *
watch_create(const Grant *grant)
{
	Watch *watch =
		mmap(NULL, sizeof(Watch), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (watch == MAP_FAILED)
		fail(EXIT_FAILED, "could not allocate shared memory: %s", strerror(errno));
	watch->kill_after_us = grant->kill_after_us;
	watch->kill_at_us = grant->kill_at_us;
	watch->recent_us = grant->ttl_us / RECENT_SHARE;
	return watch;
}

EndReason
watch_reason(const Watch *watch)
{
	return (EndReason) __atomic_load_n(&watch->reason, __ATOMIC_SEQ_CST);
}

static int64_t
kill_at(const Watch *watch)
{
	return __atomic_load_n(&watch->kill_at_us, __ATOMIC_SEQ_CST);
}

void
watch_extend(Watch *watch, int64_t kill_at_us)
{
	__atomic_store_n(&watch->kill_at_us, kill_at_us, __ATOMIC_SEQ_CST);
}

void
watch_answered(Watch *watch, int64_t asked_us)
{
	__atomic_store_n(&watch->answered_us, asked_us, __ATOMIC_SEQ_CST);
}

/* kill(-1) would reach every process of the user. */
void
watch_signal(const Watch *watch, int number)
{
	if (watch->group > 1)
		(void) kill(-watch->group, number);
}

void
watch_end(Watch *watch, EndReason reason, const char *message)
{
	int none = END_NONE;
	bool at_once = reason == END_LOST || reason == END_SESSION || reason == END_FRONT ||
				   watch->kill_after_us == 0;
	int64_t by_us = clock_us() + (at_once ? 0 : watch->kill_after_us);

	if (__atomic_compare_exchange_n(&watch->reason, &none, reason, false, __ATOMIC_SEQ_CST,
									__ATOMIC_SEQ_CST))
	{
		if (message != NULL)
			snprintf(watch->message, sizeof(watch->message), "%s", message);
	}
	else if (!at_once)
		return;
	if (by_us < kill_at(watch))
		watch_extend(watch, by_us);
	if (at_once)
		watch_signal(watch, SIGKILL);
	else
	{
		watch_signal(watch, SIGTERM);
		watch_signal(watch, SIGCONT); /* a stopped process does not see TERM */
	}
}

int64_t
watch_act(Watch *watch)
{
	int64_t now_us = clock_us();

	if (watch_reason(watch) == END_NONE)
	{
		int64_t term_at_us = kill_at(watch) - watch->kill_after_us;

		if (now_us < term_at_us)
			return term_at_us;
		watch_end(watch,
				  now_us - __atomic_load_n(&watch->answered_us, __ATOMIC_SEQ_CST) < watch->recent_us
					  ? END_UNRENEWED
					  : END_LATE,
				  NULL);
	}
	if (now_us < kill_at(watch))
		return kill_at(watch);
	watch_signal(watch, SIGKILL);
	return now_us + KILL_AGAIN_US;
}

void
watch_require_proc(void)
{
	char self[24] = "";

	if (readlink("/proc/self", self, sizeof(self) - 1) > 0 && strtol(self, NULL, 10) == getpid())
		return;
	complain("/proc does not show the processes of this pid namespace");
	fprintf(stderr, "HINT:  Mount /proc in the namespace, as \"unshare --mount-proc\" does.\n");
	exit(EXIT_FAILED);
}

/*
 * Returns true if a process of the group runs, though "hidepid" hides the file of the process.  As
 * process 1, the front is the parent of hidden processes, and does not reap the processes.
 */
static bool
is_hidden_in_group(pid_t pid, pid_t group)
{
	siginfo_t info = {.si_pid = 0};

	return getpgid(pid) == group &&
		   (waitid(P_PID, (id_t) pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0);
}

/*
 * Does a process of the group with this number run?  A process whose first thread has ended is a
 * zombie with other threads.
 */
static bool
is_in_group(const char *pid, pid_t group)
{
	char path[300];
	char stat[512];
	char *after_name;
	size_t length;
	FILE *file;
	char state;
	int its_group;
	int threads;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	if ((file = fopen(path, "re")) == NULL)
		return errno != ENOENT && errno != ESRCH &&
			   is_hidden_in_group((pid_t) strtol(pid, NULL, 10), group);
	length = fread(stat, 1, sizeof(stat) - 1, file);
	fclose(file);
	stat[length] = '\0';
	/* the name of the program may have blanks and parentheses */
	after_name = strrchr(stat, ')');
	return after_name != NULL &&
		   sscanf(after_name,
				  ") %c %*d %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state,
				  &its_group, &threads) == 3 &&
		   its_group == group && state != 'X' && (state != 'Z' || threads > 1);
}

/*
 * kill(-group, 0) can't tell: it finds the unreaped leader as well.  So this reads /proc, once from
 * begin to end, and looks first at the process found last.  Returns true if /proc can't be read.
 */
static bool
group_has_process(pid_t group)
{
	static char last[300];
	DIR *dir;
	struct dirent *entry;
	bool found = false;

	if (last[0] != '\0' && is_in_group(last, group))
		return true;
	if ((dir = opendir("/proc")) == NULL)
		return true;
	while (!found && (entry = readdir(dir)) != NULL)
	{
		found =
			entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_in_group(entry->d_name, group);
		if (found)
			snprintf(last, sizeof(last), "%s", entry->d_name);
	}
	closedir(dir);
	return found;
}

/* A process may fork behind the place of the first look, and end before its place comes. */
bool
watch_group_lives(const Watch *watch)
{
	return group_has_process(watch->group) || group_has_process(watch->group);
}
