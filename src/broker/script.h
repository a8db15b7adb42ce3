/*
 * script.h
 *		What is said to a node about one lock: the commands, the lock's value, and
 *		the reading of replies into votes.  What the nodes do then is in redlock.lua.
 */
#ifndef REDLOCK_SCRIPT_H
#define REDLOCK_SCRIPT_H

#include <hiredis/hiredis.h>

#include "protocol/lua.h"
#include "protocol/probe.h"
#include "protocol/waiters.h"

#define SCRIPT_SHA_SIZE 41
#define SCRIPT_TEXT_MAX 159
#define SCRIPT_VALUE_SIZE 256

/* One command about one lock. */
typedef struct ScriptCommand
{
	core_op op;
	const char *key;
	size_t key_len;
	char *value;
	size_t value_len;
	bool shared;
	int64 wall_clock_us; /* since 1970 */
	int64 ttl_ms;        /* acquire, renew: the key's; release: rules_release_ms */
	core_command core;
	int64 waited_us;        /* acquire: what the holder's host is told; -1: it is a try */
	int permits;            /* acquire: the key is of one of so many; 0: it is not */
	int64 token;            /* release: of the lease, as its waiters are told; 0: none */
	const Waiters *waiters; /* release: whose turn is next; NULL: nobody's */
	int64 now_us;           /* release: on the clock of the waiters */
} ScriptCommand;

/* Commands that a node gets as one call of the script. */
#define SCRIPT_BATCH_MAX 16
#define SCRIPT_COMMAND_MAX 1024

typedef struct ScriptBatch
{
	int count;
	size_t len;
	char text[SCRIPT_BATCH_MAX * SCRIPT_COMMAND_MAX];
} ScriptBatch;

typedef struct ScriptAnswer
{
	core_reply reply;
	bool unknown_script;            /* NOSCRIPT: nothing was executed; to be sent
									 * again, with the script's text */
	bool forgot;                    /* the marker is not there: nothing was
									 * executed, and the node is not to be
									 * trusted with a grant */
	bool demoted;                   /* it has become a replica: it writes nothing any
									 * more, and its name may lead elsewhere */
	int64 token;                    /* a granted acquire: the node's counter; a refused
									 * renewal: the same if that is why, else 0 */
	int64 busy_ms;                  /* a refused acquire: time to live of the key
									 * in its way; 0: none, or unknown */
	uint32 holder;                  /* a refused acquire: hash of the request in its way */
	uint64 host;                    /* ... and the host that has it; 0: unknown, or nobody
									 * has it any more */
	bool ours;                      /* a refused acquire: it is of this extension, so
									 * its release will be told */
	bool kept;                      /* a refused acquire: it was released, and is kept
									 * by its hold_at_least */
	bool may_stay;                  /* a refused acquire: nobody may have it */
	bool by_readers;                /* a refused acquire: hosts share the lock */
	int free_permit;                /* a refused acquire of a permit: another; 0: none is free */
	int32 waiting;                  /* a refused acquire: hosts that wait for its release */
	char text[SCRIPT_TEXT_MAX + 1]; /* error: its text, in printable ASCII; a refused
									 * acquire: who holds it, in UTF-8 */
} ScriptAnswer;

/* Writes the value but for its attempt into `value`, returns its length. */
extern size_t script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, uint64 host,
						   bool shared, bool may_stay, const char *holder);

extern void script_set_attempt(char *value, uint32 attempt);

/* Adds to a batch that is not full. */
extern void script_add(ScriptBatch *batch, const ScriptCommand *command);

/*
 * Moves the batch to the connection's output buffer; by the script's text if sha
 * is NULL.  False: out of memory.
 */
extern bool script_append(redisContext *connection, ScriptBatch *batch, const char *marker,
						  const char *sha);

/* What people are told of a step of a probe's path. */
#define SCRIPT_SERVER_SIZE 64
#define SCRIPT_WHAT_SIZE 160

typedef struct ScriptStep
{
	int pid;
	char server[SCRIPT_SERVER_SIZE]; /* where it runs */
	char what[SCRIPT_WHAT_SIZE];     /* it waits for */
} ScriptStep;

typedef struct ScriptProbe
{
	ProbePath path;
	ScriptStep text[PROBE_STEPS_MAX];
	const char *key; /* for which the last step waits, at the host that hears it */
	size_t key_len;
	bool shared; /* to share it */
} ScriptProbe;

#define SCRIPT_PROBE_MAX                                                                           \
	(LOCK_PREFIX_MAX + LOCK_NAME_MAX + 64 +                                                        \
	 PROBE_STEPS_MAX * (SCRIPT_SERVER_SIZE + SCRIPT_WHAT_SIZE + LOCK_HOST_DIGITS + 64))

#define SCRIPT_WANT_MAX (LOCK_PREFIX_MAX + LOCK_NAME_MAX + 64)

/*
 * These write messages, and return their length: what the node says of a refused acquire that
 * waits, with another word if it is to share the lock, and a probe, whose own key is not used.
 */
extern size_t script_write_want(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len,
								uint64 host, int64 waited_us, bool shared);
extern size_t script_write_probe(char text[SCRIPT_PROBE_MAX], const char *key, size_t key_len,
								 const ScriptProbe *probe);

/* What a node tells its subscribers; plain Redlock clients say what they like. */
typedef enum ScriptWord
{
	SCRIPT_FREE,   /* the lock with the channel's name was released */
	SCRIPT_PERMIT, /* a permit was released; the channel's name is that of its queue */
	SCRIPT_WANT,   /* another host wants a lock of this one */
	SCRIPT_PROBE   /* a probe for deadlocks */
} ScriptWord;

typedef struct ScriptMessage
{
	ScriptWord word;
	int64 token;     /* FREE: of the lease that was released; 0: not told, or of a reader: the
					  * last one is not the same at each node */
	int permit;      /* PERMIT: which */
	Waiters waiters; /* FREE: whose turn is next; WANT: who wants it, one, or a try: nobody */
	bool shared;     /* WANT: by one who wants to share it, as far as that is told */
	const char *key; /* WANT */
	size_t key_len;
	ScriptProbe probe; /* PROBE */
} ScriptMessage;

/* Reads a message that was sent at that time.  The key is in its text. */
extern void script_hear(const char *text, size_t len, int64 sent_us, ScriptMessage *message);

/* Reads what command number i of a batch of so many was answered. */
extern void script_read(core_op op, const redisReply *reply, int i, int count,
						ScriptAnswer *answer);

#endif /* REDLOCK_SCRIPT_H */
