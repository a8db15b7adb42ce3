/*
 * release_queue.h
 *		Flow control of releases, and of repairs of a node that is back: which waits for
 *		room at the nodes, which goes first, and which is not waited for.
 *
 * A transaction that held thousands of locks releases all of them at once, and a node
 * that comes back lacks the keys of all that are held.  Neither renewals nor requests
 * may queue after these, so at each node a few of them are unanswered at a time, and
 * the others wait here, first come, first served, in two stages:
 *
 * - A lease that was held is released when most of its nodes that can be reached have
 *	 room.  Until then it is `waiting`: its core is still HELD or LOST, but has no timer,
 *	 is not repaired, and its end is no loss, since it was given back (invariant 14).
 * - A node that had no room when the release began, or for the repair of a lease, has
 *	 the lease in its own queue, `unsent`, and is told when it has some.  So a node that
 *	 hangs delays no other.  The undoing of a round waits for nothing but room on the
 *	 connection: the keys that it deletes block others.
 *
 * Our own key would refuse the next request for a name, so that sends the releases of
 * the name ahead (release_queue_find, release_queue_hurry).  An entry that is needed
 * takes the oldest debt away, which expires first (release_queue_forget).
 *
 * Pure, like the core: it sends nothing.  The shell tells it of each step of a lease
 * (release_queue_follow) and of each command (release_queue_sent, _answered), and asks
 * for the next step that a lease is to take; the shell lets the core take it, and asks
 * again until there is none.  Sets of nodes are arguments: can_send, those that take
 * commands now, as in core_event; on_duty, those that are connected and fit, be there
 * room on the connection or not.  The leases stay where they are: an entry has the same
 * core_lease as long as the queue lives.
 *
 * It is in the memory of the shell.  A new one finds no connection, so nothing waits:
 * what was given back begins, and is owed to all nodes.
 */
#ifndef REDLOCK_RELEASE_QUEUE_H
#define REDLOCK_RELEASE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"

/* Entry numbers; -1: none. */
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

/* The lists that an entry is in, beside those of nodes. */
enum
{
	RELEASE_BY_AGE,  /* `waiting` or `under_way` */
	RELEASE_BY_NAME, /* `named` of its hash */
	RELEASE_LINKS
};

/* Of an entry. */
typedef struct Release
{
	const core_lease *lease; /* of what is in a list */
	uint64_t hash;           /* of the name of what is `indexed` */
	bool waits;              /* is in `waiting` */
	bool under_way;          /* is in `under_way` */
	bool indexed;            /* is in `named` of its hash: not sent everywhere */
	bool urgent;             /* goes out whether there is room or not */
	core_mask hurried;       /* if urgent: nodes that must yet be told so */
	core_mask unsent;        /* is in `unsent` of these nodes, if only by an earlier
							  * lease of the entry */
	ReleaseLink link[RELEASE_LINKS];
	ReleaseList named;               /* of the hashes that fall on this entry */
	int next_unsent[CORE_NODES_MAX]; /* entry number, or -1 */
} Release;

typedef struct ReleaseQueue
{
	Release *release; /* by entry */
	int entries;
	int room;                           /* at a node: so many may be unanswered */
	ReleaseList waiting;                /* given back, and not begun */
	ReleaseList under_way;              /* RELEASING */
	ReleaseList unsent[CORE_NODES_MAX]; /* that this node was not sent */
	int unanswered[CORE_NODES_MAX];     /* releases and repairs */
} ReleaseQueue;

/* What the core of this entry is to be told now. */
typedef struct ReleaseStep
{
	int entry;
	core_event_type type; /* CORE_RELEASE, CORE_NODE_READY or CORE_FORGET */
	int node;             /* NODE_READY */
} ReleaseStep;

/* The memory, one entry for each entry, is the caller's. */
extern void release_queue_init(ReleaseQueue *queue, Release *release, int entries, int room);

/*
 * A command left for a node; it was answered, or lost with its connection.  why: the
 * event that asked for it.
 */
extern void release_queue_sent(ReleaseQueue *queue, int node, core_op op, core_event_type why);
extern void release_queue_answered(ReleaseQueue *queue, int node, core_op op, core_event_type why);

/* core_event.can_release of each step of the entry's lease. */
extern core_mask release_queue_can_release(const ReleaseQueue *queue, int entry,
										   core_mask can_send);

/* After each step of a lease.  hash: of its name; event: with its sets of nodes. */
extern void release_queue_follow(ReleaseQueue *queue, int entry, const core_lease *lease,
								 uint64_t hash, const core_event *event, core_mask on_duty);

/*
 * The owner has given the lease back.  Is it to be told CORE_RELEASE now?  False: it
 * waits.
 */
extern bool release_queue_begin(ReleaseQueue *queue, int entry, const core_lease *lease,
								uint64_t hash, core_mask can_send);

/* The node came back: is this lease to be told so now?  False: when there is room, or never. */
extern bool release_queue_node_ready(ReleaseQueue *queue, int entry, const core_lease *lease,
									 int node, core_mask can_send);

/*
 * The node answered that it executed nothing, since it lacks the script.  Does the caller send the
 * command again, with the script?  answer: node, op and round of the command, and the time and
 * sets of nodes of now.
 */
extern bool release_queue_may_repeat(const ReleaseQueue *queue, int entry, const core_lease *lease,
									 const core_event *answer);

/* When the lease wants a CORE_TICK; 0: not yet. */
extern int64_t release_queue_wake_at_us(const ReleaseQueue *queue, int entry,
										const core_lease *lease);

/*
 * The next step for which there is room by now: at a node that had none; of a release
 * that has not begun, after these.  False: an answer makes room.
 */
extern bool release_queue_next_unsent(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step);
extern bool release_queue_next_waiting(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step);

/*
 * An entry with the release of a name that is not yet sent everywhere, to be hurried; -1.
 * It is not found again.
 */
extern int release_queue_find(const ReleaseQueue *queue, uint64_t hash);

/* The next step that sends what is not yet sent of it, be there room or not. */
extern bool release_queue_hurry(ReleaseQueue *queue, int entry, ReleaseStep *step);

/*
 * The next step of a request that core_must_move: undone at the former nodes, and then
 * free to ask these.  False: it is.
 */
extern bool release_queue_move(ReleaseQueue *queue, int entry, const core_lease *lease,
							   core_lists lists, ReleaseStep *step);

/* The next step, where too many entries are in use.  False: nothing is owed by any. */
extern bool release_queue_forget(ReleaseQueue *queue, ReleaseStep *step);

/* Does none wait, but for nodes that can't be sent to? */
extern bool release_queue_is_idle(const ReleaseQueue *queue, core_mask can_send);

/* Was it given back, and has not begun?  It must not be renewed. */
static inline bool
release_queue_waits(const ReleaseQueue *queue, int entry)
{
	return queue->release[entry].waits;
}

#endif /* REDLOCK_RELEASE_QUEUE_H */
