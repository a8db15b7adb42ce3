# A session, its wait or its server ends: the held and half-won locks are released on all nodes,
# long before the keys would expire.
#
# Protects from: locks outliving their holder; keys of cancelled waits; a shutdown forgetting held
# locks, or releasing locks in use; a dead server still renewing.

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my $conf = "redlock.ttl = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf, init => { allows_streaming => 1 });
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $session_b = session($host_b);
my $admin = session($host_a);

sub becomes_free
{
	my ($name, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session_b->query('BEGIN');
	wait_until(sub { $session_b->query("SELECT redlock_try('$name')") eq 't' }, $description, 30);
	$session_b->query('COMMIT');
	wait_until(sub { key_count("redlock:$name", @nodes) == 0 },
		"no key of \"$name\" is left", 30);
}

# ---- the holder is terminated ----

foreach my $scope (qw(transaction session))
{
	my $session_a = session($host_a);
	$session_a->query("BEGIN; SELECT redlock_acquire('job', scope => '$scope')");
	$session_a->query('COMMIT') if $scope eq 'session';
	is($session_b->query("SELECT redlock_try('job')"), 'f', "A holds the lock at $scope scope");
	$admin->query('SELECT pg_terminate_backend(' . $session_a->pid . ')');
	becomes_free('job', 'B gets it when the session of A is terminated, idle');
	$session_a->quit;

	$session_a = session($host_a);
	$session_a->query("BEGIN; SELECT redlock_acquire('job', scope => '$scope')");
	$session_a->send('SELECT pg_sleep(600)');
	is($session_b->query("SELECT redlock_try('job')"), 'f', 'A holds it again');
	$admin->query('SELECT pg_terminate_backend(' . $session_a->pid . ')');
	becomes_free('job', 'B gets it when the session of A is terminated, busy');
	ok($session_a->result->{dead}, 'the session has ended');
	$session_a->quit;
}

# ---- a wait ends without the lock ----

# Another host holds a majority, and the waiter wins the remaining nodes in each round.  $end_it
# runs during the wait, and ends the wait.
sub wait_in_vain
{
	my ($how, $state, $settings, $wait, $end_it) = @_;
	my $session_a = session($host_a);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session_a->query($settings) if $settings;
	$session_a->query('BEGIN');
	$session_a->send("SELECT redlock_acquire('vain'" . ($wait ? ", wait => '$wait'" : '') . ')');
	if ($end_it)
	{
		$host_a->poll_query_until('postgres',
			"SELECT state = 'waiting' AND held_by <> '' FROM redlock_locks WHERE resource = 'vain'")
		  or die 'it does not wait';
		$end_it->($session_a);
	}
	my $result = $session_a->result;
	is($result->{state}, $state, "$how: the wait ends");
	# first the view: between two rounds of a waiter there is no key either
	ok( $host_a->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM redlock_locks WHERE resource = 'vain'"),
		"$how: no row in the view is left");
	wait_until(sub { key_count('redlock:vain', @nodes[ 3, 4 ]) == 0 },
		"$how: no key of ours is left", 30);
	is(key_count('redlock:vain', @nodes), 3, "$how: the keys of the other holder are still there");
	$session_a->query('ROLLBACK') unless $result->{dead};
	$session_a->quit;
}

$_->cli('SET', 'redlock:vain', 'somebody else') for @nodes[ 0 .. 2 ];
wait_in_vain('wait', '55P03', '', '200 ms');
wait_in_vain('lock_timeout',      '55P03', "SET lock_timeout = '200ms'");
wait_in_vain('statement_timeout', '57014', "SET statement_timeout = '200ms'");
wait_in_vain('cancel', '57014', '', '',
	sub { $admin->query('SELECT pg_cancel_backend(' . $_[0]->pid . ')') });
wait_in_vain('terminate', '57P01', '', '',
	sub { $admin->query('SELECT pg_terminate_backend(' . $_[0]->pid . ')') });

# The client vanishes; client_connection_check_interval of the session ends the wait.
{
	my $session_a = session($host_a);
	$session_a->query("SET client_connection_check_interval = '100ms'");
	$session_a->send("SELECT redlock_acquire('vain')");
	$host_a->poll_query_until('postgres',
		"SELECT state = 'waiting' FROM redlock_locks WHERE resource = 'vain'")
	  or die 'it does not wait';
	$session_a->vanish;
	ok( $host_a->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM redlock_locks WHERE resource = 'vain'"),
		'the wait ends when its client is gone');
	wait_until(sub { key_count('redlock:vain', @nodes[ 3, 4 ]) == 0 },
		'client gone: no key of ours is left', 30);
}
$_->cli('DEL', 'redlock:vain') for @nodes;
becomes_free('vain', 'the lock is free for all');

# A session waits behind another session of its own server.
{
	my $holder = session($host_a);
	my $queued = session($host_a);
	$holder->query("BEGIN; SELECT redlock_acquire('job')");
	$queued->query('BEGIN');
	is( $queued->run("SELECT redlock_acquire('job', wait => '200 ms')")->{state},
		'55P03', 'a wait behind a session of the same server times out');
	$queued->query('ROLLBACK; BEGIN');
	$queued->send("SELECT redlock_acquire('job')");
	ok( $host_a->poll_query_until('postgres',
			"SELECT pid = " . $queued->pid . " FROM redlock_locks WHERE state = 'queued'"),
		'the view shows who is queued');
	$admin->query('SELECT pg_cancel_backend(' . $queued->pid . ')');
	is($queued->result->{state}, '57014', 'and can be cancelled');
	$queued->query('ROLLBACK');
	is($session_b->query("SELECT redlock_try('job')"), 'f', 'which frees nothing');
	$holder->query('COMMIT');
	becomes_free('job', 'the holder does');
	$_->quit for $holder, $queued;
}

# ---- the server is stopped ----

$admin->quit;
my $session_a;

$session_a = session($host_a);
$session_a->query("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'A holds the lock');
$host_a->stop('fast');
is(key_count('redlock:job', @nodes), 0, 'a fast stop has released it when it is done');
$session_a->quit;
$host_a->start;
wait_nodes_ready($host_a, 5);

# A smart stop waits for the session.  The session keeps its locks for longer than the short ttl, so
# the broker must renew.
$session_a = session($host_a);
$session_a->query("SELECT redlock_acquire('short', scope => 'session', ttl => '2 s')");
$session_a->query("SELECT redlock_acquire('long', scope => 'session')");
wait_until(sub { key_count('redlock:long', @nodes) == 5 }, 'A holds two locks');
my $log_offset = -s $host_a->logfile;
my $stop = IPC::Run::start([ 'pg_ctl', '-D', $host_a->data_dir, '-m', 'smart', 'stop' ],
	'>', '/dev/null', '2>&1');
wait_until(
	sub { slurp_file($host_a->logfile, $log_offset) =~ /received smart shutdown request/ },
	'a smart stop begins');
my ($granted, $end) = (0, time + 5);
while (time < $end)
{
	$granted++ if $session_b->query("SELECT redlock_try('short')") eq 't';
}
is($granted, 0, 'the session keeps its locks while the server waits for it');
is($session_a->query("SELECT redlock_check('short') > '0'"), 't', 'and can rely on them');
$session_a->quit;
$stop->finish;
is($stop->result(0), 0, 'the stop succeeds when the session has ended');
is(key_count('redlock:long', @nodes), 0, 'and has released its locks when it is done');
is(key_count('redlock:short', @nodes), 0, 'both of them');
$host_a->_update_pid(0);
$host_a->start;
wait_nodes_ready($host_a, 5);

$session_a = session($host_a);
$session_a->query("SELECT redlock_acquire('job', scope => 'session', ttl => '2 s')");
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'A holds the lock');
$host_a->stop('immediate');
wait_until(sub { $session_b->query("SELECT redlock_try('job')") eq 't' },
	'after an immediate stop it expires');
$session_a->quit;
$host_a->start;
wait_nodes_ready($host_a, 5);

# Only the postmaster dies; the session lives on.
$session_a = session($host_a);
$session_a->query("SELECT redlock_acquire('job', scope => 'session', ttl => '2 s')");
$session_a->send('SELECT pg_sleep(600)');
wait_until(sub { key_count('redlock:job', @nodes) == 5 }, 'A holds the lock');
$host_a->kill9;
wait_until(sub { $session_b->query("SELECT redlock_try('job')") eq 't' },
	'nobody renews it after the death of the postmaster');
kill 'KILL', $session_a->pid;
$session_a->quit;

# No start succeeds before the last backend of the old server has ended.  After a failed start the
# pid file is the dead server's.
wait_until(
	sub {
		$host_a->{_pid} = undef;
		return $host_a->start(fail_ok => 1);
	},
	'the server starts again');
wait_nodes_ready($host_a, 5);
is(psql_result($host_a, "SELECT redlock_try('job')")->{out}, 't', 'and takes the lock');

$session_b->quit;
# ---- shutdowns that wait for a session ----

# A walsender takes no locks: the server ends walsenders after the broker, which waits for locks.
my ($out, $err);
wait_nodes_ready($host_a, 5);
$host_a->psql('postgres', "SELECT redlock_try('walsender')", stdout => \$out, stderr => \$err, replication => 'database');
like($err, qr/redlocks can't be used in a replication connection/, 'no lock in a replication connection');

# A smart stop: a broker stays as long as the sessions, if need be a new broker.  A postmaster that
# shuts down starts a broker when woken, and by itself once a minute; so the test wakes the
# postmaster.
my $last = session($host_a);
my $broker = broker_pid($host_a);
is(system('pg_ctl', '-D', $host_a->data_dir, '-m', 'smart', '-W', '-s', 'stop'), 0, 'a smart shutdown begins');
kill 'TERM', $broker;
wait_until(
	sub {
		my $pid = broker_pid($host_a);
		return 1 if $pid ne '' && $pid ne $broker;
		$host_a->psql('postgres', '', stderr => \my $refusal);
		return 0;
	},
	'a broker that is terminated meanwhile has a successor');
is($last->query("SELECT redlock_try('last', scope => 'session')"), 't', 'the session that is left can take locks');
$last->quit;
wait_until(sub { !-e $host_a->data_dir . '/postmaster.pid' }, 'the server stops when it has gone');
$host_a->{_pid} = undef;
wait_until(sub { key_count('redlock:last', @nodes) == 0 }, 'and its lock is released');

done_testing();
