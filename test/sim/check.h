/*
 * check.h
 *		The invariants of CONTRIBUTING.md, each by its number.
 *
 * The checker watches commands, their execution at nodes, and what sessions
 * read. It counts votes, validity and tokens by itself.  From the core it
 * reads nothing but the state.
 */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "node.h"
#include "protocol/core.h"
#include "world.h"

struct wire; /* of wire.h */

#define LAWS 17       /* of the core alone: test/unit/laws.h */
#define FORCED 23     /* what a complete forced release promises */
#define INVARIANTS 24 /* 1 to 16, as far as the simulator checks them, and these two */

/* The checker's record of a lease's rounds. */
typedef struct round_check
{
	int64_t began_us;         /* by the host's clock, before the first send */
	int64_t began_true_us;    /* of the acquire */
	int64_t floor;            /* the largest token granted before */
	uint32_t forgets;         /* losses of counters before */
	bool ordered;             /* tokens exceed `floor` even if nodes have forgotten */
	bool alone;               /* no other request, lease or debt existed */
	bool split;               /* a round of this request found no holder */
	bool even;                /* all nodes had counted equally far */
	core_mask yes;            /* servers that granted this attempt */
	core_mask renewed;        /* servers that renewed in this round */
	int64_t renewal_began_us; /* by the host's clock */
	int64_t renewal_floor;    /* the largest token granted before */
	int64_t granted_us;
	int64_t granted_true_us;
	int64_t valid_until_us; /* by the nodes, as last reported */
	int64_t over_us;        /* by the host's clock: the last keys expire from here */
	int64_t hold_until_us;  /* limit reported to sessions; 0: none */
	bool wanted;            /* another host waits, and the lease is exclusive */
	bool tight;             /* prolonged when renewing was hardly possible any more */
	bool steady;            /* held long enough before the last failure of nodes */
} round_check;

typedef struct session
{
	int host;
	int entry;
	int resource;
	uint32_t generation;
	int64_t token;
	int64_t began_us;    /* true time */
	int64_t returned_us; /* true time */
	bool handed_over;
	bool shared;
	int64_t read; /* version of the data that the session read behind the fence */
	bool storing; /* will store a new version */
	bool paused;  /* only this session stalls, and writes without looking at its lease */
	bool done;
} session;

/* Counts of a campaign. */
typedef struct statistics
{
	int64_t schedules;
	int64_t events;
	int64_t granted;
	int64_t confirmed; /* grants with a second round trip */
	int64_t refused;
	int64_t unreachable;
	int64_t renewed;
	int64_t unrenewed;
	int64_t expired;
	int64_t handed_over;
	int64_t joined;         /* sessions that joined a shared lease of their host */
	int64_t beside;         /* shared grants beside readers of other hosts */
	int64_t taken_idle;     /* hand-overs of an idle lease */
	int64_t gone_on;        /* turns continued with another entry */
	int64_t awaited_tokens; /* looks of sessions that wait for more tokens */
	int64_t stays_over;     /* idle leases until their end */
	int64_t recalled;       /* idle leases until a recall */
	int64_t detached;       /* detached leases */
	int64_t prolonged;      /* detached leases that were prolonged */
	int64_t holds_over;     /* detached leases held until their limit */
	int64_t recalls;        /* rounds of tries, refused by an idle lease */
	int64_t beyond;         /* tokens beyond those of the grant */
	int64_t cancelled;      /* grants whose owner was cancelled before reading */
	int64_t sent_again;     /* commands after NOSCRIPT */
	int64_t replaced;       /* connections, in the middle of rounds */
	int64_t deceived;       /* writes of stale holders whose own clock showed a valid lease */
	int64_t too_late;       /* grants already over when their owner read the outcome */
	int64_t vanished;       /* owners that died without a release */
	int64_t aged;
	int64_t writes;
	int64_t stale;            /* writes after a newer holder: what the lease lets through */
	int64_t fenced;           /* stale writes refused by the fence */
	int64_t stored;           /* updates of data read behind the fence */
	int64_t passed;           /* updates refused because of a newer holder */
	int64_t short_of_indexes; /* lists that waited for node indexes in use */
	int64_t longer;           /* requests with a ttl too long for the former max_ttl */
	int64_t moved;            /* requests moved to the new nodes */
	int64_t left;             /* nodes closed when their last lease ended */
	int64_t relisted;         /* held leases that got other lists */
	int64_t settled;          /* joint changes: all leases came to be on both lists */
	int64_t replaced_lists;   /* joint changes: the new list alone is in force */
	int64_t mixed;            /* script calls with commands for several locks */
	int64_t collided;         /* requests for a name whose hash another name has */
	int64_t beside_lost;      /* requests beside an unreleased lost lease of the same host */
	int64_t waited;           /* releases that waited for room */
	int64_t late;             /* commands executed from old sockets */
	int64_t debts;            /* unwanted keys at reachable nodes, looked at */
	int64_t repairs;          /* keys of leases at nodes that came back, looked at */
	int64_t forced;           /* forced releases that were complete */
	int64_t forced_again;     /* rounds that another round followed */
	int64_t forced_failed;    /* forced releases that were not complete */
	int64_t forced_over;      /* leases that a complete forced release ended */
	int64_t quarantines;
	int64_t fooled;  /* hosts that met a node too late to know of its loss */
	int64_t renamed; /* schedules with other node names on other hosts */
	int64_t guarded; /* schedules that demand invariant 1 */
	int64_t fault[FAULTS];
	int64_t checked[INVARIANTS];
} statistics;

extern statistics seen;

/* The first violation of this schedule; 0: none. */
extern int violated;
extern int check_skipped; /* invariant not demanded; 0: all are */
extern char violation[400];
extern session sessions[SESSIONS_MAX];
extern int session_count;

extern void check_begin(void);

/* Hosts */
extern void check_laws(const core_lease *before, const core_event *event, const core_lease *after,
					   const core_out *out);
extern void check_asked(int host, int entry);
extern void check_round(int host, int entry);
extern void check_renewal(int host, int entry);
extern void check_sent(int host, int entry, int node, core_op op);
extern void check_kept(int host, int entry,
					   bool kept); /* a release is sent, and may keep the key */
extern void check_answered(int host, int entry, int node, const command *command,
						   const answer *answer);
extern void check_outcome(int host, int entry, core_outcome outcome);
extern void check_over(int host, int entry); /* the core begins to delete keys */
extern void check_freed(int host, int entry, bool forgiven);
extern void check_joined(int host, int entry); /* a session joins the readers */
extern void check_left(int host, int entry);   /* a reader has left */
extern void check_stay(int host, int entry);   /* the owner leaves the lease idle */
extern void check_stays(int host);             /* idle and detached leases of a host, at any time */
extern void check_prolonged(int host, int entry, int64_t hold_at_most_us);
/* The lease has another holder with this limit; 0: no limit, or no holder. */
extern void check_held_for(int host, int entry, int64_t hold_at_most_us);
extern void check_disowned(int host, int entry); /* the broker ends the lease for its owner */

/* Sessions */
/* a session gets the lock */
extern int check_returned(int host, int entry, int resource, int64_t token, bool handed_over);
extern void check_write(int session);
extern void check_store(int session);

/* Nodes */
extern void check_executed(int node, int server, const command *command, const store *before,
						   const answer *answer, const struct wire *behind);
extern void check_forgot(int server, int resource); /* the counter is lost */
extern uint32_t check_forgets(int resource);        /* how often counters were lost */

/* Are these servers a majority of each list?  The lists have the node indexes of the host. */
extern bool check_is_quorum(int host, core_lists lists, core_mask servers);

/* Counts a check of an invariant, which `holds` or not. */
#define check_demand(invariant, holds, ...)                                                        \
	do                                                                                             \
	{                                                                                              \
		seen.checked[invariant]++;                                                                 \
		if (!(holds))                                                                              \
			violate(invariant, __VA_ARGS__);                                                       \
	} while (0)

extern void check_relisted(void); /* other nodes vote than those that counted before */
extern void check_fooled(int host, int node);
extern void check_outage(void); /* a minority fails after all nodes were well for long enough */

/* The plain client, and the end */
extern void check_plain(int resource);

extern void check_waiters(int host);
extern void check_limit(void);
extern void check_end(void);
extern void violate(int invariant, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* SIM_CHECK_H */
