/*
 * conformance.c
 *		Does the simulated node behave like a real node?
 *
 * First redlock.lua runs the cases of cases.c.  Then redlock.lua and
 * marker.lua of src/protocol, in a redis-server, and node.c execute random
 * sequences of commands, with small sets of values, attempts, counters and
 * times to live.  One call of the script executes a batch of commands; at some
 * calls the memory of the nodes is full.  In half of the sequences the lock
 * has permits, and a queue.  Other programs write keys of other types, long
 * values, and values with our form.  After each call the replies, keys,
 * counters, the marker, times to live and messages must be the same.  Times to
 * live are long, so that no key expires by itself; PEXPIRE 0 and DEL do this.
 *
 * The program starts the server, with a socket in a new directory under
 * TMPDIR, and stops it by its pid.  REDIS_SERVER names the program of the
 * server; SEED and SEQUENCES choose the sequences.  SCRIPT names a file whose
 * text takes the place of redlock.lua.  With --script the program writes the
 * text of redlock.lua, and stops.
 */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "../unit/dice.h"
#include "../unit/tap.h"
#include "cases.h"
#include "node.h"
#include "protocol/lua.h"
#include "protocol/permits.h"

#define KEY "redlock:the next \xc3\xa4 lock"
#define PLAIN 9            /* the secret of a plain client; larger secrets are of FOREIGN, too */
#define PERMITS 3          /* of the lock, at most */
#define LOCK (PERMITS + 1) /* the lock's own index, behind the queue and the permits */
#define COMMANDS 60        /* of a sequence */
#define BATCH_MAX 4        /* of one call */
#define HOSTS 2            /* with requests */

/* The two clocks are read one after the other. */
#define SLACK_MS 10000
#define SLACK_US (SLACK_MS * INT64_C(1000))

/*
 * A difference after this time does not count: a barrier lives twice as long.
 * A sequence takes 5 ms.
 */
#define SEQUENCE_MAX_US (LUA_BARRIER_MS * INT64_C(500))

/* The keys of the lock, of a permit, or of the queue for permits. */
typedef struct lock_keys
{
	char key[64];
	char counter[80];
	char readers[80];
	char barrier[80];
	char none[80]; /* never exists */
	size_t counter_len;
	size_t readers_len;
	size_t barrier_len;
	size_t none_len;
} lock_keys;

/*
 * A key of another program under a lock's name, and the text of a refusal by
 * it.
 */
typedef struct foreign
{
	const char *type; /* NULL: a string, `held` and then `padding` characters */
	const char *held;
	int padding;
	int host; /* named by the value, if all but the part about permits is valid */
} foreign;

#define HEX "0123456789abcdef"

static const foreign foreigners[] = {
	{NULL, HEX HEX ":000000000", 0, 0},
	{NULL, "", 0, 0},
	{NULL, "long \xc3\xa4", 100000, 0},
	{"RPUSH %b element", "a key of type list", 0, 0},
	{"SADD %b member", "a key of type set", 0, 0},
	{"HSET %b mode read", "a key of type hash", 0, 0},
	{"HSET %b mode read 8743c9c0-0795-4907-87fd-6c719a6b4586:58 2",
	 "a Redisson lock of 8743c9c0-0795-4907-87fd-6c719a6b4586:58", 0, 0},
	/* like our values, except in one place */
	{NULL, HEX HEX ":000000008:0000000000000001=", 0, 0},
	{NULL, HEX HEX ":000000008:0000000000000001=-a", 0, 0},
	{NULL, HEX HEX ":000000008:0000000000000001== a", 0, 0},
	{NULL, HEX HEX ":000000008:000000000000000x= a", 0, 0},
	{NULL, HEX HEX ":000000008:0000000000000001-a", 0, 0},
	{NULL, HEX HEX ":000000008:000000000000000x~a", 0, 0},
	{NULL, HEX HEX ":00000000x:0000000000000001= a", 0, 0},
	{NULL, HEX HEX ":00000000x:0000000000000001~a", 0, 0},
	{NULL, HEX HEX "-000000008:0000000000000001= a", 0, 0},
	{NULL, HEX HEX "0000000000:0000000000000001= a", 0, 0},
	{NULL, HEX HEX "0000000000:0000000000000001~a", 0, 0},
	{NULL, "x" HEX HEX "0000000000:000000000000001= a", 0, 0},
	{NULL, "0123456789ABCDEF" HEX ":000000008:0000000000000001= a", 0, 0},
	{NULL, "0123456789ABCDEF" HEX ":000000008:0000000000000001~a", 0, 0},
	{NULL, HEX HEX ":00000008:00000000000000001= a", 0, 0},
	{NULL, HEX HEX ":00000008:00000000000000001~a", 0, 0},
	{NULL, HEX "0123456789abcde:0000000008:0000000000000001= a", 0, 0},
	{NULL, HEX "0123456789abcde:0000000008:0000000000000001~a", 0, 0},
	/* like a permit's value, except in one place */
	{NULL, HEX HEX ":000000008:0000000000000001 permits=2a", 0, 1},
	{NULL, HEX HEX ":000000008:0000000000000001  permits=2 a", 0, 1},
	{NULL, HEX HEX ":000000008:0000000000000001 permits= a", 0, 1},
	{NULL, HEX HEX ":000000008:0000000000000001 permits=2000 a", 0, 1},
	{NULL, HEX HEX ":000000008:0000000000000001=permits=2 a", 0, 0},
	{NULL, HEX HEX "0000000000:0000000000000001 permits=2 a", 0, 0},
	{NULL, "x" HEX HEX "0000000000:000000000000001 permits=2 a", 0, 0},
	{NULL, "0123456789ABCDEF" HEX ":000000008:0000000000000001 permits=2 a", 0, 0},
	{NULL, HEX HEX ":00000008:00000000000000001 permits=2 a", 0, 0},
	{NULL, HEX "0123456789abcde:0000000008:0000000000000001 permits=2 a", 0, 0},
	{NULL, HEX HEX ":000000008:00000000000000001 permits=1 a", 0, 0},
	{NULL, HEX HEX ":000000008:00000000000000001 permits=2 a", 0, 0},
	{NULL, HEX HEX ":000000008:00000000000000001 permits=3 a", 0, 0},
};

#define FOREIGN_LONG 2 /* longer than a reply shows */
#define FOREIGNERS ((int) (sizeof(foreigners) / sizeof(foreigners[0])))

static const char marker_key[] = LUA_MARKER;
static char dir[] = "/tmp/redlock_sim.XXXXXX";
static char socket_path[64];
static pid_t server;
static redisContext *redis;
static redisContext *subscriber; /* to the channels of the lock and of the hosts */

static lock_keys lock[1 + LOCK]; /* [0]: the queue; [LOCK]: the lock itself */
static node_data lock_data[1 + LOCK];
static lock_keys other_keys = {.key = "redlock:other"};
static lock_keys *keys; /* the keys and data of the current command */
static node_data *data;
static int permits; /* of this sequence; 0: none */
static const char *script = lua_script;
static char script_sha[41];
static char snapshot_sha[41];
static int pending; /* commands sent whose replies are not read */
static node_mark its_mark;
static int64_t now_us;

/* The first difference, and counts of outcomes. */
static char difference[400];
static long differences;
static long commands;
static char marker_text[LUA_MARKER_MAX + 1]; /* the whole marker */
static long replies[CORE_OP_RELEASE + 1][CORE_REPLY_UNKNOWN + 1];
static long marks[LOCAL_MARKED_LONG_LOST + 1];
static long kept; /* commands that found a kept key */
#define NEAR_US (COUNTER_NEAR_MS * INT64_C(1000))

static long told;                         /* renewals refused by the counter */
static long refused[CORE_OP_RELEASE + 1]; /* for lack of memory */
static long refused_known;                /* ... of a name with a counter */
static long refused_behind;               /* ... of a new name, after an executed command */
static long granted_known;                /* granted by a full node, for a name with a counter */
static long released_full;                /* keys released at a full node */
static long heard[LOCAL_TELLS_WANT + 1];  /* messages */
static int most_readers;                  /* of one lock */
static long held_back;                    /* readers refused by a barrier */
static long foreign_met;                  /* refusals because of another program's key */
static long queued;                       /* refusals because of the queue */
static long named;                        /* refusals that name another permit */
static long heard_permits;                /* messages to the queue */
static long barred_by_number;             /* permits refused by a lock key with another number */
static long barred_by_lock;               /* ... by a lock key without a number */
static long barred_earlier; /* ... of a request with an earlier attempt in the lock key */
static long longer_lives;   /* lock keys that outlive a granted permit */
static long lock_gone;      /* ... deleted with the last permit */
static long lock_left;      /* ... left for another permit */
static long lock_kept;      /* ... extended by hold_at_least */
static long lock_shortened; /* ... shortened by the release of the longest permit */
static long lock_kept_less; /* ... to the end of its kept key */
static long lock_renewed;   /* ... extended by a renewal */
static long lock_made;      /* ... created again by a renewal */
static long lock_made_full; /* ... at a full node */
static long lacked[2];      /* commands without a right, which continue or fail */
static long heard_tries;    /* messages about tries */
static long forced[2];      /* forced releases that leave the key, and others */
static long forced_barred;  /* ... because of a permit */
static long forced_full;    /* ... of keys, at a full node */
static long forced_at_end;  /* forced releases refused at the end of all counters */

static void name_keys(void);
static size_t name_companion(char *to, const char *key, const char *kind);
static void choose(int permit);
static void read_script(const char *file);
static bool start_server(void);
static void stop_server(void);
static void on_signal(int signal);
static void run_sequence(int sequence);
static void forget_sequence(void);
static void random_command(command *command, bool full);
static void random_meddling(void);
static void put_foreign(int number);
static int some_key(void);
static void count_permit(const command *command, const answer *answer, const node_data *before,
						 const node_data *lock_before, node_memory memory);
static bool is_foreign(const redisReply *reply, uint32_t secret);
static void set_marker(uint32_t marker, int64_t lost_us);
static void meet_both(void);
static void lack_rights(void);
static bool lacks_right(const command *command, const char *denied);
static bool lacks_key(const command *command, int key, int kind);
static void allow_key(char *rights, size_t size, const char *key, size_t len);
static bool fails_well(const command *command, const char *rights, bool may_fail, bool must_fail);
static void ask_snapshot(void);
static void execute_both(int count);
static void force_both(void);
static void write_held(char *text, size_t size);
static void compare_forced(const redisReply *reply, const Inspected *at);
static void compare_freed(bool must, bool may);
static size_t write_command(char *text, size_t size, const command *command);
static void ask_script(const char *marker, char text[][600], const size_t *len, int count);
static void load_scripts(void);
static void load_script(const char *text, char *sha);
static bool follows_clock(const command *command, const answer *answer);
static command plain_acquire(uint32_t attempt);
static void compare_reply(const command *command, const redisReply *reply, answer *answer);
static void subscribe(void);
static void compare_messages(const command *command, const answer *answer, const int *permit,
							 int count);
static void hear_all(void);
static redisReply *hear(void);
static void differ_unless_permit(int permit);
static void differ_unless_told(const command *command, const answer *answer, int host);
static size_t write_told(char *text, size_t size, const command *command);
static void ask_data(void);
static void compare_data(const char *after);
static void compare_after(const char *what);
static int64_t ttl_left_ms(void);
static int64_t proposal(void);
static int64_t some_counter(void);
static void compare_readers(const char *after);
static void differ(const char *format, ...) __attribute__((format(printf, 1, 2)));
static redisReply *call(const char *format, ...);
static void ask(const char *format, ...);
static redisReply *next_reply(void);
static void skip_replies(int count);
static redisReply *must_reply(redisReply *reply);
static void look_at_clock(void);
static int64_t server_time_us(void);
static int64_t time_us(redisReply *reply);

int
main(int argc, char **argv)
{
	const char *file = getenv("SCRIPT");
	const char *sequences = getenv("SEQUENCES");
	const char *seed = getenv("SEED");
	int count = sequences ? atoi(sequences) : 800;

	if (argc > 1 && strcmp(argv[1], "--script") == 0)
	{
		fputs(lua_script, stdout);
		return 0;
	}
	if (file != NULL)
		read_script(file);
	name_keys();
	dice_state = seed ? strtoull(seed, NULL, 10) : 20240607;
	printf("# SEED=%" PRIu64 " SEQUENCES=%d\n", dice_state, count);
	dice_begin(dice_state);
	atexit(stop_server);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGHUP, on_signal);
	signal(SIGPIPE, on_signal);
	if (!start_server())
	{
		printf("Bail out! no redis-server\n");
		return 1;
	}
	subscribe();
	load_scripts();
	if (differences == 0 &&
		!cases_pass(redis, subscriber, script_sha, difference, sizeof(difference)))
		differences++;
	if (differences > 0)
		printf("# %s\n", difference);
	ok(differences == 0, "redlock.lua can be loaded, and answers as told in cases.c");
	if (differences > 0)
		return tap_done();
	for (int i = 0; i < count && differences == 0; i++)
		run_sequence(i);
	if (differences > 0)
		printf("# %s\n", difference);
	ok(differences == 0, "the simulated node does what redis-server does, in %ld commands",
	   commands);
	/*
	 * the rest counts random commands: a script does not change their numbers
	 */
	if (differences > 0 || file != NULL)
		return tap_done();
	ok(replies[CORE_OP_ACQUIRE][CORE_REPLY_YES] > 0 && replies[CORE_OP_ACQUIRE][CORE_REPLY_NO] > 0,
	   "acquire: %ld yes, %ld no", replies[CORE_OP_ACQUIRE][CORE_REPLY_YES],
	   replies[CORE_OP_ACQUIRE][CORE_REPLY_NO]);
	ok(replies[CORE_OP_ACQUIRE][CORE_REPLY_ERROR] > 0, "acquire: %ld errors",
	   replies[CORE_OP_ACQUIRE][CORE_REPLY_ERROR]);
	ok(replies[CORE_OP_CONFIRM][CORE_REPLY_YES] > 0 && replies[CORE_OP_CONFIRM][CORE_REPLY_NO] > 0,
	   "confirm: %ld yes, %ld no", replies[CORE_OP_CONFIRM][CORE_REPLY_YES],
	   replies[CORE_OP_CONFIRM][CORE_REPLY_NO]);
	ok(replies[CORE_OP_RENEW][CORE_REPLY_YES] > 0 && told > 0 &&
		   replies[CORE_OP_RENEW][CORE_REPLY_NO] > told,
	   "renew: %ld yes, %ld no, of these %ld for the counter",
	   replies[CORE_OP_RENEW][CORE_REPLY_YES], replies[CORE_OP_RENEW][CORE_REPLY_NO], told);
	ok(replies[CORE_OP_RELEASE][CORE_REPLY_YES] > 0 && replies[CORE_OP_RELEASE][CORE_REPLY_NO] > 0,
	   "release: %ld yes, %ld no", replies[CORE_OP_RELEASE][CORE_REPLY_YES],
	   replies[CORE_OP_RELEASE][CORE_REPLY_NO]);
	ok(kept > 0, "%ld of these met a key that is kept after its release", kept);
	ok(marks[LOCAL_MARKED_FRESH] > 0 && marks[LOCAL_MARKED_LOST] > 0 &&
		   marks[LOCAL_MARKED_LONG_LOST] > 0,
	   "marker: %ld fresh, %ld lost, %ld lost long ago", marks[LOCAL_MARKED_FRESH],
	   marks[LOCAL_MARKED_LOST], marks[LOCAL_MARKED_LONG_LOST]);
	ok(refused[CORE_OP_ACQUIRE] > 0 && refused[CORE_OP_RENEW] > 0 &&
		   refused[CORE_OP_CONFIRM] == 0 && refused[CORE_OP_RELEASE] == 0,
	   "a full node: %ld acquires and %ld renewals are refused, and no confirm or release",
	   refused[CORE_OP_ACQUIRE], refused[CORE_OP_RENEW]);
	ok(refused_behind > 0, "%ld of new names behind others that are executed", refused_behind);
	ok(refused_known == 0 && granted_known > 0,
	   "none of a name that it knows, of which it grants %ld", granted_known);
	ok(released_full > 0, "%ld releases there delete a key, or shorten its life", released_full);
	ok(heard[LOCAL_TELLS_FREE] > 0 && heard[LOCAL_TELLS_WANT] > heard_tries && heard_tries > 0,
	   "%ld messages of a release, %ld of a host that wants the lock, %ld of these of a try",
	   heard[LOCAL_TELLS_FREE], heard[LOCAL_TELLS_WANT], heard_tries);
	ok(most_readers == 3 && held_back > 0, "%d share the lock, and %ld are held back by a barrier",
	   most_readers, held_back);
	ok(foreign_met > 0, "%ld acquires meet what another program put there", foreign_met);
	ok(queued > 0 && named > 0 && heard_permits > 0,
	   "%ld are refused since another host waits for a permit, %ld hear of another permit, and "
	   "%ld releases tell the queue",
	   queued, named, heard_permits);
	ok(barred_by_number > 0 && barred_by_lock > 0 && barred_earlier > 0,
	   "%ld permits are barred by a lock key with another number, %ld by one with none, and %ld of "
	   "these are of a request that has it",
	   barred_by_number, barred_by_lock, barred_earlier);
	ok(longer_lives > 0 && lock_gone > 0 && lock_left > 0 && lock_kept > 0,
	   "lock keys: %ld live longer than the granted permit; %ld go with the last permit, %ld stay "
	   "for others, and %ld for hold_at_least",
	   longer_lives, lock_gone, lock_left, lock_kept);
	ok(lock_shortened > lock_kept_less && lock_kept_less > 0,
	   "releases of the longest permit shorten %ld lock keys, %ld of these to the life of the kept "
	   "key",
	   lock_shortened, lock_kept_less);
	ok(lock_renewed > 0 && lock_made > lock_made_full && lock_made_full > 0,
	   "renewals extend %ld lock keys, and create %ld, of these %ld at full nodes", lock_renewed,
	   lock_made, lock_made_full);
	ok(forced[1] > forced_full && forced_full > 0 && forced[0] > forced_barred && forced_barred > 0,
	   "released by force %ld times, %ld of these at a full node; %ld keys stay, %ld of these for "
	   "a permit",
	   forced[1], forced_full, forced[0], forced_barred);
	ok(forced_at_end > 0, "%ld forced releases are refused at the end of all counters",
	   forced_at_end);
	ok(lacked[0] > 0 && lacked[1] > 0,
	   "without a right %ld commands are executed, and %ld fail and change nothing", lacked[0],
	   lacked[1]);
	return tap_done();
}

static void
name_keys(void)
{
	for (int n = 0; n <= LOCK; n++)
	{
		lock_keys *k = &lock[n];
		char key[sizeof(k->key)] = KEY;

		if (n == 0)
			strcat(key, LUA_PERMIT);
		else if (n < LOCK)
			snprintf(key, sizeof(key), "%s%s%d", KEY, LUA_PERMIT, n);
		strcpy(k->key, key);
		k->counter_len = name_companion(k->counter, key, "token");
		k->readers_len = name_companion(k->readers, key, "readers");
		k->barrier_len = name_companion(k->barrier, key, "barrier");
		k->none_len = name_companion(k->none, key, "none");
	}
	choose(LOCK);
}

static size_t
name_companion(char *to, const char *key, const char *kind)
{
	return (size_t) snprintf(to, sizeof(lock->counter), "%s%c%s", key, 0, kind);
}

static void
choose(int key)
{
	keys = &lock[key];
	data = &lock_data[key];
}

static int
some_key(void)
{
	return permits > 0 ? (int) dice(LOCK + 1) : LOCK;
}

static void
read_script(const char *file)
{
	static char text[2 * LUA_SCRIPT_MAX];
	FILE *in = fopen(file, "r");

	if (in == NULL || fread(text, 1, sizeof(text) - 1, in) == 0)
	{
		printf("Bail out! %s can't be read\n", file);
		exit(1);
	}
	fclose(in);
	script = text;
}

static bool
start_server(void)
{
	const char *program = getenv("REDIS_SERVER");
	struct timespec pause = {0, 2 * 1000 * 1000};

	if (mkdtemp(dir) == NULL)
		return false;
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	if (program == NULL)
		program = "redis-server";
	fflush(stdout);
	server = fork();
	if (server < 0)
		return false;
	if (server == 0)
	{
		if (freopen("/dev/null", "w", stdout) == NULL)
			_exit(1);
		execlp(program, program, "--port", "0", "--unixsocket", socket_path, "--dir", dir, "--save",
			   "", "--appendonly", "no", (char *) NULL);
		_exit(127);
	}
	for (int i = 0; i < 5000; i++)
	{
		redis = redisConnectUnix(socket_path);
		if (redis != NULL && redis->err == 0)
		{
			/* a script that does not end is a difference */
			redisSetTimeout(redis, (struct timeval){30, 0});
			return true;
		}
		if (redis != NULL)
			redisFree(redis);
		redis = NULL;
		nanosleep(&pause, NULL);
	}
	return false;
}

static void
stop_server(void)
{
	if (server <= 0)
		return;
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	server = 0;
	unlink(socket_path);
	rmdir(dir);
}

static void
on_signal(int signal)
{
	if (server > 0)
		kill(server, SIGKILL);
	unlink(socket_path);
	rmdir(dir);
	_exit(128 + signal);
}

static void
run_sequence(int sequence)
{
	int64_t began_us = server_time_us();

	freeReplyObject(call("FLUSHALL"));
	now_us = began_us;
	permits = dice(2) == 0 ? 0 : 1 + (int) dice(PERMITS);
	choose(LOCK);
	memset(lock_data, 0, sizeof(lock_data));
	memset(&its_mark, 0, sizeof(its_mark));
	if (dice(8) != 0)
	{
		set_marker(1, 0);
	}
	for (int i = 0; i < COMMANDS && differences == 0; i++)
	{
		choose(some_key());
		if (dice(8) == 0)
		{
			random_meddling();
			continue;
		}
		if (dice(12) == 0)
		{
			meet_both();
			continue;
		}
		if (dice(10) == 0)
			force_both();
		else
			execute_both(dice(2) == 0 ? 1 : 1 + dice(BATCH_MAX));
	}
	if (differences == 0)
		lack_rights();
	if (differences > 0 && server_time_us() - began_us > SEQUENCE_MAX_US)
		forget_sequence();
	if (differences > 0)
		printf("# in sequence %d\n", sequence);
}

/* Drops a slow sequence: a barrier may have expired. */
static void
forget_sequence(void)
{
	printf("# too slow: %s\n", difference);
	differences = 0;
	difference[0] = '\0';
	freeReplyObject(call("ACL SETUSER default allkeys +@all"));
	freeReplyObject(call("CONFIG SET maxmemory 0"));
	hear_all();
}

static void
random_command(command *c, bool full)
{
	static const int64_t ttls_ms[] = {100000, 200000, 400000};
	static const int64_t terms_ms[] = {LUA_DELETE_AND_TELL, LUA_DELETE, LUA_DELETE_AND_TELL_QUEUE,
									   150000};

	static const uint32_t wants_permit[] = {1, 2, 6, 1, 2, 6, 5};
	int key = (int) (data - lock_data);

	memset(c, 0, sizeof(*c));
	c->op = (core_op) dice(CORE_OP_RELEASE + 1);
	if (permits == 0)
		c->secret = 1 + dice(5); /* three of them are readers */
	else if (key > 0 && key < LOCK)
		c->secret = wants_permit[dice(7)];
	else
		c->secret = 1 + dice(7); /* two of them are readers */
	c->attempt = 8 + dice(3);    /* two numbers of digits */
	c->ttl_ms = ttls_ms[dice(3)];
	c->proposal = proposal();
	if (dice(3) > 0 && local_has_key(data) && node_number(data->secret) < PLAIN)
	{
		c->secret = node_number(data->secret);
		if (dice(2) == 0)
			c->attempt = data->attempt;
		if (data->shared && data->readers > 0 && dice(3) > 0)
		{
			const node_reader *reader = &data->reader[dice((uint32_t) data->readers)];

			c->secret = node_number(reader->secret);
			if (dice(4) > 0)
				c->attempt = reader->attempt;
		}
	}
	/* a request has one mode; permits are exclusive and not idle */
	c->shared = c->secret > 2 && (permits == 0 || c->secret < 5);
	c->host = (int) (c->secret % HOSTS);
	if (permits > 0 && c->secret != 3 && c->secret != 4 && c->secret != 7)
		c->says_permits = c->secret == 5 ? PERMITS_MAX : permits;
	c->may_stay = c->secret % 2 == 1 && c->says_permits == 0;
	if (key > 0 && key < LOCK)
	{
		c->permit = key;
		c->lock_data = &lock_data[LOCK];
		c->permit_data = lock_data;
		c->permits_known = PERMITS;
	}
	switch (c->op)
	{
		case CORE_OP_ACQUIRE:
			c->waited_us = dice(3) == 0 ? -1 : (int64_t) dice(100000);
			if (c->permit > 0)
				c->permits = c->says_permits;
			break;
		case CORE_OP_CONFIRM:
			c->counter = dice(3) == 0 ? some_counter() : data->counter;
			for (int i = 0; c->shared && dice(4) > 0 && i < data->readers; i++)
				if (node_number(data->reader[i].secret) == c->secret)
					c->counter = data->reader[i].granted;
			c->token = some_counter();
			break;
		case CORE_OP_RENEW:
			c->counter = c->token = some_counter();
			if (dice(2) == 0)
				c->token += 1 + dice(2 * LUA_SPAN);
			/*
			 * a full node takes the counter if the life could be extended by a
			 * millisecond
			 */
			if (full && local_has_key(data) &&
				llabs((long long) (ttl_left_ms() - c->ttl_ms)) < SLACK_MS)
				c->ttl_ms += 5 * SLACK_MS;
			break;
		case CORE_OP_RELEASE:
			c->ttl_ms = terms_ms[dice(4)];
			if (c->permit == 0 && c->ttl_ms == LUA_DELETE_AND_TELL_QUEUE)
				c->ttl_ms = LUA_DELETE;
			c->counter = dice(2) == 0 ? 0 : some_counter();
			c->ended = dice(3) == 0 ? 0 : some_counter();
			c->waiting = c->ended == 0 ? 0 : (int) dice(WAITERS_MAX + 1);
			for (int i = 0; i < c->waiting; i++)
				c->waiter[i] = (told_waiter){dice(1000), dice(1000)};
			break;
	}
	/*
	 * avoids a result that depends on the microsecond at which the node reads
	 * its clock
	 */
	if (data->counter - now_us + LUA_CLOCK_BOUND_US < SLACK_US &&
		now_us - LUA_CLOCK_BOUND_US - data->counter < SLACK_US)
		c->proposal = now_us;
}

static int64_t
ttl_left_ms(void)
{
	return data->key_end_ms - now_us / 1000;
}

/* The client's clock: right, or wrong by much or little. */
static int64_t
proposal(void)
{
	static const int64_t wrong_s[] = {0,     0,     0,      0,     1,      -1,      -1800,
									  1800,  -7000, 7000,   -9000, -90000, 90000,   -100000000,
									  20000, 60,    -30000, -60,   3000,   -3000000};

	return now_us + wrong_s[dice(20)] * 1000000 + dice(1000);
}

static int64_t
some_counter(void)
{
	int64_t base = data->counter != 0 && dice(4) > 0 ? data->counter : proposal();

	switch (dice(6))
	{
		case 0:
			return base + 1;
		case 1:
			return base - 1;
		case 2:
			return base + LUA_SPAN;
		case 3:
			return 1 + dice(100000); /* fewer digits */
		default:
			return base;
	}
}

/* Changes keys as time, other programs and failures do. */
static void
random_meddling(void)
{
	node_reader *reader;

	switch (dice(13))
	{
		case 10: /* a reader's time is over */
			if (!local_has_key(data) || !data->shared || data->readers == 0)
				break;
			reader = &data->reader[dice((uint32_t) data->readers)];
			reader->end_ms = now_us / 1000 - 2 * SLACK_MS;
			freeReplyObject(call("HSET %b %032x: %09u:%016x:%lld:%lld", keys->readers,
								 keys->readers_len, node_number(reader->secret), reader->attempt,
								 (unsigned) reader->host, (long long) reader->granted,
								 (long long) reader->end_ms));
			break;
		case 8:
			freeReplyObject(call("DEL %b", keys->readers, keys->readers_len));
			data->readers = 0;
			data->since = -1;
			break;
		case 9:
			freeReplyObject(call("PEXPIRE %b 0", keys->barrier, keys->barrier_len));
			data->barrier = LOCAL_NOBODY;
			break;
		case 0:
			freeReplyObject(call("DEL %b", keys->key, strlen(keys->key)));
			data->secret = LOCAL_NOBODY;
			break;
		case 1:
			freeReplyObject(call("PEXPIRE %b 0", keys->key, strlen(keys->key)));
			data->secret = LOCAL_NOBODY;
			break;
		case 2:
			freeReplyObject(call("PEXPIRE %b 0", keys->counter, keys->counter_len));
			data->counter = 0;
			break;
		case 3:
			freeReplyObject(call("DEL %b", marker_key, sizeof(marker_key) - 1));
			its_mark.text = 0;
			its_mark.lost_us = 0;
			break;
		case 4:
			set_marker(1 + dice(2), dice(2) ? 0 : now_us + (int64_t) dice(300000000) - 150000000);
			break;
		case 5: /* near the end of all counters */
			data->counter = LUA_COUNTER_END - 1 - dice(3 * LUA_SPAN);
			if (dice(4) == 0)
				data->counter = LUA_COUNTER_END - LUA_SPAN;
			data->counter_end_ms = now_us / 1000 + 300000000;
			freeReplyObject(call("SET %b %lld PX 300000000", keys->counter, keys->counter_len,
								 (long long) data->counter));
			break;
		case 6: /* the clock's digits, at another time; or the last digits of near counters */
			data->counter = now_us + dice(3) * 3600000000 - 3600000000;
			if (dice(4) == 0)
				data->counter = (now_us + (dice(2) == 0 ? 0 : 20000000000)) / 10;
			else if (dice(2) == 0)
				data->counter = (now_us / NEAR_US + 1) * NEAR_US - 1 - dice(2 * LUA_SPAN);
			data->counter_end_ms = now_us / 1000 + 300000000;
			freeReplyObject(call("SET %b %lld PX 300000000", keys->counter, keys->counter_len,
								 (long long) data->counter));
			break;
		case 7: /* another program writes the key */
		case 11:
		case 12: /* ... before us */
			if (dice(2) == 0)
			{
				freeReplyObject(call("DEL %b", keys->key, strlen(keys->key)));
				data->secret = LOCAL_NOBODY;
			}
			/* the last foreign values have the lock's number of permits */
			if (permits > 0 && dice(4) == 0)
				put_foreign(FOREIGNERS - PERMITS + permits - 1);
			else
			{
				bool plain = dice(3) == 0;
				int number = plain ? 0 : (int) dice((uint32_t) FOREIGNERS);

				put_foreign(!plain && number == 0 ? FOREIGN_LONG : number);
			}
			break;
	}
	compare_after("meddling");
}

static void
put_foreign(int number)
{
	const foreign *f = &foreigners[number];

	/*
	 * only we use the queue; another type in its place is an error:
	 * fails_alone
	 */
	if (local_has_key(data) || (data == lock_data && f->type != NULL))
		return;
	if (f->type != NULL)
		freeReplyObject(call(f->type, keys->key, strlen(keys->key)));
	else
	{
		size_t len = strlen(f->held);
		char *value = malloc(len + (size_t) f->padding + 1);

		strcpy(value, f->held);
		memset(value + len, '.', (size_t) f->padding);
		freeReplyObject(
			call("SET %b %b", keys->key, strlen(keys->key), value, len + (size_t) f->padding));
		free(value);
	}
	freeReplyObject(call("PEXPIRE %b 100000", keys->key, strlen(keys->key)));
	local_plain_set(data, now_us, node_secret(PLAIN + (uint32_t) number), 100000);
	data->host = f->host;
}

/* Does the refusal, or the key, contain this foreign value? */
static bool
is_foreign(const redisReply *reply, uint32_t secret)
{
	const foreign *f = &foreigners[secret - PLAIN];
	size_t len = strlen(f->held) + (size_t) f->padding;

	if (len > LUA_HELD_MAX)
		len = LUA_HELD_MAX;
	return reply->len == len && strncmp(reply->str, f->held, strlen(f->held)) == 0;
}

static void
set_marker(uint32_t marker, int64_t lost_us)
{
	its_mark.text = marker;
	its_mark.lost_us = lost_us;
	snprintf(marker_text, sizeof(marker_text), "m%u", marker);
	if (lost_us != 0)
		snprintf(marker_text, sizeof(marker_text), "m%u lost %" PRId64, marker, lost_us);
	freeReplyObject(call("SET %b %s", marker_key, sizeof(marker_key) - 1, marker_text));
}

/* Reads the marker, or writes one, as a connecting host does. */
static void
meet_both(void)
{
	uint32_t fresh = 3 + dice(3);
	bool seen = dice(2) == 0;
	bool missing = its_mark.text == 0;
	char text[16];
	redisReply *reply;
	local_marked mark;

	commands++;
	snprintf(text, sizeof(text), "m%u", fresh);
	reply = call("EVAL %s 0 %s %s 100000", lua_marker_script, text, seen ? "m9" : "");
	now_us = server_time_us();
	mark = local_marker(&its_mark, now_us, fresh, seen, 100000);
	marks[mark]++;
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 7 ||
		reply->element[0]->type != REDIS_REPLY_STRING)
		differ("no marker");
	else
	{
		if (missing)
		{
			const char *lost = strstr(reply->element[0]->str, " lost ");

			snprintf(marker_text, sizeof(marker_text), "%s", reply->element[0]->str);
			if (strncmp(marker_text, text, strlen(text)) != 0 || (lost != NULL) != seen)
				differ("the new marker %s", marker_text);
			else if (seen)
			{
				its_mark.lost_us = strtoll(lost + 6, NULL, 10);
				if (llabs((long long) (now_us - its_mark.lost_us)) > SLACK_US)
					differ("the new marker %s", marker_text);
			}
		}
		if (strcmp(reply->element[0]->str, marker_text) != 0 ||
			reply->element[1]->integer != (long long) mark)
			differ("the marker %s, %lld, not %s, %d", reply->element[0]->str,
				   reply->element[1]->integer, marker_text, (int) mark);
	}
	freeReplyObject(reply);
	compare_after("handshake");
}

/*
 * The node's ACL denies a right.  The simulated node has no rights, so these
 * commands end a sequence.
 */
static void
lack_rights(void)
{
	static const char *const not_needed[] = {"publish", "pubsub", "type", "hscan"};
	command c;

	for (int i = 0; i < 8 && differences == 0; i++)
	{
		bool good;

		choose(some_key());
		random_command(&c, false);
		c.marker = its_mark.text;
		if (dice(2) == 0)
			good = lacks_right(&c, not_needed[dice(4)]);
		else
			good = lacks_key(&c, some_key(), (int) dice(3));
		if (!good)
			differ("another answer, or other data, where a right lacks, after %s",
				   lua_command_name[c.shared][c.op]);
	}
	if (differences == 0)
		hear_all();
}

/* Denies a command of the node that the script can do without. */
static bool
lacks_right(const command *c, const char *denied)
{
	char rights[64];

	snprintf(rights, sizeof(rights), "ACL SETUSER default -%s", denied);
	return fails_well(c, rights, false, false);
}

/* Denies the key, its counter or its barrier. */
static bool
lacks_key(const command *c, int key, int kind)
{
	char rights[4000] = "ACL SETUSER default resetkeys ~redlock:other*";

	allow_key(rights, sizeof(rights), marker_key, sizeof(marker_key) - 1);
	for (int n = 0; n <= LOCK; n++)
	{
		if (n != key || kind != 0)
			allow_key(rights, sizeof(rights), lock[n].key, strlen(lock[n].key));
		if (n != key || kind != 1)
			allow_key(rights, sizeof(rights), lock[n].counter, lock[n].counter_len);
		if (n != key || kind != 2)
			allow_key(rights, sizeof(rights), lock[n].barrier, lock[n].barrier_len);
		allow_key(rights, sizeof(rights), lock[n].readers, lock[n].readers_len);
		allow_key(rights, sizeof(rights), lock[n].none, lock[n].none_len);
	}
	return fails_well(c, rights, true, kind == 0 && keys == &lock[key]);
}

/* Allows a key by a pattern, which has neither blanks nor NULs. */
static void
allow_key(char *rights, size_t size, const char *key, size_t len)
{
	size_t at = strlen(rights);

	at += (size_t) snprintf(rights + at, size - at, " ~");
	for (size_t i = 0; i < len && at < size - 1; i++)
		rights[at++] = key[i];
	for (size_t i = at - len; i < at; i++)
		if ((unsigned char) rights[i] <= ' ')
			rights[i] = '?';
	rights[at] = 0;
}

/*
 * Executes the command without a right, and an acquire of another lock behind
 * it.  A failed command must have changed nothing.
 */
static bool
fails_well(const command *c, const char *rights, bool may_fail, bool must_fail)
{
	static uint32_t attempt = 0;
	lock_keys *own_keys = keys;
	command other = plain_acquire(++attempt);
	char text[BATCH_MAX][600];
	size_t len[BATCH_MAX];
	redisReply *before;
	redisReply *reply;
	redisReply *after;
	bool good;

	len[0] = write_command(text[0], sizeof(text[0]), c);
	keys = &other_keys;
	len[1] = write_command(text[1], sizeof(text[1]), &other);
	keys = own_keys;
	ask_snapshot();
	ask(rights);
	ask_script(its_mark.text == 0 ? "m0" : marker_text, text, len, 2);
	ask("ACL SETUSER default allkeys +@all");
	ask_snapshot();
	before = next_reply();
	skip_replies(1);
	reply = next_reply();
	skip_replies(1);
	after = next_reply();
	good = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
		   (reply->element[0]->type != REDIS_REPLY_ARRAY ||
			(reply->element[0]->elements >= 3 &&
			 reply->element[0]->element[1]->type == REDIS_REPLY_STRING));
	if (good && reply->element[0]->type == REDIS_REPLY_ERROR &&
		strncmp(reply->element[0]->str, LUA_FORGOT, strlen(LUA_FORGOT)) != 0 &&
		strncmp(reply->element[0]->str, LUA_AHEAD, strlen(LUA_AHEAD)) != 0)
	{
		/* a release may have deleted the key before its counter is denied */
		good = may_fail && (c->op == CORE_OP_RELEASE || strcmp(before->str, after->str) == 0);
		lacked[1]++;
	}
	else
		lacked[0]++;
	good = good && (!must_fail || reply->element[0]->type == REDIS_REPLY_ERROR);
	good = good && (its_mark.text == 0 || reply->element[1]->type != REDIS_REPLY_ERROR);
	if (!good)
		printf("# %s: %s\n", own_keys->key,
			   reply->str                                      ? reply->str
			   : reply->elements > 0 && reply->element[0]->str ? reply->element[0]->str
															   : "other data");
	freeReplyObject(before);
	freeReplyObject(reply);
	freeReplyObject(after);
	return good;
}

/* Asks for a hash of all data, except the lock behind. */
static void
ask_snapshot(void)
{
	ask("EVALSHA %s 0", snapshot_sha);
}

static void
load_scripts(void)
{
	static const char snapshot[] =
		"local keys, all = redis.call('KEYS', '*'), {} table.sort(keys) "
		"for _, key in ipairs(keys) do if key:sub(1, 13) ~= 'redlock:other' then "
		"all[#all + 1] = key .. redis.call('DUMP', key) end end "
		"return redis.sha1hex(table.concat(all, '|'))";

	load_script(script, script_sha);
	load_script(snapshot, snapshot_sha);
}

/* A script that cannot be compiled is a difference. */
static void
load_script(const char *text, char *sha)
{
	redisReply *reply = call("SCRIPT LOAD %s", text);

	if (reply->type == REDIS_REPLY_STRING)
		snprintf(sha, sizeof(script_sha), "%s", reply->str);
	else
		differ("%s", reply->str);
	freeReplyObject(reply);
}

/*
 * Executes a batch on both nodes.  The simulated node goes first: each next
 * command depends on its data.
 */
static void
execute_both(int count)
{
	uint32_t known = dice(5) == 0 ? dice(3) : its_mark.text;
	bool is_full = dice(3) == 0;
	node_memory memory = is_full ? LOCAL_FULL : LOCAL_HAS_ROOM;
	char marker[16];
	command command[BATCH_MAX];
	answer answer[BATCH_MAX];
	int permit[BATCH_MAX];
	char text[BATCH_MAX][600];
	size_t len[BATCH_MAX];
	char what[BATCH_MAX][300];
	redisReply *reply;

	snprintf(marker, sizeof(marker), "m%u", known);
	for (int i = 0; i < count; i++)
	{
		node_data before;
		node_data lock_before = lock_data[LOCK];
		node_memory before_memory = memory;

		permit[i] = some_key();
		choose(permit[i]);
		before = *data;

		kept += local_has_key(data) && data->kept;
		random_command(&command[i], memory == LOCAL_FULL);
		command[i].marker = known;
		released_full += memory == LOCAL_FULL && command[i].op == CORE_OP_RELEASE &&
						 node_number(data->secret) == command[i].secret &&
						 data->attempt == command[i].attempt;
		node_execute(data, &its_mark, now_us, &command[i], &memory, &answer[i]);
		foreign_met += answer[i].holder >= PLAIN;
		queued += answer[i].holder != 0 && !local_has_key(data) && command[i].permits > 0 &&
				  answer[i].holder == node_number(lock_data[0].secret) &&
				  !local_has_key(&lock_before);
		if (command[i].permit > 0)
			count_permit(&command[i], &answer[i], &before, &lock_before, before_memory);
		named += answer[i].free_permit > 0;
		refused[command[i].op] += answer[i].error == NODE_FAILED;
		refused_behind += answer[i].error == NODE_FAILED && before_memory == LOCAL_WRITES;
		refused_known += answer[i].error == NODE_FAILED && before.counter != 0;
		granted_known += before_memory == LOCAL_FULL && command[i].op == CORE_OP_ACQUIRE &&
						 before.counter != 0 && answer[i].reply == CORE_REPLY_YES;
		held_back += command[i].shared && answer[i].reply == CORE_REPLY_NO &&
					 answer[i].holder == node_number(data->barrier) &&
					 node_number(data->barrier) != 0;
		len[i] = write_command(text[i], sizeof(text[i]), &command[i]);
		snprintf(what[i], sizeof(what[i]),
				 "%s: secret %u, attempt %u, ttl %" PRId64 ", proposal %" PRId64
				 ", counter %" PRId64 ", token %" PRId64
				 ", marker %u%s, on key %u %u, counter %" PRId64 ", marker %u",
				 lua_command_name[command[i].shared][command[i].op], command[i].secret,
				 command[i].attempt, command[i].ttl_ms, command[i].proposal, command[i].counter,
				 command[i].token, known, is_full ? ", full" : "", node_number(before.secret),
				 before.attempt, before.counter, (unsigned) its_mark.text);
		replies[command[i].op][answer[i].reply]++;
		commands++;
		if (follows_clock(&command[i], &answer[i]))
			count = i + 1; /* a further command would depend on a microsecond */
	}
	if (is_full)
		ask("CONFIG SET maxmemory 1");
	ask_script(known != 0 && known == its_mark.text ? marker_text : marker, text, len, count);
	if (is_full)
		ask("CONFIG SET maxmemory 0");
	ask("TIME");
	ask("PUBLISH end end");
	for (int i = 0; i < count; i++)
	{
		choose(permit[i]);
		ask_data();
		if (command[i].permit > 0)
		{
			choose(LOCK);
			ask_data();
		}
	}
	skip_replies(is_full);
	reply = next_reply();
	skip_replies(is_full);
	look_at_clock();
	skip_replies(1);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != (size_t) count)
		differ("no array of %d but %s", count, reply->str ? reply->str : "another type");
	for (int i = 0; i < count && differences == 0; i++)
	{
		choose(permit[i]);
		compare_reply(&command[i], reply->element[i], &answer[i]);
		if (differences > 0)
			differ("%s", what[i]);
	}
	compare_messages(command, answer, permit, count);
	for (int i = 0; i < count && differences == 0; i++)
	{
		choose(permit[i]);
		compare_data(what[i]);
		if (command[i].permit > 0 && differences == 0)
		{
			choose(LOCK);
			compare_data(what[i]);
		}
	}
	skip_replies(pending);
	freeReplyObject(reply);
}

/*
 * An administrator releases the lock by force: any key, a key of the same or of another request,
 * a reader's, or a key with as many permits.
 */
static void
force_both(void)
{
	static const char *const likes[] = {"", LUA_SHARED, " permits=2", " permits=3"};
	static char sha[41];
	bool is_full = dice(4) == 0;
	char held[LUA_HELD_MAX + 1];
	char value[LUA_HELD_MAX + 1] = "";
	char least[24];
	bool there = local_has_key(data);
	int key = (int) (data - lock_data);
	bool is_text = node_number(data->secret) < PLAIN ||
				   foreigners[node_number(data->secret) - PLAIN].type == NULL;
	node_order order = {.held = held,
						.held_is_text = is_text,
						.least = dice(4) == 0 ? 0 : some_counter(),
						.value = value,
						.of_permit = key > 0 && key < LOCK,
						.permit_data = lock_data,
						.permits_known = key == LOCK ? PERMITS : 0};
	Inspected at;
	redisReply *reply;
	bool tells;

	if (sha[0] == '\0')
		load_script(lua_force_script, sha);
	write_held(held, sizeof(held));
	if (dice(3) == 0)
		snprintf(value, sizeof(value), "%s", held);
	if (dice(3) == 0)
		snprintf(value, sizeof(value), "%032x:%09u:%016x%s another", 1 + dice(7), 8 + dice(3), 1,
				 likes[dice(4)]);
	if (dice(8) == 0)
		strcpy(value, "-");
	order.value_len = (int) strlen(value);
	snprintf(least, sizeof(least), "%" PRId64, order.least);
	tells = node_force(data, now_us, &order, &at);
	commands++;
	forced[at.forced]++;
	forced_at_end += at.kind == INSPECTED_ERROR;
	forced_barred += !at.forced && value[0] == '\0' && at.kind != INSPECTED_ERROR;
	forced_full += is_full && at.forced && there;
	if (is_full)
		ask("CONFIG SET maxmemory 1");
	ask("EVALSHA %s 0 %b %s %b", sha, keys->key, strlen(keys->key), least, value,
		(size_t) order.value_len);
	if (is_full)
		ask("CONFIG SET maxmemory 0");
	ask("PUBLISH end end");
	skip_replies(is_full);
	reply = next_reply();
	skip_replies(is_full + 1);
	compare_forced(reply, &at);
	/* the readers of an expired key may be there */
	compare_freed(tells, at.forced);
	if (differences > 0)
		printf("# after a forced release of %s, least counter %s, value %s\n", held, least, value);
	compare_after("a forced release");
	freeReplyObject(reply);
}

/* The text of the key. */
static void
write_held(char *text, size_t size)
{
	const foreign *f;

	text[0] = '\0';
	if (!local_has_key(data))
		return;
	if (node_number(data->secret) < PLAIN)
	{
		node_write_value(text, size, data);
		return;
	}
	f = &foreigners[node_number(data->secret) - PLAIN];
	if (f->type != NULL)
	{
		snprintf(text, size, "a key that is not a string");
		return;
	}
	memset(text, '.', size);
	memcpy(text, f->held, strlen(f->held));
	text[strlen(f->held) + (size_t) f->padding < size ? strlen(f->held) + (size_t) f->padding
													  : size - 1] = '\0';
}

static void
compare_forced(const redisReply *reply, const Inspected *at)
{
	static const long long kind[] = {[INSPECTED_NONE] = LUA_KEY_NONE,
									 [INSPECTED_STRING] = LUA_KEY_STRING,
									 [INSPECTED_OTHER] = LUA_KEY_OTHER};
	redisReply **part;

	if (at->kind == INSPECTED_ERROR)
	{
		if (reply->type != REDIS_REPLY_ERROR ||
			strncmp(reply->str, LUA_AHEAD, strlen(LUA_AHEAD)) != 0)
			differ("a forced release at the end of all counters");
		return;
	}
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 4 ||
		reply->element[1]->type != REDIS_REPLY_ARRAY || reply->element[1]->elements != 7)
	{
		differ("no answer to a forced release but %s", reply->str ? reply->str : "another type");
		return;
	}
	part = reply->element[1]->element;
	if (strcmp(reply->element[0]->str, its_mark.text != 0 ? marker_text : "") != 0)
		differ("the marker %s", reply->element[0]->str);
	if (part[0]->integer != kind[at->kind] || strcmp(part[1]->str, at->value) != 0)
		differ("the key %s, not %s", part[1]->str, at->value);
	if (at->ttl_ms < 0 ? part[2]->integer >= 0
					   : llabs(part[2]->integer - (long long) at->ttl_ms) > SLACK_MS)
		differ("a life of %lld ms, not %" PRId64, part[2]->integer, at->ttl_ms);
	if (strtoll(part[3]->str, NULL, 10) != at->counter)
		differ("the counter %s, not %" PRId64, part[3]->str, at->counter);
	if (data->shared && at->kind == INSPECTED_STRING && at->hosts > 0 &&
		(part[4]->integer != at->hosts ||
		 strlen(part[5]->str) != (size_t) at->hosts * LOCK_HOST_DIGITS))
		differ("%lld readers, not %d", part[4]->integer, at->hosts);
	if (reply->element[2]->integer != (at->forced ? LUA_FORCED : LUA_FORCED_NOT) ||
		strtoll(reply->element[3]->str, NULL, 10) != at->after)
		differ("%lld and the counter %s, not %d and %" PRId64, reply->element[2]->integer,
			   reply->element[3]->str, at->forced, at->after);
}

/* The messages of a forced release, up to the end. */
static void
compare_freed(bool must, bool may)
{
	redisReply *message = hear();
	bool freed = strcmp(message->element[1]->str, keys->key) == 0;
	int permit = (int) (data - lock_data);

	if (freed && (!may || message->element[2]->len != 7 ||
				  memcmp(message->element[2]->str, "free\0000", 7) != 0))
		differ("the message %s", message->element[2]->str);
	if (must && !freed)
		differ("no message of a forced release");
	if (freed)
	{
		freeReplyObject(message);
		if (permit > 0 && permit < LOCK && differences == 0)
			differ_unless_permit(permit);
		message = hear();
	}
	if (strcmp(message->element[1]->str, "end") != 0)
		differ("a message on %s", message->element[1]->str);
	freeReplyObject(message);
}

/* Counts what the command did with the lock's key. */
static void
count_permit(const command *c, const answer *a, const node_data *before,
			 const node_data *lock_before, node_memory memory)
{
	const node_data *now = c->lock_data;
	bool was_there = local_has_key(lock_before);
	bool extended = was_there && local_has_key(now) && now->key_end_ms > lock_before->key_end_ms;
	bool shortened = was_there && local_has_key(now) && now->key_end_ms < lock_before->key_end_ms;

	if (c->op == CORE_OP_ACQUIRE && a->holder != 0 && was_there &&
		lock_before->permits != c->permits && a->holder == node_number(lock_before->secret))
	{
		barred_by_number += lock_before->permits > 0;
		barred_by_lock += lock_before->permits == 0;
		barred_earlier += node_number(before->secret) == c->secret && before->attempt < c->attempt;
	}
	else if (c->op == CORE_OP_ACQUIRE)
		longer_lives += a->reply == CORE_REPLY_YES && now->key_end_ms > data->key_end_ms;
	else if (c->op == CORE_OP_RELEASE && a->reply == CORE_REPLY_YES)
	{
		lock_gone += was_there && !local_has_key(now);
		lock_left += !local_has_key(data) && now->permits > 0 && local_has_key(now);
		lock_kept += extended;
		lock_shortened += shortened;
		lock_kept_less += shortened && now->key_end_ms == data->key_end_ms && local_has_key(data);
	}
	else if (c->op == CORE_OP_RENEW)
	{
		lock_renewed += extended;
		lock_made += !was_there && local_has_key(now);
		lock_made_full += !was_there && local_has_key(now) && memory == LOCAL_FULL;
	}
}

static size_t
write_command(char *text, size_t size, const command *c)
{
	int64_t number[3] = {c->ttl_ms, c->counter, c->token};
	char value[200];
	int len;

	if (c->op == CORE_OP_ACQUIRE)
	{
		number[1] = c->proposal;
		number[2] = c->waited_us;
	}
	else if (c->op == CORE_OP_CONFIRM)
	{
		number[0] = c->counter;
		number[1] = c->token;
	}
	node_write_value(value, sizeof(value),
					 &(node_data){.secret = node_secret(c->secret),
								  .attempt = c->attempt,
								  .host = c->host + 1,
								  .shared = c->shared,
								  .may_idle = c->may_stay,
								  .permits = c->says_permits});
	len = snprintf(text, size, "%s%c%s%c%s%c%" PRId64 "%c%" PRId64 "%c",
				   lua_command_name[c->shared][c->op], 0, keys->key, 0, value, 0, number[0], 0,
				   number[1], 0);
	if (c->op == CORE_OP_ACQUIRE && c->waited_us < 0)
		len += snprintf(text + len, size - (size_t) len, "%s%c", LUA_TRY, 0);
	else if (c->op == CORE_OP_RELEASE)
		len += (int) write_told(text + len, size - (size_t) len, c);
	else
		len += snprintf(text + len, size - (size_t) len, "%" PRId64 "%c", number[2], 0);
	if (c->permits > 0)
		len += snprintf(text + len, size - (size_t) len, "%d%c", c->permits, 0);
	return (size_t) len;
}

/* The value of the key. */
/* The message of a release: the lease, and the next hosts. */
static size_t
write_told(char *text, size_t size, const command *c)
{
	size_t len = (size_t) snprintf(text, size, "%" PRId64 "%c", c->ended, 0);

	for (int i = 0; i < c->waiting; i++)
		len += (size_t) snprintf(text + len, size - len, "%016" PRIx64 "%c%" PRId64 "%c",
								 c->waiter[i].host, 0, c->waiter[i].waited_us, 0);
	return len;
}

static void
ask_script(const char *marker, char text[][600], const size_t *len, int count)
{
	const char *argv[4 + BATCH_MAX] = {"EVALSHA", script_sha, "0", marker};
	size_t argvlen[4 + BATCH_MAX] = {7, strlen(script_sha), 1, strlen(marker)};

	for (int i = 0; i < count; i++)
	{
		argv[4 + i] = text[i];
		argvlen[4 + i] = len[i];
	}
	redisAppendCommandArgv(redis, 4 + count, argv, argvlen);
	pending++;
}

/*
 * Does the granted counter depend on the exact time at which the node reads
 * its clock?
 */
static bool
follows_clock(const command *c, const answer *a)
{
	int64_t behind = now_us - LUA_CLOCK_BOUND_US;

	return c->op == CORE_OP_ACQUIRE && a->reply == CORE_REPLY_YES && a->token - behind < SLACK_US &&
		   behind - a->token < SLACK_US;
}

static command
plain_acquire(uint32_t attempt)
{
	return (command){.op = CORE_OP_ACQUIRE,
					 .secret = 1,
					 .attempt = attempt,
					 .ttl_ms = 100000,
					 .proposal = server_time_us()};
}

static void
compare_reply(const command *c, const redisReply *reply, answer *a)
{
	if (a->reply == CORE_REPLY_ERROR)
	{
		const char *text = a->error == NODE_FORGOT  ? LUA_FORGOT
						   : a->error == NODE_AHEAD ? LUA_AHEAD
													: "OOM";

		if (reply->type != REDIS_REPLY_ERROR || strncmp(reply->str, text, strlen(text)) != 0)
			differ("no error %s but %s", text, reply->str ? reply->str : "another type");
	}
	else if (reply->type == REDIS_REPLY_ERROR)
		differ("the error %s", reply->str);
	else if (c->op == CORE_OP_RENEW && a->token != 0)
	{
		if (reply->type != REDIS_REPLY_STRING || strtoll(reply->str, NULL, 10) != a->token)
			differ("another counter in the way");
		told++;
	}
	else if (c->op != CORE_OP_ACQUIRE)
	{
		if (reply->type != REDIS_REPLY_INTEGER || reply->integer != (a->reply == CORE_REPLY_YES))
			differ("the reply %lld", reply->integer);
	}
	else if (a->reply == CORE_REPLY_YES)
	{
		int64_t token;
		char digits[24];

		if (reply->type != REDIS_REPLY_STRING)
		{
			differ("no grant but %s",
				   reply->type == REDIS_REPLY_ARRAY ? reply->element[1]->str : "no");
			return;
		}
		token = strtoll(reply->str, NULL, 10);
		/* a counter by the node's clock is not known to the microsecond */
		if (token != a->token && token - a->token < SLACK_US && a->token - token < SLACK_US &&
			now_us - token - LUA_CLOCK_BOUND_US < SLACK_US &&
			token - now_us + LUA_CLOCK_BOUND_US < SLACK_US)
		{
			for (int i = 0; i < data->readers; i++)
				if (data->reader[i].granted == a->token)
					data->reader[i].granted = token;
			data->counter = a->token = token;
		}
		snprintf(digits, sizeof(digits), "%" PRId64, a->token);
		if (strcmp(reply->str, digits) != 0)
			differ("the counter %s, not %" PRId64, reply->str, a->token);
	}
	else if (reply->type != REDIS_REPLY_ARRAY || reply->elements != (c->permits > 0 ? 4 : 3) ||
			 reply->element[0]->type != REDIS_REPLY_INTEGER ||
			 reply->element[1]->type != REDIS_REPLY_STRING ||
			 (a->holder >= PLAIN
				  ? !is_foreign(reply->element[1], a->holder)
				  : strtoul(reply->element[1]->str, NULL, 16) != a->holder ||
						reply->element[1]->len <= 60 || reply->element[1]->str[32] != ':') ||
			 (a->busy_ms > 0 && reply->element[0]->integer <= 0) ||
			 (a->busy_ms <= LUA_BARRIER_MS && reply->element[0]->integer > LUA_BARRIER_MS) ||
			 reply->element[2]->type != REDIS_REPLY_INTEGER ||
			 reply->element[2]->integer != !a->in_front ||
			 llabs(reply->element[0]->integer - (long long) a->busy_ms) > SLACK_MS)
		differ("another holder, time to live or number of waiters: %s",
			   reply->type == REDIS_REPLY_ARRAY && reply->elements > 1 ? reply->element[1]->str
																	   : "none");
	else if (c->permits > 0 && (reply->element[3]->type != REDIS_REPLY_INTEGER ||
								reply->element[3]->integer != a->free_permit))
		differ("another free permit: %lld, not %d", reply->element[3]->integer, a->free_permit);
}

static void
subscribe(void)
{
	char channel[64];

	subscriber = redisConnectUnix(socket_path);
	redisSetTimeout(subscriber,
					(struct timeval){30, 0}); /* a missing message is a difference, too */
	freeReplyObject(must_reply(redisCommand(subscriber, "SUBSCRIBE end")));
	for (int n = 0; n <= LOCK; n++)
		freeReplyObject(must_reply(redisCommand(subscriber, "SUBSCRIBE %s", lock[n].key)));
	for (int h = 1; h <= HOSTS; h++)
	{
		int len = snprintf(channel, sizeof(channel), "redlock:%chost:%016x", 0, h);

		freeReplyObject(
			must_reply(redisCommand(subscriber, "SUBSCRIBE %b", channel, (size_t) len)));
	}
}

static void
hear_all(void)
{
	freeReplyObject(call("PUBLISH end all"));
	for (bool more = true; more;)
	{
		redisReply *message = hear();

		more = strcmp(message->element[1]->str, "end") != 0 ||
			   strcmp(message->element[2]->str, "all") != 0;
		freeReplyObject(message);
	}
}

static redisReply *
hear(void)
{
	void *reply = NULL;

	if (redisGetReply(subscriber, &reply) != REDIS_OK)
		reply = NULL;
	return must_reply(reply);
}

/* All messages in the order of the commands, and no more. */
static void
compare_messages(const command *c, const answer *a, const int *permit, int count)
{
	redisReply *last;

	for (int i = 0; i < count && differences == 0; i++)
	{
		int hosts;

		choose(permit[i]);
		hosts = a[i].tells == LOCAL_TELLS_NOTHING ? 0 : a[i].shared ? a[i].readers : 1;
		for (int h = 0; h < hosts && differences == 0; h++)
			differ_unless_told(&c[i], &a[i], a[i].shared ? a[i].reader_host[h] : a[i].holder_host);
		if (a[i].tells_queue && differences == 0)
			differ_unless_permit(permit[i]);
	}
	if (differences > 0)
		return;
	last = hear();
	if (strcmp(last->element[1]->str, "end") != 0)
		differ("a message on %s", last->element[1]->str);
	freeReplyObject(last);
}

/* The queue must hear that this permit is free. */
static void
differ_unless_permit(int permit)
{
	char text[20];
	size_t len = (size_t) snprintf(text, sizeof(text), "permit%c%d%c", 0, permit, 0);
	redisReply *message = hear();

	heard_permits++;
	if (message->elements != 3 || strcmp(message->element[1]->str, lock[0].key) != 0 ||
		message->element[2]->len != len || memcmp(message->element[2]->str, text, len) != 0)
		differ("another message: %s", message->elements == 3 ? message->element[2]->str : "");
	freeReplyObject(message);
}

static void
differ_unless_told(const command *c, const answer *a, int host)
{
	char channel[64];
	size_t channel_len = (size_t) snprintf(channel, sizeof(channel), "%s", keys->key);
	char text[600] = "free";
	size_t len = 5;
	redisReply *message = hear();

	heard[a->tells]++;
	if (a->tells == LOCAL_TELLS_FREE)
		len += write_told(text + len, sizeof(text) - len, c);
	else
	{
		channel_len =
			(size_t) snprintf(channel, sizeof(channel), "redlock:%chost:%016x", 0, (unsigned) host);
		len = (size_t) snprintf(text, sizeof(text), "want%c%s%c%016x%c", 0, keys->key, 0,
								(unsigned) c->host + 1, 0);
		len += (size_t) (c->waited_us < 0
							 ? snprintf(text + len, sizeof(text) - len, "%s%c", LUA_TRY, 0)
							 : snprintf(text + len, sizeof(text) - len, "%" PRId64 "%c",
										c->waited_us, 0));
		heard_tries += c->waited_us < 0;
	}
	if (message->elements != 3 || message->element[1]->len != channel_len ||
		memcmp(message->element[1]->str, channel, channel_len) != 0 ||
		message->element[2]->len != len || memcmp(message->element[2]->str, text, len) != 0)
		differ("another message: %s", message->elements == 3 ? message->element[2]->str : "");
	freeReplyObject(message);
}

/* For compare_data, which reads the replies. */
static void
ask_data(void)
{
	ask("GET %b", keys->key, strlen(keys->key));
	ask("GET %b", keys->counter, keys->counter_len);
	ask("GET %b", marker_key, sizeof(marker_key) - 1);
	ask("PTTL %b", keys->key, strlen(keys->key));
	ask("PTTL %b", keys->counter, keys->counter_len);
	ask("GET %b", keys->barrier, keys->barrier_len);
	ask("PTTL %b", keys->readers, keys->readers_len);
	ask("HGET %b since", keys->readers, keys->readers_len);
	ask("HLEN %b", keys->readers, keys->readers_len);
	for (int i = 0; local_has_key(data) && data->shared && i < data->readers; i++)
		ask("HGET %b %032x:", keys->readers, keys->readers_len,
			node_number(data->reader[i].secret));
}

static void
compare_after(const char *what)
{
	ask("TIME");
	ask_data();
	look_at_clock();
	compare_data(what);
}

static void
compare_data(const char *after)
{
	redisReply *value = next_reply();
	redisReply *counter = next_reply();
	redisReply *mark = next_reply();
	redisReply *value_ttl = next_reply();
	redisReply *counter_ttl = next_reply();

	bool there = value->type == REDIS_REPLY_STRING;
	bool foreign = node_number(data->secret) >= PLAIN;
	char expected[200];

	node_write_value(expected, sizeof(expected), data);
	if (foreign && foreigners[node_number(data->secret) - PLAIN].type != NULL)
		there = value->type == REDIS_REPLY_ERROR;
	if (there != (local_has_key(data)))
		differ("a key that is %sthere after %s", there ? "" : "not ", after);
	else if (foreign && value->type == REDIS_REPLY_STRING &&
			 strncmp(value->str, foreigners[node_number(data->secret) - PLAIN].held,
					 strlen(foreigners[node_number(data->secret) - PLAIN].held)) != 0)
		differ("the key %.100s after %s", value->str, after);
	else if (local_has_key(data) && !foreign &&
			 (strcmp(value->str, expected) != 0 ||
			  llabs(value_ttl->integer - (long long) (data->key_end_ms - now_us / 1000)) >
				  SLACK_MS))
		differ("the key %s with %lld ms after %s", value->str, value_ttl->integer, after);

	if ((counter->type == REDIS_REPLY_STRING) != (data->counter != 0))
		differ("a counter that is %sthere after %s",
			   counter->type == REDIS_REPLY_STRING ? "" : "not ", after);
	else if (data->counter != 0 &&
			 (strtoll(counter->str, NULL, 10) != data->counter ||
			  llabs(counter_ttl->integer - (long long) (data->counter_end_ms - now_us / 1000)) >
				  SLACK_MS))
		differ("the counter %s with %lld ms, not %" PRId64 " with %" PRId64 ", after %s",
			   counter->str, counter_ttl->integer, data->counter,
			   data->counter_end_ms - now_us / 1000, after);

	if (its_mark.text == 0
			? mark->type != REDIS_REPLY_NIL
			: mark->type != REDIS_REPLY_STRING || strcmp(mark->str, marker_text) != 0)
		differ("the marker %s after %s", mark->str ? mark->str : "(none)", after);

	compare_readers(after);
	freeReplyObject(value);
	freeReplyObject(counter);
	freeReplyObject(mark);
	freeReplyObject(value_ttl);
	freeReplyObject(counter_ttl);
}

/* The readers of a shared lock, and the barrier. */
static void
compare_readers(const char *after)
{
	redisReply *barrier = next_reply();
	redisReply *life = next_reply();
	redisReply *since = next_reply();
	redisReply *count = next_reply();
	bool shared = local_has_key(data) && data->shared;

	if (shared && count->integer != data->readers + (data->since >= 0))
		differ("%lld readers, not %d, after %s", count->integer, data->readers, after);
	if (shared && data->since >= 0 &&
		(since->type != REDIS_REPLY_STRING || strtoll(since->str, NULL, 10) != data->since))
		differ("readers since %s, not %" PRId64 ", after %s", since->str ? since->str : "(none)",
			   data->since, after);
	if (shared && data->readers > 0 &&
		llabs(life->integer - (long long) (data->key_end_ms - now_us / 1000)) > SLACK_MS)
		differ("readers for %lld ms after %s", life->integer, after);
	for (int i = 0; shared && i < data->readers; i++)
	{
		const node_reader *r = &data->reader[i];
		redisReply *reader = next_reply();
		char text[100];
		size_t len = (size_t) snprintf(text, sizeof(text), "%09u:%016x:%" PRId64 ":", r->attempt,
									   (unsigned) r->host, r->granted);

		if (reader->type != REDIS_REPLY_STRING || strncmp(reader->str, text, len) != 0 ||
			llabs(strtoll(reader->str + len, NULL, 10) - (long long) r->end_ms) > SLACK_MS)
			differ("the reader %s, not %s, after %s", reader->str ? reader->str : "(none)", text,
				   after);
		most_readers = data->readers > most_readers ? data->readers : most_readers;
		freeReplyObject(reader);
	}
	if ((barrier->type == REDIS_REPLY_STRING) != (node_number(data->barrier) != 0))
		differ("a barrier that is %sthere after %s", node_number(data->barrier) != 0 ? "not " : "",
			   after);
	else if (node_number(data->barrier) != 0 &&
			 (strtoll(barrier->str, NULL, 10) != data->barrier_counter ||
			  strtoul(strchr(barrier->str, ':') + 1, NULL, 16) != node_number(data->barrier)))
		differ("the barrier %s after %s", barrier->str, after);
	freeReplyObject(barrier);
	freeReplyObject(life);
	freeReplyObject(since);
	freeReplyObject(count);
}

static void
differ(const char *format, ...)
{
	size_t length = strlen(difference);
	va_list args;

	if (differences++ > 1)
		return;
	va_start(args, format);
	if (length == 0)
		length = (size_t) snprintf(difference, sizeof(difference), "redis-server has ");
	else
		length += (size_t) snprintf(difference + length, sizeof(difference) - length, "; ");
	vsnprintf(difference + length, sizeof(difference) - length, format, args);
	va_end(args);
}

/* No other command may be pending. */
static redisReply *
call(const char *format, ...)
{
	va_list args;
	redisReply *reply;

	va_start(args, format);
	reply = redisvCommand(redis, format, args);
	va_end(args);
	return must_reply(reply);
}

/*
 * Sends a command with the next commands; next_reply reads the replies in the
 * same order.
 */
static void
ask(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	redisvAppendCommand(redis, format, args);
	va_end(args);
	pending++;
}

static redisReply *
next_reply(void)
{
	void *reply = NULL;

	pending--;
	if (redisGetReply(redis, &reply) != REDIS_OK)
		reply = NULL;
	return must_reply(reply);
}

static void
skip_replies(int count)
{
	for (int i = 0; i < count; i++)
		freeReplyObject(next_reply());
}

static redisReply *
must_reply(redisReply *reply)
{
	if (reply == NULL)
	{
		printf("Bail out! %s\n", redis->errstr);
		exit(1);
	}
	return reply;
}

/* The next reply must be of TIME. */
static void
look_at_clock(void)
{
	now_us = time_us(next_reply());
}

static int64_t
server_time_us(void)
{
	return time_us(call("TIME"));
}

static int64_t
time_us(redisReply *reply)
{
	int64_t us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
				 strtoll(reply->element[1]->str, NULL, 10);

	freeReplyObject(reply);
	return us;
}
