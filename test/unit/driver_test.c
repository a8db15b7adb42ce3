/*
 * driver_test.c
 *		Unit tests of the lease driver, src/driver/driver.c and turns.c, in a scripted world.
 *
 * Protects from: a loss reported for a lease that ended by its limit; a queue of permits missing a
 * permit; a forced release renewing an idle lease; releases never begun; a lock pausing for the
 * turn of another lock.
 *
 * The random faults of the simulator include none of these stories.
 */
#include "driver/driver.h"

#include <string.h>

#include "driver/turns.h"
#include "tap.h"

#define SECOND INT64_C(1000000)
#define TTL_US (10 * SECOND)
#define ANSWER_US (SECOND / 2)
#define ENTRIES 1100
#define ALL ((core_mask) 7)
#define REACHABLE ((core_mask) 63) /* ALL, and the nodes of the next list */

/* the owner of an entry: answers to the driver, and messages from the driver */
typedef struct Owner
{
	DriverTerms terms;
	Wish wish;
	bool answered;
	bool idle_is_over;
	bool is_orphan;
	bool hold_is_over;
	bool prolongs; /* the hold is prolonged when the driver ends it */
	int64_t hold_until_us;
	bool hears;
	bool needs_tokens;
	int permits; /* messages that a permit may be free */
	DriverTurnEnd turn_end;
	bool told[DRIVER_HEARD + 1];
} Owner;

static Driver driver;
static DriverLease leases[ENTRIES];
static DriverEntry entries[ENTRIES];
static Release releases[ENTRIES];
static Settling settling;
static Owner owner[ENTRIES];
static core_lists lists;
static int64_t now_us;
static int64_t wall_clock_us;
static uint32_t random_bits;
static DriverCommand composed; /* the last command */
static const DriverCommand *composing;
static int sent; /* number of nodes */
static int freed;
static int noted;          /* another host waits */
static uint64_t host_told; /* of a wait of this host; 0: none */
static int unsettled;
static WaitersKnown known[3];
static int known_made;
static int known_dropped;

static core_lists
world_lists(const Driver *d)
{
	(void) d;
	return lists;
}

static core_mask
all_nodes(const Driver *d)
{
	(void) d;
	return REACHABLE;
}

static core_mask
world_can_vote(const Driver *d, int64_t at_us)
{
	(void) d, (void) at_us;
	return REACHABLE;
}

static int64_t
world_round_trip_us(const Driver *d)
{
	(void) d;
	return 1000;
}

static void
world_compose(Driver *d, DriverCommand *command)
{
	(void) d;
	composed = *command;
	composing = command;
	sent = 0;
}

static void
world_send(Driver *d, int node, const DriverCommand *command)
{
	(void) d, (void) node;
	sent += command == composing;
}

static int64_t
world_wall_clock_us(const Driver *d)
{
	(void) d;
	return wall_clock_us;
}

static uint32_t
world_random(Driver *d)
{
	(void) d;
	return random_bits;
}

static void
world_set_timer(Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) entry, (void) at_us;
}

static void
world_hear(Driver *d, int entry, bool begin)
{
	(void) d;
	owner[entry].hears = begin;
}

static void
world_tell_host(Driver *d, uint64_t host, int entry, int64_t at_us)
{
	(void) d, (void) entry, (void) at_us;
	host_told = host;
}

static WaitersKnown *
world_make_waiters(Driver *d)
{
	(void) d;
	return &known[known_made++];
}

static void
world_drop_waiters(Driver *d, WaitersKnown *dropped)
{
	(void) d, (void) dropped;
	known_dropped++;
}

static void
world_get_terms(const Driver *d, int entry, DriverTerms *terms)
{
	(void) d;
	*terms = owner[entry].terms;
}

static void
ignore(Driver *d, int entry)
{
	(void) d, (void) entry;
}

static Wish
world_wish(const Driver *d, int entry)
{
	(void) d;
	return owner[entry].wish;
}

static bool
world_is_answered(const Driver *d, int entry)
{
	(void) d;
	return owner[entry].answered;
}

static bool
world_is_returned(const Driver *d, int entry)
{
	(void) d;
	return owner[entry].terms.keep_us > 0;
}

static void
world_tell(Driver *d, int entry, DriverNews news, int64_t at_us)
{
	(void) d, (void) at_us;
	owner[entry].told[news] = true;
	owner[entry].answered = news == DRIVER_GRANTED;
}

static int64_t
world_hold_until_us(const Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return owner[entry].hold_until_us;
}

static bool
world_hold_is_over(const Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return owner[entry].hold_is_over;
}

static int64_t
world_look_at_us(Driver *d, int entry, int64_t wake_at_us)
{
	(void) d, (void) entry;
	return wake_at_us;
}

static bool
world_needs_tokens(const Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return owner[entry].needs_tokens;
}

static void
world_expect_tokens(Driver *d, int entry, int64_t until_us)
{
	(void) d, (void) entry, (void) until_us;
}

static DriverTurnEnd
world_turn_end(const Driver *d, int entry)
{
	(void) d;
	return owner[entry].turn_end;
}

/* The broker ends a lease in place of its owner. */
static bool
ends(int entry, bool is_over)
{
	if (is_over)
		owner[entry].wish = WISH_NOTHING;
	return is_over;
}

static bool
world_end_idle(Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return ends(entry, owner[entry].idle_is_over);
}

static bool
world_end_hold(Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return ends(entry, owner[entry].hold_is_over && !owner[entry].prolongs);
}

static bool
world_release_orphan(Driver *d, int entry, int64_t at_us)
{
	(void) d, (void) at_us;
	return ends(entry, owner[entry].is_orphan);
}

static bool
world_release_idle(Driver *d, int entry)
{
	(void) d;
	return ends(entry, owner[entry].wish == WISH_IDLE);
}

static bool
world_end_detached(Driver *d, int entry)
{
	(void) d;
	return ends(entry, owner[entry].wish == WISH_DETACHED);
}

static void
world_note_waiting_host(Driver *d, int entry)
{
	(void) d, (void) entry;
	noted++;
}

static void
world_tell_permit(Driver *d, int entry, int permit)
{
	(void) d;
	owner[entry].permits += permit == 0;
}

static void
world_count_unsettled(Driver *d, int change)
{
	(void) d;
	unsettled += change;
}

static void
world_free(Driver *d, int entry)
{
	(void) d;
	owner[entry].wish = WISH_NONE;
	freed++;
}

static const DriverWorld world = {.lists = world_lists,
								  .can_send = all_nodes,
								  .can_vote = world_can_vote,
								  .on_duty = all_nodes,
								  .round_trip_us = world_round_trip_us,
								  .compose = world_compose,
								  .send = world_send,
								  .wall_clock_us = world_wall_clock_us,
								  .random = world_random,
								  .set_timer = world_set_timer,
								  .hear = world_hear,
								  .tell_host = world_tell_host,
								  .make_waiters = world_make_waiters,
								  .drop_waiters = world_drop_waiters,
								  .get_terms = world_get_terms,
								  .new_value = ignore,
								  .wish = world_wish,
								  .is_answered = world_is_answered,
								  .is_returned = world_is_returned,
								  .tell = world_tell,
								  .no_more_waits = ignore,
								  .hold_until_us = world_hold_until_us,
								  .hold_is_over = world_hold_is_over,
								  .look_at_us = world_look_at_us,
								  .needs_tokens = world_needs_tokens,
								  .expect_tokens = world_expect_tokens,
								  .turn_end = world_turn_end,
								  .end_idle = world_end_idle,
								  .end_hold = world_end_hold,
								  .release_idle = world_release_idle,
								  .end_detached = world_end_detached,
								  .release_orphan = world_release_orphan,
								  .note_waiting_host = world_note_waiting_host,
								  .tell_permit = world_tell_permit,
								  .count_unsettled = world_count_unsettled,
								  .free = world_free};

/* Three nodes, each with room for `room` releases. */
static void
begin(int room)
{
	memset(leases, 0, sizeof(leases));
	memset(entries, 0, sizeof(entries));
	memset(owner, 0, sizeof(owner));
	memset(known, 0, sizeof(known));
	known_made = known_dropped = freed = noted = unsettled = 0;
	host_told = 0;
	lists = (core_lists){.now = ALL};
	settling = (Settling){.lists = lists};
	now_us = wall_clock_us = 1000 * SECOND;
	random_bits = 77;
	for (int i = 0; i < ENTRIES; i++)
		owner[i].terms = (DriverTerms){.hash = (uint64_t) i, .ttl_us = TTL_US};
	driver = (Driver){.world = &world,
					  .id = 1,
					  .entries = ENTRIES,
					  .leases = (char *) leases,
					  .stride = sizeof(DriverLease),
					  .entry = entries,
					  .settling = &settling,
					  .serves = true,
					  .answer_us = ANSWER_US,
					  .retry_us = SECOND / 5,
					  .retry_told_us = SECOND};
	driver_init(&driver, releases, room);
}

static const core_lease *
core_of(int entry)
{
	return &driver_lease(&driver, entry)->core;
}

static void
ask(int entry)
{
	owner[entry].wish = WISH_HOLD;
	driver_act(&driver, entry, now_us);
}

static void
answer(int entry, int node, core_op op, core_reply reply)
{
	core_event event = {.type = CORE_REPLY,
						.now_us = now_us,
						.node = node,
						.op = op,
						.reply = reply,
						.round = core_of(entry)->round,
						.token = 100};

	driver_step_answer(&driver, entry, &event);
}

static void
hold(int entry)
{
	ask(entry);
	for (int node = 0; node < 3; node++)
		answer(entry, node, CORE_OP_ACQUIRE, CORE_REPLY_YES);
}

static void
give_back(int entry)
{
	owner[entry].wish = WISH_NOTHING;
	driver_act(&driver, entry, now_us);
}

/* No node answers a renewal until the validity ends. */
static void
expire(int entry)
{
	now_us = core_of(entry)->valid_until_us;
	driver_on_timer(&driver, entry, now_us);
}

static void
test_ask(void)
{
	begin(10);
	lists.now = 0;
	ask(0);
	ok(owner[0].told[DRIVER_NO_NODES] && core_of(0)->state == CORE_FREE,
	   "without a list of nodes no node is asked");

	begin(10);
	ask(0);
	ok(core_of(0)->patience_us == 2 * ANSWER_US, "a request waits for a quorum for two answers");
	ok(sent == 3 && composed.sent.op == CORE_OP_ACQUIRE && composed.ttl_ms == TTL_US / 1000,
	   "each node gets the command that the world has composed");
	owner[1].terms.patient = true;
	ask(1);
	ok(core_of(1)->patience_us == INT64_MAX, "a patient request waits until it is cancelled");
	owner[2].terms.once = true;
	ask(2);
	ok(core_of(2)->patience_us == turns_recall_us(&driver), "a try waits for a recall");
}

static const core_event *watched;
static uint32_t watched_random;

static void
watch(Driver *d, int entry, const core_event *event, const core_out *out)
{
	(void) d, (void) entry;
	if (out == NULL)
		watched = event;
	else if (watched == event)
		watched_random = event->random;
}

static void
test_watch(void)
{
	DriverWorld watching = world;

	begin(10);
	watching.watch = watch;
	driver.world = &watching;
	ask(0);
	ok(watched != NULL && watched_random == random_bits,
	   "each step gets the random bits of the world");
}

/* A turn begins with its first grant. */
static void
test_turn(void)
{
	begin(10);
	leases[0].turn_handovers = 5;
	hold(0);
	ok(leases[0].turn_handovers == 5 && leases[0].turn_began_us == 0, "a turn goes on");
	hold(1);
	ok(leases[1].keep_until_us == 0, "no node keeps the key beyond the release");
	ok(leases[1].turn_began_us == now_us && leases[1].long_turn_us == turns_long_us(&driver),
	   "another begins now");
}

static void
test_tokens(void)
{
	begin(10);
	hold(0);
	owner[0].needs_tokens = true;
	wall_clock_us = -1000 * SECOND;
	driver_act(&driver, 0, now_us);
	ok(!core_of(0)->renewing, "no tokens are asked for while they are ahead of the clock");
	wall_clock_us = now_us;
	driver_act(&driver, 0, now_us);
	ok(core_of(0)->renewing, "then they are");
}

/* A holder may prolong or shorten its hold at any time. */
static void
test_limit(void)
{
	begin(10);
	hold(0);
	owner[0].hold_until_us = now_us + 5 * SECOND;
	driver_act(&driver, 0, now_us);
	ok(core_of(0)->hold_until_us == owner[0].hold_until_us,
	   "the core learns a new limit of the hold with the next wish");
	owner[0].hold_until_us = now_us + 4 * SECOND;
	now_us += SECOND;
	driver_on_timer(&driver, 0, now_us);
	ok(core_of(0)->hold_until_us == owner[0].hold_until_us,
	   "or at a timer, also before the lease has to be renewed");
	owner[0].hold_until_us = now_us + 2 * SECOND;
	answer(0, 2, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(core_of(0)->hold_until_us == owner[0].hold_until_us, "or with an answer");
}

/* All nodes refuse, and two nodes report releases. */
static void
wait_for_lock(void)
{
	ask(0);
	for (int node = 0; node < 3; node++)
		answer(0, node, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	driver_on_subscribed(&driver, 0, 0, now_us);
	driver_on_subscribed(&driver, 0, 1, now_us);
	for (int node = 0; node < 3; node++)
		answer(0, node, CORE_OP_ACQUIRE, CORE_REPLY_NO);
}

static void
test_hear(void)
{
	const Waiters named = {1, {{.host = 1}}};
	const Waiters other = {1, {{.host = 99}}};
	int64_t next_at_us;

	begin(10);
	now_us = 1;
	wait_for_lock();
	driver_on_free(&driver, 0, 0, 5, &named, now_us);
	ok(core_of(0)->state == CORE_BUSY, "one node that tells of a release is no majority");
	driver_on_free(&driver, 0, 1, 5, &named, now_us);
	ok(core_of(0)->state == CORE_ASKING, "the named host asks at once, at any time");

	begin(10);
	wait_for_lock();
	driver_lease(&driver, 0)->core.waiting = 2 * WAITERS_MAX;
	random_bits = 2 * WAITERS_MAX - 1;
	next_at_us = core_of(0)->next_at_us;
	for (int node = 0; node < 2; node++)
		driver_on_free(&driver, 0, node, 5, &other, now_us);
	ok(core_of(0)->state == CORE_BUSY && core_of(0)->next_at_us == next_at_us,
	   "in a crowd most of the hosts that are not named do not ask");
	random_bits = 0;

	begin(10);
	wait_for_lock();
	driver_lease(&driver, 0)->core.waiting = 2 * WAITERS_MAX;
	random_bits = 2 * WAITERS_MAX - 1;
	entries[0].hearing.late = CORE_BIT(1);
	driver_on_free(&driver, 0, 0, 5, &other, now_us);
	ok(core_of(0)->state == CORE_BUSY,
	   "nor where one node tells, and another told nothing in time");
	random_bits = 0;

	begin(10);
	wait_for_lock();
	next_at_us = core_of(0)->next_at_us;
	entries[0].hearing.late = CORE_BIT(1);
	driver_on_free(&driver, 0, 0, 5, &other, now_us);
	ok(core_of(0)->state == CORE_BUSY && core_of(0)->next_at_us < next_at_us,
	   "without a crowd it asks sooner");

	begin(10);
	ask(0);
	answer(0, 0, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	answer(0, 1, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	next_at_us = core_of(0)->next_at_us;
	entries[0].hearing.told = CORE_BIT(1);
	answer(0, 2, CORE_OP_ACQUIRE, CORE_REPLY_YES);
	ok(core_of(0)->state == CORE_BUSY && core_of(0)->next_at_us < next_at_us,
	   "also where one node tells, and another has granted too late");

	begin(10);
	ask(0);
	entries[0].hearing.told = CORE_BIT(2);
	answer(0, 0, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	ok(core_of(0)->state == CORE_ASKING && entries[0].hearing.told == CORE_BIT(2),
	   "an answer does not hide a release that a node has told meanwhile");

	begin(10);
	wait_for_lock();
	driver_on_left(&driver, 0, 1, now_us);
	ok(entries[0].hearing.subscribed == CORE_BIT(0) && core_of(0)->state == CORE_ASKING,
	   "without a majority that tells, a request asks again");
	give_back(0);
	ok(!owner[0].hears && entries[0].hearing.subscribed == 0, "the next request hears anew");

	begin(10);
	wait_for_lock();
	leases[0].core.not_before_us = now_us + SECOND;
	driver_on_left(&driver, 0, 1, now_us);
	ok(core_of(0)->state == CORE_BUSY, "but not before the end of another host's turn");

	begin(10);
	wait_for_lock();
	random_bits = UINT32_MAX;
	driver_on_free(&driver, 0, 0, 5, &named, now_us);
	driver_on_subscribed(&driver, 0, 2, now_us);
	next_at_us = core_of(0)->next_at_us;
	random_bits = 0;
	driver_on_node_ready(&driver, 0, now_us);
	ok(core_of(0)->state == CORE_BUSY && core_of(0)->next_at_us == next_at_us,
	   "a node that is ready tells nothing of a release");
}

static void
test_queue(void)
{
	begin(10);
	owner[0].terms.is_queue = true;
	hold(0);
	ok(owner[0].hears, "the holder of a queue hears of permits");
	driver_on_subscribed(&driver, 0, 0, now_us);
	ok(owner[0].permits == 0, "one node cannot tell of all permits");
	driver_on_subscribed(&driver, 0, 1, now_us);
	ok(owner[0].permits == 1, "a majority can: a permit may have been released before");
	ok(owner[0].hears, "the holder stays on the channel");
	memset(entries, 0, sizeof(entries));
	driver_init(&driver, releases, 10);
	owner[0].hears = false;
	hold(1);
	driver_adopt(&driver, now_us, now_us);
	ok(owner[0].hears && !owner[1].hears, "also with the next driver, unlike other holders");
	expire(0);
	ok(owner[0].told[DRIVER_LOST] && !owner[0].hears && owner[0].wish == WISH_HOLD,
	   "until the queue is lost, and then the owner queues again");

	begin(10);
	owner[0].terms.is_queue = true;
	ask(0);
	answer(0, 0, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	answer(0, 1, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	ok(owner[0].hears && core_of(0)->state == CORE_BUSY, "a session that waits for a queue hears,");
	driver_on_subscribed(&driver, 0, 0, now_us);
	driver_on_subscribed(&driver, 0, 1, now_us);
	ok(owner[0].permits == 0, "of the queue, not of permits");
	driver_adopt(&driver, now_us, now_us);
	ok(core_of(0)->state == CORE_BUSY, "the next driver asks again, at its time");
	give_back(0);
	ok(!owner[0].hears, "until the session cancels");
}

static void
test_expiry(void)
{
	begin(10);
	hold(0);
	owner[0].wish = WISH_DETACHED;
	owner[0].hold_is_over = true;
	now_us = core_of(0)->valid_until_us;
	answer(0, 0, CORE_OP_RENEW, CORE_REPLY_NO);
	ok(!owner[0].told[DRIVER_LOST] && owner[0].wish == WISH_NOTHING,
	   "a lease whose hold ended with its validity is not lost");
	begin(10);
	hold(0);
	owner[0].wish = WISH_DETACHED;
	owner[0].hold_is_over = owner[0].prolongs = true;
	now_us = core_of(0)->valid_until_us;
	answer(0, 0, CORE_OP_RENEW, CORE_REPLY_NO);
	ok(owner[0].told[DRIVER_LOST] && owner[0].wish == WISH_NOTHING,
	   "but it is lost if its hold was prolonged just then");
	begin(10);
	hold(0);
	owner[0].hold_until_us = now_us + SECOND;
	now_us += SECOND;
	give_back(0);
	ok(owner[0].told[DRIVER_LOST], "a release after the limit of a new holder is a loss");
	begin(10);
	hold(0);
	owner[0].wish = WISH_IDLE;
	expire(0);
	ok(!owner[0].told[DRIVER_LOST] && owner[0].wish == WISH_NOTHING, "an idle lease is not lost");
}

static void
test_forced(void)
{
	begin(10);
	for (int entry = 0; entry < 5; entry++)
		hold(entry);
	driver_on_forced(&driver, 0, now_us);
	ok(core_of(0)->renewing, "a forced release renews a held lease");
	owner[1].idle_is_over = owner[2].hold_is_over = owner[3].is_orphan = true;
	for (int entry = 1; entry < 4; entry++)
	{
		driver_on_forced(&driver, entry, now_us);
		ok(core_of(entry)->state == CORE_RELEASING, "a lease that ends now is released: %d", entry);
	}
	owner[4].wish = WISH_NOTHING;
	driver_on_forced(&driver, 4, now_us);
	ok(core_of(4)->state == CORE_HELD && !core_of(4)->renewing,
	   "a lease that its owner has released is not renewed");

	begin(1);
	hold(0);
	hold(1);
	give_back(0);
	give_back(1);
	ok(release_queue_waits(&driver.releases, 1), "a release waits for room");
	owner[1].wish = WISH_HOLD;
	driver_on_forced(&driver, 1, now_us);
	ok(!core_of(1)->renewing, "nor is a lease whose release waits");
}

static void
test_releases(void)
{
	begin(1);
	ok(!driver_forget_debt(&driver, now_us), "without a debt none is forgotten");
	for (int entry = 0; entry < ENTRIES; entry++)
	{
		hold(entry);
		give_back(entry);
	}
	ok(!driver_begin_releases(&driver, now_us), "without room no release begins");
	driver.releases.room = 2 * ENTRIES;
	ok(driver_begin_releases(&driver, now_us), "a pass begins some, and more can begin");
	ok(!driver_begin_releases(&driver, now_us) && release_queue_is_idle(&driver.releases, ALL),
	   "the next begins the rest");
	ok(freed == 0 && driver_forget_debt(&driver, now_us) && freed == 1, "a debt can be forgotten");
}

static void
test_lost_command(void)
{
	DriverSent command = {.entry = 0, .op = CORE_OP_RENEW};

	begin(10);
	hold(0);
	command.generation = leases[0].generation + 1;
	ok(driver_on_lost(&driver, 0, &command, true, now_us) && core_of(0)->state == CORE_HELD,
	   "a lost command of an earlier lease is not repeated");
}

static void
test_kept(void)
{
	begin(10);
	owner[0].terms.keep_us = SECOND;
	hold(0);
	now_us += SECOND - 1000;
	give_back(0);
	ok(composed.ttl_ms == 1 && settling.kept_until_us == now_us + 1000,
	   "a key that is kept for one more millisecond is remembered");
}

static void
test_follow_lists(void)
{
	begin(10);
	hold(0);
	lists.next = CORE_BIT(3) | CORE_BIT(4) | CORE_BIT(5);
	settling_set_lists(&settling, lists, 0);
	ok(driver_follow_lists(&driver, now_us) == 1 && core_of(0)->lists.next == lists.next,
	   "a held lease gets the next list, and is not on all nodes yet");
	now_us = core_of(0)->wake_at_us;
	driver_on_timer(&driver, 0, now_us);
	for (int node = 0; node < 6; node++)
		answer(0, node, CORE_OP_RENEW, CORE_REPLY_YES);
	ok(core_of(0)->settled && unsettled == -1, "a renewal brings the lease there");
	begin(10);
	hold(0);
	lists.now |= CORE_BIT(3);
	(void) driver_follow_lists(&driver, now_us);
	ok(core_of(0)->target.now == lists.now,
	   "a held lease follows a change of the first list alone");
	begin(10);
	ask(0);
	lists.now = CORE_BIT(3) | CORE_BIT(4) | CORE_BIT(5);
	(void) driver_follow_lists(&driver, now_us);
	ok(core_of(0)->state == CORE_ASKING && core_of(0)->lists.now == lists.now,
	   "a request asks the nodes of the new list");
}

/* A request that was released before this driver serves does not ask again. */
static void
test_serve(void)
{
	begin(10);
	for (int entry = 0; entry < 2; entry++)
	{
		ask(entry);
		answer(entry, 0, CORE_OP_ACQUIRE, CORE_REPLY_NO);
		answer(entry, 1, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	}
	driver_hold_requests(&driver);
	owner[1].wish = WISH_NOTHING;
	driver_serve(&driver, now_us);
	ok(core_of(0)->state == CORE_ASKING && core_of(1)->state == CORE_RELEASING,
	   "a request goes on, unless its owner has cancelled it");

	begin(10);
	ask(0);
	answer(0, 0, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	answer(0, 1, CORE_OP_ACQUIRE, CORE_REPLY_NO);
	driver_hold_requests(&driver);
	leases[0].core.not_before_us = now_us + SECOND;
	driver_serve(&driver, now_us);
	ok(core_of(0)->state == CORE_BUSY, "but not before the end of another host's turn");
}

/* The turn of this host goes on with the next lease of the name, while other hosts wait. */
static void
test_known(void)
{
	Waiter waiter = {.host = 2, .since_us = 5};

	begin(10);
	owner[0].turn_end = owner[1].turn_end = TURN_GOES_ON;
	owner[1].terms.hash = owner[0].terms.hash;
	owner[3].terms.hash = DRIVER_PAUSES;
	hold(0);
	ok(turns_told(&driver, 0) == NULL && turns_named(&driver, 0) == NULL, "no host waits");
	turns_note_waiter(&driver, 0, &waiter, false);
	ok(turns_told(&driver, 0)->count == 1 && turns_named(&driver, 0)->count == 0,
	   "a host has told that it waits");
	give_back(0);
	leases[3].turn_handovers = 1;
	hold(3);
	ok(turns_told(&driver, 3) == NULL, "a turn of another name with the same pause has no waiters");
	leases[1].turn_handovers = 1;
	hold(1);
	ok(turns_told(&driver, 1) == &known[0].told, "the next lease of the turn has the waiters");
	give_back(1);
	hold(4);
	owner[4].turn_end = TURN_GOES_ON;
	entries[4].terms.hash = 0;
	turns_note_waiter(&driver, 4, &waiter, false);
	give_back(4);
	ok(known_dropped == 1, "the memory of one turn of a name is kept");
	begin(10);
	ask(0);
	turns_note_waiter(&driver, 0, &waiter, false);
	give_back(0);
	ok(driver.pause[0].end_us == 0, "a request that was never granted had no turn");
	begin(10);
	hold(0);
	turns_hear(&driver, 0, &(Waiters){0}, now_us);
	ok(turns_named(&driver, 0) == NULL, "a release that names no host needs no memory");
	turns_hear(&driver, 0, &(Waiters){1, {{.host = driver.id}}}, now_us);
	ok(noted == 0, "a release that names this host alone tells of no other host,");
	turns_hear(&driver, 0, &(Waiters){2, {{.host = driver.id}, waiter}}, now_us);
	ok(noted == 1, "but one that names another behind it does");
}

/* Two names with one place for pauses. */
static void
test_pause(void)
{
	Waiter waiter = {.host = 2, .since_us = 5};

	begin(10);
	owner[1].terms.hash = owner[0].terms.hash;
	owner[2].terms.hash = DRIVER_PAUSES;
	hold(0);
	turns_note_waiter(&driver, 0, &waiter, false);
	give_back(0);
	ask(2);
	ok(core_of(2)->state == CORE_ASKING && host_told == 0,
	   "a request for another lock neither waits for the turn of another host nor tells that "
	   "host,");
	ask(1);
	ok(core_of(1)->state == CORE_BUSY && host_told == waiter.host,
	   "but the next request for the same lock does both");
}

int
main(void)
{
	test_ask();
	test_watch();
	test_turn();
	test_tokens();
	test_limit();
	test_hear();
	test_queue();
	test_expiry();
	test_forced();
	test_releases();
	test_lost_command();
	test_kept();
	test_follow_lists();
	test_serve();
	test_known();
	test_pause();
	return tap_done();
}
