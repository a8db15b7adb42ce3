# Hosts with different settings refuse.  A refusing host neither stops nor hides another host.
#
# Protects from: two holders of a lock, because entries of refusing hosts fill a newcomer's table of
# conflicts; a list of nodes without a mark for as long as a host refuses, so that hosts refuse
# their own later list; a host refusing because of a host that is gone, for as long as a third host
# refuses.
#
# Takes over a minute: a dead host stays in the lists for 45 s.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

sub state_on { return psql_result($_[0], "SELECT redlock_try('tried')")->{state}; }

# Hosts with different settings refuse.
sub write_refusers
{
	my ($node) = @_;
	return write_hosts($node, standing => 2, max_ttl => 50000, nodes => [ map { [ 1, "p$_" ] } 1 .. 3 ]);
}

# ---- a newcomer whose own node names many refusing hosts ----

my @nodes = redis_nodes(5);
my $first = redlock_cluster('first', nodes => [ @nodes[ 1 .. 3 ] ]);
my $holder = session($first);
wait_until(sub { $holder->run("SELECT redlock_acquire('tried', scope => 'session')")->{state} eq '' }, 'the first host has a lock');
write_refusers($nodes[0]);
my $newcomer = redlock_cluster('newcomer', nodes => [ @nodes[ 0, 1, 4 ] ]);
my %states;
foreach my $time (1 .. 20)
{
	write_refusers($nodes[0]);
	wait_until(sub { my $state = state_on($newcomer); $states{$state}++; return $state ne '08006'; }, 'an answer');
}
is(join(' ', grep { $_ ne '08006' } sort keys %states), '55000', 'a newcomer finds the first host behind many hosts that refuse');
is($holder->query("SELECT redlock_check('tried') > '0'"), 't', 'which holds its lock');
$holder->quit;
$_->stop foreach $newcomer, $first;

# ---- a host that is gone, and a host that refuses ----

my $a = redlock_cluster('a', nodes => [ @nodes[ 0 .. 2 ] ]);
wait_until(sub { state_on($a) eq '' }, 'a takes locks', 90);
my $refuser = redlock_cluster('refuser', nodes => [ @nodes[ 0 .. 2 ] ], conf => "redlock.max_ttl = '50s'");
is(state_on($refuser), '55000', 'a host with another max_ttl refuses');
my $b = redlock_cluster('b', nodes => [ @nodes[ 2 .. 4 ] ], conf => 'redlock.on_disagreement = warn');
wait_until(sub { state_on($a) eq '55000' }, 'a is stopped by a host that warns', 60);
kill 'STOP', broker_pid($a);
$b->stop;
replace_broker($a);
wait_until(sub { state_on($a) eq '' }, 'a goes on with another broker, when the host that warns is gone', 90);
is(state_on($refuser), '55000', 'while a host refuses');

# ---- marks of lists ----

sub has_list
{
	my ($host, $count) = @_;
	ok($host->poll_query_until('postgres', "SELECT count(*) = $count AND bool_and(list = 'now') FROM redlock_nodes"), "a list of $count nodes");
	return;
}

# The number of nodes in the mark at this node.
sub marked_count
{
	my ($node) = @_;
	return $node->cli('EVAL', q{
		return string.match(redis.call('GET', 'redlock:\0hosts\0mark:redlock:') or '', '^%d+%z%x+%z(%d+)%z') or ''}, 0);
}

my @all = redis_nodes(5);
set_node_lists($a, [ @nodes[ 0 .. 2 ] ], \@all);
ok($a->poll_query_until('postgres', "SELECT settled FROM redlock_hosts WHERE self"), 'two lists');
set_node_lists($a, \@all, []);
has_list($a, 5);
$refuser->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@all) . "'");
$refuser->restart;
wait_until(sub { state_on($refuser) eq '55000' }, 'a host refuses at the new nodes', 60);
foreach my $count (4, 3)
{
	my @fewer = @all[ 0 .. $count - 1 ];

	set_node_lists($a, \@fewer, []);
	has_list($a, $count);
	wait_until(sub { marked_count($fewer[0]) eq $count }, 'its mark', 60);
	wait_until(sub { state_on($a) eq '' }, 'a takes locks by it');
}

done_testing();
