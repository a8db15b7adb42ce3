/*
 * slow_exit.c
 *		A process takes time to end after PostgreSQL's last callback.
 *
 *	 cc -shared -fPIC -o slow_exit.so slow_exit.c
 *	 LD_PRELOAD=./slow_exit.so SLOW_EXIT_DIR=/some/directory pg_ctl start ...
 *
 * If the directory has a file with the process's id as its name, the process
 * waits until it has handled a signal, and removes the file.  Without a signal
 * it continues after five seconds.
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
