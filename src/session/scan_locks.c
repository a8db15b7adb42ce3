/*
 * scan_locks.c
 *		Listing the locks that the nodes keep; see scan_locks.h.
 *
 * The session walks the keys of the nodes in turn, in small steps.  Then it reads the found locks
 * from all nodes at once, many in a step, so the answers about a lock are of one moment.  After
 * each step the session pauses, longer after a long step: most of the time the nodes, the broker
 * and the processors are free for other work.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"

#include "protocol/inspect_many.h"
#include "protocol/permits.h"
#include "session/inspect_lock.h"
#include "session/scan_locks.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/node_status.h"

/* How often a session looks whether the other list has ended. */
#define LOOK_MS 1000

/* The pause after a step, by the step's own time; and its limit. */
#define PAUSE_FACTOR 2
#define PAUSE_MAX_US INT64CONST(10000)

/*
 * Limits against nodes that lie: steps to the end of a node's list, and keys that no node before
 * has listed.  An honest node takes a step for LUA_SCAN_KEYS keys of any kind.
 */
#define STEPS_MAX 1000000
#define NEW_KEYS_MAX 250000

/* A node that is silent for so many whole steps is not asked any more. */
#define TIMEOUTS_MAX 3

/* A key that was found. */
typedef struct FoundKey
{
	char key[LUA_KEY_MAX + 1]; /* with a NUL */
	core_mask nodes;           /* nodes that list the key */
} FoundKey;

/* A list under way. */
typedef struct Scan
{
	const LockName *prefix;
	int place; /* -1: none */
	InspectQuestion question;
	int64 step_began_us;
	HTAB *found;

	/* of the locks that are read */
	const char *key[INSPECT_MANY_KEYS];
	int keys;
	int timeouts[CORE_NODES_MAX];
	InspectAnswer lock; /* the answers about one lock */
	ScanHandler handler;
	void *to;
} Scan;

static void find_keys(Scan *scan);
static void write_pattern(InspectQuestion *question, const char *text);
static const char *scan_node(Scan *scan, int node);
static const char *name_fault(int node, const char *fault);
static int keep_keys(Scan *scan, int node);
static void drop_keys(HTAB *found, core_mask node);
static void read_locks(Scan *scan);
static void read_some(Scan *scan);
static int write_keys(const Scan *scan, InspectText *keys);
static void tell_of_lock(Scan *scan, const char *key, const InspectAnswer *answer, core_mask told,
						 const char **at);
static const InspectAnswer *ask(Scan *scan);
static void count_timeouts(Scan *scan, core_mask silent);
static void pause_after_step(Scan *scan);
REDLOCK_NORETURN static void fail_without_quorum(const char *fault);

void
scan_locks(const char *prefix, ScanHandler handler, void *to)
{
	LockName name = {.name = prefix, .utf8 = prefix, .utf8_len = strlen(prefix)};
	Scan *scan = palloc0(sizeof(Scan));

	scan->prefix = &name;
	scan->place = -1;
	scan->handler = handler;
	scan->to = to;
	/* the next list must be able to begin, also if the session is terminated */
	PG_ENSURE_ERROR_CLEANUP(inspect_leave, PointerGetDatum(&scan->place));
	{
		while ((scan->place = inspect_queue_list()) < 0)
			inspect_queue_wait(LOOK_MS);
		inspect_queue_end_wait();
		find_keys(scan);
		read_locks(scan);
	}
	PG_END_ENSURE_ERROR_CLEANUP(inspect_leave, PointerGetDatum(&scan->place));
	inspect_leave(0, PointerGetDatum(&scan->place));
	hash_destroy(scan->found);
	pfree(scan);
}

/* Collects the keys that any node lists. */
static void
find_keys(Scan *scan)
{
	HASHCTL of_keys = {
		.keysize = LUA_KEY_MAX + 1, .entrysize = sizeof(FoundKey), .hcxt = CurrentMemoryContext};
	InspectQuestion *question = &scan->question;
	core_mask scanned = 0;
	const char *fault = NULL;

	scan->found =
		hash_create("redlock keys", 256, &of_keys, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	question->kind = INSPECT_SCAN;
	write_pattern(question, redlock_key_prefix);
	write_pattern(question, scan->prefix->utf8);
	question->key[question->key_len++] = '*';
	for (int node = 0; node < CORE_NODES_MAX; node++)
	{
		const char *failure = scan_node(scan, node);

		if (failure == NULL)
			scanned |= CORE_BIT(node);
		else
			drop_keys(scan->found, CORE_BIT(node));
		/* a node that is not in force has no fault */
		if (failure != NULL && failure[0] != '\0')
			fault = failure;
	}
	/* a majority without an answer may keep further locks */
	if (core_has_quorum(inspect_queue_answer(scan->place)->lists, ~scanned))
		fail_without_quorum(fault);
}

static void
fail_without_quorum(const char *fault)
{
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("too few redlock nodes could be reached to list the locks"),
					fault != NULL ? errdetail("The last failure: %s.", fault) : 0,
					errhint("See the view redlock_nodes, and the server log.")));
}

/* Appends a text to the pattern. */
static void
write_pattern(InspectQuestion *question, const char *text)
{
	for (; *text != '\0'; text++)
	{
		if (strchr("*?[]\\^", *text) != NULL)
			question->key[question->key_len++] = '\\';
		question->key[question->key_len++] = *text;
	}
}

/*
 * Collects the keys of a node.  Returns NULL, or a text about the node's failure, which is empty if
 * the node is not in force.
 */
static const char *
scan_node(Scan *scan, int node)
{
	InspectQuestion *question = &scan->question;
	int new_keys = 0;

	question->nodes = CORE_BIT(node);
	strcpy(question->value, "0");
	question->value_len = 1;
	for (int step = 0; step < STEPS_MAX; step++)
	{
		const InspectAnswer *answer = ask(scan);

		if (!((answer->lists.now | answer->lists.next) & CORE_BIT(node)))
			return "";
		if (answer->node[node].kind != INSPECTED_NONE)
			return name_fault(node, inspect_fault(answer, node));
		new_keys += keep_keys(scan, node);
		if (new_keys > NEW_KEYS_MAX)
			return name_fault(node, psprintf("it has more than %d locks with these names; give a "
											 "longer prefix",
											 NEW_KEYS_MAX));
		if (strcmp(answer->cursor, "0") == 0)
			return NULL;
		/* each step of an honest node has another cursor */
		if (strcmp(answer->cursor, question->value) == 0)
			break;
		strlcpy(question->value, answer->cursor, sizeof(question->value));
		question->value_len = strlen(question->value);
		pause_after_step(scan);
	}
	return name_fault(node, "its list of keys does not end");
}

/* Returns the fault behind the node's address. */
static const char *
name_fault(int node, const char *fault)
{
	NodeStatus status;

	return node_status_copy(node, &status) ? psprintf("%s: %s", status.url.address, fault) : fault;
}

/*
 * Keeps the keys of an answer.  A node may be wrong: keys without the prefix are left out.  Returns
 * the number of keys that no node has listed before.
 */
static int
keep_keys(Scan *scan, int node)
{
	const LockName *prefix = scan->prefix;
	const InspectText *said = &inspect_queue_texts()->said[node];
	size_t prefix_len = strlen(redlock_key_prefix);
	const char *at = said->text;
	const char *end = at + said->len;
	int new_keys = 0;

	for (; at < end && memchr(at, '\0', end - at) != NULL; at += strlen(at) + 1)
	{
		FoundKey *key;
		bool is_known;

		if (strlen(at) > LUA_KEY_MAX || strlen(at) <= prefix_len ||
			strncmp(at, redlock_key_prefix, prefix_len) != 0 ||
			strncmp(at + prefix_len, prefix->utf8, prefix->utf8_len) != 0)
			continue;
		key = hash_search(scan->found, at, HASH_ENTER, &is_known);
		key->nodes = is_known ? key->nodes | CORE_BIT(node) : CORE_BIT(node);
		new_keys += !is_known;
	}
	return new_keys;
}

/* Drops the keys that this node alone has listed. */
static void
drop_keys(HTAB *found, core_mask node)
{
	HASH_SEQ_STATUS status;
	FoundKey *key;

	hash_seq_init(&status, found);
	while ((key = hash_seq_search(&status)) != NULL)
		if ((key->nodes &= ~node) == 0)
			(void) hash_search(found, key->key, HASH_REMOVE, NULL);
}

/* Reads the found locks, and calls the handler for each lock that a node has. */
static void
read_locks(Scan *scan)
{
	HASH_SEQ_STATUS status;
	FoundKey *key;

	scan->question = (InspectQuestion){.kind = INSPECT_MANY, .nodes = PG_UINT32_MAX};
	hash_seq_init(&status, scan->found);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		scan->key[scan->keys++] = key->key;
		if (scan->keys == INSPECT_MANY_KEYS)
			read_some(scan);
	}
	while (scan->keys > 0)
		read_some(scan);
}

/* Reads at least one of the waiting keys: as many as fit in the question, and in each answer. */
static void
read_some(Scan *scan)
{
	int asked = write_keys(scan, &inspect_queue_texts()->keys);
	const InspectAnswer *answer = ask(scan);
	const char *at[CORE_NODES_MAX];
	const char *fault = NULL;
	core_mask told = 0;
	int done = asked;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const InspectText *said = &inspect_queue_texts()->said[i];
		bool answered = answer->node[i].kind == INSPECTED_NONE;
		int count = answered ? inspect_many_count(said->text, said->len, asked) : 0;

		at[i] = said->text;
		if (count > 0)
		{
			told |= CORE_BIT(i);
			done = Min(done, count);
		}
		else if ((answer->lists.now | answer->lists.next) & CORE_BIT(i))
			fault = name_fault(i, answered ? "its answer is malformed" : inspect_fault(answer, i));
	}
	if (core_has_quorum(answer->lists, ~told))
		fail_without_quorum(fault);
	for (int i = 0; i < done; i++)
		tell_of_lock(scan, scan->key[i], answer, told, at);
	scan->keys -= done;
	memmove(scan->key, scan->key + done, scan->keys * sizeof(scan->key[0]));
	pause_after_step(scan);
}

/* Returns how many of the waiting keys fit in the question. */
static int
write_keys(const Scan *scan, InspectText *keys)
{
	int asked = 0;

	keys->len = 0;
	while (asked < scan->keys && keys->len + strlen(scan->key[asked]) < sizeof(keys->text))
	{
		size_t len = strlen(scan->key[asked]) + 1;

		memcpy(keys->text + keys->len, scan->key[asked++], len);
		keys->len += len;
	}
	return asked;
}

/* Reads the next record of each node in `told`. */
static void
tell_of_lock(Scan *scan, const char *key, const InspectAnswer *answer, core_mask told,
			 const char **at)
{
	const char *name = key + strlen(redlock_key_prefix);
	Inspection inspection;

	scan->lock.lists = answer->lists;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const InspectText *said = &inspect_queue_texts()->said[i];
		Inspected *node = &scan->lock.node[i];

		node->may_have_forgotten = answer->node[i].may_have_forgotten;
		if (!(told & CORE_BIT(i)) || !inspect_many_read(&at[i], said->text + said->len, node))
			node->kind = INSPECTED_SILENT;
	}
	inspection_judge(&inspection, scan->lock.lists, scan->lock.node,
					 permits_number(name, strlen(name)) > 0);
	if (inspection.witness >= 0)
		scan->handler(scan->to, name, &scan->lock, &inspection);
}

/*
 * Asks the next question of the list.  Asks again when a node is silent: the broker may be
 * connecting to the node.
 */
static const InspectAnswer *
ask(Scan *scan)
{
	int64 until_us;

	scan->step_began_us = redlock_clock_us();
	until_us = scan->step_began_us + redlock_node_timeout_ms * INT64CONST(1000);
	for (;;)
	{
		const InspectAnswer *answer;
		core_mask silent;

		CHECK_FOR_INTERRUPTS();
		answer = inspect_for_list(scan->prefix, &scan->question, scan->place);
		silent =
			inspection_nodes(answer->lists, answer->node, INSPECTED_SILENT) & scan->question.nodes;
		if (silent == 0)
			return answer;
		if (redlock_clock_us() >= until_us)
		{
			count_timeouts(scan, silent);
			return answer;
		}
		pg_usleep(PAUSE_MAX_US);
	}
}

/* A node that stays silent must not delay each step. */
static void
count_timeouts(Scan *scan, core_mask silent)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((silent & CORE_BIT(i)) && ++scan->timeouts[i] >= TIMEOUTS_MAX)
			scan->question.nodes &= ~CORE_BIT(i);
}

/* Short, so no interrupt waits long. */
static void
pause_after_step(Scan *scan)
{
	int64 took_us = redlock_clock_us() - scan->step_began_us;

	pg_usleep(Min(took_us * PAUSE_FACTOR, PAUSE_MAX_US));
}
