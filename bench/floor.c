/*
 * floor.c
 *		The physical limit: the smallest client that is a correct Redlock
 *		client.
 *
 *	 floor --nodes HOST:PORT,... --clients N --keys own|one --seconds S ...
 *
 * One thread, one connection to each node, N logical clients.  An acquire asks
 * all nodes at once and is granted by a majority.  The release follows on each
 * connection, without a wait.  All commands of one turn of the loop to a node
 * are one write, so many clients pipeline as far as nodes and kernel allow.
 * There is no retry, no timeout, no validity and no renewal.
 *
 * With one key the clients queue, and a release leaves in the same write as
 * the next acquire: the limit for clients with a round trip for each lock.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

#define NODES_MAX 15
#define BUFFER_SIZE (1 << 20) /* a node that leaves more unread is dropped */
#define COMMAND_MAX 256
#define AWAITED_MAX (1 << 16) /* a power of two */
#define RELEASE (-1)

#define RELEASE_TEXT                                                                               \
	"if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"

typedef struct node
{
	int fd; /* -1: dropped */
	char *out;
	size_t out_len;
	char in[65536];
	size_t in_len;
	struct
	{
		int client; /* or RELEASE */
		uint32_t attempt;
	} awaited[AWAITED_MAX]; /* the expected replies, in order */
	uint32_t first, end;
} node;

typedef struct client
{
	char key[40];
	int64_t asked_ns;
	uint32_t attempt;
	int yes, no;
	bool asking;
} client;

static node nodes[NODES_MAX];
static int node_count;
static client clients[CLIENTS_MAX];
static char release_sha[41];
static char run_id[25];

static void
connect_node(const char *address)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	node *n = &nodes[node_count++];
	char ip[64], reply[128];
	int port, one = 1;

	if (node_count > NODES_MAX || sscanf(address, "%63[^:]:%d", ip, &port) != 2)
		fail(address, "want HOST:PORT,...");
	a.sin_port = htons(port);
	inet_pton(AF_INET, ip, &a.sin_addr);
	n->fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(n->fd, (struct sockaddr *) &a, sizeof(a)) != 0)
		fail(address, strerror(errno));
	setsockopt(n->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	dprintf(n->fd, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%zu\r\n" RELEASE_TEXT "\r\n",
			strlen(RELEASE_TEXT));
	if (read(n->fd, reply, sizeof(reply)) < 47 || memcmp(reply, "$40\r\n", 5) != 0)
		fail(address, "SCRIPT LOAD failed");
	memcpy(release_sha, reply + 5, 40);
	fcntl(n->fd, F_SETFL, O_NONBLOCK);
	n->out = malloc(BUFFER_SIZE);
}

static void
give_up(node *n)
{
	close(n->fd);
	n->fd = -1;
}

static void
send_to_all(int index, bool release)
{
	client *c = &clients[index];
	char command[COMMAND_MAX], value[40], ttl[24];
	int len;

	snprintf(value, sizeof(value), "%s%08x", run_id, c->attempt);
	snprintf(ttl, sizeof(ttl), "%ld", options.ttl_ms);
	if (release)
		len =
			snprintf(command, sizeof(command),
					 "*5\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
					 release_sha, strlen(c->key), c->key, strlen(value), value);
	else
		len = snprintf(command, sizeof(command),
					   "*6\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$2\r\nNX\r\n$2\r\nPX\r\n"
					   "$%zu\r\n%s\r\n",
					   strlen(c->key), c->key, strlen(value), value, strlen(ttl), ttl);
	for (node *n = nodes; n < nodes + node_count; n++)
	{
		if (n->fd == -1)
			continue;
		if (n->out_len + len > BUFFER_SIZE || n->end - n->first == AWAITED_MAX)
		{
			give_up(n);
			continue;
		}
		memcpy(n->out + n->out_len, command, len);
		n->out_len += len;
		n->awaited[n->end % AWAITED_MAX].client = release ? RELEASE : index;
		n->awaited[n->end++ % AWAITED_MAX].attempt = c->attempt;
	}
}

static void
acquire(int index)
{
	client *c = &clients[index];

	c->attempt++;
	c->yes = c->no = 0;
	c->asking = true;
	send_to_all(index, false);
}

/*
 * The round is decided: releases, and asks again or lets the next client ask.
 */
static void
decided(int index, bool granted)
{
	client *c = &clients[index];
	int64_t now = now_ns();

	c->asking = false;
	send_to_all(index, true);
	if (granted)
		count_pair(index, c->asked_ns, now, now);
	else
		count_error(now, "refused");
	c->asked_ns = now;
	acquire(options.one_key ? (index + 1) % options.clients : index);
}

/* Each reply to our commands is one line. */
static void
take_reply(node *n, const char *line)
{
	int index = n->awaited[n->first % AWAITED_MAX].client;
	uint32_t attempt = n->awaited[n->first++ % AWAITED_MAX].attempt;
	client *c = &clients[index];

	if (line[0] == '-')
		fail("a node answers", line);
	if (index == RELEASE || !c->asking || c->attempt != attempt)
		return;
	if (line[0] == '+')
		c->yes++;
	else
		c->no++;
	if (c->yes > node_count / 2)
		decided(index, true);
	else if (c->no >= node_count - node_count / 2)
		decided(index, false);
}

static void
read_node(node *n)
{
	ssize_t got = read(n->fd, n->in + n->in_len, sizeof(n->in) - 1 - n->in_len);
	char *line = n->in, *end;

	if (got < 0 && errno == EAGAIN)
		return;
	if (got <= 0)
		fail("node", "connection closed");
	n->in_len += got;
	n->in[n->in_len] = '\0';
	while ((end = memchr(line, '\n', n->in + n->in_len - line)))
	{
		take_reply(n, line);
		line = end + 1;
	}
	n->in_len -= line - n->in;
	memmove(n->in, line, n->in_len);
}

static void
write_node(node *n)
{
	ssize_t put;

	if (n->fd == -1 || n->out_len == 0)
		return;
	put = write(n->fd, n->out, n->out_len);
	if (put < 0 && errno == EAGAIN)
		return;
	if (put < 0)
		fail("node", strerror(errno));
	n->out_len -= put;
	memmove(n->out, n->out + put, n->out_len);
}

static void
run_until(int epoll, int64_t end_ns)
{
	struct epoll_event events[NODES_MAX];
	int64_t now;

	while ((now = now_ns()) < end_ns)
	{
		int ready;

		for (int i = 0; i < node_count; i++)
			write_node(&nodes[i]);
		ready = epoll_wait(epoll, events, NODES_MAX, (end_ns - now) / 1000000 + 1);
		for (int i = 0; i < ready; i++)
			if (((node *) events[i].data.ptr)->fd != -1)
				read_node(events[i].data.ptr);
	}
}

int
main(int argc, char **argv)
{
	int epoll = epoll_create1(0);
	double cpu_s;

	read_options(argc, argv);
	if (!options.nodes)
		fail("--nodes", "missing");
	snprintf(run_id, sizeof(run_id), "%08x%016llx", (unsigned) getpid(),
			 (unsigned long long) now_ns());
	for (char *at = strtok(strdup(options.nodes), ","); at; at = strtok(NULL, ","))
		connect_node(at);
	for (int i = 0; i < node_count; i++)
		epoll_ctl(epoll, EPOLL_CTL_ADD, nodes[i].fd,
				  &(struct epoll_event){.events = EPOLLIN, .data.ptr = &nodes[i]});

	begin_counting();
	for (int i = 0; i < options.clients; i++)
	{
		snprintf(clients[i].key, sizeof(clients[i].key), "floor:%d:%d", (int) getpid(),
				 options.one_key ? 0 : i);
		clients[i].asked_ns = now_ns();
		if (i == 0 || !options.one_key)
			acquire(i);
	}
	run_until(epoll, from_ns);
	cpu_s = own_cpu_s();
	run_until(epoll, until_ns);
	print_figures("floor", "1", own_cpu_s() - cpu_s, 0);
	return 0;
}
