/*
 * script.h
 *		What is said to a node about one lock: the scripts, the lock's value, and
 *		the reading of replies into votes.
 *
 *	 key     prefix || name in UTF-8
 *	 value   32 hex digits, ':', the attempt in nine digits, ' ', who holds it
 *
 * A release is told on the channel with the key's name.
 *
 * The semantics are those of SET NX PX and of compare-and-delete, so plain
 * Redlock clients contend with us on the same key.
 */
#ifndef REDLOCK_SCRIPT_H
#define REDLOCK_SCRIPT_H

#include <hiredis/hiredis.h>

#include "core.h"

#define SCRIPT_COUNT 3 /* one for each core_op */
#define SCRIPT_SHA_SIZE 41
#define SCRIPT_TEXT_MAX 159
#define SCRIPT_VALUE_SIZE 256

/* One command about one lock, as script_append writes it. */
typedef struct ScriptCommand
{
	core_op op;
	const char *key;
	size_t key_len;
	const char *value;
	size_t value_len;
	int64 ttl_ms; /* acquire, renew: the key's; release: see below */
} ScriptCommand;

/*
 * What a release does with the key: keeps it for that many more milliseconds
 * if positive, deletes it and tells the waiters, or just deletes it.
 */
#define SCRIPT_DELETE_AND_TELL 0
#define SCRIPT_DELETE (-1)

typedef struct ScriptAnswer
{
	core_reply reply;
	bool unknown_script;            /* NOSCRIPT: nothing was executed; send it again
									 * by its text */
	int64 busy_ms;                  /* a refused acquire: time to live of the key
									 * in its way; 0: none, or unknown */
	uint32 holder;                  /* a refused acquire: hash of the value in its way */
	int64 told;                     /* a release: hosts that wait for it */
	char text[SCRIPT_TEXT_MAX + 1]; /* error: its text; a refused acquire:
									 * who holds it; printable ASCII */
} ScriptAnswer;

extern const char *const script_text[SCRIPT_COUNT];

/* Writes the value into `value`, returns its length. */
extern size_t script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, unsigned attempt,
						   const char *holder);

/*
 * Append the command to the connection's output buffer; by its text if sha is
 * NULL.  False: out of memory.
 */
extern bool script_append(redisContext *connection, const ScriptCommand *command, const char *sha);

extern void script_read(core_op op, const redisReply *reply, ScriptAnswer *answer);

/* Copies text as printable ASCII, cut to fit. */
extern void script_printable(char *out, size_t size, const char *text, size_t len);

#endif /* REDLOCK_SCRIPT_H */
