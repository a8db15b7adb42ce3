/*
 * late_poll.c
 *		A process that is not run for a moment, just after it has looked at its
 *		sockets.
 *
 *	 cc -shared -fPIC -o late_poll.so late_poll.c
 *	 LD_PRELOAD=./late_poll.so LATE_POLL_FILE=/path/who postgres ...
 *
 * The file has a process id and a time in microseconds, two longs.  The next
 * epoll_wait() of that process finds nothing, and returns after that time; then the
 * process id in the file is zero.  A scheduler that is busy, or a host that is
 * stopped, does this at moments that no test can choose.
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
