# A lock that was left to the next session of its server is released if no session comes.
#
# Protects from: a lock renewed by the broker without a holder (invariant 14), and closed to all
# hosts.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
# A turn takes a tenth of the ttl: enough for the test on a busy machine.
my ($host_a, $host_b) = map { redlock_cluster($_, nodes => \@nodes, conf => "redlock.ttl = '20s'") } qw(a b);
my ($holder, $next, $on_b) = map { session($_) } $host_a, $host_a, $host_b;
my $state = sub { $holder->query("SELECT state FROM redlock_locks WHERE pid = @{[$next->pid]}") };

$holder->query("SELECT redlock_acquire('job', scope => 'session')");
$next->send("SELECT redlock_acquire('job', scope => 'session') > 0");
wait_until(sub { $state->() eq 'queued' }, 'a session of the same server is the next');
my $handed_over = $holder->query('SELECT handed_over FROM redlock_stats');
kill 'STOP', $next->pid;
is($holder->query("SELECT redlock_release('job')"), 't', 'the lock is released when the next is stopped');
is($on_b->query("SELECT redlock_try('job')"), 'f', 'it is left for the next');
wait_until(sub { $on_b->query("SELECT redlock_try('job', scope => 'session')") eq 't' }, 'who does not come: another host gets it', 30);
like(slurp_file($host_a->logfile), qr/LOG:  releasing redlock "job", which was left/, 'the log says why');
kill 'CONT', $next->pid;
wait_until(sub { $state->() eq 'waiting' }, 'the next waits for it');
is($on_b->query("SELECT redlock_release('job')"), 't', 'the other host is done');
is($next->result->{out}, 't', 'the waiter gets the lock');
is($holder->query('SELECT handed_over FROM redlock_stats'), $handed_over, 'from the nodes');

$_->quit foreach $holder, $next, $on_b;
done_testing();
