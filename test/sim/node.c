/*
 * node.c
 *		What redlock.lua and marker.lua of src/protocol do, line by line; see node.h.
 */
#include "node.h"

#include "protocol/lua.h"

static void acquire(node_data *data, const node_mark *mark, int64_t now_us, const command *command,
					bool full, answer *answer);
static void confirm(node_data *data, int64_t now_us, const command *command, bool full,
					answer *answer);
static void renew(node_data *data, int64_t now_us, const command *command, bool *full,
				  answer *answer);
static void release(node_data *data, int64_t now_us, const command *command, bool *full,
					answer *answer);
static void refuse(answer *answer);
static bool is_near(int64_t counter, int64_t proposal);
static int digits(int64_t number);
static bool is_same(const node_data *data, const command *command);
static bool is_ours(const node_data *data, const command *command);
static void set_key(node_data *data, int64_t now_us, const command *command);
static void set_counter(node_data *data, int64_t now_us, int64_t counter, int64_t keep_ms);
static int64_t ttl_left_ms(const node_data *data, int64_t now_us);
static int64_t to_ms(int64_t us);

void
node_execute(node_data *data, const node_mark *mark, int64_t now_us, const command *command,
			 bool *full, answer *answer)
{
	*answer = (struct answer){.reply = CORE_REPLY_NO};
	node_expire(data, now_us);
	switch (command->op)
	{
		case CORE_OP_ACQUIRE:
			acquire(data, mark, now_us, command, *full, answer);
			break;
		case CORE_OP_CONFIRM:
			confirm(data, now_us, command, *full, answer);
			break;
		case CORE_OP_RENEW:
			renew(data, now_us, command, full, answer);
			break;
		case CORE_OP_RELEASE:
			release(data, now_us, command, full, answer);
			break;
	}
}

/* The clock is looked at only where the counter is not there, or not near. */
static void
acquire(node_data *data, const node_mark *mark, int64_t now_us, const command *command, bool full,
		answer *answer)
{
	int64_t proposal = command->proposal;
	int64_t counter = proposal;
	int64_t keep_ms = LUA_COUNTER_KEEP_MS;
	bool near = data->counter != 0 && is_near(data->counter, proposal);

	answer->reply = CORE_REPLY_ERROR;
	answer->error = NODE_FORGOT;
	if (mark->text == 0 || mark->text != command->marker)
		return;
	if (!near)
	{
		answer->error = NODE_AHEAD;
		if (proposal - now_us > LUA_CLOCK_BOUND_US)
			return;
		if (now_us - proposal > LUA_CLOCK_BOUND_US)
			counter = now_us - LUA_CLOCK_BOUND_US;
	}
	if (data->counter != 0 && counter - data->counter < LUA_SPAN)
	{
		counter = data->counter + LUA_SPAN;
		answer->error = NODE_AHEAD;
		if (counter >= LUA_COUNTER_END)
			return;
		if (counter > proposal)
			keep_ms += to_ms(counter - proposal);
	}
	answer->error = NODE_OK;
	answer->reply = CORE_REPLY_YES;
	if (is_same(data, command))
	{
		answer->token = data->counter;
		return;
	}
	if (data->secret != 0 && !is_ours(data, command))
	{
		answer->reply = CORE_REPLY_NO;
		answer->busy_ms = ttl_left_ms(data, now_us);
		answer->holder = data->secret;
		answer->may_stay = data->may_stay && !data->kept;
		if (data->host != 0 && (command->waited_us >= 0 || data->may_stay))
		{
			answer->tells = TELLS_WANT;
			answer->holder_host = data->host;
		}
		return;
	}
	if (full)
	{
		refuse(answer);
		return;
	}
	set_key(data, now_us, command);
	if (near && digits(counter) == digits(data->counter))
		data->counter = counter; /* it expires when it would have */
	else
		set_counter(data, now_us, counter, keep_ms);
	answer->token = counter;
}

static void
confirm(node_data *data, int64_t now_us, const command *command, bool full, answer *answer)
{
	if (!is_same(data, command) || data->counter == 0 || data->counter != command->counter)
		return;
	if (full)
	{
		refuse(answer);
		return;
	}
	set_counter(data, now_us, command->token, command->keep_ms);
	answer->reply = CORE_REPLY_YES;
}

static void
renew(node_data *data, int64_t now_us, const command *command, bool *full, answer *answer)
{
	if (is_same(data, command))
	{
		if (ttl_left_ms(data, now_us) < command->ttl_ms)
		{
			set_key(data, now_us, command);
			*full = false;
		}
	}
	else
	{
		if (data->secret != 0 && !is_ours(data, command))
			return;
		if (data->counter > command->counter)
		{
			answer->token = data->counter;
			return;
		}
		if (*full && (data->secret == 0 || data->attempt + 1 != command->attempt))
		{
			refuse(answer);
			return;
		}
		if (!*full)
			set_key(data, now_us, command);
		else if (data->key_end_ms < now_us / 1000 + command->ttl_ms)
		{
			/* it extends the key of the grant as it is, not of an earlier attempt */
			data->key_end_ms = now_us / 1000 + command->ttl_ms;
			*full = false;
		}
	}
	if (*full && data->counter < command->token)
	{
		refuse(answer);
		return;
	}
	if (data->counter < command->token)
		set_counter(data, now_us, command->token, command->keep_ms);
	answer->reply = CORE_REPLY_YES;
}

static void
release(node_data *data, int64_t now_us, const command *command, bool *full, answer *answer)
{
	bool ours = is_ours(data, command);

	if (command->counter != 0 && data->counter < command->counter)
	{
		set_counter(data, now_us, command->counter, command->keep_ms);
		*full = false;
	}
	if (!ours)
		return;
	*full = false;
	answer->reply = CORE_REPLY_YES;
	if (command->ttl_ms == 0)
		answer->tells = TELLS_FREE;
	if (command->ttl_ms <= 0)
		data->secret = 0;
	else
	{
		set_key(data, now_us, command);
		data->kept = true;
	}
}

static void
refuse(answer *answer)
{
	answer->reply = CORE_REPLY_ERROR;
	answer->error = NODE_FAILED;
}

marked
node_marker(node_mark *mark, int64_t now_us, uint32_t fresh, bool seen, int64_t max_ttl_ms)
{
	if (mark->text == 0)
	{
		mark->text = fresh;
		mark->lost_us = seen ? now_us : 0;
	}
	if (mark->lost_us == 0)
		return MARKED_FRESH;
	/* if the clock was set back, the time is to come */
	return now_us - mark->lost_us < max_ttl_ms * 1000 ? MARKED_LOST : MARKED_LONG_LOST;
}

bool
node_plain_set(node_data *data, int64_t now_us, uint32_t secret, int64_t ttl_ms)
{
	node_expire(data, now_us);
	if (data->secret != 0)
		return false;
	data->secret = secret;
	data->attempt = 0;
	data->host = 0;
	data->may_stay = false;
	data->kept = false;
	data->key_end_ms = now_us / 1000 + ttl_ms;
	return true;
}

bool
node_plain_delete(node_data *data, int64_t now_us, uint32_t secret)
{
	node_expire(data, now_us);
	if (data->secret != secret || data->kept)
		return false;
	data->secret = 0;
	return true;
}

bool
node_expire(node_data *data, int64_t now_us)
{
	if (data->secret != 0 && now_us / 1000 > data->key_end_ms)
		data->secret = 0;
	if (data->counter == 0 || now_us / 1000 <= data->counter_end_ms)
		return false;
	data->counter = 0;
	return true;
}

/* Do the first six digits agree, of as many? */
static bool
is_near(int64_t counter, int64_t proposal)
{
	int64_t rest = 1;

	if (digits(counter) != digits(proposal))
		return false;
	for (int i = digits(counter); i > 6; i--)
		rest *= 10;
	return counter / rest == proposal / rest;
}

static int
digits(int64_t number)
{
	int count = 1;

	for (; number >= 10; number /= 10)
		count++;
	return count;
}

static bool
is_same(const node_data *data, const command *command)
{
	return data->secret == command->secret && data->attempt == command->attempt && !data->kept;
}

/* Of this attempt, or of an earlier one of the same request. */
static bool
is_ours(const node_data *data, const command *command)
{
	return is_same(data, command) ||
		   (data->secret == command->secret && data->attempt < command->attempt);
}

static void
set_key(node_data *data, int64_t now_us, const command *command)
{
	data->secret = command->secret;
	data->attempt = command->attempt;
	data->host = command->host + 1;
	data->may_stay = command->may_stay;
	data->kept = false;
	data->key_end_ms = now_us / 1000 + command->ttl_ms;
}

static void
set_counter(node_data *data, int64_t now_us, int64_t counter, int64_t keep_ms)
{
	data->counter = counter;
	data->counter_end_ms = now_us / 1000 + keep_ms;
}

static int64_t
ttl_left_ms(const node_data *data, int64_t now_us)
{
	return data->key_end_ms - now_us / 1000;
}

/* Rounds half to even, as the "%.0f" of the script does. */
static int64_t
to_ms(int64_t us)
{
	int64_t ms = us / 1000;
	int64_t rest = us % 1000;

	return ms + (rest > 500 || (rest == 500 && ms % 2 != 0));
}
