# A session learns of the loss of its lease, whatever happened before.
#
# Protects from: a loss reported late, or never: after errors, when the wall clock is set back, when
# the broker knew earlier; a wait by the wall clock; a lock returned after the end of its lease, or
# kept although no session held the lock.
#
# Waits run side by side, each in a session of its own.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time clock_gettime CLOCK_MONOTONIC);

my @nodes = redis_nodes(3);

# The test can set the wall clock of the whole server.
my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = preload('wrong_clock') // die 'no wrong clock';
my $offset = "$directory/offset";

write_mapped($offset, 0);
my $host;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{WRONG_CLOCK_FILE} = $offset;
	$host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.node_timeout = '300ms'");
}
my $admin = session($host);

sub is_told
{
	my ($session, $name, $description) = @_;
	my $result = $session->result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$result->{state} $result->{message}",
		qq(57014 canceling statement because the lease on redlock "$name" was lost), $description);
	return;
}

# ---- after errors, and errors in a failed transaction block ----

my @before = ('', 'BEGIN; SELECT 1/0', 'BEGIN; SELECT 1/0 \; SELECT 1', "BEGIN; SELECT 1/0;\nSELECT 1;\nSELECT 1",
	"BEGIN; SAVEPOINT s; SELECT 1/0;\nSELECT 1;\nROLLBACK TO s; SELECT 1/0;\nSELECT 1");
my @sessions = map { session($host) } @before;

$sessions[$_]->query("SELECT redlock_acquire('errors $_', scope => 'session', ttl => '3 s')") foreach 0 .. $#before;
$_->pause foreach @nodes;
foreach my $i (0 .. $#before)
{
	$sessions[$i]->run($before[$i]) if $before[$i] ne '';
	$sessions[$i]->query('ROLLBACK') if $before[$i] ne '';
	$sessions[$i]->send('SELECT pg_sleep(600)');
}
is_told($sessions[$_], "errors $_", "the statement is cancelled, errors before: $_") foreach 0 .. $#before;
$_->resume foreach @nodes;
$_->quit foreach @sessions;
wait_nodes_ready($host, 3);

# ---- a session with temporary tables ends after the loss of its lease ----

# PostgreSQL drops the tables in a transaction, before the session's locks are released.
foreach my $end ('quit', 'terminate')
{
	my $s = session($host);
	my $on_loss = $end eq 'terminate' ? 'terminate' : 'error';

	$s->query("SET redlock.on_loss = '$on_loss'; SELECT redlock_acquire('$end', scope => 'session', hold_at_most => '1 s')");
	$s->query("CREATE TEMP TABLE ${end}_scratch (n int)");
	wait_until(sub { $admin->query("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $s->pid) eq '0' }, 'the session is terminated')
	  if $end eq 'terminate';
	wait_until(sub { $admin->query("SELECT state FROM redlock_locks WHERE resource = '$end'") eq 'lost' }, 'the lease is lost')
	  if $end eq 'quit';
	$s->quit;
	wait_until(sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE resource = '$end'") eq '0' }, "$end: the lock is gone");
	wait_until(sub { $admin->query("SELECT count(*) FROM pg_class WHERE relname = '${end}_scratch'") eq '0' }, "$end: so is the temporary table");
	unlike(slurp_file($host->logfile), qr/ FATAL: .*redlock "$end" was lost before the commit/, "$end: no commit fails at the exit");
}

# ---- without a broker, the session's own alarm reports the loss, after an alarm in vain ----

{
	my $s = session($host);
	my $broker = broker_pid($host);

	$s->query("SELECT redlock_acquire('renewed', scope => 'session', ttl => '2 s')");
	$s->query('SELECT pg_sleep(5)');
	is($s->query("SELECT redlock_check('renewed') > '0'"), 't', 'a lease was renewed for longer than its ttl');
	kill 'STOP', $broker;
	$s->send('SELECT pg_sleep(120)');
	is_told($s, 'renewed', 'its loss is told when the broker hangs');
	kill 'CONT', $broker;
	$s->quit;
}

# ---- the wall clock is set back, and forward ----

# The wall clock affects neither the report of a loss nor the wait for a lock, with either limit.
foreach my $step (-600, 3600)
{
	my ($s, $holder, @waiters) = map { session($host) } 1 .. 4;
	my @limits = ('wait', 'lock_timeout');
	my @began;

	$holder->query("SELECT redlock_acquire('$_', scope => 'session')") foreach @limits;
	$waiters[1]->query("SET lock_timeout = '3 s'");
	foreach my $i (0, 1)
	{
		my $wait = $limits[$i] eq 'wait' ? "wait => '3 s', " : '';

		# on a clock without steps
		$began[$i] = clock_gettime(CLOCK_MONOTONIC);
		$waiters[$i]->send("SELECT redlock_acquire('$limits[$i]', $wait scope => 'session')");
	}
	wait_until(sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE state = 'queued'") eq '2' },
		"two sessions wait ($step s)");
	$s->query("SELECT redlock_acquire('clock', scope => 'session', hold_at_most => '2 s')");
	write_mapped($offset, $step);
	$s->send('SELECT count(*) FROM generate_series(1, 100000000000)');
	is_told($s, 'clock', "the clock is set by $step s");
	foreach my $i (0, 1)
	{
		my $result = $waiters[$i]->result;
		my $took = clock_gettime(CLOCK_MONOTONIC) - $began[$i];

		is("$result->{state} $result->{message}",
			qq(55P03 could not acquire redlock "$limits[$i]" within 3000 ms ($limits[$i])),
			"a wait ends, and by its $limits[$i], when the clock is set by $step s");
		cmp_ok($took, '>=', 3, 'not sooner');
	}
	write_mapped($offset, 0);
	$_->quit foreach $s, $holder, @waiters;
}

# ---- the broker knows of the loss before the validity would have ended ----

my $s = session($host);
my $began = time;
$s->query("SELECT redlock_acquire('early', scope => 'session', ttl => '12 s')");
my $valid_s = $s->query("SELECT extract(epoch FROM redlock_check('early'))");
$_->cli('SET', 'redlock:early', 'somebody') foreach @nodes;
$s->send('SELECT count(*) FROM generate_series(1, 100000000000)');
is_told($s, 'early', 'a lease that the nodes gave to another');
cmp_ok(time - $began, '<', $valid_s, 'is told while it would have been valid');
is($admin->query("SELECT state FROM redlock_locks WHERE resource = 'early'"), 'lost', 'and shown as lost');
$s->quit;
$_->cli('DEL', 'redlock:early') foreach @nodes;

# The session asks for the lock, and is stopped before the nodes answer.
sub ask_and_stop
{
	my ($s, $name, $sql) = @_;

	$_->pause foreach @nodes;
	$s->send($sql);
	wait_until(sub { $admin->query("SELECT state FROM redlock_locks WHERE resource = '$name'") eq 'waiting' }, 'it is asked for');
	my $pid = $s->pid;
	wait_until(sub { $admin->query("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Extension' }, 'its session waits');
	kill 'STOP', $pid;
	$_->resume foreach @nodes;
	return;
}

# ---- a lease has ended before its session sees the grant ----

$s = session($host);
my $pid = $s->pid;
my $broker = broker_pid($host);
$host->append_conf('postgresql.conf', "redlock.node_timeout = '30s'");
$host->reload;
$host->poll_query_until('postgres', 'SHOW redlock.node_timeout', '30s') or die 'no reload';
ask_and_stop($s, 'late', "SELECT redlock_acquire('late', scope => 'session', ttl => '1 s')");
wait_until(sub { $admin->query("SELECT state FROM redlock_locks WHERE resource = 'late'") =~ /^(held|lost)$/ }, 'it is granted');
kill 'STOP', $broker;
my $other = 'SET redlock:late other NX PX 60000';
wait_until(sub { (grep { $_->cli(split ' ', $other) eq 'OK' || $_->cli('GET', 'redlock:late') eq 'other' } @nodes) == 3 },
	'its keys have expired, and another has it');
kill 'CONT', $pid;
my $result = $s->result;
is($result->{state}, '40001', 'its session does not get it');
like($result->{message}, qr/was lost right after it was granted/, 'and is told why');
kill 'CONT', $broker;
$s->quit;

# ---- no hand-over of a lease that is nearly over ----

# The session sees the grant late.  The stopped broker does not renew the lease.
$s = session($host);
my $next = session($host);
$pid = $s->pid;
ask_and_stop($s, 'over', "SELECT redlock_acquire('over', scope => 'session', ttl => '10 s') > 0;\nSELECT redlock_release('over')");
wait_until(sub { $admin->query("SELECT state FROM redlock_locks WHERE resource = 'over'") eq 'held' }, 'it is granted');
kill 'STOP', $broker;
$next->send("SELECT redlock_acquire('over', scope => 'session', ttl => '10 s') > 0");
wait_until(sub { $admin->query("SELECT valid_for < '4.5 s' FROM redlock_locks WHERE resource = 'over' AND state = 'held'") eq 't' },
	'it is nearly over');
kill 'CONT', $pid;
is($s->result->{out}, "t\nt", 'the session gets and releases the lock');
wait_until(sub { $admin->query("SELECT state FROM redlock_locks WHERE resource = 'over' AND pid = " . $next->pid) eq 'waiting' },
	'the next one asks the nodes');
kill 'CONT', $broker;
is($next->result->{out}, 't', 'and has a lease of its own');
$_->quit foreach $s, $next;

# ---- a request is cancelled after the grant, before its session sees the grant ----

# No session held the lock, so hold_at_least does not keep the key.
$s = session($host);
$pid = $s->pid;
ask_and_stop($s, 'kept', "SELECT redlock_acquire('kept', scope => 'session', ttl => '60 s', hold_at_least => '10 min')");
wait_until(sub { $admin->query("SELECT count(*) FROM redlock_stats WHERE locks > 0") eq '1' && key_count('redlock:kept', @nodes) == 3 },
	'it is granted');
kill 'INT', $pid;
kill 'CONT', $pid;
is($s->result->{state}, '57014', 'its session is cancelled');
wait_until(sub { key_count('redlock:kept', @nodes) == 0 }, 'and leaves no key');
is($admin->query("SELECT redlock_try('kept', scope => 'session') AND redlock_release('kept')"), 't', 'others can have the lock');
$s->quit;

# ---- a try and lock_timeout, when the broker does not answer ----

$host->append_conf('postgresql.conf', "redlock.node_timeout = '300ms'");
$host->reload;
$host->poll_query_until('postgres', 'SHOW redlock.node_timeout', '300ms') or die 'no reload';
kill 'STOP', $broker;
$s = session($host);
$s->query("SET lock_timeout = '300 ms'");
foreach my $call ("redlock_try('stopped')", "redlock_acquire('stopped', wait => '0')", "redlock_acquire('stopped', wait => '10 min')")
{
	$result = $s->run("SELECT $call");
	is("$result->{state} $result->{message}", '55000 the redlock broker has not asked for "stopped" in time',
		"$call ends by lock_timeout, and is not called busy");
}

# Each call fails in a session of its own.  %s in a call is the name of a lock, different for each
# call.
sub fail_with
{
	my ($error, $description, @calls) = @_;
	my @sessions = map { session($host) } @calls;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$sessions[$_]->send(sprintf $calls[$_], "call $_") foreach 0 .. $#calls;
	foreach my $i (0 .. $#calls)
	{
		my $result = $sessions[$i]->result;

		is("$result->{state} $result->{message}", sprintf("55000 $error", "call $i"),
			sprintf $description, sprintf $calls[$i], "call $i");
		$sessions[$i]->quit;
	}
	return;
}

# without a limit set by the caller
$s->query('RESET lock_timeout');
my @calls = ("SELECT redlock_try('%s')", "SELECT redlock_acquire('%s', wait => '0')",
	"SELECT redlock_acquire('%s')", "CALL redlock_run('%s', 'SELECT 1')", "CALL redlock_run('%s', 'SELECT 1', wait => NULL)");
fail_with('the redlock broker has not asked for "%s" in time', '%s ends, and is neither busy nor skipped', @calls);
kill 'CONT', $broker;
is($s->query("SELECT redlock_try('stopped', scope => 'session')"), 't', 'the lock is free when it goes on');
is($s->query("SELECT redlock_try('call ' || n, scope => 'session') FROM generate_series(0, 4) n"), join("\n", ('t') x 5),
	'the locks of the failed calls are free, too');
$s->quit;

# without any broker
$host->append_conf('postgresql.conf', 'max_worker_processes = 0');
$admin->quit;
$host->restart;
fail_with('the redlock broker is not running', 'without a broker, %s says so',
	@calls[ 0 .. 3 ], "SELECT redlock_acquire('%s', wait => '1 s')", "CALL redlock_run('%s', 'SELECT 1', wait => '1 s')");
$s = session($host);
# more calls than entries: without a broker, no entry gets free again
is($s->query(<<'SQL'), '2000', 'which is said any number of times');
CREATE FUNCTION without_broker(times int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	told int := 0;
BEGIN
	FOR i IN 1 .. times LOOP
		BEGIN
			PERFORM redlock_acquire('none ' || i, wait => '1 ms');
		EXCEPTION WHEN object_not_in_prerequisite_state THEN
			told := told + (SQLERRM = 'the redlock broker is not running')::int;
		END;
	END LOOP;
	RETURN told;
END
$$;
SELECT without_broker(2000)
SQL
$s->quit;
done_testing();
