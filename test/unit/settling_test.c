/*
 * settling_test.c
 *		Unit tests of leases on all lists of nodes in force, src/protocol/settling.c.
 *
 * Protects from: a list taken away while a lease, a request with a possible grant, or a key kept
 * after its release is only at this list; a host that never settles.
 */
#include "protocol/settling.h"

#include <string.h>

#include "tap.h"

#define OLD ((core_mask) 7)
#define NEW ((core_mask) 56)
#define OTHER ((core_mask) 448)

static Settling settling;

static core_lists
lists(core_mask now, core_mask next)
{
	return (core_lists){now, next};
}

static core_lease
lease(core_state state, core_lists of, bool settled)
{
	core_lease lease;

	memset(&lease, 0, sizeof(lease));
	lease.state = state;
	lease.lists = of;
	lease.settled = settled;
	return lease;
}

static bool
has(core_state state, core_lists of, bool settled)
{
	core_lease one = lease(state, of, settled);

	return settling_on_all_lists(&settling, &one);
}

static void
keep(core_lists of, bool settled, int64_t until_us)
{
	core_lease one = lease(CORE_RELEASING, of, settled);

	settling_keep(&settling, &one, until_us);
}

static void
in_force(core_lists of)
{
	settling_set_lists(&settling, of, 0);
}

static void
start(core_lists of)
{
	memset(&settling, 0, sizeof(settling));
	settling_set_lists(&settling, of, of.now | of.next);
}

static void
test_leases(void)
{
	start(lists(OLD, NEW));
	ok(has(CORE_HELD, lists(OLD, NEW), true), "a lease that both lists have is at rest");
	ok(!has(CORE_HELD, lists(OLD, NEW), false), "one that the next list does not have yet is not");
	ok(!has(CORE_HELD, lists(OLD, 0), true), "nor one that is at the old list alone");
	ok(!has(CORE_HELD, lists(NEW, 0), true), "nor one that is at the next alone");
	ok(!has(CORE_ASKING, lists(OLD, 0), false) && !has(CORE_BUSY, lists(OLD, 0), false),
	   "nor a request that may be granted by the old list");
	ok(has(CORE_ASKING, lists(OLD, NEW), false) && has(CORE_BUSY, lists(OLD, NEW), false),
	   "a request of both is no lease yet");
	ok(has(CORE_FREE, lists(OLD, 0), false) && has(CORE_LOST, lists(OLD, 0), false) &&
		   has(CORE_RELEASING, lists(OLD, 0), false),
	   "who holds nothing needs no list");
}

static bool
excludes_by(core_state state, bool settled, core_lists expected)
{
	core_lease one = lease(state, lists(OLD, NEW), settled);
	core_lists by = settling_excluding(&one);

	return by.now == expected.now && by.next == expected.next;
}

static void
test_excluding(void)
{
	core_lists both = lists(OLD, NEW);

	ok(excludes_by(CORE_ASKING, false, both) && excludes_by(CORE_BUSY, false, both),
	   "both lists must grant a request");
	ok(excludes_by(CORE_HELD, true, both), "both lists have a settled lease");
	ok(excludes_by(CORE_HELD, false, lists(OLD, 0)),
	   "only the old list is sure to have another lease");
}

static void
test_keys(void)
{
	start(lists(OLD, 0));
	keep(lists(OLD, 0), true, 500);
	keep(lists(OLD, 0), true, 300);
	ok(settling.unsettled_until_us == 0, "a key that is kept is at the list in force");
	in_force(lists(OLD, 0));
	ok(settling.unsettled_until_us == 0, "also when that is put into force again");
	in_force(lists(OLD, NEW));
	ok(settling.unsettled_until_us == 500, "but not at a list that comes after it");
	keep(lists(OLD, NEW), true, 700);
	ok(settling.unsettled_until_us == 500, "one that both lists keep is");
	keep(lists(OLD, NEW), false, 600);
	ok(settling.unsettled_until_us == 600, "one that the next list may not have is not");
	keep(lists(OLD, 0), true, 650);
	ok(settling.unsettled_until_us == 650, "nor one that is kept at the old list alone");
	in_force(lists(NEW, 0));
	ok(settling.unsettled_until_us == 650, "what both have is where the next list takes over");
	in_force(lists(NEW, OTHER));
	ok(settling.unsettled_until_us == 700, "and is not at one that comes then");
}

static void
test_way_back(void)
{
	start(lists(OLD, NEW));
	keep(lists(OLD, NEW), true, 500);
	in_force(lists(OLD, 0));
	ok(settling.unsettled_until_us == 0, "the next list may go as it came");
	in_force(lists(OLD, NEW));
	ok(settling.unsettled_until_us == 500, "when it comes again it may have forgotten");
	start(lists(OLD, NEW));
	keep(lists(OLD, NEW), true, 500);
	in_force(lists(NEW, OLD));
	ok(settling.unsettled_until_us == 0, "the two may change places");
	start(lists(OLD, 0));
	keep(lists(OLD, 0), true, 500);
	in_force(lists(NEW, 0));
	ok(settling.unsettled_until_us == 500,
	   "a list that is replaced at once has what is kept there");
}

static void
test_indexes(void)
{
	start(lists(OLD, 0));
	keep(lists(OLD, 0), true, 500);
	settling_set_lists(&settling, lists(OLD, 0), OLD);
	ok(settling.unsettled_until_us == 500, "other nodes in the same indexes are another list");
	start(lists(OLD, NEW));
	keep(lists(OLD, NEW), true, 500);
	settling_set_lists(&settling, lists(NEW, 0), OLD);
	ok(settling.unsettled_until_us == 0, "those in the indexes of a list that goes are none");
}

int
main(void)
{
	test_leases();
	test_excluding();
	test_keys();
	test_way_back();
	test_indexes();
	return tap_done();
}
