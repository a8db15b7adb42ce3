/*
 * script.h
 *		Messages between the broker and a node about one lock: the commands, the lock's value, and
 *		the reading of replies into votes.  redlock.lua has the node's part.
 */
#ifndef REDLOCK_SCRIPT_H
#define REDLOCK_SCRIPT_H

#include <hiredis/hiredis.h>

#include "protocol/lua.h"
#include "protocol/probe.h"
#include "protocol/waiters.h"
#include "protocol/waiting_hosts.h"

#define SCRIPT_SHA_SIZE 41
#define SCRIPT_TEXT_MAX 159
#define SCRIPT_VALUE_SIZE 256

/*
 * No true counter is 70 years ahead of time.  A node that says so must not spread such a token to
 * the other nodes.
 */
#define SCRIPT_TOKEN_AHEAD_MAX_US (INT64CONST(1) << 51)

/* One command about one lock. */
typedef struct ScriptCommand
{
	core_op op;
	const char *key;
	size_t key_len;
	char *value;
	size_t value_len;

	/* the parts of the value, for the node inside the server */
	const uint8 *secret;
	uint64 host;
	bool may_idle;
	const char *holder;

	bool shared;
	int64 wall_clock_us; /* since 1970 */
	int64 ttl_ms;        /* acquire, renew: of the key; release: rules_release_ms */
	core_command core;
	int64 waited_us;        /* acquire: wait so far, for the holder's host; -1: a try */
	int permits;            /* acquire: n of permits => n; 0: no permit */
	int64 token;            /* release: token of the lease, for the waiters; 0: none */
	const Waiters *waiters; /* release: whose turn is next; NULL: no host's */
	int64 now_us;           /* release: the clock of `waiters` */
} ScriptCommand;

/* The most commands in one call of the script. */
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
	bool unknown_script; /* nothing was executed: send the command again, with the script's text */
	bool forgot;         /* nothing was executed: the marker is gone, and perhaps grants */
	bool demoted;        /* a replica by now, which writes nothing; the name may lead elsewhere */
	int64 token;         /* granted acquire: the node's counter; refused renewal: the counter if
						  * that is the reason, else 0 */

	/* refused acquire: the key in the way */
	int64 busy_ms;   /* ttl of the key; 0: none, or unknown */
	uint32 holder;   /* hash of the request that has the key */
	uint64 host;     /* of the holder; 0: unknown, or released */
	bool ours;       /* the key is of redlock_pg, which publishes releases */
	bool kept;       /* released, but kept by hold_at_least */
	bool may_idle;   /* the lease may be idle */
	bool by_readers; /* hosts share the lock */
	int free_permit; /* another permit that is free; 0: none */
	int32 waiting;   /* hosts that wait for the release */

	/* error: the text, in printable ASCII; refused acquire: the holder, in UTF-8 */
	char text[SCRIPT_TEXT_MAX + 1];
} ScriptAnswer;

/*
 * Writes a lock's value, except the attempt, and returns its length.  script_set_attempt adds the
 * attempt.
 */
extern size_t script_value(char value[SCRIPT_VALUE_SIZE], const uint8 *secret, uint64 host,
						   bool shared, bool may_idle, const char *holder);

extern void script_set_attempt(char *value, uint32 attempt);

/* Adds a command to a batch, which must not be full. */
extern void script_add(ScriptBatch *batch, const ScriptCommand *command);

/*
 * Moves the batch to the connection's output buffer, as a call of the script with this hash; sha
 * NULL: with the script's text.  False: out of memory.
 */
extern bool script_append(redisContext *connection, ScriptBatch *batch, const char *marker,
						  const char *sha);

/* One step of a probe's path, for people. */
#define SCRIPT_SERVER_SIZE 64
#define SCRIPT_WHAT_SIZE 160

typedef struct ScriptStep
{
	int pid;
	char server[SCRIPT_SERVER_SIZE]; /* the host's name */
	char what[SCRIPT_WHAT_SIZE];     /* the lock it waits for */
} ScriptStep;

typedef struct ScriptProbe
{
	ProbePath path;
	ScriptStep text[PROBE_STEPS_MAX];
	const char *key; /* lock of the last wait, held by the receiving host */
	size_t key_len;
	bool shared; /* the last wait is a reader's */
} ScriptProbe;

#define SCRIPT_PROBE_MAX                                                                           \
	(LOCK_PREFIX_MAX + LOCK_NAME_MAX + 64 +                                                        \
	 PROBE_STEPS_MAX * (SCRIPT_SERVER_SIZE + SCRIPT_WHAT_SIZE + LOCK_HOST_DIGITS + 64))

#define SCRIPT_WANT_MAX (LOCK_PREFIX_MAX + LOCK_NAME_MAX + 64)

/* A host's channel: LUA_HOST, with the NUL inside, and the digits of the host's id. */
#define SCRIPT_CHANNEL_SIZE (sizeof(LUA_HOST) + LOCK_HOST_DIGITS)

extern size_t script_host_channel(uint64 host, char channel[SCRIPT_CHANNEL_SIZE]);

/*
 * These write a message for another host, and return its length: a request for a lock, as a node
 * publishes when it refuses an acquire (waited_us -1: a try); that the lock was released by force;
 * that an operator asks for the release (`ask`: a random number); a probe, for the lock `key`; and,
 * as a node publishes at a release, that the lock is free, and which permit is.
 */
extern size_t script_write_want(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len,
								uint64 host, int64 waited_us, bool shared);
extern size_t script_write_forced(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len);
extern size_t script_write_ask(char text[SCRIPT_WANT_MAX], const char *key, size_t key_len,
							   uint64 ask);
extern size_t script_write_probe(char text[SCRIPT_PROBE_MAX], const char *key, size_t key_len,
								 const ScriptProbe *probe);
extern size_t script_write_free(char text[SCRIPT_COMMAND_MAX], const ScriptCommand *release);
extern size_t script_write_permit(char text[SCRIPT_WANT_MAX], int permit);

/* ScriptAnswer.holder of a shared lock: all readers count as the same rival. */
#define SCRIPT_READERS 1

/*
 * Kinds of messages on a channel.  A plain Redlock client may publish anything; it counts as FREE.
 */
typedef enum ScriptWord
{
	SCRIPT_FREE,     /* the lock with the channel's name was released */
	SCRIPT_PERMIT,   /* a permit was released; the channel is its queue's */
	SCRIPT_FORCED,   /* an administrator has released a lock of this host */
	SCRIPT_ASK,      /* an operator asks for the release of a lock of this host */
	SCRIPT_WANT,     /* another host waits for, or tries, a lock of this host */
	SCRIPT_PROBE,    /* a probe for deadlocks */
	SCRIPT_QUESTION, /* which sessions wait for this lock? */
	SCRIPT_WAITS     /* the answer of a host */
} ScriptWord;

typedef struct ScriptMessage
{
	ScriptWord word;
	int64 token;     /* FREE: of the released lease; 0: unknown, or a reader's: nodes may differ on
					  * the last reader */
	int permit;      /* PERMIT: the number of the permit */
	Waiters waiters; /* FREE: hosts whose turn is next; WANT: the waiting host, or none for a try */
	bool shared;     /* WANT: the waiter is known to be a reader */
	const char *key; /* WANT, FORCED, ASK */
	size_t key_len;
	uint64 ask;               /* ASK: the number, the same in the copies of all nodes */
	ScriptProbe probe;        /* PROBE */
	WaitingQuestion question; /* QUESTION; its key points into the text */
	uint64 number;            /* WAITS: of the question */
	WaitingHost waiting;      /* WAITS */
} ScriptMessage;

/* Reads a message that was sent at sent_us.  message->key points into text. */
extern void script_hear(const char *text, size_t len, int64 sent_us, ScriptMessage *message);

/* Reads the answer to command i of a batch of `count` commands. */
extern void script_read(core_op op, const redisReply *reply, int i, int count,
						ScriptAnswer *answer);

#endif /* REDLOCK_SCRIPT_H */
