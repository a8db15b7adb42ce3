/*
 * request_lease.c
 *		One lease of a request: the key, the entry in the lease table, and the text about the
 *		holder in the key's value.
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/dbcommands.h" /* get_database_name, up to 18 */
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "protocol/permits.h"
#include "session/encoding.h"
#include "session/request_internal.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/holder.h"

/* Returns the length of the key. */
int
request_make_key(const LockName *name, char *key)
{
	int prefix_len = strlen(redlock_key_prefix);

	memcpy(key, redlock_key_prefix, prefix_len);
	memcpy(key + prefix_len, name->utf8, name->utf8_len);
	return prefix_len + name->utf8_len;
}

/*
 * Opens a lease, and stores it in request_now.  Returns LEASE_READER_ASKS, or a later value of
 * LeaseOpened, if the name is in use.  Raises an error if there is no room.
 */
LeaseOpened
request_open_lease(const LockRequest *request, int index, int64 deadline_us)
{
	const LockName *name = &request->names[index];
	char text[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];
	int len = request_make_key(name, text);
	LeaseKey key = {.hash = name->hash,
					.gate = request_now.asked[index].gate,
					.text = text,
					.prefix_len = len - name->utf8_len,
					.len = len};
	LeaseTerms terms = request->terms;
	int64 began_us = 0;
	LeaseOpened opened;

	if (lease_gives_way())
		request_refuse_in_conflict(request);
	terms.waited_for_grant = request_now.asked[index].waited_for_grant;
	terms.waits_for_tokens = true;
	terms.began_us = request_now.call_began_us;
	for (;;)
	{
		int64 now_us;

		opened = lease_open(&key, &terms, &request_now.asked[index].lease);
		if (opened == LEASE_MORE_TOKENS)
		{
			/* for as long as the nodes may take to answer */
			terms.waits_for_tokens = redlock_clock_us() < deadline_us;
			if (terms.waits_for_tokens)
				request_wait_at_most(request, index, deadline_us, 1, WAITS_FOR_NODES);
			continue;
		}
		if (opened != LEASE_NO_ENTRY)
			break;
		now_us = redlock_clock_us();
		if (began_us == 0)
			began_us = now_us;
		if (lease_broker_pid() == 0)
			request_fail_no_broker(); /* without a broker no entry becomes free */
		if (now_us - began_us > BROKER_SILENT_US)
			request_fail_silent_broker(request, index);
		if (now_us >= deadline_us)
			break;
		request_wait_at_most(request, index, deadline_us, 1, WAITS_FOR_NODES);
	}
	if (opened == LEASE_NO_ENTRY)
		request_fail_no_entry();
	if (opened == LEASE_TABLE_FULL)
		request_fail_table_full();
	if (opened == LEASE_TOO_MANY_READERS)
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("the sessions of this server share too many redlocks"),
						errdetail("Each reader of a lock takes a place in the server's lock table. "
								  "Readers may fill half of the table."),
						errhint("Share fewer locks at a time, or raise max_locks_per_transaction, "
								"now %d, and restart the server.",
								max_locks_per_xact)));
	return opened;
}

/*
 * Writes the text about the holder, for people who read the value with redis-cli.  Keeps the text
 * for the next call.
 */
void
request_describe_holder(const LockRequest *request, Lease *lease)
{
	static char text[LOCK_HOLDER_MAX + 1];
	static char host[64] = "";
	static char database[NAMEDATALEN * MAX_CONVERSION_GROWTH];
	static char user[NAMEDATALEN * MAX_CONVERSION_GROWTH];
	static Oid described = InvalidOid;
	static HolderWords words;
	static size_t size = 0; /* the room for which `text` was written */
	bool detached = request->terms.scope == SCOPE_DETACHED;
	Oid role = detached ? GetUserId() : GetSessionUserId();
	int pid = detached ? 0 : MyProcPid;
	size_t room = lease_text_size(lease);

	/* other hosts show LOCK_READERS before the text about a reader */
	if (lease->shared)
		room = Max(room, 2 * strlen(LOCK_READERS)) - strlen(LOCK_READERS);
	room = Min(room, (size_t) lease_text_size(lease));
	if (described != role)
	{
		char *database_name = get_database_name(MyDatabaseId);
		char *user_name = GetUserNameFromId(role, true);

		gethostname(host, sizeof(host) - 1);
		encoding_to_utf8(database, sizeof(database), database_name != NULL ? database_name : "");
		encoding_to_utf8(user, sizeof(user), user_name != NULL ? user_name : "");
		words.cluster = cluster_name;
		words.host = host;
		words.database = database;
		words.user = user;
		described = role;
		size = 0;
	}
	if (size != room || words.pid != pid || words.permits != lease->permits)
	{
		size = room;
		words.pid = pid;
		words.permits = lease->permits;
		holder_write(text, size, &words);
	}
	strlcpy(lease_holder(lease), text, lease_text_size(lease));
}
