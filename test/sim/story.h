/*
 * story.h
 *		The story of a schedule, in words for people.  Off unless a trace is
 *		requested.
 */
#ifndef SIM_STORY_H
#define SIM_STORY_H

#include <stdbool.h>
#include <stdio.h>

#include "node.h"

extern bool story_on;
extern FILE *story_out;

/* A line begins with the time. */
extern void story_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern void story_command(const char *verb, const command *command, int node, const char *why);
extern void story_answer(const char *verb, const command *command, const answer *answer, int node);
extern void story_plan(void);

#define tell(...)                                                                                  \
	do                                                                                             \
	{                                                                                              \
		if (__builtin_expect(story_on, 0))                                                         \
			story_tell(__VA_ARGS__);                                                               \
	} while (0)

#define HOST_NAME(host) ('A' + (host))

extern const char *const fault_name[];

#endif /* SIM_STORY_H */
