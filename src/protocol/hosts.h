/*
 * hosts.h
 *		What hosts write of themselves into the registry of each node (hosts.lua), the
 *		reading of it, and whether two hosts may share locks.
 *
 * Texts are words, a NUL after each.  Anybody may have written them, so what is not wholly
 * as it should be is read as nothing.  A later version may add words at the end.
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
#define HOSTS_ADDRESS_MAX 255 /* bytes of a node's */
#define HOSTS_ID_MAX 16       /* bytes that tell one process from others */
#define HOSTS_FORMER_MAX 4    /* processes of a node before the present one */
#define HOSTS_NAME_MAX 63
#define HOSTS_VERSION_MAX 31
#define HOSTS_AFTER_MAX 64 /* bytes of where a page ends */

/* Whether a host takes locks: see standing.h. */
typedef enum HostStanding
{
	HOST_ASKS,    /* not yet, and never by the present settings */
	HOST_TAKES,   /* yes, or in a moment */
	HOST_REFUSES, /* no, and has no lock by the present settings */
	HOST_HOLDS,   /* no, but still has locks */
	HOST_WARNS    /* yes, beside any other host: redlock.on_disagreement is warn */
} HostStanding;

/* From two lists of nodes to one: see steps.h. */
typedef enum HostStep
{
	HOST_STAYS,
	HOST_GOES_ON,  /* to the next list */
	HOST_GOES_BACK /* to the first one */
} HostStep;

/* Facts that change.  People read them; hosts read takes_for_s alone. */
typedef struct HostFacts
{
	char name[HOSTS_NAME_MAX + 1];        /* these three in printable ASCII */
	char version[HOSTS_VERSION_MAX + 1];  /* of redlock_pg */
	char postgres[HOSTS_VERSION_MAX + 1]; /* of PostgreSQL */
	int32_t leases;
	bool settled;        /* all its leases are on each of its lists */
	int64_t up_for_s;    /* since its shared memory was made */
	int64_t takes_for_s; /* how long the host has taken locks; 0: it takes none */
} HostFacts;

/* A node as a host sees it.  What it does not know is empty. */
typedef struct HostNode
{
	char address[HOSTS_ADDRESS_MAX + 1]; /* without its database; printable ASCII */
	int32_t db;
	bool now;  /* in its list, */
	bool next; /* or in that which is to take its place */
	/* in those by which it holds leases that are not by these: of each two bits, as above */
	uint8_t held;
	char process[HOSTS_ID_MAX + 1]; /* of a node that it can send to: what no other node has */
	/* of this host's own nodes, not in the text: the process started then, no later, */
	int64_t started_us;
	int64_t heard_us;                                /* ... and it was heard of last; */
	char former[HOSTS_FORMER_MAX][HOSTS_ID_MAX + 1]; /* its processes before that, or empty */
} HostNode;

/* What the hosts that share locks must agree about. */
typedef struct HostConfig
{
	char prefix[LOCK_PREFIX_MAX + 1];
	int64_t max_ttl_ms;
	HostStanding standing;
	HostStep step; /* that it is about to take */
	int count;
	HostNode node[HOSTS_NODES_MAX]; /* those that are only of `held` come last */
} HostConfig;

/* They return the length of the text, whose size is LUA_FACTS_MAX, LUA_CONFIG_MAX. */
extern size_t hosts_write_facts(const HostFacts *facts, char *text);
extern size_t hosts_write_config(const HostConfig *config, char *text);

extern bool hosts_read_facts(HostFacts *facts, const char *text, size_t len);
extern bool hosts_read_config(HostConfig *config, const char *text, size_t len);

/* Words of such texts, with the NUL after each.  What they take must be there, and printable ASCII.
 */
extern char *hosts_put_word(char *at, const char *word);
extern char *hosts_put_number(char *at, int64_t number);
extern char *hosts_put_hex(char *at, uint64_t number);
extern bool hosts_take_word(const char **at, const char *end, char *word, size_t size);
extern bool hosts_take_number(const char **at, const char *end, int64_t most, int64_t *number);
extern bool hosts_take_hex(const char **at, const char *end, uint64_t *number);

/* An id, as far as it goes into a HostNode. */
extern void hosts_set_id(char id[HOSTS_ID_MAX + 1], const char *text);

/* One host, as a node tells it. */
typedef struct HostRecord
{
	uint64_t id;
	int64_t age_ms; /* since it was seen there */
	const char *facts;
	size_t facts_len;
	int32_t number;     /* its configuration's in this answer, from 1 */
	const char *config; /* NULL: a record before this one has it */
	size_t config_len;
} HostRecord;

/* The next one of an answer; false: there is none, or what follows is not well-formed. */
extern bool hosts_take(const char **at, const char *end, HostRecord *record);

/* In what two hosts with the same prefix differ, such that they must not share locks. */
#define HOSTS_MAX_TTL 1
#define HOSTS_DATABASES 2
#define HOSTS_NODES 4 /* a quorum of the one need not meet one of the other, */
#define HOSTS_HELD 8  /* ... or one of ours need not meet one by which it holds a lease */

typedef struct HostsDifference
{
	unsigned kinds;       /* 0: they agree */
	core_mask guessed;    /* nodes of ours that are taken for nodes of theirs after a restart */
	unsigned guess_kinds; /* in which the hosts differ as well, if that guess is wrong */
	/* which node of the other host each of ours is, or -1; maybe the same: one of the two
	 * does not know it, since it can't send to it */
	int twin[HOSTS_NODES_MAX];
	bool is_other_db[HOSTS_NODES_MAX];
	bool all_known; /* each can send to all nodes that it names */
} HostsDifference;

/*
 * seen_us, below: what is known of ours counts, whenever theirs was written; nodes that can't be
 * sent to may grant something later; and one that only one host knows is taken for that with its
 * address, and no other.
 */
#define HOSTS_AT_ANY_TIME INT64_MAX

/* seen_us: when they wrote it, by the clock of ours->node[].started_us. */
extern void hosts_compare(const HostConfig *ours, const HostConfig *theirs, int64_t seen_us,
						  HostsDifference *difference);

/* Of which of our nodes is it not known what they were then?  A bit is a place in ours->node. */
extern core_mask hosts_in_doubt(const HostConfig *ours, int64_t seen_us);

/* Is it in a list in force?  Else it was left, but for leases. */
extern bool hosts_is_listed(const HostNode *node);

/* Do they say the same, whatever is known of their nodes? */
extern bool hosts_say_the_same(const HostConfig *one, const HostConfig *other);

/* As the host's configuration is after the step that it is about to take. */
extern void hosts_take_step(HostConfig *config);

#endif /* REDLOCK_HOSTS_H */
