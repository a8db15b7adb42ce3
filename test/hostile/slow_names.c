/*
 * slow_names.c
 *		A name service with slow or useless answers: preloaded into a server.
 *
 * getaddrinfo() of a name that ends with ".test" follows the variable SLOW_NAMES, "delay address
 * [address]": a wait of `delay` ms, and then the addresses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
			struct addrinfo **result)
{
	lookup real = (lookup) dlsym(RTLD_NEXT, "getaddrinfo");
	const char *answer = getenv("SLOW_NAMES");
	char first[64] = "";
	char second[64] = "";
	int delay_ms = 0;
	int addresses;
	int error;

	if (answer == NULL || name == NULL || strlen(name) <= 5 ||
		strcmp(name + strlen(name) - 5, ".test") != 0)
		return real(name, service, hints, result);
	addresses = sscanf(answer, "%d %63s %63s", &delay_ms, first, second) - 1;
	usleep((useconds_t) delay_ms * 1000);
	error = real(first, service, hints, result);
	if (error == 0 && addresses == 2)
	{
		struct addrinfo *last = *result;

		while (last->ai_next != NULL)
			last = last->ai_next;
		error = real(second, service, hints, &last->ai_next);
	}
	return error;
}
