/*
 * conflicts.c
 *		Configuration conflicts with other hosts; see conflicts.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "broker/conflicts.h"
#include "broker/host_entry.h"
#include "broker/marks.h"
#include "broker/members.h"
#include "broker/told.h"
#include "protocol/standing.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"

/*
 * Limit of the configurations that a look compares, so that each look takes only milliseconds.
 */
#define COMPARED_MAX 32

/*
 * An entry is outdated when the same host's entry at another node is this much newer: the host has
 * left the node of the old entry, or cannot reach that node.
 */
#define OUTDATED_US INT64CONST(1000000)

/*
 * The log tells a conflict when the last look has surely found the conflict, and no look of this
 * time has ruled the conflict out.  A host writes a new entry within BEAT_LEAST_US after a change
 * of a node or of its settings.
 */
#define CONFLICT_US INT64CONST(2500000)

/* Another configuration: this host could get a lock that is held under `config`. */
typedef struct Conflict
{
	HostConfig config;
	HostConfig own;  /* of this host at the last finding */
	HostFacts facts; /* of a host with `config` */
	uint64 host;
	HostsDifference difference;
	int64 sure_us;   /* last look that surely found the conflict */
	int64 found_us;  /* last look that found the conflict, surely or perhaps */
	int64 agreed_us; /* last look at which the host agreed */
	int64 seen_us;   /* when the host wrote `config` */
	int64 since_us;  /* first look at the conflict: no look since then has ruled it out */
	bool logged;     /* the log tells the conflict */
	uint64 words;    /* hash of the text in the log */
} Conflict;

static int64 looked_us; /* time of the last look */

static Conflict *conflicts; /* LUA_CONFIGS_MAX */
static int conflict_count = 0;
static bool in_conflict = false; /* published to sessions */

/* A conflict published by an earlier broker, which this broker has neither found nor ruled out. */
static uint64 inherited = 0; /* the other host; 0: none */
static int64 inherited_us;

/* Results of the last look about the inherited conflict. */
static bool inherited_agrees; /* the inherited host certainly agrees */
static bool in_doubt;         /* some host agrees, but not for certain */

static StandingWait to_wait; /* of the last look */

/*
 * The order in which a look reads entries.  Hosts with locks come first, since the number of
 * configurations to compare and to keep is limited.
 */
typedef enum Turn
{
	TURN_OF_HOLDERS,
	TURN_OF_ASKERS,
	TURN_OF_REFUSERS
} Turn;

static Turn turn; /* of the look */

static struct
{
	uint64 host;
	int64 at_us;
} seen[CORE_NODES_MAX * LUA_CONFIGS_MAX]; /* hosts in the answers of this look */
static int seen_count;
static uint64 compared[COMPARED_MAX]; /* hashes of the configurations of this look */
static int compared_count;

static void look_at_standing(int64 now_us);
static void let_vote(int64 now_us);
static bool is_answered(int64_t *asked_us);
static bool is_ripe(const Conflict *conflict);
static bool has_leases(int64 now_us);
static int describe_others(StandingOther *others, bool all);
static void find_other(const Conflict *conflict, StandingOther *other);
static Turn turn_of(const HostConfig *config);
static bool takes_or_holds(const Conflict *conflict);
static bool stops(const Conflict *conflict);
static void end_inherited(bool complete);
static bool is_found(void);
static void log_end(const char *name);
static bool all_have_told(int64 now_us);
static bool read_told(int node, int64 now_us,
					  void (*read)(const HostRecord *record, int64 seen_us));
static void see(const HostRecord *record, int64 seen_us);
static bool was_seen(uint64 host);
static bool is_outdated(const HostRecord *record, int64 seen_us);
static void look_at(const HostRecord *record, int64 seen_us);
static bool surely_agrees(const HostConfig *theirs);
static int find_conflict(uint64 host, const HostConfig *config);
static bool drop_last_from(Turn first);
static bool was_compared(const HostRecord *record, int64 seen_us, HostStep step);
static void log_conflict(Conflict *conflict);
static int first_stopping(void);
static void publish(void);
static void explain(const Conflict *conflict, HostConflict *words);

void
conflicts_init(void)
{
	HostConflict before;

	conflicts = MemoryContextAllocZero(TopMemoryContext, LUA_CONFIGS_MAX * sizeof(Conflict));
	host_list_conflict(&before);
	in_conflict = before.name[0] != '\0';
	inherited = in_conflict ? before.host : 0;
	inherited_us = redlock_clock_us();
	set_list_left(in_conflict && before.left);
}

void
find_conflicts(int64 now_us)
{
	bool complete;
	int kept = 0;

	looked_us = now_us;
	inherited_agrees = false;
	in_doubt = false;
	to_wait = (StandingWait){0};
	entry_look_again(); /* nodes may have changed since the entry was written */
	complete = !read_all_told(now_us, look_at) && all_have_told(now_us);
	for (int i = 0; i < conflict_count; i++)
	{
		Conflict *conflict = &conflicts[i];

		/*
		 * Drop a conflict that this look has not found.  But keep a logged conflict for a while: a
		 * node may have left the entry out, or the only node that knows the host is away.
		 */
		if (conflict->found_us != looked_us &&
			(complete || !conflict->logged || conflict->agreed_us == looked_us ||
			 now_us - conflict->seen_us > HOST_LIVES_US))
		{
			if (conflict->logged)
				log_end(conflict->facts.name);
			continue;
		}
		if (kept != i)
			conflicts[kept] = *conflict;
		kept++;
	}
	conflict_count = kept;
	look_at_standing(now_us);
	/* at each look: a former broker may have died before */
	if (lease_gives_way())
		(void) lease_release_all_idle();
	for (int i = 0; i < conflict_count; i++)
		if (is_ripe(&conflicts[i]) && !conflicts[i].logged)
			log_conflict(&conflicts[i]);
	end_inherited(complete);
	publish();
	let_vote(now_us);
}

/*
 * Lets this host's standing take its next step, if the nodes have answered the present entry.  A
 * newcomer also waits while it guesses about a node, while another host's step is in the way, and
 * for the end of an inherited conflict.
 */
static void
look_at_standing(int64 now_us)
{
	static StandingOther others[LUA_CONFIGS_MAX + 1];
	Standing *standing = &lease_table->standing;
	uint64 number = standing->number;
	StandingView view = {.id = lease_table->host_id, .others = others};
	bool had_begun = standing->begun;

	(void) standing_has_lapsed(standing, now_us);
	if (!is_answered(&view.asked_us) ||
		(!standing->begun && (to_wait.step || to_wait.guessed != 0 || inherited != 0)))
	{
		if (!standing->begun)
			beat_by(now_us + BEAT_LEAST_US);
		return;
	}
	look_at_marks();
	view.has_leases = has_leases(now_us);
	view.count = describe_others(others, !standing->begun);
	standing_look(standing, &view, now_us);
	if (standing->number != number)
		beat_at(now_us);
	else if (standing->begun && !had_begun)
	{
		votes_begin();
		beat_soon();
	}
}

/*
 * Lets nodes vote whose answers this look has read.
 *
 * A node that is back may bring a conflict, and this host stops only when a conflict is ripe.
 * Until then no further node gets a vote.  Nor does a node get a vote while a reachable node lacks
 * the present entry, which names the new voter: other hosts would not learn of the voter.  A node
 * about which this host guesses is not given a vote either, and is asked again soon.  If such a
 * node has a vote, it keeps the vote: only registry_changed takes votes.
 */
static void
let_vote(int64 now_us)
{
	core_mask guessed = entry_nodes(to_wait.guessed);

	if (guessed != 0)
		beat_by(now_us + BEAT_LEAST_US);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told_of(i)->behind && node_can_send(node_at(i)))
		{
			beat_at(now_us);
			return;
		}
	for (int i = 0; i < conflict_count; i++)
		if (lease_table->standing.begun && !is_ripe(&conflicts[i]) && stops(&conflicts[i]))
			return;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told_of(i)->answered != 0)
		{
			if (!(guessed & CORE_BIT(i)))
				set_told(i, NODE_LIST_TOLD);
			else if (!(nodes_told() & CORE_BIT(i)))
				set_told(i, NODE_LIST_IN_DOUBT);
		}
}

/*
 * Has each reachable node answered the present entry?  And do the nodes with an answer to this
 * entry within STANDING_LAPSE_US form a quorum, reachable or not?  Before its begin a host also
 * waits for the first attempt at each other node: a node may only be far away.  *asked_us: when the
 * first of these nodes was asked.
 */
static bool
is_answered(int64_t *asked_us)
{
	core_mask answered = 0;

	*asked_us = redlock_clock_us();

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members() & CORE_BIT(i)))
			continue;
		if (told_of(i)->answered == lease_table->standing.number &&
			strcmp(told_of(i)->address, node_at(i)->url.address) == 0 &&
			redlock_clock_us() - told_of(i)->answered_us <= STANDING_LAPSE_US)
		{
			answered |= CORE_BIT(i);
			*asked_us = Min(*asked_us, told_of(i)->answered_us);
		}
		else if (node_can_send(node_at(i)))
			return false;
		else if (!lease_table->standing.begun &&
				 node_is_first_tried(node_at(i), redlock_clock_us()))
		{
			if (node_at(i)->state == NODE_RESOLVING)
				beat_by(node_at(i)->resolve_by_us);
			return false;
		}
	}
	return core_has_quorum(members_lists(), answered);
}

/*
 * Has the conflict lasted for CONFLICT_US?  A passing conflict must not stop a host that takes
 * locks.
 */
static bool
is_ripe(const Conflict *conflict)
{
	return conflict->logged ||
		   (conflict->sure_us == looked_us && looked_us - conflict->since_us >= CONFLICT_US);
}

/* Does this host hold or ask for a lock, or is a key kept after its release? */
static bool
has_leases(int64 now_us)
{
	for (int i = 0; i < lease_table->entries; i++)
		if (lease_at(i)->in_use && is_asked_or_held(&lease_at(i)->drive.core))
			return true;
	return lease_table->settling.kept_until_us > now_us;
}

/*
 * Describes conflicting hosts for standing.c: all, or only ripe conflicts.  Returns their number.
 */
static int
describe_others(StandingOther *others, bool all)
{
	int count = 0;

	for (int i = 0; i < conflict_count; i++)
		if (all || is_ripe(&conflicts[i]))
			find_other(&conflicts[i], &others[count++]);
	if (list_is_left())
		others[count++] = (StandingOther){
			/* hosts have left these lists: they count as hosts with locks since ever */
			.says = HOST_TAKES,
			.takes_for_us = PG_INT64_MAX / 4};
	return count;
}

static void
find_other(const Conflict *conflict, StandingOther *other)
{
	*other = standing_other(conflict->host, &conflict->config, conflict->difference.kinds,
							conflict->facts.takes_for_s * INT64CONST(1000000) + looked_us -
								conflict->seen_us);
}

static bool
takes_or_holds(const Conflict *conflict)
{
	StandingOther other;

	find_other(conflict, &other);
	return other.holds || (other.says != HOST_ASKS && other.says != HOST_REFUSES);
}

static bool
stops(const Conflict *conflict)
{
	StandingOther other;

	find_other(conflict, &other);
	return standing_stops(&lease_table->standing, &other);
}

bool
registry_may_ask(int64 now_us)
{
	return standing_may_take(&lease_table->standing, now_us) &&
		   (!in_conflict || lease_table->standing.says == HOST_WARNS);
}

bool
registry_is_stopped(void)
{
	return in_conflict;
}

bool
conflicts_any(void)
{
	return conflict_count > 0;
}

bool
conflicts_with_holders(void)
{
	for (int i = 0; i < conflict_count; i++)
		if (takes_or_holds(&conflicts[i]))
			return true;
	return false;
}

void
registry_configured(int64 now_us)
{
	static HostConfig settings;
	static char text[LUA_CONFIG_MAX];
	uint64 hash;
	int count = 0;

	describe_config(&settings, members_lists());
	settings.standing = HOST_ASKS;
	settings.step = HOST_STAYS;
	for (int i = 0; i < settings.count; i++)
	{
		if (!hosts_is_listed(&settings.node[i]))
			continue;
		settings.node[count] = settings.node[i];
		settings.node[count].process[0] = settings.node[count].last[0] = '\0';
		settings.node[count++].held = 0;
	}
	settings.count = count;
	hash =
		hash_bytes_extended((const unsigned char *) text, hosts_write_config(&settings, text), 2);
	standing_warn(&lease_table->standing, redlock_on_disagreement == ON_DISAGREEMENT_WARN,
				  has_leases(now_us), now_us);
	if (hash == lease_table->settings)
		return;
	lease_table->settings = hash;
	standing_reset(&lease_table->standing, has_leases(now_us));
	set_list_left(false);
	beat_at(now_us);
}

/*
 * Ends the inherited conflict: when this broker's own conflict stops this host, when the inherited
 * conflict is surely over, or after HOST_LIVES_US, at a look that surely finds no conflict.  A node
 * names a single host of each configuration, so the inherited host may be missing from the answers
 * for a while.
 */
static void
end_inherited(bool complete)
{
	bool replaced = first_stopping() < conflict_count;
	bool outlived = looked_us - inherited_us > HOST_LIVES_US;
	bool over =
		complete && conflict_count == 0 && !in_doubt && (inherited_agrees || !was_seen(inherited));
	HostConflict words;

	if (inherited == 0)
		return;
	if (!replaced && !over && (!outlived || is_found()))
		return;
	if (!replaced || inherited_agrees)
	{
		host_list_conflict(&words);
		log_end(words.name);
	}
	inherited = 0;
}

/* Did this look find a conflict that stops this host, for certain, ripe or not? */
static bool
is_found(void)
{
	for (int i = 0; i < conflict_count; i++)
		if (conflicts[i].sure_us == looked_us && stops(&conflicts[i]))
			return true;
	return false;
}

static void
log_end(const char *name)
{
	ereport(LOG, (errmsg("redlock host \"%s\" agrees with this one again, or is gone", name)));
}

/*
 * Has each node answered this broker lately, late enough after the node's start for all hosts to
 * have written again?  Otherwise an unknown host may exist.
 */
static bool
all_have_told(int64 now_us)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && !(has_told(i, now_us) && has_told_all(i)))
			return false;
	return true;
}

/* Reads all answers: first to learn which entries are outdated, then for `read`, in turns. */
bool
read_all_told(int64 now_us, void (*read)(const HostRecord *record, int64 seen_us))
{
	bool more = false;

	compared_count = seen_count = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		more = read_told(i, now_us, see) || more;
	for (turn = TURN_OF_HOLDERS; turn <= TURN_OF_REFUSERS; turn++)
		for (int i = 0; i < CORE_NODES_MAX; i++)
			(void) read_told(i, now_us, read);
	return more || compared_count == COMPARED_MAX;
}

/* Returns true if the node has more entries than its answer. */
static bool
read_told(int node, int64 now_us, void (*read)(const HostRecord *record, int64 seen_us))
{
	const Told *from = told_of(node);
	const char *at = from->records;
	HostRecord record;

	if (!(members() & CORE_BIT(node)) || !has_told(node, now_us))
		return false;
	for (int i = 0; i < LUA_CONFIGS_MAX && hosts_take(&at, from->records + from->len, &record); i++)
		read(&record, from->at_us - record.age_ms * 1000);
	return from->more;
}

static void
see(const HostRecord *record, int64 seen_us)
{
	seen[seen_count].host = record->id;
	seen[seen_count++].at_us = seen_us;
}

static bool
was_seen(uint64 host)
{
	for (int i = 0; i < seen_count; i++)
		if (seen[i].host == host)
			return true;
	return false;
}

static bool
is_outdated(const HostRecord *record, int64 seen_us)
{
	for (int i = 0; i < seen_count; i++)
		if (seen[i].host == record->id && seen[i].at_us > seen_us + OUTDATED_US)
			return true;
	return false;
}

static Turn
turn_of(const HostConfig *config)
{
	bool holds = config->standing != HOST_ASKS && config->standing != HOST_REFUSES;

	for (int i = 0; i < config->count && !holds; i++)
		holds = config->node[i].held != 0;
	return holds                           ? TURN_OF_HOLDERS
		   : config->standing == HOST_ASKS ? TURN_OF_ASKERS
										   : TURN_OF_REFUSERS;
}

bool
read_other(const HostRecord *record, int64 seen_us, HostFacts *facts, HostConfig *theirs)
{
	return record->id != lease_table->host_id && record->config != NULL &&
		   !is_outdated(record, seen_us) &&
		   hosts_read_facts(facts, record->facts, record->facts_len) &&
		   hosts_read_config(theirs, record->config, record->config_len) &&
		   strcmp(theirs->prefix, entry_config()->prefix) == 0 && turn_of(theirs) == turn &&
		   (!was_compared(record, seen_us, theirs->step) || record->id == inherited);
}

/* Compares one entry with this host, and records a conflict or its end. */
static void
look_at(const HostRecord *record, int64 seen_us)
{
	static HostConfig theirs;
	HostsDifference difference;
	HostFacts facts;
	Conflict *conflict;
	bool same;
	int i;

	if (!read_other(record, seen_us, &facts, &theirs))
		return;
	hosts_compare(entry_config(), &theirs, seen_us, &difference);
	standing_add_wait(&lease_table->standing, entry_config(), &theirs, &difference,
					  looked_us - seen_us, &to_wait);
	i = find_conflict(record->id, &theirs);
	if (i == LUA_CONFIGS_MAX && (difference.kinds == 0 || !drop_last_from(turn)))
		return;
	i = Min(i, conflict_count);
	conflict = &conflicts[i];
	same = i < conflict_count && hosts_say_the_same(&conflict->config, &theirs);
	if (difference.kinds == 0)
	{
		bool surely = surely_agrees(&theirs);

		inherited_agrees = inherited_agrees || (surely && record->id == inherited);
		in_doubt = in_doubt || !surely;
		if (i == conflict_count)
			return;
		if (same && !surely && looked_us - conflict->sure_us <= HOST_LIVES_US)
			conflict->found_us = looked_us;
		else
			conflict->agreed_us = looked_us;
		return;
	}
	if (i < conflict_count && !(same && hosts_say_the_same(&conflict->own, entry_config())))
		conflict->logged = false; /* the text in the log is outdated */
	if (i == conflict_count)
	{
		memset(conflict, 0, sizeof(*conflict));
		conflict->since_us = looked_us;
		conflict_count++;
	}
	if (record->id == inherited)
		conflict->since_us = Min(conflict->since_us, looked_us - CONFLICT_US);
	conflict->own = *entry_config();
	conflict->config = theirs;
	conflict->sure_us = looked_us;
	conflict->seen_us = seen_us;
	conflict->facts = facts;
	conflict->host = record->id;
	conflict->difference = difference;
	conflict->found_us = looked_us;
}

/*
 * Do the configurations agree by nodes known for certain?  A node is uncertain if one of the hosts
 * cannot send to the node now, if this host met the node only a moment ago, or if the node has
 * restarted: the other host may not have written since.
 */
static bool
surely_agrees(const HostConfig *theirs)
{
	HostsDifference difference;

	hosts_compare(entry_config(), theirs, HOSTS_AT_ANY_TIME, &difference);
	return difference.kinds == 0 && difference.all_known;
}

/*
 * Returns the index of the conflict with this configuration; or of the conflict with this host,
 * which had another configuration; or conflict_count for a new one.
 */
static int
find_conflict(uint64 host, const HostConfig *config)
{
	for (int i = 0; i < conflict_count; i++)
		if (hosts_say_the_same(&conflicts[i].config, config))
			return i;
	for (int i = 0; i < conflict_count; i++)
		if (conflicts[i].host == host && conflicts[i].found_us != looked_us)
			return i;
	return conflict_count;
}

/* Makes room for a conflict: drops a conflict of a later turn, if there is one. */
static bool
drop_last_from(Turn first)
{
	for (int i = conflict_count - 1; i >= 0; i--)
	{
		if (turn_of(&conflicts[i].config) <= first)
			continue;
		conflicts[i] = conflicts[--conflict_count];
		return true;
	}
	return false;
}

/*
 * Was this configuration compared in this look already, with the same doubts and as fresh?  Also
 * true when COMPARED_MAX is reached.
 */
static bool
was_compared(const HostRecord *record, int64 seen_us, HostStep step)
{
	core_mask doubt = hosts_in_doubt(entry_config(), seen_us);
	bool silence_counts = doubt != 0 || step != HOST_STAYS;
	uint64 seed =
		doubt |
		(silence_counts && looked_us - seen_us > STANDING_SILENT_US ? UINT64CONST(1) << 32 : 0);
	uint64 hash =
		hash_bytes_extended((const unsigned char *) record->config, record->config_len, seed);

	for (int i = 0; i < compared_count; i++)
		if (compared[i] == hash)
			return true;
	if (compared_count == COMPARED_MAX)
		return true;
	compared[compared_count++] = hash;
	return false;
}

static void
log_conflict(Conflict *conflict)
{
	HostConflict words;
	uint64 hash;

	explain(conflict, &words);
	conflict->logged = true;
	hash = hash_bytes_extended((const unsigned char *) words.detail, strlen(words.detail),
							   1 + takes_or_holds(conflict));
	if (hash == conflict->words)
		return;
	conflict->words = hash;
	if (!takes_or_holds(conflict))
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("redlock host \"%s\" has other settings than this one, and takes no locks",
						words.name),
				 errdetail_internal("%s", words.detail), errhint("%s", words.hint)));
	else if (lease_table->standing.says != HOST_TAKES && lease_table->standing.says != HOST_WARNS)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("redlock host \"%s\" has other settings than this one, so this host takes "
						"no locks",
						words.name),
				 errdetail_internal("%s", words.detail), errhint("%s", words.hint)));
	else
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("redlock host \"%s\" has other settings than this one, and both could get "
						"one lock",
						words.name),
				 errdetail_internal("%s", words.detail), errhint("%s", words.hint)));
}

/*
 * Returns the index of the first conflict that stops this host's locks; conflict_count: none does.
 */
static int
first_stopping(void)
{
	int i = 0;

	while (i < conflict_count &&
		   !((is_ripe(&conflicts[i]) || !lease_table->standing.begun) && stops(&conflicts[i])))
		i++;
	return i;
}

/*
 * Publishes to sessions the conflict that stops this host, or the end of such conflicts.  Other
 * conflicts may go on.
 */
static void
publish(void)
{
	HostConflict words;
	int i = first_stopping();

	if (list_is_left())
	{
		explain_left(&words);
		host_list_set_conflict(&words);
	}
	else if (i < conflict_count)
	{
		explain(&conflicts[i], &words);
		host_list_set_conflict(&words);
	}
	else if (in_conflict && inherited == 0)
		host_list_set_conflict(NULL);
	in_conflict = list_is_left() || i < conflict_count || inherited != 0;
}

static void
explain(const Conflict *conflict, HostConflict *words)
{
	StringInfoData detail;
	StringInfoData hint;

	initStringInfo(&detail);
	initStringInfo(&hint);
	host_list_explain(&conflict->own, &conflict->config, &conflict->difference, &detail, &hint);
	memset(words, 0, sizeof(*words));
	strlcpy(words->name, conflict->facts.name[0] != '\0' ? conflict->facts.name : "?",
			sizeof(words->name));
	words->host = conflict->host;
	snprintf(words->detail, sizeof(words->detail), "Its id is %016" PRIx64 ". %s", conflict->host,
			 detail.data);
	if (stops(conflict) && conflict->config.standing == HOST_WARNS)
		appendStringInfoString(&hint,
							   " Set redlock.on_disagreement to refuse on that host, or stop that "
							   "host: with warn, that host goes on to take locks.");
	else if (stops(conflict) && conflict->config.standing == HOST_HOLDS)
		appendStringInfoString(
			&hint, " Wait until that host has released its locks: that host takes no new locks.");
	strlcpy(words->hint, hint.data, sizeof(words->hint));
	pfree(detail.data);
	pfree(hint.data);
}
