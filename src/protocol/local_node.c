/*
 * local_node.c
 *		The commands of redlock.lua and marker.lua, in the order of the scripts; see local_node.h.
 */
#include "protocol/local_node.h"

#include <stddef.h>

#include "protocol/lua.h"

static void acquire(local_data *data, const local_mark *mark, int64_t now_us,
					const local_command *command, local_memory *memory, local_answer *answer);
static void confirm(local_data *data, int64_t now_us, const local_command *command,
					local_memory *memory, local_answer *answer);
static void renew(local_data *data, const local_mark *mark, int64_t now_us,
				  const local_command *command, local_memory *memory, local_answer *answer);
static void release(local_data *data, int64_t now_us, const local_command *command,
					local_memory *memory, local_answer *answer);
static bool has_forgotten(const local_mark *mark, const local_command *command,
						  local_answer *answer);
static bool acquire_shared(local_data *data, int64_t now_us, const local_command *command,
						   local_memory *memory, int64_t counter, local_answer *answer);
static void confirm_shared(local_data *data, int64_t now_us, const local_command *command,
						   local_memory *memory, local_answer *answer);
static bool renew_shared(local_data *data, const local_mark *mark, int64_t now_us,
						 const local_command *command, local_memory *memory, local_answer *answer);
static bool release_shared(local_data *data, int64_t now_us, const local_command *command,
						   local_answer *answer);
static local_reader *reader_of(local_data *data, local_id secret);
static bool has_place(local_data *data, int64_t now_us);
static void drop_expired(local_data *data, int64_t now_us);
static void put_reader(local_data *data, const local_command *command, int64_t granted,
					   int64_t end_ms);
static void drop_reader(local_data *data, local_reader *reader);
static bool has_barrier(const local_data *data);
static const local_data *queue_of(const local_command *command);
static bool is_queued(const local_command *command);
static bool is_barred(const local_command *command);
static int permits_said(const local_data *data);
static bool has_permit(const local_command *command, int permit);
static void stand_behind(const local_data *bar, int64_t now_us, local_answer *answer);
static bool is_of_another_kind(const local_data *lock, const local_command *command);
static void take_lock(int64_t now_us, const local_command *command);
static void renew_lock(const local_data *data, int64_t now_us, const local_command *command,
					   local_memory *memory);
static void leave_lock(const local_data *data, int64_t former_end_ms, const local_command *command);
static int another_permit(const local_command *command);
static void stand_in_the_way(const local_data *data, int64_t now_us, const local_command *command,
							 local_answer *answer);
static void stand_in_front(local_data *data, int64_t now_us, const local_command *command,
						   bool full, local_answer *answer);
static void take_known(const local_data *data, local_memory *memory);
static void let_write(local_memory *memory);
static void refuse(local_answer *answer);
static bool is_near(int64_t counter, int64_t proposal);
static int digits(int64_t number);
static bool is_same(const local_data *data, const local_command *command);
static bool is_ours(const local_data *data, const local_command *command);
static void set_key(local_data *data, int64_t now_us, const local_command *command);
static void set_counter(local_data *data, int64_t now_us, int64_t counter);
static int64_t ttl_left_ms(const local_data *data, int64_t now_us);

void
local_execute(local_data *data, const local_mark *mark, int64_t now_us,
			  const local_command *command, local_memory *memory, local_answer *answer)
{
	*answer = (local_answer){.reply = CORE_REPLY_NO};
	local_expire(data, now_us);
	if (command->lock_data != NULL)
		local_expire(command->lock_data, now_us);
	switch (command->op)
	{
		case CORE_OP_ACQUIRE:
			acquire(data, mark, now_us, command, memory, answer);
			break;
		case CORE_OP_CONFIRM:
			confirm(data, now_us, command, memory, answer);
			break;
		case CORE_OP_RENEW:
			renew(data, mark, now_us, command, memory, answer);
			break;
		case CORE_OP_RELEASE:
			release(data, now_us, command, memory, answer);
			break;
	}
}

/* Returns true, with an error, if the node's marker is not the marker known to the client. */
static bool
has_forgotten(const local_mark *mark, const local_command *command, local_answer *answer)
{
	if (mark->text != 0 && mark->text == command->marker)
		return false;
	answer->reply = CORE_REPLY_ERROR;
	answer->error = LOCAL_FORGOT;
	return true;
}

/* The script reads the clock only if the counter is missing or not near. */
static void
acquire(local_data *data, const local_mark *mark, int64_t now_us, const local_command *command,
		local_memory *memory, local_answer *answer)
{
	bool queued = is_queued(command);
	bool barred = is_barred(command);
	int64_t proposal = command->proposal;
	int64_t counter = proposal;
	bool near = data->counter != 0 && is_near(data->counter, proposal);

	answer->reply = CORE_REPLY_ERROR;
	if (has_forgotten(mark, command, answer))
		return;
	if (!near)
	{
		answer->error = LOCAL_AHEAD;
		if (proposal - now_us > LUA_CLOCK_BOUND_US)
			return;
		if (now_us - proposal > LUA_CLOCK_BOUND_US)
			counter = now_us - LUA_CLOCK_BOUND_US;
	}
	if (data->counter != 0 && counter - data->counter < LUA_SPAN)
	{
		counter = data->counter + LUA_SPAN;
		answer->error = LOCAL_AHEAD;
		if (counter >= LUA_COUNTER_END)
			return;
	}
	answer->error = LOCAL_OK;
	answer->reply = CORE_REPLY_YES;
	if (command->shared)
	{
		if (!acquire_shared(data, now_us, command, memory, counter, answer))
			return;
	}
	else
	{
		if (data->counter != 0 && !queued && !barred)
			let_write(memory);
		if (is_same(data, command))
		{
			answer->token = data->counter;
			return;
		}
		if (barred || (!local_has_key(data) && queued))
		{
			stand_behind(barred ? command->lock_data : queue_of(command), now_us, answer);
			return;
		}
		if (local_has_key(data) && !is_ours(data, command))
		{
			stand_in_the_way(data, now_us, command, answer);
			if (data->shared)
				stand_in_front(data, now_us, command, *memory == LOCAL_FULL, answer);
			if (!queued)
				answer->free_permit = another_permit(command);
			return;
		}
		if (queued)
			let_write(memory);
		else if (*memory != LOCAL_HAS_ROOM && data->counter == 0)
		{
			refuse(answer);
			return;
		}
		set_key(data, now_us, command);
	}
	if (near && is_near(data->counter, counter))
		data->counter = counter; /* without a new expiry time */
	else
		set_counter(data, now_us, counter);
	if (command->permits > 0)
		take_lock(now_us, command);
	answer->token = counter;
}

/* NULL: there is no key of the queue. */
static const local_data *
queue_of(const local_command *command)
{
	return command->find_permit(command->names, 0);
}

/* Another host waits for any permit.  The queue's lock is exclusive. */
static bool
is_queued(const local_command *command)
{
	const local_data *queue = command->permits > 0 ? queue_of(command) : NULL;

	return queue != NULL && (queue->host != command->host || queue->shared);
}

/* The lock itself is held, or its permits have another number. */
static bool
is_barred(const local_command *command)
{
	return command->permits > 0 && local_has_key(command->lock_data) &&
		   permits_said(command->lock_data) != command->permits;
}

/* By the key of a lock; 0: no key, or no permits in the value. */
static int
permits_said(const local_data *data)
{
	return local_has_key(data) && !data->kept ? data->permits : 0;
}

static bool
has_permit(const local_command *command, int permit)
{
	return command->find_permit(command->names, permit) != NULL;
}

/* The queue or the lock itself refuses the permit. */
static void
stand_behind(const local_data *bar, int64_t now_us, local_answer *answer)
{
	answer->reply = CORE_REPLY_NO;
	answer->busy_ms = ttl_left_ms(bar, now_us);
	answer->holder = bar->secret;
	answer->held = bar;
	answer->in_front = true;
}

/* With a granted permit: the lock's key lives as long as its longest permit. */
static void
take_lock(int64_t now_us, const local_command *command)
{
	local_data *lock = command->lock_data;
	int64_t end_ms = local_has_key(lock) ? lock->key_end_ms : 0;

	set_key(lock, now_us, command);
	if (lock->key_end_ms < end_ms)
		lock->key_end_ms = end_ms;
}

/* Returns true if a session has the whole lock, or permits of another number. */
static bool
is_of_another_kind(const local_data *lock, const local_command *command)
{
	return local_has_key(lock) && permits_said(lock) != command->says_permits;
}

/* With a renewed permit: the lock's key may be lost. */
static void
renew_lock(const local_data *data, int64_t now_us, const local_command *command,
		   local_memory *memory)
{
	local_data *lock = command->lock_data;

	if (!local_has_key(lock))
	{
		let_write(memory);
		set_key(lock, now_us, command);
		lock->key_end_ms = data->key_end_ms;
	}
	else if (lock->key_end_ms < data->key_end_ms)
	{
		let_write(memory);
		lock->key_end_ms = data->key_end_ms;
	}
}

/*
 * With a released permit, whose key ended at former_end_ms.  The last permit deletes the lock's
 * key, a kept key prolongs the lock's key, and the longest permit shortens it.
 */
static void
leave_lock(const local_data *data, int64_t former_end_ms, const local_command *command)
{
	local_data *lock = command->lock_data;
	int permits = permits_said(lock);
	bool was_longest = former_end_ms >= lock->key_end_ms - LUA_PERMIT_SLACK_MS;
	int64_t longest_ms = local_has_key(data) ? data->key_end_ms : 0;

	if (permits == 0)
		return;
	if (longest_ms > lock->key_end_ms)
	{
		lock->key_end_ms = longest_ms;
		return;
	}
	for (int i = 1; i <= permits; i++)
	{
		const local_data *other = command->find_permit(command->names, i);

		if (other == NULL)
			continue;
		if (!was_longest || other->key_end_ms >= former_end_ms)
			return;
		if (longest_ms < other->key_end_ms)
			longest_ms = other->key_end_ms;
	}
	if (longest_ms == 0)
		lock->secret = LOCAL_NOBODY;
	else if (was_longest && longest_ms < lock->key_end_ms)
		lock->key_end_ms = longest_ms;
}

/* Returns the next free permit behind the refused one; 0: none. */
static int
another_permit(const local_command *command)
{
	int other = command->permit;

	for (int i = 1; i < command->permits; i++)
	{
		other = other % command->permits + 1;
		if (!has_permit(command, other))
			return other;
	}
	return 0;
}

/* Names the key in the way, and the host to be told. */
static void
stand_in_the_way(const local_data *data, int64_t now_us, const local_command *command,
				 local_answer *answer)
{
	answer->reply = CORE_REPLY_NO;
	answer->busy_ms = ttl_left_ms(data, now_us);
	answer->holder = data->secret;
	answer->held = data;
	answer->shared = data->shared;
	answer->may_idle = data->may_idle && !data->kept;
	if (data->host == 0 || (command->waited_us < 0 && !data->may_idle))
		return;
	answer->tells = LOCAL_TELLS_WANT;
	answer->holder_host = data->host;
}

/* Puts a writer that waits for readers in front, with a barrier, and names all readers. */
static void
stand_in_front(local_data *data, int64_t now_us, const local_command *command, bool full,
			   local_answer *answer)
{
	bool in_front = command->waited_us >= 0 && data->counter != 0 &&
					(!has_barrier(data) || local_is(data->barrier, command->secret));

	answer->in_front = in_front;
	if (in_front && !full)
	{
		data->barrier = command->secret;
		data->barrier_counter = data->counter;
		data->barrier_end_ms = now_us / 1000 + LUA_BARRIER_MS;
	}
	if (answer->tells == LOCAL_TELLS_NOTHING)
		return;
	answer->readers = 0;
	drop_expired(data, now_us);
	for (int i = 0; i < data->readers; i++)
		answer->reader_host[answer->readers++] = data->reader[i].host;
}

/* Returns true if a new reader was stored and the counter must be raised. */
static bool
acquire_shared(local_data *data, int64_t now_us, const local_command *command, local_memory *memory,
			   int64_t counter, local_answer *answer)
{
	local_reader *mine = reader_of(data, command->secret);
	int64_t end_ms = now_us / 1000 + command->ttl_ms;
	bool may_idle;

	if (mine != NULL && mine->attempt == command->attempt)
	{
		answer->token = mine->granted;
		return false;
	}
	if (local_has_key(data) && !data->shared)
	{
		stand_in_the_way(data, now_us, command, answer);
		return false;
	}
	if (mine == NULL && has_barrier(data))
	{
		answer->reply = CORE_REPLY_NO;
		answer->busy_ms = data->barrier_end_ms - now_us / 1000;
		answer->holder = data->barrier;
		return false;
	}
	if (mine != NULL && mine->attempt > command->attempt)
	{
		answer->reply = CORE_REPLY_NO;
		answer->busy_ms = ttl_left_ms(data, now_us);
		answer->holder = data->secret;
		answer->held = data;
		answer->shared = true;
		return false;
	}
	take_known(data, memory);
	if ((*memory != LOCAL_HAS_ROOM && data->counter == 0 && !local_has_key(data)) ||
		(mine == NULL && !has_place(data, now_us)))
	{
		refuse(answer);
		return false;
	}
	if (!local_has_key(data))
	{
		data->readers = 0;
		data->since = data->counter;
		data->key_end_ms = 0;
	}
	put_reader(data, command, counter, end_ms);
	if (end_ms < data->key_end_ms)
		end_ms = data->key_end_ms;
	may_idle = local_has_key(data) && data->may_idle;
	set_key(data, now_us, command);
	data->may_idle = data->may_idle || may_idle;
	data->key_end_ms = end_ms;
	return true;
}

static void
confirm(local_data *data, int64_t now_us, const local_command *command, local_memory *memory,
		local_answer *answer)
{
	if (command->shared)
	{
		confirm_shared(data, now_us, command, memory, answer);
		return;
	}
	if (!is_same(data, command) || data->counter == 0 || data->counter != command->counter)
		return;
	take_known(data, memory);
	set_counter(data, now_us, command->token);
	answer->reply = CORE_REPLY_YES;
}

/* Other readers may have raised the counter since the grant. */
static void
confirm_shared(local_data *data, int64_t now_us, const local_command *command, local_memory *memory,
			   local_answer *answer)
{
	const local_reader *mine = reader_of(data, command->secret);

	if (mine == NULL || data->counter == 0 || mine->attempt != command->attempt ||
		mine->granted != command->counter)
		return;
	if (data->counter < command->token)
	{
		take_known(data, memory);
		set_counter(data, now_us, command->token);
	}
	answer->reply = CORE_REPLY_YES;
}

static void
renew(local_data *data, const local_mark *mark, int64_t now_us, const local_command *command,
	  local_memory *memory, local_answer *answer)
{
	if (command->permit > 0 && is_of_another_kind(command->lock_data, command))
		return;
	if (command->shared)
	{
		if (!renew_shared(data, mark, now_us, command, memory, answer))
			return;
	}
	else if (is_same(data, command))
	{
		if (ttl_left_ms(data, now_us) < command->ttl_ms)
		{
			set_key(data, now_us, command);
			let_write(memory);
		}
	}
	else
	{
		if (local_has_key(data) && !is_ours(data, command))
			return;
		if (data->counter > command->counter)
		{
			answer->token = data->counter;
			return;
		}
		if (has_forgotten(mark, command, answer))
			return;
		take_known(data, memory);
		if (*memory == LOCAL_FULL)
		{
			refuse(answer);
			return;
		}
		set_key(data, now_us, command);
	}
	if (command->permit > 0)
		renew_lock(data, now_us, command, memory);
	if (data->counter < command->token)
	{
		let_write(memory);
		set_counter(data, now_us, command->token);
	}
	answer->reply = CORE_REPLY_YES;
}

/* Returns false if the reader was not extended. */
static bool
renew_shared(local_data *data, const local_mark *mark, int64_t now_us, const local_command *command,
			 local_memory *memory, local_answer *answer)
{
	local_reader *mine = reader_of(data, command->secret);
	int64_t since = data->counter;
	int64_t end_ms = now_us / 1000 + command->ttl_ms;
	int64_t life_ms = end_ms;

	if ((local_has_key(data) && !data->shared) ||
		(mine != NULL && mine->attempt > command->attempt))
		return false;
	if (local_has_key(data) && data->since >= 0)
		since = data->since;
	if (mine != NULL && mine->granted < since)
		since = mine->granted;
	if (!(mine != NULL && mine->attempt == command->attempt) && since > command->counter)
	{
		answer->token = since;
		return false;
	}
	if (mine == NULL && has_forgotten(mark, command, answer))
		return false;
	take_known(data, memory);
	if (*memory == LOCAL_FULL || (mine == NULL && !has_place(data, now_us)))
	{
		refuse(answer);
		return false;
	}
	if (mine != NULL && mine->attempt == command->attempt && end_ms < mine->end_ms)
		end_ms = mine->end_ms;
	if (local_has_key(data) && life_ms < data->key_end_ms)
		life_ms = data->key_end_ms;
	if (!local_has_key(data))
	{
		data->readers = 0;
		data->since = since;
		set_key(data, now_us, command);
	}
	put_reader(data, command, since, end_ms);
	data->key_end_ms = life_ms;
	return true;
}

/* Returns true if readers remain; also if this reader is absent, or has a later attempt. */
static bool
release_shared(local_data *data, int64_t now_us, const local_command *command, local_answer *answer)
{
	local_reader *mine = reader_of(data, command->secret);
	int64_t life_ms = 0;

	if (!local_has_key(data) || !data->shared)
		return false;
	if (mine == NULL || mine->attempt > command->attempt)
		return true;
	answer->reply = CORE_REPLY_YES;
	drop_reader(data, mine);
	for (int i = data->readers - 1; i >= 0; i--)
		if (data->reader[i].end_ms <= now_us / 1000)
			drop_reader(data, &data->reader[i]);
		else if (life_ms < data->reader[i].end_ms)
			life_ms = data->reader[i].end_ms;
	if (life_ms > 0)
	{
		data->key_end_ms = life_ms;
		return true;
	}
	data->secret = LOCAL_NOBODY;
	if (command->ttl_ms == 0)
		answer->tells = LOCAL_TELLS_FREE;
	return false;
}

static void
release(local_data *data, int64_t now_us, const local_command *command, local_memory *memory,
		local_answer *answer)
{
	bool others = command->shared && release_shared(data, now_us, command, answer);
	bool ours = !command->shared && is_ours(data, command);
	int64_t former_end_ms = data->key_end_ms;

	if (answer->reply == CORE_REPLY_YES)
		let_write(memory);
	if (others && command->counter != 0 && data->since >= 0 && data->since < command->counter)
	{
		data->since = command->counter;
		let_write(memory);
	}

	if (command->counter != 0 && data->counter < command->counter)
	{
		set_counter(data, now_us, command->counter);
		let_write(memory);
	}
	if (!ours)
		return;
	let_write(memory);
	answer->reply = CORE_REPLY_YES;
	answer->tells_queue = command->ttl_ms == LUA_DELETE_AND_TELL_QUEUE;
	if (command->ttl_ms == LUA_DELETE_AND_TELL || answer->tells_queue)
		answer->tells = LOCAL_TELLS_FREE;
	if (command->ttl_ms <= 0)
		data->secret = LOCAL_NOBODY;
	else
	{
		set_key(data, now_us, command);
		data->kept = true;
	}
	if (command->permit > 0)
		leave_lock(data, former_end_ms, command);
}

static local_reader *
reader_of(local_data *data, local_id secret)
{
	for (int i = 0; local_has_key(data) && data->shared && i < data->readers; i++)
		if (local_is(data->reader[i].secret, secret))
			return &data->reader[i];
	return NULL;
}

/*
 * Is there a place for one more reader?  The key, if any, is of readers.  The script has as many
 * places as the node has memory.
 */
static bool
has_place(local_data *data, int64_t now_us)
{
	if (local_has_key(data) && data->readers == LOCAL_READERS_MAX)
		drop_expired(data, now_us);
	return !local_has_key(data) || data->readers < LOCAL_READERS_MAX;
}

static void
drop_expired(local_data *data, int64_t now_us)
{
	for (int i = data->readers - 1; i >= 0; i--)
		if (data->reader[i].end_ms <= now_us / 1000)
			drop_reader(data, &data->reader[i]);
}

static void
put_reader(local_data *data, const local_command *command, int64_t granted, int64_t end_ms)
{
	local_reader *mine = reader_of(data, command->secret);

	if (mine == NULL)
		mine = &data->reader[data->readers++];
	*mine = (local_reader){command->secret, command->attempt, command->host, granted, end_ms};
}

static void
drop_reader(local_data *data, local_reader *reader)
{
	data->readers--;
	for (; reader < data->reader + data->readers; reader++)
		*reader = reader[1];
}

/* Is the barrier in force?  It ends with the next grant. */
static bool
has_barrier(const local_data *data)
{
	return !local_is(data->barrier, LOCAL_NOBODY) && data->counter != 0 &&
		   data->counter - data->barrier_counter < LUA_SPAN;
}

/* A script that has changed data may write at a full node, but no new names. */
static void
take_known(const local_data *data, local_memory *memory)
{
	if (data->counter != 0 || local_has_key(data))
		let_write(memory);
}

/* The rest of this call may write, but no new names. */
static void
let_write(local_memory *memory)
{
	if (*memory == LOCAL_FULL)
		*memory = LOCAL_WRITES;
}

static void
refuse(local_answer *answer)
{
	answer->reply = CORE_REPLY_ERROR;
	answer->error = LOCAL_FAILED;
}

local_marked
local_marker(local_mark *mark, int64_t now_us, uint64_t fresh, bool seen, int64_t max_ttl_ms)
{
	if (mark->text == 0)
	{
		mark->text = fresh;
		mark->lost_us = seen ? now_us : 0;
	}
	if (mark->lost_us == 0)
		return LOCAL_MARKED_FRESH;
	/* after a step of the clock back, the time may be in the future */
	return now_us - mark->lost_us < max_ttl_ms * 1000 ? LOCAL_MARKED_LOST : LOCAL_MARKED_LONG_LOST;
}

bool
local_plain_set(local_data *data, int64_t now_us, local_id secret, int64_t ttl_ms)
{
	local_expire(data, now_us);
	if (local_has_key(data))
		return false;
	data->secret = secret;
	data->attempt = 0;
	data->host = 0;
	data->may_idle = false;
	data->shared = false;
	data->permits = 0;
	data->kept = false;
	data->key_end_ms = now_us / 1000 + ttl_ms;
	return true;
}

bool
local_plain_delete(local_data *data, int64_t now_us, local_id secret)
{
	local_expire(data, now_us);
	if (!local_is(data->secret, secret) || data->kept)
		return false;
	data->secret = LOCAL_NOBODY;
	return true;
}

bool
local_expire(local_data *data, int64_t now_us)
{
	if (local_has_key(data) && now_us / 1000 > data->key_end_ms)
		data->secret = LOCAL_NOBODY;
	if (!local_is(data->barrier, LOCAL_NOBODY) && now_us / 1000 > data->barrier_end_ms)
		data->barrier = LOCAL_NOBODY;
	if (data->counter == 0 || now_us / 1000 <= data->counter_end_ms)
		return false;
	data->counter = 0;
	return true;
}

/* Do the first digits agree, and the number of digits? */
static bool
is_near(int64_t counter, int64_t proposal)
{
	int64_t rest = 1;

	if (digits(counter) != digits(proposal))
		return false;
	for (int i = digits(counter); i > LUA_NEAR_DIGITS; i--)
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
is_same(const local_data *data, const local_command *command)
{
	return local_is(data->secret, command->secret) && data->attempt == command->attempt &&
		   !data->kept;
}

/* Is the key of this attempt, or of an earlier attempt of the same request? */
static bool
is_ours(const local_data *data, const local_command *command)
{
	return is_same(data, command) ||
		   (local_is(data->secret, command->secret) && data->attempt < command->attempt);
}

static void
set_key(local_data *data, int64_t now_us, const local_command *command)
{
	data->secret = command->secret;
	data->attempt = command->attempt;
	data->host = command->host;
	data->may_idle = command->may_idle;
	data->shared = command->shared;
	data->permits = command->may_idle || command->shared ? 0 : command->says_permits;
	data->kept = false;
	data->key_end_ms = now_us / 1000 + command->ttl_ms;
}

static void
set_counter(local_data *data, int64_t now_us, int64_t counter)
{
	data->counter = counter;
	data->counter_end_ms = (counter > now_us ? counter : now_us) / 1000 + LUA_COUNTER_KEEP_MS;
}

static int64_t
ttl_left_ms(const local_data *data, int64_t now_us)
{
	return data->key_end_ms - now_us / 1000;
}
