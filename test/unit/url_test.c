/*
 * url_test.c
 *		Unit tests of the list of nodes, src/shared/url.c, and of texts for people,
 *		src/shared/text.c.
 *
 * Protects from: a list misread or cut; a message repeating a user name or password; a read or
 * write past the end of a text (with sanitizers, scripts/lint.sh).
 */
#include "shared/url.h"

#include <stdlib.h>
#include <string.h>

#include "shared/text.h"
#include "tap.h"

/* A list of one node, and its parts. */
static const struct
{
	const char *list;
	NodeUrl url;
} good[] = {
	{"local", {.address = "local", .is_local = true}},
	{"redis://local", {.address = "local:6379", .host = "local", .port = 6379}},
	{"redis://h", {.address = "h:6379", .host = "h", .port = 6379}},
	{"redis://h:1", {.address = "h:1", .host = "h", .port = 1}},
	{"redis://h:65535/", {.address = "h:65535", .host = "h", .port = 65535}},
	{"redis://H.Example:1/0", {.address = "h.example:1", .host = "h.example", .port = 1}},
	{"redis://h/15", {.address = "h:6379/15", .host = "h", .port = 6379, .db = 15}},
	{"redis://h:1/2147483647",
	 {.address = "h:1/2147483647", .host = "h", .port = 1, .db = 2147483647}},
	{"redis://:p@h", {.address = "h:6379", .host = "h", .port = 6379, .password = "p"}},
	{"redis://u:p@h",
	 {.address = "h:6379", .host = "h", .port = 6379, .user = "u", .password = "p"}},
	{"redis://u:a@b:c@h",
	 {.address = "h:6379", .host = "h", .port = 6379, .user = "u", .password = "a@b:c"}},
	{"redis://a%40b:%2f%2C%20%25@h",
	 {.address = "h:6379", .host = "h", .port = 6379, .user = "a@b", .password = "/, %"}},
	{"redis://[::1]", {.address = "[::1]:6379", .host = "::1", .port = 6379}},
	{"redis://[FE80::1]:7/3", {.address = "[fe80::1]:7/3", .host = "fe80::1", .port = 7, .db = 3}},
	{"rediss://u:p@H:1/3",
	 {.address = "h:1/3",
	  .tls = true,
	  .host = "h",
	  .port = 1,
	  .db = 3,
	  .user = "u",
	  .password = "p"}},
	{"rediss://[::1]", {.address = "[::1]:6379", .tls = true, .host = "::1", .port = 6379}},
	{"unix:///s", {.address = "/s", .is_unix = true, .host = "/s"}},
	{"unix:///s?db=2", {.address = "/s?db=2", .is_unix = true, .host = "/s", .db = 2}},
	{"unix://:p@/S", {.address = "/S", .is_unix = true, .host = "/S", .password = "p"}},
	{"unix:///r@1/s", {.address = "/r@1/s", .is_unix = true, .host = "/r@1/s"}},
	{"unix:///r@/s@", {.address = "/r@/s@", .is_unix = true, .host = "/r@/s@"}},
	{"unix://:p@q@/r@/s",
	 {.address = "/r@/s", .is_unix = true, .host = "/r@/s", .password = "p@q"}},
	{"redis://h?durable=yes",
	 {.address = "h:6379", .host = "h", .port = 6379, .durable = URL_DURABLE}},
	{"redis://h:1/?durable=no",
	 {.address = "h:1", .host = "h", .port = 1, .durable = URL_NOT_DURABLE}},
	{"redis://u:p@[::1]:7/3?durable=yes",
	 {.address = "[::1]:7/3",
	  .host = "::1",
	  .port = 7,
	  .db = 3,
	  .user = "u",
	  .password = "p",
	  .durable = URL_DURABLE}},
	{"redis://:p?durable=maybe&x@h",
	 {.address = "h:6379", .host = "h", .port = 6379, .password = "p?durable=maybe&x"}},
	{"unix:///s?durable=no",
	 {.address = "/s", .is_unix = true, .host = "/s", .durable = URL_NOT_DURABLE}},
	{"unix:///s?db=2&durable=yes",
	 {.address = "/s?db=2", .is_unix = true, .host = "/s", .db = 2, .durable = URL_DURABLE}},
	{"unix:///s?durable=yes&db=2",
	 {.address = "/s?db=2", .is_unix = true, .host = "/s", .db = 2, .durable = URL_DURABLE}},
	{" ,\t\r\n redis://h ,, ", {.address = "h:6379", .host = "h", .port = 6379}},
};

#define PARAMETERS "node 1: the only parameter is durable=yes or durable=no"
#define SOCKET_PARAMETERS                                                                          \
	"node 1: the parameters after a socket's path are db=number and durable=yes or durable=no"

/* Errors of wrong lists. */
static const struct
{
	const char *list;
	const char *problem;
} bad[] = {
	{"h", "node 1: a URL starts with redis://, rediss:// or unix://"},
	{"Local", "node 1: a URL starts with redis://, rediss:// or unix://"},
	{"localhost", "node 1: a URL starts with redis://, rediss:// or unix://"},
	{"local local", URL_MIXED},
	{"local, redis://:secret@h", URL_MIXED},
	{"redis://:secret@h local", URL_MIXED},
	{"redis:/h", "node 1: a URL starts with redis://, rediss:// or unix://"},
	{"redis:", "node 1: a URL starts with redis://, rediss:// or unix://"},
	{"rediss:///s", "node 1: a Unix socket has no TLS; its URL starts with unix://"},
	{"rediss://u:secret@/s", "node 1: a Unix socket has no TLS; its URL starts with unix://"},
	{"rediss://", "node 1: the host is missing"},
	{"redis://", "node 1: the host is missing"},
	{"redis://:1", "node 1: the host is missing"},
	{"redis://:pa,ss@h", "node 1: the host is missing; a comma in a password is written as %2C"},
	{"redis://a,redis://u:pa,ss@h",
	 "node 2: the port must be a number from 1 to 65535; a comma in a password is written as %2C"},
	{"redis://u:12,ss@h",
	 "node 2: a URL starts with redis://, rediss:// or unix://; a comma in a password is written "
	 "as %2C"},
	{"redis://:1,redis://u:p@h", "node 1: the host is missing"},
	{"redis://:1,h", "node 1: the host is missing"},
	{"redis://:1 ss@h", "node 1: the host is missing"},
	{"redis://[]", "node 1: the host is missing"},
	{"redis://[::1", "node 1: the bracket of an IPv6 address is not closed"},
	{"redis://[[::1]]", "node 1: brackets stand around an IPv6 address only"},
	{"redis://a[b]", "node 1: brackets stand around an IPv6 address only"},
	{"redis://[::1]1", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h:", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h:0", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h:65536", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h:99999999999999999999", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h:1x", "node 1: the port must be a number from 1 to 65535"},
	{"redis://h/x", "node 1: what follows the slash must be a database number"},
	{"redis://h/-1", "node 1: what follows the slash must be a database number"},
	{"redis://h/2147483648", "node 1: what follows the slash must be a database number"},
	{"redis://secret@h", "node 1: credentials are written as user:password@ or :password@"},
	{"redis://secret:@h", "node 1: the password is empty"},
	{"redis://u:secret%@h", "node 1: the password is too long or wrongly percent-encoded"},
	{"redis://u:secret%4@h", "node 1: the password is too long or wrongly percent-encoded"},
	{"redis://u:secret%4x@h", "node 1: the password is too long or wrongly percent-encoded"},
	{"redis://u:secret%00@h", "node 1: the password is too long or wrongly percent-encoded"},
	{"redis://secret%:p@h", "node 1: the user name is too long or wrongly percent-encoded"},
	{"unix://s", "node 1: a socket's path starts with /"},
	{"unix://", "node 1: a socket's path starts with /"},
	{"unix:///s?x=1", SOCKET_PARAMETERS},
	{"unix:///s?secret", SOCKET_PARAMETERS},
	{"unix:///s?", SOCKET_PARAMETERS},
	{"unix:///s?db=1&", SOCKET_PARAMETERS},
	{"unix:///s?db=1&&durable=yes", SOCKET_PARAMETERS},
	{"unix:///s?db", SOCKET_PARAMETERS},
	{"unix:///s?db=", "node 1: db must be a number"},
	{"unix:///s?db=1?durable=yes", "node 1: db must be a number"},
	{"unix:///s?db=-1", "node 1: db must be a number"},
	{"unix:///s?db=1&db=1", "node 1: a parameter is given twice"},
	{"unix:///s?durable=yes&db=1&durable=yes", "node 1: a parameter is given twice"},
	{"unix:///s?durable=", "node 1: durable must be yes or no"},
	{"unix://?db=1", "node 1: a socket's path starts with /"},
	{"redis://h?secret=1", PARAMETERS},
	{"redis://h?", PARAMETERS},
	{"redis://h?=", PARAMETERS},
	{"redis://h?=yes", PARAMETERS},
	{"redis://h?durable", PARAMETERS},
	{"redis://h?durabl=yes", PARAMETERS},
	{"redis://h?durables=yes", PARAMETERS},
	{"redis://h?Durable=yes", PARAMETERS},
	{"redis://h?db=1", PARAMETERS},
	{"redis://h?&durable=yes", PARAMETERS},
	{"redis://h?durable=yes&", PARAMETERS},
	{"redis://h?durable=", "node 1: durable must be yes or no"},
	{"redis://h?durable=maybe", "node 1: durable must be yes or no"},
	{"redis://h?durable=y", "node 1: durable must be yes or no"},
	{"redis://h?durable=yesno", "node 1: durable must be yes or no"},
	{"redis://h?durable=YES", "node 1: durable must be yes or no"},
	{"redis://h?durable=yes/1", "node 1: durable must be yes or no"},
	{"redis://h?durable=yes?durable=yes", "node 1: durable must be yes or no"},
	{"redis://h?durable=yes&durable=yes", "node 1: a parameter is given twice"},
	{"redis://h?durable=yes&durable=no", "node 1: a parameter is given twice"},
	{"redis://h/1x?durable=yes", "node 1: what follows the slash must be a database number"},
	{"redis://?durable=yes", "node 1: the host is missing"},
	{"redis://h?durable=yes@x", "node 1: credentials are written as user:password@ or :password@"},
	{"redis://a redis://b?durable=yes redis://:secret@c?durable=secret",
	 "node 3: durable must be yes or no"},
	{"redis://a?durable=yes redis://a?durable=no", "nodes 1 and 2 are the same server \"a:6379\""},
	{"redis://h\033", "node 1: a host name or path must have printable ASCII characters only"},
	{"unix:///r\303\251seau",
	 "node 1: a host name or path must have printable ASCII characters only"},
	{"redis://h\177", "node 1: a host name or path must have printable ASCII characters only"},
	{"unix:///\302\233", "node 1: a host name or path must have printable ASCII characters only"},
	{"redis://a redis://b redis://:secret@c:x",
	 "node 3: the port must be a number from 1 to 65535"},
	{"redis://a, redis://secret:p@A:6379/1", "nodes 1 and 2 are the same server \"a:6379\""},
	{"unix:///s unix:///s?db=1", "nodes 1 and 2 are the same server \"/s\""},
};

/* Parses a copy that ends with its memory, for the sanitizers. */
static const char *
parse(const char *list, NodeUrls *urls)
{
	size_t size = strlen(list) + 1;
	char *copy = malloc(size);
	const char *problem;

	memcpy(copy, list, size);
	problem = url_parse_list(copy, urls);
	free(copy);
	return problem;
}

static bool
same(const NodeUrl *a, const NodeUrl *b)
{
	return strcmp(a->address, b->address) == 0 && a->is_local == b->is_local &&
		   a->is_unix == b->is_unix && a->tls == b->tls && a->durable == b->durable &&
		   strcmp(a->host, b->host) == 0 && a->port == b->port && a->db == b->db &&
		   strcmp(a->user, b->user) == 0 && strcmp(a->password, b->password) == 0;
}

static void
test_lists(void)
{
	static NodeUrls urls;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
	{
		const char *problem = parse(good[i].list, &urls);

		ok(problem == NULL && urls.count == 1 && same(&urls.url[0], &good[i].url),
		   "\"%s\" is read%s%s", good[i].url.address, problem ? ": " : "", problem ? problem : "");
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		const char *problem = parse(bad[i].list, &urls);

		ok(problem != NULL && strcmp(problem, bad[i].problem) == 0, "%s", bad[i].problem);
		ok(problem == NULL || strstr(problem, "secret") == NULL, "and tells no secret");
	}
	ok(parse("", &urls) == NULL && urls.count == 0, "an empty list is one");
	ok(parse(" ,\n", &urls) == NULL && urls.count == 0, "so is one of separators");
}

/* The most nodes and the longest texts that fit, and one more. */
static void
test_limits(void)
{
	static NodeUrls urls;
	char list[16 * URL_NODES_MAX + 64] = "";
	char text[1024];
	char longest[sizeof(urls.url[0].host)];
	char password[sizeof(urls.url[0].password)];

	for (int i = 1; i <= URL_NODES_MAX; i++)
		sprintf(list + strlen(list), "redis://h:%d ", i);
	ok(parse(list, &urls) == NULL && urls.count == URL_NODES_MAX, "%d nodes", URL_NODES_MAX);
	strcat(list, "redis://h:100");
	ok(strcmp(parse(list, &urls), "there are more than 15 nodes") == 0, "and no more");

	memset(longest, 'h', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	snprintf(text, sizeof(text), "redis://%s:65535/2147483647", longest);
	ok(parse(text, &urls) == NULL && strlen(urls.url[0].host) == sizeof(longest) - 1 &&
		   strstr(urls.url[0].address, "h:65535/2147483647") != NULL,
	   "the longest host name, with all of its address");
	snprintf(text, sizeof(text), "redis://h%s", longest);
	ok(strcmp(parse(text, &urls), "node 1: the host name is too long") == 0, "and none longer");
	snprintf(text, sizeof(text), "redis://[h%s]", longest);
	ok(strcmp(parse(text, &urls), "node 1: the host name is too long") == 0, "nor in brackets");

	memset(password, 'p', sizeof(password));
	password[sizeof(password) - 1] = '\0';
	snprintf(text, sizeof(text), "redis://:%s@h", password);
	ok(parse(text, &urls) == NULL && strlen(urls.url[0].password) == sizeof(password) - 1,
	   "the longest password");
	snprintf(text, sizeof(text), "redis://:p%s@h", password);
	ok(parse(text, &urls) != NULL, "and none longer");

	snprintf(text, sizeof(text), "unix:///%.*s", 102, longest);
	ok(parse(text, &urls) == NULL && strlen(urls.url[0].host) == 103, "the longest path");
	snprintf(text, sizeof(text), "unix:///%.*s", 103, longest);
	ok(strcmp(parse(text, &urls), "node 1: the socket's path is too long") == 0, "and none longer");
}

static void
test_text(void)
{
	static const char *const clean[] = {"", "job", "caf\303\251", "\302\240", "\360\237\224\222"};
	static const struct
	{
		const char *text;
		size_t at;
	} controls[] = {{"\n", 0}, {"a\x7f", 1}, {"a\033[31m", 1}, {"ab\302\200", 2}, {"\302\237", 0}};
	static const struct
	{
		const char *error;
		const char *text;
	} errors[] = {
		{"NOAUTH Authentication required.", "NOAUTH Authentication required"},
		{"ERR AUTH <password> called without any password configured for the default user. Are you "
		 "sure your configuration is correct?",
		 "ERR AUTH <password> called without any password configured for the default user"},
		{"OOM command not allowed when used memory > 'maxmemory'. script: "
		 "0123456789012345678901234567890123456789, on @user_script:86.",
		 "OOM command not allowed when used memory > 'maxmemory'"},
		{"NOREPLICAS Not enough good replicas to write. script: "
		 "0123456789012345678901234567890123456789, on @user_script:86.",
		 "NOREPLICAS Not enough good replicas to write"},
		{"ERR The user executing the script can't run this command or subcommand script: "
		 "0123456789012345678901234567890123456789, on @user_script:86.",
		 "ERR The user executing the script can't run this command or subcommand"},
		{"ERR Error running script (call to f_0123456789012345678901234567890123456789): "
		 "@user_script:86: @user_script: 86: -NOREPLICAS Not enough good slaves to write.",
		 "NOREPLICAS Not enough good slaves to write"},
		{"ERR Error running script (call to f_0123456789012345678901234567890123456789): "
		 "@user_script:86: user_script:86: attempt to index a nil value",
		 "ERR Error running script (call to f_0123456789012345678901234567890123456789): "
		 "@user_script:86: user_script:86: attempt to index a nil value"},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		 "BUSY Redis is busy running a script"},
		{"ERR a\nb", "ERR a?b"},
		{"ERR 10.0.0.1 says ...", "ERR 10.0.0.1 says"},
		{"", ""},
	};
	/* the first and the last character of each length, and bytes that are no character */
	static const struct
	{
		const char *text;
		size_t len;
	} characters[] = {
		{" aaa", 1},
		{"~aaa", 1},
		{"\037aaa", 0},
		{"\177aaa", 0},
		{"\200aaa", 0},
		{"\302\237aa", 0},
		{"\302\240aa", 2},
		{"\301\277aa", 0},
		{"\337\277aa", 2},
		{"\337\300aa", 0},
		{"\340\237\277a", 0},
		{"\340\240\200a", 3},
		{"\355\237\277a", 3},
		{"\355\240\200a", 0},
		{"\357\277\277a", 3},
		{"\357\277aa", 0},
		{"\360\217\277\277", 0},
		{"\360\220\200\200", 4},
		{"\364\217\277\277", 4},
		{"\364\220\200\200", 0},
		{"\365\200\200\200", 0},
		{"\360\220\200a", 0},
	};
	char out[8];

	for (size_t i = 0; i < sizeof(clean) / sizeof(clean[0]); i++)
		ok(text_find_control(clean[i]) == NULL, "no control character in text %d", (int) i);
	for (size_t i = 0; i < sizeof(controls) / sizeof(controls[0]); i++)
		ok(text_find_control(controls[i].text) ==
			   (const unsigned char *) controls[i].text + controls[i].at,
		   "the first control character of text %d", (int) i);

	text_to_printable(out, sizeof(out), "a\nb\303\251~", 6);
	ok(strcmp(out, "a?b??~") == 0, "what is not printable is replaced, byte by byte");
	text_to_printable(out, sizeof(out), "123456789", 9);
	ok(strcmp(out, "1234567") == 0, "what is too long is cut");
	text_to_printable(out, sizeof(out), "abc", 0);
	ok(strcmp(out, "") == 0, "nothing is nothing");

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
	{
		char text[160];

		text_of_node(text, sizeof(text), errors[i].error, strlen(errors[i].error));
		ok(strcmp(text, errors[i].text) == 0, "an error of a node: %s", text);
	}
	text_of_node(out, sizeof(out), "123456789.", 10);
	ok(strcmp(out, "1234567") == 0, "one that is cut");

	text_to_utf8(out, sizeof(out), "a\nb\303\251~", 6);
	ok(strcmp(out, "a?b\303\251~") == 0, "UTF-8 stays as it is");
	text_to_utf8(out, sizeof(out), "123456\303\251", 8);
	ok(strcmp(out, "123456") == 0, "no character is cut in two");
	text_to_utf8(out, sizeof(out), "\303\251\303", 3);
	ok(strcmp(out, "\303\251?") == 0, "one that is cut is none");
	text_to_utf8(out, sizeof(out), "abc", 0);
	ok(strcmp(out, "") == 0, "nothing is nothing in UTF-8, too");
	for (size_t i = 0; i < sizeof(characters) / sizeof(characters[0]); i++)
		ok(text_utf8_len(characters[i].text, 4) == characters[i].len, "character %d has %d bytes",
		   (int) i, (int) characters[i].len);
}

/* Lists from a file. */
static void
test_memory(void)
{
	static NodeUrls urls;
	static NodeUrls damaged;

	ok(!url_is_list(&urls), "empty memory is no list");
	url_parse_list("redis://:secret@a,unix:///b?db=1", &urls);
	ok(url_is_list(&urls), "a list is one");
	damaged = urls;
	damaged.count = URL_NODES_MAX + 1;
	ok(!url_is_list(&damaged), "not with too many nodes");
	damaged = urls;
	memset(damaged.url[1].host, 'x', sizeof(damaged.url[1].host));
	ok(!url_is_list(&damaged), "nor with a text without an end");
	damaged = urls;
	memset(&damaged.url[0].tls, 2, 1);
	ok(!url_is_list(&damaged), "nor with a flag that is none");
	damaged = urls;
	damaged.url[0].port = 65536;
	ok(!url_is_list(&damaged), "nor with a port that is none");
}

int
main(void)
{
	test_lists();
	test_limits();
	test_memory();
	test_text();
	return tap_done();
}
