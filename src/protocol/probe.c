/*
 * probe.c
 *		Deadlocks across hosts; see probe.h.
 */
#include "protocol/probe.h"

/* how often a wait looks for a cycle that was closed after the wait began */
#define AGAIN_US 250000

/* from this many waiting hosts on, each host sends fewer probes: the holder receives them all */
#define CROWD 16

/*
 * limit of probes in a second, for all waits of a host together; the first probe of a wait is
 * extra
 */
#define AGAIN_PER_S 300

static bool is_same(const ProbeStep *a, const ProbeStep *b);
static bool is_larger(const ProbeStep *a, const ProbeStep *b);
static uint64_t edges_of(const ProbePath *path);
static uint64_t mix(uint64_t hash, uint64_t with);

ProbeAct
probe_visit(ProbePath *path, const ProbeStep *step)
{
	for (int i = 0; i < path->count; i++)
		if (is_same(&path->step[i], step))
			return i == 0 ? PROBE_HOME : PROBE_DROP;
	if (path->count == PROBE_STEPS_MAX ||
		(path->count > 0 && step->remote && is_larger(step, &path->step[0])))
		return PROBE_DROP;
	path->step[path->count++] = *step;
	return PROBE_GO_ON;
}

ProbeVerdict
probe_judge(ProbeMemory *memory, const ProbePath *path, int64_t now_us, int64_t patience_us)
{
	ProbeSeen *seen = path->by_queue ? &memory->seen_by_queue : &memory->seen;
	uint64_t edges = edges_of(path);

	if (path->number > memory->sent)
		return PROBE_KNOWN; /* forged */
	if (seen->after > 0 && path->number <= seen->after)
		return PROBE_KNOWN; /* sent before the first probe came home */
	if (seen->after > 0 && seen->edges == edges)
	{
		seen->last = path->number;
		return path->by_queue && now_us - seen->since_us < patience_us ? PROBE_KNOWN
																	   : PROBE_DEADLOCK;
	}
	if (seen->after > 0 && path->number <= seen->last + 1)
		return PROBE_KNOWN; /* one of several cycles: the next probe comes by the first cycle too */
	*seen = (ProbeSeen){memory->sent, memory->sent, edges, now_us};
	return PROBE_ONCE;
}

int
probe_larger_queues(const ProbePath *path)
{
	const int last = path->count - 1;
	int larger = 0;

	for (int i = 1; i < last; i++)
		if (!path->step[i].remote && path->step[i + 1].host != path->step[i].host &&
			is_larger(&path->step[i], &path->step[last]))
			larger++;
	return larger;
}

int64_t
probe_again_us(int waiting, int probing)
{
	int64_t crowd_us = (int64_t) AGAIN_US * (1 + waiting / CROWD);
	int64_t share_us = (int64_t) probing * 1000000 / AGAIN_PER_S;
	int64_t again_us = crowd_us > share_us ? crowd_us : share_us;

	return again_us < PROBE_AGAIN_MAX_US ? again_us : PROBE_AGAIN_MAX_US;
}

static bool
is_same(const ProbeStep *a, const ProbeStep *b)
{
	return a->host == b->host && a->wait == b->wait && a->remote == b->remote;
}

static bool
is_larger(const ProbeStep *a, const ProbeStep *b)
{
	return a->host > b->host || (a->host == b->host && a->wait > b->wait);
}

/* A hash of the path.  Different paths have, except by chance, different hashes. */
static uint64_t
edges_of(const ProbePath *path)
{
	uint64_t hash = (uint64_t) path->count;

	for (int i = 0; i < path->count; i++)
		hash = mix(mix(hash, path->step[i].host), path->step[i].wait);
	return hash;
}

/* The finalizer of splitmix64 (Steele, Lea, Flood, 2014). */
static uint64_t
mix(uint64_t hash, uint64_t with)
{
	hash = (hash ^ with) * UINT64_C(0x9E3779B97F4A7C15);
	hash = (hash ^ (hash >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	hash = (hash ^ (hash >> 27)) * UINT64_C(0x94D049BB133111EB);
	return hash ^ (hash >> 31);
}
