/*
 * local_node_test.c
 *		Unit tests of the node without Redis, src/protocol/local_node.c.
 *
 * Protects from: a reader beyond the places of a name; a counter out of its bounds; a key or a
 * barrier of another request taken for this request's; a lock's key that outlives all permits.
 * test/sim/conformance.c compares the node with a real node, which has no limit of readers.
 */
#include "protocol/local_node.h"

#include <string.h>

#include "protocol/lua.h"
#include "tap.h"

#define NOW_US INT64_C(1800000000000000)
#define TTL_MS 10000

static const local_mark mark = {.text = 1};

static local_data data;
static int64_t now_us;
static local_memory memory;
static local_answer answer;

static void
begin(void)
{
	memset(&data, 0, sizeof(data));
	now_us = NOW_US;
	memory = LOCAL_HAS_ROOM;
}

static local_command
command(core_op op, uint64_t secret)
{
	return (local_command){.op = op,
						   .secret = {secret, 7},
						   .attempt = 1,
						   .host = (int) secret,
						   .ttl_ms = TTL_MS,
						   .proposal = now_us,
						   .marker = mark.text};
}

static bool
execute(local_command of)
{
	local_expire(&data, now_us);
	local_execute(&data, &mark, now_us, &of, &memory, &answer);
	return answer.reply == CORE_REPLY_YES;
}

static local_command
reader(core_op op, uint64_t secret)
{
	local_command of = command(op, secret);

	of.shared = true;
	of.counter = of.token = data.counter;
	return of;
}

static void
test_readers(void)
{
	bool granted = true;

	begin();
	for (uint64_t i = 1; i <= LOCAL_READERS_MAX; i++)
	{
		granted = granted && execute(reader(CORE_OP_ACQUIRE, i));
		now_us += 1000;
	}
	ok(granted && data.readers == LOCAL_READERS_MAX, "as many readers as places");
	ok(!execute(reader(CORE_OP_ACQUIRE, 50)) && answer.error == LOCAL_FAILED,
	   "one reader more is refused as by a full node");
	ok(!execute(reader(CORE_OP_RENEW, 50)) && answer.error == LOCAL_FAILED,
	   "also if it had a place before a loss");
	ok(execute(reader(CORE_OP_RENEW, 2)), "a reader with a place is renewed");
	memory = LOCAL_FULL;
	data.counter = 0;
	data.readers--;
	ok(execute(reader(CORE_OP_ACQUIRE, 60)), "a full node takes a reader without a counter, too");
	now_us = NOW_US + TTL_MS * 1000;
	ok(execute(reader(CORE_OP_ACQUIRE, 50)) && data.readers == LOCAL_READERS_MAX,
	   "an expired reader makes room");

	begin();
	execute(reader(CORE_OP_ACQUIRE, 1));
	execute(reader(CORE_OP_ACQUIRE, 2));
	now_us += TTL_MS * 1000;
	ok(local_has_key(&data) && execute(reader(CORE_OP_RELEASE, 1)) && !local_has_key(&data),
	   "a reader that expires at this moment does not remain");
}

/* No permit has a key, and no host has the queue. */
static const local_data *
find_none(const void *names, int permit)
{
	(void) names, (void) permit;
	return NULL;
}

/* No permit has a key, and another host has the queue. */
static const local_data *
find_queue(const void *names, int permit)
{
	static const local_data queue = {.secret = {8, 7}, .host = 8};

	(void) names;
	return permit == 0 ? &queue : NULL;
}

static void
test_writer(void)
{
	local_data lock = {0};
	local_command of;

	begin();
	execute(reader(CORE_OP_ACQUIRE, 1));
	data.counter = 0;
	ok(!execute(command(CORE_OP_ACQUIRE, 2)) && !answer.in_front,
	   "a writer leaves no barrier without a counter");

	begin();
	execute(reader(CORE_OP_ACQUIRE, 1));
	of = command(CORE_OP_ACQUIRE, 2);
	of.permit = 1;
	of.permits = 2;
	of.lock_data = &lock;
	of.find_permit = find_queue;
	memory = LOCAL_FULL;
	ok(!execute(of) && answer.in_front && data.barrier.high == 0,
	   "behind a queue, a writer leaves no barrier at a full node");
	ok(!execute(command(CORE_OP_ACQUIRE, 2)) && answer.in_front && data.barrier.high == 2,
	   "else it does, full or not");
	ok(!execute(command(CORE_OP_ACQUIRE, 3)) && !answer.in_front && data.barrier.high == 2,
	   "the next writer is behind it");
	ok(!execute(reader(CORE_OP_ACQUIRE, 4)), "and so is the next reader");
	data.counter = 0;
	ok(execute(reader(CORE_OP_ACQUIRE, 4)), "unless the counter is gone, and the barrier with it");
}

static void
test_refused(void)
{
	begin();
	execute(command(CORE_OP_ACQUIRE, 1));
	ok(!execute(command(CORE_OP_ACQUIRE, 2)) && answer.tells == LOCAL_TELLS_WANT,
	   "a request that begins to wait tells the holder's host");
	now_us += 2 * TTL_MS * 1000;
	ok(local_plain_set(&data, now_us, (local_id){6, 7}, TTL_MS) &&
		   !execute(command(CORE_OP_ACQUIRE, 2)) && answer.tells == LOCAL_TELLS_NOTHING,
	   "no host has a plain client's key");
}

static void
test_marker(void)
{
	local_mark lost = {.text = 1, .lost_us = NOW_US};
	local_command of;

	ok(local_marker(&lost, NOW_US + 5000 * 1000 - 1, 2, true, 5000) == LOCAL_MARKED_LOST &&
		   local_marker(&lost, NOW_US + 5000 * 1000, 2, true, 5000) == LOCAL_MARKED_LONG_LOST,
	   "a loss counts for max_ttl");

	begin();
	of = command(CORE_OP_RENEW, 1);
	of.marker++;
	ok(!execute(of) && answer.error == LOCAL_FORGOT && !local_has_key(&data),
	   "invariant 8: a node with another marker does not create the key of a renewal");
	of.shared = true;
	ok(!execute(of) && answer.error == LOCAL_FORGOT && !local_has_key(&data), "nor a reader's");
	execute(reader(CORE_OP_ACQUIRE, 2));
	of.counter = of.token = data.counter;
	ok(!execute(of) && answer.error == LOCAL_FORGOT && data.readers == 1, "nor beside a reader");
	of = command(CORE_OP_RENEW, 1);
	of.counter = data.counter - 1;
	ok(!execute(of) && answer.reply == CORE_REPLY_NO, "a refusal needs no marker");
	begin();
	of = command(CORE_OP_RENEW, 1);
	execute(of);
	of.marker++;
	ok(execute(of), "nor does a renewal where the key is");
}

static void
test_since(void)
{
	local_command of;

	begin();
	execute(reader(CORE_OP_ACQUIRE, 1));
	execute(reader(CORE_OP_ACQUIRE, 2));
	data.since = 0;
	of = reader(CORE_OP_RELEASE, 1);
	of.counter = 1;
	ok(execute(of) && data.since == 1, "a released reader leaves its bound to the others");
}

static void
test_plain_delete(void)
{
	local_id secret = {5, 7};

	begin();
	execute(command(CORE_OP_ACQUIRE, 5));
	ok(!local_plain_delete(&data, now_us, (local_id){4, 7}), "another request's key stays");
	execute(command(CORE_OP_RELEASE, 5));
	ok(data.kept && !local_plain_delete(&data, now_us, secret), "and so does a kept key");
	data.kept = false;
	ok(!local_plain_set(&data, now_us, (local_id){4, 7}, TTL_MS),
	   "a plain client does not replace it");
	ok(local_plain_delete(&data, now_us, secret) && !local_has_key(&data), "its own is deleted");
	data.counter = 5;
	data.counter_end_ms = now_us / 1000;
	ok(!local_expire(&data, now_us) && data.counter == 5 && local_expire(&data, now_us + 1000) &&
		   data.counter == 0,
	   "a counter lives until its end is over");
	ok(local_plain_set(&data, now_us, secret, TTL_MS) && data.attempt == 0 && !data.kept,
	   "a plain client's key has no attempt");
}

static void
test_permit(void)
{
	local_data lock = {.secret = {9, 7}, .host = 3, .key_end_ms = NOW_US / 1000 + 5000};
	local_command of;

	begin();
	of = command(CORE_OP_ACQUIRE, 1);
	of.permit = 1;
	of.permits = 2;
	of.lock_data = &lock;
	of.find_permit = find_none;
	ok(!execute(of) && answer.reply == CORE_REPLY_NO && answer.held == &lock && answer.in_front &&
		   answer.busy_ms == 5000 && local_is(answer.holder, lock.secret),
	   "a lock that is held as a whole refuses its permits, and is shown");
	of.op = CORE_OP_RENEW;
	of.says_permits = 2;
	ok(!execute(of) && answer.reply == CORE_REPLY_NO && answer.token == 0 && !local_has_key(&data),
	   "invariant 1: and refuses their renewals");
	lock.permits = 3;
	ok(!execute(of) && !local_has_key(&data), "so does a lock with another number of permits");
	lock.permits = 2;
	ok(execute(of) && local_has_key(&data), "the same number refuses nothing");
}

/* names: the data of all permits, from permit 0 */
static const local_data *
find_permit(const void *names, int permit)
{
	const local_data *of = (const local_data *) names + permit;

	return local_has_key(of) ? of : NULL;
}

/* The life of the lock's key, after a release of permit 1 whose key has this life left. */
static int64_t
lock_life_after(int64_t life_ms, int64_t lock_life_ms, int64_t other_life_ms, int64_t hold_ms)
{
	local_data lock = {.secret = {1, 7}, .permits = 2};
	local_data permits[3] = {[2] = {.secret = {2, 7}, .permits = 2}};
	local_command of;

	begin();
	of = command(CORE_OP_RELEASE, 1);
	of.permit = 1;
	of.says_permits = 2;
	of.ttl_ms = hold_ms;
	of.lock_data = &lock;
	of.find_permit = find_permit;
	of.names = permits;
	data = (local_data){.secret = of.secret, .attempt = of.attempt, .permits = 2};
	data.key_end_ms = now_us / 1000 + life_ms;
	lock.key_end_ms = now_us / 1000 + lock_life_ms;
	permits[2].key_end_ms = now_us / 1000 + other_life_ms;
	return execute(of) && local_has_key(&lock) ? lock.key_end_ms - now_us / 1000 : -1;
}

static void
test_lock_of_permits(void)
{
	ok(lock_life_after(50000, 50000, 5000, LUA_DELETE) == 5000,
	   "after the release of the longest permit, the lock's key lives as long as the next");
	ok(lock_life_after(50000 - LUA_PERMIT_SLACK_MS, 50000, 5000, LUA_DELETE) == 5000,
	   "a permit that ends almost with the lock's key counts as the longest");
	ok(lock_life_after(49999 - LUA_PERMIT_SLACK_MS, 50000, 5000, LUA_DELETE) == 50000,
	   "a shorter permit does not");
	ok(lock_life_after(49999, 50000, 49999, LUA_DELETE) == 50000,
	   "beside a permit of the same life nothing changes");
	ok(lock_life_after(50000, 20000, 20000, LUA_DELETE) == 20000 &&
		   lock_life_after(50000, 20000, 30000, LUA_DELETE) == 20000,
	   "a release without hold_at_least never prolongs the lock's key");
	ok(lock_life_after(50000, 50000, 5000, 20000) == 20000 &&
		   lock_life_after(50000, 50000, 30000, 20000) == 30000,
	   "a kept key counts as a permit");
	ok(lock_life_after(50000, 50000, 5000, 70000) == 70000, "and prolongs the lock's key");
}

static void
test_counter(void)
{
	local_command of;

	begin();
	of = command(CORE_OP_ACQUIRE, 1);
	of.proposal = now_us + LUA_CLOCK_BOUND_US;
	ok(execute(of), "a proposal may be an hour ahead of the clock");
	begin();
	of.proposal++;
	ok(!execute(of) && answer.error == LOCAL_AHEAD, "and not more");
	begin();
	data.counter = LUA_COUNTER_END - LUA_SPAN - 1;
	data.counter_end_ms = now_us / 1000 + TTL_MS;
	of.proposal = data.counter;
	ok(execute(of) && data.counter == LUA_COUNTER_END - 1, "a counter reaches its end");
	begin();
	data.counter = LUA_COUNTER_END - LUA_SPAN;
	data.counter_end_ms = now_us / 1000 + TTL_MS;
	ok(!execute(of) && answer.error == LOCAL_AHEAD && data.counter == LUA_COUNTER_END - LUA_SPAN,
	   "and stays there");
}

int
main(void)
{
	test_counter();
	test_readers();
	test_writer();
	test_refused();
	test_marker();
	test_since();
	test_plain_delete();
	test_permit();
	test_lock_of_permits();
	return tap_done();
}
