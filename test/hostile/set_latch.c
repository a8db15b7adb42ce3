/*
 * set_latch.c
 *		Sets the latch of a process at each wait.
 *
 *	 cc -shared -fPIC -o set_latch.so set_latch.c -ldl
 *	 LD_PRELOAD=./set_latch.so SET_LATCH_FILE=/path/who postgres ...
 *
 * The file holds a process id, a long.  Whenever the process reads the clock,
 * its latch is set, as if many processes woke the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long *who;
static volatile sig_atomic_t **my_latch; /* a Latch begins with is_set */

__attribute__((constructor)) static void
map_file(void)
{
	const char *path = getenv("SET_LATCH_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0)
	{
		void *at = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);

		my_latch = dlsym(RTLD_DEFAULT, "MyLatch");
		if (at != MAP_FAILED && my_latch != NULL)
			who = at;
		close(fd);
	}
}

int
clock_gettime(clockid_t clock, struct timespec *at)
{
	if (who != NULL && *who == getpid() && *my_latch != NULL)
		**my_latch = 1;
	return syscall(SYS_clock_gettime, clock, at);
}
