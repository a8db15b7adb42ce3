/*
 * slow_exit.c
 *		A process that takes its time to end, when PostgreSQL has let go of it.
 *
 *	 cc -shared -fPIC -o slow_exit.so slow_exit.c
 *	 LD_PRELOAD=./slow_exit.so SLOW_EXIT_DIR=/some/directory pg_ctl start ...
 *
 * The process whose id is the name of a file there waits, when all callbacks of its end
 * have run, until a signal has been handled, and removes the file; after five seconds
 * without one it goes on.
 */
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((destructor)) static void
wait_for_signal(void)
{
	const char *directory = getenv("SLOW_EXIT_DIR");
	char path[PATH_MAX];

	if (directory == NULL)
		return;
	snprintf(path, sizeof(path), "%s/%d", directory, (int) getpid());
	if (access(path, F_OK) == 0 && poll(NULL, 0, 5000) < 0)
		unlink(path);
}
