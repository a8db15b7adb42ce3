/*
 * node_index_test.c
 *		Unit tests of the indexes of nodes, src/protocol/node_index.c.
 *
 * Protects from: a listed node changing its index; an index given to another node while leases
 * live at the present node, or an undo is still due there; a list taken in part.
 */
#include "protocol/node_index.h"

#include <string.h>

#include "tap.h"

#define INDEXES 6
#define NODES_MAX 8

static const struct
{
	const char *what;
	NodeIndexUse use;
	int nodes;
	int index[NODES_MAX]; /* before */
	bool enough;
	int expected[NODES_MAX];
	core_mask to_leave; /* after the change */
} lists[] = {
	{"the first list", {0}, 3, {-1, -1, -1}, true, {0, 1, 2}, 0},
	{"the same list", {7, 7, 0}, 3, {0, 1, 2}, true, {0, 1, 2}, 0},
	{"the same in another order", {7, 0, 0}, 3, {2, 0, 1}, true, {2, 0, 1}, 0},
	{"one more", {7, 7, 0}, 4, {0, 1, 2, -1}, true, {0, 1, 2, 3}, 0},
	{"one less, which serves nobody", {7, 3, 0}, 2, {0, 1}, true, {0, 1}, 4},
	{"one less, which serves a lease", {7, 7, 0}, 2, {0, 1}, true, {0, 1}, 0},
	{"one less, with a command under way", {7, 3, 4}, 2, {0, 1}, true, {0, 1}, 0},
	{"all are replaced", {7, 7, 0}, 3, {-1, -1, -1}, true, {3, 4, 5}, 0},
	{"a free index comes before that of a node that can be left", {7, 0, 0}, 1, {-1}, true, {3}, 7},
	{"indexes of nodes that can be left are taken",
	 {63, 7, 0},
	 3,
	 {-1, -1, -1},
	 true,
	 {3, 4, 5},
	 0},
	{"not those that serve leases", {63, 15, 0}, 3, {-1, -1, -1}, false, {0}, 0},
	{"nor those with commands under way", {63, 7, 8}, 3, {-1, -1, -1}, false, {0}, 0},
	{"nor those that are listed", {63, 0, 0}, 6, {-1, 0, 1, 2, 3, 4}, true, {5, 0, 1, 2, 3, 4}, 0},
	{"nor is one given twice", {31, 31, 0}, 2, {-1, -1}, false, {0}, 0},
	{"more nodes than indexes", {0}, 7, {-1, -1, -1, -1, -1, -1, -1}, false, {0}, 0},
	{"no list at all", {7, 2, 4}, 0, {0}, true, {0}, 1},
};

static void
test_all_indexes(void)
{
	NodeIndexUse use = {.taken = ~CORE_BIT(31), .leased = ~CORE_BIT(31)};
	core_mask listed = 0;
	int index = -1;

	ok(node_index_assign(use, 32, &index, 1, &listed) && index == 31 && listed == CORE_BIT(31),
	   "a mask has room for 32 indexes");
}

int
main(void)
{
	test_all_indexes();
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
	{
		int index[NODES_MAX];
		core_mask before = 1 << 15;
		core_mask listed = before;
		core_mask expected = 0;
		bool enough;

		memcpy(index, lists[i].index, sizeof(index));
		enough = node_index_assign(lists[i].use, INDEXES, index, lists[i].nodes, &listed);
		if (!lists[i].enough)
		{
			ok(!enough && listed == before, "%s: too few, and nothing is listed", lists[i].what);
			continue;
		}
		for (int n = 0; n < lists[i].nodes; n++)
			expected |= CORE_BIT(lists[i].expected[n]);
		ok(enough && listed == expected &&
			   memcmp(index, lists[i].expected, sizeof(index[0]) * (size_t) lists[i].nodes) == 0,
		   "%s: each node has its index", lists[i].what);
		ok(node_index_to_leave(lists[i].use, listed) == lists[i].to_leave, "%s: what is left",
		   lists[i].what);
	}
	return tap_done();
}
