/*
 * overlap.h
 *		Do the node lists of two hosts keep their locks apart?  Pure.
 */
#ifndef REDLOCK_OVERLAP_H
#define REDLOCK_OVERLAP_H

#include "protocol/core.h"

/*
 * Is there a node in common in any quorum of the one host and any quorum of the other?
 * These are among its voters: the nodes that can grant it something.  Here a bit is one server
 * for both hosts, whatever index it has in either.
 */
extern bool quorums_meet(core_lists one, core_mask ones_voters, core_lists other,
						 core_mask others_voters);

#endif
