/*
 * driver.h
 *		The lease driver: all decisions of a host about its leases, without I/O.
 *
 * The core (protocol/core.h) decides one step of one lease.  The driver decides when a lease
 * takes a step, and what follows from the step.  It asks the nodes when the owner wishes, sends
 * the commands that the core asks for, tells the owner the outcome, and sets the lease's timer.
 * It lets releases wait for room, and moves leases to another list of nodes.
 *
 * The driver has a world, which does the I/O.  The background worker of the extension is one
 * world (broker/world.c), the simulator is another (test/sim/host_world.c).
 *
 * Memory: the world provides it.  A lease is known by its entry number.  DriverLease outlives
 * the driver: it is in shared memory, and the next driver goes on with it (driver_adopt).
 * Driver, DriverEntry and Release end with the process.
 *
 * Pure, like protocol/: no socket, clock, allocator or PostgreSQL.  One process uses the driver,
 * without locks.  Instants are microseconds of the clock of the core.
 */
#ifndef REDLOCK_DRIVER_H
#define REDLOCK_DRIVER_H

#include "driver/driver_world.h"

/*
 * Initializes the driver.  The caller has zeroed `driver`, and has set world .. entry, settling,
 * and the times.  release: one element for each entry; room: see release_queue_init.  The caller
 * goes on with driver_follow_lists and driver_adopt.
 */
extern void driver_init(Driver *driver, Release *release, int room);

/* Acts on the owner's wish, which may have changed.  Safe to repeat. */
extern void driver_act(Driver *driver, int entry, int64_t now_us);

/* The entry's timer has rung. */
extern void driver_on_timer(Driver *driver, int entry, int64_t now_us);

/*
 * Send releases for which there is room now.  driver_send_unsent: at nodes that had no room.
 * driver_begin_releases: some of the releases that have waited longest; returns true if more can
 * begin.
 */
extern void driver_send_unsent(Driver *driver, int64_t now_us);
extern bool driver_begin_releases(Driver *driver, int64_t now_us);

/* Drops the oldest debt, because a session needs an entry.  Returns false if there is no debt. */
extern bool driver_forget_debt(Driver *driver, int64_t now_us);

/*
 * Takes over the leases of an earlier driver, whose connections are gone.  Requests ask again at
 * driver_serve, or at not_before_us.
 */
extern void driver_adopt(Driver *driver, int64_t not_before_us, int64_t now_us);

/*
 * driver_hold_requests: requests wait from now on.  driver_serve: requests go on.  The world
 * calls driver_serve when each node was probed once, and was asked about other hosts.
 */
extern void driver_hold_requests(Driver *driver);
extern void driver_serve(Driver *driver, int64_t now_us);

/*
 * The world has put lists of nodes into force.  Moves requests and leases to these lists.
 * Returns the number of leases that are not on all these lists yet.
 */
extern int driver_follow_lists(Driver *driver, int64_t now_us);

/*
 * A node has answered a command.  lacks_script: the node executed nothing, because it lacks the
 * script, and the command came without the text.  Returns false if the answer no longer concerns
 * a lease, or if the command was sent again with the text.  Otherwise the caller calls
 * driver_step_answer with a CORE_REPLY.
 */
extern bool driver_on_answer(Driver *driver, int node, const DriverSent *sent, bool lacks_script,
							 int64_t now_us);
extern void driver_step_answer(Driver *driver, int entry, core_event *reply);

/*
 * A node did not answer, and its connection is gone.  replacing: the caller makes another
 * connection at once, and then calls driver_on_node_ready.  Returns false if the command will be
 * repeated then.
 */
extern bool driver_on_lost(Driver *driver, int node, const DriverSent *sent, bool replacing,
						   int64_t now_us);

/* The node takes commands again: pays debts, and creates lost keys again. */
extern void driver_on_node_ready(Driver *driver, int node, int64_t now_us);

/*
 * driver_on_subscribed: a node confirms the subscription to the lock's channel.
 * driver_on_left: the connection for the channel is gone.
 */
extern void driver_on_subscribed(Driver *driver, int entry, int node, int64_t now_us);
extern void driver_on_left(Driver *driver, int entry, int node, int64_t now_us);

/*
 * A node publishes the end of the lease with this token (0: unknown), and names the next
 * waiters.
 */
extern void driver_on_free(Driver *driver, int entry, int node, int64_t token, const Waiters *named,
						   int64_t now_us);

/*
 * A host says that the nodes have deleted the key by force.  Renews now, or after the round that
 * is out: if the message is true, the nodes refuse, and the lease is lost.
 */
extern void driver_on_forced(Driver *driver, int entry, int64_t now_us);

#endif /* REDLOCK_DRIVER_H */
