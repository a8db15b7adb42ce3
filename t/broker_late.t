# A broker that the kernel does not run for a moment does not blame the nodes.
#
# Protects from: answers counted as missing although they came in time, while the kernel did not run
# the broker: a free lock is not granted, nodes are connected again, a lease is lost.
#
# Preloads test/hostile/late_poll.c into the server.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = preload('late_poll') // die 'no late poll';
my $file = "$directory/who";

# The file has the process to delay, and the delay in microseconds.  The delayed process clears its
# number.
sub was_late
{
	open my $in, '<', $file or die "$file: $!";
	sysread $in, my $long, length pack('l!', 0);
	close $in;
	return unpack('l!', $long) == 0;
}

write_mapped($file, 0, 0);
my $host;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{LATE_POLL_FILE} = $file;
	$host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.node_timeout = '300ms'");
}
my $session = session($host);
my $broker = broker_pid($host);
my $log = slurp_file($host->logfile);
my $offset = length $log;

# The delay strikes while the broker asks, renews or releases, on an old or a new connection.
foreach my $ms (100, 400)
{
	foreach my $round (1 .. 3)
	{
		write_mapped($file, $broker, 1000 * $ms);
		is($session->query("SELECT redlock_try('late', scope => 'session')"), 't', "a free lock is granted, $ms ms late");
		ok(was_late(), 'and it was late');
		$session->query("SELECT redlock_release('late')");
		# or the lease is handed over to the next round, without the nodes
		wait_until(sub { key_count('redlock:late', @nodes) == 0 }, 'it is released');
	}
}

is($session->query("SELECT redlock_try('renewed', ttl => '2 s', scope => 'session')"), 't', 'a lease that is renewed meanwhile');
foreach my $round (1 .. 4)
{
	write_mapped($file, $broker, 400_000);
	wait_until(sub { was_late() }, 'the broker is late');
}
is($session->query("SELECT redlock_check('renewed') > '0'"), 't', 'is not lost');

is($session->query("SELECT count(*) FROM redlock_nodes WHERE state <> 'ready' OR last_error <> ''"), '0',
	'no node is blamed');
unlike(slurp_file($host->logfile, $offset), qr/no answer within|not renewed/, 'nor in the log');
is(broker_pid($host), $broker, 'by the same broker');

$session->quit;
$host->stop;
done_testing();
