/*
 * hosts.h
 *		A host's own entry in the registry of each node (hosts.lua): writing, reading, and the
 *		decision whether two hosts may share locks.
 *
 * Texts are words, with a NUL after each word.  Anybody may have written a text, so a reader
 * drops the whole text if any part is malformed.  A later version may add words at the end.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_HOSTS_H
#define REDLOCK_HOSTS_H

#include <stddef.h>

#include "protocol/core.h"
#include "protocol/lua.h"

#define HOSTS_NODES_MAX CORE_NODES_MAX
#define HOSTS_HELD_MAX 3      /* former lists by which a host holds leases */
#define HOSTS_ADDRESS_MAX 255 /* bytes of a node's address */
#define HOSTS_ID_MAX 16       /* bytes that distinguish a process from other processes */
#define HOSTS_FORMER_MAX 4    /* processes of a node before the present one */
#define HOSTS_NAME_MAX 63
#define HOSTS_VERSION_MAX 31
#define HOSTS_AFTER_MAX 64 /* bytes of the place where a page ends */

/* whether a host takes locks: see standing.h */
typedef enum HostStanding
{
	HOST_ASKS,    /* not yet, and never did by the present settings */
	HOST_TAKES,   /* yes, or in a moment */
	HOST_REFUSES, /* no, and has no lock by the present settings */
	HOST_HOLDS,   /* no, but still has locks */
	HOST_WARNS    /* yes, beside any other host: redlock.on_disagreement is warn */
} HostStanding;

/* the step from two lists of nodes to one list: see steps.h */
typedef enum HostStep
{
	HOST_STAYS,
	HOST_GOES_ON,  /* to the next list */
	HOST_GOES_BACK /* back to the first list */
} HostStep;

/* Facts that change.  People read the facts; hosts read takes_for_s only. */
typedef struct HostFacts
{
	char name[HOSTS_NAME_MAX + 1];        /* name, version, postgres: printable ASCII */
	char version[HOSTS_VERSION_MAX + 1];  /* of redlock_pg */
	char postgres[HOSTS_VERSION_MAX + 1]; /* of PostgreSQL */
	int32_t leases;
	bool settled;        /* all leases of the host are on all lists */
	int64_t up_for_s;    /* since the host's shared memory was made */
	int64_t takes_for_s; /* how long the host has taken locks; 0: it takes none */
} HostFacts;

/* A node, as a host sees it.  Unknown texts are empty. */
typedef struct HostNode
{
	char address[HOSTS_ADDRESS_MAX + 1]; /* without the database; printable ASCII */
	int32_t db;
	bool now;  /* in the host's list */
	bool next; /* in the next list */
	/*
	 * in former lists by which the host still holds leases: two bits for each pair of lists,
	 * like `now` and `next`
	 */
	uint8_t held;
	char process[HOSTS_ID_MAX + 1]; /* the node's process, if the host can send to the node;
									 * unique to the process */
	char last[HOSTS_ID_MAX + 1];    /* the same, or the process that the host reached last */
	/* own nodes only, not in the text: the process started at this time, or earlier */
	int64_t started_us;
	int64_t heard_us;                                /* own nodes only: last message from the
													  * node */
	char former[HOSTS_FORMER_MAX][HOSTS_ID_MAX + 1]; /* own nodes only: processes of the node
													  * before `process`, or empty */
} HostNode;

/* what hosts that share locks must agree about */
typedef struct HostConfig
{
	char prefix[LOCK_PREFIX_MAX + 1];
	int64_t max_ttl_ms;
	HostStanding standing;
	HostStep step; /* the step that the host has announced */
	int count;
	HostNode node[HOSTS_NODES_MAX]; /* nodes of former lists only come last */
} HostConfig;

/* Write a text of at most LUA_FACTS_MAX, LUA_CONFIG_MAX bytes.  Return its length. */
extern size_t hosts_write_facts(const HostFacts *facts, char *text);
extern size_t hosts_write_config(const HostConfig *config, char *text);

extern bool hosts_read_facts(HostFacts *facts, const char *text, size_t len);
extern bool hosts_read_config(HostConfig *config, const char *text, size_t len);

/* Copies an id, cut off where a HostNode has no room or a character is not printable ASCII. */
extern void hosts_set_id(char id[HOSTS_ID_MAX + 1], const char *text);

/* one host, from a node's answer */
typedef struct HostRecord
{
	uint64_t id;
	int64_t age_ms; /* since the node last saw the host */
	const char *facts;
	size_t facts_len;
	int32_t number;     /* number of the host's configuration in this answer, from 1 */
	const char *config; /* NULL: an earlier record of the answer has the configuration */
	size_t config_len;
} HostRecord;

/* Reads the next record of an answer.  Returns false at the end, or if the rest is malformed. */
extern bool hosts_take(const char **at, const char *end, HostRecord *record);

/* differences because of which two hosts with the same prefix must not share locks */
#define HOSTS_MAX_TTL 1
#define HOSTS_DATABASES 2
#define HOSTS_NODES 4 /* the lists in force may have quorums without a common node */
#define HOSTS_HELD 8  /* the same of our lists in force and a list of the other host's leases */

typedef struct HostsDifference
{
	unsigned kinds;       /* 0: the hosts agree */
	core_mask guessed;    /* our nodes whose match is a guess, because they may have restarted */
	unsigned guess_kinds; /* more differences, if the guess is wrong */
	/*
	 * For each of our nodes: the matching node of the other host, or -1.  A match may be a
	 * guess, when one of the hosts can't send to the node and so does not know its process.
	 */
	int twin[HOSTS_NODES_MAX];
	bool is_other_db[HOSTS_NODES_MAX];
	bool all_known; /* each host can send to all nodes in its configuration */
} HostsDifference;

/*
 * A value of seen_us, for locks of later times.  The present processes of our nodes count,
 * whenever the other host wrote its configuration.  Nodes that can't be sent to may vote later: a
 * host that can't send to a node counts the process that it reached last.  A node whose process
 * only one host knows matches the node with the same address, and no other node.
 */
#define HOSTS_AT_ANY_TIME INT64_MAX

/*
 * Compares two configurations.  seen_us: when the other host wrote its configuration, by the
 * clock of ours->node[].started_us.
 */
extern void hosts_compare(const HostConfig *ours, const HostConfig *theirs, int64_t seen_us,
						  HostsDifference *difference);

/* Our nodes whose process at seen_us is unknown.  A bit is a place in ours->node. */
extern core_mask hosts_in_doubt(const HostConfig *ours, int64_t seen_us);

/* Returns true if the node is in a list in force; false if only leases still use the node. */
extern bool hosts_is_listed(const HostNode *node);

/* Returns true if the configurations agree, whatever is known of the nodes' processes. */
extern bool hosts_say_the_same(const HostConfig *one, const HostConfig *other);

/* Returns true if the host can send to a quorum. */
extern bool hosts_have_quorum(const HostConfig *config);

/* Changes the configuration as the announced step will. */
extern void hosts_take_step(HostConfig *config);

#endif /* REDLOCK_HOSTS_H */
