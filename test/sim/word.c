/*
 * word.c
 *		Messages between hosts; see word.h.
 */
#include "word.h"

#include "driver/turns.h"
#include "protocol/rules.h"
#include "session.h"
#include "story.h"

#define WORDS_MAX 256

/* Ids of hosts that do not exist, in forged messages. */
#define STRANGERS 3

typedef struct word
{
	bool used;
	bool is_join; /* a confirmation of the channel, no message: see word_join */
	bool joined;
	int entry;
	uint32_t generation;
	int node;
	bool want;   /* else: free */
	bool forced; /* of a forced release */
	bool shared; /* waits for shared mode; nodes omit this */
	int server;
	int resource;
	int64_t token;
	told_waiter waiter[WAITERS_MAX];
	int count;
} word;

static word words[WORDS_MAX];

static void tell_waiters(const word *word);
static bool has_joined(int host, int entry, int server);
static void send_word(int host, const word *word);
static void send_once(int host, const word *word, int64_t at_us);
static void forge(int server);
static void hear_want(int host, const word *word);
static void hear_forced(int host, const word *word);
static void hear_free(int host, int entry, const word *word);
static void hear_joined(int host, const word *word);
static int64_t way_us(void);
static Waiters read_waiters(int host, const word *word);
static bool waits(int host, int entry, int resource);
static int node_of(int host, int server, core_mask members);

void
word_begin(void)
{
	for (int i = 0; i < WORDS_MAX; i++)
		words[i].used = false;
}

void
word_tell(int server, const command *command, const answer *answer)
{
	word word = {.server = server, .resource = command->resource};

	if (may(FAULT_WORD) && chance(20))
		forge(server);
	switch (answer->tells)
	{
		case LOCAL_TELLS_NOTHING:
			break;
		case LOCAL_TELLS_FREE:
			word.token = command->shared ? 0 : command->ended;
			word.count = command->waiting;
			for (int i = 0; i < word.count; i++)
				word.waiter[i] = command->waiter[i];
			tell_waiters(&word);
			break;
		case LOCAL_TELLS_WANT:
			word.want = true;
			word.count = command->waited_us >= 0;
			word.waiter[0] = (told_waiter){(uint64_t) command->host + 1, command->waited_us};
			if (!answer->shared)
				send_word(answer->holder_host - 1, &word);
			for (int i = 0; answer->shared && i < answer->readers; i++)
				send_word(answer->reader_host[i] - 1, &word);
			break;
	}
}

void
word_freed(int server, int resource)
{
	tell_waiters(&(word){.server = server, .resource = resource});
}

void
word_forced(int h, int node, int resource, uint64_t to)
{
	word word = {.forced = true, .server = w.server_of[h][node], .resource = resource};

	send_word((int) to - 1, &word);
}

/* Sends to all waiting hosts on the channel. */
static void
tell_waiters(const word *word)
{
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
			if (waits(h, s, word->resource) && has_joined(h, s, word->server))
			{
				send_word(h, word);
				break;
			}
}

static bool
has_joined(int h, int s, int server)
{
	int node = node_of(h, server, entry_at(h, s)->drive.core.members);

	return node >= 0 && hosts[h].of_entry[s].hears &&
		   (hosts[h].of_entry[s].hearing.subscribed & CORE_BIT(node)) != 0;
}

static void
send_word(int host, const word *word)
{
	int64_t at_us = w.now_us + way_us();

	if (may(FAULT_WORD) && chance(4))
	{
		seen.fault[FAULT_WORD]++;
		if (chance(3))
			return;
		if (chance(2))
			at_us += dice_us(w.plan.ttl_us);
		else
			send_once(host, word, at_us + dice_us(w.plan.ttl_us));
	}
	send_once(host, word, at_us);
}

/* A message without room is lost. */
static void
send_once(int host, const word *word, int64_t at_us)
{
	for (int i = 0; i < WORDS_MAX; i++)
		if (!words[i].used)
		{
			words[i] = *word;
			words[i].used = true;
			later(at_us, EVENT_HEAR, host, 0, 0, (uint32_t) i);
			return;
		}
}

/* Sends a random message. */
static void
forge(int server)
{
	word word = {.want = chance(2),
				 .server = server,
				 .resource = (int) dice((uint32_t) w.plan.resources),
				 .token = chance(2) ? 0 : WALL_US + w.now_us + dice_us(SECOND) - SECOND / 2,
				 .count = (int) dice(WAITERS_MAX + 1)};

	seen.fault[FAULT_WORD]++;
	word.forced = !word.want && word.token % 4 == 1;
	if (word.want)
		word.count = (int) dice(2);
	for (int i = 0; i < word.count; i++)
		word.waiter[i] =
			(told_waiter){1 + dice((uint32_t) w.plan.hosts + STRANGERS), (int64_t) dice(1000000)};
	send_once((int) dice((uint32_t) w.plan.hosts), &word, w.now_us + 1);
}

int
word_waiting(int resource)
{
	int count = 0;

	if (may(FAULT_WORD) && chance(8))
		return (int) dice(40);
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
			if (waits(h, s, resource))
			{
				count++;
				break;
			}
	return count;
}

void
word_on_hear(const event *event)
{
	word word = words[event->tag];
	int h = event->host;

	words[event->tag].used = false;
	if (hosts[h].broker_down)
		return;
	if (word.is_join)
	{
		hear_joined(h, &word);
		return;
	}
	if (word.want)
	{
		hear_want(h, &word);
		return;
	}
	if (word.forced)
	{
		hear_forced(h, &word);
		return;
	}
	for (int s = 0; s < w.plan.entries; s++)
		if (waits(h, s, word.resource))
			hear_free(h, s, &word);
}

static void
hear_forced(int h, const word *word)
{
	int s = gate_of(h, word->resource)->named;

	if (s < 0 || entry_at(h, s)->resource != word->resource)
		return;
	tell("host %c receives: lock %d was released by force", HOST_NAME(h), word->resource + 1);
	driver_on_forced(&hosts[h].driver, s, host_now_us(h));
}

static void
hear_want(int h, const word *word)
{
	int s = gate_of(h, word->resource)->named;
	Waiters waiters = read_waiters(h, word);

	if (s < 0 || entry_at(h, s)->resource != word->resource)
		return;
	if (waiters.count == 0)
	{
		tell("host %c receives: a try for lock %d", HOST_NAME(h), word->resource + 1);
		session_recall(h, s);
		return;
	}
	tell("host %c receives: lock %d has a waiter on host %c", HOST_NAME(h), word->resource + 1,
		 HOST_NAME((int) word->waiter[0].host - 1));
	turns_note_waiter(&hosts[h].driver, s, &waiters.waiter[0], word->shared);
}

static void
hear_free(int h, int s, const word *word)
{
	int node = node_of(h, word->server, entry_at(h, s)->drive.core.members);
	Waiters named = read_waiters(h, word);

	if (node < 0)
		return;
	tell("host %c receives: lock %d is free", HOST_NAME(h), word->resource + 1);
	driver_on_free(&hosts[h].driver, s, node, word->token, &named, host_now_us(h));
}

/*
 * A node confirms that the host is on the channel of a lock, or the
 * subscription broke.
 */
static void
hear_joined(int h, const word *word)
{
	if (entry_at(h, word->entry)->drive.generation != word->generation)
		return;
	if (word->joined)
		driver_on_subscribed(&hosts[h].driver, word->entry, word->node, host_now_us(h));
	else
		driver_on_left(&hosts[h].driver, word->entry, word->node, host_now_us(h));
}

/* Under FAULT_WORD, subscriptions fail, or break and return. */
void
word_join(int h, int s)
{
	word word = {.is_join = true,
				 .joined = true,
				 .entry = s,
				 .generation = entry_at(h, s)->drive.generation};

	for (word.node = 0; word.node < w.plan.places; word.node++)
	{
		int64_t at_us = w.now_us + 2 * way_us();

		if (!(entry_at(h, s)->drive.core.members & CORE_BIT(word.node)) ||
			(may(FAULT_WORD) && chance(8)))
			continue;
		send_once(h, &word, at_us);
		if (!may(FAULT_WORD) || !chance(8))
			continue;
		seen.fault[FAULT_WORD]++;
		word.joined = false;
		send_once(h, &word, at_us + dice_us(w.plan.ttl_us));
		word.joined = true;
		send_once(h, &word, at_us + dice_us(2 * w.plan.ttl_us));
	}
}

static int64_t
way_us(void)
{
	return w.plan.delay_us / 2 + dice_us(w.plan.delay_us);
}

/* Publishes through one server.  A message to an unknown host goes nowhere. */
void
word_want(int h, int resource, bool shared, int64_t waited_us, uint64_t to)
{
	word word = {.want = true,
				 .shared = shared,
				 .server = w.server_of[h][dice((uint32_t) w.plan.places)],
				 .resource = resource,
				 .count = 1,
				 .waiter = {{(uint64_t) h + 1, waited_us}}};

	if (to <= (uint64_t) w.plan.hosts)
		send_word((int) to - 1, &word);
}

static Waiters
read_waiters(int h, const word *word)
{
	Waiters waiters = {0};

	for (int i = 0; i < word->count; i++)
		waiters_add(&waiters, word->waiter[i].host, word->waiter[i].waited_us, host_now_us(h));
	return waiters;
}

/* Does this entry wait for the lock, under the current prefix? */
static bool
waits(int h, int s, int resource)
{
	const entry *entry = entry_at(h, s);

	return entry->in_use && entry->resource == resource &&
		   (entry->drive.core.state == CORE_ASKING || entry->drive.core.state == CORE_BUSY) &&
		   resource / w.plan.names == hosts[h].prefix;
}

/* Returns the host's node for this server; -1: none of `members`. */
static int
node_of(int h, int server, core_mask members)
{
	for (int n = 0; n < w.plan.places; n++)
		if ((members & CORE_BIT(n)) && w.server_of[h][n] == server)
			return n;
	return -1;
}

int64_t
word_recall_us(void)
{
	return rules_recall_us(2 * w.plan.delay_us);
}
