/*
 * server.c
 *		Functions of the server that libpgcommon and libpgport lack, for unit tests.
 *
 * This file includes no header of PostgreSQL: the function behind Assert has different arguments
 * in different versions.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int pg_ultoa_n(uint32_t number, char *text);
extern int pg_lltoa(int64_t number, char *text);
extern void *ShmemInitStruct(const char *name, size_t size, bool *found);
extern void ExceptionalCondition(const char *condition);

/* Writes no NUL, unlike pg_lltoa. */
int
pg_ultoa_n(uint32_t number, char *text)
{
	char digits[16];
	int len = sprintf(digits, "%" PRIu32, number);

	memcpy(text, digits, len);
	return len;
}

int
pg_lltoa(int64_t number, char *text)
{
	return sprintf(text, "%" PRId64, number);
}

void *
ShmemInitStruct(const char *name, size_t size, bool *found)
{
	static char memory[64 * 1024];

	if (size > sizeof(memory))
		ExceptionalCondition(name);
	*found = false;
	return memory;
}

void
ExceptionalCondition(const char *condition)
{
	fprintf(stderr, "it does not hold: %s\n", condition);
	abort();
}
