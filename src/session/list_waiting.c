/*
 * list_waiting.c
 *		Asking all hosts for the sessions that wait for a lock; see list_waiting.h.
 *
 * The nodes first tell who holds the lock: sessions of a holder's host wait at the gate, and that
 * host does not listen to the lock's channel.  Then the broker asks the hosts.  The sessions of
 * this server need no message.
 */
#include "postgres.h"

#include "protocol/value.h"
#include "session/inspect_lock.h"
#include "session/list_waiting.h"
#include "shared/guc.h"
#include "shared/node_status.h"
#include "shared/waiting_here.h"

static bool has_local_node(void);
static void note_holders(InspectQuestion *question, const InspectAnswer *answer);
static void note_holder(InspectQuestion *question, uint64 host);
static void refuse_unasked(const LockName *name, const InspectAnswer *answer);
static void warn_if_incomplete(const LockName *name, const InspectAnswer *answer, bool more);

WaitingHosts *
list_waiting(const LockName *name)
{
	WaitingHosts *hosts = palloc0(sizeof(WaitingHosts));
	InspectQuestion question = {.kind = INSPECT_WAITING};
	InspectAnswer *answer;
	Inspection inspection;
	WaitingHost here;

	inspect_set_key(&question, name, 0);
	waiting_here(question.key, question.key_len, &here);
	waiting_add(hosts, &here);
	if (!has_local_node())
	{
		answer = inspect_lock(name, false);
		inspect_judge(name, answer, &inspection);
		note_holders(&question, answer);
		inspect_key(name, &question, answer);
		refuse_unasked(name, answer);
		hosts->more = answer->waiting.more;
		for (int i = 0; i < answer->waiting.count; i++)
			waiting_add(hosts, &answer->waiting.host[i]);
		warn_if_incomplete(name, answer, hosts->more);
	}
	return hosts;
}

/* With redlock.nodes = 'local' there are no other hosts. */
static bool
has_local_node(void)
{
	NodeStatus status;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status_copy(i, &status) && status.now && status.url.is_local)
			return true;
	return false;
}

static void
note_holders(InspectQuestion *question, const InspectAnswer *answer)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const Inspected *at = &answer->node[i];
		Value value;

		if (at->kind != INSPECTED_STRING)
			continue;
		value_read(&value, at->value, at->value_len);
		if (value.ours && !value.shared)
			note_holder(question, value.host);
		for (int k = 0; k < at->hosts; k++)
			note_holder(question, at->host[k]);
	}
}

static void
note_holder(InspectQuestion *question, uint64 host)
{
	for (int i = 0; i < question->holders; i++)
		if (question->holder[i] == host)
			return;
	if (question->holders < WAITING_HOSTS_MAX)
		question->holder[question->holders++] = host;
}

static void
refuse_unasked(const LockName *name, const InspectAnswer *answer)
{
	char *text;

	if (inspection_nodes(answer->lists, answer->node, INSPECTED_NONE) != 0)
		return;
	text = inspect_faults(answer);
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("no redlock node could ask which hosts wait for \"%s\"", name->name),
					text[0] != '\0' ? errdetail("No usable answer from: %s.", text) : 0,
					errhint("See the view redlock_nodes.")));
}

static void
warn_if_incomplete(const LockName *name, const InspectAnswer *answer, bool more)
{
	char *text = inspect_faults(answer);

	if (more)
		ereport(WARNING, (errmsg("more hosts wait for redlock \"%s\" than redlock_waiters returns",
								 name->name),
						  errdetail("The function returns up to %d hosts.", WAITING_HOSTS_MAX)));
	if (answer->complete)
		return;
	ereport(
		WARNING,
		(errmsg("not every host has told whether its sessions wait for redlock \"%s\"", name->name),
		 answer->missing > 0
			 ? errdetail("At a node, " INT64_FORMAT " of the subscribers that got the question "
						 "did not answer within redlock.node_timeout, %d ms.",
						 answer->missing, redlock_node_timeout_ms)
			 : errdetail("No usable answer from: %s.", text),
		 errhint("Call redlock_waiters again. If the warning stays, look in redlock_hosts for "
				 "a host that is stopped or overloaded, in redlock_nodes for nodes with "
				 "errors, and at the nodes for clients that subscribe to all channels.")));
}
