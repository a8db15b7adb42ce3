# Deadlocks across two hosts, where both sessions of the cycle queue behind sessions in no cycle.
#
# Protects from: errors in sessions that only stand ahead in the queue, one after another; a cycle
# that lasts longer with each session ahead; two victims.

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

# Each host has a session of the cycle, with one lock, that wants the other's.
my %wants = (a => 'y', b => 'x');
my %member;
foreach my $name (qw(a b))
{
	$member{$name} = session($host{$name});
	$member{$name}->query('BEGIN');
	$member{$name}->query("SELECT redlock_acquire('" . ($name eq 'a' ? 'x' : 'y') . "')");
}
my @ahead;
foreach my $count (1 .. AHEAD)
{
	foreach my $name (qw(a b))
	{
		push @ahead, session($host{$name});
		$ahead[-1]->query('BEGIN');
		$ahead[-1]->send("SELECT redlock_acquire('$wants{$name}')");
		wait_until(sub { waiting($name) == $count }, "host $name: $count wait");
	}
}
$member{$_}->send("SELECT redlock_acquire('$wants{$_}')") foreach qw(a b);
wait_until(sub { $member{a}->done || $member{b}->done }, 'a session of the cycle goes on', 90);

my ($victim, $other) = $member{a}->done ? qw(a b) : qw(b a);
my $result = $member{$victim}->result;
is($result->{state}, '40P01', 'it is the victim');
like($result->{message}, qr/^deadlock detected while waiting for redlock "$wants{$victim}"/, 'the message names the lock');
my $pid = $member{$victim}->pid;
like($result->{detail}, qr/Process $pid of server $victim waits for redlock "$wants{$victim}"; blocked by/, 'the DETAIL has its wait');
like($result->{detail}, qr/Process \d+ of server $other waits for redlock "$wants{$other}"; blocked by process $pid of server $victim/,
	'... and who waits for the victim');

# All others get their turns, when sessions that have the lock end.
$member{$victim}->query('ROLLBACK');
my %open = map { $_ => $_ } @ahead, $member{$other};
my @states;
while (%open)
{
	wait_until(sub { grep { $_->done } values %open }, 'somebody goes on', 30) or last;
	foreach my $session (grep { $_->done } values %open)
	{
		push @states, $session->result->{state};
		$session->query('ROLLBACK');
		delete $open{$session};
	}
}
is_deeply([ grep { $_ ne '' } @states ], [], 'no other session has an error');
is(scalar @states, 2 * AHEAD + 1, 'all others go on');
$_->quit foreach @ahead, values %member;

done_testing();
