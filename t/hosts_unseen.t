# A newcomer with a wrong list of nodes has a single node in common with a host that holds a lock,
# and learns of the host late: the common node is far away, or names other hosts first.
#
# Protects from: a newcomer taking locks during the first attempt to reach a node; a node voting
# before the other nodes know of the voter; a node forgetting hosts because its clock was set back;
# many refused hosts hiding a host with locks.
#
# Takes over a minute, and time itself is a subject: a node answers late by some seconds.

use strict;
use warnings;

use HostileNode;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

my @own = redis_nodes(2);
my @others = redis_nodes(2);
my @spare = redis_nodes(3);
my $clock_lib = preload('wrong_clock');
my $clock = PostgreSQL::Test::Utils::tempdir() . '/offset';
write_mapped($clock, 0);
my $common;
{
	local $ENV{LD_PRELOAD} = $clock_lib;
	local $ENV{WRONG_CLOCK_FILE} = $clock;
	$common = redis_node();
}
my $timeout = "redlock.node_timeout = '20s'";
# a silent connection is replaced after a quarter of this time
my $holder = redlock_cluster('a', nodes => [ @own, $common ], conf => "redlock.node_timeout = '60s'");
my $held = session($holder);

sub state_on { return psql_result($_[0], "SELECT redlock_try('tried', ttl => '5s')")->{state}; }

# Returns a host that has never started with these nodes.
sub prepared
{
	my ($name, %options) = @_;
	my $host = PostgreSQL::Test::Cluster->new($name);

	$host->init;
	$host->append_conf('postgresql.conf', "max_prepared_transactions = 5\n" . redlock_conf(%options));
	$host->append_conf('postgresql.conf', "redlock.nodes = ''\n");
	$host->start;
	$host->safe_psql('postgres', 'CREATE EXTENSION redlock_pg');
	$host->stop;
	$host->append_conf('postgresql.conf', redlock_conf(%options));
	return $host;
}

sub hold
{
	wait_until(sub { state_on($holder) eq '' }, 'the first host takes locks', 60);
	$held->query("SELECT redlock_acquire('job', scope => 'session', ttl => '20s')");
	return;
}

# The newcomer tries the lock until a try fails because of its list, or gets the lock.  Then the
# holder releases the lock.
sub is_refused
{
	my ($newcomer, $what) = @_;
	my %states;

	wait_until(
		sub {
			my $result = psql_result($newcomer, "SELECT redlock_try('job', scope => 'session', ttl => '20s')");
			$states{ $result->{state} || $result->{out} }++;
			return $states{'55000'} || $states{t};
		},
		"$what: the newcomer has an answer", 90);
	ok(!$states{t}, "$what: the newcomer gets no lock that another host holds");
	$held->query("SELECT redlock_release('job')");
	return;
}

# ---- a node votes again while the common node has yet to answer ----

my $newcomer = prepared('newcomer', nodes => [ $common, @others ], conf => $timeout);
my $holder_id = host_id($holder);

sub entries { return { map { $_ => last_beat($holder_id, $_) } @_ }; }

# Waits for new entries of the host at these nodes, newer than the times in %$before.
sub wait_entries
{
	my ($what, $before, @nodes) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { @nodes == grep { last_beat($holder_id, $_) =~ /^(?!$before->{$_}$)\d/ } @nodes }, $what);
	return;
}

sub connection_to_common
{
	my $address = $common->address;
	return $holder->safe_psql('postgres', "SELECT state, since FROM redlock_nodes WHERE node = '$address'");
}

$others[0]->kill9;
# The common node stops, then the own node dies.  The first host tells of the dead node within a
# second: this beat waits at the stopped node.  The next beat, with the restarted node, waits behind
# it.
wait_entries('the next regular beat is ten seconds away', entries(@own, $common), @own, $common);
$common->pause;
my $connected = connection_to_common();
my $before = entries(@own);
$own[0]->kill9;
wait_entries('the first host tells of its dead node', $before, $own[1]);
$own[0]->start;
wait_entries('and that the node is back', $before, $own[0]);
is(connection_to_common(), $connected, 'a beat still waits at the stopped node');
$common->resume;
$newcomer->start;
# The newcomer tries first: after a grant to the newcomer, the first host could still get the lock.
my (%taken, %states);
wait_until(
	sub {
		foreach my $host ($newcomer, $holder)
		{
			next if $taken{ $host->name };
			my $s = session($host);
			my $result = $s->run("SELECT redlock_try('job', scope => 'session', ttl => '20s')");
			$states{ $host->name }{ $result->{state} || $result->{out} }++;
			if ($result->{out} eq 't')
			{
				$taken{ $host->name } = $s;
				next;
			}
			$s->quit;
			last;
		}
		return $states{newcomer}{'55000'} || keys %taken == 2;
	},
	'the newcomer is refused', 90);
isnt(scalar keys %taken, 2, 'two hosts without a node out of reach do not both hold the lock');
$_->quit foreach values %taken;
$newcomer->stop;
$others[0]->start;

# ---- a reload names a far node ----

my $far = HostileNode->new($common);
foreach my $delay (0.04, 0.3)
{
	my $newcomer = redlock_cluster("far" . 1000 * $delay, nodes => \@spare);

	$far->obey([ '.', 'delay', $delay ]);
	wait_until(sub { state_on($newcomer) eq '' }, 'a host takes locks by nodes of its own');
	hold();
	$newcomer->append_conf('postgresql.conf', redlock_conf(nodes => [ $far, @others ]));
	$newcomer->reload;
	is_refused($newcomer, "answers after $delay s");
	$newcomer->stop;
}

# ---- at a start, the name of a node is slow, or its first address is mute ----

my $names_lib = preload('slow_names');
my $mute = IO::Socket::INET->new(LocalAddr => '127.0.0.2', LocalPort => $common->port, Listen => 5)
  or die "listen: $!";
my %answer = ('a slow name' => '800 127.0.0.1', 'a mute first address' => '0 127.0.0.2 127.0.0.1');
foreach my $what (sort keys %answer)
{
	my $newcomer = prepared($what =~ s/ /_/gr, nodes => [ 'redis://common.test:' . $common->port, @others ]);

	hold();
	{
		local $ENV{LD_PRELOAD} = $names_lib;
		local $ENV{SLOW_NAMES} = $answer{$what};
		$newcomer->start;
	}
	is_refused($newcomer, $what);
	$newcomer->stop;
}

# ---- the clock of the common node is set back ----

hold();
write_mapped($clock, -60);
$newcomer->start;
is_refused($newcomer, 'a clock that was set back');
$newcomer->stop;

# ---- many refused hosts ----

# The test writes the entries of refusing hosts, by the script that real hosts have loaded.
$common->cli(qw(CONFIG SET slowlog-log-slower-than 0));
my $sha;
wait_until(sub { ($sha) = $common->cli(qw(SLOWLOG GET 128)) =~ /EVALSHA\s+([0-9a-f]{40})\s+0\s+beat/; return $sha; }, 'a beat is seen');
$common->cli(qw(CONFIG SET slowlog-log-slower-than -1));
hold();
$common->cli('EVALSHA', $sha, 0, 'beat', sprintf('%016x', $_), 'redlock:', "refused$_", "settings$_", 1) foreach 1 .. 20;
$newcomer->start;
is_refused($newcomer, 'beside twenty refused hosts');
$newcomer->stop;

done_testing();
