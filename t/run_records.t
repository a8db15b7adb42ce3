# redlock_runs: one look shows the fate of a job.
#
# Protects from: a failed run leaving no trace, or staying "running"; a run shown as succeeded
# after its last commit failed; rows removed by the session's rollback; rows staying for ever; a
# role reading the commands of other roles, or writing the table; a procedure's open transaction
# holding up other runs; unrelated runs ending each other's transactions; ends not written because
# many runs fail at a time, or because one row cannot be written; a record of a run in a transaction
# block without the fate of the transaction, or changing the rows of other runs.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes  = redis_nodes(3);
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'", init => { extra => [ '-E', 'UTF8' ] });
my $session = session($host_a);

$host_a->safe_psql('postgres', <<'SQL');
CREATE TABLE steps (n int);
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
CREATE PROCEDURE steps(count int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. count LOOP
        INSERT INTO steps VALUES (i);
        COMMIT;
    END LOOP;
END $$;
CREATE PROCEDURE fails() LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO steps VALUES (1);
    COMMIT;
    INSERT INTO steps VALUES (2);
    RAISE EXCEPTION 'no more %', repeat('ä', 1000);
END $$;
SQL

# The last run: status, message.
sub last_run
{
	my ($columns) = @_;
	return $host_a->safe_psql('postgres', 'SELECT ' . ($columns // 'status, message') . ' FROM redlock_runs ORDER BY started DESC LIMIT 1');
}

sub becomes
{
	my ($status, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { last_run('status') eq $status }, $description) or diag(last_run());
}

# ---- ends well ----

is($session->run("CALL redlock_run('job', 'CALL steps(3)', record => true)")->{state}, '', 'a run');
is(last_run("resource, command, host, database, role = current_user, token > 0, status, message, ended >= started, pid = @{[$session->pid]}"),
	"job|CALL steps(3)|a|postgres|t|t|succeeded||t|t", 'all of it is told');
is($host_a->safe_psql('postgres', 'SELECT count(*) FROM steps'), '3', 'and it was done');
is($session->query("SELECT redlock_token('job') IS NULL"), 't', 'the lock is released');
$session->query("CALL redlock_run('job', '/* " . ('ä' x 1000) . " */ SELECT 1', record => true)");
is(last_run(q{octet_length(command), right(command, 1) = 'ä'}), '1023|t', 'of a long command, what there is room for');
$session->query("CALL redlock_run('job', 'SELECT 1')");
is(last_run('count(*) OVER ()'), '2', 'what is not to be recorded is not');

# during the run
my $gate = session($host_a);
$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true, fence => true)");
becomes('running', 'a run that is not over');
is(last_run("ended IS NULL, token = (SELECT token FROM redlock_locks WHERE state = 'held'), token = (SELECT token FROM redlock_fences)"),
	't|t|t', 'a recorded run has its token, also in redlock_fences');

# ---- skipped ----

my $other = session($host_a);
my $skipped = $other->run("CALL redlock_run('job', 'SELECT 1', record => true)");
like($skipped->{err}, qr/skipped/, 'another is skipped');
is(last_run("status, token IS NULL, ended IS NOT NULL"), 'skipped|t|t', 'which is told');
$gate->query('SELECT pg_advisory_unlock(1)');
$session->result;
is($host_a->safe_psql('postgres', "SELECT status FROM redlock_runs ORDER BY started DESC OFFSET 1 LIMIT 1"), 'succeeded', 'the first comes to its end');

# ---- fails ----

my $failed = $session->run("CALL redlock_run('job', 'CALL fails()', record => true)");
like($failed->{message}, qr/^no more ä/, 'the error is that of the command');
becomes('failed', 'and is recorded, though all was rolled back');
like(last_run('message'), qr/^no more (ä)+$/, 'with its message');
is(last_run('octet_length(message) BETWEEN 1000 AND 1023, ended IS NOT NULL'), 't|t', 'as much as there is room for');
is($session->query('SELECT count(*) FROM steps'), '4', 'commits of the failed run stay');

$session->run("CALL redlock_run('job', 'INSERT INTO children VALUES (1)', record => true)");
becomes('failed', 'a recorded run whose last commit fails');
like(last_run('message'), qr/violates foreign key constraint/, 'with the reason');

$session->run("CALL redlock_run('job', 'SELECT 1/0; SELECT 2', record => true)");
becomes('failed', 'an error without a procedure');
$session->run("DO \$\$ BEGIN CALL redlock_run('job', 'SELECT nothing', record => true); END \$\$");
becomes('failed', 'a failed run in a DO');

$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true)");
becomes('running', 'one that runs');
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->result;
becomes('failed', '... and is cancelled');

# ---- its lock is lost ----

$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true, hold_at_most => '500 ms')");
my $lost = $session->result;
is($lost->{state}, '57014', 'one whose lock is lost');
becomes('lost', 'is told so');
is($host_a->safe_psql('postgres', "SELECT message FROM redlock_runs WHERE status = 'lost'"), "$lost->{message}. $lost->{detail}", '... as the client was');

$session->query('SET redlock.on_loss = error');
$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true, hold_at_most => '500 ms')");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE pid = @{[$session->pid]}") eq 'lost' }, 'a run goes on after the loss of its lock');
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$lost = $session->result;
is($lost->{message}, 'canceling statement due to user request', '... is cancelled for another reason');
becomes('lost', '... is told as lost');
is(last_run(), qq(lost|$lost->{message}. The lease on redlock "job" was lost. The hold_at_most of 500 ms has ended.), '... as both are told');
$session->query('RESET redlock.on_loss');

# ---- the session is terminated ----

$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true)");
becomes('running', 'one that runs');
$host_a->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $session->pid . ', 10000)');
$session->result;
is(last_run('status'), 'running', '... is terminated');
$gate->query("SELECT pg_advisory_unlock(1)");
$session = session($host_a);
wait_until(sub { $session->query("CALL redlock_run('next', 'SELECT 1', record => true)"); 1 }, 'the next run');
is($host_a->safe_psql('postgres', "SELECT status, message, ended IS NULL FROM redlock_runs WHERE resource = 'job' ORDER BY started DESC LIMIT 1"),
	'failed|the session ended before the run did, or the end of the run could not be written|t', 'tells it, but not when');

# ---- a skipped run in a procedure leaves no transaction open ----

$other->query("SELECT redlock_acquire('busy', scope => 'session')");
$gate->query('SELECT pg_advisory_lock(1)');
$session->send(<<'SQL');
SET default_transaction_isolation = 'repeatable read';
DO $$
BEGIN
    CALL redlock_run('busy', 'SELECT 1', record => true);
    RAISE NOTICE 'then %', current_setting('transaction_isolation');
    PERFORM pg_advisory_xact_lock(1);
    RAISE EXCEPTION 'later';
END $$;
SQL
becomes('skipped', 'it is told while the procedure goes on');
$gate->query('SELECT pg_advisory_unlock(1)');
my $later = $session->result;
is($later->{message}, 'later', 'which fails');
like($later->{err}, qr/NOTICE:.* then repeatable read/, '... in a transaction of its own isolation');
is(last_run('status'), 'skipped', '... and does not undo it');
$session->query('RESET default_transaction_isolation');
$other->query('SELECT redlock_release_all()');

# ---- the extension moves to another schema during a run ----

$host_a->safe_psql('postgres', 'CREATE SCHEMA moved');
$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('moved', 'SELECT pg_advisory_xact_lock(1)', record => true)");
becomes('running', 'a run');
$host_a->safe_psql('postgres', 'ALTER EXTENSION redlock_pg SET SCHEMA moved');
$gate->query('SELECT pg_advisory_unlock(1)');
is($session->result->{state}, '', '... finds its table at its end');
is($host_a->safe_psql('postgres', "SELECT status FROM moved.redlock_runs WHERE resource = 'moved'"), 'succeeded', '... and its success is in the table');
$host_a->safe_psql('postgres', 'ALTER EXTENSION redlock_pg SET SCHEMA public');

# ---- rows locked by another session delay no run ----

$host_a->safe_psql('postgres', <<'SQL');
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, host_id, session, started, status)
SELECT l.name, '', host, database, role, 1, server, host_id, 1, now() - l.age, l.status
  FROM redlock_runs, (VALUES ('gone', interval '1 d', 'running'), ('old', '40 d', 'skipped')) l (name, age, status)
 WHERE resource = 'next';
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, host_id, session, started, status)
SELECT 'of another server', '', host, database, role, 1, server + 1, host_id, 1, now() - interval '1 d' * age, 'running'
  FROM redlock_runs, unnest(ARRAY[1, 40]) age WHERE resource = 'next';
SQL
$gate->query("BEGIN; SELECT count(*) FROM (SELECT FROM redlock_runs WHERE resource IN ('gone', 'old') FOR UPDATE) r");
$session->send("CALL redlock_run('job', 'SELECT 1', record => true)");
wait_until(sub { $session->done }, 'a run that would end and delete them does not wait');
$session->result;
$gate->query('COMMIT');
is(last_run('resource, status'), 'job|succeeded', '... and is recorded');
$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', "SELECT string_agg(resource || ' ' || status, ', ') FROM redlock_runs WHERE resource IN ('gone', 'old')"),
	'gone failed', 'the next recorded run deletes the old run and ends the lost run');
is($host_a->safe_psql('postgres', "SELECT count(*), max(now() - started) < '2 d' FROM redlock_runs WHERE resource = 'of another server'"), '1|t',
	'... and deletes the old run of another server, though running');

# ---- old runs are deleted ----

$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '29 days' WHERE status = 'skipped'");
$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '31 days' WHERE status = 'lost'");
my $long = session($host_a);
$long->send("CALL redlock_run('long', 'SELECT pg_sleep(600)', record => true)");
wait_until(sub { $host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '31 days' WHERE resource = 'long' AND status = 'running' RETURNING 1") eq '1' },
	'a run that goes on for a month');
$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ' ') FROM redlock_runs WHERE status IN ('skipped', 'lost')"), 'skipped',
	'what began before redlock.runs_keep is deleted');
is($host_a->safe_psql('postgres', "SELECT status FROM redlock_runs WHERE resource = 'long'"), 'running', 'but not what has not ended');
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $long->pid . ')');
$long->result;
$long->quit;

# ---- a run does not end the rows of live runs ----

# nor rows of other servers, which come by replication
$host_a->safe_psql('postgres', <<'SQL');
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, host_id, session, started, status)
SELECT 'elsewhere', '', host, database, role, 1, server + 1, '1', 1, now(), 'running' FROM redlock_runs LIMIT 1;
SQL
$gate->query('SELECT pg_advisory_lock(1)');
$other->send("CALL redlock_run('long', 'SELECT pg_advisory_xact_lock(1)', record => true)");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource = 'long' AND status = 'running'") eq '1' }, 'a long run');
$session->query("CALL redlock_run('outer', 'CALL redlock_run(''inner'', ''SELECT 1'', record => true)', record => true)");
is($host_a->safe_psql('postgres', "SELECT string_agg(resource || ' ' || status, ', ' ORDER BY resource) FROM redlock_runs WHERE resource IN ('elsewhere', 'long', 'outer', 'inner')"),
	'elsewhere running, inner succeeded, long running, outer succeeded', 'others are not ended');
$gate->query('SELECT pg_advisory_unlock(1)');
is($other->result->{state}, '', 'it ends');

# ---- a lock released by its own session is not lost ----

$session->run("CALL redlock_run('job', 'SELECT redlock_release(''job''); SELECT 1/0', record => true)");
wait_until(sub { last_run('resource, status') eq 'job|failed' }, 'a run that released its lock, and failed');

# ---- a database that is read-only by default ----

$host_a->safe_psql('postgres', 'ALTER DATABASE postgres SET default_transaction_read_only = on');
$session->run("CALL redlock_run('read only', 'SELECT 1/0', record => true)");
$host_a->safe_psql('postgres', 'SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only');
wait_until(sub { last_run('resource, status') eq 'read only|failed' }, 'a run in a database that is read-only by default');

# ---- operators of the caller are not called with the rights of the owner ----

$host_a->safe_psql('postgres', 'CREATE ROLE mallory; CREATE SCHEMA evil AUTHORIZATION mallory');
$session->query('SET ROLE mallory');
foreach my $types ('bigint, int', 'bigint, bigint', 'text, text', 'int, int', 'uuid, uuid', 'timestamptz, timestamptz', 'name, text')
{
	my ($left, $right) = split /, /, $types;
	foreach my $operator ('=', '<', '<>')
	{
		my $name = 'f' . ($left . $right . ord($operator) . length($operator)) =~ s/\W//gr;
		$session->query("CREATE FUNCTION evil.$name($left, $right) RETURNS bool LANGUAGE plpgsql AS \$\$ BEGIN RAISE EXCEPTION 'called by %', current_user; END \$\$");
		$session->query("CREATE OPERATOR evil.$operator (leftarg = $left, rightarg = $right, function = evil.$name)");
	}
}
foreach my $command ('SELECT true', 'SELECT true; SET search_path = evil, pg_catalog')
{
	is($session->run("SET search_path = evil, pg_catalog, public; CALL public.redlock_run('evil', '$command', record => true)")->{state}, '', 'with a search_path of the caller');
	is($host_a->safe_psql('postgres', "SELECT status FROM redlock_runs WHERE resource = 'evil' ORDER BY started DESC LIMIT 1"), 'succeeded', '... it is recorded');
}
$session->query('RESET search_path; RESET ROLE');

# ---- unrelated runs in SERIALIZABLE ----

# The first run sees no later run.  The last run has passed the middle run, and commits first.
$host_a->safe_psql('postgres', <<'SQL');
CREATE TABLE slow_commits (n int);
CREATE FUNCTION wait_for_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(NEW.n); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait_for_gate AFTER INSERT ON slow_commits DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_gate();
SQL
foreach my $statistics ('', 'ANALYZE redlock_runs')
{
	my %run;

	$host_a->safe_psql('postgres', "DELETE FROM redlock_runs; VACUUM redlock_runs; $statistics");
	$gate->query('SELECT pg_advisory_lock(n) FROM generate_series(11, 13) n');
	foreach my $n (11 .. 13)
	{
		$run{$n} = session($host_a);
		$run{$n}->query("SET default_transaction_isolation = 'serializable'");
		$run{$n}->send("CALL redlock_run('serial $n', 'INSERT INTO slow_commits VALUES ($n)', record => true)");
		wait_until(sub { $host_a->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = " . $run{$n}->pid) eq 'advisory' }, "run $n commits");
	}
	foreach my $n (13, 12, 11)
	{
		$gate->query("SELECT pg_advisory_unlock($n)");
		is($run{$n}->result->{state}, '', "run $n has committed");
		$run{$n}->quit;
	}
	is($host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource LIKE 'serial%' AND status = 'succeeded'"), '3', 'all three are told');
}

# an update moves the row during the run; the run still finds the row
$gate->query('SELECT pg_advisory_lock(11)');
$session->send("CALL redlock_run('moved', 'INSERT INTO slow_commits VALUES (1); SELECT pg_advisory_xact_lock(11)', record => true)");
wait_until(sub { last_run('resource, status') eq 'moved|running' }, 'a run');
$host_a->safe_psql('postgres', "UPDATE redlock_runs SET message = 'moved' WHERE resource = 'moved'");
$gate->query('SELECT pg_advisory_unlock(11)');
is($session->result->{state}, '', '... whose row is moved');
is(last_run('resource, status'), 'moved|succeeded', '... is told to have succeeded');

# the warning is for a session whose snapshot is older than the grant
$session->query("SET default_transaction_isolation = 'repeatable read'");
unlike($session->run("CALL redlock_run('job', 'SELECT 1', record => true)")->{err}, qr/snapshot/, 'recorded work has a snapshot that is younger than the grant');
like($session->run("CALL redlock_run('job', 'SELECT 1')")->{err}, qr/WARNING:.* the transaction's snapshot is older than the grant/, 'other work has that of the CALL');
$session->query('RESET default_transaction_isolation');

# ---- a row whose end can't be written ----

$host_a->safe_psql('postgres', <<'SQL');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON redlock_runs FOR EACH ROW WHEN (NEW.message LIKE '%bad%') EXECUTE FUNCTION refuse();
SQL
my $log_size = -s $host_a->logfile;
$session->run(q{CALL redlock_run('job', 'DO $$ BEGIN RAISE ''bad''; END $$', record => true)});
my $id = last_run('id');
wait_until(sub { slurp_file($host_a->logfile, $log_size) =~ /ERROR:  not this one\n.*writing to redlock_runs that run $id failed/s }, 'is in the server log');
$session->run("CALL redlock_run('job', 'SELECT 1/0', record => true)");
becomes('failed', 'others are written');

# a database that refuses new connections
$host_a->safe_psql('template1', 'ALTER DATABASE postgres ALLOW_CONNECTIONS false');
$session->run("CALL redlock_run('closed', 'SELECT 1/0', record => true)");
wait_until(sub { $session->query("SELECT status FROM redlock_runs WHERE resource = 'closed'") eq 'failed' }, 'a run in a database closed for new connections');
$host_a->safe_psql('template1', 'ALTER DATABASE postgres ALLOW_CONNECTIONS true');

# ---- without its table ----

$host_a->safe_psql('postgres', 'ALTER TABLE redlock_runs RENAME TO runs');
my $lacks = $session->run("CALL redlock_run('no table', 'SELECT 1', record => true, hold_at_least => '1 min')");
is($lacks->{state}, '42P01', 'without its table');
is($lacks->{detail}, 'The table belongs in the schema of redlock_run, "public".', '... the detail names the schema of the table');
like($lacks->{hint}, qr/^Restore the name and the schema of the table/, '... and what to do');
is($session->query("SELECT redlock_try('no table', scope => 'session'), redlock_release('no table')"), 't|t', '... and does not take the lock');
$host_a->safe_psql('postgres', 'ALTER TABLE runs RENAME TO redlock_runs');
is($session->run("CALL redlock_run('no table', 'ALTER TABLE redlock_runs RENAME TO runs', record => true)")->{state}, '42P01', 'a run that renames the table of runs');
wait_until(sub { last_run('resource, status') eq 'no table|failed' }, '... fails');

$host_a->safe_psql('postgres', 'CREATE DATABASE of_schema');
my $of_schema = session($host_a, dbname => 'of_schema');
$of_schema->query('SET client_min_messages = warning; CREATE SCHEMA x; CREATE EXTENSION redlock_pg SCHEMA x');
$lacks = $of_schema->run("CALL x.redlock_run('no schema', 'DROP SCHEMA x CASCADE', record => true)");
is($lacks->{state}, '42P01', 'a run that drops the schema of redlock_run');
is($lacks->{detail}, 'The schema of redlock_run is gone, too.', '... is told so');
is($of_schema->query('SELECT count(*) FROM x.redlock_runs'), '1', '... and undone');
$of_schema->quit;

# ---- in a transaction block ----

my $holder = session($host_a);
my $rows = "SELECT string_agg(resource || ' ' || status, ', ' ORDER BY started) FROM redlock_runs WHERE resource IN ('block', 'taken', 'bad')";
my $block = "CALL redlock_run('block', 'SELECT 1', record => true)";

$holder->query("SELECT redlock_acquire('taken', scope => 'session')");
$session->query("CALL redlock_run('ancient', 'SELECT 1', record => true)");
$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = now() - interval '40 days' WHERE resource = 'ancient'");

$session->query("BEGIN; $block; CALL redlock_run('taken', 'SELECT 1', record => true)");
is($session->query($rows), 'block succeeded, taken skipped', 'in a transaction block, the transaction sees the rows of its runs');
is($host_a->safe_psql('postgres', $rows), '', '... and other sessions do not');
$session->query('ROLLBACK');
is($host_a->safe_psql('postgres', $rows), '', '... a rollback loses the rows');
$session->query("BEGIN; $block; CALL redlock_run('taken', 'SELECT 1', record => true); COMMIT");
is($host_a->safe_psql('postgres', $rows), 'block succeeded, taken skipped', '... and a commit keeps the rows');
is($host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource = 'ancient'"), '1', '... such a run deletes no old rows');
$host_a->safe_psql('postgres', "DELETE FROM redlock_runs WHERE resource IN ('block', 'taken')");

is($session->run("BEGIN; CALL redlock_run('bad', 'SELECT 1 / 0', record => true)")->{state}, '22012', 'a run fails in a transaction block');
$session->query('ROLLBACK');
# the writer process takes the reports of a database in turn
$session->run("CALL redlock_run('later', 'SELECT 1 / 0', record => true)");
wait_until(sub { last_run('resource, status') eq 'later|failed' }, '... a later run outside of a block has its row');
is($host_a->safe_psql('postgres', $rows), '', '... and the run in the block has none');

$session->query("SET redlock.on_loss = 'error'; BEGIN; CALL redlock_run('block', 'SELECT 1', record => true, hold_at_most => '100 ms')");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'block'") eq 'lost' }, 'the lock of a run is lost before the commit');
is($session->run('COMMIT')->{state}, '40001', '... the commit fails');
is($host_a->safe_psql('postgres', $rows), '', '... and there is no row');
$session->query('RESET redlock.on_loss');
$holder->quit;

# ---- runs that cannot be recorded ----

is($session->run("SET default_transaction_read_only = on; CALL redlock_run('job', 'SELECT 1', record => true, hold_at_least => '1 min')")->{state}, '25006', 'in a read-only transaction');
$session->query('RESET default_transaction_read_only');
is($session->query("SELECT redlock_try('job', scope => 'session'), redlock_release('job')"), 't|t', '... which does not keep the lock from others');
is($session->run("CALL redlock_run('job', 'SELECT 1', record => NULL)")->{state}, '22004', 'null is neither');

# ---- rights on redlock_runs ----

$host_a->safe_psql('postgres', "CREATE ROLE worker; CREATE ROLE stranger");
$session->query('SET ROLE worker');
$session->query("CALL redlock_run('theirs', 'SELECT 1', record => true)");
is($session->query('SELECT resource, role, status FROM redlock_runs'), 'theirs|worker|succeeded', 'a role records its runs, and sees them');
is($session->run("INSERT INTO redlock_runs (resource, command, host, database, role, pid, started, status) VALUES ('a', 'b', 'c', 'd', 'worker', 1, now(), 'failed')")->{state},
	'42501', 'but does not write them');
$session->query('SET ROLE stranger');
is($session->query('SELECT count(*) FROM redlock_runs'), '0', 'another sees none');
$session->query('RESET ROLE');

# ---- many failures at a time, with room for one process ----

my $reports = 50;
restart_with($host_a, nodes => \@nodes, conf => "max_worker_processes = 2\nmax_logical_replication_workers = 0\nmax_connections = 60");
($session, $gate) = map { session($host_a) } 1, 2;
$host_a->safe_psql('postgres', 'DELETE FROM redlock_runs');
$gate->query('SELECT pg_advisory_lock(1)');
my @failing = map { session($host_a) } 1 .. $reports;
my $bad = q{DO $$ BEGIN RAISE 'bad'; END $$};
$failing[$_]->send("CALL redlock_run('many $_', \$c\$ SELECT pg_advisory_xact_lock_shared(1); " . ($_ == 0 ? $bad : 'SELECT 1/0') . "\$c\$, record => true, wait => '1 min')") foreach 0 .. $#failing;
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE status = 'running'") eq $reports }, "$reports runs");
# the writer process waits for this lock
$session->query('BEGIN; LOCK TABLE redlock_runs IN SHARE MODE');
$gate->query('SELECT pg_advisory_unlock(1)');
is((grep { $_->result->{err} =~ /could not record/ } @failing), 0, 'fail at a time, and each can tell it');
$session->query('COMMIT');
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE status = 'failed' AND message = 'division by zero'") eq $reports - 1 }, 'all are recorded, but for the one that is refused');
$host_a->safe_psql('postgres', 'DROP FUNCTION refuse CASCADE; DELETE FROM redlock_runs');
$_->quit foreach @failing;

# ---- the writer process waits until there is no room for reports ----

$gate->query('SELECT pg_advisory_lock(1)');
$failing[0] = session($host_a);
$failing[0]->send("CALL redlock_run('first', 'SELECT pg_advisory_xact_lock(1); SELECT 1/0', record => true)");
wait_until(sub { last_run('resource') eq 'first' }, 'a run');
$session->query("BEGIN; SELECT FROM redlock_runs WHERE resource = 'first' FOR UPDATE");
$gate->query('SELECT pg_advisory_unlock(1)');
is($failing[0]->result->{state}, '22012', '... fails, and its row is locked');
my $waits = session($host_a);
$waits->run("CALL redlock_run('waits', 'SELECT 1/0', record => true)");
$waits->query("CALL redlock_run('after', 'SELECT 1', record => true)");
my $waiting = "SELECT status, message, ended IS NOT NULL FROM redlock_runs WHERE resource = 'waits'";
is($host_a->safe_psql('postgres', $waiting), 'running||f', 'the next run of its session does not end a run whose report waits');
$waits->quit;
wait_until(sub { $host_a->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $waits->pid) eq '0' }, 'the session ends');
$gate->query("CALL redlock_run('after', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', $waiting), 'running||f', '... nor does a run of another session');
my $told;
for (my $runs = 0; $runs < 1000; $runs++)
{
	$told = $gate->run("CALL redlock_run('next', 'SELECT 1/0', record => true)");
	last if $told->{err} =~ /Reports of other failed runs/;
}
like($told->{err}, qr/WARNING:  53000: could not record that this run of redlock "next" failed\n.*DETAIL:  Reports of other failed runs wait to be written\. .*\n.*HINT:  See in pg_stat_activity/s,
	'when there is no room a warning tells it, and where to look');
$session->query('COMMIT');
$gate->query("CALL redlock_run('next', 'SELECT 1', record => true)");
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE status = 'running'") eq '0' }, 'all others are written');
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE message ~ '^the session ended before the run did'") eq '1' }, 'that one, by the next run of its session');
is($host_a->safe_psql('postgres', $waiting), 'failed|division by zero|t', 'the report that waited is written');

# ---- the writer process is terminated, in a database with a short lock_timeout ----

restart_with($host_a, nodes => \@nodes, conf => 'max_worker_processes = 8');
($session, $gate) = map { session($host_a) } 1, 2;
my $writers = "FROM pg_stat_activity WHERE backend_type = 'redlock run' AND wait_event_type = 'Lock'";
$gate->query('SELECT pg_advisory_lock(1)');
@failing = map { session($host_a) } 1 .. 3;
$failing[$_]->send("CALL redlock_run('terminated $_', 'SELECT pg_advisory_xact_lock_shared(1); SELECT 1/0', record => true)") foreach 0 .. $#failing;
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE status = 'running' AND resource ~ '^terminated'") eq '3' }, 'three runs');
$session->query("ALTER DATABASE postgres SET lock_timeout = '10 ms'");
$session->query('BEGIN; LOCK TABLE redlock_runs IN SHARE MODE');
$gate->query('SELECT pg_advisory_unlock(1)');
$_->result foreach @failing;
wait_until(sub { $gate->query("SELECT count(*) $writers") eq '1' }, 'a process waits to write that they have failed');
$gate->query("SELECT pg_terminate_backend(pid, 60000) $writers");
wait_until(sub { $gate->query("SELECT count(*) $writers") eq '1' }, 'another process comes after its end');
$session->query('COMMIT');
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE status = 'failed' AND resource ~ '^terminated'") eq '2' }, '... and writes the other reports');
$session->query('ALTER DATABASE postgres RESET lock_timeout');
$_->quit foreach @failing;

# ---- the only process is busy in another database ----

restart_with($host_a, nodes => \@nodes, conf => 'max_worker_processes = 2');
$session = session($host_a);
my ($elsewhere, $locker) = map { session($host_a, dbname => 'of_schema') } 1, 2;
$locker->query('SELECT pg_advisory_lock(1)');
$elsewhere->send("CALL x.redlock_run('elsewhere', 'SELECT pg_advisory_xact_lock(1); SELECT 1/0', record => true)");
wait_until(sub { $locker->query("SELECT count(*) FROM x.redlock_runs WHERE status = 'running'") eq '1' }, 'a run in another database');
$locker->query('BEGIN; LOCK TABLE x.redlock_runs IN SHARE MODE; SELECT pg_advisory_unlock(1)');
unlike($elsewhere->result->{err}, qr/could not record/, '... fails, and a process comes');
like($session->run("CALL redlock_run('left', 'SELECT 1/0', record => true)")->{err}, qr/DETAIL:  No process could be started to write the report; the next process/, 'there is none for this database');
$locker->query('COMMIT');
wait_until(sub { $session->run("CALL redlock_run('later', 'SELECT 1/0', record => true)")->{err} !~ /could not record/ }, 'then there is');
wait_until(sub { $session->query("SELECT count(*) FROM redlock_runs WHERE resource IN ('left', 'later') AND message IS DISTINCT FROM 'division by zero'") eq '0' }, 'the next process writes the waiting reports, too');
is($session->query("SELECT bool_and(ended < (SELECT min(started) FROM redlock_runs WHERE resource = 'later')) FROM redlock_runs WHERE resource = 'left'"), 't', '... with the time when it ended');

# ---- no room for another process ----

restart_with($host_a, nodes => \@nodes, conf => 'max_worker_processes = 1');
$session = session($host_a);
my $busy = $session->run("CALL redlock_run('job', 'SELECT 1/0', record => true)");
is($busy->{state}, '22012', 'the error is that of the command');
like($busy->{err}, qr/WARNING:  53000: could not record .*\n.*DETAIL:  No process could be started to write the report; the next process .*\n.*HINT:  Raise max_worker_processes, now 1\./s,
	'a warning tells that it is not recorded');
is(last_run('status'), 'running', '... the run seems to go on');
$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', "SELECT message FROM redlock_runs WHERE status = 'failed' ORDER BY started DESC LIMIT 1"),
	'the session ended before the run did, or the end of the run could not be written', 'the next run of the session ends it');

done_testing();
