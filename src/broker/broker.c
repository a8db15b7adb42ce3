/*
 * broker.c
 *		The background worker that drives the leases of this host.
 *
 * The broker takes wishes from the work queue, and feeds the core of each lease with events: a
 * wish, a reply, a broken connection, a timer.  The broker sends the commands that the core asks
 * for, and publishes outcomes to the owners.  One pass of the loop collects all commands for a
 * node into one write.
 *
 * The cores live in shared memory, so a broker that was terminated or failed leaves its knowledge
 * to the next broker.  The new broker has no connections: it tells each core that its nodes were
 * lost, and goes on.
 *
 * SIGTERM comes from a person, or from the postmaster that shuts down and signals all processes at
 * once.  After a person's SIGTERM the broker ends and is restarted.  In a shutdown the broker must
 * stay until the sessions have ended and their locks are released.  The status line of
 * postmaster.pid tells the two apart, as for pg_ctl.
 */
#include "postgres.h"

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
#include "broker/inspector.h"
#include "broker/loop.h"
#include "broker/members.h"
#include "broker/node.h"
#include "broker/node_news.h"
#include "broker/registry.h"
#include "broker/subscription.h"
#include "broker/tls.h"
#include "broker/trouble.h"
#include "broker/waiting.h"
#include "broker/world.h"
#include "driver/driver.h"
#include "driver/turns.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/holder.h"
#include "shared/lease.h"
#include "shared/node_stats.h"
#include "shared/node_status.h"

#define TIMERS_PER_PASS 1000

/* The broker remembers the latest asks for a release, to know further copies. */
#define ASKS_KNOWN 64

StaticAssertDecl(NODE_INDEXES <= LOOP_SOCKETS_MAX, "each connection needs a place in the loop");

static Driver *driver;
static bool probed_once = false; /* each node was tried once, or the time for it is over */
static int64 serve_by_us; /* end of the time to probe nodes, then of the time to ask about hosts */

static void make_pass(int64 now_us);
static bool begin_to_serve(int64 now_us);
static void take_queue(int64 now_us);
static int64 run_timers(int64 now_us, int64 looked_us);
static void hold_requests(int64 now_us);
static void configure_nodes(int64 now_us);
static void on_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					  int64 now_us);
static void tell_of_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer);
static bool has_other_permits(const Lease *lease, const ScriptAnswer *answer);
static void count_vote(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer,
					   int64 now_us);
static void note_round_trip(NodeStatus *status, int64 us);
static void on_lost(RedisNode *node, const InFlight *sent, int64 now_us);
static void on_change(RedisNode *node, NodeState before);
static void on_called(RedisNode *node, int call, const redisReply *reply, int64 now_us);
static void on_subscribed(RedisNode *node, const char *channel, size_t len, int64 now_us);
static void on_hear(RedisNode *node, const char *channel, size_t len, const char *text,
					size_t text_len, int64 now_us);
static void hear_of_host(const RedisNode *node, ScriptMessage *message, int64 now_us);
static bool is_new_ask(uint64 ask);
static bool postmaster_stops(void);
static bool all_released(int64 stopping_us);
static void detach(int code, Datum arg);

static const NodeHandler handler = {on_answer, on_lost,       on_change, node_news_of_memory,
									on_called, on_subscribed, on_hear};

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
	int64 stopping_us = 0;
	MemoryContext of_pass;

	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	if (lease_table == NULL)
	{
		/* without shared memory the broker would crash, restart, and crash again */
		ereport(LOG,
				(errmsg("the redlock broker does not start: redlock_pg was preloaded from "
						"another file than \"$libdir/redlock_pg\""),
				 errhint("Write shared_preload_libraries = 'redlock_pg', without a folder, and "
						 "restart the server.")));
		proc_exit(0); /* no restart */
	}

	/*
	 * PostgreSQL drops a SIGHUP that comes before a background worker's first lines.  A broker that
	 * has lost none does not read the files: they may have changes that nobody reloaded.
	 */
	if (guc_is_behind())
		ConfigReloadPending = true;

	before_shmem_exit(detach, (Datum) 0);
	driver = world_init();
	subscription_init(driver);
	deadlock_init(driver);
	registry_init();
	inspector_init();
	lease_broker_attach(MyLatch);
	node_init(&handler);
	members_adopt(now_us);
	configure_nodes(now_us);
	serve_by_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
	driver_adopt(driver, serve_by_us, now_us);

	/* PostgreSQL's functions may leave something behind, dsm_create for instance */
	of_pass = AllocSetContextCreate(TopMemoryContext, "redlock broker", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(of_pass);
	for (;;)
	{
		MemoryContextReset(of_pass);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			(void) lease_release_all_idle(); /* idle leases rest on the former settings */
			if (tls_reload())
				members_tls_changed();
			configure_nodes(redlock_clock_us());
		}
		if (ShutdownRequestPending && !stopping)
		{
			stopping = postmaster_stops();
			stopping_us = redlock_clock_us();
			if (!stopping)
				proc_exit(1); /* the postmaster starts the next broker */
			lease_end_unowned();
		}
		if (stopping && all_released(stopping_us) && registry_leave(redlock_clock_us()))
			proc_exit(1); /* restarted if the server still waits for sessions */

		make_pass(redlock_clock_us());
	}
}

/*
 * One pass of the loop: wishes, timers, one write to each node, a wait, and replies.
 *
 * node_on_time comes before the timers of leases: a node that failed tells why, a round that timed
 * out does not.  It comes again before the wait, since the pass may have sent commands.
 *
 * A deadline is missed only when the sockets were read after the deadline (looked_us).  This
 * process may have been stopped while an answer came in time.  Such an answer shows that the node
 * is well, but grants nothing: see core_round_ends_us.
 */
static void
make_pass(int64 now_us)
{
	static int64 looked_us = 0;
	LoopEvent events[LOOP_EVENTS_MAX];
	int64 wake_at_us;
	int count;

	/* before requests: after a pause of this process, a node may have evicted keys meanwhile */
	for (int i = 0; i < NODE_INDEXES; i++)
		node_look(node_at(i), now_us);
	/* also before the nodes are probed: a released lease must not be renewed */
	take_queue(now_us);
	if (!probed_once && (members_probed_once() || now_us >= serve_by_us))
	{
		probed_once = true;
		hold_requests(now_us);
	}
	(void) begin_to_serve(now_us);
	/* debts to dead nodes must not fill the table */
	while (lease_entries_used() > redlock_max_locks && driver_forget_debt(driver, now_us))
		;
	if (now_us >= members_due_us())
		configure_nodes(now_us);

	for (int i = 0; i < NODE_INDEXES; i++)
		node_on_time(node_at(i), now_us, looked_us);
	members_reopen_next(registry_told(), now_us);
	wake_at_us = members_due_us();
	if (!driver->serves)
		wake_at_us = Min(wake_at_us, serve_by_us);
	wake_at_us = Min(wake_at_us, run_timers(now_us, looked_us));
	driver_send_unsent(driver, now_us);
	if (driver_begin_releases(driver, now_us))
		wake_at_us = now_us;
	wake_at_us = Min(wake_at_us, deadlock_on_time(now_us));
	wake_at_us = Min(wake_at_us, trouble_sum_up(now_us));
	if (probed_once)
		wake_at_us = Min(wake_at_us, registry_on_time(now_us));
	if (begin_to_serve(now_us)) /* the node inside the server has answered a beat at once */
		wake_at_us = now_us;
	wake_at_us = Min(wake_at_us, inspector_on_time(probed_once, now_us, looked_us));
	wake_at_us = Min(wake_at_us, waiting_on_time(looked_us));
	for (int i = 0; i < NODE_INDEXES; i++)
		if (!node_flush(node_at(i), now_us))
			wake_at_us = now_us; /* leases took steps: another pass */
	for (int i = 0; i < NODE_INDEXES; i++)
		wake_at_us = Min(wake_at_us, node_on_time(node_at(i), now_us, looked_us));

	looked_us = redlock_clock_us();
	count = loop_wait(wake_at_us == PG_INT64_MAX ? -1 : Max(wake_at_us - looked_us, 0), events);
	now_us = redlock_clock_us();
	for (int i = 0; i < count; i++)
		node_on_socket(node_at(events[i].node), events[i].readable, events[i].writable, now_us);
}

/*
 * Serves requests when a quorum of nodes has told of other hosts, or when the time for this is
 * over. Returns true if the driver begins to serve now.
 */
static bool
begin_to_serve(int64 now_us)
{
	if (!probed_once || driver->serves)
		return false;
	if (!(registry_may_ask(now_us) && core_has_quorum(members_lists(), registry_told())) &&
		!registry_is_stopped() && now_us < serve_by_us)
		return false;
	driver_serve(driver, now_us);
	return true;
}

static void
take_queue(int64 now_us)
{
	int next = lease_take_queue();

	while (next >= 0)
	{
		int entry = next;

		next = lease_next_in_chain(entry);
		driver_act(driver, entry, now_us);
	}
}

/* Returns when the next timer is due. */
static int64
run_timers(int64 now_us, int64 looked_us)
{
	for (int i = 0; i < TIMERS_PER_PASS; i++)
	{
		int64 next_us;
		int entry = world_timer_due(looked_us, &next_us);

		if (entry < 0)
			return next_us;
		driver_on_timer(driver, entry, now_us);
	}
	return now_us;
}

/* Requests wait until the nodes have told of other hosts, but at most for redlock.node_timeout. */
static void
hold_requests(int64 now_us)
{
	driver_hold_requests(driver);
	serve_by_us = now_us + redlock_node_timeout_ms * INT64CONST(1000);
}

/*
 * Nodes
 */

/*
 * Puts redlock.nodes and redlock.nodes_next into force, if members_configure allows it, and moves
 * leases to the new lists.
 */
static void
configure_nodes(int64 now_us)
{
	bool in_force;
	uint32 unsettled;

	pg_atomic_write_u32(&lease_table->unsettled, LEASE_UNSETTLED_UNKNOWN);
	registry_changed(true);
	driver->answer_us = redlock_node_timeout_ms * INT64CONST(1000);
	in_force = members_configure(now_us, registry_may_leave, registry_stay);
	registry_configured(now_us);
	if (driver->serves && !registry_may_ask(now_us))
		hold_requests(now_us); /* other hosts must be compared first */
	if (!in_force)
		return;
	unsettled = driver_follow_lists(driver, now_us);
	pg_atomic_write_u64(&lease_table->unsettled_until_us, lease_table->settling.unsettled_until_us);
	pg_atomic_write_u32(&lease_table->unsettled, unsettled);
	members_close_left(now_us);
}

static void
on_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer, int64 now_us)
{
	/* no failure: node_pipeline.c sends the text of the script along */
	bool lacks_script = answer->unknown_script && !sent->by_text;
	Lease *lease = lease_at(sent->command.entry);
	core_event reply = {0};

	node_stats_answered(node->index, now_us - sent->sent_us);
	if (answer->reply >= CORE_REPLY_ERROR && !lacks_script)
		node_stats_count(
			&node_stats[node->index].errors[node_error_class(answer->text, false, false)]);
	if (!driver_on_answer(driver, node->index, &sent->command, lacks_script, now_us))
		return;
	if (!lacks_script)
		count_vote(node, sent, answer, now_us);
	if (sent->command.op == CORE_OP_ACQUIRE)
		tell_of_answer(node, sent, answer);
	reply.type = CORE_REPLY;
	reply.now_us = now_us;
	reply.node = node->index;
	reply.op = sent->command.op;
	reply.reply = answer->reply;
	reply.round = sent->command.round;
	reply.counts_after_us = guard_counts_after_us(node->guard, sent->command.op, driver->answer_us);
	reply.busy_us = answer->busy_ms * 1000;
	reply.waiting = answer->waiting;
	reply.holder = answer->holder;
	reply.silent = !answer->ours;
	reply.may_idle = answer->may_idle;
	reply.token = answer->token;
	driver_step_answer(driver, sent->command.entry, &reply);
	if (sent->command.op == CORE_OP_ACQUIRE && answer->reply == CORE_REPLY_NO &&
		answer->holder == lease->drive.core.rival &&
		(lease->drive.core.state == CORE_ASKING || lease->drive.core.state == CORE_BUSY))
		deadlock_held_by(lease, answer->host, answer->by_readers);
}

/* Tells the owner of a request which nodes answer, and who holds the lock. */
static void
tell_of_answer(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer)
{
	Lease *lease = lease_at(sent->command.entry);

	if (has_other_permits(lease, answer))
		pg_atomic_fetch_or_u32(&lease->other_permits, CORE_BIT(node->index));
	else
		pg_atomic_fetch_and_u32(&lease->other_permits, ~CORE_BIT(node->index));
	if (answer->reply == CORE_REPLY_NO)
	{
		TimestampTz until = answer->kept ? GetCurrentTimestamp() + answer->busy_ms * 1000 : 0;

		lease_set_held_by(lease, answer->text, answer->ours, until);
		if (answer->free_permit > 0)
			pg_atomic_write_u32(&lease->free_permit, answer->free_permit);
	}
	if (answer->reply <= CORE_REPLY_NO)
		pg_atomic_fetch_and_u32(&lease->silent_nodes, ~CORE_BIT(node->index));
}

static bool
has_other_permits(const Lease *lease, const ScriptAnswer *answer)
{
	int permits;

	if (answer->reply != CORE_REPLY_NO || !answer->ours)
		return false;
	permits = answer->by_readers ? 1 : holder_permits(answer->text);
	return permits > 0 && permits != Max(lease->permits, 1);
}

static void
count_vote(RedisNode *node, const InFlight *sent, const ScriptAnswer *answer, int64 now_us)
{
	NodeStatus *status = &node_status[node->index];

	note_round_trip(status, Max(now_us - sent->sent_us, 1)); /* 0 would mean: unknown */
	if (answer->reply >= CORE_REPLY_ERROR)
	{
		node_set_error(node, answer->text);
		node_news_of_state(node, node->state);
	}
	if (sent->command.op == CORE_OP_RELEASE)
		return; /* not a vote */
	pg_atomic_fetch_add_u64(answer->reply == CORE_REPLY_YES  ? &status->votes_yes
							: answer->reply == CORE_REPLY_NO ? &status->votes_no
															 : &status->votes_error,
							1);
}

/*
 * Smooths the round trip as TCP does (RFC 6298): one pause of this process must not count for
 * much.
 */
static void
note_round_trip(NodeStatus *status, int64 us)
{
	int64 before_us = (int64) pg_atomic_read_u64(&status->rtt_us);

	pg_atomic_write_u64(&status->rtt_us, before_us == 0 ? us : before_us + (us - before_us) / 8);
}

static void
on_lost(RedisNode *node, const InFlight *sent, int64 now_us)
{
	if (driver_on_lost(driver, node->index, &sent->command, node->replacing, now_us) &&
		sent->command.op != CORE_OP_RELEASE)
		pg_atomic_fetch_add_u64(&node_status[node->index].votes_error, 1);
}

static void
on_change(RedisNode *node, NodeState before)
{
	bool was_on_duty = before == NODE_READY || before == NODE_QUARANTINED;

	if (node_is_subscriber(node))
	{
		if (node->state != before)
			subscription_on_change(node, redlock_clock_us());
		return;
	}
	node_news_of_state(node, before);
	if (node->state == before)
		return;
	/* entries name the nodes on duty; a dead node is tried each second, and costs no beat */
	registry_changed(was_on_duty != node_is_on_duty(node) || !registry_may_ask(redlock_clock_us()));
	if (node->state == NODE_QUARANTINED)
		node_stats_count(&node_stats[node->index].quarantines);
	if (before == NODE_HANDSHAKE && node_is_on_duty(node))
	{
		node_stats_count(&node_stats[node->index].connects);
		node_news_of_praise(node);
		subscription_open(node->index, redlock_clock_us());
	}
	if (!was_on_duty && node_can_send(node))
		driver_on_node_ready(driver, node->index, redlock_clock_us());
}

static void
on_called(RedisNode *node, int call, const redisReply *reply, int64 now_us)
{
	if (call >= WAITING_CALLS)
		waiting_hear_node(node, call, reply);
	else if (call >= INSPECTOR_CALLS)
		inspector_hear(node, call, reply, now_us);
	else
		registry_hear(node, call, reply, now_us);
}

/*
 * Other hosts
 */

static void
on_subscribed(RedisNode *node, const char *channel, size_t len, int64 now_us)
{
	Lease *lease = subscription_confirmed(node, channel, len);

	if (lease != NULL)
		driver_on_subscribed(driver, lease_index(lease), node->index - NODE_SUBSCRIBER, now_us);
}

static void
on_hear(RedisNode *node, const char *channel, size_t len, const char *text, size_t text_len,
		int64 now_us)
{
	ScriptMessage message;
	Lease *lease;

	script_hear(text, text_len, now_us - members_round_trip_us() / 2, &message);
	if (message.word == SCRIPT_QUESTION)
		waiting_answer(node, &message.question, now_us);
	else if (subscription_is_own(channel, len))
		hear_of_host(node, &message, now_us);
	else if (message.word == SCRIPT_PERMIT)
	{
		lease = subscription_told_permit(node, channel, len, message.permit);
		if (lease != NULL)
			lease_tell_permit(lease, message.permit);
	}
	else if (message.word == SCRIPT_FREE)
	{
		lease = subscription_lease(channel, len);
		if (lease != NULL)
			driver_on_free(driver, lease_index(lease), node->index - NODE_SUBSCRIBER, message.token,
						   &message.waiters, now_us);
	}
}

/* A message on this host's own channel. */
static void
hear_of_host(const RedisNode *node, ScriptMessage *message, int64 now_us)
{
	Lease *lease;

	if (message->word == SCRIPT_PROBE)
		deadlock_hear(&message->probe, now_us);
	if (message->word == SCRIPT_WAITS)
		waiting_hear_host(node, message->number, &message->waiting);
	if (message->word != SCRIPT_WANT && message->word != SCRIPT_FORCED &&
		message->word != SCRIPT_ASK)
		return;
	lease = subscription_lease(message->key, message->key_len);
	if (message->word == SCRIPT_FORCED)
	{
		if (lease != NULL)
			driver_on_forced(driver, lease_index(lease), now_us);
		return;
	}
	if (message->word == SCRIPT_ASK)
	{
		if (is_new_ask(message->ask) && lease != NULL)
			lease_note_ask(lease);
		return;
	}
	if (lease != NULL && message->waiters.count == 0)
		lease_recall(lease);
	else if (lease != NULL)
		turns_note_waiter(driver, lease_index(lease), &message->waiters.waiter[0], message->shared);
}

/*
 * Returns false for a further copy of an ask: each node sends one, a slow node perhaps when another
 * session holds the lock.
 */
static bool
is_new_ask(uint64 ask)
{
	static uint64 heard[ASKS_KNOWN];
	static int next = 0;

	for (int i = 0; i < ASKS_KNOWN; i++)
		if (heard[i] == ask)
			return false;
	heard[next] = ask;
	next = (next + 1) % ASKS_KNOWN;
	return true;
}

/*
 * Shutdown
 */

/* Does the postmaster shut down? */
static bool
postmaster_stops(void)
{
	FILE *file = fopen("postmaster.pid", "r");
	char line[MAXPGPATH];
	bool stops = false;

	if (file == NULL)
		return true; /* the postmaster has ended */
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
 * Are all leases released, and have all nodes that answer received the releases?  A node whose
 * connection has just broken may answer, and is connected again: for redlock.node_timeout after the
 * begin of the stop, the broker waits for such nodes.  Keys at nodes that are away expire.
 */
static bool
all_released(int64 stopping_us)
{
	core_mask back_soon = 0;

	if (redlock_clock_us() - stopping_us < redlock_node_timeout_ms * INT64CONST(1000))
		back_soon = nodes_that(node_is_back_soon);
	for (int i = 0; i < lease_table->entries; i++)
		if (lease_at(i)->in_use && (pg_atomic_read_u32(&lease_at(i)->wish) != WISH_NOTHING ||
									lease_is_queued(lease_at(i)) ||
									(lease_at(i)->drive.core.state == CORE_RELEASING &&
									 (core_unpaid(&lease_at(i)->drive.core) & back_soon) != 0)))
			return false;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (node_in_flight(node_at(i)) > 0)
			return false;
	return release_queue_is_idle(&driver->releases, nodes_that(node_can_send));
}

static void
detach(int code, Datum arg)
{
	trouble_end();
	lease_broker_detach();
}
