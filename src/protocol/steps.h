/*
 * steps.h
 *		How a host leaves one of two lists of nodes: announce the step, mark the nodes, take the
 *		step.
 *
 * Two hosts with both lists exclude each other.  If one host goes on to the next list and
 * another goes back to the first list, the hosts no longer exclude each other.  So a host first
 * announces the step in its entry, at a majority of both lists.  Then the host asks these nodes
 * once more.  The host takes the step only if no node reports a host that has announced or taken
 * a different step.
 *
 * Why this suffices: a node writes an entry and returns all entries in one step.  If two hosts
 * announce different steps, a node that both reach returns the earlier announcement to the later
 * host.  If a host has already taken a step, the nodes of its new list report the host.  If
 * these nodes can't be reached, or have forgotten the host after a standstill, the marks report
 * the step.
 *
 * A mark at a node names the new list, which replaced the node's list.  Before the step, the
 * host marks a majority of the nodes to be left, and a majority of the nodes to be kept.  A mark
 * does not expire.  The version shows which mark is the latest: a node may have been away when
 * others were marked.
 *
 * A node without its data has no mark any more, while an older mark may stay at another node.
 * Three rules keep an older mark from counting.  Versions follow the clock, so a mark after the
 * loss is later than each mark before.  A mark does not count if a majority of the list lacks
 * the mark.  A host remembers the latest mark of its own list, and writes this mark again at
 * nodes that lack it.  Marks before the mark of the own list do not count: the hosts have come to
 * this list since.
 *
 * A node may lack the mark of its new list, if the node was away or full.  A host with the same
 * address for the node knows the node in the mark by its address, any other host by the process.
 * A host that knows all nodes of a mark in this way writes the same mark, with the addresses of the
 * first writer, so the first writer knows its list also after a node without the mark has
 *restarted.
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

/* a version is a Unix time in ms, or the version before plus one */
#define STEPS_VERSION_MAX INT64_C(1000000000000000)

#define STEPS_NODES_TEXT_MAX 255 /* bytes of the addresses in a mark */

/* an announcement counts if nodes have answered it within this time; entries live longer */
#define STEPS_FRESH_US INT64_C(15000000)

typedef enum StepAct
{
	STEP_WAIT,
	STEP_ANNOUNCE,
	STEP_WITHDRAW,
	STEP_MARK,
	STEP_TAKE
} StepAct;

/* a host's knowledge before a step */
typedef struct StepView
{
	bool clear;      /* after the step, this host and each known host still exclude each other */
	bool announced;  /* this host has announced the step */
	bool heard;      /* a majority of both lists has answered the announcement within
					  * STEPS_FRESH_US */
	bool rival;      /* another host has announced an incompatible step */
	bool goes_first; /* the rival has a smaller id */
	bool marked;     /* of each list that can be reached, a majority has the mark */
} StepView;

extern StepAct step_next(const StepView *view);

/* Returns true if both hosts' lists would be apart after the announced steps. */
extern bool steps_are_rivals(const HostConfig *ours, const HostConfig *theirs);

/* the mark at one node */
typedef struct StepMark
{
	int64_t version;                      /* 0: there is no mark */
	uint64_t list;                        /* hash of the new list */
	int32_t count;                        /* number of nodes of the new list */
	int32_t place;                        /* the node's own place in the new list, from 1; 0:
										   * none */
	uint64_t address[HOSTS_NODES_MAX];    /* hashes of the addresses of the new list, in the
										   * order of places */
	uint64_t process[HOSTS_NODES_MAX];    /* hashes of the nodes' processes, as the writer last
										   * knew them; 0: unknown */
	char host[HOSTS_NAME_MAX + 1];        /* the writer, for people: printable ASCII */
	char nodes[STEPS_NODES_TEXT_MAX + 1]; /* addresses of the new list, for people: printable
										   * ASCII */
} StepMark;

/*
 * Write and read a mark.  The text has at most LUA_MARK_MAX bytes; steps_write_mark returns its
 * length.  steps_read_mark returns false, and an empty mark, if the text is malformed.
 */
extern size_t steps_write_mark(const StepMark *mark, char *text);
extern bool steps_read_mark(StepMark *mark, const char *text, size_t len);

/* the latest mark of a host's own list, from all reports */
typedef struct StepMemory
{
	uint64_t list;   /* hash of the list */
	int64_t version; /* 0: none */
} StepMemory;

/* what a host knows of marks */
typedef struct StepMarks
{
	StepMark mark[CORE_NODES_MAX];
	uint64_t address[CORE_NODES_MAX]; /* hashes of this host's addresses of the nodes, as in
									   * marks */
	uint64_t process[CORE_NODES_MAX]; /* hashes of the nodes' processes, as in marks; 0: unknown */
	core_mask told;                   /* nodes that have reported; other marks do not count */
	StepMemory own;
} StepMarks;

/*
 * Remembers the latest mark that names the host's first list, perhaps by different addresses.
 * Call this function after nodes have reported.  list: hash of the list.
 */
extern void steps_remember(StepMarks *marks, core_mask nodes, uint64_t list);

/* the version for a mark that names the list with this hash */
extern int64_t steps_next_version(const StepMarks *marks, uint64_t list, int64_t wall_clock_ms);

/* Does the mark name the list with this hash and these nodes, perhaps by different addresses? */
extern bool steps_names(const StepMarks *marks, const StepMark *mark, core_mask nodes,
						uint64_t list);

/*
 * Chooses the mark that this host writes for the list of these nodes.  On entry, *mark describes
 * the list by this host's addresses, and place[i] is the place of node i, from 1; 0: none.  If the
 * latest mark names the same nodes by another host's addresses, *mark becomes the latest mark, with
 * the processes that this host knows: marks of one list must not replace each other.  Else *mark
 * gets its version.
 */
extern void steps_choose_mark(const StepMarks *marks, core_mask nodes, int64_t wall_clock_ms,
							  StepMark *mark, int32_t place[CORE_NODES_MAX]);

/* the latest mark; NULL: there is none */
extern const StepMark *steps_latest(const StepMarks *marks);

/* The latest mark for these lists; NULL: there is none. */
extern const StepMark *steps_mark_of(core_lists lists, const StepMarks *marks);

/*
 * Returns true if these lists were left, by the mark of steps_mark_of: a host with these lists
 * would not exclude a host with the new list of the mark. now, next: hashes of the lists.
 */
extern bool steps_left(core_lists lists, uint64_t now, uint64_t next, const StepMarks *marks);

/*
 * Returns true if a host whose only list has these nodes may mark the list.  Call this function
 * after steps_remember for the list.  The host may mark if the list's own mark is as late as the
 * latest mark that counts.  Otherwise the host must exclude each host with the marked list,
 * whatever the nodes without a report are: if a wrong list were marked, hosts with the right list
 * would refuse. So the marked list must name a node without a report.
 */
extern bool steps_may_mark(core_mask nodes, const StepMarks *marks);

/*
 * Returns NULL if a host may leave a list for another list, by the marks of both; else the mark
 * that forbids it.  If a mark says that the list `to` was left, the host may follow in two cases
 * only: a majority of `left` was asked (left_asked), and `left` excludes each host with the new
 * list of the mark; or the mark is before the mark of the host's first list, which is one of both.
 */
extern const StepMark *steps_forbid(core_lists to, uint64_t to_list, core_lists left,
									uint64_t left_list, bool left_asked, const StepMarks *marks);

#endif /* REDLOCK_STEPS_H */
