/*
 * slots.c
 *		The slots of nodes; see slots.h.
 */
#include "protocol/slots.h"

static int first_of(core_mask slots);

/* Slots of nodes that can be left are taken when others do not suffice. */
bool
slots_assign(SlotUse use, int slots, int *slot, int nodes, core_mask *listed)
{
	core_mask all = slots < 32 ? CORE_BIT(slots) - 1 : ~(core_mask) 0;
	core_mask wanted = 0;

	for (int i = 0; i < nodes; i++)
		if (slot[i] >= 0)
			wanted |= CORE_BIT(slot[i]);
	for (int i = 0; i < nodes; i++)
	{
		core_mask empty = all & ~use.taken & ~wanted;
		core_mask left = slots_to_leave(use, wanted);

		if (slot[i] >= 0)
			continue;
		if ((empty | left) == 0)
			return false;
		slot[i] = first_of(empty != 0 ? empty : left);
		wanted |= CORE_BIT(slot[i]);
	}
	*listed = wanted;
	return true;
}

core_mask
slots_to_leave(SlotUse use, core_mask listed)
{
	return use.taken & ~listed & ~use.leased & ~use.in_flight;
}

static int
first_of(core_mask slots)
{
	int slot = 0;

	while ((slots & CORE_BIT(slot)) == 0)
		slot++;
	return slot;
}
