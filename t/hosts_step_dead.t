# A host dies just before the host leaves one of two lists of nodes, and nodes restart.
#
# Protects from: other hosts getting no locks for 45 s, until the nodes have forgotten the dead host.
# After 31 s even a host that hangs takes no locks.
#
# Takes half a minute: a host counts as silent after 31 s.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my @ways  = map { HostileNode->new($_) } @nodes; # host b knows the nodes by other addresses
my @fewer = (0 .. 3);
my $a     = redlock_cluster('a', nodes => \@ways, conf => "redlock.node_timeout = '19s'");
my $b     = redlock_cluster('b', nodes => \@nodes);

# The step in the host's entry at the node, 0: none.
sub step_at
{
	my ($host_id, $node) = @_;
	return $node->cli('EVAL', q{
		local facts = redis.call('HGET', 'redlock:\0hosts\0facts', ARGV[1]) or ''
		local config = redis.call('GET', 'redlock:\0hosts\0config:' .. string.sub(facts, 1, 40)) or ''
		return string.match(config, '(%d)%z$') or '?'}, 0, $host_id);
}

sub is_settled { return $_[0]->poll_query_until('postgres', 'SELECT bool_and(settled) FROM redlock_hosts'); }

set_node_lists($a, \@ways,  [ @ways[@fewer] ]);
set_node_lists($b, \@nodes, [ @nodes[@fewer] ]);
ok(is_settled($_), $_->name . ' uses two lists') foreach $a, $b;
my $id = host_id($a);
is(step_at($id, $nodes[1]), '0', 'host a announces no step');

$_->obey([ '^EVAL', 'delay', '3' ]) foreach @ways;
set_node_lists($a, [ @ways[@fewer] ], []);
wait_until(sub { step_at($id, $nodes[1]) eq '1' }, 'host a announces that it leaves the longer list');
$a->kill9;
$_->stop foreach @ways;
$nodes[$_]->restart foreach 0, 2;

# Host b knows other processes of two of the nodes than host a did.  So the two nodes may be two
# other servers, where host a could get locks by the shorter list.
restart_with($b, nodes => \@nodes);
my %states;
wait_until(sub { my $state = psql_result($b, "SELECT redlock_try('tried')")->{state}; $states{$state}++; return $state eq ''; },
	'host b takes locks', 60);
isnt(last_beat($id, $nodes[1]), '', 'before the nodes have forgotten host a');
is(join(' ', sort keys %states), ' 08006', 'but waits while host a may only hang');

done_testing();
