/*
 * url.h
 *		The list of node URLs in redlock.nodes.
 *
 *	 redis://[[user]:password@]host[:port][/db][?durable=yes|no]
 *	 rediss://... the same, by TLS
 *	 unix://[[user]:password@]/path/to/socket[?db=number][&durable=yes|no]
 *
 * separated by commas or white space; or the word local alone: the node inside this server (see
 * broker/node_local.h).  User and password may be
 * percent-encoded.
 */
#ifndef REDLOCK_URL_H
#define REDLOCK_URL_H

#include <stdbool.h>

#define URL_NODES_MAX 15 /* leaves node indexes for nodes that are leaving */
#define URL_DEFAULT_PORT 6379

/* The administrator's word about a node that may not tell: see guard.h. */
typedef enum UrlDurable
{
	URL_DURABLE_UNSAID = 0,
	URL_DURABLE,
	URL_NOT_DURABLE
} UrlDurable;

typedef struct NodeUrl
{
	char address[256]; /* identity: host:port[/db], or the socket's path[?db=]; no credentials, so
						  fit for people's eyes */
	bool is_local;     /* the node inside this server; all else is empty but the address */
	bool is_unix;
	bool tls;
	char host[224]; /* host, or the socket's path */
	int port;
	int db;
	char user[128];     /* empty: none */
	char password[256]; /* empty: none */
	UrlDurable durable;
} NodeUrl;

typedef struct NodeUrls
{
	int count;
	bool mixed; /* why the list is wrong: local stands beside other nodes */
	NodeUrl url[URL_NODES_MAX];
} NodeUrls;

#define URL_LOCAL "local"
#define URL_MIXED "\"local\" goes with no other node"

/*
 * Parses the list.  Returns NULL, or the error, in static memory: the text has neither user names
 * nor passwords.  Needs no transaction and no memory context, since a GUC check hook of the
 * postmaster calls this.
 */
extern const char *url_parse_list(const char *list, NodeUrls *urls);

/*
 * Returns true if memory from a file can be read as a list: the list has nodes, each text ends, and
 * each flag and number has a value of its type.
 */
extern bool url_is_list(const NodeUrls *urls);

#endif /* REDLOCK_URL_H */
