# Nodes that evicted keys while a host did not look.
#
# Protects from: a second holder, when a host that hung, or was cut off, asks nodes that evicted the
# holder's key, after their settings were mended; a request that overtakes the look at the node; a
# quarantine for evictions that were known.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes  = redis_nodes(3);
my $conf   = "redlock.ttl = '60s'\nredlock.max_ttl = '60s'";
my ($host_a, $host_b) = map { redlock_cluster("evicted_$_", nodes => \@nodes, conf => $conf) } qw(a b);
my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;
my @evicting = @nodes[ 1, 2 ];
my $broker   = broker_pid($host_a);

sub quarantined
{
	my ($host) = @_;

	return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'quarantined' AND last_error ~ 'evict|maxmemory-policy'");
}

# Evicts the key on two nodes, and mends their settings when host b has noticed.
sub evict
{
	my ($name) = @_;

	foreach my $node (@evicting)
	{
		$node->cli(qw(CONFIG SET maxmemory-policy volatile-ttl));
		$node->cli(qw(CONFIG SET maxmemory 1));
	}
	wait_until(sub { key_count("redlock:$name", @nodes) == 1 }, 'two nodes have evicted the key');
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
	my $what = $cut ? 'a host that was cut off' : 'a host that hung';

	$on_b->query("SELECT redlock_acquire('$name', scope => 'session')");
	kill 'STOP', $broker;
	evict($name);
	if ($cut)
	{
		$_->cli(qw(CLIENT KILL TYPE normal)) foreach @evicting;
	}
	else
	{
		sleep 6; # time is the subject: the next look is due
	}
	$on_a->send("SELECT redlock_try('$name')");
	kill 'CONT', $broker;
	my $result = $on_a->result;
	is($result->{state}, '08006', "$what does not get the lock");
	like($result->{detail}, qr/@{[$_->address]}: it has evicted keys, and perhaps leases/, 'and is told why') foreach @evicting;
	like($on_b->query("SELECT redlock_check('$name')"), qr/^00:00:/, 'its holder goes on');
	is(quarantined($host_a), 2, 'the nodes are in quarantine');
	if (!$cut)
	{
		$_->restart foreach $host_a, $host_b;
		$_->quit foreach $on_a, $on_b;
		($on_a, $on_b) = map { session($_) } $host_a, $host_b;
		wait_nodes_ready($_, 3) foreach $host_a, $host_b;
		$broker = broker_pid($host_a);
		is(quarantined($host_a) + quarantined($host_b), 0, 'a server that starts later does not know of the evictions');
	}
}

$_->quit foreach $on_a, $on_b;
done_testing();
