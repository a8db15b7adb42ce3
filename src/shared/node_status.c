/*
 * node_status.c
 *		The state of the nodes; see node_status.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "storage/shmem.h"

#include "shared/clock.h"
#include "shared/node_status.h"

NodeStatus *node_status = NULL;

static bool explains_silence(const NodeStatus *status);

Size
node_status_size(void)
{
	return CORE_NODES_MAX * sizeof(NodeStatus);
}

void
node_status_set_up(void)
{
	bool found;

	node_status = ShmemInitStruct("redlock_pg nodes", node_status_size(), &found);
	if (found)
		return;
	memset(node_status, 0, node_status_size());
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		pg_atomic_init_u32(&node_status[i].version.number, 0);
		pg_atomic_init_u64(&node_status[i].rtt_us, 0);
		pg_atomic_init_u64(&node_status[i].memory_used, 0);
		pg_atomic_init_u64(&node_status[i].memory_limit, 0);
		pg_atomic_init_u64(&node_status[i].votes_yes, 0);
		pg_atomic_init_u64(&node_status[i].votes_no, 0);
		pg_atomic_init_u64(&node_status[i].votes_error, 0);
	}
}

bool
node_status_copy(int node, NodeStatus *copy)
{
	NodeStatus *status = &node_status[node];
	int tries = 0;

	do
	{
		uint32 version = seqlock_begin_read(&status->version);

		*copy = *status;
		memset(copy->url.user, 0, sizeof(copy->url.user));
		memset(copy->url.password, 0, sizeof(copy->url.password));
		if (seqlock_end_read(&status->version, version))
			return copy->in_use;
	} while (seqlock_try_again(&tries));
	return false;
}

/* An error that it had before it was ready again tells nothing of what comes after. */
static bool
explains_silence(const NodeStatus *status)
{
	return status->last_error[0] != '\0' &&
		   (strcmp(status->state, "ready") != 0 || status->last_error_at > status->since);
}

bool
node_status_listed(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_status[i].in_use && node_status[i].now)
			return true;
	return false;
}

char *
node_status_explain(core_mask yes, core_mask denying, core_mask silent)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus status;
		int64 quarantine_us;

		if (!((yes | denying | silent) & CORE_BIT(i)) || !node_status_copy(i, &status))
			continue;
		appendStringInfo(&text, "%s%s: ", text.len > 0 ? "; " : "", status.url.address);
		if (yes & CORE_BIT(i))
			appendStringInfoString(&text, "yes");
		else if (denying & CORE_BIT(i))
			appendStringInfoString(&text, "another session holds it there, or has held it since");
		else
		{
			appendStringInfoString(&text,
								   explains_silence(&status) ? status.last_error : "no answer yet");
			quarantine_us = status.guard.until_us - redlock_clock_us();
			if (quarantine_us > 0)
				appendStringInfo(&text, " (in quarantine for another %d s)",
								 (int) (quarantine_us / 1000000) + 1);
		}
	}
	return text.data;
}
