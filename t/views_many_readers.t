# redlock_locks with many readers of a lock, and many waiters for it.
#
# Protects from: a view that costs readers times waiters, and keeps a processor busy for seconds on
# a server with many sessions, each time that monitoring asks.

use strict;
use warnings;

use List::Util qw(max);
use RedlockTest;
use Test::More;

my $host = redlock_cluster('a', nodes => ['local'], conf => "redlock.ttl = '60s'\nmax_connections = 100");
my @readers = map { session($host) } 1 .. 25;
my @writers = map { session($host) } 1 .. 25;

$_->query("SELECT redlock_acquire('shared', scope => 'session', mode => 'shared')") foreach @readers;
$_->send("SELECT redlock_acquire('shared', scope => 'session')") foreach @writers;
wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE NOT granted") == 25 }, 'all writers wait');
is($host->safe_psql('postgres', 'SELECT state, mode, count(*), count(DISTINCT pid) FROM redlock_locks GROUP BY 1, 2 ORDER BY 1'),
	"held|shared|25|25\nqueued|exclusive|25|25", 'a row for each session');
my $plan = $host->safe_psql('postgres', 'EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) SELECT * FROM redlock_locks');
cmp_ok(max($plan =~ /actual rows=(\d+)/g), '<=', 100, 'no step of the view makes a row for each pair of sessions')
  or diag($plan);
$host->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted");
done_testing();
