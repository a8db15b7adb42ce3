/*
 * force.h
 *		Forced releases: an administrator's session, and the work of
 *		src/session/force.c and src/broker/inspector.c.
 */
#ifndef SIM_FORCE_H
#define SIM_FORCE_H

#include "world.h"

extern void force_reset(void); /* of a new world */

/* An administrator releases a lock by force, in a session of this host. */
extern void force_release(int host, int resource);

extern bool force_all_idle(void);

/* Events */
extern void force_on_arrive(const event *event);
extern void force_on_answer(const event *event);
extern void force_on_over(const event *event);
extern void force_on_late(const event *event);

/*
 * Has a forced release deleted a key of this request, and no renewal has created the key again? The
 * request's host may believe in the lease until the end of the validity.  After a loss of counters
 * a renewal gives nothing back: the nodes have lost what would refuse the renewal, and a request
 * may have votes from before the loss.
 */
extern bool force_took(uint32_t secret);

/* A server has accepted a key of this request. */
extern void force_releases(int server, const command *command);

/* Checks of invariant 23: a server has renewed a key; a lease was granted. */
extern void force_on_renewal(int server, const command *command);
extern void force_on_grant(int host, int entry);

/* A host begins to release a lease. */
extern void force_on_release(int host, int entry);

#endif /* SIM_FORCE_H */
