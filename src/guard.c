/*
 * guard.c
 *		The restart guard; see guard.h.
 */
#include "postgres.h"

#include "pgtime.h"

#include "clock.h"
#include "core.h"
#include "guard.h"

/* A node counts its uptime in whole seconds, by a clock that may be set. */
#define UPTIME_SLACK_MS INT64CONST(2000)

static void describe_start(const GuardFacts *facts, char *text, size_t size);
static void quarantine(GuardMemory *memory, int max_ttl_ms, int64 now_us, const char *format, ...)
	pg_attribute_printf(4, 5);

void
guard_review(GuardMemory *memory, const GuardFacts *facts, int max_ttl_ms, int64 now_us)
{
	bool new_process = strcmp(memory->run_id, facts->run_id) != 0;
	bool young = facts->uptime_s * 1000 < max_ttl_ms + UPTIME_SLACK_MS;
	bool durable = facts->aof && facts->fsync_always;
	bool first_seen = memory->marker[0] == '\0';
	char started[64];
	bool changed = !first_seen && strcmp(memory->marker, facts->marker) != 0;

	if (new_process && young && !durable)
	{
		describe_start(facts, started, sizeof(started));
		quarantine(memory, max_ttl_ms, now_us, "it restarted at %s and may have forgotten leases",
				   started);
	}
	else if ((changed && facts->loss != GUARD_LOST_ONCE) ||
			 (first_seen && facts->loss == GUARD_LOST_LATELY))
		quarantine(memory, max_ttl_ms, now_us, "its data was lost, and leases with it");

	strlcpy(memory->run_id, facts->run_id, sizeof(memory->run_id));
	strlcpy(memory->marker, facts->marker, sizeof(memory->marker));
}

/* A time of day, since the text is read later, by whomever. */
static void
describe_start(const GuardFacts *facts, char *text, size_t size)
{
	pg_time_t started = (pg_time_t) (redlock_wall_clock_us() / 1000000 - facts->uptime_s);

	pg_strftime(text, size, "%Y-%m-%d %H:%M:%S %Z", pg_localtime(&started, log_timezone));
}

/* As long as a lease that began just now could live, by whatever clock. */
static void
quarantine(GuardMemory *memory, int max_ttl_ms, int64 now_us, const char *format, ...)
{
	int64 ttl_us = max_ttl_ms * INT64CONST(1000);
	va_list args;

	va_start(args, format);
	vsnprintf(memory->reason, sizeof(memory->reason), format, args);
	va_end(args);
	memory->until_us = now_us + 2 * ttl_us - core_validity_us(ttl_us);
	Assert(memory->until_us > now_us);
}
