/*
 * scan_locks.c
 *		Listing the locks that the nodes keep; see scan_locks.h.
 *
 * The session walks the keys of the nodes in turn, in small steps, and then looks at each found
 * lock.  So a long list delays other work of the nodes by one step at a time.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "session/inspect_lock.h"
#include "session/scan_locks.h"
#include "shared/guc.h"

/* How often a session looks whether the other scan has ended. */
#define LOOK_MS 1000

/*
 * Limits against nodes that lie: steps to the end of a node's list, and keys that no node before
 * has listed.  An honest node takes a step for 100 keys of any kind.
 */
#define STEPS_MAX 1000000
#define NEW_KEYS_MAX 250000

/* A key that was found. */
typedef struct FoundKey
{
	char key[LUA_KEY_MAX + 1]; /* with a NUL */
	core_mask nodes;           /* nodes that list the key */
} FoundKey;

static void scan(const LockName *prefix, InspectAnswer *answer, ScanHandler handler, void *to);
static void write_pattern(InspectQuestion *question, const char *text);
static const char *scan_node(const LockName *prefix, InspectQuestion *question,
							 InspectAnswer *answer, HTAB *found);
static int keep_keys(const LockName *prefix, const InspectAnswer *answer, core_mask node,
					 HTAB *found);
static void drop_keys(core_mask node, HTAB *found);
static void end_scan(int code, Datum begun);

void
scan_locks(const char *prefix, ScanHandler handler, void *to)
{
	LockName name = {.name = prefix, .utf8 = prefix, .utf8_len = strlen(prefix)};
	InspectAnswer *answer = palloc(sizeof(InspectAnswer));
	bool begun = false;

	/* the next scan must be able to begin, also if the session is terminated */
	PG_ENSURE_ERROR_CLEANUP(end_scan, PointerGetDatum(&begun));
	{
		while (!(begun = inspect_queue_begin_scan()))
			inspect_queue_wait(LOOK_MS);
		inspect_queue_end_wait();
		scan(&name, answer, handler, to);
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_scan, PointerGetDatum(&begun));
	end_scan(0, PointerGetDatum(&begun));
}

static void
end_scan(int code, Datum begun)
{
	inspect_queue_end_wait();
	if (*(bool *) DatumGetPointer(begun))
		inspect_queue_end_scan();
	*(bool *) DatumGetPointer(begun) = false;
}

static void
scan(const LockName *prefix, InspectAnswer *answer, ScanHandler handler, void *to)
{
	HASHCTL of_keys = {
		.keysize = LUA_KEY_MAX + 1, .entrysize = sizeof(FoundKey), .hcxt = CurrentMemoryContext};
	HTAB *found =
		hash_create("redlock keys", 256, &of_keys, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	InspectQuestion question = {.kind = INSPECT_SCAN};
	core_mask scanned = 0;
	const char *fault = NULL;
	HASH_SEQ_STATUS status;
	FoundKey *key;

	write_pattern(&question, redlock_key_prefix);
	write_pattern(&question, prefix->utf8);
	question.key[question.key_len++] = '*';
	for (question.node = 0; question.node < CORE_NODES_MAX; question.node++)
	{
		const char *failure = scan_node(prefix, &question, answer, found);

		if (failure == NULL)
			scanned |= CORE_BIT(question.node);
		else
			drop_keys(CORE_BIT(question.node), found);
		/* a node that is not in force has no fault */
		if (failure != NULL && failure[0] != '\0')
			fault = failure;
	}
	/* a majority without an answer may keep further locks */
	if (core_has_quorum(answer->lists, ~scanned))
		ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
						errmsg("too few redlock nodes could be reached to list the locks"),
						fault != NULL ? errdetail("The last failure: %s.", fault) : 0,
						errhint("See the view redlock_nodes, and the server log.")));

	question = (InspectQuestion){.kind = INSPECT_LOCK};
	hash_seq_init(&status, found);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		Inspection inspection;

		CHECK_FOR_INTERRUPTS();
		question.key_len = strlen(key->key);
		memcpy(question.key, key->key, question.key_len);
		inspect_key(prefix, &question, answer);
		inspection_judge(&inspection, answer->lists, answer->node);
		if (inspection.witness >= 0)
			handler(to, key->key + strlen(redlock_key_prefix), answer, &inspection);
	}
	hash_destroy(found);
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
scan_node(const LockName *prefix, InspectQuestion *question, InspectAnswer *answer, HTAB *found)
{
	core_mask node = CORE_BIT(question->node);
	int new_keys = 0;

	strcpy(question->value, "0");
	question->value_len = 1;
	for (int step = 0; step < STEPS_MAX && new_keys <= NEW_KEYS_MAX; step++)
	{
		CHECK_FOR_INTERRUPTS();
		inspect_key(prefix, question, answer);
		if (!((answer->lists.now | answer->lists.next) & node))
			return "";
		if (answer->node[question->node].kind != INSPECTED_NONE)
			return inspect_fault(answer, question->node);
		new_keys += keep_keys(prefix, answer, node, found);
		if (strcmp(answer->cursor, "0") == 0)
			return NULL;
		/* each step of an honest node has another cursor */
		if (strcmp(answer->cursor, question->value) == 0)
			break;
		strlcpy(question->value, answer->cursor, sizeof(question->value));
		question->value_len = strlen(question->value);
	}
	return "the list of keys of a node does not end";
}

/*
 * Keeps the keys of an answer.  A node may be wrong: keys without the prefix are left out.  Returns
 * the number of keys that no node has listed before.
 */
static int
keep_keys(const LockName *prefix, const InspectAnswer *answer, core_mask node, HTAB *found)
{
	size_t prefix_len = strlen(redlock_key_prefix);
	const char *at = answer->keys;
	const char *end = answer->keys + answer->keys_len;
	int new_keys = 0;

	for (; at < end && memchr(at, '\0', end - at) != NULL; at += strlen(at) + 1)
	{
		FoundKey *key;
		bool is_known;

		if (strlen(at) > LUA_KEY_MAX || strlen(at) <= prefix_len ||
			strncmp(at, redlock_key_prefix, prefix_len) != 0 ||
			strncmp(at + prefix_len, prefix->utf8, prefix->utf8_len) != 0)
			continue;
		key = hash_search(found, at, HASH_ENTER, &is_known);
		key->nodes = is_known ? key->nodes | node : node;
		new_keys += !is_known;
	}
	return new_keys;
}

/* Drops the keys that this node alone has listed. */
static void
drop_keys(core_mask node, HTAB *found)
{
	HASH_SEQ_STATUS status;
	FoundKey *key;

	hash_seq_init(&status, found);
	while ((key = hash_seq_search(&status)) != NULL)
		if ((key->nodes &= ~node) == 0)
			(void) hash_search(found, key->key, HASH_REMOVE, NULL);
}
