/*
 * marks.c
 *		Marks of replaced lists; see marks.h.
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "broker/marks.h"
#include "broker/members.h"
#include "broker/told.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/text.h"

static StepMarks marks;
static bool is_left = false; /* the lists in force were left */

static uint64 hash_of_address(int node);
static uint64 hash_of_process(int node);
static int sort_nodes(core_mask nodes, int *index);
static void describe_mark(StepMark *mark, core_mask nodes);
static void tell_left(void);

void
forget_mark(int index)
{
	memset(&marks.mark[index], 0, sizeof(marks.mark[0]));
}

void
read_mark(int index, const char *text, size_t len)
{
	(void) steps_read_mark(&marks.mark[index], text, len);
}

bool
list_is_left(void)
{
	return is_left;
}

void
set_list_left(bool left)
{
	is_left = left;
}

const StepMarks *
known_marks(void)
{
	marks.told = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members() & CORE_BIT(i)))
			continue;
		marks.address[i] = hash_of_address(i);
		marks.process[i] = hash_of_process(i);
		if (told_of(i)->has_mark && strcmp(told_of(i)->address, node_at(i)->url.address) == 0)
			marks.told |= CORE_BIT(i);
	}
	marks.own = lease_table->own_mark;
	steps_remember(&marks, members_lists().now, hash_of_list(members_lists().now));
	lease_table->own_mark = marks.own;
	return &marks;
}

void
look_at_marks(void)
{
	if (steps_latest(known_marks()) != NULL)
		is_left = steps_left(members_lists(), hash_of_list(members_lists().now),
							 hash_of_list(members_lists().next), &marks);
	else if (core_has_quorum(members_lists(), marks.told))
		is_left = false;
	if (is_left && lease_table->standing.says != HOST_WARNS)
		tell_left();
}

static uint64
hash_of_address(int node)
{
	const char *address = node_at(node)->url.address;

	return hash_bytes_extended((const unsigned char *) address, strlen(address), 3);
}

/* Returns 0 if this host has never met the node.  Each database of a process is another node. */
static uint64
hash_of_process(int node)
{
	const char *run_id = node_at(node)->guard->run_id;

	return run_id[0] != '\0' ? hash_bytes_extended((const unsigned char *) run_id, strlen(run_id),
												   3 + node_at(node)->url.db)
							 : 0;
}

/* Sorts the nodes by address, as all hosts do.  Returns the number of nodes. */
static int
sort_nodes(core_mask nodes, int *index)
{
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int at = count;

		if (!(nodes & CORE_BIT(i)))
			continue;
		for (; at > 0 && strcmp(node_at(index[at - 1])->url.address, node_at(i)->url.address) > 0;
			 at--)
			index[at] = index[at - 1];
		index[at] = i;
		count++;
	}
	return count;
}

/* Describes the list `nodes` for a mark.  The caller sets version and place. */
static void
describe_mark(StepMark *mark, core_mask nodes)
{
	int index[CORE_NODES_MAX];
	StringInfoData text;

	memset(mark, 0, sizeof(*mark));
	mark->count = sort_nodes(nodes, index);
	initStringInfo(&text);
	for (int i = 0; i < mark->count; i++)
	{
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "", node_at(index[i])->url.address);
		mark->address[i] = hash_of_address(index[i]);
		mark->process[i] = hash_of_process(index[i]);
	}
	mark->list = hash_bytes_extended((const unsigned char *) text.data, text.len, 3);
	text_to_printable(mark->nodes, sizeof(mark->nodes), text.data, text.len);
	strlcpy(mark->host, host_list_own_name(), sizeof(mark->host));
	pfree(text.data);
}

uint64
hash_of_list(core_mask nodes)
{
	StepMark mark;

	describe_mark(&mark, nodes);
	return mark.list;
}

bool
is_marked(core_lists to, core_lists asked)
{
	const StepMark *latest = steps_latest(known_marks());
	StepMark mark;
	core_mask marked = 0;

	describe_mark(&mark, to.now);
	if (latest == NULL || !steps_names(&marks, latest, to.now, mark.list))
		return false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told_of(i)->marked == latest->version &&
			marks.mark[i].version == latest->version) /* the node has not lost the mark since */
			marked |= CORE_BIT(i);
	return core_has_quorum(asked, marked) && core_has_quorum(to, marked);
}

void
mark_nodes(core_lists to, core_mask at, int64 now_us)
{
	int index[CORE_NODES_MAX];
	int count = sort_nodes(to.now, index);
	int32 place[CORE_NODES_MAX] = {0};
	StepMark mark;

	describe_mark(&mark, to.now);
	for (int j = 0; j < count; j++)
		place[index[j]] = j + 1;
	steps_choose_mark(known_marks(), to.now, redlock_wall_clock_us() / 1000, &mark, place);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		char text[LUA_MARK_MAX];
		const char *argv[] = {redlock_key_prefix, text};
		size_t len[] = {strlen(redlock_key_prefix), 0};

		if (!(at & CORE_BIT(i)) || !node_can_send(node_at(i)) || told_of(i)->sha[0] == '\0')
			continue;
		mark.place = place[i];
		len[1] = steps_write_mark(&mark, text);
		told_of(i)->marking = mark;
		list_call(node_at(i), CALL_MARK, lengthof(argv), argv, len, now_us);
	}
}

void
hear_mark(RedisNode *node, const redisReply *reply)
{
	Told *from = told_of(node->index);

	if (reply == NULL || reply->type != REDIS_REPLY_INTEGER || from->marking.version == 0)
		return;
	marks.mark[node->index] = from->marking;
	from->marked = from->marking.version;
	from->marking.version = 0;
}

void
explain_left(HostConflict *words)
{
	const StepMark *mark = steps_mark_of(members_lists(), known_marks());

	if (mark == NULL)
	{
		host_list_conflict(words); /* the former broker's text */
		return;
	}
	memset(words, 0, sizeof(*words));
	words->left = true;
	strlcpy(words->name, mark->host[0] != '\0' ? mark->host : "?", sizeof(words->name));
	snprintf(words->detail, sizeof(words->detail), "Host \"%s\" has left these nodes for: %s.",
			 words->name, mark->nodes);
	snprintf(
		words->hint, sizeof(words->hint),
		"If host \"%s\" is right, set redlock.nodes to its nodes. If this host is right, correct "
		"the other host, and delete the marks of its list: see \"Use old nodes again\" in "
		"docs/how-to/replace-nodes.md.",
		words->name);
}

static void
tell_left(void)
{
	static uint64 told_of = 0;
	HostConflict words;
	uint64 hash;

	explain_left(&words);
	hash = hash_bytes_extended((const unsigned char *) words.detail, strlen(words.detail), 4) ^
		   lease_table->settings;
	if (hash == told_of)
		return;
	told_of = hash;
	ereport(
		WARNING,
		(errcode(ERRCODE_CONFIG_FILE_ERROR),
		 errmsg(
			 "redlock.nodes names old nodes that the hosts have left, so this host takes no locks"),
		 errdetail_internal("%s", words.detail), errhint("%s", words.hint)));
}
