/*
 * diagnose_nodes.c
 *		redlock_diagnose: the lists of nodes, and each node.
 *
 * The broker writes down what nodes tell (shared/node_status.h); no check asks a node.
 */
#include "postgres.h"

#include <math.h>

#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "protocol/lua.h"
#include "session/session.h"
#include "shared/guc.h"
#include "sql/diagnose_internal.h"

/* How long the error of a voting node is reported. */
#define ERROR_LATELY_US (10 * USECS_PER_MINUTE)

/* Clocks that are further apart get a warning. */
#define CLOCKS_APART_US INT64CONST(1000000)

/* The first version of Redis that runs the scripts. */
#define REDIS_OLDEST 5

#define REASONS "docs/reference/errors.md explains the reason."

static void look_at_list(Diagnosis *diagnosis, const char *setting, const NodeUrls *urls);
static bool is_in_force(const Diagnosis *diagnosis, const NodeUrls *urls, bool next);
static int count_list(const Diagnosis *diagnosis, bool next, int *votes);
static bool add_quorum(Diagnosis *diagnosis, StringInfo text, const char *setting, bool next);
static NodeStatus *next_node(Diagnosis *diagnosis, int *at);
static bool is_on_duty(const NodeStatus *status);
static void add_rate(Diagnosis *diagnosis, NodeStatus *status);
static void add_lack(Diagnosis *diagnosis, const char *address, const char *purpose,
					 const char *rights);
static char *describe_silence(const NodeStatus *status);
static const char *advise(const NodeStatus *status);

const char *
diagnose_lists(Diagnosis *diagnosis)
{
	const NodeUrls *urls = redlock_nodes();

	if (urls->count == 0)
		diagnose_add(diagnosis, DIAGNOSE_ERROR, "redlock.nodes is not set.", SESSION_NODES_STEP);
	else if (diagnosis->broker_pid != 0 && diagnosis->listed == 0)
		diagnose_add(diagnosis, DIAGNOSE_ERROR,
					 "No list of nodes is in force, so no lock can be acquired.",
					 "See the server log for the reason. Correct redlock.nodes and "
					 "redlock.nodes_next, or delete the file that the log names, and reload.");
	else if (diagnosis->broker_pid != 0 && !(is_in_force(diagnosis, urls, false) &&
											 is_in_force(diagnosis, redlock_nodes_next(), true)))
		diagnose_add(
			diagnosis, DIAGNOSE_WARNING,
			"Other lists of nodes are in force than redlock.nodes and "
			"redlock.nodes_next say.",
			"Call redlock_diagnose again after a second. If the finding stays, see the "
			"server log for the reason. If nodes of a list in force are lost for good, set "
			"redlock.nodes_next to none, and redlock.on_disagreement to warn on all hosts "
			"until redlock.nodes is in force.");
	if (urls->count == 1 && urls->url[0].is_local)
		return "redlock.nodes is local: locks exclude sessions of this server only.";
	look_at_list(diagnosis, "redlock.nodes", urls);
	look_at_list(diagnosis, "redlock.nodes_next", redlock_nodes_next());
	return psprintf("redlock.nodes names %d nodes: %d may fail.", urls->count,
					(urls->count - 1) / 2);
}

static void
look_at_list(Diagnosis *diagnosis, const char *setting, const NodeUrls *urls)
{
	int may_fail = (urls->count - 1) / 2;

	if (urls->count == 1)
		diagnose_add(
			diagnosis, DIAGNOSE_WARNING,
			psprintf("%s names one node: without this node no lock can be acquired.", setting),
			"Name three or five independent nodes on all hosts.");
	else if (urls->count > 0 && urls->count % 2 == 0)
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 psprintf("%s names %d nodes: %d may fail, as with %d.", setting, urls->count,
							  may_fail, urls->count - 1),
					 "Name three or five independent nodes on all hosts: of three nodes one may "
					 "fail, of five nodes two.");
}

/* Does the broker use exactly the nodes of the setting? */
static bool
is_in_force(const Diagnosis *diagnosis, const NodeUrls *urls, bool next)
{
	int votes;

	if (count_list(diagnosis, next, &votes) != urls->count)
		return false;
	for (int u = 0; u < urls->count; u++)
	{
		int i = 0;

		while (i < CORE_NODES_MAX &&
			   !((diagnosis->listed & CORE_BIT(i)) &&
				 (next ? diagnosis->status[i].next : diagnosis->status[i].now) &&
				 strcmp(diagnosis->status[i].url.address, urls->url[u].address) == 0))
			i++;
		if (i == CORE_NODES_MAX)
			return false;
	}
	return true;
}

/* Counts the nodes of a list in force. */
static int
count_list(const Diagnosis *diagnosis, bool next, int *votes)
{
	int count = 0;

	*votes = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const NodeStatus *status = &diagnosis->status[i];

		if (!(diagnosis->listed & CORE_BIT(i)) || !(next ? status->next : status->now))
			continue;
		count++;
		*votes += diagnose_votes(status);
	}
	return count;
}

bool
diagnose_votes(const NodeStatus *status)
{
	return strcmp(status->state, "ready") == 0 && node_status_list(status) == NODE_LIST_TOLD;
}

bool
diagnose_has_quorum(const Diagnosis *diagnosis)
{
	core_lists lists = {0};
	core_mask votes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(diagnosis->listed & CORE_BIT(i)))
			continue;
		lists.now |= diagnosis->status[i].now ? CORE_BIT(i) : 0;
		lists.next |= diagnosis->status[i].next ? CORE_BIT(i) : 0;
		votes |= diagnose_votes(&diagnosis->status[i]) ? CORE_BIT(i) : 0;
	}
	return core_has_quorum(lists, votes);
}

const char *
diagnose_quorum(Diagnosis *diagnosis)
{
	StringInfoData text;

	initStringInfo(&text);
	if (!add_quorum(diagnosis, &text, "redlock.nodes", false))
		return NULL;
	(void) add_quorum(diagnosis, &text, "redlock.nodes_next", true);
	return text.data;
}

/* Adds a sentence about the list, and a fault.  Returns false if the list is not in force. */
static bool
add_quorum(Diagnosis *diagnosis, StringInfo text, const char *setting, bool next)
{
	int votes;
	int count = count_list(diagnosis, next, &votes);
	int quorum = count / 2 + 1;
	char *sentence = psprintf("Votes for new locks come from %d of %d nodes of %s; a quorum is %d.",
							  votes, count, setting, quorum);

	if (count == 0)
		return false;
	if (votes < quorum)
		diagnose_add(diagnosis, DIAGNOSE_ERROR, sentence,
					 "Bring back the nodes that do not vote: each has a row with its reason.");
	appendStringInfo(text, "%s%s", text->len > 0 ? " " : "", sentence);
	return true;
}

/* Returns the next listed node that is a Redis server; NULL: no more.  *at begins at 0. */
static NodeStatus *
next_node(Diagnosis *diagnosis, int *at)
{
	while (*at < CORE_NODES_MAX)
	{
		NodeStatus *status = &diagnosis->status[*at];
		bool listed = (diagnosis->listed & CORE_BIT(*at)) != 0;

		(*at)++;
		if (listed && !status->url.is_local)
			return status;
	}
	return NULL;
}

/* Has the node passed the last handshake? */
static bool
is_on_duty(const NodeStatus *status)
{
	return strcmp(status->state, "ready") == 0 || strcmp(status->state, "quarantined") == 0;
}

/* Eviction has a check of its own. */
const char *
diagnose_states(Diagnosis *diagnosis)
{
	TimestampTz now = GetCurrentTimestamp();
	int votes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus *status = &diagnosis->status[i];

		if (!(diagnosis->listed & CORE_BIT(i)) || status->evicts)
			continue;
		votes += diagnose_votes(status);
		if (!diagnose_votes(status))
			diagnose_add(diagnosis, DIAGNOSE_WARNING, describe_silence(status), advise(status));
		else if (status->last_error[0] != '\0' && status->last_error_at > status->since &&
				 now - status->last_error_at < ERROR_LATELY_US)
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("Node %s votes, but answered with an error at %s: %s.",
								  status->url.address, timestamptz_to_str(status->last_error_at),
								  status->last_error),
						 advise(status));
	}
	return votes > 0 ? psprintf("Nodes that vote for new locks: %d.", votes) : NULL;
}

static char *
describe_silence(const NodeStatus *status)
{
	return psprintf("Node %s does not vote for new locks. State: %s, since %s. Reason: %s.",
					status->url.address, status->state, timestamptz_to_str(status->since),
					node_status_silence(status));
}

static const char *
advise(const NodeStatus *status)
{
	const char *step = node_status_step(status);

	if (step != NULL)
		return step;
	if (strcmp(status->state, "quarantined") == 0)
		return "Wait until the quarantine is over. A durable node that kept its data needs none.";
	if (strcmp(status->state, "ready") == 0)
		return "See the server log for the first such error. " REASONS;
	if (strcmp(status->state, "refused") == 0)
		return "Correct the node or its URL. " REASONS;
	return "Start the node, correct its name or port in redlock.nodes, or mend the network between "
		   "this host and the node. " REASONS;
}

const char *
diagnose_eviction(Diagnosis *diagnosis)
{
	int nodes = 0;

	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);

		if (status == NULL)
			break;
		nodes += is_on_duty(status);
		if (status->evicts)
			diagnose_add(diagnosis, DIAGNOSE_WARNING, describe_silence(status), advise(status));
	}
	return nodes > 0 ? psprintf("Nodes that are known to evict locks: 0 of %d.", nodes) : NULL;
}

const char *
diagnose_memory(Diagnosis *diagnosis)
{
	int nodes = 0;

	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);
		int64 used;
		int64 limit;
		int percent;

		if (status == NULL)
			break;
		used = (int64) pg_atomic_read_u64(&status->memory_used);
		limit = (int64) pg_atomic_read_u64(&status->memory_limit);
		percent = limit > 0 ? (int) (100.0 * used / limit) : 0;
		nodes += is_on_duty(status);
		if (is_on_duty(status) && percent >= NODE_MEMORY_WARN_PERCENT)
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("Node %s has little memory left: it uses " INT64_FORMAT
								  " of " INT64_FORMAT " bytes, %d %%.",
								  status->url.address, used, limit, percent),
						 NODE_MEMORY_STEP);
	}
	return nodes > 0 ? psprintf("Nodes that are known to use %d %% of maxmemory: 0 of %d.",
								NODE_MEMORY_WARN_PERCENT, nodes)
					 : NULL;
}

/* A node whose URL says durable=no is no fault: the administrator knows. */
const char *
diagnose_persistence(Diagnosis *diagnosis)
{
	int nodes = 0;
	int durable = 0;

	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);
		const char *forgets;
		bool hidden;

		if (status == NULL)
			break;
		if (!is_on_duty(status))
			continue;
		forgets = status->facts.forgets;
		hidden = strncmp(forgets, "its INFO", 8) == 0 || strncmp(forgets, "it does not", 11) == 0;
		nodes++;
		durable += forgets[0] == '\0';
		if (forgets[0] == '\0' || status->url.durable == URL_NOT_DURABLE)
			continue;
		if (status->url.durable == URL_DURABLE)
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("Node %s is not durable, although redlock.nodes says so: %s.",
								  status->url.address, forgets),
						 "Change this setting of the node, or remove durable=yes from its URL.");
		else
			diagnose_add(
				diagnosis, DIAGNOSE_WARNING,
				psprintf("Node %s may forget locks in a restart, and then gives no vote for "
						 "redlock.max_ttl: %s.",
						 status->url.address, forgets),
				hidden ? "Grant the user in the URL the right +config|get, or see "
						 "docs/how-to/rented-nodes.md."
					   : "Set appendonly to yes, appendfsync to always and "
						 "no-appendfsync-on-rewrite to no, also in the node's configuration file. "
						 "If you accept the pause, write durable=no into the node's URL.");
	}
	return nodes > 0 ? psprintf("Nodes that keep locks over a restart: %d of %d.", durable, nodes)
					 : NULL;
}

const char *
diagnose_versions(Diagnosis *diagnosis)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);
		const char *version;

		if (status == NULL)
			break;
		version = status->facts.version;
		if (version[0] == '\0')
			continue;
		appendStringInfo(&text, "%s%s: %s", text.len > 0 ? ", " : "", status->url.address, version);
		if (strncmp(version, "Redis ", 6) == 0 && atoi(version + 6) < REDIS_OLDEST)
			diagnose_add(
				diagnosis, DIAGNOSE_WARNING,
				psprintf("Node %s runs %s.", status->url.address, version),
				psprintf("Upgrade the node to Redis %d or later, or to Valkey.", REDIS_OLDEST));
	}
	return text.len > 0 ? psprintf("%s.", text.data) : NULL;
}

static void
add_rate(Diagnosis *diagnosis, NodeStatus *status)
{
	int64 ppm = (int64) pg_atomic_read_u64(&status->clock_faster_ppm);

	if (ppm < 0 ? ppm > -NODE_CLOCK_DRIFT_PPM / 2 : ppm < NODE_CLOCK_DRIFT_PPM / 2)
		return;
	diagnose_add(diagnosis, ppm > NODE_CLOCK_DRIFT_PPM ? DIAGNOSE_ERROR : DIAGNOSE_WARNING,
				 psprintf("The clock of node %s lately ran %.1f%% %s than the clock of this host; "
						  "leases allow 1%%.",
						  status->url.address, (double) (ppm < 0 ? -ppm : ppm) / 10000,
						  ppm > 0 ? "faster" : "slower"),
				 "Let the time service slew clocks of nodes and hosts by at most 0.4%, with chrony "
				 "by \"maxslewrate 4000\". Do not set clocks.");
}

const char *
diagnose_clocks(Diagnosis *diagnosis)
{
	int nodes = 0;
	int64 most_us = 0;

	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);
		int64 ahead_us;
		int64 apart_us;

		if (status == NULL)
			break;
		ahead_us = (int64) pg_atomic_read_u64(&status->clock_ahead_us);
		if (!is_on_duty(status) || ahead_us == NODE_CLOCK_UNKNOWN)
			continue;
		nodes++;
		add_rate(diagnosis, status);
		apart_us = ahead_us < 0 ? -ahead_us : ahead_us;
		most_us = Max(most_us, apart_us);
		if (apart_us > CLOCKS_APART_US)
			diagnose_add(
				diagnosis, ahead_us < -LUA_CLOCK_BOUND_US ? DIAGNOSE_ERROR : DIAGNOSE_WARNING,
				psprintf("The clock of node %s is %.1f s %s the clock of this host%s.",
						 status->url.address, fabs(ahead_us / 1e6),
						 ahead_us > 0 ? "ahead of" : "behind",
						 ahead_us < -LUA_CLOCK_BOUND_US ? ", so the node refuses this host" : ""),
				"Correct the clock that is wrong. Slew the clock of a node, by at most 0.4%: after "
				"a step forward, locks end too early at the node. Tokens need nodes' clocks that "
				"are right within 20 minutes.");
	}
	return nodes > 0 ? psprintf("The clocks of %d nodes and of this host are at most %.3f s apart.",
								nodes, most_us / 1e6)
					 : NULL;
}

static void
add_lack(Diagnosis *diagnosis, const char *address, const char *purpose, const char *rights)
{
	if (rights[0] != '\0')
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 psprintf("The user of node %s lacks rights for %s.", address, purpose),
					 psprintf("Grant the user in the URL %s.", rights));
}

const char *
diagnose_rights(Diagnosis *diagnosis)
{
	int nodes = 0;

	for (int at = 0;;)
	{
		NodeStatus *status = next_node(diagnosis, &at);
		const char *address;
		NodeDeaf deaf;

		if (status == NULL)
			break;
		if (!is_on_duty(status))
			continue;
		nodes++;
		address = status->url.address;
		add_lack(diagnosis, address, "shared locks and permits", status->facts.lacks_for_locks);
		add_lack(diagnosis, address, "the list of hosts", status->facts.lacks_for_hosts);
		add_lack(diagnosis, address, "messages to other hosts", status->facts.lacks_for_messages);
		add_lack(diagnosis, address, "redlock_holders, and names of Redisson's holders",
				 status->facts.lacks_for_looks);
		deaf = pg_atomic_read_u32(&status->deaf);
		if (deaf != NODE_SENDS)
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("Node %s does not let this host subscribe: waiting sessions poll "
								  "the node.",
								  address),
						 node_status_deaf_step(deaf));
	}
	return nodes > 0 ? psprintf("Nodes whose users have the rights for locks, lists of hosts and "
								"messages: %d of %d.",
								nodes, nodes)
					 : NULL;
}
