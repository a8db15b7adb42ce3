/*
 * stall.c
 *		A process stalls when reading the wall clock.
 *
 *	 cc -shared -fPIC -o stall.so stall.c -ldl
 *	 LD_PRELOAD=./stall.so STALL_FILE=/path/who postgres ...
 *
 * The file holds two longs: a process id, and a place where the process writes
 * 1 before a stall.  The process continues when the file names another process
 * id.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *who;

__attribute__((constructor)) static void
map_file(void)
{
	const char *path = getenv("STALL_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0)
	{
		void *at = mmap(NULL, 2 * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED)
			who = at;
		close(fd);
	}
}

int
gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec pause = {.tv_nsec = 1000000};

	while (who != NULL && who[0] == getpid())
	{
		who[1] = 1;
		(void) syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
	}
	return syscall(SYS_gettimeofday, at, zone);
}
