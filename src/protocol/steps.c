/*
 * steps.c
 *		How a host leaves one of two lists of nodes; see steps.h.
 */
#include "protocol/steps.h"

#include <string.h>

#include "protocol/overlap.h"
#include "protocol/words.h"

#define ALL (~(core_mask) 0)

static bool names_all(const StepMarks *marks, const StepMark *mark, core_mask nodes,
					  int32_t place[CORE_NODES_MAX]);
static int find_place(const StepMarks *marks, const StepMark *mark, int node);
static const StepMark *latest_before(const StepMarks *marks, int64_t version);
static bool is_apart(core_lists lists, uint64_t now, uint64_t next, const StepMark *mark,
					 const StepMarks *marks);
static bool counts(core_lists lists, const StepMark *mark, const StepMarks *marks);
static bool meets(core_lists lists, const StepMark *latest, const StepMarks *marks,
				  core_mask unknown, core_mask likely);

StepAct
step_next(const StepView *view)
{
	if (!view->clear || (view->rival && view->goes_first))
		return view->announced ? STEP_WITHDRAW : STEP_WAIT;
	if (!view->announced)
		return view->rival ? STEP_WAIT : STEP_ANNOUNCE;
	if (view->rival || !view->heard)
		return STEP_WAIT;
	return view->marked ? STEP_TAKE : STEP_MARK;
}

bool
steps_are_rivals(const HostConfig *ours, const HostConfig *theirs)
{
	HostConfig we = *ours;
	HostConfig they = *theirs;
	HostsDifference difference;

	if (theirs->step == HOST_STAYS)
		return false;
	hosts_take_step(&we);
	hosts_take_step(&they);
	hosts_compare(&we, &they, HOSTS_AT_ANY_TIME, &difference);
	return (difference.kinds & HOSTS_NODES) != 0;
}

void
steps_remember(StepMarks *marks, core_mask nodes, uint64_t list)
{
	if (marks->own.list != list)
		marks->own = (StepMemory){.list = list};
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((marks->told & CORE_BIT(i)) && marks->mark[i].version > marks->own.version &&
			steps_names(marks, &marks->mark[i], nodes, list))
			marks->own.version = marks->mark[i].version;
}

/*
 * Returns true if the new list of the mark consists of exactly these nodes, and fills in their
 * places.  A node without the mark is known by its address or process.
 */
static bool
names_all(const StepMarks *marks, const StepMark *mark, core_mask nodes,
		  int32_t place[CORE_NODES_MAX])
{
	core_mask taken = 0;
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const StepMark *there = &marks->mark[i];

		place[i] = 0;
		if (!(nodes & CORE_BIT(i)))
			continue;
		if ((marks->told & CORE_BIT(i)) && there->version == mark->version &&
			there->list == mark->list)
			place[i] = there->place;
		else
			place[i] = find_place(marks, mark, i) + 1;
		if (place[i] == 0 || (taken & CORE_BIT(place[i] - 1)))
			return false;
		taken |= CORE_BIT(place[i] - 1);
		count++;
	}
	return count == mark->count;
}

bool
steps_names(const StepMarks *marks, const StepMark *mark, core_mask nodes, uint64_t list)
{
	int32_t place[CORE_NODES_MAX];

	return mark->list == list || names_all(marks, mark, nodes, place);
}

void
steps_choose_mark(const StepMarks *marks, core_mask nodes, int64_t wall_clock_ms, StepMark *mark,
				  int32_t place[CORE_NODES_MAX])
{
	const StepMark *latest = steps_latest(marks);
	int32_t there[CORE_NODES_MAX];

	if (latest == NULL || latest->list == mark->list ||
		(marks->own.list == mark->list && marks->own.version > latest->version) ||
		!names_all(marks, latest, nodes, there))
	{
		mark->version = steps_next_version(marks, mark->list, wall_clock_ms);
		return;
	}
	*mark = *latest;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		place[i] = there[i];
		if (place[i] > 0 && marks->process[i] != 0)
			mark->process[place[i] - 1] = marks->process[i];
	}
}

int64_t
steps_next_version(const StepMarks *marks, uint64_t list, int64_t wall_clock_ms)
{
	const StepMark *latest = steps_latest(marks);
	int64_t version = latest != NULL ? latest->version : 0;

	if (marks->own.list == list && marks->own.version > 0 && marks->own.version >= version)
		return marks->own.version;
	if (latest != NULL && latest->list == list)
		return version;
	return version >= wall_clock_ms ? version + 1 : wall_clock_ms;
}

const StepMark *
steps_latest(const StepMarks *marks)
{
	return latest_before(marks, INT64_MAX);
}

/*
 * The latest mark with a smaller version; NULL: there is none.  Hosts must choose the same of two
 * marks with one version, so the hash of the list decides.
 */
static const StepMark *
latest_before(const StepMarks *marks, int64_t version)
{
	const StepMark *latest = NULL;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((marks->told & CORE_BIT(i)) && marks->mark[i].version > 0 &&
			marks->mark[i].version < version &&
			(latest == NULL || marks->mark[i].version > latest->version ||
			 (marks->mark[i].version == latest->version && marks->mark[i].list > latest->list)))
			latest = &marks->mark[i];
	return latest;
}

bool
steps_left(core_lists lists, uint64_t now, uint64_t next, const StepMarks *marks)
{
	const StepMark *mark = steps_mark_of(lists, marks);

	if (mark == NULL ||
		(lists.next == 0 && marks->own.list == now && mark->version <= marks->own.version))
		return false;
	return is_apart(lists, now, next, mark, marks);
}

const StepMark *
steps_mark_of(core_lists lists, const StepMarks *marks)
{
	const StepMark *mark = steps_latest(marks);

	while (mark != NULL && !counts(lists, mark, marks))
		mark = latest_before(marks, mark->version);
	return mark;
}

static bool
is_apart(core_lists lists, uint64_t now, uint64_t next, const StepMark *mark,
		 const StepMarks *marks)
{
	core_mask unknown = (lists.now | lists.next) & ~marks->told;

	return lists.now != 0 && mark->list != now && !(lists.next != 0 && mark->list == next) &&
		   !meets(lists, mark, marks, unknown, lists.next) &&
		   !meets(lists, mark, marks, unknown, lists.now);
}

/*
 * Before a host leaves a list, the host marks a majority of its nodes.  If a majority of a list
 * lacks the mark, then the mark was written for another list, or by a host with a wrong list.
 */
static bool
counts(core_lists lists, const StepMark *mark, const StepMarks *marks)
{
	core_mask lacking = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((marks->told & CORE_BIT(i)) && marks->mark[i].version != mark->version)
			lacking |= CORE_BIT(i);
	return !core_has_quorum((core_lists){lists.now, 0}, lacking) ||
		   (lists.next != 0 && !core_has_quorum((core_lists){lists.next, 0}, lacking));
}

const StepMark *
steps_forbid(core_lists to, uint64_t to_list, core_lists left, uint64_t left_list, bool left_asked,
			 const StepMarks *marks)
{
	const StepMark *mark[] = {steps_mark_of(to, marks), steps_mark_of(left, marks)};
	bool has_own = marks->own.list == to_list || marks->own.list == left_list;

	for (int i = 0; i < 2; i++)
		if (mark[i] != NULL && is_apart(to, to_list, 0, mark[i], marks) &&
			!(has_own && mark[i]->version <= marks->own.version) &&
			!(left_asked && !is_apart(left, left_list, 0, mark[i], marks)))
			return mark[i];
	return NULL;
}

bool
steps_may_mark(core_mask nodes, const StepMarks *marks)
{
	core_lists lists = {nodes, 0};
	const StepMark *mark = steps_mark_of(lists, marks);

	if (mark == NULL || mark->version <= marks->own.version)
		return true;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((nodes & ~marks->told & CORE_BIT(i)) && find_place(marks, mark, i) < 0)
			return false;
	return meets(lists, mark, marks, 0, 0);
}

/* Returns the index of this host's node in the marked list, by address or process, or -1. */
static int
find_place(const StepMarks *marks, const StepMark *mark, int node)
{
	for (int j = 0; j < mark->count; j++)
		if (mark->address[j] == marks->address[node] ||
			(mark->process[j] != 0 && mark->process[j] == marks->process[node]))
			return j;
	return -1;
}

/*
 * Returns true if each quorum of `lists` has a node in each quorum of the marked list.  The nodes
 * `unknown` have no vote, so they are taken for nodes of the marked list, as long as places are
 * free; of these, `likely` come first.  Another node without the mark, perhaps out of reach when
 * the mark was written, matches the place with the same address or process, or no place.
 */
static bool
meets(core_lists lists, const StepMark *latest, const StepMarks *marks, core_mask unknown,
	  core_mask likely)
{
	core_mask all = lists.now | lists.next;
	core_mask place[HOSTS_NODES_MAX] = {0};
	core_lists target = {0};

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const StepMark *mark = &marks->mark[i];
		bool is_marked = (marks->told & CORE_BIT(i)) && mark->version == latest->version;

		if (!(all & ~unknown & CORE_BIT(i)))
			continue;
		if (is_marked && mark->list == latest->list)
		{
			if (mark->place > 0)
				place[mark->place - 1] = CORE_BIT(i);
		}
		else if (is_marked && mark->place > 0)
			unknown |= CORE_BIT(i); /* written by a host with other addresses */
		else
		{
			int j = find_place(marks, latest, i);

			if (j >= 0)
				place[j] = CORE_BIT(i);
		}
	}
	for (int j = 0; j < latest->count; j++)
	{
		core_mask first = (unknown & likely) != 0 ? unknown & likely : unknown;

		if (place[j] == 0)
			place[j] = first & -first;
		unknown &= ~place[j];
		/* a node that this host does not have gets a bit without a node */
		target.now |= place[j] != 0 ? place[j] : CORE_BIT(CORE_NODES_MAX + j);
	}
	return quorums_meet(lists, ALL, target, ALL);
}

size_t
steps_write_mark(const StepMark *mark, char *text)
{
	char *at = text;

	at = words_put_number(at, mark->version);
	at = words_put_id(at, mark->list);
	at = words_put_number(at, mark->count);
	at = words_put_number(at, mark->place);
	at = words_put_text(at, mark->host);
	at = words_put_text(at, mark->nodes);
	for (int j = 0; j < mark->count; j++)
		at = words_put_id(at, mark->address[j]);
	for (int j = 0; j < mark->count; j++)
		at = words_put_id(at, mark->process[j]);
	return (size_t) (at - text);
}

bool
steps_read_mark(StepMark *mark, const char *text, size_t len)
{
	const char *end = text + len;
	int64_t version;
	int64_t count;
	int64_t place;

	StepMark read = {0};

	memset(mark, 0, sizeof(*mark));
	if (!words_take_number(&text, end, STEPS_VERSION_MAX, &version) || version == 0 ||
		!words_take_id(&text, end, &read.list) ||
		!words_take_number(&text, end, HOSTS_NODES_MAX - 1, &count) || count == 0 ||
		!words_take_number(&text, end, count, &place) ||
		!words_take_printable(&text, end, read.host, sizeof(read.host)) ||
		!words_take_printable(&text, end, read.nodes, sizeof(read.nodes)))
		return false;
	read.count = (int32_t) count;
	read.place = (int32_t) place;
	read.version = version;
	for (int j = 0; j < read.count; j++)
		if (!words_take_id(&text, end, &read.address[j]))
			return false;
	for (int j = 0; j < read.count; j++)
		if (!words_take_id(&text, end, &read.process[j]))
			return false;
	*mark = read;
	return true;
}
