
=pod

=head1 NAME

HostileRounds - nodes turn hostile one after another, in many ways

=head1 SYNOPSIS

  use HostileRounds;

  begin_rounds();
  hostile_round('wrong types',
      { rules => [ [ $script, 'say', '+OK\r\n' ] ], reason => qr/unexpected type/, steady => 1 });
  end_rounds();

The rounds use five nodes and two hosts.  Nodes 1 to 3 are correct until a round turns them
hostile; see HostileNode.

=cut

package HostileRounds;

use strict;
use warnings;

use Exporter 'import';
use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw($script begin_rounds hostile_round end_rounds);

# for rules: matches a call of the script that acquires and releases locks
our $script = '^(EVALSHA|EVAL loaded)';

# Limits on the growth of a broker's memory, over all rounds, and of a server's log, in one round.
# Correct brokers need far less; a flood brings more.  A sanitizer's malloc keeps most of the freed
# memory.
my $memory_kb = ($ENV{ASAN_OPTIONS} ? 240 : 48) * 1024;
my $log_bytes = 1024 * 1024;

my (@hostile, @good, $host_a, $host_b, $session_a, $session_b, @brokers, @peak_before);
my $number = 0;
my %only   = map { $_ => 1 } split /,/, $ENV{ONLY} // '';

# Returns the last error of the node in redlock_nodes.
sub reason
{
	my ($session, $node) = @_;
	my $address = $node->address;
	return $session->query(
		"SELECT coalesce(last_error, '') FROM redlock_nodes WHERE node = '$address'");
}

# Turns the nodes hostile, and waits until redlock_nodes shows the reason on both hosts.  Hosts see
# the reason when sessions try locks.
sub turn_hostile
{
	my ($what, $nodes, $modes) = @_;

	foreach my $i (0 .. $#$nodes)
	{
		$nodes->[$i]->obey(@{ $modes->[$i]{rules} });
	}
	# a slow mode delays both sessions at the same time
	$_->send("SELECT redlock_try('seen', ttl => '1 s')") foreach $session_a, $session_b;
	$_->result foreach $session_a, $session_b;
	foreach my $session ($session_a, $session_b)
	{
		my @seen;

		wait_until(
			sub {
				$session->run("SELECT redlock_try('seen', ttl => '1 s')");
				@seen = map { reason($session, $_) } @$nodes;
				return @$nodes == grep { $seen[$_] =~ $modes->[$_]{reason} } 0 .. $#$nodes;
			},
			"$what: the view says why",
			20) or diag("it says: @seen");
		unlike("@seen", qr/[^ -~]/, "$what: in printable characters");
	}
	return;
}

# Turns all nodes good again, and waits for new connections to the nodes.
sub turn_good
{
	my @before = map { $_->query('SELECT clock_timestamp()') } $session_a, $session_b;
	my $nodes  = join ', ', map { "'" . $_->address . "'" } @hostile;

	$_->reform foreach @hostile;
	foreach my $session ($session_a, $session_b)
	{
		my $before = shift @before;

		wait_until(
			sub {
				$session->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready'"
					  . " AND (since > '$before' OR node NOT IN ($nodes))") == 5;
			},
			'all nodes are ready')
		  or diag($session->query('SELECT * FROM redlock_nodes'));
	}
	return;
}

# Checks that locks work, also renewals, with at most a minority of hostile nodes.
sub works
{
	my ($what) = @_;
	my $job = 'job ' . ++$number;

	$session_a->query('BEGIN');
	is($session_a->run("SELECT redlock_try('$job', ttl => '1500 ms')")->{out},
		't', "$what: A takes a lock");
	my $renewed = $session_a->query('SELECT renewed FROM redlock_stats');
	is($session_b->run("SELECT redlock_try('$job')")->{out}, 'f', "$what: B is refused");
	$session_b->query('BEGIN');
	$session_b->send("SELECT redlock_acquire('$job') > 0");
	wait_until(sub { $session_a->query('SELECT renewed FROM redlock_stats') > $renewed },
		"$what: the lease is renewed", 20);
	ok(!$session_b->done, "$what: B waits");
	is($session_a->run('COMMIT')->{state}, '', "$what: A commits");
	is($session_b->result->{out}, 't', "$what: B gets the lock");
	$session_b->query('COMMIT');
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: the good nodes keep no key", 20);
	return;
}

# Checks that calls fail without a majority, and name the nodes.
sub fails
{
	my ($what, $modes) = @_;
	my $job = 'none ' . ++$number;

	foreach my $call ("redlock_try('$job')", "redlock_acquire('$job')")
	{
		my $result = $session_a->run("SELECT $call");

		is($result->{state}, '08006', "$what: no quorum is a connection failure")
		  or diag("$call: $result->{out} $result->{err}");
		unlike($result->{detail}, qr/[^ -~]/, "$what: the detail is printable");
		foreach my $i (0 .. 2)
		{
			like($result->{detail}, qr/\Q@{[$hostile[$i]->address]}\E: [^;]/,
				"$what: it names node $i");
		}
		like($result->{detail}, $modes->[0]{reason}, "$what: and says why")
		  if $modes->[0]{steady};
	}
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

# Checks that calls end in time when a majority lies.  The lies may count as grants or refusals.
sub ends
{
	my ($what) = @_;
	my $job = 'lie ' . ++$number;

	foreach my $call ("redlock_try('$job')", "redlock_acquire('$job', wait => '3 s')")
	{
		my $result = $session_a->run("SELECT $call");

		like("$result->{out}$result->{state}",
			qr/^([tf]|[1-9]\d*|08006|40001|55P03)$/,
			"$what: a call ends, with a token if it is granted");
	}
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

# Checks that statement_timeout and a cancel end a wait without a quorum.
sub can_be_ended
{
	my ($what) = @_;
	my $job = 'ended ' . ++$number;
	my $result = $session_a->run(
		"SET statement_timeout = '100 ms'; SELECT redlock_acquire('$job'); RESET statement_timeout");

	is($result->{state}, '57014', "$what: statement_timeout ends it");
	$session_a->query('RESET statement_timeout');
	$session_a->send("SELECT redlock_acquire('$job')");
	$host_a->poll_query_until('postgres',
		"SELECT EXISTS (SELECT FROM redlock_locks WHERE resource = '$job')");
	kill 'INT', $session_a->pid;
	is($session_a->result->{state}, '57014', "$what: so does a cancel");
	wait_until(sub { key_count("redlock:$job", @good) == 0 },
		"$what: nothing is left on the good nodes", 20);
	return;
}

sub peak_kb
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 : 'inf';
}

sub log_size { return -s $_[0]->logfile; }

=pod

=head1 FUNCTIONS

=over

=item begin_rounds(tls => $tls)

Starts nodes and hosts, and checks that locks work.  B<tls>: see RedlockTest::Redis.

=cut

sub begin_rounds
{
	my (%options) = @_;
	my @redis = redis_nodes(5, %options);
	my $conf = "redlock.ttl = '60s'\nredlock.max_ttl = '60s'\n"
	  . "log_statement = none\nlog_min_messages = log";

	$conf .= "\nredlock.tls_ca_file = '$options{tls}{ca}'" if $options{tls};
	@hostile = map { HostileNode->new($_) } @redis[ 0 .. 2 ];
	@good    = @redis[ 3, 4 ];
	($host_a, $host_b) = map { redlock_cluster($_, nodes => [ @hostile, @good ], conf => $conf) } qw(a b);
	($session_a, $session_b) = map { session($_) } $host_a, $host_b;
	$_->query("SET client_min_messages = error") for $session_a, $session_b;
	@brokers = (broker_pid($host_a), broker_pid($host_b));
	works('all nodes good');
	@peak_before = map { peak_kb($_) } @brokers;
	return;
}

=pod

=item hostile_round(what, modes)

Node 1 turns hostile, then node 2, then node 3.  B<modes>: a mode for all three nodes, or a mode
for each: B<rules>: see HostileNode; B<reason>: pattern of the error in redlock_nodes; B<steady>: the
detail of a call's error matches the pattern, too; B<slow>: checks that a wait can be cancelled;
B<votes>: an answer may count as a vote.  ONLY in the environment names the rounds to play, with
commas between the names.

=cut

sub hostile_round
{
	my ($what, @modes) = @_;

	return if %only && !$only{$what};
	@modes = ($modes[0]) x 3 if @modes == 1;

	my $began      = time;
	my @log_before = map { log_size($_) } $host_a, $host_b;

	turn_hostile("$what, one node", [ $hostile[0] ], \@modes);
	is( $session_a->run("SELECT redlock_try('alone', ttl => '1 s')")->{out},
		't', "$what, one node: locks work");
	turn_hostile("$what, two nodes", [ @hostile[ 0, 1 ] ], \@modes);
	works("$what, two nodes");
	turn_hostile("$what, three nodes", \@hostile, \@modes);
	if ($modes[0]{votes})
	{
		ends("$what, three nodes");
	}
	else
	{
		fails("$what, three nodes", \@modes);
	}
	can_be_ended("$what, three nodes") if $modes[0]{slow};
	turn_good();
	is("@{[broker_pid($host_a), broker_pid($host_b)]}", "@brokers", "$what: the brokers live");
	foreach my $i (0, 1)
	{
		my $log = log_size(($host_a, $host_b)[$i]) - $log_before[$i];

		cmp_ok(peak_kb($brokers[$i]) - $peak_before[$i],
			'<', $memory_kb, "$what: the memory of a broker does not grow");
		cmp_ok($log, '<', $log_bytes, "$what: nor does its log");
		note "$what: peak ", peak_kb($brokers[$i]), " kB, log $log bytes";
	}
	note sprintf '%s: %.1f s', $what, time - $began;
	return;
}

=pod

=item end_rounds()

Checks that locks work again.

=back

=cut

sub end_rounds
{
	works('all nodes good again');
	$_->quit for $session_a, $session_b;
	return;
}

1;
