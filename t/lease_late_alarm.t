# An alarm does no harm when its session has all but ended.
#
# Protects from: a crash of the whole server, when a gate wait was ended by FATAL, or a holder of a
# lock ends, and the alarm reads state of the ended process.
#
# Preloads test/hostile/slow_exit.c into the server.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);

my $directory = PostgreSQL::Test::Utils::tempdir();
my $library = preload('slow_exit') // die 'no slow exit';

my $host;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SLOW_EXIT_DIR} = $directory;
	$host = redlock_cluster('a', nodes => \@nodes);
}
my ($holder, $waiter) = (session($host), session($host));
my $broker = broker_pid($host);
my $pid = $waiter->pid;
my $file = "$directory/$pid";

$holder->query("SELECT redlock_acquire('job', scope => 'session')");
open my $out, '>', $file or die "$file: $!";
close $out;
$waiter->send("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { $host->safe_psql('postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Lock' },
	'a session waits at the gate');
is($holder->query("SELECT pg_terminate_backend($pid)"), 't', 'and is terminated');
wait_until(sub { !-e "/proc/$pid" || !kill 0, $pid }, 'it has gone');
ok(!-e $file, 'and its alarm has rung, very late');

is($holder->query("SELECT redlock_check('job') > '0'"), 't', 'the others go on');
is(broker_pid($host), $broker, 'with the same broker');
unlike(slurp_file($host->logfile), qr/was terminated by signal/, 'nothing has crashed');

my $other = session($host);
$pid = $other->pid;
$other->query("SELECT redlock_acquire('short', scope => 'session', ttl => '1 s', hold_at_most => '1 s')");
$file = "$directory/$pid";
open $out, '>', $file or die "$file: $!";
close $out;
$other->quit;
wait_until(sub { !-e "/proc/$pid" || !kill 0, $pid }, 'a holder has gone');
ok(!-e $file, 'and its alarm has rung after the release');
is($holder->query("SELECT redlock_check('job') > '0'"), 't', 'the others go on');
unlike(slurp_file($host->logfile), qr/was terminated by signal/, 'nothing has crashed');
$waiter->vanish;
$holder->quit;
$host->stop;
done_testing();
