/*
 * told.c
 *		Answers of the nodes about other hosts; see told.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "utils/memutils.h"

#include "broker/told.h"
#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/node_status.h"
#include "shared/text.h"

static Told *told;           /* of each node */
static core_mask may_vote;   /* nodes that may vote */
static int64 beat_at_us = 0; /* the next beat is due then */
static bool changed = false; /* the next beat is due soon */

static void note_vote(int index);

void
told_init(void)
{
	told = MemoryContextAllocZero(TopMemoryContext, CORE_NODES_MAX * sizeof(Told));
}

Told *
told_of(int index)
{
	return &told[index];
}

void
beat_soon(void)
{
	changed = true;
}

void
beat_by(int64 at_us)
{
	beat_at_us = Min(beat_at_us, at_us);
}

void
beat_at(int64 at_us)
{
	beat_at_us = at_us;
}

void
beat_begins(int64 next_us)
{
	changed = false;
	beat_at_us = next_us;
}

bool
beat_is_wanted(void)
{
	return changed;
}

int64
beat_due_us(void)
{
	return beat_at_us;
}

void
list_call(RedisNode *node, int what, int argc, const char **argv, const size_t *argvlen,
		  int64 now_us)
{
	static const char *const names[] = {
		[CALL_BEAT] = "beat", [CALL_LEAVE] = "leave", [CALL_LIST] = "list", [CALL_MARK] = "mark"};
	char id[LOCK_HOST_DIGITS + 1];
	const char *all[9] = {"EVALSHA", told_of(node->index)->sha, "0", names[what]};
	size_t len[lengthof(all)];
	int count = 4;

	if (what == CALL_LIST)
	{
		/* rare; EVAL needs no retry at a node that lacks the script */
		all[0] = "EVAL";
		all[1] = lua_hosts_script;
	}
	else
	{
		snprintf(id, sizeof(id), "%016" PRIx64, lease_table->host_id);
		all[count++] = id;
	}
	for (int i = 0; i < count; i++)
		len[i] = strlen(all[i]);
	for (int i = 0; i < argc; i++, count++)
	{
		all[count] = argv[i];
		len[count] = argvlen[i];
	}
	node_call(node, what, count, all, len, now_us);
}

bool
list_is_answer(const redisReply *reply, size_t elements)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements == elements &&
		   reply->element[0]->type == REDIS_REPLY_STRING &&
		   reply->element[1]->type == REDIS_REPLY_STRING;
}

void
list_complain(RedisNode *node, const redisReply *reply)
{
	char error[SCRIPT_TEXT_MAX + 1] = "its answer does not fit the script";

	if (told_of(node->index)->complained)
		return;
	told_of(node->index)->complained = true;
	if (reply->type == REDIS_REPLY_ERROR)
		text_of_node(error, sizeof(error), reply->str, reply->len);
	node_explain_refusal(reply, node->lacks_for_hosts, error);
	ereport(LOG, (errmsg("redlock node %s does not keep the list of hosts: %s", node->url.address,
						 error),
				  errdetail("Hosts do not learn of conflicting settings from this node."),
				  errhint("If the user in the URL lacks rights, grant them: see \"At the nodes\" "
						  "in docs/how-to/permissions.md.")));
}

void
set_told(int index, NodeList list)
{
	if (list != NODE_LIST_TOLD)
		may_vote &= ~CORE_BIT(index);
	else if (!(may_vote & CORE_BIT(index)))
	{
		may_vote |= CORE_BIT(index);
		note_vote(index);
	}
	pg_atomic_write_u32(&node_status[index].list_of_hosts, list);
}

void
votes_begin(void)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (may_vote & CORE_BIT(i))
			note_vote(i);
}

static void
note_vote(int index)
{
	pg_atomic_write_u64(&node_status[index].vote_counts_us, (uint64) redlock_clock_us());
}

core_mask
nodes_told(void)
{
	return may_vote;
}

bool
has_told(int node, int64 now_us)
{
	return told_of(node)->at_us != 0 && now_us - told_of(node)->at_us <= HOST_LIVES_US &&
		   strcmp(told_of(node)->address, node_at(node)->url.address) == 0;
}

/*
 * Have all live hosts had the time to write their entries since the node started, or lost its
 * list?
 */
bool
has_told_all(int node)
{
	return told_of(node)->at_us - Max(node_at(node)->guard->started_us, told_of(node)->new_us) >
		   ALL_TELL_US;
}
