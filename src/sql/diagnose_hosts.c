/*
 * diagnose_hosts.c
 *		redlock_diagnose: other hosts, their names, and a change of the list of nodes.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "shared/guc.h"
#include "shared/lease.h"
#include "sql/diagnose_internal.h"

/* Hosts that are named; further hosts are counted. */
#define HOSTS_NAMED 5

/* A change of nodes whose new nodes have been ready for so long was forgotten, perhaps. */
#define COMPLETE_US USECS_PER_HOUR

static void add_conflict(Diagnosis *diagnosis, const HostConflict *conflict);
static void add_no_list(Diagnosis *diagnosis);
static bool has_other_prefix(const HostList *list, const HostRow *host);
static bool add_host(Diagnosis *diagnosis, const HostRow *host, bool named);
static bool read_host(const HostList *list, const HostRow *host, HostFacts *facts,
					  HostConfig *config);
static int compare_names(const void *one, const void *other);
static int next_ready(const Diagnosis *diagnosis, TimestampTz *since);

const char *
diagnose_hosts(Diagnosis *diagnosis)
{
	const HostList *list = diagnosis->hosts;
	HostConflict conflict;
	int differing = 0;
	int others = 0;

	host_list_conflict(&conflict);
	if (conflict.name[0] != '\0')
		add_conflict(diagnosis, &conflict);
	else if (!lease_table->standing.begun && lease_table->standing.says == HOST_ASKS &&
			 diagnose_has_quorum(diagnosis))
		diagnose_add(diagnosis, DIAGNOSE_WARNING,
					 "This host still asks the nodes whether other hosts have the same settings, "
					 "and takes no locks.",
					 "Try again after a second.");
	if (list == NULL)
	{
		add_no_list(diagnosis);
		return NULL;
	}
	for (int i = 0; i < list->count; i++)
	{
		if (has_other_prefix(list, &list->row[i]))
			others++;
		else if (list->row[i].id != lease_table->host_id &&
				 !(conflict.name[0] != '\0' && list->row[i].id == conflict.host))
			differing += add_host(diagnosis, &list->row[i], differing < HOSTS_NAMED);
	}
	if (differing > HOSTS_NAMED)
		diagnose_add(
			diagnosis, DIAGNOSE_WARNING,
			psprintf("%d more hosts have other settings than this host.", differing - HOSTS_NAMED),
			"See the view redlock_hosts.");
	return psprintf("Hosts at the nodes: %d. Those with this key prefix have the same settings.%s",
					list->count,
					others == 0 ? ""
								: psprintf(" With another redlock.key_prefix: %d; such hosts share "
										   "no locks with this host.",
										   others));
}

static bool
has_other_prefix(const HostList *list, const HostRow *host)
{
	HostFacts facts;
	HostConfig config;

	return read_host(list, host, &facts, &config) && strcmp(config.prefix, list->own.prefix) != 0;
}

/* Why the settings of the hosts were not compared.  Other checks tell of broker and quorum. */
static void
add_no_list(Diagnosis *diagnosis)
{
	const char *before = "The settings of the hosts were not compared: ";

	if (diagnosis->asked != ASK_HOSTS_ANSWERED)
		return;
	switch (diagnosis->list_state)
	{
		case HOST_LIST_MADE:
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("%sthe list of hosts came too late.", before), "Try again.");
			break;
		case HOST_LIST_NO_QUORUM:
			if (diagnose_has_quorum(diagnosis))
				diagnose_add(diagnosis, DIAGNOSE_WARNING,
							 psprintf("%stoo few nodes send the list of hosts.", before),
							 ASK_HOSTS_NO_QUORUM_STEP);
			break;
		case HOST_LIST_TOO_LONG:
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("%sthe nodes list more than %d hosts.", before, HOST_LIST_MAX),
						 ASK_HOSTS_TOO_LONG_STEP);
			break;
		case HOST_LIST_NO_MEMORY:
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("%sthe broker has no shared memory for the list.", before),
						 "See the server log for the reason, such as a full /dev/shm.");
			break;
	}
}

/* The conflict that stops this host. */
static void
add_conflict(Diagnosis *diagnosis, const HostConflict *conflict)
{
	diagnose_add(
		diagnosis, DIAGNOSE_ERROR,
		conflict->left
			? psprintf("The hosts have left the nodes of this server. %s", conflict->detail)
			: psprintf("Host \"%s\" has other settings than this host, %s. %s", conflict->name,
					   redlock_on_disagreement == ON_DISAGREEMENT_REFUSE
						   ? "so this host takes no locks"
						   : "and both could get one lock",
					   conflict->detail),
		pstrdup(conflict->hint));
}

/* Returns true if the host's settings differ.  Then adds the host, if `named`. */
static bool
add_host(Diagnosis *diagnosis, const HostRow *host, bool named)
{
	const HostConfig *ours = &diagnosis->hosts->own;
	HostFacts facts;
	HostConfig theirs;
	HostsDifference difference;
	StringInfoData detail;
	StringInfoData hint;
	bool takes;

	if (!read_host(diagnosis->hosts, host, &facts, &theirs))
		return false;
	hosts_compare(ours, &theirs, host->seen_us, &difference);
	if (difference.kinds == 0)
		return false;
	if (!named)
		return true;
	initStringInfo(&detail);
	initStringInfo(&hint);
	host_list_explain(ours, &theirs, &difference, &detail, &hint);
	takes = theirs.standing != HOST_ASKS && theirs.standing != HOST_REFUSES;
	diagnose_add(diagnosis, takes ? DIAGNOSE_ERROR : DIAGNOSE_WARNING,
				 psprintf("Host \"%s\" has other settings than this host, and %s. %s", facts.name,
						  takes ? "both could get one lock" : "takes no locks", detail.data),
				 hint.data);
	return true;
}

/* A text of another form was not written by a host. */
static bool
read_host(const HostList *list, const HostRow *host, HostFacts *facts, HostConfig *config)
{
	return hosts_read_facts(facts, (const char *) list + host->facts_at, host->facts_len) &&
		   hosts_read_config(config, (const char *) list + host->config_at, host->config_len);
}

const char *
diagnose_names(Diagnosis *diagnosis)
{
	const HostList *list = diagnosis->hosts;
	HostFacts facts;
	HostConfig config;
	char **names;
	int count = 0;
	int twice = 0;

	if (list == NULL)
		return NULL;
	names = palloc(Max(list->count, 1) * sizeof(char *));
	for (int i = 0; i < list->count; i++)
		if (read_host(list, &list->row[i], &facts, &config))
			names[count++] = pstrdup(facts.name);
	qsort(names, count, sizeof(char *), compare_names);
	for (int i = 1; i < count; i++)
		if (strcmp(names[i], names[i - 1]) == 0 &&
			(i == 1 || strcmp(names[i - 1], names[i - 2]) != 0) && twice++ < HOSTS_NAMED)
			diagnose_add(diagnosis, DIAGNOSE_WARNING,
						 psprintf("Several hosts are called \"%s\", or the host crashed within "
								  "the last 45 seconds.",
								  names[i]),
						 "Set a different cluster_name on each host, and restart the server.");
	return psprintf("Different names of hosts: %d.", count);
}

static int
compare_names(const void *one, const void *other)
{
	return strcmp(*(char *const *) one, *(char *const *) other);
}

const char *
diagnose_change(Diagnosis *diagnosis)
{
	TimestampTz since;
	int leases;
	int64 kept_until_us;
	bool settled = lease_unsettled(&leases, &kept_until_us) && leases == 0 && kept_until_us == 0;
	int count = next_ready(diagnosis, &since);

	if (redlock_nodes_next()->count == 0)
		return "redlock.nodes_next is not set: no change of nodes is under way.";
	if (!settled || count != redlock_nodes_next()->count)
		return psprintf("A change of nodes is under way: of redlock.nodes_next, %d of %d nodes are "
						"ready; leases without a majority of each list: %d.",
						count, redlock_nodes_next()->count, leases);
	if (GetCurrentTimestamp() - since < COMPLETE_US)
		return "A change of nodes is under way, and is complete on this host.";
	diagnose_add(
		diagnosis, DIAGNOSE_WARNING,
		psprintf("redlock.nodes_next is still set: its nodes have been ready since %s, and "
				 "this host has all leases on both lists.",
				 timestamptz_to_str(since)),
		"Wait until redlock_hosts.settled of each host is true, and move the list to "
		"redlock.nodes: see docs/how-to/replace-nodes.md.");
	return NULL;
}

/* Counts the ready nodes of redlock.nodes_next.  *since: the last of them is ready since then. */
static int
next_ready(const Diagnosis *diagnosis, TimestampTz *since)
{
	int count = 0;

	*since = 0;
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		const NodeStatus *status = &diagnosis->status[i];

		if (!(diagnosis->listed & CORE_BIT(i)) || !status->next || !diagnose_votes(status))
			continue;
		count++;
		*since = Max(*since, status->since);
	}
	return count;
}
