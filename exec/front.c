/*
 * front.c
 *		The front: starts the command and the keeper, passes signals on, hands the terminal over,
 *		and returns the exit code.
 *
 * The group begins in the background.  The kernel stops a member that reads from the terminal; then
 * the front hands the terminal over.  A command without such reads leaves the terminal to the other
 * members of its pipeline.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redlock_exec.h"

/* How often the front looks for processes of the group that outlive the command. */
#define LOOK_EVERY_US 20000

/* More than the keeper takes for the release. */
#define KEEPER_WAIT_US 6000000

static const int forwarded[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGUSR1,
								SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH};

static Watch *watch;
static pid_t keeper_pid;
static int to_keeper = -1; /* socket */
static int signals = -1;   /* signalfd */
static int timer = -1;
static int terminal = -1; /* -1: there is none */
static bool interrupted;  /* SIGINT ended the command */
static bool keyboard;     /* control-C has reached the front's own group */
static sigset_t blocked_before;

/* ---- the start ---- */

/*
 * Signals wait for signalfd, also those of SIGTTOU: the front changes the terminal's group.  A
 * caller may have left SIGCHLD ignored: then the kernel would reap the command, and its exit code
 * would be lost.
 */
static void
block_signals(void)
{
	sigset_t set;

	(void) signal(SIGCHLD, SIG_DFL);
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
		sigaddset(&set, forwarded[i]);
	sigaddset(&set, SIGCHLD);
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		fail(EXIT_FAILED, "could not create a descriptor for signals: %s", strerror(errno));
	sigaddset(&set, SIGTTOU);
	(void) sigprocmask(SIG_BLOCK, &set, &blocked_before);
}

/*
 * The child that becomes the command, as soon as `go` says that the keeper is there.  Dies with the
 * front, even if the keeper dies as well.
 */
static void
become_command(const Options *options, const Grant *grant, int go, pid_t front_pid)
{
	char word;
	int reason;

	(void) setpgid(0, 0);
	(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != front_pid || read(go, &word, 1) != 1 ||
		setenv("REDLOCK_TOKEN", grant->token, 1) != 0)
		_exit(EXIT_FAILED);
	(void) sigprocmask(SIG_SETMASK, &blocked_before, NULL);
	/* bash ignores TTIN in $(...): a read would fail, instead of a stop that the front notices */
	if (terminal >= 0)
		(void) signal(SIGTTIN, SIG_DFL);
	(void) execvp(options->command[0], options->command);
	reason = errno;
	complain("could not run \"%s\": %s", options->command[0], strerror(reason));
	_exit(reason == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
}

static void
start(PGconn *conn, const Options *options, const Grant *grant)
{
	int go[2];
	int pair[2];
	pid_t front_pid = getpid();
	pid_t command;

	timer = timer_open();
	watch = watch_create(grant);
	terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
	block_signals();
	if (pipe2(go, O_CLOEXEC) != 0)
		fail(EXIT_FAILED, "could not create a pipe: %s", strerror(errno));
	command = fork();
	if (command < 0)
		fail(EXIT_FAILED, "could not start a process: %s", strerror(errno));
	if (command == 0)
	{
		(void) close(go[1]);
		become_command(options, grant, go[0], front_pid);
	}
	watch->group = command;                     /* not before: both have the Watch */
	(void) setpgid(watch->group, watch->group); /* both do it: neither may come too late */
	(void) close(go[0]);

	/* where the start fails, the child reads the end of the pipe */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		fail(EXIT_FAILED, "could not create sockets: %s", strerror(errno));
	keeper_pid = fork();
	if (keeper_pid < 0)
		fail(EXIT_FAILED, "could not start a process: %s", strerror(errno));
	if (keeper_pid == 0)
	{
		(void) close(go[1]);
		(void) close(pair[0]);
		(void) close(signals);
		(void) close(timer);
		(void) close(terminal);
		keeper_run(conn, options->name, watch, grant->ttl_us, pair[1]);
	}
	(void) close(pair[1]);
	to_keeper = pair[0];
	(void) signal(SIGPIPE, SIG_IGN);
	if (write(go[1], "", 1) != 1)
		complain("could not start the command: %s", strerror(errno));
	(void) close(go[1]);
}

/* ---- the terminal ---- */

static bool
has_terminal(pid_t group)
{
	return terminal >= 0 && tcgetpgrp(terminal) == group;
}

static void
give_terminal(pid_t from, pid_t to)
{
	if (has_terminal(from))
		(void) tcsetpgrp(terminal, to);
}

/*
 * Stops the front's own group, as a shell expects of a stopped job.  Returns true after the front
 * was continued.  Returns false if the front was not stopped: no shell could continue it.
 */
static bool
stop_self(int number)
{
	sigset_t set;
	sigset_t pending;

	sigemptyset(&set);
	sigaddset(&set, number);
	(void) kill(0, number);
	(void) sigprocmask(SIG_UNBLOCK, &set, NULL); /* stops here */
	if (number != SIGTTIN)
		(void) sigprocmask(SIG_BLOCK, &set, NULL);
	sigemptyset(&pending);
	(void) sigpending(&pending);
	return sigismember(&pending, SIGCONT) == 1;
}

/*
 * Without this the stopped command would hold the lock for ever.  The kernel does not treat the
 * command's group as orphaned, since the front is its parent, so the front does what the kernel
 * does with an orphaned group.  A command that survives HUP and wants the terminal again is killed.
 */
static void
hang_up(void)
{
	static bool again;

	complain("the command wants the terminal, and no shell can continue it: %s",
			 again ? "killed" : "hung up");
	watch_signal(watch, again ? SIGKILL : SIGHUP);
	again = true;
}

/* The command was stopped. */
static void
command_stopped(int number)
{
	bool wants_terminal = number == SIGTTIN || number == SIGTTOU;
	bool had_terminal = has_terminal(watch->group);

	if (terminal < 0 || (number != SIGTSTP && !wants_terminal))
		return; /* whoever stopped the command may continue it */
	if (!wants_terminal || !(had_terminal || has_terminal(getpgrp())))
	{
		give_terminal(watch->group, getpgrp());
		if (!stop_self(number) && wants_terminal)
			hang_up(); /* TSTP is ignored instead */
	}
	if (wants_terminal || had_terminal)
		give_terminal(getpgrp(), watch->group);
	watch_signal(watch, SIGCONT);
}

/*
 * Control-C has ended the command.  The shell of a script in the front's group goes on to its next
 * line unless the front dies of SIGINT.  Control-C reaches only the group that has the terminal. If
 * that was the command's group, the front's whole group gets SIGINT, as if the command were a
 * member.  Returns if no shell of this session waits for the front: there the exit code tells.
 */
static void
interrupt_self(bool whole_group)
{
	sigset_t set;

	if (getsid(getppid()) != getsid(0))
		return;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	(void) kill(whole_group ? 0 : getpid(), SIGINT);
	(void) sigprocmask(SIG_UNBLOCK, &set, NULL); /* dies here, unless the caller ignores SIGINT */
}

/* ---- the loop ---- */

static void
pass_signals_on(void)
{
	struct signalfd_siginfo info;

	while (read(signals, &info, sizeof(info)) == (ssize_t) sizeof(info))
	{
		if (info.ssi_signo == SIGINT && info.ssi_code == SI_KERNEL)
			keyboard = true;
		if (info.ssi_signo != SIGCHLD)
			watch_signal(watch, (int) info.ssi_signo);
	}
}

/* Returns true if the command has ended, and then its exit code.  Does not reap the command. */
static bool
look_at_command(int *code)
{
	siginfo_t info = {.si_pid = 0};

	if (waitid(P_PID, watch->group, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0)
		command_stopped(info.si_status);
	info.si_pid = 0;
	if (waitid(P_PID, watch->group, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
		return false;
	interrupted = info.si_code != CLD_EXITED && info.si_status == SIGINT;
	*code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
	return true;
}

static void
wait_for_event(int64_t at_us)
{
	struct pollfd fds[3] = {{.fd = timer, .events = POLLIN},
							{.fd = signals, .events = POLLIN},
							{.fd = to_keeper, .events = POLLIN}};

	timer_set(timer, at_us);
	if (poll(fds, 3, -1) < 0)
		return;
	if (fds[0].revents)
		timer_read(timer);
	if (fds[1].revents)
		pass_signals_on();
	/* the keeper never writes: this is its end */
	if (fds[2].revents)
	{
		(void) close(to_keeper);
		to_keeper = -1;
		watch_end(watch, END_KEEPER, NULL);
	}
}

/* Lets the keeper release the lock, waits for the keeper's end, and kills a late keeper. */
static void
end_keeper(void)
{
	int64_t end_us = clock_us() + KEEPER_WAIT_US;

	/* without a lease there is nothing to wait for */
	if (watch_reason(watch) == END_NONE && to_keeper >= 0 &&
		send(to_keeper, &(char){FRONT_DONE}, 1, MSG_NOSIGNAL) == 1)
	{
		struct pollfd fds[2] = {{.fd = timer, .events = POLLIN},
								{.fd = to_keeper, .events = POLLIN}};

		timer_set(timer, end_us);
		while (poll(fds, 2, -1) < 0 && errno == EINTR)
			;
	}
	(void) kill(keeper_pid, SIGKILL); /* also of one that is stopped */
	while (waitpid(keeper_pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static const char *
reason_text(EndReason reason)
{
	switch (reason)
	{
		case END_LATE:
			return "the server did not confirm the lease in time";
		case END_UNRENEWED:
			return "no quorum of nodes renewed the lease in time";
		case END_LOST:
			return "the lease was lost";
		case END_SESSION:
			return "the server ended the session";
		case END_BROKEN:
			return "the connection broke";
		case END_KEEPER:
			return "the keeper of the lock died";
		case END_FRONT:
		case END_NONE:
			break;
	}
	return "the lock was lost";
}

int
front_run(PGconn *conn, const Options *options, const Grant *grant)
{
	EndReason reason;
	bool had_terminal;
	int code = EXIT_FAILED;

	start(conn, options, grant);
	while (true)
	{
		bool ended = look_at_command(&code);
		int64_t next_us;

		if (ended && !watch_group_lives(watch))
			break;
		next_us = watch_act(watch);
		if (ended && next_us > clock_us() + LOOK_EVERY_US)
			next_us = clock_us() + LOOK_EVERY_US;
		wait_for_event(next_us);
	}
	reason = watch_reason(watch);
	had_terminal = has_terminal(watch->group);
	give_terminal(watch->group, getpgrp());
	end_keeper();
	(void) waitpid(watch->group, NULL, 0);

	if (reason != END_NONE)
	{
		const char *error = reason == END_LATE ? watch->error : watch->message;

		complain("lock \"%s\": %s%s%s; the process group of the command was ended", options->name,
				 reason_text(reason), error[0] != '\0' ? ": " : "", error);
		return EXIT_LOST;
	}
	if (watch->lost_at_end || watch_reason(watch) == END_LOST || watch_reason(watch) == END_SESSION)
	{
		complain("lock \"%s\": the lease was lost before the command ended", options->name);
		return EXIT_LOST;
	}
	if (!watch->released)
		complain("lock \"%s\": the server did not confirm the release", options->name);
	if (interrupted && (had_terminal || keyboard))
		interrupt_self(had_terminal);
	return code;
}
