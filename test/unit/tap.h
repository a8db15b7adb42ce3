/*
 * tap.h
 *		Just enough of the Test Anything Protocol for a test program that
 *		`prove -e ''` can run.
 *
 * A test is ok(condition, "what should hold, printf-like", ...).  The plan
 * comes last, so tests need not be counted by hand.
 */
#ifndef REDLOCK_TAP_H
#define REDLOCK_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_tests;
static int tap_failures;

#define ok(...) tap_ok(__LINE__, __VA_ARGS__)

static void
tap_ok(int line, bool passed, const char *name, ...)
{
	va_list args;

	printf("%sok %d - ", passed ? "" : "not ", ++tap_tests);
	va_start(args, name);
	vprintf(name, args);
	va_end(args);
	printf("\n");
	if (!passed)
	{
		printf("# failed at line %d\n", line);
		tap_failures++;
	}
	fflush(stdout); /* an assertion may end the program */
}

/* Prints the plan; gives the exit code of the program. */
static int
tap_done(void)
{
	printf("1..%d\n", tap_tests);
	return tap_failures == 0 ? 0 : 1;
}

#endif /* REDLOCK_TAP_H */
