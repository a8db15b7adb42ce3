/*
 * hearing_test.c
 *		Unit tests of the releases that a request hears of, src/protocol/hearing.c.
 *
 * Protects from: a request still waiting after enough nodes told of a release; a release missed by
 * a late subscription; repeated requests in vain.
 */
#include "protocol/hearing.h"

#include <string.h>

#include "tap.h"

#define SECOND INT64_C(1000000)

static Hearing hearing;
static core_lease lease;

static void
step(core_event_type type, int node, core_reply reply)
{
	core_out out;
	core_event event = {.type = type,
						.now_us = SECOND,
						.lists = {31, 0},
						.ttl_us = 10 * SECOND,
						.answer_us = SECOND / 10,
						.patience_us = SECOND,
						.retry_us = SECOND,
						.can_send = 31,
						.can_vote = 31,
						.can_release = 31,
						.node = node,
						.op = CORE_OP_ACQUIRE,
						.round = lease.round,
						.reply = reply,
						.token = reply == CORE_REPLY_YES ? SECOND : 0,
						.holder = 7};

	core_step(&lease, &event, &out);
}

/* Three of five nodes said no, and the first `yes` said yes; the rest is silent, or fails. */
static void
refused_by(int yes, bool silent)
{
	memset(&lease, 0, sizeof(lease));
	hearing = (Hearing){0};
	step(CORE_ACQUIRE, 0, 0);
	hearing_asked(&hearing);
	for (int i = 0; i < yes; i++)
		step(CORE_REPLY, i, CORE_REPLY_YES);
	for (int i = yes; i < 2 && !silent; i++)
		step(CORE_REPLY, i, CORE_REPLY_ERROR);
	for (int i = 2; i < 5; i++)
		step(CORE_REPLY, i, CORE_REPLY_NO);
}

static void
refused(int yes)
{
	refused_by(yes, false);
}

static bool
told(int node, int64_t token)
{
	return hearing_told(&hearing, &lease, node, token);
}

static bool
subscribed(int node)
{
	return hearing_subscribed(&hearing, &lease, node);
}

static void
test_told(void)
{
	refused(0);
	ok(lease.state == CORE_BUSY && !hearing_may_miss(&hearing, &lease),
	   "a request that was refused waits");
	ok(!told(0, 100) && !told(1, 100) && !told(1, 100) && told(2, 100),
	   "until three of five nodes have told of a release");
	ok(!told(3, 100), "the fourth says nothing new");
	ok(!told(4, 200) && !told(0, 200) && !told(1, 100) && !told(2, 100) && told(3, 200),
	   "the next release counts anew, and slow nodes tell of the former");
	hearing_asked(&hearing);
	ok(!told(4, 200) && hearing.told == 0, "it asks, and that of which a majority told is over");
	ok(!told(0, 300) && !told(1, 300), "but not what few told of");
	hearing_asked(&hearing);
	ok(!told(2, 300) && !told(3, 300) && told(4, 300), "of which others tell");

	hearing_asked(&hearing);
	ok(!told(0, INT64_MAX) && !told(1, 400) && !told(2, 400) && !told(3, 400),
	   "a forged one makes deaf to the true ones");
	hearing_asked(&hearing);
	ok(!told(1, 400) && !told(2, 400) && told(3, 400), "until the next question");

	hearing_asked(&hearing);
	ok(!told(1, 500) && !told(2, 0) && told(3, 0), "of an unknown lease: whichever is counted");
	ok(!told(2, 0) && !told(3, 0) && told(4, 0), "and its next");
}

/* A node where the last round found the lock free publishes nothing. */
static void
test_free(void)
{
	refused(2);
	ok(lease.state == CORE_BUSY && core_count(&lease, CORE_VOTE_YES) == 2,
	   "two nodes would have granted it");
	ok(!hearing_may_miss(&hearing, &lease), "which is no reason to ask");
	ok(!told(4, 100) && hearing_may_miss(&hearing, &lease),
	   "one tells of a release: it may be free at three");
	ok(!told(2, 100) && told(3, 100) && !hearing_may_miss(&hearing, &lease),
	   "until a majority has told, and turns decide");

	refused(1);
	ok(!told(0, 100) && !told(4, 100) && !hearing_may_miss(&hearing, &lease), "a node counts once");

	refused_by(0, true);
	ok(!told(3, 100) && !hearing_may_miss(&hearing, &lease),
	   "one tells, and two have not answered");
	step(CORE_REPLY, 0, CORE_REPLY_YES);
	step(CORE_REPLY, 1, CORE_REPLY_YES);
	ok(hearing_may_miss(&hearing, &lease), "until they have");

	memset(&lease, 0, sizeof(lease));
	hearing = (Hearing){0};
	step(CORE_ACQUIRE, 0, 0);
	step(CORE_REPLY, 0, CORE_REPLY_NO);
	for (int i = 1; i < 4; i++)
		step(CORE_REPLY, i, CORE_REPLY_ERROR);
	ok(lease.state == CORE_BUSY && !told(1, 100) && !told(2, 100) &&
		   !hearing_may_miss(&hearing, &lease),
	   "one node refused, and two tell");
	step(CORE_REPLY, 4, CORE_REPLY_YES);
	ok(hearing_may_miss(&hearing, &lease), "the lock may be free at three");

	refused(0);
	hearing.told = CORE_BIT(0) | CORE_BIT(1);
	step(CORE_WAKE, 0, 0);
	step(CORE_REPLY, 0, CORE_REPLY_YES);
	ok(!hearing_may_miss(&hearing, &lease), "before it was refused");
	for (int i = 2; i < 5; i++)
		step(CORE_REPLY, i, CORE_REPLY_NO);
	hearing.told = CORE_BIT(3) | CORE_BIT(4);
	ok(hearing_may_miss(&hearing, &lease), "two have told before the answers came");
	hearing_asked(&hearing);
	ok(!hearing_may_miss(&hearing, &lease), "once");

	refused(1);
	step(CORE_RELEASE, 0, 0);
	lease.state = CORE_FREE;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		lease.node[i].key = CORE_KEY_ABSENT;
	step(CORE_ACQUIRE, 0, 0);
	ok(core_count(&lease, CORE_VOTE_YES) == 0, "what an earlier request found is forgotten");
}

/* A request that subscribed after its round may have missed a message. */
static void
test_subscribed(void)
{
	refused(0);
	ok(!subscribed(0) && !subscribed(1) && subscribed(2), "it asks when a majority has confirmed");
	hearing_asked(&hearing);
	ok(!told(0, 200) && !subscribed(3) && !hearing_may_miss(&hearing, &lease), "one node tells");
	ok(!subscribed(4) && hearing_may_miss(&hearing, &lease),
	   "and two that confirm now may have told before");

	refused(0);
	(void) (subscribed(0) || subscribed(1) || subscribed(2));
	hearing_asked(&hearing);
	ok(!subscribed(3) && !subscribed(4) && !hearing_may_miss(&hearing, &lease),
	   "nobody tells, and the last two don't matter");
	ok(!told(2, 100) && hearing_may_miss(&hearing, &lease), "until one does");

	refused(0);
	(void) (subscribed(0) || subscribed(1) || subscribed(2));
	hearing_asked(&hearing);
	hearing_left(&hearing, 2);
	ok(subscribed(3) && hearing.subscribed == 11,
	   "one is lost, and another confirms: a majority once more");
	hearing_left(&hearing, 3);
	ok(hearing.late == 0 && subscribed(2), "also when that one is lost");
}

int
main(void)
{
	test_told();
	test_free();
	test_subscribed();
	return tap_done();
}
