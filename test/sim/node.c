/*
 * node.c
 *		A simulated Redis node; see node.h.
 */
#include "node.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/lua.h"
#include "protocol/value.h"

static const local_data *find_permit(const void *names, int permit);
static bool is_form(const char *text);
static size_t skip(const char *text, size_t at, const char *set);
static int permits_of(const char *text);
static bool is_expected(const node_order *order, bool ours, const char *held);
static void look(const node_data *data, int64_t now_us, const node_order *order, Inspected *at);

void
node_execute(node_data *data, const node_mark *mark, int64_t now_us, const command *c,
			 node_memory *memory, answer *answer)
{
	local_command command = {.op = c->op,
							 .secret = node_secret(c->secret),
							 .attempt = c->attempt,
							 .host = c->host + 1,
							 .shared = c->shared,
							 .may_idle = c->may_stay,
							 .says_permits = c->says_permits,
							 .ttl_ms = c->ttl_ms,
							 .proposal = c->proposal,
							 .marker = c->marker,
							 .counter = c->counter,
							 .token = c->token,
							 .waited_us = c->waited_us,
							 .permit = c->permit,
							 .permits = c->permits,
							 .lock_data = c->lock_data,
							 .find_permit = find_permit,
							 .names = c};
	local_answer a;

	assert(!data->shared || data->readers < LOCAL_READERS_MAX); /* the script has no limit */
	local_execute(data, mark, now_us, &command, memory, &a);
	*answer = (struct answer){.reply = a.reply,
							  .error = (node_error) a.error,
							  .token = a.token,
							  .busy_ms = a.busy_ms,
							  .holder = node_number(a.holder),
							  .may_stay = a.may_idle,
							  .tells = a.tells,
							  .holder_host = a.holder_host,
							  .tells_queue = a.tells_queue,
							  .free_permit = a.free_permit,
							  .in_front = a.in_front,
							  .shared = a.shared,
							  .readers = a.readers};
	memcpy(answer->reader_host, a.reader_host, sizeof(a.reader_host));
}

static const local_data *
find_permit(const void *names, int permit)
{
	const command *command = names;

	if (permit > command->permits_known || !local_has_key(&command->permit_data[permit]))
		return NULL;
	return &command->permit_data[permit];
}

void
node_write_value(char *text, size_t size, const node_data *of)
{
	char says[20] = "";

	if (of->permits > 0)
		snprintf(says, sizeof(says), "permits=%d ", of->permits);
	snprintf(text, size, "%032x:%09u:%016x%s%s%s%sa holder", node_number(of->secret), of->attempt,
			 (unsigned) of->host, of->shared ? LUA_SHARED : "", of->may_idle ? LUA_MAY_IDLE : " ",
			 of->kept ? LUA_KEPT : "", says);
}

bool
node_force(node_data *data, int64_t now_us, const node_order *order, Inspected *at)
{
	bool there;
	bool ours;

	local_expire(data, now_us);
	there = local_has_key(data);
	look(data, now_us, order, at);
	if (order->looks)
		return false;
	ours = at->kind == INSPECTED_STRING && is_form(at->value);
	for (int n = 1; ours && !order->of_permit && n <= permits_of(at->value); n++)
		if (n <= order->permits_known && local_has_key(&order->permit_data[n]))
			return false;
	if (there && !is_expected(order, ours, at->value))
		return false;
	at->after =
		data->counter != 0 && data->counter >= order->least ? data->counter + 1 : order->least;
	if (at->after >= LUA_COUNTER_END)
	{
		at->kind = INSPECTED_ERROR;
		at->after = 0;
		return false;
	}
	at->forced = true;
	data->secret = LOCAL_NOBODY;
	data->readers = 0;
	data->since = -1;
	if (at->after != 0)
	{
		data->counter = at->after;
		data->counter_end_ms =
			(at->after > now_us ? at->after : now_us) / 1000 + LUA_COUNTER_KEEP_MS;
	}
	return there;
}

static void
look(const node_data *data, int64_t now_us, const node_order *order, Inspected *at)
{
	memset(at, 0, sizeof(*at));
	at->kind = INSPECTED_NONE;
	at->counter = data->counter;
	at->ttl_ms = -1;
	if (!local_has_key(data))
		return;
	at->kind = order->held_is_text ? INSPECTED_STRING : INSPECTED_OTHER;
	at->ttl_ms = data->key_end_ms - now_us / 1000;
	snprintf(at->value, sizeof(at->value), "%.*s", LUA_HELD_MAX, order->held);
	at->value_len = (int) strlen(at->value);
	if (!data->shared)
		return;
	for (int i = 0; i < data->readers; i++)
		if (data->reader[i].end_ms > now_us / 1000)
			at->host[at->hosts++] = (uint64_t) data->reader[i].host;
	at->readers = at->hosts;
}

/* The pattern `form` of the script. */
static bool
is_form(const char *text)
{
	size_t at = skip(text, 0, "0123456789abcdef");

	if (at == 0 || text[at] != ':')
		return false;
	at = skip(text, at + 1, "0123456789");
	if (text[at - 1] == ':' || text[at] != ':')
		return false;
	at = skip(text, at + 1, "0123456789abcdef");
	if (text[at - 1] == ':' || at + 1 != VALUE_HEAD)
		return false;
	at += text[at] == LUA_SHARED[0];
	return text[at] == ' ' || text[at] == LUA_MAY_IDLE[0];
}

static size_t
skip(const char *text, size_t at, const char *set)
{
	return at + strspn(text + at, set);
}

/* The number in a text of the right form, by LUA_PERMITS_PATTERN; 0: none. */
static int
permits_of(const char *text)
{
	static const char word[] = " permits=";
	const char *digits = text + VALUE_HEAD - 1 + sizeof(word) - 1;
	size_t count;

	if (strncmp(text + VALUE_HEAD - 1, word, sizeof(word) - 1) != 0)
		return 0;
	count = strspn(digits, "0123456789");
	if (count == 0 || count > 4 || (count == 4 && digits[0] != '1') || digits[count] != ' ')
		return 0;
	return atoi(digits);
}

static bool
is_expected(const node_order *order, bool ours, const char *held)
{
	char value[LUA_HELD_MAX + 1];

	if (order->value_len == 0)
		return true;
	memcpy(value, order->value, (size_t) order->value_len);
	value[order->value_len] = 0;
	if (strcmp(held, value) == 0)
		return true;
	return ours && is_form(value) &&
		   (memcmp(held, value, VALUE_REQUEST + 1) == 0 ||
			(held[VALUE_HEAD - 1] == LUA_SHARED[0] && value[VALUE_HEAD - 1] == LUA_SHARED[0]) ||
			(!order->of_permit && permits_of(value) > 0 && permits_of(held) == permits_of(value)));
}
