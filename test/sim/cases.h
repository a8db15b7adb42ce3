/*
 * cases.h
 *		What redlock.lua answers in cases that random commands meet seldom or never.
 */
#ifndef SIM_CASES_H
#define SIM_CASES_H

#include <stdbool.h>

#include <hiredis/hiredis.h>

/*
 * Runs all cases with the loaded script of this SHA1, at a server with nothing else.  Returns whether
 * each reply was the expected one; else `difference` says which was not.
 */
extern bool cases_pass(redisContext *redis, redisContext *listener, const char *sha,
					   char *difference, size_t size);

#endif /* SIM_CASES_H */
