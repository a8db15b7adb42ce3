/*
 * resolver.h
 *		Host names into addresses, without making the broker wait.
 */
#ifndef REDLOCK_RESOLVER_H
#define REDLOCK_RESOLVER_H

#include "lease.h"

typedef enum ResolverResult
{
	RESOLVER_PENDING,
	RESOLVER_DONE,
	RESOLVER_FAILED
} ResolverResult;

/* The broker: ask for a node's host.  False: no worker could be started. */
extern bool resolver_ask(int node, const char *host);

/* The broker, after its latch was set.  `answer` is a copy. */
extern ResolverResult resolver_read(int node, NameSlot *answer);

/* A numeric address needs no resolver. */
extern bool resolver_is_address(const char *host);

/* Entry point of the worker. */
extern PGDLLEXPORT void redlock_resolver_main(Datum node);

#endif /* REDLOCK_RESOLVER_H */
