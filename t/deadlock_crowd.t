# Deadlocks across two hosts, while many sessions of both hosts hold locks, and wait for held locks.
#
# Protects from: a cycle not found, since probes of waits in no cycle use up the budget; a cycle
# found late because many sessions wait.
#
# Time is the subject: `wait` is far longer than the search may take.

use strict;
use warnings;

use IPC::Run;

use RedlockTest;
use Test::More;

use constant { CROWD => 80, WAITERS => 30 };

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\nmax_connections = 150\nredlock.max_locks_per_session = " . 2 * CROWD;
my %host  = map { $_ => redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);
my %other = (a => 'b', b => 'a');

$_->safe_psql('postgres', 'CREATE TABLE accounts (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO accounts VALUES (1)')
  foreach values %host;

my (@holders, @crowds);
foreach my $name (qw(a b))
{
	my $file   = PostgreSQL::Test::Utils::tempdir_short() . '/script.sql';
	my $holder = session($host{ $other{$name} });

	push @holders, $holder;
	$holder->query("SELECT count(redlock_acquire('$name' || i, scope => 'session')) FROM generate_series(0, " . (CROWD - 1) . ') i');
	PostgreSQL::Test::Utils::append_to_file($file, "SELECT redlock_acquire('$name' || :client_id);\n");
	local $ENV{PGAPPNAME} = 'pgbench';
	push @crowds,
	  IPC::Run::start(
		[
			$host{$name}->installed_command('pgbench'), '-n', '-f', $file, '-t', '1', '-c', CROWD,
			'-h', $host{$name}->host, '-p', $host{$name}->port, 'postgres'
		],
		'<', \undef, '>', '/dev/null', '2>', '/dev/null');
}
# Waits until this number of sessions wait on each host, and look for deadlocks.
sub many_wait
{
	my ($count, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $name (qw(a b))
	{
		wait_until(
			sub {
				$host{$name}->safe_psql('postgres',
					"SELECT count(*) FROM redlock_locks WHERE state = 'waiting' AND now() - since > interval '2 s'") == $count;
			},
			"many wait on $name$what", 60);
	}
	return;
}
many_wait(CROWD, '');

# Returns the states of the sessions' results.
sub deadlock
{
	my ($what, @steps) = @_;
	my @sessions = map { session($host{ $_->{host} }) } @steps;
	my %open     = map { $_ => 1 } 0 .. $#steps;
	my @states;

	foreach my $i (0 .. $#steps)
	{
		$sessions[$i]->query('BEGIN');
		$sessions[$i]->query($steps[$i]{has});
	}
	$sessions[$_]->send($steps[$_]{wants}) foreach 0 .. $#steps;
	while (%open)
	{
		wait_until(sub { grep { $sessions[$_]->done } keys %open }, "$what: somebody goes on", 60) or last;
		foreach my $i (grep { $sessions[$_]->done } sort keys %open)
		{
			$states[$i] = $sessions[$i]->result->{state};
			$sessions[$i]->query('ROLLBACK');
			delete $open{$i};
		}
	}
	$_->quit foreach @sessions;
	return @states;
}

sub acquire
{
	my ($name, $how) = @_;
	return "SELECT redlock_acquire('$name', " . ($how // "wait => '8 s'") . ')';
}

foreach my $round (1 .. 2)
{
	my @states = deadlock('two hosts',
		{ host => 'a', has => acquire('x'), wants => acquire('y') },
		{ host => 'b', has => acquire('y'), wants => acquire('x') });
	is_deeply([ sort @states ], [ '', '40P01' ], "two hosts, round $round: one victim");
	@states = deadlock('a row lock',
		{ host => 'a', has => acquire('x'), wants => acquire('y') },
		{ host => 'b', has => acquire('y'), wants => 'UPDATE accounts SET n = 1 WHERE id = 1' },
		{ host => 'b', has => 'UPDATE accounts SET n = 2 WHERE id = 1', wants => acquire('x') });
	is_deeply([ sort @states ], [ '', '', '40P01' ], "a row lock, round $round: one victim");
}

$_->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'") foreach values %host;
$_->finish foreach @crowds;
$_->quit foreach @holders;

# ---- many sessions wait for waiting sessions ----

my @queues = map { session($host{$_}) } qw(a b);
$_->query('SELECT pg_advisory_lock(1)') foreach @queues;
my @waiters;
foreach my $name (qw(a b))
{
	foreach my $i (1 .. WAITERS)
	{
		my ($holder, $waiter) = (session($host{ $other{$name} }), session($host{$name}));

		$holder->query("SELECT redlock_acquire('w$name$i', scope => 'session')");
		$holder->send('SELECT pg_advisory_lock(1)');
		$waiter->send("SELECT redlock_acquire('w$name$i', wait => '200 s')");
		push @waiters, $holder, $waiter;
	}
}
many_wait(WAITERS, ' for those who wait themselves');

# several rounds: the budget of a wait may depend on its number
foreach my $round (1 .. 5)
{
	my @found = deadlock('a reader, and a row lock',
		{ host => 'a', has => acquire('x', "mode => 'shared', wait => '100 s'"), wants => acquire('y', "wait => '100 s'") },
		{ host => 'b', has => acquire('y', "wait => '100 s'"), wants => 'UPDATE accounts SET n = 1 WHERE id = 1' },
		{ host => 'b', has => 'UPDATE accounts SET n = 2 WHERE id = 1', wants => acquire('x', "wait => '100 s'") });
	is_deeply([ sort @found ], [ '', '', '40P01' ], "a reader, and a row lock, round $round: one victim");
}
$_->query('SELECT pg_advisory_unlock(1)') foreach @queues;
$_->quit foreach @queues, @waiters;

done_testing();
