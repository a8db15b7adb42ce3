/*
 * guc.h
 *		The settings, redlock.*
 */
#ifndef REDLOCK_GUC_H
#define REDLOCK_GUC_H

#include "port/atomics.h"

#include "protocol/scopes.h"
#include "shared/url.h"

#define TTL_MIN_MS 100
#define TTL_DEFAULT_MS 10000
#define TTL_MAX_MS (24 * 60 * 60 * 1000)

/* Limit of waits and holds: PostgreSQL's timers count milliseconds in an int. */
#define DURATION_MAX_DAYS 24
#define DURATION_MAX_MS (DURATION_MAX_DAYS * 24 * 60 * 60 * 1000)

/* of redlock.runs_keep and redlock.last_run_keep */
#define RUNS_KEEP_DEFAULT_S (30 * 24 * 60 * 60)
#define RUNS_KEEP_MIN_S (24 * 60 * 60)
#define RUNS_KEEP_MAX_S (3650 * 24 * 60 * 60)

typedef enum OnLoss
{
	ON_LOSS_CANCEL,   /* cancel the running statement */
	ON_LOSS_ERROR,    /* fail the next call and the commit */
	ON_LOSS_TERMINATE /* end the session */
} OnLoss;

typedef enum OnDisagreement
{
	ON_DISAGREEMENT_WARN,  /* in the log and in redlock_hosts */
	ON_DISAGREEMENT_REFUSE /* ... and ask for no lock */
} OnDisagreement;

typedef enum TlsVerify
{
	TLS_VERIFY_NONE,
	TLS_VERIFY_CA,  /* the certificate is from a known authority */
	TLS_VERIFY_FULL /* ... and names the host in the URL */
} TlsVerify;

extern LockScopes redlock_allowed_scopes;
extern int redlock_commit_margin_ms;
extern int redlock_handover_limit;
extern int redlock_keep_idle_ms;
extern char *redlock_key_prefix;
extern int redlock_last_run_keep_s; /* 0: runs leave no note */
extern int redlock_max_hold_ms;
extern int redlock_max_locks;
extern int redlock_max_locks_per_session;
extern int redlock_max_new_names_per_hour; /* -1: no limit */
extern int redlock_max_ttl_ms;
extern int redlock_node_timeout_ms;
extern int redlock_on_disagreement;
extern int redlock_on_loss;
extern bool redlock_restrict;
extern int redlock_runs_keep_s;   /* 0: for ever */
extern char *redlock_tls_ca_file; /* these four: as set, perhaps not in force */
extern char *redlock_tls_cert_file;
extern char *redlock_tls_key_file;
extern int redlock_tls_verify;
extern int redlock_ttl_ms;

/* The lists of redlock.nodes and redlock.nodes_next; count 0: not set. */
extern const NodeUrls *redlock_nodes(void);
extern const NodeUrls *redlock_nodes_next(void);

/* called by _PG_init, in the postmaster or in a backend */
extern void guc_define(void);

/*
 * Has the postmaster assigned settings since it started this process?  The postmaster counts its
 * assignments of settings that a reload can change, at *place in shared memory.  Only the
 * postmaster calls guc_share_assignments, before the first call of guc_is_behind.
 */
extern void guc_share_assignments(pg_atomic_uint32 *place);
extern bool guc_is_behind(void);

#endif /* REDLOCK_GUC_H */
