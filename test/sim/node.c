/*
 * node.c
 *		A simulated Redis node; see node.h.
 */
#include "node.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "protocol/local_inspect.h"
#include "protocol/lua.h"

static const local_data *find_permit(const void *names, int permit);
static const local_data *known_permit(const node_data *permit_data, int permits_known, int permit);
static const local_data *find_permit_of(const void *order, int permit);

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

	return known_permit(command->permit_data, command->permits_known, permit);
}

static const local_data *
known_permit(const node_data *permit_data, int permits_known, int permit)
{
	if (permit > permits_known || !local_has_key(&permit_data[permit]))
		return NULL;
	return &permit_data[permit];
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
	local_order what = {.held = order->held,
						.held_is_text = order->held_is_text,
						.of_permit = order->of_permit,
						.find_permit = find_permit_of,
						.names = order,
						.least = order->least,
						.value = order->value,
						.value_len = order->value_len};

	if (!order->looks)
		return local_force(data, now_us, &what, at);
	local_look(data, now_us, &what, at);
	return false;
}

static const local_data *
find_permit_of(const void *names, int permit)
{
	const node_order *order = names;

	return known_permit(order->permit_data, order->permits_known, permit);
}
