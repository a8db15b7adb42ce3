/*
 * overlap_test.c
 *		Unit tests of the overlap of two hosts' lists, src/protocol/overlap.c.
 *
 * Protects from: no conflict between two hosts with quorums apart, since their lists seem to
 * overlap; a conflict although all quorums meet, for example during a change of the list.
 */
#include "protocol/overlap.h"

#include "tap.h"

#define UNIVERSE 4
#define SETS (1 << UNIVERSE)
#define ALL (~(core_mask) 0)

static core_lists
lists(core_mask now, core_mask next)
{
	return (core_lists){now, next};
}

/* `count` nodes, from `first` on */
static core_mask
nodes(int first, int count)
{
	return (((core_mask) 1 << count) - 1) << first;
}

static int
size(core_mask set)
{
	int count = 0;

	for (; set != 0; set &= set - 1)
		count++;
	return count;
}

static bool
meet(core_lists one, core_lists other)
{
	return quorums_meet(one, ALL, other, ALL);
}

/* The definition: each quorum of a host, in any set of nodes, meets each quorum of the other. */
static bool
meet_by_definition(core_lists one, core_mask ones, core_lists other, core_mask others)
{
	for (core_mask mine = 0; mine < SETS; mine++)
		for (core_mask theirs = 0; theirs < SETS; theirs++)
			if ((mine & theirs) == 0 && (mine & ~ones) == 0 && (theirs & ~others) == 0 &&
				2 * size(mine & one.now) > size(one.now) &&
				(one.next == 0 || 2 * size(mine & one.next) > size(one.next)) &&
				2 * size(theirs & other.now) > size(other.now) &&
				(other.next == 0 || 2 * size(theirs & other.next) > size(other.next)))
				return false;
	return true;
}

/*
 * Returns the number of results that differ from the definition, or between the two directions.
 * Counts meeting pairs.
 */
static int
wrong_about(core_lists one, core_mask ones, core_lists other, core_mask others, int *count)
{
	bool met = quorums_meet(one, ones, other, others);

	*count += met;
	return (met != meet_by_definition(one, ones, other, others)) +
		   (met != quorums_meet(other, others, one, ones));
}

static void
test_definition(void)
{
	int wrong = 0;
	int count = 0;

	for (core_mask a = 1; a < SETS; a++)
		for (core_mask a_next = 0; a_next < SETS; a_next++)
			for (core_mask b = 1; b < SETS; b++)
				for (core_mask b_next = 0; b_next < SETS; b_next++)
					wrong += wrong_about(lists(a, a_next), ALL, lists(b, b_next), ALL, &count);
	ok(wrong == 0 && count > 0, "all pairs of lists of up to %d nodes, %d of which meet", UNIVERSE,
	   count);
}

static void
test_voters(void)
{
	int wrong = 0;
	int count = 0;

	for (core_mask b = 1; b < SETS; b++)
		for (core_mask b_next = 0; b_next < SETS; b_next++)
			for (core_mask ones = 0; ones < SETS; ones++)
				for (core_mask others = 0; others < SETS; others++)
					wrong += wrong_about(lists(7, 14), ones, lists(b, b_next), others, &count);
	ok(wrong == 0 && count > 0, "by all sets of nodes that vote, %d of which meet", count);
}

/* For two single lists counting is enough: each host first takes the nodes of its list alone. */
static void
test_counts(void)
{
	int wrong = 0;

	for (int a = 1; a <= 15; a++)
		for (int b = 1; b <= 15; b++)
			for (int common = 0; common <= a && common <= b; common++)
			{
				int a_takes = a / 2 + 1 - (a - common);
				int b_takes = b / 2 + 1 - (b - common);
				bool met = (a_takes > 0 ? a_takes : 0) + (b_takes > 0 ? b_takes : 0) > common;

				wrong += met != meet(lists(nodes(0, a), 0), lists(nodes(a - common, b), 0));
			}
	ok(wrong == 0, "single lists of up to 15 nodes, with any number in common");
}

static void
test_change(void)
{
	core_mask old = nodes(0, 5);
	core_mask new = nodes(5, 5);

	ok(!meet(lists(old, 0), lists(new, 0)), "all nodes replaced at once: two locks");
	ok(meet(lists(old, 0), lists(old, new)), "the old list, and both");
	ok(meet(lists(old, new), lists(new, 0)), "both, and the new list");
	ok(meet(lists(old, new), lists(new, old)), "both, in either order");
	ok(!meet(lists(old, nodes(10, 5)), lists(new, 0)), "two changes at once don't meet");
	ok(meet(lists(nodes(0, 5), 0), lists(nodes(0, 6), 0)), "one node more");
	ok(!meet(lists(nodes(0, 5), 0), lists(nodes(1, 5), 0)),
	   "one of five replaced without both lists: two locks");
	ok(meet(lists(CORE_BIT(0), CORE_BIT(1)), lists(nodes(0, 3), 0)),
	   "two lists of one node each, which are two of three");
}

int
main(void)
{
	test_definition();
	test_voters();
	test_counts();
	test_change();
	return tap_done();
}
