# CALL redlock_run(..., fence => true): no batch commits after a newer holder.
#
# Protects from: a stale holder committing further batches; a fence counting only at the run's
# begin, or also after the run, or not at all; a commit refused without a newer holder.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes  = redis_nodes(3);
my $conf   = "redlock.ttl = '60s'";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);

# Each step waits for its advisory lock.
$host_a->safe_psql('postgres', <<'SQL');
CREATE TABLE steps (n int);
CREATE TABLE begun (n int);
CREATE PROCEDURE batch(count int, writes boolean DEFAULT true) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. count LOOP
        PERFORM pg_advisory_lock(i);
        PERFORM pg_advisory_unlock(i);
        IF writes THEN
            INSERT INTO steps VALUES (i);
        END IF;
        COMMIT;
    END LOOP;
END $$;
SQL

my $gates = session($host_a);

sub steps
{
	return $host_a->safe_psql('postgres', "SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM steps");
}

sub token
{
	return $host_a->safe_psql('postgres', "SELECT token FROM redlock_fences WHERE resource = 'job'");
}

# Begins a batch, and waits until the batch is at the second step.
sub begin
{
	my ($options) = @_;
	my $session = session($host_a);

	$host_a->safe_psql('postgres', 'TRUNCATE steps; DELETE FROM redlock_fences');
	$gates->query('SELECT pg_advisory_lock(i) FROM generate_series(2, 3) i');
	$session->send("CALL redlock_run('job', 'CALL batch(3)'$options)");
	wait_until(sub { steps() eq '1' }, 'the first step is committed');
	return $session;
}

# ---- without another holder ----

my $session = begin(', fence => true');
my $token = $host_a->safe_psql('postgres', "SELECT token FROM redlock_locks WHERE resource = 'job'");
is(token(), $token, 'the token is recorded');
$host_a->safe_psql('postgres', 'UPDATE redlock_fences SET token = 0');
$gates->query('SELECT pg_advisory_unlock(2)');
wait_until(sub { steps() eq '1 2' }, 'the second step is committed');
is(token(), $token, 'and the token again with it');
$gates->query('SELECT pg_advisory_unlock_all()');
is($session->result->{state}, '', 'the run ends without an error');
is(steps(), '1 2 3', 'with all steps');
$host_a->safe_psql('postgres', 'UPDATE redlock_fences SET token = 0');
$session->query("INSERT INTO steps VALUES (4); SELECT redlock_acquire('job', scope => 'session')");
$session->query('INSERT INTO steps VALUES (5); SELECT redlock_release_all()');
is(token(), '0', 'nothing is recorded after its end');
$session->quit;

# the lock is the session's before and after the run
$session = session($host_a);
$session->query("SELECT redlock_acquire('job', scope => 'session'); CALL redlock_run('job', 'INSERT INTO steps VALUES (4)', fence => true)");
isnt(token(), '0', 'under a lock that is held already');
$host_a->safe_psql('postgres', 'UPDATE redlock_fences SET token = 0');
$session->query('INSERT INTO steps VALUES (5); SELECT redlock_release_all()');
is(token(), '0', '... nothing is recorded after its end');
$session->quit;

# ---- a newer holder ----

$session = begin(', fence => true');
$host_a->safe_psql('postgres', 'UPDATE redlock_fences SET token = token + 1');
$gates->query('SELECT pg_advisory_unlock_all()');
my $stale = $session->result;
is($stale->{state}, '40001', 'the batch of a stale holder ends');
is($stale->{message}, 'a newer holder of redlock "job" has passed the fence', 'which is told');
is(steps(), '1', 'at its next commit, whose work is undone');
wait_until(sub { $host_b->safe_psql('postgres', "SELECT redlock_try('job')") eq 't' }, 'the lock is released');
is($session->query('INSERT INTO steps VALUES (6) RETURNING n'), '6', 'the session goes on');
$session->quit;

# the run waits for a newer holder's open transaction
$session = begin(', fence => true');
my $newer = session($host_a);
$newer->query('BEGIN; UPDATE redlock_fences SET token = token + 1');
$gates->query('SELECT pg_advisory_unlock_all()');
wait_until(
	sub {
		$host_a->safe_psql('postgres',
			"SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $session->pid) eq 'Lock';
	},
	'the commit waits for who is passing the fence');
$newer->query('ROLLBACK');
is($session->result->{state}, '', 'who does not pass after all');
is(steps(), '1 2 3', 'so all is well');
$_->quit foreach $session, $newer;

# ... but a run whose lock is lost during the wait does not commit
$session = session($host_a);
$host_a->safe_psql('postgres', 'TRUNCATE steps');
$gates->query('SELECT pg_advisory_lock(i) FROM generate_series(2, 3) i');
$session->query('SET redlock.on_loss = error');
$session->send("CALL redlock_run('job', 'CALL batch(3)', fence => true, hold_at_most => '5 s')");
wait_until(sub { steps() eq '1' }, 'the first step is committed');
$newer = session($host_a);
$newer->query('BEGIN; UPDATE redlock_fences SET token = token');
$gates->query('SELECT pg_advisory_unlock_all()');
wait_until(
	sub {
		$host_a->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = " . $session->pid) eq 'transactionid';
	},
	'the next commit waits for the row of the fence');
wait_until(sub { $host_a->safe_psql('postgres', "SELECT state FROM redlock_locks WHERE resource = 'job'") eq 'lost' }, 'its lock is lost');
$newer->query('ROLLBACK');
my $lost = $session->result;
is($lost->{state}, '40001', 'it fails after the wait');
is($lost->{message}, 'the lease on redlock "job" was lost before the commit', '... which is told');
is(steps(), '1', '... and its work undone');
$_->quit foreach $session, $newer;

# The fence waits for the commit of a former holder, and the run sees this commit.
foreach my $isolation ('read committed', 'repeatable read')
{
	foreach my $options ('fence => true', 'fence => true, record => true')
	{
		next if $isolation eq 'repeatable read' && $options !~ /record/;
		my ($former, $next) = map { session($host_a) } 1, 2;

		$former->query("TRUNCATE steps; SELECT redlock_acquire('job', scope => 'session')");
		$former->query("BEGIN; SELECT redlock_fence('job'); INSERT INTO steps VALUES (1); SELECT redlock_release('job')");
		$next->query("SET default_transaction_isolation = '$isolation'");
		$next->send("CALL redlock_run('job', 'INSERT INTO steps SELECT 10 + count(*) FROM steps', wait => '1 min', $options)");
		wait_until(
			sub { $host_a->safe_psql('postgres', 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $next->pid) eq 'Lock' },
			"$isolation, $options: it waits for the fence");
		$former->query('COMMIT');
		is($next->result->{state}, '', '... and passes it');
		is(steps(), '1 11', '... and sees what the former holder did');
		$_->quit foreach $former, $next;
	}
}

# ---- a transaction that is made read-only ----

foreach my $command ('SET TRANSACTION READ ONLY; SELECT 1', 'INSERT INTO steps VALUES (20); SET TRANSACTION READ ONLY')
{
	is(psql_result($host_a, "CALL redlock_run('job', '$command', fence => true, record => true)")->{state}, '', $command);
	is($host_a->safe_psql('postgres', 'SELECT status FROM redlock_runs ORDER BY started DESC LIMIT 1'), 'succeeded', '... and succeeds');
	is(psql_result($host_a, "CALL redlock_run('job', '$command', fence => true)")->{state}, '', '... also if it is not recorded');
}

# ---- without fence => true ----

$session = begin('');
is(token(), '', 'without fence nothing is recorded');
$gates->query('SELECT pg_advisory_unlock_all()');
is($session->result->{state}, '', 'nor at a commit');
is(token(), '', 'nor at the last');
$session->quit;

# ---- a commit that writes nothing needs no fence ----

$host_a->safe_psql('postgres', 'DELETE FROM redlock_fences');
$host_a->safe_psql('postgres', "CALL redlock_run('job', 'CALL batch(3, false)', fence => true)");
isnt(token(), '', 'it is recorded at the begin');

# ---- in a transaction block; in a function ----

$session = session($host_a);
$session->query("BEGIN; CALL redlock_run('job', 'INSERT INTO steps VALUES (7)', fence => true)");
$host_b->safe_psql('postgres', "SELECT 1");
is($session->query("COMMIT; SELECT count(*) FROM steps WHERE n = 7"), '1', 'in a transaction block');

# ---- after the run's last transaction ----

my $released = psql_result($host_a, <<'SQL');
DO $$
BEGIN
    CALL redlock_run('job', 'INSERT INTO steps VALUES (9)', fence => true);
    COMMIT;
    DELETE FROM redlock_fences;
    COMMIT;
    PERFORM redlock_release('job');
END $$
SQL
is($released->{state}, '', 'the lock can be released after the last transaction of the run');
is(token(), '', '... and later commits record no token');

# ---- rights ----

$host_a->safe_psql('postgres', <<'SQL');
REVOKE EXECUTE ON FUNCTION redlock_fence FROM PUBLIC;
CREATE ROLE worker;
GRANT INSERT ON steps TO worker;
SQL
my $denied = $session->run("SET ROLE worker; CALL redlock_run('job', 'INSERT INTO steps VALUES (8)', fence => true)");
is($denied->{state}, '42501', 'a role that may not call redlock_fence');
is($session->run("CALL redlock_run('job', 'INSERT INTO steps VALUES (8)')")->{state}, '', '... may do without');
$session->query('RESET ROLE');

$host_a->safe_psql('postgres', <<'SQL');
CREATE ROLE lib;
GRANT EXECUTE ON FUNCTION redlock_fence TO lib;
GRANT INSERT ON steps TO lib;
CREATE FUNCTION nightly() RETURNS text SECURITY DEFINER LANGUAGE plpgsql AS $$
BEGIN
    CALL redlock_run('job', 'INSERT INTO steps VALUES (10)', fence => true);
    RETURN current_user;
END $$;
ALTER FUNCTION nightly() OWNER TO lib;
DELETE FROM redlock_fences;
SQL
is($session->run('SET ROLE worker; SELECT nightly()')->{out}, 'lib', 'a function of a role that may call it records the token at the commit');
isnt(token(), '', '... as the row shows');
is($session->query('SELECT current_user'), 'worker', '... and the caller stays who it is');
$session->query('RESET ROLE');
is($session->run("CALL redlock_run('job', 'SELECT 1', fence => NULL)")->{state}, '22004', 'null is neither');
is($session->run("BEGIN READ ONLY; CALL redlock_run('job', 'SELECT 1', fence => true)")->{state}, '25006', 'in a read-only transaction');
$session->query('ROLLBACK');
wait_until(sub { $host_b->safe_psql('postgres', "SELECT redlock_try('job')") eq 't' }, 'nothing is left');

# the extension is dropped while an argument is computed
$session->query(<<'SQL');
DELETE FROM steps;
CREATE FUNCTION late() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock(99);
    PERFORM pg_advisory_unlock(99);
    RETURN 'INSERT INTO steps VALUES (99)';
END $$;
SQL
$gates->query('SELECT pg_advisory_lock(99)');
$session->send("CALL redlock_run('job', late(), fence => true)");
wait_until(sub { $host_a->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 1 }, 'an argument is computed');
$host_a->safe_psql('postgres', 'DROP EXTENSION redlock_pg CASCADE; CREATE EXTENSION redlock_pg');
$gates->query('SELECT pg_advisory_unlock(99)');
my $dropped = $session->result;
is("$dropped->{state} $dropped->{message}", '42883 redlock_run has been dropped during the call', 'a call whose fence is gone says so');
is(steps(), '', '... and runs nothing');

done_testing();
