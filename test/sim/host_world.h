/*
 * host_world.h
 *		The world of the lease driver (src/driver/driver.h) in the simulator: the plan's
 *		messages, clocks and dice, and the entries of simulated sessions.
 */
#ifndef SIM_HOST_WORLD_H
#define SIM_HOST_WORLD_H

#include "host.h"

/* A host's driver, when the broker begins: it knows nothing of the driver before. */
extern void host_world_begin(int host);

/* Does the owner of the entry live, is it gone, or is the lease detached? */
extern WishOwner host_owner_of(const entry *entry);

#endif /* SIM_HOST_WORLD_H */
