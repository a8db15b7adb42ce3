# The broker fails again and again, in the middle of its work.  The next broker goes on, and no
# session notices.
#
# Protects from: an owner waiting for an outcome decided but not published before the error; a
# lock staying taken, or being renewed, without a holder.
#
# A library makes the error, see test/hostile/faults.c: no memory for a command.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $faults = PostgreSQL::Test::Utils::tempdir();
my $library = preload('faults') // plan skip_all => 'no C compiler';

my @nodes = redis_nodes(3);
my $conf = "redlock.ttl = '30s'";
my $host_a;
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{FAULTS_DIR} = $faults;
	$host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
}
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my $watch = session($host_a);

# The sessions acquire and await the same locks, and release many locks at once.
my $statements = <<'SQL';
	PERFORM redlock_acquire('job', scope => 'session');
	PERFORM redlock_release('job');
	IF redlock_try('tried', scope => 'session') THEN
		PERFORM redlock_release('tried');
	END IF;
	PERFORM redlock_acquire(i || ' many ' || pg_backend_pid()) FROM generate_series(1, 20) i
SQL
my @busy = map { session($_) } ($host_a) x 3, $host_b;
repeat($_, $statements) foreach @busy;

my $rounds = 6;
foreach my $round (1 .. $rounds)
{
	my $granted = $watch->query('SELECT granted FROM redlock_stats');
	ok($host_a->poll_query_until('postgres', "SELECT granted > $granted + 50 FROM redlock_stats"), "requests are granted ($round)");
	my $pid = broker_pid($host_a);
	append_to_file("$faults/no-memory", '');
	wait_until(sub { broker_pid($host_a) ne $pid }, 'the broker fails');
	unlink "$faults/no-memory";
	wait_until(sub { broker_pid($host_a) =~ /^\d+$/ }, 'and is replaced');
}
end_repeats($_) foreach $host_a, $host_b;
is($_->result->{err}, '', 'no request failed') foreach @busy;
cmp_ok(scalar(() = slurp_file($host_a->logfile) =~ /ERROR:  out of memory for commands/g), '>=', $rounds, 'each was an error');
is($watch->query('SELECT lost FROM redlock_stats'), 0, 'no lease was lost');
wait_until(sub { $watch->query('SELECT locks + releasing FROM redlock_stats') eq '0' }, 'nothing is left on A', 20);
wait_until(sub { key_count($_, @nodes) == 0 }, "no key is left: $_", 20) foreach 'redlock:job', 'redlock:tried';

$_->quit foreach $watch, @busy;
done_testing();
