/*
 * marks_fuzz.c
 *		Marks of replaced lists at the nodes, by src/protocol/steps.c.
 *
 * Claims: a refused mark leaves an empty mark; a mark, read and written again, has the same words,
 * and fits into LUA_MARK_MAX bytes; whatever marks the nodes report, the next version is at least
 * as late as the latest mark, and a host may follow a list without marks.
 */
#include "fuzz.h"

#include "protocol/steps.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WALL_CLOCK_MS INT64_C(1700000000000)

static void
read_mark(StepMark *mark, const char *text, size_t len)
{
	static const StepMark none;
	static StepMark again;
	char written[LUA_MARK_MAX];
	size_t written_len;

	memset(mark, 0x55, sizeof(*mark));
	if (!steps_read_mark(mark, text, len))
	{
		must(memcmp(mark, &none, sizeof(none)) == 0);
		return;
	}
	must(mark->version > 0 && mark->version <= STEPS_VERSION_MAX);
	must(mark->count > 0 && mark->count < HOSTS_NODES_MAX);
	must(mark->place >= 0 && mark->place <= mark->count);
	written_len = steps_write_mark(mark, written);
	must(written_len <= sizeof(written) && has_words(text, len, written, written_len));
	must(!steps_read_mark(&again, written, written_len - 1));
}

/* The host has read one mark at some nodes, and a second mark at other nodes. */
static void
decide(Bytes *bytes, const StepMark *one, const StepMark *other)
{
	static StepMarks marks;
	core_lists lists = {.now = (core_mask) take_below(bytes, 256)};
	core_lists left = {.now = (core_mask) take_below(bytes, 256) << take_below(bytes, 8)};
	uint64_t list = take_below(bytes, 3) == 0 ? one->list : 7;
	const StepMark *latest;
	int64_t version;

	memset(&marks, 0, sizeof(marks));
	lists.next = (core_mask) take_below(bytes, 256) << take_below(bytes, 8);
	marks.told = (core_mask) take_below(bytes, 256) << 8 | (core_mask) take_below(bytes, 256);
	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		unsigned choice = take_below(bytes, 8);

		if (choice < 3)
			marks.mark[i] = *one;
		else if (choice < 6)
			marks.mark[i] = *other;
		if (choice % 3 == 1 && marks.mark[i].count > 0)
			marks.mark[i].place = 1 + i % marks.mark[i].count;
		marks.address[i] = choice % 3 == 2 ? one->address[i % HOSTS_NODES_MAX] : (uint64_t) i;
		marks.process[i] = choice % 3 == 2 ? one->process[i % HOSTS_NODES_MAX] : 0;
	}
	(void) steps_left(lists, list, other->list, &marks);
	(void) steps_forbid(lists, list, left, other->list, take_below(bytes, 2) == 1, &marks);
	steps_remember(&marks, lists.now, list);
	must(marks.own.list == list && marks.own.version >= 0);
	latest = steps_latest(&marks);
	version = steps_next_version(&marks, list, WALL_CLOCK_MS);
	must(version > 0 && version <= STEPS_VERSION_MAX + 1);
	must(latest == NULL || version >= latest->version);
	/* a host that remembers this version of its own list has not been left behind */
	marks.own = (StepMemory){list, version};
	must(!steps_left((core_lists){lists.now, 0}, list, 0, &marks));
	marks.told = 0;
	must(steps_forbid(lists, list, left, other->list, false, &marks) == NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Bytes bytes = {data, data + size};
	size_t skipped = take_below(&bytes, 40);
	size_t len = 4 * take_below(&bytes, 256);
	static StepMark one;
	static StepMark other;
	Bytes choices = bytes;
	size_t rest;

	skipped = skipped < (size_t) (bytes.end - bytes.at) ? skipped : 0;
	bytes.at += skipped;
	rest = (size_t) (bytes.end - bytes.at);
	len = len < rest ? len : rest;
	read_mark(&one, (const char *) bytes.at, len);
	read_mark(&other, (const char *) bytes.at + len, rest - len);
	decide(&choices, &one, &other);
	return 0;
}
