# Work without locks runs beside other extensions as without redlock_pg, whether the other libraries
# are loaded earlier or later.
#
# Protects from: a hook of redlock_pg disturbing another extension's hook, or not calling this hook;
# a hook of another extension finding an unexpected state; work counted twice, or not at all.  All
# faults on each path of a statement, errors too.
#
# GuestTest has the scripts, and t/guest_server.t tests the server alone.

use strict;
use warnings;

use GuestTest;
use RedlockTest;
use Test::More;

my $pkglibdir = qx(pg_config --pkglibdir);
chomp $pkglibdir;
my @others = grep { -e "$pkglibdir/$_.so" } 'pg_stat_statements', 'auto_explain', 'pg_cron';
plan skip_all => "no other extension in $pkglibdir" unless @others;

my @nodes  = redis_nodes(3);
my $others = join ', ', @others;
my (%calls, %bare);

note "beside $others";
foreach my $libraries ($others, "redlock_pg, $others", "$others, redlock_pg")
{
	my $host = guest_cluster(
		$libraries =~ s/\W+/_/gr, $libraries,
		nodes => \@nodes,
		conf  => <<'CONF');
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_triggers = on
pg_stat_statements.track = all
CONF
	my $started = $host->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');

	foreach my $extension (grep { $_ ne 'auto_explain' } @others)
	{
		$host->safe_psql('postgres', "CREATE EXTENSION $extension");
	}
	$host->safe_psql('postgres', 'SELECT pg_stat_statements_reset()')
	  if $others =~ /pg_stat_statements/;
	foreach my $scope (@guest_scopes)
	{
		if ($libraries eq $others)
		{
			$bare{$scope} = run_all($host, $scope);
		}
		else
		{
			compare($host, $scope, $bare{$scope});
		}
		next unless $scope eq 'none' && $others =~ /pg_stat_statements/;
		my $seen = $host->safe_psql('postgres',
			"SELECT query, toplevel, calls, rows FROM pg_stat_statements WHERE query !~ 'redlock|take|holds|pg_' ORDER BY 1, 2");

		if ($libraries eq $others)
		{
			$calls{bare} = $seen;
		}
		else
		{
			is($seen, $calls{bare}, "$libraries: pg_stat_statements counts what it does without us");
		}
	}
	is($host->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $started,
		"$libraries: the server never restarted");
	is_quiet($host);
	$host->stop;
}

done_testing();
