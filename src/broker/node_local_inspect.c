/*
 * node_local_inspect.c
 *		Questions of sessions about locks, answered by the node inside the server: what inspector.c
 *		asks other nodes by scripts.
 */
#include "postgres.h"

#include "broker/node_internal.h"
#include "broker/node_local.h"
#include "protocol/inspect_many.h"
#include "protocol/local_inspect.h"
#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/lease.h"
#include "shared/text.h"

/* A look at a key, and what the look refers to. */
typedef struct Look
{
	local_order order;
	NodeLocalPermits permits;
	char held[SCRIPT_VALUE_SIZE]; /* the key's value, as a node in Redis keeps it */
} Look;

static void look(const char *key, size_t key_len, bool with_permits, Inspected *at);
static void force(const InspectQuestion *question, Inspected *at);
static void describe(Look *look, const char *key, size_t key_len, const local_name *name,
					 int64 now_us);
static void publish_end(const InspectQuestion *question);
static void list_keys(const InspectQuestion *question, char *cursor, size_t size,
					  InspectText *keys);
static bool matches(const InspectQuestion *question, const local_name *name);
static void read_many(const InspectText *keys, InspectText *records);
static void note_run(const InspectQuestion *question, InspectAnswer *answer, int index);
static void own_hosts(Inspected *at);

void
node_local_inspect(const InspectQuestion *question, InspectAnswer *answer, InspectList *texts,
				   int index)
{
	Inspected *at = &answer->node[index];

	switch (question->kind)
	{
		case INSPECT_LOCK:
		case INSPECT_ASK:
			look(question->key, question->key_len, true, at);
			break;
		case INSPECT_FORCE:
			force(question, at);
			break;
		case INSPECT_SCAN:
			list_keys(question, answer->cursor, sizeof(answer->cursor), &texts->said[index]);
			at->kind = INSPECTED_NONE;
			break;
		case INSPECT_MANY:
			read_many(&texts->keys, &texts->said[index]);
			at->kind = INSPECTED_NONE;
			break;
		case INSPECT_RUN:
			note_run(question, answer, index);
			break;
		case INSPECT_WAITING: /* waiting.c answers */
			break;
	}
	node_local_marker(at->marker, sizeof(at->marker));
}

static void
look(const char *key, size_t key_len, bool with_permits, Inspected *at)
{
	local_data nothing = {0};
	int64 now_us = node_local_now_us();
	local_name *name = local_names_find(node_local_names(), key, key_len, now_us);
	Look what;

	describe(&what, key, key_len, name, now_us);
	if (!with_permits)
		what.order.of_permit = true; /* as of a permit's key */
	local_look(name != NULL ? &name->data : &nothing, now_us, &what.order, at);
	own_hosts(at);
}

static void
force(const InspectQuestion *question, Inspected *at)
{
	int64 now_us = node_local_now_us();
	local_name *name =
		local_names_begin(node_local_names(), question->key, question->key_len, now_us);
	Look what;

	if (name == NULL)
	{
		at->kind = INSPECTED_ERROR;
		strlcpy(at->error, "OOM in the node: it knows as many names as it can", sizeof(at->error));
		return;
	}
	describe(&what, question->key, question->key_len, name, now_us);
	what.order.least = question->least;
	what.order.value = question->value;
	what.order.value_len = question->value_len;
	if (local_force(&name->data, now_us, &what.order, at))
		publish_end(question);
	if (at->kind == INSPECTED_ERROR)
		strlcpy(at->error, "AHEAD of all time: the counter", sizeof(at->error));
	own_hosts(at);
	local_names_end(node_local_names(), name);
}

static void
describe(Look *look, const char *key, size_t key_len, const local_name *name, int64 now_us)
{
	look->permits = (NodeLocalPermits){key, key_len, now_us};
	look->order = (local_order){.held = look->held,
								.held_is_text = true,
								.of_permit = permits_number(key, key_len) > 0,
								.find_permit = node_local_find_permit,
								.names = &look->permits};
	look->held[0] = '\0';
	if (name != NULL)
	{
		const local_data *data = &name->data;
		char text[sizeof(LUA_KEPT) + LOCK_HOLDER_MAX];
		size_t len;

		snprintf(text, sizeof(text), "%s%s", data->kept ? LUA_KEPT : "", name->holder);
		len = script_value(look->held, (const uint8 *) &data->secret, lease_table->host_id,
						   data->shared, data->may_idle, text);
		script_set_attempt(look->held, data->attempt);
		look->held[len] = '\0';
	}
}

/* What force_release.lua publishes. */
static void
publish_end(const InspectQuestion *question)
{
	static const char is_free[] = "free\0000";
	int permit = permits_number(question->key, question->key_len);
	char text[SCRIPT_COMMAND_MAX];
	char channel[LOCAL_KEY_MAX];

	node_local_publish(question->key, question->key_len, is_free, sizeof(is_free));
	if (permit > 0)
		node_local_publish(channel,
						   permits_name(channel, question->key,
										permits_name_len(question->key, question->key_len),
										PERMITS_QUEUE),
						   text, script_write_permit(text, permit));
}

/* A step of scan.lua.  The cursor is a place in the table of names. */
static void
list_keys(const InspectQuestion *question, char *cursor, size_t size, InspectText *keys)
{
	local_names *names = node_local_names();
	int32 place = atoi(question->value);
	int32 end;

	place = Min(Max(place, 0), names->size);
	end = Min(place + LUA_SCAN_KEYS, names->size);
	keys->len = 0;
	while (place < end)
	{
		const local_name *name = local_names_at(names, place, node_local_now_us());

		if (name != NULL && matches(question, name))
		{
			if (keys->len + name->key_len + 1 > (int) sizeof(keys->text))
				break;
			memcpy(keys->text + keys->len, name->key, name->key_len);
			keys->len += name->key_len;
			keys->text[keys->len++] = '\0';
		}
		place++;
	}
	snprintf(cursor, size, "%d", place < names->size ? place : 0);
}

/* Queues of permits belong to no session.  The pattern is a prefix with backslashes, then '*'. */
static bool
matches(const InspectQuestion *question, const local_name *name)
{
	int len = 0;

	if (name->key[name->key_len - 1] == LUA_PERMIT[0])
		return false;
	for (int i = 0; i < question->key_len - 1; i++)
	{
		i += question->key[i] == '\\';
		if (len >= name->key_len || name->key[len++] != question->key[i])
			return false;
	}
	return true;
}

/* A step of inspect_many.lua, which looks for no permits: their keys are in the list. */
static void
read_many(const InspectText *keys, InspectText *records)
{
	records->len = 0;
	for (int at = 0; at < keys->len; at += strlen(keys->text + at) + 1)
	{
		char record[INSPECT_MANY_RECORD_MAX];
		Inspected key;
		int len;

		look(keys->text + at, strlen(keys->text + at), false, &key);
		len = inspect_many_write(record, &key);
		if (records->len + len > (int) sizeof(records->text))
			break;
		memcpy(records->text + records->len, record, len);
		records->len += len;
	}
}

/* run_note.lua */
static void
note_run(const InspectQuestion *question, InspectAnswer *answer, int index)
{
	int64 now_us = node_local_now_us();
	char *job = pnstrdup(question->key, question->key_len);
	const RunNote *noted;
	RunNote run;

	if (run_note_read(&run, question->value, question->value_len, redlock_wall_clock_us()))
		local_notes_keep(node_local_notes(), job, &run, now_us,
						 redlock_last_run_keep_s * INT64CONST(1000000));
	noted = local_notes_find(node_local_notes(), job, now_us);
	answer->node[index].kind = INSPECTED_NONE;
	if (noted != NULL)
	{
		answer->last_run = *noted;
		answer->noted = CORE_BIT(index);
	}
	pfree(job);
}

/* All readers are this server's. */
static void
own_hosts(Inspected *at)
{
	for (int i = 0; i < at->hosts; i++)
		at->host[i] = lease_table->host_id;
}
