# Hosts try for a lock at the same instant, as hosts with one schedule do.
#
# Protects from: a job running nowhere, since the keys of the other hosts refused each host, and no
# host had a majority.
#
# Each of three hosts is near a node of its own and 5 ms away from the remaining nodes, so each host
# gets its own node first.  Time is the subject: all hosts try at the same instant, by this
# machine's clock.  By chance a round may have no winner, so a tenth of the rounds may fail.  If
# hosts asked again as soon as with near nodes, a third of the rounds would fail.

use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $ROUNDS = 40;
my $DELAY_US = 5000;

my $dir = PostgreSQL::Test::Utils::tempdir();
plan skip_all => 'no C compiler' if system($ENV{CC} // 'cc', '-O2', '-o', "$dir/proxy", 'bench/delay_proxy.c') != 0;

my @nodes = redis_nodes(3);
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } @nodes;
my $proxy = IPC::Run::start([ "$dir/proxy", $DELAY_US, map { "$ports[$_]:" . $nodes[$_]->port } 0 .. 2 ], '2>', "$dir/proxy.log");
wait_until(sub { !grep { !IO::Socket::INET->new("127.0.0.1:$_") } @ports }, 'the nodes can be reached from afar');

my @sessions = map {
	my $near = $_;
	my $host = redlock_cluster("try_$near", nodes => \@nodes, conf => "redlock.nodes = '"
		. join(', ', map { "redis://127.0.0.1:" . ($_ == $near ? $nodes[$_]->port : $ports[$_]) } 0 .. 2) . "'");
	session($host)
} 0 .. 2;
# one lock; then several locks, of which each host may get some and refuse the rest
foreach my $locks (1, 4)
{
	my %winners = (0 => 0);

	foreach my $round (1 .. $ROUNDS)
	{
		my @names = map { "'cron $locks $round $_'" } 1 .. $locks;
		my $names = $locks > 1 ? 'ARRAY[' . join(', ', @names) . ']' : $names[0];
		my $instant = $sessions[0]->query("SELECT clock_timestamp() + '20 ms'");
		my @won;

		$_->send("SELECT redlock_try@{[$names =~ /^ARRAY/ ? '_all' : '']}($names, scope => 'session') FROM pg_sleep(extract(epoch FROM '$instant' - clock_timestamp()))")
		  foreach @sessions;
		@won = grep { $_->result->{out} eq 't' } @sessions;
		$winners{ scalar @won }++;
		$_->query('SELECT redlock_release_all()') foreach @won;
	}
	is_deeply([ grep { $_ > 1 } keys %winners ], [], "$locks: never do two hosts get the locks");
	cmp_ok($winners{0}, '<=', $ROUNDS / 10, "$locks: one of the hosts that try at the same instant gets them");
	diag(explain(\%winners));
}
$_->quit foreach @sessions;
$proxy->kill_kill;

done_testing();
