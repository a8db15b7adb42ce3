/*
 * leaving.c
 *		When this host may leave a list of nodes; see leaving.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "broker/conflicts.h"
#include "broker/host_entry.h"
#include "broker/leaving.h"
#include "broker/marks.h"
#include "broker/members.h"
#include "broker/told.h"
#include "protocol/steps.h"
#include "shared/guc.h"
#include "shared/lease.h"

/* Least pause between log messages that name different hosts. */
#define NAME_APART_US INT64CONST(10000000)

/*
 * A step to another list: this host's configuration after the step, and a host that would not be
 * kept apart after the step.
 */
static HostConfig own_then;
static HostConfig own_announced; /* the present configuration, with the step announced */
static HostFacts apart;
static bool apart_by_lists; /* false: only by leases that host holds */
static uint64 apart_id;     /* 0: none */
static bool apart_by_names; /* a host with both lists may name the same nodes by other addresses */
static HostFacts rival;
static uint64 rival_id; /* the host with a rival step; 0: none */
static int64 announced_us;

static uint64 marked_list = 0; /* hash of the list in force at the last look at its marks */

static void look_apart(const HostRecord *record, int64 seen_us);
static bool has_two_lists(const HostConfig *config);
static bool have_told(core_lists left, int64 since_us, int64 now_us);
static bool have_answered(core_lists lists, int64 since_us);
static int64 leases_outlive_us(void);
static bool is_news(int64 *told_us, int64 since_us);
static void complain_apart(int64 since_us, int64 now_us);
static void complain_untold(int64 since_us, bool more, int64 now_us);
static void complain_marked(int64 since_us, const StepMark *mark);
static void complain_forgotten(int64 since_us);
static void complain_kept(int64 since_us, int64 now_us);
static void complain_rival(int64 since_us);

bool
registry_may_leave(core_lists to, bool back, int64 since_us, int64 now_us)
{
	static int64 in_doubt_us = 0; /* last time of a host apart, or of missing answers */
	core_mask on_duty = nodes_that(node_is_on_duty);
	core_lists left = {0};
	core_lists asked; /* whose nodes must answer */
	bool more;        /* configurations than a node tells */
	bool all_told;
	const StepMark *forbids;
	StepView view = {0};

	left.now = back ? members_lists().next : members_lists().now;
	asked = back && !core_has_quorum(left, on_duty) ? to : members_lists();
	describe_config(&own_then, to);
	describe_config(&own_announced, members_lists());
	own_announced.step = back ? HOST_GOES_BACK : HOST_GOES_ON;
	apart_id = rival_id = 0;
	/* without all answers an unknown host may be apart */
	more = read_all_told(now_us, look_apart);
	all_told = !more && core_has_quorum(asked, on_duty) &&
			   have_told(asked.next != 0 ? left : to, since_us, now_us);
	forbids = steps_forbid(to, hash_of_list(to.now), left, hash_of_list(left.now), asked.next != 0,
						   known_marks());
	if (apart_id != 0 || !all_told || forbids != NULL)
		in_doubt_us = now_us;
	if (apart_id != 0)
		complain_apart(since_us, now_us);
	else if (!all_told)
		complain_untold(since_us, more, now_us);
	else if (forbids != NULL)
		complain_marked(since_us, forbids);
	else if (lease_table->settling.unsettled_until_us > now_us)
		complain_kept(since_us, now_us);
	else if (asked.next != 0 && now_us - Max(since_us, in_doubt_us) < leases_outlive_us())
		complain_forgotten(since_us);
	else
		view.clear = true;
	view.announced = entry_step() == own_announced.step;
	view.heard = have_answered(asked, Max(announced_us, now_us - STEPS_FRESH_US));
	view.rival = rival_id != 0;
	view.goes_first = rival_id < lease_table->host_id;
	view.marked = is_marked(to, asked);
	if (view.clear && view.rival)
		complain_rival(since_us);
	switch (step_next(&view))
	{
		case STEP_WAIT:
			return false;
		case STEP_ANNOUNCE:
			entry_announce(own_announced.step);
			announced_us = now_us;
			beat_at(now_us);
			return false;
		case STEP_WITHDRAW:
			registry_stay();
			return false;
		case STEP_MARK:
			mark_nodes(to, members(), now_us);
			return false;
		case STEP_TAKE:
			entry_announce(HOST_STAYS);
			return true;
	}
	return false;
}

void
registry_stay(void)
{
	if (entry_step() != HOST_STAYS)
		beat_soon();
	entry_announce(HOST_STAYS);
}

/*
 * Notes a host that would not be kept apart after the step, and the rival with the smallest id.  A
 * host counts as without a new node when a restart of the node leaves that in doubt.
 */
static void
look_apart(const HostRecord *record, int64 seen_us)
{
	static HostConfig theirs;
	HostsDifference difference;
	HostFacts facts;

	if (!read_other(record, seen_us, &facts, &theirs))
		return;
	if (steps_are_rivals(&own_announced, &theirs) && (rival_id == 0 || record->id < rival_id))
	{
		rival = facts;
		rival_id = record->id;
	}
	hosts_compare(&own_then, &theirs, HOSTS_AT_ANY_TIME, &difference);
	/* a host that refuses must write an entry, and look, before it takes locks */
	if (apart_id != 0 || !(difference.kinds & (HOSTS_NODES | HOSTS_HELD)) ||
		(!(difference.kinds & HOSTS_HELD) && theirs.standing == HOST_REFUSES))
		return;
	apart = facts;
	apart_id = record->id;
	apart_by_lists = (difference.kinds & HOSTS_NODES) != 0;
	hosts_compare(&own_then, &theirs, seen_us, &difference);
	apart_by_names = has_two_lists(&theirs) && !(difference.kinds & (HOSTS_NODES | HOSTS_HELD));
}

static bool
has_two_lists(const HostConfig *config)
{
	for (int i = 0; i < config->count; i++)
		if (config->node[i].next)
			return true;
	return false;
}

/*
 * Have nodes with all their entries answered since since_us, enough to know each host?  A host
 * that gets locks by the lists in force, or by the list to leave, has an entry at a majority of
 * each of its lists.  So any quorum includes a node with this entry, if no node has lost its data.
 */
static bool
have_told(core_lists left, int64 since_us, int64 now_us)
{
	core_mask answered = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (has_told(i, now_us) && told_of(i)->beat_us > since_us && has_told_all(i))
			answered |= CORE_BIT(i);
	return core_has_quorum(left, answered);
}

/* Has a majority of each list answered a question of since_us or later? */
static bool
have_answered(core_lists lists, int64 since_us)
{
	core_mask answered = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told_of(i)->at_us != 0 &&
			told_of(i)->beat_us >= since_us &&
			strcmp(told_of(i)->address, node_at(i)->url.address) == 0)
			answered |= CORE_BIT(i);
	return core_has_quorum(lists, answered);
}

void
mark_present_list(int64 now_us)
{
	const StepMarks *marks = known_marks();
	const StepMark *latest = steps_latest(marks);
	core_lists lists = members_lists();
	core_mask lacking = 0;
	bool is_own;

	if ((latest == NULL && marks->own.version == 0) || lists.next != 0 || list_is_left() ||
		lease_table->standing.says != HOST_TAKES || !registry_may_ask(now_us) ||
		conflicts_with_holders() || !steps_may_mark(lists.now, marks))
		return;
	is_own = marks->own.version > 0 && (latest == NULL || latest->version <= marks->own.version);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((marks->told & CORE_BIT(i)) && marks->mark[i].version != marks->own.version)
			lacking |= CORE_BIT(i);
	if (is_own ? lacking != 0 : marked_list != marks->own.list)
		mark_nodes(lists, is_own ? lacking : lists.now, now_us);
	marked_list = marks->own.list;
}

/* How long a host that is cut off may hold locks after the nodes have forgotten it. */
static int64
leases_outlive_us(void)
{
	return Max(0, BEAT_US + redlock_max_ttl_ms * INT64CONST(1000) - HOST_LIVES_US);
}

/* Returns true once for each step; *told_us: since_us of the step that the log has. */
static bool
is_news(int64 *told_us, int64 since_us)
{
	bool news = *told_us != since_us;

	*told_us = since_us;
	return news;
}

static void
complain_apart(int64 since_us, int64 now_us)
{
	static int64 logged_since_us = 0; /* since_us of the step that the log has */
	static uint64 logged_id;
	static int64 logged_us;

	if (logged_since_us == since_us &&
		(apart_id == logged_id || now_us - logged_us < NAME_APART_US))
		return;
	logged_since_us = since_us;
	logged_id = apart_id;
	logged_us = now_us;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 apart_by_names
			 ? errdetail("Host \"%s\" (id %016" PRIx64
						 ") may use other nodes: it names nodes by other addresses than this host, "
						 "and one of the two hosts does not reach some of these nodes.",
						 apart.name, apart_id)
		 : apart_by_lists
			 ? errdetail("Host \"%s\" (id %016" PRIx64
						 ") uses only the list of nodes that this host is about to leave. With the "
						 "other list alone, this host could get a lock of that host.",
						 apart.name, apart_id)
			 : errdetail("Host \"%s\" (id %016" PRIx64
						 ") holds or keeps locks only at nodes of the list that this host is about "
						 "to leave. With the other list alone, this host could get such a lock.",
						 apart.name, apart_id),
		 apart_by_names
			 ? errhint(
				   "Bring back the nodes that redlock_nodes shows as not ready, on both hosts. Or "
				   "name the nodes by the same addresses on all hosts.")
		 : apart_by_lists
			 ? errhint("On that host, set redlock.nodes to the old list and redlock.nodes_next to "
					   "the new list, and wait until redlock_hosts.settled of that host is true. "
					   "Or stop that host, and start it with only the list that stays.")
			 : errhint("Wait until redlock_hosts.settled of that host is true. Or release the "
					   "locks of that host.")));
}

/* Logs only after a beat should have answered. */
static void
complain_untold(int64 since_us, bool more, int64 now_us)
{
	static int64 told_us = 0;

	if (now_us - since_us <= BEAT_US + ALL_TELL_US || !is_news(&told_us, since_us))
		return;
	if (more)
	{
		ereport(
			LOG,
			(errmsg("redlock.nodes is not yet in force"),
			 errdetail("Another host may still use only the list of nodes that this host is about "
					   "to leave. The hosts have more configurations than the %d that a node "
					   "tells.",
					   LUA_CONFIGS_MAX),
			 errhint("Give all hosts the same settings, and the nodes the same addresses on all "
					 "hosts. See the view redlock_hosts.")));
		return;
	}
	ereport(LOG, (errmsg("redlock.nodes is not yet in force"),
				  errdetail("Another host may still use only the list of nodes that this host is "
							"about to leave. Too few nodes have answered with all hosts that they "
							"know: each list needs a majority."),
				  errhint("See the view redlock_nodes. If the nodes to be left are gone for good, "
						  "and no host uses these nodes any more, set redlock.on_disagreement to "
						  "warn until redlock.nodes is in force.")));
}

static void
complain_marked(int64 since_us, const StepMark *mark)
{
	static int64 told_us = 0;

	if (!is_news(&told_us, since_us))
		return;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 errdetail("Host \"%s\" has left the nodes of the list that is to stay for: %s. With this "
				   "list alone, this host could get a lock of a host with those nodes.",
				   mark->host[0] != '\0' ? mark->host : "?", mark->nodes),
		 errhint("If no host uses those nodes any more, delete the marks of the list that is to "
				 "stay: see \"Use old nodes again\" in docs/how-to/replace-nodes.md.")));
}

static void
complain_forgotten(int64 since_us)
{
	static int64 told_us = 0;

	if (!is_news(&told_us, since_us))
		return;
	ereport(LOG,
			(errmsg("redlock.nodes is not yet in force"),
			 errdetail("The nodes forget a host that hangs or is cut off after %d seconds, but "
					   "such a host may hold locks for redlock.max_ttl. So this host waits for %d "
					   "seconds without news of a host that uses only the list to be left.",
					   LUA_HOST_LIVES_MS / 1000, (int) (leases_outlive_us() / 1000000)),
			 errhint("Wait. Or, if no host hangs or is cut off, set redlock.on_disagreement to "
					 "warn until redlock.nodes is in force.")));
}

static void
complain_kept(int64 since_us, int64 now_us)
{
	static int64 told_us = 0;

	if (!is_news(&told_us, since_us))
		return;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 errdetail("This host keeps locks that were released before the end of hold_at_least, at "
				   "nodes of one list only. The last of these locks ends in %d seconds.",
				   (int) ((lease_table->settling.unsettled_until_us - now_us) / 1000000) + 1),
		 errhint("Wait.")));
}

static void
complain_rival(int64 since_us)
{
	static int64 told_us = 0;

	if (!is_news(&told_us, since_us))
		return;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 errdetail("Host \"%s\" (id %016" PRIx64
				   ") is about to leave the nodes that this host wants to keep.",
				   rival.name, rival_id),
		 errhint("Set redlock.nodes and redlock.nodes_next to the same values on both hosts.")));
}
