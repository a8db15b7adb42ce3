/*
 * permit_queue.c
 *		Asking for a permit; see permit_queue.h.
 *
 * First a try, with the permit at which this host begins, then with those that the nodes
 * name as free.  If none is, the session takes the queue, and tries again each time that it
 * hears of one that was released, or from time to time, since one whose holder has died is not.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/gate.h"
#include "session/permit_queue.h"
#include "shared/clock.h"

#define TRY_AGAIN_MS 500

/* Who has the queue and is stopped for so long loses it. */
#define STOPPED_MS 10000
#define GO_ON_US INT64CONST(1000000) /* how often it tells that it is not */

/* While this session waits for any permit. */
static Lease *queue = NULL;
static uint64 queue_gate;
static int64 gone_on_us;

static bool wait_for_any(const LockRequest *request, void (*hold)(const LockRequest *whole),
						 const LockRequest *whole);
static bool try_each(const LockRequest *request, void (*hold)(const LockRequest *whole),
					 const LockRequest *whole);
static int next_to_try(const LockRequest *request, int permit);
static LockName named(const LockRequest *request, int permit, char *utf8);
static bool enter_queue(const LockRequest *request);
static void take_queue(const LockRequest *whole);
static void leave_queue(void);
static void go_on(void);
static void wait_until_told(uint32 told, int64 deadline_us);

bool
permit_queue_acquire(const LockRequest *request, void (*hold)(const LockRequest *whole),
					 const LockRequest *whole)
{
	LockRequest own = *request;
	char utf8[LOCK_NAME_MAX + 1];
	volatile bool granted = false;

	own.began_us = redlock_clock_us();
	for (int permit = 1; permit <= own.permits; permit++)
		request_refuse_other_permits(&own, 0, named(request, permit, utf8).hash);
	/* who comes while sessions of this server wait queues behind them */
	if (!lease_is_taken(named(request, PERMITS_QUEUE, utf8).hash))
		granted = try_each(&own, hold, whole);
	if (granted)
		return true;
	if (own.terms.once)
	{
		request_fail_held(&own);
		return false;
	}
	PG_TRY();
	{
		granted = wait_for_any(&own, hold, whole);
		leave_queue();
	}
	PG_CATCH();
	{
		leave_queue();
		request_end_wait();
		PG_RE_THROW();
	}
	PG_END_TRY();
	request_end_wait();
	return granted;
}

void
permit_queue_give_up(void)
{
	if (queue != NULL)
		lease_release(queue, NULL);
	queue = NULL;
}

static bool
wait_for_any(const LockRequest *request, void (*hold)(const LockRequest *whole),
			 const LockRequest *whole)
{
	int64 deadline_us = request_deadline_us(request);

	for (;;)
	{
		uint32 told;

		if (queue != NULL && lease_validity_us(queue) == 0)
			leave_queue(); /* it was lost */
		if (queue == NULL && !enter_queue(request))
			return false;
		told = pg_atomic_read_u32(&queue->permits_told);
		go_on();
		if (try_each(request, hold, whole))
			return true;
		if (redlock_clock_us() >= deadline_us)
		{
			request_time_out(request);
			return false;
		}
		wait_until_told(told, deadline_us);
	}
}

/* For who waits no quorum is no error yet: the queue is lost then, and can't be entered again. */
static bool
try_each(const LockRequest *request, void (*hold)(const LockRequest *whole),
		 const LockRequest *whole)
{
	LockRequest try = *request;
	int permit = queue != NULL ? (int) pg_atomic_read_u32(&queue->free_permit) : 0;
	char utf8[LOCK_NAME_MAX + 1];
	LockName name;

	if (permit == 0 || permit > request->permits)
		permit = permits_first(lease_table->host_id, request->permits);

	try.names = &name;
	try.terms.permits = request->permits;
	try.terms.once = true;
	try.terms.patient = !request->terms.once;
	if (request->terms.once)
		try.wait_ms = -1;
	for (int i = 0; i < request->permits; i++)
	{
		int free_permit;

		permit = next_to_try(request, permit);
		if (permit == 0)
			return false;
		name = named(request, permit, utf8);
		if (request_acquire(&try, hold, whole))
			return true;
		free_permit = request_free_permit();
		if (free_permit == 0)
			return false;
		permit = free_permit > 0 ? free_permit : permits_next(permit, request->permits);
	}
	return false;
}

/* From this one on, that no session of this server has; 0: none. */
static int
next_to_try(const LockRequest *request, int permit)
{
	char utf8[LOCK_NAME_MAX + 1];

	for (int i = 0; i < request->permits; i++)
	{
		if (!lease_is_taken(named(request, permit, utf8).hash))
			return permit;
		permit = permits_next(permit, request->permits);
	}
	return 0;
}

static LockName
named(const LockRequest *request, int permit, char *utf8)
{
	LockName name = request->names[0];

	name.utf8_len = (int) permits_name(utf8, name.utf8, name.utf8_len, permit);
	name.utf8 = utf8;
	name.hash = lease_hash(utf8, name.utf8_len);
	return name;
}

static bool
enter_queue(const LockRequest *request)
{
	char utf8[LOCK_NAME_MAX + 1];
	LockName name = named(request, PERMITS_QUEUE, utf8);
	LockRequest ask = *request;

	ask.names = &name;
	ask.scope = SCOPE_SESSION; /* it is left by us, not by the transaction */
	ask.terms.permits = request->permits;
	ask.terms.is_queue = true;
	ask.terms.hold_at_least_ms = 0;
	ask.terms.hold_at_most_ms = STOPPED_MS;
	return request_acquire(&ask, take_queue, request);
}

static void
take_queue(const LockRequest *whole)
{
	queue = request_take(&queue_gate);
	gone_on_us = 0;
	if (queue->handovers == 0)
	{
		queue->turn_began_us = redlock_clock_us();
		queue->since = GetCurrentTimestamp();
	}
}

static void
leave_queue(void)
{
	if (queue == NULL)
		return;
	lease_release(queue, gate_waiters);
	gate_leave(queue_gate, false, true);
	queue = NULL;
}

static void
go_on(void)
{
	int64 now_us = redlock_clock_us();

	if (now_us - gone_on_us < GO_ON_US)
		return;
	gone_on_us = now_us;
	lease_go_on(queue, STOPPED_MS * INT64CONST(1000));
}

static void
wait_until_told(uint32 told, int64 deadline_us)
{
	int64 until_us = redlock_clock_us() + TRY_AGAIN_MS / 2 * INT64CONST(1000) +
					 pg_prng_uint32(&pg_global_prng_state) % (TRY_AGAIN_MS * 1000);

	until_us = Min(until_us, deadline_us);
	while (pg_atomic_read_u32(&queue->permits_told) == told && redlock_clock_us() < until_us &&
		   lease_validity_us(queue) > 0)
	{
		go_on();
		request_wait_a_moment(until_us);
	}
}
