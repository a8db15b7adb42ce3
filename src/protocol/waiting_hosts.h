/*
 * waiting_hosts.h
 *		The hosts that wait for a lock, for people: the question and the answer between hosts, the
 *		list of answers, its end, and the rate of answers.
 *
 * A host publishes the question at each node, on the channels of the lock: waiting hosts are
 * subscribed there.  A host that hears the question answers by the same node.  So each node counts
 * by itself: the node tells how many subscribers got the question, and as many answers come by
 * this node.
 *
 * A quorum of complete nodes completes the list: a host without a connection to any of them cannot
 * be granted the lock.  So neither a dead node nor a client listening at one node delays the list.
 * No message is part of a lock's life: a lost or forged message costs a row of redlock_waiters.
 *
 * To a host of redlock_pg 0.1.0 the question is a message of an unknown client: the host asks the
 * nodes for the lock once more.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_WAITING_HOSTS_H
#define REDLOCK_WAITING_HOSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/lua.h"
#include "protocol/words.h"

#define WAITING_HOSTS_MAX 64 /* rows of redlock_waiters, and hosts that hold the lock */
#define WAITING_NAME_MAX 63  /* bytes of a host's name */

/* first words of the messages */
#define WAITING_QUESTION "who waits"
#define WAITING_ANSWER "waits"

#define WAITING_QUESTION_SIZE (LOCK_PREFIX_MAX + LOCK_NAME_MAX + 64)
#define WAITING_ANSWER_SIZE (2 * WAITING_NAME_MAX + 4 * WORDS_NUMBER_MAX + 64)

/*
 * Questions that a host answers per second.  A further question, be it forged, costs the reading of
 * a message.
 */
#define WAITING_QUESTIONS_PER_S 200

/* Copies of a question by one node: on the channels of the lock, of its queue, and of the host. */
#define WAITING_COPIES_MAX 3

/* Which sessions wait for this lock? */
typedef struct WaitingQuestion
{
	const char *key; /* of the lock itself, also for a lock with permits */
	size_t key_len;
	uint64_t host;   /* the asking host */
	uint64_t number; /* random: other hosts cannot answer without having heard the question */
} WaitingQuestion;

/* The sessions of one host that wait in one mode. */
typedef struct WaitingSessions
{
	int sessions;
	int64_t waited_us; /* the longest wait */
} WaitingSessions;

/* A host's answer. */
typedef struct WaitingHost
{
	uint64_t host;
	char cluster[WAITING_NAME_MAX + 1]; /* cluster_name; empty: not set */
	char machine[WAITING_NAME_MAX + 1];
	WaitingSessions mode[2]; /* [1]: shared */
} WaitingHost;

/* The hosts with waiting sessions, each once. */
typedef struct WaitingHosts
{
	int count;
	bool more; /* further hosts wait, and are not in the list */
	WaitingHost host[WAITING_HOSTS_MAX];
} WaitingHosts;

/* A host's memory of the questions that it has answered lately; zeros at first. */
typedef struct WaitingAnswered
{
	int64_t spent_us;
	int next; /* the place that the next question takes */
	uint64_t number[WAITING_QUESTIONS_PER_S];
	uint32_t copies[WAITING_QUESTIONS_PER_S]; /* answers by each node, two bits each */
} WaitingAnswered;

/* The state of a question at one node. */
typedef struct WaitingTally
{
	bool asked;
	int owed;            /* commands that the node has not answered yet */
	bool failed;         /* the node has refused a command, or was lost: its numbers do not count */
	int64_t subscribers; /* how many got the question */
	int64_t answers;     /* how many have answered by this node */
} WaitingTally;

/*
 * Write a message, and return its length.  The readers begin behind the first word, and return
 * false if the message is malformed; the question's key then points into the message.
 */
extern size_t waiting_write_question(char text[WAITING_QUESTION_SIZE],
									 const WaitingQuestion *question);
extern size_t waiting_write_answer(char text[WAITING_ANSWER_SIZE], uint64_t number,
								   const WaitingHost *answer);
extern bool waiting_read_question(const char *at, const char *end, WaitingQuestion *question);
extern bool waiting_read_answer(const char *at, const char *end, uint64_t *number,
								WaitingHost *answer);

/* Counts one more session that waits. */
extern void waiting_count(WaitingSessions *mode, int64_t waited_us);

/* Adds a host, unless none of its sessions waits, or the list has the host already, or is full. */
extern void waiting_add(WaitingHosts *hosts, const WaitingHost *answer);

/* `tally` has CORE_NODES_MAX elements, by node index. */
extern core_mask waiting_complete(const WaitingTally *tally); /* all their subscribers answered */
extern core_mask waiting_failed(const WaitingTally *tally);   /* not asked, or failed */

/*
 * The number of subscribers without an answer, at that of the incomplete nodes where fewest are
 * missing: a client may listen at some nodes.  0: no node is incomplete.
 */
extern int64_t waiting_missing(const WaitingTally *tally);

typedef char waiting_copies_fit[2 * CORE_NODES_MAX <= 32 && WAITING_COPIES_MAX <= 3 ? 1 : -1];

/*
 * May this host answer a copy of the question by this node now?  The first copy counts as a
 * question, and the asking host expects an answer to each copy.  A host that has not answered for a
 * second may answer WAITING_QUESTIONS_PER_S questions at once.
 */
extern bool waiting_may_answer(WaitingAnswered *answered, uint64_t number, int node,
							   int64_t now_us);

#endif /* REDLOCK_WAITING_HOSTS_H */
