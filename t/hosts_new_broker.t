# A host refuses locks because of a conflict: another host has other nodes, and takes locks in the
# conflict (redlock.on_disagreement is warn).  Then the first host gets a new broker, or a new list
# of nodes, while most of its nodes are away.
#
# Protects from: a conflict ending too early, so that both hosts get a lock: because most nodes have
# not answered yet, or because the nodes name another host with the same settings.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(7);
my $warns = "redlock.on_disagreement = warn\n";
my %host = (
	a => redlock_cluster('a', nodes => [ @nodes[ 0, 1, 2 ] ]),
	b => redlock_cluster('b', nodes => [ @nodes[ 2, 3, 4 ] ], conf => $warns));

sub state_on { my ($host) = @_; return psql_result($host, "SELECT redlock_try('refused')")->{state} }

# Waits for two beats of the host; at each beat the host looks for other hosts.  All tries are
# refused.
sub refuses_on
{
	my ($host, $id, $node, $what) = @_;
	my (%answers, %beats);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub {
		$answers{ state_on($host) }++;
		$beats{ last_beat($id, $node) }++;
		keys %beats > 2;
	}, 'two beats');
	is(join(' ', sort keys %answers), '55000', $what);
	return;
}

wait_until(sub { state_on($host{a}) eq '55000' }, 'a refuses', 40);
my $id_of_a = $host{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'a'");
my $log_end = -s $host{a}->logfile;

# ---- another broker, while one or two nodes of host a or of host b are away ----

foreach my $away ([ 0, 1 ], [2], [ 3, 4 ])
{
	my @there = grep { my $node = $_; !grep { $node == $_ } @$away } 0 .. 2;

	$_->pause foreach @nodes[@$away];
	wait_nodes_ready($host{a}, scalar @there);
	is(state_on($host{a}), '55000', "without nodes @$away it refuses");
	replace_broker($host{a});
	refuses_on($host{a}, $id_of_a, $nodes[ $there[0] ], 'the next broker refuses, too');
	$_->resume foreach @nodes[@$away];
	wait_nodes_ready($host{a}, 3);
	is(state_on($host{a}), '55000', 'and when they are back');
	wait_nodes_ready($host{b}, 3);
	wait_until(sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_hosts WHERE NOT agrees") eq '1' }, 'host a sees the conflict');
}

# ---- another broker, and nodes that name a third host, with the second host's settings ----

$host{c} = redlock_cluster('c', nodes => [ @nodes[ 2, 3, 4 ] ], conf => $warns);
wait_until(sub { $host{a}->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts WHERE NOT agrees') eq '2' }, 'a third host is there', 40);
foreach my $case ([ 'b', 'c' ], [ 'c', 'b' ], [ 'b', 'c', 3, 4 ])
{
	my ($told, $named, @away) = @$case;
	my %id = map { $_ => $host{a}->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = '$_'") } $told, $named;

	# the errors of host a name host $told, which beats while host $named is stopped
	wait_until(sub {
		kill STOP => broker_pid($host{$named});
		wait_beats($id{$told}, $nodes[2]);
		kill CONT => broker_pid($host{$named});
		psql_result($host{a}, "SELECT redlock_try('refused')")->{message} =~ /host "$told"/;
	}, "$told is the one that is told of", 60);
	kill STOP => broker_pid($host{a});
	$_->pause foreach @nodes[@away];
	wait_beats($id{$told}, $nodes[2]); # both hosts then write the same about the paused nodes
	kill STOP => broker_pid($host{$told});
	wait_beats($id{$named}, $nodes[2]);
	replace_broker($host{a});
	refuses_on($host{a}, $id_of_a, $nodes[2], "it refuses when the nodes name $named" . (@away ? " and nodes @away are away" : ''));
	$_->resume foreach @nodes[@away];
	kill CONT => broker_pid($host{$told});
	wait_nodes_ready($host{$named}, 3);
}
wait_until(sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_hosts WHERE NOT agrees") eq '2' }, 'it knows both');
(delete $host{c})->stop;

# ---- other nodes, without an answer yet ----

$_->pause foreach @nodes[ 5, 6 ];
$host{a}->append_conf('postgresql.conf', "redlock.nodes = '" . join(', ', map { $_->url } @nodes[ 2, 5, 6 ]) . "'");
$host{a}->reload;
wait_until(sub { $host{a}->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") eq '1' },
	'only the node that both have answers');
refuses_on($host{a}, $id_of_a, $nodes[2], 'host a refuses while its nodes are away');
$_->resume foreach @nodes[ 5, 6 ];
wait_nodes_ready($host{a}, 3);
is(state_on($host{a}), '55000', 'and when they are there');
unlike(slurp_file($host{a}->logfile, $log_end), qr/agrees with this one again/, 'all the time');

# ---- the conflict ends ----

my $same = "redlock.nodes = '" . join(', ', map { $_->url } @nodes[ 2, 5, 6 ]) . "'";
$host{b}->append_conf('postgresql.conf', $same);
$host{b}->reload;
wait_until(sub { state_on($_) eq '' }, $_->name . ' acquires when both have the same nodes', 70) foreach values %host;
replace_broker($host{a});
wait_until(sub { state_on($host{a}) eq '' }, 'and with another broker', 40);

$host{b}->append_conf('postgresql.conf', "redlock.max_ttl = '50s'");
$host{b}->reload;
wait_until(sub { state_on($host{a}) eq '55000' }, 'they differ again', 40);
kill STOP => broker_pid($host{a});
$host{b}->append_conf('postgresql.conf', "redlock.max_ttl = '1min'");
$host{b}->reload;
wait_until(sub { state_on($host{b}) eq '' }, 'the other one agrees', 70);
replace_broker($host{a});
wait_until(sub { state_on($host{a}) eq '' }, 'the next broker finds that they agree, and lets sessions acquire', 40);
like(slurp_file($host{a}->logfile, $log_end), qr/agrees with this one again/, 'it says so');

done_testing();
