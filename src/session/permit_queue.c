/*
 * permit_queue.c
 *		Acquiring a permit; see permit_queue.h.
 *
 * protocol/permits.c decides which permit to try, when to enter and leave the queue, and how long
 * to wait.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/gate.h"
#include "session/permit_queue.h"
#include "shared/clock.h"

/* A holder of the queue that is stopped for this long loses the queue. */
#define STOPPED_MS 10000
#define GO_ON_US INT64CONST(1000000) /* how often a running holder prolongs the limit */

/* The lease of the queue, while this session waits for any permit. */
static Lease *queue = NULL;
static uint64 queue_gate;
static int64 gone_on_us;

static bool follow(const LockRequest *request, permits_search *search);
static bool try_permit(const LockRequest *request, int permit, int *free);
static permits_seen look(const LockRequest *request, const permits_search *search, int free);
static int idle_permit(const LockRequest *request);
static LockName named(const LockRequest *request, int permit, char *utf8);
static bool enter_queue(const LockRequest *request);
static void leave_queue(const LockRequest *request);
static void go_on(void);

bool
permit_queue_acquire(const LockRequest *request)
{
	LockRequest own = *request;
	permits_search search = {
		.host = lease_table->host_id, .n = request->permits, .once = request->terms.once};
	char utf8[LOCK_NAME_MAX + 1];
	volatile bool granted = false;

	own.began_us = redlock_clock_us();
	search.deadline_us = request_deadline_us(&own);
	request_refuse_other_permits(&own, 0, request->names[0].hash);
	request_refuse_other_permits(&own, 0, named(request, PERMITS_QUEUE, utf8).hash);
	for (int permit = 1; permit <= own.permits; permit++)
		request_refuse_other_permits(&own, 0, named(request, permit, utf8).hash);
	PG_TRY();
	{
		granted = follow(&own, &search);
		leave_queue(&own);
	}
	PG_CATCH();
	{
		request_end();
		leave_queue(&own);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return granted;
}

void
permit_queue_cancel(void)
{
	if (queue != NULL)
		lease_release(queue, NULL);
	queue = NULL;
}

static bool
follow(const LockRequest *request, permits_search *search)
{
	char utf8[LOCK_NAME_MAX + 1];
	bool others_wait = lease_is_taken(named(request, PERMITS_QUEUE, utf8).hash);
	permits_step step = permits_begin(search, others_wait);

	for (;;)
	{
		int free = PERMITS_NONE_FREE;
		permits_seen seen;

		switch (step)
		{
			case PERMITS_TRY:
				go_on();
				if (try_permit(request, search->permit, &free))
					return true;
				break;
			case PERMITS_ENTER_QUEUE:
				if (!enter_queue(request))
					return false;
				break;
			case PERMITS_LEAVE_QUEUE:
				leave_queue(request);
				break;
			case PERMITS_WAIT:
				go_on();
				request_wait_for_permit(request, search->look_at_us);
				break;
			case PERMITS_TIME_OUT:
				request_time_out(request);
				return false;
			case PERMITS_FAIL:
				request_fail_held(request);
				return false;
		}
		seen = look(request, search, free);
		step = permits_next(search, &seen);
	}
}

/*
 * Tries one permit; *free says which permit may be free.  For a waiter a missing quorum is no error
 * here: the queue is lost then, too, and entering the queue again fails.
 */
static bool
try_permit(const LockRequest *request, int permit, int *free)
{
	LockRequest try = *request;
	char utf8[LOCK_NAME_MAX + 1];
	LockName name = named(request, permit, utf8);

	*free = PERMITS_TAKEN_HERE;
	if (lease_is_taken(name.hash))
		return false;
	try.names = &name;
	try.terms.permits = request->permits;
	try.terms.once = true;
	try.terms.patient = !request->terms.once;
	if (request->terms.once)
		try.wait_ms = -1;
	if (request_acquire(&try))
		return true;
	*free = request_free_permit();
	return false;
}

static permits_seen
look(const LockRequest *request, const permits_search *search, int free)
{
	permits_seen seen = {.now_us = redlock_clock_us(),
						 .random = pg_prng_uint32(&pg_global_prng_state),
						 .free = free};

	if (queue == NULL)
		return seen;
	seen.place = lease_validity_us(queue) > 0 ? PERMITS_IN_QUEUE : PERMITS_QUEUE_LOST;
	seen.told = pg_atomic_read_u32(&queue->permits_told);
	seen.told_permit = (int) pg_atomic_read_u32(&queue->free_permit);
	if (seen.told != search->told || search->step == PERMITS_ENTER_QUEUE)
	{
		/* sessions of this server may have released several permits; the message names the last */
		int idle = idle_permit(request);

		if (idle != PERMITS_NONE_FREE)
			seen.told_permit = idle;
	}
	return seen;
}

static int
idle_permit(const LockRequest *request)
{
	char utf8[LOCK_NAME_MAX + 1];

	for (int permit = 1; permit <= request->permits; permit++)
		if (lease_lacks_holder(named(request, permit, utf8).hash))
			return permit;
	return PERMITS_NONE_FREE;
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
	ask.terms.scope = SCOPE_SESSION; /* leave_queue ends it, not the transaction */
	ask.terms.permits = request->permits;
	ask.terms.is_queue = true;
	ask.terms.hold_at_least_ms = 0;
	ask.terms.hold_at_most_ms = STOPPED_MS;
	if (!request_acquire(&ask))
		return false;
	queue = request_take(&queue_gate);
	gone_on_us = 0;
	queue->wait_began_us = request->began_us;
	if (queue->handovers == 0)
		queue->since = GetCurrentTimestamp();
	request_end();
	return true;
}

/*
 * Releases the queue.  If no session of this server takes the queue over, ends the idle permits,
 * which were kept for such a session.
 */
static void
leave_queue(const LockRequest *request)
{
	char utf8[LOCK_NAME_MAX + 1];

	if (queue == NULL)
		return;
	lease_release(queue, gate_waiters);
	if (!lease_lacks_holder(named(request, PERMITS_QUEUE, utf8).hash))
		for (int permit = 1; permit <= request->permits; permit++)
		{
			Lease *passed = lease_find(named(request, permit, utf8).hash);

			if (passed != NULL)
				(void) lease_release_idle(passed);
		}
	gate_leave(queue_gate, (GateUse){.session_level = true});
	queue = NULL;
}

static void
go_on(void)
{
	int64 now_us = redlock_clock_us();

	if (queue == NULL || now_us - gone_on_us < GO_ON_US)
		return;
	gone_on_us = now_us;
	lease_go_on(queue, STOPPED_MS * INT64CONST(1000));
}
