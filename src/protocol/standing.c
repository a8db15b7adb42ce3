/*
 * standing.c
 *		Which of several hosts with different settings takes locks; see standing.h.
 */
#include "protocol/standing.h"

static void say(Standing *standing, HostStanding says);
static void give_way(Standing *standing, bool has_leases);
static bool is_senior(const Standing *standing, const StandingOther *other, int64_t now_us);
static bool has_locks(const StandingOther *other);

/*
 * Locks taken while all hosts agreed do not need HOST_HOLDS: the settings in the hosts' entries
 * already exclude them.
 */
void
standing_reset(Standing *standing, bool has_leases)
{
	if (standing->says == HOST_WARNS)
		return;
	if (standing->says == HOST_TAKES && standing->begun && !standing->stopped)
		standing->took = false;
	say(standing, standing->took && has_leases ? HOST_HOLDS : HOST_ASKS);
}

void
standing_warn(Standing *standing, bool warns, bool has_leases, int64_t now_us)
{
	if (warns == (standing->says == HOST_WARNS))
		return;
	standing->took = true;
	say(standing, warns ? HOST_WARNS : has_leases ? HOST_HOLDS : HOST_ASKS);
	standing->begun_us = now_us;
}

bool
standing_has_lapsed(Standing *standing, int64_t now_us)
{
	if (now_us - standing->heard_us <= STANDING_LAPSE_US)
		return false;
	standing->begun = false;
	return true;
}

StandingOther
standing_other(uint64_t id, const HostConfig *theirs, unsigned kinds, int64_t takes_for_us)
{
	/* a host that asks cannot begin before it reaches a quorum */
	bool may_take = theirs->standing != HOST_ASKS || hosts_have_quorum(theirs);
	bool counts = (kinds & ~HOSTS_HELD) != 0 && may_take;

	return (StandingOther){.id = id,
						   .says = counts ? theirs->standing : HOST_REFUSES,
						   .takes_for_us = takes_for_us,
						   .holds = (kinds & HOSTS_HELD) != 0};
}

bool
standing_stops(const Standing *standing, const StandingOther *other)
{
	if (standing->says == HOST_WARNS)
		return false;
	return has_locks(other) || (other->says == HOST_ASKS && standing->says != HOST_TAKES);
}

void
standing_add_wait(const Standing *standing, const HostConfig *ours, const HostConfig *theirs,
				  const HostsDifference *difference, int64_t age_us, StandingWait *wait)
{
	StandingOther other = standing_other(0, theirs, difference->guess_kinds, 0);
	HostConfig then;
	HostsDifference apart;

	if (age_us > STANDING_SILENT_US)
		return;
	if (standing_stops(standing, &other))
		wait->guessed |= difference->guessed;
	if (theirs->step == HOST_STAYS)
		return;
	then = *theirs;
	hosts_take_step(&then);
	hosts_compare(ours, &then, HOSTS_AT_ANY_TIME, &apart);
	wait->step = wait->step || (apart.kinds & HOSTS_NODES) != 0;
}

void
standing_look(Standing *standing, const StandingView *view, int64_t now_us)
{
	bool others_take = false;
	bool others_ask = false;
	bool asked_first = true;
	bool senior = true;

	if (!view->has_leases && !standing->begun)
		standing->took = false;
	standing->heard_us = view->asked_us;
	standing->stopped = false;
	for (int i = 0; i < view->count; i++)
	{
		const StandingOther *other = &view->others[i];

		standing->stopped = standing->stopped || standing_stops(standing, other);
		others_take = others_take || other->says == HOST_TAKES || other->says == HOST_HOLDS ||
					  other->says == HOST_WARNS;
		others_ask = others_ask || other->says == HOST_ASKS;
		asked_first = asked_first && !(other->says == HOST_ASKS && other->id < view->id);
		senior = senior && (other->says != HOST_TAKES || is_senior(standing, other, now_us));
	}
	switch (standing->says)
	{
		case HOST_ASKS:
			if (others_take || !asked_first)
				say(standing, HOST_REFUSES);
			else if (!standing->stopped)
				say(standing, HOST_TAKES);
			break;
		case HOST_TAKES:
			if (standing->begun ? !senior : others_take)
				give_way(standing, view->has_leases);
			else if (!standing->begun && !standing->stopped)
			{
				standing->begun = standing->took = true;
				if (standing->begun_us == 0)
					standing->begun_us = now_us;
			}
			break;
		case HOST_REFUSES:
			if (!standing->stopped)
				say(standing, HOST_ASKS);
			break;
		case HOST_HOLDS:
			if (!standing->took)
				say(standing, HOST_REFUSES);
			else if (!others_take && !others_ask && !standing->stopped)
				say(standing, HOST_TAKES);
			break;
		case HOST_WARNS:
			break;
	}
}

bool
standing_may_take(const Standing *standing, int64_t now_us)
{
	return standing->says == HOST_WARNS ||
		   (standing->says == HOST_TAKES && standing->begun && !standing->stopped &&
			now_us - standing->heard_us <= STANDING_LAPSE_US);
}

static void
say(Standing *standing, HostStanding says)
{
	standing->says = says;
	standing->begun = false;
	standing->begun_us = 0;
	standing->number++;
}

static void
give_way(Standing *standing, bool has_leases)
{
	say(standing, standing->took && has_leases ? HOST_HOLDS : HOST_REFUSES);
	standing->stopped = true;
}

/* Two hosts can't both be senior: reported durations are late by less than the margin. */
static bool
is_senior(const Standing *standing, const StandingOther *other, int64_t now_us)
{
	return now_us - standing->begun_us >= other->takes_for_us + STANDING_MARGIN_US;
}

/* The host holds locks, or may take some. */
static bool
has_locks(const StandingOther *other)
{
	return other->says == HOST_TAKES || other->says == HOST_HOLDS || other->says == HOST_WARNS ||
		   other->holds;
}
