# A gate wait that has ended leaves neither a cancel nor the gate behind.
#
# Protects from: an alarm striking after the end of the wait, and cancelling the next command, as
# a user would: between an error of PostgreSQL and its catch, or between the grant and its return;
# a loss, or a user's cancel, taken for the alarm and not reported; a lock left to an ending
# waiter, and staying without a holder; a gate granted to a waiter at the moment of its cancel,
# and staying taken.
#
# As a rule these moments are too short to hit.  The test makes the moments last: a session that
# leaves the queue needs a part of the lock table, and a stopped session that reads the whole table
# holds this part.

use strict;
use warnings;

use RedlockTest;
use Test::More;
use Time::HiRes qw(time);

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '10min'\nredlock.max_ttl = '1h'\nmax_locks_per_transaction = 1000");
my ($holder, $waiter, $reader, $admin) = map { session($host) } 1 .. 4;

# The waiter's wait event type.  The query takes no lock in PostgreSQL's main lock table.
sub waits_for
{
	return $admin->query("SELECT wait_event_type FROM pg_stat_get_activity(@{[$waiter->pid]})");
}

$holder->query('SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 50000) i');

# The waiter sends its statement, and leaves the queue while the reader is stopped.  Tries again
# until the stopped reader holds the lock table; then the waiter's time goes by.
sub stick
{
	my ($statement, $leave, $meanwhile) = @_;
	my ($stuck, $result);

	$reader->send('DO $$ BEGIN LOOP PERFORM pg_lock_status() LIMIT 1; END LOOP; END $$');
	foreach my $try (1 .. 100)
	{
		$holder->query("SELECT redlock_release_all(); SELECT redlock_acquire('job', scope => 'session')");
		$waiter->send($statement);
		1 until waits_for() eq 'Lock' || $waiter->done;
		$leave->();
		1 until waits_for() ne 'Lock' || $waiter->done;
		$stuck = !$waiter->done && waits_for() eq 'LWLock';
		if ($stuck)
		{
			my $end = time + 3.5;
			$meanwhile->() if $meanwhile;
			wait_until(sub { time > $end }, 'the time of a waiter is over');
			ok(!$waiter->done, 'when its wait has ended, and it does not know yet');
		}
		kill 'CONT', $reader->pid;
		$result = $waiter->result;
		last if $stuck;
	}
	ok($stuck, 'it was so');
	kill 'INT', $reader->pid;
	$reader->result;
	return $result;
}

# A statement that waits, catches the cancel of its wait, and goes on.
sub catching
{
	my ($wait) = @_;

	return <<"SQL";
DO \$\$
BEGIN
	BEGIN
		PERFORM redlock_acquire('job', wait => '$wait');
	EXCEPTION WHEN query_canceled THEN
		RAISE NOTICE 'caught';
	END;
	PERFORM pg_sleep(0);
END
\$\$
SQL
}

# ---- the wait ends by an error ----

$waiter->query("SET statement_timeout = '500 ms'");
my $result = stick(catching('1 s'), sub { kill 'STOP', $reader->pid });
like($result->{err}, qr/NOTICE: .*caught/, 'that error was caught');
is($result->{message}, '', 'and what comes next is not cancelled');

# ---- the wait ends by an error, and a user cancels before the catch ----

$result = stick(catching('3 s'), sub { kill 'STOP', $reader->pid }, sub { kill 'INT', $waiter->pid });
is($result->{message}, 'canceling statement due to user request', 'the cancel is not lost');

# ---- the wait ends by an error, and another lock is lost before the catch ----

$waiter->query("RESET statement_timeout; SELECT redlock_acquire('other', scope => 'session', hold_at_most => '2 s')");
$result = stick(<<'SQL' . catching('1 s'), sub { kill 'STOP', $reader->pid });
SET client_min_messages = error;
SET statement_timeout = 0;
SELECT redlock_release('other');
SELECT redlock_acquire('other', scope => 'session', hold_at_most => '2 s');
SET statement_timeout = '500 ms';
SQL
is($result->{message}, 'canceling statement because the lease on redlock "other" was lost', 'the loss is told');
$waiter->query("SELECT redlock_release('other')");

# ---- the lock is left for a waiter whose wait has ended ----

# By itself the broker would look at the lease when the renewal is due, in minutes.
foreach my $end ('statement_timeout', 'wait')
{
	my ($timeout, $wait, $state) = $end eq 'wait' ? (0, '500 ms', '55P03') : ('500 ms', '1 h', '57014');
	$waiter->query("SET statement_timeout = '$timeout'");
	$result = stick("SELECT redlock_acquire('job', wait => '$wait')",
		sub { kill 'STOP', $reader->pid }, sub { $holder->send("SELECT redlock_release('job')") });
	# '': the holder was quicker, and the waiter had the lock
	like($result->{state}, qr/^($state)?$/, "$end: the waiter is told");
	is($holder->result->{out}, 't', 'the lock was released meanwhile');
	wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'and is free');
}

# ---- the wait ends by the grant ----

$waiter->query('RESET statement_timeout; SET client_min_messages = error');
$result = stick(
	"SELECT redlock_acquire('job', wait => '2 s') > 0",
	sub {
		kill 'STOP', $waiter->pid;
		$holder->query("SELECT redlock_release('job')");
		kill 'STOP', $reader->pid;
		kill 'CONT', $waiter->pid;
	});
is($result->{message}, '', 'what comes after the grant is not cancelled');
is($result->{out}, 't', 'and the lock is held');

# ---- the wait ends by the grant, and a cancel comes before the session sees the grant ----

foreach my $scope ('transaction', 'session')
{
	$holder->query("SELECT redlock_release_all(); SELECT redlock_acquire('job', scope => 'session')");
	$waiter->send("SELECT redlock_acquire('job', scope => '$scope')");
	wait_until(sub { waits_for() eq 'Lock' }, 'a session waits');
	kill 'STOP', $waiter->pid;
	$holder->query("SELECT redlock_release('job')");
	is($admin->query("SELECT bool_and(granted) FROM pg_locks WHERE objsubid = 0 AND locktype = 'userlock' AND pid = @{[$waiter->pid]}"),
		't', "the gate is granted, $scope scope");
	kill 'INT', $waiter->pid;
	kill 'CONT', $waiter->pid;
	is($waiter->result->{state}, '57014', 'the waiter is cancelled');
	is($admin->query("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = @{[$waiter->pid]}"), '0', 'and has no gate');
	is($holder->query("SELECT redlock_try('job', scope => 'session')"), 't', 'others can have the lock');
}

$_->quit foreach $holder, $waiter, $reader, $admin;
done_testing();
