/*
 * told.h
 *		The last answer of each node about other hosts, the nodes that may vote, the call of the
 *		list's script, and the time of the next beat.
 *
 * registry.c writes the answers; marks.c writes the fields marking and marked, and list_complain
 * the field complained.  set_told is for registry.c and disputes.c.
 *
 * Used by the parts of the registry only.
 */
#ifndef REDLOCK_TOLD_H
#define REDLOCK_TOLD_H

#include "broker/node.h"
#include "broker/script.h"
#include "protocol/hosts.h"
#include "protocol/steps.h"

/* A beat comes so often, */
#define BEAT_US INT64CONST(10000000)

/* ... and no sooner after the one before, whatever has changed. */
#define BEAT_LEAST_US INT64CONST(1000000)

/* So long after the start of a node, or after it was out of reach, all hosts have told it. */
#define ALL_TELL_US (LUA_HOST_SILENT_MS * INT64CONST(1000))

/* A host that is dead is told of for so long. */
#define HOST_LIVES_US (LUA_HOST_LIVES_MS * INT64CONST(1000))

/* What is asked of a node. */
enum
{
	CALL_LOAD = 1,
	CALL_BEAT,
	CALL_LEAVE,
	CALL_LIST,
	CALL_MARK
};

/* What a node told at its last beat. */
typedef struct Told
{
	char address[HOSTS_ADDRESS_MAX + 1]; /* the node's */
	char sha[SCRIPT_SHA_SIZE];           /* of the script; empty: it may not have it */
	bool out;                            /* it is being asked */
	bool loaded;                         /* ... and has got the script for that */
	bool complained;                     /* the log says that it does not keep the list */
	bool more;                           /* it has left something out */
	int64 asked_us;                      /* last, */
	int64 beat_us;                       /* ... and what it told answers what was asked then, */
	int64 at_us;                         /* ... and was heard then; 0: it has not told anything */
	int64 new_us;                        /* it did not know this host then, as it should have */
	uint64 said;                         /* Standing.number, when it was asked, */
	uint64 answered;                     /* ... and of what it answered, be it with an error */
	int64 answered_us;                   /* ... which was sent then */
	bool has_mark;                       /* marks.c has its mark, or knows that there is none */
	StepMark marking;                    /* marks.c: what it is told of that; version 0: nothing */
	int64 marked;    /* marks.c: version of the mark that it has taken from this host */
	uint64 namesake; /* another host with this one's name; 0: none */
	char *records;
	size_t len;
} Told;

extern void told_init(void);

/* The answer of the node in this place. */
extern Told *told_of(int index);

/* Calls the script of the list (hosts.lua) at a node.  what: one of the values above. */
extern void list_call(RedisNode *node, int what, int argc, const char **argv, const size_t *argvlen,
					  int64 now_us);

/* Has the reply so many elements, and texts as the first two? */
extern bool list_is_answer(const redisReply *reply, size_t elements);

/* Logs once that the node does not keep the list. */
extern void list_complain(RedisNode *node, const redisReply *reply);

/* The nodes that may vote: they have told of other hosts, or can't. */
extern void set_told(int index, bool has);
extern core_mask nodes_told(void);

extern bool has_told(int node, int64 now_us);
extern bool has_told_all(int node);

/*
 * The time of the next beat.  beat_soon: something has changed.  beat_by: not after that time.
 * beat_at: at that time.  The others are for registry.c only; beat_begins forgets all wishes and
 * sets the time of the beat after this one.
 */
extern void beat_soon(void);
extern void beat_by(int64 at_us);
extern void beat_at(int64 at_us);
extern bool beat_is_wanted(void);
extern int64 beat_due_us(void);
extern void beat_begins(int64 next_us);

#endif /* REDLOCK_TOLD_H */
