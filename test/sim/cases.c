/*
 * cases.c
 *		The replies of redlock.lua in cases that random commands seldom
 *		meet.
 *
 * Each case is a list of steps.  A step is a command and the expected reply.
 * The server executes commands in capital letters.  The script executes
 * commands in small letters, with "_" for the blank in "acquire shared".  A
 * semicolon separates commands of one call of the script, and their replies.
 * HEAR returns the messages since the last HEAR.  If a server refuses an ACL
 * command, as old servers do, the program skips the rest of the case.
 *
 * Commands and replies may contain names:
 *
 *	$key, $token		the key of the lock, its counter
 *	$readers, $barrier	its readers, its barrier
 *	$one, $two, $three	the keys of permits
 *	$queue, $first		the key of the queue, the counter of a permit
 *	$marker, $host		the key of the marker, the beginning of a host's channel
 *	$now, $now+5		the time at which the case begins, in us
 *	$ms, $ms-5			the same in ms
 *	$x300, $i300		300 letters "x", 300 digits "1"
 *	<1:8:2=_text>		a value: secret, attempt, host and rest, "_" for a blank
 *	<1>					the field of a reader: secret and colon
 *	<'a_text>			a text, "_" for a blank
 *
 * Only replies may contain patterns:
 *
 *	*					any text
 *	{500}				a life in ms, less by no more than the case has taken
 *	{+$ms+500}			an instant, later by no more than the case has taken
 *	!					the beginning of an error
 *	|					a NUL
 */
#define _POSIX_C_SOURCE 200809L

#include "cases.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/lua.h"

#define NAME "redlock:case"
#define WORDS_MAX 16
#define COMMANDS_MAX 4
#define TEXT_MAX 2400

/* A case that fails after this time begins again: a barrier lives twice as long. */
#define CASE_MAX_US (LUA_BARRIER_MS * INT64_C(500))

typedef struct step
{
	const char *command; /* NULL: `reply` is the title of a case */
	const char *reply;
} step;

typedef struct text
{
	char bytes[TEXT_MAX];
	size_t len;
} text;

#define HEX "0123456789abcdef"

/* A reader's value with a fault in one place. */
#define LIKE_SHARED(text)                                                                          \
	{NULL, "it is not shared: " text}, {"SET $key <'" text "> PX 100000", "OK"},                   \
		{"SET $token $now", "OK"},                                                                 \
		{"HSET $readers <1> 000000008:0000000000000002:$now:$ms+90000", "1"},                      \
		{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "[{100000}, <'" text ">, 1]"},            \
		{"confirm_shared $key <1:8:2=_x> $now $now+5 |", "0"},                                     \
		{"renew_shared $key <1:8:2=_x> 100000 $now $now", "0"},                                    \
		{"release_shared $key <1:8:2=_x> -1 0 0", "0"},                                            \
		{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <'" text ">, 1]"},                    \
		{"EXISTS $barrier", "0"},                                                                  \
	{                                                                                              \
		"HEAR", ""                                                                                 \
	}

/* A writer's value with a fault in one place. */
#define LIKE_EXCLUSIVE(text)                                                                       \
	{NULL, "it is not exclusive: " text}, {"SET $key <'" text "> PX 100000", "OK"},                \
		{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "[{100000}, <'" text ">, 1]"},            \
		{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <'" text ">, 1]"},                    \
	{                                                                                              \
		"HEAR", ""                                                                                 \
	}

/* A permit's value in the lock's key, with a fault in one place. */
#define LIKE_PERMIT(text)                                                                          \
	{NULL, "it is not of a permit: " text}, {"SET $key <'" text "> PX 50000", "OK"},               \
		{"acquire $one <1:8:2_permits=2_x> 100000 $now 5 2", "[{50000}, <'" text ">, 0, 0]"},      \
		{"SET $one <1:8:2_permits=2_x> PX 100000", "OK"},                                          \
		{"renew $one <1:8:2_permits=2_x> 90000 5 5", "0"}, {"PTTL $key", "{50000}"},               \
		{"release $one <1:8:2_permits=2_x> 70000 0 0", "1"}, {"PTTL $key", "{50000}"},             \
		{"SET $one <1:8:2_permits=2_x> PX 100000", "OK"},                                          \
		{"release $one <1:8:2_permits=2_x> -1 0 0", "1"},                                          \
	{                                                                                              \
		"GET $key", "<'" text ">"                                                                  \
	}

/* A value of host 2 in the queue's key, with a fault in one place. */
#define LIKE_QUEUED(text)                                                                          \
	{NULL, "it is not of this host in the queue: " text},                                          \
		{"SET $queue <'" text "> PX 50000", "OK"},                                                 \
	{                                                                                              \
		"acquire $one <1:8:2_permits=2_x> 100000 $now 5 2", "[{50000}, <'" text ">, 0, 0]"         \
	}

/* The counter has another type.  The command fails, and the next one does not. */
#define NEEDS_COUNTER(command)                                                                     \
	{NULL, "it needs the counter: " command}, {"RPUSH $token element", "1"},                       \
	{                                                                                              \
		command " ; acquire $two <9:8:2_x> 100000 $now 5", "!WRONGTYPE* ; $now"                    \
	}

/* A command that needs to read only. */
#define NEXT "confirm $two <9:8:2_x> 1 1 |"

#define WANTS "$host0000000000000002: want|$key|0000000000000004|5|"
#define WANTS_4 WANTS ", " WANTS ", " WANTS ", " WANTS
#define WANTS_16 WANTS_4 ", " WANTS_4 ", " WANTS_4 ", " WANTS_4

/* 1104 readers */
#define MANY_ARE_OVER                                                                              \
	"EVAL for\ti=2,1105\tdo\tredis.call('HSET',KEYS[1],string.format('%032x:',i),ARGV[1])\tend "   \
	"1 $readers 000000008:0000000000000002:1:1"

static const step steps[] = {
	{NULL, "a proposal behind the node's clock is raised"},
	{"acquire $key <1:8:2_x> 100000 5 5", "{+$now-3600000000}"},
	{"PTTL $token", "{7200000}"},
	{"PTTL $key", "{100000}"},

	{NULL, "a counter ahead of the node's clock lives longer"},
	{"acquire $key <1:8:2_x> 100000 $now+1000000000 5", "$now+1000000000"},
	{"PTTL $token", "{8200000}"},
	{"confirm $key <1:8:2_x> $now+1000000000 $now+1500000000 |", "1"},
	{"PTTL $token", "{8700000}"},
	{"renew $key <1:8:2_x> 100000 $now+1500000000 $now+2000000000", "1"},
	{"PTTL $token", "{9200000}"},
	{"release $key <1:8:2_x> -1 $now+2500000000 0", "1"},
	{"PTTL $token", "{9700000}"},

	{NULL, "a proposal too far ahead is refused"},
	{"acquire $key <1:8:2_x> 100000 $now+7000000000 5",
	 "!AHEAD of the clock of this node: that of the client, by 7000 s"},
	{"EXISTS $key $token", "0"},

	{NULL, "an acquire that is sent twice is granted once, whatever became of the counter"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"DEL $token", "1"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "0"},

	{NULL, "a refused acquire returns the value, and tells the host that has it"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"acquire $key <3:8:4_x> 100000 $now 5", "[{100000}, <1:8:2_x>, 1]"},
	{"HEAR", "$host0000000000000002: want|$key|0000000000000004|5|"},
	{"acquire_shared $key <3:8:4=_x> 100000 $now 6", "[{100000}, <1:8:2_x>, 1]"},
	{"HEAR", "$host0000000000000002: want|$key|0000000000000004|6|"},
	{"ACL SETUSER default -pubsub", "OK"},
	{"acquire $key <3:8:4_x> 100000 $now try", "[{100000}, <1:8:2_x>, 0]"},
	{"acquire_shared $key <3:8:4=_x> 100000 $now try", "[{100000}, <1:8:2_x>, 0]"},
	{"HEAR", ""},

	{NULL, "a refused acquire returns no more of a long value than fits"},
	{"SET $key <1:8:2_$x300> PX 100000", "OK"},
	{"acquire $key <3:8:4_x> 100000 $now 5", "[{100000}, <1:8:2_$x195>, 1]"},
	{"acquire_shared $key <3:8:4=_x> 100000 $now 5", "[{100000}, <1:8:2_$x195>, 1]"},

	{NULL, "a reader that asks twice is told what it was granted"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"HGET $readers <1>", "000000008:0000000000000002:$now:{+$ms+100000}"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"HSET $readers <1> 000000008scribble", "0"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "0"},
	{"HSET $readers <1> 000000008:0000000000000002:$i300:5", "0"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$i255"},

	{NULL, "a reader's earlier attempt is refused"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"acquire_shared $key <1:7:2=_x> 100000 $now 5", "[{100000}, <1:8:2=_x>, 1]"},
	{"ACL SETUSER default -pubsub", "OK"},
	{"acquire_shared $key <1:7:2=_x> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"HEAR", ""},

	{NULL, "a barrier is told of, with the host that waits"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"GET $barrier", "$now:<3:8:4_y>"},
	{"PTTL $barrier", "{1000}"},
	{"SET $barrier $now:<3:8:4_y> PX 100000", "OK"},
	{"acquire_shared $key <5:8:6=_z> 100000 $now 5", "[{100000}, <3:8:4_>" LUA_WAITED_FOR "y, 1]"},
	{"ACL SETUSER default -pubsub", "OK"},
	{"acquire_shared $key <5:8:6=_z> 100000 $now 5", "[{100000}, <3:8:4_>" LUA_WAITED_FOR "y, 0]"},
	{"SET $barrier $now:<3:8:4_$x300> PX 100000", "OK"},
	{"acquire_shared $key <5:8:6=_z> 100000 $now 5",
	 "[{100000}, <3:8:4_>" LUA_WAITED_FOR "$x178, 0]"},
	{"SET $barrier $i254: PX 100000", "OK"},
	{"SET $token $now-900", "OK"},
	{"acquire_shared $key <5:8:6=_z> 100000 $now 5", "$now+101"},

	{NULL, "a barrier is known by a part of it"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"SET $barrier $i254:$x300 PX 100000", "OK"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"GET $barrier", "$now:<3:8:4_y>"},

	{NULL, "a barrier ends when somebody had the lock"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"SET $barrier $now-1000:<5:8:6_z> PX 100000", "OK"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 1]"},
	{"SET $barrier $now-1001:<5:8:6_z> PX 100000", "OK"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"SET $barrier $now-1001:<5:8:6_z> PX 100000", "OK"},
	{"acquire_shared $key <7:8:8=_x> 100000 $now 5", "$now+1001"},

	{NULL, "a barrier of another type is none, and stays"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"RPUSH $barrier element", "1"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 1]"},
	{"TYPE $barrier", "list"},
	{"acquire_shared $key <5:8:6=_z> 100000 $now 5", "$now+1001"},

	{NULL, "readers whose time is over are not told, and are forgotten"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"HSET $readers <3> 000000008:0000000000000003:$now:$ms-2", "1"},
	{"acquire $key <4:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"HEAR", "$host0000000000000002: want|$key|0000000000000004|5|"},
	{"HLEN $readers", "2"},
	{"HSET $readers <3> 000000008:0000000000000003:$now:$ms+5000", "1"},
	{"HSET $readers <5> scribble", "1"},
	{"acquire $key <4:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"HEAR", "$host0000000000000002: want|$key|0000000000000004|5|, "
			 "$host0000000000000003: want|$key|0000000000000004|5|"},
	{"HLEN $readers", "4"},
	{"HSET $readers <3> 000000008:0000000000000003:$now:$ms-2", "0"},
	{"release_shared $key <1:8:2=_x> -1 0 0", "1"},
	{"EXISTS $key $readers", "0"},

	{NULL, "a reader that is not understood is not released"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"HSET $readers <1> scribble", "0"},
	{"release_shared $key <1:8:2=_x> -1 0 0 ; release $key <9:8:2_x> -1 0 0", "0 ; 0"},

	{NULL, "a limited number of readers is forgotten at a time"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"acquire_shared $key <3000:8:2=_x> 100000 $now 5", "$now+1001"},
	{MANY_ARE_OVER, "nil"},
	{"acquire $key <3:8:4_y> 100000 $now 5", "[{100000}, <3000:8:2=_x>, 0]"},
	{"HLEN $readers", "107"},
	{MANY_ARE_OVER, "nil"},
	{"release_shared $key <1:8:2=_x> -1 0 0", "1"},
	{"HEXISTS $readers <1>", "0"},
	{"HLEN $readers", "107"},

	{NULL, "a reader that can't be written leaves no key"},
	{"ACL SETUSER default -hset", "OK"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5 ; release $key <9:8:2_x> -1 0 0", "!* ; 0"},
	{"EXISTS $key $readers $token", "0"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now ; release $key <9:8:2_x> -1 0 0", "!* ; 0"},
	{"EXISTS $key $readers $token", "0"},
	{"ACL SETUSER default +hset", "OK"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -hset", "OK"},
	{"acquire_shared $key <3:8:4=_x> 200000 $now 5", "!*"},
	{"PTTL $readers", "{200000}"},
	{"renew_shared $key <1:8:2=_x> 300000 $now $now", "!*"},
	{"PTTL $readers", "{300000}"},
	{"PTTL $key", "{100000}"},
	{"GET $key", "<1:8:2=_x>"},

	{NULL, "a reader whose life can't be set leaves no key"},
	{"ACL SETUSER default -pexpire", "OK"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5 ; " NEXT, "!* ; 0"},
	{"EXISTS $key $readers $token", "0"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now ; " NEXT, "!* ; 0"},
	{"EXISTS $key $readers $token", "0"},
	{"SET $key <1:8:2=_x> PX 100000", "OK"},
	{"acquire_shared $key <3:8:4=_x> 200000 $now 5 ; " NEXT, "!* ; 0"},
	{"renew_shared $key <3:8:4=_x> 200000 $now $now ; " NEXT, "!* ; 0"},
	{"EXISTS $readers", "0"},
	{"PTTL $key", "{100000}"},

	{NULL, "readers that are missing get a life, though the lock's key can't be written"},
	{"SET $key <1:8:2=_x> PX 100000", "OK"},
	{"SET $token $now", "OK"},
	{"ACL SETUSER default -set", "OK"},
	{"acquire_shared $key <3:8:4=_x> 200000 $now 5", "!*"},
	{"PTTL $readers", "{200000}"},

	{NULL, "an acquire that can't raise the counter looks at readers for a reader only"},
	{"RPUSH $readers element", "1"},
	{"SET $token $now-2000", "OK"},
	{"ACL SETUSER default -setrange", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; release $key <9:8:2_x> -1 0 0", "!* ; 0"},
	{"EXISTS $key", "0"},

	{NULL, "readers of another type fail each command of a reader"},
	{"SET $key <1:8:2=_x>", "OK"},
	{"SET $token $now", "OK"},
	{"RPUSH $readers element", "1"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5 ; release $key <9:8:2_x> -1 0 0",
	 "!WRONGTYPE* ; 0"},
	{"confirm_shared $key <1:8:2=_x> $now $now+5 | ; release $key <9:8:2_x> -1 0 0",
	 "!WRONGTYPE* ; 0"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now ; release $key <9:8:2_x> -1 0 0",
	 "!WRONGTYPE* ; 0"},
	{"release_shared $key <1:8:2=_x> -1 0 0 ; release $key <9:8:2_x> -1 0 0", "!WRONGTYPE* ; 0"},

	{NULL, "a renewal returns no more of a long counter than fits"},
	{"SET $token $i300", "OK"},
	{"renew $key <1:8:2_x> 100000 5 5", "$i255"},
	{"renew_shared $key <1:8:2=_x> 100000 5 5", "$i255"},

	{NULL, "a renewal of a reader prolongs it, and never shortens it"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"renew_shared $key <1:8:2=_x> 200000 $now $now", "1"},
	{"HGET $readers <1>", "000000008:0000000000000002:*:{+$ms+200000}"},
	{"PTTL $key", "{200000}"},
	{"PTTL $readers", "{200000}"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now", "1"},
	{"HGET $readers <1>", "000000008:0000000000000002:*:{+$ms+200000}"},
	{"PTTL $key", "{200000}"},

	LIKE_SHARED(HEX "0123456789abcde:0000000008:0000000000000001=_a"),
	LIKE_SHARED(HEX HEX ":00000008:00000000000000001=_a"),
	LIKE_SHARED(HEX HEX ":000000008:00000000000000001=_a"),
	LIKE_SHARED(HEX HEX ":000000008:0000000000000001=-a"),
	LIKE_SHARED(HEX HEX ":000000008:0000000000000001==_a"),
	LIKE_SHARED("0123456789ABCDEF" HEX ":000000008:0000000000000001=_a"),
	LIKE_SHARED(HEX HEX ":00000000a:0000000000000001=_a"),
	LIKE_SHARED(HEX HEX ":000000008:000000000000000x=_a"),

	LIKE_EXCLUSIVE(HEX "0123456789abcde:0000000008:0000000000000001_a"),
	LIKE_EXCLUSIVE(HEX HEX ":00000008:00000000000000001_a"),
	LIKE_EXCLUSIVE(HEX HEX ":000000008:00000000000000001_a"),
	LIKE_EXCLUSIVE(HEX HEX ":000000008:0000000000000001-a"),
	LIKE_EXCLUSIVE("0123456789ABCDEF" HEX ":000000008:0000000000000001_a"),
	LIKE_EXCLUSIVE(HEX HEX ":000000008:000000000000000x_a"),

	LIKE_PERMIT(HEX "0123456789abcde:0000000008:0000000000000001_permits=2_a"),
	LIKE_PERMIT(HEX HEX ":00000008:00000000000000001_permits=2_a"),
	LIKE_PERMIT(HEX HEX ":000000008:00000000000000001_permits=2_a"),
	LIKE_PERMIT(HEX HEX ":000000008:0000000000000001=_permits=2_a"),
	LIKE_PERMIT("0123456789ABCDEF" HEX ":000000008:0000000000000001_permits=2_a"),
	LIKE_PERMIT(HEX HEX ":000000008:000000000000000x_permits=2_a"),
	LIKE_PERMIT(HEX HEX ":000000008:0000000000000001_permits=_a"),

	LIKE_QUEUED(HEX "0123456789abcde:0000000008:0000000000000002_a"),
	LIKE_QUEUED(HEX HEX ":00000008:00000000000000002_a"),
	LIKE_QUEUED(HEX HEX ":000000008:00000000000000020_a"),
	LIKE_QUEUED(HEX HEX ":000000008:0000000000000002=_a"),
	LIKE_QUEUED(HEX HEX ":000000008:0000000000000002-a"),
	LIKE_QUEUED("0123456789ABCDEF" HEX ":000000008:0000000000000002_a"),

	{NULL, "the first host in the queue gets a permit, and its lock's key"},
	{"SET $queue <3:8:2_permits=2_x> PX 50000", "OK"},
	{"acquire $one <1:8:2_permits=2_x> 100000 $now 5 2", "$now"},
	{"GET $key", "<1:8:2_permits=2_x>"},
	{"PTTL $key", "{100000}"},
	{"acquire $two <3:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"GET $key", "<3:8:2_permits=2_x>"},
	{"PTTL $key", "{100000}"},
	{"acquire $two <5:8:2_permits=2_x> 50000 $now 5 2", "[{50000}, <3:8:2_permits=2_x>, 0, 0]"},
	{"DEL $one", "1"},
	{"acquire $two <5:8:2_permits=2_x> 50000 $now 5 2", "[{50000}, <3:8:2_permits=2_x>, 0, 1]"},
	{"renew $two <3:8:2_permits=2_x> 150000 $now $now", "1"},
	{"PTTL $key", "{150000}"},
	{"release $two <3:8:2_permits=2_x> 170000 0 0", "1"},
	{"PTTL $key", "{170000}"},
	{"SET $two <3:8:2_permits=2_x> PX 100000", "OK"},
	{"SET $one <1:8:2_permits=2_x> PX 100000", "OK"},
	{"release $one <1:8:2_permits=2_x> -2 0 0", "1"},
	{"EXISTS $key", "1"},
	{"HEAR", "$host0000000000000002: want|$two|0000000000000002|5|, "
			 "$host0000000000000002: want|$two|0000000000000002|5|, $one: free|0|, "
			 "$queue: permit|1|"},
	{"release $two <3:8:2_permits=2_x> 0 0 0", "1"},
	{"EXISTS $key", "0"},
	{"HEAR", "$two: free|0|"},

	{NULL, "the lock's key lives as long as the longest permit that is left"},
	{"acquire $one <1:8:2_permits=3_x> 50000 $now 5 3", "$now"},
	{"acquire $two <3:8:2_permits=3_x> 20000 $now 5 3", "$now"},
	{"acquire $three <5:8:2_permits=3_x> 5000 $now 5 3", "$now"},
	{"PTTL $key", "{50000}"},
	{"release $one <1:8:2_permits=3_x> -1 0 0", "1"},
	{"PTTL $key", "{20000}"},
	{"release $two <3:8:2_permits=3_x> -1 0 0", "1"},
	{"PTTL $key", "{5000}"},
	{"release $three <5:8:2_permits=3_x> -1 0 0", "1"},
	{"EXISTS $key", "0"},

	{NULL, "the first permit may be the longest that is left"},
	{"acquire $one <1:8:2_permits=2_x> 20000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"release $two <3:8:2_permits=2_x> -1 0 0", "1"},
	{"PTTL $key", "{20000}"},

	{NULL, "a release of a shorter permit leaves the life of the lock's key"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 5000 $now 5 2", "$now"},
	{"release $two <3:8:2_permits=2_x> -1 0 0", "1"},
	{"PTTL $key", "{50000}"},

	{NULL, "only the release of the longest permit looks at the others"},
	{"acquire $one <1:8:2_permits=3_x> 50000 $now 5 3", "$now"},
	{"acquire $two <3:8:2_permits=3_x> 20000 $now 5 3", "$now"},
	{"acquire $three <5:8:2_permits=3_x> 5000 $now 5 3", "$now"},
	{"DEL $one", "1"},
	{"release $two <3:8:2_permits=3_x> -1 0 0", "1"},
	{"PTTL $key", "{50000}"},

	{NULL, "a permit that is as long as the released permit leaves the life of the lock's key"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"PEXPIRE $key 20000", "1"},
	{"release $two <3:8:2_permits=2_x> -1 0 0", "1"},
	{"PTTL $key", "{20000}"},

	{NULL, "a kept key counts as a permit"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 5000 $now 5 2", "$now"},
	{"release $one <1:8:2_permits=2_x> 20000 0 0", "1"},
	{"PTTL $one", "{20000}"},
	{"PTTL $key", "{20000}"},
	{"release $two <3:8:2_permits=2_x> 10000 0 0", "1"},
	{"PTTL $key", "{20000}"},
	{"DEL $two", "1"},
	{"acquire $two <7:8:2_permits=2_x> 5000 $now 5 2", "$now+1001"},
	{"release $two <7:8:2_permits=2_x> 30000 0 0", "1"},
	{"PTTL $key", "{30000}"},

	{NULL, "the kept key of a permit beyond the lock's number counts, too"},
	{"SET $three <5:8:2_permits=3_x> PX 50000", "OK"},
	{"SET $key <1:8:2_permits=2_x> PX 50000", "OK"},
	{"release $three <5:8:2_permits=3_x> 20000 0 0", "1"},
	{"PTTL $key", "{20000}"},

	{NULL, "a permit without an end leaves the life of the lock's key"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"SET $two <3:8:2_permits=2_x>", "OK"},
	{"release $one <1:8:2_permits=2_x> -1 0 0", "1"},
	{"PTTL $key", "{50000}"},

	{NULL, "a permit that can't be read leaves the life of the lock's key"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 5000 $now 5 2", "$now"},
	{"ACL SETUSER default resetkeys ~redlock:*marker ~$key ~$one", "OK"},
	{"release $one <1:8:2_permits=2_x> -1 0 0 ; release $one <9:8:2_x> -1 0 0", "1 ; 0"},
	{"PTTL $key", "{50000}"},

	{NULL, "without PTTL a permit is released, and the lock's key with the last permit"},
	{"acquire $one <1:8:2_permits=2_x> 50000 $now 5 2", "$now"},
	{"acquire $two <3:8:2_permits=2_x> 5000 $now 5 2", "$now"},
	{"ACL SETUSER default -pttl", "OK"},
	{"release $one <1:8:2_permits=2_x> -1 0 0 ; " NEXT, "1 ; 0"},
	{"EXISTS $one $two $key", "2"},
	{"ACL SETUSER default +pttl", "OK"},
	{"PTTL $key", "{50000}"},
	{"ACL SETUSER default -pttl", "OK"},
	{"release $two <3:8:2_permits=2_x> -1 0 0 ; " NEXT, "1 ; 0"},
	{"EXISTS $one $two $key", "0"},

	{NULL, "a release of several permits tells the queue of none but its own"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"release $key <1:8:2_x> -2 0 0", "1"},
	{"HEAR", "$key: free|0|"},

	{NULL, "a node that may not write a part of a text is not full"},
	{"ACL SETUSER default -setrange", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; release $two <9:8:2_x> -1 0 0", "$now ; 0"},

	{NULL, "of a lock of Redisson its client is told, and no more than fits"},
	{"HSET $key 8743c9c0-0795-4907-87fd-6c719a6b4586:58 1 mode read", "2"},
	{"acquire $key <1:8:2_x> 100000 $now 5",
	 "[-1, a Redisson lock of 8743c9c0-0795-4907-87fd-6c719a6b4586:58, 1]"},
	{"DEL $key", "1"},
	{"HSET $key 8743c9c0-0795-4907-87fd-6c719a6b4586:$i300 1", "1"},
	{"acquire $key <1:8:2_x> 100000 $now 5",
	 "[-1, a Redisson lock of 8743c9c0-0795-4907-87fd-6c719a6b4586:$i218, 1]"},
	{"ACL SETUSER default -hscan", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "[-1, a key of type hash, 1]"},
	{"ACL SETUSER default -type", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "[-1, a key that is not a string, 1]"},

	NEEDS_COUNTER("acquire $key <1:8:2_x> 100000 $now 5"),
	NEEDS_COUNTER("acquire_shared $key <1:8:2=_x> 100000 $now 5"),
	NEEDS_COUNTER("renew $key <1:8:2_x> 100000 $now $now"),
	NEEDS_COUNTER("renew_shared $key <1:8:2=_x> 100000 $now $now"),
	NEEDS_COUNTER("confirm $key <1:8:2_x> $now $now+5 |"),
	NEEDS_COUNTER("confirm_shared $key <1:8:2=_x> $now $now+5 |"),
	NEEDS_COUNTER("release $key <1:8:2_x> -1 $now 0"),
	NEEDS_COUNTER("release_shared $key <1:8:2=_x> -1 $now 0"),

	{NULL, "a counter that is no number, or too long, fails acquires of its own lock"},
	{"SET $token scribble", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; release $two <9:8:2_x> -1 0 0",
	 "!ERR the counter is not a number ; 0"},
	{"SET $token 00000000000000001", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; release $two <9:8:2_x> -1 0 0",
	 "!ERR the counter is not a number ; 0"},

	{NULL, "a queue of another type fails permits of its own lock"},
	{"RPUSH $queue element", "1"},
	{"acquire $one <1:8:2_permits=2_x> 100000 $now 5 2 ; release $two <9:8:2_x> -1 0 0",
	 "!WRONGTYPE* ; 0"},

	{NULL, "an acquire that can't raise the counter leaves no key and no reader"},
	{"SET $token $now-2000", "OK"},
	{"ACL SETUSER default -setrange", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "!*"},
	{"EXISTS $key", "0"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "!*"},
	{"EXISTS $key", "0"},
	{"HEXISTS $readers <1>", "0"},
	{"ACL SETUSER default +setrange", "OK"},
	{"acquire_shared $key <3:8:2=_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -setrange", "OK"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "!*"},
	{"EXISTS $key", "1"},
	{"HEXISTS $readers <1>", "0"},
	{"HEXISTS $readers <3>", "1"},

	{NULL, "a renewal or confirm that can't raise the counter fails"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -set", "OK"},
	{"renew $key <1:8:2_x> 100000 $now $now+5", "!*"},
	{"confirm $key <1:8:2_x> $now $now+5 |", "!*"},
	{"ACL SETUSER default +set", "OK"},
	{"DEL $key", "1"},
	{"SET $token $now-2000", "OK"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -set", "OK"},
	{"confirm_shared $key <1:8:2=_x> $now $now+5 |", "!*"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now+5", "!*"},

	{NULL, "a permit that can't write the lock's key leaves no key"},
	{"ACL SETUSER default resetkeys ~redlock:*marker ~redlock:case?* %R~$key", "OK"},
	{"acquire $one <1:8:2_permits=2_x> 100000 $now 5 2", "!*"},
	{"EXISTS $one", "0"},

	{NULL, "a permit whose lock's key can't be read is not renewed"},
	{"ACL SETUSER default resetkeys ~redlock:*marker ~redlock:case?*", "OK"},
	{"renew $one <1:8:2_permits=2_x> 100000 5 5", "!*"},
	{"EXISTS $one", "0"},

	/* LUA_READERS_TOLD is 16 */
	{NULL, "the first host that waits tells all readers, the second some"},
	{"SET $key <1:8:2=_x> PX 100000", "OK"},
	{"SET $token $now", "OK"},
	{"EVAL for\ti=1,18\tdo\tredis.call('HSET',KEYS[1],string.format('%032x:',i),ARGV[1])\tend "
	 "1 $readers 000000008:0000000000000002:1:$ms+90000",
	 "nil"},
	{"acquire $key <30:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 0]"},
	{"HEAR", WANTS_16 ", " WANTS ", " WANTS},
	{"acquire $key <31:8:4_y> 100000 $now 5", "[{100000}, <1:8:2=_x>, 1]"},
	{"HEAR", WANTS_16},
	{"acquire $key <31:8:4_y> 100000 $now try", "[{100000}, <1:8:2=_x>, 1]"},
	{"HEAR", ""},

	/* Behind each command that lacks a right the script executes another. */
	{NULL, "a marker that can't be read is none"},
	{"ACL SETUSER default resetkeys ~redlock:case*", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; " NEXT, "!FORGOT* ; 0"},
	{"renew $key <1:8:2_x> 100000 $now $now ; " NEXT, "!FORGOT* ; 0"},
	{"renew_shared $key <1:8:2=_x> 100000 $now $now ; " NEXT, "!FORGOT* ; 0"},

	{NULL, "a counter that can't be written fails its own command only"},
	{"ACL SETUSER default resetkeys ~redlock:*marker ~redlock:case?[2nr]* ~$key "
	 "%R~redlock:case?token",
	 "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; " NEXT, "!* ; 0"},
	{"EXISTS $key", "0"},
	{"renew $key <1:8:2_x> 100000 $now $now ; " NEXT, "!* ; 0"},
	{"ACL SETUSER default allkeys", "OK"},
	{"SET $token $now", "OK"},
	{"ACL SETUSER default resetkeys ~redlock:*marker ~redlock:case?[2nr]* ~$key "
	 "%R~redlock:case?token",
	 "OK"},
	{"confirm $key <1:8:2_x> $now $now+5 | ; " NEXT, "!* ; 0"},

	{NULL, "without HSET a reader beside others fails alone"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -hset", "OK"},
	{"acquire_shared $key <3:8:4=_x> 200000 $now 5 ; " NEXT, "!* ; 0"},
	{"renew_shared $key <1:8:2=_x> 200000 $now $now ; " NEXT, "!* ; 0"},

	{NULL, "without SET, HGETALL or HDEL a host is refused as it is with them"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"HSET $readers <3> 000000008:0000000000000003:$now:$ms-2", "1"},
	{"ACL SETUSER default -hdel", "OK"},
	{"acquire $key <4:8:4_y> 100000 $now 5 ; " NEXT, "[{100000}, <1:8:2=_x>, 0] ; 0"},
	{"ACL SETUSER default -hgetall", "OK"},
	{"acquire $key <4:8:4_y> 100000 $now 5 ; " NEXT, "[{100000}, <1:8:2=_x>, 0] ; 0"},
	{"ACL SETUSER default -set", "OK"},
	{"acquire $key <4:8:4_y> 100000 $now 5 ; " NEXT, "[{100000}, <1:8:2=_x>, 0] ; 0"},

	{NULL, "without DEL commands go on that need it at a full node only"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -del", "OK"},
	{"acquire_shared $key <3:8:2=_x> 100000 $now 5 ; " NEXT, "$now+1001 ; 0"},
	{"renew_shared $key <1:8:2=_x> 100000 $now+1001 $now ; " NEXT, "1 ; 0"},
	{"ACL SETUSER default +del", "OK"},
	{"DEL $key", "1"},
	{"SET $key <1:8:2_x> PX 100000", "OK"},
	{"ACL SETUSER default -del", "OK"},
	{"acquire $key <1:9:2_x> 100000 $now 5 ; " NEXT, "$now+2002 ; 0"},
	{"confirm $key <1:9:2_x> $now+2002 $now+3003 | ; " NEXT, "1 ; 0"},
	{"renew $key <1:9:2_x> 100000 $now+3003 $now+4004 ; " NEXT, "1 ; 0"},
	{"GET $token", "$now+4004"},

	{NULL, "without SET and DEL a command fails alone"},
	{"SET $token $now", "OK"},
	{"ACL SETUSER default -del -set", "OK"},
	{"acquire $key <1:8:2_x> 100000 $now 5 ; " NEXT, "!* ; 0"},
	{"renew $key <1:8:2_x> 100000 $now $now ; " NEXT, "!* ; 0"},

	{NULL, "without SET and DEL a permit is renewed, and its lock's key is not"},
	{"SET $one <1:8:2_permits=2_x> PX 100000", "OK"},
	{"ACL SETUSER default -del", "OK"},
	{"renew $one <1:8:2_permits=2_x> 200000 0 0 ; " NEXT, "1 ; 0"},
	{"GET $key", "<1:8:2_permits=2_x>"},
	{"PTTL $key", "{200000}"},
	{"ACL SETUSER default +del", "OK"},
	{"DEL $key", "1"},
	{"SET $first 5", "OK"},
	{"ACL SETUSER default -set", "OK"},
	{"renew $one <1:8:2_permits=2_x> 300000 5 5 ; " NEXT, "1 ; 0"},
	{"PTTL $one", "{300000}"},
	{"EXISTS $key", "0"},

	{NULL, "without SET a key is kept by hold_at_least all the same"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -set", "OK"},
	{"release $key <1:8:2_x> 50000 0 $now ; " NEXT, "1 ; 0"},
	{"GET $key", "<1:8:2_x>"},
	{"PTTL $key", "{50000}"},

	{NULL, "without PUBLISH a lock is released, and no waiter is told"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"acquire $two <3:8:2_x> 100000 $now 5", "$now"},
	{"ACL SETUSER default -publish", "OK"},
	{"release_shared $key <1:8:2=_x> 0 0 $now ; " NEXT, "1 ; 0"},
	{"release $two <3:8:2_x> 0 0 $now ; " NEXT, "1 ; 0"},
	{"EXISTS $key $two", "0"},
	{"ACL SETUSER default +publish", "OK"},
	{"HEAR", ""},

	{NULL, "a full node takes a reader beside others, whatever became of the counter"},
	{"acquire_shared $key <1:8:2=_x> 100000 $now 5", "$now"},
	{"DEL $token", "1"},
	{"CONFIG SET maxmemory 1", "OK"},
	{"acquire_shared $key <3:8:4=_x> 100000 $now 5", "$now"},
	{"DEL $token", "1"},
	{"acquire_shared $key <5:8:6=_x> 100000 $now 5 ; " NEXT, "$now ; 0"},
	{"DEL $key $token", "2"},
	{"acquire_shared $key <7:8:8=_x> 100000 $now 5", "!OOM*"},
	{"acquire_shared $key <7:8:8=_x> 100000 $now 5 ; " NEXT, "!OOM* ; 0"},
	{"EXISTS $key $token", "0"},

	{NULL, "a hold_at_least keeps the key, and says so"},
	{"acquire $key <1:8:2_x> 100000 $now 5", "$now"},
	{"release $key <1:8:2_x> 50000 0 $now", "1"},
	{"GET $key", "<1:8:2_" LUA_KEPT "x>"},
	{"PTTL $key", "{50000}"},
	{"HEAR", ""},
};

static redisContext *node;
static redisContext *hears;
static const char *script_sha;
static int64_t now_us;

static void begin_case(void);
static void end_case(void);
static bool take_step(const step *step, char *difference, size_t size);
static void execute(const char *command, text *reply);
static void execute_script(const char *command, text *reply);
static void hear_all(text *heard);
static int split(const char *command, text *word);
static void expand(text *to, const char *from, size_t len);
static size_t expand_name(text *to, const char *from, size_t len);
static size_t expand_value(text *to, const char *from, size_t len);
static void append(text *to, const char *bytes, size_t len);
static void append_reply(text *to, const redisReply *reply);
static bool fits(const char *pattern, size_t pattern_len, const char *bytes, size_t len);
static bool is_about(const char *expected, const char *digits);
static int64_t time_us(void);
static redisReply *must(redisReply *reply);

bool
cases_pass(redisContext *redis, redisContext *listener, const char *sha, char *difference,
		   size_t size)
{
	size_t begin = 0;
	bool good = true;

	node = redis;
	hears = listener;
	script_sha = sha;
	freeReplyObject(must(redisCommand(hears, "PSUBSCRIBE redlock:*")));
	freeReplyObject(must(redisCommand(hears, "SUBSCRIBE " NAME)));
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && good; i++)
	{
		if (steps[i].command == NULL)
		{
			end_case();
			begin = i;
			begin_case();
			continue;
		}
		good = take_step(&steps[i], difference, size);
		if (!good && strncmp(steps[i].command, "ACL ", 4) == 0)
		{
			printf("# skipped: %s\n", difference);
			good = true;
			while (i + 1 < sizeof(steps) / sizeof(steps[0]) && steps[i + 1].command != NULL)
				i++;
		}
		if (!good && time_us() - now_us > CASE_MAX_US)
		{
			printf("# too slow: %s\n", difference);
			good = true;
			i = begin - 1;
		}
	}
	end_case();
	if (!good)
	{
		size_t len = strlen(difference);

		snprintf(difference + len, size - len, ", in the case: %s", steps[begin].reply);
	}
	freeReplyObject(must(redisCommand(hears, "UNSUBSCRIBE " NAME)));
	freeReplyObject(must(redisCommand(hears, "PUNSUBSCRIBE redlock:*")));
	return good;
}

static void
begin_case(void)
{
	now_us = time_us();
	freeReplyObject(must(redisCommand(node, "FLUSHALL")));
	freeReplyObject(must(redisCommand(node, "SET %b m", LUA_MARKER, sizeof(LUA_MARKER) - 1)));
}

/* The server is as before. */
static void
end_case(void)
{
	text rest = {.len = 0};

	freeReplyObject(must(redisCommand(node, "ACL SETUSER default allkeys +@all")));
	freeReplyObject(must(redisCommand(node, "CONFIG SET maxmemory 0")));
	hear_all(&rest);
}

static bool
take_step(const step *step, char *difference, size_t size)
{
	text expected = {.len = 0};
	text reply = {.len = 0};

	if (strcmp(step->command, "HEAR") == 0)
		hear_all(&reply);
	else if (step->command[0] >= 'a')
		execute_script(step->command, &reply);
	else
		execute(step->command, &reply);
	expand(&expected, step->reply, strlen(step->reply));
	if (fits(expected.bytes, expected.len, reply.bytes, reply.len))
		return true;
	snprintf(difference, size, "%s returns %s", step->command, reply.bytes);
	return false;
}

static void
execute(const char *command, text *reply)
{
	text word[WORDS_MAX];
	const char *argv[WORDS_MAX];
	size_t argvlen[WORDS_MAX];
	int words = split(command, word);
	redisReply *got;

	for (int i = 0; i < words; i++)
	{
		argv[i] = word[i].bytes;
		argvlen[i] = word[i].len;
	}
	got = must(redisCommandArgv(node, words, argv, argvlen));
	append_reply(reply, got);
	freeReplyObject(got);
}

static void
execute_script(const char *command, text *reply)
{
	text word[WORDS_MAX];
	text argument[COMMANDS_MAX] = {{.len = 0}};
	const char *argv[4 + COMMANDS_MAX] = {"EVALSHA", script_sha, "0", "m"};
	size_t argvlen[4 + COMMANDS_MAX] = {7, strlen(script_sha), 1, 1};
	int words = split(command, word);
	int count = 1;
	redisReply *got;

	for (int i = 0; i < words; i++)
	{
		if (strcmp(word[i].bytes, ";") == 0)
		{
			count++;
			continue;
		}
		for (char *c = word[i].bytes; argument[count - 1].len == 0 && *c != '\0'; c++)
			*c = *c == '_' ? ' ' : *c;
		append(&argument[count - 1], word[i].bytes, word[i].len);
		append(&argument[count - 1], "", 1);
	}
	for (int i = 0; i < count; i++)
	{
		argv[4 + i] = argument[i].bytes;
		argvlen[4 + i] = argument[i].len;
	}
	got = must(redisCommandArgv(node, 4 + count, argv, argvlen));
	if (got->type != REDIS_REPLY_ARRAY)
		append_reply(reply, got);
	for (size_t i = 0; got->type == REDIS_REPLY_ARRAY && i < got->elements; i++)
	{
		append(reply, " ; ", i > 0 ? 3 : 0);
		append_reply(reply, got->element[i]);
	}
	freeReplyObject(got);
}

/* "channel: message" for each, and ", " between. */
static void
hear_all(text *heard)
{
	freeReplyObject(must(redisCommand(node, "PUBLISH redlock:end end")));
	for (bool more = true; more;)
	{
		void *reply = NULL;
		redisReply *message;

		if (redisGetReply(hears, &reply) != REDIS_OK)
			reply = NULL;
		message = must(reply);
		/* the server sends a second copy to a subscriber of the channel itself */
		if (message->elements == 4)
		{
			more = strcmp(message->element[2]->str, "redlock:end") != 0;
			if (more)
			{
				append(heard, ", ", heard->len > 0 ? 2 : 0);
				append_reply(heard, message->element[2]);
				append(heard, ": ", 2);
				append_reply(heard, message->element[3]);
			}
		}
		freeReplyObject(message);
	}
}

static int
split(const char *command, text *word)
{
	int count = 0;

	while (*command != '\0')
	{
		size_t len = strcspn(command, " ");

		word[count] = (text){.len = 0};
		expand(&word[count++], command, len);
		command += len + (command[len] == ' ');
	}
	return count;
}

static void
expand(text *to, const char *from, size_t len)
{
	for (size_t i = 0; i < len;)
	{
		size_t taken = from[i] == '$'   ? expand_name(to, from + i, len - i)
					   : from[i] == '<' ? expand_value(to, from + i, len - i)
										: 0;

		if (taken == 0)
		{
			append(to, from + i, 1);
			taken = 1;
		}
		i += taken;
	}
}

/* Returns the length of the name; 0: it is none. */
static size_t
expand_name(text *to, const char *from, size_t len)
{
	static const struct
	{
		const char *name;
		const char *bytes;
		size_t len;
	} names[] = {
#define IS(text) text, sizeof(text) - 1
		{"$key", IS(NAME)},
		{"$token", IS(NAME "\0token")},
		{"$readers", IS(NAME "\0readers")},
		{"$barrier", IS(NAME "\0barrier")},
		{"$one", IS(NAME LUA_PERMIT "1")},
		{"$first", IS(NAME LUA_PERMIT "1\0token")},
		{"$two", IS(NAME LUA_PERMIT "2")},
		{"$three", IS(NAME LUA_PERMIT "3")},
		{"$queue", IS(NAME LUA_PERMIT)},
		{"$marker", IS(LUA_MARKER)},
		{"$host", IS(LUA_HOST)},
#undef IS
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		size_t name_len = strlen(names[i].name);

		if (len >= name_len && strncmp(from, names[i].name, name_len) == 0)
		{
			append(to, names[i].bytes, names[i].len);
			return name_len;
		}
	}
	if (len > 2 && (from[1] == 'x' || from[1] == 'i'))
	{
		char *end;
		long times = strtol(from + 2, &end, 10);

		for (long i = 0; i < times; i++)
			append(to, from[1] == 'x' ? "x" : "1", 1);
		return (size_t) (end - from);
	}
	for (int unit = 1; unit <= 1000; unit *= 1000)
	{
		const char *name = unit == 1 ? "$now" : "$ms";
		size_t name_len = strlen(name);

		if (len >= name_len && strncmp(from, name, name_len) == 0)
		{
			char *end = (char *) from + name_len;
			int64_t more = *end == '+' || *end == '-' ? strtoll(end, &end, 10) : 0;
			char digits[24];

			append(to, digits,
				   (size_t) snprintf(digits, sizeof(digits), "%" PRId64, now_us / unit + more));
			return (size_t) (end - from);
		}
	}
	return 0;
}

/* Returns the length of the value in brackets. */
static size_t
expand_value(text *to, const char *from, size_t len)
{
	unsigned secret = 0;
	unsigned attempt;
	unsigned host;
	char head[80];
	int at = 1;

	if (from[1] == '\'')
		at = 2;
	else if (sscanf(from, "<%u:%u:%u%n", &secret, &attempt, &host, &at) == 3)
		append(to, head,
			   (size_t) snprintf(head, sizeof(head), "%032x:%09u:%016x", secret, attempt, host));
	else
	{
		sscanf(from, "<%u%n", &secret, &at);
		append(to, head, (size_t) snprintf(head, sizeof(head), "%032x:", secret));
	}
	while ((size_t) at < len && from[at] != '>')
	{
		size_t taken = from[at] == '$' ? expand_name(to, from + at, len - (size_t) at) : 0;

		if (taken == 0)
			append(to, from[at] == '_' ? " " : from + at, 1);
		at += taken > 0 ? (int) taken : 1;
	}
	return (size_t) at + 1;
}

static void
append(text *to, const char *bytes, size_t len)
{
	if (len > sizeof(to->bytes) - 1 - to->len)
	{
		printf("Bail out! a text of %s is too long\n", __FILE__);
		exit(1);
	}
	memcpy(to->bytes + to->len, bytes, len);
	to->len += len;
	to->bytes[to->len] = '\0';
}

static void
append_reply(text *to, const redisReply *reply)
{
	char digits[24];

	switch (reply->type)
	{
		case REDIS_REPLY_NIL:
			append(to, "nil", 3);
			break;
		case REDIS_REPLY_INTEGER:
			append(to, digits, (size_t) snprintf(digits, sizeof(digits), "%lld", reply->integer));
			break;
		case REDIS_REPLY_ARRAY:
			append(to, "[", 1);
			for (size_t i = 0; i < reply->elements; i++)
			{
				append(to, ", ", i > 0 ? 2 : 0);
				append_reply(to, reply->element[i]);
			}
			append(to, "]", 1);
			break;
		case REDIS_REPLY_ERROR:
			append(to, "!", 1);
			append(to, reply->str, reply->len);
			break;
		default:
			append(to, reply->str, reply->len);
	}
}

/* A "*" in the pattern fits any bytes.  A NUL of the reply is "|" in the pattern. */
static bool
fits(const char *pattern, size_t pattern_len, const char *bytes, size_t len)
{
	if (pattern_len == 0)
		return len == 0;
	if (*pattern == '*')
	{
		for (size_t skip = 0; skip <= len; skip++)
			if (fits(pattern + 1, pattern_len - 1, bytes + skip, len - skip))
				return true;
		return false;
	}
	if (*pattern == '{')
	{
		const char *end = memchr(pattern, '}', pattern_len);
		size_t digits = 0;

		while (digits < len && strchr("0123456789", bytes[digits]) != NULL && bytes[digits] != '\0')
			digits++;
		return digits > 0 && is_about(pattern + 1, bytes) &&
			   fits(end + 1, pattern_len - (size_t) (end + 1 - pattern), bytes + digits,
					len - digits);
	}
	return len > 0 && (*pattern == *bytes || (*pattern == '|' && *bytes == '\0')) &&
		   fits(pattern + 1, pattern_len - 1, bytes + 1, len - 1);
}

/* A life in ms, or, behind a "+", an instant in ms or us, which has more digits. */
static bool
is_about(const char *expected, const char *digits)
{
	int64_t passed_us = time_us() - now_us;
	int64_t number = strtoll(digits, NULL, 10);
	int64_t wanted = strtoll(expected, NULL, 10);
	int64_t passed = wanted > INT64_C(100000000000000) ? passed_us : passed_us / 1000 + 2;

	return *expected == '+' ? number >= wanted && number <= wanted + passed
							: number <= wanted && number >= wanted - passed;
}

static int64_t
time_us(void)
{
	redisReply *reply = must(redisCommand(node, "TIME"));
	int64_t us = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
				 strtoll(reply->element[1]->str, NULL, 10);

	freeReplyObject(reply);
	return us;
}

static redisReply *
must(redisReply *reply)
{
	if (reply == NULL)
	{
		printf("Bail out! no reply of redis-server\n");
		exit(1);
	}
	return reply;
}
