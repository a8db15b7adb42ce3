/*
 * changes.c
 *		Hosts with different settings, and hosts that change their node
 *		lists at any time: do two hosts ever get locks without excluding
 *		each other?
 *
 * The shipped files src/protocol/standing.c, steps.c, hosts.c and overlap.c
 * decide. This program does the rest of the work of src/broker in the same
 * order: beats that arrive and are answered late, looks at other hosts,
 * announced steps, marks.  Hosts hang, are cut off from some nodes, and
 * restart with the lists of their files; nodes restart, and forget which hosts
 * exist.  Operators give each host any list that may follow its present one,
 * without regard to other hosts, and another redlock.max_ttl.
 *
 * In some stories a newcomer has a wrong list with a node of its own, which
 * starts late.  At this start the other hosts are well, lose a node for a
 * moment, or hang.
 *
 * Checked, as number 22:
 *
 * - No host gets a lock beside a lease by other lists, if a quorum of these
 *   lists and a quorum of the host's lists may share no node.
 * - No two hosts with different redlock.max_ttl get locks within the time of a
 *   look.
 * - Without faults no host gets a lock beside a host that warns, or that
 *   warned and still holds a lock, and no step leads away from a host that
 *   takes locks.
 * - Without faults the host that was there first continues beside newcomers.
 * - With equal settings all hosts get locks.
 *
 *		changes [STORIES]       all kinds of stories, 300 of each
 *		changes STORIES SEED    tells one story
 *		changes --from SEED     all kinds, first the kind of this seed
 */
#include <stdlib.h>
#include <string.h>

#include "invariant.h"
#include "protocol/overlap.h"
#include "protocol/standing.h"
#include "protocol/steps.h"

#include "../unit/dice.h"

#define HOSTS 4
#define NODES 9
#define LISTS 3 /* of three nodes each; some lists overlap */
#define OWN 3   /* a node of the newcomer's list only */
#define TICK_US INT64_C(50000)
#define SECOND INT64_C(1000000)
#define LEASE_US (20 * SECOND)
#define LIVES_US (LUA_HOST_LIVES_MS * INT64_C(1000))
#define SILENT_US (LUA_HOST_SILENT_MS * INT64_C(1000))
#define DISPUTE_US (5 * SECOND / 2)
#define NEVER INT64_MAX

typedef struct entry
{
	bool there;
	int64_t seen_us;
	int64_t takes_for_us;
	HostConfig config;
} entry;

typedef struct node
{
	entry entry[HOSTS];
	StepMark mark;
	int process;
	int64_t started_us;
} node;

/* A beat to a node, and the last answer of the node. */
typedef struct beat
{
	bool out;
	int64_t arrives_us; /* NEVER: arrived */
	int64_t answered_us;
	int64_t asked_us;
	uint64_t number;
	HostConfig config;
	int64_t takes_for_us;
	/* the answer */
	bool is_new;
	entry told[HOSTS];
	StepMark mark;
	/* the answer, as heard */
	int64_t at_us;
	int64_t beat_us;
	uint64_t answered;
	int64_t vote_us; /* when the last answered beat was sent */
	int64_t new_us;
	entry heard[HOSTS];
} beat;

typedef struct host
{
	bool up;
	int64_t up_at_us;
	int64_t stopped_until_us;
	int64_t cut_until_us[NODES];
	bool renames;    /* names the nodes differently */
	core_lists file; /* redlock.nodes, redlock.nodes_next */
	core_lists lists;
	int max_ttl;
	int max_ttl_in_force;
	bool warns;
	uint64_t id;
	Standing standing;
	core_lists settings_lists; /* of the standing */
	int settings_max_ttl;
	int64_t heard_us;
	int64_t beat_at_us;
	int64_t configure_at_us;
	beat beat[NODES];
	int process[NODES];                  /* the last process it was connected to */
	int former[NODES][HOSTS_FORMER_MAX]; /* earlier processes; 0: none */
	int named[NODES];                    /* the process that its last entry names; -1: none */
	StepMarks marks;
	core_mask marked; /* with the latest version */
	core_mask told;   /* these nodes vote */
	core_lists marked_lists;
	bool is_left;
	int64_t since_us[HOSTS]; /* start of a conflict with each host; NEVER: none */
	core_lists wanted;
	int64_t wanted_us;
	HostStep announced;
	int64_t announced_us;
	/* the lease */
	int64_t lease_until_us;
	core_lists lease_lists;
	int64_t granted_us;
	core_mask lease_voters; /* some of these nodes granted it */
	int lease_max_ttl;
	int64_t lease_warned_us; /* when the granting host began to warn; 0: it did not warn */
	int64_t warns_since_us;
} host;

static host hosts[HOSTS];
static node nodes[NODES];
static core_mask list_of[LISTS];
static int64_t now_us;
static uint64_t seed;

/* The millions of a seed are the number of its kind. */
enum
{
	CHANGES,
	FAULTS,
	LOST_MARKS, /* stopped hosts may get locks; nodes may lose their marks */
	OWN_DOWN,   /* a newcomer with a wrong list begins; its own node starts later */
	SHORT_CUTS, /* as OWN_DOWN; each other host loses a node for a moment */
	HANG,       /* the other hosts hang when a newcomer's own node starts */
	RESTARTS,   /* a node restarts every 5 s */
	KINDS
};

static const char *const kind_names[KINDS] = {"",
											  " with faults",
											  " with faults and lost marks",
											  " with a node that starts late",
											  " with a node that starts late, and short cuts",
											  " with hosts that hang when a node starts",
											  " with a node that restarts every 5 s"};

static int kind;
static bool faults;
static bool all_is_well; /* no host hangs or is cut off */
static bool loses;
static int64_t own_starts_us; /* when the newcomer's own node starts */

static struct
{
	int64_t grants, steps, refused, yielded, marks, withdrawn, rivals, left, lapsed;
	int overlaps, apart_ttl;
} seen;

/* Events are printed if a single story was requested. */
static bool tells = false;

#define tell(...)                                                                                  \
	do                                                                                             \
	{                                                                                              \
		if (tells)                                                                                 \
		{                                                                                          \
			printf("# %8.2f ", (double) now_us / 1e6);                                             \
			printf(__VA_ARGS__);                                                                   \
			printf("\n");                                                                          \
		}                                                                                          \
	} while (0)

static bool
chance(uint32_t one_in)
{
	return dice(one_in) == 0;
}

static core_mask
all_of(core_lists lists)
{
	return lists.now | lists.next;
}

static bool
same_lists(core_lists one, core_lists other)
{
	return one.now == other.now && one.next == other.next;
}

static bool
can_reach(const host *h, int n)
{
	return now_us >= h->cut_until_us[n];
}

static core_mask
on_duty(const host *h)
{
	core_mask nodes_there = 0;

	for (int n = 0; n < NODES; n++)
		nodes_there |= can_reach(h, n) ? CORE_BIT(n) : 0;
	return nodes_there & all_of(h->lists);
}

/* The reachable nodes whose answers the host has looked at. */
static core_mask
voters(const host *h)
{
	return h->told & on_duty(h);
}

static bool
has_lease(const host *h)
{
	return now_us < h->lease_until_us;
}

/* Hosts with different names for the nodes have different hashes of a list. */
static uint64_t
hash_of(const host *h, core_mask list)
{
	return list != 0 && h->renames ? list | 1u << 31 : list;
}

/*
 * ---- a host's entry at the nodes ----
 */

static void
describe(const host *h, core_lists lists, HostConfig *config)
{
	HostStanding says = h->standing.says;
	bool takes = says == HOST_TAKES || says == HOST_HOLDS || says == HOST_WARNS;
	bool held = has_lease(h) && (!takes || !same_lists(h->lease_lists, h->lists));
	core_mask all = all_of(lists) | (held ? all_of(h->lease_lists) : 0);

	memset(config, 0, sizeof(*config));
	strcpy(config->prefix, "redlock:");
	config->max_ttl_ms = 1000 * (1 + h->max_ttl_in_force);
	config->standing = says;
	config->step = h->announced;
	for (int listed = 1; listed >= 0; listed--)
		for (int n = 0; n < NODES; n++)
		{
			HostNode *to = &config->node[config->count];

			if (!(all & CORE_BIT(n)) || ((all_of(lists) & CORE_BIT(n)) != 0) != (listed == 1))
				continue;
			sprintf(to->address, h->renames ? "m%d" : "n%d", n);
			if (h->process[n] != 0)
				sprintf(to->last, "p%d.%d", n, h->process[n]);
			if (can_reach(h, n))
			{
				sprintf(to->process, "p%d.%d", n, nodes[n].process);
				memcpy(to->last, to->process, sizeof(to->last));
			}
			for (int i = 0; i < HOSTS_FORMER_MAX; i++)
				if (h->former[n][i] != 0)
					sprintf(to->former[i], "p%d.%d", n, h->former[n][i]);
			to->started_us = nodes[n].started_us;
			to->heard_us = now_us;
			to->now = (lists.now & CORE_BIT(n)) != 0;
			to->next = (lists.next & CORE_BIT(n)) != 0;
			if (held)
				to->held = (uint8_t) (((h->lease_lists.now & CORE_BIT(n)) != 0) +
									  2 * ((h->lease_lists.next & CORE_BIT(n)) != 0));
			config->count++;
		}
}

static void
send_beats(host *h)
{
	h->beat_at_us = now_us + 10 * SECOND;
	for (int n = 0; n < NODES; n++)
		h->named[n] = (all_of(h->lists) & CORE_BIT(n)) && can_reach(h, n) ? nodes[n].process : -1;
	for (int n = 0; n < NODES; n++)
	{
		beat *b = &h->beat[n];

		if (!(all_of(h->lists) & CORE_BIT(n)) || !can_reach(h, n) || b->out)
			continue;
		b->out = true;
		b->arrives_us = now_us + dice(4) * TICK_US;
		b->answered_us = NEVER;
		b->asked_us = now_us;
		b->number = h->standing.number;
		describe(h, h->lists, &b->config);
		b->takes_for_us = h->standing.begun ? now_us - h->standing.begun_us : 0;
	}
}

static void
arrive(host *h, int n)
{
	beat *b = &h->beat[n];
	int self = (int) (h - hosts);
	entry *own = &nodes[n].entry[self];

	b->is_new = !own->there || now_us - own->seen_us > SILENT_US;
	own->there = true;
	own->seen_us = now_us;
	own->takes_for_us = b->takes_for_us;
	own->config = b->config;
	for (int o = 0; o < HOSTS; o++)
	{
		b->told[o] = nodes[n].entry[o];
		if (o == self || (b->told[o].there && now_us - b->told[o].seen_us > LIVES_US))
			b->told[o].there = false;
	}
	b->mark = nodes[n].mark;
	b->arrives_us = NEVER;
	b->answered_us = now_us + dice(4) * TICK_US;
}

static bool look_at(host *h);

static void
hear(host *h, int n)
{
	beat *b = &h->beat[n];

	b->out = false;
	b->at_us = now_us;
	b->beat_us = b->asked_us;
	b->answered = b->number;
	b->vote_us = b->asked_us;
	if (b->is_new)
		b->new_us = now_us;
	memcpy(b->heard, b->told, sizeof(b->heard));
	h->marks.mark[n] = b->mark;
	h->marks.told |= CORE_BIT(n);
}

/*
 * ---- what a host reads of other hosts ----
 */

static bool
is_outdated(const host *h, int o, int64_t seen_us)
{
	for (int n = 0; n < NODES; n++)
		if ((all_of(h->lists) & CORE_BIT(n)) && h->beat[n].at_us != 0 &&
			h->beat[n].heard[o].there && h->beat[n].heard[o].seen_us > seen_us + SECOND)
			return true;
	return false;
}

/* Calls `read` for each entry that counts. */
static void
each_told(host *h, void (*read)(host *h, int o, const entry *told))
{
	for (int n = 0; n < NODES; n++)
		for (int o = 0; o < HOSTS; o++)
		{
			const beat *b = &h->beat[n];

			if ((all_of(h->lists) & CORE_BIT(n)) && b->at_us != 0 &&
				now_us - b->at_us <= LIVES_US && b->heard[o].there &&
				!is_outdated(h, o, b->heard[o].seen_us))
				read(h, o, &b->heard[o]);
		}
}

static HostConfig own;
static HostConfig own_then;
static HostConfig own_announced;
static StandingOther others[HOSTS + 1];
static bool found[HOSTS];
static StandingWait wait;
static bool apart;
static bool rival;
static uint64_t rival_id;

static void
see(host *h, int o, const entry *told)
{
	HostsDifference difference;

	hosts_compare(&own, &told->config, told->seen_us, &difference);
	standing_add_wait(&h->standing, &own, &told->config, &difference, now_us - told->seen_us,
					  &wait);
	if (difference.kinds == 0)
		return;
	found[o] = true;
	others[o] = standing_other(hosts[o].id, &told->config, difference.kinds,
							   told->takes_for_us + now_us - told->seen_us);
}

static bool
is_answered(const host *h)
{
	core_mask those = 0;

	for (int n = 0; n < NODES; n++)
	{
		if (!(all_of(h->lists) & CORE_BIT(n)))
			continue;
		if (h->beat[n].answered == h->standing.number && h->beat[n].at_us != 0)
			those |= CORE_BIT(n);
		else if (can_reach(h, n))
			return false;
	}
	return core_has_quorum(h->lists, those);
}

/* Nodes in force come first in a configuration. */
static core_mask
guessed_nodes(const host *h)
{
	core_mask nodes = 0;
	int place = 0;

	for (int n = 0; n < NODES; n++)
		if ((all_of(h->lists) & CORE_BIT(n)) && (wait.guessed & CORE_BIT(place++)))
			nodes |= CORE_BIT(n);
	return nodes;
}

/*
 * Looks at the other hosts when all beats are answered.  Returns false if
 * answers are missing, or a step or a guess is in the way.
 */
static bool
look_at(host *h)
{
	StandingOther known[HOSTS + 1];
	uint64_t number = h->standing.number;
	int64_t asked_us = now_us;
	HostStanding said = h->standing.says;
	bool any_found = false;
	bool all_ripe = true;
	int count = 0;
	core_mask guessed;

	describe(h, h->lists, &own);
	memset(found, 0, sizeof(found));
	wait = (StandingWait){0};
	each_told(h, see);
	guessed = guessed_nodes(h);
	if (standing_has_lapsed(&h->standing, now_us))
		seen.lapsed++;
	for (int o = 0; o < HOSTS; o++)
	{
		any_found = any_found || found[o];
		if (!found[o])
			h->since_us[o] = NEVER;
		else if (h->since_us[o] == NEVER)
			h->since_us[o] = now_us;
		if (found[o] && (!h->standing.begun || now_us - h->since_us[o] >= DISPUTE_US))
			known[count++] = others[o];
		else
			all_ripe = all_ripe && !(found[o] && standing_stops(&h->standing, &others[o]));
	}
	steps_remember(&h->marks, h->lists.now, hash_of(h, h->lists.now));
	h->is_left =
		steps_left(h->lists, hash_of(h, h->lists.now), hash_of(h, h->lists.next), &h->marks);
	seen.left += h->is_left;
	if (h->is_left)
		known[count++] = (StandingOther){.says = HOST_TAKES, .takes_for_us = INT64_MAX / 4};
	for (int n = 0; n < NODES && all_ripe; n++)
		h->told |= h->beat[n].answered != 0 ? CORE_BIT(n) & ~guessed : 0;
	if (guessed != 0)
		h->beat_at_us = now_us + SECOND;
	if (!is_answered(h) || (!h->standing.begun && (wait.step || guessed != 0)))
	{
		h->beat_at_us = now_us + SECOND;
		return false;
	}
	for (int n = 0; n < NODES; n++)
		if ((all_of(h->lists) & CORE_BIT(n)) && h->beat[n].at_us != 0 &&
			h->beat[n].answered == h->standing.number && can_reach(h, n) &&
			h->beat[n].beat_us < asked_us)
			asked_us = h->beat[n].beat_us;
	standing_look(&h->standing,
				  &(StandingView){.id = h->id,
								  .has_leases = has_lease(h),
								  .others = known,
								  .count = count,
								  .asked_us = asked_us},
				  now_us);
	if (h->standing.number != number)
		tell("host %d says %d", (int) (h - hosts), h->standing.says);
	seen.refused += h->standing.says == HOST_REFUSES && said != HOST_REFUSES;
	seen.yielded += h->standing.says == HOST_HOLDS && said != HOST_HOLDS;
	if (h->standing.number != number)
		h->beat_at_us = now_us;
	else if (any_found || !standing_may_take(&h->standing, now_us))
		h->beat_at_us = now_us + 3 * SECOND;
	return true;
}

/* ---- steps ---- */

static void
see_apart(host *h, int o, const entry *told)
{
	HostsDifference difference;

	if (steps_are_rivals(&own_announced, &told->config) && (!rival || hosts[o].id < rival_id))
	{
		rival = true;
		rival_id = hosts[o].id;
	}
	hosts_compare(&own_then, &told->config, HOSTS_AT_ANY_TIME, &difference);
	if ((difference.kinds & HOSTS_HELD) ||
		((difference.kinds & HOSTS_NODES) && told->config.standing != HOST_REFUSES))
		apart = true;
	(void) h;
}

static bool
have_told(const host *h, core_lists lists, int64_t since_us)
{
	core_mask those = 0;

	for (int n = 0; n < NODES; n++)
	{
		const beat *b = &h->beat[n];
		int64_t from_us = nodes[n].started_us > b->new_us ? nodes[n].started_us : b->new_us;

		if (b->at_us != 0 && now_us - b->at_us <= LIVES_US && b->beat_us > since_us &&
			b->at_us - from_us > SILENT_US)
			those |= CORE_BIT(n);
	}
	return core_has_quorum(lists, those);
}

static bool
have_answered(const host *h, core_lists lists, int64_t since_us)
{
	core_mask those = 0;

	for (int n = 0; n < NODES; n++)
		if (h->beat[n].at_us != 0 && h->beat[n].beat_us >= since_us)
			those |= CORE_BIT(n);
	return core_has_quorum(lists, those);
}

static void
mark_nodes(host *h, core_lists to)
{
	StepMark mark = {.list = hash_of(h, to.now), .count = __builtin_popcount(to.now)};
	int32_t place[CORE_NODES_MAX] = {0};

	seen.marks++;
	for (int n = 0, j = 0; n < NODES; n++)
		if (to.now & CORE_BIT(n))
		{
			mark.address[j] = h->marks.address[n];
			mark.process[j++] = h->marks.process[n];
			place[n] = j;
		}
	steps_choose_mark(&h->marks, to.now, now_us / 1000, &mark, place);
	for (int n = 0; n < NODES; n++)
	{
		if (!(on_duty(h) & CORE_BIT(n)))
			continue;
		mark.place = place[n];
		nodes[n].mark = h->marks.mark[n] = mark;
		h->marks.told |= CORE_BIT(n);
	}
}

static bool
is_marked(const host *h, core_lists to, core_lists asked)
{
	const StepMark *latest = steps_latest(&h->marks);
	core_mask those = 0;

	if (latest == NULL || !steps_names(&h->marks, latest, to.now, hash_of(h, to.now)))
		return false;
	for (int n = 0; n < NODES; n++)
		if ((h->marks.told & CORE_BIT(n)) && h->marks.mark[n].version == latest->version &&
			h->marks.mark[n].list == latest->list)
			those |= CORE_BIT(n);
	return core_has_quorum(asked, those) && core_has_quorum(to, those);
}

static bool
may_leave(host *h, core_lists to, bool back)
{
	core_lists left = {back ? h->lists.next : h->lists.now, 0};
	core_lists asked = back && !core_has_quorum(left, on_duty(h)) ? to : h->lists;
	StepView view = {0};

	describe(h, to, &own_then);
	own_then.step = HOST_STAYS;
	describe(h, h->lists, &own_announced);
	own_announced.step = back ? HOST_GOES_BACK : HOST_GOES_ON;
	apart = rival = false;
	each_told(h, see_apart);
	view.clear = !apart && core_has_quorum(asked, on_duty(h)) &&
				 have_told(h, asked.next != 0 ? left : to, h->wanted_us) &&
				 steps_forbid(to, hash_of(h, to.now), left, hash_of(h, left.now), asked.next != 0,
							  &h->marks) == NULL;
	view.announced = h->announced == own_announced.step;
	view.heard = have_answered(h, asked,
							   h->announced_us > now_us - STEPS_FRESH_US ? h->announced_us
																		 : now_us - STEPS_FRESH_US);
	view.rival = rival;
	view.goes_first = rival_id < h->id;
	view.marked = is_marked(h, to, asked);
	seen.rivals += rival;
	switch (step_next(&view))
	{
		case STEP_WAIT:
			return false;
		case STEP_ANNOUNCE:
			tell("host %d announces step %d", (int) (h - hosts), own_announced.step);
			h->announced = own_announced.step;
			h->announced_us = now_us;
			h->beat_at_us = now_us;
			return false;
		case STEP_WITHDRAW:
			seen.withdrawn++;
			h->announced = HOST_STAYS;
			h->beat_at_us = now_us;
			return false;
		case STEP_MARK:
			mark_nodes(h, to);
			return false;
		case STEP_TAKE:
			h->announced = HOST_STAYS;
			return true;
	}
	return false;
}

static void
violate(const char *what, int h, int o)
{
	if (loses)
		return;
	check_invariant(22, seed, false,
					"seed %" PRIu64 " at %.2f s: host %d gets a lock beside host %d: %s", seed,
					(double) now_us / 1e6, h, o, what);
}

static void
configure(host *h)
{
	core_lists to = {h->file.now, 0};
	bool steps = h->lists.next != 0 && !same_lists(h->file, h->lists);
	bool back = h->file.now == h->lists.now;

	h->configure_at_us = now_us + SECOND;
	if (!same_lists(h->file, h->wanted))
	{
		h->wanted = h->file;
		h->wanted_us = now_us;
		h->announced = HOST_STAYS;
	}
	if (!steps ||
		(h->file.next == 0 && (back || h->file.now == h->lists.next) && may_leave(h, to, back)))
	{
		seen.steps += steps;
		for (int o = 0; steps && all_is_well && o < HOSTS; o++)
			if (&hosts[o] != h && standing_may_take(&hosts[o].standing, now_us) &&
				hosts[o].standing.says != HOST_WARNS &&
				!quorums_meet(to, ~(core_mask) 0, hosts[o].lists, ~(core_mask) 0) &&
				seen.overlaps++ == 0)
				violate("its step leads away from that one", (int) (h - hosts), o);
		if (!same_lists(h->lists, h->file))
			tell("host %d: nodes %03x/%03x in force", (int) (h - hosts), h->file.now, h->file.next);
		h->lists = h->file;
		/* a lease on both lists becomes a lease on the new list */
		if (has_lease(h) &&
			(h->lease_lists.now == h->lists.now || h->lease_lists.next == h->lists.now))
			h->lease_lists = h->lists;
	}
	if (h->max_ttl_in_force != h->max_ttl)
		h->warns_since_us = now_us;
	h->max_ttl_in_force = h->max_ttl;
	standing_warn(&h->standing, h->warns, has_lease(h), now_us);
	if (!same_lists(h->lists, h->settings_lists) || h->max_ttl != h->settings_max_ttl)
	{
		h->settings_lists = h->lists;
		h->warns_since_us = now_us;
		h->settings_max_ttl = h->max_ttl;
		standing_reset(&h->standing, has_lease(h));
		h->beat_at_us = now_us;
	}
	for (int n = 0; n < NODES; n++)
		if (!(all_of(h->lists) & CORE_BIT(n)))
		{
			h->beat[n].at_us = 0;
			h->beat[n].out = false;
			h->marks.told &= ~CORE_BIT(n);
		}
}

/* ---- locks ---- */

static void
take_lock(host *h)
{
	if (!standing_may_take(&h->standing, now_us) || !core_has_quorum(h->lists, on_duty(h)))
		return;
	seen.grants++;
	for (int o = 0; o < HOSTS; o++)
	{
		if (&hosts[o] == h)
			continue;
		if (has_lease(&hosts[o]) && hosts[o].lease_warned_us == 0 &&
			h->standing.says != HOST_WARNS &&
			!quorums_meet(h->lists, voters(h), hosts[o].lease_lists, hosts[o].lease_voters) &&
			seen.overlaps++ == 0)
			violate("by other nodes", (int) (h - hosts), o);
		if (hosts[o].up && hosts[o].granted_us != 0 && now_us - hosts[o].granted_us < SECOND &&
			hosts[o].max_ttl_in_force != h->max_ttl_in_force &&
			hosts[o].standing.says != HOST_WARNS && h->standing.says != HOST_WARNS &&
			standing_may_take(&hosts[o].standing, now_us) && seen.apart_ttl++ == 0)
			violate("with another redlock.max_ttl", (int) (h - hosts), o);
		if (all_is_well && h->standing.says != HOST_WARNS && has_lease(&hosts[o]) &&
			hosts[o].lease_warned_us != 0 && now_us - hosts[o].warns_since_us > 20 * SECOND &&
			quorums_meet(h->lists, ~(core_mask) 0, hosts[o].lists, ~(core_mask) 0) &&
			hosts[o].lease_max_ttl == hosts[o].max_ttl_in_force &&
			hosts[o].lease_max_ttl != h->max_ttl_in_force && seen.apart_ttl++ == 0)
			violate("which has warned", (int) (h - hosts), o);
	}
	h->granted_us = now_us;
	if (!has_lease(h))
	{
		tell("host %d has a lease by %03x/%03x", (int) (h - hosts), h->lists.now, h->lists.next);
		h->lease_until_us = now_us + SECOND + dice(19) * SECOND;
		h->lease_lists = h->lists;
		h->lease_voters = voters(h);
		h->lease_max_ttl = h->max_ttl_in_force;
		h->lease_warned_us = h->standing.says == HOST_WARNS ? h->warns_since_us : 0;
	}
}

/*
 * ---- events ----
 */

static void
start(host *h, bool first)
{
	core_lists file = h->file;
	core_lists lists = h->lists;
	int max_ttl = h->max_ttl;
	int64_t cut[NODES];
	bool renames = h->renames;

	memcpy(cut, h->cut_until_us, sizeof(cut));
	memset(h, 0, sizeof(*h));
	memcpy(h->cut_until_us, cut, sizeof(cut));
	h->up = true;
	h->renames = renames;
	h->file = file;
	h->max_ttl = h->max_ttl_in_force = max_ttl;
	h->settings_max_ttl = -1;
	h->id = (uint64_t) dice(1u << 30) + 1;
	/* two lists in force are kept on disk */
	h->lists = !first && lists.next != 0 ? lists : file;
	h->standing.heard_us = now_us - LIVES_US;
	for (int n = 0; n < NODES; n++)
		h->marks.address[n] = (uint64_t) n + (h->renames ? 100 : 1);
	for (int o = 0; o < HOSTS; o++)
		h->since_us[o] = NEVER;
	configure(h);
}

static void
meet(host *h, int n)
{
	if (h->process[n] == nodes[n].process)
		return;
	memmove(&h->former[n][1], &h->former[n][0], sizeof(h->former[n]) - sizeof(h->former[n][0]));
	h->former[n][0] = h->process[n];
	h->process[n] = nodes[n].process;
	h->marks.process[n] = 1000 * (uint64_t) n + (uint64_t) h->process[n];
}

/* A node was away for a moment: does its last answer still allow a vote? */
static bool
still_counts(const host *h, int n)
{
	return h->named[n] == nodes[n].process && h->beat[n].vote_us != 0 &&
		   now_us - h->beat[n].vote_us < SILENT_US;
}

static void
run_host(host *h)
{
	bool all_answered = true;
	bool any = false;

	if (!h->up && now_us >= h->up_at_us)
		start(h, false);
	if (!h->up || now_us < h->stopped_until_us)
		return;
	for (int n = 0; n < NODES; n++)
	{
		beat *b = &h->beat[n];

		if (!can_reach(h, n) || h->process[n] != nodes[n].process)
		{
			any = any || b->out;
			b->out = false;
			b->answered = 0; /* the node must answer again before it votes */
			if (can_reach(h, n))
				meet(h, n);
		}
		if (!can_reach(h, n))
			continue;
		if (b->answered == 0 && !still_counts(h, n))
			h->told &= ~CORE_BIT(n);
		if ((all_of(h->lists) & CORE_BIT(n)) && b->answered == 0 && !b->out)
			h->beat_at_us = now_us;
		if (b->out && b->answered_us <= now_us)
		{
			hear(h, n);
			any = true;
		}
		all_answered = all_answered && !b->out;
	}
	if (any && all_answered)
		look_at(h);
	if (now_us >= h->configure_at_us)
		configure(h);
	if (now_us >= h->beat_at_us)
		send_beats(h);
	if (chance(4))
		take_lock(h);
}

static void
restart(int n)
{
	nodes[n].process++;
	nodes[n].started_us = now_us;
}

/* The node is down for down_us. */
static void
restart_for(int n, int64_t down_us)
{
	restart(n);
	nodes[n].started_us += down_us;
	for (int h = 0; h < HOSTS; h++)
		if (hosts[h].cut_until_us[n] < nodes[n].started_us)
			hosts[h].cut_until_us[n] = nodes[n].started_us;
}

static void
give(host *h)
{
	int at = 0;

	for (int l = 0; l < LISTS; l++)
		if (h->file.now == list_of[l])
			at = l;
	if (h->file.next == 0 && h->lists.next == 0)
		h->file.next = list_of[(at + 1) % LISTS] != h->file.now ? list_of[(at + 1) % LISTS] : 0;
	else if (h->lists.next != 0 && same_lists(h->file, h->lists))
		h->file = (core_lists){chance(2) ? h->lists.next : h->lists.now, 0};
	else if (h->lists.next != 0)
		h->file = h->lists; /* back to both lists */
	tell("host %d is given nodes %03x/%03x", (int) (h - hosts), h->file.now, h->file.next);
	h->configure_at_us = now_us;
}

static void
happen(void)
{
	host *h = &hosts[dice(HOSTS)];
	int n = (int) dice(NODES);

	int what = (int) dice(loses ? 9 : faults ? 8 : 3);

	if (what >= 2)
		tell("fault %d of host %d, node %d; it says %d, begun %d", what, (int) (h - hosts), n,
			 h->standing.says, h->standing.begun);
	switch (what)
	{
		case 0:
		case 1:
			give(h);
			break;
		case 2:
			h->max_ttl = chance(4) ? 1 : 0;
			if (h->warns || chance(8))
			{
				h->warns = !h->warns;
				h->warns_since_us = h->warns ? now_us : h->warns_since_us;
			}
			h->configure_at_us = now_us;
			break;
		case 3:
			h->stopped_until_us = now_us + dice(70) * SECOND;
			break;
		case 4:
			for (int i = 0; i < NODES; i++)
				if (chance(3))
					h->cut_until_us[i] = now_us + dice(60) * SECOND;
			break;
		case 5:
			h->up = false;
			h->up_at_us = now_us + dice(80) * SECOND;
			h->lease_until_us = h->granted_us = 0;
			break;
		case 6:
			restart(n);
			break;
		case 7:
			/* another broker: the nodes' answers are forgotten */
			for (int i = 0; i < NODES; i++)
				memset(&h->beat[i], 0, sizeof(h->beat[i]));
			h->told = 0;
			h->announced = HOST_STAYS;
			h->marks.told = 0;
			memset(h->marks.mark, 0, sizeof(h->marks.mark));
			break;
		case 8:
			for (int i = 0; i < NODES; i++) /* half of the nodes lose their marks */
				if (chance(2))
					memset(&nodes[i].mark, 0, sizeof(nodes[i].mark));
			break;
	}
}

static void
run_nodes(void)
{
	for (int h = 0; h < HOSTS; h++)
		for (int n = 0; n < NODES; n++)
			if (hosts[h].beat[n].out && hosts[h].beat[n].arrives_us <= now_us)
				arrive(&hosts[h], n);
}

/* The newcomer's own node is down, for all hosts. */
static void
begin_late_node(void)
{
	host *late = &hosts[HOSTS - 1];

	own_starts_us = now_us + 30 * SECOND + (int64_t) dice(800) * TICK_US;
	for (int h = 0; h < HOSTS; h++)
		hosts[h].cut_until_us[OWN] = own_starts_us;
	if (kind == HANG && chance(2))
		late->up_at_us = own_starts_us - 2 * SECOND + (int64_t) dice(400) * TICK_US;
}

static void
start_late_node(void)
{
	tell("node %d starts", OWN);
	restart(OWN);
	for (int h = 0; h < HOSTS - 1; h++)
	{
		int shared = (int) dice(OWN);

		if (kind == HANG)
			hosts[h].stopped_until_us = now_us + 16 * SECOND + dice(14) * SECOND;
		else if (kind == SHORT_CUTS)
		{
			/* leases by a lost node are a known limit: not checked */
			hosts[h].lease_until_us = 0;
			hosts[h].cut_until_us[shared] = now_us + dice(6 * SECOND / TICK_US) * TICK_US;
			if (chance(2))
				restart(shared);
		}
	}
}

static void
begin_story(void)
{
	kind = (int) (seed / 1000000);
	faults = kind == FAULTS || kind == LOST_MARKS;
	loses = kind == LOST_MARKS;
	all_is_well = kind == CHANGES || kind == OWN_DOWN;
	own_starts_us = NEVER;
	dice_begin(seed);
	memset(hosts, 0, sizeof(hosts));
	memset(nodes, 0, sizeof(nodes));
	now_us = 1000 * SECOND;
	for (int l = 0; l < LISTS; l++)
		list_of[l] = (core_mask) 7 << 3 * l;
	if (kind >= OWN_DOWN || chance(3)) /* one node at a time is replaced */
		for (int l = 0; l < LISTS; l++)
			list_of[l] = 7u << l;
	for (int n = 0; n < NODES; n++)
	{
		nodes[n].process = 1;
		nodes[n].started_us = now_us - (int64_t) dice(20) * SECOND;
	}
	for (int h = 0; h < HOSTS; h++)
	{
		/* the last host may come late, with a few nodes of its own */
		bool late = h == HOSTS - 1 && !faults && list_of[1] != (core_mask) 7 << 3 &&
					kind != RESTARTS && (kind >= OWN_DOWN || chance(2));

		hosts[h].file = (core_lists){list_of[late], 0};
		hosts[h].renames = h == 1 && chance(4);
		start(&hosts[h], true);
		if (late)
		{
			hosts[h].up = false;
			hosts[h].up_at_us = now_us + dice(20) * SECOND;
		}
	}
	if (kind >= OWN_DOWN && kind <= HANG)
		begin_late_node();
}

static void
run_for(int64_t length_us, bool calm)
{
	int64_t end_us = now_us + length_us;
	int64_t next_us = now_us + 15 * SECOND;

	for (; now_us < end_us; now_us += TICK_US)
	{
		if (!calm && now_us >= next_us)
		{
			happen();
			/* often several at once */
			next_us =
				now_us + (chance(3) ? (int64_t) dice(20) * TICK_US : (int64_t) dice(12) * SECOND);
		}
		if (kind == RESTARTS && now_us < 1200 * SECOND && now_us % (5 * SECOND) == 0)
			restart_for(0, (int64_t) (seed % 60) * TICK_US);
		if (now_us == own_starts_us)
			start_late_node();
		run_nodes();
		for (int h = 0; h < HOSTS; h++)
			run_host(&hosts[(h + now_us / TICK_US) % HOSTS]);
	}
}

/*
 * All faults end, and settings are equal.  Returns how many hosts get no lock.
 */
static int
settle(void)
{
	int stuck = 0;

	for (int h = 0; h < HOSTS; h++)
	{
		hosts[h].stopped_until_us = 0;
		hosts[h].up_at_us = now_us;
		hosts[h].max_ttl = 0;
		hosts[h].warns = false;
		memset(hosts[h].cut_until_us, 0, sizeof(hosts[h].cut_until_us));
	}
	for (int h = 0; h < HOSTS; h++)
		hosts[h].granted_us = 0;
	run_for(100 * SECOND, true);
	for (int h = 0; h < HOSTS; h++)
		stuck += hosts[h].granted_us == 0 && !hosts[h].is_left;
	return stuck;
}

/*
 * The nodes with the latest mark, a majority, lose the mark; the remaining
 * nodes keep older marks.  All hosts restart with the list of the lost mark.
 * Returns how many hosts get no lock.
 */
static int
start_with_latest_list(void)
{
	const host *latest = NULL;
	core_lists to;
	int stuck = 0;

	for (int h = 0; h < HOSTS; h++)
		if (standing_may_take(&hosts[h].standing, now_us) && hosts[h].lists.next == 0 &&
			(latest == NULL || hosts[h].marks.own.version > latest->marks.own.version))
			latest = &hosts[h];
	if (latest == NULL)
		return 0;
	to = latest->lists;
	for (int h = 0; h < HOSTS; h++)
		if (standing_may_take(&hosts[h].standing, now_us) &&
			!quorums_meet(to, ~(core_mask) 0, hosts[h].lists, ~(core_mask) 0))
			return 0; /* marks were lost before: hosts with two lists take locks */
	for (int n = 0; n < NODES; n++)
		if ((to.now & CORE_BIT(n)) && nodes[n].mark.version > latest->marks.own.version)
			return 0; /* another host has marked these nodes since */
	for (int n = 0; n < NODES; n++)
		if (nodes[n].mark.version == latest->marks.own.version)
			memset(&nodes[n].mark, 0, sizeof(nodes[n].mark));
	for (int h = 0; h < HOSTS; h++)
	{
		hosts[h].file = hosts[h].lists = to;
		hosts[h].up = false;
		hosts[h].up_at_us = now_us + 50 * SECOND + dice(50) * SECOND;
		hosts[h].lease_until_us = hosts[h].granted_us = 0;
	}
	run_for(200 * SECOND, true);
	for (int h = 0; h < HOSTS; h++)
		stuck += hosts[h].granted_us == 0;
	return stuck;
}

static void
test_changes(int stories, int of_kind)
{
	int bad = 0;
	int stuck = 0;

	memset(&seen, 0, sizeof(seen));
	for (int i = 0; i < stories; i++)
	{
		seed = (uint64_t) (i + 1 + of_kind * 1000000);
		begin_story();
		run_for(300 * SECOND, false);
		stuck += settle() == HOSTS;
		if (loses)
			stuck += start_with_latest_list() > 0;
		bad = loses ? 0 : seen.overlaps + seen.apart_ttl;
		if (bad > 0)
			break;
	}
	check_invariant(22, seed, bad == 0 && stuck == 0,
					"%d stories%s: %" PRId64 " grants, %" PRId64 " steps, %" PRId64
					" marks, %" PRId64 " looks with a rival, %" PRId64 " withdrew, %" PRId64
					" refused, %" PRId64 " gave way, %" PRId64
					" looks at nodes that were left; %d in which no host gets locks",
					stories, kind_names[of_kind], seen.grants, seen.steps, seen.marks, seen.rivals,
					seen.withdrawn, seen.refused, seen.yielded, seen.left, stuck);
	check_invariant(22, seed,
					seen.steps > stories && seen.rivals > stories / 4 && seen.refused > stories / 4,
					"and there was something to check");
}

int
main(int argc, char **argv)
{
	bool from = argc == 3 && strcmp(argv[1], "--from") == 0;
	int stories = argc > 1 && !from ? atoi(argv[1]) : 300;
	int first_kind = from ? atoi(argv[2]) / 1000000 : 0;

	if (argc > 2 && !from)
	{
		tells = true;
		seed = strtoull(argv[2], NULL, 10);
		begin_story();
		run_for(300 * SECOND, false);
		(void) settle();
		if (loses)
			printf("# %d stuck\n", start_with_latest_list());
		return 0;
	}
	for (int i = 0; i < KINDS; i++)
		test_changes(stories, (first_kind + i) % KINDS);
	return tap_done();
}
