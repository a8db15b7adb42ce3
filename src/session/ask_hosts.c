/*
 * ask_hosts.c
 *		Asking the broker for the list of hosts; see ask_hosts.h.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "session/ask_hosts.h"
#include "session/request.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/node_status.h"

/* How often a session looks whether there is a broker, and whether the broker makes progress. */
#define LOOK_MS 1000

/*
 * The broker keeps an answer for some seconds: a session that comes too late this often was
 * stopped.
 */
#define TRIES 5

static HostList *ask(void);
static AskHostsEnd wait_for(uint64 number, int64 patience_us, HostListAnswer *answer);
static void fail_silent(void);
static void fail(const HostListAnswer *answer);

HostList *
ask_hosts(void)
{
	HostList *list = NULL;

	for (int i = 0; i < TRIES && list == NULL; i++)
		list = ask();
	if (list == NULL)
		fail_silent();
	return list;
}

HostList *
ask_hosts_if_possible(int64 patience_us, AskHostsEnd *end, HostListState *state)
{
	HostListAnswer answer;

	*end = wait_for(host_list_ask(), patience_us, &answer);
	if (*end != ASK_HOSTS_ANSWERED)
		return NULL;
	*state = answer.state;
	return *state == HOST_LIST_MADE ? host_list_copy(&answer) : NULL;
}

/* Returns NULL if the broker dropped the answer before this session copied it. */
static HostList *
ask(void)
{
	HostListAnswer answer;

	switch (wait_for(host_list_ask(), ASK_HOSTS_PATIENCE_US, &answer))
	{
		case ASK_HOSTS_ANSWERED:
			break;
		case ASK_HOSTS_NO_BROKER:
			request_fail_no_broker();
			break;
		case ASK_HOSTS_SILENT:
			fail_silent();
			break;
	}
	if (answer.state != HOST_LIST_MADE)
		fail(&answer);
	return host_list_copy(&answer);
}

/* Waits while the broker makes progress. */
static AskHostsEnd
wait_for(uint64 number, int64 patience_us, HostListAnswer *answer)
{
	AskHostsEnd end = ASK_HOSTS_ANSWERED;
	int64 since_us = redlock_clock_us();
	int64 broker_seen_us = since_us;
	uint64 steps = host_list_steps();

	if (!IsPostmasterEnvironment)
		return ASK_HOSTS_NO_BROKER; /* single-user mode has no broker */
	while (!host_list_answered(number, answer))
	{
		int64 now_us = redlock_clock_us();

		if (lease_broker_pid() != 0)
			broker_seen_us = now_us;
		if (now_us - broker_seen_us > patience_us)
			end = ASK_HOSTS_NO_BROKER;
		if (host_list_steps() != steps)
		{
			steps = host_list_steps();
			since_us = now_us;
		}
		if (now_us - since_us > patience_us)
			end = ASK_HOSTS_SILENT;
		if (end != ASK_HOSTS_ANSWERED)
			break;
		host_list_wait(Min(LOOK_MS, patience_us / 1000 + 1));
	}
	host_list_end_wait();
	return end;
}

static void
fail_silent(void)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not listed the hosts in time"),
					errdetail(REQUEST_BROKER_SILENT),
					errhint(REQUEST_BROKER_SILENT_STEP, lease_broker_pid())));
}

static void
fail(const HostListAnswer *answer)
{
	char *nodes;

	switch (answer->state)
	{
		case HOST_LIST_MADE:
			break;
		case HOST_LIST_NO_QUORUM:
			nodes = node_status_explain(0, 0, answer->silent);
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("no quorum of redlock nodes could be reached for the list of hosts"),
					 nodes[0] != '\0' ? errdetail("No usable answer from: %s.", nodes) : 0,
					 errhint(ASK_HOSTS_NO_QUORUM_STEP)));
			break;
		case HOST_LIST_TOO_LONG:
			ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
							errmsg("the nodes list more than %d redlock hosts", HOST_LIST_MAX),
							errhint(ASK_HOSTS_TOO_LONG_STEP)));
			break;
		case HOST_LIST_NO_MEMORY:
			ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY),
							errmsg("the redlock broker has no shared memory for the list of hosts"),
							errhint("See the server log for the reason.")));
			break;
	}
}
