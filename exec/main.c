/*
 * main.c
 *		redlock-exec: options, and the order of the steps.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "redlock_exec.h"

static const char help[] =
	"redlock-exec runs a command while it holds a distributed lock of redlock_pg.\n"
	"\n"
	"Usage:\n"
	"  redlock-exec [OPTION]... NAME -- COMMAND [ARG]...\n"
	"\n"
	"The command runs in a process group of its own, with the fencing token of the\n"
	"lock in REDLOCK_TOKEN. Signals are passed on to the group. The lock is released\n"
	"when the last process of the group has ended. If the lock is lost, the group is\n"
	"ended: by TERM and then KILL before the lease ends, or by KILL at once if the\n"
	"lease has ended already.\n"
	"\n"
	"Lock options:\n"
	"      --wait=INTERVAL          wait for the lock; \"forever\" has no limit (default: 0)\n"
	"      --permits=N              take one of N permits of the lock\n"
	"      --shared                 take the lock in shared mode\n"
	"      --ttl=INTERVAL           validity without a renewal (default: redlock.ttl)\n"
	"      --hold-at-least=INTERVAL keep the lock taken for this long\n"
	"      --kill-after=INTERVAL    time between TERM and KILL, at most a third of the ttl\n"
	"                               (default: a fifth of the ttl)\n"
	"  An INTERVAL is one of PostgreSQL: \"500 ms\", \"5 s\", \"10 min\".\n"
	"\n"
	"Connection options:\n"
	"  -d, --dbname=DBNAME          database name, or a connection string of libpq\n"
	"  -h, --host=HOSTNAME          database server host or socket directory\n"
	"  -p, --port=PORT              database server port\n"
	"  -U, --username=USERNAME      database user name\n"
	"  Environment, service file and password file are those of libpq.\n"
	"\n"
	"Other options:\n"
	"  -E, --skipped-code=CODE      exit code of a skipped run (default: 121)\n"
	"  -q, --quiet                  no message about a skipped run\n"
	"  -V, --version                print the version, then exit\n"
	"  -?, --help                   print this help, then exit\n"
	"\n"
	"Exit codes:\n"
	"  120  usage: wrong options\n"
	"  121  skipped: another session holds the lock\n"
	"  122  no quorum: too few nodes answered\n"
	"  123  lost: the lock was lost before the command ended\n"
	"  125  another failure, such as no connection\n"
	"  126  the command can't be executed\n"
	"  127  the command was not found\n"
	"  Otherwise the command's own, or 128 + N if signal N ended the command.\n";

void
complain(const char *format, ...)
{
	va_list args;

	fputs("redlock-exec: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

void
fail(int code, const char *format, ...)
{
	va_list args;

	fputs("redlock-exec: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(code);
}

static void
fail_usage(const char *what)
{
	if (what != NULL)
		complain("%s", what);
	fprintf(stderr, "Try \"redlock-exec --help\" for more information.\n");
	exit(EXIT_USAGE);
}

static int
code_of(const char *text)
{
	char *end;
	long code = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || code < 0 || code > 255)
		fail_usage("--skipped-code must be a number from 0 to 255");
	return (int) code;
}

/* The words before the first "--" are for redlock-exec. */
static int
words_before_command(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		if (strcmp(argv[i], "--") == 0)
			return i;
	}
	return argc;
}

static void
read_options(int argc, char **argv, Options *options)
{
	enum
	{
		OPTION_WAIT = 256,
		OPTION_PERMITS,
		OPTION_SHARED,
		OPTION_TTL,
		OPTION_HOLD_AT_LEAST,
		OPTION_KILL_AFTER
	};
	static const struct option known[] = {
		{"wait", required_argument, NULL, OPTION_WAIT},
		{"permits", required_argument, NULL, OPTION_PERMITS},
		{"shared", no_argument, NULL, OPTION_SHARED},
		{"ttl", required_argument, NULL, OPTION_TTL},
		{"hold-at-least", required_argument, NULL, OPTION_HOLD_AT_LEAST},
		{"kill-after", required_argument, NULL, OPTION_KILL_AFTER},
		{"dbname", required_argument, NULL, 'd'},
		{"host", required_argument, NULL, 'h'},
		{"port", required_argument, NULL, 'p'},
		{"username", required_argument, NULL, 'U'},
		{"skipped-code", required_argument, NULL, 'E'},
		{"quiet", no_argument, NULL, 'q'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, '?'},
		{NULL, 0, NULL, 0}};
	int count = words_before_command(argc, argv);
	int option;

	opterr = 0;
	while ((option = getopt_long(count, argv, ":d:h:p:U:E:qV", known, NULL)) != -1)
	{
		switch (option)
		{
			case OPTION_WAIT:
				options->wait = strcmp(optarg, "forever") == 0 ? NULL : optarg;
				break;
			case OPTION_PERMITS:
				options->permits = optarg;
				break;
			case OPTION_SHARED:
				options->shared = true;
				break;
			case OPTION_TTL:
				options->ttl = optarg;
				break;
			case OPTION_HOLD_AT_LEAST:
				options->hold_at_least = optarg;
				break;
			case OPTION_KILL_AFTER:
				options->kill_after = optarg;
				break;
			case 'd':
				options->dbname = optarg;
				break;
			case 'h':
				options->host = optarg;
				break;
			case 'p':
				options->port = optarg;
				break;
			case 'U':
				options->user = optarg;
				break;
			case 'E':
				options->skipped_code = code_of(optarg);
				break;
			case 'q':
				options->quiet = true;
				break;
			case 'V':
				puts("redlock-exec (redlock_pg) " REDLOCK_VERSION);
				exit(0);
			case '?':
				if (strcmp(argv[optind - 1], "-?") == 0 || strcmp(argv[optind - 1], "--help") == 0)
				{
					fputs(help, stdout);
					exit(0);
				}
				/* getopt is still within a word of several short options */
				if (optopt != 0 && strncmp(argv[optind - 1], "--", 2) != 0)
					complain("unknown option \"-%c\"", optopt);
				else
					complain("unknown option \"%s\"", argv[optind - 1]);
				fail_usage(NULL);
				break;
			default:
				complain("option \"%s\" needs a value", argv[optind - 1]);
				fail_usage(NULL);
		}
	}
	if (count - optind < 1)
		fail_usage("the name of the lock is missing");
	if (count - optind > 1)
		fail_usage("one name of a lock must stand before \"--\"");
	if (count + 1 >= argc)
		fail_usage("the command is missing; it stands behind \"--\"");
	options->name = argv[optind];
	options->command = argv + count + 1;
}

/*
 * The caller may have closed a standard descriptor.  The connection must not take its number: the
 * keeper redirects these numbers, and messages go to standard error.  The command gets the number
 * closed.
 */
static void
fill_standard_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		(void) close(fd);
}

/* Returns 0 if the file can be executed, or the error of execve. */
static int
error_of_program(const char *path)
{
	struct stat status;

	if (stat(path, &status) != 0)
		return errno;
	if (!S_ISREG(status.st_mode))
		return EACCES;
	return access(path, X_OK) == 0 ? 0 : errno;
}

/*
 * Exits if there is no such command: a grant without a command would keep the other hosts from
 * their runs for the time of --hold-at-least.  Looks where execvp will look.
 */
static void
require_command(const char *command)
{
	const char *path = getenv("PATH");
	int error = ENOENT;

	if (strchr(command, '/') != NULL)
		error = error_of_program(command);
	else if (path == NULL || *command == '\0')
		return; /* execvp tells */
	else
	{
		while (error != 0)
		{
			char file[4096];
			int length = (int) strcspn(path, ":");
			int next;

			/* an empty element is the working directory */
			snprintf(file, sizeof(file), "%.*s%s%s", length, path, length > 0 ? "/" : "", command);
			next = error_of_program(file);
			if (next == 0 || next == EACCES)
				error = next;
			if (path[length] == '\0')
				break;
			path += length + 1;
		}
	}
	if (error == 0)
		return;
	complain("could not run \"%s\": %s", command, strerror(error));
	exit(error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
}

static void
end_at(int number)
{
	_exit(128 + number);
}

/*
 * In a container this is often process 1, which ignores signals without a handler.  Until the front
 * blocks signals, these end the wait for the lock; the command is not affected.
 */
static void
heed_signals(void)
{
	static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};

	for (size_t i = 0; getpid() == 1 && i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (signal(numbers[i], end_at) == SIG_IGN)
			(void) signal(numbers[i], SIG_IGN);
}

int
main(int argc, char **argv)
{
	Options options = {.wait = "0", .permits = "1", .skipped_code = EXIT_SKIPPED};
	Grant grant;
	PGconn *conn;

	fill_standard_descriptors();
	(void) setlocale(LC_ALL, "");
	read_options(argc, argv, &options);
	heed_signals();
	watch_require_proc();
	require_command(options.command[0]);
	conn = lock_connect(&options);
	lock_acquire(conn, &options, &grant);
	return front_run(conn, &options, &grant);
}
