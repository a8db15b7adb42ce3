/*
 * faults.c
 *		Lets calls of a process fail, or hang, while a file is there.
 *
 *	 cc -shared -fPIC -o faults.so faults.c -ldl -lpthread
 *	 LD_PRELOAD=./faults.so FAULTS_DIR=/some/directory pg_ctl start ...
 *
 *	 no-memory	hiredis can't keep a command: an error in the broker in a handshake
 *				a node or sends it something
 *	 no-write	what hiredis has for a node can't be written: its connection was reset
 *	 slow-names	host names that begin with "slow" are not resolved before the file
 *				has gone; with a lock held that the end of the process needs, as the
 *				real name service may have one
 *	 names		lines of a host name and its addresses, numeric, with blanks between: what
 *				the name service says of these names; of one without addresses that it
 *				does not know it
 *	 rotated-names	each question for one of them is answered in another order
 *	 no-threads	no thread can be started
 *	 quick-threads	what a thread is started for is done when it has been started
 *	 late-workers	a background worker, which begins with a moment in which it ignores
 *				SIGHUP, is not run before the file has gone
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#define ORIGINAL(function) ((__typeof__(&(function))) dlsym(RTLD_NEXT, #function))

static pthread_mutex_t resolving = PTHREAD_MUTEX_INITIALIZER;

static bool
is_on(const char *fault)
{
	const char *directory = getenv("FAULTS_DIR");
	char path[1024];

	if (directory == NULL)
		return false;
	snprintf(path, sizeof(path), "%s/%s", directory, fault);
	return access(path, F_OK) == 0;
}

int
redisAppendCommandArgv(redisContext *connection, int argc, const char **argv, const size_t *argvlen)
{
	if (is_on("no-memory"))
		return -1;
	return ORIGINAL(redisAppendCommandArgv)(connection, argc, argv, argvlen);
}

int
redisAppendFormattedCommand(redisContext *connection, const char *command, size_t len)
{
	if (is_on("no-memory"))
		return -1;
	return ORIGINAL(redisAppendFormattedCommand)(connection, command, len);
}

int
redisBufferWrite(redisContext *connection, int *done)
{
	if (is_on("no-write"))
	{
		errno = ECONNRESET;
		connection->err = REDIS_ERR_IO;
		return REDIS_ERR;
	}
	return ORIGINAL(redisBufferWrite)(connection, done);
}

/* What the file says of a host, as one list; false: nothing. */
static bool
find_name(const char *host, const struct addrinfo *hints, struct addrinfo **list, int *rc)
{
	static unsigned asked = 0;
	char path[1024];
	char line[2048];
	FILE *file;

	snprintf(path, sizeof(path), "%s/names", getenv("FAULTS_DIR"));
	file = fopen(path, "r");
	if (file == NULL)
		return false;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char *addresses[64];
		char *rest;
		int count = 0;
		int first = is_on("rotated-names") ? (int) asked++ : 0;
		char *name = strtok_r(line, " \n", &rest);

		if (name == NULL || strcmp(name, host) != 0)
			continue;
		fclose(file);
		while (count < 64 && (addresses[count] = strtok_r(NULL, " \n", &rest)) != NULL)
			count++;
		*list = NULL;
		*rc = count > 0 ? 0 : EAI_NONAME;
		for (int i = 0; i < count && *rc == 0; i++)
		{
			*rc = ORIGINAL(getaddrinfo)(addresses[(first + i) % count], NULL, hints, list);
			while (*rc == 0 && *list != NULL)
				list = &(*list)->ai_next;
		}
		return true;
	}
	fclose(file);
	return false;
}

int
getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
			struct addrinfo **list)
{
	int rc;

	if (host != NULL && is_on("names") && find_name(host, hints, list, &rc))
		return rc;
	if (host != NULL && strncmp(host, "slow", 4) == 0)
	{
		pthread_mutex_lock(&resolving);
		while (is_on("slow-names"))
			usleep(20000);
		pthread_mutex_unlock(&resolving);
	}
	return ORIGINAL(getaddrinfo)(host, service, hints, list);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *),
			   void *arg)
{
	if (is_on("no-threads"))
		return EAGAIN;
	if (is_on("quick-threads"))
		return routine(arg) == NULL ? 0 : EAGAIN;
	return ORIGINAL(pthread_create)(thread, attributes, routine, arg);
}

int
sigaction(int signal, const struct sigaction *action, struct sigaction *before)
{
	if (signal == SIGHUP && action != NULL && action->sa_handler == SIG_IGN)
		while (is_on("late-workers"))
			usleep(20000);
	return ORIGINAL(sigaction)(signal, action, before);
}

__attribute__((destructor)) static void
end(void)
{
	pthread_mutex_lock(&resolving);
	pthread_mutex_unlock(&resolving);
}
