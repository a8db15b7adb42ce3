# A host crashes in the middle of a change of nodes, after another host has taken step 2.
#
# Protects from: hosts that take no locks, since the returning host lists its waiting requests as
# leases by the former list alone.
#
# The nodes restart with the host.  So the host asks the nodes for other hosts, and takes no locks
# for a while.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @old = redis_nodes(5);
my @new = @old[ 0 .. 2 ];
my ($host_a, $host_b) = map {
	redlock_cluster($_, nodes => \@old, conf => "redlock.ttl = '3s'\nredlock.max_ttl = '3s'\nrestart_after_crash = on")
} qw(a b);

sub has_lists
{
	my ($host, $lists) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($host->poll_query_until('postgres', <<SQL), $host->name . " has the lists $lists");
SELECT unsettled = 0 AND (SELECT string_agg(list, ' ' ORDER BY list) FROM redlock_nodes WHERE state = 'ready') = '$lists'
  FROM redlock_stats
SQL
	return;
}

set_node_lists($_, \@old, \@new) foreach $host_a, $host_b;
has_lists($_, 'both both both now now') foreach $host_a, $host_b;
set_node_lists($host_a, \@new, []);
has_lists($host_a, 'now now now');

my $checkpointer = "FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
my $pid = $host_b->safe_psql('postgres', "SELECT pid $checkpointer");
kill 'KILL', $pid;
$_->restart foreach @old;
ok($host_b->poll_query_until('postgres', "SELECT pid <> $pid $checkpointer"), 'b is back after a crash');
my $waiting = session($host_b);
$waiting->send("SELECT redlock_acquire('waiting', wait => '100 s', scope => 'session') > 0");
my $trying = session($host_a);
ok($host_a->poll_query_until('postgres', "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'"), 'a has its nodes back');
my ($tries, %refused) = (0);
wait_until(
	sub {
		my $state = $trying->run("SELECT redlock_try('try')")->{state};

		$refused{$state}++ if $state !~ /^(?:|08006)$/;
		$tries++;
		return $waiting->done;
	},
	'b takes locks again');
is(join(' ', %refused), '', "... and meanwhile a refused none of its own $tries locks");
is($waiting->result->{out}, 't', 'b gets its lock');
$_->quit foreach $waiting, $trying;

done_testing();
