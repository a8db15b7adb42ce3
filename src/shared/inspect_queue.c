/*
 * inspect_queue.c
 *		Questions about locks, from sessions to the broker; see inspect_queue.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/shmem.h"

#include "shared/inspect_queue.h"
#include "shared/lease.h"
#include "shared/node_status.h"
#include "shared/wait_events.h"

/* The state of a place, which the named process changes. */
typedef enum PlaceState
{
	PLACE_FREE,    /* a session, or the broker with an order: FILLED */
	PLACE_FILLED,  /* the session: ASKED; of a list also FREE; the broker: ORDERED */
	PLACE_ASKED,   /* the broker: SENT; the session: FREE */
	PLACE_ORDERED, /* the broker: LEFT */
	PLACE_SENT,    /* the broker: DONE; the session: LEFT */
	PLACE_LEFT,    /* the broker: FREE */
	PLACE_DONE     /* the session: FREE; of a list also FILLED */
} PlaceState;

/* The place for operators alone; the first place for all questions; the first for orders alone. */
#define PLACE_FOR_OPERATORS 0
#define PLACE_FOR_ALL 1
#define PLACE_FOR_ORDERS (INSPECT_LIST_PLACE - 2)

typedef struct Place
{
	pg_atomic_uint32 state;
	uint64 number; /* the broker takes the least number first */
	InspectQuestion question;
	InspectAnswer answer;
} Place;

/* The state of an order in the queue. */
typedef enum OrderState
{
	ORDER_FREE,   /* any session: FILLED */
	ORDER_FILLED, /* the session: WAITS */
	ORDER_WAITS   /* the broker: FREE */
} OrderState;

typedef struct Order
{
	pg_atomic_uint32 state;
	uint64 number; /* the broker takes the least number first */
	InspectQuestion question;
} Order;

typedef struct Shared
{
	pg_atomic_uint64 asked;
	ConditionVariable changed;
	Place place[INSPECT_PLACES];
	pg_atomic_uint32 orders; /* number of waiting orders; the broker reads it at each pass */
	Order order[INSPECT_ORDERS];
	InspectList list;
} Shared;

static Shared *shared = NULL;

static void put(int place, const InspectQuestion *question, uint64 number, PlaceState state);
static uint64 next_number(void);
static bool move(int place, PlaceState from, PlaceState to);
static bool change(pg_atomic_uint32 *state, uint32 from, uint32 to);
static void place_is_free(void);
static void place_orders(void);
static int first_order(void);
static int first_asked(void);

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
	pg_atomic_init_u64(&shared->asked, 0);
	ConditionVariableInit(&shared->changed);
	for (int i = 0; i < INSPECT_PLACES; i++)
		pg_atomic_init_u32(&shared->place[i].state, PLACE_FREE);
	pg_atomic_init_u32(&shared->orders, 0);
	for (int i = 0; i < INSPECT_ORDERS; i++)
		pg_atomic_init_u32(&shared->order[i].state, ORDER_FREE);
}

static bool
move(int place, PlaceState from, PlaceState to)
{
	return change(&shared->place[place].state, from, to);
}

/*
 * Returns false if the state is not `from`.  A full barrier: the next owner sees all that the
 * former owner wrote.
 */
static bool
change(pg_atomic_uint32 *state, uint32 from, uint32 to)
{
	return pg_atomic_compare_exchange_u32(state, &from, to);
}

int
inspect_queue_enter(const InspectQuestion *question)
{
	int first = question->for_operator ? PLACE_FOR_OPERATORS : PLACE_FOR_ALL;

	for (int i = first; i < PLACE_FOR_ORDERS; i++)
		if (move(i, PLACE_FREE, PLACE_FILLED))
		{
			put(i, question, next_number(), PLACE_ASKED);
			return i;
		}
	return -1;
}

int
inspect_queue_under_way(void)
{
	int count = 0;

	for (int i = 0; i < INSPECT_LIST_PLACE; i++)
		count += pg_atomic_read_u32(&shared->place[i].state) >= PLACE_SENT;
	return count;
}

bool
inspect_queue_order(const InspectQuestion *question)
{
	for (int i = 0; i < INSPECT_ORDERS; i++)
	{
		Order *order = &shared->order[i];

		if (!change(&order->state, ORDER_FREE, ORDER_FILLED))
			continue;
		order->number = next_number();
		order->question = *question;
		(void) change(&order->state, ORDER_FILLED, ORDER_WAITS);
		pg_atomic_fetch_add_u32(&shared->orders, 1);
		lease_wake_broker();
		return true;
	}
	return false;
}

static void
put(int place, const InspectQuestion *question, uint64 number, PlaceState state)
{
	shared->place[place].number = number;
	shared->place[place].question = *question;
	(void) move(place, PLACE_FILLED, state);
	lease_wake_broker();
}

static uint64
next_number(void)
{
	return pg_atomic_add_fetch_u64(&shared->asked, 1);
}

int
inspect_queue_list(void)
{
	return move(INSPECT_LIST_PLACE, PLACE_FREE, PLACE_FILLED) ? INSPECT_LIST_PLACE : -1;
}

void
inspect_queue_ask_list(const InspectQuestion *question)
{
	(void) move(INSPECT_LIST_PLACE, PLACE_DONE, PLACE_FILLED);
	put(INSPECT_LIST_PLACE, question, next_number(), PLACE_ASKED);
}

InspectList *
inspect_queue_texts(void)
{
	return &shared->list;
}

bool
inspect_queue_is_done(int place)
{
	if (pg_atomic_read_u32(&shared->place[place].state) != PLACE_DONE)
		return false;
	pg_read_barrier();
	return true;
}

/* The broker may move the place meanwhile: onwards, and a new broker back to PLACE_ASKED. */
void
inspect_queue_leave(int place)
{
	while (!move(place, PLACE_FILLED, PLACE_FREE) && !move(place, PLACE_ASKED, PLACE_FREE) &&
		   !move(place, PLACE_SENT, PLACE_LEFT) && !move(place, PLACE_DONE, PLACE_FREE))
		;
	place_is_free();
}

void
inspect_queue_wait(long timeout_ms)
{
	(void) ConditionVariableTimedSleep(&shared->changed, timeout_ms,
									   wait_event(WAITS_FOR_INSPECTION));
}

void
inspect_queue_end_wait(void)
{
	ConditionVariableCancelSleep();
}

void
inspect_queue_adopt(void)
{
	for (int i = 0; i < INSPECT_PLACES; i++)
	{
		uint32 state = pg_atomic_read_u32(&shared->place[i].state);

		if (state == PLACE_LEFT)
			(void) move(i, PLACE_LEFT,
						inspect_is_order(&shared->place[i].question) ? PLACE_ORDERED : PLACE_FREE);
		else if (state == PLACE_SENT && shared->place[i].question.kind == INSPECT_FORCE)
		{
			memset(shared->place[i].answer.node, 0, sizeof(shared->place[i].answer.node));
			inspect_queue_finish(i);
		}
		else if (state == PLACE_SENT && !move(i, PLACE_SENT, PLACE_ASKED))
			(void) move(i, PLACE_LEFT, PLACE_FREE);
	}
}

int
inspect_queue_take(void)
{
	int place;

	place_orders();
	do
	{
		place = first_asked();
	} while (place >= 0 && !move(place, PLACE_ORDERED, PLACE_LEFT) &&
			 !move(place, PLACE_ASKED, PLACE_SENT)); /* its session has left */
	return place;
}

/* Moves orders into free places, the first order first. */
static void
place_orders(void)
{
	for (int i = PLACE_FOR_ALL; i < INSPECT_LIST_PLACE && pg_atomic_read_u32(&shared->orders) > 0;
		 i++)
	{
		Order *order;

		if (!move(i, PLACE_FREE, PLACE_FILLED))
			continue;
		order = &shared->order[first_order()];
		put(i, &order->question, order->number, PLACE_ORDERED);
		pg_atomic_fetch_sub_u32(&shared->orders, 1);
		(void) change(&order->state, ORDER_WAITS, ORDER_FREE);
	}
}

/* Returns the index of the order that waits the longest.  An order waits. */
static int
first_order(void)
{
	int first = -1;

	for (int i = 0; i < INSPECT_ORDERS; i++)
	{
		const Order *order = &shared->order[i];

		if (pg_atomic_read_u32(&shared->order[i].state) == ORDER_WAITS &&
			(first < 0 || order->number < shared->order[first].number))
			first = i;
	}
	return first;
}

static int
first_asked(void)
{
	int place = -1;

	for (int i = 0; i < INSPECT_PLACES; i++)
	{
		uint32 state = pg_atomic_read_u32(&shared->place[i].state);

		if ((state == PLACE_ASKED || state == PLACE_ORDERED) &&
			(place < 0 || shared->place[i].number < shared->place[place].number))
			place = i;
	}
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
	if (!move(place, PLACE_SENT, PLACE_DONE))
		(void) move(place, PLACE_LEFT, PLACE_FREE);
	place_is_free();
}

/* A place may be free now, or have an answer.  An order may wait for the place. */
static void
place_is_free(void)
{
	ConditionVariableBroadcast(&shared->changed);
	if (pg_atomic_read_u32(&shared->orders) > 0)
		lease_wake_broker();
}

char *
inspect_faults(const InspectAnswer *answer)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		char *fault = inspect_fault(answer, i);
		NodeStatus status;

		if (fault == NULL || !node_status_copy(i, &status))
			continue;
		appendStringInfo(&text, "%s%s: %s", text.len > 0 ? "; " : "", status.url.address, fault);
		pfree(fault);
	}
	return text.data;
}

char *
inspect_fault(const InspectAnswer *answer, int node)
{
	const Inspected *at = &answer->node[node];
	NodeStatus status;

	if (!((answer->lists.now | answer->lists.next) & CORE_BIT(node)))
		return NULL;
	if (at->kind == INSPECTED_ERROR)
		return pstrdup(at->error);
	if (at->kind == INSPECTED_SILENT)
	{
		if (!node_status_copy(node, &status) || strcmp(status.state, "ready") == 0 ||
			status.last_error[0] == '\0')
			return pstrdup("no answer in time");
		return pstrdup(status.last_error);
	}
	return at->kind == INSPECTED_NONE && at->may_have_forgotten
			   ? pstrdup("it may have forgotten the lock")
			   : NULL;
}
