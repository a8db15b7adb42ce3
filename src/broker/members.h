/*
 * members.h
 *		The nodes of this server: redlock.nodes, and redlock.nodes_next, put into force,
 *		index by index.
 *
 * A node keeps its index as long as it is listed, be it in both.  One that is no longer does
 * not vote on new leases; it stays connected until the leases on which it voted have
 * ended, and all that it was sent is answered.
 *
 * Used by the broker only.  It writes NodeStatus, opens and closes connections, and
 * looks at leases to see which nodes serve them; it lets none take a step.
 */
#ifndef REDLOCK_MEMBERS_H
#define REDLOCK_MEMBERS_H

#include "protocol/core.h"

/*
 * The nodes of redlock.nodes and redlock.nodes_next, as far as these are in force: those
 * that new leases ask.
 */
extern core_lists members_lists(void);
extern core_mask members(void); /* of both */

/* The round trip to the median of these nodes. */
extern int64 members_round_trip_us(void);

/*
 * The nodes of an earlier broker, also those that are no longer listed: leases may live on
 * them, and what is listed now may have to wait for their indexes.  After a start of the server,
 * the two lists that were in force before, if there were two.
 */
extern void members_adopt(int64 now_us);

/*
 * Put both lists into force; members_close_left is to follow, when what moves has moved.
 * False: not yet, since too many nodes that have left still serve leases, or one of two lists
 * would be left and may_leave says no (stay: none is to be left any more); or not at all, since
 * they are too many, or neither those two nor one of them.
 */
extern bool members_configure(int64 now_us,
							  bool (*may_leave)(core_lists to, bool back, int64 since_us,
												int64 now_us),
							  void (*stay)(void));
extern void members_close_left(int64 now_us);

/*
 * What redlock.tls_* says has changed: all nodes with TLS are connected to again, one by
 * one, so that the others serve leases meanwhile.  The second is to be called in each pass.
 */
extern void members_tls_changed(void);
extern void members_reopen_tls(int64 now_us);

/* When both are to be tried again; PG_INT64_MAX: nothing is left to do. */
extern int64 members_due_us(void);

/* Is each node ready, or was it tried in vain? */
extern bool members_settled(void);

#endif /* REDLOCK_MEMBERS_H */
