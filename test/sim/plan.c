/*
 * plan.c
 *		The decisions of a seed: size, times and faults of the world.
 *
 * Each schedule has a few classes of faults, chosen like a swarm: faults that
 * hide each other also come alone.
 */
#include "protocol/lua.h"
#include "world.h"

/* All faults but the changes of settings, and `several`. */
#define ALL (FAULT_BIT(FAULT_RELOAD_NODES) - 1)

uint64_t plan_allowed = FAULT_BIT(FAULTS) - 1;

/* A lease may have two holders after these: only tokens keep order. */
#define BEYOND                                                                                     \
	(FAULT_BIT(FAULT_NODE_FORWARD) | FAULT_BIT(FAULT_HOST_WILD) | FAULT_BIT(FAULT_STRANGER) |      \
	 FAULT_BIT(FAULT_EVICT) | FAULT_BIT(FAULT_SUSPEND))

#define IS_SHORT_LIST (__builtin_popcountll(plan_allowed & ALL) < FAULT_RELOAD_NODES / 3)

#define FORGETFUL                                                                                  \
	(FAULT_BIT(FAULT_RESTART_LOST) | FAULT_BIT(FAULT_ROLLBACK) | FAULT_BIT(FAULT_FLUSH) |          \
	 FAULT_BIT(FAULT_LOST_VOTE))

/* Faults that leave majorities alone. */
#define BESIDE_ROLLING                                                                             \
	(FAULT_BIT(FAULT_ROLLING) | FAULT_BIT(FAULT_WALL_WRONG) | FAULT_BIT(FAULT_WALL_JUMP) |         \
	 FAULT_BIT(FAULT_HOST_DRIFT) | FAULT_BIT(FAULT_NODE_DRIFT) | FAULT_BIT(FAULT_APP_PAUSE) |      \
	 FAULT_BIT(FAULT_CANCEL) | FAULT_BIT(FAULT_BROKER) | FAULT_BIT(FAULT_WORD))

/* Faults that delay no message and no renewal. */
#define HARMLESS                                                                                   \
	(FAULT_BIT(FAULT_APP_PAUSE) | FAULT_BIT(FAULT_CANCEL) | FAULT_BIT(FAULT_CRASH) |               \
	 FAULT_BIT(FAULT_WALL_WRONG) | FAULT_BIT(FAULT_WALL_JUMP) | FAULT_BIT(FAULT_TWIN))

static void choose_resources(plan *plan);
static uint64_t choose_faults(void);
static void choose_times(plan *plan);
static void roll(plan *plan);
static void choose_persistence(plan *plan);

void
plan_make(plan *plan, uint64_t seed)
{
	static const int nodes[] = {3, 3, 3, 3, 3, 5, 5, 5, 1, 4};
	static const int spans[] = {1, 2, 11, 101};
	bool wall_wrong;

	plan->seed = seed;
	plan->nodes = nodes[dice(10)];
	plan->hosts = 1 + (int) dice(HOSTS_MAX);
	if (plan->hosts == 1 && !chance(4))
		plan->hosts = 2;
	plan->span = spans[dice(4)];
	plan->asks = 3 + (int) dice(9);
	plan->releases_max = 1 + (int) dice(3);
	plan->write_odds = 1 + (int) dice(4);
	plan->keep = chance(8);
	plan->limit = chance(8);
	plan->aged = chance(8);
	plan->faults = choose_faults();
	if ((plan_allowed & FAULT_BIT(FAULT_FORCE)) && (seed % 8 == 5 || IS_SHORT_LIST))
		plan->faults |= FAULT_BIT(FAULT_FORCE);
	choose_resources(plan);
	plan->asks *= plan->resources;
	if (plan->nodes < 3)
		plan->faults &= ~(FAULT_BIT(FAULT_TWIN) | FAULT_BIT(FAULT_ROLLING));
	plan->rolling = (plan->faults & FAULT_BIT(FAULT_ROLLING)) != 0;
	if (plan->rolling)
		plan->faults &= BESIDE_ROLLING;
	plan->renamed =
		plan->faults != 0 && chance(6) && !(plan->faults & FAULT_BIT(FAULT_RELOAD_NODES));
	plan->doubled = plan->renamed && chance(2) && plan->nodes >= 3 && !plan->rolling &&
					!(plan->faults & FAULT_BIT(FAULT_TWIN));
	plan->servers = plan->nodes - ((plan->faults & FAULT_BIT(FAULT_TWIN)) ? 1 : 0);
	plan->places = plan->nodes;
	if (plan->faults & FAULT_BIT(FAULT_RELOAD_NODES))
	{
		plan->joint = chance(2);
		plan->servers = plan->joint ? SERVERS_MAX : plan->nodes + 1;
		plan->places = plan->joint ? NODES_MAX : plan->nodes + 1 + (int) dice(2);
		if (plan->joint)
		{
			/* its keys are at the nodes of one list only */
			plan->faults &= ~FAULT_BIT(FAULT_PLAIN);
			/* a restarted server does not know its kept keys */
			plan->keep = plan->keep || chance(2);
			if (plan->keep)
				plan->faults &= ~FAULT_BIT(FAULT_SERVER);
		}
	}
	choose_times(plan);
	if (plan->rolling)
		roll(plan);
	plan->spent = plan->keep_idle_us > 0 && chance(2) ? LUA_SPAN - 1 - (int) dice(3) : 0;
	choose_persistence(plan);

	wall_wrong = (plan->faults & (FAULT_BIT(FAULT_WALL_WRONG) | FAULT_BIT(FAULT_WALL_JUMP))) != 0;
	plan->faultless = plan->faults == 0;
	plan->prompt = (plan->faults & ~(FAULT_BIT(FAULT_FORCE) | HARMLESS)) == 0 && plan->names == 1 &&
				   !plan->doubled;
	plan->lawful = seed % 16 == 0;
	plan->share = seed % 3 == 0;
	plan->guarded = (plan->faults & BEYOND) == 0;
	plan->measured =
		plan->guarded &&
		(plan->faults & (FAULT_BIT(FAULT_NODE_BACK) | FAULT_BIT(FAULT_BOOT_STEP))) == 0;
	plan->sane = plan->measured && !wall_wrong;
}

/*
 * Most often one resource.  Two names rarely share a hash, and sometimes a
 * turn.
 */
static void
choose_resources(plan *plan)
{
	bool two_prefixes = (plan->faults & FAULT_BIT(FAULT_RELOAD_PREFIX)) != 0;

	plan->names = 1;
	plan->entries = 4;
	if ((plan_allowed & FAULT_BIT(FAULT_SEVERAL)) != 0 && chance(4))
	{
		plan->names = 2 + (int) dice(2);
		plan->entries = ENTRIES_MAX;
	}
	if (two_prefixes && plan->names > RESOURCES_MAX / 2)
		plan->names = RESOURCES_MAX / 2;
	for (int r = 1; r < plan->names; r++)
	{
		plan->gate[r] = chance(6) ? plan->gate[r - 1] : r;
		plan->turn[r] = chance(3) ? plan->turn[r - 1] : r;
	}
	plan->resources = plan->names;
	for (int r = 0; r < plan->names && two_prefixes; r++)
		plan->gate[plan->resources++] = plan->gate[r];
}

static uint64_t
choose_faults(void)
{
	static const uint32_t one_in[] = {0, 10, 10, 6, 6, 6, 4, 4, 3, 2};
	uint32_t often = one_in[dice(10)];
	uint64_t faults = 0;

	if (often == 0)
		return 0;
	/* a short list of faults asks for their combinations */
	if (IS_SHORT_LIST)
		often = 2;
	for (int i = 0; i < FAULT_SEVERAL; i++)
		if (chance(often))
			faults |= FAULT_BIT(i);
	if ((plan_allowed & ALL) == ALL)
	{
		if (!chance(6))
			faults &= ~BEYOND;
		if (!chance(3))
			faults &= ~FAULT_BIT(FAULT_NODE_BACK);
		if (chance(2))
			faults &= ~FORGETFUL;
		if (!chance(3))
			faults &= ~FAULT_BIT(FAULT_ROLLING);
	}
	/*
	 * a plain client ignores quarantines, and data loss would break its leases
	 */
	if (faults & (FORGETFUL | FAULT_BIT(FAULT_TWIN)))
		faults &= ~FAULT_BIT(FAULT_PLAIN);
	/* a host without memory of a node believes the node's age */
	if (faults & FAULT_BIT(FAULT_SERVER))
		faults &= ~FAULT_BIT(FAULT_BOOT_STEP);
	/*
	 * a host with a changed list believes the age, too; a plain client reads
	 * none of our settings
	 */
	if (faults & FAULT_BIT(FAULT_RELOAD_NODES))
		faults &= ~(FAULT_BIT(FAULT_BOOT_STEP) | FAULT_BIT(FAULT_TWIN) | FAULT_BIT(FAULT_PLAIN) |
					FAULT_BIT(FAULT_ROLLING));
	if (faults & FAULT_BIT(FAULT_RELOAD_TTL))
		faults &= ~(FAULT_BIT(FAULT_BOOT_STEP) | FAULT_BIT(FAULT_ROLLING));
	return faults & plan_allowed;
}

static void
choose_times(plan *plan)
{
	static const int ttls_ms[] = {50, 100, 300, 1000, 5000};

	plan->ttl_us = ttls_ms[dice(5)] * MS;
	plan->ttl_us += dice(20) * plan->ttl_us / 20 / MS * MS;
	plan->max_ttl_us = plan->ttl_us;
	if (chance(2))
		plan->max_ttl_us += plan->ttl_us * dice(4) / 2 / MS * MS;
	plan->longer = (plan->faults & FAULT_BIT(FAULT_RELOAD_TTL)) ? 2 + (int) dice(3) : 1;
	plan->delay_us = plan->ttl_us / (40 << dice(4));
	plan->answer_us = plan->ttl_us / 2 << dice(3);
	if (plan->faults != 0 && chance(2))
		plan->answer_us = plan->ttl_us / 5;
	if (plan->faults != 0 && chance(4))
		plan->delay_us *= 3;
	/* most rounds outlast the rest of a key */
	if (plan->faults & FAULT_BIT(FAULT_LOST_VOTE))
		plan->answer_us = plan->ttl_us / 4 + dice_us(plan->ttl_us);
	/* a healthy node answers in time: both ways take up to three delays */
	if (plan->delay_us > plan->answer_us / 4)
		plan->delay_us = plan->answer_us / 4;
	plan->retry_us = plan->ttl_us / 20 + dice_us(plan->ttl_us / 5);
	plan->hold_us = chance(2) ? plan->ttl_us / 20 : chance(2) ? plan->ttl_us / 3 : plan->ttl_us * 2;
	if (plan->faults & FAULT_BIT(FAULT_LOST_VOTE))
		plan->hold_us = plan->ttl_us;
	plan->length_us = plan->ttl_us * (3 + dice(6));
	if (plan->faults & (FAULT_BIT(FAULT_RELOAD_NODES) | FAULT_BIT(FAULT_RELOAD_TTL)))
		plan->length_us += 4 * plan->max_ttl_us * plan->longer;
	plan->keep_idle_us = chance(3) ? plan->ttl_us / 10 + dice_us(3 * plan->ttl_us) : 0;
	plan->crowd_us = chance(3) ? plan->delay_us * (1 + dice(8)) : 0;
	plan->fault_every_us = plan->length_us / (1 + dice(14));
}

/*
 * One outage after the other while the lock is held and sessions wait.  The
 * network is fast: requests for a held lock collide for three messages, and
 * must leave a moment for the holder.
 */
static void
roll(plan *plan)
{
	plan->delay_us = plan->ttl_us / (640 << dice(3));
	plan->retry_us = plan->ttl_us / 8 + dice_us(plan->ttl_us / 8);
	plan->answer_us = plan->ttl_us / 5;
	plan->settle_us = plan->ttl_us;
	plan->hold_us = plan->ttl_us * (4 + dice(16));
	plan->length_us = plan->ttl_us * (10 + dice(10));
	plan->fault_every_us = plan->ttl_us / 2;
	plan->limit = false;
	plan->keep_idle_us = 0;
}

static void
choose_persistence(plan *plan)
{
	bool forgetful =
		(plan->faults & (FAULT_BIT(FAULT_RESTART_LOST) | FAULT_BIT(FAULT_LOST_VOTE))) != 0;
	bool snapshots = (plan->faults & FAULT_BIT(FAULT_ROLLBACK)) != 0;

	for (int i = 0; i < plan->servers; i++)
		plan->persistence[i] = forgetful && !chance(3)   ? KEEPS_NOTHING
							   : snapshots && !chance(3) ? KEEPS_SNAPSHOTS
														 : KEEPS_ALL;
}
