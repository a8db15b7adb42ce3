/*
 * registry.c
 *		This host among the others; see registry.h.
 */
#include "postgres.h"

#include <inttypes.h>

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "broker/members.h"
#include "broker/registry.h"
#include "protocol/hosts.h"
#include "protocol/standing.h"
#include "protocol/steps.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/lease.h"
#include "shared/node_status.h"
#include "shared/text.h"

#define BEAT_US INT64CONST(10000000)

/* ... while there is a dispute, or may be one. */
#define BEAT_IN_DISPUTE_US INT64CONST(3000000)

/* Configurations that one beat compares with this host's: all takes milliseconds. */
#define COMPARED_MAX 32

/* So long after the start of a node, or after it was out of reach, all hosts have told it. */
#define ALL_TELL_US (LUA_HOST_SILENT_MS * INT64CONST(1000))

/*
 * What a host wrote so long before what it wrote elsewhere was its configuration, at a node
 * that it has left, or can't reach.
 */
#define OUTDATED_US INT64CONST(1000000)

/* No sooner after the one before, whatever has changed, */
#define BEAT_LEAST_US INT64CONST(1000000)

/* ... or while this host does not know yet whether it may take locks. */
#define BEAT_UNKNOWN_US INT64CONST(20000)

/*
 * A dispute is told when all beats have found it for so long.  A host that has noticed a
 * change of a node, or of its own settings, says so within BEAT_LEAST_US.
 */
#define DISPUTE_US INT64CONST(2500000)

/* A host that is dead is told of for so long. */
#define HOST_LIVES_US (LUA_HOST_LIVES_MS * INT64CONST(1000))

/* How often a host that is apart is named in the log, where another is again and again. */
#define NAME_APART_US INT64CONST(10000000)

/*
 * What nodes say that lie.  A page has one host at least, or took away what is none; hosts have
 * few configurations, or small ones.
 */
#define PAGES_MAX HOST_LIST_MAX
#define CONFIGS_SIZE_MAX ((Size) 64 * 1024 * 1024)

/* How long the list that sessions were told of stays in shared memory. */
#define KEEP_LIST_US INT64CONST(10000000)

/* What is asked of a node. */
enum
{
	CALL_LOAD = 1,
	CALL_BEAT,
	CALL_LEAVE,
	CALL_LIST,
	CALL_MARK
};

/* What a node told at its last beat. */
typedef struct Told
{
	char address[HOSTS_ADDRESS_MAX + 1]; /* the node's */
	char sha[SCRIPT_SHA_SIZE];           /* of the script; empty: it may not have it */
	bool out;                            /* it is being asked */
	bool loaded;                         /* ... and has got the script for that */
	bool complained;                     /* the log says that it does not keep the list */
	bool more;                           /* it has left something out */
	int64 asked_us;                      /* last, */
	int64 beat_us;                       /* ... and what it told answers what was asked then, */
	int64 at_us;                         /* ... and was heard then; 0: it has not told anything */
	int64 new_us;                        /* it did not know this host then, as it should have */
	uint64 said;                         /* Standing.number, when it was asked, */
	uint64 answered;                     /* ... and of what it answered, be it with an error */
	int64 answered_us;                   /* ... which was sent then */
	bool has_mark;                       /* marks[] has its mark, or tells that there is none */
	StepMark marking;                    /* what it is told of that; version 0: nothing */
	int64 marked;                        /* version of the mark that it has taken from this host */
	uint64 namesake;                     /* another host with this one's name; 0: none */
	char *records;
	size_t len;
} Told;

/* Another configuration with which this host could get a lock that is held there. */
typedef struct Dispute
{
	HostConfig config;
	HostConfig own;  /* this host's when it was found */
	HostFacts facts; /* of a host that has it */
	uint64 host;
	HostsDifference difference;
	int64 sure_us;   /* the last beat found it by what was known, */
	int64 found_us;  /* ... or there was a doubt of the contrary, */
	int64 agreed_us; /* ... or the host agrees */
	int64 seen_us;   /* the host wrote what it says then */
	int64 since_us;  /* all beats since then have found it, or may have missed it */
	bool told;
	uint64 words; /* hash of those that the log has */
} Dispute;

/* The list that sessions have asked for, while it is being read. */
typedef struct Reading
{
	uint64 number; /* 0: nothing is being read */
	core_mask read;
	core_mask out;
	core_mask later; /* than the first page */
	int pages[CORE_NODES_MAX];
	uint64 last[CORE_NODES_MAX]; /* the host that a node told of last: they come in order */
	Size kept;                   /* bytes of configurations */
	bool too_long;
	MemoryContext context; /* of what follows */
	HTAB *hosts;           /* ReadHost */
	HTAB *configs;         /* ReadConfig */
} Reading;

typedef struct ReadConfig
{
	uint64 hash; /* key; of its text, or one more if that is another's */
	char *text;
	size_t len;
	uint32 at; /* in the segment */
} ReadConfig;

typedef struct ReadHost
{
	uint64 id; /* key */
	int64 seen_us;
	core_mask known_to;
	char facts[LUA_FACTS_MAX];
	size_t facts_len;
	ReadConfig *config; /* NULL: none */
} ReadHost;

static Told *told; /* of each node */
static int64 beat_at_us = 0;
static int64 beat_us; /* the last */
static core_mask beat_out;
static bool changed = false;
static bool begun = false; /* each node was asked, or can't be */
static int64 looked_us;    /* for disputes */
static bool left = false;

static HostConfig own;
static char own_text[LUA_CONFIG_MAX];
static size_t own_len;
static char facts_text[LUA_FACTS_MAX];
static size_t facts_len;

static Dispute *disputes; /* LUA_CONFIGS_MAX */
static int dispute_count = 0;
static bool in_dispute = false; /* as sessions know */

/* Of a dispute that an earlier broker told of, as long as it is neither found nor over. */
static uint64 inherited = 0; /* the host */
static int64 inherited_us;

/* Of the last look. */
static bool inherited_agrees; /* surely */
static bool in_doubt;         /* whether some host does */

/* While a list is to be left: this host's configuration then, and a host that is apart from it. */
static HostConfig own_then;
static HostConfig own_announced; /* ... and now, with that step */
static HostFacts apart;
static bool apart_by_lists; /* ... or only by leases that it holds */
static uint64 apart_id;     /* 0: none */
static HostFacts rival;
static uint64 rival_id; /* has announced another step; 0: none */
static HostStep announced = HOST_STAYS;
static int64 announced_us;

/* What nodes tell of lists that were replaced. */
static StepMarks marks;
static bool is_left = false;      /* those in force were, as marks say */
static core_mask those_told;      /* nodes that have told of others, or can't */
static bool step_in_way;          /* another host is about to take a step away from this one */
static core_mask marked_list = 0; /* the nodes have their marks for it, or need none */

static struct
{
	uint64 host;
	int64 at_us;
} seen[CORE_NODES_MAX * LUA_CONFIGS_MAX]; /* hosts that a beat told of */
static int seen_count;
static uint64 compared[COMPARED_MAX]; /* hashes of configurations, by this beat */
static int compared_count;

static Reading reading;
static uint64 answered = 0;
static dsm_segment *list = NULL;
static int64 drop_list_us;

static void beat(int64 now_us);
static bool still_counts(const RedisNode *node);
static void set_told(int slot, bool has);
static void meet(const RedisNode *node);
static void describe_self(void);
static void describe_config(HostConfig *config, core_lists lists);
static void describe_held(HostConfig *config, core_lists lists);
static bool find_held(core_lists held[HOSTS_HELD_MAX]);
static bool takes_locks(void);
static bool is_asked_or_held(const core_lease *lease);
static bool is_of_held(const core_lists held[HOSTS_HELD_MAX], int node);
static void describe_node(HostNode *node, const RedisNode *from, core_lists lists);
static void send_beat(RedisNode *node, int64 now_us);
static void call(RedisNode *node, int what, int argc, const char **argv, const size_t *argvlen,
				 int64 now_us);
static void hear_load(RedisNode *node, const redisReply *reply, int64 now_us);
static void hear_beat(RedisNode *node, const redisReply *reply, int64 now_us);
static bool is_answer(const redisReply *reply, size_t elements);
static uint64 read_id(const redisReply *text);
static bool lacks_script(RedisNode *node, const redisReply *reply);
static void complain(RedisNode *node, const redisReply *reply);
static void end_beat(RedisNode *node, int64 now_us);
static void find_disputes(int64 now_us);
static void pass_on_inherited(bool complete);
static bool is_found(void);
static void log_end(const char *name);
static void look_at_standing(int64 now_us);
static void let_vote(void);
static void look_at_marks(void);
static bool is_answered(int64 *asked_us);
static bool is_ripe(const Dispute *dispute);
static bool has_leases(int64 now_us);
static int describe_others(StandingOther *others, bool all);
static void find_other(const Dispute *dispute, StandingOther *other);
static bool takes_or_holds(const Dispute *dispute);
static bool stops(const Dispute *dispute);
static int first_stopping(void);
static bool all_have_told(int64 now_us);
static bool has_told(int node, int64 now_us);
static bool has_told_all(int node);
static bool read_all_told(int64 now_us, void (*read)(const HostRecord *record, int64 seen_us));
static bool read_told(int node, int64 now_us,
					  void (*read)(const HostRecord *record, int64 seen_us));
static void see(const HostRecord *record, int64 seen_us);
static bool was_seen(uint64 host);
static bool is_outdated(const HostRecord *record, int64 seen_us);
static bool read_other(const HostRecord *record, int64 seen_us, HostFacts *facts,
					   HostConfig *theirs);
static void look_at(const HostRecord *record, int64 seen_us);
static bool have_told(core_lists left, int64 since_us, int64 now_us);
static const StepMarks *known_marks(void);
static int sort_nodes(core_mask nodes, int *slot);
static void describe_mark(StepMark *mark, core_mask nodes);
static bool have_answered(core_lists lists, int64 since_us);
static uint64 hash_of_list(core_mask nodes);
static uint64 hash_of_address(int node);
static bool is_marked(core_lists to, core_lists asked);
static void mark_nodes(core_lists to, core_mask at, int64 now_us);
static void hear_mark(RedisNode *node, const redisReply *reply);
static void mark_present_list(int64 now_us);
static void complain_rival(int64 since_us);
static void tell_namesake(int64 now_us);
static void explain_left(HostDispute *words);
static void tell_left(void);
static void complain_untold(int64 since_us, int64 now_us);
static void complain_apart(int64 since_us, int64 now_us);
static void look_apart(const HostRecord *record, int64 seen_us);
static int64 leases_outlive_us(void);
static void complain_forgotten(int64 since_us);
static bool surely_agrees(const HostConfig *theirs);
static int find_dispute(uint64 host, const HostConfig *config);
static bool was_compared(const HostRecord *record, int64 seen_us);
static void tell(Dispute *dispute);
static void publish(void);
static void explain(const Dispute *dispute, HostDispute *words);
static void begin_reading(int64 now_us);
static void ask_page(RedisNode *node, const char *after, size_t len, int64 now_us);
static void hear_page(RedisNode *node, const redisReply *reply, int64 now_us);
static bool read_page(RedisNode *node, const redisReply *records, int64 now_us);
static ReadConfig *keep_config(const HostRecord *record);
static void end_reading(int64 now_us);
static dsm_segment *make_list(int64 now_us);
static uint32 put_text(HostList *to, uint32 *at, const char *text, size_t len);
static void drop_list(void);

void
registry_init(void)
{
	HostDispute before;

	told = MemoryContextAllocZero(TopMemoryContext, CORE_NODES_MAX * sizeof(Told));
	disputes = MemoryContextAllocZero(TopMemoryContext, LUA_CONFIGS_MAX * sizeof(Dispute));
	host_list_dispute(&before);
	in_dispute = before.name[0] != '\0';
	inherited = in_dispute ? before.host : 0;
	inherited_us = redlock_clock_us();
	is_left = in_dispute && before.left;
}

/* A node that is connected to once more tells at once; see also still_counts. */
void
registry_changed(void)
{
	changed = true;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!node_can_send(node_at(i)))
		{
			told[i].answered = 0;
			continue;
		}
		if ((those_told & CORE_BIT(i)) && !still_counts(node_at(i)))
			set_told(i, false);
		if ((members() & CORE_BIT(i)) && told[i].answered == 0 && !told[i].out)
			beat_at_us = Min(beat_at_us, beat_us + BEAT_UNKNOWN_US);
	}
}

/*
 * Does the last word of a node that was away for a moment allow a vote?  The node has this host in
 * its list for LUA_HOST_LIVES_MS, so a newcomer there finds this host.  A request that has met a
 * dead connection asks again by a new connection, and must not wait for the list.  A node that has
 * restarted and votes is durable, and has kept its list.
 */
static bool
still_counts(const RedisNode *node)
{
	return redlock_clock_us() - told[node->slot].answered_us <
		   LUA_HOST_SILENT_MS * INT64CONST(1000);
}

int64
registry_on_time(int64 now_us)
{
	if (changed)
		beat_at_us =
			Min(beat_at_us, beat_us + (registry_may_ask(now_us) ? BEAT_LEAST_US : BEAT_UNKNOWN_US));
	if (!left && now_us >= beat_at_us)
		beat(now_us);
	if (begun && reading.number == 0 && host_list_asked() > answered)
		begin_reading(now_us);
	if (list != NULL && now_us >= drop_list_us)
		drop_list();
	if (left)
		return PG_INT64_MAX;
	return list != NULL ? Min(beat_at_us, drop_list_us) : beat_at_us;
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
		if (node_can_send(node_at(i)) && told[i].sha[0] != '\0')
		{
			call(node_at(i), CALL_LEAVE, 0, NULL, NULL, now_us);
			done = false;
		}
	left = true;
	return done;
}

/*
 * Beats
 */

/* One that has not been answered is not sent again: the node fails, or answers. */
static void
beat(int64 now_us)
{
	changed = false;
	beat_us = now_us;
	beat_at_us = now_us + (dispute_count > 0 ? BEAT_IN_DISPUTE_US : BEAT_US);
	describe_self();
	describe_config(&own, members_lists());
	own_len = hosts_write_config(&own, own_text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		RedisNode *node = node_at(i);

		if (!(members() & CORE_BIT(i)) || !node_can_send(node) || told[i].out)
			continue;
		if (strcmp(told[i].address, node->url.address) != 0)
			meet(node);
		told[i].out = true;
		told[i].loaded = false;
		beat_out |= CORE_BIT(i);
		send_beat(node, now_us);
	}
	if (beat_out == 0)
		find_disputes(now_us);
}

/* What was told in this place was so by another node. */
/* For votes, and for people. */
static void
set_told(int slot, bool has)
{
	if (has)
		those_told |= CORE_BIT(slot);
	else
		those_told &= ~CORE_BIT(slot);
	pg_atomic_write_u32(&node_status[slot].told_of_hosts, has);
}

static void
meet(const RedisNode *node)
{
	Told *from = &told[node->slot];

	if (from->records != NULL)
		pfree(from->records);
	memset(from, 0, sizeof(*from));
	set_told(node->slot, false);
	memset(&marks.mark[node->slot], 0, sizeof(marks.mark[0]));
	strlcpy(from->address, node->url.address, sizeof(from->address));
}

static void
describe_self(void)
{
	HostFacts facts = {.version = REDLOCK_VERSION, .postgres = PG_VERSION};
	int releasing;
	int unsettled;
	int64 kept_until_us;

	strlcpy(facts.name, host_list_own_name(), sizeof(facts.name));
	lease_usage(&facts.leases, &releasing);
	facts.settled = lease_unsettled(&unsettled, &kept_until_us) && unsettled == 0 &&
					kept_until_us == 0 &&
					core_has_quorum(members_lists(), nodes_that(node_is_on_duty));
	facts.up_for_s = host_list_up_for_us() / 1000000;
	if (lease_table->standing.begun)
		facts.takes_for_s = (redlock_clock_us() - lease_table->standing.begun_us) / 1000000;
	facts_len = hosts_write_facts(&facts, facts_text);
}

/* This host's, with these lists. */
static void
describe_config(HostConfig *config, core_lists lists)
{
	memset(config, 0, sizeof(*config));
	strlcpy(config->prefix, redlock_key_prefix, sizeof(config->prefix));
	config->max_ttl_ms = redlock_max_ttl_ms;
	config->standing = lease_table->standing.says;
	config->step = announced;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lists.now | lists.next) & CORE_BIT(i))
			describe_node(&config->node[config->count++], node_at(i), lists);
	describe_held(config, lists);
}

/*
 * While leases are not held by the lists in force: also the lists by which they are, and
 * the nodes of these that were left.  While this host takes no locks: those by which it has
 * some, whichever they are, as others disregard the lists in force then.
 */
static void
describe_held(HostConfig *config, core_lists lists)
{
	core_lists held[HOSTS_HELD_MAX] = {0};
	int slot_of[HOSTS_NODES_MAX];
	int count = 0;
	int unsettled;
	int64 kept_until_us;
	bool all_settled = lease_unsettled(&unsettled, &kept_until_us) && unsettled == 0;

	/* keys that are kept were granted when the first list was the only one */
	if (kept_until_us != 0 && lists.next != 0)
		held[0].now = lists.now;
	if ((all_settled && held[0].now == 0 && takes_locks()) || !find_held(held))
		return;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((lists.now | lists.next) & CORE_BIT(i))
			slot_of[count++] = i;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (!((lists.now | lists.next) & CORE_BIT(i)) && is_of_held(held, i))
		{
			describe_node(&config->node[config->count++], node_at(i), lists);
			slot_of[count++] = i;
		}
	for (int i = 0; i < config->count; i++)
		for (int list = 0; list < HOSTS_HELD_MAX; list++)
		{
			config->node[i].held |= (held[list].now >> slot_of[i] & 1) << 2 * list;
			config->node[i].held |= (held[list].next >> slot_of[i] & 1) << (2 * list + 1);
		}
}

/* More than the first, if that is given.  False: all leases are held by the lists in force. */
static bool
find_held(core_lists held[HOSTS_HELD_MAX])
{
	int count = held[0].now != 0;

	for (int i = 0; i < lease_table->slots; i++)
	{
		const core_lease *lease = &lease_at(i)->core;
		core_lists lists = lease->lists;
		int at = 0;

		if (!lease_at(i)->in_use || (settling_has(&lease_table->settling, lease) &&
									 (takes_locks() || !is_asked_or_held(lease))))
			continue;
		if (!lease->settled)
			lists.next = 0; /* that list does not have it yet */
		while (at < count && (held[at].now != lists.now || held[at].next != lists.next))
			at++;
		if (at == HOSTS_HELD_MAX)
			/* too many: one node that each quorum would have to have stands for them */
			held[HOSTS_HELD_MAX - 1] = (core_lists){held[0].now & -held[0].now, 0};
		else if (at == count)
			held[count++] = lists;
	}
	return count > 0;
}

/* ... as its entries say */
static bool
takes_locks(void)
{
	HostStanding says = lease_table->standing.says;

	return says == HOST_TAKES || says == HOST_HOLDS || says == HOST_WARNS;
}

static bool
is_asked_or_held(const core_lease *lease)
{
	return lease->state == CORE_ASKING || lease->state == CORE_BUSY || lease->state == CORE_HELD;
}

static bool
is_of_held(const core_lists held[HOSTS_HELD_MAX], int node)
{
	for (int i = 0; i < HOSTS_HELD_MAX; i++)
		if ((held[i].now | held[i].next) & CORE_BIT(node))
			return true;
	return false;
}

static void
describe_node(HostNode *node, const RedisNode *from, core_lists lists)
{
	const NodeUrl *url = &from->url;
	char db[16] = "";
	size_t len = strlen(url->address);

	/* the address ends with its database, if that is not 0 */
	if (url->db != 0)
		len -= snprintf(db, sizeof(db), url->is_unix ? "?db=%d" : "/%d", url->db);
	text_to_printable(node->address, sizeof(node->address), url->address, len);
	node->db = url->db;
	node->now = (lists.now & CORE_BIT(from->slot)) != 0;
	node->next = (lists.next & CORE_BIT(from->slot)) != 0;
	if (node_is_on_duty(from))
	{
		hosts_set_id(node->process, from->guard->run_id);
		node->started_us = from->guard->started_us;
		node->heard_us = from->heard_us;
	}
}

static void
send_beat(RedisNode *node, int64 now_us)
{
	const char *argv[] = {redlock_key_prefix, facts_text, own_text};
	size_t len[] = {strlen(redlock_key_prefix), facts_len, own_len};

	if (told[node->slot].sha[0] == '\0')
		node_call(node, CALL_LOAD, 3, (const char *[]){"SCRIPT", "LOAD", lua_hosts_script}, NULL,
				  now_us);
	else
	{
		told[node->slot].asked_us = now_us;
		told[node->slot].said = lease_table->standing.number;
		call(node, CALL_BEAT, lengthof(argv), argv, len, now_us);
	}
}

/* The script, with the name of a command, this host's id, and more. */
static void
call(RedisNode *node, int what, int argc, const char **argv, const size_t *argvlen, int64 now_us)
{
	static const char *const names[] = {
		[CALL_BEAT] = "beat", [CALL_LEAVE] = "leave", [CALL_LIST] = "list", [CALL_MARK] = "mark"};
	char id[LOCK_HOST_DIGITS + 1];
	const char *all[8] = {"EVALSHA", told[node->slot].sha, "0", names[what]};
	size_t len[lengthof(all)];
	int count = 4;

	if (what == CALL_LIST)
	{
		/* rare, and not to be repeated for a node that has restarted and lacks the script */
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

static void
hear_load(RedisNode *node, const redisReply *reply, int64 now_us)
{
	if (reply != NULL && reply->type == REDIS_REPLY_STRING && reply->len == SCRIPT_SHA_SIZE - 1)
	{
		strlcpy(told[node->slot].sha, reply->str, SCRIPT_SHA_SIZE);
		told[node->slot].loaded = true;
		if (node_can_send(node))
		{
			send_beat(node, now_us);
			return;
		}
	}
	else if (reply != NULL)
	{
		complain(node, reply);
		told[node->slot].answered = lease_table->standing.number; /* it never will */
		told[node->slot].answered_us = now_us;
	}
	end_beat(node, now_us);
}

static void
hear_beat(RedisNode *node, const redisReply *reply, int64 now_us)
{
	Told *from = &told[node->slot];

	if (reply != NULL && lacks_script(node, reply))
	{
		/* the node has restarted: it is asked again at once, see still_counts */
		if (!from->loaded && node_can_send(node))
		{
			send_beat(node, now_us);
			return;
		}
		changed = true; /* soon again */
	}
	else if (reply != NULL &&
			 !(is_answer(reply, 4) && reply->element[2]->type == REDIS_REPLY_STRING &&
			   reply->element[3]->type == REDIS_REPLY_STRING))
	{
		complain(node, reply);
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
		(void) steps_read_mark(&marks.mark[node->slot], reply->element[2]->str,
							   reply->element[2]->len);
		from->namesake = read_id(reply->element[3]);
	}
	end_beat(node, now_us);
}

static uint64
read_id(const redisReply *text)
{
	const char *at = text->str;
	uint64 id;

	return hosts_take_hex(&at, text->str + text->len + 1, &id) ? id : 0;
}

static bool
is_answer(const redisReply *reply, size_t elements)
{
	return reply->type == REDIS_REPLY_ARRAY && reply->elements == elements &&
		   reply->element[0]->type == REDIS_REPLY_STRING &&
		   reply->element[1]->type == REDIS_REPLY_STRING;
}

static bool
lacks_script(RedisNode *node, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ERROR || strncmp(reply->str, "NOSCRIPT", 8) != 0)
		return false;
	told[node->slot].sha[0] = '\0';
	return true;
}

static void
complain(RedisNode *node, const redisReply *reply)
{
	char error[SCRIPT_TEXT_MAX + 1] = "its answer is none of that script";

	if (told[node->slot].complained)
		return;
	told[node->slot].complained = true;
	if (reply->type == REDIS_REPLY_ERROR)
		text_of_node(error, sizeof(error), reply->str, reply->len);
	ereport(LOG, (errmsg("redlock node %s does not keep the list of hosts: %s", node->url.address,
						 error),
				  errdetail("Hosts that disagree are not told so by this node.")));
}

static void
end_beat(RedisNode *node, int64 now_us)
{
	told[node->slot].out = false;
	if (beat_out == 0)
		return;
	beat_out &= ~CORE_BIT(node->slot);
	if (beat_out == 0)
		find_disputes(now_us);
}

/*
 * Disputes
 */

static void
find_disputes(int64 now_us)
{
	bool complete;
	int kept = 0;

	begun = true;
	looked_us = now_us;
	inherited_agrees = false;
	in_doubt = false;
	step_in_way = false;
	describe_config(&own, members_lists()); /* what was heard of its nodes meanwhile */
	complete = !read_all_told(now_us, look_at) && all_have_told(now_us);
	for (int i = 0; i < dispute_count; i++)
	{
		Dispute *dispute = &disputes[i];

		/* a node may have left it out, or be the only one that knows of it, but not for ever */
		if (dispute->found_us != looked_us &&
			(complete || !dispute->told || dispute->agreed_us == looked_us ||
			 now_us - dispute->sure_us > HOST_LIVES_US))
		{
			if (dispute->told)
				log_end(dispute->facts.name);
			continue;
		}
		if (kept != i)
			disputes[kept] = *dispute;
		kept++;
	}
	dispute_count = kept;
	look_at_standing(now_us);
	for (int i = 0; i < dispute_count; i++)
		if (is_ripe(&disputes[i]) && !disputes[i].told)
			tell(&disputes[i]);
	pass_on_inherited(complete);
	publish();
	let_vote();
	if (in_dispute || dispute_count > 0 || !registry_may_ask(now_us))
		beat_at_us = Min(beat_at_us, beat_us + BEAT_IN_DISPUTE_US);
	mark_present_list(now_us);
	tell_namesake(now_us);
}

/* Takes the next step to locks, or from them, if the nodes have answered the last one. */
static void
look_at_standing(int64 now_us)
{
	static StandingOther others[LUA_CONFIGS_MAX + 1];
	Standing *standing = &lease_table->standing;
	uint64 number = standing->number;
	int64 asked_us;
	bool had_begun = standing->begun;

	if (!is_answered(&asked_us) || (!standing->begun && (step_in_way || inherited != 0)))
	{
		if (!standing->begun)
			beat_at_us = Min(beat_at_us, now_us + BEAT_LEAST_US);
		return;
	}
	(void) standing_has_lapsed(standing, now_us);
	look_at_marks();
	standing_look(standing, lease_table->host_id, has_leases(now_us), others,
				  describe_others(others, !standing->begun), asked_us, now_us);
	if (standing->number != number)
		beat_at_us = now_us;
	else if (standing->begun && !had_begun)
		changed = true;
}

/*
 * Lets nodes vote whose answers were looked at.  With a node that is back, this host may come into
 * a dispute: the node gets no vote before the dispute is ripe, since only then this host stops.
 */
static void
let_vote(void)
{
	for (int i = 0; i < dispute_count; i++)
		if (lease_table->standing.begun && !is_ripe(&disputes[i]) && stops(&disputes[i]))
			return;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told[i].answered != 0)
			set_told(i, true);
}

static void
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

/*
 * Has each node that is there answered what this host says now, and a quorum of them?  asked_us:
 * the first was asked then.
 */
static bool
is_answered(int64 *asked_us)
{
	core_mask those = 0;

	*asked_us = redlock_clock_us();

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members() & CORE_BIT(i)))
			continue;
		if (told[i].answered == lease_table->standing.number &&
			strcmp(told[i].address, node_at(i)->url.address) == 0 &&
			redlock_clock_us() - told[i].answered_us <= STANDING_LAPSE_US)
		{
			those |= CORE_BIT(i);
			*asked_us = Min(*asked_us, told[i].answered_us);
		}
		else if (node_can_send(node_at(i)))
			return false;
	}
	return core_has_quorum(members_lists(), those);
}

/* A dispute that is there for a moment is none, where this host takes locks. */
static bool
is_ripe(const Dispute *dispute)
{
	return dispute->told ||
		   (dispute->sure_us == looked_us && looked_us - dispute->since_us >= DISPUTE_US);
}

/* ... or asks for some, or has left a key to be kept. */
static bool
has_leases(int64 now_us)
{
	for (int i = 0; i < lease_table->slots; i++)
		if (lease_at(i)->in_use && is_asked_or_held(&lease_at(i)->core))
			return true;
	return lease_table->settling.kept_until_us > now_us;
}

/* Returns how many. */
static int
describe_others(StandingOther *others, bool all)
{
	int count = 0;

	for (int i = 0; i < dispute_count; i++)
		if (all || is_ripe(&disputes[i]))
			find_other(&disputes[i], &others[count++]);
	if (is_left)
		others[count++] = (StandingOther){
			.says = HOST_TAKES, .takes_for_us = PG_INT64_MAX / 4}; /* whoever left the nodes */
	return count;
}

static void
find_other(const Dispute *dispute, StandingOther *other)
{
	bool differs = (dispute->difference.kinds & ~HOSTS_HELD) != 0;

	other->id = dispute->host;
	other->says = differs ? dispute->config.standing : HOST_REFUSES;
	other->takes_for_us =
		dispute->facts.takes_for_s * INT64CONST(1000000) + looked_us - dispute->seen_us;
	other->holds = (dispute->difference.kinds & HOSTS_HELD) != 0;
}

static bool
takes_or_holds(const Dispute *dispute)
{
	StandingOther other;

	find_other(dispute, &other);
	return other.holds || (other.says != HOST_ASKS && other.says != HOST_REFUSES);
}

static bool
stops(const Dispute *dispute)
{
	StandingOther other;

	find_other(dispute, &other);
	return standing_stops(&lease_table->standing, &other);
}

bool
registry_may_ask(int64 now_us)
{
	return standing_may_take(&lease_table->standing, now_us) &&
		   (!in_dispute || lease_table->standing.says == HOST_WARNS);
}

core_mask
registry_told(void)
{
	return those_told;
}

bool
registry_is_stopped(void)
{
	return in_dispute;
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
		settings.node[count].process[0] = '\0';
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
	is_left = false;
	beat_at_us = now_us;
}

/*
 * It holds until this broker has found out by itself: in its place what it tells, or nothing.
 * Of hosts with the same configuration nodes name but one, and another one is not told of at once.
 */
static void
pass_on_inherited(bool complete)
{
	bool replaced = first_stopping() < dispute_count;
	bool outlived = looked_us - inherited_us > HOST_LIVES_US;
	bool over =
		complete && dispute_count == 0 && !in_doubt && (inherited_agrees || !was_seen(inherited));
	HostDispute words;

	if (inherited == 0)
		return;
	if (!replaced && !over && (!outlived || is_found()))
		return;
	if (!replaced || inherited_agrees)
	{
		host_list_dispute(&words);
		log_end(words.name);
	}
	inherited = 0;
}

/* Some dispute is there for sure, be it for a moment. */
static bool
is_found(void)
{
	for (int i = 0; i < dispute_count; i++)
		if (disputes[i].sure_us == looked_us)
			return true;
	return false;
}

static void
log_end(const char *name)
{
	ereport(LOG, (errmsg("redlock host \"%s\" agrees with this one again, or is gone", name)));
}

/*
 * In this broker's time, and not long ago, and what hosts have told since they restarted.  Else a
 * host may be there of which nothing was heard.
 */
static bool
all_have_told(int64 now_us)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && !(has_told(i, now_us) && has_told_all(i)))
			return false;
	return true;
}

static bool
has_told(int node, int64 now_us)
{
	return told[node].at_us != 0 && now_us - told[node].at_us <= HOST_LIVES_US &&
		   strcmp(told[node].address, node_at(node)->url.address) == 0;
}

/* The hosts that are alive have told it of themselves since it started, or could not be reached. */
static bool
has_told_all(int node)
{
	return told[node].at_us - Max(node_at(node)->guard->started_us, told[node].new_us) >
		   ALL_TELL_US;
}

/* Returns whether there is more than what was read. */
static bool
read_all_told(int64 now_us, void (*read)(const HostRecord *record, int64 seen_us))
{
	bool more = false;

	compared_count = seen_count = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		more = read_told(i, now_us, see) || more;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		(void) read_told(i, now_us, read);
	return more || compared_count == COMPARED_MAX;
}

/* Returns whether there is more than the node told. */
static bool
read_told(int node, int64 now_us, void (*read)(const HostRecord *record, int64 seen_us))
{
	const Told *from = &told[node];
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

/* Another host's, with this prefix and a configuration that was not yet compared? */
static bool
read_other(const HostRecord *record, int64 seen_us, HostFacts *facts, HostConfig *theirs)
{
	return record->id != lease_table->host_id && record->config != NULL &&
		   !is_outdated(record, seen_us) &&
		   hosts_read_facts(facts, record->facts, record->facts_len) &&
		   hosts_read_config(theirs, record->config, record->config_len) &&
		   strcmp(theirs->prefix, own.prefix) == 0 &&
		   (!was_compared(record, seen_us) || record->id == inherited);
}

/* Is that a configuration by which both hosts could get one lock? */
static void
look_at(const HostRecord *record, int64 seen_us)
{
	static HostConfig theirs;
	HostsDifference difference;
	HostFacts facts;
	Dispute *dispute;
	bool same;
	int i;

	if (!read_other(record, seen_us, &facts, &theirs))
		return;
	hosts_compare(&own, &theirs, seen_us, &difference);
	if (theirs.step != HOST_STAYS)
	{
		static HostConfig then;
		HostsDifference apart_then;

		then = theirs;
		hosts_take_step(&then);
		hosts_compare(&own, &then, HOSTS_AT_ANY_TIME, &apart_then);
		step_in_way = step_in_way || (apart_then.kinds & HOSTS_NODES) != 0;
	}
	i = find_dispute(record->id, &theirs);
	if (i == LUA_CONFIGS_MAX)
		return;
	dispute = &disputes[i];
	same = i < dispute_count && hosts_say_the_same(&dispute->config, &theirs);
	if (difference.kinds == 0)
	{
		bool surely = surely_agrees(&theirs);

		inherited_agrees = inherited_agrees || (surely && record->id == inherited);
		in_doubt = in_doubt || !surely;
		if (i == dispute_count)
			return;
		if (same && !surely && looked_us - dispute->sure_us <= HOST_LIVES_US)
			dispute->found_us = looked_us;
		else
			dispute->agreed_us = looked_us;
		return;
	}
	if (i < dispute_count && !(same && hosts_say_the_same(&dispute->own, &own)))
		dispute->told = false; /* not with these words */
	if (i == dispute_count)
	{
		memset(dispute, 0, sizeof(*dispute));
		dispute->since_us = looked_us;
		dispute_count++;
	}
	if (record->id == inherited)
		dispute->since_us = Min(dispute->since_us, looked_us - DISPUTE_US);
	dispute->own = own;
	dispute->config = theirs;
	dispute->sure_us = looked_us;
	dispute->seen_us = seen_us;
	dispute->facts = facts;
	dispute->host = record->id;
	dispute->difference = difference;
	dispute->found_us = looked_us;
}

/*
 * Not by a node that one of them can't send to just now, or that has restarted, as the other may
 * not have written since, or that this host has had for a moment.
 */
static bool
surely_agrees(const HostConfig *theirs)
{
	HostsDifference difference;

	hosts_compare(&own, theirs, HOSTS_AT_ANY_TIME, &difference);
	return difference.kinds == 0 && difference.all_known;
}

/* With hosts of this configuration; or with this one, which had another.  Else a new one. */
static int
find_dispute(uint64 host, const HostConfig *config)
{
	for (int i = 0; i < dispute_count; i++)
		if (hosts_say_the_same(&disputes[i].config, config))
			return i;
	for (int i = 0; i < dispute_count; i++)
		if (disputes[i].host == host && disputes[i].found_us != looked_us)
			return i;
	return dispute_count;
}

/* With the same nodes of ours known, by what another node told; or there were too many. */
static bool
was_compared(const HostRecord *record, int64 seen_us)
{
	uint64 hash = hash_bytes_extended((const unsigned char *) record->config, record->config_len,
									  hosts_in_doubt(&own, seen_us));

	for (int i = 0; i < compared_count; i++)
		if (compared[i] == hash)
			return true;
	if (compared_count == COMPARED_MAX)
		return true;
	compared[compared_count++] = hash;
	return false;
}

bool
registry_may_leave(core_lists to, bool back, int64 since_us, int64 now_us)
{
	static int64 in_doubt_us = 0; /* until then one was apart, or some had not told */
	core_mask on_duty = nodes_that(node_is_on_duty);
	core_lists left = {0};
	core_lists asked; /* whose nodes must tell */
	bool all_told;
	StepView view = {0};

	left.now = back ? members_lists().next : members_lists().now;
	asked = back && !core_has_quorum(left, on_duty) ? to : members_lists();
	describe_config(&own_then, to);
	describe_config(&own_announced, members_lists());
	own_announced.step = back ? HOST_GOES_BACK : HOST_GOES_ON;
	apart_id = rival_id = 0;
	/* an unknown node might be any host's */
	all_told = !read_all_told(now_us, look_apart) && core_has_quorum(asked, on_duty) &&
			   have_told(asked.next != 0 ? left : to, since_us, now_us);
	if (!steps_may_follow(to, hash_of_list(to.now), left, hash_of_list(left.now), asked.next != 0,
						  known_marks()))
		all_told = false; /* a host may have others alone */
	if (apart_id != 0 || !all_told)
		in_doubt_us = now_us;
	if (apart_id != 0)
		complain_apart(since_us, now_us);
	else if (!all_told)
		complain_untold(since_us, now_us);
	else if (asked.next != 0 && now_us - Max(since_us, in_doubt_us) < leases_outlive_us())
		complain_forgotten(since_us);
	else
		view.clear = true;
	view.announced = announced == own_announced.step;
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
			announced = own_announced.step;
			announced_us = now_us;
			beat_at_us = now_us;
			return false;
		case STEP_WITHDRAW:
			registry_stay();
			return false;
		case STEP_MARK:
			mark_nodes(to, members(), now_us);
			return false;
		case STEP_TAKE:
			announced = HOST_STAYS;
			return true;
	}
	return false;
}

void
registry_stay(void)
{
	changed = changed || announced != HOST_STAYS;
	announced = HOST_STAYS;
}

/* Majorities of these lists, asked after that. */
static bool
have_answered(core_lists lists, int64 since_us)
{
	core_mask those = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told[i].at_us != 0 && told[i].beat_us >= since_us &&
			strcmp(told[i].address, node_at(i)->url.address) == 0)
			those |= CORE_BIT(i);
	return core_has_quorum(lists, those);
}

/*
 * Marks
 */

static const StepMarks *
known_marks(void)
{
	marks.told = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(members() & CORE_BIT(i)) || !told[i].has_mark ||
			strcmp(told[i].address, node_at(i)->url.address) != 0)
			continue;
		marks.told |= CORE_BIT(i);
		marks.address[i] = hash_of_address(i);
	}
	marks.own = lease_table->own_mark;
	if (members_lists().next == 0)
		steps_remember(&marks, members_lists().now, hash_of_list(members_lists().now));
	lease_table->own_mark = marks.own;
	return &marks;
}

static uint64
hash_of_address(int node)
{
	const char *address = node_at(node)->url.address;

	return hash_bytes_extended((const unsigned char *) address, strlen(address), 3);
}

/* Of these nodes, in the order of their addresses: all hosts that name them so get the same. */
static int
sort_nodes(core_mask nodes, int *slot)
{
	int count = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int at = count;

		if (!(nodes & CORE_BIT(i)))
			continue;
		for (; at > 0 && strcmp(node_at(slot[at - 1])->url.address, node_at(i)->url.address) > 0;
			 at--)
			slot[at] = slot[at - 1];
		slot[at] = i;
		count++;
	}
	return count;
}

/* Describes the list that takes the place of others; its version and place are for the caller. */
static void
describe_mark(StepMark *mark, core_mask nodes)
{
	int slot[CORE_NODES_MAX];
	StringInfoData text;

	memset(mark, 0, sizeof(*mark));
	mark->count = sort_nodes(nodes, slot);
	initStringInfo(&text);
	for (int i = 0; i < mark->count; i++)
	{
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "", node_at(slot[i])->url.address);
		mark->address[i] = hash_of_address(slot[i]);
	}
	mark->list = hash_bytes_extended((const unsigned char *) text.data, text.len, 3);
	text_to_printable(mark->nodes, sizeof(mark->nodes), text.data, text.len);
	strlcpy(mark->host, host_list_own_name(), sizeof(mark->host));
	pfree(text.data);
}

static uint64
hash_of_list(core_mask nodes)
{
	StepMark mark;

	describe_mark(&mark, nodes);
	return mark.list;
}

/* Has a majority of each list that is asked, and of the one that stays, the latest mark, for it? */
static bool
is_marked(core_lists to, core_lists asked)
{
	const StepMark *latest = steps_latest(known_marks());
	StepMark wanted;
	core_mask those = 0;

	describe_mark(&wanted, to.now);
	if (latest == NULL || latest->list != wanted.list)
		return false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && told[i].marked == latest->version)
			those |= CORE_BIT(i);
	return core_has_quorum(asked, those) && core_has_quorum(to, those);
}

/* At these nodes. */
static void
mark_nodes(core_lists to, core_mask at, int64 now_us)
{
	int slot[CORE_NODES_MAX];
	int count = sort_nodes(to.now, slot);
	StepMark mark;

	describe_mark(&mark, to.now);
	mark.version = steps_next_version(known_marks(), mark.list, redlock_wall_clock_us() / 1000);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		char text[LUA_MARK_MAX];
		const char *argv[] = {redlock_key_prefix, text};
		size_t len[] = {strlen(redlock_key_prefix), 0};

		if (!(at & CORE_BIT(i)) || !node_can_send(node_at(i)) || told[i].sha[0] == '\0')
			continue;
		mark.place = 0;
		for (int j = 0; j < count; j++)
			if (slot[j] == i)
				mark.place = j + 1;
		len[1] = steps_write_mark(&mark, text);
		told[i].marking = mark;
		call(node_at(i), CALL_MARK, lengthof(argv), argv, len, now_us);
	}
}

static void
hear_mark(RedisNode *node, const redisReply *reply)
{
	Told *from = &told[node->slot];

	if (reply == NULL || reply->type != REDIS_REPLY_INTEGER || from->marking.version == 0)
		return;
	marks.mark[node->slot] = from->marking;
	from->marked = from->marking.version;
	from->marking.version = 0;
}

/*
 * Where lists have been marked, this host's says so when it has changed in another way, too; and
 * nodes that lack the mark of this list get it.
 */
static void
mark_present_list(int64 now_us)
{
	const StepMark *latest = steps_latest(known_marks());
	core_lists lists = members_lists();
	core_mask lacking = 0;
	bool is_own;

	if ((latest == NULL && marks.own.version == 0) || lists.next != 0 || is_left ||
		lease_table->standing.says != HOST_TAKES || !registry_may_ask(now_us) || dispute_count > 0)
		return;
	is_own = marks.own.version > 0 && (latest == NULL || latest->version <= marks.own.version);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((marks.told & CORE_BIT(i)) && marks.mark[i].version != marks.own.version)
			lacking |= CORE_BIT(i);
	if (is_own ? lacking != 0 : marked_list != lists.now)
		mark_nodes(lists, is_own ? lacking : lists.now, now_us);
	marked_list = lists.now;
}

static void
explain_left(HostDispute *words)
{
	const StepMark *latest = steps_latest(known_marks());

	if (latest == NULL)
	{
		host_list_dispute(words); /* what the former broker told */
		return;
	}
	memset(words, 0, sizeof(*words));
	words->left = true;
	strlcpy(words->name, latest->host[0] != '\0' ? latest->host : "?", sizeof(words->name));
	snprintf(words->detail, sizeof(words->detail), "Host \"%s\" has left them for: %s.",
			 words->name, latest->nodes);
	strlcpy(words->hint, "Set redlock.nodes to these nodes.", sizeof(words->hint));
}

static void
tell_left(void)
{
	static uint64 told_of = 0;
	HostDispute words;
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
		 errmsg("redlock.nodes names nodes that were left for others, so this host takes no locks"),
		 errdetail_internal("%s", words.detail),
		 errhint("%s If they were not left, delete the mark: see \"A host that was off\" in "
				 "docs/replacing_nodes.md.",
				 words.hint)));
}

/* Once, as long as there is one. */
static void
tell_namesake(int64 now_us)
{
	static int64 known_us = 0;
	static bool known = false;
	uint64 id = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (has_told(i, now_us) && told[i].namesake != 0)
			id = told[i].namesake;
	if (id != 0 && !known)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("another redlock host is called \"%s\", too", host_list_own_name()),
				 errdetail("Its id is %016" PRIx64 ". Records of runs, details of deadlocks and "
						   "redlock_hosts name hosts in this way.",
						   id),
				 errhint("Set cluster_name to a name of its own on each host, and restart the "
						 "server.")));
	if (id != 0)
		known_us = now_us;
	known = id != 0 || (known && now_us - known_us <= HOST_LIVES_US);
}

/* So long after a host was forgotten its sessions may have locks, though it can't be reached. */
static int64
leases_outlive_us(void)
{
	return Max(0, BEAT_US + redlock_max_ttl_ms * INT64CONST(1000) - HOST_LIVES_US);
}

static void
complain_forgotten(int64 since_us)
{
	static int64 told_for_us = 0;

	if (told_for_us == since_us)
		return;
	told_for_us = since_us;
	ereport(LOG,
			(errmsg("redlock.nodes is not yet in force"),
			 errdetail("A host that hangs, or is cut off, is forgotten after %d seconds, and "
					   "may have locks for redlock.max_ttl. So none must be heard of that has "
					   "the nodes alone that are to be left, for %d seconds.",
					   LUA_HOST_LIVES_MS / 1000, (int) (leases_outlive_us() / 1000000)),
			 errhint("Wait. Or, if no host hangs or is cut off, set redlock.on_disagreement to "
					 "warn until redlock.nodes is in force.")));
}

static void
complain_apart(int64 since_us, int64 now_us)
{
	static int64 told_for_us = 0; /* the step that was wanted since then */
	static uint64 told_of;
	static int64 told_us;

	if (told_for_us == since_us && (apart_id == told_of || now_us - told_us < NAME_APART_US))
		return;
	told_for_us = since_us;
	told_of = apart_id;
	told_us = now_us;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 apart_by_lists
			 ? errdetail("Host \"%s\" (id %016" PRIx64
						 ") lists only nodes that are to be left. With the nodes that "
						 "stay, this host could get a lock that is held there.",
						 apart.name, apart_id)
			 : errdetail("Host \"%s\" (id %016" PRIx64
						 ") lists nodes that stay, but holds or keeps locks only at nodes "
						 "that are to be left. With the nodes that stay, this host could get such "
						 "a lock.",
						 apart.name, apart_id),
		 apart_by_lists
			 ? errhint("Set redlock.nodes and redlock.nodes_next to both lists on that "
					   "host, and wait until it is settled. Or stop it, and start it only "
					   "with the nodes that stay.")
			 : errhint("Wait until that host is settled, see redlock_hosts.settled. Or "
					   "release its locks.")));
}

static void
complain_rival(int64 since_us)
{
	static int64 told_for_us = 0;

	if (told_for_us == since_us)
		return;
	told_for_us = since_us;
	ereport(LOG,
			(errmsg("redlock.nodes is not yet in force"),
			 errdetail(
				 "Host \"%s\" is about to leave the nodes that this host wants to keep. Its id is "
				 "%016" PRIx64 ".",
				 rival.name, rival_id),
			 errhint("Set redlock.nodes and redlock.nodes_next to the same on both hosts.")));
}

/*
 * Each host that gets locks by the lists in force, or by the one that is left, is known to a
 * majority of each of its lists; so it is told of by one that is heard, and has not lost what it
 * knew.
 */
static bool
have_told(core_lists left, int64 since_us, int64 now_us)
{
	core_mask those = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (has_told(i, now_us) && told[i].beat_us > since_us && has_told_all(i))
			those |= CORE_BIT(i);
	return core_has_quorum(left, those);
}

/* It takes one beat to tell, if nothing is wrong. */
static void
complain_untold(int64 since_us, int64 now_us)
{
	static int64 told_of = 0;

	if (told_of == since_us || now_us - since_us <= BEAT_US + ALL_TELL_US)
		return;
	told_of = since_us;
	ereport(
		LOG,
		(errmsg("redlock.nodes is not yet in force"),
		 errdetail("It can't be told whether a host has the nodes alone that are to be left: no "
				   "majority of these, and of those that stay, answers with all that it knows."),
		 errhint("See the view redlock_nodes. If the nodes that are to be left are gone for "
				 "good, and no host gets locks by them any more, set redlock.on_disagreement "
				 "to warn until redlock.nodes is in force.")));
}

/* In doubt whether it has the new nodes, since they have restarted, it has not. */
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
	/* a host that refuses writes another entry, and looks, before it takes locks */
	if (apart_id != 0 || !(difference.kinds & (HOSTS_NODES | HOSTS_HELD)) ||
		(!(difference.kinds & HOSTS_HELD) && theirs.standing == HOST_REFUSES))
		return;
	apart = facts;
	apart_id = record->id;
	apart_by_lists = (difference.kinds & HOSTS_NODES) != 0;
}

static void
tell(Dispute *dispute)
{
	HostDispute words;
	uint64 hash;

	explain(dispute, &words);
	dispute->told = true;
	hash = hash_bytes_extended((const unsigned char *) words.detail, strlen(words.detail),
							   1 + takes_or_holds(dispute));
	if (hash == dispute->words)
		return;
	dispute->words = hash;
	if (!takes_or_holds(dispute))
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

/* The first that is in the way of this host's locks; dispute_count: none is. */
static int
first_stopping(void)
{
	int i = 0;

	while (i < dispute_count &&
		   !((is_ripe(&disputes[i]) || !lease_table->standing.begun) && stops(&disputes[i])))
		i++;
	return i;
}

/* For sessions. */
static void
publish(void)
{
	HostDispute words;
	int i = first_stopping();

	if (is_left)
	{
		explain_left(&words);
		host_list_set_dispute(&words);
	}
	else if (i < dispute_count)
	{
		explain(&disputes[i], &words);
		host_list_set_dispute(&words);
	}
	else if (in_dispute && inherited == 0)
		host_list_set_dispute(NULL);
	in_dispute = is_left || i < dispute_count || inherited != 0;
}

static void
explain(const Dispute *dispute, HostDispute *words)
{
	StringInfoData detail;
	StringInfoData hint;

	initStringInfo(&detail);
	initStringInfo(&hint);
	host_list_explain(&dispute->own, &dispute->config, &dispute->difference, &detail, &hint);
	memset(words, 0, sizeof(*words));
	strlcpy(words->name, dispute->facts.name[0] != '\0' ? dispute->facts.name : "?",
			sizeof(words->name));
	words->host = dispute->host;
	snprintf(words->detail, sizeof(words->detail), "Its id is %016" PRIx64 ". %s", dispute->host,
			 detail.data);
	if (stops(dispute) && dispute->config.standing == HOST_WARNS)
		appendStringInfoString(&hint, " It takes locks all the same, since its "
									  "redlock.on_disagreement is warn. Set that to refuse there, "
									  "or stop that host.");
	else if (stops(dispute) && dispute->config.standing == HOST_HOLDS)
		appendStringInfoString(&hint, " That host takes no new locks. Locks that it holds must end "
									  "first.");
	strlcpy(words->hint, hint.data, sizeof(words->hint));
	pfree(detail.data);
	pfree(hint.data);
}

/*
 * The list
 */

static void
begin_reading(int64 now_us)
{
	HASHCTL of_hosts = {.keysize = sizeof(uint64), .entrysize = sizeof(ReadHost)};
	HASHCTL of_configs = {.keysize = sizeof(uint64), .entrysize = sizeof(ReadConfig)};

	memset(&reading, 0, sizeof(reading));
	reading.number = host_list_asked();
	reading.context =
		AllocSetContextCreate(TopMemoryContext, "redlock hosts", ALLOCSET_DEFAULT_SIZES);
	of_hosts.hcxt = of_configs.hcxt = reading.context;
	reading.hosts =
		hash_create("redlock hosts", 64, &of_hosts, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	reading.configs = hash_create("redlock configurations", 16, &of_configs,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	host_list_step();
	describe_self();
	describe_config(&own, members_lists());
	own_len = hosts_write_config(&own, own_text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && node_can_send(node_at(i)))
		{
			reading.out |= CORE_BIT(i);
			ask_page(node_at(i), "", 0, now_us);
		}
	if (reading.out == 0)
		end_reading(now_us);
}

static void
ask_page(RedisNode *node, const char *after, size_t len, int64 now_us)
{
	call(node, CALL_LIST, 1, &after, &len, now_us);
}

/* A node that says nothing, or has no end, is not counted. */
static void
hear_page(RedisNode *node, const redisReply *reply, int64 now_us)
{
	static char after[CORE_NODES_MAX][HOSTS_AFTER_MAX + 1];
	core_mask bit = CORE_BIT(node->slot);
	const redisReply *next = NULL;

	if (!(reading.out & bit))
		return;
	host_list_step();
	if (reply != NULL && (!is_answer(reply, 2) || reply->element[0]->len > HOSTS_AFTER_MAX))
		complain(node, reply);
	else if (reply != NULL && read_page(node, reply->element[1], now_us))
		next = reply->element[0];
	if (next != NULL && next->len > 0 && node_can_send(node) &&
		++reading.pages[node->slot] < PAGES_MAX &&
		(!(reading.later & bit) || strcmp(next->str, after[node->slot]) > 0))
	{
		strlcpy(after[node->slot], next->str, sizeof(after[0]));
		reading.later |= bit;
		ask_page(node, next->str, next->len, now_us);
		return;
	}
	if (next != NULL && next->len == 0)
		reading.read |= bit;
	reading.out &= ~bit;
	if (reading.out == 0)
		end_reading(now_us);
}

/* False: there are too many, or they are not in order. */
static bool
read_page(RedisNode *node, const redisReply *records, int64 now_us)
{
	HostRecord configs[LUA_RECORDS_MAX + 1] = {0}; /* who brings it */
	const char *at = records->str;
	HostRecord record;

	while (hosts_take(&at, records->str + records->len, &record))
	{
		ReadHost *host;
		bool found;
		int64 seen_us = now_us - record.age_ms * 1000;

		if (record.id <= reading.last[node->slot])
			return false;
		reading.last[node->slot] = record.id;
		if (record.config != NULL)
			configs[record.number] = record;
		host = hash_search(reading.hosts, &record.id, HASH_ENTER, &found);
		if (reading.kept > CONFIGS_SIZE_MAX ||
			(!found && hash_get_num_entries(reading.hosts) > HOST_LIST_MAX))
		{
			if (!found)
				hash_search(reading.hosts, &record.id, HASH_REMOVE, NULL);
			reading.too_long = true;
			return false;
		}
		if (!found)
			host->known_to = 0;
		if (!found || seen_us > host->seen_us)
		{
			host->seen_us = seen_us;
			memcpy(host->facts, record.facts, record.facts_len);
			host->facts_len = record.facts_len;
			host->config = keep_config(&configs[record.number]);
		}
		host->known_to |= CORE_BIT(node->slot);
	}
	return true;
}

/* NULL: there is none. */
static ReadConfig *
keep_config(const HostRecord *record)
{
	const char *text = record->config;
	size_t len = record->config_len;
	uint64 hash;
	ReadConfig *config;
	bool found;

	if (text == NULL)
		return NULL;
	hash = hash_bytes_extended((const unsigned char *) text, len, 0);
	for (;; hash++)
	{
		config = hash_search(reading.configs, &hash, HASH_ENTER, &found);
		if (!found)
			break;
		if (config->len == len && memcmp(config->text, text, len) == 0)
			return config;
	}
	config->text = MemoryContextAlloc(reading.context, len);
	memcpy(config->text, text, len);
	config->len = len;
	reading.kept += len;
	return config;
}

static void
end_reading(int64 now_us)
{
	HostListAnswer answer = {.number = reading.number, .segment = DSM_HANDLE_INVALID};

	drop_list();
	answer.silent = members() & ~reading.read;
	if (core_has_quorum(members_lists(), reading.read))
	{
		list = make_list(now_us);
		drop_list_us = now_us + KEEP_LIST_US;
		answer.state = list != NULL ? HOST_LIST_MADE : HOST_LIST_NO_MEMORY;
		if (list != NULL)
			answer.segment = dsm_segment_handle(list);
	}
	else
		answer.state = reading.too_long ? HOST_LIST_TOO_LONG : HOST_LIST_NO_QUORUM;
	MemoryContextDelete(reading.context);
	answered = reading.number;
	reading.number = 0;
	host_list_answer(&answer);
}

/* NULL: there is no memory for it, which the log tells. */
static dsm_segment *
make_list(int64 now_us)
{
	dsm_segment *volatile segment = NULL;
	MemoryContext context = CurrentMemoryContext;
	long count = hash_get_num_entries(reading.hosts);
	Size size = offsetof(HostList, row) + count * sizeof(HostRow);
	uint32 at = offsetof(HostList, row) + count * sizeof(HostRow);
	HASH_SEQ_STATUS status;
	ReadConfig *config;
	ReadHost *host;
	HostList *to;

	hash_seq_init(&status, reading.configs);
	while ((config = hash_seq_search(&status)) != NULL)
		size += config->len;
	hash_seq_init(&status, reading.hosts);
	while ((host = hash_seq_search(&status)) != NULL)
		size += host->facts_len;

	PG_TRY();
	{
		segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
	if (segment == NULL)
		return NULL;

	to = dsm_segment_address(segment);
	to->size = size;
	to->made_us = now_us;
	to->count = 0;
	describe_config(&to->own, members_lists());
	hash_seq_init(&status, reading.configs);
	while ((config = hash_seq_search(&status)) != NULL)
		config->at = put_text(to, &at, config->text, config->len);
	hash_seq_init(&status, reading.hosts);
	while ((host = hash_seq_search(&status)) != NULL)
	{
		HostRow *row = &to->row[to->count++];

		row->id = host->id;
		row->seen_us = host->seen_us;
		row->nodes = pg_popcount32(host->known_to & members());
		row->facts_at = put_text(to, &at, host->facts, host->facts_len);
		row->facts_len = host->facts_len;
		row->config_at = host->config != NULL ? host->config->at : 0;
		row->config_len = host->config != NULL ? host->config->len : 0;
	}
	Assert(at == size);
	return segment;
}

static uint32
put_text(HostList *to, uint32 *at, const char *text, size_t len)
{
	uint32 here = *at;

	memcpy((char *) to + here, text, len);
	*at += len;
	return here;
}

static void
drop_list(void)
{
	if (list != NULL)
		dsm_detach(list);
	list = NULL;
}
