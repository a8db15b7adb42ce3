/*
 * node_checks.c
 *		The handshake of a connection, and the checks that a node must pass.
 *
 * All questions go out in one write, and the answers come in the order of the questions.
 * The first answer that shows a fault ends the connection.  After the last answer the
 * guard decides whether the node may vote at once or is in quarantine (protocol/guard.h).
 */
#include "postgres.h"

#include "pgtime.h"

#include "broker/node_internal.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/text.h"

/* Questions of the handshake. */
typedef enum Question
{
	ASK_AUTH,
	ASK_SELECT,
	ASK_PING,
	ASK_SERVER,
	ASK_REPLICATION,
	ASK_PERSISTENCE,
	ASK_MEMORY,
	ASK_STATS,
	ASK_FSYNC,
	ASK_MARKER,
	ASK_SCRIPT,
	ASK_EVALSHA,
	TELL_NAME,
	TELL_LIBRARY,
	TELL_VERSION
} Question;

/* For error texts: the command of each question, and the rights that it needs. */
static const struct
{
	const char *command;
	const char *rights;
	bool lua;
} needs[] = {
	[ASK_AUTH] = {"AUTH", "+auth"},
	[ASK_SELECT] = {"SELECT", "+select"},
	[ASK_PING] = {"PING", "+ping"},
	[ASK_SERVER] = {"INFO", "+info"},
	[ASK_REPLICATION] = {"INFO", "+info"},
	[ASK_PERSISTENCE] = {"INFO", "+info"},
	[ASK_MEMORY] = {"INFO", "+info"},
	[ASK_STATS] = {"INFO", "+info"},
	[ASK_FSYNC] = {"CONFIG GET", "+config|get"},
	[ASK_MARKER] = {"EVAL", "+eval +get +set +time ~redlock:?marker", true},
	[ASK_SCRIPT] = {"SCRIPT LOAD", "+script|load", true},
	[ASK_EVALSHA] = {"EVALSHA", "+evalsha", true},
};

/* The client name at a node; the host's name follows. */
#define CLIENT_NAME "redlock_pg/"

/* The hash of a script that no node has. */
#define NO_SHA "0000000000000000000000000000000000000000"

static void ask_voter(RedisNode *node);
static void tell_name(RedisNode *node);
static bool is_optional(Question what);
static void ask(RedisNode *node, Question what, int argc, const char **argv);
static const char *find_fault(RedisNode *node, Question what, const redisReply *reply);
static const char *read_server(RedisNode *node, const redisReply *reply);
static void read_version(RedisNode *node, const redisReply *reply);
static const char *explain_error(const RedisNode *node, Question what, const redisReply *reply);
static bool is_refusal(const redisReply *reply);
static bool begins_with(const char *text, const char *with);
static void read_fsync(RedisNode *node, const redisReply *reply);
static const redisReply *configured(const redisReply *reply, const char *name);
static int64 info_number(const redisReply *reply, const char *name);
static void read_rights(char *rights, int size, const redisReply *text);
static bool read_marker(RedisNode *node, const redisReply *reply);
static bool info_value(const redisReply *reply, const char *name, char *value, size_t size);
static bool is_durable(const RedisNode *node);

/* Sends all questions in one write. */
void
node_begin_handshake(RedisNode *node, int64 now_us)
{
	node->questions = node->answers = 0;
	node_set_state(node, NODE_HANDSHAKE, NULL);

	if (node->url.user[0] != '\0')
		ask(node, ASK_AUTH, 3, (const char *[]){"AUTH", node->url.user, node->url.password});
	else if (node->url.password[0] != '\0')
		ask(node, ASK_AUTH, 2, (const char *[]){"AUTH", node->url.password});
	if (node_is_subscriber(node))
		ask(node, ASK_PING, 1, (const char *[]){"PING"});
	else
		ask_voter(node);
	tell_name(node);
	Assert(node->questions <= lengthof(node->question));

	node->flush_wanted = true;
	node_flush(node, now_us);
}

static void
ask_voter(RedisNode *node)
{
	char db[12];
	char random[17];
	char max_ttl[12];
	uint64 bits;

	if (node->url.db != 0)
	{
		snprintf(db, sizeof(db), "%d", node->url.db);
		ask(node, ASK_SELECT, 2, (const char *[]){"SELECT", db});
	}
	ask(node, ASK_SERVER, 2, (const char *[]){"INFO", "server"});
	ask(node, ASK_REPLICATION, 2, (const char *[]){"INFO", "replication"});
	ask(node, ASK_PERSISTENCE, 2, (const char *[]){"INFO", "persistence"});
	ask(node, ASK_MEMORY, 2, (const char *[]){"INFO", "memory"});
	ask(node, ASK_STATS, 2, (const char *[]){"INFO", "stats"});
	ask(node, ASK_FSYNC, 3, (const char *[]){"CONFIG", "GET", "*appendfsync*"});

	if (!pg_strong_random(&bits, sizeof(bits)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate random bytes for a redlock node")));
	snprintf(random, sizeof(random), "%016llx", (unsigned long long) bits);
	snprintf(max_ttl, sizeof(max_ttl), "%d", redlock_max_ttl_ms);
	ask(node, ASK_MARKER, 6,
		(const char *[]){"EVAL", lua_marker_script, "0", random, node->guard->marker, max_ttl});
	ask(node, ASK_SCRIPT, 3, (const char *[]){"SCRIPT", "LOAD", lua_script});
	ask(node, ASK_EVALSHA, 3, (const char *[]){"EVALSHA", NO_SHA, "0"});
}

/*
 * Names the connection, for CLIENT LIST.  These questions must be the last ones: their answers are
 * ignored, and the first answer of a node may say why the node refuses us.
 */
static void
tell_name(RedisNode *node)
{
	char name[sizeof(CLIENT_NAME) + HOSTS_NAME_MAX];

	strlcpy(name, CLIENT_NAME, sizeof(name));
	strlcat(name, host_list_own_name(), sizeof(name));
	for (char *c = name; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			*c = '_'; /* a node refuses other characters */
	ask(node, TELL_NAME, 3, (const char *[]){"CLIENT", "SETNAME", name});
	ask(node, TELL_LIBRARY, 4, (const char *[]){"CLIENT", "SETINFO", "LIB-NAME", "redlock_pg"});
	ask(node, TELL_VERSION, 4, (const char *[]){"CLIENT", "SETINFO", "LIB-VER", REDLOCK_VERSION});
}

/* Is the answer ignored?  Some nodes lack the command, or their ACL forbids it. */
static bool
is_optional(Question what)
{
	return what >= TELL_NAME;
}

static void
ask(RedisNode *node, Question what, int argc, const char **argv)
{
	node_append(node, argc, argv, NULL);
	node->question[node->questions++] = what;
}

void
node_on_handshake(RedisNode *node, const redisReply *reply, int64 now_us)
{
	Question what = node->question[node->answers++];
	const char *fault = find_fault(node, what, reply);
	char error[SCRIPT_TEXT_MAX + 1];

	if (fault != NULL)
	{
		/* a host works on without messages: people must hear of a lack of room for messages */
		bool passing = begins_with(fault, "LOADING") || begins_with(fault, "BUSY") ||
					   (node_is_full_of_clients(fault) && !node_is_subscriber(node));

		node_fail(node, passing ? NODE_BACKING_OFF : NODE_REFUSED, fault, now_us);
		return;
	}
	if (node->answers < node->questions)
		return;

	if (!node_is_subscriber(node))
	{
		node_ask_guard(node);
		if (node->guard->twin != 0)
		{
			snprintf(error, sizeof(error), "it is the same server as node %.100s",
					 node_at(node->guard->twin - 1)->url.address);
			node_fail(node, NODE_REFUSED, error, now_us);
			return;
		}
	}
	node->failures = 0;
	node->next_address = node->used_address; /* begin with this address next time */
	node->untried = node->addresses;
	node_begin_duty(node, now_us);
}

void
node_ask_guard(RedisNode *node)
{
	GuardMemory *memories[CORE_NODES_MAX];
	int64 now_us = redlock_clock_us();

	node->facts.durable = is_durable(node);
	for (int i = 0; i < CORE_NODES_MAX; i++)
		memories[i] = node_at(i)->state != NODE_UNUSED ? node_at(i)->guard : NULL;
	node_describe(node, guard_meet(memories, node->index, &node->facts, MAX_TTL_US, now_us));
}

/*
 * Does the node keep grants over a restart?  durable=yes counts only where the node hides the
 * facts; durable=no always counts.
 */
static bool
is_durable(const RedisNode *node)
{
	if (node->url.is_local)
		return true; /* see node_local.h */
	if (node->url.durable == URL_NOT_DURABLE || node->forgets[0] != '\0')
		return false;
	return node->url.durable == URL_DURABLE || node->untold[0] == '\0';
}

const char *
node_forgets(const RedisNode *node)
{
	if (is_durable(node))
		return "";
	return node->url.durable == URL_NOT_DURABLE ? "durable=no"
		   : node->forgets[0] != '\0'           ? node->forgets
												: node->untold;
}

/* Writes the guard's reason, with a time of day: people read the text later. */
void
node_describe(RedisNode *node, GuardVerdict verdict)
{
	pg_time_t started = (pg_time_t) (redlock_wall_clock_us() / 1000000 - node->facts.uptime_s);
	char *reason = node->guard->reason;
	char when[64];

	switch (verdict)
	{
		case GUARD_AS_BEFORE:
			break;
		case GUARD_RESTARTED:
			pg_strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %Z",
						pg_localtime(&started, log_timezone));
			snprintf(reason, GUARD_REASON_SIZE,
					 "it restarted at %s and may have forgotten leases: %s", when,
					 is_durable(node) ? "its former process was not durable" : node_forgets(node));
			break;
		case GUARD_FORGOT:
			strlcpy(reason, "its data was lost, and leases with it", GUARD_REASON_SIZE);
			break;
		case GUARD_EVICTS:
			snprintf(reason, GUARD_REASON_SIZE, "its maxmemory-policy, %s, may throw away leases",
					 node->eviction);
			break;
		case GUARD_EVICTED:
			strlcpy(reason, "it has evicted keys, and perhaps leases", GUARD_REASON_SIZE);
			break;
	}
}

/* Returns why this node must not vote, as far as the reply tells; or NULL. */
static const char *
find_fault(RedisNode *node, Question what, const redisReply *reply)
{
	static char fault[SCRIPT_TEXT_MAX + 1];
	char value[64];

	if (what == ASK_FSYNC)
	{
		read_fsync(node, reply); /* a fit node may forbid CONFIG GET */
		return NULL;
	}
	if (is_optional(what))
		return NULL;
	if (what == ASK_EVALSHA && reply->type == REDIS_REPLY_ERROR &&
		begins_with(reply->str, "NOSCRIPT"))
		return NULL; /* NOSCRIPT: our user may call EVALSHA */
	if (reply->type == REDIS_REPLY_ERROR)
		return explain_error(node, what, reply);
	switch (what)
	{
		case ASK_AUTH:
		case ASK_SELECT:
		case ASK_PING:
			return NULL;

		case ASK_SERVER:
			return read_server(node, reply);

		case ASK_REPLICATION:
			if (!info_value(reply, "role", value, sizeof(value)))
				return "its INFO replication has no role";
			if (strcmp(value, "master") != 0)
				return "it is a replica; a node must be an independent server";
			return NULL;

		case ASK_PERSISTENCE:
			node->forgets[0] = node->untold[0] = '\0';
			if (!info_value(reply, "aof_enabled", value, sizeof(value)))
				strlcpy(node->untold, "its INFO persistence has no aof_enabled",
						sizeof(node->untold));
			else if (strcmp(value, "1") != 0)
				strlcpy(node->forgets, "its appendonly is no", sizeof(node->forgets));
			return NULL;

		case ASK_MEMORY:
			node_read_memory(node, reply);
			return NULL;

		case ASK_STATS:
			node_read_stats(node, reply);
			return NULL;

		case ASK_MARKER:
			if (!read_marker(node, reply))
				return "it did not tell its marker";
			if (reply->element[2]->len == 0)
				return NULL;
			text_to_printable(value, sizeof(value), reply->element[2]->str, reply->element[2]->len);
			snprintf(fault, sizeof(fault), "its user lacks rights for each lock; grant %s", value);
			return fault;

		case ASK_SCRIPT:
			if (reply->type != REDIS_REPLY_STRING || reply->len != SCRIPT_SHA_SIZE - 1)
				return "it did not load a script";
			strlcpy(node->sha, reply->str, SCRIPT_SHA_SIZE);
			return NULL;

		case ASK_EVALSHA:
			return "it executes scripts that it was not given";

		case ASK_FSYNC:
		case TELL_NAME:
		case TELL_LIBRARY:
		case TELL_VERSION:
			break; /* handled above */
	}
	return NULL;
}

/* Reads the node's process.  Returns what makes it unfit as a node, or NULL. */
static const char *
read_server(RedisNode *node, const redisReply *reply)
{
	static char fault[SCRIPT_TEXT_MAX + 1];
	char value[64];

	if (!info_value(reply, "run_id", node->facts.run_id, sizeof(node->facts.run_id)))
		return "its INFO server has no run_id";
	if (!info_value(reply, "uptime_in_seconds", value, sizeof(value)))
		return "its INFO server has no uptime_in_seconds";
	read_version(node, reply);
	node->facts.uptime_s = Max(0, Min(strtoll(value, NULL, 10), PG_INT32_MAX));
	/* Valkey says server_mode */
	if ((!info_value(reply, "redis_mode", value, sizeof(value)) &&
		 !info_value(reply, "server_mode", value, sizeof(value))) ||
		strcmp(value, "standalone") == 0)
		return NULL;
	snprintf(fault, sizeof(fault), "it runs in %s mode; a node must be a standalone server", value);
	return fault;
}

/* Valkey also tells a version of Redis, for old clients. */
static void
read_version(RedisNode *node, const redisReply *reply)
{
	char value[24];

	node->version[0] = '\0';
	if (info_value(reply, "valkey_version", value, sizeof(value)))
		snprintf(node->version, sizeof(node->version), "Valkey %s", value);
	else if (info_value(reply, "redis_version", value, sizeof(value)))
		snprintf(node->version, sizeof(node->version), "Redis %s", value);
}

/*
 * Returns the text of an error in the handshake, with the rights that are missing.  The error of
 * an unknown command repeats its arguments, perhaps a password, so it gets a text of ours.  So does
 * any other error that repeats the password.
 */
static const char *
explain_error(const RedisNode *node, Question what, const redisReply *reply)
{
	static char fault[SCRIPT_TEXT_MAX + 1];
	char end[64] = "";
	char names[SCRIPT_TEXT_MAX - 64];

	if (begins_with(reply->str, "ERR unknown command") ||
		begins_with(reply->str, "ERR unknown subcommand"))
	{
		snprintf(fault, sizeof(fault), "it has no command %s, which a node needs (%s)",
				 needs[what].command,
				 needs[what].lua ? "renamed, or a server without Lua" : "renamed");
		return fault;
	}
	if (what == ASK_AUTH && node->url.password[0] != '\0' &&
		strstr(reply->str, node->url.password) != NULL)
		return "it refuses AUTH, and its text, which has the password, is not shown";
	if (what == ASK_MARKER && begins_with(reply->str, LUA_MISSING " "))
	{
		text_to_printable(names, sizeof(names), reply->str + strlen(LUA_MISSING " "),
						  reply->len - strlen(LUA_MISSING " "));
		snprintf(fault, sizeof(fault), "it has no command %s, which a node needs (renamed)", names);
		return fault;
	}
	if (begins_with(reply->str, "ERR Could not find scripting engine"))
		return "it is a server without Lua, which a node needs";
	if (is_refusal(reply))
		snprintf(end, sizeof(end), "; grant %s", needs[what].rights);
	text_of_node(fault, sizeof(fault) - strlen(end), reply->str, reply->len);
	strlcat(fault, end, sizeof(fault));
	return fault;
}

bool
node_is_full_of_clients(const char *error)
{
	return begins_with(error, "ERR max number of clients");
}

/* Does the reply say that our user lacks a right? */
static bool
is_refusal(const redisReply *reply)
{
	return begins_with(reply->str, "NOPERM") || begins_with(reply->str, "ERR ACL failure") ||
		   strstr(reply->str, "The user executing the script can't") != NULL;
}

void
node_explain_refusal(const redisReply *reply, const char *lacks, char *text)
{
	char end[112] = "";
	size_t room;

	if (reply->type != REDIS_REPLY_ERROR || lacks[0] == '\0' || !is_refusal(reply))
		return;
	snprintf(end, sizeof(end), "; grant %s", lacks);
	room = SCRIPT_TEXT_MAX - strlen(end);
	strlcpy(text + Min(strlen(text), room), end, sizeof(end));
}

static bool
begins_with(const char *text, const char *with)
{
	return pg_strncasecmp(text, with, strlen(with)) == 0;
}

/* Reads whether the node may answer before a command is on disk. */
static void
read_fsync(RedisNode *node, const redisReply *reply)
{
	static const char *const durable[][2] = {{"appendfsync", "always"},
											 {"no-appendfsync-on-rewrite", "no"}};
	char value[16];
	int told = 0;

	for (int i = 0; i < lengthof(durable); i++)
	{
		const redisReply *is = configured(reply, durable[i][0]);

		if (is == NULL)
			continue;
		told++;
		if (strcmp(is->str, durable[i][1]) != 0 && node->forgets[0] == '\0')
		{
			text_to_printable(value, sizeof(value), is->str, is->len);
			snprintf(node->forgets, sizeof(node->forgets), "its %s is %s", durable[i][0], value);
		}
	}
	if (told < lengthof(durable))
		strlcpy(node->untold, "it does not answer CONFIG GET", sizeof(node->untold));
	/* a node that is durable by replicas may need no such file */
	if (told == 0 && node->url.durable == URL_DURABLE)
		node->forgets[0] = '\0';
}

/* Returns the value of a setting in the reply of CONFIG GET; NULL: absent. */
static const redisReply *
configured(const redisReply *reply, const char *name)
{
	if (reply->type != REDIS_REPLY_ARRAY)
		return NULL;
	for (size_t i = 0; i + 1 < reply->elements; i += 2)
		if (reply->element[i]->type == REDIS_REPLY_STRING &&
			reply->element[i + 1]->type == REDIS_REPLY_STRING &&
			strcmp(reply->element[i]->str, name) == 0)
			return reply->element[i + 1];
	return NULL;
}

/*
 * Reads how full the memory is, and whether the node evicts keys.  A node that hides its policy is
 * trusted.
 */
void
node_read_memory(RedisNode *node, const redisReply *reply)
{
	char policy[sizeof(node->eviction)];

	node->memory_used = info_number(reply, "used_memory");
	node->memory_limit = info_number(reply, "maxmemory");
	node_handler->measured(node);
	node->eviction[0] = '\0';
	if (node->memory_limit > 0 && info_value(reply, "maxmemory_policy", policy, sizeof(policy)) &&
		strcmp(policy, "noeviction") != 0)
		strlcpy(node->eviction, policy, sizeof(node->eviction));
	node->facts.evicts = node->eviction[0] != '\0';
}

/* Reads how many keys the process has evicted. */
void
node_read_stats(RedisNode *node, const redisReply *reply)
{
	node->facts.evicted = info_number(reply, "evicted_keys");
}

static void
read_rights(char *rights, int size, const redisReply *text)
{
	text_to_printable(rights, size, text->str, text->len);
}

static bool
read_marker(RedisNode *node, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 7 ||
		reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len == 0 ||
		reply->element[0]->len > LUA_MARKER_MAX || reply->element[1]->type != REDIS_REPLY_INTEGER ||
		reply->element[1]->integer < GUARD_FRESH || reply->element[1]->integer > GUARD_LOST_ONCE)
		return false;
	for (int i = 2; i < 7; i++)
		if (reply->element[i]->type != REDIS_REPLY_STRING)
			return false;
	read_rights(node->lacks_for_locks, sizeof(node->lacks_for_locks), reply->element[3]);
	read_rights(node->lacks_for_hosts, sizeof(node->lacks_for_hosts), reply->element[4]);
	read_rights(node->lacks_for_messages, sizeof(node->lacks_for_messages), reply->element[5]);
	read_rights(node->lacks_for_looks, sizeof(node->lacks_for_looks), reply->element[6]);
	strlcpy(node->facts.marker, reply->element[0]->str, sizeof(node->facts.marker));
	node->facts.loss = reply->element[1]->integer;
	return true;
}

/* Copies the value of a line "name:value" in the reply of INFO.  False: absent. */
static bool
info_value(const redisReply *reply, const char *name, char *value, size_t size)
{
	size_t name_len = strlen(name);
	const char *line = reply->str;

	if (reply->type != REDIS_REPLY_STRING)
		return false;
	while (line != NULL)
	{
		if (strncmp(line, name, name_len) == 0 && line[name_len] == ':')
		{
			line += name_len + 1;
			text_to_printable(value, size, line, strcspn(line, "\r\n"));
			return true;
		}
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return false;
}

/* Returns a number in the reply of INFO; 0: absent, or negative. */
static int64
info_number(const redisReply *reply, const char *name)
{
	char value[64];

	return info_value(reply, name, value, sizeof(value)) ? Max(strtoll(value, NULL, 10), 0) : 0;
}
