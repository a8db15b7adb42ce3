/*
 * waiting_hosts_test.c
 *		Unit tests of the hosts that wait for a lock, src/protocol/waiting_hosts.c.
 *
 * Protects from: a malformed or forged message read as a question or an answer; a read past the end
 * of a message; a host twice in the list, or more hosts than the list has room for; a list that
 * counts as complete although a subscriber has not answered; answers without a limit.
 */
#include "protocol/waiting_hosts.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define ASKER "00c0ffee00c0ffee"
#define NUMBER "0123456789abcdef"
#define HOST "feedfeedfeedfeed"
#define NOW_US INT64_C(50000000)

/* A message in memory of exactly its size; each | is a NUL. */
static char *
exactly(const char *text, size_t *len)
{
	char *exact = malloc(strlen(text) + 1); /* malloc(0) may return NULL */

	*len = strlen(text);
	for (size_t i = 0; i < *len; i++)
		exact[i] = text[i] == '|' ? '\0' : text[i];
	return exact;
}

static bool
is_question(const char *text, WaitingQuestion *question)
{
	size_t len;
	char *exact = exactly(text, &len);
	bool good = waiting_read_question(exact, exact + len, question) &&
				question->key_len == strlen("redlock:job") &&
				memcmp(question->key, "redlock:job", question->key_len) == 0;

	free(exact);
	return good;
}

static bool
is_answer(const char *text, uint64_t *number, WaitingHost *answer)
{
	size_t len;
	char *exact = exactly(text, &len);
	bool good = waiting_read_answer(exact, exact + len, number, answer);

	free(exact);
	return good;
}

static void
test_questions(void)
{
	static const char *const bad[] = {"",
									  "redlock:job",
									  "redlock:job|",
									  "redlock:job|" ASKER "|",
									  "redlock:job|" ASKER "|" NUMBER,
									  "redlock:job|" ASKER "|" NUMBER "||",
									  "redlock:job|" ASKER "|" NUMBER "|more|",
									  "redlock:job|0000000000000000|" NUMBER "|",
									  "redlock:job|" ASKER "0|" NUMBER "|",
									  "redlock:job|00C0FFEE00C0FFEE|" NUMBER "|",
									  "|" ASKER "|" NUMBER "|"};
	char text[WAITING_QUESTION_SIZE];
	char key[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];
	WaitingQuestion question;
	const char *word;
	const char *at = text;
	size_t len;

	ok(is_question("redlock:job|" ASKER "|" NUMBER "|", &question) &&
		   question.host == UINT64_C(0xc0ffee00c0ffee) &&
		   question.number == UINT64_C(0x123456789abcdef),
	   "a question");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(!is_question(bad[i], &question), "no question: \"%s\"", bad[i]);

	memset(key, 'k', sizeof(key));
	question = (WaitingQuestion){key, LOCK_PREFIX_MAX + LOCK_NAME_MAX, UINT64_MAX, UINT64_MAX};
	len = waiting_write_question(text, &question);
	ok(len <= sizeof(text), "the longest question fits");
	ok(words_take(&at, text + len, &word, &len) && strcmp(word, WAITING_QUESTION) == 0,
	   "its first word");
	len = waiting_write_question(text, &question);
	memset(&question, 0, sizeof(question));
	ok(waiting_read_question(at, text + len, &question) && question.host == UINT64_MAX &&
		   question.number == UINT64_MAX && question.key_len == LOCK_PREFIX_MAX + LOCK_NAME_MAX,
	   "and it is read as written");
	question = (WaitingQuestion){key, sizeof(key), 1, 1};
	at = text + sizeof(WAITING_QUESTION);
	len = waiting_write_question(text, &question);
	ok(!waiting_read_question(at, text + len, &question), "a longer key is no key");
}

static void
test_answers(void)
{
	static const char *const bad[] = {
		"",
		NUMBER "|",
		NUMBER "|" HOST "|a|m|1|2|3|",
		NUMBER "|" HOST "|a|m|1|2|3|4",
		NUMBER "|" HOST "|a|m|1|2|3|4||",
		NUMBER "|" HOST "|a|m|1|2|3|4|5|",
		NUMBER "|0000000000000000|a|m|1|2|3|4|",
		NUMBER "|" HOST "|a\a|m|1|2|3|4|",
		NUMBER "|" HOST "|a|\xc3\xa4|1|2|3|4|",
		NUMBER "|" HOST
			   "|0123456789012345678901234567890123456789012345678901234567890123|m|1|2|3|4|",
		NUMBER "|" HOST "|a|m|-1|2|3|4|",
		NUMBER "|" HOST "|a|m|2147483648|2|3|4|",
		NUMBER "|" HOST "|a|m|1|1000000000000000|3|4|",
		NUMBER "|" HOST "|a|m|1|2|3|x|",
		"0123|" HOST "|a|m|1|2|3|4|"};
	char text[WAITING_ANSWER_SIZE];
	WaitingHost answer;
	WaitingHost read;
	uint64_t number;
	size_t len;

	ok(is_answer(NUMBER "|" HOST "||m|1|2|3|4|", &number, &answer) &&
		   number == UINT64_C(0x123456789abcdef) && answer.host == UINT64_C(0xfeedfeedfeedfeed) &&
		   answer.cluster[0] == '\0' && strcmp(answer.machine, "m") == 0 &&
		   answer.mode[0].sessions == 1 && answer.mode[0].waited_us == 2 &&
		   answer.mode[1].sessions == 3 && answer.mode[1].waited_us == 4,
	   "an answer");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(!is_answer(bad[i], &number, &answer), "no answer: \"%s\"", bad[i]);

	memset(&answer, 0, sizeof(answer));
	answer.host = UINT64_MAX;
	memset(answer.cluster, 'c', WAITING_NAME_MAX);
	memset(answer.machine, 'm', WAITING_NAME_MAX);
	for (int shared = 0; shared < 2; shared++)
	{
		waiting_count(&answer.mode[shared], INT64_MAX);
		answer.mode[shared].sessions = INT32_MAX;
	}
	len = waiting_write_answer(text, UINT64_MAX, &answer);
	ok(len <= sizeof(text), "the longest answer fits");
	memset(&read, 0, sizeof(read));
	ok(waiting_read_answer(text + sizeof(WAITING_ANSWER), text + len, &number, &read) &&
		   number == UINT64_MAX && memcmp(&read, &answer, sizeof(read)) == 0,
	   "and is read as written");
}

static void
test_list(void)
{
	WaitingHosts hosts = {0};
	WaitingHost host = {.host = 1, .machine = "one"};
	WaitingSessions mode = {0};

	waiting_count(&mode, -5);
	waiting_count(&mode, 7);
	waiting_count(&mode, 6);
	ok(mode.sessions == 3 && mode.waited_us == 7, "the longest of three waits");

	waiting_add(&hosts, &host);
	ok(hosts.count == 0, "a host without waiters is not listed");
	host.mode[0].sessions = 1;
	waiting_add(&hosts, &host);
	ok(hosts.count == 1, "a host with a waiting writer is listed");
	hosts.count = 0;
	host.mode[0].sessions = 0;
	host.mode[1].sessions = 1;
	waiting_add(&hosts, &host);
	strcpy(host.machine, "two");
	waiting_add(&hosts, &host);
	ok(hosts.count == 1 && strcmp(hosts.host[0].machine, "one") == 0, "a host is listed once");
	for (host.host = 2; host.host <= WAITING_HOSTS_MAX; host.host++)
		waiting_add(&hosts, &host);
	ok(hosts.count == WAITING_HOSTS_MAX && !hosts.more, "the list is full");
	host.host = 1;
	waiting_add(&hosts, &host);
	ok(!hosts.more, "a host of the list is not one more");
	host.host = WAITING_HOSTS_MAX + 1;
	waiting_add(&hosts, &host);
	ok(hosts.count == WAITING_HOSTS_MAX && hosts.more, "and says that it lacks one");
}

static void
test_tally(void)
{
	WaitingTally tally[CORE_NODES_MAX] = {0};
	core_mask all = CORE_BIT(CORE_NODES_MAX) - 1;

	ok(waiting_complete(tally) == 0 && waiting_failed(tally) == all, "no node was asked");
	tally[0] = (WaitingTally){.asked = true, .owed = 1};
	tally[2] = (WaitingTally){.asked = true, .subscribers = 3, .answers = 2};
	tally[4] = (WaitingTally){.asked = true, .subscribers = 5};
	ok(waiting_complete(tally) == 0 && waiting_failed(tally) == (all & ~(core_mask) 21),
	   "no node is complete");
	ok(waiting_missing(tally) == 1, "one subscriber is missing");
	tally[1] = (WaitingTally){.asked = true, .subscribers = 2};
	ok(waiting_missing(tally) == 1, "the node that lacks the fewest answers counts");
	tally[1] = (WaitingTally){0};
	tally[0].owed = 0;
	ok(waiting_complete(tally) == 1, "a node without a subscriber is complete");
	tally[2].answers = 3;
	ok(waiting_complete(tally) == 5 && waiting_missing(tally) == 5,
	   "a node whose all have answered");
	tally[4].failed = true;
	ok(waiting_complete(tally) == 5 && waiting_failed(tally) == (all & ~(core_mask) 5) &&
		   waiting_missing(tally) == 0,
	   "a failed node does not count");
}

static void
test_rate(void)
{
	static WaitingAnswered answered;
	uint64_t number = 0;
	int copies = 0;

	while (number < 10 * WAITING_QUESTIONS_PER_S &&
		   waiting_may_answer(&answered, number, 0, NOW_US))
		number++;
	ok(number == WAITING_QUESTIONS_PER_S, "the questions of a second at once");
	ok(!waiting_may_answer(&answered, number, 0, NOW_US), "and no more");
	for (uint64_t known = 0; known < number; known++)
		for (int node = 0; node < CORE_NODES_MAX; node++)
			for (int i = 0; i < 10; i++)
				copies += waiting_may_answer(&answered, known, node, NOW_US);
	ok(copies == WAITING_QUESTIONS_PER_S * (WAITING_COPIES_MAX * CORE_NODES_MAX - 1),
	   "the copies of known questions, by all nodes, a few by each: %d", copies);
	number = 1000000;
	for (int64_t us = 1; us <= 1000000; us += 100)
		number += waiting_may_answer(&answered, number, 15, NOW_US + us);
	number -= 1000000;
	ok(number >= WAITING_QUESTIONS_PER_S - 1 && number <= WAITING_QUESTIONS_PER_S,
	   "as many questions in the next second");
	ok(waiting_may_answer(&answered, 1000100, 0, NOW_US + 1000000), "which are known then");
}

int
main(void)
{
	test_questions();
	test_answers();
	test_list();
	test_tally();
	test_rate();
	return tap_done();
}
