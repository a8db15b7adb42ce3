/*
 * host_world.h
 *		The world of the lease driver (src/driver/driver.h) in the simulator: the plan's
 *		messages, clocks and dice, and the slots of simulated sessions.
 */
#ifndef SIM_HOST_WORLD_H
#define SIM_HOST_WORLD_H

#include "host.h"

/* A host's driver, when its broker begins: what an earlier one knew is gone. */
extern void host_world_begin(int host);

/* Its session gave up the lease for good, or the broker for it. */
extern WishOwner host_owner_of(const slot *slot);

#endif /* SIM_HOST_WORLD_H */
