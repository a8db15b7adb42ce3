/*
 * diagnose_internal.h
 *		Declarations that the files diagnose.c and diagnose_*.c share: a diagnosis in the making,
 *		and the checks.  Lint lets no other file include this header.
 */
#ifndef REDLOCK_DIAGNOSE_INTERNAL_H
#define REDLOCK_DIAGNOSE_INTERNAL_H

#include "nodes/pg_list.h"

#include "session/ask_hosts.h"
#include "shared/node_status.h"

typedef enum Severity
{
	DIAGNOSE_ERROR,   /* locks do not work, or are unsafe */
	DIAGNOSE_WARNING, /* locks work; a next fault may stop them */
	DIAGNOSE_OK,
	DIAGNOSE_SEVERITIES
} Severity;

typedef struct Diagnosis
{
	const char *subject;                 /* of the running check */
	bool found;                          /* the running check has found a fault */
	List *findings[DIAGNOSE_SEVERITIES]; /* of Finding */
	int broker_pid;                      /* 0: no broker runs */
	AskHostsEnd asked;                   /* how the question for the list of hosts ended */
	HostListState list_state;            /* the answer, with ASK_HOSTS_ANSWERED */
	HostList *hosts;                     /* NULL: not known */
	NodeStatus status[CORE_NODES_MAX];   /* copies, without passwords */
	core_mask listed;                    /* nodes on a list in force */
} Diagnosis;

/* Adds a fault.  The texts are sentences. */
extern void diagnose_add(Diagnosis *diagnosis, Severity severity, const char *finding,
						 const char *remedy);

/*
 * A check adds faults.  Without a fault, the check returns a sentence about the facts, or NULL
 * without facts.
 */
typedef const char *(*DiagnoseCheck)(Diagnosis *diagnosis);

/* diagnose_nodes.c */
extern const char *diagnose_lists(Diagnosis *diagnosis);
extern const char *diagnose_states(Diagnosis *diagnosis);
extern const char *diagnose_quorum(Diagnosis *diagnosis);
extern const char *diagnose_persistence(Diagnosis *diagnosis);
extern const char *diagnose_eviction(Diagnosis *diagnosis);
extern const char *diagnose_memory(Diagnosis *diagnosis);
extern const char *diagnose_versions(Diagnosis *diagnosis);
extern const char *diagnose_clocks(Diagnosis *diagnosis);
extern const char *diagnose_rights(Diagnosis *diagnosis);

/* diagnose_hosts.c */
extern const char *diagnose_hosts(Diagnosis *diagnosis);
extern const char *diagnose_names(Diagnosis *diagnosis);
extern const char *diagnose_change(Diagnosis *diagnosis);

/* diagnose_nodes.c: do the listed nodes that vote form a quorum? */
extern bool diagnose_has_quorum(const Diagnosis *diagnosis);

/* diagnose_nodes.c: does the node vote for new locks? */
extern bool diagnose_votes(const NodeStatus *status);

#endif /* REDLOCK_DIAGNOSE_INTERNAL_H */
