# redlock_runs: one look tells what became of a job.
#
# Protects from: a run that fails and leaves no trace, or stays "running"; one that is said to
# have succeeded though its last commit failed; what the session's rollback takes along; rows
# that nobody deletes; a role that reads the commands of others, or writes the table.

use strict;
use warnings;

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

# while it runs
my $gate = session($host_a);
$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true, fence => true)");
becomes('running', 'a run that is not over');
is(last_run("ended IS NULL, token = (SELECT token FROM redlock_locks WHERE state = 'held'), token = (SELECT token FROM redlock_fences)"),
	't|t|t', 'with its token, which is recorded');

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
is($session->query('SELECT count(*) FROM steps'), '4', 'what it had committed stays');

$session->run("CALL redlock_run('job', 'INSERT INTO children VALUES (1)', record => true)");
becomes('failed', 'one that fails by its last commit');
like(last_run('message'), qr/violates foreign key constraint/, 'with the reason');

$session->run("CALL redlock_run('job', 'SELECT 1/0; SELECT 2', record => true)");
becomes('failed', 'an error without a procedure');
$session->run("DO \$\$ BEGIN CALL redlock_run('job', 'SELECT nothing', record => true); END \$\$");
becomes('failed', 'one in a DO');

$gate->query('SELECT pg_advisory_lock(1)');
$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true)");
becomes('running', 'one that runs');
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->result;
becomes('failed', '... and is cancelled');

# ---- its lock is lost ----

$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true, hold_at_most => '500 ms')");
is($session->result->{state}, '57014', 'one whose lock is lost');
becomes('lost', 'is told so');

# ---- its session ends without a word ----

$session->send("CALL redlock_run('job', 'SELECT pg_advisory_xact_lock(1)', record => true)");
becomes('running', 'one that runs');
$host_a->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $session->pid . ', 10000)');
$session->result;
is(last_run('status'), 'running', '... is terminated');
$gate->query("SELECT pg_advisory_unlock(1)");
$session = session($host_a);
wait_until(sub { $session->query("CALL redlock_run('next', 'SELECT 1', record => true)"); 1 }, 'the next run');
is($host_a->safe_psql('postgres', "SELECT status, message FROM redlock_runs WHERE resource = 'job' ORDER BY started DESC LIMIT 1"),
	'failed|it ended without a word', 'tells it');

# ---- old ones go ----

$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '29 days' WHERE status = 'skipped'");
$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '31 days' WHERE status = 'lost'");
$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', "SELECT string_agg(status, ' ') FROM redlock_runs WHERE status IN ('skipped', 'lost')"), 'skipped',
	'what began before redlock.runs_keep is deleted');

# so they are where all are skipped
$other->query("SELECT redlock_acquire('busy', scope => 'session')");
$host_a->safe_psql('postgres', "UPDATE redlock_runs SET started = started - interval '31 days' WHERE resource = 'next'");
$session->query("CALL redlock_run('busy', 'SELECT 1', record => true)");
is($host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource = 'next'"), '0', 'by a run that is skipped, too');
$other->query('SELECT redlock_release_all()');

# ---- which are over without a word ----

# those of other servers, which replication brings, are none of ours; nor is one that runs
$host_a->safe_psql('postgres', <<'SQL');
INSERT INTO redlock_runs (resource, command, host, database, role, pid, server, session, started, status)
SELECT 'elsewhere', '', host, database, role, 1, server + 1, 1, now(), 'running' FROM redlock_runs LIMIT 1;
SQL
$gate->query('SELECT pg_advisory_lock(1)');
$other->send("CALL redlock_run('long', 'SELECT pg_advisory_xact_lock(1)', record => true)");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM redlock_runs WHERE resource = 'long' AND status = 'running'") eq '1' }, 'a long run');
$session->query("CALL redlock_run('outer', 'CALL redlock_run(''inner'', ''SELECT 1'', record => true)', record => true)");
is($host_a->safe_psql('postgres', "SELECT string_agg(resource || ' ' || status, ', ' ORDER BY resource) FROM redlock_runs WHERE resource IN ('elsewhere', 'long', 'outer', 'inner')"),
	'elsewhere running, inner succeeded, long running, outer succeeded', 'others are not ended');
$gate->query('SELECT pg_advisory_unlock(1)');
is($other->result->{state}, '', 'it ends');

# ---- what a session has released itself is not lost ----

$session->run("CALL redlock_run('job', 'SELECT redlock_release(''job''); SELECT 1/0', record => true)");
wait_until(sub { last_run('resource, status') eq 'job|failed' }, 'a run that released its lock, and failed');

# ---- settings of a database or role that would keep the end from being written ----

$host_a->safe_psql('postgres', 'ALTER DATABASE postgres SET default_transaction_read_only = on');
$session->run("CALL redlock_run('read only', 'SELECT 1/0', record => true)");
$host_a->safe_psql('postgres', 'SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only');
wait_until(sub { last_run('resource, status') eq 'read only|failed' }, 'one in a database that is read-only by default');

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

# ---- where it can't be ----

my $block = $session->run("BEGIN; CALL redlock_run('job', 'SELECT 1', record => true)");
is($block->{state}, '25001', 'in a transaction block');
$session->query('ROLLBACK');
is($session->query("SELECT redlock_token('job') IS NULL"), 't', '... nothing is acquired');
is($session->run("DO \$\$ BEGIN CALL redlock_run('job', 'SELECT 1', record => true); EXCEPTION WHEN division_by_zero THEN END \$\$")->{state}, '25001', 'where an error would be caught');
is($session->run("SET default_transaction_read_only = on; CALL redlock_run('job', 'SELECT 1', record => true, hold_at_least => '1 min')")->{state}, '25006', 'in a read-only transaction');
$session->query('RESET default_transaction_read_only');
is($session->query("SELECT redlock_try('job', scope => 'session'), redlock_release('job')"), 't|t', '... which does not keep the lock from others');
is($session->run("CALL redlock_run('job', 'SELECT 1', record => NULL)")->{state}, '22004', 'null is neither');

# ---- who may see ----

$host_a->safe_psql('postgres', "CREATE ROLE worker; CREATE ROLE stranger");
$session->query('SET ROLE worker');
$session->query("CALL redlock_run('theirs', 'SELECT 1', record => true)");
is($session->query('SELECT resource, role, status FROM redlock_runs'), 'theirs|worker|succeeded', 'a role records its runs, and sees them');
is($session->run("INSERT INTO redlock_runs (resource, command, host, database, role, pid, started, status) VALUES ('a', 'b', 'c', 'd', 'worker', 1, now(), 'failed')")->{state},
	'42501', 'but does not write them');
$session->query('SET ROLE stranger');
is($session->query('SELECT count(*) FROM redlock_runs'), '0', 'another sees none');
$session->query('RESET ROLE');

# ---- no room for another process ----

restart_with($host_a, nodes => \@nodes, conf => "max_worker_processes = 2\nmax_logical_replication_workers = 0");
$session = session($host_a);
my $busy = $session->run("CALL redlock_run('job', 'SELECT 1/0', record => true)");
is($busy->{state}, '22012', 'the error is that of the command');
if ($busy->{err} =~ /could not record/)
{
	pass('a warning tells that it is not recorded');
	$session->query("CALL redlock_run('job', 'SELECT 1', record => true)");
	is($host_a->safe_psql('postgres', "SELECT message FROM redlock_runs WHERE status = 'failed' ORDER BY started DESC LIMIT 1"),
		'it ended without a word', 'the next run of the session ends it');
}
else
{
	becomes('failed', 'there was room');
}

done_testing();
