/*
 * slots.h
 *		Which slot each listed node has, and when one that is listed no more is left.
 *
 * A node keeps its slot as long as it is listed: leases know it by that.  One that is
 * listed no more votes on no new lease, but serves those that it granted until they have
 * ended.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SLOTS_H
#define REDLOCK_SLOTS_H

#include <stdbool.h>

#include "protocol/core.h"

/* Sets of slots. */
typedef struct SlotUse
{
	core_mask taken;     /* a node is there */
	core_mask leased;    /* core_served_by of all leases */
	core_mask in_flight; /* a command is unanswered: the undoing of a round must arrive */
} SlotUse;

/*
 * Find a slot, of so many, for each node of a new list.  slot[]: where a node is already,
 * or -1; then its slot.  listed: the slots of all.  False: there are too few, while nodes
 * that are listed no more serve leases; nothing is to be changed.
 */
extern bool slots_assign(SlotUse use, int slots, int *slot, int nodes, core_mask *listed);

/* The nodes that are not listed, and serve nobody any more. */
extern core_mask slots_to_leave(SlotUse use, core_mask listed);

#endif /* REDLOCK_SLOTS_H */
