/*
 * node_clock.c
 *		The clocks of nodes, compared with this host's clocks; see node_clock.h.
 *
 * Leases exclude each other while clocks run equally fast, within the drift that the validity
 * leaves (core_validity_us).  A time service that slews a clock changes its rate: chronyd by up to
 * 8.3 % with its default maxslewrate.  So the broker compares how far the node's wall clock and
 * this host's lease clock went between two answers.  Each answer was given at an unknown instant of
 * its round trip.  The published rate is the least that explains both answers.
 */
#include "postgres.h"

#include "broker/node_clock.h"
#include "protocol/core.h"
#include "shared/clock.h"
#include "shared/node_status.h"

/* The longest round trip by which a node's clock is compared. */
#define ROUND_TRIP_US INT64CONST(1000000)

/* The shortest time over which rates are compared, and the resolution of a node's time. */
#define RATE_OVER_US INT64CONST(5000000)
#define RESOLUTION_US 1000

/* Pause between messages about the clock of a node. */
#define LOG_RATE_US INT64CONST(60000000)

/* An earlier answer of a node; middle_us 0: none. */
typedef struct Answer
{
	int64 time_us;
	int64 middle_us; /* of the round trip */
	int64 round_trip_us;
} Answer;

static Answer earlier[CORE_NODES_MAX];
static int64 logged_us[CORE_NODES_MAX]; /* the last message; 0: none */

static int64 faster_ppm(const Answer *from, const Answer *to);
static void log_rate(int node, int64 ppm, int64 now_us);

void
node_clock_note(int node, int64 time_ms, int64 asked_us, int64 now_us)
{
	NodeStatus *status = &node_status[node];
	Answer answer = {.time_us = time_ms * 1000,
					 .middle_us = asked_us + (now_us - asked_us) / 2,
					 .round_trip_us = now_us - asked_us};
	int64 here_us = redlock_wall_clock_us() - answer.round_trip_us / 2;
	int64 ppm;

	if (answer.round_trip_us > ROUND_TRIP_US || time_ms <= 0 || time_ms >= PG_INT64_MAX / 2000)
		return;
	if ((int64) pg_atomic_read_u64(&status->clock_ahead_us) == NODE_CLOCK_UNKNOWN)
		earlier[node].middle_us = logged_us[node] = 0; /* this index had another node */
	pg_atomic_write_u64(&status->clock_ahead_us, (uint64) (answer.time_us - here_us));
	if (earlier[node].middle_us != 0)
	{
		if (answer.middle_us - earlier[node].middle_us < RATE_OVER_US)
			return;
		ppm = faster_ppm(&earlier[node], &answer);
		pg_atomic_write_u64(&status->clock_faster_ppm, (uint64) ppm);
		if (ppm > NODE_CLOCK_DRIFT_PPM)
			log_rate(node, ppm, now_us);
	}
	earlier[node] = answer;
}

/* Returns by how much the node's clock is faster, at least; negative: slower. */
static int64
faster_ppm(const Answer *from, const Answer *to)
{
	int64 gained_us = (to->time_us - from->time_us) - (to->middle_us - from->middle_us);
	int64 doubt_us = (from->round_trip_us + to->round_trip_us) / 2 + RESOLUTION_US;
	int64 sure_us = gained_us > 0 ? Max(gained_us - doubt_us, 0) : Min(gained_us + doubt_us, 0);

	return (int64) ((double) sure_us * 1e6 / (double) (to->middle_us - from->middle_us));
}

static void
log_rate(int node, int64 ppm, int64 now_us)
{
	if (logged_us[node] != 0 && now_us - logged_us[node] < LOG_RATE_US)
		return;
	logged_us[node] = now_us;
	ereport(WARNING,
			(errmsg("the clock of redlock node %s ran %.1f%% faster than the clock of this host",
					node_status[node].url.address, (double) ppm / 10000),
			 errdetail("A clock was slewed or set, or this machine was stopped together with its "
					   "clock. Leases allow 1%%: another host may get a lock before its holder on "
					   "this host knows of the end."),
			 errhint("Let the time service slew clocks of nodes and hosts by at most 0.4%%, with "
					 "chrony by \"maxslewrate 4000\".")));
}
