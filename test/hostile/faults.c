/*
 * faults.c
 *		Calls of a process fail, or hang, while a file exists.
 *
 *	 cc -shared -fPIC -o faults.so faults.c -ldl -lpthread
 *	 LD_PRELOAD=./faults.so FAULTS_DIR=/some/directory pg_ctl start ...
 *
 * The files in FAULTS_DIR:
 *
 *	 no-memory	hiredis cannot store a command: an error in the broker, during a
 *				handshake or when it sends to a node
 *	 no-write	hiredis cannot write to a node: the connection was reset
 *	 slow-names	host names that begin with "slow" are not resolved while the file
 *				exists; the call holds a lock which the end of the process needs,
 *				as the real name service may do
 *	 names		lines of a host name and its numeric addresses, with blanks between:
 *				the answers of the name service; a name without addresses is unknown
 *	 rotated-names	each lookup of such a name returns another order
 *	 no-threads	no thread can be started
 *	 quick-threads	a new thread has done its work when the call returns
 *	 late-workers	a background worker, which ignores SIGHUP for its first moment,
 *				waits there while the file exists
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

/*
 * Finds the file's addresses of a host, as one list.  Returns false if the
 * file does not name the host.
 */
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
