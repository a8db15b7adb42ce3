/*
 * sim.c
 *		The simulator: decisions of src/protocol in a seeded world of hosts,
 *		nodes and faults.
 *
 *		sim [--seed N [--trace]] [--from N] [--schedules N] [--seconds N] [--jobs N]
 *			[--faults a,b,c] [--min-faults N] [--skip N] [--tap]
 *
 * Runs one schedule for each seed, until their number or the time is used up,
 * or an invariant is violated.  Then tells the story of the smallest violating
 * seed, and exits with status 1.  See README.md.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "debt.h"
#include "fault.h"
#include "force.h"
#include "host.h"
#include "operator.h"
#include "session.h"
#include "story.h"
#include "wire.h"
#include "word.h"
#include "world.h"

#define JOBS_MAX 64
#define CRASH 99        /* in place of an invariant: an assertion failed */
#define STEPS_MAX 80000 /* events of a schedule; more means no end */

typedef struct options
{
	bool one;
	uint64_t seed;
	bool trace;
	bool tap;
	uint64_t from;
	uint64_t schedules;
	double seconds;
	int jobs;
	int64_t min_faults;
	const char *faults;
} options;

/* A job's results, in memory shared with its parent. */
typedef struct report
{
	uint64_t seed; /* the running or the violating schedule */
	int violated;
	statistics seen;
} report;

static options opt = {.jobs = 1, .seconds = 0, .schedules = 0, .min_faults = 1};
static report *reports;

static void read_options(int argc, char **argv);
static void read_faults(const char *names);
static void usage(void);
static bool run(uint64_t seed);
static void handle(const event *event);
static void work(int job, double until);
static void wait_for(const pid_t *jobs);
static void add_up(statistics *sum);
static double now_s(void);
static int tell_violation(uint64_t seed, int invariant);
static void print_statistics(const statistics *sum, double seconds);
static int print_tap(const statistics *sum, int broken, bool enough);
static bool replays(uint64_t seed);
static char *trace_of(uint64_t seed);

int
main(int argc, char **argv)
{
	statistics sum;
	const report *worst = NULL;
	pid_t jobs[JOBS_MAX];
	double began;
	bool enough = true;

	story_out = stdout;
	read_options(argc, argv);
	if (opt.one)
	{
		printf("# sim --seed %" PRIu64 "%s%s\n", opt.seed, opt.faults ? " --faults " : "",
			   opt.faults ? opt.faults : "");
		story_on = opt.trace;
		if (!run(opt.seed))
			return tell_violation(opt.seed, violated);
		printf("# no invariant is violated\n");
		return 0;
	}

	printf("# sim --from %" PRIu64 " --schedules %" PRIu64 " --seconds %g --jobs %d%s%s\n",
		   opt.from, opt.schedules, opt.seconds, opt.jobs, opt.faults ? " --faults " : "",
		   opt.faults ? opt.faults : "");
	fflush(stdout);
	reports = mmap(NULL, sizeof(report) * (size_t) opt.jobs, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (reports == MAP_FAILED)
		return perror("mmap"), 2;
	began = now_s();
	for (int j = 0; j < opt.jobs; j++)
	{
		jobs[j] = fork();
		if (jobs[j] < 0)
			return perror("fork"), 2;
		if (jobs[j] == 0)
		{
			work(j, opt.seconds > 0 ? began + opt.seconds : 1e18);
			exit(0);
		}
	}
	wait_for(jobs);
	add_up(&sum);
	for (int j = 0; j < opt.jobs; j++)
		if (reports[j].violated != 0 && (worst == NULL || reports[j].seed < worst->seed))
			worst = &reports[j];
	print_statistics(&sum, now_s() - began);
	for (int i = 0; i < FAULTS; i++)
		if ((plan_allowed & FAULT_BIT(i)) && sum.fault[i] < opt.min_faults)
		{
			printf("# too few faults of the class %s: %" PRId64 "\n", fault_name[i], sum.fault[i]);
			enough = false;
		}
	if (worst != NULL)
		tell_violation(worst->seed, worst->violated);
	if (opt.tap)
		return print_tap(&sum, worst != NULL ? worst->violated : 0, enough);
	printf("%" PRId64 " passed, %d failed\n", sum.schedules - (worst != NULL), worst != NULL);
	return worst == NULL && enough ? 0 : 1;
}

static void
read_options(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		const char *name = argv[i];
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(name, "--trace") == 0)
			opt.trace = true;
		else if (strcmp(name, "--tap") == 0)
			opt.tap = true;
		else if (value == NULL)
			usage();
		else
		{
			i++;
			if (strcmp(name, "--seed") == 0)
			{
				opt.one = true;
				opt.seed = strtoull(value, NULL, 10);
			}
			else if (strcmp(name, "--from") == 0)
				opt.from = strtoull(value, NULL, 10);
			else if (strcmp(name, "--schedules") == 0)
				opt.schedules = strtoull(value, NULL, 10);
			else if (strcmp(name, "--seconds") == 0)
				opt.seconds = strtod(value, NULL);
			else if (strcmp(name, "--jobs") == 0)
				opt.jobs = atoi(value);
			else if (strcmp(name, "--min-faults") == 0)
				opt.min_faults = atoll(value);
			else if (strcmp(name, "--skip") == 0)
				check_skipped = atoi(value);
			else if (strcmp(name, "--faults") == 0)
				read_faults(opt.faults = value);
			else
				usage();
		}
	}
	if (opt.jobs < 1 || opt.jobs > JOBS_MAX)
		usage();
	if (opt.schedules == 0)
		opt.schedules = opt.seconds > 0 ? UINT64_MAX : 100000;
}

/* "cut,reset": only these; "-plain,stranger": all except these. */
static void
read_faults(const char *names)
{
	bool but = names[0] == '-';
	uint64_t mask = 0;
	char *list = strdup(names + but);

	for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ","))
	{
		int i = 0;

		while (i < FAULTS && strcmp(fault_name[i], name) != 0)
			i++;
		if (i == FAULTS)
			usage();
		mask |= FAULT_BIT(i);
	}
	free(list);
	plan_allowed = but ? plan_allowed & ~mask : mask;
}

static void
usage(void)
{
	fprintf(stderr, "usage: sim [--seed N [--trace]] [--from N] [--schedules N] [--seconds N]\n"
					"           [--jobs N] [--faults [-]LIST] [--min-faults N] [--skip N] [--tap]\n"
					"faults:");
	for (int i = 0; i < FAULTS; i++)
		fprintf(stderr, " %s", fault_name[i]);
	fprintf(stderr, "\n");
	exit(2);
}

/* Runs one schedule.  Returns false if it violated an invariant. */
static bool
run(uint64_t seed)
{
	event event;

	world_begin(seed);
	check_begin();
	story_plan();
	wire_begin();
	word_begin();
	host_begin();
	force_reset();
	fault_begin();
	operator_begin();
	while (!w.over && next_event(&event))
	{
		handle(&event);
		debt_check();
		if (w.taken < STEPS_MAX)
			continue;
		if (w.plan.measured)
			violate(12, "it never ends");
		break; /* a waiter may ask for hours, until a key expires */
	}
	if (w.taken < STEPS_MAX)
		check_end();
	seen.events += w.taken;
	return violated == 0;
}

static void
handle(const event *event)
{
	if (event->kind <= EVENT_HOST_LAST)
	{
		host_handle(event);
		return;
	}
	switch ((event_kind) event->kind)
	{
		case EVENT_ARRIVE:
			wire_on_arrive(event);
			break;
		case EVENT_REACH:
			wire_on_reach(event);
			break;
		case EVENT_LATE:
			wire_on_late(event);
			break;
		case EVENT_FAULT:
			fault_happens();
			break;
		case EVENT_FORCE:
			force_on_arrive(event);
			break;
		case EVENT_FORCE_LATE:
			force_on_late(event);
			break;
		case EVENT_OPERATOR:
			operator_acts();
			break;
		case EVENT_PLAIN:
			fault_plain(event);
			break;
		case EVENT_CALM:
			fault_calm();
			break;
		case EVENT_LIMIT:
			check_limit();
			w.late = true;
			session_stop(w.last_host);
			break;
		default:
			break;
	}
}

/* Job j of n runs every n-th seed. */
static void
work(int job, double until)
{
	uint64_t step = (uint64_t) opt.jobs;

	for (uint64_t i = (uint64_t) job; i < opt.schedules; i += step)
	{
		reports[job].seed = opt.from + i;
		if (!run(opt.from + i))
		{
			reports[job].violated = violated;
			break;
		}
		if (i / step % 64 == 0 && now_s() > until)
			break;
	}
	reports[job].seen = seen;
}

static void
wait_for(const pid_t *jobs)
{
	for (int j = 0; j < opt.jobs; j++)
	{
		int status;

		waitpid(jobs[j], &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			reports[j].violated = CRASH;
	}
}

static void
add_up(statistics *sum)
{
	int64_t *to = (int64_t *) sum;

	memset(sum, 0, sizeof(*sum));
	for (int j = 0; j < opt.jobs; j++)
		for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
			to[i] += ((const int64_t *) &reports[j].seen)[i];
}

static double
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

static int
tell_violation(uint64_t seed, int invariant)
{
	if (invariant == CRASH)
		printf("# seed %" PRIu64 ": the program fails\n", seed);
	fflush(stdout);
	setvbuf(stdout, NULL, _IOLBF, 1 << 16); /* an assertion may end the program */
	if (!story_on)
	{
		story_on = true;
		run(seed);
	}
	printf("# seed %" PRIu64 " violates invariant %d: %s\n"
		   "# again: test/sim/sim --seed %" PRIu64 "%s%s --trace\n",
		   seed, invariant, violation, seed, opt.faults ? " --faults " : "",
		   opt.faults ? opt.faults : "");
	return 1;
}

static void
print_statistics(const statistics *sum, double seconds)
{
	printf(
		"# %" PRId64 " schedules in %.1f s, %.0f in a second; %.0f events in each\n"
		"# invariant 1 was demanded in %" PRId64 " of them; in %" PRId64
		" hosts have nodes by other names\n"
		"# detached %" PRId64 ", prolonged %" PRId64 ", ended by hold_at_most %" PRId64
		"\n# granted %" PRId64 " (%" PRId64 " handed over, %" PRId64
		" in a turn that went on, %" PRId64
		" handed over after a stay with nobody; stays that were over %" PRId64 ", recalled %" PRId64
		", awaited by tries %" PRId64 ", tokens beyond those of the grant %" PRId64
		", looks for those under way %" PRId64 "), refused %" PRId64 ", unreachable %" PRId64
		"; renewed %" PRId64 ", not renewed %" PRId64 ", lost %" PRId64 "\n# aged requests %" PRId64
		"; releases that waited for room %" PRId64 "; executed late %" PRId64
		", quarantines %" PRId64 ", hosts fooled %" PRId64 "; written %" PRId64 ", stale %" PRId64
		", of these fenced off %" PRId64 "\n# looked at unwanted keys %" PRId64
		", and at keys of leases at nodes that came back %" PRId64
		"\n# owners cancelled when just granted %" PRId64 ", too late for their grant %" PRId64
		", gone without a word %" PRId64 "; sent again after NOSCRIPT %" PRId64
		", connections replaced %" PRId64 "\n# asked for beside a lost lease %" PRId64
		", for a name with the hash of another %" PRId64
		"; calls of the script for several locks %" PRId64 "\n# requests with a longer ttl %" PRId64
		", that went to new nodes %" PRId64 ", nodes that left %" PRId64
		", lists that waited for entries %" PRId64 "\n# changes by two lists: on both %" PRId64
		", done %" PRId64 "; held leases that got other lists %" PRId64
		"\n# released by force %" PRId64 ", with more rounds %" PRId64 ", in vain %" PRId64
		"; leases that ended so %" PRId64 "\n# stored behind the fence %" PRId64
		", overtaken %" PRId64 "; writers whose clock deceived them %" PRId64 "\n",
		sum->schedules, seconds, (double) sum->schedules / seconds,
		(double) sum->events / (double) (sum->schedules > 0 ? sum->schedules : 1), sum->guarded,
		sum->renamed, sum->detached, sum->prolonged, sum->holds_over, sum->granted,
		sum->handed_over, sum->gone_on, sum->taken_idle, sum->stays_over, sum->recalled,
		sum->recalls, sum->beyond, sum->awaited_tokens, sum->refused, sum->unreachable,
		sum->renewed, sum->unrenewed, sum->expired, sum->aged, sum->waited, sum->late,
		sum->quarantines, sum->fooled, sum->writes, sum->stale, sum->fenced, sum->debts,
		sum->repairs, sum->cancelled, sum->too_late, sum->vanished, sum->sent_again, sum->replaced,
		sum->beside_lost, sum->collided, sum->mixed, sum->longer, sum->moved, sum->left,
		sum->short_of_indexes, sum->settled, sum->replaced_lists, sum->relisted, sum->forced,
		sum->forced_again, sum->forced_failed, sum->forced_over, sum->stored, sum->passed,
		sum->deceived);
	printf("# faults:\n");
	for (int i = 0; i < FAULTS; i++)
		printf("%s%-14s %10" PRId64 "%s", i % 3 == 0 ? "#   " : "   ", fault_name[i], sum->fault[i],
			   i % 3 == 2 || i == FAULTS - 1 ? "\n" : "");
	printf("# checked:");
	for (int i = 0; i < INVARIANTS; i++)
		if (sum->checked[i] > 0)
			printf(" %d: %" PRId64, i, sum->checked[i]);
	printf("\n");
}

/*
 * Test Anything Protocol: one line for each invariant, and for the run itself.
 */
static int
print_tap(const statistics *sum, int broken, bool enough)
{
	int tests = 0;
	int failed = 0;

#define ok(holds, ...)                                                                             \
	do                                                                                             \
	{                                                                                              \
		bool passed = (holds);                                                                     \
		failed += !passed;                                                                         \
		printf("%sok %d - ", passed ? "" : "not ", ++tests);                                       \
		printf(__VA_ARGS__);                                                                       \
		printf("\n");                                                                              \
	} while (0)

	for (int i = 1; i < INVARIANTS; i++)
		if (sum->checked[i] > 0 || i == broken)
			ok(i != broken, "%s %d holds in %" PRId64 " schedules, checked %" PRId64 " times",
			   i == LAWS ? "the laws of the core:" : "invariant", i, sum->schedules,
			   sum->checked[i]);
	ok(broken != CRASH, "no assertion fails");
	ok(enough, "each class of faults was injected");
	ok(sum->granted > 0 && sum->handed_over > 0 && sum->gone_on > 0 && sum->taken_idle > 0 &&
		   sum->awaited_tokens > 0 && sum->stays_over > 0 && sum->recalled > 0 &&
		   sum->recalls > 0 && sum->beyond > 0 && sum->refused > 0 && sum->unreachable > 0 &&
		   sum->renewed > 0 && sum->unrenewed > 0 && sum->expired > 0 && sum->late > 0 &&
		   sum->waited > 0 && sum->aged > 0 && sum->quarantines > 0 && sum->debts > 0 &&
		   sum->repairs > 0 && sum->cancelled > 0 && sum->too_late > 0 && sum->vanished > 0 &&
		   sum->sent_again > 0 && sum->replaced > 0 && sum->beside_lost > 0 && sum->collided > 0 &&
		   sum->mixed > 0 && sum->short_of_indexes > 0 && sum->longer > 0 && sum->moved > 0 &&
		   sum->left > 0 && sum->relisted > 0 && sum->settled > 0 && sum->replaced_lists > 0 &&
		   sum->stored > 0 && sum->passed > 0 && sum->detached > 0 && sum->prolonged > 0 &&
		   sum->holds_over > 0 && sum->forced > 0 && sum->forced_again > 0 &&
		   sum->forced_failed > 0 && sum->forced_over > 0,
	   "each outcome was seen");
	ok(sum->stale > 0 && sum->fenced > 0,
	   "stale holders wrote %" PRId64 " times, and the fence kept %" PRId64
	   " of them out, whom a newer one had preceded",
	   sum->stale, sum->fenced);
	ok(broken != 0 || replays(opt.from + 17), "a seed gives the same story, byte for byte");
	printf("1..%d\n", tests);
	return failed == 0 ? 0 : 1;
}

static bool
replays(uint64_t seed)
{
	char *first = trace_of(seed);
	char *second;
	bool same;

	run(seed + 1); /* another schedule in between */
	second = trace_of(seed);
	same = strlen(first) > 0 && strcmp(first, second) == 0;
	free(first);
	free(second);
	return same;
}

static char *
trace_of(uint64_t seed)
{
	char *text = NULL;
	size_t size = 0;

	story_out = open_memstream(&text, &size);
	if (story_out == NULL)
		exit(2);
	story_on = true;
	run(seed);
	story_on = false;
	fclose(story_out);
	story_out = stdout;
	return text;
}
