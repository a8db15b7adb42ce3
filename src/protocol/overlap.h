/*
 * overlap.h
 *		Whether the node lists of two hosts keep the hosts' locks apart.  Pure.
 */
#ifndef REDLOCK_OVERLAP_H
#define REDLOCK_OVERLAP_H

#include "protocol/core.h"

/*
 * Returns true if each quorum of one host shares a node with each quorum of the second host.
 * Voters are nodes that can grant a lock to the host.  A bit stands for one server, the same
 * server for both hosts, whatever its index at either host.
 */
extern bool quorums_meet(core_lists one, core_mask ones_voters, core_lists other,
						 core_mask others_voters);

#endif
