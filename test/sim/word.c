/*
 * word.c
 *		What hosts tell each other; see word.h.
 */
#include "word.h"

#include "protocol/rules.h"
#include "session.h"
#include "story.h"

#define WORDS_MAX 256

/* Hosts that are none have ids, too. */
#define STRANGERS 3

typedef struct word
{
	bool used;
	bool want;   /* else: free */
	bool shared; /* a want, to share it; nodes do not say so */
	int server;
	int resource;
	int64_t token;
	told_waiter waiter[WAITERS_MAX];
	int count;
} word;

static word words[WORDS_MAX];

static void tell_waiters(const word *word);
static void send_word(int host, const word *word);
static void send_once(int host, const word *word, int64_t at_us);
static void forge(int server);
static void hear_want(int host, const word *word);
static void hear_free(int host, int slot, const word *word);
static int64_t hear_turn(int host, int slot, const Waiters *named);
static void say_want(int host, int resource, bool shared, int64_t waited_us, uint64_t to);
static Waiters read_waiters(int host, const word *word);
static bool waits(int host, int slot, int resource);
static int node_of(int host, int server, core_mask members);
static int64_t hold_back_us(void);

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
		case TELLS_NOTHING:
			break;
		case TELLS_FREE:
			word.token = command->shared ? 0 : command->ended;
			word.count = command->waiting;
			for (int i = 0; i < word.count; i++)
				word.waiter[i] = command->waiter[i];
			tell_waiters(&word);
			break;
		case TELLS_WANT:
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

/* Who subscribes: all that have been refused, and some that are about to. */
static void
tell_waiters(const word *word)
{
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.slots; s++)
			if (waits(h, s, word->resource) &&
				node_of(h, word->server, slot_at(h, s)->core.members) >= 0)
			{
				send_word(h, word);
				break;
			}
}

static void
send_word(int host, const word *word)
{
	int64_t at_us = w.now_us + w.plan.delay_us / 2 + dice_us(w.plan.delay_us);

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

/* One for which there is no room is lost. */
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

/* Whatever can be said. */
static void
forge(int server)
{
	word word = {.want = chance(2),
				 .server = server,
				 .resource = (int) dice((uint32_t) w.plan.resources),
				 .token = chance(2) ? 0 : WALL_US + w.now_us + dice_us(SECOND) - SECOND / 2,
				 .count = (int) dice(WAITERS_MAX + 1)};

	seen.fault[FAULT_WORD]++;
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
		for (int s = 0; s < w.plan.slots; s++)
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
	if (word.want)
	{
		hear_want(h, &word);
		return;
	}
	for (int s = 0; s < w.plan.slots; s++)
		if (waits(h, s, word.resource))
			hear_free(h, s, &word);
}

static void
hear_want(int h, const word *word)
{
	int s = gate_of(h, word->resource)->named;
	Waiters waiters = read_waiters(h, word);

	if (s < 0 || slot_at(h, s)->resource != word->resource)
		return;
	if (waiters.count == 0)
	{
		tell("host %c hears of a try for lock %d", HOST_NAME(h), word->resource + 1);
		session_recall(h, s);
		return;
	}
	tell("host %c hears that lock %d is wanted by host %c", HOST_NAME(h), word->resource + 1,
		 HOST_NAME((int) word->waiter[0].host - 1));
	waiters.waiter[0].alone = slot_at(h, s)->shared && !word->shared;
	waiters_tell(&slot_at(h, s)->waiters, waiters.waiter[0]);
	if (!word->shared || !slot_at(h, s)->shared)
		session_want(h, s);
}

/* Enough must tell, of one release. */
static void
hear_free(int h, int s, const word *word)
{
	slot *slot = slot_at(h, s);
	int node = node_of(h, word->server, slot->core.members);
	core_event event = {.type = CORE_WAKE, .retry_us = w.plan.retry_us};
	Waiters named = read_waiters(h, word);

	if (node < 0)
		return;
	if (!hearing_told(&slot->hearing, &slot->core, node, word->token))
	{
		host_ask_if_missed(h, s);
		return;
	}
	event.not_before_us = hear_turn(h, s, &named);
	if (event.not_before_us == 0)
		return;
	tell("host %c hears that lock %d is free, and %s", HOST_NAME(h), word->resource + 1,
		 event.not_before_us > host_now_us(h) ? "holds back" : "asks");
	host_step_by(h, s, &event);
}

static int64_t
hear_turn(int h, int s, const Waiters *named)
{
	slot *slot = slot_at(h, s);
	int64_t now_us = host_now_us(h);
	int place = waiters_place(named, (uint64_t) h + 1);
	uint64_t next = waiters_whom_to_tell(named, (uint64_t) h + 1);
	int64_t after_us =
		rules_turn_after_us(place, named->count, slot->core.waiting, dice(UINT32_MAX),
							hold_back_us(), now_us - slot->heard_us);

	slot->heard_us = now_us;
	if (named->count > 0)
	{
		waiters_hear(&slot->waiters, named, (uint64_t) h + 1);
		if (slot->waiters.named.count > 0 && !slot->shared)
			session_want(h, s);
	}
	if (after_us < 0)
		return 0;
	if (next != 0)
		say_want(h, slot->resource, slot->shared, now_us - slot->asked_us, next);
	if (place == named->count && slot->core.not_before_us > now_us &&
		slot->core.not_before_us < now_us + after_us)
		return slot->core.not_before_us;
	return now_us + after_us;
}

int64_t
word_miss_us(int h, int s)
{
	int64_t after_us = rules_miss_us(slot_at(h, s)->core.waiting, dice(UINT32_MAX));

	return after_us >= 0 ? host_now_us(h) + after_us : 0;
}

/* By one server.  Who is none hears nothing. */
static void
say_want(int h, int resource, bool shared, int64_t waited_us, uint64_t to)
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

void
word_end_turn(int h, int s)
{
	slot *slot = slot_at(h, s);
	int turn = w.plan.turn[w.plan.gate[slot->resource]];
	Waiters *named =
		waiters_to_name(&slot->waiters, slot->returns ? (uint64_t) h + 1 : 0, host_now_us(h));

	if (named->count == 0)
		return;
	hosts[h].turn_begins_us[turn] =
		host_now_us(h) + rules_pause_us(waiters_place(named, (uint64_t) h + 1), hold_back_us(),
										host_now_us(h) - slot->turn_began_us);
	hosts[h].turn_tells[turn] = waiters_whom_to_tell(named, (uint64_t) h + 1);
}

int64_t
word_begin_us(int h, int resource, bool shared)
{
	int turn = w.plan.turn[w.plan.gate[resource]];

	if (hosts[h].turn_begins_us[turn] > host_now_us(h) && hosts[h].turn_tells[turn] != 0)
		say_want(h, resource, shared, 0, hosts[h].turn_tells[turn]);
	return hosts[h].turn_begins_us[turn];
}

/* The name is what comes behind the prefix that is set now. */
static bool
waits(int h, int s, int resource)
{
	const slot *slot = slot_at(h, s);

	return slot->in_use && slot->resource == resource &&
		   (slot->core.state == CORE_ASKING || slot->core.state == CORE_BUSY) &&
		   resource / w.plan.names == hosts[h].prefix;
}

/* By which of these nodes a host hears a server; -1: by none. */
static int
node_of(int h, int server, core_mask members)
{
	for (int n = 0; n < w.plan.places; n++)
		if ((members & CORE_BIT(n)) && w.server_of[h][n] == server)
			return n;
	return -1;
}

int64_t
word_long_turn_us(void)
{
	return rules_long_turn_us(hold_back_us());
}

int64_t
word_recall_us(void)
{
	return rules_recall_us(2 * w.plan.delay_us);
}

static int64_t
hold_back_us(void)
{
	return rules_hold_back_us(2 * w.plan.delay_us);
}
