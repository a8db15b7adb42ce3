# Work without locks runs as in a bare server: the same results, the same messages to the client
# and in the log, and no server process dies.
#
# Protects from: a hook, an error context or a timer of redlock_pg left behind, or disturbing, on
# any path of a statement: errors after the executor's run (triggers, deferred constraints, commit),
# utility statements, cursors, procedures with commits, prepared statements, two-phase commits,
# parallel workers, autovacuum, replication; a symbol of redlock_pg with the name of another
# extension's symbol: PostgreSQL loads libraries with RTLD_GLOBAL, so both extensions would use the
# first symbol.
#
# GuestTest has the scripts, and t/guest_other_extensions.t tests other extensions.

use strict;
use warnings;

use GuestTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

# ---- names that redlock_pg adds to the server ----

chomp(my $pkglibdir = qx(pg_config --pkglibdir));
my @names = map { (split)[2] } qx(nm -D --defined-only $pkglibdir/redlock_pg.so);
ok((grep { $_ eq 'redlock_acquire' } @names), 'the library has a function that SQL calls');
is_deeply([grep { !/^(_|Pg_magic_func$|(pg_finfo_)?redlock_)/ } @names], [], 'no name but its own');

ok(!-e "$pkglibdir/bitcode/redlock_pg", 'the library has no bitcode');

# ---- the same results and messages ----

my @nodes = redis_nodes(3);

my $bare = guest_cluster('bare', '');
my $ours = guest_cluster('ours', 'redlock_pg', nodes => \@nodes);
my $postmaster = $ours->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');
my %bare = map { $_ => run_all($bare, $_) } @guest_scopes;

ok(exists $bare{none}[0]{end}, 'the bare server gets to the end of the script');
like($bare{none}[0]{'EXPLAIN ANALYZE of workers'}, qr/Workers Launched: 2/, 'with parallel workers');
foreach my $scope (@guest_scopes)
{
	my $granted = $ours->safe_psql('postgres', 'SELECT granted FROM redlock_stats');

	compare($ours, $scope, $bare{$scope}, with_log => 1);
	$granted = $ours->safe_psql('postgres', 'SELECT granted FROM redlock_stats') - $granted;
	note "$granted locks granted";
	cmp_ok($granted, $scope eq 'none' ? '==' : $scope eq 'session' ? '>=' : '>',
		$scope eq 'none' ? 0 : $scope eq 'session' ? 1 : 50,
		"scope $scope: locks were taken, or none");
}

# ---- the extended protocol ----

my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/extended_$_.sql",
	  "SET guest.scope = '$_';\nBEGIN;\nSELECT take();\nINSERT INTO noisy VALUES (1);\n"
	. "INSERT INTO deferred VALUES (1);\nCOMMIT;\n") foreach @guest_scopes;
append_to_file("$dir/pipeline_$_.sql",
	  "\\startpipeline\nSET guest.scope = '$_';\nSELECT take();\nINSERT INTO noisy VALUES (1);\n"
	. "INSERT INTO child VALUES (1);\nSELECT 1;\n\\endpipeline\n") foreach @guest_scopes;
foreach my $kind ('extended', $bare->pg_version >= 14 ? 'pipeline' : ())
{
	foreach my $scope (@guest_scopes)
	{
		my @said;

		foreach my $host ($bare, $ours)
		{
			foreach my $protocol ('extended', 'prepared')
			{
				my $out = '';

				IPC::Run::run(
					[
						'pgbench', '-n', '-t', '1', '-M', $protocol,
						'-f', "$dir/${kind}_$scope.sql", $host->connstr('postgres')
					],
					'<', \undef, '>', \my $ignored, '2>', \$out,
					IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
				push @{ $said[ $host == $ours ] }, $out;
			}
		}
		# pgbench 16.2 has no words for an error in a pipeline
		like($said[0][0], qr/violates foreign key constraint|aborted in command \d+ query 0: $/m,
			"bare, $kind: an error");
		is_deeply($said[1], $said[0], "$kind, scope $scope: the same by the extended protocol");
	}
}
is($ours->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $postmaster,
	'the server never restarted');

# ---- autovacuum ----

foreach my $host ($bare, $ours)
{
	$host->safe_psql('postgres', <<'SQL');
CREATE FUNCTION tells(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF n = 100 THEN
		RAISE EXCEPTION 'from an index';
	END IF;
	RETURN n;
END $$;
CREATE TABLE vacuumed (id int) WITH (autovacuum_vacuum_threshold = 1, autovacuum_analyze_threshold = 1,
	autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_scale_factor = 0);
CREATE TABLE analyzed (LIKE vacuumed) WITH (autovacuum_analyze_threshold = 1, autovacuum_analyze_scale_factor = 0);
INSERT INTO analyzed SELECT generate_series(1, 99);
CREATE INDEX ON analyzed (tells(id));
INSERT INTO vacuumed SELECT generate_series(1, 1000);
DELETE FROM vacuumed;
ALTER SYSTEM SET autovacuum = on;
ALTER SYSTEM SET autovacuum_naptime = '1s';
SELECT pg_reload_conf();
SQL
	ok( $host->poll_query_until('postgres',
			"SELECT autovacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 'vacuumed'"),
		$host->name . ': autovacuum vacuums');
	# now the index fails, in the worker as well
	$host->safe_psql('postgres', <<'SQL');
CREATE OR REPLACE FUNCTION tells(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RAISE EXCEPTION 'from an index';
END $$;
ALTER TABLE analyzed DISABLE TRIGGER ALL;
DELETE FROM analyzed WHERE id < 50;
SQL
	wait_until(sub { slurp_file($host->logfile) =~ /ERROR: .*from an index.*\n(?:.*\n){0,4}.*automatic analyze of table/ },
		$host->name . ': it meets an error');
	$host->safe_psql('postgres', 'DROP TABLE analyzed');
}

# ---- replication ----

foreach my $host ($bare, $ours)
{
	# a physical copy, and a standby of it
	my $name = $host->name;
	my $standby = PostgreSQL::Test::Cluster->new("standby_of_$name");

	$host->backup('copy');
	$standby->init_from_backup($host, 'copy', has_streaming => 1);
	$standby->start;
	$host->safe_psql('postgres', 'INSERT INTO kept VALUES (42)');
	$host->wait_for_catchup($standby, 'replay');
	is($standby->safe_psql('postgres', 'SELECT id FROM kept'), 42, "$name: its standby follows");
	is(($standby->psql('postgres', 'SELECT 1 / (3 - i) FROM generate_series(1, 5) i', on_error_stop => 0))[0],
		0, "$name: an error on its standby");
	is_quiet($standby);
	$standby->stop;

	# logical: the apply worker fires triggers with messages and errors
	my $publisher = $host;
	my $subscriber = guest_cluster("subscriber_of_$name", $host == $ours ? 'redlock_pg' : '', nodes => \@nodes);

	$publisher->safe_psql('postgres',
		'CREATE TABLE copied (id int PRIMARY KEY); CREATE PUBLICATION guest FOR TABLE copied');
	$subscriber->safe_psql('postgres', <<"SQL");
CREATE TABLE copied (id int PRIMARY KEY);
CREATE TRIGGER after_row AFTER INSERT ON copied FOR EACH ROW EXECUTE FUNCTION noisy_trigger();
ALTER TABLE copied ENABLE ALWAYS TRIGGER after_row;
CREATE SUBSCRIPTION guest CONNECTION '@{[ $publisher->connstr ]} dbname=postgres' PUBLICATION guest;
SQL
	ok( $subscriber->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM pg_subscription_rel WHERE srsubstate = 'r'"),
		"$name: has a subscriber");
	$publisher->safe_psql('postgres', 'INSERT INTO copied VALUES (1); INSERT INTO copied VALUES (-2)');
	wait_until(sub { slurp_file($subscriber->logfile) =~ /ERROR: .*negative: -2/ },
		"$name: a trigger fails in the apply worker of its subscriber");
	$subscriber->safe_psql('postgres', 'ALTER TABLE copied DISABLE TRIGGER after_row');
	ok($subscriber->poll_query_until('postgres', 'SELECT count(*) = 2 FROM copied'),
		"$name: which gets over it");
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION guest');
	is_quiet($subscriber);
	$subscriber->stop;
}
is($ours->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $postmaster,
	'the server never restarted');
is_quiet($ours);
$_->stop foreach $bare, $ours;
done_testing();
