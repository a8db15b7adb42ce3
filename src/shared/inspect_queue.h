/*
 * inspect_queue.h
 *		Shared memory: sessions that ask what the nodes keep of a lock or of a job, and the
 *		answers.
 *
 * A session takes a place, writes its question, and wakes the broker.  The broker asks the nodes
 * (one command to each, but for INSPECT_WAITING), writes the answers into the place, and wakes the
 * session.  The session copies the answers and leaves the place.  There are few places, so sessions
 * do not fill the nodes' queues: a session without a place waits.
 *
 * A session does not wait for an order.  So orders have a queue, which outlives the session and the
 * broker.  The broker moves an order into a place when a place is free.
 *
 * One place is for operators alone: sessions with many questions keep no ask and no forced release
 * out.
 *
 * One more place is for a list of locks.  Its session keeps the place for many questions, so a
 * server lists once at a time.  This place alone has room for many keys.
 *
 * One process writes a place at a time, by the state of the place, an atomic.  So neither side
 * waits for a lock.
 */
#ifndef REDLOCK_INSPECT_QUEUE_H
#define REDLOCK_INSPECT_QUEUE_H

#include "protocol/inspection.h"
#include "protocol/run_note.h"
#include "protocol/waiting_hosts.h"

/* Places: the most questions at a time.  The last place is for a list. */
#define INSPECT_PLACES 10
#define INSPECT_LIST_PLACE (INSPECT_PLACES - 1)

/* The most orders that wait for a place: many runs may end at a time, or the broker be away. */
#define INSPECT_ORDERS 64

/* A key, or a pattern, in which each character may have a backslash. */
#define INSPECT_KEY_SIZE (2 * LUA_KEY_MAX + 2)

/* The answers of the nodes. */
typedef struct InspectAnswer
{
	core_lists lists; /* lists of nodes in force */
	Inspected node[CORE_NODES_MAX];

	char cursor[24]; /* of INSPECT_SCAN, if the node's answer is INSPECTED_NONE */

	/* of INSPECT_RUN */
	core_mask noted; /* nodes with the note of the last run */
	RunNote last_run;

	/* of INSPECT_WAITING; the answer of a node that has passed the question on is INSPECTED_NONE */
	bool complete; /* a quorum of nodes is complete */
	int64 missing; /* see waiting_missing */
	WaitingHosts waiting;
} InspectAnswer;

typedef struct InspectText
{
	int len;
	char text[LUA_KEYS_SIZE];
} InspectText;

/* The texts of a list.  The process that may write the list's place owns them. */
typedef struct InspectList
{
	InspectText keys;                 /* of INSPECT_MANY: the keys, with a NUL after each */
	InspectText said[CORE_NODES_MAX]; /* of nodes whose answer is INSPECTED_NONE: the keys of
									   * scan.lua, the records of inspect_many.lua */
} InspectList;

typedef enum InspectKind
{
	INSPECT_LOCK,  /* what do the nodes keep?  Uses key */
	INSPECT_ASK,   /* ask the hosts that the nodes name for the release; uses key */
	INSPECT_FORCE, /* release the lock by force; uses key, least, value: see force_release.lua */
	INSPECT_SCAN,  /* list some keys of one node; uses nodes, key: the pattern, value: the cursor */
	INSPECT_MANY,  /* what do the nodes keep of many locks?  Uses nodes, and the list's keys */
	INSPECT_RUN,   /* which is the last run of a job?  Uses key: the job; value: a note to leave */
	INSPECT_WAITING /* which hosts wait?  Uses key, holder */
} InspectKind;

#define INSPECT_KINDS (INSPECT_WAITING + 1)

/* A question, or an order. */
typedef struct InspectQuestion
{
	InspectKind kind;
	bool for_operator; /* an ask or a forced release, or a look for it */
	core_mask nodes;   /* SCAN, MANY: the nodes to ask; other kinds ask all nodes */
	int64 least;       /* the least new counter */
	int value_len;     /* FORCE: 0: any value; RUN: 0: no note */
	char value[LUA_NOTE_MAX];
	int key_len;
	char key[INSPECT_KEY_SIZE];
	int holders; /* WAITING: the hosts that hold the lock */
	uint64 holder[WAITING_HOSTS_MAX];
} InspectQuestion;

/* An order has no session that waits for the answers. */
static inline bool
inspect_is_order(const InspectQuestion *question)
{
	return question->kind == INSPECT_RUN && question->value_len > 0;
}

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size inspect_queue_size(void);
extern void inspect_queue_set_up(void);

/*
 * Backends.  Return a place, or -1 if none is free.  The caller leaves the place in any case, also
 * after an error.  inspect_queue_list returns the list's place, without a question.
 */
extern int inspect_queue_enter(const InspectQuestion *question);
extern int inspect_queue_list(void);

/* The number of questions that the broker has taken, without lists. */
extern int inspect_queue_under_way(void);

/*
 * A backend leaves an order to the broker, and waits for no answer.  Returns false if the queue of
 * orders is full.
 */
extern bool inspect_queue_order(const InspectQuestion *order);

/*
 * Backends, of the caller's place.  While inspect_queue_is_done returns true, the session may read
 * inspect_queue_answer.  inspect_queue_ask_list puts the next question of a list; the session may
 * write the list's texts before the first question, and between two questions.
 */
extern bool inspect_queue_is_done(int place);
extern void inspect_queue_ask_list(const InspectQuestion *question);
extern InspectList *inspect_queue_texts(void);
extern void inspect_queue_leave(int place);

extern void inspect_queue_wait(long timeout_ms); /* for an answer, or for a place */
extern void inspect_queue_end_wait(void);

/*
 * The broker.  inspect_queue_adopt comes first: the questions of an earlier broker are asked
 * again.  An order of a forced release has no answer then: a second execution might delete the
 * key of the next holder.  inspect_queue_take returns the next place with a question, or -1.  The
 * broker then fills in inspect_queue_answer, and calls inspect_queue_finish.
 */
extern void inspect_queue_adopt(void);
extern int inspect_queue_take(void);
extern const InspectQuestion *inspect_queue_question(int place);
extern InspectAnswer *inspect_queue_answer(int place);
extern void inspect_queue_finish(int place);

/* Describes why a node gave no usable answer, or returns NULL; palloc'd. */
extern char *inspect_fault(const InspectAnswer *answer, int node);

/* The nodes without a usable answer, as a part of a sentence; palloc'd. */
extern char *inspect_faults(const InspectAnswer *answer);

#endif /* REDLOCK_INSPECT_QUEUE_H */
