# Overlapping changes of the node list: a host goes on to the new nodes while another host goes back
# to the old nodes.  See docs/how-to/replace-nodes.md.
#
# Protects from: two holders of a lock, since each host left a list before learning of the other
# host's step; hosts waiting for each other for ever, without any step.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my $ROUNDS = $ENV{ROUNDS} // 6;
my @old = redis_nodes(3);
my @new = redis_nodes(3);
my %host = map { $_ => redlock_cluster($_, nodes => \@old, conf => "redlock.max_ttl = '30s'\nredlock.ttl = '10s'") } qw(a b);

sub give
{
	my ($name, $nodes, $next) = @_;

	$host{$name}->append_conf('postgresql.conf',
		"redlock.nodes = '" . node_urls(@$nodes) . "'\nredlock.nodes_next = '" . node_urls(@$next) . "'\n");
	return;
}

sub lists_of
{
	return $host{ $_[0] }->safe_psql('postgres',
		"SELECT string_agg(list, ' ' ORDER BY list) FROM redlock_nodes WHERE list <> 'leaving'");
}

sub is_settled
{
	return $host{ $_[0] }->safe_psql('postgres',
		"SELECT unsettled = 0 AND (SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND list = 'next') = 3 FROM redlock_stats") eq 't';
}

# Both hosts try new locks.  Returns how often both hosts got the lock.
sub overlaps
{
	my ($what, $tries) = @_;
	my %session = map { $_ => session($host{$_}) } sort keys %host;
	my $both = 0;

	foreach my $i (1 .. $tries)
	{
		my @got = map { $session{$_}->run("SELECT redlock_try('$what $i', scope => 'session')")->{out} // '' } sort keys %session;
		$both++ if $got[0] eq 't' && $got[1] eq 't';
	}
	$_->quit foreach values %session;
	return $both;
}

my $total = 0;
foreach my $round (1 .. $ROUNDS)
{
	give($_, \@old, \@new) foreach sort keys %host;
	$_->reload foreach values %host;
	wait_until(sub { is_settled($_) }, "round $round: $_ has both lists") foreach sort keys %host;

	# host $on goes on to the new nodes, and host $back goes back to the old nodes
	my ($on, $back) = $round % 2 ? qw(a b) : qw(b a);
	give($on, \@new, []);
	give($back, \@old, []);
	$host{$_}->reload foreach $on, $back;
	my $until = time + 6;
	my $both = 0;
	while (time < $until)
	{
		$both += overlaps("round $round " . time, 3);
	}
	$total += $both;
	my %lists = map { $_ => lists_of($_) } $on, $back;
	ok(!($lists{$on} eq 'now now now' && $lists{$back} eq 'now now now'), "round $round: not both take their steps")
	  or diag(explain(\%lists));

	# a host takes its step; then the operator lets the second host follow
	my $went_on = wait_until(sub { $lists{$_} = lists_of($_) foreach $on, $back;
			return $lists{$on} eq 'now now now' || $lists{$back} eq 'now now now' }, "round $round: one of them does", 90)
	  && $lists{$on} eq 'now now now';
	if ($went_on)
	{
		give($back, \@new, []);
		$host{$back}->reload;
	}
	else
	{
		give($on, \@old, []);
		$host{$on}->reload;
	}
	wait_until(sub { lists_of($_) eq 'now now now' }, "round $round: $_ follows, " . ($went_on ? 'on' : 'back'), 90) foreach $on, $back;
	@old[ 0 .. 2 ] = splice(@new, 0, 3, @old) if $went_on;
}
is($total, 0, 'no lock had two holders');
like(join('', map { slurp_file($_->logfile) } values %host), qr/redlock\.nodes is not yet in force\n.*Host "[ab]" \(id [0-9a-f]{16}\) is about to leave/,
	'the log of the host that withdrew names the other host');

done_testing();
