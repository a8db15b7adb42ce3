# A session that has taken a lock once, and writes to foreign partitions for long.
#
# Protects from: each transaction slower than the one before, since COPYs in functions and
# procedures leave callbacks behind; an error of COPY or TRUNCATE because another session dropped a
# foreign partition, while the statement waited.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $host = redlock_cluster('a', nodes => ['local']);
my $rows = PostgreSQL::Test::Utils::tempdir() . '/rows';
append_to_file($rows, "1\n");
$host->safe_psql('postgres', <<'SQL');
CREATE EXTENSION postgres_fdw;
CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw;
CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
CREATE TABLE parts (k int) PARTITION BY LIST (k);
CREATE TABLE near PARTITION OF parts FOR VALUES IN (1);
CREATE FOREIGN TABLE far PARTITION OF parts FOR VALUES IN (2) SERVER remote;
CREATE FUNCTION load(n int) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN FOR i IN 1..n LOOP COPY parts FROM '/dev/null'; END LOOP; END $$;
CREATE PROCEDURE load_committing(n int) LANGUAGE plpgsql AS
$$ BEGIN FOR i IN 1..n LOOP COPY parts FROM '/dev/null'; COMMIT; END LOOP; END $$;
SQL

my $session = session($host);
my $used = "SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'";

$session->query("SELECT redlock_try('any', scope => 'session'), redlock_release('any')");
foreach my $load ('SELECT load(100)', 'CALL load_committing(100)', 'DO $$ BEGIN PERFORM load(100); END $$')
{
	$session->query($load);
	my $before = $session->query($used);
	$session->query($load) foreach 1 .. 10;
	cmp_ok($session->query($used) - $before, '<', 1000 * 16, "$load leaves no callbacks behind");
}

foreach my $statement ("COPY parts FROM '$rows'", 'TRUNCATE parts')
{
	my $drops = session($host);

	$host->safe_psql('postgres', 'CREATE FOREIGN TABLE gone PARTITION OF parts FOR VALUES IN (3) SERVER remote');
	$host->safe_psql('postgres', 'DROP FOREIGN TABLE far') if $statement =~ /TRUNCATE/;
	$drops->query('BEGIN; DROP FOREIGN TABLE gone');
	$session->send($statement);
	wait_until(sub { $host->safe_psql('postgres', 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid) eq 'Lock' },
		"$statement waits");
	$drops->query('COMMIT');
	my $result = $session->result;
	is("$result->{state} $result->{message}", ' ', "$statement succeeds after the drop of a foreign partition");
	$drops->quit;
}
$session->quit;
done_testing();
