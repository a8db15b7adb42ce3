/*
 * marks.h
 *		Marks of replaced lists (protocol/steps.h): reading and writing them.
 *
 * Used by the parts of the registry only.
 */
#ifndef REDLOCK_MARKS_H
#define REDLOCK_MARKS_H

#include "broker/node.h"
#include "protocol/steps.h"
#include "shared/host_list.h"

/*
 * read_mark: the node of this index has answered with its mark.  forget_mark: the index has
 * another node now.
 */
extern void read_mark(int index, const char *text, size_t len);
extern void forget_mark(int index);

/*
 * Returns the marks of all nodes that have answered, and remembers the latest mark of this host's
 * own list (LeaseTable.own_mark).  The next call overwrites the result.
 */
extern const StepMarks *known_marks(void);

extern uint64 hash_of_list(core_mask nodes);

/*
 * Does the latest mark name the list `to`, and does a majority of `to` and of each list in `asked`
 * carry this mark?
 */
extern bool is_marked(core_lists to, core_lists asked);

/* Writes marks at the nodes `at`: the list `to` replaces others.  hear_mark reads the replies. */
extern void mark_nodes(core_lists to, core_mask at, int64 now_us);
extern void hear_mark(RedisNode *node, const redisReply *reply);

/*
 * Do marks say that another host has left the lists in force?  look_at_marks decides and logs.
 * conflicts.c passes on the former broker's answer, and resets the answer for other lists.
 */
extern bool list_is_left(void);
extern void set_list_left(bool left);
extern void look_at_marks(void);
extern void explain_left(HostConflict *words);

#endif /* REDLOCK_MARKS_H */
