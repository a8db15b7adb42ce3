# A wait at the gate that has ended by an error of PostgreSQL leaves no cancel behind.
#
# Protects from: an alarm that strikes between that error and its catch, and cancels the
# next statement of who caught the error, as if a user had.
#
# That takes no time as a rule.  Here it lasts: a waiter whose statement_timeout is over
# leaves the queue before it throws the error, and needs a part of the lock table, which
# a session is stopped with that reads all of it.

use strict;
use warnings;

use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'\nmax_locks_per_transaction = 1000");
my ($holder, $waiter, $reader, $admin) = map { session($host) } 1 .. 4;

# Takes no lock that is in the lock table proper.
sub waits_for
{
	return $admin->query("SELECT wait_event_type FROM pg_stat_get_activity(@{[$waiter->pid]})");
}

$holder->query("SELECT redlock_acquire('job', scope => 'session')");
$holder->query('SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 50000) i');
$waiter->query("SET statement_timeout = '500 ms'");
$reader->send('DO $$ BEGIN LOOP PERFORM pg_lock_status() LIMIT 1; END LOOP; END $$');

my ($result, $stopped);
foreach my $try (1 .. 100)
{
	$waiter->send(<<'SQL');
DO $$
BEGIN
	BEGIN
		PERFORM redlock_acquire('job', wait => '1 s');
	EXCEPTION WHEN query_canceled THEN
		RAISE NOTICE 'caught';
	END;
	PERFORM pg_sleep(0);
END
$$
SQL
	1 until waits_for() eq 'Lock' || $waiter->done;
	kill 'STOP', $reader->pid;
	1 until waits_for() ne 'Lock' || $waiter->done;
	$stopped = !$waiter->done && waits_for() eq 'LWLock';
	if ($stopped)
	{
		my $end = time + 1.5;
		wait_until(sub { time > $end }, 'the time of a waiter is over');
		ok(!$waiter->done, 'when its statement_timeout has ended the wait already');
	}
	kill 'CONT', $reader->pid;
	$result = $waiter->result;
	last if $stopped;
}
ok($stopped, 'it was so');
like($result->{err}, qr/NOTICE: .*caught/, 'that error was caught');
is($result->{message}, '', 'and what comes next is not cancelled');

$admin->query("SELECT pg_cancel_backend(@{[$reader->pid]})");
$reader->result;
$_->quit foreach $holder, $waiter, $reader, $admin;
done_testing();
