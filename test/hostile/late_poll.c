/*
 * late_poll.c
 *		A process is not scheduled for a moment, just after it has polled
 *		its sockets.
 *
 *	 cc -shared -fPIC -o late_poll.so late_poll.c
 *	 LD_PRELOAD=./late_poll.so LATE_POLL_FILE=/path/who postgres ...
 *
 * The file holds two longs: a process id and a time in microseconds.  The next
 * epoll_wait() of the process finds no event, and returns after the time.
 * Then the process id in the file is zero.  A busy scheduler, or a stopped
 * host, does the same at moments beyond a test's choice.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile long *late;

__attribute__((constructor)) static void
map_file(void)
{
	const char *path = getenv("LATE_POLL_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0)
	{
		void *at = mmap(NULL, 2 * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED)
			late = at;
		close(fd);
	}
}

int
epoll_wait(int epfd, struct epoll_event *events, int max_events, int timeout)
{
	if (late != NULL && late[0] == getpid())
	{
		usleep(late[1]);
		late[0] = 0;
		return 0;
	}
	return syscall(SYS_epoll_pwait, epfd, events, max_events, timeout, NULL, 8);
}
