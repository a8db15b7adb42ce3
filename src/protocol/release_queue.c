/*
 * release_queue.c
 *		The order of releases; see release_queue.h.
 */
#include "protocol/release_queue.h"

static bool is_counted(core_op op, core_event_type why);
static bool has_room(const ReleaseQueue *queue, int node, core_mask can_send);
static bool may_begin(const ReleaseQueue *queue, const core_lease *lease, core_mask can_send);
static void stop_waiting(ReleaseQueue *queue, int entry);
static void send_later(ReleaseQueue *queue, int entry, const core_lease *lease, int node);
static int take_unsent(ReleaseQueue *queue, int node);
static void set_indexed(ReleaseQueue *queue, int entry, uint64_t hash, bool indexed);
static ReleaseList *named(const ReleaseQueue *queue, uint64_t hash);
static void append(ReleaseQueue *queue, ReleaseList *list, int link, int entry);
static void take_out(ReleaseQueue *queue, ReleaseList *list, int link, int entry);

static const ReleaseList EMPTY = {-1, -1};

void
release_queue_init(ReleaseQueue *queue, Release *release, int entries, int room)
{
	*queue = (ReleaseQueue){.release = release, .entries = entries, .room = room};
	queue->waiting = queue->under_way = EMPTY;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		queue->unsent[i] = EMPTY;
	for (int i = 0; i < entries; i++)
		release[i] = (Release){.named = EMPTY};
}

void
release_queue_sent(ReleaseQueue *queue, int node, core_op op, core_event_type why)
{
	queue->unanswered[node] += is_counted(op, why);
}

void
release_queue_answered(ReleaseQueue *queue, int node, core_op op, core_event_type why)
{
	queue->unanswered[node] -= is_counted(op, why);
}

/* A renewal outside of a round is a repair. */
static bool
is_counted(core_op op, core_event_type why)
{
	return op == CORE_OP_RELEASE || (op == CORE_OP_RENEW && why == CORE_NODE_READY);
}

static bool
has_room(const ReleaseQueue *queue, int node, core_mask can_send)
{
	return (can_send & CORE_BIT(node)) && queue->unanswered[node] < queue->room;
}

core_mask
release_queue_can_release(const ReleaseQueue *queue, int entry, core_mask can_send)
{
	core_mask room = 0;

	if (queue->release[entry].urgent)
		return can_send;
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (has_room(queue, i, can_send))
			room |= CORE_BIT(i);
	return room;
}

void
release_queue_follow(ReleaseQueue *queue, int entry, const core_lease *lease, uint64_t hash,
					 const core_event *event, core_mask on_duty)
{
	Release *release = &queue->release[entry];
	bool releasing = lease->state == CORE_RELEASING;
	bool undoing = releasing || lease->state == CORE_BUSY;

	release->lease = lease;
	if (releasing && !release->under_way)
		append(queue, &queue->under_way, RELEASE_BY_AGE, entry);
	else if (!releasing && release->under_way)
		take_out(queue, &queue->under_way, RELEASE_BY_AGE, entry);
	release->under_way = releasing;
	if (!releasing)
		release->urgent = false;

	/*
	 * The undoing of a round waits only for room on the connection.  The same holds for keys
	 * that a live lease leaves behind.
	 */
	if (undoing || lease->left != 0)
	{
		core_mask taking = releasing ? event->can_release : event->can_send;
		core_mask later = core_unpaid(lease) & ~taking & on_duty;

		if (!undoing)
			later &= lease->left;

		for (int i = 0; i < CORE_NODES_MAX && later != 0; i++)
			if (later & CORE_BIT(i))
				send_later(queue, entry, lease, i);
	}
	set_indexed(queue, entry, hash,
				release->waits || (releasing && release->unsent != 0 && !release->urgent));
}

/* A request that was never granted does not wait: there are only a few requests. */
bool
release_queue_begin(ReleaseQueue *queue, int entry, const core_lease *lease, uint64_t hash,
					core_mask can_send)
{
	Release *release = &queue->release[entry];

	if (lease->state != CORE_HELD && lease->state != CORE_LOST)
		return true;
	if (queue->waiting.first < 0 && may_begin(queue, lease, can_send))
		return true;
	release->waits = true;
	append(queue, &queue->waiting, RELEASE_BY_AGE, entry);
	set_indexed(queue, entry, hash, true);
	return false;
}

/*
 * Returns true if the nodes have room for the release.  A release does not wait for a slow
 * minority of the reachable nodes, whether these nodes are a quorum or not.
 */
static bool
may_begin(const ReleaseQueue *queue, const core_lease *lease, core_mask can_send)
{
	int room = 0;
	int full = 0;

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		if (!(lease->members & can_send & CORE_BIT(i)))
			continue;
		if (has_room(queue, i, can_send))
			room++;
		else
			full++;
	}
	return full == 0 || room > full;
}

static void
stop_waiting(ReleaseQueue *queue, int entry)
{
	queue->release[entry].waits = false;
	take_out(queue, &queue->waiting, RELEASE_BY_AGE, entry);
}

/* The node may lack the key, or still have to delete it. */
bool
release_queue_node_ready(ReleaseQueue *queue, int entry, const core_lease *lease, int node,
						 core_mask can_send)
{
	if (lease->state == CORE_FREE || queue->release[entry].waits ||
		!(core_served_by(lease) & CORE_BIT(node)))
		return false;
	if (lease->state != CORE_HELD || has_room(queue, node, can_send))
		return true;
	send_later(queue, entry, lease, node);
	return false;
}

/* A released or expired lease is not renewed. */
bool
release_queue_may_repeat(const ReleaseQueue *queue, int entry, const core_lease *lease,
						 const core_event *answer)
{
	core_mask can = answer->op == CORE_OP_ACQUIRE ? answer->can_vote : answer->can_send;

	if (answer->op == CORE_OP_RENEW && answer->now_us >= lease->valid_until_us)
		return false;
	return !queue->release[entry].waits && (can & CORE_BIT(answer->node)) != 0 &&
		   core_awaits_answer(lease, answer->node, answer->op, answer->round);
}

int64_t
release_queue_wake_at_us(const ReleaseQueue *queue, int entry, const core_lease *lease)
{
	return queue->release[entry].waits ? 0 : lease->wake_at_us;
}

/* The lease may have taken steps since it came into the node's queue. */
bool
release_queue_next_unsent(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		while (queue->unsent[i].first >= 0 && has_room(queue, i, can_send))
		{
			int entry = take_unsent(queue, i);
			const Release *release = &queue->release[entry];
			core_state state = release->lease->state;

			*step = (ReleaseStep){.entry = entry, .type = CORE_NODE_READY, .node = i};
			if (state == CORE_RELEASING || state == CORE_BUSY ||
				(state == CORE_HELD && !release->waits))
				return true;
		}
	return false;
}

bool
release_queue_next_waiting(ReleaseQueue *queue, core_mask can_send, ReleaseStep *step)
{
	int entry = queue->waiting.first;

	if (entry < 0 || !may_begin(queue, queue->release[entry].lease, can_send))
		return false;
	stop_waiting(queue, entry);
	*step = (ReleaseStep){.entry = entry, .type = CORE_RELEASE};
	return true;
}

int
release_queue_find(const ReleaseQueue *queue, uint64_t hash)
{
	int entry = named(queue, hash)->first;

	while (entry >= 0 && queue->release[entry].hash != hash)
		entry = queue->release[entry].link[RELEASE_BY_NAME].after;
	return entry;
}

bool
release_queue_hurry(ReleaseQueue *queue, int entry, ReleaseStep *step)
{
	Release *release = &queue->release[entry];

	set_indexed(queue, entry, release->hash, false); /* in any case: an entry is found once only */
	if (!release->waits && !release->under_way)
		return false; /* the release has ended since */
	if (!release->urgent)
	{
		release->urgent = true;
		release->hurried = release->waits ? 0 : release->unsent;
	}
	*step = (ReleaseStep){.entry = entry, .type = CORE_RELEASE};
	if (release->waits)
	{
		stop_waiting(queue, entry);
		return true;
	}
	if (release->hurried == 0)
		return false;
	step->type = CORE_NODE_READY;
	while (!(release->hurried & CORE_BIT(step->node)))
		step->node++;
	release->hurried &= ~CORE_BIT(step->node);
	return true;
}

/*
 * Drops a release that can't be sent now: its keys expire.  The owner does not wait for this
 * release.
 */
bool
release_queue_move(ReleaseQueue *queue, int entry, const core_lease *lease, core_lists lists,
				   ReleaseStep *step)
{
	*step = (ReleaseStep){.entry = entry, .type = CORE_RELEASE};
	if (core_must_move(lease, lists))
		return true;
	if (lease->state != CORE_RELEASING)
		return false;
	if (!release_queue_hurry(queue, entry, step))
		step->type = CORE_FORGET;
	return true;
}

/* A release that has not begun is sent before it is dropped. */
bool
release_queue_forget(ReleaseQueue *queue, ReleaseStep *step)
{
	if (queue->under_way.first >= 0)
	{
		*step = (ReleaseStep){.entry = queue->under_way.first, .type = CORE_FORGET};
		return true;
	}
	return queue->waiting.first >= 0 && release_queue_hurry(queue, queue->waiting.first, step);
}

bool
release_queue_is_idle(const ReleaseQueue *queue, core_mask can_send)
{
	for (int i = 0; i < CORE_NODES_MAX; i++)
		if (queue->unsent[i].first >= 0 && (can_send & CORE_BIT(i)))
			return false;
	return queue->waiting.first < 0;
}

/*
 * Lists
 */

static void
send_later(ReleaseQueue *queue, int entry, const core_lease *lease, int node)
{
	Release *release = &queue->release[entry];
	ReleaseList *list = &queue->unsent[node];

	if (release->unsent & CORE_BIT(node))
		return; /* already in the list */
	release->lease = lease;
	release->unsent |= CORE_BIT(node);
	release->next_unsent[node] = -1;
	if (list->first < 0)
		list->first = entry;
	else
		queue->release[list->last].next_unsent[node] = entry;
	list->last = entry;
}

static int
take_unsent(ReleaseQueue *queue, int node)
{
	ReleaseList *list = &queue->unsent[node];
	int entry = list->first;

	list->first = queue->release[entry].next_unsent[node];
	queue->release[entry].unsent &= ~CORE_BIT(node);
	return entry;
}

static void
set_indexed(ReleaseQueue *queue, int entry, uint64_t hash, bool indexed)
{
	Release *release = &queue->release[entry];

	if (release->indexed == indexed)
		return;
	release->indexed = indexed;
	if (indexed)
	{
		release->hash = hash;
		append(queue, named(queue, hash), RELEASE_BY_NAME, entry);
	}
	else
		take_out(queue, named(queue, release->hash), RELEASE_BY_NAME, entry);
}

/* the list of all names whose hashes fall on the same entry */
static ReleaseList *
named(const ReleaseQueue *queue, uint64_t hash)
{
	return &queue->release[hash % (uint64_t) queue->entries].named;
}

static void
append(ReleaseQueue *queue, ReleaseList *list, int link, int entry)
{
	queue->release[entry].link[link] = (ReleaseLink){.before = list->last, .after = -1};
	if (list->last < 0)
		list->first = entry;
	else
		queue->release[list->last].link[link].after = entry;
	list->last = entry;
}

static void
take_out(ReleaseQueue *queue, ReleaseList *list, int link, int entry)
{
	ReleaseLink at = queue->release[entry].link[link];

	if (at.before < 0)
		list->first = at.after;
	else
		queue->release[at.before].link[link].after = at.after;
	if (at.after < 0)
		list->last = at.before;
	else
		queue->release[at.after].link[link].before = at.before;
}
