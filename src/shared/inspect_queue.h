/*
 * inspect_queue.h
 *		Shared memory: sessions that ask what the nodes keep of a lock, and the answers.
 *
 * A session takes a place, writes its question, and wakes the broker.  The broker sends one
 * command to each node, writes the answers into the place, and wakes the session.  The session
 * copies the answers and leaves the place.  There are few places, so sessions do not fill the
 * nodes' queues: a session that finds no place waits.
 *
 * One process writes a place at a time, by the state of the place, an atomic.  So neither side
 * waits for a lock.
 */
#ifndef REDLOCK_INSPECT_QUEUE_H
#define REDLOCK_INSPECT_QUEUE_H

#include "protocol/inspection.h"

/* Places: the most questions at a time. */
#define INSPECT_PLACES 8

/* What the nodes said. */
typedef struct InspectAnswer
{
	core_lists lists; /* lists of nodes in force */
	Inspected node[CORE_NODES_MAX];
} InspectAnswer;

/* The question about one lock; or the order to release it by force. */
typedef struct InspectQuestion
{
	bool force;    /* with the next fields: see force_release.lua */
	int64 least;   /* the least new counter */
	int value_len; /* 0: any value */
	char value[LUA_HELD_MAX + 1];
	int key_len;
	char key[LOCK_PREFIX_MAX + LOCK_NAME_MAX];
} InspectQuestion;

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size inspect_queue_size(void);
extern void inspect_queue_set_up(void);

/*
 * Backends.  inspect_queue_enter returns a place, or -1 if none is free.  The caller leaves the
 * place in any case, also after an error.  inspect_queue_copy returns false before the answer is
 * there.
 */
extern int inspect_queue_enter(const InspectQuestion *question);
extern bool inspect_queue_copy(int place, InspectAnswer *answer);
extern void inspect_queue_leave(int place);
extern void inspect_queue_wait(long timeout_ms); /* for an answer, or for a place */
extern void inspect_queue_end_wait(void);

/*
 * The broker.  inspect_queue_adopt comes first: the questions of an earlier broker are asked
 * again.  inspect_queue_take returns the next place with a question, or -1.  The broker then
 * fills in inspect_queue_answer, and calls inspect_queue_finish.
 */
extern void inspect_queue_adopt(void);
extern int inspect_queue_take(void);
extern const InspectQuestion *inspect_queue_question(int place);
extern InspectAnswer *inspect_queue_answer(int place);
extern void inspect_queue_finish(int place);

#endif /* REDLOCK_INSPECT_QUEUE_H */
