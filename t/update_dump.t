# pg_dump and pg_restore of a database that uses redlock_pg.
#
# Protects from: a dump waiting for a session past a fence, or including the fence's row; a
# restore failing, also without a preloaded library, or bringing old fences; a fence not
# working after a restore; lost privileges of the extension, or lost objects of users depending on
# the extension; a failed restore of a database of an earlier release.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('host', nodes => \@nodes, conf => "redlock.ttl = '60s'");
my $bare  = PostgreSQL::Test::Cluster->new('bare');

$bare->init;
$bare->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$bare->start;
$_->safe_psql('postgres', 'CREATE ROLE batch') foreach $host, $bare;

my $privileges = <<'SQL';
SELECT p.proname, has_function_privilege('public', p.oid, 'EXECUTE'), has_function_privilege('batch', p.oid, 'EXECUTE')
  FROM pg_proc p WHERE p.proname LIKE 'redlock%'
UNION ALL
SELECT c.relname, has_table_privilege('public', c.oid, 'SELECT'), has_table_privilege('batch', c.oid, 'SELECT')
  FROM pg_class c WHERE c.relname LIKE 'redlock%' AND c.relkind IN ('r', 'v')
 ORDER BY 1
SQL
my $trigger = "SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'redlock_fences'::regclass";

# Users' objects on top of the extension, with the statements of docs/how-to/upgrade.md.
sub furnish
{
	my ($db, $takers) = @_;

	$host->safe_psql($db, <<"SQL");
REVOKE EXECUTE ON ROUTINE $takers, redlock_run,
    redlock_release_all, redlock_token, redlock_fence FROM PUBLIC;
GRANT EXECUTE ON ROUTINE $takers, redlock_run,
    redlock_release_all, redlock_token, redlock_fence TO batch;
REVOKE SELECT ON redlock_nodes, redlock_fences FROM PUBLIC;
CREATE VIEW my_locks AS SELECT resource, state, valid_for FROM redlock_locks;
CREATE TABLE my_scopes (scope redlock_scope DEFAULT 'session', done boolean);
INSERT INTO my_scopes VALUES ('call', true);
CREATE PROCEDURE my_job() LANGUAGE plpgsql AS \$\$
BEGIN
    PERFORM redlock_fence('job');
    INSERT INTO my_scopes VALUES (DEFAULT, true);
END \$\$;
SQL
	$host->safe_psql($db, "CALL redlock_run('job', 'CALL my_job()')");
	return;
}

# Dumps a database and restores it elsewhere.
sub move
{
	my ($from, $to_host, $to, $version) = @_;
	my $dump = $host->backup_dir . "_$to.dump";

	command_ok([ 'pg_dump', '-Fc', '-d', $host->connstr($from), '-f', $dump ], "$to: dumped");
	$to_host->safe_psql('postgres', "CREATE DATABASE $to");
	$to_host->safe_psql($to, "CREATE EXTENSION redlock_pg VERSION '$version'") if $version;
	command_ok([ 'pg_restore', '--exit-on-error', '-d', $to_host->connstr($to), $dump ], "$to: restored");
	is($to_host->safe_psql($to, 'SELECT count(*) FROM redlock_fences'), '0', "$to: without fences");
	is($to_host->safe_psql($to, 'SELECT * FROM my_scopes ORDER BY scope'), "call|t\nsession|t", "$to: with the data of users");
	# a later version has more
	my %has = map { $_ => 1 } split /\n/, $to_host->safe_psql($to, $privileges);
	is_deeply([ grep { !$has{$_} } split /\n/, $host->safe_psql($from, $privileges) ], [], "$to: with privileges");
	is($to_host->safe_psql($to, $trigger), 'redlock_fence_merge|R', "$to: with the trigger for replication only");
	return;
}

$host->safe_psql('postgres', 'CREATE DATABASE present');
$host->safe_psql('present', 'CREATE EXTENSION redlock_pg');
furnish('present', <<'SQL');
    redlock_acquire, redlock_acquire_all, redlock_try, redlock_try_all, redlock_try_detached, redlock_lock, redlock_lock_all,
    redlock_run_all, redlock_release(text), redlock_release(text, bigint), redlock_check(text), redlock_check(text, bigint),
    redlock_extend, redlock_attach, redlock_release_wanted
SQL
cmp_ok($host->safe_psql('present', $privileges) =~ tr/\n//, '>', 20, 'privileges of all functions and relations are compared');

# a session has passed a fence, and its transaction is open
my $session = session($host, dbname => 'present');
my $old = $session->query("SELECT redlock_acquire('kept', scope => 'session')");
$session->query("BEGIN; SELECT redlock_fence('kept')");
move('present', $host, 'restored');
$session->query('COMMIT; SELECT redlock_release_all()');
$session->quit;

is($host->safe_psql('restored', 'SELECT count(*) FROM my_locks'), '0', 'a view of users works');
$host->safe_psql('restored', "CALL redlock_run('job', 'CALL my_job()')");
$host->safe_psql('restored', "CALL redlock_run('kept', 'SELECT redlock_fence(''kept'')')");
is( $host->safe_psql('restored', "SELECT resource, token > $old FROM redlock_fences ORDER BY resource"),
	"job|t\nkept|t",
	'fences begin anew, with larger tokens');

# This server knows no nodes.
move('present', $bare, 'unloaded');
like(psql_result($bare, '\c unloaded' . "\nSELECT redlock_try('n')")->{hint}, qr/shared_preload_libraries/, 'a call says what to do');

# of an earlier release, as docs/how-to/upgrade.md says
$host->safe_psql('postgres', 'CREATE DATABASE earlier');
$host->safe_psql('earlier', "CREATE EXTENSION redlock_pg VERSION '0.1.0'");
furnish('earlier', 'redlock_acquire, redlock_try, redlock_release, redlock_check');
move('earlier', $host, 'updated', '0.1.0');
$host->safe_psql('updated', 'ALTER EXTENSION redlock_pg UPDATE');
is( $host->safe_psql('updated', "SELECT extversion FROM pg_extension WHERE extname = 'redlock_pg'"),
	$host->safe_psql('restored', "SELECT extversion FROM pg_extension WHERE extname = 'redlock_pg'"),
	'a restored database has the present version');
is($host->safe_psql('updated', "$privileges") =~ s/^redlock_(?:release_idle|(?:ask|force)_release|inspect|holders).*\n//mgr,
	$host->safe_psql('restored', $privileges) =~ s/^redlock_(?:release_idle|(?:ask|force)_release|inspect|holders).*\n//mgr,
	'with the privileges of before');

done_testing();
