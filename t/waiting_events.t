# The wait events of redlock_pg in pg_stat_activity.  (The broker has no row there.)
#
# Protects from: a wait for another host that looks like a wait for the nodes, and the reverse; a
# session in the queue of its server that looks like a waiter for another host; an event staying for
# a second after its cause has gone.
#
# Servers before PostgreSQL 17 have one event, "Extension", for all waits of extensions.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '60s'\nredlock.node_timeout = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $named = $host_b->pg_version >= 17;
my ($on_a, $on_b, $also_b) = (session($host_a), session($host_b), session($host_b));

sub waits
{
	my ($session, $event, $test) = @_;
	my $pid = $session->pid;
	my $is = 'Extension|' . ($named ? $event : 'Extension');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub { $host_b->safe_psql('postgres', "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = $pid") eq $is },
		"$event: $test");
	return;
}

sub cancel
{
	my ($session) = @_;

	$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->result;
	return;
}

# ---- another host ----

$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
$on_b->send("SELECT redlock_acquire('job', scope => 'session') > 0");
waits($on_b, 'RedlockOtherHost', 'a session waits for a lock of another host');
$also_b->send("SELECT redlock_acquire('job')");
wait_until(
	sub { $host_b->safe_psql('postgres', "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = " . $also_b->pid) eq 'Lock|userlock' },
	'Lock/userlock: the next session of this host queues in the lock manager');
cancel($also_b);
$on_a->query("SELECT redlock_release('job')");
is($on_b->result->{out}, 't', 'the first session gets the lock');
$on_b->query("SELECT redlock_release('job')");

# several locks: the host waits for the second
$on_a->query("SELECT redlock_acquire('second', scope => 'session')");
$on_b->send("SELECT redlock_acquire_all(ARRAY['first', 'second'])");
waits($on_b, 'RedlockOtherHost', 'a session waits for one of several locks');
cancel($on_b);
$on_a->query("SELECT redlock_release('second')");

# ---- a permit ----

$on_a->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)");
my $also_a = session($host_a);
$also_a->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)");
$on_b->send("SELECT redlock_acquire('pool', permits => 2)");
waits($on_b, 'RedlockPermit', 'a session waits for a permit');
my $next_a = session($host_a);
cancel($on_b);
$next_a->send("SELECT redlock_acquire('pool', permits => 2)");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource = 'pool' AND state IN ('queued', 'waiting')") == 1 },
	'a session of the other host is in the queue');
$on_b->send("SELECT redlock_acquire('pool', permits => 2)");
waits($on_b, 'RedlockPermit', 'a session waits for its place in the queue');
cancel($on_b);
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $next_a->pid . ')');
$next_a->result;
$_->query('SELECT redlock_release_all()') foreach $on_a, $also_a;

# ---- a detached lock of this server ----

my $token = $also_b->query("SELECT redlock_acquire('detached', scope => 'detached', hold_at_most => '10 min')");
$on_b->send("SELECT redlock_acquire('detached')");
waits($on_b, 'RedlockQueue', 'a session waits for a detached lock of its server');
cancel($on_b);

# ---- the nodes ----

my $short = $also_b->query("SELECT redlock_acquire('short', scope => 'detached', hold_at_most => '16 s', ttl => '16 s')");
$_->pause foreach @nodes;
$on_b->send("SELECT redlock_acquire('other', wait => '10 min')");
waits($on_b, 'RedlockNodes', 'a session waits for the answers of the nodes');
cancel($on_b);
$on_b->send("SELECT * FROM redlock_holder('other')");
waits($on_b, 'RedlockInspect', 'a session asks the nodes about a lock');
cancel($on_b);
# after half of the ttl a caller needs the renewal that is due
wait_until(sub { $also_b->query("SELECT redlock_check('short', $short) < '7 s'") eq 't' }, 'half of the ttl is over');
$on_b->send("SELECT redlock_extend('short', $short, '10 min')");
waits($on_b, 'RedlockExtend', 'a session waits for a renewal');
cancel($on_b);
$_->resume foreach @nodes;

# answers change the event at once; silence of the nodes changes the event within a second
$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
$on_b->send("SELECT redlock_acquire('job', wait => '10 min')");
waits($on_b, 'RedlockOtherHost', 'the nodes answer again');
cancel($on_b);

# ---- the list of hosts ----

my $broker = broker_pid($host_b);
kill 'STOP', $broker;
$on_b->send('SELECT count(*) FROM redlock_hosts');
waits($on_b, 'RedlockHosts', 'a session asks the broker for the hosts');
kill 'CONT', $broker;
is($on_b->result->{out}, '2', 'the broker answers');

# the server knows the names
is($host_b->safe_psql('postgres', "SELECT string_agg(name, ' ' ORDER BY name) FROM pg_wait_events WHERE name LIKE 'Redlock%'"),
	'RedlockBrokerMain RedlockExtend RedlockHosts RedlockInspect RedlockNodes RedlockOtherHost RedlockPermit RedlockQueue', 'pg_wait_events')
  if $named;

$_->quit foreach $on_a, $also_a, $next_a, $on_b, $also_b;
done_testing();
