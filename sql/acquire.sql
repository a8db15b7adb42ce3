-- One session acquires and releases.
--
-- Protects from: uncounted acquisitions; a token that changes, decreases or serves twice; a lock or
-- gate left behind by the last release; names mistaken for a format, a pattern or the end of a
-- command, on the way to the nodes and back; calls that work at the top level only; a full lease
-- table that does not recover.
--
-- Needs a database in UTF-8.

-- locks of this session, and the number of its gates
CREATE VIEW held AS
    SELECT resource, scope FROM redlock_locks
     WHERE state = 'held' AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";
CREATE VIEW gates AS
    SELECT count(*) AS gates FROM pg_locks
     WHERE locktype = 'userlock' AND objsubid = 0 AND pid = pg_backend_pid();

-- once
SELECT redlock_acquire('job', scope => 'session') > 0;
SELECT redlock_check('job') BETWEEN '1 ms' AND '10 s';
TABLE held;
TABLE gates;
SELECT redlock_release('job');
TABLE held;
TABLE gates;

-- no longer held, or never
SELECT redlock_check('job');
\echo :SQLSTATE
SELECT redlock_release('job');
SELECT redlock_check('never');
SELECT redlock_release('never');
SELECT redlock_release_all();

-- acquisitions by either function count, and keep the token
SELECT redlock_acquire('job', scope => 'session') AS token \gset
SELECT redlock_acquire('job', scope => 'session') = :token;
SELECT redlock_try('job', scope => 'session');
SELECT redlock_acquire('job', wait => '0', scope => 'session') = :token;
SELECT token = :token FROM redlock_locks WHERE resource = 'job' AND state = 'held';
TABLE gates;
SELECT redlock_release('job');
SELECT redlock_release('job');
SELECT redlock_release('job');
TABLE held;
TABLE gates;
SELECT redlock_acquire('job', scope => 'session') = :token;
SELECT redlock_release('job');
SELECT redlock_release('job');
TABLE held;
TABLE gates;
SELECT redlock_release('job');

-- each new lease has a greater token, also after a try; another resource has its own tokens
SELECT redlock_acquire('job', scope => 'session') AS second \gset
SELECT redlock_acquire('other', scope => 'session') AS other \gset
SELECT :token < :second AS second, :other > 0 AS other;
SELECT redlock_release_all();
SELECT redlock_try('job', scope => 'session');
SELECT token > :second AS third FROM redlock_locks WHERE resource = 'job' AND state = 'held';
SELECT redlock_release_all();
TABLE held;
TABLE gates;

-- 200 times in one statement: the release frees the lock before the next try
SELECT bool_and(redlock_try('again', scope => 'session') AND redlock_release('again'))
  FROM generate_series(1, 200);
TABLE held;
TABLE gates;

-- two resources: a release frees only its own lock
BEGIN;
SELECT redlock_try('a'), redlock_try('b', scope => 'session');
TABLE held;
SELECT redlock_release('b');
TABLE held;
SELECT redlock_check('b');
ROLLBACK;
TABLE held;
TABLE gates;

-- case and spaces count
SELECT redlock_try('a', scope => 'session'), redlock_try('A', scope => 'session'),
       redlock_try(' a', scope => 'session'), redlock_try('a ', scope => 'session');
SELECT quote_literal(resource) FROM held;
SELECT redlock_release_all();

-- many locks, released at once
SELECT count(DISTINCT redlock_acquire('many ' || i, scope => 'session'))
  FROM generate_series(1, 100) i;
SELECT count(*) FROM held;
SELECT min(redlock_check('many ' || i)) > '0' FROM generate_series(1, 100) i;
SELECT redlock_release('many 50');
SELECT redlock_release_all();
SELECT redlock_release_all();
TABLE held;
TABLE gates;

-- unusual names
CREATE TABLE names (id integer PRIMARY KEY, name text);
INSERT INTO names VALUES
    (1, 'it''s "quoted"'), (2, ' a  b '), (3, '%s%n%d %1$s'), (4, U&'two\2028lines'),
    (5, U&'\+01F512'), (6, U&'\00E4\20AC\+01F512'), (7, E'back\\slash'), (8, '{curly}[x]*?'),
    (9, U&'\00A0\FEFF'), (10, '$1'), (11, '0'), (12, 'redlock:job'), (13, U&'a\0308'), (14, ' ');
SELECT count(*) FILTER (WHERE redlock_try(name, scope => 'session')) FROM names;
SELECT count(*) AS held, count(n.name) AS found
  FROM held h LEFT JOIN names n ON n.name COLLATE "C" = h.resource;
SELECT id FROM names WHERE redlock_check(name) <= '0';
SELECT id FROM names WHERE NOT redlock_release(name);
TABLE held;
TABLE gates;
-- unusual names in messages
SELECT redlock_check('it''s "quoted" %s %n');
SELECT redlock_release('it''s "quoted" %s %n');
DROP TABLE names;

-- read only
BEGIN READ ONLY;
SELECT redlock_try('read only'), redlock_try('session, read only', scope => 'session');
TABLE held;
COMMIT;
TABLE held;
SET default_transaction_read_only = on;
SELECT redlock_release('session, read only');
SELECT redlock_acquire('read only', scope => 'session') > 0;
SELECT redlock_release_all();
RESET default_transaction_read_only;

-- a transaction that writes, and releases before the commit
CREATE TABLE work (done integer);
BEGIN;
SELECT redlock_try('writer', scope => 'session');
INSERT INTO work VALUES (1);
SELECT redlock_release('writer');
COMMIT;
-- a release in the same statement
INSERT INTO work SELECT 2 WHERE redlock_try('writer', scope => 'session') AND redlock_release('writer');
TABLE work;
TABLE held;

-- in SQL and PL/pgSQL functions, DO, a procedure, a trigger, a prepared
-- statement, a cursor, and a query's WHERE
CREATE FUNCTION sql_function(text) RETURNS boolean LANGUAGE sql
    AS $$ SELECT redlock_try($1) $$;
CREATE FUNCTION plpgsql_function(name text) RETURNS boolean LANGUAGE plpgsql
    AS $$ BEGIN RETURN redlock_acquire(name) > 0; END $$;
CREATE PROCEDURE plpgsql_procedure(name text) LANGUAGE plpgsql
    AS $$ BEGIN PERFORM redlock_acquire(name); END $$;
CREATE FUNCTION trigger_function() RETURNS trigger LANGUAGE plpgsql
    AS $$
BEGIN
	PERFORM redlock_acquire(TG_ARGV[0]);
	RAISE NOTICE '%: %', TG_NAME, (SELECT string_agg(resource, ', ') FROM held);
	RETURN NEW;
END $$;
CREATE TRIGGER at_once BEFORE INSERT ON work FOR EACH ROW
    EXECUTE FUNCTION trigger_function('trigger');
PREPARE prepared(text) AS SELECT redlock_try($1);
BEGIN;
SELECT sql_function('sql function');
SELECT plpgsql_function('plpgsql function');
CALL plpgsql_procedure('procedure');
DO $$ BEGIN PERFORM redlock_acquire('do'); END $$;
INSERT INTO work VALUES (3);
EXECUTE prepared('prepared');
DECLARE c CURSOR FOR SELECT redlock_try('cursor');
FETCH c;
SELECT count(*) FROM work WHERE redlock_try('where');
TABLE held;
COMMIT;
TABLE held;
TABLE gates;

-- acquired by a deferred trigger, during the commit
CREATE TABLE late (n integer);
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION trigger_function('deferred');
BEGIN;
INSERT INTO late VALUES (1);
TABLE held;
COMMIT;
TABLE late;
TABLE held;
TABLE gates;
SELECT redlock_try('deferred', scope => 'session');
SELECT redlock_release('deferred');

-- a full lease table: an error, and the rollback frees the locks
\set VERBOSITY terse
SET redlock.max_locks_per_session = 1000000;
BEGIN;
SELECT count(redlock_acquire('full ' || i))
  FROM generate_series(1, current_setting('redlock.max_locks')::integer + 1) i;
\echo :SQLSTATE
ROLLBACK;
\set VERBOSITY default
TABLE held;
TABLE gates;
SELECT redlock_try('full 1', scope => 'session'), redlock_try('not full', scope => 'session');
SELECT redlock_release_all();

-- redlock.max_locks_per_session: an error, but the session can acquire its own locks again
SET redlock.max_locks_per_session = 3;
BEGIN;
SELECT redlock_try('many ' || i) FROM generate_series(1, 3) i;
SELECT redlock_try('many 1'), redlock_try('many 2', scope => 'session');
SELECT redlock_try('many 4');
ROLLBACK;
TABLE held;
SELECT redlock_try('many ' || i, scope => 'session') FROM generate_series(3, 4) i;
SELECT redlock_try('many 5', scope => 'session');
SELECT redlock_release('many 3');
SELECT redlock_try('many 5', scope => 'session');
SELECT redlock_release_all();
RESET redlock.max_locks_per_session;

DEALLOCATE prepared;
DROP TABLE work, late;
DROP FUNCTION sql_function, plpgsql_function, trigger_function;
DROP PROCEDURE plpgsql_procedure;
DROP VIEW held, gates;
