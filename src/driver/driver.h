/*
 * driver.h
 *		The lease driver: all that a host decides about its leases, without I/O.
 *
 * The core (protocol/core.h) decides one step of one lease.  The driver decides when a lease
 * takes a step and what follows from the step: it asks the nodes when the owner wishes, sends
 * what the core asks for, tells the owner the outcome, sets the lease's timer, lets releases wait
 * for room, and moves leases to another list of nodes.
 *
 * The driver has a world, which does the I/O.  The background worker of the extension is one
 * world (broker/world.c), the simulator is another (test/sim/host_world.c).
 *
 * Memory: the world provides it.  A lease is known by its entry number.  DriverLease outlives the
 * driver: it is in shared memory, and the next driver goes on with it (driver_adopt).  Driver,
 * DriverEntry and Release end with the process.
 *
 * Pure, like protocol/: no socket, clock, allocator or PostgreSQL.  One process uses it, without
 * locks.  Instants are microseconds of the clock of the core.
 */
#ifndef REDLOCK_DRIVER_H
#define REDLOCK_DRIVER_H

#include "driver/driver_world.h"

/*
 * The caller has zeroed the driver, and set world .. entry, settling and the times.  release:
 * memory for as many as entries; room: see release_queue_init.  driver_follow_lists and
 * driver_adopt follow.
 */
extern void driver_init(Driver *driver, Release *release, int room);

/* The owner wishes something else, or may.  Safe to repeat. */
extern void driver_act(Driver *driver, int entry, int64_t now_us);

/* The time that was set for the entry has come. */
extern void driver_on_timer(Driver *driver, int entry, int64_t now_us);

/*
 * Releases for which there is room by now.  driver_send_unsent: at a node that had none.
 * driver_begin_releases: some of those that have waited longest; returns whether more could begin.
 */
extern void driver_send_unsent(Driver *driver, int64_t now_us);
extern bool driver_begin_releases(Driver *driver, int64_t now_us);

/* An entry is needed: the oldest debt is forgotten.  False: nothing is owed. */
extern bool driver_forget_debt(Driver *driver, int64_t now_us);

/*
 * What an earlier driver left; not one of its connections lives.  A request is asked for again
 * when driver_serve comes, or at not_before_us.
 */
extern void driver_adopt(Driver *driver, int64_t not_before_us, int64_t now_us);

/* Requests wait from now on, and go on; each node was tried once, and told of other hosts. */
extern void driver_settle(Driver *driver);
extern void driver_serve(Driver *driver, int64_t now_us);

/*
 * The world has put lists of nodes into force: requests and leases move to them.  Returns how many
 * leases don't rest on these lists yet.
 */
extern int driver_follow_lists(Driver *driver, int64_t now_us);

/*
 * A node has answered a command.  lacks_script: it executed nothing, for lack of the script's
 * text, which was not sent along.  False: the answer concerns no lease any more, or the command
 * was sent again, with the text.  Else driver_step_answer follows, with a CORE_REPLY.
 */
extern bool driver_on_answer(Driver *driver, int node, const DriverSent *sent, bool lacks_script,
							 int64_t now_us);
extern void driver_step_answer(Driver *driver, int entry, core_event *reply);

/*
 * A node did not answer, and its connection is gone.  replacing: another is made at once, and
 * driver_on_node_ready follows.  False: the question is asked again then.
 */
extern bool driver_on_lost(Driver *driver, int node, const DriverSent *sent, bool replacing,
						   int64_t now_us);

/* The node takes commands again: debts can be paid, and lost keys created again. */
extern void driver_on_node_ready(Driver *driver, int node, int64_t now_us);

/* A node confirms that the lease is on the lock's channel, or the connection for that is gone. */
extern void driver_on_joined(Driver *driver, int entry, int node, int64_t now_us);
extern void driver_on_left(Driver *driver, int entry, int node, int64_t now_us);

/* A node tells there of the end of the lease with this token (0: unknown), and whose turn is next.
 */
extern void driver_on_free(Driver *driver, int entry, int node, int64_t token, const Waiters *named,
						   int64_t now_us);

#endif /* REDLOCK_DRIVER_H */
