/*
 * node_status.c
 *		The state of the nodes; see node_status.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "storage/shmem.h"

#include "shared/clock.h"
#include "shared/node_status.h"

#define PASSWORD_STEP "Correct the user and password in redlock.nodes, and reload."
#define SERVER_STEP                                                                                \
	"Name an independent server in redlock.nodes, neither a replica nor part of a cluster."
#define COMMAND_STEP                                                                               \
	"Restore the command in the node's configuration, or name another server in redlock.nodes."

#define CLIENTS_STEP "Raise maxclients of the node, or close other connections to it."

#define IN_DOUBT "it started lately, and another host has not named it since"
#define VOTES_NOW "no answer yet; until a moment ago its vote did not count"

/* A request may need so long to ask a node again after the node's list has become known. */
#define MOMENT_US 500000

NodeStatus *node_status = NULL;

/* Steps against errors of a node, by the beginning of the error. */
static const struct
{
	const char *error;
	const char *step;
} steps[] = {
	{"WRONGPASS", PASSWORD_STEP},
	{"NOAUTH", PASSWORD_STEP},
	{"ERR invalid password", PASSWORD_STEP},
	{"ERR AUTH <password>", PASSWORD_STEP},
	{"it refuses AUTH", PASSWORD_STEP},
	{"NOPERM", "Grant the user in the URL the rights that redlock_nodes.last_error names."},
	{"ERR The user executing the script",
	 "Grant the user in the URL the missing rights; see ACL LOG on the node."},
	{"ERR ACL failure", "Grant the user in the URL the missing rights; see ACL LOG on the node."},
	{"ERR wrong number of arguments for 'auth' command",
	 "Remove the user from the URL, or name a server of Redis 6 or later."},
	{"DENIED", "Set a password on the node, and in its URL."},
	{"ERR DB index is out of range",
	 "Name an existing database of the node in redlock.nodes on all hosts, and reload."},
	{"it is a replica", SERVER_STEP},
	{"READONLY", SERVER_STEP},
	{"ERR SELECT is not allowed in cluster mode", SERVER_STEP},
	{"it runs in ", SERVER_STEP},
	{"it is a server without Lua", SERVER_STEP},
	{"it has no command", COMMAND_STEP},
	{"it is the same server as node", "List each server once in redlock.nodes, and reload."},
	{"the server has no shared memory",
	 "Free shared memory of this server, as in /dev/shm; the broker tries again."},
	{"OOM in the node",
	 "Raise redlock.max_locks and restart the server, or wait until hold_at_least "
	 "of other locks has ended."},
	{"OOM", "Raise maxmemory of the node, or remove other data from the node."},
	{"MISCONF", "See the node's log for the failed write to disk."},
	{"NOREPLICAS", "Start the replicas of the node, or set its min-replicas-to-write to 0."},
	{"ERR max number of clients", CLIENTS_STEP},
	{"BUSY", "Wait until the slow script on the node has ended, or end it by SCRIPT KILL there."},
	{"AHEAD of the clock", "Correct the clock of this host or of the node."},
	{"its maxmemory-policy",
	 "Set maxmemory-policy to noeviction on the node; the node votes again after redlock.max_ttl."},
	{VOTES_NOW, "Try again."},
	{IN_DOUBT, "Try again: a live host names its nodes within 20 seconds. A host that has crashed "
			   "or hangs is waited for until 31 seconds after its redlock_hosts.last_seen."},
};

static bool explains_silence(const NodeStatus *status);
static const char *silence(const NodeStatus *status);
static void append_silence(StringInfo text, const NodeStatus *status);

Size
node_status_size(void)
{
	return CORE_NODES_MAX * sizeof(NodeStatus);
}

void
node_status_set_up(void)
{
	bool found;

	node_status = ShmemInitStruct("redlock_pg nodes", node_status_size(), &found);
	if (found)
		return;
	memset(node_status, 0, node_status_size());
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		pg_atomic_init_u32(&node_status[i].version.number, 0);
		pg_atomic_init_u32(&node_status[i].list_of_hosts, NODE_LIST_AWAITED);
		pg_atomic_init_u64(&node_status[i].vote_counts_us, 0);
		pg_atomic_init_u32(&node_status[i].deaf, 0);
		pg_atomic_init_u64(&node_status[i].clock_ahead_us, (uint64) NODE_CLOCK_UNKNOWN);
		pg_atomic_init_u64(&node_status[i].clock_faster_ppm, 0);
		pg_atomic_init_u64(&node_status[i].rtt_us, 0);
		pg_atomic_init_u64(&node_status[i].memory_used, 0);
		pg_atomic_init_u64(&node_status[i].memory_limit, 0);
		pg_atomic_init_u64(&node_status[i].votes_yes, 0);
		pg_atomic_init_u64(&node_status[i].votes_no, 0);
		pg_atomic_init_u64(&node_status[i].votes_error, 0);
	}
}

bool
node_status_copy(int node, NodeStatus *copy)
{
	NodeStatus *status = &node_status[node];
	int tries = 0;

	do
	{
		uint32 version = seqlock_begin_read(&status->version);

		*copy = *status;
		memset(copy->url.user, 0, sizeof(copy->url.user));
		memset(copy->url.password, 0, sizeof(copy->url.password));
		if (seqlock_end_read(&status->version, version))
			return copy->in_use;
	} while (seqlock_try_again(&tries));
	return false;
}

NodeList
node_status_list(const NodeStatus *status)
{
	return (NodeList) pg_atomic_read_u32((pg_atomic_uint32 *) &status->list_of_hosts);
}

/* An error from before the node was ready again does not explain a later silence. */
static bool
explains_silence(const NodeStatus *status)
{
	return status->last_error[0] != '\0' &&
		   (strcmp(status->state, "ready") != 0 || status->last_error_at > status->since ||
			node_status_list(status) == NODE_LIST_AWAITED);
}

static const char *
silence(const NodeStatus *status)
{
	bool is_ready = strcmp(status->state, "ready") == 0;
	int64 counts_us = (int64) pg_atomic_read_u64((pg_atomic_uint64 *) &status->vote_counts_us);

	if (is_ready && node_status_list(status) == NODE_LIST_IN_DOUBT)
		return IN_DOUBT;
	if (explains_silence(status))
		return status->last_error;
	if (is_ready && node_status_list(status) == NODE_LIST_AWAITED)
		return "it has not yet sent its list of hosts";
	if (is_ready && redlock_clock_us() - counts_us <= MOMENT_US)
		return VOTES_NOW;
	return "no answer yet";
}

bool
node_status_listed(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status[i].in_use && node_status[i].now)
			return true;
	return false;
}

bool
node_status_may_have_quorum(void)
{
	core_lists lists = {0};
	core_mask within_reach = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus status;

		if (!node_status_copy(i, &status))
			continue;
		lists.now |= status.now ? CORE_BIT(i) : 0;
		lists.next |= status.next ? CORE_BIT(i) : 0;
		/* each new attempt keeps the error of the last attempt */
		if (status.last_error[0] == '\0' || strcmp(status.state, "ready") == 0)
			within_reach |= CORE_BIT(i);
	}
	return core_has_quorum(lists, within_reach);
}

char *
node_status_explain(core_mask yes, core_mask denying, core_mask silent)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus status;

		if (!((yes | denying | silent) & CORE_BIT(i)) || !node_status_copy(i, &status))
			continue;
		appendStringInfo(&text, "%s%s: ", text.len > 0 ? "; " : "", status.url.address);
		if (yes & CORE_BIT(i))
			appendStringInfoString(&text, "yes");
		else if (denying & CORE_BIT(i))
			appendStringInfoString(&text, "another session took the lock there, or a session "
										  "released the lock by force");
		else
			append_silence(&text, &status);
	}
	return text.data;
}

static void
append_silence(StringInfo text, const NodeStatus *status)
{
	int64 quarantine_us = status->guard.until_us - redlock_clock_us();

	appendStringInfoString(text, silence(status));
	if (quarantine_us > 0 && status->evicts)
		appendStringInfoString(text, " (in quarantine until that is changed)");
	else if (quarantine_us > 0)
		appendStringInfo(text, " (in quarantine for another %d s)",
						 (int) (quarantine_us / 1000000) + 1);
}

char *
node_status_silence(const NodeStatus *status)
{
	StringInfoData text;

	initStringInfo(&text);
	append_silence(&text, status);
	return text.data;
}

char *
node_status_advise(core_mask silent)
{
	StringInfoData text;
	bool is_quarantined = false;

	initStringInfo(&text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus status;
		const char *step;

		if (!(silent & CORE_BIT(i)) || !node_status_copy(i, &status))
			continue;
		step = node_status_step(&status);
		if (step != NULL && strstr(text.data, step) == NULL)
			appendStringInfo(&text, "%s%s", text.len > 0 ? " " : "", step);
		is_quarantined =
			is_quarantined || (!status.evicts && status.guard.until_us > redlock_clock_us());
	}
	if (is_quarantined)
		appendStringInfo(&text, "%sTry again when the quarantine is over.",
						 text.len > 0 ? " " : "");
	return text.data;
}

const char *
node_status_deaf_step(NodeDeaf deaf)
{
	return deaf == NODE_IS_FULL ? CLIENTS_STEP
								: "If the user in the URL lacks rights, grant them: see \"At the "
								  "nodes\" in docs/how-to/permissions.md.";
}

const char *
node_status_step(const NodeStatus *status)
{
	const char *reason = silence(status);

	for (int i = 0; i < lengthof(steps); i++)
		if (strncmp(reason, steps[i].error, strlen(steps[i].error)) == 0)
			return steps[i].step;
	return NULL;
}
