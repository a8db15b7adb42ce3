/*
 * inspect_queue.c
 *		Questions about locks, from sessions to the broker; see inspect_queue.h.
 */
#include "postgres.h"

#include "storage/condition_variable.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "shared/compat.h"
#include "shared/inspect_queue.h"
#include "shared/lease.h"

typedef enum PlaceState
{
	PLACE_FREE,
	PLACE_ASKED, /* the broker has not seen the question */
	PLACE_SENT,  /* the broker waits for the nodes */
	PLACE_DONE   /* the session may read the answer */
} PlaceState;

typedef struct Place
{
	PlaceState state;
	bool left;     /* SENT: no session waits for the answer */
	uint64 number; /* ASKED: the broker takes the least number first */
	InspectQuestion question;
	InspectAnswer answer;
} Place;

typedef struct Shared
{
	slock_t mutex;
	uint64 asked; /* under the mutex, as state, left and number of a place */
	ConditionVariable changed;
	Place place[INSPECT_PLACES];
} Shared;

static Shared *shared = NULL;
static uint32 wait_event = 0;

Size
inspect_queue_size(void)
{
	return sizeof(Shared);
}

void
inspect_queue_set_up(void)
{
	bool found;

	shared = ShmemInitStruct("redlock_pg questions about locks", inspect_queue_size(), &found);
	if (found)
		return;
	memset(shared, 0, inspect_queue_size());
	SpinLockInit(&shared->mutex);
	ConditionVariableInit(&shared->changed);
}

int
inspect_queue_enter(const InspectQuestion *question)
{
	int place = -1;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < INSPECT_PLACES && place < 0; i++)
		if (shared->place[i].state == PLACE_FREE)
			place = i;
	if (place >= 0)
	{
		shared->place[place].state = PLACE_ASKED;
		shared->place[place].left = false;
		shared->place[place].number = ++shared->asked;
		shared->place[place].question = *question;
	}
	SpinLockRelease(&shared->mutex);
	if (place >= 0)
		lease_wake_broker();
	return place;
}

bool
inspect_queue_copy(int place, InspectAnswer *answer)
{
	bool done;

	SpinLockAcquire(&shared->mutex);
	done = shared->place[place].state == PLACE_DONE;
	SpinLockRelease(&shared->mutex);
	if (done)
		*answer = shared->place[place].answer;
	return done;
}

void
inspect_queue_leave(int place)
{
	SpinLockAcquire(&shared->mutex);
	if (shared->place[place].state == PLACE_SENT)
		shared->place[place].left = true; /* the broker frees the place */
	else
		shared->place[place].state = PLACE_FREE;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}

void
inspect_queue_wait(long timeout_ms)
{
	(void) ConditionVariableTimedSleep(&shared->changed, timeout_ms,
									   REDLOCK_WAIT_EVENT(wait_event, "RedlockInspect"));
}

void
inspect_queue_end_wait(void)
{
	ConditionVariableCancelSleep();
}

void
inspect_queue_adopt(void)
{
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < INSPECT_PLACES; i++)
		if (shared->place[i].state == PLACE_SENT)
			shared->place[i].state = shared->place[i].left ? PLACE_FREE : PLACE_ASKED;
	SpinLockRelease(&shared->mutex);
}

int
inspect_queue_take(void)
{
	int place = -1;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < INSPECT_PLACES; i++)
		if (shared->place[i].state == PLACE_ASKED &&
			(place < 0 || shared->place[i].number < shared->place[place].number))
			place = i;
	if (place >= 0)
		shared->place[place].state = PLACE_SENT;
	SpinLockRelease(&shared->mutex);
	return place;
}

const InspectQuestion *
inspect_queue_question(int place)
{
	return &shared->place[place].question;
}

InspectAnswer *
inspect_queue_answer(int place)
{
	return &shared->place[place].answer;
}

void
inspect_queue_finish(int place)
{
	SpinLockAcquire(&shared->mutex);
	shared->place[place].state = shared->place[place].left ? PLACE_FREE : PLACE_DONE;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}
