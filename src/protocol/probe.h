/*
 * probe.h
 *		Deadlocks across hosts: the handling of a probe.
 *
 * A session that waits for a lock of another host sends a probe along the wait-for graph: to the
 * holders of the lock, from there to the sessions for which the holders wait, and onward, on any
 * host.  If the probe comes home, there is a cycle (Chandy, Misra, Haas: Distributed Deadlock
 * Detection, 1983; the AND model, since a session waits for all sessions that block it).  A
 * probe carries its path.
 *
 * Each step of a path is a wait, with a number that is unique on its host.  A probe sees the
 * edges one after another, so a cycle seen once may never have existed: one wait may have ended
 * before the next wait began.  So a second probe is sent after the first came home.  If the
 * second probe comes home by the same waits, each wait lasted from before the second was sent
 * until after.  A waiting session releases nothing.  So at the instant of the second send all
 * sessions of the cycle waited, and none of them can go on.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_PROBE_H
#define REDLOCK_PROBE_H

#include <stdbool.h>
#include <stdint.h>

/* the longest cycle that can be found, in waits */
#define PROBE_STEPS_MAX 32

typedef struct ProbeStep
{
	uint64_t host;
	uint64_t wait; /* number of the wait on the host */
	bool remote;   /* a wait for a lock of another host */
} ProbeStep;

typedef struct ProbePath
{
	uint32_t number; /* counts the probes of the wait that sent this probe */
	bool by_queue;   /* the path crosses a session that only stands ahead in a queue */
	int count;
	ProbeStep step[PROBE_STEPS_MAX]; /* step[0]: the wait that sent the probe */
} ProbePath;

typedef enum ProbeAct
{
	PROBE_GO_ON, /* the wait was added to the path */
	PROBE_HOME,  /* the wait is step[0]: a cycle */
	PROBE_DROP   /* the probe can't come home, or a probe of another wait finds the same cycle */
} ProbeAct;

/*
 * The path leads to this wait.  A cycle is broken by one wait only: of the cycle's waits for
 * locks of other hosts, the wait with the largest host id and number.  It drops the probes of
 * smaller waits.
 */
extern ProbeAct probe_visit(ProbePath *path, const ProbeStep *step);

/* a possible cycle */
typedef struct ProbeSeen
{
	uint32_t after;   /* `sent` when the cycle was first seen: the second probe has a larger
					   * number; 0: no cycle yet */
	uint32_t last;    /* number of the last probe that showed the cycle; or `after` */
	uint64_t edges;   /* hash of the path of the first probe */
	int64_t since_us; /* when the first probe came home */
} ProbeSeen;

/* a wait's memory of its probes; zeroed for a new wait */
typedef struct ProbeMemory
{
	uint32_t sent; /* number of the last probe */
	ProbeSeen seen;
	ProbeSeen seen_by_queue;
} ProbeMemory;

typedef enum ProbeVerdict
{
	PROBE_KNOWN,   /* no news */
	PROBE_ONCE,    /* a possible cycle: send another probe at once */
	PROBE_DEADLOCK /* end this wait */
} ProbeVerdict;

/*
 * A probe came home.  A probe through a queue counts only after patience_us: its sender may
 * stand in the way of a cycle that was closed just now, and that another wait will break.
 */
extern ProbeVerdict probe_judge(ProbeMemory *memory, const ProbePath *path, int64_t now_us,
								int64_t patience_us);

/*
 * A path that crosses a queue came home from a local wait in this queue.  Returns how many other
 * queues of the path see the same cycle, and have a larger wait at their end: the path leaves the
 * host of each such wait.
 */
extern int probe_larger_queues(const ProbePath *path);

/*
 * The pause of a wait between two probes, at most PROBE_AGAIN_MAX_US. waiting: hosts that wait
 * for the same lock; probing: waits of this host that send probes.
 */
#define PROBE_AGAIN_MAX_US INT64_C(2500000)
extern int64_t probe_again_us(int waiting, int probing);

#endif /* REDLOCK_PROBE_H */
