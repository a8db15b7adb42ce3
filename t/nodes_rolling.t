# Durable nodes restart in turn while one host holds a lock and another host waits.  Each node
# stays down until its key has expired.  The holder's broker is stopped, so the waiter asks the
# restarted node first.
#
# Protects from (invariant 16): a restarted node half won by the waiter, refusing the holder for
# good.  Once a majority has restarted, the lock would be lost, although at most one node was down
# at any time.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

my $ttl = 4;
my @nodes = redis_nodes(3);
my ($host_a, $host_b) = map { redlock_cluster($_, nodes => \@nodes) } qw(a b);
my ($holder, $waiter) = map { session($_) } $host_a, $host_b;

sub counter
{
	my ($node) = @_;
	return $node->cli('EVAL', q{return redis.call('GET', KEYS[1] .. '\0token')}, 1, 'redlock:job') || 0;
}

my $token = $holder->query("SELECT redlock_acquire('job', scope => 'session', ttl => '$ttl s')");
my $owner = substr($nodes[0]->cli('GET', 'redlock:job'), 0, 32);
$waiter->send("SELECT redlock_acquire('job', scope => 'session')");

my $round = 0;
foreach my $node (@nodes, $nodes[0])
{
	my $name = 'round ' . ++$round;
	my $counter = counter($node);
	my $broker = broker_pid($host_a);

	$node->kill9;
	sleep $ttl + 0.2; # the node's key expires
	kill 'STOP', $broker;
	$node->start;
	wait_until(sub { counter($node) > $counter }, "$name: the waiter asked the node that is back");
	kill 'CONT', $broker;
	wait_until(
		sub { 3 == grep { substr($_->cli('GET', 'redlock:job'), 0, 32) eq $owner } @nodes },
		"$name: each node has the holder's key again", $ttl);
	is($holder->run("SELECT redlock_check('job') > '0 s'")->{out}, 't', "$name: the lock is held");
}
ok(!$waiter->done, 'the waiter waits');
is($host_a->safe_psql('postgres', 'SELECT lost FROM redlock_stats'), 0, 'nothing was lost');
ok($holder->query("SELECT redlock_token('job')") == $token, 'the holder has its token still');
$holder->query("SELECT redlock_release('job')");
ok($waiter->result->{out} > $token, 'then the waiter gets the lock, with a later token');
$_->quit foreach $holder, $waiter;
done_testing();
