# Detached locks behind a real pgbouncer in transaction mode: 200 clients share 10 server
# connections, so each statement of a client may run in another session.
#
# Protects from: a lock ending with the session of its acquire; a client unable to release, check
# or extend a lock of another session; two clients inside of one lock; a role ending locks of
# another role by tokens that the role can read; a lock or a key staying when all clients have
# released their locks; a client getting a lock of session scope, stranded by the pool; two commands
# of redlock-exec at a time in one session of the pool.

use strict;
use warnings;

use ExecTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
plan skip_all => 'no pgbouncer here; scripts/deps.sh installs it where there is a package' unless $pgbouncer;

my $clients     = 200;
my $connections = 10;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'\nmax_connections = 50");
$host->safe_psql('postgres', <<'SQL');
CREATE ROLE app LOGIN;
ALTER ROLE app SET redlock.allowed_scopes = transaction, call, detached;
CREATE ROLE stranger LOGIN;
CREATE TABLE inside (resource text PRIMARY KEY);
CREATE TABLE finished (client int);
CREATE TABLE theft (denied int, gone int, stolen int);
CREATE TABLE over ();
GRANT ALL ON inside, finished, theft TO PUBLIC;

-- a client that has not got what it expects ends by an error, and pgbench tells
CREATE FUNCTION demand(good boolean, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF good IS NOT TRUE THEN
		RAISE EXCEPTION 'not so: %', what;
	END IF;
END $$;

-- tries to end all that it sees
CREATE FUNCTION steal() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	l record;
	t theft := (0, 0, 0);
BEGIN
	FOR l IN SELECT resource, token FROM redlock_locks WHERE scope = 'detached' AND state = 'held' AND pid IS NULL LOOP
		BEGIN
			PERFORM redlock_extend(l.resource, l.token, '1 ms');
			t.stolen := t.stolen + 1;
		EXCEPTION
			WHEN insufficient_privilege THEN t.denied := t.denied + 1;
			WHEN object_not_in_prerequisite_state THEN t.gone := t.gone + 1;
		END;
		BEGIN
			PERFORM redlock_release(l.resource, l.token);
			t.stolen := t.stolen + 1;
		EXCEPTION
			WHEN insufficient_privilege THEN t.denied := t.denied + 1;
			WHEN object_not_in_prerequisite_state THEN t.gone := t.gone + 1;
		END;
	END LOOP;
	INSERT INTO theft SELECT t.*;
END $$;
SQL

# ---- pgbouncer ----

my $dir  = PostgreSQL::Test::Utils::tempdir();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $conf = "$dir/pgbouncer.ini";
my $log  = "$dir/pgbouncer.log";

append_to_file($conf, <<CONF);
[databases]
app = host=@{[ $host->host ]} port=@{[ $host->port ]} dbname=postgres user=app pool_size=$connections
jobs = host=@{[ $host->host ]} port=@{[ $host->port ]} dbname=postgres user=@{[ $host->safe_psql('postgres', 'SELECT current_user') ]} pool_size=2
stranger = host=@{[ $host->host ]} port=@{[ $host->port ]} dbname=postgres user=stranger pool_size=3
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = any
pool_mode = transaction
max_client_conn = 400
server_reset_query = DISCARD ALL
server_reset_query_always = 1
logfile = $log
pidfile = $dir/pgbouncer.pid
ignore_startup_parameters = extra_float_digits,options
CONF
my $bouncer = IPC::Run::start([ $pgbouncer, $conf ], '>', \my $out, '2>', \my $err);
END { eval { $bouncer->kill_kill } if $bouncer }

wait_until(sub { -S "$dir/.s.PGSQL.$port" }, 'pgbouncer listens') or BAIL_OUT(slurp_file($log));

# ---- the clients ----

# Each client acquires a lock of its own, and tries a lock shared with nine other clients: a waiter
# would keep a server connection.
append_to_file("$dir/app.sql", <<'SQL');
SELECT redlock_acquire('own ' || :client_id, scope => 'detached', hold_at_most => '1 min') AS token \gset
\set shared :client_id % 20
SELECT coalesce(redlock_try_detached('shared ' || :shared, '10 min'), 0) AS other \gset
SELECT demand(redlock_check('own ' || :client_id, :token) > '0', 'own is valid');
SELECT demand(redlock_extend('own ' || :client_id, :token, '10 min') > now() + '9 min', 'own is extended');
\if :other > 0
INSERT INTO inside VALUES ('shared ' || :shared);
BEGIN;
SELECT redlock_attach('shared ' || :shared, :other);
SELECT redlock_fence('shared ' || :shared);
DELETE FROM inside WHERE resource = 'shared ' || :shared;
COMMIT;
SELECT demand(redlock_release('shared ' || :shared, :other), 'shared is released');
\endif
SELECT demand(redlock_release('own ' || :client_id, :token), 'own is released');
INSERT INTO finished VALUES (:client_id);
SQL
append_to_file("$dir/stranger.sql", "SELECT steal();\n");

sub pgbench
{
	my ($db, $script, @options) = @_;
	my $result = { db => $db };

	$result->{run} = IPC::Run::start(
		[
			$host->installed_command('pgbench'), '-n', '-h', $dir, '-p', $port, '-U', $db,
			'-f', "$dir/$script", @options, $db
		],
		'>', \$result->{out}, '2>', \$result->{err}, IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	return $result;
}

my $rounds = 20;
my $app = pgbench('app', 'app.sql', '-c', $clients, '-j', 2, '-t', $rounds);
my $thefts = pgbench('stranger', 'stranger.sql', '-c', 3, '-t', 100_000);
my $most = 0;
while ($app->{run}->pumpable)
{
	my $now = $host->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'");

	$most = $now if $now > $most;
	eval { $app->{run}->pump_nb };
	sleep 0.05;
}
ok($app->{run}->finish, 'each client could do all') or diag($app->{err});
wait_until(sub { $host->safe_psql('postgres', 'SELECT sum(denied) > 0 FROM theft') eq 't' }, 'a stranger has tried to end locks');
$thefts->{run}->kill_kill;

is($host->safe_psql('postgres', 'SELECT count(*), count(DISTINCT client) FROM finished'), $clients * $rounds . "|$clients", 'each client has finished all rounds');
cmp_ok($most, '<=', $connections, 'over no more server connections than that');
cmp_ok($most, '>', 1, 'but several');
is($host->safe_psql('postgres', 'SELECT sum(stolen) FROM theft'), 0, 'and has ended or changed none');
is($host->safe_psql('postgres', 'SELECT count(*) FROM inside'), 0, 'nobody is in what a lock protects');
cmp_ok($host->safe_psql('postgres', "SELECT count(*) FROM redlock_fences WHERE resource ~ '^shared'"), '>', 1, 'which some have been');

wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM redlock_locks') eq '0' }, 'no lock is left');
is($host->safe_psql('postgres', 'SELECT locks, lost, unrenewed FROM redlock_stats'), '0|0|0', 'and none was lost');
# the counters of tokens stay for a while
my $lua = q{local n = 0 for _, pattern in ipairs(ARGV) do for _, k in ipairs(redis.call('KEYS', pattern)) do
	if not k:find('\0', 1, true) then n = n + 1 end end end return n};
is(join(' ', map { $_->cli('EVAL', $lua, 0, 'redlock:own*', 'redlock:shared*') } @nodes), '0 0 0', 'no key is left');

# ---- a lock that its client forgot ----

my $psql = sub {
	my ($sql, $db) = @_;
	return $host->psql('postgres', $sql, connstr => "host=$dir port=$port dbname=" . ($db // 'app') . ' user=' . ($db // 'app'));
};
my (undef, $token) = $psql->("SELECT redlock_acquire('forgotten', scope => 'detached', hold_at_most => '2 s')");
is($host->safe_psql('postgres', "SELECT scope, role, since <= now(), until > since FROM redlock_locks WHERE resource = 'forgotten'"),
	'detached|app|t|t', 'a lock whose client has gone is seen');
wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM redlock_locks') eq '0' && key_count('redlock:forgotten', @nodes) == 0 },
	'and ends with its hold_at_most');
isnt(($psql->("SELECT redlock_check('forgotten', $token)"))[0], 0, 'its token is worth nothing then');

# ---- session scope is not for the pool's role ----

my ($status, undef, $error) = $psql->("SELECT redlock_acquire('stranded', scope => 'session')");
is($status, 3, 'a client can not acquire a lock of session scope');
like($error, qr/ERROR:  permission denied for redlocks at scope "session"\nDETAIL:  redlock.allowed_scopes of this session is "transaction, call, detached"\./,
	'and is told which scopes are allowed');
($status, undef, $error) = $psql->("SET redlock.allowed_scopes = 'session'");
like($error, qr/permission denied to set parameter/, 'nor can it allow the scope');
is(join(' ', $psql->("BEGIN; SELECT redlock_try('of the transaction'); COMMIT; CALL redlock_run('of the call', 'SELECT 1')")), '0 t ', 'other scopes work');
is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state <> 'releasing'"), 0, 'no lock stays');

# ---- redlock-exec needs a session of its own ----

my $superuser = $host->safe_psql('postgres', 'SELECT current_user');
my $jobs_port = PostgreSQL::Test::Cluster::get_free_port();
my $pool = "host=$dir port=$jobs_port dbname=jobs user=$superuser";
my $jobs_conf = "$dir/jobs.ini";

# The former pool forgets each setting and lock after each transaction.
my $run = exec_start($host, [ '-d', "host=$dir port=$port dbname=jobs user=$superuser", 'job' ], [ 'echo', 'ran' ]);
is($run->code, 125, 'a pool that resets its sessions after each transaction: redlock-exec fails');
like($run->err, qr/a connection pool has moved the connection.*^HINT:.*session pooling/ms, 'with the reason and the way out');
is($run->out, '', 'and runs no command');
$bouncer->kill_kill;
undef $bouncer;

append_to_file($jobs_conf, slurp_file($conf) =~ s/^server_reset_query.*\n//mgr =~ s/= $port$/= $jobs_port/mr =~ s/pgbouncer\.(log|pid)/jobs.$1/gr);
$bouncer = IPC::Run::start([ $pgbouncer, $jobs_conf ], '>', \$out, '2>', \$err);
wait_until(sub { -S "$dir/.s.PGSQL.$jobs_port" }, 'a pool that resets nothing listens');
my $first = exec_start($host, [ '-d', $pool, 'job' ], beats('first'));
wait_until(sub { beat_log('first') =~ /^start/m || $first->done }, 'a command runs');
$run = exec_start($host, [ '-d', $pool, 'job' ], [ 'echo', 'ran' ]);
is($run->code, 125, 'the session of a running command: redlock-exec fails');
like($run->err, qr/another client of a connection pool has a lock in this session\nHINT:.*session pooling/, 'with the reason and the way out');
is($run->out, '', 'and runs no command beside the first');

# A transaction of another client takes the session, so the next check goes to a new session.
my $holder = $host->safe_psql('postgres', "SELECT pid FROM redlock_locks WHERE resource = 'job'");
my $taker = session($host, connstr => $pool);
wait_until(sub { $taker->query('ROLLBACK'); $taker->query('BEGIN'); $taker->query('SELECT pg_backend_pid()') eq $holder },
	'another client has the session of the command');
is($first->code, 123, 'a connection that the pool moves: the command ends');
like($first->err, qr/a connection pool has moved the connection/, 'with the reason');
$taker->quit;
$bouncer->kill_kill;
undef $bouncer;
done_testing();
