# The server log about a node that fails in several ways.
#
# Protects from: a lasting error never logged, since another error came just before; alternating
# errors filling the log.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @redis = redis_nodes(3);
my $node = HostileNode->new($redis[2]);
my $host = redlock_cluster('a', nodes => [ @redis[ 0, 1 ], $node ]);
my $s = session($host);

# Returns the number of matching errors of the node in the log from this offset.
sub told
{
	my ($text, $from) = @_;
	my $address = $node->address;

	return scalar(() = slurp_file($host->logfile, $from // 0) =~ /LOG:  redlock node \Q$address\E: $text/g);
}

sub last_error { return $s->query("SELECT last_error FROM redlock_nodes WHERE node = '" . $node->address . "'"); }

sub ask { $s->query("SELECT redlock_try('job')"); return; }

# ---- a lasting error of answers ----

$node->obey([ '^EVALSHA', 'say', '-OOM first\r\n' ]);
wait_until(sub { ask(); told('OOM first') == 1 }, 'the first error is told');
$node->obey([ '^EVALSHA', 'say', '-MISCONF second\r\n' ]);
wait_until(sub { ask(); last_error() =~ /second/ }, 'another comes soon after it');
wait_until(sub { ask(); told('MISCONF second') == 1 }, 'the log also has a second error that lasts');

# ---- each try to connect fails with a different error ----

my $log_from = -s $host->logfile;
foreach my $try (1 .. 5)
{
	$node->obey([ '^NOW', 'close' ], [ '^INFO server', 'say', "-ERR try $try\\r\\n" ]);
	wait_until(sub { last_error() =~ /try $try/ }, "try $try fails in its own way");
}
cmp_ok(told('ERR try', $log_from), '<', 5, 'the log does not tell each time');
$node->obey;
wait_nodes_ready($host, 3);
$log_from = -s $host->logfile;
$node->obey([ '^NOW', 'close' ]);
wait_until(sub { told('it closed the connection', $log_from) == 1 }, 'that it was ready, and is no more, is told at once');

$s->quit;
done_testing();
