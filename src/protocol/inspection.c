/*
 * inspection.c
 *		What a majority of nodes says of a lock; see inspection.h.
 */
#include "protocol/inspection.h"

#include <string.h>

#include "protocol/value.h"

static bool has_key(const Inspected *at);
static core_mask nodes_like(const Inspected *node, int i, core_mask among, bool of_permit);
static int count_of(core_mask nodes);
static void judge_group(Inspection *inspection, core_lists lists, const Inspected *node,
						core_mask unknown, bool of_permit);
static void find_group(Inspection *inspection, core_lists lists, const Inspected *node,
					   bool of_permit);
static int choose_witness(const Inspected *node, core_mask nodes);
static bool tell_the_same(const Inspected *one, const Inspected *other);
static void add_up(Inspection *inspection, core_lists lists, const Inspected *node);
static int64_t reached(core_lists lists, core_mask nodes, const int64_t number[CORE_NODES_MAX]);
static void add_host(Inspection *inspection, core_lists lists, const Inspected *node,
					 uint64_t host);
static bool knows_host(const Inspected *at, uint64_t host);
static int add_once(uint64_t *host, int count, uint64_t another);

void
inspection_judge(Inspection *inspection, core_lists lists, const Inspected *node, bool of_permit)
{
	core_mask members = lists.now | lists.next;
	core_mask unknown = 0;

	memset(inspection, 0, sizeof(*inspection));
	inspection->witness = -1;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members & CORE_BIT(i)))
			continue;
		if (node[i].kind > INSPECTED_ERROR)
			inspection->answered |= CORE_BIT(i);
		if (!has_key(&node[i]) && (node[i].kind != INSPECTED_NONE || node[i].may_have_forgotten))
			unknown |= CORE_BIT(i);
	}
	find_group(inspection, lists, node, of_permit);
	if (!core_has_quorum(lists, inspection->answered))
		return;
	judge_group(inspection, lists, node, unknown, of_permit);
	add_up(inspection, lists, node);
}

static bool
has_key(const Inspected *at)
{
	return at->kind == INSPECTED_STRING || at->kind == INSPECTED_OTHER;
}

bool
inspection_is_same(const Inspected *one, const Inspected *other, bool of_permit)
{
	Value value, other_value;

	if (!has_key(one) || one->kind != other->kind)
		return false;
	value_read(&value, one->value, (size_t) one->value_len);
	value_read(&other_value, other->value, (size_t) other->value_len);
	if (one->kind == INSPECTED_OTHER || !value.ours || !other_value.ours)
		return one->value_len == other->value_len &&
			   memcmp(one->value, other->value, (size_t) one->value_len) == 0;
	if (value.shared || other_value.shared)
		return value.shared && other_value.shared;
	if (!of_permit && (value.permits > 0 || other_value.permits > 0))
		return value.permits == other_value.permits;
	return memcmp(one->value, other->value, VALUE_REQUEST) == 0;
}

/*
 * Sets nodes and witness.  The nodes: the majority with one lock, or else the largest set.  A
 * majority of two lists with common nodes may be the smaller set.
 */
static void
find_group(Inspection *inspection, core_lists lists, const Inspected *node, bool of_permit)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		core_mask same = nodes_like(node, i, lists.now | lists.next, of_permit);
		bool is_majority = core_has_quorum(lists, same);

		if (is_majority || count_of(same) > count_of(inspection->nodes))
			inspection->nodes = same;
		if (is_majority)
			break;
	}
	inspection->witness = choose_witness(node, inspection->nodes);
}

/* Returns the node whose value the most of these nodes have: a node may lie.  -1: no nodes. */
static int
choose_witness(const Inspected *node, core_mask nodes)
{
	int witness = -1;
	int most = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int count = 0;

		for (int j = 0; j < CORE_NODES_MAX; j++)
			if ((nodes & CORE_BIT(i)) && (nodes & CORE_BIT(j)))
				count += tell_the_same(&node[i], &node[j]);
		if (count > most)
		{
			most = count;
			witness = i;
		}
	}
	return witness;
}

/* Do two values have the same host and text?  Each attempt of a request has another number. */
static bool
tell_the_same(const Inspected *one, const Inspected *other)
{
	Value value;
	int from;

	value_read(&value, one->value, (size_t) one->value_len);
	from = value.ours ? VALUE_HOST_AT : 0;
	return one->value_len == other->value_len &&
		   memcmp(one->value + from, other->value + from, (size_t) (one->value_len - from)) == 0;
}

/* Returns the nodes of `among` with the lock of node i; none if `among` lacks node i. */
static core_mask
nodes_like(const Inspected *node, int i, core_mask among, bool of_permit)
{
	core_mask same = 0;

	if (!(among & CORE_BIT(i)) || !has_key(&node[i]))
		return 0;
	for (int j = 0; j < CORE_NODES_MAX; j++)
		if ((among & CORE_BIT(j)) && inspection_is_same(&node[i], &node[j], of_permit))
			same |= CORE_BIT(j);
	return same;
}

static int
count_of(core_mask nodes)
{
	int count = 0;

	for (; nodes != 0; nodes &= nodes - 1)
		count++;
	return count;
}

/*
 * Sets the state.  A lock is free only if no set of nodes, together with the nodes in `unknown`,
 * is a majority.
 */
static void
judge_group(Inspection *inspection, core_lists lists, const Inspected *node, core_mask unknown,
			bool of_permit)
{
	core_mask kept = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (inspection->nodes & CORE_BIT(i))
		{
			Value value;

			/* no renewal follows a release, so one kept key proves the end of the lease */
			value_read(&value, node[i].value, node[i].value_len);
			if (node[i].kind == INSPECTED_STRING && value.kept && (of_permit || value.permits == 0))
				kept |= CORE_BIT(i);
		}
	if (kept != 0)
		inspection->witness = choose_witness(node, kept);
	if (core_has_quorum(lists, inspection->nodes))
		inspection->state = kept != 0 ? INSPECTION_KEPT : INSPECTION_HELD;
	else
	{
		inspection->state = INSPECTION_FREE;
		for (int i = 0; i < CORE_NODES_MAX; i++)
			if (core_has_quorum(lists,
								nodes_like(node, i, inspection->answered, of_permit) | unknown))
				inspection->state = INSPECTION_UNKNOWN;
	}
}

/* Sets the facts of a majority beside the value: time to live, counter, permits, readers. */
static void
add_up(Inspection *inspection, core_lists lists, const Inspected *node)
{
	int64_t ttl_ms[CORE_NODES_MAX];
	int64_t counter[CORE_NODES_MAX];
	int64_t readers[CORE_NODES_MAX];

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		ttl_ms[i] = node[i].ttl_ms >= 0 ? node[i].ttl_ms : INT64_MAX;
		counter[i] = node[i].counter;
		readers[i] = node[i].readers;
	}
	inspection->ttl_ms = reached(lists, inspection->nodes, ttl_ms);
	if (inspection->ttl_ms == INT64_MAX)
		inspection->ttl_ms = -1; /* the keys never expire */
	inspection->counter = reached(lists, inspection->nodes, counter);
	inspection->readers = (int) reached(lists, inspection->nodes, readers);
	for (int n = 0; n < PERMITS_MAX; n++)
	{
		core_mask taken = 0;

		for (int i = 0; i < CORE_NODES_MAX; i++)
			if ((inspection->nodes & CORE_BIT(i)) && (node[i].permit[n / 8] & 1 << n % 8))
				taken |= CORE_BIT(i);
		if (core_has_quorum(lists, taken))
			inspection->permits_taken++;
	}
	for (int i = 0; i < CORE_NODES_MAX; i++)
		for (int k = 0; (inspection->nodes & CORE_BIT(i)) && k < node[i].hosts; k++)
			add_host(inspection, lists, node, node[i].host[k]);
}

/* The largest number that a quorum within `nodes` reaches, or 0. */
static int64_t
reached(core_lists lists, core_mask nodes, const int64_t number[CORE_NODES_MAX])
{
	int64_t most = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		core_mask at_least = 0;

		if (!(nodes & CORE_BIT(i)) || number[i] <= most)
			continue;
		for (int j = 0; j < CORE_NODES_MAX; j++)
			if ((nodes & CORE_BIT(j)) && number[j] >= number[i])
				at_least |= CORE_BIT(j);
		if (core_has_quorum(lists, at_least))
			most = number[i];
	}
	return most;
}

/* Adds a host that a majority knows as a reader, once. */
static void
add_host(Inspection *inspection, core_lists lists, const Inspected *node, uint64_t host)
{
	core_mask known_to = 0;

	for (int k = 0; k < inspection->hosts; k++)
		if (inspection->host[k] == host)
			return;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((inspection->nodes & CORE_BIT(i)) && knows_host(&node[i], host))
			known_to |= CORE_BIT(i);
	if (core_has_quorum(lists, known_to) && inspection->hosts < LUA_READERS_ASKED)
		inspection->host[inspection->hosts++] = host;
}

static bool
knows_host(const Inspected *at, uint64_t host)
{
	for (int k = 0; k < at->hosts; k++)
		if (at->host[k] == host)
			return true;
	return false;
}

core_mask
inspection_nodes(core_lists lists, const Inspected *node, InspectedKind kind)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (((lists.now | lists.next) & CORE_BIT(i)) && node[i].kind == kind)
			nodes |= CORE_BIT(i);
	return nodes;
}

int
inspection_hosts(const Inspected *node, bool forced, uint64_t host[INSPECTION_HOSTS_MAX])
{
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		Value value;

		if (node[i].kind != INSPECTED_STRING || (forced && !node[i].forced))
			continue;
		value_read(&value, node[i].value, (size_t) node[i].value_len);
		if (value.ours && !value.shared)
			count = add_once(host, count, value.host);
		for (int k = 0; k < node[i].hosts; k++)
			count = add_once(host, count, node[i].host[k]);
	}
	return count;
}

/* Adds a host, unless it is there, or no place is left.  Returns the number of hosts. */
static int
add_once(uint64_t *host, int count, uint64_t another)
{
	for (int i = 0; i < count; i++)
		if (host[i] == another)
			return count;
	if (count < INSPECTION_HOSTS_MAX)
		host[count++] = another;
	return count;
}
