# A session without a signal for its alarm takes no lock, and works as before.
#
# Protects from: a signal taken from its owner; a lease lost without an alarm; memory left behind by
# each try.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host;
{
	# SIGRTMAX - 4: a program started with this signal ignored keeps it ignored
	local $SIG{NUM60} = 'IGNORE';
	$host = redlock_cluster('a', nodes => \@nodes);
}
my $session = session($host);

foreach my $statement ('redlock_try($$job$$)', 'redlock_acquire($$job$$)', 'redlock_try($$job$$)')
{
	my $result = $session->run("SELECT $statement");
	is("$result->{state} $result->{message}", '55006 signal 60 is in use in this session', $statement);
}
is($session->query("SELECT count(*) FROM pg_backend_memory_contexts WHERE name ~ 'redlock'"), '0', 'no memory is left behind');
is($session->query('SELECT count(*) FROM redlock_locks'), '0', 'no lock is asked for');
like($session->query("SELECT pg_read_file('/proc/' || pg_backend_pid() || '/status')"),
	qr/^SigIgn:\s*[0-9a-f]*[89a-f][0-9a-f]{14}$/m, 'the signal is ignored as it was');

$session->quit;
done_testing();
