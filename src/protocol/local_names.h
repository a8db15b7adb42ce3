/*
 * local_names.h
 *		The names that the node inside the server knows: a table of bounded size, in memory that the
 *		caller provides.
 *
 * A name stays in the table while it has a key, a counter or a barrier.  When the table is full,
 * the name that was used longest ago, and has no key, makes room for a new name.  Its counter is
 * not lost: the table remembers the largest counter of all names that made room (`floor`), and a
 * new name begins with that counter.  So tokens of a name stay in order, whatever is forgotten.
 * Names with a key never make room.
 *
 * The table has offsets in place of pointers, so processes may map it at different addresses.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_LOCAL_NAMES_H
#define REDLOCK_LOCAL_NAMES_H

#include <stddef.h>

#include "protocol/local_node.h"
#include "protocol/lua.h"
#include "protocol/permits.h"

#define LOCAL_KEY_MAX (LOCK_PREFIX_MAX + LOCK_NAME_MAX + PERMITS_SUFFIX_MAX)

typedef struct local_name
{
	local_data data; /* first, so that a local_data of the table leads to its name */
	char holder[LOCK_HOLDER_MAX + 1]; /* of the value: text for people, ends in a NUL */
	char key[LOCAL_KEY_MAX];
	uint16_t key_len; /* 0: the place is free */
	bool in_use;      /* a command uses the name: it does not make room */
	int32_t next;     /* in the bucket, or free; -1: the last */
	int32_t older;    /* by last use; -1: the oldest */
	int32_t newer;
} local_name;

typedef struct local_names
{
	int32_t size;    /* places */
	int32_t buckets; /* a power of two */
	int32_t free;
	int32_t oldest;
	int32_t newest;
	uint32_t seed; /* of the hashes */
	local_mark mark;
	int64_t floor; /* see above; 0: none */
	int64_t floor_end_ms;
	int64_t began_us;  /* for the caller: the node's clock at its start, */
	int64_t clock_us;  /* ... and the caller's clock then */
	local_name name[]; /* the buckets follow */
} local_names;

/* The bytes of a table with `size` places; makes an empty table in as many zeroed bytes. */
extern size_t local_names_bytes(int32_t size);
extern void local_names_init(local_names *names, int32_t size, uint32_t seed);

/* Returns what is known of the name at this time, or NULL. */
extern local_name *local_names_find(local_names *names, const char *key, size_t len,
									int64_t now_us);

/* Returns the name at a place of the table, from 0 to size - 1; NULL if the name has no key. */
extern local_name *local_names_at(local_names *names, int32_t place, int64_t now_us);

/*
 * As local_names_find, and makes a place for an unknown name.  NULL: there is no room.  The name is
 * `in_use` until local_names_end, which frees the place if nothing is known of the name.
 */
extern local_name *local_names_begin(local_names *names, const char *key, size_t len,
									 int64_t now_us);
extern void local_names_end(local_names *names, local_name *name);

#endif /* REDLOCK_LOCAL_NAMES_H */
