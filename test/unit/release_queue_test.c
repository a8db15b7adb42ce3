/*
 * release_queue_test.c
 *		Unit tests of the queue of releases, src/protocol/release_queue.c.
 *
 * Protects from: releases and repairs filling a connection before renewals and requests; a release
 * never sent, sent twice, or overtaken; a hanging node delaying other nodes; the renewal, or the
 * repair, of a released lease (invariant 14); an own key in the way of the next request for its
 * name.
 *
 * The leases are real cores; the shell is as small as possible: commands lie in `out` until
 * answer() or lose() takes them.
 */
#include "protocol/release_queue.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

#define ENTRIES 12
#define NODES 3
#define ALL (CORE_BIT(NODES) - 1)
#define ROOM 2 /* at a node */
#define OUT_MAX 256
#define SECOND INT64_C(1000000)

typedef struct command
{
	int entry;
	core_op op;
	core_event_type why;
	uint32_t round;
} command;

static core_lease lease[ENTRIES];
static uint64_t name[ENTRIES];
static Release memory[ENTRIES];
static ReleaseQueue queue;
static core_mask can_send;
static core_mask on_duty;
static command out[NODES][OUT_MAX]; /* the oldest first */
static int out_count[NODES];
static int64_t now_us;
static int64_t token;
static bool crowded; /* more commands are out than the room */

static void
begin(void)
{
	memset(lease, 0, sizeof(lease));
	memset(memory, 0xa5, sizeof(memory));
	memset(out_count, 0, sizeof(out_count));
	can_send = on_duty = ALL;
	now_us = 1000 * SECOND;
	token = 1000;
	release_queue_init(&queue, memory, ENTRIES, ROOM);
}

static void
send(core_mask nodes, int entry, core_op op, core_event_type why)
{
	for (int n = 0; n < NODES; n++)
		if (nodes & CORE_BIT(n))
		{
			out[n][out_count[n]++] = (command){entry, op, why, lease[entry].round};
			release_queue_sent(&queue, n, op, why);
			/* an undo of a round needs no room */
			if ((lease[entry].state == CORE_RELEASING || lease[entry].state == CORE_HELD) &&
				!memory[entry].urgent && queue.unanswered[n] > ROOM)
				crowded = true;
		}
}

static void
step_event(int entry, core_event *event)
{
	core_out asked;

	event->now_us = now_us;
	event->can_send = event->can_vote = can_send;
	event->can_release = release_queue_can_release(&queue, entry, can_send);
	core_step(&lease[entry], event, &asked);
	send(asked.release, entry, CORE_OP_RELEASE, event->type);
	send(asked.acquire, entry, CORE_OP_ACQUIRE, event->type);
	send(asked.confirm, entry, CORE_OP_CONFIRM, event->type);
	send(asked.renew, entry, CORE_OP_RENEW, event->type);
	release_queue_follow(&queue, entry, &lease[entry], name[entry], event, on_duty);
}

static void
step(int entry, core_event_type type, int node)
{
	core_event event = {.type = type, .node = node};

	step_event(entry, &event);
}

static void
ask_by(core_lists lists, int entry, uint64_t of_name)
{
	core_event event = {.type = CORE_ACQUIRE,
						.lists = lists,
						.ttl_us = 10 * SECOND,
						.answer_us = SECOND,
						.patience_us = SECOND,
						.retry_us = SECOND / 20};

	name[entry] = of_name;
	step_event(entry, &event);
}

static void
ask(int entry, uint64_t of_name)
{
	ask_by((core_lists){ALL, 0}, entry, of_name);
}

static command
take_out(int node)
{
	command first = out[node][0];

	memmove(&out[node][0], &out[node][1], sizeof(command) * (size_t) --out_count[node]);
	release_queue_answered(&queue, node, first.op, first.why);
	return first;
}

/* The oldest command of the node. */
static void
answer_as(int node, core_reply reply)
{
	command first = take_out(node);
	core_event event = {.type = CORE_REPLY,
						.node = node,
						.op = first.op,
						.reply = reply,
						.round = first.round,
						.token = reply == CORE_REPLY_YES ? token : 0};

	step_event(first.entry, &event);
}

static void
answer(int node)
{
	answer_as(node, CORE_REPLY_YES);
}

static void
answer_all(void)
{
	for (int n = 0; n < NODES; n++)
		while (out_count[n] > 0)
			answer(n);
}

static void
lose(int node)
{
	can_send &= ~CORE_BIT(node);
	on_duty &= ~CORE_BIT(node);
	while (out_count[node] > 0)
		step(take_out(node).entry, CORE_NODE_LOST, node);
}

static void
come_back(int node)
{
	can_send |= CORE_BIT(node);
	on_duty |= CORE_BIT(node);
	for (int s = 0; s < ENTRIES; s++)
		if (release_queue_node_ready(&queue, s, &lease[s], node, can_send))
			step(s, CORE_NODE_READY, node);
}

static void
hold(int entry, uint64_t of_name)
{
	ask(entry, of_name);
	answer_all();
	token += 2000;
}

static void
hold_all(int entries)
{
	for (int s = 0; s < entries; s++)
		hold(s, (uint64_t) s + 100);
}

static bool
release_entry(int entry)
{
	if (!release_queue_begin(&queue, entry, &lease[entry], name[entry], can_send))
		return false;
	step(entry, CORE_RELEASE, 0);
	return true;
}

static void
release_entries(int entries)
{
	for (int s = 0; s < entries; s++)
		release_entry(s);
}

/* One pass of the shell. */
static void
pass(void)
{
	ReleaseStep next;

	while (release_queue_next_unsent(&queue, can_send, &next))
		step(next.entry, next.type, next.node);
	while (release_queue_next_waiting(&queue, can_send, &next))
		step(next.entry, next.type, next.node);
}

static void
hurry(uint64_t of_name)
{
	ReleaseStep next;
	int entry;

	while ((entry = release_queue_find(&queue, of_name)) >= 0)
		while (release_queue_hurry(&queue, entry, &next))
			step(next.entry, next.type, next.node);
}

static int
count_out(int node, int entry, core_op op)
{
	int count = 0;

	for (int i = 0; i < out_count[node]; i++)
		count += out[node][i].entry == entry && out[node][i].op == op;
	return count;
}

static bool
is_sent_to(core_mask nodes, int entry)
{
	for (int n = 0; n < NODES; n++)
		if (count_out(n, entry, CORE_OP_RELEASE) != ((nodes & CORE_BIT(n)) != 0))
			return false;
	return true;
}

/* When a node comes back, the core sends the releases owed to the node. */
static void
test_away(void)
{
	begin();
	hold_all(1);
	lose(2);
	release_entry(0);
	ok(is_sent_to(ALL & ~CORE_BIT(2), 0) && release_queue_is_idle(&queue, ALL),
	   "nothing waits for room at a node that is away");
	come_back(2);
	ok(is_sent_to(ALL, 0), "it is told when it is back");
}

static void
test_lost_ones_wait(void)
{
	begin();
	hold_all(3);
	now_us = lease[2].valid_until_us;
	step(2, CORE_TICK, 0);
	release_entry(0);
	release_entry(1);
	ok(lease[2].state == CORE_LOST && !release_entry(2) && is_sent_to(0, 2),
	   "the release of a lost lease waits as well");
	answer_all();
	pass();
	ok(is_sent_to(ALL, 2), "and goes when there is room");
}

/* The connection is replaced: a round goes on, before all repairs. */
static void
test_request_before_repairs(void)
{
	begin();
	hold_all(3);
	ask(3, 200);
	take_out(0);
	come_back(0);
	ok(queue.unanswered[0] == ROOM && count_out(0, 2, CORE_OP_RENEW) == 0,
	   "repairs fill a node that is back");
	ok(count_out(0, 3, CORE_OP_ACQUIRE) == 1, "a request is asked there all the same");
}

/* The next attempt undoes the key; a node with errors is not asked for ever. */
static void
test_undoing_fails(void)
{
	begin();
	ask(0, 100);
	answer(0);
	answer_as(1, CORE_REPLY_NO);
	answer_as(2, CORE_REPLY_NO);
	for (int i = 0; i < ROOM; i++)
		release_queue_sent(&queue, 0, CORE_OP_RELEASE, CORE_RELEASE);
	answer_as(0, CORE_REPLY_ERROR);
	ok(lease[0].state == CORE_BUSY && core_unpaid(&lease[0]) == CORE_BIT(0) &&
		   release_queue_is_idle(&queue, ALL),
	   "an undoing that failed does not wait for room");
}

static void
test_waiting(void)
{
	begin();
	hold_all(4);
	ok(release_entry(0) && release_entry(1) && is_sent_to(ALL, 0) && is_sent_to(ALL, 1),
	   "releases go out while there is room");
	ok(!release_entry(2) && !release_entry(3) && is_sent_to(0, 2) && lease[2].state == CORE_HELD,
	   "the next ones wait");
	ok(release_queue_waits(&queue, 2) && !release_queue_waits(&queue, 1), "and it is known which");
	ok(lease[2].wake_at_us > 0 && release_queue_wake_at_us(&queue, 2, &lease[2]) == 0,
	   "they have no timer, so they are not renewed");
	ok(release_queue_wake_at_us(&queue, 1, &lease[1]) == lease[1].wake_at_us, "others have theirs");
	pass();
	ok(is_sent_to(0, 2), "without an answer nothing changes");
	answer(0);
	pass();
	ok(is_sent_to(0, 2), "room at one node of three is not enough");
	answer(1);
	pass();
	ok(is_sent_to(CORE_BIT(0) | CORE_BIT(1), 2) && is_sent_to(0, 3),
	   "at two it begins there, and first come, first served");
	ok(!release_queue_waits(&queue, 2) && release_queue_waits(&queue, 3), "one at a time");
	answer(2);
	pass();
	ok(is_sent_to(ALL, 2), "the third node has it when it has room");
	answer_all();
	pass();
	answer_all();
	for (int s = 0; s < 4; s++)
		ok(lease[s].state == CORE_FREE, "in the end lease %d is over", s);
	ok(release_queue_is_idle(&queue, can_send), "and nothing waits");
}

static void
test_order(void)
{
	begin();
	hold_all(5);
	release_entry(3);
	release_entry(1);
	release_entry(4);
	release_entry(0);
	answer(0);
	answer(1);
	answer(2);
	ok(!release_entry(2), "who comes last waits after the others, though there is room");
	pass();
	ok(is_sent_to(ALL, 4) && is_sent_to(0, 0) && is_sent_to(0, 2), "the first goes first");
	answer(0);
	answer(1);
	answer(2);
	pass();
	ok(is_sent_to(ALL, 0) && is_sent_to(0, 2), "then the second");
	for (int i = 0; i < 2; i++)
	{
		answer_all();
		pass();
	}
	ok(release_queue_is_idle(&queue, can_send) && lease[2].state == CORE_FREE, "and the third");
}

static void
test_requests(void)
{
	begin();
	hold_all(4);
	ask(5, 500);
	release_entries(4);
	ok(release_entry(5) && lease[5].state == CORE_RELEASING, "a request does not wait");
	begin();
	hold_all(4);
	release_entries(2);
	ask(5, 500);
	for (int n = 0; n < NODES; n++)
		while (out_count[n] > 0 && out[n][0].entry != 5)
			take_out(n);
	release_entries(4);
	answer_as(0, CORE_REPLY_YES);
	answer_as(1, CORE_REPLY_NO);
	release_entry(2);
	answer_as(2, CORE_REPLY_NO);
	ok(lease[5].state == CORE_BUSY && count_out(0, 5, CORE_OP_RELEASE) == 1,
	   "a round is undone where there is no room for releases");
}

/* A full connection takes no command, but the node is on duty. */
static void
test_full_connection(void)
{
	begin();
	ask(0, 100);
	answer_as(0, CORE_REPLY_YES);
	can_send &= ~CORE_BIT(0);
	answer_as(1, CORE_REPLY_NO);
	answer_as(2, CORE_REPLY_NO);
	ok(lease[0].state == CORE_BUSY && out_count[0] == 0 && (memory[0].unsent & CORE_BIT(0)),
	   "a round is undone later where the connection is full");
	ok(release_queue_is_idle(&queue, can_send) && !release_queue_is_idle(&queue, ALL),
	   "that waits for the connection");
	pass();
	ok(out_count[0] == 0, "and for nothing else");
	can_send = ALL;
	pass();
	ok(count_out(0, 0, CORE_OP_RELEASE) == 1, "then it is undone");
	pass();
	ok(count_out(0, 0, CORE_OP_RELEASE) == 1, "once");
}

static void
test_slow_node(void)
{
	begin();
	hold_all(6);
	release_entry(0);
	release_entry(1);
	for (int s = 2; s < 6; s++)
	{
		answer(0);
		answer(1);
		release_entry(s);
		pass();
		ok(is_sent_to(CORE_BIT(0) | CORE_BIT(1), s), "a node that hangs does not delay lease %d",
		   s);
	}
	ok(out_count[2] == ROOM, "it has no more than it has room for");
	answer(2);
	pass();
	ok(out_count[2] == ROOM && count_out(2, 2, CORE_OP_RELEASE) == 1,
	   "when it answers, the oldest is next");
	answer(2);
	pass();
	ok(out_count[2] == ROOM && count_out(2, 3, CORE_OP_RELEASE) == 1, "and so on");
	lose(2);
	ok(queue.unanswered[2] == 0, "what is lost with the connection takes no room");
	answer_all();
	pass();
	ok(out_count[2] == 0 && release_queue_is_idle(&queue, can_send),
	   "who can't be sent to is not waited for");
	come_back(2);
	pass();
	ok(out_count[2] == ROOM, "and is told when it is back, as far as it has room");
	while (out_count[2] > 0)
	{
		answer(2);
		pass();
	}
	for (int s = 0; s < 6; s++)
		ok(lease[s].state == CORE_FREE, "lease %d is over everywhere", s);
}

static void
test_two_nodes_of_three(void)
{
	begin();
	lose(2);
	hold_all(4);
	release_entry(0);
	release_entry(1);
	answer(0);
	answer(0);
	ok(!release_entry(2), "one of two that can be reached is no minority");
	lose(1);
	pass();
	ok(is_sent_to(CORE_BIT(0), 2), "one of one is enough");
	lose(0);
	ok(release_entry(3) && lease[3].state == CORE_RELEASING, "and none is");
}

static void
test_hurry(void)
{
	begin();
	hold_all(5);
	release_entries(4);
	hurry(103);
	ok(is_sent_to(ALL, 3), "the release of a name is hurried before it has begun");
	ok(is_sent_to(0, 2) && release_queue_waits(&queue, 2), "others wait on");
	ok(release_queue_find(&queue, 103) < 0 && release_queue_find(&queue, 102) == 2,
	   "it need not be found any more");
	ok(release_queue_find(&queue, 100) < 0, "nor what was sent to all nodes");
	ok(release_queue_find(&queue, 102 + ENTRIES) < 0,
	   "nor is a name by a hash that is like its own");

	begin();
	hold_all(4);
	release_entries(2);
	answer(0);
	answer(1);
	release_entry(2);
	ok(is_sent_to(CORE_BIT(0) | CORE_BIT(1), 2), "a release that lacks a node");
	ok(release_queue_find(&queue, 102) == 2, "is found");
	hurry(102);
	ok(is_sent_to(ALL, 2), "and sent there");
	ok(release_queue_find(&queue, 102) < 0 && out_count[2] == ROOM + 1, "without room");
	answer_all();
	pass();
	ok(lease[2].state == CORE_FREE, "it is sent there once");
	hold_all(3);
	release_entries(3);
	ok(release_queue_waits(&queue, 2), "the next lease of its entry is in no hurry");
}

/* As after the late release of a lost lease whose name has a new lease. */
static void
test_hurry_all_of_a_name(void)
{
	begin();
	hold_all(2);
	hold(2, 7);
	hold(3, 7);
	hold(4, 7);
	release_entries(5);
	ok(release_queue_waits(&queue, 2) && release_queue_waits(&queue, 3) &&
		   release_queue_waits(&queue, 4),
	   "three of a name wait");
	hurry(7);
	ok(is_sent_to(ALL, 2) && is_sent_to(ALL, 3) && is_sent_to(ALL, 4), "and all are hurried");
	ok(release_queue_is_idle(&queue, can_send), "none waits any more");
}

/* The last key went while the lease was hurried, or before: nothing is left to release. */
static void
test_hurry_what_is_over(void)
{
	ReleaseStep next;

	begin();
	hold_all(3);
	release_entries(3);
	now_us += 100 * SECOND; /* all keys have expired */
	hurry(102);
	ok(lease[2].state == CORE_RELEASING && is_sent_to(ALL, 2), "it may be late for a release");
	step(2, CORE_FORGET, 0);
	ok(!release_queue_hurry(&queue, 2, &next), "what is over is in no hurry");
	ok(release_queue_find(&queue, 102) < 0, "and is not found");
	ok(!memory[2].urgent && memory[2].hurried == 0, "nor is the next lease of the entry");
}

static void
test_repairs(void)
{
	begin();
	hold_all(5);
	lose(1);
	come_back(1);
	ok(out_count[1] == ROOM && out[1][0].op == CORE_OP_RENEW,
	   "a node that is back has the first keys again");
	ok(queue.unanswered[1] == ROOM, "repairs take the room of releases");
	ok(!release_queue_is_idle(&queue, can_send), "the others wait");
	ok(release_entry(4), "who is in the queue of one node may be released");
	ok(is_sent_to(CORE_BIT(0) | CORE_BIT(2), 4), "at the others");
	answer(1);
	pass();
	ok(count_out(1, 2, CORE_OP_RENEW) == 1, "an answer makes room for the next repair");
	answer(1);
	answer(1);
	pass();
	ok(count_out(1, 3, CORE_OP_RENEW) == 1 && count_out(1, 4, CORE_OP_RENEW) == 0,
	   "what was given back is not repaired");
	ok(count_out(1, 4, CORE_OP_RELEASE) == 1, "but released");

	begin();
	hold_all(4);
	release_entries(2);
	ok(!release_entry(2), "a lease waits");
	lose(1);
	come_back(1);
	ok(count_out(1, 2, CORE_OP_RENEW) == 0, "and is not repaired where there is room, though held");
	ok(count_out(1, 3, CORE_OP_RENEW) + ((memory[3].unsent & CORE_BIT(1)) != 0) == 1,
	   "as others are");

	begin();
	hold_all(4);
	now_us = lease[0].wake_at_us;
	for (int s = 0; s < 4; s++)
		step(s, CORE_TICK, 0);
	ok(out_count[0] == 4 && queue.unanswered[0] == 0, "renewals need no room");
}

/* The repair waited for room before the release, and the release waits, too. */
static void
test_given_back_before_its_repair(void)
{
	begin();
	hold_all(5);
	lose(1);
	come_back(1);
	release_entry(0);
	release_entry(1);
	ok(!release_entry(4) && (memory[4].unsent & CORE_BIT(1)), "a lease waits twice");
	while (out_count[1] > 0)
		answer(1);
	pass();
	ok(count_out(1, 4, CORE_OP_RENEW) == 0, "and is not repaired any more");
}

/* A lease that goes on at other nodes. */
static void
test_left_nodes(void)
{
	core_event event = {.type = CORE_RELIST, .lists = {CORE_BIT(2), 0}};

	begin();
	ask_by((core_lists){CORE_BIT(0) | CORE_BIT(1), CORE_BIT(2)}, 0, 100);
	answer_all();
	can_send &= ~CORE_BIT(1);
	step_event(0, &event);
	ok(lease[0].state == CORE_HELD && is_sent_to(CORE_BIT(0), 0),
	   "what it leaves is released where the connection has room");
	pass();
	ok(is_sent_to(CORE_BIT(0), 0), "elsewhere later");
	can_send = ALL;
	pass();
	ok(is_sent_to(CORE_BIT(0) | CORE_BIT(1), 0) && count_out(2, 0, CORE_OP_RELEASE) == 0,
	   "when there is some, and where it goes on not at all");
	answer_all();
	ok(lease[0].state == CORE_HELD && core_served_by(&lease[0]) == CORE_BIT(2) &&
		   lease[0].node[0].key == CORE_KEY_ABSENT && lease[0].node[1].key == CORE_KEY_ABSENT,
	   "then it is nowhere else");
}

/* Follows a change of the nodes; returns the steps, by their first letters. */
static const char *
move(int entry, core_mask members)
{
	static char steps[16];
	ReleaseStep next;
	int count = 0;

	while (count < 15 &&
		   release_queue_move(&queue, entry, &lease[entry], (core_lists){members, 0}, &next))
	{
		steps[count++] = next.type == CORE_RELEASE ? 'R' : next.type == CORE_NODE_READY ? 'N' : 'F';
		step(next.entry, next.type, next.node);
	}
	steps[count] = '\0';
	return steps;
}

static void
test_move(void)
{
	begin();
	ask(0, 7);
	ok(strcmp(move(0, ALL), "") == 0 && lease[0].state == CORE_ASKING,
	   "a request of the same nodes stays");
	ok(strcmp(move(0, ALL << 1), "RF") == 0 && lease[0].state == CORE_FREE,
	   "one of other nodes is undone, and nothing is owed any more");
	ok(out_count[0] == 2 && out[0][1].op == CORE_OP_RELEASE, "what can be sent is sent");

	begin();
	hold_all(ROOM + 1);
	release_entries(ROOM); /* no room is left */
	ask(ROOM + 1, 7);
	ok(strcmp(move(ROOM + 1, ALL << 1), "RNNNF") == 0, "also where there is no room");
	ok(out[0][out_count[0] - 1].op == CORE_OP_RELEASE && out[0][out_count[0] - 1].entry == ROOM + 1,
	   "and it gets there");

	begin();
	hold(0, 7);
	ok(strcmp(move(0, ALL << 1), "") == 0 && lease[0].state == CORE_HELD, "a lease stays");
}

static bool
may_repeat(core_op op, uint32_t round, core_mask sendable, core_mask voting)
{
	core_event answer = {.type = CORE_REPLY,
						 .op = op,
						 .round = round,
						 .now_us = now_us,
						 .can_send = sendable,
						 .can_vote = voting};

	return release_queue_may_repeat(&queue, 0, &lease[0], &answer);
}

static void
test_repeat(void)
{
	begin();
	ask(0, 7);
	ok(may_repeat(CORE_OP_ACQUIRE, lease[0].round, ALL, ALL), "an acquire is sent again");
	ok(!may_repeat(CORE_OP_ACQUIRE, lease[0].round - 1, ALL, ALL), "not of an earlier round");
	ok(!may_repeat(CORE_OP_ACQUIRE, lease[0].round, ALL, ALL & ~1U),
	   "nor where the node may not vote by now");
	answer_all();
	now_us = lease[0].wake_at_us;
	step(0, CORE_TICK, 0);
	ok(may_repeat(CORE_OP_RENEW, lease[0].round, ALL, 0), "a renewal needs no vote");
	ok(!may_repeat(CORE_OP_RENEW, lease[0].round, ALL & ~1U, ALL), "but a connection");
	now_us = lease[0].valid_until_us;
	ok(!may_repeat(CORE_OP_RENEW, lease[0].round, ALL, ALL), "and a lease that has not ended");

	begin();
	hold_all(ROOM + 1);
	for (int s = 1; s <= ROOM; s++)
		release_entry(s);
	now_us = lease[0].wake_at_us;
	step(0, CORE_TICK, 0);
	ok(may_repeat(CORE_OP_RENEW, lease[0].round, ALL, ALL) && !release_entry(0) &&
		   !may_repeat(CORE_OP_RENEW, lease[0].round, ALL, ALL),
	   "nor is it sent again when it was given back, and waits for room");
}

static void
test_forget(void)
{
	ReleaseStep next;

	begin();
	hold_all(4);
	ok(!release_queue_forget(&queue, &next), "where nothing is owed nothing can be forgotten");
	release_entry(2);
	release_entry(0);
	release_entry(3);
	release_entry(1);
	ok(release_queue_forget(&queue, &next) && next.type == CORE_FORGET && next.entry == 2,
	   "the oldest debt is forgotten first");
	step(next.entry, next.type, next.node);
	ok(release_queue_forget(&queue, &next) && next.type == CORE_FORGET && next.entry == 0,
	   "then the next");
	step(next.entry, next.type, next.node);
	ok(release_queue_forget(&queue, &next) && next.type == CORE_RELEASE && next.entry == 3,
	   "then the oldest that waits begins");
	step(next.entry, next.type, next.node);
	ok(is_sent_to(ALL, 3), "and is sent, room or not");
	ok(release_queue_forget(&queue, &next) && next.type == CORE_FORGET && next.entry == 3,
	   "before it is forgotten");
	step(next.entry, next.type, next.node);
	ok(release_queue_waits(&queue, 1), "the last waits on");
	answer_all();
	pass();
	answer_all();
	ok(release_queue_is_idle(&queue, can_send) && !release_queue_forget(&queue, &next),
	   "until it is over");
}

/* Checks the state after any sequence of events.  urgent: some releases may be urgent. */
static bool
is_sound(bool urgent)
{
	for (int n = 0; n < NODES; n++)
	{
		int counted = 0;

		for (int i = 0; i < out_count[n]; i++)
			counted += out[n][i].op == CORE_OP_RELEASE ||
					   (out[n][i].op == CORE_OP_RENEW && out[n][i].why == CORE_NODE_READY);
		if (counted != queue.unanswered[n])
			return false;
		counted = 0;
		for (int s = queue.unsent[n].first; s >= 0; s = memory[s].next_unsent[n])
			counted++;
		for (int s = 0; s < ENTRIES; s++)
			counted -= (memory[s].unsent & CORE_BIT(n)) != 0;
		if (counted != 0)
			return false;
	}
	for (int s = 0; s < ENTRIES; s++)
	{
		core_state state = lease[s].state;
		bool waits = release_queue_waits(&queue, s);
		int found = -1;

		if ((waits && state != CORE_HELD && state != CORE_LOST) ||
			(memory[s].under_way != (state == CORE_RELEASING)) ||
			(memory[s].urgent && (state != CORE_RELEASING || !urgent)))
			return false;
		if (waits || (state == CORE_RELEASING && memory[s].unsent != 0 && !memory[s].urgent))
			found = release_queue_find(&queue, name[s]);
		if (memory[s].indexed && (found < 0 || name[found] != name[s]))
			return false;
		if (!memory[s].indexed && found == s)
			return false;
	}
	return true;
}

static int
any(int count)
{
	return rand() % count;
}

/* hurries: with requests for names under release, and with forgotten debts */
static void
any_event(bool hurries)
{
	int s = any(ENTRIES);
	int n = any(NODES);
	uint64_t of_name = (uint64_t) (any(8) * (any(2) ? 1 : ENTRIES)); /* some fall on one entry */
	bool is_given_back = lease[s].state == CORE_FREE || lease[s].state == CORE_RELEASING ||
						 release_queue_waits(&queue, s);
	ReleaseStep next;

	now_us += any(1000);
	switch (any(20))
	{
		case 0:
			if (any(4) == 0 && (on_duty & CORE_BIT(n)))
				lose(n);
			break;
		case 1:
			if (!(on_duty & CORE_BIT(n)))
				come_back(n);
			break;
		case 2:
			/* a connection becomes full, or has room again */
			if ((on_duty & CORE_BIT(n)) && (any(4) == 0 || !(can_send & CORE_BIT(n))))
				can_send ^= CORE_BIT(n);
			break;
		case 3:
			if (hurries && release_queue_forget(&queue, &next))
				step(next.entry, next.type, next.node);
			break;
		case 4:
			if (lease[s].wake_at_us != 0 && !release_queue_waits(&queue, s))
				step(s, CORE_TICK, 0);
			break;
		case 5:
		case 6:
			if (!is_given_back)
				release_entry(s);
			break;
		case 7:
			pass();
			break;
		case 8:
		case 9:
		case 10:
		case 11:
			if (lease[s].state != CORE_FREE)
				break;
			if (hurries)
				hurry(of_name);
			token += 2000;
			ask(s, of_name);
			break;
		default:
			if (out_count[n] > 0)
				answer_as(n, any(10) == 0 ? CORE_REPLY_NO : CORE_REPLY_YES);
	}
}

/* Does everything end once nodes are well and all leases are released? */
static bool
ends_well(void)
{
	for (int n = 0; n < NODES; n++)
		if (!(on_duty & CORE_BIT(n)))
			come_back(n);
	can_send = ALL;
	for (int i = 0; i < 4 * ENTRIES; i++)
	{
		for (int s = 0; s < ENTRIES; s++)
			if (lease[s].state != CORE_FREE && lease[s].state != CORE_RELEASING &&
				!release_queue_waits(&queue, s))
				release_entry(s);
		pass();
		answer_all();
		pass();
		/* the core asks again, for instance after an answer of an earlier round */
		now_us += SECOND / 10;
		for (int s = 0; s < ENTRIES; s++)
			if (lease[s].state == CORE_RELEASING && now_us >= lease[s].wake_at_us)
				step(s, CORE_TICK, 0);
	}
	for (int s = 0; s < ENTRIES; s++)
		if (lease[s].state != CORE_FREE)
			return false;
	return release_queue_is_idle(&queue, can_send);
}

static void
test_any_events(void)
{
	bool sound = true;
	bool ended = true;
	int waited = 0;

	srand(4711);
	for (int world = 0; world < 400 && sound; world++)
	{
		bool hurries = world % 2 == 0;

		begin();
		for (int i = 0; i < 400 && sound; i++)
		{
			int before = queue.waiting.last;

			any_event(hurries);
			waited += queue.waiting.last >= 0 && queue.waiting.last != before;
			sound = is_sound(hurries);
		}
		ended = ended && ends_well();
	}
	ok(sound, "whatever happens, the queue is sound");
	ok(!crowded, "without room no release is sent that is not urgent, and no repair");
	ok(waited > 500, "of many releases that waited, %d,", waited);
	ok(ended, "none waits for ever");
}

int
main(void)
{
	test_waiting();
	test_lost_ones_wait();
	test_request_before_repairs();
	test_undoing_fails();
	test_away();
	test_order();
	test_requests();
	test_full_connection();
	test_slow_node();
	test_two_nodes_of_three();
	test_hurry();
	test_hurry_all_of_a_name();
	test_hurry_what_is_over();
	test_repairs();
	test_given_back_before_its_repair();
	test_left_nodes();
	test_move();
	test_repeat();
	test_forget();
	test_any_events();
	return tap_done();
}
