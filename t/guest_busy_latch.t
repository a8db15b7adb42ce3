# A broker woken without a pause still reads its sockets.
#
# Protects from: unread sockets while backends wake the broker without a pause, since PostgreSQL
# 15 polls no socket when the latch is set: nodes count as unreachable although they answer, free
# locks are not granted, leases are lost.
#
# Preloads test/hostile/set_latch.c into the server.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = preload('set_latch') // die 'no set latch';
my $file = "$directory/who";

write_mapped($file, 0);
my $host;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SET_LATCH_FILE} = $file;
	$host = redlock_cluster('a', nodes => \@nodes);
}
my $session = session($host);
my $broker = broker_pid($host);

write_mapped($file, $broker);
is($session->query("SELECT redlock_try('free', scope => 'session', ttl => '6 s')"), 't', 'a free lock is granted');
wait_until(sub { $host->safe_psql('postgres', 'SELECT renewed FROM redlock_stats') >= 1 }, 'and renewed');
$_->restart foreach @nodes;
wait_until(sub { $session->run("SELECT redlock_try('other', scope => 'session')")->{out} eq 't' },
	'nodes that restart are connected again');
write_mapped($file, 0);

is($session->query("SELECT redlock_check('free') > '0'"), 't', 'the lease lives');
is(broker_pid($host), $broker, 'with the same broker');
$session->quit;
$host->stop;
done_testing();
