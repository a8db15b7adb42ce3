# An operator follows docs/how-to/recover-a-quorum.md, after a majority of the nodes was lost for
# good: during a change by redlock.nodes_next, and after such a change.
#
# Protects from: a documented recovery after which no host takes locks, because two lists stay in
# force, or because marks of the earlier change stop all hosts.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $page = slurp_file('docs/how-to/recover-a-quorum.md');
my @old = redis_nodes(3);
my @next = redis_nodes(5);
my @fresh = redis_nodes(3);
my @host = map { redlock_cluster($_, nodes => \@old, conf => "redlock.max_ttl = '30s'") } qw(a b);

sub try_on { return psql_result($_[0], "SELECT redlock_try('job')"); }

# Writes lists and further settings into the file of each host, and reloads.
sub give
{
	my ($nodes, $next, $conf) = @_;

	foreach my $host (@host)
	{
		$host->append_conf('postgresql.conf', $conf) if defined $conf;
		set_node_lists($host, $nodes, $next);
	}
	return;
}

# Waits until each host has the nodes alone.
sub have_alone
{
	my ($what, @nodes) = @_;
	my $number = @nodes;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $host (@host)
	{
		wait_until(
			sub { $host->safe_psql('postgres', "SELECT count(*) = $number AND bool_and(list = 'now' AND state = 'ready') FROM redlock_nodes WHERE list <> 'leaving'") eq 't' },
			$host->name . ": $what", 45);
	}
	return;
}

sub take_locks
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $host (@host)
	{
		my $result;

		wait_until(sub { $result = try_on($host); $result->{state} eq '' }, $host->name . " takes locks: $what", 60)
		  or diag($result->{message}, "\n", $result->{detail});
	}
	return;
}

# ---- lost during a change ----

give(\@old, [ @next[ 0 .. 2 ] ]);
wait_nodes_ready($_, 6) foreach @host;
$_->kill9 foreach @old[ 1, 2 ];
my @recovered = ($old[0], @fresh[ 0, 1 ]);
my ($settings) = $page =~ /^(redlock\.nodes_next .*?)```/ms;
$settings //= '';
give(\@recovered, [], $settings);
have_alone('the new list is in force', @recovered);
take_locks('after the new list');
give(\@recovered, [], "redlock.on_disagreement = 'refuse'");
$host[0]->poll_query_until('postgres', "SELECT setting = 'refuse' FROM pg_settings WHERE name = 'redlock.on_disagreement'");
take_locks('with redlock.on_disagreement = refuse');

# ---- lost after a change, with marks at the nodes ----

give(\@recovered, \@next);
wait_nodes_ready($_, 8) foreach @host;
foreach my $host (@host)
{
	wait_until(sub { $host->safe_psql('postgres', 'SELECT unsettled = 0 FROM redlock_stats') eq 't' }, $host->name . ' has both lists');
}
give(\@next, []);
have_alone('the change is done', @next);
$_->kill9 foreach @next[ 2 .. 4 ];
my @smaller = (@next[ 0, 1 ], $fresh[2]);
give(\@smaller, []);
have_alone('the smaller list is in force', @smaller);
my $result;
wait_until(sub { $result = try_on($host[0]); ($result->{message} // "") =~ /the hosts have left the nodes of this server/ },
	'marks of the change stop the host')
  or diag($result->{message});
my ($command) = slurp_file('docs/how-to/replace-nodes.md') =~ /^(REDISCLI_AUTH=secret redis-cli .* EVAL .*mark:redlock:.*)$/m;
foreach my $port (map { $_->port } @next[ 0, 1 ])
{
	my $at = $command =~ s/REDISCLI_AUTH=secret //r =~ s/-h 10\.0\.0\.1 -p 6379/-h 127.0.0.1 -p $port/r;

	is(qx($at), "1\n", 'the documented command deletes a mark');
}
take_locks('without the marks');

done_testing();
