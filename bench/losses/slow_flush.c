/*
 * slow_flush.c
 *		A process waits before it writes to disk.
 *
 *	 cc -shared -fPIC -o slow_flush.so slow_flush.c
 *	 LD_PRELOAD=./slow_flush.so SLOW_FLUSH_FILE=/path/flag postgres ...
 *
 * While the long in the file is not 0, a call of fdatasync() waits.  So a commit
 * waits after its last check and before it is visible.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long *waits;

__attribute__((constructor)) static void
map_file(void)
{
	const char *path = getenv("SLOW_FLUSH_FILE");
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0)
	{
		void *at = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED)
			waits = at;
		close(fd);
	}
}

int
fdatasync(int fd)
{
	struct timespec pause = {.tv_nsec = 1000000};

	while (waits != NULL && *waits != 0)
		(void) nanosleep(&pause, NULL);
	return (int) syscall(SYS_fdatasync, fd);
}
