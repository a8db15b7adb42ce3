# Looks and forced releases on a host in a configuration conflict.
#
# Protects from: a forced release reported as done, while the holder goes on at nodes unknown to
# this host; a lock counting as free because this host asks other nodes.

use strict;
use warnings;

use RedlockTest;
use Test::More;

# the long ttl keeps renewals out of the test
my @nodes = redis_nodes(5);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $on_b) = map { session($_) } $host_a, $host_b;

sub set_nodes
{
	my ($urls) = @_;
	$host_b->safe_psql('postgres', "ALTER SYSTEM SET redlock.nodes = '$urls'");
	$host_b->reload;
	return;
}

sub state_of_try
{
	return psql_result($host_b, "SELECT redlock_try('other')")->{state};
}

$on_a->query("SELECT redlock_acquire('job', scope => 'session')");
set_nodes($nodes[0]->url);
wait_until(sub { state_of_try() eq '55000' }, 'host b has other nodes, and takes no locks');

is($on_b->query("SELECT state, cluster_name FROM redlock_holder('job')"), 'held|a', 'the node of host b tells the holder');
my $result = $on_b->run("SELECT redlock_force_release('job')");
is($result->{state}, '55000', 'a forced release is refused');
is($result->{message}, 'redlock "job" is not released by force, since another host may hold the lock at other nodes', 'the error says so');
like($result->{detail}, qr/^Its id is \Q${\host_id($host_a)}\E\. .*no node in common/, 'and tells the conflict');
is($on_a->query("SELECT redlock_check('job') > '0'"), 't', 'the holder keeps its lock');
is(key_count('redlock:job', @nodes), 5, 'and its keys');

$nodes[0]->cli('DEL', 'redlock:job');
is($on_b->query("SELECT state FROM redlock_holder('job')"), 'unknown', 'without a key at its node, host b does not know');
foreach my $call ('redlock_is_locked', 'redlock_ask_release')
{
	$result = $on_b->run("SELECT $call('job')");
	is($result->{state}, '08006', "$call fails");
	like($result->{detail}, qr/no node in common/, 'and tells the conflict');
}

set_nodes(join ',', map { $_->url } @nodes);
wait_until(sub { state_of_try() eq '' }, 'the hosts agree again');
like($on_b->query("SELECT redlock_force_release('job')"), qr/^cluster="a"/, 'a forced release');
wait_until(sub { $on_a->run("SELECT redlock_check('job')")->{state} eq '40001' }, 'is a loss for the holder');

$_->quit foreach $on_a, $on_b;
done_testing();
