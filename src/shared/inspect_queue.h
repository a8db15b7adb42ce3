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
 * One process writes a place at a time, by the state of the place, an atomic.  So neither side
 * waits for a lock.
 */
#ifndef REDLOCK_INSPECT_QUEUE_H
#define REDLOCK_INSPECT_QUEUE_H

#include "protocol/inspection.h"
#include "protocol/run_note.h"
#include "protocol/waiting_hosts.h"

/* Places: the most questions at a time. */
#define INSPECT_PLACES 8

/* A key, or a pattern in which each character has a backslash. */
#define INSPECT_KEY_SIZE (2 * LUA_KEY_MAX + 2)

/* The answers of the nodes. */
typedef struct InspectAnswer
{
	core_lists lists; /* lists of nodes in force */
	Inspected node[CORE_NODES_MAX];

	/* of INSPECT_SCAN, if the node's answer is INSPECTED_NONE: see scan.lua */
	char cursor[24];
	int keys_len;
	char keys[LUA_KEYS_SIZE];

	/* of INSPECT_RUN */
	core_mask noted; /* nodes with the note of the last run */
	RunNote last_run;

	/* of INSPECT_WAITING; the answer of a node that has passed the question on is INSPECTED_NONE */
	bool complete; /* a quorum of nodes is complete */
	int64 missing; /* see waiting_missing */
	WaitingHosts waiting;
} InspectAnswer;

typedef enum InspectKind
{
	INSPECT_LOCK,   /* what do the nodes keep?  Uses key */
	INSPECT_ASK,    /* ask the hosts that the nodes name for the release; uses key */
	INSPECT_FORCE,  /* release the lock by force; uses key, least, value: see force_release.lua */
	INSPECT_SCAN,   /* list some keys of one node; uses node, key: the pattern, value: the cursor */
	INSPECT_RUN,    /* which is the last run of a job?  Uses key: the job; value: a note to leave */
	INSPECT_WAITING /* which hosts wait?  Uses key, holder */
} InspectKind;

#define INSPECT_KINDS (INSPECT_WAITING + 1)

/* A question, or an order. */
typedef struct InspectQuestion
{
	InspectKind kind;
	int node;
	int64 least;   /* the least new counter */
	int value_len; /* FORCE: 0: any value; RUN: 0: no note */
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
 * Backends.  inspect_queue_enter returns a place, or -1 if none is free.  The caller leaves the
 * place in any case, also after an error.  inspect_queue_copy returns false before the answer is
 * there.
 */
extern int inspect_queue_enter(const InspectQuestion *question);

/*
 * A backend leaves an order to the broker, and waits for no answer.  Returns false if no place is
 * free.  The order outlives the session, and a restart of the broker.
 */
extern bool inspect_queue_order(const InspectQuestion *question);

/* Backends, of a place that inspect_queue_enter has returned. */
extern bool inspect_queue_copy(int place, InspectAnswer *answer);
extern void inspect_queue_leave(int place);

/*
 * One session of the server scans at a time.  inspect_queue_begin_scan returns false if another
 * session scans; the caller waits as for a place.  A session that has begun calls
 * inspect_queue_end_scan in any case.
 */
extern bool inspect_queue_begin_scan(void);
extern void inspect_queue_end_scan(void);

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
