/*
 * memory.c
 *		All of the shared memory of redlock_pg; see memory.h.
 *
 * Each part says how much it needs, and sets itself up.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "shared/host_list.h"
#include "shared/inspect_queue.h"
#include "shared/lease.h"
#include "shared/memory.h"
#include "shared/new_names.h"
#include "shared/node_stats.h"
#include "shared/node_status.h"
#include "shared/resource_stats.h"
#include "shared/run_report.h"
#include "shared/stats_file.h"

static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static shmem_request_hook_type prev_shmem_request_hook = NULL;

static void request_memory(void);
static void set_up_memory(void);

void
memory_install_hooks(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_memory;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = set_up_memory;
}

static void
request_memory(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(host_list_size());
	RequestAddinShmemSpace(inspect_queue_size());
	RequestAddinShmemSpace(node_stats_size());
	RequestAddinShmemSpace(node_status_size());
	RequestAddinShmemSpace(resource_stats_size());
	lease_memory_request();
	new_names_request();
	run_report_request();
}

static void
set_up_memory(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	lease_memory_set_up();
	node_stats_set_up();
	node_status_set_up();
	host_list_set_up();
	inspect_queue_set_up();
	new_names_set_up();
	resource_stats_set_up();
	run_report_set_up();
	LWLockRelease(AddinShmemInitLock);
	if (!IsUnderPostmaster)
		stats_file_set_up();
}
