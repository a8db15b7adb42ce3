/*
 * inspection_fuzz.c
 *		The verdict of a majority about a lock, by src/protocol/inspection.c.
 *
 * Claims: a verdict names only nodes that answered with a key; a held lock has a quorum; a lock is
 * free only if no value, with the nodes whose answer is unknown, can have one; a node that turns
 * silent never makes a held lock free.
 */
#include "fuzz.h"

#include "protocol/inspection.h"
#include "protocol/value.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* an honest value, of which an input changes bytes */
#define SECRET "0123456789abcdeffedcba9876543210"
#define VALUE SECRET ":000000001:00c0ffee00c0ffee permits=2 host=\"a\""

static void
make_answer(Bytes *bytes, Inspected *at)
{
	memset(at, 0, sizeof(*at));
	at->kind = (InspectedKind) take_below(bytes, INSPECTED_OTHER + 1);
	at->may_have_forgotten = take_below(bytes, 4) == 1;
	at->ttl_ms = (int64_t) take_below(bytes, 8) - 1;
	at->readers = (int) take_below(bytes, 4);
	at->hosts = (int) take_below(bytes, 4);
	for (int k = 0; k < at->hosts; k++)
		at->host[k] = take_below(bytes, 3);
	at->permit[take_below(bytes, sizeof(at->permit))] = (uint8_t) take_below(bytes, 256);
	if (at->kind < INSPECTED_STRING)
		return;
	at->value_len = (int) sizeof(VALUE) - 1;
	memcpy(at->value, VALUE, sizeof(VALUE));
	for (unsigned changes = take_below(bytes, 4); changes > 0; changes--)
	{
		unsigned place = take_below(bytes, sizeof(VALUE));

		at->value[place] = (char) take_below(bytes, 256);
	}
	at->value_len -= (int) take_below(bytes, 3);
}

static bool
has_key(const Inspected *at)
{
	return at->kind >= INSPECTED_STRING;
}

static bool
same_value(const Inspected *one, const Inspected *other)
{
	return one->kind == other->kind && one->value_len == other->value_len &&
		   memcmp(one->value, other->value, one->value_len) == 0;
}

/* The nodes with the very value of node i, and those that may have the value. */
static core_mask
may_agree(core_mask members, const Inspected *node, int i)
{
	core_mask nodes = 0;

	for (int j = 0; j < CORE_NODES_MAX; j++)
	{
		bool may = has_key(&node[j]) ? same_value(&node[j], &node[i])
									 : node[j].kind != INSPECTED_NONE || node[j].may_have_forgotten;

		nodes |= may ? members & CORE_BIT(j) : 0;
	}
	return nodes;
}

static void
check(core_lists lists, const Inspected *node, const Inspection *is)
{
	core_mask members = lists.now | lists.next;
	bool held = is->state == INSPECTION_HELD || is->state == INSPECTION_KEPT;

	must((is->answered & ~members) == 0 && (is->nodes & ~is->answered) == 0);
	must((is->state == INSPECTION_NO_QUORUM) == !core_has_quorum(lists, is->answered));
	must((is->witness == -1) == (is->nodes == 0));
	must(is->witness == -1 || (is->nodes & CORE_BIT(is->witness)));
	must(!held || core_has_quorum(lists, is->nodes));
	must(held || (is->ttl_ms == 0 && is->permits_taken == 0 && is->readers == 0 && is->hosts == 0));
	must(is->ttl_ms >= -1 && is->permits_taken >= 0 && is->permits_taken <= PERMITS_MAX);
	must(is->hosts >= 0 && is->hosts <= LUA_READERS_ASKED);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		Value value;

		/* nodes with other programs' values agree on nothing but the very value */
		value_read(&value, node[i].value, node[i].value_len);
		if (is->nodes & CORE_BIT(i))
			must(has_key(&node[i]) && (value.ours || same_value(&node[i], &node[is->witness])));
		if (is->state == INSPECTION_FREE && (members & CORE_BIT(i)) && has_key(&node[i]))
			must(!core_has_quorum(lists, may_agree(members, node, i)));
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static Inspected node[CORE_NODES_MAX];
	Bytes bytes = {data, data + size};
	core_lists lists = {.now = 1 + take_below(&bytes, 255)};
	unsigned silent = take_below(&bytes, CORE_NODES_MAX);
	Inspection before;
	Inspection after;

	if (take_below(&bytes, 2) == 1)
		lists.next = (core_mask) take_below(&bytes, 256) << take_below(&bytes, 8);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		make_answer(&bytes, &node[i]);
	memset(&before, 0x55, sizeof(before));
	inspection_judge(&before, lists, node, false);
	check(lists, node, &before);

	node[silent] = (Inspected){.kind = INSPECTED_SILENT};
	inspection_judge(&after, lists, node, false);
	check(lists, node, &after);
	if (before.state == INSPECTION_HELD || before.state == INSPECTION_KEPT)
		must(after.state != INSPECTION_FREE);
	return 0;
}
