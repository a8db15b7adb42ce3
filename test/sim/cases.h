/*
 * cases.h
 *		The replies of redlock.lua in cases that random commands seldom meet.
 */
#ifndef SIM_CASES_H
#define SIM_CASES_H

#include <stdbool.h>

#include <hiredis/hiredis.h>

/*
 * Runs all cases with the script that the server has under this SHA1.  All data of the server are
 * deleted.  Returns true if each reply is the expected one; otherwise `difference` names the first
 * other one.
 */
extern bool cases_pass(redisContext *redis, redisContext *listener, const char *sha,
					   char *difference, size_t size);

#endif /* SIM_CASES_H */
