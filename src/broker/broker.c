/*
 * broker.c
 *		The background worker that drives the leases of this server.
 *
 * It takes wishes from the work queue, feeds the core of each lease with what
 * happens (a wish, a reply, a broken connection, a timer), sends what the core
 * asks for, and publishes outcomes to the owners.  A pass of its loop collects
 * all commands for a node into one write.
 *
 * The core of a lease lives in shared memory, so a broker that was terminated
 * or failed leaves all it knew to its successor, which adopts it: connections
 * are gone, so it tells each core that its nodes were lost, and goes on.
 *
 * SIGTERM comes both from a person and from the postmaster that shuts down, to
 * all processes at once.  In the first case the broker ends and is restarted;
 * in the second it must stay until the sessions have gone and what they held is
 * released.  The status line of postmaster.pid tells which, as for pg_ctl.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"
#include "utils/timestamp.h"

#include "broker/broker.h"
#include "broker/deadlock.h"
#include "broker/loop.h"
#include "broker/members.h"
#include "broker/node.h"
#include "broker/registry.h"
#include "broker/subscription.h"
#include "broker/timers.h"
#include "broker/tls.h"
#include "broker/trouble.h"
#include "broker/turns.h"
#include "protocol/release_queue.h"
#include "protocol/rules.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/new_names.h"
#include "shared/node_status.h"

/* Mean pause between two rounds for a lock that another holds. */
#define RETRY_US INT64CONST(50000)

/* ... when its release will be told: the mean of what a lost message costs. */
#define RETRY_SUBSCRIBED_US INT64CONST(500000)

/* A stay by keep_idle may last this much longer, as the timers of others may be late. */
#define STAY_GRAIN_US INT64CONST(10000)

/* Timers handled before sockets are looked at again. */
#define TIMERS_PER_PASS 1000

/*
 * Unanswered releases, and repairs of a node that is back, at one node: what it
 * executes in a few milliseconds.  Acquires and renewals need not wait for more.
 */
#define UNHURRIED_MAX 512

/* Releases begun before sockets are looked at again. */
#define RELEASES_PER_PASS 1000

/* How often an error of a node is logged that is another again and again. */
#define LOG_ERROR_US INT64CONST(10000000)

/* So full a node is told of; and so full that it is told that there is room again. */
#define MEMORY_WARN_PERCENT 80
#define MEMORY_ROOM_PERCENT 75

StaticAssertDecl(NODE_SLOTS <= LOOP_SOCKETS_MAX, "each connection needs a place in the loop");

static Timer *timers; /* one for each slot of the lease table */
static pairingheap *timer_heap;
static ReleaseQueue releases;
static bool tried = false;   /* each node was tried once */
static bool settled = false; /* ... and told of other hosts: acquires may begin */
static int64 settle_by_us;   /* ... then in any case */

static void make_pass(int64 now_us);
static void take_queue(int64 now_us);
static int64 run_timers(int64 now_us, int64 looked_us);
static void act_on_wish(Lease *lease, int64 now_us);
static void extend(Lease *lease, int64 now_us);
static void limit(Lease *lease, int64 now_us);
static void begin_to_settle(int64 now_us);
static void begin_to_serve(int64 now_us);
static void ask(Lease *lease, int64 now_us);
static void step(Lease *lease, core_event *event);
static void step_simple(Lease *lease, core_event_type type, int node, int64 now_us);
static void send_to(core_mask nodes, Lease *lease, core_op op, core_event_type why, int64 now_us);
static void begin_command(ScriptCommand *command, char value[SCRIPT_VALUE_SIZE], Lease *lease,
						  core_op op, int64 now_us);
static void send_one(RedisNode *node, Lease *lease, ScriptCommand *command, const InFlight *sent);
static void publish(Lease *lease, core_outcome outcome, int64 now_us);
static void count_unsettled(int change);
static void draw_secret(uint8 secret[LOCK_SECRET_BYTES]);
static bool release_orphan(Lease *lease, int64 now_us);
static void ask_if_missed(Lease *lease, int64 now_us);
static void on_joined(RedisNode *node, const char *channel, size_t len, int64 now_us);
static void on_hear(RedisNode *node, const char *channel, size_t len, const char *text,
					size_t text_len, int64 now_us);
static void ask_again(Lease *lease);
static void wake(Lease *lease, int64 retry_us, int64 not_before_us, int64 now_us);
static void set_masks(core_event *event, const Lease *lease);
static core_mask voters(int64 now_us);
static void publish_votes(Lease *lease);
static void set_timer(Lease *lease);
static void init_releases(void);
static int64 begin_releases(int64 now_us);
static void send_unsent(int64 now_us);
static void hurry_release(Lease *lease, int64 now_us);
static void hurry_releases_of(uint64 hash, int64 now_us);
static void forget_debts(int64 now_us);
static void take(const ReleaseStep *next, int64 now_us);
static void adopt_leases(int64 now_us);
static void configure_nodes(int64 now_us);
static void move_askers(int64 now_us);
static void relist(int64 now_us);
static void on_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					  int64 now_us);
static void note_round_trip(NodeStatus *status, int64 us);
static void count_vote(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					   int64 now_us);
static void on_lost(RedisNode *node, const InFlight *sent, int64 now_us);
static void on_change(RedisNode *node, NodeState before);
static void on_measure(RedisNode *node);
static char *most_names_text(void);
static void show_node(RedisNode *node, NodeState before);
static bool may_log_error(RedisNode *node, bool ended_duty);
static void warn_of_praise(RedisNode *node);
static bool postmaster_stops(void);
static bool all_released(void);
static void detach(int code, Datum arg);

static const NodeHandler handler = {on_answer,     on_lost,   on_change, on_measure,
									registry_hear, on_joined, on_hear};

void
broker_register(void)
{
	BackgroundWorker worker = {0};

	strlcpy(worker.bgw_name, "redlock broker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "redlock broker", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	strcpy(worker.bgw_library_name, "redlock_pg");
	strcpy(worker.bgw_function_name, "redlock_broker_main");
	RegisterBackgroundWorker(&worker);
}

void
redlock_broker_main(Datum arg)
{
	int64 now_us = redlock_clock_us();
	bool stopping = false;

	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	if (lease_table == NULL)
	{
		/* a server that loads the one file and starts the broker of another would go on crashing */
		ereport(LOG,
				(errmsg("the redlock broker does not start: redlock_pg was preloaded from "
						"another file than \"$libdir/redlock_pg\""),
				 errhint("Write shared_preload_libraries = 'redlock_pg', without a folder, and "
						 "restart the server.")));
		proc_exit(0); /* it is not restarted */
	}

	/*
	 * A background worker drops the SIGHUP that came before its first lines, and the
	 * first reload may follow the start of the server at once.  A later broker does
	 * not read the files: they may have changes that were not reloaded.
	 */
	ConfigReloadPending = ConfigReloadPending || !lease_had_broker();

	before_shmem_exit(detach, (Datum) 0);
	timers = MemoryContextAllocExtended(TopMemoryContext, lease_table->slots * sizeof(Timer),
										MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	timer_heap = timers_make();
	init_releases();
	subscription_init();
	turns_init();
	deadlock_init();
	registry_init();
	lease_broker_attach(MyLatch);
	node_init(&handler);
	members_adopt(now_us);
	configure_nodes(now_us);
	settle_by_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
	adopt_leases(now_us);

	for (;;)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			(void) lease_give_up_stays(); /* those that asked with what was set before */
			if (tls_reload())
				members_tls_changed();
			configure_nodes(redlock_clock_us());
		}
		if (ShutdownRequestPending && !stopping)
		{
			stopping = postmaster_stops();
			if (!stopping)
				proc_exit(1); /* the postmaster will start a successor */
			lease_end_all_stays();
		}
		if (stopping && all_released() && registry_leave(redlock_clock_us()))
			proc_exit(1); /* if the server waits for sessions yet, with a successor */

		make_pass(redlock_clock_us());
	}
}

/*
 * One pass: wishes, timers, one write to each node, a wait, and replies.  Nodes come
 * first: one that failed says why, a round that ended does not.  What they wait for is
 * asked last, since something may have been sent to them meanwhile.
 *
 * A time that is over counts as such when the sockets have been looked at since: what
 * came in time, while this process did not run, is in time.
 */
static void
make_pass(int64 now_us)
{
	static int64 looked_us = 0;
	LoopEvent events[LOOP_EVENTS_MAX];
	int64 wake_at_us;
	int count;

	/* also while the nodes settle: what is given back must not be renewed */
	take_queue(now_us);
	if (!tried && (members_settled() || now_us >= settle_by_us))
	{
		tried = true;
		begin_to_settle(now_us);
	}
	if (tried && !settled &&
		((registry_may_ask(now_us) && core_has_quorum(members_lists(), registry_told())) ||
		 registry_is_stopped() || now_us >= settle_by_us))
		begin_to_serve(now_us);
	forget_debts(now_us);
	if (now_us >= members_due_us())
		configure_nodes(now_us);

	for (int i = 0; i < NODE_SLOTS; i++)
		node_on_time(node_at(i), now_us, looked_us);
	members_reopen_tls(now_us);
	wake_at_us = members_due_us();
	if (!settled)
		wake_at_us = Min(wake_at_us, settle_by_us);
	wake_at_us = Min(wake_at_us, run_timers(now_us, looked_us));
	send_unsent(now_us);
	wake_at_us = Min(wake_at_us, begin_releases(now_us));
	wake_at_us = Min(wake_at_us, deadlock_on_time(now_us));
	wake_at_us = Min(wake_at_us, trouble_sum_up(now_us));
	if (tried)
		wake_at_us = Min(wake_at_us, registry_on_time(now_us));
	for (int i = 0; i < NODE_SLOTS; i++)
		if (!node_flush(node_at(i), now_us))
			wake_at_us = now_us; /* leases took steps, and want a pass */
	for (int i = 0; i < NODE_SLOTS; i++)
		wake_at_us = Min(wake_at_us, node_on_time(node_at(i), now_us, looked_us));

	looked_us = redlock_clock_us();
	count = loop_wait(wake_at_us == PG_INT64_MAX ? -1 : Max(wake_at_us - looked_us, 0), events);
	now_us = redlock_clock_us();
	for (int i = 0; i < count; i++)
		node_on_socket(node_at(events[i].node), events[i].readable, events[i].writable, now_us);
}

/*
 * Leases and their timers
 */

static void
take_queue(int64 now_us)
{
	int slot = lease_take_queue();

	while (slot >= 0)
	{
		Lease *lease = lease_at(slot);

		slot = lease_next_in_chain(slot);
		act_on_wish(lease, now_us);
	}
}

/* Returns when the next timer is due. */
static int64
run_timers(int64 now_us, int64 looked_us)
{
	for (int i = 0; i < TIMERS_PER_PASS; i++)
	{
		Timer *timer = timers_first(timer_heap);
		Lease *lease;

		if (timer == NULL)
			return PG_INT64_MAX;
		if (timer->at_us > looked_us)
			return timer->at_us;

		lease = lease_at(timer - timers);
		limit(lease, now_us);
		if (lease_end_stay(lease, now_us) || lease_end_hold(lease, now_us))
			act_on_wish(lease, now_us);
		else if (now_us < lease->core.wake_at_us)
			set_timer(lease); /* a stay or a hold might have ended, but goes on */
		else if (release_orphan(lease, now_us))
			act_on_wish(lease, now_us);
		else
			step_simple(lease, CORE_TICK, 0, now_us);
	}
	return now_us;
}

/* Looked at when a renewal is due. */
static bool
release_orphan(Lease *lease, int64 now_us)
{
	if (!lease_release_orphan(lease))
		return false;
	trouble_log(lease, TROUBLE_LEFT, now_us);
	return true;
}

/* Do what the owner wishes, if that is not under way.  Safe to repeat. */
static void
act_on_wish(Lease *lease, int64 now_us)
{
	if (!lease->in_use)
		return;
	switch (wish_act(pg_atomic_read_u32(&lease->wish), lease->core.state, settled,
					 lease_state(lease) != LEASE_WAITING,
					 release_queue_waits(&releases, lease_slot(lease))))
	{
		case WISH_WAIT:
			if (lease->core.state == CORE_HELD)
			{
				set_timer(lease); /* its stay may end sooner */
				extend(lease, now_us);
				limit(lease, now_us);
			}
			break;
		case WISH_ASK:
			ask(lease, now_us);
			break;
		case WISH_FREE:
			turns_forget(lease);
			lease_free(lease);
			break;
		case WISH_RELEASE:
			limit(lease, now_us);
			/* a loss that the owner noticed first is told all the same */
			if (lease->core.state == CORE_HELD && now_us >= lease->core.valid_until_us &&
				!lease_hold_is_over(lease, now_us))
				step_simple(lease, CORE_TICK, 0, now_us);
			lease_count(COUNT_RELEASED);
			if (release_queue_begin(&releases, lease_slot(lease), &lease->core, lease->hash,
									nodes_that(node_can_send)))
				step_simple(lease, CORE_RELEASE, 0, now_us);
			else
				set_timer(lease);
			break;
	}
}

/* So that who takes a lease that stays need not ask the nodes for tokens. */
static void
extend(Lease *lease, int64 now_us)
{
	core_event event = {0};

	if (!lease_wants_tokens(lease, now_us))
		return;
	event.type = CORE_EXTEND;
	event.now_us = now_us;
	event.token = rules_more_tokens(lease->core.bound, redlock_wall_clock_us());
	if (event.token > 0)
		step(lease, &event);
	lease_expect_tokens(lease, core_raises_until_us(&lease->core));
}

/* It may be held for longer than the core knows, or have another holder. */
static void
limit(Lease *lease, int64 now_us)
{
	core_event event = {0};

	if (lease->core.state != CORE_HELD)
		return;
	event.type = CORE_LIMIT;
	event.now_us = now_us;
	event.hold_until_us = lease_hold_until_us(lease, now_us);
	if (event.hold_until_us != lease->core.hold_until_us)
		step(lease, &event);
}

/* Requests wait until the nodes have told of other hosts, but no longer than a node may take. */
static void
begin_to_settle(int64 now_us)
{
	settled = false;
	settle_by_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
}

/*
 * Requests that came while the nodes settled, and what an earlier broker was asked
 * and did not see, or did not bring to an end.  Releases came before, by the queue.
 */
static void
begin_to_serve(int64 now_us)
{
	settled = true;
	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		if (lease->in_use && lease->core.state == CORE_BUSY &&
			pg_atomic_read_u32(&lease->wish) == WISH_HOLD)
			wake(lease, RETRY_US, 0, now_us);
		else
			act_on_wish(lease, now_us);
	}
}

static void
ask(Lease *lease, int64 now_us)
{
	core_event event = {0};
	int64 node_timeout_us = redlock_node_timeout_ms * INT64CONST(1000);

	if (members_lists().now == 0)
	{
		lease_set_state(lease, LEASE_UNREACHABLE);
		return;
	}
	hurry_releases_of(lease->hash, now_us); /* our own key would be in the way */
	draw_secret(lease->secret);
	event.type = CORE_ACQUIRE;
	event.now_us = now_us;
	event.lists = members_lists();
	event.once = lease->once;
	event.ttl_us = lease->ttl_ms * INT64CONST(1000);
	event.answer_us = node_timeout_us;
	event.patience_us = lease->once      ? turns_recall_us()
						: lease->patient ? PG_INT64_MAX
										 : 2 * node_timeout_us;
	event.retry_us = RETRY_US;
	event.hold_at_most_us = lease->hold_at_most_ms * INT64CONST(1000);
	event.not_before_us = turns_begin(lease, now_us);
	lease->granted = false;
	lease->keep_until_us = 0;
	/* until they have answered; a request that moves to other nodes was answered before */
	if (pg_atomic_read_u32(&lease->silent_nodes) != 0)
		pg_atomic_write_u32(&lease->silent_nodes, members());
	pg_atomic_write_u32(&lease->free_permit, 0);
	step(lease, &event);
}

/* Random bytes are drawn many at a time. */
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

/*
 * Let the core of a lease take one step, and do what it asks for.  The outcome comes
 * first: all that can fail comes after it, so a successor never finds a core whose
 * owner was told something else.
 */
static void
step(Lease *lease, core_event *event)
{
	uint32 round;
	bool was_settled;
	core_out out;

	if (event->type != CORE_LIMIT && event->type != CORE_RELEASE)
		limit(lease, event->now_us);
	round = lease->core.round;
	was_settled = settling_has(&lease_table->settling, &lease->core);
	event->random = pg_prng_uint32(&pg_global_prng_state);
	set_masks(event, lease);
	core_step(&lease->core, event, &out);
	if (settling_has(&lease_table->settling, &lease->core) != was_settled)
		count_unsettled(was_settled ? 1 : -1);
	publish(lease, out.outcome, event->now_us);
	if (event->type == CORE_RELEASE && lease->granted)
		turns_end(lease, event->now_us);

	send_to(out.release, lease, CORE_OP_RELEASE, event->type, event->now_us);
	send_to(out.acquire, lease, CORE_OP_ACQUIRE, event->type, event->now_us);
	send_to(out.confirm, lease, CORE_OP_CONFIRM, event->type, event->now_us);
	send_to(out.renew, lease, CORE_OP_RENEW, event->type, event->now_us);
	if (lease->core.round != round && lease->core.state == CORE_ASKING)
		subscription_asked(lease);
	if (lease->core.state != CORE_ASKING && lease->core.state != CORE_BUSY)
	{
		if (!lease->is_queue || lease->core.state != CORE_HELD)
			subscription_end(lease);
		deadlock_end(lease);
	}
	set_timer(lease);
	release_queue_follow(&releases, lease_slot(lease), &lease->core, lease->hash, event,
						 nodes_that(node_is_on_duty));
	if (lease->core.state == CORE_FREE)
		act_on_wish(lease, event->now_us);
	else if (out.outcome == CORE_MUST_WAIT || event->type == CORE_REPLY)
		ask_if_missed(lease, event->now_us);
}

static void
ask_if_missed(Lease *lease, int64 now_us)
{
	core_event event = {.type = CORE_WAKE, .now_us = now_us};

	if (!subscription_may_miss(lease))
		return;
	event.by_us = turns_miss(lease, now_us);
	if (event.by_us != 0 && event.by_us < lease->core.next_at_us)
		step(lease, &event);
}

/*
 * Releases, and repairs of a node that is back: protocol/release_queue.c decides
 */

static void
init_releases(void)
{
	Release *slots = MemoryContextAllocHuge(TopMemoryContext, lease_table->slots * sizeof(Release));

	release_queue_init(&releases, slots, lease_table->slots, UNHURRIED_MAX);
}

/* Those that have waited longest.  Returns when to be called again. */
static int64
begin_releases(int64 now_us)
{
	ReleaseStep next;

	for (int i = 0; i < RELEASES_PER_PASS; i++)
	{
		if (!release_queue_next_waiting(&releases, nodes_that(node_can_send), &next))
			return PG_INT64_MAX; /* an answer makes room */
		take(&next, now_us);
	}
	return now_us;
}

/* Nodes that had no room may have some by now. */
static void
send_unsent(int64 now_us)
{
	ReleaseStep next;

	while (release_queue_next_unsent(&releases, nodes_that(node_can_send), &next))
		take(&next, now_us);
}

/* Send what is not yet sent of its release. */
static void
hurry_release(Lease *lease, int64 now_us)
{
	ReleaseStep next;

	while (release_queue_hurry(&releases, lease_slot(lease), &next))
		take(&next, now_us);
}

static void
hurry_releases_of(uint64 hash, int64 now_us)
{
	int slot;

	while ((slot = release_queue_find(&releases, hash)) >= 0)
		hurry_release(lease_at(slot), now_us);
}

/* Nodes that do not answer must not use up the table with what they are owed. */
static void
forget_debts(int64 now_us)
{
	ReleaseStep next;

	while (lease_slots_used() > redlock_max_locks && release_queue_forget(&releases, &next))
		take(&next, now_us);
}

static void
take(const ReleaseStep *next, int64 now_us)
{
	step_simple(lease_at(next->slot), next->type, next->node, now_us);
}

static void
step_simple(Lease *lease, core_event_type type, int node, int64 now_us)
{
	core_event event = {0};

	event.type = type;
	event.now_us = now_us;
	event.node = node;
	step(lease, &event);
}

static void
send_to(core_mask nodes, Lease *lease, core_op op, core_event_type why, int64 now_us)
{
	InFlight sent;
	ScriptCommand command;
	char value[SCRIPT_VALUE_SIZE];

	if (nodes == 0)
		return;
	sent.lease_slot = lease_slot(lease);
	sent.generation = lease->generation;
	sent.round = lease->core.round;
	sent.op = op;
	sent.why = why;
	sent.sent_us = now_us;
	begin_command(&command, value, lease, op, now_us);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (nodes & CORE_BIT(i))
			send_one(node_at(i), lease, &command, &sent);
}

/* What is the same for all nodes. */
static void
begin_command(ScriptCommand *command, char value[SCRIPT_VALUE_SIZE], Lease *lease, core_op op,
			  int64 now_us)
{
	command->op = op;
	command->key = lease->key;
	command->key_len = lease->key_len;
	command->value = value;
	command->value_len = script_value(value, lease->secret, lease_table->host_id, lease->shared,
									  lease->may_stay, lease_holder(lease));
	command->shared = lease->shared;
	command->wall_clock_us = redlock_wall_clock_us();
	command->ttl_ms = lease->ttl_ms;
	if (op == CORE_OP_RELEASE)
	{
		/* at nodes that a lease has left, nothing ends */
		command->ttl_ms = rules_release_ms(core_ends(&lease->core), lease->token != 0,
										   lease->keep_until_us, now_us);
		if (command->ttl_ms == LUA_DELETE_AND_TELL && lease->permits > 0 && !lease->is_queue)
			command->ttl_ms = LUA_DELETE_AND_TELL_QUEUE;
		if (command->ttl_ms > 0)
		{
			settling_keep(&lease_table->settling, &lease->core, lease->keep_until_us);
			pg_atomic_write_u64(&lease_table->unsettled_until_us,
								lease_table->settling.unsettled_until_us);
		}
	}
	command->waited_us = lease->once ? -1 : turns_waited_us(lease, now_us);
	command->permits = lease->is_queue ? 0 : lease->permits;
	command->token = lease->granted ? lease->core.token : 0;
	command->waiters = turns_waiters(lease);
	command->now_us = now_us;
}

static void
send_one(RedisNode *node, Lease *lease, ScriptCommand *command, const InFlight *sent)
{
	command->core = core_command_to(&lease->core, node->slot, command->op);
	script_set_attempt(command->value, command->core.attempt);
	release_queue_sent(&releases, node->slot, sent->op, sent->why);
	node_send(node, command, sent);
}

/* Tell the owner, the counters, and then, which can fail, the log. */
static void
publish(Lease *lease, core_outcome outcome, int64 now_us)
{
	const core_lease *core = &lease->core;

	switch (outcome)
	{
		case CORE_NOTHING:
			break;
		case CORE_MUST_WAIT:
			if (core->unreachable_since_us > 0)
				publish_votes(lease);
			else
				pg_atomic_write_u32(&lease->silent_nodes, 0);
			pg_atomic_write_u32(&lease->denying_nodes, 0); /* it is held by another there */
			subscription_begin(lease);
			if (core->unreachable_since_us == 0 && !core->once)
			{
				lease_tell_refused(lease);
				deadlock_wait(lease, now_us);
			}
			break;
		case CORE_GRANTED:
			lease_count(COUNT_GRANTED);
			lease->granted = true;
			/* a turn goes on only if no other host came between */
			if (core->attempt > 1)
				lease->turn_handovers = 0;
			if (lease->turn_handovers == 0)
			{
				lease->turn_began_us = now_us;
				lease->long_turn_us = turns_long_us();
			}
			lease->first_token = rules_first_token(core->token);
			pg_atomic_write_u64(&lease->last_token, core->bound);
			pg_atomic_write_u64(&lease->hold_until_us, core->hold_until_us);
			if (lease->hold_at_least_ms > 0)
				lease->keep_until_us = now_us + lease->hold_at_least_ms * INT64CONST(1000);
			pg_atomic_write_u64(&lease->granted_until_us, core->granted_until_us);
			pg_atomic_write_u32(&lease->silent_nodes, 0);
			if (lease->is_queue)
				subscription_begin(lease);
			lease_set_state(lease, LEASE_HELD);
			break;
		case CORE_REFUSED:
			lease_count(COUNT_REFUSED);
			lease_set_state(lease, LEASE_REFUSED);
			break;
		case CORE_UNREACHABLE:
			publish_votes(lease);
			pg_atomic_write_u32(&lease->denying_nodes, 0); /* it is held by another there */
			lease_set_state(lease, LEASE_UNREACHABLE);
			break;
		case CORE_RENEWED:
			lease_count(COUNT_RENEWED);
			pg_atomic_write_u64(&lease->granted_until_us, core->granted_until_us);
			pg_atomic_write_u64(&lease->last_token, core->bound);
			break;
		case CORE_UNRENEWED:
			lease_count(COUNT_UNRENEWED);
			lease_expect_tokens(lease, 0);
			publish_votes(lease);
			if (settled)
				trouble_log(lease, TROUBLE_UNRENEWED, now_us);
			break;
		case CORE_EXPIRED:
			if (release_queue_waits(&releases, lease_slot(lease)))
				break; /* it was given back in time */
			if (lease_give_up_stay(lease))
				break; /* nobody has lost it */
			if (lease_hold_is_over(lease, now_us) && lease_end_hold(lease, now_us))
				break; /* it was to end; one that was prolonged at the last moment is lost */
			pg_atomic_write_u64(&lease->granted_until_us, core->valid_until_us);
			if (lease->is_queue)
			{
				lease_set_state(lease, LEASE_LOST); /* a place in a queue, which is taken again */
				break;
			}
			lease_count(COUNT_LOST);
			publish_votes(lease);
			lease_set_state(lease, LEASE_LOST);
			trouble_log(lease, TROUBLE_LOST, now_us);
			(void) lease_give_up_detached(lease); /* nobody else would, */
			(void) lease_give_up_stay(lease);     /* ... if its owner has just left it */
			break;
	}
}

static void
count_unsettled(int change)
{
	if (pg_atomic_read_u32(&lease_table->unsettled) != LEASE_UNSETTLED_UNKNOWN)
		pg_atomic_fetch_add_u32(&lease_table->unsettled, change);
}

static void
set_masks(core_event *event, const Lease *lease)
{
	event->can_send = nodes_that(node_can_send);
	event->can_vote = voters(event->now_us);
	event->can_release = release_queue_can_release(&releases, lease_slot(lease), event->can_send);
}

/* None, while another host is in the way of new locks, or may be; none that may know of one. */
static core_mask
voters(int64 now_us)
{
	return registry_may_ask(now_us) ? nodes_that(node_can_vote) & registry_told() : 0;
}

/* For the messages of the owner: which nodes the last round lacked, and why. */
static void
publish_votes(Lease *lease)
{
	pg_atomic_write_u32(&lease->silent_nodes, core_votes(&lease->core, CORE_VOTE_ERROR));
	pg_atomic_write_u32(&lease->denying_nodes, core_votes(&lease->core, CORE_VOTE_NO));
}

/*
 * Those of held leases may be late by a thousandth of the ttl, so that many
 * leases are renewed in one pass.  Sessions know nothing of that delay, so a stay that
 * goes on does not wake us for it.
 */
static void
set_timer(Lease *lease)
{
	int64 at_us = release_queue_wake_at_us(&releases, lease_slot(lease), &lease->core);
	int64 grain_us = lease->ttl_ms; /* a thousandth of the ttl */

	if (at_us != 0 && lease->core.state == CORE_HELD)
	{
		int64 look_at_us = lease_look_at_us(lease, at_us);

		if (look_at_us < at_us)
			grain_us = Min(grain_us, STAY_GRAIN_US);
		at_us = look_at_us;
		at_us += grain_us - at_us % grain_us;
	}
	timers_set(timer_heap, &timers[lease_slot(lease)], at_us);
}

static void
on_joined(RedisNode *node, const char *channel, size_t len, int64 now_us)
{
	bool majority;
	Lease *lease = subscription_joined(node, channel, len, &majority);

	if (lease == NULL)
		return;
	if (!majority)
	{
		ask_if_missed(lease, now_us);
		return;
	}
	if (lease->is_queue && lease->core.state == CORE_HELD)
		lease_tell_permit(lease, 0); /* one may have been released before we heard of it */
	wake(lease, RETRY_SUBSCRIBED_US, 0, now_us);
}

static void
on_hear(RedisNode *node, const char *channel, size_t len, const char *text, size_t text_len,
		int64 now_us)
{
	ScriptMessage message;
	Lease *lease;
	bool majority;
	int64 turn_us;

	script_hear(text, text_len, now_us - turns_way_us(), &message);
	if (subscription_is_own(channel, len))
	{
		if (message.word == SCRIPT_PROBE)
			deadlock_hear(&message.probe, now_us);
		if (message.word != SCRIPT_WANT)
			return;
		lease = subscription_lease(message.key, message.key_len);
		if (lease != NULL && message.waiters.count == 0)
			lease_recall(lease);
		else if (lease != NULL)
			turns_want(lease, &message.waiters.waiter[0], message.shared, now_us);
		return;
	}
	if (message.word == SCRIPT_PERMIT)
	{
		lease = subscription_told_permit(node, channel, len, message.permit);
		if (lease != NULL)
			lease_tell_permit(lease, message.permit);
		return;
	}
	if (message.word != SCRIPT_FREE)
		return;
	lease = subscription_told(node, channel, len, message.token, &majority);
	if (lease == NULL)
		return;
	if (!majority)
	{
		ask_if_missed(lease, now_us);
		return;
	}
	turn_us = turns_hear(lease, &message.waiters, now_us);
	if (turn_us != 0)
		wake(lease, RETRY_SUBSCRIBED_US, turn_us, now_us);
}

/* It would not hear of a release. */
static void
ask_again(Lease *lease)
{
	wake(lease, RETRY_US, 0, redlock_clock_us());
}

static void
wake(Lease *lease, int64 retry_us, int64 not_before_us, int64 now_us)
{
	core_event event = {0};

	event.type = CORE_WAKE;
	event.now_us = now_us;
	event.retry_us = retry_us;
	event.not_before_us = not_before_us;
	step(lease, &event);
}

/*
 * What an earlier broker left: its connections are gone.  A request is asked
 * for again, and other wishes that it did not see are looked at, when the nodes have
 * settled.
 */
static void
adopt_leases(int64 now_us)
{
	for (int slot = 0; slot < lease_table->slots; slot++)
	{
		Lease *lease = lease_at(slot);
		core_event event = {0};

		if (!lease->in_use || lease->core.state == CORE_FREE)
			continue;
		event.type = CORE_ADOPT;
		event.now_us = now_us;
		event.not_before_us = settle_by_us;
		step(lease, &event);
		if (lease->is_queue && lease->core.state == CORE_HELD)
			subscription_begin(lease);
		if (pg_atomic_read_u32(&lease->wish) == WISH_NOTHING)
			act_on_wish(lease, now_us); /* it must not be renewed */
		set_timer(lease);
	}
}

/*
 * Nodes
 */

/* Put redlock.nodes and redlock.nodes_next into force. */
static void
configure_nodes(int64 now_us)
{
	bool in_force;

	pg_atomic_write_u32(&lease_table->unsettled, LEASE_UNSETTLED_UNKNOWN);
	registry_changed();
	in_force = members_configure(now_us, registry_may_leave, registry_stay);
	registry_configured(now_us);
	if (settled && !registry_may_ask(now_us))
		begin_to_settle(now_us); /* this host looks at the others first */
	if (!in_force)
		return;
	move_askers(now_us);
	relist(now_us);
	members_close_left(now_us);
}

static void
move_askers(int64 now_us)
{
	for (int i = 0; i < lease_table->slots; i++)
	{
		const Lease *lease = lease_at(i);
		ReleaseStep next;

		if (!lease->in_use || !core_must_move(&lease->core, members_lists()))
			continue;
		while (release_queue_move(&releases, i, &lease->core, members_lists(), &next))
			take(&next, now_us);
	}
}

/* Leases are held by the lists in force, as soon as that is safe.  Counts those that are not. */
static void
relist(int64 now_us)
{
	core_event event = {.type = CORE_RELIST, .now_us = now_us, .lists = members_lists()};
	uint32 unsettled = 0;

	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		if (!lease->in_use || lease->core.state == CORE_FREE)
			continue;
		if (!release_queue_waits(&releases, i) && (lease->core.wanted.now != event.lists.now ||
												   lease->core.wanted.next != event.lists.next))
			step(lease, &event);
		unsettled += !settling_has(&lease_table->settling, &lease->core);
	}
	pg_atomic_write_u64(&lease_table->unsettled_until_us, lease_table->settling.unsettled_until_us);
	pg_atomic_write_u32(&lease_table->unsettled, unsettled);
}

static void
on_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer, int64 now_us)
{
	Lease *lease = lease_at(sent->lease_slot);
	/* it lacks the script: no failure, whether or not somebody still waits for it */
	bool needs_text = answer->unknown_script && !sent->by_text;
	core_event event = {0};

	release_queue_answered(&releases, node->slot, sent->op, sent->why);
	/*
	 * The slot has another lease by now.  Its core would know by the round, which is
	 * never set back; but who holds a lock must not be told of another one.
	 */
	if (lease->generation != sent->generation)
		return;

	if (needs_text &&
		release_queue_may_repeat(&releases, sent->lease_slot, &lease->core, node->slot, sent->op,
								 sent->round, now_us, nodes_that(node_can_send), voters(now_us)))
	{
		/* node_pipeline.c sends the script along */
		send_to(CORE_BIT(node->slot), lease, sent->op, sent->why, now_us);
		return;
	}

	if (!needs_text)
		count_vote(node, sent, answer, now_us);
	if (sent->op == CORE_OP_ACQUIRE && answer->reply == CORE_REPLY_NO)
	{
		TimestampTz until = answer->kept ? GetCurrentTimestamp() + answer->busy_ms * 1000 : 0;

		lease_tell_holder(lease, answer->text, answer->ours, until);
		if (answer->free_permit > 0)
			pg_atomic_write_u32(&lease->free_permit, answer->free_permit);
	}
	if (sent->op == CORE_OP_ACQUIRE && answer->reply <= CORE_REPLY_NO)
		pg_atomic_fetch_and_u32(&lease->silent_nodes, ~CORE_BIT(node->slot));
	event.type = CORE_REPLY;
	event.now_us = now_us;
	event.node = node->slot;
	event.op = sent->op;
	event.reply = answer->reply;
	event.round = sent->round;
	event.met_us = node->guard->met_us;
	event.busy_us = answer->busy_ms * 1000;
	event.waiting = answer->waiting;
	event.holder = answer->holder;
	event.silent = !answer->ours;
	event.may_stay = answer->may_stay;
	event.token = answer->token;
	step(lease, &event);
	if (sent->op == CORE_OP_ACQUIRE && answer->reply == CORE_REPLY_NO &&
		answer->holder == lease->core.rival &&
		(lease->core.state == CORE_ASKING || lease->core.state == CORE_BUSY))
		deadlock_held_by(lease, answer->host, answer->by_readers);
}

static void
count_vote(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer, int64 now_us)
{
	NodeStatus *status = &node_status[node->slot];

	note_round_trip(status, now_us - sent->sent_us);
	if (answer->reply >= CORE_REPLY_ERROR)
	{
		node_set_error(node, answer->text);
		show_node(node, node->state);
	}
	if (sent->op == CORE_OP_RELEASE)
		return; /* not a vote */
	pg_atomic_fetch_add_u64(answer->reply == CORE_REPLY_YES  ? &status->votes_yes
							: answer->reply == CORE_REPLY_NO ? &status->votes_no
															 : &status->votes_error,
							1);
}

/* Smoothed as TCP does (RFC 6298): a pause of this process is no longer way to the node. */
static void
note_round_trip(NodeStatus *status, int64 us)
{
	int64 before_us = (int64) pg_atomic_read_u64(&status->rtt_us);

	pg_atomic_write_u64(&status->rtt_us, before_us == 0 ? us : before_us + (us - before_us) / 8);
}

static void
on_lost(RedisNode *node, const InFlight *sent, int64 now_us)
{
	Lease *lease = lease_at(sent->lease_slot);

	release_queue_answered(&releases, node->slot, sent->op, sent->why);
	if (lease->generation == sent->generation && node->replacing &&
		core_may_reconnect(&lease->core, node->slot))
		return; /* NODE_READY follows */
	if (sent->op != CORE_OP_RELEASE)
		pg_atomic_fetch_add_u64(&node_status[node->slot].votes_error, 1);
	if (lease->generation == sent->generation)
		step_simple(lease, CORE_NODE_LOST, node->slot, now_us);
}

static void
on_change(RedisNode *node, NodeState before)
{
	if (node_is_subscriber(node))
	{
		if (node->state != before)
			subscription_on_change(node, ask_again);
		return;
	}
	show_node(node, before);
	if (node->state == before)
		return;
	registry_changed();
	if (before == NODE_HANDSHAKE && node_is_on_duty(node))
	{
		warn_of_praise(node);
		subscription_open(node->slot, redlock_clock_us());
	}
	if (before == NODE_READY || before == NODE_QUARANTINED || !node_can_send(node))
		return;

	/* debts can be paid now, and lost keys created again */
	for (int i = 0; i < lease_table->slots; i++)
	{
		Lease *lease = lease_at(i);

		if (lease->in_use && release_queue_node_ready(&releases, i, &lease->core, node->slot,
													  nodes_that(node_can_send)))
			step_simple(lease, CORE_NODE_READY, node->slot, redlock_clock_us());
	}
}

/* For people, and in the log once when little is left, and once when there is room again. */
static void
on_measure(RedisNode *node)
{
	NodeStatus *status = &node_status[node->slot];
	int percent =
		node->memory_limit > 0 ? (int) (100.0 * node->memory_used / node->memory_limit) : 0;

	pg_atomic_write_u64(&status->memory_used, node->memory_used);
	pg_atomic_write_u64(&status->memory_limit, node->memory_limit);
	if (node->memory_used == 0)
		return;
	if (!node->warned_of_memory && percent >= MEMORY_WARN_PERCENT)
	{
		ereport(WARNING,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("redlock node %s has little memory left", node->url.address),
				 errdetail("It uses " INT64_FORMAT " of " INT64_FORMAT " bytes, %d %%. %s",
						   node->memory_used, node->memory_limit, percent, most_names_text()),
				 errhint("Raise its maxmemory, or find out what fills it. A full node grants no "
						 "lock whose name it does not know.")));
		node->warned_of_memory = true;
	}
	else if (node->warned_of_memory && percent < MEMORY_ROOM_PERCENT)
	{
		ereport(LOG,
				(errmsg("redlock node %s has enough memory again", node->url.address),
				 errdetail("It uses " INT64_FORMAT " bytes, and its maxmemory is " INT64_FORMAT ".",
						   node->memory_used, node->memory_limit)));
		node->warned_of_memory = false;
	}
}

/* Names of roles are not known here. */
static char *
most_names_text(void)
{
	NewNames list[NEW_NAMES_ROLES];
	int count = new_names_list(list);
	NewNames most = {0};

	for (int i = 0; i < count; i++)
		if (list[i].names > most.names)
			most = list[i];
	if (most.names == 0)
		return "No role of this server has brought in a new name within an hour.";
	return psprintf("Of the roles of this server, the one with OID %u has brought in most new "
					"names within an hour: " INT64_FORMAT ".",
					most.role, most.names);
}

/* For people, and in the log if it is news. */
static void
show_node(RedisNode *node, NodeState before)
{
	NodeStatus *status = &node_status[node->slot];
	/* not only connected again, as for a new password: its last error was told then */
	bool fails = status->last_error_at != node->error_at && node->error[0] != '\0';
	bool was_on_duty = before == NODE_READY || before == NODE_QUARANTINED;
	/* it stays refused until it has answered otherwise */
	bool is_looked_at_again = node->state == NODE_RESOLVING || node->state == NODE_CONNECTING ||
							  node->state == NODE_HANDSHAKE;

	seqlock_begin_write(&status->version);
	if (strcmp(status->state, node_state_name(node->state)) != 0 &&
		!(is_looked_at_again && strcmp(status->state, node_state_name(NODE_REFUSED)) == 0))
	{
		strlcpy(status->state, node_state_name(node->state), sizeof(status->state));
		status->since = GetCurrentTimestamp();
	}
	status->evicts = node->state == NODE_QUARANTINED && node->facts.evicts;
	strlcpy(status->last_error, node->error, sizeof(status->last_error));
	status->last_error_at = node->error_at;
	seqlock_end_write(&status->version);

	if (node->state == NODE_READY && before != NODE_READY)
		ereport(LOG, (errmsg("redlock node %s is ready", node->url.address)));
	else if (node->state == NODE_QUARANTINED && before != NODE_QUARANTINED && node->facts.evicts)
		ereport(LOG, (errmsg("redlock node %s does not vote for new locks: %s", node->url.address,
							 node->error),
					  errhint("Set maxmemory-policy to noeviction on that node, also in its "
							  "configuration file. It votes again redlock.max_ttl after that.")));
	else if (node->state == NODE_QUARANTINED && before != NODE_QUARANTINED)
		ereport(LOG, (errmsg("redlock node %s does not vote for new locks for %d s: %s",
							 node->url.address,
							 (int) ((node->guard->until_us - redlock_clock_us()) / 1000000) + 1,
							 node->error)));
	else
	{
		if (fails && may_log_error(node, was_on_duty && !node_is_on_duty(node)))
			ereport(LOG, (errmsg("redlock node %s: %s", node->url.address, node->error)));
		return;
	}
	node->logged[0] = '\0';
	node->logged_us = 0;
}

/*
 * The end of its duty is told at once.  Of errors that take turns, those of answers or of
 * its addresses, one is told now and then; one that lasts comes again, and is told then.
 */
static bool
may_log_error(RedisNode *node, bool ended_duty)
{
	int64 now_us = redlock_clock_us();

	if (!ended_duty && (strcmp(node->logged, node->error) == 0 ||
						(node->logged_us != 0 && now_us - node->logged_us < LOG_ERROR_US)))
		return false;
	strlcpy(node->logged, node->error, sizeof(node->logged));
	node->logged_us = now_us;
	return true;
}

/* Once, and again when it was mended meanwhile. */
static void
warn_of_praise(RedisNode *node)
{
	if (node_is_praised(node) && !node->warned)
		ereport(WARNING, (errcode(ERRCODE_CONFIG_FILE_ERROR),
						  errmsg("redlock node %s is not durable, although redlock.nodes says so",
								 node->url.address),
						  errdetail("It says itself: %s.", node->forgets),
						  errhint("Mend that, or remove durable=yes from its URL.")));
	node->warned = node_is_praised(node);
}

/*
 * Shutdown
 */

/* Is this SIGTERM a part of the server's shutdown? */
static bool
postmaster_stops(void)
{
	FILE *file = fopen("postmaster.pid", "r");
	char line[MAXPGPATH];
	bool stops = false;

	if (file == NULL)
		return true; /* gone already */
	for (int i = 1; i <= LOCK_FILE_LINE_PM_STATUS; i++)
	{
		if (fgets(line, sizeof(line), file) == NULL)
			break;
		if (i == LOCK_FILE_LINE_PM_STATUS)
			stops = strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
	}
	fclose(file);
	return stops;
}

/*
 * Have all owners gone, and all nodes that answer been told?  What is owed to
 * nodes that can't be reached expires by itself.
 */
static bool
all_released(void)
{
	for (int i = 0; i < lease_table->slots; i++)
		if (lease_at(i)->in_use && (pg_atomic_read_u32(&lease_at(i)->wish) != WISH_NOTHING ||
									lease_is_queued(lease_at(i))))
			return false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_in_flight(node_at(i)) > 0)
			return false;
	return release_queue_is_idle(&releases, nodes_that(node_can_send));
}

static void
detach(int code, Datum arg)
{
	trouble_end();
	lease_broker_detach();
}
