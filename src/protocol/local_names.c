/*
 * local_names.c
 *		The names that the node inside the server knows; see local_names.h.
 */
#include "protocol/local_names.h"

#include <string.h>

/* names to look at, at most, to find a name that can make room */
#define LOOKS 256

static int32_t *bucket_of(local_names *names, const char *key, size_t len);
static int32_t buckets_for(int32_t size);
static local_name *look_up(local_names *names, const char *key, size_t len);
static bool make_room(local_names *names, int64_t now_us);
static bool is_known(const local_data *data);
static void forget(local_names *names, local_name *name);
static void use(local_names *names, local_name *name);
static void leave_order(local_names *names, local_name *name);
static int32_t place_of(const local_names *names, const local_name *name);

size_t
local_names_bytes(int32_t size)
{
	return offsetof(local_names, name) + (size_t) size * sizeof(local_name) +
		   (size_t) buckets_for(size) * sizeof(int32_t);
}

void
local_names_init(local_names *names, int32_t size, uint32_t seed)
{
	int32_t *bucket = (int32_t *) &names->name[size];

	names->size = size;
	names->buckets = buckets_for(size);
	names->seed = seed;
	names->oldest = names->newest = -1;
	names->free = 0;
	for (int32_t i = 0; i < size; i++)
		names->name[i].next = i + 1 < size ? i + 1 : -1;
	for (int32_t i = 0; i < names->buckets; i++)
		bucket[i] = -1;
}

local_name *
local_names_find(local_names *names, const char *key, size_t len, int64_t now_us)
{
	local_name *name = look_up(names, key, len);

	if (name == NULL)
		return NULL;
	local_expire(&name->data, now_us);
	return is_known(&name->data) ? name : NULL;
}

local_name *
local_names_at(local_names *names, int32_t place, int64_t now_us)
{
	local_name *name = &names->name[place];

	if (name->key_len == 0)
		return NULL;
	local_expire(&name->data, now_us);
	return local_has_key(&name->data) ? name : NULL;
}

local_name *
local_names_begin(local_names *names, const char *key, size_t len, int64_t now_us)
{
	local_name *name = look_up(names, key, len);

	if (name == NULL && len <= LOCAL_KEY_MAX && len > 0 &&
		(names->free >= 0 || make_room(names, now_us)))
	{
		int32_t *bucket = bucket_of(names, key, len);
		int32_t place = names->free;

		name = &names->name[place];
		names->free = name->next;
		memset(name, 0, sizeof(*name));
		memcpy(name->key, key, len);
		name->key_len = (uint16_t) len;
		name->next = *bucket;
		*bucket = place;
		name->older = name->newer = -1;
		if (names->floor != 0 && now_us / 1000 <= names->floor_end_ms)
		{
			name->data.counter = names->floor;
			name->data.counter_end_ms = names->floor_end_ms;
		}
	}
	else if (name != NULL)
		leave_order(names, name);
	if (name == NULL)
		return NULL;
	use(names, name);
	name->in_use = true;
	return name;
}

void
local_names_end(local_names *names, local_name *name)
{
	name->in_use = false;
	/* the floor alone is no knowledge of this name */
	if (!is_known(&name->data) ||
		(!local_has_key(&name->data) && name->data.counter == names->floor &&
		 name->data.counter_end_ms == names->floor_end_ms &&
		 local_is(name->data.barrier, LOCAL_NOBODY)))
		forget(names, name);
}

/*
 * Looks at the names in the order of their last use.  Returns false if no name can make room.  The
 * caller found no free place, so there are names.
 */
static bool
make_room(local_names *names, int64_t now_us)
{
	for (int i = 0; i < LOOKS; i++)
	{
		local_name *name = &names->name[names->oldest];
		local_data *data = &name->data;

		local_expire(data, now_us);
		if (!local_has_key(data) && !name->in_use)
		{
			if (data->counter > names->floor)
				names->floor = data->counter;
			if (data->counter != 0 && data->counter_end_ms > names->floor_end_ms)
				names->floor_end_ms = data->counter_end_ms;
			forget(names, name);
			return true;
		}
		leave_order(names, name);
		use(names, name); /* the next search begins behind it */
	}
	return false;
}

static bool
is_known(const local_data *data)
{
	return local_has_key(data) || data->counter != 0 || !local_is(data->barrier, LOCAL_NOBODY);
}

static void
forget(local_names *names, local_name *name)
{
	int32_t *at = bucket_of(names, name->key, name->key_len);
	int32_t place = place_of(names, name);

	while (*at != place)
		at = &names->name[*at].next;
	*at = name->next;
	leave_order(names, name);
	name->key_len = 0;
	name->next = names->free;
	names->free = place;
}

static local_name *
look_up(local_names *names, const char *key, size_t len)
{
	for (int32_t i = *bucket_of(names, key, len); i >= 0; i = names->name[i].next)
		if (names->name[i].key_len == len && memcmp(names->name[i].key, key, len) == 0)
			return &names->name[i];
	return NULL;
}

/* FNV-1a, with a seed: people who choose names can't choose a bucket. */
static int32_t *
bucket_of(local_names *names, const char *key, size_t len)
{
	uint32_t hash = UINT32_C(2166136261) ^ names->seed;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (unsigned char) key[i]) * UINT32_C(16777619);
	hash ^= hash >> 15;
	return (int32_t *) &names->name[names->size] + (hash & (uint32_t) (names->buckets - 1));
}

static int32_t
buckets_for(int32_t size)
{
	int32_t buckets = 16;

	while (buckets < size)
		buckets *= 2;
	return buckets;
}

/* Makes it the newest. */
static void
use(local_names *names, local_name *name)
{
	int32_t place = place_of(names, name);

	name->older = names->newest;
	name->newer = -1;
	if (names->newest >= 0)
		names->name[names->newest].newer = place;
	else
		names->oldest = place;
	names->newest = place;
}

static void
leave_order(local_names *names, local_name *name)
{
	if (name->older >= 0)
		names->name[name->older].newer = name->newer;
	else
		names->oldest = name->newer;
	if (name->newer >= 0)
		names->name[name->newer].older = name->older;
	else
		names->newest = name->older;
}

static int32_t
place_of(const local_names *names, const local_name *name)
{
	return (int32_t) (name - names->name);
}
