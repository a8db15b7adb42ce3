/*
 * slow_fork.c
 *		Holds each new process of the server before its first lines.
 *
 * While the file slow_fork is in the data directory, a new process makes the file slow_forked and
 * waits.  fork() has blocked the signals.
 */
#include "postgres.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);
static void wait_in_child(void);

void
_PG_init(void)
{
	if (pthread_atfork(NULL, NULL, wait_in_child) != 0)
		elog(ERROR, "pthread_atfork failed");
}

static void
wait_in_child(void)
{
	int fd;

	if (access("slow_fork", F_OK) != 0)
		return;
	fd = open("slow_forked", O_CREAT | O_WRONLY, 0600);
	if (fd >= 0)
		close(fd);
	while (access("slow_fork", F_OK) == 0)
		pg_usleep(10000);
}
