# CALL redlock_run_all on two hosts: records of runs that lose or do not get a lock.
#
# Protects from: an unnoticed loss of a later lock, or a loss that the record blames on the first
# lock; a skipped run naming the wrong lock; a run holding a lock while waiting in vain for another
# lock.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;

sub last_run
{
	my ($columns) = @_;
	return $host_b->safe_psql('postgres', "SELECT $columns FROM redlock_runs ORDER BY started DESC LIMIT 1");
}

# ---- another host holds one of the locks ----

$on_a->query("SELECT redlock_acquire('m', scope => 'session')");
my $result = $on_b->run("CALL redlock_run_all(ARRAY['z', 'm', 'a'], 'SELECT 1', record => true)");
like($result->{err}, qr/NOTICE:.* redlock "m" is held by another; skipped\n/, 'the notice names the lock that is not free');
is(last_run('resource, status, token'), 'z|skipped|', 'the record has the first name as given');
like(last_run('message'), qr/^Redlock "m" is held by another\. The lock was granted to: cluster="a" /, '... and tells which lock is held, and by whom');
wait_until(sub { key_count('redlock:a', @nodes) + key_count('redlock:z', @nodes) == 0 }, 'no other lock stays');

$on_b->send("CALL redlock_run_all(ARRAY['z', 'm', 'a'], 'SELECT redlock_check(r) FROM unnest(ARRAY[''a'', ''m'', ''z'']) r', wait => '1 min', record => true)");
wait_until(sub { $host_b->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'm' AND state = 'waiting' AND held_by IS NOT NULL") == 1 }, 'with a longer wait, the run waits');
$on_a->query("SELECT redlock_release('m')");
is($on_b->result->{err}, '', '... and runs');
is(last_run('resource, status, token > 0'), 'z|succeeded|t', '... and is recorded');
is($on_a->query("SELECT status FROM redlock_last_run('z')"), 'succeeded', 'the other host learns of the run, by the first name');
is($on_a->query("SELECT status FROM redlock_last_run('m')"), '', '... and by no other name');

# ---- a later lock is lost ----

$on_b->send("CALL redlock_run_all(ARRAY['a', 'm', 'z'], 'SELECT pg_sleep(600)', record => true)");
wait_until(sub { $host_b->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE status = 'running'") == 1 }, 'a run is under way');
$on_a->query("SELECT redlock_force_release('m')");
$result = $on_b->result;
is($result->{state}, '57014', 'the loss of any lock cancels the command');
like($result->{message}, qr/redlock "m"/, '... and the error names the lock');
wait_until(sub { last_run('status') eq 'lost' }, 'the run is recorded as lost');
is(last_run('resource'), 'a', '... under the first name');
like(last_run('message'), qr/redlock "m"/, '... and the message names the lost lock');
wait_until(sub { key_count('redlock:a', @nodes) + key_count('redlock:z', @nodes) == 0 }, 'the other locks are released');

# the command fails by an error of its own after the loss
my $gate = session($host_b);
$gate->query('SELECT pg_advisory_lock(1)');
$on_b->query("SET redlock.on_loss = 'error'");
$on_b->send("CALL redlock_run_all(ARRAY['a', 'm'], 'SELECT pg_advisory_xact_lock(1); SELECT 1 / 0', record => true)");
wait_until(sub { $host_b->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE status = 'running'") == 1 }, 'a run is under way');
$on_a->query("SELECT redlock_force_release('m')");
wait_until(sub { $host_b->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'm'") eq 'lost' }, '... and loses a lock');
$gate->query('SELECT pg_advisory_unlock(1)');
is($on_b->result->{state}, '22012', 'the command fails by itself');
wait_until(sub { last_run('status') eq 'lost' }, '... and the run is recorded as lost');
like(last_run('message'), qr/^division by zero\. The lease on redlock "m" was lost\. /, '... with both reasons, and the name of the lost lock');

$_->quit foreach $on_a, $on_b, $gate;
done_testing();
