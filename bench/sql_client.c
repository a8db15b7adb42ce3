/*
 * sql_client.c
 *		SQL sessions that acquire and release, with prepared statements.
 *
 *	 sql_client --host DIR --port PORT --acquire SQL [--release SQL]
 *		--clients N --keys own|one --seconds S --warmup S
 *
 * One thread, N sessions.  The key is the statements' $1: the session's
 * number, or 0 for all.  Without --release the acquiring statement is the
 * whole pair.
 *
 * pgbench does the same, but without percentiles of one statement of several,
 * a count for each session, and processor time.  This program reads the
 * processor time of the sessions' backends at the beginning and at the end of
 * the counted time, so the cost of connecting is not included.
 */
#define _GNU_SOURCE
#include <libpq-fe.h>
#include <sys/epoll.h>

#include "client.h"

typedef struct session
{
	PGconn *conn;
	char key[16];
	bool acquiring;
	bool failed;
	int64_t asked_ns;
	int64_t granted_ns;
} session;

static session sessions[CLIENTS_MAX];
static int running; /* sessions with a running statement */

static void
connect_session(session *s, int index)
{
	const char *names[] = {"host", "port", "dbname", NULL};
	const char *values[] = {options.host, options.port, "postgres", NULL};
	const char *statements[] = {options.acquire, options.release};

	s->conn = PQconnectdbParams(names, values, 0);
	if (PQstatus(s->conn) != CONNECTION_OK)
		fail("connect", PQerrorMessage(s->conn));
	for (int i = 0; i < 2 && statements[i]; i++)
	{
		PGresult *r = PQprepare(s->conn, i ? "release" : "acquire", statements[i], 0, NULL);

		if (PQresultStatus(r) != PGRES_COMMAND_OK)
			fail(statements[i], PQerrorMessage(s->conn));
		PQclear(r);
	}
	snprintf(s->key, sizeof(s->key), "%d", options.one_key ? 0 : index + 1);
}

static void
send_next(session *s)
{
	const char *key = s->key;

	if (!PQsendQueryPrepared(s->conn, s->acquiring ? "acquire" : "release", 1, &key, NULL, NULL, 0))
		fail("send", PQerrorMessage(s->conn));
	running++;
}

static void
statement_ended(session *s, int index)
{
	int64_t now = now_ns();

	running--;
	if (s->acquiring)
		s->granted_ns = now;
	if (s->acquiring && options.release && !s->failed)
		s->acquiring = false;
	else
	{
		if (!s->failed)
			count_pair(index, s->asked_ns, s->granted_ns, now);
		s->acquiring = true;
		s->asked_ns = now;
	}
	s->failed = false;
	if (!s->acquiring || now < until_ns)
		send_next(s);
}

static void
read_session(session *s, int index)
{
	if (!PQconsumeInput(s->conn))
		fail("connection", PQerrorMessage(s->conn));
	while (!PQisBusy(s->conn))
	{
		PGresult *r = PQgetResult(s->conn);

		if (r == NULL)
		{
			statement_ended(s, index);
			return;
		}
		if (PQresultStatus(r) != PGRES_TUPLES_OK)
		{
			s->failed = true;
			count_error(now_ns(), PQresultErrorMessage(r));
		}
		PQclear(r);
	}
}

/* Processor time of the backends of the sessions. */
static double
cpu_of_backends_s(void)
{
	double s = 0;

	for (int i = 0; i < options.clients; i++)
	{
		char path[64];
		long long ns = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/schedstat", PQbackendPID(sessions[i].conn));
		if ((f = fopen(path, "r")) == NULL)
			continue;
		if (fscanf(f, "%lld", &ns) == 1)
			s += ns / 1e9;
		fclose(f);
	}
	return s;
}

/* Reads the data that arrive within wait_ms. */
static void
turn(int epoll, int wait_ms)
{
	struct epoll_event events[64];
	int ready = epoll_wait(epoll, events, 64, wait_ms);

	for (int i = 0; i < ready; i++)
		read_session(&sessions[events[i].data.u32], events[i].data.u32);
}

int
main(int argc, char **argv)
{
	int epoll = epoll_create1(0);
	double own_s, backends_s;
	int64_t now;

	read_options(argc, argv);
	if (!options.acquire)
		fail("--acquire", "missing");
	for (int i = 0; i < options.clients; i++)
	{
		connect_session(&sessions[i], i);
		epoll_ctl(epoll, EPOLL_CTL_ADD, PQsocket(sessions[i].conn),
				  &(struct epoll_event){.events = EPOLLIN, .data.u32 = i});
	}

	begin_counting();
	for (int i = 0; i < options.clients; i++)
	{
		sessions[i].acquiring = true;
		sessions[i].asked_ns = now_ns();
		send_next(&sessions[i]);
	}
	while ((now = now_ns()) < from_ns)
		turn(epoll, (from_ns - now) / 1000000 + 1);
	own_s = own_cpu_s();
	backends_s = cpu_of_backends_s();
	while ((now = now_ns()) < until_ns)
		turn(epoll, (until_ns - now) / 1000000 + 1);
	own_s = own_cpu_s() - own_s;
	backends_s = cpu_of_backends_s() - backends_s;
	print_figures("sql_client", PG_VERSION, own_s + backends_s, backends_s);
	while (running > 0)
		turn(epoll, -1);
	for (int i = 0; i < options.clients; i++)
		PQfinish(sessions[i].conn);
	return 0;
}
