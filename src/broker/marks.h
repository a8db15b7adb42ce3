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

/* The node in this place has told its mark.  There is another node in this place now. */
extern void read_mark(int index, const char *text, size_t len);
extern void forget_mark(int index);

/* The marks of the nodes that have told of theirs. */
extern const StepMarks *known_marks(void);

extern uint64 hash_of_list(core_mask nodes);

/* Has a majority of each list that is asked, and of the one that stays, the latest mark, for it? */
extern bool is_marked(core_lists to, core_lists asked);

/* Marks these nodes: the list took the place of others. */
extern void mark_nodes(core_lists to, core_mask at, int64 now_us);
extern void hear_mark(RedisNode *node, const redisReply *reply);

/*
 * Were the lists in force left, as marks say?  look_at_marks finds out, and logs it.  disputes.c
 * sets what the former broker knew, and that it is not known of other lists.
 */
extern bool list_is_left(void);
extern void set_list_left(bool left);
extern void look_at_marks(void);
extern void explain_left(HostDispute *words);

#endif /* REDLOCK_MARKS_H */
