/*
 * hosts.c
 *		The registry entries of hosts, and whether two hosts may share locks; see hosts.h.
 *
 * Which nodes of two hosts are the same
 * -------------------------------------
 *
 * An address does not identify a node: each host may use its own name for a node, and 127.0.0.1
 * is another node on each host.  A connected node is identified by its process.  The node's data
 * would not suffice, because a copy has the same data.
 *
 * An entry written before a node started can't name the node's process.  The host that wrote the
 * entry may be dead, so the entry may stay as it is.  If such an entry does not name the
 * process, the node is treated as unknown.  An entry written after our last message from the
 * node proves nothing either: the node may have restarted unnoticed.  A live host writes again
 * within seconds, and this host asks again.
 *
 * An entry may also name an earlier process that this host met at the node (`former`): the
 * server has restarted since.  The comparison then uses the earlier process.
 *
 * An unknown node is matched with the node of the same address, or with any unmatched node of
 * the other host.  Among these matches the search prefers a match with which the hosts agree, by
 * the lists that contain the nodes.  If the hosts agree only by a guess about a node that may
 * have restarted, the comparison reports the node (`guessed`).  Such a node gives this host no
 * vote before the other host's next entry, and a host that takes no locks yet does not begin.
 *
 * For locks of later times (HOSTS_AT_ANY_TIME) an unknown node matches only the node with the
 * process that the host reached last, or with the same address: both hosts may reach their nodes by
 * then.  So a node that is away for a moment does not look like a different node to a host that
 * calls the node by another name.
 *
 * A node that a host can't send to does not vote for the host's new leases.  But such a node may
 * have granted a lease that the host still holds.
 */
#include "protocol/hosts.h"

#include <string.h>

#include "protocol/overlap.h"
#include "protocol/words.h"

/*
 * For this long after the start of a node a host may not have noticed the start.  A connection
 * that ends silently is found by a check.
 */
#define UNNOTICED_US INT64_C(10000000)

#define ALL (~(core_mask) 0)

#define AWAY 256 /* added to the number of a node's lists: the host can't send to the node */

#define HELD_NOW 0x15 /* bits of HostNode.held: in the first of two lists */
#define LIKENESS_MAX 11

/*
 * where the other host may stand, in a change from the first list over both lists to the next
 * list
 */
enum
{
	THEY_LEAD,
	THEY_FOLLOW,
	SAME_STEP /* if all relations differ, the differences of this one are reported */
};

static bool take_bytes(const char **at, const char *end, int64_t most, const char **bytes,
					   size_t *len);
static bool take_node(const char **at, const char *end, HostNode *node);
static void compare(const HostConfig *now, const HostConfig *then, const HostConfig *theirs,
					int64_t seen_us, HostsDifference *difference);
static bool is_in_doubt(const HostNode *node, int64_t seen_us);
static bool names_process(const HostConfig *config, const HostNode *node);
static bool use_former(HostNode *node, const HostConfig *theirs);
static core_lists lists_of(const HostConfig *config, const int *bit_of, int list);
static core_mask voters_of(const HostConfig *config, const int *bit_of);
static bool is_known(const HostNode *node);
static bool has_same(const char *one, const char *other);
static bool is_same_process(const HostNode *one, const HostNode *other);
static bool is_same_last(const HostNode *one, const HostNode *other);
static bool is_same_address(const HostNode *one, const HostNode *other);
static bool may_be_same(const HostNode *one, const HostNode *other);
static unsigned compare_lists(const HostConfig *ours, const HostConfig *theirs,
							  const int twin[HOSTS_NODES_MAX], bool all_vote);
static bool knows_all(const HostConfig *config);
static void pair(const HostConfig *ours, const HostConfig *theirs, int twin[HOSTS_NODES_MAX],
				 bool (*same)(const HostNode *one, const HostNode *other));
static void pair_rest(const HostConfig *ours, const HostConfig *theirs, int twin[HOSTS_NODES_MAX],
					  int step);
static bool is_free(const int twin[HOSTS_NODES_MAX], int count, int j);
static int likeness(const HostNode *ours, const HostNode *theirs, int step);

size_t
hosts_write_facts(const HostFacts *facts, char *text)
{
	char *at = text;

	at = words_put_text(at, facts->name);
	at = words_put_text(at, facts->version);
	at = words_put_text(at, facts->postgres);
	at = words_put_number(at, facts->leases);
	at = words_put_number(at, facts->settled);
	at = words_put_number(at, facts->up_for_s);
	at = words_put_number(at, facts->takes_for_s);
	return (size_t) (at - text);
}

bool
hosts_read_facts(HostFacts *facts, const char *text, size_t len)
{
	const char *end = text + len;
	int64_t leases;
	int64_t settled;

	if (!words_take_printable(&text, end, facts->name, sizeof(facts->name)) ||
		!words_take_printable(&text, end, facts->version, sizeof(facts->version)) ||
		!words_take_printable(&text, end, facts->postgres, sizeof(facts->postgres)) ||
		!words_take_number(&text, end, INT32_MAX, &leases) ||
		!words_take_number(&text, end, 1, &settled) ||
		!words_take_number(&text, end, UINT32_MAX, &facts->up_for_s) ||
		!words_take_number(&text, end, UINT32_MAX, &facts->takes_for_s))
		return false;
	facts->leases = (int32_t) leases;
	facts->settled = settled == 1;
	return true;
}

size_t
hosts_write_config(const HostConfig *config, char *text)
{
	char *at = text;

	at = words_put_text(at, config->prefix);
	at = words_put_number(at, config->max_ttl_ms);
	at = words_put_number(at, config->count);
	for (int i = 0; i < config->count; i++)
	{
		const HostNode *node = &config->node[i];

		at = words_put_number(at, node->now + 2 * node->next + 4 * node->held +
									  (is_known(node) ? 0 : AWAY));
		at = words_put_number(at, node->db);
		at = words_put_text(at, node->address);
		at = words_put_text(at, node->last);
	}
	at = words_put_number(at, config->standing);
	at = words_put_number(at, config->step);
	return (size_t) (at - text);
}

bool
hosts_read_config(HostConfig *config, const char *text, size_t len)
{
	const char *end = text + len;
	int64_t count;
	int64_t standing;
	int64_t step;

	if (!words_take_text(&text, end, config->prefix, sizeof(config->prefix)) ||
		!words_take_number(&text, end, INT32_MAX, &config->max_ttl_ms) ||
		!words_take_number(&text, end, HOSTS_NODES_MAX, &count))
		return false;
	config->count = (int) count;
	for (int i = 0; i < config->count; i++)
		if (!take_node(&text, end, &config->node[i]))
			return false;
	if (!words_take_number(&text, end, HOST_WARNS, &standing) ||
		!words_take_number(&text, end, HOST_GOES_BACK, &step))
		return false;
	config->standing = (HostStanding) standing;
	config->step = (HostStep) step;
	return true;
}

static bool
take_node(const char **at, const char *end, HostNode *node)
{
	int64_t lists;
	int64_t db;

	if (!words_take_number(at, end, 2 * AWAY - 1, &lists) || lists % AWAY == 0 ||
		!words_take_number(at, end, INT32_MAX, &db) ||
		!words_take_printable(at, end, node->address, sizeof(node->address)) ||
		node->address[0] == '\0' || !words_take_text(at, end, node->last, sizeof(node->last)) ||
		!words_are_printable(node->last, '!') || (lists < AWAY && node->last[0] == '\0'))
		return false;
	memcpy(node->process, node->last, sizeof(node->process));
	if (lists >= AWAY)
		node->process[0] = '\0';
	node->now = lists % 2 == 1;
	node->next = lists / 2 % 2 == 1;
	node->held = (uint8_t) (lists % AWAY / 4);
	node->db = (int32_t) db;
	node->started_us = node->heard_us = 0;
	memset(node->former, 0, sizeof(node->former));
	return true;
}

void
hosts_set_id(char id[HOSTS_ID_MAX + 1], const char *text)
{
	int len = 0;

	while (len < HOSTS_ID_MAX && text[len] > ' ' && text[len] <= '~')
	{
		id[len] = text[len];
		len++;
	}
	id[len] = '\0';
}

bool
hosts_take(const char **at, const char *end, HostRecord *record)
{
	int64_t number;

	if (!words_take_id(at, end, &record->id) ||
		!words_take_number(at, end, LUA_HOST_LIVES_MS, &record->age_ms) ||
		!take_bytes(at, end, LUA_FACTS_MAX, &record->facts, &record->facts_len) ||
		!words_take_number(at, end, LUA_RECORDS_MAX, &number))
		return false;
	record->number = (int32_t) number;
	if (!take_bytes(at, end, LUA_CONFIG_MAX, &record->config, &record->config_len))
		return false;
	if (record->config_len == 0)
		record->config = NULL;
	return true;
}

/* Reads a number of bytes, and the bytes. */
static bool
take_bytes(const char **at, const char *end, int64_t most, const char **bytes, size_t *len)
{
	int64_t number;

	if (!words_take_number(at, end, most, &number) || number > end - *at)
		return false;
	*bytes = *at;
	*len = (size_t) number;
	*at += number;
	return true;
}

void
hosts_compare(const HostConfig *ours, const HostConfig *theirs, int64_t seen_us,
			  HostsDifference *difference)
{
	HostConfig then = *ours;
	core_mask in_doubt = 0;
	unsigned kinds;

	for (int i = 0; i < then.count; i++)
		if (!names_process(theirs, &then.node[i]) && is_in_doubt(&then.node[i], seen_us) &&
			!use_former(&then.node[i], theirs))
			in_doubt |= CORE_BIT(i);
	compare(ours, &then, theirs, seen_us, difference);
	difference->guessed = 0;
	difference->guess_kinds = 0;
	kinds = difference->kinds;
	for (int i = 0; i < then.count; i++)
		if (in_doubt & CORE_BIT(i))
			then.node[i].process[0] = '\0';
	if (in_doubt == 0)
		return;
	compare(ours, &then, theirs, seen_us, difference);
	difference->guess_kinds = kinds & ~difference->kinds;
	if (difference->guess_kinds != 0)
		difference->guessed = in_doubt;
}

/* then: our nodes, as known when the other host wrote its configuration */
static void
compare(const HostConfig *now, const HostConfig *then, const HostConfig *theirs, int64_t seen_us,
		HostsDifference *difference)
{
	int known[HOSTS_NODES_MAX];
	unsigned apart = HOSTS_NODES;

	difference->kinds = now->max_ttl_ms != theirs->max_ttl_ms ? HOSTS_MAX_TTL : 0;
	for (int i = 0; i < HOSTS_NODES_MAX; i++)
	{
		difference->twin[i] = -1;
		difference->is_other_db[i] = false;
	}
	pair(then, theirs, difference->twin,
		 seen_us == HOSTS_AT_ANY_TIME ? is_same_last : is_same_process);
	pair(then, theirs, difference->twin, is_same_address);
	for (int i = 0; i < then->count; i++)
	{
		int twin = difference->twin[i];

		if (twin < 0 || then->node[i].db == theirs->node[twin].db)
			continue;
		difference->is_other_db[i] = true;
		difference->kinds |= HOSTS_DATABASES;
	}
	memcpy(known, difference->twin, sizeof(known));
	for (int step = THEY_LEAD; apart != 0 && step <= SAME_STEP; step++)
	{
		memcpy(difference->twin, known, sizeof(known));
		if (seen_us != HOSTS_AT_ANY_TIME)
			pair_rest(then, theirs, difference->twin, step);
		apart = compare_lists(now, theirs, difference->twin, seen_us == HOSTS_AT_ANY_TIME);
	}
	difference->kinds |= apart;
	difference->all_known = knows_all(now) && knows_all(theirs);
}

/* Returns the differences of the lists, given these matches. */
static unsigned
compare_lists(const HostConfig *ours, const HostConfig *theirs, const int twin[HOSTS_NODES_MAX],
			  bool all_vote)
{
	int our_bits[HOSTS_NODES_MAX];
	int their_bits[HOSTS_NODES_MAX];
	int bits = ours->count;
	core_lists our_lists;
	unsigned kinds = 0;

	for (int j = 0; j < theirs->count; j++)
		their_bits[j] = -1;
	for (int i = 0; i < ours->count; i++)
	{
		our_bits[i] = i;
		if (twin[i] >= 0)
			their_bits[twin[i]] = i;
	}
	for (int j = 0; j < theirs->count; j++)
		if (their_bits[j] < 0)
			their_bits[j] = bits++;
	our_lists = lists_of(ours, our_bits, 0);
	for (int list = 0; list <= HOSTS_HELD_MAX; list++)
	{
		core_lists their_lists = lists_of(theirs, their_bits, list);

		if ((list == 0 || their_lists.now != 0) &&
			!quorums_meet(our_lists, all_vote ? ALL : voters_of(ours, our_bits), their_lists,
						  all_vote || list > 0 ? ALL : voters_of(theirs, their_bits)))
			kinds |= list == 0 ? HOSTS_NODES : HOSTS_HELD;
	}
	return kinds;
}

core_mask
hosts_in_doubt(const HostConfig *ours, int64_t seen_us)
{
	core_mask doubt = 0;

	for (int i = 0; i < ours->count; i++)
		doubt |= is_in_doubt(&ours->node[i], seen_us) ? CORE_BIT(i) : 0;
	return doubt;
}

static bool
is_in_doubt(const HostNode *node, int64_t seen_us)
{
	return seen_us != HOSTS_AT_ANY_TIME &&
		   (node->started_us + UNNOTICED_US > seen_us || node->heard_us < seen_us);
}

static bool
names_process(const HostConfig *config, const HostNode *node)
{
	for (int i = 0; i < config->count; i++)
		if (is_same_process(&config->node[i], node))
			return true;
	return false;
}

/* Puts a former process into the node, if the other host's configuration names the process. */
static bool
use_former(HostNode *node, const HostConfig *theirs)
{
	HostNode before = *node;

	for (int i = 0; i < HOSTS_FORMER_MAX; i++)
	{
		memcpy(before.process, node->former[i], sizeof(before.process));
		if (!names_process(theirs, &before))
			continue;
		*node = before;
		return true;
	}
	return false;
}

/* list: 0: the lists in force; else a pair of lists in `held` */
static core_lists
lists_of(const HostConfig *config, const int *bit_of, int list)
{
	core_lists lists = {0};

	for (int i = 0; i < config->count; i++)
	{
		const HostNode *node = &config->node[i];
		unsigned in =
			(unsigned) node->now | (unsigned) node->next << 1 | (unsigned) node->held << 2;

		lists.now |= in >> 2 * list & 1 ? CORE_BIT(bit_of[i]) : 0;
		lists.next |= in >> 2 * list & 2 ? CORE_BIT(bit_of[i]) : 0;
	}
	return lists;
}

static bool
knows_all(const HostConfig *config)
{
	for (int i = 0; i < config->count; i++)
		if (!is_known(&config->node[i]))
			return false;
	return true;
}

/* the nodes that the host can send to */
static core_mask
voters_of(const HostConfig *config, const int *bit_of)
{
	core_mask voters = 0;

	for (int i = 0; i < config->count; i++)
		voters |= is_known(&config->node[i]) ? CORE_BIT(bit_of[i]) : 0;
	return voters;
}

bool
hosts_have_quorum(const HostConfig *config)
{
	int bit_of[HOSTS_NODES_MAX];

	for (int i = 0; i < config->count; i++)
		bit_of[i] = i;
	return core_has_quorum(lists_of(config, bit_of, 0), voters_of(config, bit_of));
}

/* Matches each unmatched node, if possible. */
static void
pair(const HostConfig *ours, const HostConfig *theirs, int twin[HOSTS_NODES_MAX],
	 bool (*same)(const HostNode *one, const HostNode *other))
{
	for (int i = 0; i < ours->count; i++)
		for (int j = 0; j < theirs->count && twin[i] < 0; j++)
			if (is_free(twin, ours->count, j) && same(&ours->node[i], &theirs->node[j]))
				twin[i] = j;
}

/* Matches the rest, the likeliest matches first. */
static void
pair_rest(const HostConfig *ours, const HostConfig *theirs, int twin[HOSTS_NODES_MAX], int step)
{
	for (int likely = LIKENESS_MAX; likely >= 0; likely--)
		for (int i = 0; i < ours->count; i++)
			for (int j = 0; j < theirs->count && twin[i] < 0; j++)
				if (is_free(twin, ours->count, j) &&
					may_be_same(&ours->node[i], &theirs->node[j]) &&
					likeness(&ours->node[i], &theirs->node[j], step) == likely)
					twin[i] = j;
}

static bool
is_free(const int twin[HOSTS_NODES_MAX], int count, int j)
{
	for (int i = 0; i < count; i++)
		if (twin[i] == j)
			return false;
	return true;
}

/*
 * How likely two nodes match.  Nodes in the lists in force count most.  Next counts the number
 * of lists that contain both nodes.  Then known nodes go first, so that each known node finds a
 * match: a node that is known to one host can only match an unknown node.
 */
static int
likeness(const HostNode *ours, const HostNode *theirs, int step)
{
	bool they_held = (theirs->held & HELD_NOW) != 0;
	int lists;

	switch (step)
	{
		case THEY_LEAD:
			lists = (ours->next && theirs->now) + (ours->now && they_held);
			break;
		case THEY_FOLLOW:
			lists = ours->now && theirs->next;
			break;
		default:
			lists = (ours->now && theirs->now) + (ours->next && theirs->next);
	}
	return 6 * (hosts_is_listed(ours) && hosts_is_listed(theirs)) + 2 * lists +
		   (is_known(ours) || is_known(theirs));
}

bool
hosts_is_listed(const HostNode *node)
{
	return node->now || node->next;
}

static bool
is_known(const HostNode *node)
{
	return node->process[0] != '\0';
}

static bool
has_same(const char *one, const char *other)
{
	return one[0] != '\0' && strcmp(one, other) == 0;
}

static bool
is_same_process(const HostNode *one, const HostNode *other)
{
	return has_same(one->process, other->process);
}

static bool
is_same_last(const HostNode *one, const HostNode *other)
{
	return has_same(one->last, other->last);
}

static bool
is_same_address(const HostNode *one, const HostNode *other)
{
	return strcmp(one->address, other->address) == 0 && (!is_known(one) || !is_known(other));
}

static bool
may_be_same(const HostNode *one, const HostNode *other)
{
	return !is_known(one) || !is_known(other);
}

bool
hosts_say_the_same(const HostConfig *one, const HostConfig *other)
{
	if (strcmp(one->prefix, other->prefix) != 0 || one->max_ttl_ms != other->max_ttl_ms ||
		one->standing != other->standing || one->step != other->step || one->count != other->count)
		return false;
	for (int i = 0; i < one->count; i++)
		if (strcmp(one->node[i].address, other->node[i].address) != 0 ||
			one->node[i].db != other->node[i].db || one->node[i].now != other->node[i].now ||
			one->node[i].next != other->node[i].next || one->node[i].held != other->node[i].held)
			return false;
	return true;
}

/* Nodes that the host leaves stay in the configuration, in no list. */
void
hosts_take_step(HostConfig *config)
{
	for (int i = 0; i < config->count && config->step != HOST_STAYS; i++)
	{
		HostNode *node = &config->node[i];

		node->now = config->step == HOST_GOES_ON ? node->next : node->now;
		node->next = false;
	}
	config->step = HOST_STAYS;
}
