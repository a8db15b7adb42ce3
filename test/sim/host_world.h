/*
 * host_world.h
 *		The lease driver's world (src/driver/driver.h) in the simulator:
 *		messages, clocks and dice of the plan, and the entries of simulated
 *		sessions.
 */
#ifndef SIM_HOST_WORLD_H
#define SIM_HOST_WORLD_H

#include "host.h"

/*
 * Begins a host's driver, as a new broker does: nothing of the former driver
 * remains.
 */
extern void host_world_begin(int host);

/*
 * Does the owner of the entry live, is the owner gone, or is the lease
 * detached?
 */
extern WishOwner host_owner_of(const entry *entry);

#endif /* SIM_HOST_WORLD_H */
