/*
 * probe.h
 *		Deadlocks across hosts: what is done with a probe.
 *
 * A session that waits for a lock of another host sends a probe along the edges of the
 * graph of who waits for whom: to the sessions that hold the lock, from there to those for
 * which they wait, and so on, on any host.  If it comes home, there is a cycle (Chandy,
 * Misra, Haas: Distributed Deadlock Detection, 1983; the AND model, since a session waits for
 * all that block it).  A probe carries its path.
 *
 * Each step of a path is a wait, which has a number that no other wait of its host has.
 * Edges are seen one after another, so a cycle that was seen once may never have been: one
 * wait was over when the next began.  When a second probe, sent after the first came home,
 * comes home by the same waits, each of them lasted from before that instant until after it.
 * A session that waits releases nothing meanwhile.  So all of them waited at that instant,
 * and none of them can go on.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PROBE_H
#define REDLOCK_PROBE_H

#include <stdbool.h>
#include <stdint.h>

/* Waits of a cycle that can be found. */
#define PROBE_STEPS_MAX 32

typedef struct ProbeStep
{
	uint64_t host;
	uint64_t wait; /* its number on that host */
	bool remote;   /* for a lock that another host has */
} ProbeStep;

typedef struct ProbePath
{
	uint32_t number; /* of the probes of the first step's wait */
	bool by_queue;   /* it goes through a session that only stands before another in a queue */
	int count;
	ProbeStep step[PROBE_STEPS_MAX]; /* the first is that of the wait that sent it */
} ProbePath;

typedef enum ProbeAct
{
	PROBE_GO_ON, /* the wait was added to the path */
	PROBE_HOME,  /* it is the first of the path: a cycle */
	PROBE_DROP   /* it can't come home, or another's of the same cycle will */
} ProbeAct;

/*
 * The path leads to this wait.  Of the waits of a cycle for locks of other hosts, that with
 * the largest number breaks it, so one alone does: probes of the others are dropped there.
 */
extern ProbeAct probe_visit(ProbePath *path, const ProbeStep *step);

/* A cycle, perhaps. */
typedef struct ProbeSeen
{
	uint32_t after;   /* seen before that was sent; the second has a larger number; 0: not yet */
	uint32_t last;    /* the number by which it was seen last; or `after` */
	uint64_t edges;   /* by which the first came */
	int64_t since_us; /* when it came */
} ProbeSeen;

/* What a wait remembers of its probes; zeroed for a new wait. */
typedef struct ProbeMemory
{
	uint32_t sent; /* the number of the last one */
	ProbeSeen seen;
	ProbeSeen seen_by_queue;
} ProbeMemory;

typedef enum ProbeVerdict
{
	PROBE_KNOWN,   /* no news */
	PROBE_ONCE,    /* a cycle, perhaps: send another probe at once */
	PROBE_DEADLOCK /* this wait is to end */
} ProbeVerdict;

/*
 * It came home.  One that came by a queue counts when it has done so for patience_us: who sent it
 * may stand in the way of a cycle that has just been closed, and that another will break.
 */
extern ProbeVerdict probe_judge(ProbeMemory *memory, const ProbePath *path, int64_t now_us,
								int64_t patience_us);

/*
 * So long after one probe a wait sends another, when so many hosts wait for its lock, and so many
 * waits of its own host send probes; at most PROBE_AGAIN_MAX_US, whatever these are.
 */
#define PROBE_AGAIN_MAX_US INT64_C(2500000)
extern int64_t probe_again_us(int waiting, int probing);

#endif /* REDLOCK_PROBE_H */
