/*
 * host_list.h
 *		Shared memory: the list of hosts that share the nodes, for a session that asks; and the
 *		host that is in a configuration conflict with this host.
 *
 * A session raises `asked` and wakes the broker.  The broker reads the host lists of the nodes,
 * writes a HostList into a segment of dynamic shared memory, and publishes an answer.  One answer
 * serves all sessions that asked before the broker began.  The broker keeps the segment for a
 * while.  A session attaches the segment and copies the list; a session that comes too late asks
 * again.
 */
#ifndef REDLOCK_HOST_LIST_H
#define REDLOCK_HOST_LIST_H

#include "lib/stringinfo.h"
#include "storage/dsm.h"

#include "protocol/core.h"
#include "protocol/hosts.h"

/* A longer list is an error. */
#define HOST_LIST_MAX 10000

typedef enum HostListState
{
	HOST_LIST_MADE,
	HOST_LIST_NO_QUORUM,
	HOST_LIST_TOO_LONG,
	HOST_LIST_NO_MEMORY
} HostListState;

/* One answer of the broker. */
typedef struct HostListAnswer
{
	uint64 number; /* of the last request that this answer serves */
	HostListState state;
	dsm_handle segment;
	core_mask silent; /* nodes whose list was not read */
} HostListAnswer;

/* The hosts wrote the texts, which begin at these offsets of the segment. */
typedef struct HostRow
{
	uint64 id;
	int64 seen_us; /* redlock_clock_us() time */
	int nodes;     /* how many nodes know the host */
	uint32 facts_at;
	uint32 facts_len;
	uint32 config_at;
	uint32 config_len;
} HostRow;

typedef struct HostList
{
	Size size;      /* of the whole list, with the texts */
	int64 made_us;  /* redlock_clock_us() time */
	HostConfig own; /* of this host */
	int count;
	HostRow row[FLEXIBLE_ARRAY_MEMBER];
} HostList;

/* The configuration conflict of this host. */
typedef struct HostConflict
{
	char name[HOSTS_NAME_MAX + 1]; /* of the other host; empty: no conflict */
	uint64 host;
	bool left; /* the named host has left the nodes of this host for another list */
	char detail[4096];
	char hint[512];
} HostConflict;

/* The postmaster adds up the sizes; the caller of set_up holds AddinShmemInitLock. */
extern Size host_list_size(void);
extern void host_list_set_up(void);

extern int64 host_list_up_for_us(void); /* time since the server's start */

/* cluster_name of this server, or the name of its machine; printable ASCII.  A static text. */
extern const char *host_list_own_name(void);

/* Backends: ask for a list, look for the answer, see the broker's progress, wait for a moment. */
extern uint64 host_list_ask(void);
extern bool host_list_answered(uint64 number, HostListAnswer *answer);
extern uint64 host_list_steps(void); /* the number changes while the broker makes a list */
extern void host_list_wait(long timeout_ms);
extern void host_list_end_wait(void);
extern HostList *host_list_copy(const HostListAnswer *answer); /* palloc'd; NULL: too late */

/* Is this host in a configuration conflict? */
extern bool host_list_in_conflict(void);
extern void host_list_conflict(HostConflict *conflict);

/* the broker */
extern uint64 host_list_asked(void);
extern void host_list_step(void);
extern void host_list_answer(const HostListAnswer *answer);
extern void host_list_set_conflict(const HostConflict *conflict); /* NULL: none */

/*
 * Writes sentences about the difference into `detail`, and sentences about the remedy into `hint`.
 */
extern void host_list_explain(const HostConfig *ours, const HostConfig *theirs,
							  const HostsDifference *difference, StringInfo detail,
							  StringInfo hint);

#endif /* REDLOCK_HOST_LIST_H */
