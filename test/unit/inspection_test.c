/*
 * inspection_test.c
 *		Unit tests of what a majority of nodes says of a lock, src/protocol/inspection.c.
 *
 * Protects from: a held lock shown as free; a verdict by a minority.
 */
#include <stdio.h>
#include <string.h>

#include "protocol/inspection.h"
#include "tap.h"

#define SECRET_A "0123456789abcdeffedcba9876543210"
#define SECRET_B "1123456789abcdeffedcba9876543210"
#define REST ":000000001:00c0ffee00c0ffee"

static const char a[] = SECRET_A REST " host=\"a\"";
static const char a_again[] = SECRET_A ":000000002:00c0ffee00c0ffee host=\"a\"";
static const char a_kept[] = SECRET_A REST " kept host=\"a\"";
static const char b[] = SECRET_B REST " host=\"b\"";
static const char reader_a[] = SECRET_A REST "= host=\"a\"";
static const char reader_b[] = SECRET_B REST "= host=\"b\"";
static const char permit_a[] = SECRET_A REST " permits=3 host=\"a\"";
static const char a_kept_permit[] = SECRET_A REST " kept permits=3 host=\"a\"";
static const char permit_of_4[] = SECRET_B REST " permits=4 host=\"b\"";
static const char permit_b[] = SECRET_B REST " permits=3 host=\"b\"";

static const core_lists five = {.now = 31};

static Inspected node[CORE_NODES_MAX];
static Inspection result;

static void
reset(void)
{
	memset(node, 0, sizeof(node));
	for (int i = 0; i < CORE_NODES_MAX; i++)
		node[i].kind = INSPECTED_NONE;
}

static void
put(int from, int to, const char *value)
{
	for (int i = from; i <= to; i++)
	{
		node[i].kind = INSPECTED_STRING;
		node[i].ttl_ms = 1000 * (i + 1);
		node[i].value_len = (int) strlen(value);
		strcpy(node[i].value, value);
	}
}

static void
fail(int from, int to)
{
	for (int i = from; i <= to; i++)
		node[i].kind = i % 2 ? INSPECTED_SILENT : INSPECTED_ERROR;
}

static void
judge(InspectionState state, core_mask nodes, const char *what)
{
	inspection_judge(&result, five, node, false);
	ok(result.state == state && result.nodes == nodes, "%s: state %d, nodes %u", what, result.state,
	   (unsigned) result.nodes);
}

static void
test_votes(void)
{
	reset();
	judge(INSPECTION_FREE, 0, "no key");
	ok(result.witness == -1 && result.ttl_ms == 0, "nothing to show");
	put(0, 1, a);
	judge(INSPECTION_FREE, 3, "a key at a minority");
	put(2, 2, a_again);
	judge(INSPECTION_HELD, 7, "a key at a majority, of two attempts");
	ok(result.ttl_ms == 1000, "a majority has it until the first of three ends");
	put(3, 4, a);
	judge(INSPECTION_HELD, 31, "at all nodes");
	ok(result.ttl_ms == 3000, "the third end of five counts");
	put(3, 4, b);
	judge(INSPECTION_HELD, 7, "another request at a minority");
	put(2, 2, b);
	judge(INSPECTION_HELD, 28, "at a majority");
	put(2, 2, "plain");
	judge(INSPECTION_FREE, 3, "two, two and one");
	put(0, 2, "plain");
	judge(INSPECTION_HELD, 7, "a plain client");
	put(0, 1, a);
	put(2, 2, SECRET_A);
	judge(INSPECTION_FREE, 3, "a plain client whose value begins like another value");
	put(0, 1, "plain");
	put(2, 2, "plane");
	judge(INSPECTION_FREE, 3, "two plain clients");
	put(2, 2, "plain");
	node[0].kind = INSPECTED_OTHER;
	judge(INSPECTION_FREE, 6, "a text about a key is not a value");
}

static void
test_witness(void)
{
	static const char lie[] = SECRET_A REST " host=\"b\"";
	static const char idle[] = SECRET_A REST "~host=\"a\"";

	reset();
	put(0, 0, lie);
	put(1, 4, a);
	put(2, 2, a_again);
	judge(INSPECTION_HELD, 31, "one node tells of another holder");
	ok(result.witness == 1, "a majority is shown: node %d", result.witness);
	put(3, 4, idle);
	judge(INSPECTION_HELD, 31, "two nodes know that the lease may be idle");
	ok(result.witness == 1, "also beside two others: node %d", result.witness);
	put(2, 2, idle);
	judge(INSPECTION_HELD, 31, "three nodes know it");
	ok(result.witness == 2, "the most nodes are shown: node %d", result.witness);
	reset();
	put(0, 2, a_kept);
	put(0, 0, SECRET_A REST " kept host=\"b\"");
	judge(INSPECTION_KEPT, 7, "one of three nodes tells of another last holder");
	ok(result.witness == 1, "two nodes are shown: node %d", result.witness);
}

static void
test_one_permit(void)
{
	reset();
	put(0, 1, permit_a);
	put(2, 2, permit_b);
	inspection_judge(&result, five, node, true);
	ok(result.state == INSPECTION_FREE && result.nodes == 3, "two requests for one permit");
	put(2, 2, permit_a);
	inspection_judge(&result, five, node, true);
	ok(result.state == INSPECTION_HELD && result.nodes == 7, "one holder of the permit");
}

static void
test_silence(void)
{
	reset();
	fail(0, 2);
	judge(INSPECTION_NO_QUORUM, 0, "three nodes without an answer");
	fail(0, 1);
	node[2].kind = INSPECTED_NONE;
	judge(INSPECTION_FREE, 0, "two without an answer, three without a key");
	put(2, 2, a);
	judge(INSPECTION_UNKNOWN, 4, "one with a key: the silent ones decide");
	put(3, 4, a);
	judge(INSPECTION_HELD, 28, "a majority, whatever the others say");
	put(3, 3, b);
	put(4, 4, "x");
	judge(INSPECTION_UNKNOWN, 4, "any of three may have it");
	reset();
	node[0].may_have_forgotten = node[1].may_have_forgotten = true;
	judge(INSPECTION_FREE, 0, "two that may have forgotten");
	node[2].may_have_forgotten = true;
	judge(INSPECTION_UNKNOWN, 0, "three");
	put(0, 2, a);
	judge(INSPECTION_HELD, 7, "a key counts all the same");
}

/*
 * "The same lock" is an equivalence.  Otherwise the key of a lying node could join the keys of two
 * requests to a majority, and a free lock would count as held.
 */
static void
test_sets(void)
{
	static const char both[] = SECRET_A REST "= permits=3 host=\"a\"";
	static const char three[] = SECRET_A REST " permits=3 kept host=\"a\"";
	static const char four[] = SECRET_B REST " permits=4 host=\"a\"";
	static const char plain_a[] = SECRET_A " of another program";
	static const char *const value[] = {a,        a_again,  a_kept,   b,    reader_a,
										reader_b, permit_a, permit_b, both, three,
										four,     "plain",  plain_a};
	enum
	{
		COUNT = sizeof(value) / sizeof(value[0])
	};
	static Inspected at[COUNT];
	int together = 0;
	int faults = 0;

	reset();
	for (int i = 0; i < COUNT; i++)
	{
		put(0, 0, value[i]);
		at[i] = node[0];
	}
	for (int of_permit = 0; of_permit < 2; of_permit++)
		for (int i = 0; i < COUNT; i++)
			for (int j = 0; j < COUNT; j++)
			{
				bool same = inspection_is_same(&at[i], &at[j], of_permit);

				together += same;
				faults +=
					same != inspection_is_same(&at[j], &at[i], of_permit) || (i == j && !same);
				for (int k = 0; k < COUNT; k++)
					faults += same && inspection_is_same(&at[j], &at[k], of_permit) !=
										  inspection_is_same(&at[i], &at[k], of_permit);
			}
	ok(faults == 0 && together > 2 * COUNT, "%d pairs of keys belong together, in sets", together);
}

static void
test_kinds(void)
{
	reset();
	put(0, 2, a);
	put(1, 1, a_kept);
	judge(INSPECTION_KEPT, 7, "one kept key tells of the release");
	ok(result.witness == 1, "and is shown");
	put(1, 1, a);
	put(0, 0, a_kept);
	judge(INSPECTION_KEPT, 7, "also at the first node");
	put(0, 2, permit_a);
	put(1, 1, a_kept_permit);
	judge(INSPECTION_HELD, 7, "a kept key of one permit tells nothing of other permits");
	inspection_judge(&result, five, node, true);
	ok(result.state == INSPECTION_KEPT, "but the kept key of this permit tells of its release");
	put(0, 2, a_kept);
	for (int i = 0; i < 3; i++)
		node[i].kind = INSPECTED_OTHER;
	judge(INSPECTION_HELD, 7, "a text about a key is never a kept key");
	reset();
	put(0, 1, reader_a);
	put(2, 3, reader_b);
	judge(INSPECTION_HELD, 15, "readers hold the lock together");
	node[0].readers = node[0].hosts = 1;
	node[1].readers = node[2].readers = node[1].hosts = node[2].hosts = 2;
	node[0].host[0] = node[1].host[1] = node[2].host[0] = 7;
	node[1].host[0] = node[2].host[1] = 8;
	judge(INSPECTION_HELD, 15, "with their hosts");
	ok(result.readers == 1 && result.hosts == 1 && result.host[0] == 7,
	   "a reader counts that a majority knows");
	reset();
	put(0, 4, reader_a);
	for (int i = 0; i < 5; i++)
		for (uint64_t host = 0; host < 100; host++)
			if ((host + (uint64_t) i) % 5 < 3)
				node[i].host[node[i].hosts++] = host;
	judge(INSPECTION_HELD, 31, "100 readers, each at three of five nodes");
	ok(result.hosts == LUA_READERS_ASKED, "as many as there is room for are listed");
	reset();
	put(0, 1, permit_a);
	put(2, 3, permit_b);
	for (int i = 0; i < 4; i++)
		node[i].permit[0] = i < 3 ? 3 : 6;
	node[0].permit[PERMITS_MAX / 8 - 1] = 128;
	judge(INSPECTION_HELD, 15, "holders of permits");
	ok(result.permits_taken == 2, "two permits at a majority: %d", result.permits_taken);
	put(0, 3, SECRET_A REST " kept permits=3 host=\"a\"");
	judge(INSPECTION_HELD, 15, "a kept permit beside others");
	put(2, 3, permit_of_4);
	judge(INSPECTION_FREE, 3, "holders of another number of permits");
	reset();
	put(0, 4, a);
	for (int i = 0; i < 3; i++)
		node[i].ttl_ms = -1;
	judge(INSPECTION_HELD, 31, "keys without an end");
	ok(result.ttl_ms == -1, "at a majority");
	ok(result.counter == 0, "without counters");
	for (int i = 0; i < 5; i++)
		node[i].counter = i == 1 ? INT64_MAX : 10 * i;
	judge(INSPECTION_HELD, 31, "with counters");
	ok(result.counter == 30, "a majority has reached the third: %d", (int) result.counter);
	for (int i = 0; i < 5; i++)
		node[i].counter = 0;
	node[0].ttl_ms = 7;
	judge(INSPECTION_HELD, 31, "at a minority");
	ok(result.ttl_ms == 5000, "then the longest other: %d", (int) result.ttl_ms);
}

/* While there are two lists, a lock needs a majority of both. */
static void
test_two_lists(void)
{
	const core_lists lists = {.now = 7, .next = 56};

	reset();
	put(0, 2, a);
	inspection_judge(&result, lists, node, false);
	ok(result.state == INSPECTION_FREE, "a majority of one list");
	put(3, 4, a);
	inspection_judge(&result, lists, node, false);
	ok(result.state == INSPECTION_HELD, "of both");
	fail(3, 4);
	inspection_judge(&result, lists, node, false);
	ok(result.state == INSPECTION_NO_QUORUM, "no answer from one list");
	ok(inspection_nodes(lists, node, INSPECTED_STRING) == 7, "nodes with a key");
	ok(inspection_nodes(lists, node, INSPECTED_SILENT) == 8, "nodes without an answer");

	/* the lists share nodes 1 and 2 */
	reset();
	put(0, 3, b);
	put(1, 2, a);
	inspection_judge(&result, (core_lists){.now = 7, .next = 14}, node, false);
	ok(result.state == INSPECTION_HELD && result.nodes == 6,
	   "a majority of both lists, beside as many nodes without a majority");
}

/* Hosts hear of a forced release, or of an ask. */
static void
test_hosts(void)
{
	uint64_t host[INSPECTION_HOSTS_MAX];

	reset();
	put(0, 2, a);
	put(3, 3, reader_a);
	put(4, 4, "plain");
	node[3].hosts = 2;
	node[3].host[0] = 7;
	node[3].host[1] = UINT64_C(0x00c0ffee00c0ffee);
	ok(inspection_hosts(node, false, host) == 2 && host[0] == UINT64_C(0x00c0ffee00c0ffee) &&
		   host[1] == 7,
	   "each host of a key or of a reader, once");
	ok(inspection_hosts(node, true, host) == 0, "none, if no key was deleted");
	node[3].forced = true;
	ok(inspection_hosts(node, true, host) == 2 && host[0] == 7, "the hosts of a deleted key");
	node[3].hosts = 0;
	ok(inspection_hosts(node, true, host) == 0,
	   "the host in a reader's value may have left: only the list of readers counts");
	for (int i = 0; i < 3; i++)
	{
		node[i].hosts = LUA_READERS_ASKED;
		for (int k = 0; k < LUA_READERS_ASKED; k++)
			node[i].host[k] = (uint64_t) (100 * i + k);
	}
	ok(inspection_hosts(node, false, host) == INSPECTION_HOSTS_MAX, "not more than there is room");
}

int
main(void)
{
	test_votes();
	test_witness();
	test_one_permit();
	test_silence();
	test_sets();
	test_kinds();
	test_two_lists();
	test_hosts();
	return tap_done();
}
