/*
 * hosts_fuzz.c
 *		Entries of hosts at the nodes, by src/protocol/hosts.c: facts, configurations, lists of
 *		records, and the comparison of two configurations.
 *
 * Claims: an entry that is read is within the bounds of hosts.h, and is written with the same words
 * into its room at the nodes; each record lies within the answer; a
 * comparison matches each node once at most.
 */
#include "fuzz.h"

#include "protocol/hosts.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
read_facts(const char *text, size_t len)
{
	HostFacts facts;
	HostFacts again;
	char written[LUA_FACTS_MAX];
	size_t written_len;

	if (!hosts_read_facts(&facts, text, len))
		return;
	must(facts.leases >= 0 && facts.up_for_s >= 0 && facts.takes_for_s >= 0);
	written_len = hosts_write_facts(&facts, written);
	must(written_len <= sizeof(written) && has_words(text, len, written, written_len));
	must(!hosts_read_facts(&again, written, written_len - 1));
}

static void
check_config(const HostConfig *config)
{
	must(config->count >= 0 && config->count <= HOSTS_NODES_MAX && config->max_ttl_ms >= 0);
	must(config->standing >= HOST_ASKS && config->standing <= HOST_WARNS);
	must(config->step >= HOST_STAYS && config->step <= HOST_GOES_BACK);
	for (int i = 0; i < config->count; i++)
	{
		const HostNode *node = &config->node[i];

		must(node->address[0] != '\0' && node->db >= 0 && node->held < 64);
		must(node->now || node->next || node->held != 0);
		must(strchr(node->process, ' ') == NULL && node->former[0][0] == '\0');
	}
}

static void
read_config(const char *text, size_t len)
{
	static HostConfig config;
	static HostConfig again;
	char written[LUA_CONFIG_MAX];
	size_t written_len;

	if (!hosts_read_config(&config, text, len))
		return;
	check_config(&config);
	written_len = hosts_write_config(&config, written);
	must(written_len <= sizeof(written) && has_words(text, len, written, written_len));
	must(hosts_read_config(&again, written, written_len) && hosts_say_the_same(&config, &again));
	must(!hosts_read_config(&again, written, written_len - 1));
	hosts_take_step(&config);
	must(config.step == HOST_STAYS);
}

static void
take_records(const char *text, size_t len)
{
	const char *at = text;
	const char *end = text + len;
	HostRecord record;

	for (const char *before = at; hosts_take(&at, end, &record); before = at)
	{
		must(at > before && at <= end);
		must(record.age_ms >= 0 && record.age_ms <= LUA_HOST_LIVES_MS);
		must(record.number >= 0 && record.number <= LUA_RECORDS_MAX);
		must(record.facts >= before && record.facts + record.facts_len <= at &&
			 record.facts_len <= LUA_FACTS_MAX);
		must((record.config == NULL) == (record.config_len == 0));
		if (record.config != NULL)
		{
			must(record.config >= before && record.config + record.config_len == at &&
				 record.config_len <= LUA_CONFIG_MAX);
			read_config(record.config, record.config_len);
		}
		read_facts(record.facts, record.facts_len);
	}
}

static void
compare(Bytes bytes)
{
	static HostConfig ours;
	static HostConfig theirs;
	HostsDifference difference;
	int64_t seen_us = 10000000 * (int64_t) take_below(&bytes, 256);
	size_t len = 16 * take_below(&bytes, 256);
	const char *text = (const char *) bytes.at;
	size_t rest = (size_t) (bytes.end - bytes.at);

	len = len < rest ? len : rest;
	if (!hosts_read_config(&ours, text, len) || !hosts_read_config(&theirs, text + len, rest - len))
		return;
	for (int i = 0; i < ours.count; i++)
	{
		ours.node[i].started_us = 10000000 * (int64_t) (i % 3);
		ours.node[i].heard_us = seen_us + i % 2 - 1;
		hosts_set_id(ours.node[i].former[0], theirs.count > 0 ? theirs.node[0].process : "");
	}
	for (int any_time = 0; any_time <= 1; any_time++)
	{
		memset(&difference, 0x55, sizeof(difference));
		hosts_compare(&ours, &theirs, any_time ? HOSTS_AT_ANY_TIME : seen_us, &difference);
		must((difference.kinds & ~(HOSTS_MAX_TTL | HOSTS_DATABASES | HOSTS_NODES | HOSTS_HELD)) ==
			 0);
		must(((difference.kinds & HOSTS_MAX_TTL) != 0) == (ours.max_ttl_ms != theirs.max_ttl_ms));
		must((difference.guessed == 0) == (difference.guess_kinds == 0));
		for (int i = 0; i < HOSTS_NODES_MAX; i++)
		{
			int twin = difference.twin[i];

			must(twin >= -1 && twin < theirs.count && (i < ours.count || twin == -1));
			for (int j = 0; j < i; j++)
				must(twin == -1 || difference.twin[j] != twin);
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	unsigned what = take_below(&bytes, 4);
	const char *text = (const char *) bytes.at;
	size_t len = (size_t) (bytes.end - bytes.at);

	if (what == 0)
		read_facts(text, len);
	else if (what == 1)
		read_config(text, len);
	else if (what == 2)
		take_records(text, len);
	else
		compare(bytes);
	return 0;
}
