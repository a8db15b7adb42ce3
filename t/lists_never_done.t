# A change by redlock.nodes_next comes to its end: with marks of earlier changes, and for hosts that
# call the nodes by different names while a node is away or full.
#
# Protects from: hosts in two lists for ever, because the nodes to come were left long ago; hosts
# that wait for a node that both have met, since they call the node by different names; hosts that
# take no locks, because a node has missed the mark of a step, and perhaps restarted since.
#
# Takes over a minute: hosts leave nodes step by step.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @first = redis_nodes(3);
my @second = redis_nodes(3);
my @third = redis_nodes(3);
my $conf = "redlock.max_ttl = '30s'\nredlock.node_timeout = '200ms'";

sub is_so { return $_[0]->safe_psql('postgres', $_[1]) eq 't'; }
sub try_on { return psql_result($_[0], "SELECT redlock_try('job')"); }

# Host b calls the nodes by another name.
sub named
{
	my ($host, @nodes) = @_;
	my @urls = map { $_->url } @nodes;

	return $host->name eq 'b' ? [ map { s/127\.0\.0\.1/localhost/r } @urls ] : \@urls;
}

sub has_both
{
	my ($host) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(
		sub { is_so($host, "SELECT unsettled = 0 AND (SELECT count(*) FROM redlock_nodes WHERE list = 'next' AND state = 'ready') = 3 FROM redlock_stats") },
		$host->name . ' has both lists');
}

sub has_one
{
	my ($host, $what, $node) = @_;
	my $listed = named($host, $node)->[0] =~ s/^redis:\/\///r;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(
		sub { is_so($host, "SELECT count(*) = 3 AND bool_and(list = 'now') AND bool_or(node LIKE '%$listed') FROM redlock_nodes WHERE list <> 'leaving'") },
		$what, 60);
}

# ---- nodes that were left before the last change ----

my $alone = redlock_cluster('alone', nodes => \@first, conf => $conf);
my @lists = (\@first, \@second, \@third, \@first);
foreach my $change (1 .. 3)
{
	my ($from, $to) = @lists[ $change - 1, $change ];

	set_node_lists($alone, $from, $to);
	has_both($alone);
	set_node_lists($alone, $to, []);
	has_one($alone, "change $change comes to its end", $to->[0]);
}
is(try_on($alone)->{state}, '', 'the host takes locks by nodes that it has left before');
$alone->stop;

# ---- hosts that call the nodes by different names ----

my %host = map { $_ => redlock_cluster($_, nodes => \@first, conf => $conf) } qw(a b);
set_node_lists($host{b}, named($host{b}, @first), []);
wait_until(sub { is_so($host{b}, "SELECT count(*) = 3 AND bool_and(state = 'ready' AND node LIKE '%localhost%') FROM redlock_nodes WHERE list = 'now'") },
	'host b has other names');
foreach my $host (@host{qw(a b)})
{
	set_node_lists($host, named($host, @first), named($host, @second));
	has_both($host);
}
$second[2]->pause;
foreach my $host (@host{qw(a b)})
{
	wait_until(sub { is_so($host, "SELECT count(*) = 1 FROM redlock_nodes WHERE list = 'next' AND state <> 'ready'") },
		'a node is away from host ' . $host->name);
}
set_node_lists($_, named($_, @second), []) foreach @host{qw(a b)};
has_one($_, $_->name . ' leaves the former list, though a node is away', $second[0]) foreach @host{qw(a b)};
$second[2]->resume;

# ---- a node that misses the mark ----

foreach my $host (@host{qw(a b)})
{
	wait_until(sub { is_so($host, "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready' AND list = 'now'") }, 'all nodes are back');
	set_node_lists($host, named($host, @second), named($host, @third));
	has_both($host);
}
wait_beats(host_id($_), $third[2]) foreach @host{qw(a b)};
$third[2]->cli('CONFIG', 'SET', 'maxmemory', '1');
set_node_lists($host{a}, named($host{a}, @third), []);
has_one($host{a}, 'host a leaves the former list, though a node is full', $third[0]);
$host{a}->stop('immediate');
$third[2]->cli('CONFIG', 'SET', 'maxmemory', '0');
my ($mark, $missed) = map { $_->cli('EVAL', q{return redis.call('GET', 'redlock:\0hosts\0mark:redlock:')}, 0) =~ /^(\d+)/ } @third[ 0, 2 ];
cmp_ok($missed, '<', $mark, '... which has missed the mark');
wait_beats(host_id($host{b}), $third[0]) foreach 1, 2;
is(try_on($host{b})->{state}, '', 'host b takes locks, though host a is gone, and repairs no mark');
set_node_lists($host{b}, named($host{b}, @third), []);
has_one($host{b}, 'host b leaves the former list', $third[0]);
is(try_on($host{b})->{state}, '', '... and takes locks');

# ---- a node that misses the mark, and restarts ----

$host{a}->start;
foreach my $host (@host{qw(a b)})
{
	set_node_lists($host, named($host, @third), named($host, @first));
	has_both($host);
}
wait_beats(host_id($_), $first[2]) foreach @host{qw(a b)};
$first[2]->cli('CONFIG', 'SET', 'maxmemory', '1');
foreach my $host (@host{qw(b a)})
{
	set_node_lists($host, named($host, @first), []);
	has_one($host, 'host ' . $host->name . ' leaves the former list, though a node is full', $first[0]);
}
$host{a}->stop('immediate');
$first[2]->restart;
wait_until(sub { is_so($host{b}, "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready' AND list = 'now'") }, 'the node restarts');
wait_beats(host_id($host{b}), $_) foreach @first[ 0, 2 ];
is(try_on($host{b})->{state}, '', 'host b takes locks, though host a has marked the nodes later, and is gone');

done_testing();
