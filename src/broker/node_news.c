/*
 * node_news.c
 *		News of a node for people: in the view redlock_nodes and in the log.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "broker/node_news.h"
#include "shared/clock.h"
#include "shared/new_names.h"
#include "shared/node_status.h"

/* Least pause between two logged errors of one node, if they differ. */
#define LOG_ERROR_US INT64CONST(10000000)

/* The log reports room again below this. */
#define MEMORY_ROOM_PERCENT 75

static char *most_names_text(void);
static bool is_away(NodeState state);
static void write_facts(const RedisNode *node, NodeFacts *facts);
static bool may_log_error(RedisNode *node, bool ended_duty);

void
node_news_of_memory(RedisNode *node)
{
	NodeStatus *status = &node_status[node->index];
	int percent =
		node->memory_limit > 0 ? (int) (100.0 * node->memory_used / node->memory_limit) : 0;

	pg_atomic_write_u64(&status->memory_used, node->memory_used);
	pg_atomic_write_u64(&status->memory_limit, node->memory_limit);
	if (node->memory_used == 0)
		return;
	if (!node->warned_of_memory && percent >= NODE_MEMORY_WARN_PERCENT)
	{
		ereport(WARNING,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("redlock node %s has little memory left", node->url.address),
				 errdetail("The node uses " INT64_FORMAT " of " INT64_FORMAT " bytes, %d %%. %s",
						   node->memory_used, node->memory_limit, percent, most_names_text()),
				 errhint(NODE_MEMORY_STEP)));
		node->warned_of_memory = true;
	}
	else if (node->warned_of_memory && percent < MEMORY_ROOM_PERCENT)
	{
		ereport(LOG,
				(errmsg("redlock node %s has enough memory again", node->url.address),
				 errdetail("The node uses " INT64_FORMAT " bytes; maxmemory is " INT64_FORMAT ".",
						   node->memory_used, node->memory_limit)));
		node->warned_of_memory = false;
	}
}

/* The broker has no catalogs, so the text has the role's OID. */
static char *
most_names_text(void)
{
	NewNames list[NEW_NAMES_ROLES];
	int count = new_names_list(list);
	NewNames most = {0};

	for (int i = 0; i < count; i++)
		if (list[i].names > most.names)
			most = list[i];
	if (most.names == 0)
		return "No role of this server has brought in a new name within an hour.";
	return psprintf("Of the roles of this server, the role with OID %u has brought in most new "
					"names within an hour: " INT64_FORMAT ".",
					most.role, most.names);
}

void
node_news_of_state(RedisNode *node, NodeState before)
{
	NodeStatus *status = &node_status[node->index];
	/* false for a mere new attempt: the last error was logged before */
	bool fails = status->last_error_at != node->error_at && node->error[0] != '\0';
	bool was_on_duty = before == NODE_READY || before == NODE_QUARANTINED;
	bool was_refused = strcmp(status->state, node_state_name(NODE_REFUSED)) == 0;

	seqlock_begin_write(&status->version);
	/* a node stays refused until it answers otherwise */
	if (strcmp(status->state, node_state_name(node->state)) != 0 &&
		!(was_refused && node_is_tried(node)))
	{
		strlcpy(status->state, node_state_name(node->state), sizeof(status->state));
		if (was_refused || !is_away(before) || !is_away(node->state))
			status->since = GetCurrentTimestamp();
	}
	status->evicts = node->state == NODE_QUARANTINED && node->facts.evicts;
	strlcpy(status->last_error, node->error, sizeof(status->last_error));
	status->last_error_at = node->error_at;
	if (node->version[0] != '\0')
		write_facts(node, &status->facts);
	seqlock_end_write(&status->version);

	if (node->state == NODE_READY && before != NODE_READY)
		ereport(LOG, (errmsg("redlock node %s is ready", node->url.address)));
	else if (node->state == NODE_QUARANTINED && before != NODE_QUARANTINED && node->facts.evicts)
		ereport(LOG, (errmsg("redlock node %s does not vote for new locks: %s", node->url.address,
							 node->error),
					  errhint("Set maxmemory-policy to noeviction on that node, also in its "
							  "configuration file. The node votes again after redlock.max_ttl.")));
	else if (node->state == NODE_QUARANTINED && before != NODE_QUARANTINED)
		ereport(LOG, (errmsg("redlock node %s does not vote for new locks for %d s: %s",
							 node->url.address,
							 (int) ((node->guard->until_us - redlock_clock_us()) / 1000000) + 1,
							 node->error)));
	else
	{
		if (fails && may_log_error(node, was_on_duty && !node_is_on_duty(node)))
			ereport(LOG, (errmsg("redlock node %s: %s", node->url.address, node->error)));
		return;
	}
	node->logged[0] = '\0';
	node->logged_us = 0;
}

/* While the broker cannot reach a node, each attempt passes through these states. */
static bool
is_away(NodeState state)
{
	return state == NODE_RESOLVING || state == NODE_CONNECTING || state == NODE_HANDSHAKE ||
		   state == NODE_BACKING_OFF;
}

static void
write_facts(const RedisNode *node, NodeFacts *facts)
{
	strlcpy(facts->version, node->version, sizeof(facts->version));
	strlcpy(facts->forgets, node_forgets(node), sizeof(facts->forgets));
	strlcpy(facts->lacks_for_locks, node->lacks_for_locks, sizeof(facts->lacks_for_locks));
	strlcpy(facts->lacks_for_hosts, node->lacks_for_hosts, sizeof(facts->lacks_for_hosts));
	strlcpy(facts->lacks_for_messages, node->lacks_for_messages, sizeof(facts->lacks_for_messages));
	strlcpy(facts->lacks_for_looks, node->lacks_for_looks, sizeof(facts->lacks_for_looks));
}

/*
 * Logs the end of a node's duty at once, and other errors at most once in LOG_ERROR_US.  An error
 * that is skipped but lasts comes again.
 */
static bool
may_log_error(RedisNode *node, bool ended_duty)
{
	int64 now_us = redlock_clock_us();

	if (!ended_duty && (strcmp(node->logged, node->error) == 0 ||
						(node->logged_us != 0 && now_us - node->logged_us < LOG_ERROR_US)))
		return false;
	strlcpy(node->logged, node->error, sizeof(node->logged));
	node->logged_us = now_us;
	return true;
}

void
node_news_of_praise(RedisNode *node)
{
	if (node_is_praised(node) && !node->warned)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("redlock node %s is not durable, although redlock.nodes says so",
						node->url.address),
				 errdetail("The node says: %s.", node->forgets),
				 errhint("Change this setting of the node, or remove durable=yes from its URL.")));
	node->warned = node_is_praised(node);
}
