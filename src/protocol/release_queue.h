/*
 * release_queue.h
 *		Flow control of releases, and of repairs of a node that is back: which waits for room at
 *		the nodes, which goes first, and which is hurried.
 *
 * A transaction that held thousands of locks releases all of them at once.  A node that comes
 * back lacks the keys of all held leases.  Neither renewals nor requests may queue behind these
 * commands.  So each node has only a few unanswered releases and repairs at a time.  The rest
 * wait here, first come, first served, in two stages:
 *
 * - A lease that was held is released when most of its reachable nodes have room.  Until then
 *   the lease is `waiting`: its core is still HELD or LOST, but has no timer and is not
 *   repaired.  Its end is not a loss, since the owner has released it (invariant 14).
 *
 * - A node may lack room when the release begins, or for the repair of a lease.  Then the lease
 *   waits in the node's own queue, `unsent`, until the node has room.  So a node that hangs does
 *   not delay any other node.  The undoing of a round waits only for room on the connection,
 *   because its keys block other hosts.
 *
 * Our own key would refuse the next request for a name.  So the next request sends the releases
 * of its name ahead (release_queue_find, release_queue_hurry).  A request that needs an entry
 * drops the oldest debt, which expires first (release_queue_forget).
 *
 * Pure, like the core: this file sends nothing.  The shell reports each step of a lease
 * (release_queue_follow) and each command (release_queue_sent, _answered).  The shell then asks
 * for the next step of a lease, lets the core take the step, and asks again, until there is no
 * step left.  Sets of nodes are arguments.  can_send: nodes that take commands now, as in
 * core_event.  on_duty: nodes that are connected and usable, with or without room on the
 * connection.  Leases do not move: an entry has the same core_lease as long as the queue lives.
 *
 * The queue is in the memory of the shell.  A new shell has no connection yet, so no lease
 * waits: releases begin, and are owed to all nodes.
 */
#ifndef REDLOCK_RELEASE_QUEUE_H
#define REDLOCK_RELEASE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"

/* entry numbers; -1: none */
typedef struct ReleaseList
{
	int first; /* the oldest */
	int last;
} ReleaseList;

typedef struct ReleaseLink
{
	int before;
	int after;
} ReleaseLink;

/* the lists of an entry, except the lists of nodes */
enum
{
	RELEASE_BY_AGE,  /* `waiting` or `under_way` */
	RELEASE_BY_NAME, /* `named` of its hash */
	RELEASE_LINKS
};

/* the state of an entry */
typedef struct Release
{
	const core_lease *lease; /* if the entry is in a list */
	uint64_t hash;           /* hash of the lock's name, while `indexed` */
	bool waits;              /* in the list `waiting` */
	bool under_way;          /* in the list `under_way` */
	bool indexed;            /* in the list `named` of its hash: not yet sent to all nodes */
	bool urgent;             /* sent with or without room */
	core_mask hurried;       /* if urgent: nodes that the core must still be told of */
	core_mask unsent;        /* in `unsent` of these nodes, perhaps because of an earlier lease
							  * of the entry */
	ReleaseLink link[RELEASE_LINKS];
	ReleaseList named;               /* entries whose hashes fall on this entry */
	int next_unsent[CORE_NODES_MAX]; /* entry number, or -1 */
} Release;

typedef struct ReleaseQueue
{
	Release *release; /* indexed by entry */
	int entries;
	int room;                           /* limit of `unanswered` at each node */
	ReleaseList waiting;                /* released by the owner, but not begun */
	ReleaseList under_way;              /* RELEASING */
	ReleaseList unsent[CORE_NODES_MAX]; /* not yet sent to this node */
	int unanswered[CORE_NODES_MAX];     /* releases and repairs */
} ReleaseQueue;

/* the next step of an entry's core */
typedef struct ReleaseStep
{
	int entry;
	core_event_type type; /* CORE_RELEASE, CORE_NODE_READY or CORE_FORGET */
	int node;             /* NODE_READY */
} ReleaseStep;

/*
 * Initializes the queue.  The caller provides `release`, with one element for each entry of the
 * lease table.
 */
extern void release_queue_init(ReleaseQueue *queue, Release *release, int entries, int room);

/*
 * A command left for a node; the command was answered, or lost with its connection.  why: the
 * event that asked for the command.
 */
extern void release_queue_sent(ReleaseQueue *queue, int node, core_op op, core_event_type why);
extern void release_queue_answered(ReleaseQueue *queue, int node, core_op op, core_event_type why);

/* Returns can_release for each step (core_event) of the entry's lease. */
extern core_mask release_queue_can_release(const ReleaseQueue *queue, int entry,
										   core_mask can_send);

/* Call this after each step of a lease.  hash: of the lock's name; event: the event of the step. */
extern void release_queue_follow(ReleaseQueue *queue, int entry, const core_lease *lease,
								 uint64_t hash, const core_event *event, core_mask on_duty);

/*
 * The owner has released the lease.  Returns true if the caller passes CORE_RELEASE to the core
 * now; false: the release waits.
 */
extern bool release_queue_begin(ReleaseQueue *queue, int entry, const core_lease *lease,
								uint64_t hash, core_mask can_send);

/*
 * The node came back.  Returns true if the caller passes NODE_READY to the lease now; false:
 * later, when the node has room, or never.
 */
extern bool release_queue_node_ready(ReleaseQueue *queue, int entry, const core_lease *lease,
									 int node, core_mask can_send);

/*
 * The node did not execute a command, because it lacks the script.  Returns true if the caller
 * sends the command again, with the script.  answer: node, op and round of the command, with the
 * present time and the present sets of nodes.
 */
extern bool release_queue_may_repeat(const ReleaseQueue *queue, int entry, const core_lease *lease,
									 const core_event *answer);

/* when the lease needs a CORE_TICK; 0: not yet */
extern int64_t release_queue_wake_at_us(const ReleaseQueue *queue, int entry,
										const core_lease *lease);

/*
 * The next step with enough room: _unsent for a node that had no room, _waiting for a release
 * that has not begun.  Ask for _unsent first.  Return false if there is no such step until an
 * answer makes room.
 */
extern bool release_queue_next_unsent(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step);
extern bool release_queue_next_waiting(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step);

/*
 * An entry with a release of this name that is not yet sent to all nodes, to be hurried; -1:
 * none.  release_queue_hurry removes the entry from the index.
 */
extern int release_queue_find(const ReleaseQueue *queue, uint64_t hash);

/*
 * The next step of sending the rest of a release, with or without room.  Returns false at the
 * end.
 */
extern bool release_queue_hurry(ReleaseQueue *queue, int entry, ReleaseStep *step);

/*
 * The next step of a request for which core_must_move is true: the request is undone at its
 * former nodes, and may then ask the new nodes.  Returns false when it may ask.
 */
extern bool release_queue_move(ReleaseQueue *queue, int entry, const core_lease *lease,
							   core_lists lists, ReleaseStep *step);

/* The next step when too many entries are in use.  Returns false if no entry has a debt. */
extern bool release_queue_forget(ReleaseQueue *queue, ReleaseStep *step);

/* Returns true if no release waits, except for nodes that can't be sent to. */
extern bool release_queue_is_idle(const ReleaseQueue *queue, core_mask can_send);

/*
 * Returns true if the lease was released but the release has not begun; such a lease must not be
 * renewed.
 */
static inline bool
release_queue_waits(const ReleaseQueue *queue, int entry)
{
	return queue->release[entry].waits;
}

#endif /* REDLOCK_RELEASE_QUEUE_H */
