/*
 * resolver.h
 *		Host names into addresses, without making the broker wait.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_RESOLVER_H
#define REDLOCK_RESOLVER_H

#define RESOLVED_MAX 16
#define RESOLVER_ADDRESS_SIZE 64 /* numeric, IPv4, or IPv6 with its scope */

/* How often resolver_read is to be called: nothing tells that an answer came. */
#define RESOLVER_POLL_US INT64CONST(20000)

typedef enum ResolverResult
{
	RESOLVER_PENDING,
	RESOLVER_DONE,
	RESOLVER_FAILED
} ResolverResult;

typedef struct ResolverAnswer
{
	int addresses; /* DONE: how many */
	char address[RESOLVED_MAX][RESOLVER_ADDRESS_SIZE];
	char error[128]; /* FAILED */
} ResolverAnswer;

/*
 * Ask for the host of a node.  A question that is under way for this node is not
 * asked again.  Returns NULL, or why it can't be asked, in static memory.
 */
extern const char *resolver_ask(int node, const char *host);

/* DONE and FAILED are told once for each question. */
extern ResolverResult resolver_read(int node, ResolverAnswer *answer);

/* A numeric address needs no resolver. */
extern bool resolver_is_address(const char *host);

#endif /* REDLOCK_RESOLVER_H */
