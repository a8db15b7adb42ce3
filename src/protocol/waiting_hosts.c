/*
 * waiting_hosts.c
 *		The hosts that wait for a lock, for people; see waiting_hosts.h.
 */
#include "protocol/waiting_hosts.h"

#define SECOND_US INT64_C(1000000)

/* No session waits for longer than 30 years. */
#define WAITED_MAX_US INT64_C(999999999999999)

static bool read_mode(const char **at, const char *end, WaitingSessions *mode);

size_t
waiting_write_question(char text[WAITING_QUESTION_SIZE], const WaitingQuestion *question)
{
	char *at = words_put_text(text, WAITING_QUESTION);

	at = words_put(at, question->key, question->key_len);
	at = words_put_id(at, question->host);
	at = words_put_id(at, question->number);
	return (size_t) (at - text);
}

bool
waiting_read_question(const char *at, const char *end, WaitingQuestion *question)
{
	return words_take(&at, end, &question->key, &question->key_len) && question->key_len > 0 &&
		   question->key_len <= LOCK_PREFIX_MAX + LOCK_NAME_MAX &&
		   words_take_id(&at, end, &question->host) && question->host != 0 &&
		   words_take_id(&at, end, &question->number) && at == end;
}

size_t
waiting_write_answer(char text[WAITING_ANSWER_SIZE], uint64_t number, const WaitingHost *answer)
{
	char *at = words_put_text(text, WAITING_ANSWER);

	at = words_put_id(at, number);
	at = words_put_id(at, answer->host);
	at = words_put_text(at, answer->cluster);
	at = words_put_text(at, answer->machine);
	for (int shared = 0; shared <= 1; shared++)
	{
		at = words_put_number(at, answer->mode[shared].sessions);
		at = words_put_number(at, answer->mode[shared].waited_us);
	}
	return (size_t) (at - text);
}

bool
waiting_read_answer(const char *at, const char *end, uint64_t *number, WaitingHost *answer)
{
	return words_take_id(&at, end, number) && words_take_id(&at, end, &answer->host) &&
		   answer->host != 0 &&
		   words_take_printable(&at, end, answer->cluster, sizeof(answer->cluster)) &&
		   words_take_printable(&at, end, answer->machine, sizeof(answer->machine)) &&
		   read_mode(&at, end, &answer->mode[0]) && read_mode(&at, end, &answer->mode[1]) &&
		   at == end;
}

static bool
read_mode(const char **at, const char *end, WaitingSessions *mode)
{
	int64_t sessions;

	if (!words_take_number(at, end, INT32_MAX, &sessions) ||
		!words_take_number(at, end, WAITED_MAX_US, &mode->waited_us))
		return false;
	mode->sessions = (int) sessions;
	return true;
}

void
waiting_count(WaitingSessions *mode, int64_t waited_us)
{
	mode->sessions++;
	if (waited_us > WAITED_MAX_US)
		waited_us = WAITED_MAX_US;
	if (waited_us > mode->waited_us)
		mode->waited_us = waited_us;
}

void
waiting_add(WaitingHosts *hosts, const WaitingHost *answer)
{
	if (answer->mode[0].sessions == 0 && answer->mode[1].sessions == 0)
		return;
	for (int i = 0; i < hosts->count; i++)
		if (hosts->host[i].host == answer->host)
			return;
	if (hosts->count == WAITING_HOSTS_MAX)
		hosts->more = true;
	else
		hosts->host[hosts->count++] = *answer;
}

core_mask
waiting_complete(const WaitingTally *tally)
{
	core_mask complete = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (tally[i].asked && !tally[i].failed && tally[i].owed == 0 &&
			tally[i].answers >= tally[i].subscribers)
			complete |= CORE_BIT(i);
	return complete;
}

core_mask
waiting_failed(const WaitingTally *tally)
{
	core_mask failed = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (!tally[i].asked || tally[i].failed)
			failed |= CORE_BIT(i);
	return failed;
}

int64_t
waiting_missing(const WaitingTally *tally)
{
	int64_t fewest = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		int64_t missing = tally[i].failed ? 0 : tally[i].subscribers - tally[i].answers;

		if (missing > 0 && (fewest == 0 || missing < fewest))
			fewest = missing;
	}
	return fewest;
}

bool
waiting_may_answer(WaitingAnswered *answered, uint64_t number, int node, int64_t now_us)
{
	int64_t next_us = answered->spent_us > now_us ? answered->spent_us : now_us;

	for (int i = 0; i < WAITING_QUESTIONS_PER_S; i++)
		if (answered->copies[i] != 0 && answered->number[i] == number)
		{
			if ((answered->copies[i] >> 2 * node & 3) == WAITING_COPIES_MAX)
				return false;
			answered->copies[i] += (uint32_t) 1 << 2 * node;
			return true;
		}
	next_us += SECOND_US / WAITING_QUESTIONS_PER_S;
	if (next_us > now_us + SECOND_US)
		return false;
	answered->spent_us = next_us;
	answered->number[answered->next] = number;
	answered->copies[answered->next] = (uint32_t) 1 << 2 * node;
	answered->next = (answered->next + 1) % WAITING_QUESTIONS_PER_S;
	return true;
}
