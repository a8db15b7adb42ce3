-- The settings: bounds, units, and the rights to change and see a setting.
--
-- Protects from: a setting with a senseless value, or changed by a user without the right; a wrong
-- list of nodes that is accepted, or refused with the passwords in the message; a list that ALTER
-- SYSTEM writes in another form; a misspelt setting without an error.
--
-- The nodes in use stay: the test never reloads the configuration.

SELECT name, vartype, unit, context, boot_val, min_val, max_val, enumvals
  FROM pg_settings WHERE name LIKE 'redlock.%' ORDER BY name COLLATE "C";
-- settings without a description: none
SELECT name FROM pg_settings
 WHERE name LIKE 'redlock.%' AND coalesce(short_desc, '') = '';

-- allowed_scopes: superusers.  sql/allowed_scopes.sql has the effects
SHOW redlock.allowed_scopes;
SET redlock.allowed_scopes = '';
\echo :SQLSTATE
SET redlock.allowed_scopes = 'transaction, , call';
SET redlock.allowed_scopes = 'call, sesion, transaction';
\echo :SQLSTATE
SET redlock.allowed_scopes = 'call, session, call';
\echo :SQLSTATE
SHOW redlock.allowed_scopes;
SET redlock.allowed_scopes = session, call;
SHOW redlock.allowed_scopes;
RESET redlock.allowed_scopes;

-- ttl: each session may choose
SHOW redlock.ttl;
SET redlock.ttl = '99ms';
\echo :SQLSTATE
SET redlock.ttl = '0';
SET redlock.ttl = '1d 1s';
SET redlock.ttl = '86400001';
SET redlock.ttl = 'soon';
SHOW redlock.ttl;
SET redlock.ttl = '1d';
SHOW redlock.ttl;
SET redlock.ttl = 2000;
SHOW redlock.ttl;
SELECT redlock_try('a', scope => 'session');
SELECT ttl FROM redlock_locks WHERE resource = 'a' AND state = 'held';
SELECT redlock_release('a');
RESET redlock.ttl;

-- on_loss
SET redlock.on_loss = 'ignore';
\echo :SQLSTATE
SET redlock.on_loss = 'terminate';
SHOW redlock.on_loss;
RESET redlock.on_loss;
SHOW redlock.on_loss;

-- commit_margin: each session may choose
SHOW redlock.commit_margin;
SET redlock.commit_margin = '-1ms';
\echo :SQLSTATE
SET redlock.commit_margin = '60001ms';
SET redlock.commit_margin = 'soon';
SHOW redlock.commit_margin;
SET redlock.commit_margin = '1min';
SHOW redlock.commit_margin;
-- 1 min is longer than the ttl: no transaction with a lock commits
CREATE TABLE margin (n integer);
BEGIN;
INSERT INTO margin VALUES (1);
SELECT redlock_acquire('a', ttl => '10 s') > 0 AS acquired;
SELECT redlock_check('a') > '0' AS valid;
COMMIT;
\echo :SQLSTATE
-- not even without writes
BEGIN;
SELECT redlock_acquire('a', ttl => '10 s') > 0 AS acquired;
COMMIT;
\echo :SQLSTATE
SELECT redlock_acquire('a', ttl => '10 s', scope => 'session') > 0 AS acquired;
INSERT INTO margin VALUES (2);
\echo :SQLSTATE
-- PREPARE TRANSACTION fails, too
BEGIN;
INSERT INTO margin VALUES (2);
PREPARE TRANSACTION 'margin';
\echo :SQLSTATE
-- the lock is still held; at session scope, a transaction without writes commits
SELECT redlock_check('a') > '0' AS valid;
SELECT redlock_release('a');
-- a transaction without a lock commits
INSERT INTO margin VALUES (3);
SET redlock.commit_margin = 0;
SHOW redlock.commit_margin;
BEGIN;
INSERT INTO margin VALUES (4);
SELECT redlock_acquire('a', ttl => '10 s') > 0 AS acquired;
COMMIT;
-- the margin at the start of the commit counts
BEGIN;
SET LOCAL redlock.commit_margin = '1min';
INSERT INTO margin VALUES (5);
SELECT redlock_acquire('a', ttl => '10 s') > 0 AS acquired;
SET LOCAL redlock.commit_margin = '1s';
COMMIT;
SHOW redlock.commit_margin;
RESET redlock.commit_margin;
SELECT n FROM margin ORDER BY n;
DROP TABLE margin;

-- max_hold: superusers
SHOW redlock.max_hold;
SET redlock.max_hold = '-1';
\echo :SQLSTATE
SET redlock.max_hold = '2073600001';
SET redlock.max_hold = '24d';
SHOW redlock.max_hold;
SET redlock.max_hold = 1500;
SHOW redlock.max_hold;
RESET redlock.max_hold;

-- by the administrator only
\set VERBOSITY terse
SET redlock.nodes = '';
\echo :SQLSTATE
SET redlock.key_prefix = 'mine:';
\echo :SQLSTATE
SET redlock.max_ttl = '1h';
\echo :SQLSTATE
SET redlock.node_timeout = '1s';
\echo :SQLSTATE
SET redlock.max_locks = 10;
\echo :SQLSTATE
SET redlock.on_disagreement = 'warn';
\echo :SQLSTATE
\set VERBOSITY default
ALTER SYSTEM SET redlock.max_ttl = '99ms';
ALTER SYSTEM SET redlock.max_ttl = '86400001';
ALTER SYSTEM SET redlock.node_timeout = '9ms';
ALTER SYSTEM SET redlock.node_timeout = '61s';
ALTER SYSTEM SET redlock.handover_limit = -1;
ALTER SYSTEM SET redlock.handover_limit = 1001;
ALTER SYSTEM SET redlock.on_disagreement = 'ignore';
ALTER SYSTEM SET redlock.max_locks = 15;
ALTER SYSTEM SET redlock.max_locks = 1000001;
SELECT repeat('p', 64) AS long \gset
ALTER SYSTEM SET redlock.key_prefix = :'long';
ALTER SYSTEM SET redlock.key_prefix = E'a\x1b[31m';
\echo :SQLSTATE
ALTER SYSTEM SET redlock.key_prefix = E'a\nb';
ALTER SYSTEM SET redlock.key_prefix = U&'a\009Bb';

-- a misspelt setting
SET redlock.node = 'redis://localhost';
\echo :SQLSTATE

-- Wrong lists of nodes.  No message repeats a list.
SELECT coalesce(string_agg(name || setting, ' ' ORDER BY name), '') AS before FROM pg_file_settings
 WHERE sourcefile ~ 'auto.conf$' \gset
ALTER SYSTEM SET redlock.nodes = 'http://:geheim@h:1';
\echo :SQLSTATE
ALTER SYSTEM SET redlock.nodes = 'geheim@h:1';
ALTER SYSTEM SET redlock.nodes = 'rediss://:geheim@/s';
ALTER SYSTEM SET redlock.nodes = 'redis://geheim@h:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:@h:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim%4@h:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim%zz@h:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim%00@h:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:0';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:65536';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1x';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1/-1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1/two';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@[::1:1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@[::1]1';
ALTER SYSTEM SET redlock.nodes = 'unix://u:geheim@socket';
ALTER SYSTEM SET redlock.nodes = 'unix://u:geheim@/socket?x=1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1?geheim=1';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1?durable=geheim';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1?durable=';
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1?durable=yes&durable=yes';
ALTER SYSTEM SET redlock.nodes = 'unix://u:geheim@/socket?db=1&db=1';
ALTER SYSTEM SET redlock.nodes = E'redis://u:geheim@h\x1b[31m';
ALTER SYSTEM SET redlock.nodes = U&'unix://u:geheim@/socket\009B';
-- the message has the place of the wrong node
ALTER SYSTEM SET redlock.nodes = 'redis://h:1,redis://h:2,redis://:geheim@h:x';
-- one server must not vote twice
ALTER SYSTEM SET redlock.nodes = 'redis://h:1,redis://i:1,redis://u:geheim@H:1';
ALTER SYSTEM SET redlock.nodes = 'redis://h,redis://h:6379';
ALTER SYSTEM SET redlock.nodes = 'redis://h:1/0,redis://h:1/7';
ALTER SYSTEM SET redlock.nodes = 'unix:///socket,unix:///socket?db=1';
-- the node inside the server excludes other nodes
ALTER SYSTEM SET redlock.nodes = 'local,redis://u:geheim@h:1';
\echo :SQLSTATE
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim@h:1 local';
ALTER SYSTEM SET redlock.nodes = 'local local';
ALTER SYSTEM SET redlock.nodes = 'Local';
ALTER SYSTEM SET redlock.nodes_next = 'local';
\echo :SQLSTATE
-- too many nodes
SELECT string_agg('redis://h:' || i, ',') AS many FROM generate_series(1, 16) i \gset
ALTER SYSTEM SET redlock.nodes = :'many';

-- too long: a host, a password, a socket's path, each without an overrun
\set VERBOSITY sqlstate
SELECT 'redis://' || repeat('h', 1000000) AS long \gset
ALTER SYSTEM SET redlock.nodes = :'long';
SELECT 'redis://:' || repeat('p', 1000000) || '@h' AS long \gset
ALTER SYSTEM SET redlock.nodes = :'long';
SELECT 'unix:///' || repeat('s', 1000000) AS long \gset
ALTER SYSTEM SET redlock.nodes = :'long';
\set VERBOSITY default

-- no wrong list was written
SELECT coalesce(string_agg(name || setting, ' ' ORDER BY name), '') = :'before' AS unchanged
  FROM pg_file_settings WHERE sourcefile ~ 'auto.conf$';

-- A right list is written unchanged.  The test then restores the old list.
SELECT EXISTS (SELECT FROM pg_file_settings
                WHERE name = 'redlock.nodes' AND sourcefile ~ 'auto.conf$') AS had,
       (SELECT setting FROM pg_file_settings
         WHERE name = 'redlock.nodes' AND sourcefile ~ 'auto.conf$') AS old \gset
ALTER SYSTEM SET redlock.nodes = 'redis://u:geheim%2F@h:1/3 , unix:///socket?db=2';
SELECT setting FROM pg_file_settings
 WHERE name = 'redlock.nodes' AND sourcefile ~ 'auto.conf$';
\if :had
ALTER SYSTEM SET redlock.nodes = :'old';
\else
ALTER SYSTEM RESET redlock.nodes;
\endif

-- The list in use, as the administrator of the server sees it: every node, no credentials.
SELECT count(*) IN (1, 5) AS all_of_them, bool_and(url ~ '^((redis|unix)://(\*\*\*@)?[^@]+|local)$') AS redacted
  FROM regexp_split_to_table(current_setting('redlock.nodes'), ', ') url;
SELECT boot_val, reset_val, setting = current_setting('redlock.nodes') AS same
  FROM pg_settings WHERE name = 'redlock.nodes';

-- other roles do not see the list
CREATE ROLE regress_redlock_user;
SET ROLE regress_redlock_user;
\set VERBOSITY sqlstate
SHOW redlock.nodes;
\set VERBOSITY default
\echo :SQLSTATE
SELECT name FROM pg_settings WHERE name = 'redlock.nodes';
SET redlock.max_hold = '1s';
\echo :SQLSTATE
SET redlock.ttl = '5s';
SHOW redlock.ttl;
RESET redlock.ttl;
RESET ROLE;
DROP ROLE regress_redlock_user;
