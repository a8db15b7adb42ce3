-- The views, and the rights to read and write them.
--
-- Protects from: columns of a view that change unnoticed; a wrong row, state or database in a view;
-- counters that stand still; nodes that are not asked; credentials or internals in an address;
-- functions and views for superusers only.

-- the tests run with five nodes, and with the node inside the server
SELECT count(*) AS nodes FROM regexp_split_to_table(current_setting('redlock.nodes'), ', ') \gset

-- waits until a query is true
CREATE FUNCTION wait_until(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	is_true boolean;
BEGIN
	FOR i IN 1..1000 LOOP
		EXECUTE query INTO is_true;
		IF is_true THEN
			RETURN true;
		END IF;
		PERFORM pg_sleep(0.03);
	END LOOP;
	RETURN false;
END $$;

-- columns
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relname IN ('redlock_locks', 'redlock_nodes', 'redlock_hosts', 'redlock_stats', 'redlock_roles',
                     'redlock_stat_nodes', 'redlock_stat_resources') AND a.attnum > 0
 ORDER BY c.relname COLLATE "C", a.attnum;

-- all nodes, all ready, addresses without credentials
SELECT count(*) = :nodes AS all_of_them, count(DISTINCT node) = :nodes AS all_differ,
       bool_and(state = 'ready') AS ready,
       bool_and(last_error IS NULL) AS no_error,
       bool_and(quarantine IS NULL AND quarantined_for IS NULL) AS no_quarantine,
       bool_and(node ~ '^[^@]+$') AS no_credentials,
       bool_and(since <= now()) AS since
  FROM redlock_nodes;
SELECT broker_pid > 0 AND broker_pid <> pg_backend_pid() AS broker FROM redlock_stats;

-- this host, and no other
SELECT name <> '' AS name, host_id ~ '^[0-9a-f]{16}$' AS host_id, version = extversion AS version,
       postgres LIKE current_setting('server_version_num')::int / 10000 || '%' AS postgres,
       prefix, leases >= 0 AS leases, since <= last_seen AS since,
       last_seen BETWEEN now() - interval '1 min' AND clock_timestamp() AS last_seen,
       nodes = :nodes AS nodes, settled, agrees, disagreement
  FROM redlock_hosts, pg_extension WHERE extname = 'redlock_pg';

-- locks: one row for each, not for each acquisition
SELECT redlock_acquire('session', ttl => '20 s', scope => 'session') AS session \gset
SELECT redlock_try('session', scope => 'session');
BEGIN;
SELECT redlock_acquire('transaction', ttl => '30 s') AS transaction \gset
SELECT resource, state, scope, pid = pg_backend_pid() AS mine,
       database = current_database() AS here,
       token IN (:session, :transaction) AS token, ttl,
       valid_for BETWEEN '1 s' AND ttl * 0.99 AS valid_for,
       since BETWEEN now() - interval '1 min' AND clock_timestamp() AS since, held_by
  FROM redlock_locks WHERE state <> 'releasing'
 ORDER BY resource COLLATE "C";
-- 'transaction' was granted after the start of this transaction, 'session' before
SELECT resource, since >= now() AS after_start
  FROM redlock_locks WHERE state <> 'releasing'
 ORDER BY resource COLLATE "C";
-- the view shows what redlock_check says
SELECT resource, valid_for - redlock_check(resource) BETWEEN '-15 s' AND '1 s' AS same
  FROM redlock_locks WHERE state = 'held'
 ORDER BY resource COLLATE "C";
COMMIT;
SELECT resource, state FROM redlock_locks WHERE state <> 'releasing';
SELECT redlock_release_all();
-- released locks leave the table
SELECT wait_until('SELECT count(*) = 0 FROM redlock_locks');

-- Counters count leases, not acquisitions.  A call returns after the answers of a majority; the
-- test waits for all nodes.  The long ttl prevents renewals during the test.
SELECT sum(votes_yes) AS yes, sum(votes_no) AS no, sum(votes_error) AS error FROM redlock_nodes \gset
SELECT * FROM redlock_stats \gset
SELECT redlock_try('a', '60 s', 'session'), redlock_try('a', '60 s', 'session'),
       redlock_try('b', '60 s', 'session');
SELECT granted - :granted AS granted, released - :released AS released FROM redlock_stats;
-- the entries in use
SELECT locks - :locks AS locks, max_locks = current_setting('redlock.max_locks')::int AS max_locks
  FROM redlock_stats;
SELECT wait_until(format('SELECT sum(votes_yes) - %s = 2 * %s FROM redlock_nodes', :yes, :nodes));
SELECT sum(votes_no) - :no AS no, sum(votes_error) - :error AS error FROM redlock_nodes;
SELECT bool_and(rtt_us > 0) AS rtt FROM redlock_nodes;
-- the first of two releases frees no lease, even after a while
SELECT redlock_release('a');
SELECT pg_sleep(0.1);
SELECT released - :released AS released FROM redlock_stats;
SELECT redlock_release_all();
SELECT locks - :locks AS locks FROM redlock_stats;
SELECT wait_until(format('SELECT released - %s = 2 FROM redlock_stats', :released));
SELECT wait_until('SELECT releasing = 0 FROM redlock_stats');
SELECT granted - :granted AS granted, refused - :refused AS refused,
       unreachable - :unreachable AS unreachable, unrenewed - :unrenewed AS unrenewed,
       lost - :lost AS lost, broker_pid = :broker_pid AS same_broker
  FROM redlock_stats;

-- renewed while held, and valid after more than the ttl
SELECT redlock_try('renewed', ttl => '1 s', scope => 'session');
SELECT wait_until(format('SELECT renewed - %s >= 4 FROM redlock_stats', :renewed));
SELECT clock_timestamp() - since > '1 s' AS older_than_ttl, state, valid_for > '0' AS valid
  FROM redlock_locks WHERE resource = 'renewed';
SELECT redlock_check('renewed') > '0';
SELECT redlock_release('renewed');

-- a role without any rights
CREATE ROLE regress_redlock_user;
SET ROLE regress_redlock_user;
SELECT redlock_acquire('a', scope => 'session') > 0, redlock_try('a', scope => 'session');
SELECT redlock_check('a') > '0';
SELECT resource, state, scope, pid = pg_backend_pid() AS mine FROM redlock_locks WHERE state = 'held';
SELECT count(*) = :nodes AS all_of_them FROM redlock_nodes WHERE state = 'ready';
SELECT granted > 0 AS granted FROM redlock_stats;
SELECT count(*) FROM redlock_hosts;
SELECT redlock_release('a'), redlock_release_all();
-- the views are read-only
DELETE FROM redlock_locks;
\echo :SQLSTATE
UPDATE redlock_stats SET granted = 0;
\echo :SQLSTATE
RESET ROLE;
DROP ROLE regress_redlock_user;

-- functions in FROM and with columns of their own
SELECT count(*) = :nodes AS all_of_them FROM redlock_node_rows() n WHERE n.state = 'ready';
SELECT (redlock_counter_row()).broker_pid = :broker_pid;
SELECT count(*) = :nodes * :nodes AS pairs FROM redlock_nodes a, redlock_nodes b, redlock_stats;
-- acquired and released while a query reads a view
SELECT count(redlock_try('x' || votes_yes || node, scope => 'session')) = :nodes AS tried FROM redlock_nodes;
SELECT count(redlock_release(resource)) = :nodes AS released FROM redlock_locks WHERE state = 'held';
SELECT redlock_release_all();

DROP FUNCTION wait_until;
