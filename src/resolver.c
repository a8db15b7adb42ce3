/*
 * resolver.c
 *		Host names into addresses; see resolver.h.
 *
 * The system's resolver blocks, for many seconds when DNS is down, and the
 * broker must not.  A thread has no place in a PostgreSQL process, and a DNS
 * library would not read what nsswitch.conf says.  So each question is answered
 * by a background worker of its own that lives for one getaddrinfo.  Nodes given
 * by address or socket never need one.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"

#include "resolver.h"

static int resolve(const char *host, NameSlot *answer);

bool
resolver_is_address(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

bool
resolver_ask(int node, const char *host)
{
	NameSlot *name = &lease_table->name[node];
	BackgroundWorker worker = {0};

	LWLockAcquire(lease_table->board_lock, LW_EXCLUSIVE);
	strlcpy(name->host, host, sizeof(name->host));
	name->asked++;
	LWLockRelease(lease_table->board_lock);

	snprintf(worker.bgw_name, BGW_MAXLEN, "redlock resolver of %.60s", host);
	strlcpy(worker.bgw_type, "redlock resolver", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strcpy(worker.bgw_library_name, "redlock_pg");
	strcpy(worker.bgw_function_name, "redlock_resolver_main");
	worker.bgw_main_arg = Int32GetDatum(node);
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

ResolverResult
resolver_read(int node, NameSlot *answer)
{
	LWLockAcquire(lease_table->board_lock, LW_SHARED);
	*answer = lease_table->name[node];
	LWLockRelease(lease_table->board_lock);

	if (answer->answered != answer->asked)
		return RESOLVER_PENDING;
	return answer->addresses > 0 ? RESOLVER_DONE : RESOLVER_FAILED;
}

void
redlock_resolver_main(Datum node)
{
	NameSlot *name = &lease_table->name[DatumGetInt32(node)];
	NameSlot answer;
	Latch *latch;

	BackgroundWorkerUnblockSignals();

	LWLockAcquire(lease_table->board_lock, LW_SHARED);
	answer = *name;
	LWLockRelease(lease_table->board_lock);

	answer.addresses = resolve(answer.host, &answer);

	BackgroundWorkerBlockSignals(); /* SIGTERM must not strike inside */
	LWLockAcquire(lease_table->board_lock, LW_EXCLUSIVE);
	if (name->asked == answer.asked)
	{
		answer.answered = answer.asked;
		*name = answer;
	}
	LWLockRelease(lease_table->board_lock);

	SpinLockAcquire(&lease_table->queue_mutex);
	latch = lease_table->broker_latch;
	SpinLockRelease(&lease_table->queue_mutex);
	if (latch != NULL)
		SetLatch(latch);
	BackgroundWorkerUnblockSignals();
}

/* Returns the number of addresses; 0 with answer->error set. */
static int
resolve(const char *host, NameSlot *answer)
{
	struct addrinfo hints = {0};
	struct addrinfo *list;
	int count = 0;
	int rc;

	hints.ai_family = AF_UNSPEC;
	hints.ai_socktype = SOCK_STREAM;
	rc = getaddrinfo(host, NULL, &hints, &list);
	if (rc != 0)
	{
		snprintf(answer->error, sizeof(answer->error), "could not resolve the host name: %s",
				 gai_strerror(rc));
		return 0;
	}
	for (struct addrinfo *a = list; a != NULL && count < RESOLVED_MAX; a = a->ai_next)
		if (getnameinfo(a->ai_addr, a->ai_addrlen, answer->address[count],
						sizeof(answer->address[count]), NULL, 0, NI_NUMERICHOST) == 0)
			count++;
	freeaddrinfo(list);
	if (count == 0)
		strlcpy(answer->error, "the host name has no usable address", sizeof(answer->error));
	return count;
}
