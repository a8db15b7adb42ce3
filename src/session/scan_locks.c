/*
 * scan_locks.c
 *		Listing the locks that the nodes keep; see scan_locks.h.
 *
 * The session walks the keys of one node after the other, in small steps, and then looks at each
 * lock that it found.  So a long list delays other work of the nodes by one step at a time.
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

/* A key that was found, with a NUL. */
typedef struct FoundKey
{
	char key[LUA_KEY_MAX + 1];
} FoundKey;

static void scan(const LockName *prefix, InspectAnswer *answer, ScanHandler handler, void *to);
static void write_pattern(InspectQuestion *question, const char *text);
static bool scan_node(const LockName *prefix, InspectQuestion *question, InspectAnswer *answer,
					  HTAB *found);
static void keep_keys(const LockName *prefix, const InspectAnswer *answer, HTAB *found);
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
		.keysize = sizeof(FoundKey), .entrysize = sizeof(FoundKey), .hcxt = CurrentMemoryContext};
	HTAB *found =
		hash_create("redlock keys", 256, &of_keys, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	InspectQuestion question = {.kind = INSPECT_SCAN};
	core_mask scanned = 0;
	char *fault = "";
	HASH_SEQ_STATUS status;
	FoundKey *key;

	write_pattern(&question, redlock_key_prefix);
	write_pattern(&question, prefix->utf8);
	question.key[question.key_len++] = '*';
	for (question.node = 0; question.node < CORE_NODES_MAX; question.node++)
	{
		if (scan_node(prefix, &question, answer, found))
			scanned |= CORE_BIT(question.node);
		else if ((answer->lists.now | answer->lists.next) & CORE_BIT(question.node))
			fault = inspect_fault(answer, question.node);
	}
	/* a majority without an answer may keep locks that the others do not */
	if (core_has_quorum(answer->lists, ~scanned))
		ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
						errmsg("too few redlock nodes could be reached to list the locks"),
						fault[0] != '\0' ? errdetail("The last failure: %s.", fault) : 0,
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

/* Collects the keys of a node.  Returns false if the node is not in force, or fails. */
static bool
scan_node(const LockName *prefix, InspectQuestion *question, InspectAnswer *answer, HTAB *found)
{
	strcpy(question->value, "0");
	question->value_len = 1;
	do
	{
		CHECK_FOR_INTERRUPTS();
		inspect_key(prefix, question, answer);
		if (answer->node[question->node].kind != INSPECTED_NONE)
			return false;
		keep_keys(prefix, answer, found);
		strlcpy(question->value, answer->cursor, sizeof(question->value));
		question->value_len = strlen(question->value);
	} while (strcmp(question->value, "0") != 0);
	return true;
}

/* A node may be wrong: keys without the prefix are left out. */
static void
keep_keys(const LockName *prefix, const InspectAnswer *answer, HTAB *found)
{
	size_t prefix_len = strlen(redlock_key_prefix);
	const char *at = answer->keys;
	const char *end = answer->keys + answer->keys_len;
	const char *key;

	for (; at < end && memchr(at, '\0', end - at) != NULL; at += strlen(at) + 1)
	{
		FoundKey name = {0};

		key = at;
		if (strlen(key) > LUA_KEY_MAX || strlen(key) <= prefix_len ||
			strncmp(key, redlock_key_prefix, prefix_len) != 0 ||
			strncmp(key + prefix_len, prefix->utf8, prefix->utf8_len) != 0)
			continue;
		strcpy(name.key, key);
		(void) hash_search(found, name.key, HASH_ENTER, NULL);
	}
}
