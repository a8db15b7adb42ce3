# A host crashes in the middle of a change of nodes, after another host has taken step 2.
#
# Protects from: requests of the returning host, which no node has granted, looking to other hosts
# like leases by the former list alone, so that these hosts take no locks.
#
# The nodes restart with the host: so the host asks them for a while whether there are other hosts.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @old = redis_nodes(5);
my @new = @old[ 0 .. 2 ];
my ($a, $b) = map {
	redlock_cluster($_, nodes => \@old, conf => "redlock.ttl = '3s'\nredlock.max_ttl = '3s'\nrestart_after_crash = on")
} qw(a b);

sub put
{
	my ($host, $nodes, $next) = @_;

	$host->append_conf('postgresql.conf',
		"redlock.nodes = '" . node_urls(@$nodes) . "'\nredlock.nodes_next = '" . node_urls(@$next) . "'\n");
	$host->reload;
	return;
}

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

put($_, \@old, \@new) foreach $a, $b;
has_lists($_, 'both both both now now') foreach $a, $b;
put($a, \@new, []);
has_lists($a, 'now now now');

my $pid = $b->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
kill 'KILL', $pid;
$_->restart foreach @old;
$b->poll_query_until('postgres', 'SELECT true');
my $waiting = session($b);
$waiting->send("SELECT redlock_acquire('waiting', wait => '100 s', scope => 'session') > 0");
my $trying = session($a);
ok($a->poll_query_until('postgres', "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'"), 'a has its nodes back');
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
