/*
 * host_entry.c
 *		This host's entry in the nodes' lists; see host_entry.h.
 */
#include "postgres.h"

#include "broker/host_entry.h"
#include "broker/members.h"
#include "broker/node.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/text.h"

static HostConfig own;
static char own_text[LUA_CONFIG_MAX];
static size_t own_len;
static char facts_text[LUA_FACTS_MAX];
static size_t facts_len;
static HostStep announced = HOST_STAYS;
static char written[CORE_NODES_MAX][HOSTS_ID_MAX + 1]; /* processes of nodes in the last entry */

StaticAssertDecl((int) HOSTS_FORMER_MAX == (int) GUARD_FORMER_MAX,
				 "as many processes as the guard remembers");

static void describe_self(void);
static void describe_held(HostConfig *config, core_lists lists);
static bool find_held(core_lists held[HOSTS_HELD_MAX]);
static bool takes_locks(void);
static bool is_of_held(const core_lists held[HOSTS_HELD_MAX], int node);
static void describe_node(HostNode *node, const RedisNode *from, core_lists lists);

void
entry_write(void)
{
	describe_self();
	describe_config(&own, members_lists());
	own_len = hosts_write_config(&own, own_text);
	memset(written, 0, sizeof(written));
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && node_is_on_duty(node_at(i)))
			hosts_set_id(written[i], node_at(i)->guard->run_id);
}

void
entry_look_again(void)
{
	describe_config(&own, members_lists());
}

void
entry_texts(const char *text[2], size_t len[2])
{
	text[0] = facts_text;
	len[0] = facts_len;
	text[1] = own_text;
	len[1] = own_len;
}

const HostConfig *
entry_config(void)
{
	return &own;
}

void
entry_announce(HostStep step)
{
	announced = step;
}

/* A configuration begins with the nodes in force, in the order of their indexes. */
core_mask
entry_nodes(core_mask places)
{
	core_mask indexes = 0;
	int place = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && (places & CORE_BIT(place++)))
			indexes |= CORE_BIT(i);
	return indexes;
}

bool
entry_names(const RedisNode *node)
{
	char process[HOSTS_ID_MAX + 1];

	hosts_set_id(process, node->guard->run_id);
	return process[0] != '\0' && strcmp(process, written[node->index]) == 0;
}

HostStep
entry_step(void)
{
	return announced;
}

static void
describe_self(void)
{
	HostFacts facts = {.version = REDLOCK_VERSION, .postgres = PG_VERSION};
	int releasing;
	int unsettled;
	int64 kept_until_us;

	strlcpy(facts.name, host_list_own_name(), sizeof(facts.name));
	lease_usage(&facts.leases, &releasing);
	facts.settled = lease_unsettled(&unsettled, &kept_until_us) && unsettled == 0 &&
					kept_until_us == 0 &&
					core_has_quorum(members_lists(), nodes_that(node_is_on_duty));
	facts.up_for_s = host_list_up_for_us() / 1000000;
	if (lease_table->standing.begun)
		facts.takes_for_s = (redlock_clock_us() - lease_table->standing.begun_us) / 1000000;
	facts_len = hosts_write_facts(&facts, facts_text);
}

void
describe_config(HostConfig *config, core_lists lists)
{
	memset(config, 0, sizeof(*config));
	strlcpy(config->prefix, redlock_key_prefix, sizeof(config->prefix));
	config->max_ttl_ms = redlock_max_ttl_ms;
	config->standing = lease_table->standing.says;
	config->step = announced;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lists.now | lists.next) & CORE_BIT(i))
			describe_node(&config->node[config->count++], node_at(i), lists);
	describe_held(config, lists);
}

/*
 * Adds the lists by which this host holds leases, if these differ from the lists in force, and the
 * nodes that only these lists have.  While this host takes no locks, all lists by which leases are
 * held are added: other hosts then disregard the lists in force.
 */
static void
describe_held(HostConfig *config, core_lists lists)
{
	core_lists held[HOSTS_HELD_MAX] = {0};
	int index_of[HOSTS_NODES_MAX];
	int count = 0;
	int unsettled;
	int64 kept_until_us;
	bool all_settled = lease_unsettled(&unsettled, &kept_until_us) && unsettled == 0;

	/* the keys kept after a release were granted when the first list was the only list */
	if (kept_until_us != 0 && lists.next != 0)
		held[0].now = lists.now;
	if ((all_settled && held[0].now == 0 && takes_locks()) || !find_held(held))
		return;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lists.now | lists.next) & CORE_BIT(i))
			index_of[count++] = i;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (!((lists.now | lists.next) & CORE_BIT(i)) && is_of_held(held, i))
		{
			describe_node(&config->node[config->count++], node_at(i), lists);
			index_of[count++] = i;
		}
	for (int i = 0; i < config->count; i++)
		for (int list = 0; list < HOSTS_HELD_MAX; list++)
		{
			config->node[i].held |= (held[list].now >> index_of[i] & 1) << 2 * list;
			config->node[i].held |= (held[list].next >> index_of[i] & 1) << (2 * list + 1);
		}
}

/*
 * Collects the lists by which leases are held; held[0] may be filled already.  Returns false if
 * all leases are held by the lists in force.
 */
static bool
find_held(core_lists held[HOSTS_HELD_MAX])
{
	int count = held[0].now != 0;

	for (int i = 0; i < lease_table->entries; i++)
	{
		const core_lease *lease = &lease_at(i)->drive.core;
		core_lists lists = settling_excluding(lease);
		int at = 0;

		if (!lease_at(i)->in_use || (settling_on_all_lists(&lease_table->settling, lease) &&
									 (takes_locks() || !is_asked_or_held(lease))))
			continue;
		while (at < count && (held[at].now != lists.now || held[at].next != lists.next))
			at++;
		if (at == HOSTS_HELD_MAX)
			/*
			 * too many lists: one node stands for the last ones, as if each quorum needed this
			 * node
			 */
			held[HOSTS_HELD_MAX - 1] = (core_lists){held[0].now & -held[0].now, 0};
		else if (at == count)
			held[count++] = lists;
	}
	return count > 0;
}

/* By this host's entries: does it take locks, or hold any? */
static bool
takes_locks(void)
{
	HostStanding says = lease_table->standing.says;

	return says == HOST_TAKES || says == HOST_HOLDS || says == HOST_WARNS;
}

bool
is_asked_or_held(const core_lease *lease)
{
	return lease->state == CORE_ASKING || lease->state == CORE_BUSY || lease->state == CORE_HELD;
}

static bool
is_of_held(const core_lists held[HOSTS_HELD_MAX], int node)
{
	for (int i = 0; i < HOSTS_HELD_MAX; i++)
		if ((held[i].now | held[i].next) & CORE_BIT(node))
			return true;
	return false;
}

static void
describe_node(HostNode *node, const RedisNode *from, core_lists lists)
{
	const NodeUrl *url = &from->url;
	char db[16] = "";
	size_t len = strlen(url->address);

	/* the address ends with the database, if not 0 */
	if (url->db != 0)
		len -= snprintf(db, sizeof(db), url->is_unix ? "?db=%d" : "/%d", url->db);
	text_to_printable(node->address, sizeof(node->address), url->address, len);
	node->db = url->db;
	node->now = (lists.now & CORE_BIT(from->index)) != 0;
	node->next = (lists.next & CORE_BIT(from->index)) != 0;
	hosts_set_id(node->last, from->guard->run_id);
	if (node_is_on_duty(from))
	{
		memcpy(node->process, node->last, sizeof(node->process));
		node->started_us = from->guard->started_us;
		node->heard_us = from->heard_us;
		for (int i = 0; i < HOSTS_FORMER_MAX; i++)
			hosts_set_id(node->former[i], from->guard->former[i]);
	}
}
