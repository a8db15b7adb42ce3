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

/* The driver of this server's leases, ready but for its lists of nodes. */
extern Driver *world_init(void);

/* The entry whose time has come, as of looked_us; -1: none, and *next_us says when. */
extern int world_timer_due(int64 looked_us, int64 *next_us);

#endif /* REDLOCK_WORLD_H */
