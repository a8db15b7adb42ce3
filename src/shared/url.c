/*
 * url.c
 *		Parsing of redlock.nodes; see url.h.
 *
 * hiredis has no URL parser.  This file is plain C99, for a unit test without PostgreSQL.  An
 * error names an entry by its place in the list, never by its text, since the text may hold a
 * password.
 */
#include "shared/url.h"

#include <ctype.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/text.h"

/* The size of a path in sockaddr_un on the strictest platform; less than NodeUrl.host. */
#define SOCKET_PATH_MAX 104

static char problem[256];

static bool is_cut(const char *list, const char *entry, int len, const char *separators);
static bool begins_url(const char *text);
static bool parse_url(const char *text, int len, NodeUrl *url);
static const char *credentials_end(const char *text, const char *end, bool is_unix);
static bool parse_credentials(const char *text, int len, NodeUrl *url);
static bool parse_host(const char *text, int len, NodeUrl *url);
static bool parse_parameters(const char *text, int len, NodeUrl *url);
static bool parse_parameter(const char *text, int len, NodeUrl *url, unsigned *given);
static bool is_text(const char *text, int len, const char *what);
static bool check_host(const NodeUrl *url);
static bool parse_number(const char *text, int len, int max, int *number);
static bool decode(const char *text, int len, char *out, size_t size);
static bool copy(const char *text, int len, char *out, size_t size);
static bool fail(const char *what);
static bool same_server(const NodeUrl *a, const NodeUrl *b);
static bool is_url(const NodeUrl *url);
static bool is_flag(const bool *flag);

const char *
url_parse_list(const char *list, NodeUrls *urls)
{
	const char *separators = ", \t\r\n";
	const char *start = list;

	memset(urls, 0, sizeof(*urls));
	for (;;)
	{
		int len;
		NodeUrl *url;

		list += strspn(list, separators);
		len = strcspn(list, separators);
		if (len == 0)
			return NULL;
		if (urls->count == URL_NODES_MAX)
		{
			snprintf(problem, sizeof(problem), "there are more than %d nodes", URL_NODES_MAX);
			return problem;
		}

		url = &urls->url[urls->count];
		if (!parse_url(list, len, url))
		{
			char reason[sizeof(problem)];

			memcpy(reason, problem, sizeof(reason));
			snprintf(problem, sizeof(problem), "node %d: %.180s%s", urls->count + 1, reason,
					 is_cut(start, list, len, separators)
						 ? "; a comma in a password is written as %2C"
						 : "");
			return problem;
		}
		if (urls->count > 0 && (url->is_local || urls->url[0].is_local))
		{
			urls->mixed = true;
			return URL_MIXED;
		}
		for (int i = 0; i < urls->count; i++)
			if (same_server(&urls->url[i], url))
			{
				snprintf(problem, sizeof(problem), "nodes %d and %d are the same server \"%.150s\"",
						 i + 1, urls->count + 1, urls->url[i].address);
				return problem;
			}
		urls->count++;
		list += len;
	}
}

/*
 * Is this entry a part of a URL, cut by a comma in the password?  Then this entry, or the next
 * entry, has the end of credentials, but not the beginning of a URL.
 */
static bool
is_cut(const char *list, const char *entry, int len, const char *separators)
{
	const char *second = entry;
	const char *comma = entry - 1;

	if (begins_url(entry))
	{
		comma = entry + len;
		second = comma + strspn(comma, separators);
	}
	return second > list && *comma == ',' && !begins_url(second) &&
		   memchr(second, '@', strcspn(second, separators)) != NULL;
}

static bool
begins_url(const char *text)
{
	return strncmp(text, "redis://", 8) == 0 || strncmp(text, "rediss://", 9) == 0 ||
		   strncmp(text, "unix://", 7) == 0;
}

static bool
parse_url(const char *text, int len, NodeUrl *url)
{
	const char *end = text + len;
	const char *at;
	const char *rest;

	memset(url, 0, sizeof(*url));
	if (is_text(text, len, URL_LOCAL))
	{
		url->is_local = true;
		return copy(URL_LOCAL, strlen(URL_LOCAL), url->address, sizeof(url->address));
	}
	if (strncmp(text, "redis://", 8) == 0)
		text += 8;
	else if (strncmp(text, "rediss://", 9) == 0)
	{
		text += 9;
		url->tls = true;
	}
	else if (strncmp(text, "unix://", 7) == 0)
	{
		text += 7;
		url->is_unix = true;
	}
	else
		return fail("a URL starts with redis://, rediss:// or unix://");

	at = credentials_end(text, end, url->is_unix);
	if (at != NULL)
	{
		if (!parse_credentials(text, at - text, url))
			return false;
		text = at + 1;
	}
	rest = memchr(text, '?', end - text);
	if (rest != NULL)
	{
		if (!parse_parameters(rest + 1, end - rest - 1, url))
			return false;
		end = rest;
	}

	if (url->is_unix)
	{
		if (text >= end || *text != '/')
			return fail("a socket's path starts with /");
		if (!copy(text, end - text, url->host, SOCKET_PATH_MAX))
			return fail("the socket's path is too long");
		if (!check_host(url))
			return false;
		snprintf(url->address, sizeof(url->address), url->db ? "%s?db=%d" : "%s", url->host,
				 url->db);
		return true;
	}

	rest = memchr(text, '/', end - text);
	if (url->tls && rest == text)
		return fail("a Unix socket has no TLS; its URL starts with unix://");
	if (rest != NULL)
	{
		if (rest + 1 < end && !parse_number(rest + 1, end - rest - 1, INT_MAX, &url->db))
			return fail("what follows the slash must be a database number");
		end = rest;
	}
	if (!parse_host(text, end - text, url))
		return false;
	snprintf(url->address, sizeof(url->address), strchr(url->host, ':') ? "[%s]:%d" : "%s:%d",
			 url->host, url->port);
	if (url->db)
		snprintf(url->address + strlen(url->address), sizeof(url->address) - strlen(url->address),
				 "/%d", url->db);
	return true;
}

/* Returns the @ before the host, or NULL: the last @, but a socket's path may contain one. */
static const char *
credentials_end(const char *text, const char *end, bool is_unix)
{
	const char *at = NULL;

	if (is_unix && text < end && *text == '/')
		return NULL;
	for (const char *p = text; p < end; p++)
	{
		if (*p != '@')
			continue;
		at = p;
		if (is_unix && p + 1 < end && p[1] == '/')
			break;
	}
	return at;
}

static bool
parse_credentials(const char *text, int len, NodeUrl *url)
{
	const char *colon = memchr(text, ':', len);

	if (colon == NULL)
		return fail("credentials are written as user:password@ or :password@");
	if (!decode(text, colon - text, url->user, sizeof(url->user)))
		return fail("the user name is too long or wrongly percent-encoded");
	if (!decode(colon + 1, text + len - colon - 1, url->password, sizeof(url->password)))
		return fail("the password is too long or wrongly percent-encoded");
	if (url->password[0] == '\0')
		return fail("the password is empty");
	return true;
}

static bool
parse_host(const char *text, int len, NodeUrl *url)
{
	const char *end = text + len;
	const char *host_end;

	if (len > 0 && *text == '[')
	{
		host_end = memchr(text, ']', len);
		if (host_end == NULL)
			return fail("the bracket of an IPv6 address is not closed");
		if (!copy(text + 1, host_end - text - 1, url->host, sizeof(url->host)))
			return fail("the host name is too long");
		host_end++;
	}
	else
	{
		host_end = memchr(text, ':', len);
		if (host_end == NULL)
			host_end = end;
		if (!copy(text, host_end - text, url->host, sizeof(url->host)))
			return fail("the host name is too long");
	}
	if (url->host[0] == '\0')
		return fail("the host is missing");
	if (!check_host(url))
		return false;
	for (char *p = url->host; *p; p++)
		if (*p >= 'A' && *p <= 'Z')
			*p += 'a' - 'A';

	url->port = URL_DEFAULT_PORT;
	if (host_end < end &&
		(*host_end != ':' || !parse_number(host_end + 1, end - host_end - 1, 65535, &url->port) ||
		 url->port == 0))
		return fail("the port must be a number from 1 to 65535");
	return true;
}

/* name=value, with & between */
static bool
parse_parameters(const char *text, int len, NodeUrl *url)
{
	const char *end = text + len;
	unsigned given = 0;

	for (;;)
	{
		const char *next = memchr(text, '&', end - text);

		if (!parse_parameter(text, (next != NULL ? next : end) - text, url, &given))
			return false;
		if (next == NULL)
			return true;
		text = next + 1;
	}
}

/* given: a bit for each earlier parameter */
static bool
parse_parameter(const char *text, int len, NodeUrl *url, unsigned *given)
{
	const char *value = memchr(text, '=', len);
	int name_len = value != NULL ? value - text : len;
	int value_len = len - name_len - 1;
	unsigned bit;

	if (value != NULL && is_text(text, name_len, "durable"))
	{
		if (is_text(value + 1, value_len, "yes"))
			url->durable = URL_DURABLE;
		else if (is_text(value + 1, value_len, "no"))
			url->durable = URL_NOT_DURABLE;
		else
			return fail("durable must be yes or no");
		bit = 1;
	}
	else if (value != NULL && is_text(text, name_len, "db") && url->is_unix)
	{
		if (!parse_number(value + 1, value_len, INT_MAX, &url->db))
			return fail("db must be a number");
		bit = 2;
	}
	else
		return fail(url->is_unix ? "the parameters after a socket's path are db=number and "
								   "durable=yes or durable=no"
								 : "the only parameter is durable=yes or durable=no");
	if (*given & bit)
		return fail("a parameter is given twice");
	*given |= bit;
	return true;
}

static bool
is_text(const char *text, int len, const char *what)
{
	return len == (int) strlen(what) && memcmp(text, what, len) == 0;
}

/* The host name appears in logs and views, of databases with any encoding. */
static bool
check_host(const NodeUrl *url)
{
	for (const char *at = url->host; *at != '\0'; at++)
		if (*at < 0x20 || *at > 0x7e) /* char may be signed or not */
			return fail("a host name or path must have printable ASCII characters only");
	return url->is_unix || strpbrk(url->host, "[]") == NULL ||
		   fail("brackets stand around an IPv6 address only");
}

static bool
parse_number(const char *text, int len, int max, int *number)
{
	int64_t value = 0;

	if (len <= 0)
		return false;
	for (int i = 0; i < len; i++)
	{
		if (text[i] < '0' || text[i] > '9')
			return false;
		value = value * 10 + (text[i] - '0');
		if (value > max)
			return false;
	}
	*number = (int) value;
	return true;
}

/* Decodes percent signs.  Returns false if the text does not fit, is malformed, or has a NUL. */
static bool
decode(const char *text, int len, char *out, size_t size)
{
	size_t n = 0;

	for (int i = 0; i < len; i++)
	{
		char c = text[i];

		if (c == '%')
		{
			char hex[3] = {0};

			if (i + 2 > len - 1 || !isxdigit((unsigned char) text[i + 1]) ||
				!isxdigit((unsigned char) text[i + 2]))
				return false;
			memcpy(hex, text + i + 1, 2);
			c = (char) strtol(hex, NULL, 16);
			i += 2;
		}
		if (c == '\0' || n + 1 >= size)
			return false;
		out[n++] = c;
	}
	out[n] = '\0';
	return true;
}

static bool
copy(const char *text, int len, char *out, size_t size)
{
	if (len < 0 || (size_t) len >= size)
		return false;
	memcpy(out, text, len);
	out[len] = '\0';
	return true;
}

static bool
fail(const char *what)
{
	snprintf(problem, sizeof(problem), "%s", what);
	return false;
}

/* Ignores the database: two databases of one server are not independent. */
static bool
same_server(const NodeUrl *a, const NodeUrl *b)
{
	return a->is_unix == b->is_unix && a->port == b->port && strcmp(a->host, b->host) == 0;
}

bool
url_is_list(const NodeUrls *urls)
{
	if (urls->count < 1 || urls->count > URL_NODES_MAX || !is_flag(&urls->mixed))
		return false;
	for (int i = 0; i < urls->count; i++)
		if (!is_url(&urls->url[i]))
			return false;
	return true;
}

static bool
is_url(const NodeUrl *url)
{
	return memchr(url->address, '\0', sizeof(url->address)) != NULL &&
		   memchr(url->host, '\0', sizeof(url->host)) != NULL &&
		   memchr(url->user, '\0', sizeof(url->user)) != NULL &&
		   memchr(url->password, '\0', sizeof(url->password)) != NULL && is_flag(&url->is_local) &&
		   is_flag(&url->is_unix) && is_flag(&url->tls) && url->port >= 0 && url->port <= 65535 &&
		   url->db >= 0 && (int) url->durable >= URL_DURABLE_UNSAID &&
		   (int) url->durable <= URL_NOT_DURABLE;
}

/* C leaves open what a bool with another byte is. */
static bool
is_flag(const bool *flag)
{
	unsigned char byte;

	memcpy(&byte, flag, 1);
	return byte <= 1;
}
