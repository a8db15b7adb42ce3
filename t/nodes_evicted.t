# Nodes that evicted keys while a host did not look.
#
# Protects from: a second holder, when a host that hung, or was cut off, asks nodes that evicted the
# holder's key, after their settings were mended; a request that overtakes the look at the node.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $conf = "redlock.ttl = '60s'\nredlock.max_ttl = '60s'";
my (@nodes, @evicting);

sub quarantined
{
	my ($host) = @_;

	return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'quarantined' AND last_error ~ 'evict|maxmemory-policy'");
}

# Evicts the key on two nodes, and mends their settings.
sub evict
{
	foreach my $node (@evicting)
	{
		$node->cli(qw(CONFIG SET maxmemory-policy volatile-ttl));
		$node->cli(qw(CONFIG SET maxmemory 1));
	}
	wait_until(sub { key_count("redlock:job", @nodes) == 1 }, 'two nodes have evicted the key');
	foreach my $node (@evicting)
	{
		$node->cli(qw(CONFIG SET maxmemory 0));
		$node->cli(qw(CONFIG SET maxmemory-policy noeviction));
	}
	return;
}

foreach my $cut (0, 1)
{
	my $name = $cut ? 'cut' : 'hung';

	@nodes    = redis_nodes(3);
	@evicting = @nodes[ 1, 2 ];
	my ($host_a, $host_b) = map { redlock_cluster("${name}_$_", nodes => \@nodes, conf => $conf) } qw(a b);
	my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
	my $broker = broker_pid($host_a);

	$on_b->query("SELECT redlock_acquire('job', scope => 'session')");
	kill 'STOP', $broker;
	evict();
	if ($cut)
	{
		$_->cli(qw(CLIENT KILL TYPE normal)) foreach @evicting;
	}
	else
	{
		sleep 6; # time is the subject: the next look is due
	}
	$on_a->send("SELECT redlock_try('job')");
	kill 'CONT', $broker;
	my $result = $on_a->result;
	is($result->{state}, '08006', "a host that was $name does not get the lock");
	like($result->{detail}, qr/@{[$_->address]}: it has evicted keys, and perhaps leases/, 'and is told why') foreach @evicting;
	like($on_b->query("SELECT redlock_check('job')"), qr/^00:00:/, 'its holder goes on');
	is(quarantined($host_a), 2, 'the nodes are in quarantine');
	$_->quit foreach $on_a, $on_b;
	$_->stop foreach $host_a, $host_b;
	$_->kill9 foreach @nodes;
}

done_testing();
