/*
 * redlock_exec.h
 *		redlock-exec runs a command while a session holds a lock.
 *
 * Three processes:
 *
 *	front	the process that the user starts.  Acquires the lock, starts keeper and command, passes
 *			signals on, and returns the exit code (front.c).
 *	keeper	asks the server again and again for the validity of the lease, and releases the lock
 *			(keeper.c).
 *	command	leads a process group of its own.
 *
 * Front and keeper share a Watch with the instant by which the group must be dead.  Both watch the
 * clock, and either ends the group in time.  Both keep the socket of the session open: the death of
 * one does not end the session.
 */
#ifndef REDLOCK_EXEC_H
#define REDLOCK_EXEC_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <libpq-fe.h>

/* Exit codes beside the command's own, and 128 + N after signal N. */
typedef enum ExitCode
{
	EXIT_USAGE = 120,      /* wrong options, or terms that the server refuses */
	EXIT_SKIPPED = 121,    /* another session holds the lock; see --skipped-code */
	EXIT_NO_QUORUM = 122,  /* too few nodes answered */
	EXIT_LOST = 123,       /* the lease or the session ended before the command */
	EXIT_FAILED = 125,     /* any other failure of redlock-exec, such as no connection */
	EXIT_CANNOT_RUN = 126, /* the command is there, but can't be executed */
	EXIT_NOT_FOUND = 127,  /* there is no such command */
} ExitCode;

typedef struct Options
{
	const char *dbname; /* or a connection string */
	const char *host;
	const char *port;
	const char *user;
	const char *name;
	/* intervals, in words of the server; NULL: not given */
	const char *wait; /* NULL: endless */
	const char *ttl;
	const char *hold_at_least;
	const char *kill_after;
	const char *permits;
	bool shared;
	bool quiet;
	int skipped_code;
	char **command;
} Options;

/* A lock as the server granted it.  Times in microseconds, instants on clock_us(). */
typedef struct Grant
{
	char token[24];
	int64_t ttl_us;
	int64_t kill_after_us;
	int64_t kill_at_us;
} Grant;

/* ---- lock.c: the session.  One process uses it at a time. ---- */

/* The answer of redlock_check or redlock_release, or its absence. */
typedef enum Answer
{
	ANSWER_NONE,   /* not yet, or an error that says nothing about the lease */
	ANSWER_VALID,  /* check: the lease is valid; release: it was, to its end */
	ANSWER_DOUBT,  /* maybe a lost lease: ask again; ANSWER_LOST if the error repeats */
	ANSWER_LOST,   /* the lease was lost */
	ANSWER_ENDED,  /* the server has ended the session, and so released the lock */
	ANSWER_BROKEN, /* the connection broke without a word of the server */
} Answer;

/* Both exit with a message on failure.  The session, and so the lock, end with the process. */
extern PGconn *lock_connect(const Options *options);
extern void lock_acquire(PGconn *conn, const Options *options, Grant *grant);

/* Begin a query.  They return false if the connection is broken. */
extern bool lock_begin_check(PGconn *conn, const char *name);
extern bool lock_begin_release(PGconn *conn, const char *name);

/*
 * Reads and writes as far as possible without waiting.  Returns the answer once, and sets *done
 * when the next query may begin.  *validity_us is set with the ANSWER_VALID of a check.
 */
extern Answer lock_continue(PGconn *conn, bool *done, int64_t *validity_us);

/* The last error, a line; empty after a valid answer. */
extern const char *lock_error(void);

/* ---- watch.c: when the group must end ---- */

typedef enum EndReason
{
	END_NONE,
	END_LATE,      /* the server did not answer in time */
	END_UNRENEWED, /* the server answered, and no renewal was seen in time */
	END_LOST,      /* the server says that the lease was lost */
	END_SESSION,   /* the server ended the session */
	END_BROKEN,    /* the connection broke */
	END_KEEPER,    /* the keeper died */
	END_FRONT,     /* the front died */
} EndReason;

typedef struct Watch
{
	pid_t group;
	int64_t kill_after_us;
	int64_t recent_us; /* the last answer is recent if its check began within this time */
	/* atomic: both processes read and write these */
	int64_t kill_at_us;
	int64_t answered_us; /* when the last check with an answer began */
	int reason;          /* EndReason: the first one counts */
	/* written by the keeper, read by the front after the keeper's death */
	bool released;     /* the server has released the lock */
	bool lost_at_end;  /* and said that the lease had been lost before */
	char message[500]; /* behind its reason */
	char error[500];   /* of the last check; empty: it had an answer */
} Watch;

/* CLOCK_BOOTTIME: goes on while the machine sleeps, as the clock of the server's leases does. */
extern int64_t clock_us(void);

/* A timer on that clock, as a descriptor to poll.  timer_set: an instant in the past is due. */
extern int timer_open(void);
extern void timer_set(int timer, int64_t at_us);
extern void timer_read(int timer);

/* Returns the instant by which the group must be dead, after a check that began at `asked_us`. */
extern int64_t watch_kill_at(int64_t asked_us, int64_t validity_us);

extern Watch *watch_create(const Grant *grant);
extern EndReason watch_reason(const Watch *watch);
extern void watch_extend(Watch *watch, int64_t kill_at_us);
extern void watch_answered(Watch *watch, int64_t asked_us);

/*
 * Ends the group: TERM now, and KILL after kill_after_us or at kill_at_us.  KILL now where no time
 * is left: without a lease (END_LOST, END_SESSION), if kill_after_us is 0, and after the death of
 * the front (END_FRONT).  A front in the group of another redlock-exec may have been killed because
 * that lease ends.  If the end has begun, the first reason stays, and such an event hastens KILL.
 */
extern void watch_end(Watch *watch, EndReason reason, const char *message);

/* Does what is due, and returns when to call again. */
extern int64_t watch_act(Watch *watch);

extern void watch_signal(const Watch *watch, int number);

/*
 * Exits with a message if /proc belongs to another pid namespace: there no process of the group
 * would be found, and the group would seem to have ended.
 */
extern void watch_require_proc(void);

/* Is there a process in the group that has not ended? */
extern bool watch_group_lives(const Watch *watch);

/* ---- keeper.c, front.c ---- */

/* From the front to the keeper.  An end of file means the death of the front. */
#define FRONT_DONE 'd' /* the group has ended: release the lock */

extern void keeper_run(PGconn *conn, const char *name, Watch *watch, int64_t ttl_us, int front)
	__attribute__((noreturn));

/* Runs the command, and returns the exit code. */
extern int front_run(PGconn *conn, const Options *options, const Grant *grant);

/* ---- main.c ---- */

/* Print "redlock-exec: ..." */
extern void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

#endif /* REDLOCK_EXEC_H */
