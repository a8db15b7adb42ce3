/*
 * force_release.c
 *		Forced releases; see force_release.h.
 */
#include "protocol/force_release.h"

#include <string.h>

#include "protocol/value.h"

/* The counter of a node around a round. */
typedef struct Counter
{
	int64_t before; /* at most this number, while the former holder could have the key */
	int64_t after;
} Counter;

static void note_seen(ForceRelease *force, const Inspected *at);
static void take_holder(ForceRelease *force, core_lists lists, const Inspected *node);
static core_mask nodes_with(const ForceRelease *force, core_lists lists, const Inspected *node,
							const Inspected *request);
static ForceVerdict judge(ForceRelease *force, core_lists lists, const Inspected *node);
static bool read_counter(const ForceRelease *force, const Inspected *at, Counter *counter);
static bool was_seen(const ForceRelease *force, const char *value, bool shared);
static core_mask nodes_up_to(const Counter *counter, core_mask among, int64_t most);
static core_mask nodes_above(const Counter *counter, core_mask among, int64_t most);

void
force_begin(ForceRelease *force, core_lists lists, const Inspected *node, bool of_permit,
			int64_t wall_clock_us, uint64_t random)
{
	int64_t most = 0;

	memset(force, 0, sizeof(*force));
	force->round = 1;
	force->of_permit = of_permit;
	force->distance = (int64_t) (random % FORCE_SPREAD);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!((lists.now | lists.next) & CORE_BIT(i)))
			continue;
		if (node[i].counter > most)
			most = node[i].counter;
		if (node[i].kind == INSPECTED_STRING)
			note_seen(force, &node[i]);
	}
	if (most > 0)
		force->least = most + LUA_SPAN + 1 + force->distance;
	else if (force->seen_count > 0)
		force->least = wall_clock_us + force->distance;
	take_holder(force, lists, node);
}

/* Remembers a key of redlock_pg. */
static void
note_seen(ForceRelease *force, const Inspected *at)
{
	ForceSeen *seen = &force->seen[force->seen_count];
	Value value;

	value_read(&value, at->value, (size_t) at->value_len);
	if (!value.ours)
		return;
	seen->shared = value.shared;
	memcpy(seen->request, at->value, VALUE_REQUEST);
	force->seen_count++;
}

/* Finds the holder that a quorum of nodes shows, and the value to be deleted from now on. */
static void
take_holder(ForceRelease *force, core_lists lists, const Inspected *node)
{
	Value value;

	for (int i = 0; i < CORE_NODES_MAX && !force->holder_known; i++)
	{
		if (!core_has_quorum(lists, nodes_with(force, lists, node, &node[i])))
			continue;
		value_read(&value, node[i].value, (size_t) node[i].value_len);
		force->holder_known = true;
		force->permits = value.permits > 0;
		force->value_len = node[i].value_len;
		memcpy(force->value, node[i].value, (size_t) node[i].value_len);
	}
}

/* The nodes of the lists that have the key of a request. */
static core_mask
nodes_with(const ForceRelease *force, core_lists lists, const Inspected *node,
		   const Inspected *request)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (((lists.now | lists.next) & CORE_BIT(i)) && node[i].kind == INSPECTED_STRING &&
			inspection_is_same(request, &node[i], force->of_permit))
			nodes |= CORE_BIT(i);
	return nodes;
}

ForceVerdict
force_judge(ForceRelease *force, core_lists lists, const Inspected *node)
{
	ForceVerdict verdict = judge(force, lists, node);

	if (verdict != FORCE_AGAIN)
		return verdict;
	if (!force->holder_known && force->round == 1)
		take_holder(force, lists, node);
	if (force->value_len == 0)
		force->value[force->value_len++] = '-'; /* equals no value of ours */
	return ++force->round <= FORCE_ROUNDS_MAX ? FORCE_AGAIN : FORCE_FAILED;
}

static ForceVerdict
judge(ForceRelease *force, core_lists lists, const Inspected *node)
{
	Counter counter[CORE_NODES_MAX];
	core_mask counted = 0;
	int64_t least = INT64_MAX; /* no node of some quorum has a larger counter now */

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (((lists.now | lists.next) & CORE_BIT(i)) && read_counter(force, &node[i], &counter[i]))
			counted |= CORE_BIT(i);
	if (!core_has_quorum(lists, counted))
		return FORCE_FAILED;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(counted & CORE_BIT(i)))
			continue;
		if (core_has_quorum(lists, nodes_above(counter, counted, counter[i].before)))
			return FORCE_DONE;
		if (counter[i].after < least &&
			core_has_quorum(lists, nodes_up_to(counter, counted, counter[i].after)))
			least = counter[i].after;
	}
	force->least = least + 1 + force->distance;
	return FORCE_AGAIN;
}

/*
 * Does a node count?  A node with possible loss of data does not: the bound may be lost, too.
 *
 * If another request's key remains, the acquire of this request raised the counter, and found no
 * key of the former holder.  So the node counts, except:
 *
 * - No quorum has shown the holder, so this key may be the holder's, created again by a renewal.
 * - The look saw this request.  The look is not one moment: a quorum may show an attempt, and a
 *   minority the holder.
 * - A plain client wrote this key, and raised no counter.
 */
static bool
read_counter(const ForceRelease *force, const Inspected *at, Counter *counter)
{
	Value value;

	*counter = (Counter){.before = at->counter, .after = at->after};
	if (at->kind <= INSPECTED_ERROR || at->may_have_forgotten)
		return false;
	if (at->forced)
		return true;
	value_read(&value, at->value, (size_t) at->value_len);
	if (!force->holder_known || at->kind != INSPECTED_STRING || !value.ours)
		return false;
	if (value.permits > 0 && !force->of_permit)
	{
		/* sessions have permits, and nobody has the lock itself */
		*counter = (Counter){0};
		return force->permits;
	}
	*counter = (Counter){.before = at->counter - 1, .after = at->counter};
	return at->counter > 0 && !was_seen(force, at->value, value.shared);
}

/* Did the look see the request of a value, or readers, if the value is a reader's? */
static bool
was_seen(const ForceRelease *force, const char *value, bool shared)
{
	for (int i = 0; i < force->seen_count; i++)
		if ((force->seen[i].shared && shared) ||
			memcmp(force->seen[i].request, value, VALUE_REQUEST) == 0)
			return true;
	return false;
}

/* The nodes of `among` whose counter was at most `most`, and is above now. */
static core_mask
nodes_above(const Counter *counter, core_mask among, int64_t most)
{
	core_mask nodes = 0;

	/* without any former counter nothing is to be raised */
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((among & CORE_BIT(i)) && counter[i].before <= most &&
			(most == 0 || counter[i].after > most))
			nodes |= CORE_BIT(i);
	return nodes;
}

/* The nodes of `among` whose counter is at most `most` now. */
static core_mask
nodes_up_to(const Counter *counter, core_mask among, int64_t most)
{
	core_mask nodes = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((among & CORE_BIT(i)) && counter[i].after <= most)
			nodes |= CORE_BIT(i);
	return nodes;
}
