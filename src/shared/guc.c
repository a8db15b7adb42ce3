/*
 * guc.c
 *		The settings, sorted by name.
 *
 * redlock.nodes and redlock.nodes_next hold passwords, and PostgreSQL writes the new text of a
 * changed setting into the server log at each reload.  So the check hook keeps the parsed list as
 * the setting's "extra" data and replaces the text by an empty string.  To PostgreSQL the text
 * never changes, and is never logged.  SHOW prints the list without credentials.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "utils/guc.h"

#include "protocol/lua.h"
#include "protocol/scopes.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/text.h"
#include "shared/tls_file.h"

LockScopes redlock_allowed_scopes = SCOPES_ALL;
int redlock_commit_margin_ms = 10;
int redlock_handover_limit = LUA_SPAN - 1;
int redlock_keep_idle_ms = 0;
char *redlock_key_prefix = NULL;
int redlock_last_run_keep_s = RUNS_KEEP_DEFAULT_S;
int redlock_max_hold_ms = 24 * 60 * 60 * 1000;
int redlock_max_locks = 1024;
int redlock_max_locks_per_session = 512;
int redlock_max_new_names_per_hour = 10000;
int redlock_max_ttl_ms = 60000;
int redlock_node_timeout_ms = 500;
int redlock_on_disagreement = ON_DISAGREEMENT_REFUSE;
int redlock_on_loss = ON_LOSS_CANCEL;
bool redlock_restrict = false;
int redlock_runs_keep_s = RUNS_KEEP_DEFAULT_S;
char *redlock_tls_ca_file = NULL;
char *redlock_tls_cert_file = NULL;
char *redlock_tls_key_file = NULL;
int redlock_tls_verify = TLS_VERIFY_FULL;
int redlock_ttl_ms = TTL_DEFAULT_MS;

static char *allowed_scopes_text = NULL;
static char *nodes_text = NULL; /* always empty, see above */
static char *nodes_next_text = NULL;
static NodeUrls nodes;
static NodeUrls nodes_next;

static const struct config_enum_entry on_disagreement_options[] = {
	{"warn", ON_DISAGREEMENT_WARN, false},
	{"refuse", ON_DISAGREEMENT_REFUSE, false},
	{NULL, 0, false}};

static const struct config_enum_entry on_loss_options[] = {{"cancel", ON_LOSS_CANCEL, false},
														   {"error", ON_LOSS_ERROR, false},
														   {"terminate", ON_LOSS_TERMINATE, false},
														   {NULL, 0, false}};

static const struct config_enum_entry tls_verify_options[] = {{"full", TLS_VERIFY_FULL, false},
															  {"ca", TLS_VERIFY_CA, false},
															  {"none", TLS_VERIFY_NONE, false},
															  {NULL, 0, false}};

static bool defined = false; /* guc_define has run */

/* The postmaster's count of assignments; other processes have the count of their start. */
static uint32 assignments = 0;
static pg_atomic_uint32 *assignments_now = NULL; /* shared */

static bool check_allowed_scopes(char **newval, void **extra, GucSource source);
static void assign_allowed_scopes(const char *newval, void *extra);
static bool check_key_prefix(char **newval, void **extra, GucSource source);
static bool check_nodes(char **newval, void **extra, GucSource source);
static void assign_nodes(const char *newval, void *extra);
static const char *show_nodes(void);
static bool check_nodes_next(char **newval, void **extra, GucSource source);
static void assign_nodes_next(const char *newval, void *extra);
static const char *show_nodes_next(void);
static bool check_urls(const char *setting, bool is_next, char **newval, void **extra);
static const char *show_urls(const NodeUrls *urls);
static bool check_last_run_keep(int *newval, void **extra, GucSource source);
static bool check_runs_keep(int *newval, void **extra, GucSource source);
static bool check_days(int value, const char *hint);
static bool check_tls_ca_file(char **newval, void **extra, GucSource source);
static bool check_tls_cert_file(char **newval, void **extra, GucSource source);
static bool check_tls_key_file(char **newval, void **extra, GucSource source);
static bool check_tls_file(TlsFile what, const char *path, const char *before);
static void assign_int(int newval, void *extra);
static void assign_text(const char *newval, void *extra);
static void count_assignment(void);

void
guc_define(void)
{
	DefineCustomStringVariable(
		"redlock.allowed_scopes", "Scopes at which calls may acquire locks.",
		"A list of transaction, call, session and detached. A pool with one server connection for "
		"the transactions of many clients strands locks of session scope: take that scope from "
		"the role of the pool.",
		&allowed_scopes_text, SCOPES_ALL_TEXT, PGC_SUSET, GUC_LIST_INPUT, check_allowed_scopes,
		assign_allowed_scopes, NULL);

	DefineCustomIntVariable(
		"redlock.commit_margin", "Validity that each lease must have left when a commit begins.",
		"A commit with less validity fails. Set this to the time that a commit takes.",
		&redlock_commit_margin_ms, 10, 0, 60000, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable(
		"redlock.handover_limit", "Hand-overs in a row between sessions of this server.",
		"After these, or after a tenth of the ttl, waiting hosts get their turn; 0 turns hand-over "
		"off.",
		&redlock_handover_limit, LUA_SPAN - 1, 0, LUA_SPAN - 1, PGC_SIGHUP, 0, NULL, assign_int,
		NULL);

	DefineCustomIntVariable(
		"redlock.keep_idle",
		"How long this server keeps a lock without a holder, unless a call says otherwise.",
		"The next session of this server takes the lock without asking the nodes. The server "
		"releases the lock when another server asks for the lock; 0 turns this off.",
		&redlock_keep_idle_ms, 0, 0, DURATION_MAX_MS, PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomStringVariable(
		"redlock.key_prefix", "Text before a resource's name in its key on the nodes.",
		"All hosts that share locks need the same prefix. Held locks keep their prefix after a "
		"change.",
		&redlock_key_prefix, "redlock:", PGC_SIGHUP, 0, check_key_prefix, assign_text, NULL);

	DefineCustomIntVariable(
		"redlock.last_run_keep",
		"How long the nodes keep the last recorded run of a job; at least a day.",
		"See redlock_last_run. 0: the runs of this server leave no note.", &redlock_last_run_keep_s,
		RUNS_KEEP_DEFAULT_S, 0, RUNS_KEEP_MAX_S, PGC_SIGHUP, GUC_UNIT_S, check_last_run_keep,
		assign_int, NULL);

	DefineCustomIntVariable(
		"redlock.max_hold",
		"Longest hold_at_least and keep_idle of a lock, and hold_at_most of a detached lock.",
		"Bounds how long a role can block a name by a lock that no session of the role holds.",
		&redlock_max_hold_ms, 24 * 60 * 60 * 1000, 0, DURATION_MAX_MS, PGC_SUSET, GUC_UNIT_MS, NULL,
		NULL, NULL);

	DefineCustomIntVariable("redlock.max_locks",
							"Locks that the sessions of this server can hold or ask for at a time.",
							"Takes about 1.2 kilobytes of shared memory each.", &redlock_max_locks,
							1024, 16, 1000000, PGC_POSTMASTER, 0, NULL, NULL, NULL);

	DefineCustomIntVariable(
		"redlock.max_locks_per_session", "Locks that one session can hold at a time.",
		"Keeps one session from using up redlock.max_locks.", &redlock_max_locks_per_session, 512,
		1, 1000000, PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable(
		"redlock.max_new_names_per_hour",
		"Names of locks that a role can bring in within an hour, and rows of redlock_fences.",
		"Each name leaves a counter at the nodes for two hours. A name that this server has asked "
		"for within two hours is not new. 0 allows no new names, -1 any number; superusers have no "
		"limit.",
		&redlock_max_new_names_per_hour, 10000, -1, 1000000000, PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("redlock.max_ttl", "Longest ttl that a call may give.",
							"A node that may have forgotten leases does not vote for this time. "
							"All hosts that share locks need the same value.",
							&redlock_max_ttl_ms, 60000, TTL_MIN_MS, TTL_MAX_MS, PGC_SIGHUP,
							GUC_UNIT_MS, NULL, assign_int, NULL);

	DefineCustomIntVariable(
		"redlock.node_timeout",
		"Time in which a node must answer; afterwards the node counts as unreachable.",
		"A slow minority delays no session. This bounds how soon a missing majority is reported.",
		&redlock_node_timeout_ms, 500, 10, 60000, PGC_SIGHUP, GUC_UNIT_MS, NULL, assign_int, NULL);

	DefineCustomStringVariable(
		"redlock.nodes", "URLs of the independent Redis nodes that vote on locks.",
		"redis://[user:password@]host[:port][/db], rediss://... by TLS, or "
		"unix://[user:password@]/path, with ?durable=yes or no for a node that can't tell; "
		"separated by commas; shown without credentials. Or local: no Redis, and locks that do not "
		"reach beyond this server.",
		&nodes_text, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, check_nodes, assign_nodes, show_nodes);

	DefineCustomStringVariable(
		"redlock.nodes_next", "URLs of the nodes that are to take the place of redlock.nodes.",
		"While this is set, each lock needs a majority of both lists. Set this list on all hosts, "
		"wait until all new nodes are ready and redlock_hosts.settled of each host is true, and "
		"move the list to redlock.nodes.",
		&nodes_next_text, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY, check_nodes_next, assign_nodes_next,
		show_nodes_next);

	DefineCustomEnumVariable(
		"redlock.on_disagreement",
		"Action while this host and another host could both get one lock, because of their "
		"settings.",
		"refuse: no new lock is acquired; warn: the server log and redlock_hosts tell. Held locks "
		"stay held.",
		&redlock_on_disagreement, ON_DISAGREEMENT_REFUSE, on_disagreement_options, PGC_SIGHUP, 0,
		NULL, assign_int, NULL);

	DefineCustomEnumVariable(
		"redlock.on_loss", "Action on a session whose lease ends without renewal.",
		"cancel: the running statement is cancelled; error: the next call and the commit fail; "
		"terminate: the session ends.",
		&redlock_on_loss, ON_LOSS_CANCEL, on_loss_options, PGC_USERSET, 0, NULL, NULL, NULL);

	DefineCustomBoolVariable("redlock.restrict",
							 "Lets roles lock only names that match the patterns granted to them.",
							 "See redlock_grant. Superusers may lock all names.", &redlock_restrict,
							 false, PGC_SUSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("redlock.runs_keep",
							"How long rows of redlock_runs are kept; at least a day.",
							"Recording a run deletes older rows of that database. 0: for ever.",
							&redlock_runs_keep_s, RUNS_KEEP_DEFAULT_S, 0, RUNS_KEEP_MAX_S,
							PGC_SIGHUP, GUC_UNIT_S, check_runs_keep, assign_int, NULL);

	DefineCustomStringVariable(
		"redlock.tls_ca_file",
		"Certificates of the authorities that sign the certificates of nodes with TLS.",
		"A file in PEM format; a relative path is below the data directory. Empty: the "
		"certificates of the system.",
		&redlock_tls_ca_file, "", PGC_SIGHUP, 0, check_tls_ca_file, assign_text, NULL);

	DefineCustomStringVariable(
		"redlock.tls_cert_file", "Certificate of this server for nodes with TLS.",
		"A file in PEM format, with the certificates of intermediate authorities after the "
		"server's. Empty: none.",
		&redlock_tls_cert_file, "", PGC_SIGHUP, 0, check_tls_cert_file, assign_text, NULL);

	DefineCustomStringVariable("redlock.tls_key_file", "Private key of redlock.tls_cert_file.",
							   "A file in PEM format, without a passphrase; only the database user "
							   "and root may read the file.",
							   &redlock_tls_key_file, "", PGC_SIGHUP, 0, check_tls_key_file,
							   assign_text, NULL);

	DefineCustomEnumVariable("redlock.tls_verify", "Checks of the certificate of a node with TLS.",
							 "full: the authority of the certificate, and the host name in the "
							 "URL; ca: the authority only; none: nothing.",
							 &redlock_tls_verify, TLS_VERIFY_FULL, tls_verify_options, PGC_SIGHUP,
							 0, NULL, assign_int, NULL);

	DefineCustomIntVariable(
		"redlock.ttl", "How long a lease is valid without renewal, unless a call says otherwise.",
		"While the session lives, the broker renews the lease after each third of the ttl. The ttl "
		"bounds how long a dead host blocks other hosts.",
		&redlock_ttl_ms, TTL_DEFAULT_MS, TTL_MIN_MS, TTL_MAX_MS, PGC_USERSET, GUC_UNIT_MS, NULL,
		NULL, NULL);

	MarkGUCPrefixReserved("redlock");
	defined = true;
}

void
guc_share_assignments(pg_atomic_uint32 *place)
{
	pg_atomic_init_u32(place, assignments);
	assignments_now = place;
}

bool
guc_is_behind(void)
{
	return pg_atomic_read_u32(assignments_now) != assignments;
}

const NodeUrls *
redlock_nodes(void)
{
	return &nodes;
}

const NodeUrls *
redlock_nodes_next(void)
{
	return &nodes_next;
}

static bool
check_allowed_scopes(char **newval, void **extra, GucSource source)
{
	LockScopes scopes;
	const char *word;
	size_t len;

	switch (scopes_read(*newval, &scopes, &word, &len))
	{
		case SCOPES_GOOD:
			*extra = REDLOCK_GUC_MALLOC(sizeof(scopes));
			if (*extra == NULL)
				return false;
			*(LockScopes *) *extra = scopes;
			return true;
		case SCOPES_EMPTY:
			GUC_check_errdetail("The list, or an element of the list, is empty.");
			break;
		case SCOPES_UNKNOWN:
			GUC_check_errdetail("\"%.*s\" is no scope of a redlock.", (int) len, word);
			break;
		case SCOPES_DOUBLED:
			GUC_check_errdetail("The scope \"%.*s\" stands twice in the list.", (int) len, word);
			break;
	}
	GUC_check_errhint("List one or several of transaction, call, session and detached, each once, "
					  "separated by commas.");
	return false;
}

static void
assign_allowed_scopes(const char *newval, void *extra)
{
	redlock_allowed_scopes = *(LockScopes *) extra;
}

static bool
check_key_prefix(char **newval, void **extra, GucSource source)
{
	if (text_find_control(*newval) != NULL)
	{
		/* the standard message would print the characters */
		GUC_check_errmsg("invalid value for parameter \"redlock.key_prefix\"");
		GUC_check_errdetail("The prefix must not contain control characters.");
		return false;
	}
	if (strlen(*newval) > LOCK_PREFIX_MAX)
	{
		GUC_check_errdetail("The prefix may have at most %d bytes.", LOCK_PREFIX_MAX);
		return false;
	}
	return true;
}

static bool
check_nodes(char **newval, void **extra, GucSource source)
{
	return check_urls("redlock.nodes", false, newval, extra);
}

static bool
check_nodes_next(char **newval, void **extra, GucSource source)
{
	return check_urls("redlock.nodes_next", true, newval, extra);
}

static bool
check_urls(const char *setting, bool is_next, char **newval, void **extra)
{
	NodeUrls *urls = REDLOCK_GUC_MALLOC(sizeof(NodeUrls));
	const char *wrong;

	if (urls == NULL)
		return false;
	wrong = url_parse_list(*newval, urls);
	if (wrong == NULL && is_next && urls->count > 0 && urls->url[0].is_local)
	{
		urls->mixed = true;
		wrong = URL_MIXED;
	}
	if (wrong != NULL)
	{
		bool mixed = urls->mixed;

		REDLOCK_GUC_FREE(urls);
		/* the standard message would print the value */
		GUC_check_errcode(ERRCODE_INVALID_PARAMETER_VALUE);
		GUC_check_errmsg("invalid value for parameter \"%s\": %s", setting, wrong);
		if (mixed)
		{
			GUC_check_errhint("Set redlock.nodes to local alone, for locks within this server, or "
							  "list Redis nodes only.");
			return false;
		}
		GUC_check_errhint("Write redis://[user:password@]host[:port][/db][?durable=yes|no] for "
						  "each node, or rediss://... for TLS. Separate nodes by commas, write "
						  "IPv6 addresses in brackets, and name each server once.");
		return false;
	}
#ifndef REDLOCK_TLS
	for (int i = 0; i < urls->count; i++)
		if (urls->url[i].tls)
		{
			REDLOCK_GUC_FREE(urls);
			GUC_check_errcode(ERRCODE_FEATURE_NOT_SUPPORTED);
			GUC_check_errmsg("invalid value for parameter \"%s\": node %d: "
							 "this build of redlock_pg has no TLS (rediss://)",
							 setting, i + 1);
			GUC_check_errdetail("The build had no hiredis 1.0 or later with its TLS library, or no "
								"OpenSSL 3.0 or later.");
			GUC_check_errhint("Install both with their headers (Debian: libhiredis-dev and "
							  "libssl-dev), then build and install redlock_pg again, and restart "
							  "the server.");
			return false;
		}
#endif
	**newval = '\0';
	*extra = urls;
	return true;
}

/*
 * A parallel worker resets its settings to the leader's texts.  These texts name no nodes, and
 * PostgreSQL has freed the former `extra`.  So the nodes are copies, and a worker keeps the copy
 * of the postmaster.
 */
static void
assign_urls(NodeUrls *to, const NodeUrls *from)
{
	if (!InitializingParallelWorker && from != NULL)
		*to = *from;
	count_assignment();
}

static void
assign_nodes(const char *newval, void *extra)
{
	assign_urls(&nodes, extra);
}

static void
assign_nodes_next(const char *newval, void *extra)
{
	assign_urls(&nodes_next, extra);
}

/* Assign hooks of reloadable settings without a hook of their own. */

static void
assign_int(int newval, void *extra)
{
	count_assignment();
}

static void
assign_text(const char *newval, void *extra)
{
	count_assignment();
}

static void
count_assignment(void)
{
	if (IsUnderPostmaster)
		return;
	assignments++;
	if (assignments_now != NULL)
		pg_atomic_write_u32(assignments_now, assignments);
}

static const char *
show_nodes(void)
{
	return show_urls(redlock_nodes());
}

static const char *
show_nodes_next(void)
{
	return show_urls(redlock_nodes_next());
}

static const char *
show_urls(const NodeUrls *urls)
{
	static char text[URL_NODES_MAX * (sizeof(urls->url[0].address) + 32)];
	size_t used = 0;

	text[0] = '\0';
	for (int i = 0; i < urls->count; i++)
	{
		const NodeUrl *url = &urls->url[i];

		if (url->is_local)
			return URL_LOCAL;
		used += snprintf(text + used, sizeof(text) - used, "%s%s://%s%s", i > 0 ? ", " : "",
						 url->is_unix ? "unix"
						 : url->tls   ? "rediss"
									  : "redis",
						 url->password[0] != '\0' ? "***@" : "", url->address);
		if (url->durable != URL_DURABLE_UNSAID)
			used += snprintf(text + used, sizeof(text) - used, "%cdurable=%s",
							 strchr(url->address, '?') != NULL ? '&' : '?',
							 url->durable == URL_DURABLE ? "yes" : "no");
	}
	return text;
}

static bool
check_last_run_keep(int *newval, void **extra, GucSource source)
{
	return check_days(*newval, "Write a unit, for example \"30 d\"; with 0 no run leaves a note.");
}

static bool
check_runs_keep(int *newval, void **extra, GucSource source)
{
	return check_days(*newval, "Write a unit, for example \"30 d\"; 0 keeps the rows for ever.");
}

/*
 * The unit is seconds: refuses a number that was probably meant as days, and would delete rows or
 * notes too soon.
 */
static bool
check_days(int value, const char *hint)
{
	if (value == 0 || value >= RUNS_KEEP_MIN_S)
		return true;
	GUC_check_errdetail("The value is %d seconds; the minimum is one day.", value);
	GUC_check_errhint("%s", hint);
	return false;
}

static bool
check_tls_ca_file(char **newval, void **extra, GucSource source)
{
	return check_tls_file(TLS_CA_FILE, *newval, redlock_tls_ca_file);
}

static bool
check_tls_cert_file(char **newval, void **extra, GucSource source)
{
	return check_tls_file(TLS_CERT_FILE, *newval, redlock_tls_cert_file);
}

static bool
check_tls_key_file(char **newval, void **extra, GucSource source)
{
	return check_tls_file(TLS_KEY_FILE, *newval, redlock_tls_key_file);
}

/*
 * Checks the file when a SET or a reload changes the setting.  Does not check at the server's
 * start: the server would go on with the default, and so with other authorities; the broker reports
 * a bad file.  Does not check at each reload in all sessions: the broker reads the files again.
 * Does not check in parallel workers: a worker sets all settings of its leader, and a file removed
 * since would fail the statement.
 */
static bool
check_tls_file(TlsFile what, const char *path, const char *before)
{
	const char *wrong;
	const char *hint;

	if (!defined || InitializingParallelWorker || path[0] == '\0' || strcmp(path, before) == 0)
		return true;
	wrong = tls_file_problem(what, path, &hint);
	if (wrong == NULL)
		return true;
	GUC_check_errdetail("File \"%s\" %s.", path, wrong);
	if (hint != NULL)
		GUC_check_errhint("%s", hint);
	return false;
}
