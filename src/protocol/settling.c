/*
 * settling.c
 *		Whether a host's leases are on all lists in force; see settling.h.
 */
#include "protocol/settling.h"

static bool is_one_of(core_mask list, core_lists lists);
static bool has_lists(const Settling *settling, const core_lease *lease);

/* If no list is new, the kept keys are still at the nodes of each list. */
void
settling_set_lists(Settling *settling, core_lists lists, core_mask replaced)
{
	core_lists before = settling->lists;

	settling->lists = lists;
	before.now &= ~replaced;
	before.next &= ~replaced;
	if (!is_one_of(lists.now, before) || (lists.next != 0 && !is_one_of(lists.next, before)))
		settling->unsettled_until_us = settling->kept_until_us;
}

void
settling_keep(Settling *settling, const core_lease *lease, int64_t until_us)
{
	if (until_us > settling->kept_until_us)
		settling->kept_until_us = until_us;
	if (until_us > settling->unsettled_until_us && !(has_lists(settling, lease) && lease->settled))
		settling->unsettled_until_us = until_us;
}

bool
settling_on_all_lists(const Settling *settling, const core_lease *lease)
{
	switch (lease->state)
	{
		case CORE_FREE:
		case CORE_LOST:
		case CORE_RELEASING:
			return true;
		case CORE_ASKING:
		case CORE_BUSY:
			return has_lists(settling, lease);
		case CORE_HELD:
			return has_lists(settling, lease) && lease->settled;
	}
	return false;
}

core_lists
settling_excluding(const core_lease *lease)
{
	core_lists lists = lease->lists;

	if (lease->state == CORE_HELD && !lease->settled)
		lists.next = 0;
	return lists;
}

static bool
is_one_of(core_mask list, core_lists lists)
{
	return list == lists.now || list == lists.next;
}

static bool
has_lists(const Settling *settling, const core_lease *lease)
{
	return lease->lists.now == settling->lists.now && lease->lists.next == settling->lists.next;
}
