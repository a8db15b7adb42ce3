/*
 * late_poll.c
 *		A process is not scheduled for a moment, just after it has polled
 *		its sockets: once, or after each poll.
 *
 *	 cc -shared -fPIC -o late_poll.so late_poll.c
 *	 LD_PRELOAD=./late_poll.so LATE_POLL_FILE=/path/who postgres ...
 *
 * The file holds three longs: a process id, a time in microseconds, and 1 for
 * each poll.  With 0, the next epoll_wait() of the process finds no event, and
 * returns after the time.  Then the process id in the file is zero.  With 1,
 * each epoll_wait() and poll() that finds events returns after the time, and
 * after a send the process reads no socket before such a poll.  So each answer
 * is read late.  A busy scheduler, or a stopped host, does the same at moments
 * beyond a test's choice.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile long *late;
static bool sent; /* something, since the last poll that found events */

__attribute__((constructor)) static void
map_file(void)
{
	const char *path = getenv("LATE_POLL_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0)
	{
		void *at = mmap(NULL, 3 * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED)
			late = at;
		close(fd);
	}
}

static bool
is_late(void)
{
	return late != NULL && late[0] == getpid();
}

static int
after_poll(int count)
{
	if (count > 0 && is_late() && late[2] != 0)
	{
		sent = false;
		usleep(late[1]);
	}
	return count;
}

int
epoll_wait(int epfd, struct epoll_event *events, int max_events, int timeout)
{
	if (is_late() && late[2] == 0)
	{
		usleep(late[1]);
		late[0] = 0;
		return 0;
	}
	return after_poll(syscall(SYS_epoll_pwait, epfd, events, max_events, timeout, NULL, 8));
}

/* The broker calls poll() when the latch is set. */
int
poll(struct pollfd *sockets, nfds_t count, int timeout)
{
	return after_poll(syscall(SYS_poll, sockets, count, timeout));
}

static bool
is_socket(int fd)
{
	struct stat status;

	return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

/* hiredis 0.14 calls read() and write(), later versions call recv() and send(). */
ssize_t
send(int to, const void *data, size_t len, int flags)
{
	sent = true;
	return syscall(SYS_sendto, to, data, len, flags, NULL, 0);
}

ssize_t
write(int to, const void *data, size_t len)
{
	return is_socket(to) ? send(to, data, len, 0) : syscall(SYS_write, to, data, len);
}

ssize_t
recv(int from, void *data, size_t len, int flags)
{
	if (sent && is_late() && late[2] != 0)
	{
		errno = EAGAIN;
		return -1;
	}
	return syscall(SYS_recvfrom, from, data, len, flags, NULL, NULL);
}

ssize_t
read(int from, void *data, size_t len)
{
	return is_socket(from) ? recv(from, data, len, 0) : syscall(SYS_read, from, data, len);
}
