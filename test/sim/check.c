/*
 * check.c
 *		The invariants; see check.h.
 *
 * When each is demanded:
 *
 * - 1 and 8 (one holder; no vote in quarantine): in schedules with clocks
 *   within their bounds, no node's clock set forward, and no stranger who
 *   deletes keys.  Lost data are within the bounds, because of the restart
 *   guard.
 * - 2 (tokens): always while no counter was forgotten.  If nodes forget, order
 *   rests on the proposals, which carry the time.  Then order is demanded if
 *   the wall clocks of hosts and nodes differ by less than a quarantine: a
 *   node that forgot T does not vote until its own clock is well past T.
 *   Order is demanded with wrong clocks, too, if at the begin of a round each
 *   quorum still had a node that had counted to the last token.  An expired
 *   counter is no excuse, unless a node's clock is set.  A hand-over returns a
 *   token of a range granted before.  Invariant 1 makes this token the
 *   largest, so both are demanded together.  Uniqueness is demanded with the
 *   rest.
 * - 5 (no renewal past a later token, and no token between a token and the
 *   bound of its renewals): while no counter was forgotten.
 * - 12 (a grant comes): where keys and leases end in time.
 * - 23 (a complete forced release): while no counter was forgotten since its
 *   last round began.  A lease whose keys a forced release has deleted, and no
 *   renewal has created again, does not count for 1, and its hand-overs do not
 *   count for 2.
 * - 16 (survival): where only outages of durable nodes can end a lease.  A
 *   minority fails at a time, after all nodes were back for a ttl (or two, if
 *   nodes may execute old commands), and the lease was held as long.  Each
 *   node has its key again by then, too.
 * - all others: always.
 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "debt.h"
#include "fault.h"
#include "force.h"
#include "host.h"
#include "laws.h"
#include "protocol/lua.h"
#include "session.h"
#include "story.h"
#include "wire.h"
#include "word.h"

/* The published bound for drift, written again and not read from the core. */
#define VALIDITY_US(ttl_us) ((ttl_us) - (ttl_us) / 100 - 2000)

/* Hosts' clocks run at most 0.49% too fast; this allows a bit more. */
#define SLOW(us) ((us) - (us) / 200)

statistics seen;
int violated;
int check_skipped;
char violation[400];
session sessions[SESSIONS_MAX];
int session_count;

/* Of each resource. */
static struct book
{
	int64_t grants[SECRETS_MAX];
	bool shared[SECRETS_MAX]; /* by grant */
	int grant_count;
	int64_t max_granted;   /* the largest token of all ranges */
	int64_t max_exclusive; /* the largest token of exclusive leases */
	int64_t max_returned;  /* the largest token returned to a session */
	uint32_t forgets;
	bool ahead;                   /* tokens were ahead of a clock when the lists of nodes changed */
	int64_t counted[SERVERS_MAX]; /* how far each server has counted, by its answers, and did not
									 forget */
	int64_t stored;               /* the fence: the database's own row */
	int stored_by;
	int64_t shared_stored; /* the fence of readers */
	int shared_by;
	int64_t version; /* of the data behind the fence */
} books[RESOURCES_MAX];

static uint32_t released[SECRETS_MAX]
						[SERVERS_MAX]; /* the attempt whose release was executed; 0: none */
static int64_t told_until_us(const round_check *check);
static bool forgiven[SECRETS_MAX];
static bool renewal_sent[SECRETS_MAX];
static bool was_returned[SECRETS_MAX];         /* to a session */
static int64_t fooled[HOSTS_MAX][SERVERS_MAX]; /* the data loss that this host cannot know of */
static bool in_bounds;                         /* 8 is demanded, even if a host was fooled */

static struct
{
	core_lists servers; /* of the lists that count; none: the key is not kept */
	int host;
	int64_t until_us; /* by its host's clock */
} kept[SECRETS_MAX];

static void check_granted(int host, int entry);
static void check_kept_ones(int host, int entry);
static void check_order(int host, int entry);
static int64_t try_until_us(const entry *entry);
static void check_renewed(int host, int entry);
static void check_bound(int host, int entry, int64_t token, bool shared);
static int64_t floor_for(int host, int entry);
static node_reader key_of(const node_data *data, const command *command);
static int64_t counted_since(const node_data *data, const command *command);
static void check_alone(int host, int entry);
static void check_refused_try(int host, int entry);
static int64_t max_ttl_at(int host, int64_t at_us);
static void count_to(int server, const command *command, int64_t counter);
static bool is_ordered(const entry *entry);
static bool leaves_others(const command *command, const store *before, const store *after);
static bool has_other(const node_data *data, const command *command, int64_t now_ms);
static bool is_own_release_due(const command *command, const node_data *before);
static bool is_still_owed(const command *command, int node, const struct wire *wire);

void
violate(int invariant, const char *format, ...)
{
	va_list args;

	if (violated != 0 || invariant == check_skipped)
		return;
	violated = invariant;
	w.over = true;
	va_start(args, format);
	vsnprintf(violation, sizeof(violation), format, args);
	va_end(args);
	tell("VIOLATION of invariant %d: %s", invariant, violation);
}

#define demand check_demand

void
check_laws(const core_lease *before, const core_event *event, const core_lease *after,
		   const core_out *out)
{
	const char *law = laws_broken(before, event, after, out);

	demand(LAWS, law == NULL, "a law of the core is broken: %s", law);
}

void
check_begin(void)
{
	violated = 0;
	session_count = 0;
	seen.schedules++;
	seen.fault[FAULT_SEVERAL] += w.plan.names > 1;
	seen.guarded += w.plan.guarded;
	seen.renamed += w.plan.renamed;
	memset(released, 0, sizeof(released));
	memset(forgiven, 0, sizeof(forgiven));
	memset(renewal_sent, 0, sizeof(renewal_sent));
	memset(was_returned, 0, sizeof(was_returned));
	memset(kept, 0, sizeof(kept));
	debt_begin();
	memset(fooled, 0, sizeof(fooled));
	in_bounds = w.plan.guarded;
	for (int r = 0; r < w.plan.resources; r++)
	{
		memset(&books[r], 0, sizeof(books[r]));
		books[r].stored_by = books[r].shared_by = -1;
		for (int i = 0; i < w.plan.servers; i++)
			books[r].counted[i] = w.server[i].data.lock[r].counter;
	}
}

/*
 * A counter at this server is lost.  Releases there no longer refuse late
 * renewals.
 */
void
check_forgot(int server, int resource)
{
	books[resource].forgets++;
	books[resource].counted[server] = w.server[server].data.lock[resource].counter;
	for (uint32_t i = 0; i <= w.secrets; i++)
		released[i][server] = 0;
}

uint32_t
check_forgets(int resource)
{
	return books[resource].forgets;
}

/*
 * A list without the former nodes comes into force.  The new nodes count from the clock of a host
 * (docs/how-to/replace-nodes.md), and tokens of fast grants are ahead of the clock for a while.
 * Real steps take longer than the steps of a schedule.
 */
void
check_relisted(void)
{
	for (int r = 0; r < w.plan.resources; r++)
	{
		books[r].forgets++;
		for (int h = 0; h < w.plan.hosts; h++)
			books[r].ahead = books[r].ahead || books[r].max_granted >= host_wall_us(h);
	}
}

/* Do tokens follow real time, although counters may be lost? */
static bool
are_ordered(const struct book *book)
{
	return book->forgets == 0 || (w.plan.sane && !book->ahead);
}

/*
 * A host that starts after FLUSHALL takes the node for a new one, unless a
 * host with knowledge of the node reported the loss before
 * (docs/how-to/recover-a-quorum.md).  From then on two sessions may hold the
 * lock.  Hosts with knowledge of the node must not be fooled.
 */
void
check_fooled(int h, int node)
{
	const server *server = server_at(h, node);

	tell("host %c: cannot know that node %d forgot", HOST_NAME(h), node + 1);
	seen.fooled++;
	fooled[h][w.server_of[h][node]] = server->lost_at_us;
	w.plan.guarded = w.plan.sane = false;
}

void
check_outage(void)
{
	for (int h = 0; h < w.plan.hosts; h++)
		for (int k = 0; k < w.plan.entries; k++)
		{
			entry *entry = &hosts[h].entry[k];

			entry->check.steady = host_is_valid(h, k) && wish_is_held(entry->wish) &&
								  host_now_us(h) - entry->check.granted_us >= 2 * w.plan.settle_us;
			for (int n = 0; n < w.plan.nodes && entry->check.steady; n++)
			{
				wire_expire(w.server_of[h][n], entry->resource);
				demand(16, debt_stands(server_at(h, n), entry->resource, entry->secret),
					   "node %d has been well for long and lacks the key of request %u of host %c",
					   n + 1, entry->secret, HOST_NAME(h));
			}
		}
}

/*
 * A new request: notes whether any other request, lease or key exists.  Only
 * in schedules without faults.
 */
void
check_asked(int h, int s)
{
	int r = hosts[h].entry[s].resource;
	round_check *check = &hosts[h].entry[s].check;

	debt_asked(h, s);
	for (int other = 0; other < w.plan.resources; other++)
		seen.collided += other != r && w.plan.gate[other] == w.plan.gate[r];
	check->split = false;
	check->alone = check->even = w.plan.faultless;
	if (!w.plan.faultless)
		return;
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
		{
			entry *other = &hosts[i].entry[k];

			if (other == &hosts[h].entry[s] || !other->in_use || other->resource != r)
				continue;
			check->alone = other->check.alone = false;
		}
	for (int i = 0; i < w.plan.servers; i++)
	{
		local_expire(&w.server[i].data.lock[r], server_clock_us(&w.server[i]));
		if (local_has_key(&w.server[i].data.lock[r]))
			check->alone = false;
		if (w.server[i].data.lock[r].counter != w.server[0].data.lock[r].counter)
			check->even = false;
	}
}

bool
check_is_quorum(int h, core_lists lists, core_mask servers)
{
	core_mask nodes = 0;

	for (int n = w.plan.places - 1; n >= 0; n--)
	{
		core_mask bit = CORE_BIT(w.server_of[h][n]);

		if ((servers & bit) && ((lists.now | lists.next) & CORE_BIT(n)))
		{
			nodes |= CORE_BIT(n);
			servers &= ~bit; /* it counts once, under any of its names */
		}
	}
	return core_has_quorum(lists, nodes);
}

/* A round of acquires begins. */
void
check_round(int h, int s)
{
	const struct book *book = &books[hosts[h].entry[s].resource];
	round_check *check = &hosts[h].entry[s].check;
	core_mask behind = 0;

	check->began_us = host_now_us(h);
	check->began_true_us = w.now_us;
	check->floor = floor_for(h, s);
	check->forgets = book->forgets;
	check->yes = 0;
	check->valid_until_us = 0;
	for (int i = 0; i < w.plan.servers; i++)
		if (book->counted[i] < check->floor)
			behind |= CORE_BIT(i);
	check->ordered = !check_is_quorum(h, hosts[h].entry[s].drive.core.lists, behind);
}

void
check_renewal(int h, int s)
{
	round_check *check = &hosts[h].entry[s].check;

	demand(
		14,
		(wish_is_held(hosts[h].entry[s].wish) &&
		 (hosts[h].entry[s].owner == OWNER_ASKS || hosts[h].entry[s].owner == OWNER_HOLDS ||
		  (hosts[h].entry[s].owner == OWNER_DETACHED && host_now_us(h) < check->hold_until_us))) ||
			(hosts[h].entry[s].wish == WISH_IDLE &&
			 host_now_us(h) < hosts[h].entry[s].idle_until_us),
		"host %c begins to renew request %u without an owner", HOST_NAME(h),
		hosts[h].entry[s].secret);
	check->renewal_began_us = host_now_us(h);
	check->renewal_floor = floor_for(h, s);
	check->renewed = 0;
}

void
check_sent(int h, int s, int node, core_op op)
{
	const entry *entry = &hosts[h].entry[s];
	const round_check *check = &entry->check;

	if (op == CORE_OP_RENEW)
	{
		renewal_sent[entry->secret] = true;
		/*
		 * the broker learns of the release in its next pass; the release
		 * follows on the same connection
		 */
		demand(14, entry->wish != WISH_NOTHING || entry->queued,
			   "host %c renews request %u at node %d, which its owner has released", HOST_NAME(h),
			   entry->secret, node + 1);
		demand(9, host_now_us(h) < told_until_us(check),
			   "host %c renews request %u at node %d after its validity ended", HOST_NAME(h),
			   entry->secret, node + 1);
	}
	else if (op == CORE_OP_CONFIRM)
		demand(
			12, !check->alone || !check->even,
			"host %c needs a second round trip for request %u, though no other request exists and "
			"all nodes have counted alike",
			HOST_NAME(h), entry->secret);
}

/* A reply to this attempt arrives. */
void
check_answered(int h, int s, int node, const command *command, const answer *answer)
{
	entry *entry = &hosts[h].entry[s];
	round_check *check = &entry->check;
	int server = w.server_of[h][node];

	if (answer->reply != CORE_REPLY_YES || command->secret != entry->secret ||
		command->attempt != entry->drive.core.attempt)
		return;
	if (command->op == CORE_OP_ACQUIRE)
		check->yes |= CORE_BIT(server);
	else if (command->op == CORE_OP_RENEW && command->sent_us >= check->renewal_began_us)
		check->renewed |= CORE_BIT(server);
}

/* The entry is held exactly while it has readers. */
void
check_left(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];
	int readers = 0;

	for (int i = 0; i < session_count; i++)
		readers += sessions[i].host == h && sessions[i].entry == s && !sessions[i].done &&
				   sessions[i].generation == entry->drive.generation;
	demand(14, (readers > 0) == (entry->wish == WISH_HOLD),
		   "host %c %s request %u, which has %d readers", HOST_NAME(h),
		   entry->wish == WISH_HOLD ? "holds" : "releases", entry->secret, readers);
}

void
check_stay(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];

	demand(13, !entry->check.wanted && !session_is_wanted(h, s),
		   "host %c keeps request %u, which another host waits for", HOST_NAME(h), entry->secret);
	demand(13, entry->keep_us == 0 && entry->hold_at_most_us == 0,
		   "host %c keeps request %u, which has limits", HOST_NAME(h), entry->secret);
	demand(13, entry->shared || entry->handovers - w.plan.spent + 1 < entry->span,
		   "host %c keeps request %u, which has no token left", HOST_NAME(h), entry->secret);
}

/* A refused try must have ended each idle lease. */
static void
check_refused_try(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];
	int64_t asked_us = host_true_time_us(h, entry->asked_us);

	if (!w.plan.faultless || !entry->once || entry->shared)
		return;
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
		{
			const struct entry *other = &hosts[i].entry[k];

			demand(13,
				   i == h || !other->in_use || other->resource != entry->resource ||
					   !host_stays(other) ||
					   host_true_time_us(i, other->idle_until_us - other->keep_idle_us) > asked_us,
				   "request %u of host %c, a try, is refused, and host %c keeps the idle lease",
				   entry->secret, HOST_NAME(h), HOST_NAME(i));
		}
}

/*
 * Should the broker have ended the lease by now?  A paused or new broker gets
 * time to look.
 */
static bool
is_overdue(int h, int64_t end_us)
{
	const host *host = &hosts[h];
	int64_t since_us = host_true_time_us(h, end_us);

	if (since_us < host->paused_until_us)
		since_us = host->paused_until_us;
	if (since_us < host_true_time_us(h, host->broker_began_us))
		since_us = host_true_time_us(h, host->broker_began_us);
	return w.now_us > since_us + 2 * w.plan.delay_us + 1000;
}

/* Demanded only without clocks that jump. */
void
check_stays(int h)
{
	const host *host = &hosts[h];

	if ((w.plan.keep_idle_us == 0 && !w.plan.limit) || host->broker_down || !w.plan.guarded)
		return;
	for (int s = 0; s < w.plan.entries; s++)
	{
		const entry *entry = &host->entry[s];

		if (!entry->in_use)
			continue;
		demand(14, !host_stays(entry) || !is_overdue(h, entry->idle_until_us),
			   "host %c keeps request %u, whose idle time is over", HOST_NAME(h), entry->secret);
		demand(14,
			   entry->owner != OWNER_HOLDS || entry->drive.core.state != CORE_HELD ||
				   entry->check.hold_until_us == 0 || !is_overdue(h, entry->check.hold_until_us),
			   "host %c keeps request %u, whose session has held it for as long as it may",
			   HOST_NAME(h), entry->secret);
		if (entry->owner != OWNER_DETACHED)
			continue;
		demand(14, entry->drive.core.state == CORE_HELD,
			   "host %c keeps request %u, which is detached and was lost", HOST_NAME(h),
			   entry->secret);
		demand(14, !is_overdue(h, entry->check.hold_until_us),
			   "host %c keeps request %u, which is detached, beyond its end", HOST_NAME(h),
			   entry->secret);
	}
}

/* The caller got a new end, and relies on this end. */
void
check_prolonged(int h, int s, int64_t hold_at_most_us)
{
	round_check *check = &hosts[h].entry[s].check;
	int64_t left_us = hosts[h].entry[s].drive.core.granted_until_us - host_now_us(h);

	demand(3, host_is_valid(h, s), "host %c prolongs request %u, which has ended", HOST_NAME(h),
		   hosts[h].entry[s].secret);
	seen.prolonged++;
	check->tight = left_us < 8 * w.plan.delay_us + 1000;
	if (check->hold_until_us < host_now_us(h) + hold_at_most_us)
		check->hold_until_us = host_now_us(h) + hold_at_most_us;
}

/* The former holder's limit does not bind the next holder. */
void
check_held_for(int h, int s, int64_t hold_at_most_us)
{
	hosts[h].entry[s].check.hold_until_us =
		hold_at_most_us > 0 ? host_now_us(h) + hold_at_most_us : 0;
}

/* Until when the holder may believe in the lease. */
static int64_t
told_until_us(const round_check *check)
{
	return check->hold_until_us > 0 && check->hold_until_us < check->valid_until_us
			   ? check->hold_until_us
			   : check->valid_until_us;
}

void
check_disowned(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];

	demand(14,
		   entry->owner != OWNER_DETACHED || entry->drive.core.state == CORE_LOST ||
			   host_now_us(h) >= entry->check.hold_until_us,
		   "host %c ends request %u, which is detached, before its time", HOST_NAME(h),
		   entry->secret);
}

/*
 * A try may be answered late, and then wait for a recall, or longer where no
 * holder was found.
 */
static int64_t
try_until_us(const entry *entry)
{
	return entry->asked_us + w.plan.answer_us + (entry->check.split ? 5 : 1) * word_recall_us();
}

void
check_outcome(int h, int s, core_outcome outcome)
{
	entry *entry = &hosts[h].entry[s];

	switch (outcome)
	{
		case CORE_NOTHING:
			break;
		case CORE_MUST_WAIT:
			seen.recalls += entry->once;
			entry->check.split = entry->check.split || entry->drive.core.splits > 0;
			demand(12,
				   !entry->once || !w.plan.faultless ||
					   (entry->drive.core.wake_at_us <= try_until_us(entry) &&
						host_now_us(h) <= try_until_us(entry)),
				   "request %u of host %c, a try, waits for too long", entry->secret, HOST_NAME(h));
			break;
		case CORE_GRANTED:
			check_granted(h, s);
			break;
		case CORE_REFUSED:
			seen.refused++;
			tell("host %c: request %u is refused", HOST_NAME(h), entry->secret);
			demand(12, !w.plan.faultless || !entry->check.alone,
				   "request %u of host %c is refused, though no other request exists",
				   entry->secret, HOST_NAME(h));
			check_refused_try(h, s);
			break;
		case CORE_UNREACHABLE:
			seen.unreachable++;
			tell("host %c: request %u finds no quorum", HOST_NAME(h), entry->secret);
			demand(12, !w.plan.faultless, "request %u of host %c finds no quorum of healthy nodes",
				   entry->secret, HOST_NAME(h));
			demand(12,
				   entry->once || host_now_us(h) - hosts[h].broker_began_us >= 2 * w.plan.answer_us,
				   "request %u of host %c is told that there is no quorum by a broker that has not "
				   "tried for as long as patience lasts",
				   entry->secret, HOST_NAME(h));
			break;
		case CORE_RENEWED:
			check_renewed(h, s);
			break;
		case CORE_UNRENEWED:
			seen.unrenewed++;
			tell("host %c: request %u could not be renewed", HOST_NAME(h), entry->secret);
			break;
		case CORE_EXPIRED:
			seen.expired++;
			tell("host %c: the lease of request %u is lost", HOST_NAME(h), entry->secret);
			demand(14, !host_stays(entry) && !hosts[h].release[s].waits,
				   "host %c tells of the loss of request %u, which has no holder", HOST_NAME(h),
				   entry->secret);
			demand(14,
				   entry->owner != OWNER_DETACHED || host_now_us(h) < entry->check.hold_until_us,
				   "host %c loses the lease of request %u, which is detached and was to end",
				   HOST_NAME(h), entry->secret);
			demand(12,
				   !w.plan.faultless || entry->check.tight ||
					   (entry->check.hold_until_us > 0 &&
						host_now_us(h) >= entry->check.hold_until_us),
				   "host %c loses the lease of request %u for no reason", HOST_NAME(h),
				   entry->secret);
			demand(16, !entry->check.steady || !wish_is_held(entry->wish),
				   "host %c loses the lease of request %u, though a majority of nodes was well at "
				   "each time, and the rest not for long",
				   HOST_NAME(h), entry->secret);
			break;
	}
}

static void
check_granted(int h, int s)
{
	entry *entry = &hosts[h].entry[s];
	round_check *check = &entry->check;
	int64_t now_us = host_now_us(h);
	int64_t deadline_us = check->began_us + VALIDITY_US(entry->ttl_us);
	int votes = __builtin_popcount(check->yes);

	seen.granted++;
	tell("host %c: request %u is granted, valid for %.3f ms, tokens to %lld", HOST_NAME(h),
		 entry->secret, (double) (entry->drive.core.valid_until_us - now_us) / 1000,
		 (long long) (entry->drive.core.token - WALL_US - START_US));
	demand(3, now_us < deadline_us && entry->drive.core.granted_until_us <= deadline_us,
		   "request %u of host %c is granted %.3f ms after its first send, with %.3f ms to go, and "
		   "the validity of a ttl is %.3f ms",
		   entry->secret, HOST_NAME(h), (double) (now_us - check->began_us) / 1000,
		   (double) (entry->drive.core.valid_until_us - now_us) / 1000,
		   (double) VALIDITY_US(entry->ttl_us) / 1000);
	demand(4, check_is_quorum(h, entry->drive.core.lists, check->yes),
		   "request %u of host %c is granted by %d nodes", entry->secret, HOST_NAME(h), votes);
	check->granted_us = now_us;
	check->granted_true_us = w.now_us;
	check->valid_until_us = entry->drive.core.granted_until_us;
	check_held_for(h, s, entry->hold_at_most_us);
	check->tight = false;
	check->steady = false;
	check_alone(h, s);
	check_order(h, s);
	force_on_grant(h, s);
	check_kept_ones(h, s);
	if (w.calm && h == w.last_host)
		w.last_granted[entry->resource] = true;
}

/*
 * A key is kept (hold_at_least) from the grant on, if a session got the lock.
 */
void
check_kept(int h, int s, bool is_kept)
{
	const entry *entry = &hosts[h].entry[s];
	int64_t until_us = entry->check.granted_us + entry->keep_us;

	demand(8,
		   is_kept || entry->keep_us == 0 || !entry->returned || !core_ends(&entry->drive.core) ||
			   host_now_us(h) >= until_us,
		   "host %c deletes the key of request %u, which is to be kept", HOST_NAME(h),
		   entry->secret);
	if (!is_kept)
		return;
	memset(&kept[entry->secret].servers, 0, sizeof(core_lists));
	for (int n = 0; n < w.plan.places; n++)
	{
		core_mask bit = CORE_BIT(w.server_of[h][n]);

		if (entry->drive.core.lists.now & CORE_BIT(n))
			kept[entry->secret].servers.now |= bit;
		if (entry->drive.core.lists.next & CORE_BIT(n))
			kept[entry->secret].servers.next |= bit;
	}
	kept[entry->secret].host = h;
	kept[entry->secret].until_us = until_us;
}

/*
 * No grant while majorities keep the key of a released lease.  A majority of one of two lists does
 * not suffice: another host may have only the other list.
 */
static void
check_kept_ones(int h, int s)
{
	int resource = hosts[h].entry[s].resource;
	uint32_t secret = 0;
	core_mask servers = 0;

	if (!w.plan.guarded)
		return;
	for (int i = 0; i < w.plan.servers; i++)
	{
		const node_data *data = &w.server[i].data.lock[resource];

		if (!local_has_key(data) || !data->kept ||
			server_clock_us(&w.server[i]) / 1000 > data->key_end_ms)
			continue;
		if (secret != node_number(data->secret))
			servers = 0; /* a minority may have another key; the last one is as good as any */
		secret = node_number(data->secret);
		servers |= CORE_BIT(i);
	}
	demand(1,
		   secret == 0 || force_took(secret) || force_took(hosts[h].entry[s].secret) ||
			   host_now_us(kept[secret].host) >= kept[secret].until_us ||
			   kept[secret].servers.now == 0 || !core_has_quorum(kept[secret].servers, servers),
		   "request %u of host %c is granted while request %u of host %c is kept",
		   hosts[h].entry[s].secret, HOST_NAME(h), secret, HOST_NAME(kept[secret].host));
}

/* The token must exceed this.  Readers need no order among themselves. */
static int64_t
floor_for(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];

	return entry->shared ? books[entry->resource].max_exclusive
						 : books[entry->resource].max_granted;
}

/*
 * Tokens exceed all tokens granted before the request, and are no other
 * grant's.
 */
static void
check_order(int h, int s)
{
	const entry *entry = &hosts[h].entry[s];
	struct book *book = &books[entry->resource];
	int64_t last = entry->drive.core.token;
	int64_t first = last - LUA_SPAN + 1;

	if (is_ordered(entry))
		demand(
			2, first > entry->check.floor,
			"host %c is granted the tokens %lld to %lld, though %lld was granted before it asked",
			HOST_NAME(h), (long long) (first - WALL_US - START_US),
			(long long) (last - WALL_US - START_US),
			(long long) (entry->check.floor - WALL_US - START_US));
	if (are_ordered(book))
		for (int i = 0; i < book->grant_count; i++)
			demand(2,
				   (entry->shared && book->shared[i]) || book->grants[i] < first ||
					   book->grants[i] - LUA_SPAN >= last,
				   "host %c is granted the tokens %lld to %lld, some of which were granted before",
				   HOST_NAME(h), (long long) (first - WALL_US - START_US),
				   (long long) (last - WALL_US - START_US));
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
			if ((i != h || k != s) && hosts[i].entry[k].drive.core.state == CORE_HELD &&
				hosts[i].entry[k].resource == entry->resource)
				check_bound(i, k, last, entry->shared);
	if (book->grant_count < SECRETS_MAX)
	{
		book->shared[book->grant_count] = entry->shared;
		book->grants[book->grant_count++] = last;
	}
	if (last > book->max_granted)
		book->max_granted = last;
	if (last > book->max_exclusive && !entry->shared)
		book->max_exclusive = last;
}

/* A renewal with a bound beyond the token relies on no token between them. */
static void
check_bound(int h, int s, int64_t token, bool shared)
{
	const core_lease *lease = &hosts[h].entry[s].drive.core;

	if (books[hosts[h].entry[s].resource].forgets == 0 && !(shared && hosts[h].entry[s].shared))
		demand(5, token <= lease->token || token > lease->bound,
			   "token %lld is granted, and host %c renews request %u with token %lld up to %lld",
			   (long long) (token - WALL_US - START_US), HOST_NAME(h), hosts[h].entry[s].secret,
			   (long long) (lease->token - WALL_US - START_US),
			   (long long) (lease->bound - WALL_US - START_US));
}

static bool
is_ordered(const entry *entry)
{
	const struct book *book = &books[entry->resource];

	return are_ordered(book) || (entry->check.ordered && entry->check.forgets == book->forgets);
}

static void
check_renewed(int h, int s)
{
	entry *entry = &hosts[h].entry[s];
	const struct book *book = &books[entry->resource];
	round_check *check = &entry->check;
	int64_t now_us = host_now_us(h);
	int64_t valid_until_us = entry->drive.core.granted_until_us;
	int votes = __builtin_popcount(check->renewed);
	core_lists lists = entry->drive.core.lists;

	if (!entry->drive.core.settled)
		lists.next = 0;
	seen.renewed++;
	tell("host %c: request %u is renewed, valid for %.3f ms", HOST_NAME(h), entry->secret,
		 (double) (valid_until_us - now_us) / 1000);
	demand(9, now_us < told_until_us(check) && valid_until_us >= check->valid_until_us,
		   "host %c renews request %u from %.3f ms to %.3f ms from now", HOST_NAME(h),
		   entry->secret, (double) (check->valid_until_us - now_us) / 1000,
		   (double) (valid_until_us - now_us) / 1000);
	demand(9, check->hold_until_us == 0 || entry->drive.core.valid_until_us <= check->hold_until_us,
		   "host %c renews request %u beyond its limit", HOST_NAME(h), entry->secret);
	demand(3,
		   valid_until_us <= check->renewal_began_us + VALIDITY_US(entry->ttl_us) ||
			   valid_until_us == check->valid_until_us,
		   "request %u of host %c is valid for longer than its renewal gives", entry->secret,
		   HOST_NAME(h));
	demand(4, check_is_quorum(h, lists, check->renewed),
		   "request %u of host %c is renewed by %d nodes in this round", entry->secret,
		   HOST_NAME(h), votes);
	if (book->forgets == 0)
		demand(5, check->renewal_floor <= entry->drive.core.token,
			   "host %c renews request %u with token %lld, though %lld was granted before",
			   HOST_NAME(h), entry->secret,
			   (long long) (entry->drive.core.token - WALL_US - START_US),
			   (long long) (check->renewal_floor - WALL_US - START_US));
	for (int i = 0; i < book->grant_count; i++)
		check_bound(h, s, book->grants[i], book->shared[i]);
	check->valid_until_us = valid_until_us;
	check_alone(h, s);
}

/*
 * Validity begins, or continues: no other lease may be valid by its own host's
 * clock.
 */
static void
check_alone(int h, int s)
{
	int r = hosts[h].entry[s].resource;

	if (!w.plan.guarded)
		return;
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
		{
			const entry *other = &hosts[i].entry[k];
			bool there = !(i == h && k == s) && other->resource == r && host_is_valid(i, k) &&
						 !force_took(other->secret) && !force_took(hosts[h].entry[s].secret);
			bool both = other->shared && hosts[h].entry[s].shared;

			seen.beside += there && both;
			demand(1, !there || both,
				   "host %c holds the lock by request %u, and host %c by request %u", HOST_NAME(i),
				   hosts[i].entry[k].secret, HOST_NAME(h), hosts[h].entry[s].secret);
		}
	demand(1, !fault_plain_is_valid(r) || force_took(hosts[h].entry[s].secret),
		   "the plain client holds the lock, and host %c by request %u", HOST_NAME(h),
		   hosts[h].entry[s].secret);
}

void
check_plain(int resource)
{
	if (!w.plan.guarded)
		return;
	for (int i = 0; i < w.plan.hosts; i++)
		for (int k = 0; k < w.plan.entries; k++)
			demand(1,
				   hosts[i].entry[k].resource != resource || !host_is_valid(i, k) ||
					   force_took(hosts[i].entry[k].secret),
				   "the plain client holds the lock, and host %c by request %u", HOST_NAME(i),
				   hosts[i].entry[k].secret);
}

void
check_joined(int h, int s)
{
	demand(13, !session_is_wanted(h, s),
		   "a session joins request %u of host %c, which another host waits for",
		   hosts[h].entry[s].secret, HOST_NAME(h));
	check_alone(h, s);
}

/* A session gets its token.  Returns the session, or -1. */
int
check_returned(int h, int s, int resource, int64_t token, bool handed_over)
{
	const entry *entry = &hosts[h].entry[s];
	struct book *book = &books[resource];
	int id = session_count;

	was_returned[entry->secret] = true;
	demand(1, entry->resource == resource,
		   "a session of host %c that asked for lock %d gets lock %d", HOST_NAME(h), resource + 1,
		   entry->resource + 1);
	demand(3, entry->drive.core.state == CORE_HELD && host_now_us(h) < told_until_us(&entry->check),
		   "a session of host %c gets the lock by request %u, which is over", HOST_NAME(h),
		   entry->secret);

	demand(13, token > entry->drive.core.token - LUA_SPAN && token <= entry->drive.core.bound,
		   "host %c hands out token %lld of a range of %d up to %lld, or up to %lld", HOST_NAME(h),
		   (long long) (token - WALL_US - START_US), LUA_SPAN,
		   (long long) (entry->drive.core.token - WALL_US - START_US),
		   (long long) (entry->drive.core.bound - WALL_US - START_US));
	seen.beyond += token > entry->drive.core.token;
	demand(13, entry->handovers - w.plan.spent < entry->span,
		   "host %c hands request %u over for the %dth time", HOST_NAME(h), entry->secret,
		   entry->handovers);
	if (handed_over)
	{
		seen.handed_over++;
		tell("host %c: request %u is handed over, token %lld", HOST_NAME(h), entry->secret,
			 (long long) (token - WALL_US - START_US));
		for (int i = 0; i < session_count; i++)
			demand(13,
				   sessions[i].host != h || sessions[i].entry != s ||
					   sessions[i].generation != entry->drive.generation ||
					   sessions[i].token < token,
				   "host %c hands out token %lld again", HOST_NAME(h),
				   (long long) (token - WALL_US - START_US));
		if (w.plan.guarded && is_ordered(entry) && !force_took(entry->secret))
			demand(2, token > book->max_returned,
				   "host %c hands out token %lld, and %lld was returned before", HOST_NAME(h),
				   (long long) (token - WALL_US - START_US),
				   (long long) (book->max_returned - WALL_US - START_US));
	}
	if (token > book->max_returned)
		book->max_returned = token;
	if (id == SESSIONS_MAX)
		return -1;
	sessions[id] = (session){.host = h,
							 .entry = s,
							 .resource = resource,
							 .generation = entry->drive.generation,
							 .token = token,
							 .began_us = handed_over && !force_took(entry->secret)
											 ? w.now_us
											 : entry->check.began_true_us,
							 .returned_us = w.now_us,
							 .shared = entry->shared,
							 .handed_over = handed_over};
	session_count++;
	return id;
}

/*
 * A session writes to the fenced row.  It looks at its lease first, unless it
 * stalled.
 */
void
check_write(int id)
{
	session *session = &sessions[id];
	struct book *book = &books[session->resource];
	bool stale = false;

	if (session->done || session->storing)
		return;
	if (!session->paused && (!session_has(id, session->host, session->entry) ||
							 !host_is_valid(session->host, session->entry)))
		return;
	demand(3,
		   session->paused || host_now_us(session->host) <
								  told_until_us(&hosts[session->host].entry[session->entry].check),
		   "a session of host %c writes, though it has held the lock for as long as it may",
		   HOST_NAME(session->host));
	seen.writes++;
	for (int i = 0; i < session_count; i++)
		stale = stale || (sessions[i].resource == session->resource &&
						  sessions[i].began_us >= session->returned_us + (i == id));
	if (stale && session->paused)
		seen.stale++;
	seen.deceived += stale && !session->paused;
	tell("host %c: writes with token %lld%s: %s", HOST_NAME(session->host),
		 (long long) (session->token - WALL_US - START_US),
		 stale ? ", though another was granted the lock since" : "",
		 book->stored <= session->token &&
				 (session->shared || book->shared_stored <= session->token)
			 ? "accepted"
			 : "fenced off");
	if (book->stored > session->token || (!session->shared && book->shared_stored > session->token))
	{
		seen.fenced += session->paused && stale;
		return;
	}
	/*
	 * the last writer was granted the lock after our token was returned: we
	 * are stale
	 */
	if (book->stored_by >= 0 && book->stored_by != id &&
		sessions[book->stored_by].began_us > session->returned_us && are_ordered(book) &&
		(w.plan.guarded || !sessions[book->stored_by].handed_over))
		demand(2, false, "a stale write with token %lld is accepted after one with %lld",
			   (long long) (session->token - WALL_US - START_US),
			   (long long) (book->stored - WALL_US - START_US));
	if (!session->shared && book->shared_by >= 0 &&
		sessions[book->shared_by].began_us > session->returned_us && are_ordered(book))
		demand(2, false,
			   "a stale write with token %lld is accepted after a reader's write with %lld",
			   (long long) (session->token - WALL_US - START_US),
			   (long long) (book->shared_stored - WALL_US - START_US));
	if (session->shared)
	{
		if (book->shared_stored < session->token)
		{
			book->shared_stored = session->token;
			book->shared_by = id;
		}
		return;
	}
	book->stored = session->token;
	book->stored_by = id;
	session->read = book->version;
	session->storing = true;
	later(w.now_us + 1 + dice_us(session->paused ? w.plan.ttl_us : w.plan.delay_us), EVENT_STORE,
		  session->host, 0, session->entry, (uint32_t) id);
}

/*
 * UPDATE ... WHERE token = mine, of data read after the token was written.  No
 * update is lost under any clocks, as long as tokens are unique.
 */
void
check_store(int id)
{
	session *session = &sessions[id];
	struct book *book = &books[session->resource];

	session->storing = false;
	if (book->stored != session->token)
	{
		seen.passed++;
		return;
	}
	seen.stored++;
	if (are_ordered(book))
		demand(2, book->version == session->read,
			   "host %c stores with token %lld over what another did with it since it read",
			   HOST_NAME(session->host), (long long) (session->token - WALL_US - START_US));
	book->version++;
}

/*
 * Checks a command that a node executed.  `behind` is the connection that
 * delivered it in order; NULL: an old socket.
 */
void
check_executed(int node, int s, const command *command, const store *store, const answer *answer,
			   const struct wire *behind)
{
	const server *server = &w.server[s];
	const node_data *before = &store->lock[command->resource];
	const node_data *after = &server->data.lock[command->resource];
	int64_t now_ms = server_clock_us(server) / 1000;
	node_reader was = key_of(before, command);
	node_reader is = key_of(after, command);
	bool same = node_number(was.secret) == command->secret && was.attempt == command->attempt;
	bool yes = answer->reply == CORE_REPLY_YES;
	const entry *entry = &hosts[command->host].entry[command->entry];

	if (command->shared && node_number(is.secret) != 0 &&
		(node_number(was.secret) == 0 || was.attempt != is.attempt || was.end_ms != is.end_ms))
		debt_placed_reader(s, command->secret, node,
						   behind != NULL &&
							   host_now_us(command->host) - command->sent_us <= w.plan.answer_us);
	else if (command->shared)
		;
	else if (!local_is(after->secret, before->secret) || after->attempt != before->attempt ||
			 after->key_end_ms != before->key_end_ms)
		debt_placed(s, command->resource, node,
					behind != NULL &&
						host_now_us(command->host) - command->sent_us <= w.plan.answer_us);
	demand(6, leaves_others(command, store, &server->data),
		   "node %d changes another lock for request %u of host %c", node + 1, command->secret,
		   HOST_NAME(command->host));
	demand(2, after->counter >= before->counter,
		   "node %d counts backwards, for request %u of host %c", node + 1, command->secret,
		   HOST_NAME(command->host));
	for (int i = 0; command->shared && yes && local_has_key(after) && i < after->readers; i++)
		demand(7, after->key_end_ms >= after->reader[i].end_ms,
			   "node %d drops the lock before the end of its reader, request %u", node + 1,
			   node_number(after->reader[i].secret));
	if (yes)
		force_releases(s, command);
	switch (command->op)
	{
		case CORE_OP_ACQUIRE:
			demand(12, yes || !w.plan.faultless || !is_own_release_due(command, before),
				   "node %d refuses request %u of host %c, which has not released request %u there",
				   node + 1, command->secret, HOST_NAME(command->host),
				   node_number(before->secret));
			if (!yes || same)
				break;
			count_to(s, command, answer->token);
			demand(7, is.end_ms <= now_ms + command->ttl_ms,
				   "node %d keeps request %u for longer than its ttl", node + 1, command->secret);
			if (behind != NULL)
				demand(7, is_still_owed(command, node, behind),
					   "request %u of host %c leaves a key at node %d without a release",
					   command->secret, HOST_NAME(command->host), node + 1);
			if (in_bounds && server->lost_at_us != 0 &&
				server->lost_at_us != fooled[command->host][s])
				demand(8,
					   w.now_us - server->lost_at_us >=
						   SLOW(max_ttl_at(command->host, server->lost_at_us)),
					   "node %d votes for request %u of host %c %.3f ms after it lost data",
					   node + 1, command->secret, HOST_NAME(command->host),
					   (double) (w.now_us - server->lost_at_us) / 1000);
			break;
		case CORE_OP_CONFIRM:
			if (yes)
				count_to(s, command, command->token);
			break;
		case CORE_OP_RENEW:
			if (!yes)
				break;
			count_to(s, command, command->token);
			demand(5,
				   same || entry->drive.generation != command->generation ||
					   counted_since(before, command) <= entry->drive.core.bound,
				   "node %d renews request %u of host %c, and had counted beyond its bound",
				   node + 1, command->secret, HOST_NAME(command->host));
			force_on_renewal(s, command);
			demand(5, after->counter >= command->token,
				   "node %d renews request %u of host %c and does not count as far as its bound",
				   node + 1, command->secret, HOST_NAME(command->host));
			/*
			 * a forgotten counter cannot refuse: check_forgot clears
			 * `released`, too
			 */
			demand(6, released[command->secret][s] < command->attempt,
				   "node %d renews request %u of host %c after it executed its release", node + 1,
				   command->secret, HOST_NAME(command->host));
			demand(9, !same || is.end_ms >= was.end_ms,
				   "node %d shortens the ttl of request %u by a renewal", node + 1,
				   command->secret);
			demand(7,
				   is.end_ms <= now_ms + command->ttl_ms ||
					   (is.attempt == was.attempt && is.end_ms == was.end_ms),
				   "node %d keeps request %u for longer than its ttl", node + 1, command->secret);
			break;
		case CORE_OP_RELEASE:
			demand(6,
				   !local_has_key(before) || local_has_key(after) ||
					   (node_number(was.secret) == command->secret &&
						was.attempt <= command->attempt && !has_other(before, command, now_ms)),
				   "node %d deletes the key of request %u, attempt %u, at the release of request "
				   "%u, attempt %u",
				   node + 1, node_number(before->secret), before->attempt, command->secret,
				   command->attempt);
			demand(6, command->counter == 0 || renewal_sent[command->secret],
				   "the release of request %u of host %c raises the counter at node %d, though "
				   "no renewal was ever sent that could come late",
				   command->secret, HOST_NAME(command->host), node + 1);
			demand(11, command->ttl_ms <= 0 || was_returned[command->secret],
				   "node %d keeps the key of request %u of host %c, which no session was told of",
				   node + 1, command->secret, HOST_NAME(command->host));
			count_to(s, command, command->counter);
			if (released[command->secret][s] < command->attempt)
				released[command->secret][s] = command->attempt;
			break;
	}
}

/* A quarantine that has begun is no longer than max_ttl was then. */
static int64_t
max_ttl_at(int h, int64_t at_us)
{
	return hosts[h].max_ttl_since_us <= at_us ? hosts[h].max_ttl_us : w.plan.max_ttl_us;
}

static void
count_to(int server, const command *command, int64_t counter)
{
	int64_t *counted = &books[command->resource].counted[server];

	if (*counted < counter)
		*counted = counter;
}

/* Are the locks of other names unchanged? */
static bool
leaves_others(const command *command, const store *before, const store *after)
{
	for (int r = 0; r < w.plan.resources; r++)
		if (r != command->resource &&
			memcmp(&before->lock[r], &after->lock[r], sizeof(node_data)) != 0)
			return false;
	return true;
}

/* The reader, of a shared command; else the key. */
static node_reader
key_of(const node_data *data, const command *command)
{
	for (int i = 0; command->shared && local_has_key(data) && data->shared && i < data->readers;
		 i++)
		if (node_number(data->reader[i].secret) == command->secret)
			return data->reader[i];
	if (command->shared || !local_has_key(data))
		return (node_reader){0};
	return (node_reader){data->secret, data->attempt, data->host, 0, data->key_end_ms};
}

/*
 * The counter when this reader came, or when the last exclusive lease was
 * granted.
 */
static int64_t
counted_since(const node_data *data, const command *command)
{
	node_reader reader = key_of(data, command);
	int64_t since = data->counter;

	if (command->shared && local_has_key(data) && data->shared && data->since >= 0)
		since = data->since;
	return command->shared && node_number(reader.secret) != 0 && reader.granted < since
			   ? reader.granted
			   : since;
}

static bool
has_other(const node_data *data, const command *command, int64_t now_ms)
{
	for (int i = 0; command->shared && i < data->readers; i++)
		if (node_number(data->reader[i].secret) != command->secret &&
			data->reader[i].end_ms > now_ms)
			return true;
	return false;
}

/*
 * Is a released key of its own host in the way?  A lost lease may be released
 * after the next request.
 */
static bool
is_own_release_due(const command *command, const node_data *before)
{
	for (int s = 0; s < w.plan.entries; s++)
	{
		const entry *entry = &hosts[command->host].entry[s];

		if (entry->in_use && entry->secret == node_number(before->secret) && !before->shared &&
			entry->wish == WISH_NOTHING && entry->keep_us == 0 &&
			host_now_us(command->host) < told_until_us(&entry->check))
			return true;
	}
	return false;
}

/* Does the lease know of the key, or is a release behind its acquire? */
static bool
is_still_owed(const command *command, int node, const struct wire *wire)
{
	const entry *entry = &hosts[command->host].entry[command->entry];

	if (forgiven[command->secret])
		return true;
	if (entry->drive.generation == command->generation && entry->drive.core.state != CORE_FREE &&
		entry->drive.core.node[node].key != CORE_KEY_ABSENT)
		return true;
	for (uint32_t i = wire->executed; i != wire->tail; i++)
		if (wire->command[i % WIRE_MAX].op == CORE_OP_RELEASE &&
			wire->command[i % WIRE_MAX].secret == command->secret)
			return true;
	return false;
}

void
check_over(int h, int s)
{
	hosts[h].entry[s].check.over_us = host_now_us(h);
	debt_over(h, s);
}

/*
 * The lease is over: its keys have been deleted, have expired, or are forgiven
 * by the shell.
 */
void
check_freed(int h, int s, bool shell_forgives)
{
	const entry *entry = &hosts[h].entry[s];
	bool expired = host_now_us(h) >= entry->check.over_us + w.plan.answer_us + entry->ttl_us;
	bool left_long_ago = entry->relisted_true_us > 0 &&
						 w.now_us >= entry->relisted_true_us + w.plan.answer_us + entry->ttl_us;
	core_mask members = 0;

	if (entry->secret == 0)
		return;
	tell("host %c: request %u is over", HOST_NAME(h), entry->secret);
	if (shell_forgives)
		debt_forgiven(h, s);
	if (shell_forgives || expired)
	{
		forgiven[entry->secret] = true;
		return;
	}
	for (int n = 0; n < w.plan.places; n++)
		if (entry->drive.core.members & CORE_BIT(n))
			members |= CORE_BIT(w.server_of[h][n]);
	for (int i = 0; i < w.plan.servers; i++)
		demand(7,
			   entry->keep_us > 0 || (stained[h] & CORE_BIT(i)) ||
				   (left_long_ago && !(members & CORE_BIT(i))) ||
				   !debt_stands(&w.server[i], entry->resource, entry->secret),
			   "request %u of host %c is over, and its key is still at server %d", entry->secret,
			   HOST_NAME(h), i + 1);
}

/*
 * Each used list of waiting hosts belongs to one entry, or to one turn that
 * goes on.
 */
void
check_waiters(int h)
{
	const host *host = &hosts[h];

	for (int i = 0; i < KNOWN_MAX; i++)
	{
		core_mask turns = 0; /* two names may share a turn */
		int owners = 0;

		for (int s = 0; s < w.plan.entries; s++)
			owners += host->of_entry[s].known == &host->known[i];
		for (int g = 0; g < w.plan.resources; g++)
		{
			core_mask turn = CORE_BIT(w.plan.turn[g]);

			owners +=
				!(turns & turn) && host->driver.pause[w.plan.turn[g]].known == &host->known[i];
			turns |= turn;
		}
		demand(13, owners == host->known_used[i], "host %c has list %d of waiting hosts %d times",
			   HOST_NAME(h), i + 1, owners);
	}
}

/* EVENT_LIMIT */
void
check_limit(void)
{
	for (int r = 0; r < w.plan.resources && w.plan.measured; r++)
		demand(12, w.last_granted[r],
			   "faults have stopped, all have released, and host %c is not granted lock %d",
			   HOST_NAME(w.last_host), r + 1);
}

/* No event is left. */
void
check_end(void)
{
	if (violated != 0)
		return;
	for (int h = 0; h < w.plan.hosts; h++)
		for (int s = 0; s < w.plan.entries; s++)
			demand(12, !hosts[h].entry[s].in_use, "request %u of host %c never ends",
				   hosts[h].entry[s].secret, HOST_NAME(h));
}
