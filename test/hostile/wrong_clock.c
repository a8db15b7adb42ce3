/*
 * wrong_clock.c
 *		Puts the wall clock of a process forward or back.
 *
 *	 cc -shared -fPIC -o wrong_clock.so wrong_clock.c
 *	 LD_PRELOAD=./wrong_clock.so WRONG_CLOCK_S=-2400 redis-server ...
 *	 LD_PRELOAD=./wrong_clock.so WRONG_CLOCK_FILE=/path/offset postgres ...
 *
 * The file holds the offset in seconds as one long, and may change at any
 * time: the clock then jumps, in all processes with this file.
 *
 * The library replaces only calls that read the wall clock; timers and
 * monotonic clocks stay.  The library replaces libfaketime: a
 * redis-server with jemalloc does not start under libfaketime, which allocates memory
 * before knowing the clock, while jemalloc reads the clock before allocating.
 * This library allocates nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long fixed_s;
static const volatile long *offset_s = &fixed_s;

__attribute__((constructor)) static void
read_offset(void)
{
	const char *text = getenv("WRONG_CLOCK_S");
	const char *path = getenv("WRONG_CLOCK_FILE");
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	fixed_s = text != NULL ? strtol(text, NULL, 10) : 0;
	if (fd >= 0)
	{
		void *at = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED)
			offset_s = at;
		close(fd);
	}
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	int rc = (int) syscall(SYS_clock_gettime, clock, now);

	if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *offset_s;
	return rc;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec t;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &t);
	now->tv_sec = t.tv_sec;
	now->tv_usec = t.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *seconds)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (seconds != NULL)
		*seconds = t.tv_sec;
	return t.tv_sec;
}
