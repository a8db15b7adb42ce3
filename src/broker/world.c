/*
 * world.c
 *		The world of the lease driver in the extension.  Each function is explained in
 *		driver/driver_world.h.
 *
 * This file decides nothing.  It reads entries of the lease table for the driver, writes news to
 * owners, and sends commands to the nodes.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/memutils.h"

#include "broker/deadlock.h"
#include "broker/members.h"
#include "broker/node.h"
#include "broker/registry.h"
#include "broker/subscription.h"
#include "broker/timers.h"
#include "broker/trouble.h"
#include "broker/world.h"
#include "driver/driver.h"
#include "driver/turns.h"
#include "shared/clock.h"
#include "shared/node_stats.h"

/*
 * Mean pause between two rounds, before the nodes have confirmed the subscription to the lock, or
 * while no release would be published.  core_acquire.c spreads the pause by chance: half of the
 * mean to one and a half.
 */
#define RETRY_US INT64CONST(50000)

/*
 * Mean pause when the nodes publish the release, the usual case.  After a lost message, the waiter
 * asks this much later.
 */
#define RETRY_SUBSCRIBED_US INT64CONST(500000)

/*
 * Unanswered releases, and repairs of a node that is back, at one node.  A node executes so many
 * in a few milliseconds, and acquires and renewals need not wait longer.
 */
#define UNHURRIED_MAX 512

static Driver driver;
static Timer *timers; /* one for each entry of the lease table */
static pairingheap *timer_heap;

/*
 * Prepared by compose for all nodes.  For each node, send sets command.core and the attempt in
 * `value`.
 */
static ScriptCommand command;
static char value[SCRIPT_VALUE_SIZE];

static void publish_votes(Lease *lease);
static void publish_no_votes(Lease *lease);
static void draw_secret(uint8 secret[LOCK_SECRET_BYTES]);

/*
 * The nodes
 */

static core_lists
get_lists(const Driver *of)
{
	return members_lists();
}

static core_mask
can_send(const Driver *of)
{
	return nodes_that(node_can_send);
}

/*
 * No node votes while another host is, or may be, in the way of new locks.  A node votes only if
 * it has told of other hosts lately.
 */
static core_mask
can_vote(const Driver *of, int64_t now_us)
{
	return registry_may_ask(now_us) ? nodes_that(node_can_vote) & registry_told() : 0;
}

static core_mask
on_duty(const Driver *of)
{
	return nodes_that(node_is_on_duty);
}

static int64_t
round_trip_us(const Driver *of)
{
	return members_round_trip_us();
}

static void
compose(Driver *of, DriverCommand *what)
{
	Lease *lease = lease_at(what->sent.entry);

	command.op = what->sent.op;
	command.key = lease->key;
	command.key_len = lease->key_len;
	command.value = value;
	command.value_len = script_value(value, lease->secret, lease_table->host_id, lease->shared,
									 lease->may_idle, lease_holder(lease));
	command.secret = lease->secret;
	command.host = lease_table->host_id;
	command.may_idle = lease->may_idle;
	command.holder = lease_holder(lease);
	command.shared = lease->shared;
	command.wall_clock_us = redlock_wall_clock_us();
	command.ttl_ms = what->ttl_ms;
	if (command.op == CORE_OP_RELEASE && command.ttl_ms == LUA_DELETE_AND_TELL &&
		lease->permits > 0 && !lease->is_queue)
		command.ttl_ms = LUA_DELETE_AND_TELL_QUEUE;
	if (command.op == CORE_OP_RELEASE && command.ttl_ms > 0)
		pg_atomic_write_u64(&lease_table->unsettled_until_us,
							lease_table->settling.unsettled_until_us);
	command.waited_us = what->waited_us;
	command.permits = lease->is_queue ? 0 : lease->permits;
	command.token = what->token;
	command.waiters = what->waiters;
	command.now_us = what->now_us;
}

static void
send_to_node(Driver *of, int node, const DriverCommand *what)
{
	InFlight sent = {.command = what->sent, .sent_us = what->now_us};

	command.core = core_command_to(&lease_at(what->sent.entry)->drive.core, node, what->sent.op);
	script_set_attempt(value, command.core.attempt);
	node_send(node_at(node), &command, &sent);
	node_stats_count(&node_stats[node].commands);
}

/*
 * Clock, dice and timers
 */

static int64_t
wall_clock_us(const Driver *of)
{
	return redlock_wall_clock_us();
}

static uint32_t
random_bits(Driver *of)
{
	return pg_prng_uint32(&pg_global_prng_state);
}

static void
set_timer(Driver *of, int entry, int64_t at_us)
{
	timers_set(timer_heap, &timers[entry], at_us);
}

int
world_timer_due(int64 looked_us, int64 *next_us)
{
	Timer *timer = timers_first(timer_heap);

	if (timer != NULL && timer->at_us <= looked_us)
		return timer - timers;
	*next_us = timer == NULL ? PG_INT64_MAX : timer->at_us;
	return -1;
}

/*
 * Other hosts
 */

static void
hear(Driver *of, int entry, bool begin)
{
	if (begin)
		subscription_begin(lease_at(entry));
	else
		subscription_end(lease_at(entry));
}

static void
tell_host(Driver *of, uint64_t host, int entry, int64_t now_us)
{
	const Lease *lease = lease_at(entry);
	char text[SCRIPT_WANT_MAX];

	subscription_say(host, text,
					 script_write_want(text, lease->key, lease->key_len, of->id,
									   turns_waited_us(of, entry, now_us), lease->shared),
					 now_us);
}

static WaitersKnown *
make_waiters(Driver *of)
{
	return MemoryContextAllocZero(TopMemoryContext, sizeof(WaitersKnown));
}

static void
drop_waiters(Driver *of, WaitersKnown *known)
{
	pfree(known);
}

/*
 * The owner
 */

static void
get_terms(const Driver *of, int entry, DriverTerms *terms)
{
	const Lease *lease = lease_at(entry);

	terms->hash = lease->hash;
	terms->ttl_us = lease->ttl_ms * INT64CONST(1000);
	terms->keep_us = lease->hold_at_least_ms * INT64CONST(1000);
	terms->hold_at_most_us = lease->hold_at_most_ms * INT64CONST(1000);
	terms->waits_since_us = lease->waits_since_us;
	terms->once = lease->once;
	terms->patient = lease->patient;
	terms->shared = lease->shared;
	terms->is_queue = lease->is_queue;
}

static void
new_value(Driver *of, int entry)
{
	Lease *lease = lease_at(entry);

	draw_secret(lease->secret);
	/* no node has answered yet; 0: nodes of a former list have, before the request moved */
	if (pg_atomic_read_u32(&lease->silent_nodes) != 0)
		pg_atomic_write_u32(&lease->silent_nodes, members());
	pg_atomic_write_u32(&lease->free_permit, 0);
}

/* Draws random bytes, many at a time. */
static void
draw_secret(uint8 secret[LOCK_SECRET_BYTES])
{
	static uint8 pool[64 * LOCK_SECRET_BYTES];
	static int left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
							errmsg("could not generate random bytes for a redlock")));
		left = sizeof(pool);
	}
	left -= LOCK_SECRET_BYTES;
	memcpy(secret, pool + left, LOCK_SECRET_BYTES);
}

static Wish
get_wish(const Driver *of, int entry)
{
	return pg_atomic_read_u32(&lease_at(entry)->wish);
}

static bool
is_answered(const Driver *of, int entry)
{
	return lease_state(lease_at(entry)) != LEASE_WAITING;
}

static bool
is_returned(const Driver *of, int entry)
{
	return lease_at(entry)->token != 0;
}

/* Informs the owner and the counters; last the log, as logging can raise an error. */
static void
tell(Driver *of, int entry, DriverNews news, int64_t now_us)
{
	Lease *lease = lease_at(entry);
	const core_lease *core = &lease->drive.core;
	bool answered = false; /* by a quorum, for the first time */

	switch (news)
	{
		case DRIVER_NO_NODES:
			lease_set_state(lease, LEASE_UNREACHABLE);
			break;
		case DRIVER_MUST_WAIT:
			if (core->unreachable_since_us > 0)
				publish_votes(lease);
			else
				answered = pg_atomic_exchange_u32(&lease->silent_nodes, 0) != 0;
			pg_atomic_write_u32(&lease->denying_nodes, 0); /* a holder's key is there */
			if (core->unreachable_since_us == 0 && !core->once)
			{
				lease_tell_refused(lease, answered);
				deadlock_wait(lease, now_us);
			}
			break;
		case DRIVER_GRANTED:
			lease_count(COUNT_GRANTED);
			lease_stats_granted(lease, now_us);
			pg_atomic_write_u64(&lease->last_token, core->bound);
			pg_atomic_write_u64(&lease->hold_until_us, core->hold_until_us);
			pg_atomic_write_u64(&lease->granted_until_us, core->granted_until_us);
			publish_no_votes(lease);
			lease_set_state(lease, LEASE_HELD);
			break;
		case DRIVER_REFUSED:
			lease_count(COUNT_REFUSED);
			lease_set_state(lease, LEASE_REFUSED);
			break;
		case DRIVER_UNREACHABLE:
			publish_votes(lease);
			pg_atomic_write_u32(&lease->denying_nodes, 0); /* a holder's key is there */
			lease_set_state(lease, LEASE_UNREACHABLE);
			break;
		case DRIVER_RENEWED:
			lease_count(COUNT_RENEWED);
			pg_atomic_write_u64(&lease->granted_until_us, core->granted_until_us);
			pg_atomic_write_u64(&lease->last_token, core->bound);
			publish_no_votes(lease);
			break;
		case DRIVER_UNRENEWED:
			lease_count(COUNT_UNRENEWED);
			publish_votes(lease);
			if (of->serves)
				trouble_log(lease, TROUBLE_UNRENEWED, now_us);
			break;
		case DRIVER_LOST:
			pg_atomic_write_u64(&lease->granted_until_us, core->valid_until_us);
			if (lease->is_queue)
			{
				lease_set_state(lease, LEASE_LOST);
				break;
			}
			lease_count(COUNT_LOST);
			lease_stats_lost(lease);
			if (core_has_quorum(core->lists, core_votes(core, CORE_VOTE_YES)))
				publish_no_votes(lease); /* a node without an answer is not the reason */
			else
				publish_votes(lease);
			lease_set_state(lease, LEASE_LOST);
			trouble_log(lease, TROUBLE_LOST, now_us);
			break;
		case DRIVER_RELEASED:
			lease_count(COUNT_RELEASED);
			break;
		case DRIVER_HEARD:
			lease_count(COUNT_WOKEN);
			break;
	}
}

/* For the owner's messages: the nodes that the last round lacked, by cause. */
static void
publish_votes(Lease *lease)
{
	pg_atomic_write_u32(&lease->silent_nodes, core_votes(&lease->drive.core, CORE_VOTE_ERROR));
	pg_atomic_write_u32(&lease->denying_nodes, core_votes(&lease->drive.core, CORE_VOTE_NO));
}

/* The last round lacked no node that matters. */
static void
publish_no_votes(Lease *lease)
{
	pg_atomic_write_u32(&lease->silent_nodes, 0);
	pg_atomic_write_u32(&lease->denying_nodes, 0);
}

static void
no_more_waits(Driver *of, int entry)
{
	deadlock_end(lease_at(entry));
}

static int64_t
hold_until_us(const Driver *of, int entry, int64_t now_us)
{
	return lease_hold_until_us(lease_at(entry), now_us);
}

static bool
hold_is_over(const Driver *of, int entry, int64_t now_us)
{
	return lease_hold_is_over(lease_at(entry), now_us);
}

static int64_t
look_at_us(Driver *of, int entry, int64_t wake_at_us)
{
	return lease_look_at_us(lease_at(entry), wake_at_us);
}

static bool
needs_tokens(const Driver *of, int entry, int64_t now_us)
{
	return lease_needs_tokens(lease_at(entry), now_us);
}

static void
expect_tokens(Driver *of, int entry, int64_t until_us)
{
	lease_expect_tokens(lease_at(entry), until_us);
}

static DriverTurnEnd
turn_end(const Driver *of, int entry)
{
	const Lease *lease = lease_at(entry);

	return lease->goes_on ? TURN_GOES_ON : lease->returns ? TURN_RETURNS : TURN_ENDS;
}

static bool
end_idle(Driver *of, int entry, int64_t now_us)
{
	return lease_end_idle(lease_at(entry), now_us);
}

static bool
end_hold(Driver *of, int entry, int64_t now_us)
{
	return lease_end_hold(lease_at(entry), now_us);
}

static bool
release_idle(Driver *of, int entry)
{
	return lease_release_idle(lease_at(entry));
}

static bool
end_detached(Driver *of, int entry)
{
	return lease_end_detached(lease_at(entry));
}

static bool
release_orphan(Driver *of, int entry, int64_t now_us)
{
	if (!lease_release_orphan(lease_at(entry)))
		return false;
	trouble_log(lease_at(entry), TROUBLE_LEFT, now_us);
	return true;
}

static void
note_waiting_host(Driver *of, int entry)
{
	lease_note_waiting_host(lease_at(entry));
}

static void
tell_permit(Driver *of, int entry, int permit)
{
	lease_tell_permit(lease_at(entry), permit);
}

static void
count_unsettled(Driver *of, int change)
{
	if (pg_atomic_read_u32(&lease_table->unsettled) != LEASE_UNSETTLED_UNKNOWN)
		pg_atomic_fetch_add_u32(&lease_table->unsettled, change);
}

static void
free_entry(Driver *of, int entry)
{
	lease_free(lease_at(entry));
}

static const DriverWorld world = {
	.lists = get_lists,
	.can_send = can_send,
	.can_vote = can_vote,
	.on_duty = on_duty,
	.round_trip_us = round_trip_us,
	.compose = compose,
	.send = send_to_node,
	.wall_clock_us = wall_clock_us,
	.random = random_bits,
	.set_timer = set_timer,
	.hear = hear,
	.tell_host = tell_host,
	.make_waiters = make_waiters,
	.drop_waiters = drop_waiters,
	.get_terms = get_terms,
	.new_value = new_value,
	.wish = get_wish,
	.is_answered = is_answered,
	.is_returned = is_returned,
	.tell = tell,
	.no_more_waits = no_more_waits,
	.hold_until_us = hold_until_us,
	.hold_is_over = hold_is_over,
	.look_at_us = look_at_us,
	.needs_tokens = needs_tokens,
	.expect_tokens = expect_tokens,
	.turn_end = turn_end,
	.end_idle = end_idle,
	.end_hold = end_hold,
	.release_idle = release_idle,
	.end_detached = end_detached,
	.release_orphan = release_orphan,
	.note_waiting_host = note_waiting_host,
	.tell_permit = tell_permit,
	.count_unsettled = count_unsettled,
	.free = free_entry,
};

Driver *
world_init(void)
{
	int entries = lease_table->entries;
	Release *releases = MemoryContextAllocHuge(TopMemoryContext, entries * sizeof(Release));

	timers = MemoryContextAllocExtended(TopMemoryContext, entries * sizeof(Timer),
										MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	timer_heap = timers_make();
	driver.world = &world;
	driver.id = lease_table->host_id;
	driver.entries = entries;
	driver.leases = (char *) &lease_table->lease[0].drive;
	driver.stride = sizeof(Lease);
	driver.entry = MemoryContextAllocExtended(TopMemoryContext, entries * sizeof(DriverEntry),
											  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	driver.settling = &lease_table->settling;
	driver.retry_us = RETRY_US;
	driver.retry_told_us = RETRY_SUBSCRIBED_US;
	driver_init(&driver, releases, UNHURRIED_MAX);
	return &driver;
}
