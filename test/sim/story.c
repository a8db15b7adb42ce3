/*
 * story.c
 *		The trace of a schedule; see story.h.
 */
#include "story.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "world.h"

bool story_on = false;
FILE *story_out;

const char *const fault_name[FAULTS] = {
	[FAULT_LOSS] = "loss",
	[FAULT_DELAY] = "delay",
	[FAULT_CUT] = "cut",
	[FAULT_PARTITION] = "partition",
	[FAULT_RESET] = "reset",
	[FAULT_DUPLICATE] = "duplicate",
	[FAULT_ERROR] = "error",
	[FAULT_NONSENSE] = "nonsense",
	[FAULT_NODE_PAUSE] = "node-pause",
	[FAULT_RESTART] = "restart",
	[FAULT_RESTART_LOST] = "restart-lost",
	[FAULT_ROLLBACK] = "rollback",
	[FAULT_FLUSH] = "flush",
	[FAULT_LOST_VOTE] = "lost-vote",
	[FAULT_ROLLING] = "rolling",
	[FAULT_TWIN] = "twin",
	[FAULT_NODE_FORWARD] = "node-forward",
	[FAULT_NODE_BACK] = "node-back",
	[FAULT_NODE_DRIFT] = "node-drift",
	[FAULT_WALL_WRONG] = "wall-wrong",
	[FAULT_WALL_JUMP] = "wall-jump",
	[FAULT_HOST_DRIFT] = "host-drift",
	[FAULT_HOST_WILD] = "host-wild",
	[FAULT_HOST_PAUSE] = "host-pause",
	[FAULT_APP_PAUSE] = "app-pause",
	[FAULT_BROKER] = "broker",
	[FAULT_CRASH] = "crash",
	[FAULT_CANCEL] = "cancel",
	[FAULT_PLAIN] = "plain",
	[FAULT_STRANGER] = "stranger",
	[FAULT_EVICT] = "evict",
	[FAULT_SUSPEND] = "suspend",
	[FAULT_DROP] = "drop",
	[FAULT_BATCH] = "batch",
	[FAULT_NOSCRIPT] = "noscript",
	[FAULT_SILENCE] = "silence",
	[FAULT_BOOT_STEP] = "boot-step",
	[FAULT_SERVER] = "server",
	[FAULT_FULL] = "full",
	[FAULT_WORD] = "word",
	[FAULT_RELOAD_NODES] = "reload-nodes",
	[FAULT_RELOAD_PREFIX] = "reload-prefix",
	[FAULT_RELOAD_TTL] = "reload-max-ttl",
	[FAULT_SEVERAL] = "several",
	[FAULT_FORCE] = "force",
};

/* Tokens are told as microseconds since the world began: short, and in order. */
static int64_t
short_token(int64_t token)
{
	return token == 0 ? 0 : token - WALL_US - START_US;
}

void
story_tell(const char *format, ...)
{
	va_list args;

	fprintf(story_out, "%11.3f ms  ", (double) (w.now_us - START_US) / 1000);
	va_start(args, format);
	vfprintf(story_out, format, args);
	va_end(args);
	fprintf(story_out, "\n");
}

static void
print_command(const command *c)
{
	switch (c->op)
	{
		case CORE_OP_ACQUIRE:
			fprintf(story_out, "acquire, proposal %" PRId64, short_token(c->proposal));
			break;
		case CORE_OP_CONFIRM:
			fprintf(story_out, "confirm, counter %" PRId64 " to become token %" PRId64,
					short_token(c->counter), short_token(c->token));
			break;
		case CORE_OP_RENEW:
			fprintf(story_out, "renew, bound %" PRId64, short_token(c->counter));
			if (c->token > c->counter)
				fprintf(story_out, " to become %" PRId64, short_token(c->token));
			break;
		case CORE_OP_RELEASE:
			fprintf(story_out, "release");
			if (c->counter != 0)
				fprintf(story_out, ", tombstone %" PRId64, short_token(c->counter));
			if (c->ttl_ms > 0)
				fprintf(story_out, ", keep the key for %" PRId64 " ms", c->ttl_ms);
			break;
	}
	fprintf(story_out, " (request %" PRIu32 ", attempt %" PRIu32 ")", c->secret, c->attempt);
}

void
story_command(const char *verb, const command *c, int node, const char *why)
{
	if (!story_on)
		return;
	fprintf(story_out, "%11.3f ms  host %c %s node %d: ", (double) (w.now_us - START_US) / 1000,
			HOST_NAME(c->host), verb, node + 1);
	print_command(c);
	fprintf(story_out, "%s%s\n", why[0] != '\0' ? ": " : "", why);
}

void
story_answer(const char *verb, const command *c, const answer *a, int node)
{
	static const char *const error[] = {"", "FORGOT its marker", "AHEAD of its clock", "an error",
										"NOSCRIPT"};

	if (!story_on)
		return;
	fprintf(story_out, "%11.3f ms  node %d %s host %c: ", (double) (w.now_us - START_US) / 1000,
			node + 1, verb, HOST_NAME(c->host));
	print_command(c);
	if (a->reply == CORE_REPLY_ERROR)
		fprintf(story_out, ": %s", error[a->error]);
	else if (a->reply == CORE_REPLY_UNKNOWN)
		fprintf(story_out, ": nonsense");
	else
		fprintf(story_out, ": %s", a->reply == CORE_REPLY_YES ? "yes" : "no");
	if (a->token != 0)
		fprintf(story_out, ", counter %" PRId64, short_token(a->token));
	if (a->holder != 0)
		fprintf(story_out, ", request %" PRIu32 " holds it for %" PRId64 " ms", a->holder,
				a->busy_ms);
	fprintf(story_out, "\n");
}

void
story_plan(void)
{
	static const char *const persistence[] = {"all", "snapshots", "nothing"};
	const plan *p = &w.plan;

	if (!story_on)
		return;
	fprintf(story_out,
			"# %d hosts, %d nodes; ttl %" PRId64 " ms, max_ttl %" PRId64
			" ms, node_timeout %" PRId64
			" ms\n# retry after %.1f ms, one way takes %.3f ms, span %d, %d requests\n",
			p->hosts, p->nodes, p->ttl_us / 1000, p->max_ttl_us / 1000, p->answer_us / 1000,
			(double) p->retry_us / 1000, (double) p->delay_us / 1000, p->span, p->asks);
	fprintf(story_out, "# nodes keep:");
	for (int i = 0; i < p->servers; i++)
		fprintf(story_out, " %s", persistence[p->persistence[i]]);
	for (int h = 1; p->renamed && h < p->hosts; h++)
	{
		fprintf(story_out, "\n# nodes of host %c are those that host A calls:", HOST_NAME(h));
		for (int n = 0; n < p->nodes; n++)
			fprintf(story_out, " %d", w.server_of[h][n] + 1);
	}
	fprintf(story_out, "\n# faults:");
	for (int i = 0; i < FAULTS; i++)
		if (p->faults & FAULT_BIT(i))
			fprintf(story_out, " %s", fault_name[i]);
	fprintf(story_out, "\n# invariants demanded: %s%s%s%s\n", p->guarded ? "1 8 " : "",
			p->measured ? "12 " : "", p->rolling ? "16 " : "",
			p->sane ? "2 also where nodes forget" : "");
}
