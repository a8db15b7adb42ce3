/*
 * local_inspect.c
 *		Looking at a lock, and forced releases, at a node without Redis; see local_inspect.h.
 */
#include "protocol/local_inspect.h"

#include <string.h>

#include "protocol/value.h"

static bool read_key(const local_data *data, int64_t now_us, const local_order *order,
					 Inspected *at);
static bool is_form(const char *text);
static size_t skip(const char *text, size_t at, const char *set);
static int permits_of(const local_order *order, const char *text);
static bool is_expected(const local_order *order, bool ours, const char *held);

void
local_look(local_data *data, int64_t now_us, const local_order *order, Inspected *at)
{
	int permits;

	local_expire(data, now_us);
	permits = read_key(data, now_us, order, at) ? permits_of(order, at->value) : 0;
	for (int n = 1; n <= permits; n++)
		if (order->find_permit(order->names, n) != NULL)
			at->permit[(n - 1) / 8] |= (uint8_t) (1 << (n - 1) % 8);
}

bool
local_force(local_data *data, int64_t now_us, const local_order *order, Inspected *at)
{
	bool there;
	bool ours;
	int permits;

	local_expire(data, now_us);
	there = local_has_key(data);
	ours = read_key(data, now_us, order, at);
	permits = ours ? permits_of(order, at->value) : 0;
	for (int n = 1; n <= permits; n++)
		if (order->find_permit(order->names, n) != NULL)
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

/* Returns true if the key has a value of this extension. */
static bool
read_key(const local_data *data, int64_t now_us, const local_order *order, Inspected *at)
{
	memset(at, 0, sizeof(*at));
	at->kind = INSPECTED_NONE;
	at->counter = data->counter;
	at->ttl_ms = -1;
	if (!local_has_key(data))
		return false;
	at->kind = order->held_is_text ? INSPECTED_STRING : INSPECTED_OTHER;
	at->ttl_ms = data->key_end_ms - now_us / 1000;
	while (at->value_len < LUA_HELD_MAX && order->held[at->value_len] != '\0')
		at->value_len++;
	memcpy(at->value, order->held, (size_t) at->value_len);
	for (int i = 0; data->shared && i < data->readers; i++)
		if (data->reader[i].end_ms > now_us / 1000)
			at->host[at->hosts++] = (uint64_t) data->reader[i].host;
	at->readers = at->hosts;
	return at->kind == INSPECTED_STRING && is_form(at->value);
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

/* The first place from `at` on whose character is not in the set. */
static size_t
skip(const char *text, size_t at, const char *set)
{
	const char *c = set;

	while (*c != '\0')
	{
		bool is_in = text[at] == *c;

		at += is_in;
		c = is_in ? set : c + 1;
	}
	return at;
}

/* The number in a text of the right form, by LUA_PERMITS_PATTERN; 0: none. */
static int
permits_of(const local_order *order, const char *text)
{
	static const char word[] = " permits=";
	const char *digits = text + VALUE_HEAD - 1 + sizeof(word) - 1;
	size_t count;
	int permits = 0;

	if (order->of_permit || memcmp(text + VALUE_HEAD - 1, word, sizeof(word) - 1) != 0)
		return 0;
	count = skip(digits, 0, "0123456789");
	if (count == 0 || count > 4 || (count == 4 && digits[0] != '1') || digits[count] != ' ')
		return 0;
	for (size_t i = 0; i < count; i++)
		permits = 10 * permits + digits[i] - '0';
	return permits;
}

static bool
is_expected(const local_order *order, bool ours, const char *held)
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
			(permits_of(order, value) > 0 && permits_of(order, held) == permits_of(order, value)));
}
