/*
 * world.h
 *		The world of the lease driver in the extension: the nodes, the lease table, timers.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_WORLD_H
#define REDLOCK_WORLD_H

#include "driver/driver_world.h"
#include "shared/lease.h"

/* Returns the driver of this host's leases, complete but for its lists of nodes. */
extern Driver *world_init(void);

/*
 * Returns an entry whose timer is due at looked_us; or -1, and *next_us is the time of the next
 * timer.
 */
extern int world_timer_due(int64 looked_us, int64 *next_us);

#endif /* REDLOCK_WORLD_H */
