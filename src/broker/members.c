/*
 * members.c
 *		The lists of nodes in force; see members.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "broker/joint_file.h"
#include "broker/members.h"
#include "broker/node.h"
#include "broker/subscription.h"
#include "protocol/overlap.h"
#include "protocol/node_index.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/node_stats.h"
#include "shared/node_status.h"

/* Pause before changed lists are tried again, */
#define RECONFIGURE_US INT64CONST(1000000)

/* ... and before their file is written again, if writing failed. */
#define WRITE_AGAIN_US INT64CONST(60000000)

/* The nodes of both lists, each node once. */
typedef struct Listed
{
	int count;
	struct
	{
		const NodeUrl *url;
		bool now;
		bool next;
	} node[2 * URL_NODES_MAX];
} Listed;

/* A change while two lists are in force and redlock.on_disagreement is refuse. */
typedef enum Step
{
	STEP_NONE, /* no step: the same two lists */
	STEP_ON,   /* to the next list only */
	STEP_BACK, /* to the first list only */
	STEP_ASIDE /* to other lists, or to none */
} Step;

static core_lists lists;
static core_mask outdated;          /* connected by a former URL or TLS settings, perhaps */
static int64 due_us = PG_INT64_MAX; /* see members_due_us */
static bool file_is_due = false;    /* the file has lists that are not taken over */

static void read_lists(Listed *listed, const NodeUrls *now, const NodeUrls *next);
static bool adopt_file(bool warn, int64 now_us);
static bool settings_name_one_of(const Listed *listed);
static void warn_of_foreign_file(const Listed *listed);
static void warn_of_too_many(int count);
static void warn_of_mixed(void);
static void warn_of_third_list(void);
static void warn_of_large_change(void);
static Step step_to(const Listed *listed, const int *index, core_lists *to);
static bool meets_former(const Listed *listed, const int *index);
static void take_urls(const Listed *listed, const int *index);
static void find_indexes(const Listed *listed, int *index);
static bool assign_indexes(const Listed *listed, int *index, int64 now_us);
static void open_nodes(const Listed *listed, const int *index, int64 now_us);
static NodeIndexUse index_use(void);
static void close_left_node(int index, int64 now_us);

core_lists
members_lists(void)
{
	return lists;
}

core_mask
members(void)
{
	return lists.now | lists.next;
}

int64
members_due_us(void)
{
	return due_us;
}

bool
members_probed_once(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_is_tried(node_at(i)))
			return false;
	return true;
}

void
members_adopt(int64 now_us)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus *status = &node_status[i];

		if (!status->in_use)
			continue;
		node_open(i, &status->url, &status->guard, now_us);
		lists.now |= status->now ? CORE_BIT(i) : 0;
		lists.next |= status->next ? CORE_BIT(i) : 0;
	}
	file_is_due = lists.now == 0 && !adopt_file(false, now_us);
}

/*
 * Takes over the two lists that were in force when the server stopped or crashed.  If the settings
 * name none of these nodes, the file may be the file of another server, whose data directory was
 * copied.  Then the function returns false, unless redlock.on_disagreement lets the settings count.
 */
static bool
adopt_file(bool warn, int64 now_us)
{
	static NodeUrls now;
	static NodeUrls next;
	Listed listed;
	int index[URL_NODES_MAX];

	if (!joint_file_read(&now, &next))
		return true;
	read_lists(&listed, &now, &next);
	if (listed.count > URL_NODES_MAX)
		return true;
	if (!settings_name_one_of(&listed))
	{
		if (redlock_on_disagreement != ON_DISAGREEMENT_REFUSE)
			return true;
		if (warn)
			warn_of_foreign_file(&listed);
		return false;
	}
	find_indexes(&listed, index);
	if (assign_indexes(&listed, index, now_us))
		open_nodes(&listed, index, now_us);
	return true;
}

static bool
settings_name_one_of(const Listed *listed)
{
	Listed set;

	read_lists(&set, redlock_nodes(), redlock_nodes_next());
	for (int s = 0; s < set.count; s++)
		for (int u = 0; u < listed->count; u++)
			if (strcmp(set.node[s].url->address, listed->node[u].url->address) == 0)
				return true;
	return false;
}

bool
members_configure(int64 now_us,
				  bool (*may_leave)(core_lists to, bool back, int64 since_us, int64 now_us),
				  void (*stay)(void))
{
	static bool short_of_indexes = false;
	static Step requested = STEP_NONE;
	static int64 requested_us; /* since when */
	static bool held_up = false;
	bool meets;
	Listed listed;
	core_lists to;
	Step step;
	int index[URL_NODES_MAX];

	due_us = PG_INT64_MAX;
	/* after a reload: the settings may have changed, or the file may be gone */
	file_is_due = file_is_due && !adopt_file(true, now_us);
	if (file_is_due)
		return false;
	read_lists(&listed, redlock_nodes(), redlock_nodes_next());
	if (listed.count > URL_NODES_MAX)
	{
		warn_of_too_many(listed.count);
		return false;
	}
	if (listed.count > 1 && listed.node[0].url->is_local)
	{
		warn_of_mixed();
		return false;
	}
	find_indexes(&listed, index);
	step = step_to(&listed, index, &to);
	/* STEP_ASIDE: hosts with only one of the two lists cannot be asked */
	if (step == STEP_ASIDE && step != requested)
		warn_of_third_list();
	if (step != requested)
	{
		requested_us = now_us;
		stay();
	}
	requested = step;
	if (step == STEP_ASIDE || ((step == STEP_ON || step == STEP_BACK) &&
							   !may_leave(to, step == STEP_BACK, requested_us, now_us)))
	{
		held_up = true;
		take_urls(&listed, index); /* passwords may have changed */
		open_nodes(&listed, index, now_us);
		if (step != STEP_ASIDE)
			due_us = now_us + RECONFIGURE_US;
		return false;
	}
	meets = meets_former(&listed, index);
	if (!assign_indexes(&listed, index, now_us))
	{
		if (!short_of_indexes)
			ereport(LOG,
					(errmsg("redlock.nodes is not yet in force"),
					 errdetail("Too many removed nodes still serve leases."),
					 errhint("Wait until sessions release the locks that these nodes serve.")));
		short_of_indexes = true;
		due_us = now_us + RECONFIGURE_US;
		return false;
	}
	short_of_indexes = false;
	if (!meets)
		warn_of_large_change();
	if (held_up)
		ereport(LOG, (errmsg("redlock.nodes is in force now")));
	held_up = false;
	open_nodes(&listed, index, now_us);
	if (lists.now == 0 || lists.next == 0)
		joint_file_remove();
	else if (!joint_file_write(redlock_nodes(), redlock_nodes_next()))
		due_us = now_us + WRITE_AGAIN_US;
	return true;
}

static void
warn_of_foreign_file(const Listed *listed)
{
	StringInfoData nodes;

	initStringInfo(&nodes);
	for (int u = 0; u < listed->count; u++)
		appendStringInfo(&nodes, "%s%s", u > 0 ? ", " : "", listed->node[u].url->address);
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIG_FILE_ERROR),
		 errmsg("redlock.nodes is not in force, since file \"%s\" has other nodes", JOINT_FILE),
		 errdetail("The file has the two lists of nodes that were in force when a server stopped. "
				   "The settings name none of these nodes: %s.",
				   nodes.data),
		 errhint("If this server is a copy of another server, delete the file, and reload. "
				 "Otherwise set redlock.nodes and redlock.nodes_next to the two lists, and "
				 "reload.")));
}

static void
warn_of_too_many(int count)
{
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		 errmsg("redlock.nodes and redlock.nodes_next are not in force"),
		 errdetail("The two lists name %d nodes together; the limit is %d.", count, URL_NODES_MAX),
		 errhint("Change the list in two parts. Until then the lists that are in force stay in "
				 "force. If no list is in force, as after a start, no lock is acquired.")));
}

static void
warn_of_mixed(void)
{
	ereport(WARNING,
			(errcode(ERRCODE_CONFIG_FILE_ERROR),
			 errmsg("redlock.nodes and redlock.nodes_next are not in force"),
			 errdetail("redlock.nodes is local, and goes with no other node."),
			 errhint("Set redlock.nodes_next to none. Or set redlock.nodes to Redis nodes.")));
}

static void
warn_of_third_list(void)
{
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIG_FILE_ERROR),
		 errmsg("redlock.nodes is not in force, since a change between two lists is under way"),
		 errdetail("The settings are neither one of the two lists alone, nor both lists unchanged. "
				   "A host with only one of the two lists could get a lock that this host holds."),
		 errhint("First set redlock.nodes to one of the two lists, and redlock.nodes_next to an "
				 "empty string. Or, if no host has only one of the two lists, set "
				 "redlock.on_disagreement to warn.")));
}

static void
warn_of_large_change(void)
{
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIG_FILE_ERROR), errmsg("redlock.nodes was changed too much at once"),
		 errdetail("A majority of the new nodes and a majority of the old nodes may have no node "
				   "in common. This host could get a lock that a host with the old list holds."),
		 errhint("Set redlock.nodes back to the old list. Then add or remove one node at a time, "
				 "or first name the new nodes in redlock.nodes_next on all hosts.")));
}

/* Merges the lists.  For a node in both lists the URL of redlock.nodes counts. */
static void
read_lists(Listed *listed, const NodeUrls *now, const NodeUrls *next)
{
	memset(listed, 0, sizeof(*listed));
	for (int i = 0; i < now->count; i++)
	{
		listed->node[i].url = &now->url[i];
		listed->node[i].now = true;
	}
	listed->count = now->count;
	for (int i = 0; i < next->count; i++)
	{
		int at = 0;

		while (at < now->count && strcmp(now->url[at].address, next->url[i].address) != 0)
			at++;
		if (at == now->count)
		{
			at = listed->count++;
			listed->node[at].url = &next->url[i];
		}
		listed->node[at].next = true;
	}
}

/* Finds the index of each listed node; -1: none yet. */
static void
find_indexes(const Listed *listed, int *index)
{
	for (int u = 0; u < listed->count; u++)
	{
		index[u] = -1;
		for (int i = 0; i < CORE_NODES_MAX; i++)
			if (node_status[i].in_use &&
				strcmp(node_status[i].url.address, listed->node[u].url->address) == 0)
				index[u] = i;
	}
}

/*
 * Which step leads from the lists in force to the listed nodes?  Fills *to with the list by which
 * this host votes after the step.
 */
static Step
step_to(const Listed *listed, const int *index, core_lists *to)
{
	core_lists target = {0};

	if (lists.now == 0 || lists.next == 0 || lists.next == lists.now ||
		redlock_on_disagreement != ON_DISAGREEMENT_REFUSE)
		return STEP_NONE;
	for (int u = 0; u < listed->count; u++)
	{
		if (index[u] < 0)
			return STEP_ASIDE;
		target.now |= listed->node[u].now ? CORE_BIT(index[u]) : 0;
		target.next |= listed->node[u].next ? CORE_BIT(index[u]) : 0;
	}
	*to = (core_lists){target.now, 0};
	if (target.now == lists.now && target.next == lists.next)
		return STEP_NONE;
	if (target.next != 0 && target.next != target.now)
		return STEP_ASIDE;
	if (target.now == lists.next)
		return STEP_ON;
	return target.now == lists.now ? STEP_BACK : STEP_ASIDE;
}

/* Does each quorum of the new lists meet each quorum of the lists in force? */
static bool
meets_former(const Listed *listed, const int *index)
{
	core_lists to = {0};
	core_mask used = members();

	for (int u = 0; u < listed->count; u++)
		if (index[u] >= 0)
			used |= CORE_BIT(index[u]);
	for (int u = 0; u < listed->count; u++)
	{
		/* a new node gets a bit that no other node has */
		core_mask bit = index[u] >= 0 ? CORE_BIT(index[u]) : ~used & (used + 1);

		used |= bit;
		to.now |= listed->node[u].now ? bit : 0;
		to.next |= listed->node[u].next ? bit : 0;
	}
	return lists.now == 0 || listed->count == 0 ||
		   quorums_meet(lists, members(), to, to.now | to.next);
}

static void
take_urls(const Listed *listed, const int *index)
{
	for (int u = 0; u < listed->count; u++)
	{
		NodeStatus *status = &node_status[Max(index[u], 0)];

		if (index[u] < 0)
			continue;
		seqlock_begin_write(&status->version);
		status->url = *listed->node[u].url;
		seqlock_end_write(&status->version);
	}
}

/*
 * Reserves an index for each new node, and puts the lists into force.  False: indexes are short,
 * and nothing has changed.
 */
static bool
assign_indexes(const Listed *listed, int *index, int64 now_us)
{
	NodeStatus *status = node_status;
	core_mask listed_indexes;
	core_mask replaced = 0;

	if (!node_index_assign(index_use(), CORE_NODES_MAX, index, listed->count, &listed_indexes))
		return false;
	for (int u = 0; u < listed->count; u++)
		if (status[index[u]].in_use &&
			strcmp(status[index[u]].url.address, listed->node[u].url->address) != 0)
			close_left_node(index[u], now_us);

	lists = (core_lists){0};
	for (int u = 0; u < listed->count; u++)
	{
		NodeStatus *b = &status[index[u]];

		lists.now |= listed->node[u].now ? CORE_BIT(index[u]) : 0;
		lists.next |= listed->node[u].next ? CORE_BIT(index[u]) : 0;
		seqlock_begin_write(&b->version);
		b->url = *listed->node[u].url;
		if (!b->in_use)
		{
			replaced |= CORE_BIT(index[u]);
			b->in_use = true;
			b->last_error[0] = '\0';
			memset(&b->facts, 0, sizeof(b->facts));
			memset(&b->guard, 0, sizeof(b->guard));
			pg_atomic_write_u32(&b->deaf, 0);
			pg_atomic_write_u64(&b->clock_ahead_us, (uint64) NODE_CLOCK_UNKNOWN);
			pg_atomic_write_u64(&b->clock_faster_ppm, 0);
			pg_atomic_write_u64(&b->rtt_us, 0);
			pg_atomic_write_u64(&b->memory_used, 0);
			pg_atomic_write_u64(&b->memory_limit, 0);
			pg_atomic_write_u64(&b->votes_yes, 0);
			pg_atomic_write_u64(&b->votes_no, 0);
			pg_atomic_write_u64(&b->votes_error, 0);
			node_stats_begin(index[u], b->url.address);
		}
		seqlock_end_write(&b->version);
	}
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		status[i].now = (lists.now & CORE_BIT(i)) != 0;
		status[i].next = (lists.next & CORE_BIT(i)) != 0;
	}
	settling_set_lists(&lease_table->settling, lists, replaced);
	return true;
}

/* Those that have indexes. */
static void
open_nodes(const Listed *listed, const int *index, int64 now_us)
{
	for (int u = 0; u < listed->count; u++)
	{
		RedisNode *node = node_at(Max(index[u], 0));
		const NodeUrl *url = listed->node[u].url;

		if (index[u] < 0)
			continue;
		if (node->state == NODE_UNUSED)
			node_open(index[u], url, &node_status[index[u]].guard, now_us);
		else if (node->url.tls != url->tls || node->url.durable != url->durable ||
				 strcmp(node->url.user, url->user) != 0 ||
				 strcmp(node->url.password, url->password) != 0)
		{
			if (node_is_on_duty(node))
			{
				outdated |= CORE_BIT(index[u]);
				continue;
			}
			subscription_close(index[u], now_us); /* the next waiter opens it again */
			node_reopen(node, url, now_us);
		}
	}
}

void
members_tls_changed(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_at(i)->state != NODE_UNUSED && node_at(i)->url.tls)
			outdated |= CORE_BIT(i);
}

/*
 * Closes the next node when the last one votes again, and when the next node has no unanswered
 * command: a quorum must be left for each round.  Waits for redlock.node_timeout at most.
 */
void
members_reopen_next(core_mask told, int64 now_us)
{
	static int last = 0;
	static int64 until_us = 0;
	bool may_wait = now_us < until_us;
	int next = last;

	if (outdated == 0)
		return;
	if (may_wait && (node_is_tried(node_at(last)) ||
					 (node_can_vote(node_at(last)) && !(told & CORE_BIT(last)))))
		return;
	do
		next = (next + 1) % CORE_NODES_MAX;
	while (!(outdated & CORE_BIT(next)));
	if (may_wait && node_in_flight(node_at(next)) > 0)
		return;
	last = next;
	outdated &= ~CORE_BIT(last);
	if (node_at(last)->state == NODE_UNUSED)
		return;
	until_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
	subscription_close(last, now_us);
	node_reopen(node_at(last), &node_status[last].url, now_us);
}

void
members_close_left(int64 now_us)
{
	core_mask done = node_index_to_leave(index_use(), members());

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (done & CORE_BIT(i))
			close_left_node(i, now_us);
		else if (node_status[i].in_use && !(members() & CORE_BIT(i)))
			due_us = now_us + RECONFIGURE_US;
	}
}

static NodeIndexUse
index_use(void)
{
	NodeIndexUse use = {0};

	for (int i = 0; i < lease_table->entries; i++)
		if (lease_at(i)->in_use)
			use.leased |= core_served_by(&lease_at(i)->drive.core);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (node_status[i].in_use)
			use.taken |= CORE_BIT(i);
		if (node_in_flight(node_at(i)) > 0)
			use.in_flight |= CORE_BIT(i);
	}
	return use;
}

static void
close_left_node(int index, int64 now_us)
{
	NodeStatus *status = &node_status[index];

	subscription_close(index, now_us);
	if (node_at(index)->state != NODE_UNUSED)
		node_close(node_at(index), now_us);
	seqlock_begin_write(&status->version);
	status->in_use = false;
	memset(&status->url, 0, sizeof(status->url)); /* forget the password */
	seqlock_end_write(&status->version);
}

int64
members_round_trip_us(void)
{
	int64 rtt_us[CORE_NODES_MAX];
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int64 rtt = (int64) pg_atomic_read_u64(&node_status[i].rtt_us);
		int at = count;

		if (!(members() & CORE_BIT(i)))
			continue;
		for (; at > 0 && rtt_us[at - 1] > rtt; at--)
			rtt_us[at] = rtt_us[at - 1];
		rtt_us[at] = rtt;
		count++;
	}
	return count > 0 ? rtt_us[count / 2] : 0;
}
