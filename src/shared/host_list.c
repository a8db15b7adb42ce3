/*
 * host_list.c
 *		The hosts that share the nodes; see host_list.h.
 */
#include "postgres.h"

#include <unistd.h>

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"

#include "shared/clock.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/seqlock.h"
#include "shared/text.h"
#include "shared/url.h"
#include "shared/wait_events.h"

/* Nodes named in a message; further nodes are counted. */
#define NODES_NAMED 5

typedef struct Shared
{
	int64 made_us;
	pg_atomic_uint64 asked;
	pg_atomic_uint64 steps;
	ConditionVariable answered;
	slock_t mutex;
	HostListAnswer answer; /* under the mutex */
	SeqLock version;
	HostConflict conflict; /* written by the broker, under version */
} Shared;

static Shared *shared = NULL;

static bool holds_at_local(const HostConfig *config);
static void name_nodes(StringInfo text, const HostConfig *config, const bool *alone);

Size
host_list_size(void)
{
	return sizeof(Shared);
}

void
host_list_set_up(void)
{
	bool found;

	shared = ShmemInitStruct("redlock_pg hosts", host_list_size(), &found);
	if (found)
		return;
	memset(shared, 0, host_list_size());
	shared->made_us = redlock_clock_us();
	pg_atomic_init_u64(&shared->asked, 0);
	pg_atomic_init_u64(&shared->steps, 0);
	ConditionVariableInit(&shared->answered);
	SpinLockInit(&shared->mutex);
	pg_atomic_init_u32(&shared->version.number, 0);
}

int64
host_list_up_for_us(void)
{
	return redlock_clock_us() - shared->made_us;
}

const char *
host_list_own_name(void)
{
	static char printable[HOSTS_NAME_MAX + 1];
	char name[HOSTS_NAME_MAX + 1] = "";

	if (cluster_name[0] != '\0')
		strlcpy(name, cluster_name, sizeof(name));
	else
		gethostname(name, sizeof(name) - 1);
	text_to_printable(printable, sizeof(printable), name, strlen(name));
	return printable;
}

uint64
host_list_ask(void)
{
	uint64 number = pg_atomic_add_fetch_u64(&shared->asked, 1);

	lease_wake_broker();
	return number;
}

bool
host_list_answered(uint64 number, HostListAnswer *answer)
{
	SpinLockAcquire(&shared->mutex);
	*answer = shared->answer;
	SpinLockRelease(&shared->mutex);
	return answer->number >= number;
}

uint64
host_list_steps(void)
{
	return pg_atomic_read_u64(&shared->steps);
}

void
host_list_wait(long timeout_ms)
{
	(void) ConditionVariableTimedSleep(&shared->answered, timeout_ms, wait_event(WAITS_FOR_HOSTS));
}

void
host_list_end_wait(void)
{
	ConditionVariableCancelSleep();
}

HostList *
host_list_copy(const HostListAnswer *answer)
{
	dsm_segment *segment = dsm_attach(answer->segment);
	HostList *copy;
	Size size;

	if (segment == NULL)
		return NULL;
	size = ((HostList *) dsm_segment_address(segment))->size;
	copy = MemoryContextAllocHuge(CurrentMemoryContext, size);
	memcpy(copy, dsm_segment_address(segment), size);
	dsm_detach(segment);
	return copy;
}

bool
host_list_in_conflict(void)
{
	return shared->conflict.name[0] != '\0';
}

/* Reports no conflict if the writer is stopped in the middle of a change. */
void
host_list_conflict(HostConflict *conflict)
{
	int tries = 0;

	do
	{
		uint32 version = seqlock_begin_read(&shared->version);

		*conflict = shared->conflict;
		if (seqlock_end_read(&shared->version, version))
			return;
	} while (seqlock_try_again(&tries));
	conflict->name[0] = '\0';
}

uint64
host_list_asked(void)
{
	return pg_atomic_read_u64(&shared->asked);
}

void
host_list_step(void)
{
	pg_atomic_fetch_add_u64(&shared->steps, 1);
}

void
host_list_answer(const HostListAnswer *answer)
{
	SpinLockAcquire(&shared->mutex);
	shared->answer = *answer;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->answered);
}

void
host_list_set_conflict(const HostConflict *conflict)
{
	static const HostConflict none = {0};

	seqlock_begin_write(&shared->version);
	shared->conflict = conflict != NULL ? *conflict : none;
	seqlock_end_write(&shared->version);
}

void
host_list_explain(const HostConfig *ours, const HostConfig *theirs,
				  const HostsDifference *difference, StringInfo detail, StringInfo hint)
{
	bool ours_alone[HOSTS_NODES_MAX];
	bool theirs_alone[HOSTS_NODES_MAX];

	if (difference->kinds & HOSTS_MAX_TTL)
	{
		appendStringInfo(detail,
						 "redlock.max_ttl is " INT64_FORMAT " ms at that host, and " INT64_FORMAT
						 " ms at this host. ",
						 theirs->max_ttl_ms, ours->max_ttl_ms);
		appendStringInfoString(hint, "Set the same redlock.max_ttl on both hosts. ");
	}
	if (difference->kinds & HOSTS_DATABASES)
	{
		int i = 0;

		while (!difference->is_other_db[i])
			i++;
		appendStringInfo(
			detail, "At node %s, that host uses database %d, and this host database %d. ",
			ours->node[i].address, theirs->node[difference->twin[i]].db, ours->node[i].db);
		appendStringInfoString(
			hint, "Name the same database of each node in redlock.nodes on both hosts. ");
	}
	if (difference->kinds & HOSTS_NODES)
	{
		for (int i = 0; i < ours->count; i++)
			ours_alone[i] = hosts_is_listed(&ours->node[i]);
		for (int j = 0; j < theirs->count; j++)
		{
			theirs_alone[j] = hosts_is_listed(&theirs->node[j]);
			for (int i = 0; i < ours->count; i++)
				if (difference->twin[i] == j && ours_alone[i] && theirs_alone[j])
					ours_alone[i] = theirs_alone[j] = false;
		}
		appendStringInfoString(detail,
							   "A majority of the nodes of that host and a majority of the nodes "
							   "of this host may have no node in common. Only that host has: ");
		name_nodes(detail, theirs, theirs_alone);
		appendStringInfoString(detail, "; only this host has: ");
		name_nodes(detail, ours, ours_alone);
		appendStringInfoString(detail, ". ");
		appendStringInfoString(hint, "Set redlock.nodes to the same nodes on both hosts. ");
	}
	if (difference->kinds & HOSTS_HELD)
	{
		for (int j = 0; j < theirs->count; j++)
			theirs_alone[j] = theirs->node[j].held != 0;
		appendStringInfoString(detail, "That host holds locks by another list of nodes than its "
									   "present list, and this host may not find these locks: ");
		name_nodes(detail, theirs, theirs_alone);
		appendStringInfoString(detail, ". ");
		appendStringInfoString(hint, "Wait until that host has released these locks. ");
		if (!holds_at_local(theirs))
			appendStringInfoString(
				hint, "Or, on that host, set redlock.nodes to the nodes that have these locks and "
					  "redlock.nodes_next to the right nodes, until redlock_hosts.settled is "
					  "true. ");
	}
	if (detail->len > 0)
		detail->data[--detail->len] = '\0';
	if (hint->len > 0)
		hint->data[--hint->len] = '\0';
}

/* Does the host hold locks at its node `local`?  redlock.nodes names no node beside `local`. */
static bool
holds_at_local(const HostConfig *config)
{
	for (int i = 0; i < config->count; i++)
		if (config->node[i].held != 0 && strcmp(config->node[i].address, URL_LOCAL) == 0)
			return true;
	return false;
}

static void
name_nodes(StringInfo text, const HostConfig *config, const bool *alone)
{
	int count = 0;

	for (int i = 0; i < config->count; i++)
		if (alone[i] && count++ < NODES_NAMED)
			appendStringInfo(text, "%s%s", count > 1 ? ", " : "", config->node[i].address);
	if (count > NODES_NAMED)
		appendStringInfo(text, " and %d more", count - NODES_NAMED);
	if (count == 0)
		appendStringInfoString(text, "none");
}
