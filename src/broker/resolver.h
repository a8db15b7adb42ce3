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

/* How often to call resolver_read: an answer raises no event. */
#define RESOLVER_POLL_US INT64CONST(20000)

typedef enum ResolverResult
{
	RESOLVER_PENDING,
	RESOLVER_DONE,
	RESOLVER_FAILED
} ResolverResult;

typedef struct ResolverAnswer
{
	int addresses; /* number of addresses */
	char address[RESOLVED_MAX][RESOLVER_ADDRESS_SIZE];
	char error[128]; /* FAILED */
} ResolverAnswer;

/*
 * Starts to look up the host of a node, unless the same lookup is under way.  Returns NULL, or why
 * not, in static memory.
 */
extern const char *resolver_ask(int node, const char *host);

/* Reads the outcome of a lookup.  DONE and FAILED are returned once for each resolver_ask. */
extern ResolverResult resolver_read(int node, ResolverAnswer *answer);

/* Is the host a numeric address, which needs no lookup? */
extern bool resolver_is_address(const char *host);

#endif /* REDLOCK_RESOLVER_H */
