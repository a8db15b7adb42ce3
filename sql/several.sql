-- Several locks in one call: all or none.
--
-- Protects from: tokens in another order than the names; a repeated name that counts more than
-- once; a part of the locks that stays after an error; an error without the name of its lock.

-- tokens in the order of the names; a repeated name has one token, and counts once
SELECT redlock_acquire_all(ARRAY['c', 'a', 'b', 'a'], scope => 'session') AS tokens \gset
SELECT :'tokens'::bigint[] = ARRAY[redlock_token('c'), redlock_token('a'), redlock_token('b'), redlock_token('a')] AS in_order,
       array_lower(:'tokens'::bigint[], 1) AS first;
SELECT resource, state, scope, held_by FROM redlock_locks WHERE state = 'held' ORDER BY 1;
SELECT redlock_release('a');
SELECT redlock_release('a');

-- locks that the session already holds count once more, and keep the token
SELECT redlock_acquire_all(ARRAY['d', 'b'], scope => 'session') AS again \gset
SELECT (:'again'::bigint[])[2] = (:'tokens'::bigint[])[3] AS same, (:'again'::bigint[])[1] = redlock_token('d') AS new;
SELECT redlock_try_all(ARRAY['d', 'b', 'c'], scope => 'session');
SELECT redlock_release_all();
SELECT redlock_release_all();

-- other scopes
BEGIN;
SELECT redlock_try_all(ARRAY['a', 'b']), redlock_check('a') > '0' AS a, redlock_check('b') > '0' AS b;
SAVEPOINT s;
SELECT redlock_try_all(ARRAY['b', 'c']);
ROLLBACK TO s;
SELECT redlock_token('b') IS NOT NULL AS b, redlock_token('c') IS NOT NULL AS c;
COMMIT;
SELECT redlock_token('a') IS NULL AS gone;
DO $$
BEGIN
    PERFORM redlock_acquire_all(ARRAY['a', 'b'], scope => 'call');
    COMMIT;
    RAISE NOTICE '% locks outlast the commit', (SELECT count(*) FROM unnest(ARRAY['a', 'b']) r WHERE redlock_check(r) > '0');
END $$;
SELECT redlock_token('a') IS NULL AS gone;
SELECT redlock_acquire_all(ARRAY['b', 'a'], scope => 'call');
\echo :SQLSTATE

-- by a procedure: session scope by default, call scope within another procedure
CALL redlock_lock_all(ARRAY['c', 'a', 'c']);
SELECT resource, scope FROM redlock_locks WHERE state = 'held' ORDER BY 1;
SELECT redlock_release('c'), redlock_release('a');
DO $$
BEGIN
    CALL redlock_lock_all(ARRAY['a', 'b'], wait => '1 s', scope => 'call');
    COMMIT;
    RAISE NOTICE '% locks outlast the commit', (SELECT count(*) FROM unnest(ARRAY['a', 'b']) r WHERE redlock_check(r) > '0');
END $$;
SELECT redlock_token('a') IS NULL AS gone;
CALL redlock_lock_all(ARRAY['b', 'a'], scope => 'call');
CALL redlock_lock_all(NULL);
CALL redlock_lock_all(ARRAY['a', '']);
SELECT redlock_acquire('b', scope => 'detached', hold_at_most => '1 min') AS token \gset
\set VERBOSITY terse
CALL redlock_lock_all(ARRAY['a', 'b', 'c'], wait => '0');
\set VERBOSITY default
SELECT count(*) AS nothing FROM redlock_locks WHERE state = 'held' AND scope = 'session';
SELECT redlock_release('b', :token);

-- one name, and the most names
SELECT cardinality(redlock_acquire_all(ARRAY['a'], scope => 'session'));
SELECT cardinality(redlock_acquire_all(array_agg('n' || i), scope => 'session')) FROM generate_series(1, 64) i;
SELECT redlock_release_all();

-- Drivers send a list as a text without a type.  The text must never become a name.
SELECT redlock_try('{a,b}');
\echo :SQLSTATE
SELECT redlock_acquire('{"a","b"}', wait => '1 s');
SELECT redlock_acquire('{}');
SELECT redlock_acquire('(a,b)');
SELECT redlock_try('[0:1]={a,b}');
CALL redlock_lock('{a}');
CALL redlock_run('{a}', 'SELECT 1');
SELECT redlock_release('{a,b}');
SELECT redlock_token('{a,b}');
SELECT redlock_acquire_all(ARRAY['a', '{b}']);
\set VERBOSITY terse
SELECT redlock_acquire(ARRAY['a', 'b']);
\echo :SQLSTATE
\set VERBOSITY default
SELECT redlock_try_all('{a,b}', scope => 'session'), redlock_release('a') AS a, redlock_release('b') AS b;
SELECT redlock_try('{a', scope => 'session'), redlock_release('{a');
SELECT redlock_try('f(a)', scope => 'session'), redlock_release('f(a)');

-- wrong arguments
SELECT granted + refused + unreachable AS asked FROM redlock_stats \gset
SELECT redlock_acquire_all(NULL::text[]);
\echo :SQLSTATE
SELECT redlock_try_all(NULL::text[]);
SELECT redlock_acquire_all(ARRAY[]::text[]);
\echo :SQLSTATE
SELECT redlock_try_all(ARRAY[]::text[]);
SELECT redlock_acquire_all(ARRAY['a', NULL]);
\echo :SQLSTATE
SELECT redlock_try_all(ARRAY['a', 'b', NULL]);
SELECT redlock_acquire_all(ARRAY['a', '']);
\echo :SQLSTATE
SELECT redlock_acquire_all(ARRAY['a', repeat('x', 256)]);
\echo :SQLSTATE
SELECT redlock_acquire_all(ARRAY['a', E'b\n']);
\echo :SQLSTATE
SELECT redlock_acquire_all(ARRAY[['a', 'b'], ['c', 'd']]);
\echo :SQLSTATE
SELECT redlock_acquire_all(array_agg('n' || i)) FROM generate_series(1, 65) i;
\echo :SQLSTATE
SELECT redlock_try_all(array_agg('n' || i)) FROM generate_series(1, 1000) i;
SELECT redlock_acquire_all(ARRAY['a', 'b'], wait => '-1 s');
SELECT redlock_acquire_all(ARRAY['a', 'b'], ttl => '0');
SELECT redlock_acquire_all(ARRAY['a', 'b'], scope => NULL);
SELECT redlock_acquire_all(ARRAY['a', 'b'], hold_at_least => '1 min', keep_idle => '1 min');
SELECT granted + refused + unreachable - :asked AS asked_meanwhile, count(l.*) AS locks FROM redlock_stats LEFT JOIN redlock_locks l ON l.state <> 'releasing' GROUP BY 1;

-- repeated names do not count for the limit of 64 names
SELECT cardinality(redlock_acquire_all(array_agg('n' || i % 64), scope => 'session')) FROM generate_series(1, 1000) i;
SELECT redlock_release_all();

-- the limit of a session: all or none
SET redlock.max_locks_per_session = 3;
SELECT redlock_try_all(ARRAY['a', 'b'], scope => 'session');
SELECT redlock_acquire_all(ARRAY['a', 'c', 'd'], scope => 'session');
\echo :SQLSTATE
SELECT redlock_try_all(ARRAY['a', 'b', 'c'], scope => 'session');
SELECT redlock_acquire_all(ARRAY['b', 'd'], scope => 'session');
SELECT redlock_release_all();
RESET redlock.max_locks_per_session;

-- a warning names the first lock in the order of the names
SELECT redlock_acquire_all(ARRAY['b', 'a']) IS NOT NULL AS held;
