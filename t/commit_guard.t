# No slow step comes between the commit guard and the commit.
#
# Protects from: a lease ending while a commit tries to get back the session's places at gates,
# after pg_advisory_unlock_all.
#
# Time is the subject.  The commit begins with 50 ms of validity left.  The commit tries for longer,
# since the test stops the waiter that now has the holder's place.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.commit_margin = 0\nredlock.on_loss = 'error'");
my ($holder, $waiter, $admin) = map { session($host) } 1 .. 3;

$holder->query('CREATE TABLE work ()');
$holder->query("SELECT redlock_acquire('job', scope => 'session', ttl => '60 s', hold_at_most => '3 s')");
$waiter->send("SELECT redlock_acquire('job')");
wait_until(sub { $admin->query("SELECT count(*) FROM redlock_locks WHERE state = 'queued'") eq '1' }, 'a session waits');
kill 'STOP', $waiter->pid;
my $result = $holder->run(<<'SQL' =~ s/;\n/\\;\n/gr);
BEGIN;
INSERT INTO work DEFAULT VALUES;
SELECT pg_advisory_unlock_all();
SELECT pg_sleep(extract(epoch FROM redlock_check('job')) - 0.05);
COMMIT
SQL
is("$result->{state} $result->{message}", '40001 the lease on redlock "job" was lost before the commit', 'the commit fails');
is($admin->query('SELECT count(*) FROM work'), '0', 'nothing was committed');
kill 'CONT', $waiter->pid;
$holder->query("SET client_min_messages = error; SELECT redlock_release('job')");
is($waiter->result->{state}, '', 'who waited gets the lock');

$_->quit foreach $holder, $waiter, $admin;
done_testing();
