/*
 * client.h
 *		Shared by floor.c, sql_client.c and the programs under peers/: the
 *		arguments, and the line of JSON with the figures.
 *
 * Counting begins after --warmup seconds and ends --seconds later.  Operations
 * that end outside of this time do not count.
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define CLIENTS_MAX 1024

static struct
{
	const char *nodes;
	const char *host; /* of PostgreSQL: directory of its socket */
	const char *port;
	const char *acquire; /* statements, with the key as $1 */
	const char *release;
	int clients;
	bool one_key;
	double seconds;
	double warmup;
	long ttl_ms;
} options = {.clients = 1, .seconds = 1, .ttl_ms = 10000};

typedef struct samples
{
	int64_t *ns;
	size_t count;
	size_t room;
} samples;

static samples acquires, pairs;
static long pairs_of[CLIENTS_MAX];
static long errors;
static char first_error[256];
static int64_t from_ns, until_ns; /* operations that end between them count */

static int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

static void
read_options(int argc, char **argv)
{
	static const struct option known[] = {
		{"nodes", 1, 0, 'n'},   {"host", 1, 0, 'h'},    {"port", 1, 0, 'p'},
		{"acquire", 1, 0, 'a'}, {"release", 1, 0, 'r'}, {"clients", 1, 0, 'c'},
		{"keys", 1, 0, 'k'},    {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'w'},
		{"ttl-ms", 1, 0, 't'},  {"host-id", 1, 0, 'i'}, {0}};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1)
		switch (c)
		{
			case 'n':
				options.nodes = optarg;
				break;
			case 'h':
				options.host = optarg;
				break;
			case 'p':
				options.port = optarg;
				break;
			case 'a':
				options.acquire = optarg;
				break;
			case 'r':
				options.release = optarg;
				break;
			case 'c':
				options.clients = atoi(optarg);
				break;
			case 'k':
				options.one_key = strcmp(optarg, "one") == 0;
				break;
			case 's':
				options.seconds = atof(optarg);
				break;
			case 'w':
				options.warmup = atof(optarg);
				break;
			case 't':
				options.ttl_ms = atol(optarg);
				break;
			case 'i':
				break;
			default:
				exit(2);
		}
	if (options.clients < 1 || options.clients > CLIENTS_MAX)
		fail("--clients", "out of bounds");
}

/* Must be called when all connections are open. */
static void
begin_counting(void)
{
	from_ns = now_ns() + (int64_t) (options.warmup * 1e9);
	until_ns = from_ns + (int64_t) (options.seconds * 1e9);
}

static void
sample(samples *s, int64_t ns)
{
	if (s->count == s->room)
	{
		s->room = s->room ? 2 * s->room : 65536;
		s->ns = realloc(s->ns, s->room * sizeof(*s->ns));
		if (!s->ns)
			fail("samples", "out of memory");
	}
	s->ns[s->count++] = ns;
}

static void
count_pair(int client, int64_t asked_ns, int64_t granted_ns, int64_t ended_ns)
{
	if (ended_ns < from_ns || ended_ns >= until_ns)
		return;
	sample(&acquires, granted_ns - asked_ns);
	sample(&pairs, ended_ns - asked_ns);
	pairs_of[client]++;
}

static void
count_error(int64_t at_ns, const char *text)
{
	if (at_ns < from_ns || at_ns >= until_ns)
		return;
	if (errors++ == 0)
		for (size_t i = 0; text[i] && text[i] != '\n' && i < sizeof(first_error) - 1; i++)
			first_error[i] = text[i] == '"' || text[i] == '\\' ? '\'' : text[i];
}

static double
own_cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int
compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

static void
print_samples(const char *name, samples *s)
{
	static const struct
	{
		const char *name;
		double part;
	} of[] = {{"p50", .5}, {"p95", .95}, {"p99", .99}, {"max", 1}};

	qsort(s->ns, s->count, sizeof(*s->ns), compare);
	printf(",\"%s\":{", name);
	for (int i = 0; s->count && i < 4; i++)
		printf("%s\"%s\":%.3f", i ? "," : "", of[i].name,
			   s->ns[(size_t) (of[i].part * (s->count - 1))] / 1e3);
	printf("}");
}

static void
print_figures(const char *name, const char *version, double cpu_s, double backends_cpu_s)
{
	printf("{\"peer\":\"%s\",\"version\":\"%s\",\"clients\":%d,\"keys\":\"%s\",\"seconds\":%.3f,"
		   "\"pairs\":%zu,\"errors\":%ld,\"first_error\":\"%s\"",
		   name, version, options.clients, options.one_key ? "one" : "own", options.seconds,
		   pairs.count, errors, first_error);
	print_samples("pair_us", &pairs);
	print_samples("acquire_us", &acquires);
	printf(",\"per_client\":[");
	for (int i = 0; i < options.clients; i++)
		printf("%s%ld", i ? "," : "", pairs_of[i]);
	printf("],\"cpu_s\":%.4f,\"backends_cpu_s\":%.4f}\n", cpu_s, backends_cpu_s);
	fflush(stdout);
}

#endif /* BENCH_CLIENT_H */
