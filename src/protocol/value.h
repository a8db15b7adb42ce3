/*
 * value.h
 *		The form of a lock's value at a node: redlock.lua describes it.
 *
 * Any program may write under a lock's name, so a reader trusts no value.  Pure.
 */
#ifndef REDLOCK_VALUE_H
#define REDLOCK_VALUE_H

#include <stddef.h>

#include "protocol/lua.h"

#define VALUE_ATTEMPT_DIGITS 9 /* enough for the 27 bits of core_node */

/* bytes that identify the request, all of its attempts, in a value of redlock_pg */
#define VALUE_REQUEST (2 * LOCK_SECRET_BYTES)

/* Layout: secret, ':', attempt, ':', host, then ' ' or LUA_MAY_IDLE or LUA_SHARED. */
#define VALUE_ATTEMPT_AT (VALUE_REQUEST + 1)
#define VALUE_HOST_AT (VALUE_ATTEMPT_AT + VALUE_ATTEMPT_DIGITS + 1)
#define VALUE_HEAD (VALUE_HOST_AT + LOCK_HOST_DIGITS + 1)

typedef struct Value
{
	bool ours;     /* in the form of redlock_pg; else the next fields are false and 0 */
	bool shared;   /* a reader's */
	bool kept;     /* released, but kept by hold_at_least */
	bool may_idle; /* the lease may be idle */
	uint64_t host; /* id of the holder's host */
	int permits;   /* number of permits that the text states; 0: none */
	size_t text;   /* where the text for people begins; 0 if not ours */
} Value;

/* Reads a value of `len` bytes. */
extern void value_read(Value *value, const char *bytes, size_t len);

#endif /* REDLOCK_VALUE_H */
