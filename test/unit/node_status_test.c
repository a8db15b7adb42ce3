/*
 * node_status_test.c
 *		Unit tests of the state of the nodes, src/shared/node_status.c: the copy, and the text
 *		about each node's vote on a lease.
 *
 * Protects from: a user name or a password of a node in a backend's memory or in a message; a copy
 * of a half written state; a quorum within reach while most nodes are down; an explanation missing
 * a node, naming a node without a vote, or giving an unrelated error.
 */
#include "postgres.h"

#include "shared/clock.h"
#include "shared/node_status.h"

#include "tap.h"

#define NOW_US INT64CONST(1000000000)

int64
redlock_clock_us(void)
{
	return NOW_US;
}

/* The nodes are h0, h1, ... */
static void
begin(void)
{
	node_status_set_up();
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		NodeStatus *status = &node_status[i];

		status->in_use = true;
		snprintf(status->url.address, sizeof(status->url.address), "h%d:1", i);
		snprintf(status->url.host, sizeof(status->url.host), "h%d", i);
		strcpy(status->url.user, "user secret");
		strcpy(status->url.password, "password secret");
		strcpy(status->state, "ready");
		status->since = 100;
		pg_atomic_write_u32(&status->list_of_hosts, NODE_LIST_TOLD);
	}
}

/* ---- the copy ---- */

static bool
has_text(const void *memory, size_t size, const char *text)
{
	const char *bytes = memory;

	for (size_t i = 0; i + strlen(text) <= size; i++)
		if (memcmp(bytes + i, text, strlen(text)) == 0)
			return true;
	return false;
}

static void
test_copy(void)
{
	static NodeStatus copy;

	begin();
	strcpy(node_status[1].last_error, "an error");
	ok(node_status_copy(1, &copy) && strcmp(copy.url.address, "h1:1") == 0 &&
		   strcmp(copy.state, "ready") == 0 && strcmp(copy.last_error, "an error") == 0 &&
		   copy.since == 100,
	   "a node is copied");
	ok(!has_text(&copy, sizeof(copy), "secret"), "without user and password");
	ok(has_text(&node_status[1], sizeof(copy), "user secret") &&
		   has_text(&node_status[1], sizeof(copy), "password secret"),
	   "which the original keeps");

	node_status[2].in_use = false;
	ok(!node_status_copy(2, &copy), "one that is not in use is none");

	seqlock_begin_write(&node_status[1].version);
	ok(!node_status_copy(1, &copy), "nor is one that its writer is in the middle of");
	ok(!has_text(&copy, sizeof(copy), "secret"), "of which no secret is copied either");
	seqlock_end_write(&node_status[1].version);
	ok(node_status_copy(1, &copy), "until it has ended");
}

/* ---- the explanation ---- */

/* Explanations of a silent node. */
static const struct
{
	const char *what;
	const char *state;
	const char *last_error;
	TimestampTz last_error_at; /* in this state since 100 */
	int64 quarantine_us;       /* from now on */
	const char *text;
} silent_nodes[] = {
	{"ready, and never had an error", "ready", "", 0, 0, "no answer yet"},
	{"ready, and had its error before", "ready", "old", 99, 0, "no answer yet"},
	{"ready, and had its error when it became so", "ready", "old", 100, 0, "no answer yet"},
	{"ready, with an error since", "ready", "new", 101, 0, "new"},
	{"backing off after an error", "backing off", "broken", 100, 0, "broken"},
	{"backing off after an older error", "backing off", "broken", 1, 0, "broken"},
	{"connecting, and never had an error", "connecting", "", 0, 0, "no answer yet"},
	{"in quarantine", "quarantined", "it restarted", 99, 2500000,
	 "it restarted (in quarantine for another 3 s)"},
	{"in quarantine without an error", "quarantined", "", 0, 2500000,
	 "no answer yet (in quarantine for another 3 s)"},
	{"in quarantine, and away", "backing off", "broken", 99, 60000000,
	 "broken (in quarantine for another 61 s)"},
	{"in quarantine for a moment", "quarantined", "it restarted", 99, 1,
	 "it restarted (in quarantine for another 1 s)"},
	{"a quarantine that is over", "ready", "it restarted", 99, 0, "no answer yet"},
	{"a quarantine that was over long ago", "ready", "", 0, -1, "no answer yet"},
};

#define IN_DOUBT "it started lately, and another host has not named it since"

/* Explanations of the node's list of hosts. */
static const struct
{
	const char *what;
	NodeList list;
	const char *state;
	const char *last_error;
	const char *text;
} lists[] = {
	{"a list that is awaited", NODE_LIST_AWAITED, "ready", "",
	 "it has not yet sent its list of hosts"},
	{"a list that an error keeps back", NODE_LIST_AWAITED, "ready", "NOPERM", "NOPERM"},
	{"a list that leaves a doubt", NODE_LIST_IN_DOUBT, "ready", "", IN_DOUBT},
	{"a doubt after an error", NODE_LIST_IN_DOUBT, "ready", "no answer", IN_DOUBT},
	{"a doubt about a node that is away", NODE_LIST_IN_DOUBT, "backing off", "broken", "broken"},
};

static void
explains(core_mask yes, core_mask denying, core_mask silent, const char *expected, const char *what)
{
	char *text = node_status_explain(yes, denying, silent);

	ok(strcmp(text, expected) == 0, "%s: \"%s\"", what, text);
	pfree(text);
}

static void
test_explanation(void)
{
	static const char denied[] =
		"another session took the lock there, or a session released the lock by force";
	const int last = CORE_NODES_MAX - 1;
	char expected[1024];

	for (int i = 0; i < lengthof(silent_nodes); i++)
	{
		begin();
		strcpy(node_status[0].state, silent_nodes[i].state);
		strcpy(node_status[0].last_error, silent_nodes[i].last_error);
		node_status[0].last_error_at = silent_nodes[i].last_error_at;
		node_status[0].guard.until_us = NOW_US + silent_nodes[i].quarantine_us;
		snprintf(expected, sizeof(expected), "h0:1: %s", silent_nodes[i].text);
		explains(0, 0, CORE_BIT(0), expected, silent_nodes[i].what);

		/* no reason, as the node did answer */
		explains(CORE_BIT(0), 0, 0, "h0:1: yes", "but it said yes");
		snprintf(expected, sizeof(expected), "h0:1: %s", denied);
		explains(0, CORE_BIT(0), 0, expected, "but it denied");
	}

	begin();
	strcpy(node_status[0].last_error, "its maxmemory-policy, allkeys-lru, may throw away leases");
	strcpy(node_status[0].state, "quarantined");
	node_status[0].evicts = true;
	node_status[0].guard.until_us = NOW_US + 2500000;
	explains(0, 0, CORE_BIT(0),
			 "h0:1: its maxmemory-policy, allkeys-lru, may throw away leases (in quarantine until "
			 "that is changed)",
			 "a quarantine that has no end by itself");

	begin();
	pg_atomic_write_u64(&node_status[0].vote_counts_us, NOW_US - 500000);
	explains(0, 0, CORE_BIT(0), "h0:1: no answer yet; until a moment ago its vote did not count",
			 "a list that has just become known");
	pg_atomic_write_u64(&node_status[0].vote_counts_us, NOW_US - 500001);
	explains(0, 0, CORE_BIT(0), "h0:1: no answer yet", "a list known for longer");
	pg_atomic_write_u64(&node_status[0].vote_counts_us, NOW_US);
	pg_atomic_write_u32(&node_status[0].list_of_hosts, NODE_LIST_IN_DOUBT);
	explains(0, 0, CORE_BIT(0), "h0:1: " IN_DOUBT, "a new doubt");

	for (int i = 0; i < lengthof(lists); i++)
	{
		begin();
		pg_atomic_write_u32(&node_status[0].list_of_hosts, lists[i].list);
		strcpy(node_status[0].state, lists[i].state);
		strcpy(node_status[0].last_error, lists[i].last_error);
		snprintf(expected, sizeof(expected), "h0:1: %s", lists[i].text);
		explains(0, 0, CORE_BIT(0), expected, lists[i].what);
	}

	begin();
	explains(0, 0, 0, "", "nobody was asked");
	snprintf(expected, sizeof(expected), "h1:1: no answer yet; h2:1: yes; h4:1: %s; h%d:1: yes",
			 denied, last);
	explains(CORE_BIT(2) | CORE_BIT(last), CORE_BIT(4), CORE_BIT(1), expected,
			 "each that was asked, in order, and no other");

	node_status[1].in_use = false;
	explains(CORE_BIT(2), 0, CORE_BIT(1), "h2:1: yes", "without one that is not in use any more");
	explains(0, 0, CORE_BIT(1), "", "nor alone");
}

/* ---- a quorum within reach ---- */

static void
test_quorum(void)
{
	begin();
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		node_status[i].now = i < 3;
		node_status[i].in_use = i < 6;
		strcpy(node_status[i].state, "connecting");
	}
	ok(node_status_may_have_quorum(), "nodes that have not been tried may be within reach");
	strcpy(node_status[0].last_error, "could not connect: Connection refused");
	ok(node_status_may_have_quorum(), "one of three failed");
	strcpy(node_status[1].last_error, "WRONGPASS");
	ok(!node_status_may_have_quorum(), "two of three failed, and are tried again");
	strcpy(node_status[1].state, "ready");
	ok(node_status_may_have_quorum(), "an error of before it was ready tells nothing");

	for (int i = 3; i < 6; i++)
		node_status[i].next = true;
	ok(node_status_may_have_quorum(), "nor has the next list failed");
	strcpy(node_status[3].last_error, "broken");
	strcpy(node_status[4].last_error, "broken");
	ok(!node_status_may_have_quorum(), "the next list needs a quorum, too");
}

/* ---- what to do ---- */

static void
advises(core_mask silent, const char *expected, const char *what)
{
	char *text = node_status_advise(silent);

	ok(strcmp(text, expected) == 0, "%s: \"%s\"", what, text);
	pfree(text);
}

static void
refused(int node, const char *error)
{
	strcpy(node_status[node].state, "refused");
	strcpy(node_status[node].last_error, error);
}

static void
test_advice(void)
{
	static const char password[] = "Correct the user and password in redlock.nodes, and reload.";
	static const char wait[] = "Try again when the quarantine is over.";
	char both[256];

	begin();
	advises(CORE_BIT(0) | CORE_BIT(1), "", "nothing is known");
	refused(1, "could not connect: Connection refused");
	advises(CORE_BIT(1), "", "nor of a node that is down");
	refused(0, "WRONGPASS invalid username-password pair or user is disabled");
	refused(1, "NOAUTH Authentication required");
	advises(CORE_BIT(0) | CORE_BIT(1), password, "one step for two nodes is said once");
	advises(CORE_BIT(2), "", "of others it is not said");

	pg_atomic_write_u32(&node_status[3].list_of_hosts, NODE_LIST_IN_DOUBT);
	advises(CORE_BIT(3),
			"Try again: a live host names its nodes within 20 seconds. A host that has crashed or "
			"hangs is waited for until 31 seconds after its redlock_hosts.last_seen.",
			"a doubt ends");

	strcpy(node_status[2].state, "quarantined");
	node_status[2].guard.until_us = NOW_US + 2500000;
	advises(CORE_BIT(2), wait, "a quarantine ends");
	snprintf(both, sizeof(both), "%s %s", password, wait);
	advises(CORE_BIT(1) | CORE_BIT(2), both, "two steps");
	node_status[2].evicts = true;
	strcpy(node_status[2].last_error, "its maxmemory-policy, allkeys-lru, may throw away leases");
	advises(CORE_BIT(2),
			"Set maxmemory-policy to noeviction on the node; the node votes again after "
			"redlock.max_ttl.",
			"one that does not end by itself");

	strcpy(node_status[0].state, "ready");
	node_status[0].last_error_at = node_status[0].since - 1;
	advises(CORE_BIT(0), "", "an error of before it was ready tells nothing");
}

int
main(void)
{
	test_copy();
	test_explanation();
	test_quorum();
	test_advice();
	return tap_done();
}
