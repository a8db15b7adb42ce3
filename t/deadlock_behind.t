# Deadlocks across two hosts, where both sessions of the cycle queue behind sessions in no cycle.
#
# Protects from: errors in sessions outside of the cycle, one after another; a cycle lasting longer
# with each session ahead; two victims.

use strict;
use warnings;

use RedlockTest;
use Test::More;

use constant AHEAD => 4;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\ndeadlock_timeout = '200ms'";
my %host  = map { $_ => redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);

sub waiting
{
	my ($host) = @_;
	return $host{$host}->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE state IN ('waiting', 'queued')");
}

# Each host has a session of the cycle: it holds one lock, and asks for the lock of the other host
# in the given mode, behind sessions outside of the cycle.
sub behind
{
	my ($mode) = @_;
	my %wants = (a => 'y', b => 'x');
	my %want  = map { $_ => "SELECT redlock_acquire('$wants{$_}', mode => '$mode')" } qw(a b);
	my %member;
	my @ahead;

	foreach my $name (qw(a b))
	{
		$member{$name} = session($host{$name});
		$member{$name}->query('BEGIN');
		$member{$name}->query("SELECT redlock_acquire('" . ($name eq 'a' ? 'x' : 'y') . "')");
	}
	foreach my $count (1 .. AHEAD)
	{
		foreach my $name (qw(a b))
		{
			push @ahead, session($host{$name});
			$ahead[-1]->query('BEGIN');
			$ahead[-1]->send($want{$name});
			wait_until(sub { waiting($name) == $count }, "$mode: host $name: $count wait");
		}
	}
	$member{$_}->send($want{$_}) foreach qw(a b);
	wait_until(sub { $member{a}->done || $member{b}->done }, "$mode: a session of the cycle goes on", 90);

	# the victim's error may have let the other session go on, too
	my %result = map { $_ => $member{$_}->result } grep { $member{$_}->done } qw(a b);
	my ($victim) = grep { $result{$_}{state} eq '40P01' } sort keys %result;
	isnt($victim, undef, "$mode: a session of the cycle is the victim") or return;
	my $other  = $victim eq 'a' ? 'b' : 'a';
	my $result = $result{$victim};
	my $pid    = $member{$victim}->pid;
	like($result->{message}, qr/^deadlock detected while waiting for redlock "$wants{$victim}"/, '... the message names the lock');
	like($result->{detail}, qr/Process $pid of server $victim waits for redlock "$wants{$victim}"; blocked by/,
		'... the DETAIL has its wait');
	like($result->{detail}, qr/Process \d+ of server $other waits for redlock "$wants{$other}"; blocked by process $pid of server $victim/,
		'... and who waits for the victim');

	# The others get their turns, each at the end of a holder.
	$member{$_}->query('ROLLBACK') foreach keys %result;
	my %open = map { $_ => $_ } @ahead, $result{$other} ? () : $member{$other};
	my @states = map { $_->{state} } grep { defined } $result{$other};
	while (%open)
	{
		wait_until(sub { grep { $_->done } values %open }, "$mode: somebody goes on", 30) or last;
		foreach my $session (grep { $_->done } values %open)
		{
			push @states, $session->result->{state};
			$session->query('ROLLBACK');
			delete $open{$session};
		}
	}
	is_deeply([ grep { $_ ne '' } @states ], [], "$mode: no other session has an error");
	is(scalar @states, 2 * AHEAD + 1, "$mode: all others go on");
	$_->quit foreach @ahead, values %member;
	return;
}

behind('exclusive');
behind('shared');

done_testing();
