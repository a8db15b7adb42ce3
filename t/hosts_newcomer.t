# A host that starts later than the others, with different settings.
#
# Protects from: a misconfigured newcomer stopping all other hosts; a newcomer taking locks before
# it knows the other hosts; two newcomers both taking locks, or both refusing for ever; hosts going
# on beside a newcomer with locks; a young node counting as a node of another host, when the node
# starts late or the other hosts hang.
#
# Takes over two minutes: a dead host stays in the lists for 45 s.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my %host = map { $_ => redlock_cluster($_, nodes => \@nodes) } qw(a b);
my $other_ttl = "redlock.max_ttl = '30s'\n";

sub state_on { return psql_result($_[0], "SELECT redlock_try('tried', ttl => '5s')")->{state}; }

sub set
{
	my ($host, @settings) = @_;

	$host->append_conf('postgresql.conf', "$_\n") foreach @settings;
	$host->reload;
	return;
}

sub standing_of
{
	my ($host, $name) = @_;
	return psql_result($host, "SELECT standing FROM redlock_hosts WHERE name = '$name'")->{out} // '';
}

# Waits for two beats of each host in @$beating; returns the states of tries on the hosts in @$on.
sub states_during_beats
{
	my ($on, $beating) = @_;
	my (%states, %beats);

	wait_until(
		sub {
			$states{ state_on($_) }++ foreach @$on;
			$beats{$_}{ last_beat($_, $nodes[0]) }++ foreach @$beating;
			return !grep { keys %{ $beats{$_} } < 3 } @$beating;
		},
		'two beats of each', 90);
	return join ' ', sort keys %states;
}

sub log_of { my ($host) = @_; return slurp_file($host->logfile); }

my %id = map { $_ => host_id($host{$_}) } sort keys %host;
wait_until(sub { state_on($_) eq '' }, $_->name . ' acquires') foreach values %host;

# ---- a newcomer has a young node of its own ----

# The newcomer cannot tell its young node from a restarted node of a and b, until a and b beat
# again.
my $own = redis_node();
my $overlapping = redlock_cluster('overlapping', nodes => [ @nodes[ 1, 2 ], $own ]);
$overlapping->stop;
$own->restart;
$overlapping->start;
my (%answers, %hints);
wait_until(
	sub {
		my $result = psql_result($overlapping, "SELECT redlock_try('tried', ttl => '5s')");
		$answers{ $result->{state} }++;
		$hints{$1}++ if $result->{state} eq '08006' && $result->{hint} =~ /^Try again: ([^.]*)\./;
		return exists $answers{'55000'};
	},
	'a newcomer with a young node of its own is refused', 90);
is(join(' ', sort keys %answers), '08006 55000', 'and gets no lock before');
ok($hints{'a live host names its nodes within 20 seconds'}, 'which a hint explains');
is(states_during_beats([ @host{qw(a b)} ], [ @id{qw(a b)} ]), '', 'the other hosts go on');
is(state_on($overlapping), '55000', 'it still gets no lock');
$overlapping->stop;

# ---- a newcomer's own node is down when the newcomer starts ----

# Without its own node, the host agrees with a and b.  With the vote of its own node, and a common
# node out of reach, the host could get a lock beside a and b.
my $way = HostileNode->new($nodes[1]);
$own->kill9;
my $early = redlock_cluster('early', nodes => [ $way, $nodes[2], $own ], ready => 2);
wait_until(sub { state_on($early) eq '' }, 'a host whose own node is down takes locks');
$way->stop;
wait_until(sub { state_on($early) eq '08006' }, 'without a node of the other hosts, the newcomer has no majority');
kill 'STOP', my @silent = map { broker_pid($_) } @host{qw(a b)};
$own->start;
my $in_doubt = $own->address . ': it started lately, and another host has not named it since';
my %early;
wait_until(
	sub {
		my $result = psql_result($early, "SELECT redlock_try('tried', ttl => '5s')");
		$early{ $result->{state} }++;
		return ($result->{detail} // '') =~ /\Q$in_doubt\E/;
	},
	'when its own node has started, a and b must name it or not');
like($early->safe_psql('postgres', 'SELECT finding, remedy FROM redlock_diagnose()'),
	qr/Reason: it started lately, and another host has not named it since\.\|Try again: a live host /,
	'which redlock_diagnose tells, too');
kill 'CONT', @silent;
wait_until(sub { $early{ state_on($early) }++; return exists $early{'55000'}; }, 'it is refused when they have written again', 90);
is(join(' ', sort keys %early), '08006 55000', 'and gets no lock by that node before');
wait_until(sub { state_on($_) eq '' }, $_->name . ' goes on', 90) foreach @host{qw(a b)};
$early->stop;

# ---- hosts a and b hang ----

my @brokers = map { broker_pid($_) } @host{qw(a b)};
kill 'STOP', @brokers;
$own->restart;
$overlapping->start;
my %hanging;
my $silence_ms = sub {
	my ($time) = split /\n/, $nodes[2]->cli('TIME');
	my $beat = (sort { $b <=> $a } map { last_beat($_, $nodes[2]) } @id{qw(a b)})[0];
	return 1000 * $time - $beat;
};
wait_until(sub { $hanging{ state_on($overlapping) }++; return $silence_ms->() > 22_000; },
	'hosts hang for 22 s', 60);
is(join(' ', sort keys %hanging), '08006', 'a newcomer with a young node of its own gets no lock beside hosts that hang');
kill 'CONT', @brokers;
wait_until(sub { state_on($overlapping) eq '55000' }, 'it is refused when they go on', 60);
is(states_during_beats([ @host{qw(a b)} ], [ @id{qw(a b)} ]), '', 'as they do');
$overlapping->stop;

# ---- a common node restarts just before a newcomer starts ----

$nodes[0]->restart;
my $late = redlock_cluster('late', nodes => \@nodes);
wait_until(sub { state_on($late) eq '' }, 'a newcomer takes locks beside a node that has restarted');
$late->stop;

# ---- a laptop with another redlock.max_ttl ----

my $laptop = redlock_cluster('laptop', nodes => \@nodes, conf => $other_ttl);
is(state_on($laptop), '55000', 'the newcomer is refused at once');
is(states_during_beats([ @host{qw(a b)} ], [ @id{qw(a b)}, host_id($laptop) ]), '', 'the other hosts go on');
my $result = psql_result($laptop, "SELECT redlock_try('tried')");
is($result->{state}, '55000', 'the newcomer still gets no lock');
like($result->{message}, qr/^redlock "tried" is not acquired, since host "[ab]" has other settings and might get it too$/,
	'the error');
like($result->{detail}, qr/redlock\.max_ttl is 60000 ms at that host, and 30000 ms at this host\./, 'and in what they differ');
wait_until(sub { log_of($laptop) =~ /WARNING:  redlock host "[ab]" has other settings than this one, so this host takes no locks/ },
	'the log of the newcomer');
foreach my $host (@host{qw(a b)})
{
	wait_until(
		sub { log_of($host) =~ /WARNING:  redlock host "laptop" has other settings than this one, and takes no locks\n/ },
		$host->name . ': its log names the newcomer');
	is(standing_of($host, 'laptop'), 'refuses', 'so does the view');
	unlike(log_of($host), qr/"laptop" has other settings than this one, and both could get one lock/, 'and not that both could get a lock');
}
is(standing_of($laptop, 'a'), 'takes', 'the other one takes locks');

# ---- the brokers of host a and of the newcomer are replaced ----

replace_broker($host{a});
is(states_during_beats([ @host{qw(a b)} ], [ @id{qw(a b)} ]), '', 'with another broker, too');
replace_broker($laptop);
is(states_during_beats([$laptop], [ host_id($laptop) ]), '55000', 'nor does a broker of the newcomer take locks');

# ---- a second newcomer, with the settings of the first ----

my $second = redlock_cluster('second', nodes => \@nodes, conf => $other_ttl);
is(state_on($second), '55000', 'a second one is refused at once');
is(states_during_beats([ @host{qw(a b)} ], [ @id{qw(a b)}, host_id($second) ]), '', 'two newcomers stop nobody');

# ---- the newcomers become the majority, and then all ----

set($host{b}, $other_ttl);
wait_until(sub { state_on($host{b}) eq '55000' }, 'a host that gets their settings is refused');
is(states_during_beats([ $host{a} ], [ @id{qw(a b)} ]), '', 'the last one with the former settings goes on');
is(standing_of($host{a}, 'b'), 'refuses', 'as the other has none');
set($host{a}, $other_ttl);
wait_until(sub { state_on($_) eq '' }, $_->name . ' acquires when all agree') foreach values %host, $laptop, $second;
wait_until(sub { log_of($laptop) =~ /redlock host "\w+" agrees with this one again, or is gone/ }, 'the log says so');

# ---- a newcomer that takes locks in the conflict, then a newcomer with a lock ----

my $held = session($host{b});
$held->query("SELECT redlock_acquire('held', scope => 'session')");
set($laptop, "redlock.max_ttl = '50s'", 'redlock.on_disagreement = warn');
wait_until(sub { state_on($host{$_}) eq '55000' }, "$_ is stopped by a host that takes locks all the same", 60) foreach qw(a b);
$result = psql_result($host{a}, "SELECT redlock_try('tried')");
like($result->{hint}, qr/Set redlock\.on_disagreement to refuse on that host, or stop that host: with warn, that host goes on to take locks\./,
	'the hint says what to do about the other host');
is($held->query("SELECT redlock_check('held') > '0'"), 't', 'what is held stays held');
is(standing_of($host{a}, 'laptop'), 'warns', 'the view');

my $by_laptop = session($laptop);
$by_laptop->query("SELECT redlock_acquire('of the laptop', scope => 'session')");
set($laptop, 'redlock.on_disagreement = refuse');
wait_until(sub { standing_of($host{a}, 'laptop') eq 'holds' }, 'it refuses, and still has a lock', 60);
is(states_during_beats([ $host{a} ], [ $id{a} ]), '55000', 'the other hosts take no locks');
like(psql_result($host{a}, "SELECT redlock_try('tried')")->{hint}, qr/Wait until that host has released its locks/, 'as they say');
$by_laptop->quit;
wait_until(sub { state_on($host{$_}) eq '' }, "$_ goes on when the lock is released", 60) foreach qw(a b);
is(state_on($laptop), '55000', 'and the laptop does not');
is(standing_of($host{a}, 'laptop'), 'refuses', 'as the view tells');
$held->quit;

# ---- two newcomers at once, without other hosts ----

$_->stop foreach $laptop, $second, values %host;
$second->append_conf('postgresql.conf', "redlock.max_ttl = '40s'\n");
$_->start foreach $laptop, $second;
wait_until(sub { (grep { state_on($_) eq '' } $laptop, $second) == 1 }, 'one of two takes locks', 60);
my %takes;
foreach my $time (1 .. 100)
{
	$takes{ join ' ', map { $_->name } grep { state_on($_) eq '' } $laptop, $second }++;
}
ok(keys %takes == 1 && (keys %takes)[0] !~ / /, 'the same one all the time') or diag(explain(\%takes));
my ($taker, $refuser) = state_on($laptop) eq '' ? ($laptop, $second) : ($second, $laptop);
$taker->stop;
wait_until(sub { state_on($refuser) eq '' }, 'the other one does when the first has gone', 60);

done_testing();
