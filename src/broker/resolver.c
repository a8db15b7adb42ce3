/*
 * resolver.c
 *		Host names into addresses; see resolver.h.
 *
 * The system's resolver, getaddrinfo, blocks for many seconds when DNS is down.  The broker must
 * not block, and a DNS library would not read nsswitch.conf.  So each lookup has a thread, which
 * runs one getaddrinfo.
 *
 * A PostgreSQL process has one thread, and PostgreSQL's code relies on this.  Our threads do no
 * harm, since:
 *
 * - A thread runs none of PostgreSQL's code: no memory context, error, latch, lock or shared
 *   memory.  It calls getaddrinfo with the text in its Lookup, and writes the result there.
 *   A Lookup is static, so it outlives the thread, even if nobody waits for the result.
 * - `state` says whether the broker or the thread owns the Lookup.  Neither waits for the
 *   other: the broker polls.
 * - The thread blocks all signals, so handlers run in the broker's own thread.
 * - Several threads may call getaddrinfo if nobody changes locale or environment.  The broker
 *   changes only LC_MESSAGES, at a reload.  getaddrinfo does not use it: the broker makes the
 *   text of an error.
 * - Once a thread existed, the process does not end by exit().  Exit handlers and destructors
 *   of libraries, such as the name service's, must not run beside a getaddrinfo, nor wait for
 *   its locks.  PostgreSQL's clean-up is done by then, and the kernel ends the thread.
 *
 * Rejected: a process for each lookup.  PostgreSQL's SIGTERM handler ended such a process inside
 * of getaddrinfo.  Its exit handlers then waited for getaddrinfo's locks, and the server could not
 * stop.  Without SIGTERM a hanging lookup would hold up the shutdown.  Rejected, too:
 * getaddrinfo_a of glibc.  Other C libraries lack it, and its documentation does not cover exit().
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/atomics.h"
#include "storage/ipc.h"

#include "broker/resolver.h"
#include "protocol/core.h"

/* Room for the lookups of all nodes, and for abandoned lookups that hang. */
#define LOOKUPS (2 * CORE_NODES_MAX)

/* Stack of a thread: some modules of the name service need more than getaddrinfo does. */
#define STACK_BYTES (1024 * 1024)

typedef enum LookupState
{
	LOOKUP_FREE = 0, /* owned by the broker */
	LOOKUP_RUNNING,  /* owned by the thread */
	LOOKUP_OVER      /* owned by the broker, with the results */
} LookupState;

typedef struct Lookup
{
	pg_atomic_uint32 state;
	char host[256];
	int rc;
	int error; /* errno */
	struct addrinfo *list;
} Lookup;

static Lookup lookups[LOOKUPS];
static Lookup *asked[CORE_NODES_MAX]; /* by node; NULL: no lookup */
static bool had_thread = false;

static LookupState state_of(Lookup *lookup);
static Lookup *find_free(void);
static int start_thread(Lookup *lookup);
static void *run(void *arg);
static void read_list(const struct addrinfo *list, ResolverAnswer *answer);
static void make_free(Lookup *lookup);
static void end_process(int code, Datum arg);

bool
resolver_is_address(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

const char *
resolver_ask(int node, const char *host)
{
	static char problem[128];
	Lookup *lookup = asked[node];
	int rc;

	if (lookup != NULL && state_of(lookup) == LOOKUP_RUNNING && strcmp(lookup->host, host) == 0)
		return NULL;

	asked[node] = NULL; /* an earlier lookup is abandoned */
	lookup = find_free();
	if (lookup == NULL)
		return "too many host names are being resolved already";
	strlcpy(lookup->host, host, sizeof(lookup->host));
	rc = start_thread(lookup);
	if (rc != 0)
	{
		snprintf(problem, sizeof(problem), "could not start a thread to resolve the host name: %s",
				 strerror(rc));
		return problem;
	}
	asked[node] = lookup;
	return NULL;
}

ResolverResult
resolver_read(int node, ResolverAnswer *answer)
{
	Lookup *lookup = asked[node];

	Assert(lookup != NULL);
	if (state_of(lookup) == LOOKUP_RUNNING)
		return RESOLVER_PENDING;

	answer->addresses = 0;
	if (lookup->rc != 0)
		snprintf(answer->error, sizeof(answer->error), "could not resolve the host name: %s",
				 lookup->rc == EAI_SYSTEM ? strerror(lookup->error) : gai_strerror(lookup->rc));
	else
		read_list(lookup->list, answer);
	make_free(lookup);
	asked[node] = NULL;
	return answer->addresses > 0 ? RESOLVER_DONE : RESOLVER_FAILED;
}

static void
read_list(const struct addrinfo *list, ResolverAnswer *answer)
{
	for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
	{
		if (answer->addresses == RESOLVED_MAX)
		{
			snprintf(answer->error, sizeof(answer->error),
					 "the host name has more than %d addresses", RESOLVED_MAX);
			answer->addresses = 0;
			return;
		}
		if (getnameinfo(a->ai_addr, a->ai_addrlen, answer->address[answer->addresses],
						sizeof(answer->address[0]), NULL, 0, NI_NUMERICHOST) == 0)
			answer->addresses++;
	}
	if (answer->addresses == 0)
		strlcpy(answer->error, "the host name has no usable address", sizeof(answer->error));
}

static LookupState
state_of(Lookup *lookup)
{
	LookupState state = pg_atomic_read_u32(&lookup->state);

	pg_read_barrier(); /* pairs with run */
	return state;
}

/* Returns a Lookup that no thread owns and no node waits for, or NULL. */
static Lookup *
find_free(void)
{
	for (int i = 0; i < LOOKUPS; i++)
	{
		bool wanted = state_of(&lookups[i]) == LOOKUP_RUNNING;

		for (int node = 0; node < CORE_NODES_MAX && !wanted; node++)
			wanted = asked[node] == &lookups[i];
		if (wanted)
			continue;
		make_free(&lookups[i]);
		return &lookups[i];
	}
	return NULL;
}

static void
make_free(Lookup *lookup)
{
	Assert(state_of(lookup) != LOOKUP_RUNNING);
	if (lookup->list != NULL)
		freeaddrinfo(lookup->list);
	lookup->list = NULL;
	pg_atomic_write_u32(&lookup->state, LOOKUP_FREE);
}

/* Starts the thread.  Returns 0 or an errno. */
static int
start_thread(Lookup *lookup)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	int rc;

	if (!had_thread)
		on_proc_exit(end_process, (Datum) 0);
	had_thread = true;

	rc = pthread_attr_init(&attributes);
	if (rc != 0)
		return rc;
	rc = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (rc == 0)
		rc = pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (rc == 0)
	{
		/* the thread inherits the mask, and never takes a signal */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		pg_atomic_write_u32(&lookup->state, LOOKUP_RUNNING);
		rc = pthread_create(&thread, &attributes, run, lookup);
		if (rc != 0)
			pg_atomic_write_u32(&lookup->state, LOOKUP_FREE);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	pthread_attr_destroy(&attributes);
	return rc;
}

/* The thread.  It must not call PostgreSQL's functions. */
static void *
run(void *arg)
{
	Lookup *lookup = arg;
	struct addrinfo hints = {0};

	hints.ai_family = AF_UNSPEC;
	hints.ai_socktype = SOCK_STREAM;
	lookup->rc = getaddrinfo(lookup->host, NULL, &hints, &lookup->list);
	lookup->error = errno;
	if (lookup->rc != 0)
		lookup->list = NULL;
	pg_write_barrier(); /* results before the state */
	pg_atomic_write_u32(&lookup->state, LOOKUP_OVER);
	return NULL;
}

/*
 * Ends the process after PostgreSQL's clean-up, without the exit handlers of libraries: these are
 * not safe while a thread runs, or has just run.
 */
static void
end_process(int code, Datum arg)
{
	_exit(code);
}
