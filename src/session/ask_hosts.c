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

/* How long the broker may be missing, busy, or connecting to the nodes. */
#define PATIENCE_US (INT64CONST(3000000) + 2 * redlock_node_timeout_ms * INT64CONST(1000))

/*
 * The broker keeps an answer for some seconds: a session that comes too late this often was
 * stopped.
 */
#define TRIES 5

typedef enum Wait
{
	ANSWERED,
	NO_BROKER,
	SILENT
} Wait;

static HostList *ask(void);
static Wait wait_for(uint64 number, HostListAnswer *answer);
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
ask_hosts_if_possible(void)
{
	HostListAnswer answer;

	if (wait_for(host_list_ask(), &answer) != ANSWERED || answer.state != HOST_LIST_MADE)
		return NULL;
	return host_list_copy(&answer);
}

/* Returns NULL if the broker dropped the answer before this session copied it. */
static HostList *
ask(void)
{
	HostListAnswer answer;

	switch (wait_for(host_list_ask(), &answer))
	{
		case ANSWERED:
			break;
		case NO_BROKER:
			request_fail_no_broker();
			break;
		case SILENT:
			fail_silent();
			break;
	}
	if (answer.state != HOST_LIST_MADE)
		fail(&answer);
	return host_list_copy(&answer);
}

/* Waits while the broker makes progress. */
static Wait
wait_for(uint64 number, HostListAnswer *answer)
{
	Wait end = ANSWERED;
	int64 since_us = redlock_clock_us();
	int64 broker_seen_us = since_us;
	uint64 steps = host_list_steps();

	if (!IsPostmasterEnvironment)
		return NO_BROKER; /* single-user mode has no broker */
	while (!host_list_answered(number, answer))
	{
		int64 now_us = redlock_clock_us();

		if (lease_broker_pid() != 0)
			broker_seen_us = now_us;
		if (now_us - broker_seen_us > PATIENCE_US)
			end = NO_BROKER;
		if (host_list_steps() != steps)
		{
			steps = host_list_steps();
			since_us = now_us;
		}
		if (now_us - since_us > PATIENCE_US)
			end = SILENT;
		if (end != ANSWERED)
			break;
		host_list_wait(LOOK_MS);
	}
	host_list_end_wait();
	return end;
}

static void
fail_silent(void)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not listed the hosts in time"),
					errdetail("The broker is stopped or overloaded, or has just started and is "
							  "still connecting to the nodes."),
					errhint("Try again. If the error stays, see the server log and process %d.",
							lease_broker_pid())));
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
					 errhint("See the view redlock_nodes, and the server log for nodes that do "
							 "not keep the list.")));
			break;
		case HOST_LIST_TOO_LONG:
			ereport(
				ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the nodes list more than %d redlock hosts", HOST_LIST_MAX),
				 errhint("Keep other programs from writing to the list of hosts at the nodes.")));
			break;
		case HOST_LIST_NO_MEMORY:
			ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY),
							errmsg("the redlock broker has no shared memory for the list of hosts"),
							errhint("See the server log for the reason.")));
			break;
	}
}
