/*
 * late_always.c
 *		A process whose waits end too late, for LD_PRELOAD.
 *
 * As late_poll.c, but each epoll_wait that finds events returns late.  The file LATE_POLL_FILE
 * holds a process id and microseconds.
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
	int count = syscall(SYS_epoll_pwait, epfd, events, max_events, timeout, NULL, 8);
	if (count > 0 && late != NULL && late[0] == getpid())
		usleep(late[1]);
	return count;
}
