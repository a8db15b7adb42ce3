/*
 * cases.h
 *		The replies of redlock.lua in cases that random commands seldom meet.
 */
#ifndef SIM_CASES_H
#define SIM_CASES_H

#include <stdbool.h>

#include <hiredis/hiredis.h>

/*
 * Runs all cases with the loaded script of this SHA1, and deletes all data of the server.  Returns
 * true if each reply fits; otherwise `difference` names the first wrong reply.
 */
extern bool cases_pass(redisContext *redis, redisContext *listener, const char *sha,
					   char *difference, size_t size);

#endif /* SIM_CASES_H */
