/*
 * lock.c
 *		The session that holds the lock.
 *
 * Until the command begins, the front waits in libpq, and a signal ends the front: there is nothing
 * to end in order, and the server notices the end of a waiting client by itself.  Afterwards the
 * keeper uses the session, and never waits in libpq.
 */
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "redlock_exec.h"

/* A client that waits for a dead server ends within minutes. */
#define KEEPALIVES_IDLE "60"

#define KEEPALIVES_IDLE_MAX_S 32767 /* the limit of Linux */

/* True in the session of mark_session only. */
#define IN_OUR_SESSION "current_setting('redlock_exec.session', true) = "

#define CHECK_SQL                                                                                  \
	"SELECT (extract(epoch FROM CASE WHEN " IN_OUR_SESSION                                         \
	"$2 THEN redlock_check($1) END) * 1000000)::bigint"
#define RELEASE_SQL "SELECT CASE WHEN " IN_OUR_SESSION "$2 THEN redlock_release($1) END"

/* Only the pool can end a moved connection's lock. */
#define STAYS "The former session holds the lock until the pool closes this session."
#define MOVED "a connection pool has moved the connection to another session"

static char session_mark[40];
static char last_error[500];
static bool session_ended; /* the server said so */
static bool doubted;       /* the last check failed by 40001 */

static void
note_error(const char *text)
{
	size_t length;

	snprintf(last_error, sizeof(last_error), "%s", text != NULL ? text : "");
	length = strcspn(last_error, "\n");
	last_error[length] = '\0';
}

const char *
lock_error(void)
{
	return last_error;
}

static const char *
field(const PGresult *result, int code)
{
	const char *text = PQresultErrorField(result, code);

	return text != NULL ? text : "";
}

static bool
ends_session(const PGresult *result)
{
	const char *severity = field(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	return strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0;
}

/* Where no query runs, libpq takes the server's last words for a notice. */
static void
receive_notice(void *arg, const PGresult *result)
{
	(void) arg;
	if (ends_session(result))
	{
		session_ended = true;
		note_error(field(result, PG_DIAG_MESSAGE_PRIMARY));
	}
}

/* Returns true if the user chose an encoding: in the environment, a service file or a string. */
static bool
has_encoding(PGconn *conn)
{
	PQconninfoOption *all = PQconninfo(conn);
	bool has = false;

	for (PQconninfoOption *option = all; option != NULL && option->keyword != NULL; option++)
		has = has || (strcmp(option->keyword, "client_encoding") == 0 && option->val != NULL);
	PQconninfoFree(all);
	return has;
}

PGconn *
lock_connect(const Options *options)
{
	/* later ones count, and the connection string may be anywhere */
	const char *keywords[] = {
		"fallback_application_name", "keepalives_idle", "dbname", "host", "port", "user", NULL};
	const char *values[] = {"redlock-exec",
							KEEPALIVES_IDLE,
							options->dbname,
							options->host,
							options->port,
							options->user,
							NULL};
	PGconn *conn = PQconnectdbParams(keywords, values, 1);

	if (PQstatus(conn) != CONNECTION_OK)
	{
		const char *message = PQerrorMessage(conn); /* of each host that was tried */
		int length = (int) strlen(message);

		if (length > 0 && message[length - 1] == '\n')
			length--;
		fail(EXIT_FAILED, "%.*s", length, message);
	}
	/* the encoding of the database is not that of the name: databases of two hosts may differ */
	if (!has_encoding(conn) && PQsetClientEncoding(conn, "UTF8") != 0)
	{
		note_error(PQerrorMessage(conn));
		fail(EXIT_FAILED, "could not set client_encoding: %s", last_error);
	}
	return conn;
}

static void
fail_moved(const char *detail)
{
	complain("%s", MOVED);
	if (detail != NULL)
		fprintf(stderr, "DETAIL:  %s\n", detail);
	fprintf(stderr, "HINT:  Connect to the server, or to a pool with session pooling.\n");
	exit(EXIT_FAILED);
}

static void
fail_by_result(const PGresult *result, const PGconn *conn, const Options *options)
{
	const char *state = field(result, PG_DIAG_SQLSTATE);
	const char *message = field(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *detail = field(result, PG_DIAG_MESSAGE_DETAIL);
	const char *hint = field(result, PG_DIAG_MESSAGE_HINT);
	int code = EXIT_FAILED;

	/* the name is null in another session only */
	if (strcmp(state, "22004") == 0)
		fail_moved(NULL);
	if (message[0] == '\0')
		message = PQerrorMessage(conn);
	if (strcmp(state, "55P03") == 0)
		code = options->skipped_code;
	else if (strcmp(state, "08006") == 0)
		code = EXIT_NO_QUORUM;
	else if (strncmp(state, "22", 2) == 0 || strcmp(state, "42622") == 0 ||
			 strcmp(state, "0A000") == 0)
		code = EXIT_USAGE;
	if (strcmp(state, "55P03") != 0 || !options->quiet)
	{
		note_error(message);
		complain("%s", last_error);
		if (detail[0] != '\0')
			fprintf(stderr, "DETAIL:  %s\n", detail);
		/* the null of SQL has a word here */
		if (strncmp(hint, "Use NULL ", 9) == 0)
			fprintf(stderr, "HINT:  Use --wait=forever %s\n", hint + 9);
		else if (hint[0] != '\0')
			fprintf(stderr, "HINT:  %s\n", hint);
	}
	exit(code);
}

static PGresult *
execute(PGconn *conn, const Options *options, const char *sql, int count, const char *const *values)
{
	PGresult *result = PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 0);

	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		fail_by_result(result, conn, options);
	return result;
}

static int64_t
integer_of(const PGresult *result, int column)
{
	return strtoll(PQgetvalue(result, 0, column), NULL, 10);
}

/*
 * Raises a limit of TCP at the server's end to the ttl if the limit is shorter, or 0, or not set:
 * then the kernel decides.  Changes nothing for a Unix socket.
 */
static void
raise_at_server(PGconn *conn, const Options *options, const char *name, int64_t limit)
{
	char number[24];
	const char *values[] = {name, number};

	snprintf(number, sizeof(number), "%lld", (long long) limit);
	PQclear(execute(conn, options,
					"SELECT set_config(name, least($2::bigint, max_val::bigint)::text, false)"
					" FROM pg_settings WHERE name = $1"
					" AND (setting::bigint < $2::bigint OR source = 'default')",
					2, values));
}

/*
 * A server that gives up a silent client before the ttl is over would release the lock while the
 * command runs.  A server that keeps a dead client for hours would grant the lock to this client.
 * After the ttl the command has ended, so either end may give up the other one.
 */
static void
outlast_ttl(PGconn *conn, const Options *options, int64_t ttl_us)
{
	int64_t seconds = ttl_us / 1000000 + 1;
	int64_t limit = ttl_us / 1000 + 1;
	int timeout;
	socklen_t size = sizeof(timeout);

	raise_at_server(conn, options, "tcp_user_timeout", limit);
	raise_at_server(conn, options, "tcp_keepalives_idle",
					seconds < KEEPALIVES_IDLE_MAX_S ? seconds : KEEPALIVES_IDLE_MAX_S);
	if (limit > INT_MAX)
		limit = INT_MAX;
	/* fails for a Unix socket */
	if (getsockopt(PQsocket(conn), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size) == 0 &&
		timeout < limit)
	{
		timeout = (int) limit;
		(void) setsockopt(PQsocket(conn), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, size);
	}
}

/*
 * Writes the schema of the extension, quoted for SQL.  Exits if the database lacks the extension,
 * or has objects of 0.1.0.
 */
static void
find_extension(PGconn *conn, const Options *options, char *schema, size_t size)
{
	PGresult *result = execute(conn, options,
							   "SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
							   " FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
							   " ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
							   " WHERE e.extname OPERATOR(pg_catalog.=) 'redlock_pg'",
							   0, NULL);

	if (PQntuples(result) == 0)
	{
		complain("database \"%s\" lacks the extension redlock_pg", PQdb(conn));
		fprintf(stderr,
				"HINT:  Run CREATE EXTENSION redlock_pg there, or choose another database.\n");
		exit(EXIT_FAILED);
	}
	if (strcmp(PQgetvalue(result, 0, 1), "0.1.0") == 0)
	{
		complain("database \"%s\" has version 0.1.0 of the extension redlock_pg", PQdb(conn));
		fprintf(stderr, "DETAIL:  redlock-exec needs version 0.2.0 or later.\n"
						"HINT:  Run ALTER EXTENSION redlock_pg UPDATE there.\n");
		exit(EXIT_FAILED);
	}
	snprintf(schema, size, "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
}

/*
 * Marks the session by a random word, so that each later statement can tell whether a pool has
 * moved the connection.  Lets all later statements find the objects of the extension, which may be
 * in any schema, and no objects of a third schema.  Exits if the session has a lock: a client of a
 * pool acquired the lock, and the session would acquire the same lock again.  Such a session is
 * left as it is.
 */
static void
mark_session(PGconn *conn, const Options *options)
{
	char schema[200];
	char sql[1000];
	const char *values[] = {schema};
	PGresult *result;

	find_extension(conn, options, schema, sizeof(schema));
	snprintf(sql, sizeof(sql),
			 "SELECT pg_catalog.set_config('redlock_exec.session',"
			 " pg_catalog.gen_random_uuid()::pg_catalog.text, false),"
			 " pg_catalog.set_config('search_path', pg_catalog.format("
			 "'pg_catalog, %%s, pg_temp', $1::pg_catalog.text), false)"
			 " WHERE NOT EXISTS (SELECT FROM %s.redlock_locks l"
			 " WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())",
			 schema);
	result = execute(conn, options, sql, 1, values);
	if (PQntuples(result) == 0)
	{
		complain("another client of a connection pool has a lock in this session");
		fprintf(stderr, "HINT:  Connect to the server, or to a pool with session pooling.\n");
		exit(EXIT_FAILED);
	}
	snprintf(session_mark, sizeof(session_mark), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
}

/*
 * Returns the time between TERM and KILL.  Exits if --kill-after does not suit the ttl.  Accepts a
 * ttl of 0, wrong or missing: the server refuses such a ttl itself.
 */
static int64_t
kill_after_of(const PGresult *times, const Options *options, int64_t ttl_us)
{
	int64_t kill_after_us = integer_of(times, 0);

	if (options->kill_after == NULL)
		return ttl_us / 5;
	if (kill_after_us < 0)
		fail(EXIT_USAGE, "--kill-after must not be negative");
	if (ttl_us > 0 && kill_after_us > ttl_us / 3)
		fail(EXIT_USAGE, "--kill-after must be at most a third of the ttl, which is %lld ms",
			 (long long) ttl_us / 1000);
	return kill_after_us;
}

void
lock_acquire(PGconn *conn, const Options *options, Grant *grant)
{
	const char *values[] = {options->name,
							options->wait,
							options->ttl,
							options->hold_at_least,
							options->shared ? "shared" : "exclusive",
							options->permits,
							session_mark};
	const char *marked[] = {options->name, session_mark};
	const char *intervals[] = {options->kill_after, options->ttl};
	PGresult *times;
	PGresult *result;
	int64_t asked_us;

	mark_session(conn, options);
	/*
	 * Limits of a role are for its queries, and a lost lease must not end the session as well. With
	 * the isolation "serializable", a check might wait for other sessions.
	 */
	times = execute(conn, options,
					"SELECT (extract(epoch FROM $1::interval) * 1000000)::bigint,"
					" (extract(epoch FROM coalesce($2::interval,"
					" current_setting('redlock.ttl', true)::interval)) * 1000000)::bigint,"
					" set_config('redlock.on_loss', 'error', false),"
					" set_config('default_transaction_isolation', 'read committed', false),"
					" (SELECT count(set_config(name, '0', false)) FROM pg_settings"
					" WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout',"
					" 'idle_session_timeout'))",
					2, intervals);
	/* before the grant, so that wrong options acquire nothing */
	(void) kill_after_of(times, options, integer_of(times, 1));
	/* the server refuses other ttls */
	if (integer_of(times, 1) > 0)
		outlast_ttl(conn, options, integer_of(times, 1));

	/* a procedure waits without a snapshot */
	PQclear(execute(conn, options,
					"CALL redlock_lock(CASE WHEN " IN_OUR_SESSION "$7 THEN $1::text END,"
					" wait => $2::interval, ttl => $3::interval,"
					" hold_at_least => $4::interval, mode => $5, permits => $6::integer)",
					7, values));

	/* a reader gets the ttl of the host's first reader */
	result = execute(conn, options,
					 "SELECT token, (extract(epoch FROM ttl) * 1000000)::bigint FROM redlock_locks"
					 " WHERE pid = pg_backend_pid() AND token ="
					 " CASE WHEN " IN_OUR_SESSION "$2 THEN redlock_token($1) END",
					 2, marked);
	if (PQntuples(result) != 1)
		fail_moved(STAYS);
	snprintf(grant->token, sizeof(grant->token), "%s", PQgetvalue(result, 0, 0));
	grant->ttl_us = integer_of(result, 1);
	PQclear(result);
	grant->kill_after_us = kill_after_of(times, options, grant->ttl_us);
	PQclear(times);
	outlast_ttl(conn, options, grant->ttl_us);

	asked_us = clock_us();
	result = execute(conn, options, CHECK_SQL, 2, marked);
	if (PQgetisnull(result, 0, 0))
		fail_moved(STAYS);
	grant->kill_at_us = watch_kill_at(asked_us, integer_of(result, 0));
	PQclear(result);

	(void) PQsetNoticeReceiver(conn, receive_notice, NULL);
	(void) PQsetnonblocking(conn, 1);
}

static bool
begin(PGconn *conn, const char *sql, const char *name)
{
	const char *values[] = {name, session_mark};

	return PQsendQueryParams(conn, sql, 2, NULL, values, NULL, NULL, 0) == 1;
}

bool
lock_begin_check(PGconn *conn, const char *name)
{
	return begin(conn, CHECK_SQL, name);
}

bool
lock_begin_release(PGconn *conn, const char *name)
{
	return begin(conn, RELEASE_SQL, name);
}

static Answer
read_result(const PGresult *result, int64_t *validity_us)
{
	const char *state = field(result, PG_DIAG_SQLSTATE);

	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
	{
		const char *value = PQgetvalue(result, 0, 0);

		if (PQgetisnull(result, 0, 0))
		{
			note_error(MOVED);
			return ANSWER_LOST;
		}
		if (strcmp(value, "t") == 0)
			return ANSWER_VALID;
		if (strcmp(value, "f") == 0)
			return ANSWER_LOST;
		*validity_us = integer_of(result, 0);
		doubted = false;
		note_error(NULL);
		return ANSWER_VALID;
	}
	if (state[0] != '\0')
		note_error(field(result, PG_DIAG_MESSAGE_PRIMARY));
	if (ends_session(result))
		session_ended = true;
	if (strcmp(state, "40001") == 0)
	{
		/* lost, or the statement was in conflict with the recovery of a standby */
		doubted = !doubted;
		return doubted ? ANSWER_DOUBT : ANSWER_LOST;
	}
	return strcmp(state, "55000") == 0 ? ANSWER_LOST : ANSWER_NONE; /* unknown to this session */
}

Answer
lock_continue(PGconn *conn, bool *done, int64_t *validity_us)
{
	Answer answer = ANSWER_NONE;
	/* in this order: the server's last words may stand before the end of the connection */
	bool broken = PQconsumeInput(conn) != 1 || PQflush(conn) < 0;

	*done = false;
	while (!*done && !PQisBusy(conn))
	{
		PGresult *result = PQgetResult(conn);
		Answer next;

		if (result == NULL)
			*done = true;
		else if ((next = read_result(result, validity_us)) != ANSWER_NONE)
			answer = next;
		PQclear(result);
	}
	if (session_ended)
		return ANSWER_ENDED;
	if (broken || PQstatus(conn) != CONNECTION_OK)
	{
		note_error(PQerrorMessage(conn));
		return ANSWER_BROKEN;
	}
	return answer;
}
