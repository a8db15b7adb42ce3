/*
 * hosts_test.c
 *		Unit tests of the entries of hosts, and of their agreement, src/protocol/hosts.c.
 *
 * Protects from: two hosts counting as agreed although both could get one lock, because nodes have
 * equal addresses or are out of reach; hosts with the same nodes refused for other names of the
 * nodes, before and after a restart or a loss of data, also after the death of a host; a stranger's
 * text taken for a host's entry, or read past its end (with sanitizers, scripts/lint.sh).
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/hosts.h"

#include "tap.h"

/* ---- agreement ---- */

/* When the hosts were seen.  The nodes started at 0, and have answered. */
#define LATELY 50000000

/*
 * Nodes as "address:process:list:database", separated by blanks.  Process 0: not connected.  List:
 * 1 now, 2 next, 3 both, larger: lists of leases.  The list and the database are optional.
 */
static HostConfig
nodes(const char *text)
{
	HostConfig config = {.prefix = "redlock:", .max_ttl_ms = 60000, .count = 0};
	int len = 0;

	for (;; text += len)
	{
		HostNode *node = &config.node[config.count];
		int process = 0;
		int list = 1;
		int db = 0;

		while (*text == ' ')
			text++;
		if (sscanf(text, "%200[^: ]:%d:%d:%d", node->address, &process, &list, &db) < 2)
			return config;
		len = (int) strcspn(text, " ");
		if (process != 0)
			sprintf(node->process, "p%d", process);
		memcpy(node->last, node->process, sizeof(node->last));
		node->now = list % 2 == 1;
		node->next = list / 2 % 2 == 1;
		node->held = (uint8_t) (list / 4);
		node->heard_us = LATELY;
		node->db = db;
		config.count++;
	}
}

/* Compares in both directions. */
static unsigned
differ(HostConfig one, HostConfig other)
{
	HostsDifference difference;
	HostsDifference reverse;

	hosts_compare(&one, &other, LATELY, &difference);
	hosts_compare(&other, &one, LATELY, &reverse);
	return difference.kinds == reverse.kinds ? difference.kinds : ~0u;
}

/* Nodes that only a guess takes for the other host's nodes. */
static core_mask
guessed(HostConfig ours, HostConfig theirs)
{
	HostsDifference difference;

	hosts_compare(&ours, &theirs, LATELY, &difference);
	return difference.guess_kinds == (difference.guessed != 0 ? HOSTS_NODES : 0)
			   ? difference.guessed
			   : ~(core_mask) 0;
}

/* HOSTS_NODES_MAX nodes */
#define MOST_NODES "a:1 b:2 c:3 d:4 e:5 f:6 g:7 h:8 i:9 j:10 k:11 l:12 m:13 n:14 o:15 p:16"

static void
test_lists(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");
	HostConfig other = three;
	HostsDifference difference;

	ok(differ(three, three) == 0, "a host agrees with one like it");
	ok(differ(three, nodes("c:3 a:1 b:2")) == 0, "in any order");
	ok(differ(three, nodes("a:1 b:2 c:3 d:4")) == 0, "one node more");
	ok(differ(three, nodes("a:1 b:2 d:4")) == HOSTS_NODES, "one replaced");
	ok(differ(nodes(MOST_NODES), nodes(MOST_NODES)) == 0, "the most nodes");
	other.count = 2;
	hosts_compare(&other, &three, LATELY, &difference);
	ok(difference.twin[1] == 1 && difference.twin[2] == -1, "only nodes of a list are matched");
	other = nodes("a:0");
	hosts_compare(&other, &(HostConfig[]){nodes("x:0:8")}[0], LATELY, &difference);
	ok(difference.twin[0] == 0, "two unknown nodes may be one, in whatever lists");
	ok(differ(three, nodes("c:3 d:4 e:5")) == HOSTS_NODES, "one in common");
	ok(differ(nodes("a:1:3 b:2:3 c:3:1 d:4:2"), three) == 0, "both lists, and the old one");
	ok(differ(nodes("a:1:3 b:2:3 c:3:1 d:4:2"), nodes("a:1 b:2 d:4")) == 0,
	   "both lists, and the new one");
	ok(differ(three, nodes("a:1:2 b:2:2 c:3:2 d:4:1")) == 0,
	   "nodes that another host is about to use are the same");
	ok(differ(three, nodes("")) == 0, "a host without nodes has no locks");
}

static void
test_identity(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");

	ok(differ(three, nodes("x:1 y:2 z:3")) == 0, "other names");
	ok(differ(three, nodes("a:11 b:12 c:3")) == HOSTS_NODES,
	   "the same addresses, as 127.0.0.1 on each host, are not the same nodes");
	ok(differ(three, nodes("a:0 b:0 c:3")) == 0, "the same addresses, not connected");
	ok(differ(three, nodes("x:0 b:2 c:3")) == 0, "another name, not connected: it has no vote");
	ok(differ(three, nodes("x:0 y:0 c:3")) == 0, "two of them");
	ok(differ(three, nodes("x:0 y:5 z:6")) == HOSTS_NODES,
	   "connected nodes suffice for a conflict");
	ok(differ(nodes("a:1:1:1 b:2:1:2 c:3"), nodes("x:2:1:2 y:1:1:1 z:3")) == 0,
	   "each of them is the one with its process");
	ok(differ(nodes("a:1 b:2 c:3"), nodes("b:1 c:2 a:3")) == 0, "names that are exchanged");
}

/*
 * Two hosts have three of five nodes each, by their own names, and reach some nodes.  The hosts
 * differ if and only if two of their quorums can be apart.
 */
static void
test_unknown(void)
{
	int wrong = 0;
	int apart = 0;

	for (int sets = 0; sets < 32 * 32; sets++)
		for (int reached = 0; reached < 32 * 32; reached++)
		{
			HostConfig hosts[2] = {nodes(""), nodes("")};
			bool can_be_apart = false;

			for (int bit = 0; bit < 10; bit++)
				if (sets & 1 << bit)
				{
					HostConfig *host = &hosts[bit / 5];
					HostNode *node = &host->node[host->count++];

					memset(node, 0, sizeof(*node));
					sprintf(node->address, "%d", bit);
					node->now = true;
					node->heard_us = LATELY;
					if (reached & 1 << bit)
						sprintf(node->process, "%d", bit % 5);
				}
			if (hosts[0].count != 3 || hosts[1].count != 3 || (reached & ~sets) != 0)
				continue;
			for (int quorums = 0; quorums < 32 * 32 && !can_be_apart; quorums++)
			{
				int one = quorums % 32;
				int other = quorums / 32;

				/* two or more nodes of each */
				can_be_apart = (quorums & ~reached) == 0 && (one & other) == 0 &&
							   (one & (one - 1)) != 0 && (other & (other - 1)) != 0;
			}
			apart += can_be_apart;
			wrong += can_be_apart != (differ(hosts[0], hosts[1]) == HOSTS_NODES);
		}
	ok(wrong == 0 && apart > 0,
	   "no two locks, and no conflict, whatever is not connected (%d of %d)", wrong, apart);
}

/* The difference as the reading host sees it. */
static unsigned
as_seen(HostConfig ours, HostConfig theirs)
{
	HostsDifference difference;

	hosts_compare(&ours, &theirs, LATELY, &difference);
	return difference.kinds;
}

/* An entry from before nodes restarted; its host may never hear of the restarts. */
static void
test_restarts(void)
{
	const size_t behind = offsetof(HostNode, former) + sizeof(((HostNode *) 0)->former);
	HostConfig three = nodes("a:11 b:12 c:3");
	HostConfig before = nodes("a:1 b:2 c:3");

	three.node[0].started_us = three.node[1].started_us = LATELY + 1;
	ok(as_seen(three, before) == 0, "nodes that lost their data since");
	ok(hosts_in_doubt(&three, LATELY) == 3, "the first two are newer");
	ok(as_seen(three, nodes("x:1 y:2 c:3")) == 0, "under other names");
	ok(guessed(three, before) == 3, "the other host has to tell whether these are its nodes");
	memset((char *) &three.node[0] + behind, 'p', sizeof(HostNode) - behind);
	strcpy(before.node[0].process, "ppppb");
	ok(guessed(three, before) == 3, "what stands behind the former processes is none of them");
	strcpy(before.node[0].process, "p1");
	ok(guessed(three, nodes("a:11 b:12 c:3")) == 0, "not if it knows them");
	ok(guessed(three, nodes("a:11 b:12 z:0")) == 0, "nor if it does not reach another one");
	ok(guessed(three, nodes("a:1 b:12 z:0")) == 1, "unless that may be any, but one that it names");
	ok(guessed(three, nodes("a:0 b:0 c:3")) == 0, "nor if it reaches none of them");
	ok(guessed(three, nodes("x:4 y:5 z:6")) == 0, "nor if the hosts differ without them");
	three.max_ttl_ms = 30000;
	ok(guessed(three, before) == 3, "but if they differ in something else");
	three.max_ttl_ms = before.max_ttl_ms;
	strcpy(three.node[1].former[3], "p2");
	ok(guessed(three, before) == 1, "a former process that both met tells which node it is");
	strcpy(three.node[0].former[0], "p1");
	ok(as_seen(three, before) == 0 && guessed(three, before) == 0, "then nothing is guessed");
	ok(guessed(three, nodes("a:4 b:2 c:3")) == 1, "nor where the other host names another one");
	memset(three.node[0].former, 0, sizeof(three.node[0].former));
	memset(three.node[1].former, 0, sizeof(three.node[1].former));
	ok(as_seen(three, nodes("x:1 y:12 z:0")) == 0,
	   "one has restarted, the other host does not reach a third");
	ok(as_seen(three, nodes("z:0 y:12 x:1")) == 0, "in another order");
	ok(as_seen(three, nodes("x:4 y:5 z:6")) == HOSTS_NODES, "the third tells other nodes");
	three.node[0].started_us = LATELY - 1;
	ok(as_seen(three, before) == 0, "one started just before: the host may not have noticed");
	ok(guessed(three, before) == 3, "and will tell");
	three.node[0].started_us = 0;
	ok(as_seen(three, before) == HOSTS_NODES, "long before: it is another one");
	three.node[0].heard_us = LATELY - 1;
	ok(as_seen(three, before) == 0, "which was not heard of since: it may have restarted");
}

#define STEPS 4
#define CHANGED 6 /* nodes */

/*
 * A host with names of its own for nodes.  The lists in force come first, in this order or
 * reversed.
 */
static HostConfig
host_in_step(const char *name, const int lists[CHANGED], bool reversed)
{
	char text[200] = "";

	for (int held_only = 0; held_only < 2; held_only++)
		for (int i = 0; i < CHANGED; i++)
		{
			int node = reversed ? CHANGED - 1 - i : i;

			if (lists[node] != 0 && (lists[node] % 4 == 0) == held_only)
				sprintf(text + strlen(text), "%s%d:%d:%d ", name, node, node + 1, lists[node]);
		}
	return nodes(text);
}

/* Nodes restart while hosts change their lists in turn. */
static void
test_restarts_in_a_change(void)
{
	/* former list; both; next list, and leases by both; next list, and leases by the former list */
	static const int changes[][STEPS][CHANGED] = {
		{{1, 1, 1, 1, 1}, {3, 1, 1, 3, 3}, {13, 4, 4, 13, 13}, {5, 4, 4, 5, 5}},
		{{1, 1, 1}, {1, 1, 1, 2, 2, 2}, {4, 4, 4, 9, 9, 9}, {4, 4, 4, 1, 1, 1}},
		{{1, 1, 1}, {1, 3, 3, 2}, {4, 13, 13, 9}, {4, 5, 5, 1}},
	};
	int false_conflicts = 0;
	int missed = 0;

	for (int change = 0; change < 3; change++)
		for (int one = 0; one < STEPS; one++)
			for (int other = 0; other < STEPS; other++)
				for (int orders = 0; orders < 4; orders++)
					for (int restarted = 0; restarted < 2 * (1 << CHANGED); restarted++)
					{
						HostConfig ours =
							host_in_step("a", changes[change][one], (orders & 1) != 0);
						HostConfig theirs =
							host_in_step("b", changes[change][other], (orders & 2) != 0);
						/* the former list, or leases by the former list, against the next list */
						bool apart = (one == 0 && other > 1) || (one > 1 && other % 3 == 0);

						for (int i = 0; i < ours.count; i++)
							if (restarted >> (ours.node[i].address[1] - '0') & 1)
							{
								ours.node[i].started_us = LATELY;
								if (restarted >> CHANGED == 1) /* the hosts have not noticed */
									ours.node[i].process[0] = 'q';
							}
						false_conflicts += !apart && as_seen(ours, theirs) != 0;
						missed += apart && restarted == 0 && as_seen(ours, theirs) == 0;
					}
	ok(false_conflicts == 0, "no conflict, in any step of a change, whatever has restarted (%d)",
	   false_conflicts);
	ok(missed == 0, "but between the former list and the next (%d)", missed);
}

/*
 * May a host leave the former list?  A node is down, and the hosts call the node by different
 * names.  Both hosts have met the node, or neither host has.
 */
static void
test_leaving(void)
{
	/* both lists, only the next list, only the former list */
	static const int changes[][3][CHANGED] = {
		{{3, 1, 1, 3, 3}, {1, 0, 0, 1, 1}, {1, 1, 1, 1, 1}},
		{{1, 1, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 1}, {1, 1, 1}},
		{{1, 3, 3, 2}, {0, 1, 1, 1}, {1, 1, 1}},
	};
	int stays = 0;
	int waits = 0;
	int leaves = 0;

	for (int change = 0; change < 3; change++)
		for (int orders = 0; orders < 4; orders++)
			for (int names = 0; names < 2; names++)
				for (int down = -1; down < 2 * CHANGED; down++)
				{
					const char *name = names == 0 ? "a" : "b";
					HostConfig then = host_in_step("a", changes[change][1], (orders & 1) != 0);
					HostConfig both = host_in_step(name, changes[change][0], (orders & 2) != 0);
					HostConfig former = host_in_step(name, changes[change][2], (orders & 2) != 0);
					HostConfig *hosts[] = {&then, &both, &former};
					int which = down >= 0 ? down % CHANGED : -1;
					bool was_met = down >= CHANGED;
					bool is_kept = which >= 0 && changes[change][1][which] != 0;
					HostsDifference difference;

					for (int host = 0; host < 3; host++)
						for (int i = 0; i < hosts[host]->count; i++)
							if (hosts[host]->node[i].address[1] - '0' == which)
							{
								hosts[host]->node[i].process[0] = '\0';
								if (!was_met)
									hosts[host]->node[i].last[0] = '\0';
							}
					hosts_compare(&then, &both, HOSTS_AT_ANY_TIME, &difference);
					if (names == 1 && is_kept && !was_met)
						waits += difference.kinds == 0;
					else
						stays += difference.kinds != 0;
					hosts_compare(&then, &former, HOSTS_AT_ANY_TIME, &difference);
					leaves += difference.kinds == 0;
				}
	ok(stays == 0, "a host leaves its former list when the others have both (%d)", stays);
	ok(waits == 0, "not while a node it keeps, which nobody has met, has another name there (%d)",
	   waits);
	ok(leaves == 0, "nor when one has the former list alone (%d)", leaves);
}

/* A named node is known, whenever it started; a node out of reach may come back. */
static void
test_unknown_lists(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");
	HostConfig cut = nodes("a:0 b:0 c:3");
	HostsDifference difference;

	ok(as_seen(three, nodes("p:1:5 q:2:1 r:0:1 x:0:4")) == HOSTS_HELD,
	   "a node that is in force is not taken for one that has left");
	ok(as_seen(three, nodes("p:1:5 q:2:5 r:0:1 x:0:4")) == HOSTS_HELD, "nor by two that stay");
	ok(as_seen(three, nodes("a:1 b:2 c:3 x:0:4 y:0:4 z:6:4")) == HOSTS_HELD,
	   "a lease that was granted by nodes which are away since");
	ok(as_seen(nodes("u:0 a:1 b:2"), nodes("x:0:5 y:9:5 b:2:5")) == 0,
	   "each knows a node that the other one does not");

	hosts_compare(&cut, &(HostConfig[]){nodes("x:4 y:5 z:6")}[0], LATELY, &difference);
	ok(difference.kinds == 0 && !difference.all_known, "who has no quorum can get nothing now");
	ok(as_seen(cut, nodes("a:1 b:2 c:3 x:4:4 y:5:4 z:6:4")) == 0, "nor what is held elsewhere");
	hosts_compare(&cut, &(HostConfig[]){nodes("x:4 y:5 z:6")}[0], HOSTS_AT_ANY_TIME, &difference);
	ok(difference.kinds == HOSTS_NODES, "but later");
	hosts_compare(&(HostConfig[]){nodes("x:4 y:5 z:0")}[0],
				  &(HostConfig[]){nodes("a:1 b:0 c:0")}[0], HOSTS_AT_ANY_TIME, &difference);
	ok(difference.kinds == HOSTS_NODES,
	   "and those that one host has are not those that the other one can't send to just now");
	hosts_compare(&three, &three, LATELY, &difference);
	ok(difference.kinds == 0 && difference.all_known, "hosts that know all nodes");

	three.node[0].started_us = LATELY;
	ok(as_seen(three, nodes("x:1:1:5 b:2 c:3")) == HOSTS_DATABASES,
	   "one that has started lately, and is named already");
}

/* Leases that rest on other lists than the lists in force. */
static void
test_held(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");

	ok(as_seen(three, nodes("a:1 b:2 c:3 x:4:4 y:5:4 z:6:4")) == HOSTS_HELD,
	   "a lease that was granted by other nodes");
	ok(as_seen(nodes("a:1 b:2 c:3 x:4:4 y:5:4 z:6:4"), three) == 0, "the other one sees ours");
	ok(as_seen(three, nodes("a:1:5 b:2:5 c:3:5 x:4:4")) == 0, "by one node more");
	ok(as_seen(three, nodes("a:1 b:2 c:3 x:4:12 y:5:12 z:6:4 u:7:8 v:8:8")) == HOSTS_HELD,
	   "by two lists");
	ok(as_seen(three, nodes("a:1:9 b:2:9 c:3:9 x:4:4 y:5:4 z:6:4")) == 0, "of which one is ours");
	ok(as_seen(three, nodes("a:1:5 b:2 c:3")) == HOSTS_HELD, "by one of our nodes alone");
	ok(as_seen(three, nodes("a:1:21 b:2:21 c:3:21 x:4:64 y:5:64 z:6:64")) == HOSTS_HELD,
	   "by the third list");
	ok(as_seen(nodes("x:4 y:5 z:6"), nodes("a:1:5 b:2:5 c:3:5 x:4:2 y:5:2 z:6:2")) == HOSTS_HELD,
	   "by one list of two, to a host that has the other alone");
}

static void
test_other_differences(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");
	HostConfig other = three;
	HostsDifference difference;

	other.max_ttl_ms = 30000;
	ok(differ(three, other) == HOSTS_MAX_TTL, "max_ttl");
	other = nodes("x:1 y:2:1:5 z:3");
	ok(differ(three, other) == HOSTS_DATABASES, "a database");
	memset(&difference, 0xff, sizeof(difference));
	hosts_compare(&three, &other, LATELY, &difference);
	ok(!difference.is_other_db[0] && difference.is_other_db[1] && difference.twin[1] == 1,
	   "of that node");
	other.max_ttl_ms = 30000;
	ok(differ(three, other) == (HOSTS_MAX_TTL | HOSTS_DATABASES), "both");
	ok(differ(three, nodes("x:0:1:5 b:2 c:3")) == 0, "that of a node that is not known");
}

/* A host with another value of a field does not say the same. */
#define SAYS_MORE(field, value)                                                                    \
	do                                                                                             \
	{                                                                                              \
		HostConfig other = three;                                                                  \
		other.field = value;                                                                       \
		ok(!hosts_say_the_same(&three, &other), "another " #field);                                \
	} while (0)

static void
test_say_the_same(void)
{
	HostConfig three = nodes("a:1 b:2 c:3");
	HostConfig known = nodes("a:0 b:12 c:3");

	ok(hosts_say_the_same(&three, &known), "the processes of nodes are no part");
	SAYS_MORE(prefix[0], 'x');
	SAYS_MORE(max_ttl_ms, 30000);
	SAYS_MORE(standing, HOST_WARNS);
	SAYS_MORE(step, HOST_GOES_ON);
	SAYS_MORE(count, 2);
	SAYS_MORE(node[2].address[0], 'x');
	SAYS_MORE(node[1].db, 1);
	SAYS_MORE(node[1].now, false);
	SAYS_MORE(node[1].next, true);
	SAYS_MORE(node[0].held, 1);
}

static void
test_take_step(void)
{
	HostConfig config = nodes("a:1:1 b:2:3 c:3:2");

	hosts_take_step(&config);
	ok(config.node[0].now && !config.node[2].now && config.node[1].next && config.node[2].next,
	   "a host that stays keeps both lists");
	config.step = HOST_GOES_ON;
	hosts_take_step(&config);
	ok(!config.node[0].now && config.node[1].now && config.node[2].now && !config.node[1].next &&
		   !config.node[2].next && config.step == HOST_STAYS,
	   "a host that goes on has the next list alone");
	config = nodes("a:1:1 b:2:3 c:3:2");
	config.step = HOST_GOES_BACK;
	hosts_take_step(&config);
	ok(config.node[0].now && config.node[1].now && !config.node[2].now && !config.node[1].next &&
		   !config.node[2].next && config.step == HOST_STAYS,
	   "a host that goes back has the first list alone");
}

/* ---- texts ---- */

static bool
reads_facts(const char *text, size_t len)
{
	HostFacts facts;
	char *exactly = malloc(len > 0 ? len : 1);
	bool good;

	memcpy(exactly, text, len);
	good = hosts_read_facts(&facts, exactly, len);
	free(exactly);
	return good;
}

static bool
reads_config(const char *text, size_t len)
{
	static HostConfig config;
	char *exactly = malloc(len > 0 ? len : 1);
	bool good;

	memcpy(exactly, text, len);
	good = hosts_read_config(&config, exactly, len);
	free(exactly);
	return good;
}

#define FACTS(text) reads_facts(text, sizeof(text) - 1)
#define READS(text) reads_config(text, sizeof(text) - 1)

static void
test_facts(void)
{
	HostFacts facts = {"name of it", "0.2.0", "15.4", 7, true, 4000000000, 3};
	HostFacts read;
	char text[LUA_FACTS_MAX];
	size_t len = hosts_write_facts(&facts, text);
	int shorter = 0;

	ok(hosts_read_facts(&read, text, len) && strcmp(read.name, "name of it") == 0 &&
		   strcmp(read.version, "0.2.0") == 0 && strcmp(read.postgres, "15.4") == 0 &&
		   read.leases == 7 && read.settled && read.up_for_s == 4000000000 && read.takes_for_s == 3,
	   "facts are read as they were written");
	for (size_t i = 0; i < len; i++)
		shorter += reads_facts(text, i);
	ok(shorter == 0, "and not if they are cut");
	memset(&facts, 'x', sizeof(facts));
	facts.name[HOSTS_NAME_MAX] = facts.version[HOSTS_VERSION_MAX] =
		facts.postgres[HOSTS_VERSION_MAX] = '\0';
	facts.leases = INT32_MAX;
	facts.settled = true;
	facts.up_for_s = facts.takes_for_s = UINT32_MAX;
	len = hosts_write_facts(&facts, text);
	ok(len <= LUA_FACTS_MAX && reads_facts(text, len), "the longest have room");
	ok(FACTS("n\0001\00015\0000\0000\0000\0000\0more\0and more\0"), "a later version may say more");
	ok(!FACTS("n\0001\00015\0-1\0000\0000\0000\0"), "no negative number");
	ok(!FACTS("n\0001\00015\0002147483648\0000\0000\0000\0"), "nor one that is too large");
	ok(!FACTS("n\0001\00015\00099999999999999999999\0000\0000\0000\0"), "by far");
	ok(!FACTS("n\0001\00015\0000\0002\0000\0000\0") && !FACTS("n\0001\00015\0\0000\0000\0000\0") &&
		   !FACTS("n\0001\00015\000a\0000\0000\0000\0"),
	   "nor what is none");
	ok(!FACTS("\033[31m\0001\00015\0000\0000\0000\0000\0") &&
		   !FACTS("\xc3\xa4\0001\00015\0000\0000\0000\0000\0"),
	   "nor a name that does something to a terminal");
}

static void
test_configs(void)
{
	HostConfig full = {.prefix = "redlock:",
					   .max_ttl_ms = 60000,
					   .count = HOSTS_NODES_MAX,
					   .standing = HOST_WARNS,
					   .step = HOST_GOES_BACK};
	static HostConfig read;
	char text[LUA_CONFIG_MAX];
	size_t len;
	int shorter = 0;

	memset(full.prefix, 'p', LOCK_PREFIX_MAX);
	for (int i = 0; i < full.count; i++)
	{
		HostNode *to = &full.node[i];

		memset(to->address, 'a', HOSTS_ADDRESS_MAX);
		memset(to->process, 'p', HOSTS_ID_MAX);
		memset(to->last, 'p', HOSTS_ID_MAX);
		to->held = 63;
		to->db = INT32_MAX;
		to->now = to->next = true;
	}
	len = hosts_write_config(&full, text);
	ok(len <= LUA_CONFIG_MAX && hosts_read_config(&read, text, len) &&
		   memcmp(&read.node[14], &full.node[14], sizeof(HostNode)) == 0 &&
		   read.standing == HOST_WARNS && read.step == HOST_GOES_BACK,
	   "the longest configuration has room, and is read as it was written (%d bytes)", (int) len);
	for (size_t i = 0; i < len; i++)
		shorter += reads_config(text, i);
	ok(shorter == 0, "and not if it is cut");

	full.node[0].held = 1;
	len = hosts_write_config(&full, text);
	ok(hosts_read_config(&read, text, len) && read.node[0].next && read.node[0].held == 1,
	   "the next list, and what is held");

	full.node[0].process[0] = '\0';
	len = hosts_write_config(&full, text);
	ok(hosts_read_config(&read, text, len) && read.node[0].held == 1 &&
		   read.node[0].process[0] == '\0' && strcmp(read.node[0].last, full.node[0].last) == 0,
	   "the last process of a node that the host can't send to");

	ok(READS("p\00060000\0001\000257\0000\0a:1\0\0001\0000\0"),
	   "of a node that was never connected");
	ok(!READS("p\00060000\0001\0001\0000\0a:1\0\0001\0000\0"),
	   "a connected node without a process");
	ok(!READS("p\00060000\0001\000512\0000\0a:1\0\0001\0000\0"), "a larger number of lists");
	ok(READS("p\00060000\0000\0001\0000\0") && READS("p\00060000\0000\0001\0000\0later\0"),
	   "without nodes");
	ok(!READS("p\00060000\00017\0001\0000\0"), "more nodes than there may be");
	ok(!READS("p\00060000\0001\0000\0000\0a\0\0001\0000\0"), "a node in no list");
	ok(!READS("p\00060000\0001\000256\0000\0a\0\0001\0000\0"), "or in another");
	ok(!READS("p\00060000\0001\0001\0000\0\0\0001\0000\0"), "a node without address");
	ok(!READS("p\00060000\0001\0001\0000\0a\nb\0\0001\0000\0"),
	   "an address with a control character");
	ok(!READS("p\00060000\0001\0001\0000\0a\00012345678901234567\0001\0000\0"),
	   "a process that is too long");
	ok(!READS("p\00060000\0001\0001\0000\0a\000p q\0001\0000\0"), "or has a blank");
	ok(!READS("p\00060000\0000\0005\0000\0") && !READS("p\00060000\0000\0001\0003\0"),
	   "another standing, or step");
	ok(!READS("") && !READS("\0") && !READS("p\0") && !READS("p\00060000"), "less than that");
}

static void
test_records(void)
{
	static const char good[] = "0123456789abcdef\0"
							   "45000\0"
							   "3\0"
							   "a\0b"
							   "1\0"
							   "4\0"
							   "conf"
							   "fedcba9876543210\0"
							   "0\0"
							   "0\0"
							   "1\0"
							   "0\0";
	const char *at = good;
	const char *end = good + sizeof(good) - 1;
	HostRecord record;
	static const struct
	{
		const char *what;
		const char *text;
		size_t len;
	} bad[] = {
#define BAD(what, text) {what, text, sizeof(text) - 1}
		BAD("nothing", ""),
		BAD("capitals", "0123456789ABCDEF\0"
						"0\0"
						"0\0"
						"1\0"
						"0\0"),
		BAD("a short id", "0123456789abcde\0"
						  "0\0"
						  "0\0"
						  "1\0"
						  "0\0"),
		BAD("a long id", "0123456789abcdef0\0"
						 "0\0"
						 "0\0"
						 "1\0"
						 "0\0"),
		BAD("one that was seen too long ago", "0123456789abcdef\0"
											  "45001\0"
											  "0\0"
											  "1\0"
											  "0\0"),
		BAD("one that will be seen", "0123456789abcdef\0"
									 "-1\0"
									 "0\0"
									 "1\0"
									 "0\0"),
		BAD("facts that are not there", "0123456789abcdef\0"
										"0\0"
										"9\0"
										"1\0"
										"0\0"),
		BAD("facts that are too long", "0123456789abcdef\0"
									   "0\0"
									   "257\0"
									   "1\0"
									   "0\0"),
		BAD("more configurations than records", "0123456789abcdef\0"
												"0\0"
												"0\0"
												"101\0"
												"0\0"),
		BAD("a configuration that is not there", "0123456789abcdef\0"
												 "0\0"
												 "0\0"
												 "1\0"
												 "1\0"),
		BAD("one that is too long", "0123456789abcdef\0"
									"0\0"
									"0\0"
									"1\0"
									"6001\0"),
	};

	ok(hosts_take(&at, end, &record) && record.id == 0x0123456789abcdef && record.age_ms == 45000 &&
		   record.facts_len == 3 && memcmp(record.facts, "a\0b", 3) == 0 && record.number == 1 &&
		   record.config_len == 4 && memcmp(record.config, "conf", 4) == 0,
	   "a record");
	ok(hosts_take(&at, end, &record) && record.id == 0xfedcba9876543210 && record.number == 1 &&
		   record.config == NULL && at == end,
	   "another one, with the same configuration");
	ok(!hosts_take(&at, end, &record), "that was all");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		char *exactly = malloc(bad[i].len > 0 ? bad[i].len : 1);

		memcpy(exactly, bad[i].text, bad[i].len);
		at = exactly;
		ok(!hosts_take(&at, exactly + bad[i].len, &record), "no record: %s", bad[i].what);
		free(exactly);
	}
}

static void
test_ids(void)
{
	char id[HOSTS_ID_MAX + 1];

	hosts_set_id(id, "0123456789abcdef0123");
	ok(strcmp(id, "0123456789abcdef") == 0, "the beginning of a process");
	hosts_set_id(id, "0123abcd lost 123456");
	ok(strcmp(id, "0123abcd") == 0, "up to a blank");
	hosts_set_id(id, "0123abcd\x7f");
	ok(strcmp(id, "0123abcd") == 0, "or up to a control character");
	hosts_set_id(id, "");
	ok(strcmp(id, "") == 0, "none");
}

int
main(void)
{
	test_lists();
	test_identity();
	test_unknown();
	test_restarts();
	test_restarts_in_a_change();
	test_leaving();
	test_unknown_lists();
	test_held();
	test_other_differences();
	test_say_the_same();
	test_take_step();
	test_facts();
	test_configs();
	test_records();
	test_ids();
	return tap_done();
}
