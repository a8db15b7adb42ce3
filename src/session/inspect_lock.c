/*
 * inspect_lock.c
 *		Asking the nodes what they keep of a lock; see inspect_lock.h.
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "protocol/permits.h"
#include "protocol/value.h"
#include "session/encoding.h"
#include "session/inspect_lock.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/text.h"

/* How often a session looks whether there is a broker. */
#define LOOK_MS 1000

/*
 * How long the broker may be missing, busy, or connecting to the nodes; and how long other sessions
 * may have all places.
 */
#define PATIENCE_US (INT64CONST(3000000) + 2 * redlock_node_timeout_ms * INT64CONST(1000))

static void await(const InspectQuestion *question, int *place);
static void check_lists(const LockName *name, const InspectAnswer *answer);
static void refuse_if_crowded(void);
REDLOCK_NORETURN static void fail_silent(void);

InspectAnswer *
inspect_lock(const LockName *name, bool for_operator)
{
	InspectAnswer *answer = palloc(sizeof(InspectAnswer));
	InspectQuestion question = {.kind = INSPECT_LOCK, .for_operator = for_operator};

	inspect_set_key(&question, name, 0);
	inspect_key(name, &question, answer);
	return answer;
}

void
inspect_set_key(InspectQuestion *question, const LockName *name, int permit)
{
	int prefix_len = strlen(redlock_key_prefix);

	memcpy(question->key, redlock_key_prefix, prefix_len);
	if (permit == 0)
		memcpy(question->key + prefix_len, name->utf8, name->utf8_len);
	question->key_len =
		prefix_len + (permit == 0 ? name->utf8_len
								  : permits_name(question->key + prefix_len, name->utf8,
												 name->utf8_len, permit));
}

bool
inspect_has_permit(const InspectAnswer *answer, int permit)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (answer->node[i].permit[(permit - 1) / 8] & 1 << (permit - 1) % 8)
			return true;
	return false;
}

void
inspect_key(const LockName *name, InspectQuestion *question, InspectAnswer *answer)
{
	int place = -1;

	/* the place must be left, also if the session is terminated */
	PG_ENSURE_ERROR_CLEANUP(inspect_leave, PointerGetDatum(&place));
	{
		await(question, &place);
		*answer = *inspect_queue_answer(place);
	}
	PG_END_ENSURE_ERROR_CLEANUP(inspect_leave, PointerGetDatum(&place));
	inspect_leave(0, PointerGetDatum(&place));
	check_lists(name, answer);
}

const InspectAnswer *
inspect_for_list(const LockName *prefix, const InspectQuestion *question, int place)
{
	inspect_queue_ask_list(question);
	await(NULL, &place);
	inspect_queue_end_wait();
	check_lists(prefix, inspect_queue_answer(place));
	return inspect_queue_answer(place);
}

static void
check_lists(const LockName *name, const InspectAnswer *answer)
{
	if (answer->lists.now == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock \"%s\" is not looked up, since no list of nodes is in force",
						name->name),
				 errhint("The server log says why redlock.nodes is not. Mend it and reload.")));
}

/* Waits for the answer while there is a broker.  If *place is -1, first takes a place. */
static void
await(const InspectQuestion *question, int *place)
{
	int64 began_us = redlock_clock_us();
	int64 broker_seen_us = began_us;

	for (;;)
	{
		int64 now_us = redlock_clock_us();

		if (*place < 0 && (*place = inspect_queue_enter(question)) >= 0)
			began_us = now_us; /* the broker is not to blame for the wait for a place */
		if (*place >= 0 && inspect_queue_is_done(*place))
			return;
		if (lease_broker_pid() != 0)
			broker_seen_us = now_us;
		if (now_us - broker_seen_us > PATIENCE_US)
			request_fail_no_broker();
		if (now_us - began_us > PATIENCE_US)
		{
			if (*place < 0)
				refuse_if_crowded();
			fail_silent();
		}
		inspect_queue_wait(LOOK_MS);
	}
}

void
inspect_leave(int code, Datum place)
{
	int *taken = (int *) DatumGetPointer(place);

	inspect_queue_end_wait();
	if (*taken >= 0)
		inspect_queue_leave(*taken);
	*taken = -1;
}

/* Raises an error if the broker works on questions of other sessions. */
static void
refuse_if_crowded(void)
{
	int count = inspect_queue_under_way();

	if (count > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("too many sessions of this server ask about redlocks"),
				 errdetail("%d questions are under way, and no place was free for this question.",
						   count),
				 errhint("Try again, and let fewer sessions ask. Nodes or hosts that do not answer "
						 "make each question last as long as redlock.node_timeout: see the views "
						 "redlock_nodes and redlock_hosts.")));
}

static void
fail_silent(void)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not looked up the lock in time"),
					errdetail("It is stopped or overloaded, or has started just now and is still "
							  "connecting to the nodes."),
					errhint("Try again. If the error stays, see the server log and process %d.",
							lease_broker_pid())));
}

void
inspect_judge(const LockName *name, const InspectAnswer *answer, Inspection *inspection)
{
	char *text;

	inspection_judge(inspection, answer->lists, answer->node, false);
	/* another host may hold the lock at other nodes */
	if (inspection->state == INSPECTION_FREE && host_list_in_conflict())
		inspection->state = INSPECTION_UNKNOWN;
	if (inspection->state != INSPECTION_NO_QUORUM)
		return;
	text = inspect_faults(answer);
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("no quorum of redlock nodes could be reached to look up \"%s\"", name->name),
			 text[0] != '\0' ? errdetail("No usable answer from: %s.", text) : 0,
			 errhint("See the view redlock_nodes.")));
}

char *
inspect_held_by(const InspectAnswer *answer, const Inspection *inspection)
{
	const Inspected *witness = &answer->node[inspection->witness];
	char *text = palloc(LUA_HELD_MAX + 1);
	Value value;

	value_read(&value, witness->value, witness->value_len);
	text_to_utf8(text, LUA_HELD_MAX + 1, witness->value + value.text,
				 witness->value_len - value.text);
	return text;
}

void
inspect_fail_unknown(const LockName *name, const InspectAnswer *answer)
{
	char *text = inspect_faults(answer);
	HostConflict conflict;

	host_list_conflict(&conflict);
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("the nodes do not tell whether redlock \"%s\" is held", name->name),
					conflict.name[0] != '\0' ? errdetail_internal("%s", conflict.detail)
					: text[0] != '\0'        ? errdetail("No usable answer from: %s.", text)
											 : 0,
					errhint("redlock_holder and redlock_inspect tell what the other nodes say.")));
}
