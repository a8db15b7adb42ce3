/*
 * host_list.h
 *		Shared memory: the list of hosts that share the nodes, for sessions that ask for
 *		it; and the host with which this one does not agree.
 *
 * A session raises `asked` and wakes the broker, which reads the lists of the nodes, puts
 * what they say into a segment of dynamic shared memory, and tells of it: one answer for
 * all who asked before it began.  It keeps the segment attached for a while.  Sessions
 * attach to it and copy; one that comes too late asks again.
 */
#ifndef REDLOCK_HOST_LIST_H
#define REDLOCK_HOST_LIST_H

#include "lib/stringinfo.h"
#include "storage/dsm.h"

#include "protocol/core.h"
#include "protocol/hosts.h"

/* More hosts than that are not listed, and that is an error. */
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
	uint64 number; /* answers all who asked up to this */
	HostListState state;
	dsm_handle segment;
	core_mask silent; /* nodes of which the list was not read */
} HostListAnswer;

/* The texts are as the hosts wrote them, at these places of the segment. */
typedef struct HostRow
{
	uint64 id;
	int64 seen_us; /* redlock_clock_us() time */
	int nodes;     /* that know it */
	uint32 facts_at;
	uint32 facts_len;
	uint32 config_at;
	uint32 config_len;
} HostRow;

typedef struct HostList
{
	Size size;      /* of all of it */
	int64 made_us;  /* redlock_clock_us() time */
	HostConfig own; /* of this host */
	int count;
	HostRow row[FLEXIBLE_ARRAY_MEMBER];
} HostList;

/* With whom this host does not agree. */
typedef struct HostDispute
{
	char name[HOSTS_NAME_MAX + 1]; /* empty: there is none */
	uint64 host;
	bool left; /* the nodes were left for others, by the host of that name */
	char detail[4096];
	char hint[512];
} HostDispute;

/* Of the shared memory that it takes; to be called where that is requested, and set up. */
extern Size host_list_size(void);
extern void host_list_set_up(void);

extern int64 host_list_up_for_us(void); /* since then */

/* cluster_name of this server, or the name of its machine; printable ASCII.  A static text. */
extern const char *host_list_own_name(void);

/* backends: ask; has it been answered, and is the broker at it?  Wait a moment. */
extern uint64 host_list_ask(void);
extern bool host_list_answered(uint64 number, HostListAnswer *answer);
extern uint64 host_list_steps(void); /* changes while the broker makes a list */
extern void host_list_wait(long timeout_ms);
extern void host_list_end_wait(void);
extern HostList *host_list_copy(const HostListAnswer *answer); /* palloc'd; NULL: too late */

/* Is there a host with which this one does not agree? */
extern bool host_list_in_dispute(void);
extern void host_list_dispute(HostDispute *dispute);

/* the broker */
extern uint64 host_list_asked(void);
extern void host_list_step(void);
extern void host_list_answer(const HostListAnswer *answer);
extern void host_list_set_dispute(const HostDispute *dispute); /* NULL: none */

/* In what they differ, in sentences, and what to do about it. */
extern void host_list_explain(const HostConfig *ours, const HostConfig *theirs,
							  const HostsDifference *difference, StringInfo detail,
							  StringInfo hint);

#endif /* REDLOCK_HOST_LIST_H */
