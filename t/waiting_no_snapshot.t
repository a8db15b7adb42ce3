# Procedures wait for a lock without a snapshot.
#
# Protects from: a session waiting for a lock, and holding back VACUUM, or CREATE INDEX
# CONCURRENTLY under the same lock; a session going on without a snapshot, or with a wrong one.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\nautovacuum = off";
my @hosts = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b);
my ($host_a, $host_b) = @hosts;
my $holder = session($host_a);

sub waits
{
	my ($session, $host) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM redlock_locks WHERE state IN ('waiting', 'queued') AND pid = " . $session->pid) eq '1';
		},
		'it waits');
}

sub xmin
{
	my ($session, $host) = @_;
	return $host->safe_psql('postgres', 'SELECT backend_xmin FROM pg_stat_activity WHERE pid = ' . $session->pid);
}

# Does VACUUM remove rows deleted since?
sub vacuum_works
{
	my ($host) = @_;

	$host->safe_psql('postgres', 'DROP TABLE IF EXISTS dead; CREATE TABLE dead AS SELECT generate_series(1, 1000)');
	$host->safe_psql('postgres', 'DELETE FROM dead');
	$host->safe_psql('postgres', 'VACUUM dead');
	return $host->safe_psql('postgres', "SELECT pg_relation_size('dead') = 0");
}

$_->safe_psql('postgres', 'CREATE TABLE orders AS SELECT generate_series(1, 100) AS id; CREATE TABLE noted (what text)') foreach @hosts;
$holder->query("SELECT redlock_acquire('job', scope => 'session')");

# ---- the function has the snapshot of its statement ----

my $waiter = session($host_a);
$waiter->send("SELECT redlock_acquire('job', scope => 'session') > 0");
waits($waiter, $host_a);
isnt(xmin($waiter, $host_a), '', 'a SELECT that waits has a snapshot');
is(vacuum_works($host_a), 'f', 'VACUUM keeps rows for the snapshot');
$host_a->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
is($waiter->result->{state}, '57014', 'it is cancelled');

# ---- the procedures wait without a snapshot, at the gate and at the nodes ----

foreach my $host (@hosts)
{
	my $name = $host->name;

	foreach my $call ("CALL redlock_lock('job')", "CALL redlock_lock_all(ARRAY['another', 'job'])", "CALL redlock_run('job', 'INSERT INTO noted SELECT ''run''', wait => '1 h')",

		"CREATE OR REPLACE PROCEDURE nested() LANGUAGE plpgsql AS \$\$ BEGIN"
		. " INSERT INTO noted VALUES ('before'); COMMIT; CALL redlock_lock('job', scope => 'call');"
		. " INSERT INTO noted SELECT 'held' WHERE redlock_check('job') > '0'; END \$\$; CALL nested()")
	{
		$waiter = session($host);
		$waiter->send($call);
		waits($waiter, $host);
		is(xmin($waiter, $host), '', "$name: $call: no snapshot while it waits");
		is(vacuum_works($host), 't', "$name: VACUUM does its work");
		$host->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
		is($waiter->result->{state}, '57014', "$name: it is cancelled");
		is($waiter->query('SELECT count(*) > 0 FROM orders'), 't', "$name: and goes on");

		$waiter->send($call);
		waits($waiter, $host);
		$holder->query("INSERT INTO noted VALUES ('while it waited')") if $host == $host_a;
		$holder->query("SELECT redlock_release('job')");
		is($waiter->result->{state}, '', "$name: it gets the lock");
		$waiter->query('SELECT redlock_release_all()');
		$waiter->quit;
		$holder->query("SELECT redlock_acquire('job', scope => 'session')");
	}
	is($host->safe_psql('postgres', "SELECT string_agg(what, ' ' ORDER BY what) FROM noted WHERE what <> 'while it waited'"),
		'before before held run', "$name: the work of all waiters is there");
}

# ---- a transaction block keeps its snapshot and its work ----

$waiter = session($host_a);
$waiter->query("BEGIN; INSERT INTO noted VALUES ('block')");
$waiter->send("CALL redlock_lock('job')");
waits($waiter, $host_a);
$holder->query("SELECT redlock_release('job')");
is($waiter->result->{state}, '', 'in a transaction block');
$waiter->query('ROLLBACK');
is($waiter->query("SELECT redlock_check('job') > '0', (SELECT count(*) FROM noted WHERE what = 'block')"), 't|0',
	'the block rolls back, the lock stays');
$waiter->query("CALL redlock_lock('job')");
$waiter->query('SELECT redlock_release_all()');
$waiter->quit;

# ---- wherever a procedure may be called ----

$waiter = session($host_a);
$waiter->query(<<'SQL');
SET client_min_messages = warning;
CREATE PROCEDURE calls(how text) LANGUAGE plpgsql AS $$
DECLARE
    r record;
    c CURSOR FOR SELECT generate_series(1, 3) AS n;
BEGIN
    INSERT INTO noted VALUES ('not committed');
    IF how = 'loop' THEN
        FOR r IN SELECT * FROM orders WHERE id < 4 LOOP
            CALL redlock_run('other', 'INSERT INTO noted SELECT ' || quote_literal(how));
        END LOOP;
    ELSIF how = 'cursor' THEN
        OPEN c;
        FETCH c INTO r;
        CALL redlock_lock('other');
        FETCH c INTO r;
        INSERT INTO noted SELECT how WHERE r.n = 2;
    ELSIF how = 'exception' THEN
        BEGIN
            CALL redlock_run('other', 'INSERT INTO noted SELECT ' || quote_literal(how));
            PERFORM 1 / 0;
        EXCEPTION WHEN division_by_zero THEN
            INSERT INTO noted VALUES (how);
        END;
    ELSIF how = 'execute' THEN
        EXECUTE $q$CALL redlock_run('other', 'INSERT INTO noted VALUES (''execute'')')$q$;
    ELSIF how = 'commit' THEN
        CALL redlock_run('other', 'DO $d$ BEGIN INSERT INTO noted VALUES (''commit''); COMMIT; END $d$');
        INSERT INTO noted VALUES (how);
    ELSE
        CALL calls('loop');
    END IF;
    PERFORM redlock_release_all();
END $$;
CREATE FUNCTION calls_run() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL redlock_run('other', 'INSERT INTO noted VALUES (''function'')'); END $$;
CREATE PROCEDURE sql_calls() LANGUAGE sql AS $$ CALL redlock_run('other', 'INSERT INTO noted VALUES (''sql'')') $$;
SQL
foreach my $how ('loop', 'cursor', 'exception', 'execute', 'commit', 'nested')
{
	my $expected = { loop => 3, commit => 2, nested => 3 }->{$how} // 1;

	$waiter->query('DELETE FROM noted');
	$waiter->query("CALL calls('$how')");
	is($waiter->query("SELECT count(*) FROM noted WHERE what <> 'not committed'"), $expected, "in a procedure: $how");
	$waiter->query('DELETE FROM noted');
	$waiter->query("DO \$\$ BEGIN CALL calls('$how'); END \$\$");
	is($waiter->query("SELECT count(*) FROM noted WHERE what <> 'not committed'"), $expected, '... in a DO');
	next if $how eq 'commit';
	$waiter->query("DELETE FROM noted; BEGIN; CALL calls('$how'); COMMIT");
	is($waiter->query("SELECT count(*) FROM noted WHERE what <> 'not committed'"), $expected, '... in a transaction block');
}
$waiter->query('DELETE FROM noted; SELECT calls_run(); CALL sql_calls()');
is($waiter->query("SELECT string_agg(what, ' ' ORDER BY what) FROM noted"), 'function sql', 'in a function, and a procedure in SQL');
$waiter->query('BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 10); FETCH c; COMMIT');
$waiter->query("CALL redlock_lock('other')");
is($waiter->query('FETCH c'), '2', 'a cursor with hold stays open');
$waiter->query(q{SET default_transaction_isolation = 'repeatable read'; CALL redlock_run('other', 'INSERT INTO noted VALUES (''rr'')')});
is($waiter->query("SELECT redlock_release_all(), (SELECT count(*) FROM noted WHERE what = 'rr')"), '1|1', 'in REPEATABLE READ');
$waiter->quit;

# ---- lock_timeout ends a wait with an error; after a grant the timeout is off ----

$holder->query("SELECT redlock_acquire('job', scope => 'session')");
foreach my $host (@hosts)
{
	$waiter = session($host);
	$waiter->query("SET lock_timeout = '200 ms'");
	foreach my $wait ('NULL', "'1 h'")
	{
		my $late = $waiter->run("CALL redlock_run('job', 'INSERT INTO noted VALUES (''late'')', wait => $wait)");
		is($late->{state}, '55P03', $host->name . ": lock_timeout is sooner than wait => $wait");
		is($late->{message}, 'could not acquire redlock "job" within 200 ms (lock_timeout)', '... which is told');
	}
	$waiter->query("SET lock_timeout = '1 h'");
	foreach my $wait ("'0'", "'100 ms'")
	{
		like($waiter->run("CALL redlock_run('job', 'INSERT INTO noted VALUES (''late'')', wait => $wait)")->{err}, qr/NOTICE:.* skipped/, $host->name . ": wait => $wait is over: it is skipped");
	}
	$waiter->query("SET lock_timeout = '200 ms'");
	like($waiter->run("CALL redlock_run('job', 'INSERT INTO noted VALUES (''late'')')")->{err}, qr/NOTICE:.* skipped/, $host->name . ': so it is where nobody waits');
	$waiter->quit;
}
$holder->query('SELECT redlock_release_all()');

# ---- wrong calls ----

foreach my $wrong (
	[ "CALL redlock_lock('job', scope => 'transaction')", '22023' ],
	[ "CALL redlock_lock('job', scope => 'call')",        '55000' ],
	[ 'CALL redlock_lock(NULL)',                          '22004' ],
	[ "CALL redlock_lock('job', wait => '0', scope => NULL)", '22004' ])
{
	is($holder->run($wrong->[0])->{state}, $wrong->[1], $wrong->[0]);
}

# ---- a migration: each host builds an index under the lock, while all other hosts wait ----

my @sessions = map { my $host = $_; map { [ $host, session($host) ] } 1, 2 } @hosts;
$holder->query("SELECT redlock_acquire('job', scope => 'session')");
foreach my $pair (@sessions)
{
	$pair->[1]->send("CALL redlock_lock('job');\n"
		  . "CREATE INDEX CONCURRENTLY IF NOT EXISTS orders_id ON orders (id);\n"
		  . "SELECT redlock_release('job')");
	waits($pair->[1], $pair->[0]);
}
is($holder->run('CREATE INDEX CONCURRENTLY other ON orders (id)')->{state}, '', 'an index is built while sessions of this database wait');
$holder->query("SELECT redlock_release('job')");
is($_->[1]->result->{state}, '', $_->[0]->name . ': and so does each of these') foreach @sessions;
foreach my $host (@hosts)
{
	is($host->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND NOT indisvalid"),
		'0', $host->name . ': all indexes are valid');
	is($host->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'orders_id'"), '1', $host->name . ': and there');
}

done_testing();
