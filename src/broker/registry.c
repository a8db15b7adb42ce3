/*
 * registry.c
 *		The heartbeat: sends beats, reads the answers, and then calls the other files in order; see
 *		registry.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "utils/memutils.h"

#include "broker/conflicts.h"
#include "broker/host_entry.h"
#include "broker/host_pages.h"
#include "broker/leaving.h"
#include "broker/marks.h"
#include "broker/members.h"
#include "broker/node_clock.h"
#include "broker/registry.h"
#include "broker/told.h"
#include "protocol/hosts.h"
#include "protocol/words.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"

/*
 * Pause between beats during a configuration conflict, or when this host must not take locks.
 * told.h has the pause at other times.
 */
#define BEAT_IN_CONFLICT_US INT64CONST(3000000)

/* Pause between beats while this host does not know yet whether it may take locks. */
#define BEAT_UNKNOWN_US INT64CONST(20000)

static int64 beat_us; /* time of the last beat */
static core_mask beat_out;
static bool begun = false; /* probed once */
static bool left = false;
static int64 held_since_us = 0; /* see awaits_node; 0: no beat is held back */

static bool still_counts(const RedisNode *node);
static bool awaits_node(int64 now_us);
static void plan_beat(int64 now_us);
static void beat(int64 now_us);
static void meet(const RedisNode *node);
static void answer_for_local(const RedisNode *node, int64 now_us);
static void send_beat(RedisNode *node, int64 now_us);
static void hear_load(RedisNode *node, const redisReply *reply, int64 now_us);
static void hear_beat(RedisNode *node, const redisReply *reply, int64 now_us);
static uint64 read_id(const redisReply *text);
static bool lacks_script(RedisNode *node, const redisReply *reply);
static void end_beat(RedisNode *node, int64 now_us);
static void tell_namesake(int64 now_us);
static void look(int64 now_us);

void
registry_init(void)
{
	told_init();
	conflicts_init();
}

/*
 * A node that is connected again is asked at once, and has no vote until then, except by
 * still_counts.
 */
void
registry_changed(bool tell)
{
	if (tell)
		beat_soon();
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!node_can_send(node_at(i)))
		{
			told_of(i)->answered = 0;
			continue;
		}
		if ((nodes_told() & CORE_BIT(i)) && !still_counts(node_at(i)))
			set_told(i, NODE_LIST_AWAITED);
		if ((members() & CORE_BIT(i)) && told_of(i)->answered == 0 && !told_of(i)->out)
			beat_by(beat_us + BEAT_UNKNOWN_US);
	}
}

/*
 * Does the last answer of a node that was away for a moment still allow a vote?  The node lists
 * this host for LUA_HOST_LIVES_MS, so a newcomer at the node finds this host.  And a request that
 * met a dead connection asks again by a new connection, without a wait for the list.
 *
 * If this host's last entry does not name the node's process, the node must answer first: a host
 * that read the entry takes the node for one without a vote for this host.
 */
static bool
still_counts(const RedisNode *node)
{
	return entry_names(node) && redlock_clock_us() - told_of(node->index)->answered_us <
									LUA_HOST_SILENT_MS * INT64CONST(1000);
}

int64
registry_on_time(int64 now_us)
{
	int64 pages_us;
	bool is_held_back;

	plan_beat(now_us);
	is_held_back = awaits_node(now_us);
	if (!left && !is_held_back && now_us >= beat_due_us())
	{
		beat(now_us);
		plan_beat(now_us); /* the node inside the server has answered, and may want another */
	}
	pages_us = host_pages_on_time(begun, now_us);
	return left ? PG_INT64_MAX
				: Min(is_held_back ? held_since_us + BEAT_LEAST_US : beat_due_us(), pages_us);
}

/*
 * Are beats held back, for BEAT_LEAST_US at most, for a voting node whose connection has just
 * broken?  An entry without the node would take the node's vote until the next beat (still_counts),
 * and the connection is made again at once.
 */
static bool
awaits_node(int64 now_us)
{
	if ((nodes_that(node_is_back_soon) & nodes_told() & members()) == 0)
		held_since_us = 0;
	else if (held_since_us == 0)
		held_since_us = now_us;
	return held_since_us != 0 && now_us < held_since_us + BEAT_LEAST_US;
}

static void
plan_beat(int64 now_us)
{
	if (beat_is_wanted())
		beat_by(beat_us + (registry_may_ask(now_us) ? BEAT_LEAST_US : BEAT_UNKNOWN_US));
}

void
registry_hear(RedisNode *node, int call, const redisReply *reply, int64 now_us)
{
	switch (call)
	{
		case CALL_LOAD:
			hear_load(node, reply, now_us);
			break;
		case CALL_BEAT:
			hear_beat(node, reply, now_us);
			break;
		case CALL_LEAVE:
			break;
		case CALL_LIST:
			hear_page(node, reply, now_us);
			break;
		case CALL_MARK:
			hear_mark(node, reply);
			break;
	}
}

bool
registry_leave(int64 now_us)
{
	bool done = true;

	for (int i = 0; i < CORE_NODES_MAX && !left; i++)
		if (node_can_send(node_at(i)) && told_of(i)->sha[0] != '\0')
		{
			list_call(node_at(i), CALL_LEAVE, 0, NULL, NULL, now_us);
			done = false;
		}
	left = true;
	return done;
}

core_mask
registry_told(void)
{
	return nodes_told();
}

/*
 * Sends a beat to each connected node.  A node that still owes an answer gets no further beat: the
 * node answers, or fails.
 */
static void
beat(int64 now_us)
{
	beat_us = now_us;
	beat_begins(now_us + (conflicts_any() ? BEAT_IN_CONFLICT_US : BEAT_US));
	if (beat_out != 0 || (nodes_that(node_can_send) & members()) != 0)
		entry_write();
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		RedisNode *node = node_at(i);

		told_of(i)->behind = told_of(i)->out;
		if (!(members() & CORE_BIT(i)) || !node_can_send(node) || told_of(i)->out)
			continue;
		if (strcmp(told_of(i)->address, node->url.address) != 0)
			meet(node);
		if (node_is_local(node))
		{
			answer_for_local(node, now_us);
			continue;
		}
		told_of(i)->out = true;
		told_of(i)->loaded = false;
		beat_out |= CORE_BIT(i);
		send_beat(node, now_us);
	}
	if (beat_out == 0)
		look(now_us);
}

/* Forgets the former node of this index. */
static void
meet(const RedisNode *node)
{
	Told *from = told_of(node->index);

	if (from->records != NULL)
		pfree(from->records);
	memset(from, 0, sizeof(*from));
	set_told(node->index, NODE_LIST_AWAITED);
	forget_mark(node->index);
	strlcpy(from->address, node->url.address, sizeof(from->address));
}

/* The node inside the server knows no further host, and no mark of a replaced list. */
static void
answer_for_local(const RedisNode *node, int64 now_us)
{
	Told *from = told_of(node->index);

	from->len = 0;
	from->more = false;
	from->asked_us = from->beat_us = from->at_us = from->answered_us = now_us;
	from->said = from->answered = lease_table->standing.number;
	from->has_mark = true;
	read_mark(node->index, "", 0);
	from->namesake = 0;
}

static void
send_beat(RedisNode *node, int64 now_us)
{
	const char *refuses = entry_config()->standing == HOST_REFUSES ? "1" : "0";
	const char *argv[4] = {redlock_key_prefix, NULL, NULL, refuses};
	size_t len[4] = {strlen(redlock_key_prefix), 0, 0, 1};

	entry_texts(&argv[1], &len[1]);
	if (told_of(node->index)->sha[0] == '\0')
		node_call(node, CALL_LOAD, 3, (const char *[]){"SCRIPT", "LOAD", lua_hosts_script}, NULL,
				  now_us);
	else
	{
		told_of(node->index)->asked_us = now_us;
		told_of(node->index)->said = lease_table->standing.number;
		list_call(node, CALL_BEAT, lengthof(argv), argv, len, now_us);
	}
}

static void
hear_load(RedisNode *node, const redisReply *reply, int64 now_us)
{
	if (reply != NULL && reply->type == REDIS_REPLY_STRING && reply->len == SCRIPT_SHA_SIZE - 1)
	{
		strlcpy(told_of(node->index)->sha, reply->str, SCRIPT_SHA_SIZE);
		told_of(node->index)->loaded = true;
		if (node_can_send(node))
		{
			send_beat(node, now_us);
			return;
		}
	}
	else if (reply != NULL)
	{
		list_complain(node, reply);
		told_of(node->index)->answered = lease_table->standing.number; /* it never will */
		told_of(node->index)->answered_us = now_us;
	}
	end_beat(node, now_us);
}

static void
hear_beat(RedisNode *node, const redisReply *reply, int64 now_us)
{
	Told *from = told_of(node->index);

	if (reply != NULL && lacks_script(node, reply))
	{
		/* the node has restarted: ask again at once */
		if (!from->loaded && node_can_send(node))
		{
			send_beat(node, now_us);
			return;
		}
		beat_soon();
	}
	else if (reply != NULL &&
			 !(list_is_answer(reply, 5) && reply->element[2]->type == REDIS_REPLY_STRING &&
			   reply->element[3]->type == REDIS_REPLY_STRING &&
			   reply->element[4]->type == REDIS_REPLY_INTEGER))
	{
		list_complain(node, reply);
		from->answered = from->said;
		from->answered_us = from->asked_us;
	}
	else if (reply != NULL)
	{
		if (from->records != NULL)
			pfree(from->records);
		from->len = reply->element[1]->len;
		from->records = MemoryContextAlloc(TopMemoryContext, from->len + 1);
		memcpy(from->records, reply->element[1]->str, from->len);
		from->more = reply->element[0]->len > 0;
		if (strcmp(reply->element[0]->str, "new") == 0)
			from->new_us = now_us;
		from->beat_us = from->asked_us;
		from->at_us = now_us;
		from->answered = from->said;
		from->answered_us = from->asked_us;
		from->complained = false;
		from->has_mark = true;
		read_mark(node->index, reply->element[2]->str, reply->element[2]->len);
		from->namesake = read_id(reply->element[3]);
		node_clock_note(node->index, reply->element[4]->integer, from->asked_us, now_us);
	}
	end_beat(node, now_us);
}

static uint64
read_id(const redisReply *text)
{
	const char *at = text->str;
	uint64 id;

	return words_take_id(&at, text->str + text->len + 1, &id) ? id : 0;
}

static bool
lacks_script(RedisNode *node, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ERROR || strncmp(reply->str, "NOSCRIPT", 8) != 0)
		return false;
	told_of(node->index)->sha[0] = '\0';
	return true;
}

static void
end_beat(RedisNode *node, int64 now_us)
{
	told_of(node->index)->out = false;
	if (beat_out == 0)
		return;
	beat_out &= ~CORE_BIT(node->index);
	if (beat_out == 0)
		look(now_us);
}

/* To be called when each node has answered the beat, or failed. */
static void
look(int64 now_us)
{
	begun = true;
	find_conflicts(now_us);
	if (registry_is_stopped() || conflicts_any() || !registry_may_ask(now_us))
		beat_by(beat_us + BEAT_IN_CONFLICT_US);
	mark_present_list(now_us);
	tell_namesake(now_us);
}

/* Warns of a host with the same name, once while there is one. */
static void
tell_namesake(int64 now_us)
{
	static int64 known_us = 0;
	static bool known = false;
	uint64 id = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (has_told(i, now_us) && told_of(i)->namesake != 0)
			id = told_of(i)->namesake;
	if (id != 0 && !known)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("another redlock host is called \"%s\", too", host_list_own_name()),
				 errdetail("Its id is %016" PRIx64 ". Both hosts have this name in redlock_runs, "
						   "redlock_hosts and the details of deadlocks.",
						   id),
				 errhint("Set a different cluster_name on each host, and restart the server.")));
	if (id != 0)
		known_us = now_us;
	known = id != 0 || (known && now_us - known_us <= HOST_LIVES_US);
}
