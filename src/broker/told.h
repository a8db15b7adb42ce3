/*
 * told.h
 *		The last answer of each node about other hosts, the nodes that may vote, the call of the
 *		list's script (hosts.lua), and the time of the next beat.
 *
 * registry.c writes the answers.  marks.c writes the fields `marking` and `marked`, and
 * list_complain the field `complained`.  Only registry.c and conflicts.c call set_told.
 *
 * Used by the parts of the registry only.
 */
#ifndef REDLOCK_TOLD_H
#define REDLOCK_TOLD_H

#include "broker/node.h"
#include "broker/script.h"
#include "protocol/hosts.h"
#include "protocol/steps.h"
#include "shared/node_status.h"

/*
 * Pause between beats; registry.c has two shorter pauses.  Well below LUA_HOST_SILENT_MS and
 * STANDING_LAPSE_US: a host that misses a beat must not look silent.
 */
#define BEAT_US INT64CONST(10000000)

/* The least pause between beats, after any change. */
#define BEAT_LEAST_US INT64CONST(1000000)

/*
 * After a node's start, or after an outage, all hosts have written their entries within this time.
 */
#define ALL_TELL_US (LUA_HOST_SILENT_MS * INT64CONST(1000))

/* How long nodes list a host that has died. */
#define HOST_LIVES_US (LUA_HOST_LIVES_MS * INT64CONST(1000))

/* Kinds of calls at a node. */
enum
{
	CALL_LOAD = 1,
	CALL_BEAT,
	CALL_LEAVE,
	CALL_LIST,
	CALL_MARK
};

/* A node's last answer to a beat, and the state of the beat under way. */
typedef struct Told
{
	char address[HOSTS_ADDRESS_MAX + 1]; /* of the node */
	char sha[SCRIPT_SHA_SIZE];           /* of hosts.lua; empty: the node may lack it */
	bool out;                            /* a beat is under way */
	bool behind;                         /* an earlier beat was under way at the last beat */
	bool loaded;                         /* this beat has loaded the script */
	bool complained;                     /* logged: the node keeps no list */
	bool more;                           /* the answer was cut short */
	int64 asked_us;                      /* last beat was sent, */
	int64 beat_us;                       /* sending time of the beat that `records` answers, */
	int64 at_us;                         /* ... arrival of the answer; 0: none yet */
	int64 new_us;                        /* the node had lost this host's entry then */
	uint64 said;                         /* Standing.number in the last beat sent, */
	uint64 answered;                     /* ... and in the last beat answered, errors included */
	int64 answered_us;                   /* sending time of that beat */
	bool has_mark;                       /* the answer told the mark, or its absence */
	StepMark marking;                    /* marks.c: mark being written; version 0: none */
	int64 marked;                        /* marks.c: version of the mark this host wrote there */
	uint64 namesake;                     /* another host of this host's name; 0: none */
	char *records;
	size_t len;
} Told;

extern void told_init(void);

/* The answer of the node with this index. */
extern Told *told_of(int index);

/* Calls hosts.lua at a node.  what: CALL_BEAT, CALL_LEAVE, CALL_LIST or CALL_MARK. */
extern void list_call(RedisNode *node, int what, int argc, const char **argv, const size_t *argvlen,
					  int64 now_us);

/* Is the reply an array of this many elements that begins with two strings? */
extern bool list_is_answer(const redisReply *reply, size_t elements);

/* Logs once that the node does not keep the list. */
extern void list_complain(RedisNode *node, const redisReply *reply);

/*
 * set_told records whether a node may vote.  nodes_told returns the nodes that may vote: each has
 * answered with the other hosts, or keeps no list.
 */
extern void set_told(int index, NodeList list);

/* This host begins to take locks: the votes of nodes count from now on. */
extern void votes_begin(void);

extern core_mask nodes_told(void);

extern bool has_told(int node, int64 now_us);
extern bool has_told_all(int node);

/*
 * The time of the next beat.  beat_soon: after a change.  beat_by: at at_us or sooner.  beat_at:
 * at at_us.  The last three functions are for registry.c only; beat_begins drops all requests and
 * sets the time of the following beat.
 */
extern void beat_soon(void);
extern void beat_by(int64 at_us);
extern void beat_at(int64 at_us);
extern bool beat_is_wanted(void);
extern int64 beat_due_us(void);
extern void beat_begins(int64 next_us);

#endif /* REDLOCK_TOLD_H */
