# redlock.restrict on servers: grants in other sessions, on a standby, in a dump, in each encoding.
#
# Protects from: a session going on with a revoked grant, in a long transaction or on a standby; a
# revoke taking a held lock, or its release; a procedure waiting with a snapshot after reading the
# grants; a crash, or old grants, after the extension was dropped; a client turning the restriction
# off; a failing restore of a dump; grants reaching a role with the name of a dropped or renamed
# role.

use strict;
use warnings;

use ExecTest;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my %options = (nodes => \@nodes, conf => "redlock.ttl = '60s'\nautovacuum = off");
my $host  = redlock_cluster('host', %options, init => { allows_streaming => 1 });
my $admin = session($host);

$admin->query("CREATE ROLE $_ LOGIN") foreach qw(tenant other);
$admin->query('ALTER DATABASE postgres SET redlock.restrict = on');

# A session that acts as the role.
sub session_as
{
	my ($role, $cluster, %more) = @_;
	my $session = session($cluster // $host, %more);

	$session->query("SET ROLE $role");
	return $session;
}

sub is_denied
{
	my ($session, $sql, $what) = @_;
	my $result = $session->run($sql);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$result->{state} $result->{message}", '42501 permission denied for redlock "own/1"', $what);
	return;
}

# ---- another session grants and revokes ----

my $tenant = session_as('tenant');
my $try = "SELECT redlock_try('own/1')";

is($admin->query('SHOW redlock.restrict'), 'off', 'the setting of a database is for new sessions');
is_denied($tenant, $try, 'no grant');
$admin->query("SELECT redlock_grant('tenant', 'own/%')");
is($tenant->query($try), 't', 'a grant counts at once');
$tenant->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($tenant->query("SELECT redlock_try('own/1'), redlock_try('own/2', scope => 'session')"), 't|t', 'a transaction holds locks');
$admin->query("BEGIN; SELECT redlock_revoke('tenant', 'own/%')");
is($tenant->query("SAVEPOINT s; $try"), 't', 'a revoke counts not before its commit');
$admin->query('COMMIT');
is_denied($tenant, $try, 'and then at once, also in a transaction with an older snapshot');
is($tenant->query("ROLLBACK TO s; SELECT redlock_check('own/1') > '0'"), 't', 'the held lock stays');
is($tenant->query('COMMIT'), '', 'the transaction commits');
is($tenant->query("SELECT redlock_release('own/2')"), 't', 'a lock of session scope can be released');
is($admin->query("SELECT redlock_try('own/1', scope => 'session'), redlock_release('own/1')"), 't|t', 'both are free');

# many roles of one session
$admin->query("CREATE ROLE group_of_many; SELECT redlock_grant('group_of_many', 'own/%'); SELECT redlock_grant('tenant', 'own/%')");
$admin->query("CREATE ROLE many$_; SELECT redlock_grant('many$_', 'many$_')") foreach 1 .. 10;
my $many = session($host);
my $wrong = 0;
foreach my $round (1 .. 3)
{
	foreach my $n (1 .. 10)
	{
		my $next = $n % 10 + 1;

		$many->query("SET ROLE many$n");
		$wrong++ if $many->query("SELECT redlock_try('many$n')") ne 't';
		$wrong++ if $many->run("SELECT redlock_try('many$next')")->{state} ne '42501';
	}
}
is($wrong, 0, 'a session with many roles: each has its own patterns');
$many->quit;

# ---- clients ----

is($tenant->run('SET redlock.restrict = off')->{state}, '42501', 'the role cannot turn it off');
{
	local $ENV{PGOPTIONS} = '-c redlock.restrict=off';
	my ($status, undef, $error) = $host->psql('postgres', 'SELECT 1', extra_params => [ '-U', 'tenant' ]);
	isnt($status, 0, 'nor can its client');
	like($error, qr/permission denied to set parameter "redlock.restrict"/, 'for lack of the right');
}
my $run = exec_start($host, [ '-U', 'tenant', 'n/1' ], ['true']);
is($run->code, 125, 'redlock-exec fails');
like($run->err, qr/permission denied for redlock "n\/1".*redlock_grant\('tenant', 'n\/1'\)/s, 'with the reason and the way out');
is(exec_code($host, [ '-U', 'tenant', 'own/1' ], ['true']), 0, 'and runs a command under a lock of the role');

# ---- procedures wait without a snapshot ----

my $holder = session_as('tenant');
$holder->query("SELECT redlock_acquire_all(ARRAY['own/1', 'own/2'], scope => 'session')");
foreach my $call ("redlock_lock('own/1')", "redlock_lock_all(ARRAY['own/2', 'own/1'])", "redlock_run('own/1', 'SELECT 1', wait => '1 h')")
{
	$tenant->quit;
	$tenant = session_as('tenant'); # a session that has not read the grants
	$tenant->send("CALL $call");
	my $pid = $tenant->pid;
	wait_until(
		sub { $admin->query("SELECT count(*) > 0 FROM redlock_locks WHERE state IN ('waiting', 'queued') AND pid = $pid") eq 't' },
		"$call waits");
	is($admin->query("SELECT backend_xmin FROM pg_stat_activity WHERE pid = $pid"), '', "$call: no snapshot");
	$admin->query("SELECT pg_cancel_backend($pid)");
	is($tenant->result->{state}, '57014', "$call: cancelled");
}
$holder->query('SELECT redlock_release_all()');
$holder->quit;

# ---- a standby ----

$host->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($host, 'copy', has_streaming => 1);
$standby->start;
wait_nodes_ready($standby, 3);
my $there = session_as('tenant', $standby);
is($there->query($try), 't', 'the grants count on a standby');
$there->query('BEGIN');
is($there->query('SELECT redlock_try(\'own/3\')'), 't', 'in a transaction');
$admin->query("SELECT redlock_revoke('tenant', 'own/%')");
wait_until(sub { $there->query('SAVEPOINT s'); $there->run("SELECT redlock_try('own/3')")->{state} eq '42501' }, 'a revoke reaches the standby');
$there->query('ROLLBACK');
$admin->query("GRANT group_of_many TO tenant");
wait_until(sub { $there->run($try)->{out} eq 't' }, 'a membership, too');
is($there->run("SELECT redlock_grant('tenant', 'x')")->{state}, '42501', 'nobody grants there: a role without the right');
is(psql_result($standby, "SELECT redlock_grant('tenant', 'x')")->{state}, '25006', 'and a superuser');
$there->quit;
$standby->stop;
$admin->query('REVOKE group_of_many FROM tenant');

# ---- a role is dropped while its session lives ----

$admin->query("CREATE ROLE brief; SELECT redlock_grant('brief', 'own/%')");
my $brief = session_as('brief');
is($brief->query($try), 't', 'a role with a grant');
$admin->query('DROP ROLE brief');
is_denied($brief, $try, 'its session has no grant after the role was dropped');
undef $brief;
$admin->query('DELETE FROM redlock_grants WHERE role = $$brief$$');

# ---- the extension is dropped and created ----

$admin->query("SELECT redlock_grant('tenant', 'own/%')");
is($tenant->query($try), 't', 'a session has read the grants');
$tenant->query("PREPARE try AS $try; EXECUTE try");
$admin->query('SET client_min_messages = error; DROP EXTENSION redlock_pg CASCADE');
is($tenant->run('EXECUTE try')->{state}, '42883', 'no function is left');
$admin->query('CREATE EXTENSION redlock_pg');
is_denied($tenant, $try, 'the grants are gone with the extension');
# objects of an older release
$admin->query("DROP EXTENSION redlock_pg; CREATE EXTENSION redlock_pg VERSION '0.1.0'");
my $result = $tenant->run($try);
is("$result->{state} $result->{message}", '55000 redlock.restrict is on, and this database has no table redlock_grants', 'no table');
like($result->{hint}, qr/ALTER EXTENSION redlock_pg UPDATE/, 'with the remedy');
is($admin->query("SET redlock.restrict = on; $try"), 't', 'a superuser needs no table');
$admin->query('ALTER EXTENSION redlock_pg UPDATE');
is_denied($tenant, $try, 'after the update');
# in another schema than the first of the search path
$admin->query('CREATE SCHEMA locks; ALTER EXTENSION redlock_pg SET SCHEMA locks');
$admin->query("SELECT locks.redlock_grant('tenant', 'own/%'); GRANT USAGE ON SCHEMA locks TO tenant");
is($tenant->query("SELECT locks.redlock_try('own/1')"), 't', 'the extension in another schema');
my ($advice) = $tenant->run("SELECT locks.redlock_try('it''s \\')")->{hint} =~ /run: (SELECT .*;)/;
is($admin->query($advice), 't', 'the statement in a hint runs there');
is($tenant->query("SELECT locks.redlock_try('it''s \\')"), 't', 'and grants the name');
$admin->query('CREATE ROLE brief; SELECT locks.redlock_grant($$brief$$, $$%$$), locks.redlock_grant($$tenant$$, $$x$$); ALTER ROLE tenant RENAME TO renter; DROP ROLE brief');
foreach my $what (qw(dropped renamed))
{
	($advice) = $admin->query("SELECT remedy FROM locks.redlock_diagnose() WHERE subject = 'grants' AND finding LIKE 'Grants of $what %'") =~ /^Run (SELECT .*)\.$/;
	$admin->query($advice);
	is($admin->query("SELECT count(*) FROM locks.redlock_diagnose() WHERE finding LIKE 'Grants of $what %'"), '0', "so does the remedy for grants of $what roles");
}
$admin->query('ALTER ROLE renter RENAME TO tenant; SELECT locks.redlock_grant(role_id, pattern) FROM locks.redlock_grants');
$admin->query("DELETE FROM locks.redlock_grants WHERE pattern <> 'own/%'");
$admin->query('ALTER EXTENSION redlock_pg SET SCHEMA public');
is($tenant->query($try), 't', 'and back');

# ---- dumps ----

my $target = redlock_cluster('target', %options);
my $dump = $host->backup_dir . '_grants.dump';

$admin->query("CREATE ROLE $_") foreach qw(missing dropped renamed);
$target->safe_psql('postgres', "CREATE ROLE $_") foreach qw(filler dropped tenant renamed);
$admin->query("SELECT redlock_grant(r, '$_') FROM unnest('{missing,dropped,renamed}'::regrole[]) r") foreach '%', 'a\\_b';
$admin->query("ALTER ROLE renamed RENAME TO another; DROP ROLE dropped");
command_ok([ 'pg_dump', '-Fc', '-d', $host->connstr('postgres'), '-f', $dump ], 'dumped');
$target->safe_psql('postgres', 'CREATE DATABASE restored');
my ($out, $error) = ('', '');
ok(run_log([ 'pg_restore', '--exit-on-error', '-d', $target->connstr('restored'), $dump ], '>', \$out, '2>', \$error), 'restored') or diag($error);
is($target->safe_psql('restored', "SELECT role, pattern, role_id = role::regrole FROM redlock_grants ORDER BY 1, 2"),
	"tenant|own/%|t", 'the grants of a role that both clusters have, by its name; not of a dropped or renamed role');
isnt($target->safe_psql('restored', "SELECT 'tenant'::regrole::oid"), $admin->query("SELECT 'tenant'::regrole::oid"), 'which has another OID there');
$target->safe_psql('postgres', 'ALTER DATABASE restored SET redlock.restrict = on');
my $restored = session_as('tenant', $target, dbname => 'restored');
is($restored->query($try), 't', 'it has its names');
is($restored->run("SELECT redlock_try('x')")->{state}, '42501', 'and no others');
$restored->quit;

# in the same cluster: all grants of the dump
$admin->query('CREATE DATABASE again');
command_ok([ 'pg_restore', '--exit-on-error', '-d', $host->connstr('again'), $dump ], 'restored beside the original');
is($host->safe_psql('again', 'SELECT role, pattern FROM redlock_grants ORDER BY 1, 2'), "missing|%\nmissing|a\\_b\ntenant|own/%", 'the same grants');

# ---- findings of redlock_diagnose ----

is($admin->query("SELECT count(*), string_agg(finding, ' ' ORDER BY finding) FROM redlock_diagnose() WHERE subject = 'grants'"),
	'2|Grants of dropped roles in redlock_grants: 2. Grants of renamed roles in redlock_grants, which pg_dump leaves out: 2.',
	'grants of dropped and renamed roles are found');
my $remedies = $admin->query("SELECT string_agg(substring(remedy FROM 'Run (.*)\\.\$'), ';' ORDER BY finding) FROM redlock_diagnose() WHERE subject = 'grants'");
$admin->query($_) foreach split /;/, $remedies;
is($admin->query("SELECT severity, finding FROM redlock_diagnose() WHERE subject = 'grants'"),
	'ok|redlock.restrict is on. Grants in redlock_grants: 5.', 'the remedies work');
like($admin->query("SET redlock.restrict = off; SELECT severity, finding FROM redlock_diagnose() WHERE subject = 'grants'"),
	qr/^warning\|.* Grants without effect in redlock_grants: 5\.$/, 'grants without the setting');
like($admin->query("SET redlock.restrict = on; TRUNCATE redlock_grants; SELECT severity, finding FROM redlock_diagnose() WHERE subject = 'grants'"),
	qr/^warning\|.* no role has a grant/, 'the setting without grants');
is_denied($tenant, $try, 'a truncated table has no grants');
is($admin->query("SET redlock.restrict = off; SELECT severity FROM redlock_diagnose() WHERE subject = 'grants'"), 'ok', 'neither');

# ---- encodings ----

$admin->query("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
$host->safe_psql('latin', "CREATE EXTENSION redlock_pg; ALTER DATABASE latin SET redlock.restrict = on");
my $latin = session($host, dbname => 'latin');
$latin->query("SET client_encoding = 'UTF8'; SELECT redlock_grant('tenant', '\xc3\xa9_')");
$latin->query('SET ROLE tenant');
is($latin->query("SELECT redlock_try('\xc3\xa9\xc3\xa8')"), 't', 'a character is one character');
is($latin->run("SELECT redlock_try('\xc3\xa8\xc3\xa8')")->{state}, '42501', 'and not another');
like($latin->run("SELECT redlock_try('\xc3\xa8\xc3\xa8')")->{detail}, qr/names like '\xc3\xa9_'\.$/, 'the error has the pattern');
$_->quit foreach $latin, $tenant, $admin;

done_testing();
