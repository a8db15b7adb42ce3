/*
 * steps.h
 *		How a host leaves one of two lists of nodes: it announces the step, and marks the nodes.
 *
 * Two hosts with both lists exclude each other.  They would not any more if one went on to the
 * next list while the other went back to the first one.  So a host announces its step in its entry
 * first, at a majority of both lists, and takes it only when these nodes, asked after that, tell of
 * no host that has announced, or taken, another one.
 *
 * Why that is enough: a node writes an entry and tells of the others in one step.  Of two hosts
 that announce different steps the later one at a node that both reach is told of the earlier one.
 * A host that has taken its step is told of by the nodes that it has now.  Where these can't be
 * reached, or the host was forgotten since it stood still, the marks tell.
 *
 * A mark says of the nodes of one list by which list it was replaced.  The host writes it at a
 * majority of the nodes that it leaves, and of those that it keeps, before the step.  It has no
 * end.  Its version tells the latest one: a node may have been away when others were marked.
 *
 * A node that loses its data loses its mark, and an older mark may stay at another node.  Three
 * rules keep an older mark from counting: versions follow the clock, so a mark after the loss is
 * later than each one before; a mark counts only where no majority of the list lacks it; and a host
 * remembers the latest mark of its own list, and writes it again where it lacks.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_STEPS_H
#define REDLOCK_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "protocol/core.h"
#include "protocol/hosts.h"
#include "protocol/lua.h"

/* Versions are Unix times in ms, or one more than the version before. */
#define STEPS_VERSION_MAX INT64_C(1000000000000000)

#define STEPS_NODES_TEXT_MAX 255 /* bytes of the addresses in a mark */

/* The announcement counts when nodes have answered it so lately: entries live longer. */
#define STEPS_FRESH_US INT64_C(15000000)

typedef enum StepAct
{
	STEP_WAIT,
	STEP_ANNOUNCE,
	STEP_WITHDRAW,
	STEP_MARK,
	STEP_TAKE
} StepAct;

/* What a host knows that wants to take a step. */
typedef struct StepView
{
	bool clear;      /* no host is known from which it would not be kept apart after the step */
	bool announced;  /* this host has announced it */
	bool heard;      /* a majority of both lists has answered the announcement, and lately */
	bool rival;      /* another host has announced a step that does not go with this one */
	bool goes_first; /* ... and has a smaller id */
	bool marked;     /* a majority of each list that can be reached has the mark */
} StepView;

extern StepAct step_next(const StepView *view);

/* Would these hosts' lists be apart if both took the steps that they have announced? */
extern bool steps_are_rivals(const HostConfig *ours, const HostConfig *theirs);

/* The mark of one node. */
typedef struct StepMark
{
	int64_t version;                      /* 0: there is no mark */
	uint64_t list;                        /* hash of the list that took the place, */
	int32_t count;                        /* ... its nodes, */
	int32_t place;                        /* ... and which of these this one is, from 1; 0: none */
	uint64_t address[HOSTS_NODES_MAX];    /* hashes of their addresses, in the order of places */
	char host[HOSTS_NAME_MAX + 1];        /* that wrote it, for people: printable ASCII */
	char nodes[STEPS_NODES_TEXT_MAX + 1]; /* their addresses, for people: printable ASCII */
} StepMark;

/* The length of the text, of LUA_MARK_MAX bytes at most. */
extern size_t steps_write_mark(const StepMark *mark, char *text);
extern bool steps_read_mark(StepMark *mark, const char *text, size_t len);

/* The latest mark of a host's own list that the host has met. */
typedef struct StepMemory
{
	uint64_t list;   /* hash of the list */
	int64_t version; /* 0: none */
} StepMemory;

/* What a host knows of marks. */
typedef struct StepMarks
{
	StepMark mark[CORE_NODES_MAX];
	uint64_t address[CORE_NODES_MAX]; /* hashes, as in marks, of what this host calls the nodes */
	core_mask told;                   /* these nodes have told */
	StepMemory own;
} StepMarks;

/*
 * Remembers the latest mark that names the only list in force, if need be by other names.  To be
 * called when nodes have told.  list: hash of the list.
 */
extern void steps_remember(StepMarks *marks, core_mask nodes, uint64_t list);

/* The version of a mark that names the list with this hash. */
extern int64_t steps_next_version(const StepMarks *marks, uint64_t list, int64_t wall_clock_ms);

/* The latest one; NULL: there is none. */
extern const StepMark *steps_latest(const StepMarks *marks);

/*
 * Were these lists left, as the latest mark tells?  That is, would they not keep a host apart from
 * one with the list that it names?  now, next: the hashes that marks have of these lists.
 */
extern bool steps_left(core_lists lists, uint64_t now, uint64_t next, const StepMarks *marks);

/*
 * May a host leave a list for another one, as the marks of both tell?  If these lists were left for
 * others, then only where a majority of the list that the host leaves was asked (left_asked), and
 * would know each host with the list that the mark names.
 */
extern bool steps_may_follow(core_lists to, uint64_t to_list, core_lists left, uint64_t left_list,
							 bool left_asked, const StepMarks *marks);

#endif /* REDLOCK_STEPS_H */
