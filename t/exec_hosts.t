# redlock-exec on two hosts: a scheduled command runs once, and 100 runs do not overlap, though some
# of their processes are killed.
#
# Protects from: a command running on both hosts, or on none; two commands at a time; a command
# beginning before the command of an earlier run has ended, or with a smaller token; sessions,
# keepers, locks, keys or commands left behind.

use strict;
use warnings;

use ExecTest;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

my @nodes = redis_nodes(3);
my @hosts = map { redlock_cluster($_, nodes => \@nodes, conf => "redlock.ttl = '5s'\ncluster_name = '$_'") } qw(a b);

# ---- once, as by cron ----

foreach my $tick (1 .. 5)
{
	my $file = beat_path("tick$tick");
	my @runs = map { exec_start($_, [ '--wait=200ms', '--hold-at-least=1h', "tick$tick" ], [ 'sh', '-c', "echo ran >>$file" ]) } @hosts;

	is(join(' ', sort map { $_->code } @runs), '0 121', 'one of two hosts runs the command, the other skips it');
	is(slurp_file($file), "ran\n", 'so it runs once');
}

# ---- 100 runs ----

# Takes a lock of the operating system; the lock ends with the process.  A victim sleeps until the
# test kills its run.
my $file = beat_path('alone');
my $alone = <<'PERL';
use strict;
use Fcntl qw(:flock);
use Time::HiRes qw(sleep);
my ($file, $victim) = @ARGV;
open my $lock, '>>', $file or die;
open my $log, '>>', "$file.log" or die;
syswrite $log, flock($lock, LOCK_EX | LOCK_NB) ? "$ENV{REDLOCK_TOKEN} $$ $victim\n" : "overlap\n";
sleep($victim eq '' ? 0.05 * rand : 1000);
exit 17;
PERL

my ($started, $killed, %codes, %victim) = (0, 0);
my @running;

append_to_file("$file.log", '');
while ($started < 100 || @running)
{
	while ($started < 100 && @running < 6)
	{
		my $name = $started % 10 == 5 ? "victim$started" : '';
		my $run = exec_start($hosts[ $started++ % 2 ], [ '--wait=1h', 'alone' ], [ $^X, '-e', $alone, $file, $name ]);

		push @running, $run;
		$victim{$name} = $run if $name;
	}
	if (slurp_file("$file.log") =~ / (\d+) (victim\d+)\n\z/ && $victim{$2} && $victim{$2}->keeper)
	{
		my ($pid, $run, $what) = ($1, delete $victim{$2}, $killed++ % 3);

		note 'kill the ', (qw(front keeper command))[$what], " of $2";
		kill 'KILL', ($run->pid, $run->keeper, $pid)[$what];
	}
	my @left;
	foreach my $run (@running) # a run may end at any moment, so the test asks each run once
	{
		if ($run->done) { $codes{ $run->code }++; }
		else { push @left, $run; }
	}
	@running = @left;
	sleep 0.01;
}

my @log = split /\n/, slurp_file("$file.log");
my @tokens = map { /^(\d+) / } @log;
is(scalar(grep { $_ eq 'overlap' } @log), 0, 'no two commands run at a time');
is(scalar @log, 100, 'all runs have run their command');
is(join(' ', sort { $a <=> $b } @tokens), "@tokens", 'in the order of their tokens');
is_deeply(
	\%codes,
	{ 17 => 90, 'signal 9' => 4, 123 => 3, 137 => 3 },
	'each ends with the code of its command, but for those that lost a process')
  or diag(explain(\%codes));

foreach my $host (@hosts)
{
	ok($host->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'redlock-exec'"), 'no session is left');
	ok($host->poll_query_until('postgres', "SELECT count(*) = 0 FROM redlock_locks"), 'no lock is left');
}
wait_until(sub { key_count('redlock:alone', @nodes) == 0 }, 'no key is left');
wait_until(sub { !grep { index((eval { slurp_file($_) } // ''), $file) >= 0 } glob '/proc/[0-9]*/cmdline' }, 'no process is left');

done_testing();
