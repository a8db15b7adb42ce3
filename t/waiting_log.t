# Lines in the server log about long waits, with log_lock_waits.
#
# Protects from: a wait without its lines, or with the line of another lock; a line that names no
# holder, or blames nodes that were not asked; more than one line for a wait; lines although
# log_lock_waits is off; a line "acquired" after a wait in vain; a wait without the line of its end
# when another wait follows.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '60s'\nlog_lock_waits = on\ndeadlock_timeout = '100ms'\nlog_min_messages = log";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => "$conf\ncluster_name = 'a'");
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $also_a, $on_b, $also_b) = (map({ session($host_a) } 1, 2), map({ session($host_b) } 1, 2));

# The lines of a session's process about a lock, without times; "still waiting" with its DETAIL.
sub lines
{
	my ($session, $name) = @_;
	my $pid = $session->pid;
	my $log = slurp_file($host_b->logfile);
	my @found;

	push @found, defined $2 ? "$1: $2" : $1
	  while $log =~
	  /process $pid ([a-z ]+) redlock "$name" after \d+\.\d{3} ms\n(?:(?!.*LOG:).*DETAIL:  (.*)\n)?/g;
	return @found;
}

sub becomes
{
	my ($session, $name, $lines, $test) = @_;
	my @now;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { @now = lines($session, $name); @now == @$lines }, "$test: the lines are written") or diag(join "\n", @now);
	like($now[$_], $lines->[$_], "$test: line $_") foreach 0 .. $#$lines;
	return;
}

my $by_a = qr/^still waiting for: The lock was granted to: cluster="a" .* pid=@{[$on_a->pid]} /;

# ---- another host, on and off ----

$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
$on_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
becomes($on_b, 'job', [$by_a], 'a wait for another host');

# another wait begins: each wait has a line with the wait's own time
$on_a->query("SELECT redlock_acquire('next', scope => 'session')");
$also_b->send("SELECT redlock_acquire('next', scope => 'session') > 0");
becomes($also_b, 'next', [$by_a], 'a later wait');
is(scalar(lines($on_b, 'job')), 1, 'once for each wait');
my ($ms) = slurp_file($host_b->logfile) =~ /still waiting for redlock "job" after (\d+\.\d{3}) ms/;
cmp_ok($ms, '>=', 100, 'not before deadlock_timeout');
$on_a->query("SELECT redlock_release('job'), redlock_release('next')");
is($_->result->{out}, 't', 'the session gets the lock') foreach $on_b, $also_b;
becomes($on_b, 'job', [ $by_a, qr/^acquired$/ ], 'the end of the wait');
becomes($also_b, 'next', [ $by_a, qr/^acquired$/ ], 'the end of the later wait');
$_->query('SELECT redlock_release_all()') foreach $on_b, $also_b;

$on_a->query("SELECT redlock_acquire('job', scope => 'session'), redlock_acquire('quiet', scope => 'session')");
$on_b->query('SET log_lock_waits = off');
$on_b->send("SELECT redlock_acquire('quiet', scope => 'session') > 0");
$also_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
# the wait without a line is older
wait_until(sub { $host_b->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state = 'waiting'") == 2 }, 'both wait');
becomes($also_b, 'job', [$by_a], 'the other session logs its wait');
$on_a->query('SELECT redlock_release_all()');
is($_->result->{out}, 't', 'the session gets the lock') foreach $on_b, $also_b;
is(scalar(lines($on_b, 'quiet')), 0, 'with log_lock_waits off a session writes no line');
$on_b->query('SELECT redlock_release_all(); RESET log_lock_waits');

# ---- several locks: a wait for each ----

$on_a->query("SELECT redlock_acquire('one', scope => 'session'), redlock_acquire('two', scope => 'session')");
$on_b->send("SELECT cardinality(redlock_acquire_all(ARRAY['one', 'two'], scope => 'session')) = 2");
becomes($on_b, 'one', [$by_a], 'a wait for the first of two');
$on_a->query("SELECT redlock_release('one')");
becomes($on_b, 'two', [$by_a], 'then a wait for the second');
becomes($on_b, 'one', [ $by_a, qr/^acquired$/ ], 'the first wait has its end');
$on_a->query("SELECT redlock_release('two')");
is($on_b->result->{out}, 't', 'the session gets both');
becomes($on_b, 'two', [ $by_a, qr/^acquired$/ ], 'the second wait has its end');
$on_b->query('SELECT redlock_release_all()');

# ---- waits in vain ----

$on_a->query("SELECT redlock_acquire('vain', scope => 'session')");
is($on_b->run("SELECT redlock_acquire('vain', wait => '300 ms')")->{state}, '55P03', 'a wait ends by an error');
becomes($on_b, 'vain', [$by_a], 'an error has no line of an end');
$on_b->query("SELECT redlock_acquire('free'); CALL redlock_run('vain', 'SELECT 1', wait => '300 ms')");
becomes($on_b, 'vain', [ $by_a, $by_a, qr/^failed to acquire$/ ], 'a skipped run');
is(scalar(lines($on_b, 'free')), 0, 'a free lock has no line');
$on_a->query("SELECT redlock_release('vain')");

# ---- several locks: each is named in turn ----

$on_a->query("SELECT redlock_acquire('s1', scope => 'session')");
$also_a->query("SELECT redlock_acquire('s2', scope => 'session')");
$on_b->send("SELECT cardinality(redlock_acquire_all(ARRAY['s2', 's1', 's0'], scope => 'session'))");
becomes($on_b, 's1', [$by_a], 'several locks');
$on_a->query("SELECT redlock_release('s1')");
becomes($on_b, 's2', [qr/^still waiting for: The lock was granted to: .* pid=@{[$also_a->pid]} /], 'several locks, the next');
becomes($on_b, 's1', [ $by_a, qr/^acquired$/ ], 'several locks, the first');
$also_a->query("SELECT redlock_release('s2')");
is($on_b->result->{out}, '3', 'the session gets all locks');
is((lines($on_b, 's2'))[1], 'acquired', 'the last has its line');
$on_b->query('SELECT redlock_release_all()');

# ---- permits, a detached lock, the nodes ----

$_->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)") foreach $on_a, $also_a;
$on_b->send("SELECT redlock_acquire('pool', permits => 2) > 0");
becomes($on_b, 'pool', [qr/^still waiting for: All 2 permits of the lock are held/], 'a permit');
$on_a->query("SELECT redlock_release('pool')");
is($on_b->result->{out}, 't', 'the session gets the permit');
is(join(',', map { s/:.*//r } lines($on_b, 'pool')), 'still waiting for,acquired', 'both lines once');

my $token = $also_b->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
$on_b->send("SELECT redlock_acquire('detached') > 0");
becomes($on_b, 'detached', [qr/^still waiting for: The lock has been detached on this server \(database "postgres"/], 'a detached lock');
$also_b->query("SELECT redlock_release('detached', $token)");
is($on_b->result->{out}, 't', 'the session gets the lock');

$_->pause foreach @nodes[ 0, 1 ];
$on_b->send("SELECT redlock_acquire('silent', wait => '10 min') > 0");
becomes($on_b, 'silent', [qr/^still waiting for: No usable answer from: 127\.0\.0\.1:\d+/], 'silent nodes');
$_->resume foreach @nodes[ 0, 1 ];
is($on_b->result->{out}, 't', 'the session gets the lock');
is((lines($on_b, 'silent'))[1], 'acquired', 'the wait for the nodes has its line');

kill 'STOP', broker_pid($host_b);
$on_b->send("SELECT redlock_acquire('unasked', wait => '10 min') > 0");
becomes($on_b, 'unasked', [qr/^still waiting for: The broker has not asked the nodes yet\.$/], 'a stopped broker: no node is blamed');
kill 'CONT', broker_pid($host_b);
is($on_b->result->{out}, 't', 'the session gets the lock');

# The queue of this server: PostgreSQL's own lines.
$also_b->query("SELECT redlock_acquire('local', scope => 'session')");
$on_b->send("SELECT redlock_acquire('local') > 0");
my $pid = $on_b->pid;
wait_until(sub { slurp_file($host_b->logfile) =~ /process $pid still waiting for ExclusiveLock on user lock/ }, 'PostgreSQL logs a wait in its lock manager');
$also_b->query("SELECT redlock_release('local')");
is($on_b->result->{out}, 't', 'the session gets the lock');
is(scalar(lines($on_b, 'local')), 0, 'without a line of ours');

# with client_min_messages = log the client gets the line without the DETAIL, as from PostgreSQL
$on_a->query("SELECT redlock_acquire('told', scope => 'session')");
$on_b->send("SET client_min_messages = log; SELECT redlock_acquire('told', wait => '300 ms')");
like($on_b->result->{err}, qr/LOG:.*process $pid still waiting for redlock "told" after \d+\.\d{3} ms\n(?!.*DETAIL)/, 'a client with client_min_messages = log');

$_->quit foreach $on_a, $also_a, $on_b, $also_b;
done_testing();
