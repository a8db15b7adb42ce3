-- The metrics of redlock_pg. scripts/monitoring.pl makes the files for each exporter of this
-- file; call the script after a change.
--
-- The head of a query is a comment:
--
--   query NAME SECONDS: text      the query, and the time between two runs
--   label COLUMN: text            a column that becomes a label
--   counter COLUMN: text          a column that becomes the metric NAME_COLUMN
--   gauge COLUMN: text
--
-- Rules for all queries:
--
--   - no value is null, because the exporters treat a null in four different ways;
--   - a value is an integer, a bigint or a double precision, because pgwatch skips a numeric;
--   - a label has few values. No label has names of locks, except for at most 100 jobs, and for
--     the 20 locks with the longest waits;
--   - no query fails while the nodes are away: sql_exporter repeats the last values of a failed
--     query.

-- query redlock_stats 15: Counters of this server, and the room in the lease table
-- counter granted_total: Leases granted by the nodes
-- counter refused_total: Tries that the nodes refused
-- counter unreachable_total: Requests that failed without a quorum
-- counter renewed_total: Rounds of renewals that succeeded
-- counter unrenewed_total: Rounds of renewals that failed and were tried again
-- counter lost_total: Leases lost before their release
-- counter released_total: Leases released, and requests cancelled
-- counter handed_over_total: Hand-overs between sessions of this server
-- counter taken_idle_total: Idle leases that a session of this server took
-- counter recalled_total: Idle leases released for another host
-- counter woken_total: Releases of other hosts that a waiter of this server received
-- counter joined_total: Readers that joined other readers of this server
-- counter tries_refused_total: Calls without a wait that found another holder
-- counter timed_out_total: Calls that ended by wait or lock_timeout
-- counter deadlocks_total: Calls that ended by a deadlock
-- counter wait_seconds_total: Time that calls waited
-- counter hold_seconds_total: Time that released locks were held
-- gauge locks: Locks held, idle, lost or asked for
-- gauge max_locks: Limit of locks
-- gauge releasing: Released locks that some node has not acknowledged
-- gauge broker_up: 1 if the broker runs, else 0
-- gauge now_seconds: Time of the query by the clock of this server
SELECT granted AS granted_total, refused AS refused_total, unreachable AS unreachable_total,
       renewed AS renewed_total, unrenewed AS unrenewed_total, lost AS lost_total,
       released AS released_total, handed_over AS handed_over_total,
       taken_idle AS taken_idle_total, recalled AS recalled_total, woken AS woken_total,
       joined AS joined_total, tries_refused AS tries_refused_total, timed_out AS timed_out_total,
       deadlocks AS deadlocks_total, total_wait_time / 1000 AS wait_seconds_total,
       total_hold_time / 1000 AS hold_seconds_total,
       locks, max_locks, releasing, (broker_pid IS NOT NULL)::int AS broker_up,
       extract(epoch FROM now())::float8 AS now_seconds
  FROM redlock_stats;

-- query redlock_quorum 15: Nodes of each list in force
-- label list: now: redlock.nodes; next: redlock.nodes_next
-- gauge nodes: Nodes of the list
-- gauge nodes_ready: Nodes of the list that are ready
-- gauge nodes_required: Ready nodes that a grant needs
SELECT l.list, count(n.node) AS nodes, count(*) FILTER (WHERE n.state = 'ready') AS nodes_ready,
       count(n.node) / 2 + 1 AS nodes_required
  FROM (VALUES ('now'), ('next')) AS l (list)
  LEFT JOIN redlock_nodes n ON n.list IN (l.list, 'both')
 GROUP BY l.list
HAVING l.list = 'now' OR count(n.node) > 0;

-- query redlock_nodes 15: The listed nodes as this server sees them
-- label node: Address of the node
-- gauge ready: 1 if the node votes, else 0
-- gauge quarantined: 1 if the node does not vote for new locks, because it may have forgotten leases, or evicts keys
-- gauge rtt_seconds: Smoothed time from a command to its reply; 0 before the first reply
-- counter votes_yes_total: Requests that the node granted
-- counter votes_no_total: Requests that the node refused
-- counter votes_error_total: Requests that ended in an error, or had no answer in time
SELECT node, (state = 'ready')::int AS ready, (quarantine IS NOT NULL)::int AS quarantined,
       coalesce(rtt_us, 0) / 1000000.0::float8 AS rtt_seconds, votes_yes AS votes_yes_total,
       votes_no AS votes_no_total, votes_error AS votes_error_total
  FROM redlock_nodes
 WHERE list <> 'leaving';

-- Sum and count of the histogram redlock_node_answer_seconds.  The next query has the buckets.
--
-- query redlock_node 15: Traffic of this server with the listed nodes
-- label node: Address of the node
-- counter commands_total: Commands on locks
-- counter connects_total: Connections that passed the checks, the first connection too
-- counter quarantines_total: Quarantines that began
-- counter answer_seconds_sum: Time from the commands to their answers
-- counter answer_seconds_count: Answers
SELECT node, s.commands AS commands_total, s.connects AS connects_total,
       s.quarantines AS quarantines_total, s.total_answer_time / 1000 AS answer_seconds_sum,
       s.answers AS answer_seconds_count
  FROM redlock_stat_nodes s JOIN redlock_nodes n USING (node)
 WHERE n.list <> 'leaving';

-- Bounds from 0.25 milliseconds to 8 seconds. Element n of the histogram has the answers below 2^n
-- microseconds.
--
-- query redlock_node_answer_seconds 15: Answers of the listed nodes by time
-- label node: Address of the node
-- label le: Bound in seconds
-- counter bucket: Answers within the bound
SELECT node, CASE b.n WHEN 32 THEN '+Inf' ELSE (2 ^ b.n / 1000000)::float8::text END AS le,
       (SELECT sum(h) FROM unnest(s.answer_histogram[:b.n]) h)::bigint AS bucket
  FROM redlock_stat_nodes s JOIN redlock_nodes n USING (node),
       unnest('{8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 32}'::int[]) AS b (n)
 WHERE n.list <> 'leaving';

-- query redlock_node_errors 15: Errors of the listed nodes
-- label node: Address of the node
-- label class: timeout, connection, refusal (password, rights, a node that must not vote), memory, other
-- counter total: Errors of this class
SELECT node, e.class, e.total
  FROM redlock_stat_nodes s JOIN redlock_nodes n USING (node),
       LATERAL (VALUES ('timeout', s.timeouts), ('connection', s.connection_errors),
                       ('refusal', s.refusals), ('memory', s.memory_errors),
                       ('other', s.other_errors)) AS e (class, total)
 WHERE n.list <> 'leaving';

-- A lock leaves the list when 20 other locks have waited longer.
--
-- query redlock_resources 15: The 20 locks of this server with the longest waits since the last reset
-- label resource: Name of the lock; a lock with permits has one series
-- counter acquired_total: Acquisitions, and readers that joined
-- counter refused_total: Calls without a wait that found another holder
-- counter timed_out_total: Calls that ended by wait or lock_timeout
-- counter deadlocks_total: Calls that ended by a deadlock
-- counter lost_total: Leases lost before their release
-- counter wait_seconds_total: Time that calls waited
-- counter hold_seconds_total: Time that released locks were held
SELECT resource, sum(from_nodes + handed_over + from_idle + joined)::bigint AS acquired_total,
       sum(refused)::bigint AS refused_total, sum(timed_out)::bigint AS timed_out_total,
       sum(deadlocks)::bigint AS deadlocks_total, sum(lost)::bigint AS lost_total,
       sum(total_wait_time) / 1000 AS wait_seconds_total,
       sum(total_hold_time) / 1000 AS hold_seconds_total
  FROM redlock_stat_resources
 GROUP BY resource
 ORDER BY sum(total_wait_time) DESC, resource
 LIMIT 20;

-- query redlock_memory 15: Memory of the listed nodes that have a limit
-- label node: Address of the node
-- gauge used_bytes: Memory that the node uses
-- gauge limit_bytes: Limit of the memory: maxmemory
SELECT node, memory_used AS used_bytes, memory_limit AS limit_bytes
  FROM redlock_nodes
 WHERE list <> 'leaving' AND memory_used IS NOT NULL AND memory_limit > 0;

-- query redlock_locks 15: Holders and waiters of this server
-- label state: State of the lock, as in the view redlock_locks
-- gauge current: Locks and waiting sessions in this state
-- gauge oldest_seconds: Longest time of a lock or a waiting session in this state
SELECT s.state, count(l.state) AS current,
       coalesce(extract(epoch FROM now() - min(l.since)), 0)::float8 AS oldest_seconds
  FROM (VALUES ('held'), ('idle'), ('waiting'), ('queued'), ('lost'), ('releasing')) AS s (state)
  LEFT JOIN redlock_locks l ON l.state = s.state
 GROUP BY s.state;

-- Asks the nodes only if a quorum of each list is ready.
--
-- query redlock_hosts 15: The hosts that share the nodes
-- gauge known: Hosts that the nodes know, this host too
-- gauge conflicting: Hosts in a configuration conflict with this host
-- gauge refusing: 1 if this host takes no new locks because of a conflict or of nodes that the hosts have left, else 0
-- gauge warning: Hosts with redlock.on_disagreement = 'warn'
SELECT count(*) AS known, count(*) FILTER (WHERE NOT agrees) AS conflicting,
       count(*) FILTER (WHERE self AND standing IN ('refuses', 'holds')) AS refusing,
       count(*) FILTER (WHERE standing = 'warns') AS warning
  FROM redlock_hosts
 WHERE (SELECT broker_pid IS NOT NULL FROM redlock_stats)
   AND (SELECT bool_and(ready > nodes / 2)
          FROM (SELECT count(*) FILTER (WHERE n.state = 'ready') AS ready, count(*) AS nodes
                  FROM (VALUES ('now'), ('next')) AS l (list)
                  JOIN redlock_nodes n ON n.list IN (l.list, 'both')
                 GROUP BY l.list) AS lists)
HAVING count(*) > 0;

-- Reads the rows of eight days: a weekly job stays in sight.
--
-- query redlock_runs 60: Recorded runs of the last eight days, of the 100 jobs that ran last
-- label resource: Name of the job's lock
-- gauge last_success_timestamp_seconds: End of the last run that succeeded; 0 without such a run
-- gauge last_failure_timestamp_seconds: End of the last run that failed or lost its lock; 0 without such a run
SELECT resource,
       coalesce(extract(epoch FROM max(ended) FILTER (WHERE status = 'succeeded')), 0)::float8
         AS last_success_timestamp_seconds,
       coalesce(extract(epoch FROM max(coalesce(ended, started))
                                   FILTER (WHERE status IN ('failed', 'lost'))), 0)::float8
         AS last_failure_timestamp_seconds
  FROM redlock_runs
 WHERE started > now() - interval '8 days'
 GROUP BY resource
 ORDER BY max(started) DESC
 LIMIT 100;
