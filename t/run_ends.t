# redlock_runs: rows of runs that failed before their command began, reasons of skipped and lost
# runs, runs of other starts of the server and of its copies, and the cost of the record.
#
# Protects from: a run without a row after a missing quorum, a refusal by the fence or a syntax
# error; a row without a reason; a promoted copy ending the runs of a live server; runs of a
# crashed server staying "running"; a DELETE reading the whole table or being compiled, in each
# run on each host; a table growing for ever; a bare number in redlock.runs_keep deleting history;
# single-user mode waiting for a broker; rows of a command that fill the memory of the session; an
# error without a message ending the server; a run that blames a user for the loss of an outer lock.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes, conf => <<'CONF', init => { allows_streaming => 1 });
redlock.ttl = '60s'
redlock.node_timeout = '200ms'
session_preload_libraries = 'auto_explain'
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_min_duration = -1
jit = on
CONF
my ($session, $other, $gate) = map { session($host) } 1 .. 3;

# The last run of a resource.
sub run_of
{
	my ($resource, $columns, $on) = @_;
	return ($on // $host)->safe_psql('postgres',
		"SELECT $columns FROM redlock_runs WHERE resource = '$resource' ORDER BY started DESC, ended DESC LIMIT 1");
}

sub recorded
{
	my ($resource, $expected, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { run_of($resource, 'status, message') =~ $expected }, $description)
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_runs'));
	return;
}

# ---- rows of the command do not stay in memory ----

sub peak_mb
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? int($1 / 1024) : die;
}

{
	my $of_rows = session($host);
	my $pid = $of_rows->query('SELECT pg_backend_pid()');

	$of_rows->query("CALL redlock_run('rows', 'SELECT 1')");
	my $before_mb = peak_mb($pid);
	$of_rows->query("CALL redlock_run('rows', 'SELECT repeat(''x'', 100) FROM generate_series(1, 1000); SELECT generate_series(1, 1000000)')");
	cmp_ok(peak_mb($pid) - $before_mb, '<', 30, 'a million rows of a command take no memory');
	$of_rows->quit;
}

# ---- a run that failed before its command began ----

$session->query("SET application_name = 'x'; CREATE ROLE worker; SET ROLE worker");
is($session->run("CALL redlock_run('syntax', 'SELEKT 1', record => true)")->{state}, '42601', 'a command that is none');
recorded('syntax', qr/^failed\|syntax error at or near "SELEKT"$/, '... is recorded');
is(run_of('syntax', "command, role, database, host, token IS NULL, pid = @{[$session->pid]}, ended >= started, host_id"),
	'SELEKT 1|worker|postgres|a|t|t|t|' . host_id($host), '... with all of it');
$session->query('RESET ROLE');

$other->query("SELECT redlock_acquire('busy', scope => 'session')");
is($session->run("SET lock_timeout = '100ms'; CALL redlock_run('busy', 'SELECT 1', wait => '1 min', record => true); RESET lock_timeout")->{state}, '55P03', 'a wait that lock_timeout ends');
recorded('busy', qr/^failed\|could not acquire redlock "busy" within 100 ms \(lock_timeout\)\. /, '... is recorded, with the detail');
$session->query('RESET lock_timeout');

$session->send("CALL redlock_run('busy', 'SELECT 1', wait => '1 min', record => true)");
wait_until(sub { $host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE pid = @{[$session->pid]} AND state = 'queued'") eq '1' }, 'one that waits');
$host->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
is($session->result->{state}, '57014', '... and is cancelled');
recorded('busy', qr/^failed\|canceling statement due to user request$/, '... is recorded');

$host->safe_psql('postgres', "INSERT INTO redlock_fences VALUES ('fenced', 9000000000000000000, now())");
is($session->run("CALL redlock_run('fenced', 'SELECT 1', fence => true, record => true)")->{state}, '40001', 'a run that the fence refuses');
recorded('fenced', qr/^failed\|/, '... is recorded');
is($session->query("SELECT redlock_token('fenced') IS NULL"), 't', '... and has released the lock');

$_->kill9 foreach @nodes[ 0, 1 ];
is($session->run("CALL redlock_run('no quorum', 'SELECT 1', record => true)")->{state}, '08006', 'a run without a quorum');
recorded('no quorum', qr/^failed\|no quorum of redlock nodes could be reached for "no quorum"\. No usable answer from: /, '... is recorded');
$_->start foreach @nodes[ 0, 1 ];
wait_nodes_ready($host, 3);

# ---- reasons of skipped and lost runs ----

$session->query("CALL redlock_run('busy', 'SELECT 1', record => true)");
recorded('busy', qr/^skipped\|Process \d+ of this server \(database "postgres", role "\w+"\) has held the lock since /, 'a run is skipped, and says that the lock is held here');
my $b = redlock_cluster('b', nodes => \@nodes, conf => "cluster_name = 'b'");
my $there = session($b);
$there->query("SELECT redlock_acquire('elsewhere', scope => 'session')");
$session->query("CALL redlock_run('elsewhere', 'SELECT 1', record => true)");
recorded('elsewhere', qr/^skipped\|The lock was granted to: .*\bpid=@{[$there->pid]}\b/, '... or the holder on another host');
$there->query('SELECT redlock_release_all()');
$b->stop;

my $lost = $session->run("CALL redlock_run('lost', 'SELECT pg_sleep(100)', record => true, hold_at_most => '300 ms')");
is($lost->{state}, '57014', 'a run that loses its lock');
recorded('lost', qr/^lost\|canceling statement because the lease on redlock "lost" was lost\. The hold_at_most of 300 ms has ended\.$/, '... says why it was lost');
$session->query('SET redlock.on_loss = error');
is($session->run("CALL redlock_run('lost', 'SELECT pg_sleep(0.5); CREATE TABLE never ()', record => true, hold_at_most => '300 ms')")->{state}, '40001', 'a run whose lost lock is noticed at the commit');
recorded('lost', qr/^lost\|the lease on redlock "lost" was lost before the commit\. The hold_at_most of /, '... says so, once');
$session->query('RESET redlock.on_loss');

# ---- the cost of the record ----

$host->safe_psql('postgres', 'DELETE FROM redlock_runs; VACUUM redlock_runs');
sub explained
{
	my ($resource) = @_;
	my $from = -s $host->logfile;

	$session->run("SET auto_explain.log_min_duration = 0; CALL redlock_run('$resource', 'SELECT 1', record => true); SET auto_explain.log_min_duration = -1");
	return slurp_file($host->logfile, $from);
}
sub costs
{
	my ($description) = @_;
	my $log = explained('job');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($log, qr/DELETE FROM public\.redlock_runs.*Index Scan using redlock_runs_started on redlock_runs.*\n\s+Index Cond: \(started < '/s, "$description: an index finds what is old");
	unlike($log, qr/JIT:/, '... nothing is compiled');
	unlike($log, qr/Seq Scan on redlock_runs/, '... nor read as a whole');
	return;
}
sub fill
{
	my ($number, $age) = @_;
	$host->safe_psql('postgres', <<SQL);
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, host_id, session, started, status)
SELECT 'fill', '', 'a', 'postgres', 'x', 1, 1, '1', 1, now() - interval '$age' + n * interval '1 ms', 'succeeded'
  FROM generate_series(1, $number) n;
SQL
	return;
}
sub rows { return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource = 'fill'"); }

costs('an empty table');
fill(20000, '1 day');
$host->safe_psql('postgres', 'ANALYZE redlock_runs');
costs('one with many rows');
unlike(explained('busy'), qr/redlock_runs SET|SELECT session/, 'a run that is skipped looks for none that are over');

$host->safe_psql('postgres', "DELETE FROM redlock_runs WHERE resource = 'fill'");
fill(2500, '31 days');
$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
is(rows(), '1500', 'a run deletes a thousand of them, the oldest');
is($host->safe_psql('postgres', "SELECT max(started) - min(started) < interval '1500 ms' FROM redlock_runs WHERE resource = 'fill'"), 't', '... the oldest');
my $skips = 0;
while (rows() > 0 && $skips < 5000)
{
	$session->run("DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP CALL redlock_run('busy', 'SELECT 1', record => true); END LOOP; END \$\$");
	$skips += 50;
}
is(rows(), '0', "those that are skipped delete the rest now and then ($skips were skipped)");

# ---- a number without a unit ----

my $bare = $session->run('ALTER SYSTEM SET redlock.runs_keep = 30');
is($bare->{state}, '22023', 'redlock.runs_keep is not half a minute');
is($bare->{detail}, 'The value is 30 seconds; the minimum is one day.', '... the detail has the value and the minimum');
is($bare->{hint}, 'Write a unit, for example "30 d"; 0 keeps the rows for ever.', '... and what to write');
is($session->run("ALTER SYSTEM SET redlock.runs_keep = $_")->{state}, '22023', "$_ is not accepted") foreach -1, 3650, "'23 h'";
is($session->run("ALTER SYSTEM SET redlock.runs_keep = $_")->{state}, '', "$_ is accepted") foreach 0, "'1 d'", "'3650 d'";
$session->query('ALTER SYSTEM RESET redlock.runs_keep');

# ---- a copy of the server ----

$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('copied', 'SELECT pg_advisory_xact_lock(1)', record => true)");
recorded('copied', qr/^running/, 'a run');
my $session_gone = session($host);
$session_gone->send("CALL redlock_run('gone', 'SELECT pg_advisory_xact_lock(1)', record => true)");
recorded('gone', qr/^running/, 'another');
$host->backup('copy');
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($host, 'copy', has_streaming => 1);
$copy->append_conf('postgresql.conf', "cluster_name = 'copy'");
$copy->start;
$copy->promote;
wait_nodes_ready($copy, 3);
my $on_copy = session($copy);
my $next = "CALL redlock_run('next', 'SELECT 1', record => true)";
$on_copy->query($next);
is(run_of('copied', 'status, message', $copy), 'running|', 'a promoted copy does not end a run of the server that lives');

# ---- an error of another extension, without a message ----

{
	my $library = guest_library('no_message') // die 'no library';

	$host->safe_psql('postgres', "CREATE FUNCTION no_message() RETURNS void LANGUAGE C AS '$library'");
	is($other->run("CALL redlock_run('no message', 'SELECT no_message()', record => true)")->{state}, '22000', 'an error without a message');
	recorded('no message', qr/^failed\|missing error text$/, '... is recorded with the words of PostgreSQL');
}

# ---- the loss of an outer lock ----

$gate->query('SELECT pg_advisory_lock(2)');
my $lost = $other->run("CALL redlock_run('outer', \$\$ CALL redlock_run('inner', 'SELECT pg_advisory_xact_lock(2)', record => true) \$\$, hold_at_most => '300 ms', record => true)");
is($lost->{message}, 'canceling statement because the lease on redlock "outer" was lost', 'the loss of an outer lock cancels a run');
recorded('inner', qr/^failed\|\Q$lost->{message}. $lost->{detail}\E$/, '... which tells so, and did not lose its own lock');
recorded('outer', qr/^lost\|\Q$lost->{message}. $lost->{detail}\E$/, '... unlike the outer run');
$gate->query('SELECT pg_advisory_unlock(2)');

# ---- a session has ended; then the server crashes ----

$host->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $session_gone->pid . ', 10000)');
$session_gone->result;
$other->query($next);
is(run_of('gone', 'status, message'), 'failed|the session ended before the run did, or the end of the run could not be written', 'the server itself ends one whose session has gone');
is(run_of('copied', 'status'), 'running', '... and no other');

$host->stop('immediate');
$host->start;
wait_nodes_ready($host, 3);
my $gone = 'failed|the server stopped, crashed or lost the nodes, and nobody knows how the run ended';
wait_until(sub { $host->safe_psql('postgres', $next); run_of('copied', 'status, message') eq $gone }, 'when it has crashed, the next start ends it');
wait_until(sub { $on_copy->query($next); run_of('copied', 'status, message', $copy) eq $gone }, '... and so does the copy');
is(run_of('copied', 'ended IS NULL'), 't', '... without a time of the end');
$on_copy->quit;
$copy->stop;

# ---- single-user mode ----

$host->stop;
my $began = time;
my ($out, $err) = ('', '');
IPC::Run::run([ 'postgres', '--single', '-D', $host->data_dir, 'postgres' ], '<', \<<'SQL', '>', \$out, '2>', \$err);
SELECT redlock_acquire('x', scope => 'session');
SELECT redlock_try('x', scope => 'session');
CALL redlock_run('x', 'SELECT 1', record => true);
SELECT * FROM redlock_hosts;
SELECT count(*) FROM redlock_locks;
SQL
is((() = $err =~ /redlocks can't be used in single-user mode/g), 4, 'in single-user mode each call says so') or diag($err);
like($err, qr/HINT:  Start the server as usual, and try again/, '... with what to do');
unlike($err, qr/restarts the broker|could not record/, '... and promises nothing');
like($out, qr/count = "0"/, '... the view of locks is empty');

done_testing();
