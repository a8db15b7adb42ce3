/*
 * delay_proxy.c
 *		Adds a fixed delay to each direction of TCP connections on loopback.
 *
 *	 delay_proxy DELAY_US LISTEN_PORT:TARGET_PORT ...
 *
 * Stands in for a network link where the kernel has no netem.  The proxy
 * writes data DELAY_US after reading them, in order, without a limit of
 * throughput.  A link has a round-trip time of twice the delay, and a bit.
 * Ends with SIGTERM.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SOCKETS_MAX 8192
#define READ_SIZE 65536

/* A piece of data on its way to the socket that owns the queue. */
typedef struct chunk
{
	struct chunk *next;
	int64_t due_ns;
	size_t len;
	size_t written;
	char data[];
} chunk;

typedef struct endpoint
{
	int fd;          /* -1: not in use */
	int target_port; /* of a listener; else 0 */
	int peer;        /* index of the other end */
	chunk *head;
	chunk *tail;
} endpoint;

static endpoint sockets[SOCKETS_MAX];
static int sockets_end; /* none in use from here on */
static int64_t delay_ns;

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static int
add(int fd, int target_port)
{
	for (int i = 0; i < SOCKETS_MAX; i++)
		if (sockets[i].fd == -1)
		{
			sockets[i] = (endpoint){.fd = fd, .target_port = target_port, .peer = -1};
			if (i >= sockets_end)
				sockets_end = i + 1;
			return i;
		}
	fprintf(stderr, "too many connections\n");
	exit(1);
}

static struct sockaddr_in
loopback(int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static void
listen_on(const char *pair)
{
	int from, to, one = 1;
	struct sockaddr_in a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (sscanf(pair, "%d:%d", &from, &to) != 2)
		die("usage: delay_proxy DELAY_US LISTEN_PORT:TARGET_PORT ...");
	a = loopback(from);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *) &a, sizeof(a)) != 0 || listen(fd, 1024) != 0)
		die(pair);
	add(fd, to);
}

static void
accept_one(int listener)
{
	struct sockaddr_in a = loopback(sockets[listener].target_port);
	int in = accept(sockets[listener].fd, NULL, NULL);
	int out = socket(AF_INET, SOCK_STREAM, 0);
	int one = 1, i, j;

	if (in < 0)
		return;
	if (connect(out, (struct sockaddr *) &a, sizeof(a)) != 0)
	{
		close(in);
		close(out);
		return;
	}
	fcntl(in, F_SETFL, O_NONBLOCK);
	fcntl(out, F_SETFL, O_NONBLOCK);
	setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	i = add(in, 0);
	j = add(out, 0);
	sockets[i].peer = j;
	sockets[j].peer = i;
}

static void
drop(int i)
{
	close(sockets[i].fd);
	sockets[i].fd = -1;
	while (sockets[i].head)
	{
		chunk *c = sockets[i].head;

		sockets[i].head = c->next;
		free(c);
	}
}

static void
drop_both(int i)
{
	drop(sockets[i].peer);
	drop(i);
}

static void
read_from(int i)
{
	static char buffer[READ_SIZE];
	ssize_t n = read(sockets[i].fd, buffer, sizeof(buffer));
	endpoint *to = &sockets[sockets[i].peer];
	chunk *c;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0)
	{
		drop_both(i);
		return;
	}
	c = malloc(sizeof(chunk) + n);
	*c = (chunk){.due_ns = now_ns() + delay_ns, .len = n};
	memcpy(c->data, buffer, n);
	if (to->head)
		to->tail->next = c;
	else
		to->head = c;
	to->tail = c;
}

static void
write_due(int i, int64_t now)
{
	while (sockets[i].fd != -1 && sockets[i].head && sockets[i].head->due_ns <= now)
	{
		chunk *c = sockets[i].head;
		ssize_t n = write(sockets[i].fd, c->data + c->written, c->len - c->written);

		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
		{
			drop_both(i);
			return;
		}
		c->written += n;
		if (c->written < c->len)
			return;
		sockets[i].head = c->next;
		free(c);
	}
}

static void
turn(void)
{
	static struct pollfd fds[SOCKETS_MAX];
	static int index[SOCKETS_MAX];
	int n = 0;
	int64_t now = now_ns(), next = INT64_MAX;
	struct timespec timeout, *t = NULL;

	for (int i = 0; i < sockets_end; i++)
		if (sockets[i].fd != -1)
			write_due(i, now);
	for (int i = 0; i < sockets_end; i++)
	{
		if (sockets[i].fd == -1)
			continue;
		if (sockets[i].head && sockets[i].head->due_ns < next)
			next = sockets[i].head->due_ns;
		fds[n] = (struct pollfd){.fd = sockets[i].fd, .events = POLLIN};
		index[n++] = i;
	}
	if (next != INT64_MAX)
	{
		/* a full socket is tried again soon */
		int64_t left = next > now ? next - now : 100000;

		timeout = (struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
		t = &timeout;
	}
	if (ppoll(fds, n, t, NULL) < 0)
		die("ppoll");
	for (int k = 0; k < n; k++)
	{
		int i = index[k];

		if (fds[k].revents == 0 || sockets[i].fd != fds[k].fd)
			continue;
		if (sockets[i].target_port)
			accept_one(i);
		else
			read_from(i);
	}
}

int
main(int argc, char **argv)
{
	if (argc < 3)
		die("usage: delay_proxy DELAY_US LISTEN_PORT:TARGET_PORT ...");
	delay_ns = atoll(argv[1]) * 1000;
	prctl(PR_SET_TIMERSLACK, 1L);
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < SOCKETS_MAX; i++)
		sockets[i].fd = -1;
	for (int i = 2; i < argc; i++)
		listen_on(argv[i]);
	for (;;)
		turn();
}
