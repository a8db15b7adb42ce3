# Drivers, pools, and clients that go away, and the locks of their sessions.
#
# Protects from: a pool's reset taking a holder out of its server's queue, so that no view shows
# the session that blocks a waiter; call scope ending with an earlier CALL of the same pipeline;
# waiters waiting on for a dead client, and then holding the lock; settings changed by a wait; the
# locks of one session leaving no room for other sessions.

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes);
my $admin = session($host);

# Session $waiter waits in the queue of this server, and $holder blocks it.
sub is_queued
{
	my ($waiter, $holder, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$admin->query("SELECT pg_blocking_pids(pid) = ARRAY[$holder] FROM redlock_locks"
				  . " WHERE state = 'queued' AND pid = $waiter") eq 't';
		},
		$description);
}

# ---- pg_advisory_unlock_all, as pools call it ----

# asyncpg's commands when a connection goes back to the pool
my $reset = 'SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL';
my ($holder, $waiter) = (session($host), session($host));

foreach my $round (1 .. 3)
{
	$holder->query("SELECT redlock_acquire('pool', scope => 'session')");
	$holder->query($reset);
	$waiter->send("BEGIN; SELECT redlock_acquire('pool') > 0");
	is_queued($waiter->pid, $holder->pid, 'after a reset of the pool, a waiter is queued behind the holder');

	# the reset lets the waiter through the gate, and the waiter queues again
	$holder->query($reset);
	is_queued($waiter->pid, $holder->pid, 'the same when it was queued before the reset');
	$holder->run("BEGIN; $reset; SELECT 1/0");
	$holder->query('ROLLBACK');
	$holder->query('SELECT 1');
	is_queued($waiter->pid, $holder->pid, 'and when the reset is rolled back, after the next commit');

	my $result = $holder->run("SELECT redlock_release('pool')");
	is("$result->{out}$result->{err}", 't', 'the release warns of nothing');
	is($waiter->result->{out}, 't', 'and the waiter has the lock');
	$waiter->query('COMMIT');
}

# a waiter that passed the gate, and is stopped before it queues again
$holder->query("SELECT redlock_acquire('pool', scope => 'session')");
$waiter->send("BEGIN; SELECT redlock_acquire('pool') > 0");
is_queued($waiter->pid, $holder->pid, 'a waiter is queued');
kill 'STOP', $waiter->pid;
$holder->query($reset);
is($admin->query('SELECT granted FROM pg_locks WHERE objsubid = 0 AND pid = ' . $waiter->pid), 't',
	'it is let through, and stays there');
kill 'CONT', $waiter->pid;
wait_until(sub { $holder->query('SELECT 1'); $admin->query("SELECT pg_blocking_pids(" . $waiter->pid . ")") eq '{' . $holder->pid . '}' },
	'a later commit of the holder enters again');
$holder->query("SELECT redlock_release('pool')");
is($waiter->result->{out}, 't', 'and the waiter has the lock in the end');
$waiter->query('COMMIT');

# the lock held at transaction and at session scope
$holder->query("BEGIN; SELECT redlock_acquire('pool'), redlock_acquire('pool', scope => 'session')");
$holder->query('SELECT pg_advisory_unlock_all()');
is($holder->run("SELECT redlock_release('pool')")->{err}, '', 'nor if it is held at transaction scope, too');
$holder->query('COMMIT');
is($admin->query("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'"), '0', 'no gate is left');

# many locks, and other sessions waiting for each lock
my @waiters = map { session($host) } 1 .. 5;
$holder->query("SELECT redlock_acquire('pool ' || i, scope => 'session') FROM generate_series(1, 5) i");
$waiters[ $_ - 1 ]->send("BEGIN; SELECT redlock_acquire('pool $_') > 0") foreach 1 .. 5;
is_queued($waiters[ $_ - 1 ]->pid, $holder->pid, "waiter $_ is queued") foreach 1 .. 5;
$holder->query($reset) foreach 1 .. 10;
is_queued($waiters[ $_ - 1 ]->pid, $holder->pid, "waiter $_ is queued after ten resets") foreach 1 .. 5;
is($admin->query("SELECT count(*) FROM redlock_locks WHERE state = 'held'"), '5', 'all are held');
is($holder->query('SELECT redlock_release_all()'), '5', 'and released');
is($_->result->{out}, 't', 'the waiter has its lock') foreach @waiters;
$_->quit foreach @waiters;

# A real pool.  Its only connection goes back to the pool with a lock at session scope.
my $python = '/usr/bin/python3';
SKIP:
{
	skip 'no asyncpg for Python here', 2
	  if !-x $python || system("$python -c 'import asyncpg' 2>/dev/null") != 0;

	my $script = <<'PYTHON';
import asyncio, asyncpg, sys

async def main():
    pool = await asyncpg.create_pool(host=sys.argv[1], port=int(sys.argv[2]), user=sys.argv[3],
                                     database='postgres', min_size=1, max_size=1)
    async with pool.acquire() as c:
        await c.fetchval("SELECT redlock_acquire('asyncpg', scope => 'session')")
        print(await c.fetchval("SELECT pg_backend_pid()"), flush=True)
    sys.stdin.readline()
    async with pool.acquire() as c:
        print(await c.fetchval("SELECT redlock_release('asyncpg')"), flush=True)
    await pool.close()

asyncio.run(main())
PYTHON
	my ($in, $out) = ('', '');
	my $user = $admin->query('SELECT current_user');
	my $pool = IPC::Run::start([ $python, '-c', $script, $host->host, $host->port, $user ],
		'<', \$in, '>', \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$pool->pump until $out =~ /^(\d+)\n/;
	my $pid = $1;
	# the last statement of the idle connection is the reset
	wait_until(
		sub { $admin->query("SELECT state = 'idle' AND query LIKE '%unlock_all%' FROM pg_stat_activity WHERE pid = $pid") eq 't' },
		'the pool has reset its connection');
	$waiter->send("BEGIN; SELECT redlock_acquire('asyncpg') > 0");
	is_queued($waiter->pid, $pid, 'behind a connection in an asyncpg pool a waiter is queued');
	$in .= "\n";
	$pool->finish;
	like($out, qr/^True$/m, 'the connection can release its lock later');
	is($waiter->result->{out}, 't', 'and then the waiter has it');
	$waiter->query('COMMIT');
}

# ---- several CALLs in one pipeline ----

# The second CALL begins in the transaction in which the first CALL ends.  Since PostgreSQL 18 only
# the first CALL of a pipeline can commit.
$admin->query(<<'SQL');
CREATE TABLE seen (n int, held bool);
CREATE PROCEDURE job(n int) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO seen VALUES (n, EXISTS (SELECT FROM redlock_locks
		WHERE resource = 'job' AND state = 'held' AND pid = pg_backend_pid()));
	IF n = 1 OR current_setting('server_version_num')::int < 180000 THEN
		COMMIT;
	END IF;
	INSERT INTO seen VALUES (n, EXISTS (SELECT FROM redlock_locks
		WHERE resource = 'job' AND state = 'held' AND pid = pg_backend_pid()));
END
$$;
SQL
foreach my $protocol (qw(extended prepared))
{
	my $calls = join '',
	  map { "CALL redlock_run('job', 'CALL job($_)');\n" } 1 .. 3;
	my $file = $host->basedir . '/pipeline.sql';

	$admin->query('TRUNCATE seen');
	append_to_file($file, "\\startpipeline\n$calls\\endpipeline\n");
	$host->command_ok([ 'pgbench', '-n', '-t', '1', '-M', $protocol, '-f', $file, 'postgres' ],
		"a pipeline of three CALLs, $protocol");
	unlink $file;
	is($admin->query('SELECT n, bool_and(held), count(*) FROM seen GROUP BY n ORDER BY n'),
		"1|t|2\n2|t|2\n3|t|2", 'each holds its lock to its end, after its COMMIT too');
	is($admin->query("SELECT count(*) FROM redlock_locks WHERE state = 'held'"), '0', 'nothing is held afterwards');
}

# ---- a waiter whose client is gone ----

foreach my $scope (qw(transaction session))
{
	# behind a session of this server, and behind another host
	foreach my $where ('this server', 'the nodes')
	{
		my $client = session($host);
		my $pid = $client->pid;

		if ($where eq 'this server')
		{
			$holder->query("SELECT redlock_acquire('gone', scope => 'session')");
		}
		else
		{
			$_->cli('SET', 'redlock:gone', 'somebody', 'PX', 600000) foreach @nodes;
		}
		$client->send("SELECT redlock_acquire('gone', scope => '$scope')");
		wait_until(
			sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource = 'gone' AND pid = $pid AND state <> 'held'") eq '1' },
			'it waits');
		$client->vanish;
		wait_until(sub { $admin->query("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") eq '0' },
			"a client that is killed ends the wait of its session for $where, at $scope scope");
		is($admin->query("SELECT count(*) FROM redlock_locks WHERE resource = 'gone' AND pid = $pid AND state <> 'releasing'"),
			'0', 'and it waits no longer');
		if ($where eq 'this server')
		{
			$holder->query("SELECT redlock_release('gone')");
		}
		else
		{
			$_->cli('DEL', 'redlock:gone') foreach @nodes;
		}
	}
}
is($holder->query("SELECT redlock_try('gone', scope => 'session')"), 't', 'the lock is free');

# A wait restores the settings that limit the wait, at any end.
foreach my $interval ('0', '1min')
{
	my $is_still = sub {
		is($waiter->query("SELECT current_setting('client_connection_check_interval'), current_setting('lock_timeout')"),
			"$interval|10min", "client_connection_check_interval = $interval and lock_timeout after $_[0]");
	};
	my $waits = sub {
		wait_until(sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource = 'gone' AND state = 'queued'") eq '1' }, 'it waits');
	};
	$waiter->query("SET client_connection_check_interval = '$interval'; SET lock_timeout = '10min'");
	is($waiter->run("SELECT redlock_acquire('gone', wait => '100 ms')")->{state}, '55P03', 'a wait is over');
	$is_still->('that');
	$waiter->send("SELECT redlock_acquire('gone')");
	$waits->();
	kill 'INT', $waiter->pid;
	is($waiter->result->{state}, '57014', 'a wait is cancelled');
	$is_still->('that');
	$waiter->send("SELECT redlock_acquire('gone') > 0");
	$waits->();
	$holder->query("SELECT redlock_release('gone')");
	is($waiter->result->{out}, 't', 'a wait ends by the grant');
	$is_still->('that');
	$holder->query("SELECT redlock_acquire('gone', scope => 'session')");
}

$_->quit foreach $holder, $waiter, $admin;

# ---- a session takes as many locks as it can ----

# PostgreSQL's lock table is smaller than redlock.max_locks.
$host->append_conf('postgresql.conf', <<'CONF');
redlock.max_locks = 100000
max_locks_per_transaction = 32
CONF
$host->restart;
wait_nodes_ready($host, 3);
like(slurp_file($host->logfile), qr/WARNING:  redlock.max_locks is 100000, but the server's lock table has room for \d+ redlocks/,
	'too small a lock table is told at the start');
$holder = session($host);
my $result = $holder->run("SELECT redlock_acquire('all ' || i, scope => 'session') FROM generate_series(1, 50000) i");
is($result->{message}, 'this session holds too many redlocks', 'a session is stopped at its limit');
$admin = session($host);
$holder->query('SET redlock.max_locks_per_session = 1000000');
$result = $holder->run("SELECT redlock_acquire('all ' || i, scope => 'session') FROM generate_series(1, 50000) i");
is("$result->{state} $result->{message}", '53400 too many redlocks are held or requested on this server',
	'without that limit, at that of the server');
like($result->{hint}, qr/max_locks_per_transaction/, 'the hint names max_locks_per_transaction');

# half of the lock table is left: other sessions can take as many locks as ever
my $tables = join '', map { "CREATE TABLE room_$_ (i int PRIMARY KEY);" } 1 .. 50;
$admin->query("BEGIN; $tables; ROLLBACK");
is($admin->query("SELECT redlock_try('all 1')"), 'f', 'what is held is held');
like($holder->query('SELECT redlock_release_all()'), qr/^\d{3,}$/, 'and is released');
is($admin->query("SELECT redlock_try('all 1', scope => 'session')"), 't', 'for others');

$_->quit foreach $holder, $admin;
# ---- warnings about a habit: the client gets each warning, the log the first of a session ----

{
	my %habit = (
		"SELECT redlock_acquire('autocommit')" => 'will be released at the end of this statement',
		"SELECT redlock_release('not mine')"    => 'this session does not hold redlock "not mine"',
		"BEGIN; SELECT redlock_acquire('t'); SELECT redlock_release('t'); COMMIT" => 'is held at transaction scope only',
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT redlock_acquire('old'); COMMIT" => "the transaction's snapshot is older");

	foreach my $sql (sort keys %habit)
	{
		my $log_from = -s $host->logfile;
		my $client = session($host);
		my $heard = grep { $client->run($sql)->{err} =~ /WARNING:  .*\Q$habit{$sql}\E/ } 1 .. 5;
		my $logged = () = slurp_file($host->logfile, $log_from) =~ /WARNING:  .*\Q$habit{$sql}\E/g;

		is("$heard $logged", '5 1', "\"$habit{$sql}\": the client hears it five times, the log once");
		$client->quit;
	}
}

done_testing();
