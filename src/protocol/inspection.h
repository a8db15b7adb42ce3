/*
 * inspection.h
 *		Looking at a lock: the keys at the nodes, and the verdict of a majority.
 *
 * The answers come from one exchange, which acquires nothing.  So a verdict is about a moment of
 * the past: the caller holds nothing.
 *
 * Pure.
 */
#ifndef REDLOCK_INSPECTION_H
#define REDLOCK_INSPECTION_H

#include "protocol/core.h"
#include "protocol/lua.h"
#include "protocol/permits.h"

#define INSPECTION_ERROR_MAX 159

typedef enum InspectedKind
{
	INSPECTED_SILENT, /* no answer */
	INSPECTED_ERROR,
	INSPECTED_NONE,   /* no key */
	INSPECTED_STRING, /* a key with a value */
	INSPECTED_OTHER   /* a key of another type; `value` is a text about it */
} InspectedKind;

/* The answer of one node about one lock. */
typedef struct Inspected
{
	InspectedKind kind;
	bool may_have_forgotten; /* then a missing key proves nothing */
	int64_t ttl_ms;          /* -1: the key never expires */
	int64_t counter;         /* 0: none */
	int value_len;
	char value[LUA_HELD_MAX + 1];
	char marker[LUA_MARKER_MAX + 1];
	int readers;                         /* of a shared lock */
	int hosts;                           /* number of `host` */
	uint64_t host[LUA_READERS_ASKED];    /* the readers' hosts, or some of them */
	uint8_t permit[PERMITS_MAX / 8 + 1]; /* bit n - 1: permit n is taken */
	char error[INSPECTION_ERROR_MAX + 1];
	bool forced;   /* after a forced release: the key is deleted; else another request's is there */
	int64_t after; /* the counter after a forced release; `counter` is the former one */
} Inspected;

typedef enum InspectionState
{
	INSPECTION_NO_QUORUM, /* too few nodes answered */
	INSPECTION_UNKNOWN,   /* nodes without an answer decide whether the lock is held */
	INSPECTION_FREE,      /* no request has a majority, whatever the other nodes say */
	INSPECTION_HELD,      /* one request, or readers, or holders of permits, have a majority */
	INSPECTION_KEPT       /* the same, but released: hold_at_least keeps the keys */
} InspectionState;

typedef struct Inspection
{
	InspectionState state;
	core_mask answered;
	core_mask nodes; /* nodes with the same lock: the most that agree */
	int witness;     /* one of `nodes`, with the commonest value; -1: no node has a key */
	int64_t ttl_ms;  /* until a majority no longer has the key, without renewals; -1: never;
					  * 0: no majority has it */
	int64_t counter; /* that a majority has reached; 0: none, or not read */
	int permits_taken;
	int readers;
	int hosts;
	uint64_t host[LUA_READERS_ASKED]; /* hosts that a majority knows as readers */
} Inspection;

/*
 * Judges the answers of the nodes of `lists`.  `node` has CORE_NODES_MAX elements, by node index.
 * of_permit: as for inspection_is_same.
 */
extern void inspection_judge(Inspection *inspection, core_lists lists, const Inspected *node,
							 bool of_permit);

/*
 * Do the keys of two nodes belong together?  All attempts of a request do, also with the key that
 * hold_at_least keeps.  All readers do, and all permits of a lock.  of_permit: the two keys are of
 * one permit, and only keys of one request belong together.
 */
extern bool inspection_is_same(const Inspected *one, const Inspected *other, bool of_permit);

/* The most hosts that inspection_hosts returns. */
#define INSPECTION_HOSTS_MAX (CORE_NODES_MAX + LUA_READERS_ASKED)

/*
 * Writes the hosts of the keys that the nodes tell of, each once, and returns their number.
 * forced: only the hosts of keys that a forced release has deleted.  Of too many hosts, some are
 * missing: they learn of a forced release by their next renewal.
 */
extern int inspection_hosts(const Inspected *node, bool forced,
							uint64_t host[INSPECTION_HOSTS_MAX]);

/* The nodes with the given kind of answer. */
extern core_mask inspection_nodes(core_lists lists, const Inspected *node, InspectedKind kind);

#endif /* REDLOCK_INSPECTION_H */
