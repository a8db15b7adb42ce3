/*
 * keeper.c
 *		The keeper: the process that asks for the validity of the lease, and releases the lock.
 *
 * The keeper has a session of its own, out of reach of terminals, and ignores the signals by which
 * users end programs.  The keeper ends after the front has said so, or has died.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "redlock_exec.h"

/* The server is asked this often in a ttl, but at least once in a second. */
#define CHECKS_IN_TTL 10
#define CHECK_EVERY_MAX_US 1000000

/* For how long the server may take to release the lock.  The end of the session does it as well. */
#define RELEASE_WAIT_US 5000000

/* How often a keeper without a front looks whether the group has ended. */
#define LOOK_EVERY_US 20000

typedef struct Keeper
{
	PGconn *conn;
	const char *name;
	Watch *watch;
	int64_t check_every_us;
	int front; /* socket to the front */
	int timer;
	bool connected;
	bool asking;         /* a query is under way */
	int64_t asked_us;    /* when it began */
	int64_t check_at_us; /* next one */
	bool front_died;
} Keeper;

static Keeper keeper;

static void
lose_connection(EndReason reason)
{
	keeper.connected = false;
	watch_end(keeper.watch, reason, lock_error());
}

/* Returns true when the query that is under way has ended. */
static bool
take_answer(void)
{
	int64_t validity_us = 0;
	bool done;

	switch (lock_continue(keeper.conn, &done, &validity_us))
	{
		case ANSWER_VALID:
			watch_answered(keeper.watch, keeper.asked_us);
			/* once the end has begun, KILL comes kill_after_us behind TERM */
			if (validity_us > 0 && watch_reason(keeper.watch) == END_NONE)
				watch_extend(keeper.watch, watch_kill_at(keeper.asked_us, validity_us));
			break;
		case ANSWER_DOUBT:
			keeper.check_at_us = 0;
			break;
		case ANSWER_LOST:
			watch_end(keeper.watch, END_LOST, lock_error());
			break;
		case ANSWER_ENDED:
			lose_connection(END_SESSION);
			break;
		case ANSWER_BROKEN:
			lose_connection(END_BROKEN);
			break;
		case ANSWER_NONE:
			break;
	}
	if (done)
		snprintf(keeper.watch->error, sizeof(keeper.watch->error), "%s", lock_error());
	return done;
}

static void
check_if_due(void)
{
	if (!keeper.connected || keeper.asking || watch_reason(keeper.watch) != END_NONE ||
		clock_us() < keeper.check_at_us)
		return;
	/* before the query is sent: the validity counts from a later moment */
	keeper.asked_us = clock_us();
	keeper.check_at_us = keeper.asked_us + keeper.check_every_us;
	keeper.asking = lock_begin_check(keeper.conn, keeper.name);
	if (!keeper.asking)
		(void) take_answer();
}

/* Waits for one of: the server, the front, an instant.  Returns true if the front said something.
 */
static bool
wait_until(int64_t at_us)
{
	struct pollfd fds[3] = {
		{.fd = keeper.timer, .events = POLLIN},
		{.fd = keeper.front_died ? -1 : keeper.front, .events = POLLIN},
		{.fd = keeper.connected ? PQsocket(keeper.conn) : -1, .events = POLLIN}};

	if (keeper.connected && PQflush(keeper.conn) > 0)
		fds[2].events |= POLLOUT;
	timer_set(keeper.timer, at_us);
	if (poll(fds, 3, -1) < 0)
		return false;
	if (fds[0].revents)
		timer_read(keeper.timer);
	if (fds[2].revents && take_answer())
		keeper.asking = false;
	return fds[1].revents != 0;
}

/* The command has ended.  The release tells whether the lease was valid until now. */
static void
release(void)
{
	int64_t end_us = clock_us() + RELEASE_WAIT_US;
	int64_t ignored;
	bool done = false;
	Answer answer = ANSWER_NONE;

	keeper.front_died = true; /* the front has no more to say */
	while (keeper.connected && keeper.asking && clock_us() < end_us)
		(void) wait_until(end_us);
	if (keeper.connected && !keeper.asking && lock_begin_release(keeper.conn, keeper.name))
	{
		while (answer == ANSWER_NONE && !done && clock_us() < end_us)
		{
			struct pollfd fds[2] = {{.fd = keeper.timer, .events = POLLIN},
									{.fd = PQsocket(keeper.conn), .events = POLLIN}};

			if (PQflush(keeper.conn) > 0)
				fds[1].events |= POLLOUT;
			timer_set(keeper.timer, end_us);
			(void) poll(fds, 2, -1);
			answer = lock_continue(keeper.conn, &done, &ignored);
		}
		keeper.watch->lost_at_end = answer == ANSWER_LOST;
		keeper.watch->released = answer == ANSWER_VALID || answer == ANSWER_LOST;
	}
	if (keeper.connected)
		PQfinish(keeper.conn);
	_exit(0);
}

static void
set_up(void)
{
	static const int ignored[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
								  SIGPIPE, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	(void) prctl(PR_SET_NAME, "redlock-keeper");
	(void) setsid();
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		(void) signal(ignored[i], SIG_IGN);
	/* a reader of the command's output waits for the command only */
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		(void) dup2(null, fd);
	if (null > 2)
		(void) close(null);
	keeper.timer = timer_open();
}

void
keeper_run(PGconn *conn, const char *name, Watch *watch, int64_t ttl_us, int front)
{
	keeper.conn = conn;
	keeper.name = name;
	keeper.watch = watch;
	keeper.front = front;
	keeper.connected = true;
	keeper.check_every_us = ttl_us / CHECKS_IN_TTL;
	if (keeper.check_every_us > CHECK_EVERY_MAX_US)
		keeper.check_every_us = CHECK_EVERY_MAX_US;
	set_up();

	while (true)
	{
		int64_t next_us;
		char word;

		check_if_due();
		next_us = watch_act(watch);
		if (keeper.connected && !keeper.asking && keeper.check_at_us < next_us &&
			watch_reason(watch) == END_NONE)
			next_us = keeper.check_at_us;
		if (keeper.front_died)
		{
			if (!watch_group_lives(watch))
				release();
			if (next_us > clock_us() + LOOK_EVERY_US)
				next_us = clock_us() + LOOK_EVERY_US;
		}
		if (!wait_until(next_us))
			continue;
		if (recv(front, &word, 1, 0) == 1)
			release();
		keeper.front_died = true;
		watch_end(watch, END_FRONT, NULL);
	}
}
