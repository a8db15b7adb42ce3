/*
 * host_pages.c
 *		The whole list of hosts, page by page; see host_pages.h.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "broker/host_entry.h"
#include "broker/host_pages.h"
#include "broker/members.h"
#include "broker/told.h"
#include "protocol/hosts.h"
#include "shared/host_list.h"
#include "shared/lease.h"

/*
 * Limits against nodes that lie.  A true page takes at least one host further, and hosts have few
 * or small configurations.
 */
#define PAGES_MAX HOST_LIST_MAX
#define CONFIGS_SIZE_MAX ((Size) 64 * 1024 * 1024)

/* How long a list stays in shared memory after the answer to sessions. */
#define KEEP_LIST_US INT64CONST(10000000)

/* The list that sessions asked for, while the broker reads it. */
typedef struct Reading
{
	uint64 number; /* 0: nothing is being read */
	core_mask read;
	core_mask out;
	core_mask later; /* nodes that are beyond the first page */
	int pages[CORE_NODES_MAX];
	uint64 last[CORE_NODES_MAX]; /* id of each node's last host; ids ascend */
	Size kept;                   /* bytes of configurations */
	bool too_long;
	MemoryContext context; /* holds the tables below */
	HTAB *hosts;           /* ReadHost */
	HTAB *configs;         /* ReadConfig */
} Reading;

typedef struct ReadConfig
{
	uint64 hash; /* key: hash of the text; plus 1, .. if the hash is taken */
	char *text;
	size_t len;
	uint32 at; /* offset in the segment */
} ReadConfig;

typedef struct ReadHost
{
	uint64 id; /* key */
	int64 seen_us;
	core_mask known_to;
	char facts[LUA_FACTS_MAX];
	size_t facts_len;
	ReadConfig *config; /* NULL: none */
} ReadHost;

static Reading reading;
static uint64 answered = 0;
static dsm_segment *list = NULL;
static int64 drop_list_us;

static void begin_reading(int64 now_us);
static void add_self(int node, int64 now_us);
static void ask_page(RedisNode *node, const char *after, size_t len, int64 now_us);
static bool read_page(RedisNode *node, const redisReply *records, int64 now_us);
static ReadConfig *keep_config(const HostRecord *record);
static void end_reading(int64 now_us);
static dsm_segment *make_list(int64 now_us);
static uint32 put_text(HostList *to, uint32 *at, const char *text, size_t len);
static void drop_list(void);

int64
host_pages_on_time(bool may_read, int64 now_us)
{
	if (may_read && reading.number == 0 && host_list_asked() > answered)
		begin_reading(now_us);
	if (list != NULL && now_us >= drop_list_us)
		drop_list();
	return list != NULL ? drop_list_us : PG_INT64_MAX;
}

static void
begin_reading(int64 now_us)
{
	HASHCTL of_hosts = {.keysize = sizeof(uint64), .entrysize = sizeof(ReadHost)};
	HASHCTL of_configs = {.keysize = sizeof(uint64), .entrysize = sizeof(ReadConfig)};

	memset(&reading, 0, sizeof(reading));
	reading.number = host_list_asked();
	reading.context =
		AllocSetContextCreate(TopMemoryContext, "redlock hosts", ALLOCSET_DEFAULT_SIZES);
	of_hosts.hcxt = of_configs.hcxt = reading.context;
	reading.hosts =
		hash_create("redlock hosts", 64, &of_hosts, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	reading.configs = hash_create("redlock configurations", 16, &of_configs,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	host_list_step();
	entry_write();
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if ((members() & CORE_BIT(i)) && node_is_local(node_at(i)))
			add_self(i, now_us);
		else if ((members() & CORE_BIT(i)) && node_can_send(node_at(i)))
		{
			reading.out |= CORE_BIT(i);
			ask_page(node_at(i), "", 0, now_us);
		}
	if (reading.out == 0)
		end_reading(now_us);
}

/* The node inside the server: this host is the only one. */
static void
add_self(int node, int64 now_us)
{
	uint64 id = lease_table->host_id;
	HostRecord config = {0};
	const char *text[2];
	size_t len[2];
	ReadHost *host;
	bool found;

	entry_texts(text, len);
	config.config = text[1];
	config.config_len = len[1];
	host = hash_search(reading.hosts, &id, HASH_ENTER, &found);
	host->known_to = found ? host->known_to | CORE_BIT(node) : CORE_BIT(node);
	host->seen_us = now_us;
	memcpy(host->facts, text[0], len[0]);
	host->facts_len = len[0];
	host->config = keep_config(&config);
	reading.read |= CORE_BIT(node);
}

static void
ask_page(RedisNode *node, const char *after, size_t len, int64 now_us)
{
	list_call(node, CALL_LIST, 1, &after, &len, now_us);
}

/*
 * Reads a page, and asks the node for the next.  A node that fails, or whose list does not end,
 * does not count.
 */
void
hear_page(RedisNode *node, const redisReply *reply, int64 now_us)
{
	static char after[CORE_NODES_MAX][HOSTS_AFTER_MAX + 1];
	core_mask bit = CORE_BIT(node->index);
	const redisReply *next = NULL;

	if (!(reading.out & bit))
		return;
	host_list_step();
	if (reply != NULL && (!list_is_answer(reply, 2) || reply->element[0]->len > HOSTS_AFTER_MAX))
		list_complain(node, reply);
	else if (reply != NULL && read_page(node, reply->element[1], now_us))
		next = reply->element[0];
	if (next != NULL && next->len > 0 && node_can_send(node) &&
		++reading.pages[node->index] < PAGES_MAX &&
		(!(reading.later & bit) || strcmp(next->str, after[node->index]) > 0))
	{
		strlcpy(after[node->index], next->str, sizeof(after[0]));
		reading.later |= bit;
		ask_page(node, next->str, next->len, now_us);
		return;
	}
	if (next != NULL && next->len == 0)
		reading.read |= bit;
	reading.out &= ~bit;
	if (reading.out == 0)
		end_reading(now_us);
}

/*
 * Reads the hosts of one page.  Returns false if there are too many, or if their ids do not
 * ascend.
 */
static bool
read_page(RedisNode *node, const redisReply *records, int64 now_us)
{
	HostRecord configs[LUA_RECORDS_MAX + 1] = {0}; /* by number: the record that has the text */
	const char *at = records->str;
	HostRecord record;

	while (hosts_take(&at, records->str + records->len, &record))
	{
		ReadHost *host;
		bool found;
		int64 seen_us = now_us - record.age_ms * 1000;

		if (record.id <= reading.last[node->index])
			return false;
		reading.last[node->index] = record.id;
		if (record.config != NULL)
			configs[record.number] = record;
		host = hash_search(reading.hosts, &record.id, HASH_ENTER, &found);
		if (reading.kept > CONFIGS_SIZE_MAX ||
			(!found && hash_get_num_entries(reading.hosts) > HOST_LIST_MAX))
		{
			if (!found)
				hash_search(reading.hosts, &record.id, HASH_REMOVE, NULL);
			reading.too_long = true;
			return false;
		}
		if (!found)
			host->known_to = 0;
		if (!found || seen_us > host->seen_us)
		{
			host->seen_us = seen_us;
			memcpy(host->facts, record.facts, record.facts_len);
			host->facts_len = record.facts_len;
			host->config = keep_config(&configs[record.number]);
		}
		host->known_to |= CORE_BIT(node->index);
	}
	return true;
}

/* Stores the record's configuration once.  Returns NULL if the record has none. */
static ReadConfig *
keep_config(const HostRecord *record)
{
	const char *text = record->config;
	size_t len = record->config_len;
	uint64 hash;
	ReadConfig *config;
	bool found;

	if (text == NULL)
		return NULL;
	hash = hash_bytes_extended((const unsigned char *) text, len, 0);
	for (;; hash++)
	{
		config = hash_search(reading.configs, &hash, HASH_ENTER, &found);
		if (!found)
			break;
		if (config->len == len && memcmp(config->text, text, len) == 0)
			return config;
	}
	config->text = MemoryContextAlloc(reading.context, len);
	memcpy(config->text, text, len);
	config->len = len;
	reading.kept += len;
	return config;
}

static void
end_reading(int64 now_us)
{
	HostListAnswer answer = {.number = reading.number, .segment = DSM_HANDLE_INVALID};

	drop_list();
	answer.silent = members() & ~reading.read;
	if (core_has_quorum(members_lists(), reading.read))
	{
		list = make_list(now_us);
		drop_list_us = now_us + KEEP_LIST_US;
		answer.state = list != NULL ? HOST_LIST_MADE : HOST_LIST_NO_MEMORY;
		if (list != NULL)
			answer.segment = dsm_segment_handle(list);
	}
	else
		answer.state = reading.too_long ? HOST_LIST_TOO_LONG : HOST_LIST_NO_QUORUM;
	MemoryContextDelete(reading.context);
	answered = reading.number;
	reading.number = 0;
	host_list_answer(&answer);
}

/* Builds the list in a segment.  Returns NULL if memory is short, and logs the error. */
static dsm_segment *
make_list(int64 now_us)
{
	dsm_segment *volatile segment = NULL;
	MemoryContext context = CurrentMemoryContext;
	long count = hash_get_num_entries(reading.hosts);
	Size size = offsetof(HostList, row) + count * sizeof(HostRow);
	uint32 at = offsetof(HostList, row) + count * sizeof(HostRow);
	HASH_SEQ_STATUS status;
	ReadConfig *config;
	ReadHost *host;
	HostList *to;

	hash_seq_init(&status, reading.configs);
	while ((config = hash_seq_search(&status)) != NULL)
		size += config->len;
	hash_seq_init(&status, reading.hosts);
	while ((host = hash_seq_search(&status)) != NULL)
		size += host->facts_len;

	PG_TRY();
	{
		segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
	}
	PG_END_TRY();
	if (segment == NULL)
		return NULL;

	to = dsm_segment_address(segment);
	to->size = size;
	to->made_us = now_us;
	to->count = 0;
	describe_config(&to->own, members_lists());
	hash_seq_init(&status, reading.configs);
	while ((config = hash_seq_search(&status)) != NULL)
		config->at = put_text(to, &at, config->text, config->len);
	hash_seq_init(&status, reading.hosts);
	while ((host = hash_seq_search(&status)) != NULL)
	{
		HostRow *row = &to->row[to->count++];

		row->id = host->id;
		row->seen_us = host->seen_us;
		row->nodes = pg_popcount32(host->known_to & members());
		row->facts_at = put_text(to, &at, host->facts, host->facts_len);
		row->facts_len = host->facts_len;
		row->config_at = host->config != NULL ? host->config->at : 0;
		row->config_len = host->config != NULL ? host->config->len : 0;
	}
	Assert(at == size);
	return segment;
}

static uint32
put_text(HostList *to, uint32 *at, const char *text, size_t len)
{
	memcpy((char *) to + *at, text, len);
	*at += len;
	return *at - len;
}

static void
drop_list(void)
{
	if (list != NULL)
		dsm_detach(list);
	list = NULL;
}
