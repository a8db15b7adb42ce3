# With a broker that is late each time, calls fail without a quorum.
#
# Protects from (invariants 11 and 12): a free lock reported as held; a run skipped although nobody
# runs; a try, or a call without a limit, asking the nodes for ever.
#
# Preloads test/hostile/late_poll.c into the server.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $library = preload('late_poll') // die 'no late poll';
my $late = PostgreSQL::Test::Utils::tempdir() . '/late';
my $host;

write_mapped($late, 0, 0, 0);
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{LATE_POLL_FILE} = $late;
	$host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.node_timeout = '100ms'");
}
my $session = session($host);
is($session->query("SELECT redlock_try('before', scope => 'session')"), 't', 'a broker in time');

# each poll of the broker that finds events returns 120 ms late
write_mapped($late, broker_pid($host), 120_000, 1);
my %calls = (
	'a try' => "SELECT redlock_try('a')",
	'a try that waits' => "SELECT redlock_try('b', wait => '2 s')",
	'a call that waits' => "SELECT redlock_acquire('c', wait => '2 s')",
	'a call without a limit' => "SELECT redlock_acquire('d')",
	'a run' => "CALL redlock_run('e', 'SELECT 1')",
	'a run that waits' => "CALL redlock_run('f', 'SELECT 1', wait => '2 s')",
);
foreach my $call (sort keys %calls)
{
	my $result = $session->run($calls{$call});
	is($result->{state}, '08006', "$call finds no quorum");
	like($result->{message}, qr/no quorum of redlock nodes could be reached/, '... and is told');
}
write_mapped($late, 0, 0);
wait_until(sub { $session->run("SELECT redlock_try('g', scope => 'session')")->{state} eq '' }, 'the broker is in time again');
$session->quit;
$host->stop;
done_testing();
