/*
 * check.h
 *		The invariants of the design (section 7; also in CONTRIBUTING.md), each by
 *		its number.
 *
 * The checker sees what hosts send, what nodes execute and what sessions are
 * told.  It counts votes, validity and tokens by itself and asks the core for
 * nothing but its state.
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
#define INVARIANTS 18 /* 1 .. 16, of which the simulator checks some, and the laws */

/* What the checker knows of a lease's round. */
typedef struct round_check
{
	int64_t began_us;         /* by the host's clock, before the first send */
	int64_t began_true_us;    /* of the acquire */
	int64_t floor;            /* the largest token that was granted before */
	uint32_t forgets;         /* losses of counters before */
	bool ordered;             /* later than `floor` even if nodes have forgotten */
	bool alone;               /* nobody else had, asked for, or owed anything */
	bool split;               /* a round of this request found no holder */
	bool even;                /* ... and all nodes had counted as far */
	core_mask yes;            /* servers that granted this attempt */
	core_mask renewed;        /* servers that renewed in this round */
	int64_t renewal_began_us; /* by the host's clock */
	int64_t renewal_floor;    /* the largest token that was granted before */
	int64_t granted_us;
	int64_t granted_true_us;
	int64_t valid_until_us; /* by the nodes, as told last */
	int64_t over_us;        /* by the host's clock: what is owed expires from here */
	int64_t hold_until_us;  /* as long as sessions were told that it may be held; 0: no limit */
	bool wanted;            /* another host waits for it, and it is not shared */
	bool tight;             /* it was prolonged when that was hardly possible any more */
	bool steady;            /* held for long enough when nodes failed last */
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
	int64_t read; /* the version of the data that it found behind the fence */
	bool storing; /* what it made of that */
	bool paused;  /* the session alone: it looks at nothing before it writes */
	bool done;
} session;

/* Counts of a campaign. */
typedef struct statistics
{
	int64_t schedules;
	int64_t events;
	int64_t granted;
	int64_t confirmed; /* grants that needed a second round trip */
	int64_t refused;
	int64_t unreachable;
	int64_t renewed;
	int64_t unrenewed;
	int64_t expired;
	int64_t handed_over;
	int64_t joined;         /* sessions that came to share a lease of their host */
	int64_t beside;         /* grants beside those who share the lock from other hosts */
	int64_t taken_idle;     /* of these, after a stay with nobody */
	int64_t gone_on;        /* turns that went on with another entry */
	int64_t awaited_tokens; /* looks of who waits for more of them, which are under way */
	int64_t stays_over;     /* leases that stayed with nobody until the end of that */
	int64_t recalled;       /* ... until another host wanted them */
	int64_t detached;       /* leases of no session */
	int64_t prolonged;      /* ... that were told to go on */
	int64_t holds_over;     /* ... that were held until the end of that */
	int64_t recalls;    /* rounds of tries that were refused by a host that gives up its stays */
	int64_t beyond;     /* tokens given out beyond those of the grant */
	int64_t cancelled;  /* grants whose owner gave up before it knew */
	int64_t sent_again; /* commands after NOSCRIPT */
	int64_t replaced;   /* connections, in the middle of rounds */
	int64_t
		deceived; /* writes of stale holders whose own clock told them that they hold the lock */
	int64_t too_late; /* grants that were over when their owner looked */
	int64_t vanished; /* owners that went without a word */
	int64_t aged;
	int64_t writes;
	int64_t stale;  /* writes after a newer holder was there: what the lease lets through */
	int64_t fenced; /* of these, refused by the token */
	int64_t stored; /* updates of what was read behind the fence */
	int64_t passed; /* ... refused, since a newer holder was there meanwhile */
	int64_t short_of_indexes; /* ... which had to wait, since nodes that leave still served */
	int64_t longer;           /* requests with a ttl that was too long before max_ttl was raised */
	int64_t moved;            /* requests that went to the new nodes */
	int64_t left;             /* nodes that left when their last lease ended */
	int64_t relisted;         /* held leases that got other lists */
	int64_t settled;          /* changes by two lists where all hosts came to have both */
	int64_t replaced_lists;   /* ... and then the new one */
	int64_t mixed;            /* calls of the script with commands of several */
	int64_t collided;         /* requests for a name whose hash is that of another */
	int64_t beside_lost; /* requests while a lost lease of the same host has not been given up */
	int64_t waited;      /* releases that had to wait for room */
	int64_t late;        /* commands executed from old sockets */
	int64_t debts;       /* unwanted keys at nodes that can be reached, looked at */
	int64_t repairs;     /* keys of leases at nodes that came back, looked at */
	int64_t quarantines;
	int64_t fooled;  /* hosts that met a node too late to know of its loss */
	int64_t renamed; /* schedules in which hosts give nodes other names */
	int64_t guarded; /* schedules in which invariant 1 was demanded */
	int64_t fault[FAULTS];
	int64_t checked[INVARIANTS];
} statistics;

extern statistics seen;

/* The first violation of this schedule; 0: none */
extern int violated;
extern int check_skipped; /* this invariant is not demanded; 0: all are */
extern char violation[400];
extern session sessions[SESSIONS_MAX];
extern int session_count;

extern void check_begin(void);

/* A host does something ... */
extern void check_laws(const core_lease *before, const core_event *event, const core_lease *after,
					   const core_out *out);
extern void check_asked(int host, int entry);
extern void check_round(int host, int entry);
extern void check_renewal(int host, int entry);
extern void check_sent(int host, int entry, int node, core_op op);
extern void check_kept(int host, int entry, bool kept); /* a release is sent, and keeps the key */
extern void check_answered(int host, int entry, int node, const command *command,
						   const answer *answer);
extern void check_outcome(int host, int entry, core_outcome outcome);
extern void check_over(int host, int entry); /* the core begins to delete keys */
extern void check_freed(int host, int entry, bool forgiven);
extern void check_joined(int host, int entry); /* a session joins those who share it */
extern void check_left(int host, int entry);   /* a reader has left */
extern void check_stay(int host, int entry);   /* its owner leaves it to nobody */
extern void check_stays(int host);             /* those that it has, at any time */
extern void check_prolonged(int host, int entry, int64_t hold_at_most_us);
/* The lease has another holder with this limit; 0: no limit, or no holder. */
extern void check_held_for(int host, int entry, int64_t hold_at_most_us);
extern void check_disowned(int host, int entry); /* its broker gives it up for its owner */

/* ... a session is told or writes ... */
/* ... that it has the lock that it wanted */
extern int check_returned(int host, int entry, int resource, int64_t token, bool handed_over);
extern void check_write(int session);
extern void check_store(int session);

/* ... a node does ... */
extern void check_executed(int node, int server, const command *command, const store *before,
						   const answer *answer, const struct wire *behind);
extern void check_forgot(int server, int resource); /* its counter */
extern void check_relisted(void); /* the nodes are others than those that counted before */
extern void check_fooled(int host, int node);
extern void check_outage(void); /* a minority of nodes fails, and all were well for long enough */

/* ... or the plain client. */
extern void check_plain(int resource);

extern void check_waiters(int host);
extern void check_limit(void);
extern void check_end(void);
extern void violate(int invariant, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* SIM_CHECK_H */
